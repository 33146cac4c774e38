"""Statistics of Delta tables as bounds, case by case; of tables that deltalake wrote in test_delta_catalog.py."""

from __future__ import annotations

import datetime as dt
import gc
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncpq import col
from asyncpq.datasets.file_statistics import FileStatistics
from asyncpq.tables.delta.files import DeltaStatistics, num_records
from asyncpq.tables.delta.schema import ColumnMapping, DeltaLeaf, MappingMode, decode_schema
from tests.delta_tables import (
    ID,
    DeltaWriter,
    FolderReader,
    add,
    column,
    inline_vector,
    metadata,
    protocol,
    snapshot_of,
)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("double", '"-Infinity"', '"NaN"', (float("-inf"), None)),
        ("double", "1", "2.5", (1.0, 2.5)),
        ("timestamp", '"2020-01-01 00:00:00"', "null", (None, None)),
        ("long", "1.5", '"7"', (None, None)),
        ("long", "true", "null", (None, None)),
        ("string", '"a"', '"b\\ud800"', ("a", None)),
        ("string", '"' + "a" * 32 + '"', '"' + "b" * 32 + '"', ("a" * 32, "b" * 31 + "c")),
        ("string", '""', '"' + "\U0010ffff" * 32 + '"', ("", None)),
        ("string", "null", '"' + "\ud7ff" * 32 + '"', (None, "\ud7ff" * 31 + "\ue000")),
        ("decimal(5,2)", "1.23", "4", (Decimal("1.23"), Decimal("4.00"))),
        ("decimal(5,2)", '"1.23"', "1e9", (Decimal("1.23"), Decimal("1000000000.00"))),
        ("decimal(2,0)", "-128", "127", (Decimal(-128), Decimal(127))),  # values may exceed the precision, too
        ("decimal(2,0)", "-1e99999999", "1e99999999", (None, None)),
        ("date", '"2020-01-01"', '"+10000-01-01"', (dt.date(2020, 1, 1), None)),
        (
            "timestamp_ntz",
            '"2020-01-01T00:00:00.001"',
            '"2020-01-01 00:00:00.001"',
            (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 2000)),
        ),
        (
            "timestamp",
            '"2020-01-01T00:00:00.001-08:00"',
            '"9999-12-31T23:59:59.999Z"',
            (dt.datetime(2020, 1, 1, 8, tzinfo=dt.UTC), None),
        ),
        ("binary", '"a"', '"b"', (None, None)),
    ],
)
async def test_bounds_of_json(writer: DeltaWriter, kind: str, low: str, high: str, expected: tuple[Any, Any]) -> None:
    action = add("x.parquet", num_rows=1)
    action["add"]["stats"] = (
        f'{{"numRecords": 5, "nullCount": {{"v": 1}}, "minValues": {{"v": {low}}}, "maxValues": {{"v": {high}}}}}'
    )
    writer.commit(protocol("timestampNtz"), metadata(column("v", kind)), action)
    (file,) = (await snapshot_of(writer.folder)).data_files
    bounds = file.bounds["v"]
    assert (bounds.min, bounds.max) == expected
    assert (bounds.null_count, bounds.exact, file.num_rows) == (1, False, 5)


@pytest.mark.parametrize("stats", ["", "{", "[]", "5", '{"numRecords": "5"}', '{"minValues": 7}', "[" * 100_000])
async def test_statistics_that_are_not_understood_are_unknown(writer: DeltaWriter, stats: str) -> None:
    action = add("x.parquet")
    action["add"]["stats"] = stats
    writer.commit(protocol(), metadata(ID), action)
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert (file.num_rows, dict(file.bounds)) == (None, {})


async def test_a_count_that_is_too_long_is_unknown(writer: DeltaWriter) -> None:
    action = add("x.parquet")
    action["add"]["stats"] = f'{{"numRecords": {"9" * 5000}}}'
    writer.commit(protocol(), metadata(ID), action)
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert file.num_rows is None


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("date", pa.scalar(10**8, pa.date32())), ("timestamp", pa.scalar(2**62, pa.timestamp("us", "UTC")))],
)
def test_a_bound_that_python_has_not_is_unknown(kind: str, stored: pa.Scalar) -> None:
    """Of a checkpoint's struct: a year beyond 9999."""
    (leaf,) = decode_schema(
        metadata(column("v", kind))["metaData"]["schemaString"], ColumnMapping(MappingMode.NONE, False), "x"
    ).leaves
    values = pa.StructArray.from_arrays([pa.array([stored.value], stored.type)], ["v"])
    least = pa.StructArray.from_arrays([pa.array([0], stored.type)], ["v"])
    rows = pa.array([5], pa.int64())
    (stats,) = pa.StructArray.from_arrays([rows, least, values], ["numRecords", "minValues", "maxValues"])
    assert num_records(stats) == 5
    bounds = DeltaStatistics(stats, {"v": leaf}, False)["v"]
    assert bounds.min is not None
    assert bounds.max is None


async def test_bounds_are_parsed_off_the_loop(writer: DeltaWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.commit(protocol(), metadata(ID), add("x.parquet", num_rows=1, stats={"minValues": {"id": 0}}))
    snapshot = await snapshot_of(writer.folder)
    threads = []
    decode = DeltaStatistics._decode

    def noted(self: DeltaStatistics, leaf: DeltaLeaf) -> Any:
        threads.append(threading.current_thread())
        return decode(self, leaf)

    monkeypatch.setattr(DeltaStatistics, "_decode", noted)
    for _ in range(2):
        (file,) = await snapshot.files(col("id") > 5, FolderReader())
        assert file.bounds["id"].min == 0
    assert len(threads) == 1
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(("nulls", "expected"), [(0, (0, False)), (2, (None, False)), (6, (6, True))])
async def test_null_counts_beside_a_vector(writer: DeltaWriter, nulls: int, expected: tuple[int | None, bool]) -> None:
    """They may count deleted rows: only none and all are trusted."""
    stats = {"nullCount": {"id": nulls}, "minValues": {"id": 0}, "tightBounds": False}
    writer.commit(
        protocol("deletionVectors"), metadata(ID), add("x.parquet", num_rows=6, stats=stats, vector=inline_vector([1]))
    )
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds["id"]
    assert (bounds.null_count, bounds.all_null) == expected


def test_columns_of_one_dotted_name_have_no_bounds() -> None:
    inner = {"type": "struct", "fields": [column("b", "long"), column("c", "long")]}
    text = metadata(column("a.b", "long"), column("a", inner))["metaData"]["schemaString"]
    assert [leaf.name for leaf in decode_schema(text, ColumnMapping(MappingMode.NONE, False), "x").leaves] == ["a.c"]


async def test_either_zero_may_stand_for_both(writer: DeltaWriter) -> None:
    action = add("x.parquet", num_rows=1, stats={"minValues": {"v": 0.0}, "maxValues": {"v": -0.0}})
    writer.commit(protocol(), metadata(column("v", "double")), action)
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds["v"]
    assert (repr(bounds.min), repr(bounds.max)) == ("-0.0", "0.0")


async def test_files_of_a_large_table_are_no_objects_that_the_garbage_collector_walks_over(writer: DeltaWriter) -> None:
    ends = [{"minValues": {"id": n}, "maxValues": {"id": n}} for n in range(2000)]
    actions = [add(f"{n}.parquet", num_rows=1, partition={"p": str(n % 3)}, stats=own) for n, own in enumerate(ends)]
    writer.commit(protocol(), metadata(ID, column("p", "long"), partition_columns=("p",)), *actions)
    gc.collect()
    before = len(gc.get_objects())
    snapshot = await snapshot_of(writer.folder)
    files = await snapshot.files(col("id") > 5, FolderReader())
    known = FileStatistics()
    schema = pa.schema([("id", pa.int64()), ("p", pa.int64())])
    assert known.search(files, (col("id") > 1990) & (col("p") == 1), schema)() == [1993, 1996, 1999]
    gc.collect()
    assert len(gc.get_objects()) - before < len(files) / 10
    assert files[7].partition == {"p": 1}
    assert files[7].bounds["id"].min == 7
