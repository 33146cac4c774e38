"""Zones of random values lose none: bounds left out, widened, cut short; few keys and many."""

from __future__ import annotations

import datetime as dt
import functools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.expressions import Comparison, Contains, In, IsNull, KeyIn, Like, Not, StartsWith
from asyncpq.expressions.analysis import Comparable, Truth
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import SortOrder
from asyncpq.pruning.literals import domain_of, kind_of_leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import ZonedColumn, Zones, rows_where
from tests.example_counts import examples
from tests.parquet_files import PrunedFile
from tests.predicates import COLUMNS, array, arrays, atoms, model, results, sorted_values, trees

_RESULTS = {Truth.TRUE: True, Truth.FALSE: False, Truth.NULL: None}


# Few values, so that zones of one value alone are common.
_FEW: dict[str, tuple[SortOrder, st.SearchStrategy[Any]]] = {
    "int32": (SortOrder.SIGNED, st.integers(0, 3)),
    "float64": (SortOrder.FLOAT, st.sampled_from([0.0, -0.0, float("nan"), 1.0])),
    "bool": (SortOrder.BOOLEAN, st.booleans()),
    "binary": (SortOrder.BYTES, st.sampled_from([b"", b"a", b"ab", b"b"])),
    "decimal": (SortOrder.DECIMAL, st.integers(0, 3).map(Decimal)),
    "timestamp_ms": (SortOrder.SIGNED, st.integers(0, 3).map(lambda n: dt.datetime(2024, 1, 1 + n))),
}


@functools.cache
def leaf_of(kind: str) -> Leaf:
    return PrunedFile(pa.table({"c0": array(kind, [None])}), rows_per_page=1).leaf("c0")


def key_of(kind: str, value: Any) -> Any:
    literal = domain_of(kind_of_leaf(leaf_of(kind), _FEW[kind][0])).to_key(value)
    assert isinstance(literal, Comparable)
    return literal.key


@st.composite
def known_zones(draw: st.DrawFn) -> tuple[str, list[list[Any]], Zones]:
    """Zones of a few values, and true statements about them, some left out."""
    kind = draw(st.sampled_from([*_FEW, "float64", "float64"]))
    order, values = _FEW[kind]
    zones = draw(st.lists(st.lists(st.none() | values, min_size=1, max_size=3), min_size=1, max_size=5))
    if draw(st.booleans()):
        zones = [[value] for value in sorted_values([v for zone in zones for v in zone], reverse=draw(st.booleans()))]
    mins: list[Any] = []
    maxs: list[Any] = []
    exact: list[bool] = []
    null_counts: list[int | None] = []
    nan_counts: list[int | None] = []
    for zone in zones:
        keys = [key_of(kind, value) for value in zone if value is not None and value == value]
        known = bool(keys) and draw(st.integers(0, 4)) > 0
        exact.append(draw(st.booleans()))
        wider = 0 if exact[-1] or kind not in ("int32", "decimal") else 1
        mins.append(min(keys) - wider if known and wider else min(keys) if known else None)
        maxs.append(max(keys) + wider if known and wider else max(keys) if known else None)
        null_counts.append(draw(st.sampled_from([zone.count(None), None])))
        nan_counts.append(draw(st.sampled_from([sum(value != value for value in zone), None])))
    made = Zones(
        ZonedColumn.of_leaf(leaf_of(kind), order),
        mins,
        maxs,
        all_null=[zone.count(None) == len(zone) and draw(st.booleans()) for zone in zones],
        null_counts=draw(st.sampled_from([null_counts, None])),
        nan_counts=draw(st.sampled_from([nan_counts, None])),
        exact=draw(st.sampled_from([exact, None])),
    )
    return kind, zones, made


@settings(max_examples=examples(300, thorough=2000))
@given(known_zones(), st.data())
def test_zones(case: tuple[str, list[list[Any]], Zones], data: st.DataObject) -> None:
    kind, zones, known = case
    atom = atoms("c0", kind, foreign=False, own=_FEW[kind][1])
    expr = data.draw(st.one_of(atom, atom.map(Not), trees(atom)))
    for truth, result in _RESULTS.items():
        left = rows_where(expr, truth, len(zones), {"c0": known})
        for at, zone in enumerate(zones):
            assert at in left or result not in [model(expr, {"c0": value}) for value in zone]


_LETTERS = st.text("ab\x7f", max_size=5).map(lambda text: text.encode().replace(b"\x7f", b"\xff"))


def _cut(values: list[bytes], length: int, bare: bool) -> tuple[bytes, bytes]:
    """Bounds as a writer may store them: cut to a length, the max raised or left as a bare prefix."""
    low, high = min(values), max(values)
    kept = high[:length]
    if kept != high and not bare:
        raised = kept.rstrip(b"\xff")
        kept = raised[:-1] + bytes([raised[-1] + 1]) if raised else high
    return low[:length], kept


@st.composite
def string_zones(draw: st.DrawFn) -> tuple[list[list[bytes]], list[tuple[bytes, bytes]]]:
    zones = draw(st.lists(st.lists(_LETTERS, min_size=1, max_size=3), min_size=1, max_size=8))
    if draw(st.booleans()):
        ordered = iter(sorted(value for zone in zones for value in zone))
        zones = [[next(ordered) for _ in zone] for zone in zones]
    if draw(st.booleans()):
        zones.reverse()
    return zones, [_cut(zone, draw(st.integers(1, 4)), draw(st.booleans())) for zone in zones]


_STRING_ATOMS = st.one_of(
    st.builds(Comparison, st.just("s"), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _LETTERS),
    st.builds(StartsWith, st.just("s"), _LETTERS),
    st.builds(Contains, st.just("s"), _LETTERS),
    st.builds(Like, st.just("s"), st.tuples(_LETTERS, st.sampled_from([b"", b"%", b"_", b"%b", b"\\%"])).map(b"".join)),
    st.builds(In, st.just("s"), st.lists(_LETTERS, max_size=12).map(tuple)),
    st.builds(KeyIn, st.just("s"), st.lists(_LETTERS, max_size=12).map(tuple)),
    st.builds(IsNull, st.just("s")),
)


@pytest.mark.heavy
@settings(max_examples=examples(200, thorough=1000))
@given(string_zones(), _STRING_ATOMS, st.booleans())
def test_bounds_cut_short(zones: tuple[list[list[bytes]], list[tuple[bytes, bytes]]], atom: Any, flagged: bool) -> None:
    values, bounds = zones
    exact = [low == min(zone) and high == max(zone) for zone, (low, high) in zip(values, bounds, strict=True)]
    known = Zones(
        ZonedColumn.of_leaf(leaf_of("binary"), SortOrder.BYTES),
        [low for low, _ in bounds],
        [high for _, high in bounds],
        all_null=[False] * len(bounds),
        null_counts=[0] * len(bounds),
        exact=[is_exact and flagged for is_exact in exact],
    )
    for expr in (atom, Not(atom)):
        for truth, result in _RESULTS.items():
            left = rows_where(expr, truth, len(values), {"s": known})
            for at, zone in enumerate(values):
                assert at in left or result not in [model(expr, {"s": value}) for value in zone]


@pytest.mark.heavy
@settings(max_examples=100)
@given(st.data())
def test_many_keys(data: st.DataObject) -> None:
    """Few keys are searched for among the zones, many zones among the keys: both find the same."""
    kind = data.draw(st.sampled_from(["int64", "string", "float64"]))
    num_rows = data.draw(st.integers(30, 60))
    drawn = data.draw(arrays(kind, min_size=num_rows, max_size=num_rows))
    values = sorted_values(drawn, reverse=data.draw(st.booleans()))
    keys = data.draw(st.lists(COLUMNS[kind][1] | st.none(), max_size=6).map(tuple))
    table = pa.table({"k": array(kind, values)})
    pages = PrunedFile(table, rows_per_page=1).page_zones(0, "k")
    expr = KeyIn("k", keys)
    exact = [row for row, found in enumerate(results(expr, table)) if found]
    left = rows_where(expr, Truth.TRUE, num_rows, pages)
    assert not RowRanges.from_rows(exact) - left
    one_by_one = RowRanges.empty()
    for key in keys:
        if key is not None and key == key:
            one_by_one |= rows_where(Comparison("k", "==", key), Truth.TRUE, num_rows, pages)
    if kind != "float64":
        assert left == one_by_one
