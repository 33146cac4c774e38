"""Ranges of columns hold every row for which pyarrow's filter is true; what they call impossible matches no row."""

from __future__ import annotations

import datetime as dt
import importlib
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import (
    And,
    Constant,
    Expression,
    Not,
    Or,
    StartsWith,
    ValueRanges,
    col,
    column_ranges,
    is_unsatisfiable,
    without_contradictions,
)
from asyncpq.expressions.analysis import Interval, Intervals, complement, intersect, unite
from asyncpq.expressions.scalars import Timestamp
from tests.example_counts import examples
from tests.predicates import COLUMNS, INSIDE, KINDS, array, arrays, atoms, model, trees, uses

# the module: the package has a function of its name
simplify = importlib.import_module("asyncpq.expressions.simplify")


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, list[Any]], Expression]:
    """Small tables, and predicates that name the same column again and again."""
    kinds = {f"c{at}": draw(KINDS) for at in range(draw(st.integers(1, 2)))}
    num_rows = draw(st.integers(1, 8))
    values = {name: draw(arrays(kind, min_size=num_rows, max_size=num_rows)) for name, kind in kinds.items()}
    leaf = st.one_of([atoms(name, kind) for name, kind in kinds.items()])
    conjunction = st.lists(st.one_of(leaf, leaf.map(Not)), min_size=2, max_size=4).map(lambda args: And(tuple(args)))
    return (
        kinds,
        values,
        draw(st.one_of(trees(leaf), conjunction, st.builds(lambda *args: Or(args), conjunction, leaf))),
    )


# Few values, and literals of several types near them, so that atoms of one column touch and exclude each other.
_SINGLE = struct.unpack("<f", struct.pack("<f", 0.1))[0]
_NEAR: dict[str, tuple[list[Any], list[Any]]] = {
    "int32": ([-1, 0, 1], [0, 1, -0.0, 0.5, 1.0, Decimal("0.5"), float("nan")]),
    "float32": ([0.0, -0.0, _SINGLE, 1.0, float("nan")], [0, 0.0, -0.0, 0.1, _SINGLE, Decimal("0.1"), float("nan")]),
    "float64": ([0.0, -0.0, 0.1, float("nan")], [0, 0.0, -0.0, 0.1, Decimal("0.1"), float("nan")]),
    "decimal": ([Decimal("0.10"), Decimal("0.11")], [Decimal("0.1"), 0.1, 0, Decimal("0.105"), 0.11]),
    "string": (["", "a", "ab", "b"], ["", "a", "ab", "b"]),
}


@st.composite
def near_cases(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, list[Any]], Expression]:
    """One column of few values, and predicates on it."""
    kind = draw(st.sampled_from(list(_NEAR)))
    values, literals = _NEAR[kind]
    leaf = atoms("c0", kind, foreign=False, own=st.sampled_from(literals))
    either = st.one_of(leaf, leaf.map(Not))
    both = st.builds(lambda *args: And(args), either, either)
    expr = draw(st.one_of(both, st.builds(lambda *args: Or(args), both, either), either))
    return {"c0": kind}, {"c0": [*values, None]}, draw(st.sampled_from([expr, Not(Not(expr)), And((expr,))]))


def compiled(
    expr: Expression, kinds: dict[str, str], values: dict[str, list[Any]]
) -> tuple[list[int], tuple[Any, ...]]:
    """The rows for which the filter is true, and the atoms whose literals it casts."""
    data = {name: array(kind, values[name]) for name, kind in kinds.items()}
    try:
        found = compile_filter(expr, {name: COLUMNS[kind][0] for name, kind in kinds.items()})
        num_rows = len(next(iter(values.values())))
        mask = found.mask({name: data[name] for name in found.columns}, num_rows)
    except PredicateTypeError:
        assume(False)
    return [row for row, result in enumerate(mask.to_pylist()) if result], found.engine_atoms


@settings(max_examples=examples(120, thorough=1000))
@given(cases() | near_cases() | near_cases())
def test_matching_rows_are_in_the_ranges(case: tuple[dict[str, str], dict[str, list[Any]], Expression]) -> None:
    kinds, values, expr = case
    rows, inexact = compiled(expr, kinds, values)
    ranges = column_ranges(expr, inexact)
    assert is_unsatisfiable(expr, inexact) is (ranges is None)
    if ranges is None:
        assert not rows
        return
    for name, found in ranges.items():
        for row in rows:
            assert values[name][row] in found, (str(expr), str(found))
        for before, after in zip(found.intervals, found.intervals[1:], strict=False):
            assert not intersect((before,), (after,))


@settings(max_examples=examples(75, thorough=500))
@given(cases() | near_cases())
def test_without_contradictions_the_rows_are_the_same(
    case: tuple[dict[str, str], dict[str, list[Any]], Expression],
) -> None:
    kinds, values, expr = case
    rows, inexact = compiled(expr, kinds, values)
    shorter = without_contradictions(expr, inexact)
    assert compiled(shorter, kinds, values)[0] == rows
    args = expr.args if isinstance(expr, And) else ()
    flat = not any(isinstance(arg, (And, Or)) for arg in map(_inner, args))
    if args and flat and is_unsatisfiable(expr, inexact) and not any(is_unsatisfiable(arg, inexact) for arg in args):
        assert shorter == Constant(False)


def _inner(expr: Expression) -> Expression:
    return _inner(expr.arg) if isinstance(expr, Not) else expr


@settings(max_examples=examples(120, thorough=1000))
@given(st.sampled_from(["int32", "string", "date32", "timestamp_us", "timestamp_utc"]), st.data())
def test_ranges_of_their_own_literals_are_tight(kind: str, data: st.DataObject) -> None:
    """Where one column alone is asked, each end of its ranges is one at which the answer changes."""
    literals = st.one_of([atoms("c0", kind, foreign=False)])
    expr = data.draw(st.one_of(literals, literals.map(Not), st.builds(lambda *args: And(args), literals, literals)))
    assume(not uses(expr, *INSIDE))
    ranges = column_ranges(expr)
    for value in data.draw(arrays(kind, min_size=4)):
        if ranges is None:
            assert not model(expr, {"c0": value})
        elif "null or nan" not in str(expr) and value != 0:  # ranges do not tell -0.0 from 0.0
            found = "c0" not in ranges or value in ranges["c0"]
            assert found is bool(model(expr, {"c0": value}))


_ENDS = st.none() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.5])


@st.composite
def interval_sets(draw: st.DrawFn) -> Intervals:
    found: Intervals = ()
    for _ in range(draw(st.integers(0, 3))):
        low, high = draw(_ENDS), draw(_ENDS)
        if low is not None and high is not None and low >= high:
            low, high = high, low
        both = low is not None and low == high
        found = unite(found, (Interval(low, high, not both and draw(st.booleans()), not both and draw(st.booleans())),))
    return found


def _holds(intervals: Intervals, value: float) -> bool:
    return any(
        (one.low is None or (value > one.low if one.low_open else value >= one.low))
        and (one.high is None or (value < one.high if one.high_open else value <= one.high))
        for one in intervals
    )


@settings(max_examples=examples(200, thorough=1000))
@given(interval_sets(), interval_sets())
def test_sets_of_intervals(left: Intervals, right: Intervals) -> None:
    for step in range(-17, 18):
        value = step / 4
        assert _holds(intersect(left, right), value) is (_holds(left, value) and _holds(right, value))
        assert _holds(unite(left, right), value) is (_holds(left, value) or _holds(right, value))
        assert _holds(complement(left), value) is not _holds(left, value)


@given(st.text(max_size=3), st.text(max_size=3))
@example("a", "b")
@example("a\ud7ff", "a\ue000")
@example("a\U0010ffff", "b")
@example("\U0010ffff", "\U0010ffff")
def test_prefixes(prefix: str, text: str) -> None:
    assume(not any(0xD800 <= ord(char) <= 0xDFFF for char in prefix + text))
    (found,) = (column_ranges(StartsWith("s", prefix)) or {}).values()
    assert (text in found) is text.startswith(prefix)
    raw = (column_ranges(StartsWith("s", prefix.encode())) or {})["s"]
    assert (text.encode() in raw) is text.encode().startswith(prefix.encode())


def test_literals_of_two_kinds_do_not_contradict() -> None:
    a = col("a")
    assert column_ranges((a == "x") & (a == 1)) is not None
    assert column_ranges((a == "x") | (a == 1)) == {"a": ValueRanges(null=False, nan=False)}
    assert str((column_ranges(a.is_in(["x", 1])) or {})["a"]) == "any value or nan"


def test_moments_are_ordered_by_their_instants() -> None:
    paris = dt.timezone(dt.timedelta(hours=2))
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    at = column_ranges(col("t") == noon)
    assert at is not None
    assert noon.astimezone(paris) in at["t"]
    assert noon + dt.timedelta(microseconds=1) not in at["t"]
    assert is_unsatisfiable((col("t") == noon) & (col("t") > noon.astimezone(paris)))
    assert not is_unsatisfiable((col("t") == noon) & (col("t") > noon.replace(tzinfo=None)))
    assert is_unsatisfiable((col("t") == Timestamp(1, "UTC")) & (col("t") < dt.datetime(1970, 1, 1, tzinfo=paris)))


def test_thousands_of_branches_cost_little_more_than_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition of a few kilobytes would hold up the event loop for seconds."""
    passed = 0

    def counted(join: Callable[[Intervals, Intervals], Intervals]) -> Callable[[Intervals, Intervals], Intervals]:
        def joined(left: Intervals, right: Intervals) -> Intervals:
            nonlocal passed
            passed += len(left) + len(right)
            return join(left, right)

        return joined

    monkeypatch.setattr(simplify, "unite", counted(unite))
    monkeypatch.setattr(simplify, "intersect", counted(intersect))
    keys = range(0, 2048, 2)
    some = column_ranges(Or(tuple([col("a") == key for key in keys])))
    others = column_ranges(And(tuple([col("a") != key for key in keys])))
    assert some is not None
    assert others is not None
    assert some["a"].intervals == tuple([Interval(key, key) for key in keys])
    assert others["a"].intervals == complement(some["a"].intervals)
    assert passed < 4 * len(keys) * 11
