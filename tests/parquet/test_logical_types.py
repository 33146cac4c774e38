"""Logical and converted types: each has its meaning, and pyarrow's types have theirs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.parquet.logical_types import ConvertedType, LogicalKind, LogicalType, PhysicalType
from tests.parquet.schemas import ROOT, decode, group, leaf
from tests.parquet_samples import flat_leaf


@pytest.mark.parametrize(
    ("converted", "expected"),
    [
        (ConvertedType.UTF8, LogicalType(LogicalKind.STRING)),
        (ConvertedType.DECIMAL, LogicalType(LogicalKind.DECIMAL, precision=9, scale=2)),
        (ConvertedType.TIMESTAMP_MILLIS, LogicalType(LogicalKind.TIMESTAMP, "ms", True)),
        (ConvertedType.UINT_16, LogicalType(LogicalKind.INTEGER, bit_width=16, is_signed=False)),
        (ConvertedType.INT_64, LogicalType(LogicalKind.INTEGER, bit_width=64, is_signed=True)),
        (ConvertedType.INTERVAL, LogicalType(LogicalKind.INTERVAL)),
        (99, LogicalType(LogicalKind.UNRECOGNISED)),
    ],
)
def test_converted_types(converted: int, expected: LogicalType) -> None:
    schema = decode(group(ROOT, 1, None), leaf(b"a", _6=converted, _7=2, _8=9))
    assert schema.leaves[0].logical_type == expected


@pytest.mark.parametrize("converted", list(ConvertedType))
def test_every_converted_type_has_a_logical_type(converted: ConvertedType) -> None:
    schema = decode(group(ROOT, 1, None), leaf(b"a", _6=converted, _8=9))
    logical = schema.leaves[0].logical_type
    assert logical is not None
    assert logical.kind is not LogicalKind.UNRECOGNISED


@pytest.mark.parametrize(
    ("type_", "physical", "logical"),
    [
        (pa.int64(), PhysicalType.INT64, None),
        (pa.uint8(), PhysicalType.INT32, LogicalType(LogicalKind.INTEGER, bit_width=8, is_signed=False)),
        (pa.string(), PhysicalType.BYTE_ARRAY, LogicalType(LogicalKind.STRING)),
        (pa.timestamp("ns"), PhysicalType.INT64, LogicalType(LogicalKind.TIMESTAMP, "ns", False)),
        (pa.timestamp("us", "UTC"), PhysicalType.INT64, LogicalType(LogicalKind.TIMESTAMP, "us", True)),
        (pa.time32("ms"), PhysicalType.INT32, LogicalType(LogicalKind.TIME, "ms", False)),
        (pa.date32(), PhysicalType.INT32, LogicalType(LogicalKind.DATE)),
        (
            pa.decimal128(20, 3),
            PhysicalType.FIXED_LEN_BYTE_ARRAY,
            LogicalType(LogicalKind.DECIMAL, precision=20, scale=3),
        ),
        (pa.uuid(), PhysicalType.FIXED_LEN_BYTE_ARRAY, LogicalType(LogicalKind.UUID)),
        (pa.json_(), PhysicalType.BYTE_ARRAY, LogicalType(LogicalKind.JSON)),
        (pa.float16(), PhysicalType.FIXED_LEN_BYTE_ARRAY, LogicalType(LogicalKind.FLOAT16)),
        (pa.null(), PhysicalType.INT32, LogicalType(LogicalKind.NULL)),
    ],
)
def test_types_that_pyarrow_writes(type_: pa.DataType, physical: PhysicalType, logical: LogicalType | None) -> None:
    found = flat_leaf(type_)
    assert (found.physical_type, found.logical_type) == (physical, logical)
    assert found.is_flat
    assert found.max_definition_level == 1
