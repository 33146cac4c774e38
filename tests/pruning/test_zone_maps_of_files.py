"""Files are pruned by what is known of them, never one that holds a row for which pyarrow's filter is true."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Expression, col
from asyncpq.expressions.analysis import Truth
from asyncpq.pruning.literals import Domain, ValueKind
from asyncpq.pruning.zone_maps import FileBounds, Zones, file_zones, rows_where, value_zones
from tests.example_counts import examples
from tests.predicates import COLUMNS, INSIDE, KINDS, array, arrays, expressions, oracle, uses

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def lower(value: Any) -> Any:
    """Some bound below a value, as a table may keep it."""
    match value:
        case bool():
            return False
        case int():
            return value - 3
        case float():
            return math.nextafter(value, -math.inf)
        case str() | bytes():
            return value[:1]
        case Decimal():
            return value - Decimal("0.001")
        case dt.datetime():
            return value - dt.timedelta(microseconds=1)
        case dt.date():
            return value - dt.timedelta(days=1)
        case dt.time():
            return dt.time(0)
    return value


def upper(value: Any) -> Any:
    """Some bound above a value."""
    match value:
        case bool():
            return True
        case int():
            return value + 3
        case float():
            return math.nextafter(value, math.inf)
        case str():
            return value[:1] + "\U0010ffff"
        case bytes():
            return value + b"\0"
        case Decimal():
            return value + Decimal("0.001")
        case dt.datetime():
            return value + dt.timedelta(microseconds=1)
        case dt.date():
            return value + dt.timedelta(days=1)
        case dt.time():
            return dt.time(23, 59)
    return value


@st.composite
def zones_of(draw: st.DrawFn, kind: str, files: list[list[Any]]) -> Zones:
    """True statements about files, some wider than need be, some left out."""
    mins: list[Any] = []
    maxs: list[Any] = []
    null_counts: list[int | None] = []
    all_null: list[bool] = []
    may_be_nan: list[bool] = []
    for values in files:
        present = [value for value in values if value is not None and value == value]
        ways = st.sampled_from(["exact", "exact", "wide", "none"])
        low, high = draw(ways), draw(ways)
        least, greatest = (min(present), max(present)) if present else (None, None)
        mins.append(None if low == "none" or not present else least if low == "exact" else lower(least))
        maxs.append(None if high == "none" or not present else greatest if high == "exact" else upper(greatest))
        null_counts.append(draw(st.sampled_from([values.count(None), None])))
        has_nan = any(value != value for value in values)
        all_null.append(not present and not has_nan and draw(st.booleans()))
        may_be_nan.append(has_nan or draw(st.booleans()))
    return file_zones(kind_of(COLUMNS[kind][0]), FileBounds(mins, maxs, null_counts, all_null, may_be_nan))


def matches(expr: Expression, kinds: dict[str, str], file: dict[str, list[Any]]) -> bool:
    """Whether the filter is true for some row: as pyarrow has it, else as the filter has, where pyarrow gives up."""
    data = {name: array(kind, file[name]) for name, kind in kinds.items()}
    try:
        found = compile_filter(expr, {name: COLUMNS[kind][0] for name, kind in kinds.items()})
        mask = found.mask({name: data[name] for name in found.columns}, len(next(iter(file.values()))))
    except PredicateTypeError:
        assume(False)
    ours = pc.any(mask).as_py() is True
    try:
        theirs = pa.table(data).filter(oracle(expr)).num_rows > 0
    except _REFUSALS:
        return ours
    return ours or (theirs and "-0000-0000-" not in str(expr))  # pyarrow's isin answers at random for UUIDs


@pytest.mark.heavy
@settings(max_examples=examples(100, thorough=1000))
@given(st.data())
def test_no_file_with_a_matching_row_is_lost(data: st.DataObject) -> None:
    kinds = {
        f"c{at}": data.draw(KINDS | st.sampled_from(["float32", "float64"]))
        for at in range(data.draw(st.integers(1, 2)))
    }
    expr = data.draw(expressions(kinds))
    files = []
    for _ in range(data.draw(st.integers(1, 4))):
        num_rows = data.draw(st.integers(1, 3))
        files.append(
            {name: data.draw(arrays(kind, min_size=num_rows, max_size=num_rows)) for name, kind in kinds.items()}
        )
    if data.draw(st.booleans()):
        # one value in each file, as partitions have it
        files = [{name: values[:1] for name, values in file.items()} for file in files]
        zones = {
            name: value_zones(kind_of(COLUMNS[kind][0]), [file[name][0] for file in files])
            for name, kind in kinds.items()
        }
    else:
        zones = {name: data.draw(zones_of(kind, [file[name] for file in files])) for name, kind in kinds.items()}
    kept = rows_where(expr, Truth.TRUE, len(files), zones)
    for number, file in enumerate(files):
        if matches(expr, kinds, file):
            assert number in kept


@settings(max_examples=examples(60, thorough=500))
@given(st.sampled_from(["int32", "float64", "string", "date32", "timestamp_ms", "decimal", "bool", "uuid"]), st.data())
def test_single_values_prune_exactly(kind: str, data: st.DataObject) -> None:
    """Of files of one value each, those are kept that match, and no other."""
    expr = data.draw(expressions({"c0": kind}, foreign=False))
    assume(not uses(expr, *INSIDE))
    assume(" in " not in str(expr))  # zeros of both signs, and NaN, are one to pruning
    values = [value for value in data.draw(arrays(kind)) if value == value]
    kept = rows_where(expr, Truth.TRUE, len(values), {"c0": value_zones(kind_of(COLUMNS[kind][0]), values)})
    found = [matches(expr, {"c0": kind}, {"c0": [value]}) for value in values]
    assert [number in kept for number in range(len(values))] == found


@given(KINDS)
def test_kinds(kind: str) -> None:
    """Every type with a kind prunes by its own values."""
    type_ = COLUMNS[kind][0]
    assert (kind_of(type_).domain is Domain.OTHER) is (kind == "duration")
    assert kind_of(pa.decimal128(7, 2)) == ValueKind(Domain.DECIMAL, scale=2)
    assert kind_of(pa.time32("ms")) == ValueKind(Domain.TIME, unit="ms")
    assert kind_of(pa.timestamp("ns", "UTC")) == ValueKind(Domain.TIMESTAMP, unit="ns", zoned=True)
    assert kind_of(pa.timestamp("s")) == ValueKind(Domain.TIMESTAMP, unit="s", zoned=False)
    for other in (pa.float16(), pa.list_(pa.int8()), pa.struct([]), pa.null(), pa.duration("s")):
        assert kind_of(other).why_not


def _kept(expr: Expression, type_: pa.DataType, low: Any, high: Any, **known: Any) -> bool:
    facts: dict[str, Any] = {"null_counts": [0], "all_null": [False], "may_be_nan": [False]} | known
    return bool(rows_where(expr, Truth.TRUE, 1, {"x": file_zones(kind_of(type_), FileBounds([low], [high], **facts))}))


def test_bounds_that_cannot_be_trusted_prune_nothing() -> None:
    x = col("x")
    assert not _kept(x == 9, pa.int64(), 1, 5)
    assert _kept(x == 9, pa.int64(), 5, 1)  # the wrong way round
    assert _kept(x == 9, pa.int64(), "1", "5")
    assert _kept(x == 9.0, pa.float64(), math.nan, 1.0)
    assert _kept(x == 0.5, pa.float64(), 1.0, math.nan)
    assert _kept(x.is_valid(), pa.int64(), 1, 5, all_null=[True])  # contradicts itself
    assert not _kept(x.is_valid(), pa.int64(), None, None, all_null=[True])
    zoned, zoneless = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1)
    assert not _kept(x > zoned, pa.timestamp("us", "UTC"), zoned, zoned)
    assert _kept(x > zoned, pa.timestamp("us", "UTC"), zoneless, zoneless)
    assert _kept(x > zoneless, pa.timestamp("us", "UTC"), zoned, zoned)  # which the filter refuses


def test_one_bound_alone() -> None:
    x = col("x")
    for type_, value, other in (
        (pa.int64(), 5, 4),
        (pa.float32(), 5.0, 4.0),
        (pa.date32(), dt.date(5, 1, 1), dt.date(4, 1, 1)),
    ):
        assert not _kept(x == other, type_, value, None)
        assert _kept(x > other, type_, value, None)
        assert not _kept(x > value, type_, None, value)
        assert _kept(x == other, type_, None, value)
    assert not _kept(x > "b", pa.string(), None, "b")
    assert _kept(x < "b", pa.string(), "b", None)  # there is no greatest string


def test_nan_is_outside_of_bounds() -> None:
    x = col("x")
    for expr in (x != 5.0, ~(x == 5.0), ~(x >= 1.0), x.is_in([math.nan]), x.is_null(nan_is_null=True)):
        assert _kept(expr, pa.float64(), 5.0, 5.0, may_be_nan=[True])
        assert not _kept(expr, pa.float64(), 5.0, 5.0)
    assert _kept(x == x, pa.float64(), 5.0, 5.0)


def test_nested_null_counts_prove_nothing() -> None:
    x = col("x")
    zones = file_zones(kind_of(pa.int64()), FileBounds([1], [1], [0], [False], [False]), is_nested=True)
    assert rows_where(x.is_null(), Truth.TRUE, 1, {"x": zones})
    assert not rows_where(x == 2, Truth.TRUE, 1, {"x": zones})


def test_unknown_columns_prune_nothing() -> None:
    zones = value_zones(kind_of(pa.int64()), [1, 2, None])
    assert list(rows_where((col("x") == 2) & (col("y") == 1), Truth.TRUE, 3, {"x": zones})) == [(1, 2)]
    assert list(rows_where((col("x") == 2) | (col("y") == 1), Truth.TRUE, 3, {"x": zones})) == [(0, 3)]
    assert list(rows_where(col("x") == col("y"), Truth.TRUE, 3, {"x": zones})) == [(0, 3)]
    assert list(rows_where(col("x").is_null(), Truth.TRUE, 3, {"x": zones})) == [(2, 3)]
