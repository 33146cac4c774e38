"""Spark Connect: what a classic session does, one of its does as well, compared with its own reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")
pytest.importorskip("grpc", reason="needs Spark Connect: pip install pyspark[connect]")

import asyncpq.spark
from asyncpq.indexing import Bounds, Footers, Keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES: Final = 3
_ROWS: Final = 120  # of a file
_NAN: Final = float("nan")
_START: Final = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of Spark Connect's for all tests here, with the source in it."""
    from tests.spark.spark_session import connected

    with connected(spark) as session:
        session.conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses NaN rows
        asyncpq.spark.register(session)
        yield session


def _put(folder: Path, number: int) -> None:
    """A file; ``id`` ascends over all files, ``key`` is there several times, and each column but ``id`` has nulls."""
    ids = range(number * _ROWS, (number + 1) * _ROWS)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "key": pa.array([None if n % 13 == 0 else n * 7 % 50 for n in ids], pa.int32()),
            "x": pa.array([[_NAN, None, -0.0, n / 8][n % 4] for n in ids], pa.float64()),
            "Name": pa.array([None if n % 11 == 0 else f"näme-{n // 10:03}" for n in ids]),
            "at": pa.array(
                [None if n % 17 == 0 else _START + dt.timedelta(hours=n, microseconds=n) for n in ids],
                pa.timestamp("us", "UTC"),
            ),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f"_{number}"
    pq.write_table(table, hidden, write_page_index=True, max_rows_per_page=20)
    hidden.rename(folder / f"{number}.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    for number in range(_FILES):
        _put(tmp_path / "lake", number)
    return str(tmp_path / "lake")


def same(frame: DataFrame, oracle: DataFrame, rows: int | None = None) -> None:
    """The same columns, types and rows; ``rows`` of them."""
    assert frame.schema == oracle.schema
    found = sorted(map(repr, frame.collect()))
    assert found == sorted(map(repr, oracle.collect()))
    assert found
    assert rows is None or len(found) == rows


def test_the_session_is_one_of_spark_connect(remote: SparkSession) -> None:
    assert not hasattr(remote, "_jvm")


@pytest.mark.parametrize("reader", ["asyncpq", "spark"])
def test_scans(remote: SparkSession, lake: str, reader: Literal["asyncpq", "spark"]) -> None:
    native = remote.read.parquet(lake)
    same(asyncpq.spark.scan(remote, lake, reader=reader), native, _FILES * _ROWS)
    where = "x = double('NaN') and at < timestamp'2024-03-08 00:00:00'"
    chosen = asyncpq.spark.scan(remote, lake, where, ["id", "Name", "at"], reader=reader)
    same(chosen, native.where(where).select("id", "Name", "at"))
    narrow = asyncpq.spark.scan(remote, lake, asyncpq.col("id") == 130, reader=reader)
    same(narrow, native.where("id = 130"), 1)
    assert asyncpq.spark.explain_scan(remote, lake, asyncpq.col("id") == 130).read.num_files == 1


def test_the_source(remote: SparkSession, lake: str) -> None:
    native = remote.read.parquet(lake)
    source = remote.read.format("asyncpq")
    same(source.load(lake), native, _FILES * _ROWS)
    option = asyncpq.spark.predicate_option([("id", ">=", 200), ("Name", "=", "näme-021")])
    pruned = source.option("predicate", option).load(lake)
    assert pruned.count() < _ROWS  # pages are left out, and whole files
    condition = "id >= 200 and Name = 'näme-021'"
    same(pruned.where(condition), native.where(condition))


def test_joins_by_lookup(remote: SparkSession, lake: str) -> None:
    asyncpq.spark.build_index(remote, lake, [Keys("key"), Footers()])
    left = remote.createDataFrame([(5, "a"), (5, "b"), (None, "c"), (49, "d"), (1000, "e")], "key int, mark string")
    native = remote.read.parquet(lake)
    for how in ("inner", "left"):
        same(asyncpq.spark.lookup_join(left, lake, "key", how=how), left.join(native, on="key", how=how))
    estimate = asyncpq.spark.explain_lookup_join(left, lake, "key")
    assert estimate.refused is None
    assert "key" in estimate.index
    assert estimate.num_keys == 3  # without null


def test_an_index_is_built_and_refreshed(remote: SparkSession, lake: str) -> None:
    built = asyncpq.spark.build_index(remote, lake, [Bounds("id"), Keys("key"), Footers()])
    assert (built.files, built.rows, built.problems) == (_FILES, _FILES * _ROWS, ())
    _put(Path(lake), _FILES)
    indexed = asyncpq.spark.scan(remote, lake, "key = 5 or x is null", index=built.at, view="snapshot")
    native = remote.read.parquet(lake).where("key = 5 or x is null")
    same(indexed, native.where(f"id < {_FILES * _ROWS}"))
    refreshed = asyncpq.spark.refresh_index(remote, built.at)
    assert (refreshed.files, refreshed.added, refreshed.rows) == (_FILES + 1, 1, (_FILES + 1) * _ROWS)
    same(asyncpq.spark.scan(remote, lake, "key = 5 or x is null", index=built.at, view="snapshot"), native)
    assert asyncpq.spark.verify_index(remote, built.at).problems == []


def test_a_layout_is_rewritten(remote: SparkSession, lake: str, tmp_path: Path) -> None:
    before = dict(remote.conf.getAll)
    done = asyncpq.spark.optimize(remote, lake, str(tmp_path / "target"), "Name", partitions=2, bloom_filters=["key"])
    assert done.rows == _FILES * _ROWS
    native = remote.read.option("recursiveFileLookup", "true").parquet(done.target)
    same(native, remote.read.parquet(lake), _FILES * _ROWS)
    same(asyncpq.spark.scan(remote, done.target), native)
    assert dict(remote.conf.getAll) == before


def test_writes(remote: SparkSession, lake: str, tmp_path: Path) -> None:
    native = remote.read.parquet(lake)
    target = str(tmp_path / "target")

    def write(rows: DataFrame, mode: str) -> None:
        rows.write.format("asyncpq").mode(mode).save(target)

    def read() -> DataFrame:
        return remote.read.format("asyncpq").load(target)

    write(native.where("id < 100"), "append")
    write(native.where("id >= 100 and id < 250"), "append")
    same(read(), native.where("id < 250"), 250)
    write(native.where("id >= 340"), "overwrite")
    same(read(), native.where("id >= 340"), _FILES * _ROWS - 340)


@pytest.mark.parametrize("restarted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stream(remote: SparkSession, lake: str, tmp_path: Path, restarted: bool) -> None:
    native = remote.read.parquet(lake)
    rows = remote.readStream.format("asyncpq").schema(native.schema).option("maxFilesPerTrigger", "2").load(lake)
    sink = str(tmp_path / "sink")

    def run() -> None:
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(sink)
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()

    run()
    same(remote.read.parquet(sink), native, _FILES * _ROWS)
    if not restarted:
        return
    _put(Path(lake), _FILES)
    run()
    same(remote.read.parquet(sink), remote.read.parquet(lake), (_FILES + 1) * _ROWS)
