"""Tables on Spark: ``scan`` and ``lookup_join`` give the rows that their deletes leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")
pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install asyncpq-parquet[iceberg]")

from pyiceberg.table import Table

from asyncpq import Expression, col
from asyncpq.spark import lookup_join, scan
from tests.iceberg_tables import add_files, data_files, equality_deletes, make_table, position_deletes, tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def _rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": numbers, "name": [f"n{n % 10}" for n in numbers]}, _SCHEMA)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Ids 0 to 199 without 5, by position, and without those of name n3, by key; then 103 once more."""
    made = make_table(tmp_path_factory.mktemp("tables"), _SCHEMA)
    made.append(_rows(0, 100))
    first = data_files(made)[0]
    made.append(_rows(100, 200))
    keys = tagged(pa.table({"name": ["n3"]}), made.schema())
    deletes = [
        position_deletes(made, {first.file_path: [5]}, like=first),
        equality_deletes(made, keys, like=first, field_ids=[made.schema().find_field("name").field_id]),
    ]
    add_files(made, deletes)
    made.append(_rows(103, 104))
    return made


LEFT = sorted([number for number in range(200) if number % 10 != 3 and number != 5] + [103])


@pytest.mark.parametrize("where", [None, col("id") < 150], ids=["all rows", "where"])
def test_a_scan_of_an_iceberg_table_leaves_out_deleted_rows(
    spark: SparkSession, table: Table, where: Expression | None
) -> None:
    found = scan(spark, table.metadata_location, format="iceberg", where=where)
    wanted = [number for number in LEFT if where is None or number < 150]
    assert sorted(row["id"] for row in found.collect()) == wanted
    assert found.count() == len(wanted)


def test_a_lookup_join_with_an_iceberg_table_finds_no_deleted_rows(spark: SparkSession, table: Table) -> None:
    keys = [3, 4, 5, 6, 103, 104, 113, 500]
    frame = spark.createDataFrame([(key,) for key in keys], "id bigint")
    found = lookup_join(frame, table.metadata_location, on="id", columns=["name"], format="iceberg")
    assert sorted((row["id"], row["name"]) for row in found.collect()) == [
        (4, "n4"),
        (6, "n6"),
        (103, "n3"),
        (104, "n4"),
    ]
