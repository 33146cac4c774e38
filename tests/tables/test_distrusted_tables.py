"""``trust_statistics=False``: what a table's log or catalog says of values and rows prunes, proves and counts nothing.

Each table here keeps bounds, null counts and row counts that are not those of its files.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestContent
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from asyncpq.tables.delta.catalog import DeltaCatalog
from asyncpq.tables.iceberg.catalog import IcebergCatalog
from tests.delta_tables import DeltaWriter, column, metadata, protocol
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import add_files, data_record, make_table
from tests.reads import DISTRUSTING

ROWS = [{"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "v": None}]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
LIE = 100  # the least and greatest id and v by the log
#: The rows of each, and what the log alone makes of it.
WHERE: list[tuple[Expression, int]] = [
    (col("id") == 2, 1),
    (col("id") >= LIE, 0),
    (col("v").is_null(), 1),
    (col("v").is_valid(), 2),
    (~(col("id") > 1), 1),
]


def delta(folder: Path) -> object:
    writer = DeltaWriter(folder / "t")
    stats = {"minValues": {"id": LIE, "v": LIE}, "maxValues": {"id": LIE, "v": LIE}, "nullCount": {"id": 0, "v": 0}}
    added = writer.file("f.parquet", TABLE, stats=stats | {"numRecords": 70})
    writer.commit(protocol(), metadata(column("id", "long"), column("v", "long")), added)
    return DeltaCatalog.of(writer.folder)


def iceberg(folder: Path) -> object:
    table = make_table(folder, SCHEMA)
    path = folder / "f.parquet"
    fields = [field.with_metadata({"PARQUET:field_id": str(at)}) for at, field in enumerate(SCHEMA, 1)]
    pq.write_table(TABLE.cast(pa.schema(fields)), path)
    bound = {number: to_bytes(LongType(), LIE) for number in (1, 2)}
    record = data_record(
        table,
        f"file://{path}",
        Record(),
        record_count=70,
        file_size_in_bytes=path.stat().st_size,
        lower_bounds=bound,
        upper_bounds=bound,
        null_value_counts={1: 0, 2: 0},
        value_counts={1: 70, 2: 70},
    )
    add_files(table, [record], ManifestContent.DATA)
    return IcebergCatalog(table.metadata_location)


def ducklake(folder: Path) -> object:
    with Lake(folder) as lake:
        lake.sql("CREATE TABLE t (id BIGINT, v BIGINT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, NULL)")
    with sqlite3.connect(folder / "catalog.sqlite") as catalog:
        lie = f"min_value = '{LIE}', max_value = '{LIE}', null_count = 0, value_count = 70"
        catalog.execute(f"UPDATE ducklake_file_column_stats SET {lie}")
        catalog.execute("UPDATE ducklake_data_file SET record_count = 70")
    return lake.table("t")


@pytest.mark.parametrize("make", [delta, iceberg, ducklake])
async def test_the_log_is_not_believed(tmp_path: Path, make: Any) -> None:
    table = make(tmp_path)
    async with asyncpq.Session(read=DISTRUSTING) as session:
        dataset = await session.open_dataset(table)
        assert await dataset.count() == 3
        assert (await dataset.read()).to_pylist() == ROWS
        for where, rows in WHERE:
            assert (await dataset.read(where=where)).num_rows == rows
            assert await dataset.count(where) == rows
            assert len(await dataset.files(where)) == 1
        assert (await dataset.lookup({"id": [2, 4]})).num_rows == 1
    async with asyncpq.Session() as session:  # else the table above lies to no effect
        dataset = await session.open_dataset(table)
        assert await dataset.files(col("id") == 2) == []
        assert await dataset.count() != 3


async def test_partition_values_still_count(tmp_path: Path) -> None:
    """They are the rows' own values, no statistics."""
    writer = DeltaWriter(tmp_path / "t")
    adds = []
    for part in "ab":
        (writer.folder / f"p={part}").mkdir()
        adds.append(writer.file(f"p={part}/f.parquet", TABLE, partition={"p": part}))
    fields = [column("id", "long"), column("v", "long"), column("p", "string")]
    writer.commit(protocol(), metadata(*fields, partition_columns=["p"]), *adds)
    async with asyncpq.Session(read=DISTRUSTING) as session:
        folders = await session.open_dataset(str(writer.folder), partitioning="hive", format="parquet")
        for dataset in (await session.open_dataset(DeltaCatalog.of(writer.folder)), folders):
            assert len(await dataset.files(col("p") == "a")) == 1
            assert await dataset.count(col("p") == "a") == 3


async def test_footers_that_were_read_rule_out_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(TABLE, path)
    async with asyncpq.Session(read=DISTRUSTING) as session:
        dataset = await session.open_dataset([str(path)])
        for _ in range(2):
            with asyncpq.measure() as cost:
                assert await dataset.count(col("id") == LIE) == 0
            assert (cost.files_ruled_out, cost.rows_scanned) == (0, 3)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset([str(path)])
        assert await dataset.count(col("id") == LIE) == 0
        assert dataset.metrics.rows_scanned == 0
