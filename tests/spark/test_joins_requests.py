"""What lookup joins ask of a store, and what they say that they would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import asyncpq.blocking
from asyncpq.indexing import Footers, Keys
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.spark.credentials import PROVIDER, localstack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES: Final = 20
ROWS: Final = 2000
URL: Final = "s3://bucket/lake/"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    """With files of random-looking keys, and an index below them."""
    with ObjectServer.in_thread() as running:
        for number in range(FILES):
            keys = [n * 7919 % (FILES * ROWS) for n in range(number * ROWS, (number + 1) * ROWS)]
            table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([f"v{key}" for key in keys])})
            running.put(
                f"bucket/lake/{number:02}.parquet", parquet_bytes(table, write_page_index=True, max_rows_per_page=200)
            )
        with asyncpq.blocking.Session({**running.storage_options, **localstack()}) as session:
            session.build_index(URL, [Keys("k"), Footers()])
        yield running


@pytest.fixture
def settings(server: ObjectServer) -> dict[str, Any]:
    options = {name: value for name, value in server.storage_options.items() if name not in localstack()}
    return {"storage_options": options, "credentials_provider": PROVIDER, "disk_cache": "off"}


def test_empty_partitions_and_null_keys_open_nothing(
    spark: SparkSession, server: ObjectServer, settings: dict[str, Any]
) -> None:
    from asyncpq.spark.joins import lookup_join

    nothing = spark.createDataFrame([], "k bigint").repartition(3)
    nulls = spark.createDataFrame([(None,), (None,)], "k bigint").coalesce(1)
    joins = [
        lookup_join(nothing, URL, "k", how="left", strategy="lookups", **settings),
        lookup_join(nulls, URL, "k", how="left", strategy="lookups", **settings),
    ]
    before = len(server.log)
    assert [frame.count() for frame in joins] == [0, 2]
    assert len(server.log) == before


def test_each_key_is_asked_for_once(spark: SparkSession, server: ObjectServer, settings: dict[str, Any]) -> None:
    from asyncpq.spark.joins import lookup_join

    keys = spark.range(3000).selectExpr("(id % 10) * 3001 + 17 as k").coalesce(1)
    join = lookup_join(keys, URL, "k", strategy="lookups", **settings)
    before = len(server.log)
    rows = join.collect()
    assert len(rows) == 3000
    assert {(row["k"], row["v"]) for row in rows} == {(n * 3001 + 17, f"v{n * 3001 + 17}") for n in range(10)}
    # the index: its manifest and segments; of each key one range, or two where its columns lie apart
    assert len(server.log) - before <= 8 + 2 * 10


def test_what_would_be_done(spark: SparkSession, settings: dict[str, Any]) -> None:
    from asyncpq.spark.joins import explain_lookup_join

    few = explain_lookup_join(spark.range(10).toDF("k"), URL, "k", num_keys=10, **settings)
    assert few.refused is None
    assert 10 <= few.requests <= 50
    assert "keys(k) of the index" in str(few)
    assert "snapshot" in str(few)
    many = explain_lookup_join(spark.range(50).toDF("k"), URL, "k", **settings)
    assert many.num_keys == 50
    assert many.scan_is_cheaper
    assert str(many).startswith(f"join by {many.strategy}, since {many.reason}")
    assert f"of {FILES} files" in many.reason
    other = explain_lookup_join(spark.range(1).selectExpr("'v1' as v"), URL, "v", num_keys=1, **settings)
    assert other.index == "footers and bounds"
