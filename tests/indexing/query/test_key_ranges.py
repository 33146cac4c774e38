"""What atoms ask of keys, for each type with all of its awkward values against all literals: no row is ever lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Atom, CompareOp, Comparison, Contains, In, IsNull, KeyIn, Like, StartsWith
from asyncpq.expressions.analysis import Truth
from asyncpq.indexing.index_model import KeyRange
from asyncpq.indexing.key_encoding import normalised, table_keys
from asyncpq.indexing.query.key_ranges import (
    Ranges,
    atom_ranges,
    composite_ranges,
    intersected,
    is_wide,
    merged_ranges,
    point_keys,
)
from tests.predicates import COLUMNS, EVERY_LITERAL, array

_OPS: tuple[CompareOp, ...] = ("==", "!=", "<", "<=", ">", ">=")
_TRUTHS = {True: Truth.TRUE, False: Truth.FALSE, None: Truth.NULL}
_Z = "z" * 64
_TEXT: list[Any] = ["", "a", "a\0", "a\0\1", "ab", "é", _Z[1:], _Z, _Z + "\0", _Z + "a", _Z + "b", _Z + "zz", "zzz"]
_FLOATS: list[Any] = [-math.inf, -1e300, -1.5, -0.0, 0.0, 5e-324, 1.0, 1.5, 3.0, 2.0**24, 2.0**53, math.inf, math.nan]
_SINGLES = [value for value in _FLOATS if not 1e30 < abs(value) < math.inf] + [0.10000000149011612]
_SMALL = [-4, -1, 0, 1, 2, 3, 6]
VALUES: dict[str, list[Any]] = {
    "int8": [*_SMALL, -128, 127],
    "int32": [*_SMALL, -(2**31), 2**31 - 1],
    "int64": [*_SMALL, -(2**63), 2**63 - 1, 2**53 + 1, 2**24 + 1],
    "uint8": [0, 1, 2, 3, 255],
    "uint32": [0, 1, 3, 2**32 - 1],
    "uint64": [0, 1, 3, 2**62, 2**63, 2**64 - 1],
    "float32": _SINGLES,
    "float64": _FLOATS,
    "bool": [False, True],
    "string": _TEXT,
    "large_string": _TEXT,
    "binary": [*(text.encode() for text in _TEXT), b"\xff", b"\xff\xff", b"\xff" * 70],
    "fixed": [b"aa", b"ab", b"a\0", b"b\0", b"\xff\xff", b"\0\0"],
    "decimal": [Decimal(text) for text in ("-1.25", "0", "0.01", "1.25", "1.24", "3", "99999.99", "-99999.99")],
    "wide_decimal": [Decimal(text) for text in ("-1.25", "0", "0.01", "1.25", "1.24", "3")],
    "dictionary": _TEXT,
}


def _some(kind: str) -> list[Any]:
    """Values of a kind that has none above: the first few that its strategy has."""
    found: list[Any] = []
    for _ in range(4):
        known = list(found)
        found.append(find(COLUMNS[kind][1], lambda value: value not in known, settings=settings(database=None)))  # noqa: B023
    return found


def _atoms(kind: str, own: list[Any]) -> Iterator[Atom]:
    literals = [*own, *EVERY_LITERAL]
    for op, value in product(_OPS, literals):
        yield Comparison("x", op, value)
    for value in literals:
        for values in ((value,), (own[0], None, value)):
            yield In("x", values)
            yield KeyIn("x", values)
    yield In("x", ())
    yield KeyIn("x", ())
    yield IsNull("x", nan_is_null=False)
    yield IsNull("x", nan_is_null=True)
    if kind in ("string", "large_string", "binary", "dictionary"):
        for value in own:
            any_text: Any = "%" if isinstance(value, str) else b"%"
            yield StartsWith("x", value)
            yield Contains("x", value)
            yield Like("x", value + any_text)
            yield Like("x", value)


def _holds(ranges: Ranges | None, key: bytes) -> bool:
    return ranges is None or any(key in range_ for range_ in ranges)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", list(COLUMNS))
def test_no_row_is_lost(kind: str) -> None:
    type_ = COLUMNS[kind][0]
    own = VALUES.get(kind) or _some(kind)
    column = array(kind, [*own, None])
    keys = normalised(column, type_).to_pylist()
    answered = 0
    for atom in _atoms(kind, own):
        ranges = {truth: atom_ranges(atom, truth, type_) for truth in Truth}
        answered += ranges[Truth.TRUE] is not None
        try:
            mask = compile_filter(atom, {"x": type_}).mask({"x": column}, len(column)).to_pylist()
        except PredicateTypeError:
            continue
        for key, value, result in zip(keys, [*own, None], mask, strict=True):
            assert _holds(ranges[_TRUTHS[result]], key), (atom, value, result)
    assert answered > len(own)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind not in ("bool",)])
def test_values_are_told_apart(kind: str) -> None:
    """The ranges of a comparison with a column's own value hold no key of which it is not true."""
    type_, own = COLUMNS[kind][0], VALUES[kind]
    column = array(kind, own)
    keys = normalised(column, type_).to_pylist()
    for op, literal in product(_OPS, own):
        size = len(literal) if isinstance(literal, (str, bytes)) else 0
        if size > 64 and op != "==":
            continue  # of long strings with one prefix only the hash is known
        atom = Comparison("x", op, literal)
        mask = compile_filter(atom, {"x": type_}).mask({"x": column}, len(column)).to_pylist()
        ranges = atom_ranges(atom, Truth.TRUE, type_)
        assert [_holds(ranges, key) for key in keys] == mask, atom


@pytest.mark.parametrize(
    "kinds", [("string", "int64"), ("int64", "string"), ("float64", "binary"), ("bool", "fixed")], ids=" ".join
)
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_composite_ranges(kinds: tuple[str, str], limit: int) -> None:
    types = [COLUMNS[kind][0] for kind in kinds]
    pools = [[*VALUES[kind][:11], None] for kind in kinds]
    rows = list(product(*pools))
    columns = [array(kind, [row[at] for row in rows]) for at, kind in enumerate(kinds)]
    parts = [normalised(column, type_).to_pylist() for column, type_ in zip(columns, types, strict=True)]
    keys = table_keys(columns, types).to_pylist()
    asked: list[list[Ranges | None]] = []
    for type_, pool in zip(types, pools, strict=True):
        atoms: list[Atom] = [Comparison("x", op, pool[1]) for op in _OPS]
        atoms += [In("x", (None, *pool[:4])), In("x", tuple(pool[1:3])), IsNull("x"), IsNull("x", nan_is_null=True)]
        asked.append(
            [*(atom_ranges(atom, truth, type_) for atom in atoms for truth in (Truth.TRUE, Truth.FALSE)), None]
        )
    for first, second in product(*asked):
        ranges = composite_ranges([first, second], types, limit)
        if first is None or (first and second == ()):
            assert ranges == (() if second == () else None)
            continue
        assert ranges is not None
        assert ranges == merged_ranges(ranges)
        assert len(ranges) <= max(limit, 1)
        single = point_keys(first) is not None and len(first) <= limit
        narrow = single and second is not None and len(first) * len(second) <= limit
        for left, right, key in zip(*parts, keys, strict=True):
            wanted = _holds(first, left) and _holds(second, right)
            assert not wanted or _holds(ranges, key)
            if narrow:  # nothing else, too
                assert wanted or not _holds(ranges, key)
            elif single or len(first) <= limit:
                assert _holds(first, left) or not _holds(ranges, key)


def test_merged_ranges() -> None:
    given = [
        KeyRange(b"c", b"d"),
        KeyRange(b"a", b"b"),
        KeyRange(b"b", b"b"),
        KeyRange(b"d", b"e"),
        KeyRange(b"x", None),
    ]
    assert merged_ranges(given) == (KeyRange(b"a", b"b"), KeyRange(b"c", b"e"), KeyRange(b"x", None))
    assert merged_ranges([KeyRange(b"a", None), KeyRange(b"b", b"c")]) == (KeyRange(b"a", None),)
    assert merged_ranges([KeyRange(b"a", b"z"), KeyRange(b"b", b"c")]) == (KeyRange(b"a", b"z"),)


def test_single_keys() -> None:
    type_ = pa.int64()
    two = atom_ranges(In("x", (1, None)), Truth.TRUE, type_)
    assert two is not None
    assert point_keys(two) == tuple(normalised(pa.array([None, 1]), type_).to_pylist())
    above = atom_ranges(Comparison("x", ">", 1), Truth.TRUE, type_)
    assert above is not None
    assert point_keys(above) is None


def test_what_says_nothing() -> None:
    assert atom_ranges(Comparison("x", "==", Decimal("0.1")), Truth.TRUE, pa.float64()) is None  # cast, perhaps rounded
    assert atom_ranges(In("x", (1.0,)), Truth.TRUE, pa.int64()) is None
    assert atom_ranges(Comparison("x", "==", None), Truth.NULL, pa.int64()) is None
    assert atom_ranges(Comparison("x", "==", None), Truth.TRUE, pa.int64()) == ()
    assert atom_ranges(KeyIn("x", ()), Truth.FALSE, pa.int64()) is None


def test_integers_that_no_float_is() -> None:
    """pyarrow refuses them for some columns; what is said of them is right all the same."""
    below, above = normalised(pa.array([2.0**53, 2.0**53 + 2]), pa.float64()).to_pylist()
    less = atom_ranges(Comparison("x", "<", 2**53 + 1), Truth.TRUE, pa.float64())
    assert _holds(less, below)
    assert not _holds(less, above)
    assert atom_ranges(Comparison("x", "==", 2**53 + 1), Truth.TRUE, pa.float64()) == ()
    largest = normalised(pa.array([1.7976931348623157e308]), pa.float64())[0].as_py()
    assert _holds(atom_ranges(Comparison("x", "<", 10**400), Truth.TRUE, pa.float64()), largest)
    assert not _holds(atom_ranges(Comparison("x", "<", -(10**400)), Truth.TRUE, pa.float64()), largest)


@given(*[st.lists(st.sampled_from(list(range(9))), unique=True, max_size=8) for _ in range(2)], st.booleans())
def test_intersected_ranges_have_the_keys_of_both(left: list[int], right: list[int], open_: bool) -> None:
    def ranges(cuts: list[int]) -> Ranges:
        ends = [bytes([cut]) for cut in sorted(cuts)]
        ends = ends[: len(ends) // 2 * 2]
        pairs = [KeyRange(low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]
        if pairs and open_:
            pairs[-1] = KeyRange(pairs[-1].low, None)
        return tuple(pairs)

    def has(given_ranges: Ranges, key: int) -> bool:
        return any(low <= bytes([key]) and (high is None or bytes([key]) < high) for low, high in given_ranges)

    mine, others = ranges(left), ranges(right)
    both = intersected(mine, others)
    assert [has(both, key) for key in range(10)] == [has(mine, key) and has(others, key) for key in range(10)]
    assert list(both) == sorted(both)


def test_ranges_that_exclude_values_are_wide() -> None:
    for where, wide in ((Comparison("x", "!=", 3), True), (Comparison("x", "==", 3), False), (IsNull("x"), False)):
        ranges = atom_ranges(where, Truth.TRUE, pa.int64())
        assert ranges is not None
        assert is_wide(ranges) is wide, where
