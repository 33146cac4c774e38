"""``lookup_join`` gives what Spark's own join with the lake gives, and reads what it says."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq.blocking
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, QueryError
from asyncpq.indexing import Bounds, Footers, Keys
from tests.spark.joined import HOWS, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 600
FILES: Final = 4
NAN: Final = float("nan")


def _lake_table(number: int) -> pa.Table:
    """Random keys, several times each, nulls and NaN among them; ``id`` ascends over all files."""
    rnd = random.Random(number)
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array([rnd.choice([None, *range(200)]) for _ in ids], pa.int32()),
            "b": pa.array([rnd.choice([None, "x", "y", "z"]) for _ in ids]),
            "x": pa.array([rnd.choice([None, NAN, 0.0, -0.0, 1.5, 2.5]) for _ in ids], pa.float64()),
            "v": pa.array([f"value-{n}" for n in ids]),
            "tags": pa.array([[n, None] if n % 3 else None for n in ids], pa.list_(pa.int64())),
        }
    )


def _write(folder: Path) -> str:
    for number in range(FILES):
        table = _lake_table(number)
        pq.write_table(table, folder / f"{number}.parquet", write_page_index=True, max_rows_per_page=100)
    return f"{folder}/"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With an index below it, and one of bounds alone beside it: ``<lake>../bounds/``."""
    url = _write(tmp_path_factory.mktemp("join") / "")
    with asyncpq.blocking.Session() as session:
        session.build_index(url, [Keys("a"), Keys("x"), Keys("a", "b"), Footers()])
        session.build_index(url, [Bounds("id", "v"), Footers()], at=_bounds(url))
    return url


def _bounds(lake: str) -> str:
    return f"{lake.rstrip('/')}-bounds/"


@pytest.fixture(autouse=True)
def _no_pushdown(restored_conf: Any) -> None:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses NaN rows


@pytest.fixture(scope="module")
def left(spark: SparkSession) -> DataFrame:
    rnd = random.Random(7)
    rows = [
        (n, rnd.choice([None, *range(150, 300)]), rnd.choice([None, "x", "y"]), rnd.choice([None, NAN, -0.0, 2.5, 9.0]))
        for n in range(60)
    ]
    return spark.createDataFrame(rows, "id bigint, a int, b string, x double").repartition(3)


def test_all_kinds_of_joins(spark: SparkSession, left: DataFrame, lake: str) -> None:
    from asyncpq.spark.joins import lookup_join

    native = spark.read.parquet(lake)
    mine, theirs = [], []
    for on in (["a"], ["x"], ["a", "b"], ["x", "b", "a"]):
        some = left.select("id", "b", "a", "x")
        for how in HOWS:
            mine.append(lookup_join(some, lake, on, how=how, strategy="lookups", batch_keys=7))
            theirs.append(some.join(native, on=on, how=how))
    same(mine, theirs)


def test_columns_names_and_cases(spark: SparkSession, left: DataFrame, lake: str, restored_conf: Any) -> None:
    from asyncpq.spark.joins import lookup_join

    native = spark.read.parquet(lake)
    upper = left.select("id", left["a"].alias("A"))
    mine = [
        lookup_join(upper, lake, "a", ["v", "TAGS"]),
        lookup_join(upper, lake, ["A"], []),
        lookup_join(upper, lake, "a", ["a", "id"], "left"),
    ]
    theirs = [
        upper.join(native.select("a", "v", "tags"), on="a"),
        upper.join(native.select("a"), on=["A"]),
        upper.join(native.select("a", "id"), on="a", how="left"),
    ]
    same(mine, theirs)
    with pytest.raises(ColumnNotFoundError, match="no such column"):
        lookup_join(left, lake, "a", ["w"])
    from pyspark.errors import AnalysisException

    restored_conf.set("spark.sql.caseSensitive", "true")
    with pytest.raises(AnalysisException, match="UNRESOLVED_USING_COLUMN_FOR_JOIN"):
        lookup_join(upper, lake, "a")


def test_what_cannot_be_asked(left: DataFrame, lake: str) -> None:
    from pyspark.errors import AnalysisException

    from asyncpq.spark.joins import lookup_join

    with pytest.raises(AnalysisException, match="DATATYPE_MISMATCH"):
        lookup_join(left.select((left["id"] > 1).alias("a")), lake, "a")
    wrongs: list[dict[str, Any]] = [
        {"on": []},
        {"on": "a", "how": "full"},
        {"on": "a", "batch_keys": 0},
        {"on": "a", "strategy": "fast"},
        {"on": [left["a"]]},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidOptionError):
            lookup_join(left, lake, **wrong)


def test_without_an_index_of_the_keys_it_refuses(
    spark: SparkSession, left: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpq.distributed import join_planning as join_sample
    from asyncpq.spark.joins import lookup_join

    url = _write(tmp_path)
    monkeypatch.setattr(join_sample, "LITTLE_BYTES", 20_000)
    with pytest.raises(QueryError, match="no index maps keys to rows") as raised:
        lookup_join(left, url, "a", strategy="lookups")
    assert "strategy='auto'" in str(raised.value.hint)
    native = spark.read.parquet(url)
    some = left.select("id")
    # in this order of the files an id is in one page of one of them
    mine = [
        lookup_join(left, url, "a", ["v"]),
        lookup_join(some, url, "id", strategy="lookups"),
        lookup_join(some, url, "id", how="anti", strategy="lookups"),
    ]
    theirs = [
        left.join(native.select("a", "v"), on="a"),
        some.join(native, on="id"),
        some.join(native, on="id", how="anti"),
    ]
    same(mine, theirs)


def test_with_bounds_alone(spark: SparkSession, left: DataFrame, lake: str) -> None:
    from asyncpq.spark.joins import lookup_join

    some = left.select("id")
    mine = [
        lookup_join(some, lake, "id", ["v"], how, index=_bounds(lake), strategy="lookups") for how in ("inner", "left")
    ]
    native = spark.read.parquet(lake).select("id", "v")
    same(mine, [some.join(native, on="id", how=how) for how in ("inner", "left")])


def test_a_key_with_very_many_rows_comes_in_small_batches(spark: SparkSession, tmp_path: Path) -> None:
    from asyncpq.distributed.join_tasks import OUTPUT_ROWS
    from asyncpq.spark.joins import plan_lookup_join

    rows = 300_000
    table = pa.table({"k": pa.array([5] * rows, pa.int64()), "v": pa.array(range(rows), pa.int64())})
    pq.write_table(table, tmp_path / "0.parquet", write_page_index=True, row_group_size=100_000)
    with asyncpq.blocking.Session() as session:
        session.build_index(f"{tmp_path}/", [Keys("k")])
    df = spark.createDataFrame([(5, "a"), (5, "b"), (6, "c")], "k bigint, w string").coalesce(1)
    plan = plan_lookup_join(df, f"{tmp_path}/", "k")
    assert plan.task is not None
    part = pa.record_batch({"c0": [5, 5, 6], "c1": ["a", "b", "c"], "k0": [5, 5, 6]})
    sizes = [batch.num_rows for batch in plan.task(iter([part]))]
    assert sum(sizes) == 2 * rows
    assert max(sizes) <= OUTPUT_ROWS
    found = plan.dataframe(df).groupBy("w").agg({"v": "sum"}).collect()
    assert {row[0]: row[1] for row in found} == {"a": rows * (rows - 1) // 2, "b": rows * (rows - 1) // 2}


def test_a_file_that_is_replaced_after_planning(spark: SparkSession, left: DataFrame, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from asyncpq.spark.joins import lookup_join

    url = _write(tmp_path)
    with asyncpq.blocking.Session() as session:
        session.build_index(url, [Keys("a"), Footers()])
    left = left.coalesce(1)  # one task fails, again and again; what a worker has in its cache is of the planned version
    by_index = lookup_join(left.select("a"), url, "a", ["v"], strategy="lookups")
    by_files = lookup_join(left.select("id"), url, "id", ["v"], index=False, strategy="lookups")
    for number in range(FILES):
        pq.write_table(_lake_table(number).slice(1), tmp_path / f"{number}.parquet")
    for frame in (by_index, by_files):
        with pytest.raises(PySparkException, match=r"ObjectChangedError: .*Plan again") as raised:
            frame.collect()
        assert f"{tmp_path}/" in str(raised.value)
        assert ".parquet" in str(raised.value)
    again = lookup_join(left.select("id"), url, "id", ["v"], index=False)
    same([again], [left.select("id").join(spark.read.parquet(url).select("id", "v"), on="id")])


def test_very_many_keys_of_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    """More than are asked for at once: rows of those asked for later have values of these in each column."""
    from asyncpq.spark.joins import lookup_join

    rows = list(itertools.product(range(20), range(20)))
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows], "v": range(400)})
    pq.write_table(table, tmp_path / "0.parquet")
    left = spark.createDataFrame([*rows, (1, 99)], "a bigint, b bigint").coalesce(1)
    lake = spark.read.parquet(str(tmp_path))
    mine = [lookup_join(left, str(tmp_path), ["a", "b"], how=how, strategy="lookups") for how in HOWS]
    same(mine, [left.join(lake, ["a", "b"], how) for how in HOWS])


def test_files_of_other_types_than_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark takes them: timestamps with and without a zone."""
    from asyncpq.spark.joins import lookup_join

    for number, zone in enumerate(["UTC", None]):
        times = pa.array([number * 1000, number * 1000 + 7], pa.timestamp("us", zone))
        pq.write_table(pa.table({"t": times, "v": [number, 9]}), tmp_path / f"{number}.parquet")
    lake = spark.read.parquet(str(tmp_path))
    left = lake.select("t").coalesce(1)
    mine = [lookup_join(left, str(tmp_path), "t", how=how, strategy="lookups") for how in HOWS]
    same(mine, [left.join(lake, "t", how) for how in HOWS])
