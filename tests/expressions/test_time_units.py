"""Times, durations and timestamps of random units compare exactly: in filters, among keys, and with statistics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.decoding.filter import compile_filter
from asyncpq.expressions import CompareOp, Comparison, In, KeyIn
from asyncpq.expressions.analysis import Comparable, Truth
from asyncpq.expressions.scalars import NANOSECONDS, as_scalar, as_scalars, nanoseconds
from asyncpq.indexing.key_encoding import normalised
from asyncpq.indexing.query.key_ranges import atom_ranges
from asyncpq.pruning.literals import domain_of

OPS: dict[CompareOp, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FAMILIES: dict[str, Callable[[str], pa.DataType]] = {
    "timestamp": pa.timestamp,
    "instant": lambda unit: pa.timestamp(unit, "UTC"),
    "duration": pa.duration,
    "time": lambda unit: pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit),
}
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
_NEAR = st.integers(-3, 3)
_STEPS = st.sampled_from([0, 1, 10**3, 10**6, 10**9, 86_399 * 10**9, 1_709_164_800_123_456_789, 2**62])


@st.composite
def numbers(draw: st.DrawFn, family: str, unit: str) -> int:
    """Of units; near to where units of other sizes meet."""
    if family == "time":
        return draw(st.integers(0, 86_400 * 10**9 // NANOSECONDS[unit] - 1) | st.integers(0, 2_001))
    number = draw(_NEAR) + draw(_STEPS) // draw(st.sampled_from([1, NANOSECONDS[unit]]))
    return draw(st.sampled_from([1, -1])) * number


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Array, list[pa.Scalar]]:
    """A column, and literals of perhaps another unit."""
    family = draw(st.sampled_from(list(FAMILIES)))
    own, other = draw(UNITS), draw(UNITS)
    values = draw(st.lists(numbers(family, own), min_size=1, max_size=6))
    literals = draw(st.lists(numbers(family, other), min_size=1, max_size=3))
    scalars = [pa.scalar(number, FAMILIES[family](other)) for number in literals]
    return pa.array([*values, None], FAMILIES[family](own)), scalars


def exact(scalar: pa.Scalar) -> int:
    return int(scalar.value) * NANOSECONDS[scalar.type.unit]


def mask(column: pa.Array, predicate: Any) -> list[bool | None]:
    found: list[bool | None] = (
        compile_filter(predicate, {"x": column.type}).mask({"x": column}, len(column)).to_pylist()
    )
    return found


@given(cases(), st.sampled_from(list(OPS)))
@example((pa.array([1, None], pa.timestamp("us")), [pa.scalar(1_001, pa.timestamp("ns"))]), "<")
@example((pa.array([2**62, None], pa.duration("s")), [pa.scalar(1, pa.duration("ns"))]), ">")
def test_comparisons(case: tuple[pa.Array, list[pa.Scalar]], op: CompareOp) -> None:
    column, (literal, *_) = case
    values = [exact(value) for value in column if value.is_valid]
    wanted = [OPS[op](value, exact(literal)) for value in values]
    atom = Comparison("x", op, as_scalar(literal))
    assert nanoseconds(atom.value) == exact(literal)  # type: ignore[arg-type]  # a time
    assert mask(column, atom) == [*wanted, None]
    _assert_keys_hold(column, atom, [*wanted, None])


@given(cases())
def test_members(case: tuple[pa.Array, list[pa.Scalar]]) -> None:
    column, literals = case
    keys = set(map(exact, literals))
    wanted = [exact(value) in keys for value in column if value.is_valid]
    for atom, null in ((In("x", as_scalars(literals)), False), (KeyIn("x", as_scalars(literals)), None)):
        assert mask(column, atom) == [*wanted, null]
        _assert_keys_hold(column, atom, [*wanted, null])


def _assert_keys_hold(column: pa.Array, atom: Any, results: list[bool | None]) -> None:
    """No row is outside of the keys that an index looks up for its result."""
    stored = normalised(column, column.type).to_pylist()
    for truth in Truth:
        ranges = atom_ranges(atom, truth, column.type)
        if ranges is None:
            continue
        wanted = {Truth.TRUE: True, Truth.FALSE: False, Truth.NULL: None}[truth]
        for key, result in zip(stored, results, strict=True):
            assert result is not wanted or any(key in range_ for range_ in ranges)


@given(cases())
def test_literals_among_statistics(case: tuple[pa.Array, list[pa.Scalar]]) -> None:
    column, literals = case
    convert = domain_of(kind_of(column.type)).to_key
    for literal in literals:
        found = convert(as_scalar(literal))
        assert isinstance(found, Comparable) is not pa.types.is_duration(column.type)
        if isinstance(found, Comparable):
            assert found.key * NANOSECONDS[column.type.unit] == exact(literal)
