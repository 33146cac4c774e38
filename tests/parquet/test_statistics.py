"""What statistics of chunks prove: orders, and the traps of real files, one by one."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.calendars import LegacyCalendar
from asyncpq.parquet.column_chunk import ChunkStatistics, ColumnChunk
from asyncpq.parquet.logical_types import LogicalKind, LogicalType, PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import (
    ChunkBounds,
    ColumnOrder,
    SortOrder,
    chunk_bounds,
    decode_values,
    encode_value,
    order_of,
)
from asyncpq.parquet.writer_faults import Claim, WriterFaults, WriterVersion
from tests.parquet_samples import flat_leaf, sample_metadata

GOOD_WRITER = "parquet-mr version 1.13.0 (build abc)"
GOOD = WriterFaults(GOOD_WRITER)
NO_STATISTICS = ChunkStatistics(None, None, None, None, None, None, None, None, None)


def leaf_with(leaf: Leaf, logical: LogicalType | None, physical: PhysicalType | None = None) -> Leaf:
    element = leaf.element._replace(logical_type=logical, physical_type=physical or leaf.physical_type)
    return Leaf(0, leaf.path, leaf.dotted, element, 1, (), 0, leaf.max_definition_level, 0)


def chunk_with(leaf: Leaf, num_values: int = 10, **statistics: Any) -> ColumnChunk:
    whole = sample_metadata("flat").row_groups[0].chunk(0)
    return whole._replace(
        physical_type=leaf.physical_type, num_values=num_values, raw_statistics=NO_STATISTICS._replace(**statistics)
    )


def bounds_of(
    leaf: Leaf,
    low: bytes | None,
    high: bytes | None,
    *,
    created_by: str | None = GOOD_WRITER,
    column_order: ColumnOrder | None = ColumnOrder.TYPE_ORDER,
    **more: Any,
) -> tuple[ChunkBounds, str | None]:
    names = ("min_value", "max_value") if column_order is not None else ("deprecated_min", "deprecated_max")
    chunk = chunk_with(leaf, **{names[0]: low, names[1]: high, **more})
    return chunk_bounds(
        chunk, leaf, order_of(leaf, column_order), WriterFaults(created_by), column_order is not None, 10
    )


# -- orders ------------------------------------------------------------------------------------------

INT = flat_leaf(pa.int32())
LONG = flat_leaf(pa.int64())
TEXT = flat_leaf(pa.string())
FLOAT = flat_leaf(pa.float64())


@pytest.mark.parametrize(
    ("type_", "order"),
    [
        (pa.bool_(), SortOrder.BOOLEAN),
        (pa.int8(), SortOrder.SIGNED),
        (pa.int64(), SortOrder.SIGNED),
        (pa.uint8(), SortOrder.UNSIGNED),
        (pa.uint64(), SortOrder.UNSIGNED),
        (pa.float32(), SortOrder.FLOAT),
        (pa.float64(), SortOrder.FLOAT),
        (pa.float16(), SortOrder.FLOAT16),
        (pa.string(), SortOrder.BYTES),
        (pa.binary(), SortOrder.BYTES),
        (pa.binary(5), SortOrder.BYTES),
        (pa.uuid(), SortOrder.BYTES),
        (pa.json_(), SortOrder.BYTES),
        (pa.date32(), SortOrder.SIGNED),
        (pa.time64("ns"), SortOrder.SIGNED),
        (pa.timestamp("us", "UTC"), SortOrder.SIGNED),
        (pa.decimal128(30, 2), SortOrder.DECIMAL),
        (pa.null(), SortOrder.UNDEFINED),
    ],
)
def test_the_order_of_types(type_: pa.DataType, order: SortOrder) -> None:
    leaf = flat_leaf(type_)
    assert order_of(leaf, ColumnOrder.TYPE_ORDER) is order
    assert order_of(leaf, ColumnOrder.UNKNOWN) is SortOrder.UNDEFINED
    assert order_of(leaf, ColumnOrder.INT96_TIMESTAMP_ORDER) is SortOrder.UNDEFINED
    is_float = order in (SortOrder.FLOAT, SortOrder.FLOAT16)
    assert order_of(leaf, ColumnOrder.IEEE_754_TOTAL_ORDER) is (order if is_float else SortOrder.UNDEFINED)
    # Without column orders only what compares signed can be used.
    is_signed = order in (SortOrder.SIGNED, SortOrder.BOOLEAN, SortOrder.FLOAT)
    assert order_of(leaf, None) is (order if is_signed else SortOrder.UNDEFINED)


@pytest.mark.parametrize(
    "leaf",
    [
        leaf_with(INT, None, PhysicalType.INT96),
        leaf_with(TEXT, LogicalType(LogicalKind.INTERVAL), PhysicalType.FIXED_LEN_BYTE_ARRAY),
        *(
            leaf_with(TEXT, LogicalType(kind))
            for kind in (
                LogicalKind.VARIANT,
                LogicalKind.GEOMETRY,
                LogicalKind.GEOGRAPHY,
                LogicalKind.LIST,
                LogicalKind.MAP,
                LogicalKind.UNRECOGNISED,
            )
        ),
        # annotations on a type they do not belong on
        leaf_with(TEXT, LogicalType(LogicalKind.INTEGER, bit_width=32, is_signed=True)),
        leaf_with(INT, LogicalType(LogicalKind.STRING)),
        leaf_with(INT, LogicalType(LogicalKind.INTEGER, bit_width=0, is_signed=True)),
        leaf_with(INT, LogicalType(LogicalKind.INTEGER, bit_width=24, is_signed=False)),
        leaf_with(FLOAT, LogicalType(LogicalKind.DECIMAL, precision=3, scale=1)),
        leaf_with(INT, LogicalType(LogicalKind.TIMESTAMP, "ms", True)),
        leaf_with(TEXT, LogicalType(LogicalKind.FLOAT16)),
    ],
)
@pytest.mark.parametrize("column_order", [None, *ColumnOrder])
def test_types_without_an_order(leaf: Leaf, column_order: ColumnOrder | None) -> None:
    is_int96 = leaf.physical_type is PhysicalType.INT96 and column_order is ColumnOrder.INT96_TIMESTAMP_ORDER
    assert order_of(leaf, column_order) is (SortOrder.INT96 if is_int96 else SortOrder.UNDEFINED)
    found, reason = bounds_of(leaf, b"1234", b"1234", null_count=3, column_order=column_order)
    assert (found.min, found.max, found.null_count) == (None, None, 3)
    assert reason is not None


@pytest.mark.parametrize(
    ("raw", "leaf", "order", "value"),
    [
        (b"\xff\xff\xff\xff", INT, SortOrder.SIGNED, -1),
        (b"\xff\xff\xff\xff", INT, SortOrder.UNSIGNED, 2**32 - 1),
        (b"\xff" * 8, LONG, SortOrder.UNSIGNED, 2**64 - 1),
        (struct.pack("<d", 0.1), FLOAT, SortOrder.FLOAT, 0.1),
        (struct.pack("<f", 0.5), leaf_with(FLOAT, None, PhysicalType.FLOAT), SortOrder.FLOAT, 0.5),
        (struct.pack("<e", 0.5), flat_leaf(pa.float16()), SortOrder.FLOAT16, 0.5),
        (b"\xff\x00", TEXT, SortOrder.DECIMAL, -256),
        (b"\x00\x00\x01\x00", TEXT, SortOrder.DECIMAL, 256),
        (b"\x01", flat_leaf(pa.bool_()), SortOrder.BOOLEAN, True),
        (b"\xff\x00", TEXT, SortOrder.BYTES, b"\xff\x00"),
        (b"", TEXT, SortOrder.BYTES, b""),
    ],
)
def test_values(raw: bytes, leaf: Leaf, order: SortOrder, value: object) -> None:
    (found,) = decode_values([raw], leaf, order)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.bool_(), True),
        (pa.bool_(), False),
        (pa.int8(), -128),
        (pa.uint32(), 2**32 - 1),
        (pa.int64(), -(2**63)),
        (pa.uint64(), 2**64 - 1),
        (pa.float16(), 1.5),
        (pa.float32(), -0.0),
        (pa.float64(), math.inf),
        (pa.string(), "é".encode()),
        (pa.binary(2), b"\xff\0"),
        (pa.decimal128(38, 2), -(10**37)),
        (pa.decimal128(38, 2), 127),
        (pa.decimal256(60, 2), 128),
    ],
)
def test_values_are_encoded_as_they_are_decoded(type_: pa.DataType, value: Any) -> None:
    leaf = flat_leaf(type_)
    order = order_of(leaf, ColumnOrder.TYPE_ORDER)
    (found,) = decode_values([encode_value(value, leaf, order)], leaf, order)
    assert (found, type(found), math.copysign(1, found) if order is SortOrder.FLOAT else 0) == (
        value,
        type(value),
        math.copysign(1, value) if order is SortOrder.FLOAT else 0,
    )


@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, 10**30])
def test_decimals_without_a_length_are_encoded(value: int) -> None:
    leaf = leaf_with(TEXT, LogicalType(LogicalKind.DECIMAL, precision=38, scale=2))
    assert decode_values([encode_value(value, leaf, SortOrder.DECIMAL)], leaf, SortOrder.DECIMAL) == [value]


@pytest.mark.parametrize(
    ("raw", "leaf", "order"),
    [
        (b"\0" * 8, INT, SortOrder.SIGNED),
        (b"", INT, SortOrder.SIGNED),
        (b"", TEXT, SortOrder.DECIMAL),
        (b"\2", flat_leaf(pa.bool_()), SortOrder.BOOLEAN),
        (b"abc", TEXT, SortOrder.UNDEFINED),
    ],
)
def test_values_of_the_wrong_length(raw: bytes, leaf: Leaf, order: SortOrder) -> None:
    with pytest.raises(CorruptIndexError):
        decode_values([raw], leaf, order)


# -- chunks ------------------------------------------------------------------------------------------


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def f64(value: float) -> bytes:
    return struct.pack("<d", value)


def test_good_bounds() -> None:
    assert bounds_of(INT, i32(-5), i32(7), null_count=2) == (
        ChunkBounds(SortOrder.SIGNED, -5, 7, True, True, 2, None, 10),
        None,
    )


def test_deprecated_bounds_only_without_column_orders_and_only_of_signed_types() -> None:
    chunk = chunk_with(INT, null_count=1, deprecated_min=i32(1), deprecated_max=i32(9))
    found, reason = chunk_bounds(chunk, INT, order_of(INT, None), GOOD, False, 10)
    assert (found.min, found.max, reason) == (1, 9, None)
    found, reason = chunk_bounds(chunk, INT, SortOrder.SIGNED, GOOD, True, 10)
    assert (found.min, found.max, found.null_count) == (None, None, 1)
    assert reason is not None
    # New bounds mean nothing without column orders.
    new = chunk_with(INT, min_value=i32(1), max_value=i32(9))
    assert chunk_bounds(new, INT, SortOrder.SIGNED, GOOD, False, 10)[0].min is None
    for leaf, order in ((flat_leaf(pa.uint32()), SortOrder.UNSIGNED), (TEXT, SortOrder.BYTES)):
        chunk = chunk_with(leaf, deprecated_min=b"aaaa", deprecated_max=b"aaaa")
        found, reason = chunk_bounds(chunk, leaf, order, GOOD, False, 10)
        assert (found.min, found.max) == (None, None)
        assert reason is not None


@pytest.mark.parametrize(
    ("created_by", "sound"),
    [
        (None, False),
        ("", False),
        ("parquet-mr", False),
        ("some writer", False),
        ("parquet-mr version 1.6.0 (build abc)", False),
        ("parquet-mr version 1.7.9", False),
        ("parquet-mr version 1.5.0-cdh5.4.9 (build x)", False),
        ("parquet-mr version 1.5.0-cdh5.5.0 (build x)", True),
        ("parquet-mr version 1.5.0-cdh5.11.1 (build x)", True),
        ("parquet-mr version 1.8.0", True),
        ("parquet-mr version 1.10.1 (build abc)", True),
        ("parquet-cpp-arrow version 23.0.0", True),
        ("delta-rs version py-1.6.6", True),
        ("ClickHouse v25.9.1.1-stable", True),
        ("DuckDB", True),
        ("impala version 1.3.0-INTERNAL (build 8a48)", True),
        ("DuckDB version v1.1.3 (build 19864453f7)", True),
    ],
)
def test_parquet_251(created_by: str | None, sound: bool) -> None:
    for leaf in (TEXT, flat_leaf(pa.binary(2)), flat_leaf(pa.decimal128(30, 0))):
        assert (WriterFaults(created_by).find(Claim.BOUNDS, leaf) is None) is sound
        length = leaf.element.type_length or 2
        found, reason = bounds_of(leaf, b"\0" * (length - 1) + b"a", b"\0" * (length - 1) + b"z", created_by=created_by)
        assert (found.min is not None) is sound
        assert sound or (reason is not None and "PARQUET-251" in reason)
    assert bounds_of(INT, i32(1), i32(2), created_by=created_by)[0].min == 1


def test_writer_versions() -> None:
    assert WriterVersion.parse("parquet-mr version 1.8.0 (build 0fda28)") == WriterVersion(
        "parquet-mr", (1, 8, 0), "1.8.0", "0fda28"
    )
    assert WriterVersion.parse("impala version 1.3.0-INTERNAL (build 8a)") == WriterVersion(
        "impala", (1, 3, 0), "1.3.0-INTERNAL", "8a"
    )
    assert WriterVersion.parse("a version 2.1") == WriterVersion("a", (2, 1, 0), "2.1", None)
    assert WriterVersion.parse("delta-rs version py-1.6.6") == WriterVersion("delta-rs", (1, 6, 6), "py-1.6.6", None)
    assert WriterVersion.parse("parquet-mr-trino version 470 (build n/a)") == WriterVersion(
        "parquet-mr-trino", (470, 0, 0), "470", "n/a"
    )
    assert WriterVersion.parse("Polars (python) version 2.0.0 (build 22a)") == WriterVersion(
        "Polars", (2, 0, 0), "2.0.0", "22a"
    )
    assert WriterVersion.parse("ClickHouse v25.3.1.27-stable") == WriterVersion(
        "ClickHouse", (25, 3, 1), "v25.3.1.27-stable", None
    )
    for unversioned in (
        "parquet-mr",
        "parquet-mr version",
        "parquet-mr version x.y",
        "parquet-mr (build 32c46643845ea8a705c35d4ec8fc654cc8ff816d)",
        "parquet-mr version (build 5)",
        "parquet-mr version null (build 4aba4d)",
    ):
        assert WriterVersion.parse(unversioned) == WriterVersion("parquet-mr", None, "", None)
    for nothing in (None, "", "  ", "x" * 10**6):
        assert WriterVersion.parse(nothing) is None


@pytest.mark.parametrize(("low", "high"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)])
def test_nan_bounds_are_no_bounds(low: float, high: float) -> None:
    found, reason = bounds_of(FLOAT, f64(low), f64(high), null_count=1, nan_count=9)
    assert (found.min, found.max, found.null_count, found.nan_count) == (None, None, 1, 9)
    assert reason is not None


def test_zeros_are_widened() -> None:
    found, _ = bounds_of(FLOAT, f64(0.0), f64(-0.0))
    assert str(found.min) == "-0.0"
    assert str(found.max) == "0.0"


def test_nan_counts_are_known_of_floats_only() -> None:
    assert bounds_of(FLOAT, f64(0.5), f64(1), nan_count=0)[0].nan_count == 0
    assert bounds_of(FLOAT, f64(0.5), f64(1))[0].nan_count is None
    assert bounds_of(INT, i32(1), i32(1), nan_count=0)[0].nan_count is None


@pytest.mark.parametrize(
    ("leaf", "low", "high", "more"),
    [
        pytest.param(INT, i32(2), i32(1), {}, id="min above max"),
        pytest.param(TEXT, b"b", b"a", {}, id="min above max, strings"),
        pytest.param(INT, i32(1), i32(2), {"null_count": 11}, id="more nulls than values"),
        pytest.param(INT, i32(1), i32(2), {"null_count": 10}, id="bounds of nothing but nulls"),
        pytest.param(FLOAT, f64(1), f64(2), {"null_count": 5, "nan_count": 6}, id="more nulls and NaN than values"),
        pytest.param(INT, b"123", i32(2), {}, id="a bound of three bytes"),
        pytest.param(INT, i32(1), i32(2), {"num_values": 9}, id="values are not rows"),
    ],
)
def test_contradictions_prove_nothing(leaf: Leaf, low: bytes, high: bytes, more: dict[str, Any]) -> None:
    found, reason = bounds_of(leaf, low, high, **more)
    assert (found.min, found.max, found.all_null) == (None, None, False)
    assert reason is not None


@pytest.mark.parametrize("nullable", [True, False])
def test_null_counts_of_a_faulty_writer_are_known_of_required_columns(nullable: bool) -> None:
    old = "parquet-mr version 1.7.0"
    found, reason = bounds_of(flat_leaf(pa.int32(), nullable=nullable), i32(1), i32(2), created_by=old, null_count=0)
    assert (found.min, found.null_count) == (1, None if nullable else 0)
    assert (reason is not None) is nullable
    found, reason = bounds_of(flat_leaf(pa.string(), nullable=nullable), b"a", b"b", created_by=old)
    assert (found.min, reason is not None) == (None, True)


@pytest.mark.parametrize("column_order", [ColumnOrder.TYPE_ORDER, None])
def test_one_bound_alone_is_none(column_order: ColumnOrder | None) -> None:
    for low, high in ((i32(1), None), (None, i32(1))):
        found, reason = bounds_of(INT, low, high, column_order=column_order)
        assert (found.min, found.max, reason) == (None, None, None)


def test_all_null() -> None:
    assert bounds_of(INT, None, None, null_count=10) == (
        ChunkBounds(SortOrder.SIGNED, None, None, False, False, 10, None, 10),
        None,
    )
    assert bounds_of(INT, None, None, null_count=10)[0].all_null
    assert not bounds_of(INT, None, None, null_count=9)[0].all_null
    assert not bounds_of(INT, None, None)[0].all_null  # not written is not 0, and not all


@pytest.mark.parametrize(
    ("leaf", "flags", "exact"),
    [
        (TEXT, (None, None), (False, False)),
        (TEXT, (True, False), (True, False)),
        (INT, (None, None), (True, True)),
        (INT, (False, True), (False, True)),
    ],
)
def test_exactness(leaf: Leaf, flags: tuple[bool | None, bool | None], exact: tuple[bool, bool]) -> None:
    found, _ = bounds_of(leaf, b"aaaa", b"aaaa", is_min_value_exact=flags[0], is_max_value_exact=flags[1])
    assert (found.min_exact, found.max_exact) == exact


@pytest.mark.parametrize(
    ("leaf", "is_date", "low", "high", "exact"),
    [
        (flat_leaf(pa.date32()), True, -200_000, -150_000, True),
        (flat_leaf(pa.timestamp("us")), False, 0, 5, True),
        (flat_leaf(pa.timestamp("us")), False, -(10**16) * 3, 5, False),
    ],
    ids=["days", "new timestamps", "old timestamps"],
)
def test_bounds_of_the_hybrid_calendar_are_rebased(leaf: Leaf, is_date: bool, low: int, high: int, exact: bool) -> None:
    calendar = LegacyCalendar(is_date, 10**6, None, refused=False)
    code = "<i" if is_date else "<q"
    chunk = chunk_with(leaf, min_value=struct.pack(code, low), max_value=struct.pack(code, high))
    found, _ = chunk_bounds(chunk, leaf, SortOrder.SIGNED, GOOD, True, 10, calendar)
    assert (found.min, found.max, exact) == calendar.bounds(low, high)
    assert (found.min_exact, found.max_exact) == (exact, exact)
