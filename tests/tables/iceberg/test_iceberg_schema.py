"""Every Iceberg type that is read, as a column and as an identity partition: values, Arrow types, predicates."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import asyncpq
from asyncpq import col
from tests.iceberg_tables import add_files, data_files, data_record, equality_deletes, make_table, tagged, written_file

_UUIDS = [uuid.UUID(int=n << 120 | n) for n in (1, 200, 3)]
# Iceberg type, the Arrow type that a read gives, two values and perhaps a null.
_TYPES: dict[str, tuple[IcebergType, pa.DataType, list[Any]]] = {
    "int": (IntegerType(), pa.int32(), [-(2**31), 2**31 - 1, None]),
    "long": (LongType(), pa.int64(), [-(2**63), 2**63 - 1, None]),
    "float": (FloatType(), pa.float32(), [1.5, float("inf"), None]),
    "double": (DoubleType(), pa.float64(), [-1e300, 0.1, None]),
    "decimal": (DecimalType(38, 10), pa.decimal128(38, 10), [Decimal("1.0000000001"), Decimal(10) ** 27, None]),
    "date": (DateType(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "time": (TimeType(), pa.time64("us"), [dt.time(1, 2, 3, 4), None, dt.time(23)]),
    "timestamp": (
        TimestampType(),
        pa.timestamp("us"),
        [dt.datetime(2024, 1, 1, 0, 0, 0, 1), dt.datetime(1, 1, 1), None],
    ),
    "timestamptz": (
        TimestamptzType(),
        pa.timestamp("us", "UTC"),
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, dt.datetime(1960, 1, 1, tzinfo=dt.UTC)],
    ),
    "string": (StringType(), pa.string(), ["", "é" * 30, None]),
    "uuid": (UUIDType(), pa.uuid(), [_UUIDS[0].bytes, _UUIDS[1].bytes, None]),
    "fixed": (FixedType(3), pa.binary(3), [b"abc", b"\xff\xff\xff", None]),
    "binary": (BinaryType(), pa.binary(), [b"", b"\xff" * 30, None]),
    "boolean": (BooleanType(), pa.bool_(), [True, False, None]),
}
_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    *[NestedField(at, name, kind) for at, (name, (kind, _, _)) in enumerate(_TYPES.items(), 2)],
)


def _rows() -> pa.Table:
    schema = _SCHEMA.as_arrow()
    columns = [pa.array([0, 1, 2]), *[pa.array(values, kind) for _, kind, values in _TYPES.values()]]
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


async def _check(table: Table, name: str) -> None:
    expected = table.scan().to_arrow().sort_by("id").to_pylist()
    async with asyncpq.open_dataset(table) as dataset:
        assert (await dataset.read()).sort_by("id").to_pylist() == expected
        for row in expected:
            where = col(name).is_null() if row[name] is None else col(name) == row[name]
            found = await dataset.read(where=where)
            assert [other["id"] for other in found.to_pylist()] == [row["id"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(_TYPES))
async def test_columns(tmp_path: Path, name: str) -> None:
    table = make_table(tmp_path, _SCHEMA)
    table.append(_rows())
    async with asyncpq.open_dataset(table) as dataset:
        assert dataset.schema.field(name).type == _TYPES[name][1]
        assert not dataset.schema.field("id").nullable
    await _check(table, name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in _TYPES if name != "uuid"])  # pyiceberg cannot write these
async def test_identity_partitions(tmp_path: Path, name: str) -> None:
    table = make_table(tmp_path, _SCHEMA)
    with table.update_spec() as update:
        update.add_field(name, IdentityTransform(), "part")
    table.append(_rows())
    await _check(table, name)


async def test_uuid_partitions(tmp_path: Path) -> None:
    table = make_table(tmp_path, Schema(NestedField(1, "id", LongType()), NestedField(2, "uuid", UUIDType())))
    bucket = BucketTransform[Any](4)
    with table.update_spec() as update:
        update.add_field("uuid", IdentityTransform(), "part")
        update.add_field("uuid", bucket, "bucket")
    schema = table.schema().as_arrow()
    for number, value in enumerate(_UUIDS):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table([pa.array([number]), pa.array([value.bytes], pa.uuid())], schema=schema), file)
        partition = Record(value, bucket.transform(UUIDType())(value))
        size = file.stat().st_size  # a test's file
        record = data_record(table, f"file://{file}", partition, record_count=1, file_size_in_bytes=size)
        add_files(table, [record], ManifestContent.DATA)
    await _check(table, "uuid")


@pytest.mark.parametrize("stored", [pa.timestamp(unit, zone) for unit in ("ms", "us") for zone in (None, "UTC")])
@pytest.mark.parametrize("zone", [None, dt.UTC])
async def test_the_zone_of_times_is_that_of_the_table(
    tmp_path: Path, stored: pa.DataType, zone: dt.tzinfo | None
) -> None:
    """ClickHouse 26.9 marks its timestamps in files as UTC, though those of its tables have no zone."""
    kind = TimestamptzType() if zone else TimestampType()
    times = [dt.datetime(1969, 12, 31, 23, 59, 59, 999000), None, dt.datetime(2024, 7, 1, 1, 2, 3)]
    schema = Schema(NestedField(1, "t", kind), NestedField(2, "l", ListType(3, kind, element_required=False)))
    table = make_table(tmp_path, schema)
    t, moments = table.schema().as_arrow().field("t"), table.schema().as_arrow().field("l")
    element = moments.type.value_field.with_type(stored)
    arrays = [pa.array(times, stored), pa.array([[time] for time in times], pa.list_(element))]
    rows = pa.table(arrays, schema=pa.schema([t.with_type(stored), moments.with_type(pa.list_(element))]))
    add_files(table, [written_file(table, rows)], ManifestContent.DATA)
    expected = [None if time is None else time.replace(tzinfo=zone) for time in times]
    async with asyncpq.open_dataset(table) as dataset:
        found = await dataset.read()
        assert found.schema.field("t").type == pa.timestamp("us", "UTC" if zone else None)
        assert found.to_pylist() == [{"t": time, "l": [time]} for time in expected]
        for time in filter(None, expected):
            assert (await dataset.read(["t"], where=col("t") == time))["t"].to_pylist() == [time]
    deleted = tagged(pa.table({"t": [expected[2]]}), table.schema())
    add_files(table, [equality_deletes(table, deleted, like=data_files(table)[0], field_ids=[1])])
    async with asyncpq.open_dataset(table) as dataset:
        assert (await dataset.read(["t"]))["t"].to_pylist() == expected[:2]
