"""Lakes rewritten by Spark: the same rows, in the order and the layout that was asked for, or nothing at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import asyncpq
from asyncpq.errors import (
    AsyncpqError,
    ColumnNotFoundError,
    CorruptFileError,
    InvalidOptionError,
    ObjectNotFoundError,
    UnsupportedFeatureError,
)
from asyncpq.spark import optimize_lake
from asyncpq.spark.optimize_lake import OptimizeResult, RowLayout, find_keys, optimize, write_frame
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.reads.scan import plan_scan
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.shipping import register
from asyncpq.spark.types.read_conf import ReadConf, TimestampLoss
from asyncpq.writing import BloomFilter
from tests.spark.optimized import files_left, multiset, random_table, spark_order, table_of, write_lake, written
from tests.spark.writing_tasks import DieWhileWriting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.conf import RuntimeConfig

    from tests.spark.cluster import Cluster
    from tests.spark.lake_store import LakeStore


@pytest.fixture(autouse=True)
def same_settings(spark: SparkSession) -> Iterator[None]:
    """Whatever happens, Spark's settings are as they were."""
    before = dict(spark.conf.getAll)
    yield
    assert dict(spark.conf.getAll) == before


def _plain(rows: int = 3000) -> pa.Table:
    """``id`` is shuffled, ``heavy`` mostly 7."""
    ids = [(at * 7919) % rows for at in range(rows)]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "heavy": pa.array([7 if one % 4 else one for one in ids], pa.int32()),
            "user": [f"user-{one * 31 % 500:05d}" for one in ids],
            "noise": [f"{one * 2654435761 % 2**32:010d}" * 3 for one in ids],
        }
    )


# -- rows and their order -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 16)]])
async def test_rows_are_those_of_the_source_in_order(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    table = random_table(seed)
    source = write_lake(tmp_path / "source", table)
    result = optimize(spark, source, str(tmp_path / "target"), "key", partitions=4, row_group_rows=60, page_rows=16)
    found = table_of(result)
    assert multiset(found) == multiset(table.cast(found.schema))
    keys = [spark_order(value) for value in found["key"].to_pylist()]
    assert keys == sorted(keys)
    assert result.rows == table.num_rows
    async with asyncpq.Session() as session:
        lake = await session.open_dataset(result.target)
        assert multiset(await lake.read()) == multiset(found)


def test_the_layout_that_was_asked_for_is_in_the_files(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _plain())
    result = optimize(
        spark,
        source,
        str(tmp_path / "target"),
        ["heavy", "id"],
        bloom_filters=["user", BloomFilter(column="noise", ndv=5000, fpp=0.001)],
        compression="gzip",
        page_rows=100,
        row_group_rows=400,
        partitions=2,
        dictionary_columns=["user"],
        columns=["id", "user", "heavy", "noise"],
    )
    assert result.bytes_before == sum(path.stat().st_size for path in Path(source).iterdir())
    assert result.bytes_after == sum(path.stat().st_size for path in written(result))
    assert "_SUCCESS" in files_left(tmp_path / "target")
    files = [pq.ParquetFile(path) for path in written(result)]
    assert len(files) == 2
    sizes: list[tuple[int, int]] = []
    for file in files:
        assert file.schema_arrow.names == ["id", "user", "heavy", "noise"]
        for at in range(file.num_row_groups):
            group = file.metadata.row_group(at)
            assert group.num_rows <= 400
            assert [(one.column_index, one.descending, one.nulls_first) for one in group.sorting_columns] == [
                (2, False, True),
                (0, False, True),
            ]
            chunks = {group.column(leaf).path_in_schema: group.column(leaf) for leaf in range(4)}
            assert all(chunk.has_offset_index and chunk.has_column_index for chunk in chunks.values())
            assert {chunk.compression for chunk in chunks.values()} == {"GZIP"}
            blooms = {name: chunk.bloom_filter_length for name, chunk in chunks.items()}
            assert blooms["id"] is None
            assert blooms["heavy"] is None
            sizes.append((blooms["user"], blooms["noise"]))  # for few rows pyarrow makes both smaller
            assert {name for name, chunk in chunks.items() if chunk.has_dictionary_page} == {"user"}
    assert all(0 < few <= many for few, many in sizes)  # at most 400 values, and 5,000
    assert any(few < many for few, many in sizes)
    assert "3,000 rows in 2 files" in str(result)


async def test_readers_find_what_was_optimized(spark: SparkSession, tmp_path: Path) -> None:
    table = _plain()
    result = optimize(spark, write_lake(tmp_path / "source", table), str(tmp_path / "target"), "id", partitions=4)
    async with asyncpq.Session() as session:
        lake = await session.open_dataset(result.target)
        found = await lake.lookup({"id": [17, 2999]}, columns=["id", "noise"])
        assert found.sort_by("id").to_pylist() == [
            row for row in table.select(["id", "noise"]).sort_by("id").to_pylist() if row["id"] in (17, 2999)
        ]
        assert lake.metrics.files_opened == 2
    plain = spark.read.option("recursiveFileLookup", "true").parquet(result.target)
    assert plain.count() == table.num_rows


def test_a_heavy_key_is_spread_over_files_that_stay_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize_lake, "_PARTITION_SAMPLES", 125)  # 1,000 of 3,000 rows
    table = _plain()
    frame = spark.createDataFrame(table)
    ranges: dict[bool, list[tuple[int, int]]] = {}
    for salt in (True, False):
        result = optimize(spark, frame, str(tmp_path / f"salt-{salt}"), "heavy", partitions=8, salt=salt)
        columns = [pq.read_table(file, columns=["heavy"])["heavy"].to_pylist() for file in written(result)]
        assert all(column == sorted(column) for column in columns)
        ranges[salt] = [(column[0], column[-1]) for column in columns]
        assert all(before[1] <= after[0] for before, after in pairwise(ranges[salt]))
        assert multiset(table_of(result)) == multiset(table)
        sizes = [len(column) for column in columns]
        assert (max(sizes) < 1000) is salt
    assert sum(1 for first, last in ranges[False] if first <= 7 <= last) == 1
    assert sum(1 for first, last in ranges[True] if first <= 7 <= last) >= 5
    # other keys are each in one file
    both = [value for first, last in ranges[True] for value in {first, last}]
    assert {value for value in both if both.count(value) > 1} <= {7}


def test_files_have_about_the_size_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _plain(40_000))
    result = optimize(spark, source, str(tmp_path / "target"), "id", file_bytes=100_000, row_group_rows=1000)
    assert result.bytes_after / 100_000 <= len(result.files) <= 4 * result.bytes_after / 100_000
    assert max(path.stat().st_size for path in written(result)) < 200_000


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("n", ["n", "i"]), ("S.x", ["s.x", "i"]), ("f", []), ("s.d", []), ("t", ["t", "i"]), ("c", []), ("a.b", []),
        ("w", ["w", "i"]), ("bin", ["bin", "i"]),
    ],
)  # fmt: skip
def test_only_orders_that_parquet_has_are_told(column: str, told: list[str]) -> None:
    schema: Any = StructType.fromDDL(
        "n decimal(20,2), s struct<x: string, d: double>, f float, t string, c string collate UTF8_LCASE, i bigint,"
        " `a.b` int, w timestamp_ntz, bin binary"
    )
    order = RowLayout(find_keys("sort_by", [column, "I"], schema, ReadConf()))
    assert [one.column for one in order.sorted_by()] == told
    assert all(one.nulls_first and not one.descending for one in order.sorted_by())


def test_a_source_without_rows_becomes_a_lake_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    result = optimize(spark, spark.range(5).filter("id > 9"), str(tmp_path / "target"), "id")
    assert (result.rows, result.files) == (0, ())
    assert "_SUCCESS" in files_left(tmp_path / "target")


def test_only_rows_that_are_asked_for_are_written(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, float("nan"), 7.0, None], "y": [1, 2, 3, 4]})
    source = write_lake(tmp_path / "source", table, files=1)
    result = optimize(spark, source, str(tmp_path / "target"), "y", where=asyncpq.col("x") > 5.0, columns=["y"])
    assert table_of(result)["y"].to_pylist() == [2, 3]  # to Spark, NaN is greater than all


# -- z-order --------------------------------------------------------------------------------------


async def _pages_read(lake: str, where: asyncpq.Expression) -> int:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake)
        await dataset.read(["payload"], where=where)
        return dataset.metrics.pages_read


async def test_z_order_makes_ranges_of_either_column_few_pages(spark: SparkSession, tmp_path: Path) -> None:
    rows = 20_000
    table = pa.table(
        {
            "x": pa.array([(at * 7919) % rows for at in range(rows)], pa.int32()),
            "y": [f"{(at * 104_729) % rows:09d}" for at in range(rows)],
            "payload": [at * 2654435761 % 2**32 for at in range(rows)],
        }
    )
    frame = spark.createDataFrame(table)
    options: dict[str, Any] = {"page_rows": 100, "partitions": 4, "dictionary_columns": []}
    z = optimize(spark, frame, str(tmp_path / "z"), zorder_by=["x", "y"], **options)
    sorted_by_x = optimize(spark, frame, str(tmp_path / "x"), "x", **options)
    shuffled = optimize(spark, frame, str(tmp_path / "shuffled"), "payload", **options)
    assert multiset(table_of(z)) == multiset(table)
    low, high = rows // 2, rows // 2 + rows // 50  # 2 % of the rows
    by_x = (asyncpq.col("x") >= low) & (asyncpq.col("x") < high)
    by_y = (asyncpq.col("y") >= f"{low:09d}") & (asyncpq.col("y") < f"{high:09d}")
    for where in (by_x, by_y):
        pages = await _pages_read(z.target, where)
        everything = await _pages_read(shuffled.target, where)
        assert pages * 3 < everything
    assert await _pages_read(z.target, by_y) * 3 < await _pages_read(sorted_by_x.target, by_y)


# -- what is refused ------------------------------------------------------------------------------


def test_targets_that_hold_something_or_overlap_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "lake" / "source", _plain(10), files=1)
    frame = spark.read.parquet(source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other.txt").write_text("x")
    (tmp_path / "link").symlink_to(source)
    before = files_left(tmp_path)
    inside = f"{source}/inside"
    for given, target in [
        (source, source), (source, inside), (source, str(tmp_path / "lake")), (source, f"file://{inside}"),
        (source, str(tmp_path / "link" / "inside")), ([f"{source}/part-0.parquet"], source), (frame, source),
        (frame, str(tmp_path / "lake")), (source, str(tmp_path / "full")),
        (source, f"{source}/../source/inside"), (f"{source}/*.parquet", inside),
    ]:  # fmt: skip
        with pytest.raises(InvalidOptionError, match=r"overlap|not empty"):
            optimize(spark, given, target, "id")
    assert files_left(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidOptionError),
        ({"sort_by": "none"}, ColumnNotFoundError),
        ({"sort_by": ["id", "ID"]}, InvalidOptionError),
        ({"sort_by": "id", "zorder_by": ["id", "user"]}, InvalidOptionError),
        ({"zorder_by": ["id"]}, InvalidOptionError),
        ({"sort_by": "id", "bloom_filters": ["none"]}, InvalidOptionError),
        ({"sort_by": "id", "compression": "brotli9"}, InvalidOptionError),
        ({"sort_by": "id", "partitions": 0}, InvalidOptionError),
        ({"sort_by": "id", "page_rows": 0}, InvalidOptionError),
        ({"sort_by": "id", "timestamp_loss": "round"}, InvalidOptionError),
        ({"sort_by": "id", "publish": "loudly"}, InvalidOptionError),
        ({"sort_by": "id", "storage_options": {"secret": "x"}}, InvalidOptionError),
        ({"sort_by": "id", "no_such_setting": 1}, InvalidOptionError),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], error: type[AsyncpqError]
) -> None:
    source = write_lake(tmp_path / "source", _plain(10), files=1)
    with pytest.raises(error):
        optimize(spark, source, str(tmp_path / "target"), **options)
    assert not files_left(tmp_path / "target")


def test_files_in_folders_below_are_rewritten_too(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _plain(10), files=1)
    write_lake(tmp_path / "source" / "deeper", _plain(10), files=1)
    assert optimize(spark, source, str(tmp_path / "target"), "id").rows == 20  # plain Spark would read 10
    with pytest.raises(ObjectNotFoundError):
        optimize(spark, str(tmp_path / "nothing"), str(tmp_path / "target"), "id")


# -- verified before it is committed --------------------------------------------------------------


def _swapped(frame: DataFrame) -> DataFrame:
    """``user`` of two rows exchanged: no column has other values."""
    return frame.withColumn(
        "user",
        F.when(F.col("id") == 5, F.lit("user-00186"))
        .when(F.col("id") == 6, F.lit("user-00155"))
        .otherwise(F.col("user")),
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda frame: frame.filter("id <> 5"), "column 'id'", id="lost"),
        pytest.param(_swapped, "one row", id="swapped"),
        *[
            pytest.param(damage, told, id=told, marks=pytest.mark.slow)
            for damage, told in [
                (lambda frame: frame.union(frame.filter("id = 5")), "rows and"),
                (lambda frame: frame.withColumn("heavy", F.expr("if(id = 5, null, heavy)")), "column 'heavy'"),
                (lambda frame: frame.withColumn("heavy", F.col("heavy").cast("bigint")), "type of column 'heavy'"),
                (lambda frame: frame.filter("false"), "all rows"),
            ]
        ],
    ],
)
def test_what_was_not_written_right_is_found_and_never_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, told: str
) -> None:
    table = _plain(200)
    users = dict(zip(table["id"].to_pylist(), table["user"].to_pylist(), strict=True))
    assert (users[5], users[6]) == ("user-00155", "user-00186")
    monkeypatch.setattr(
        "asyncpq.spark.optimize_lake.write_frame",
        lambda frame, *rest, **more: write_frame(damage(frame), *rest, **more),
    )
    with pytest.raises(CorruptFileError, match="differ from the source") as caught:
        optimize(spark, spark.createDataFrame(table), str(tmp_path / "target"), "id", partitions=2)
    assert told in str(caught.value)
    assert not files_left(tmp_path / "target")


def test_a_source_that_gives_other_rows_each_time_is_found(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(100).withColumn("x", F.expr("java_method('java.lang.System', 'nanoTime')"))
    with pytest.raises(CorruptFileError, match="same rows"):
        optimize(spark, frame, str(tmp_path / "target"), "id", partitions=2)
    assert not files_left(tmp_path / "target")


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(frame: DataFrame, *rest: Any, **more: Any) -> Any:
        bad = F.when(F.col("id") == 99, F.raise_error(F.lit("no more"))).otherwise(F.col("id"))
        return write_frame(frame.withColumn("id", bad), *rest, **more)

    monkeypatch.setattr("asyncpq.spark.optimize_lake.write_frame", fail)
    with pytest.raises(Exception, match="no more"):
        optimize(spark, spark.range(100), str(tmp_path / "target"), "id", partitions=2)
    assert not files_left(tmp_path / "target")


@pytest.mark.slow  # the executor must come back
def test_an_executor_that_dies_while_it_writes(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, restored_conf: RuntimeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored_conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    die = DieWhileWriting(tmp_path / "once")
    monkeypatch.setattr(
        "asyncpq.spark.optimize_lake.write_frame",
        lambda frame, *rest, **more: write_frame(frame.mapInArrow(die, frame.schema), *rest, **more),
    )
    source = write_lake(tmp_path / "source", _plain(6000))
    result = optimize(
        spark, source, str(tmp_path / "target"), "id", partitions=4, page_rows=50, row_group_rows=100, file_bytes=1
    )
    assert (tmp_path / "once").exists()
    found = table_of(result)
    assert found["id"].to_pylist() == list(range(6000))
    assert multiset(found) == multiset(_plain(6000))
    with asyncpq.blocking.Session() as session:  # what the lost attempt has left is not read
        assert session.open_dataset(result.target).read().num_rows == 6000
    cluster.wait_for_executors(spark.sparkContext.applicationId)


def test_who_writes_to_the_target_meanwhile_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def other(*rest: Any, **more: Any) -> Any:
        files = write_frame(*rest, **more)
        (tmp_path / "target" / "other.parquet").write_bytes(b"PAR1")
        return files

    monkeypatch.setattr("asyncpq.spark.optimize_lake.write_frame", other)
    with pytest.raises(InvalidOptionError, match="not empty"):
        optimize(spark, spark.range(10), str(tmp_path / "target"), "id")
    assert files_left(tmp_path / "target") == ["other.parquet"]


# -- stores ---------------------------------------------------------------------------------------


def test_from_s3_to_s3(spark: SparkSession, lake_store: LakeStore) -> None:
    table = _plain(2000)
    for at in range(2):
        lake_store.put_table(f"raw/day={at}/x.parquet", table.slice(at * 1000, 1000))
    result: OptimizeResult = optimize(
        spark, f"{lake_store.url}/raw", f"{lake_store.url}/fast", ["day", "id"], partitions=3, **lake_store.settings
    )
    assert result.bytes_before == sum(len(lake_store.get(key)) for key in lake_store.keys("raw/"))
    keys = lake_store.keys("fast/")
    assert {f"fast/{path}" for path in result.files} == {key for key in keys if key.startswith("fast/data/")}
    assert "fast/_SUCCESS" in keys
    read = [pq.read_table(pa.BufferReader(lake_store.get(f"fast/{path}"))) for path in result.files]
    days = [day for part in read for day in part["day"].to_pylist()]
    assert days == [0] * 1000 + [1] * 1000
    assert multiset(pa.concat_tables(read).drop_columns("day")) == multiset(table)


@pytest.mark.parametrize("way", ["write", "sorted", "z-ordered"])
def test_plain_spark_and_other_engines_see_every_row_of_a_written_lake(
    spark: SparkSession, tmp_path: Path, restored_conf: RuntimeConfig, way: str
) -> None:
    """With pushdown, NaN and zeros of both signs: bounds hide no row from engines for which NaN is the greatest."""
    special = [math.nan, -0.0, 0.0, math.inf, -math.inf, None, math.nan, 2.5]
    values = [special[n // 3 % 8] if n % 3 == 0 else n * 7 % 400 / 16 for n in range(4000)]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    pq.write_table(pa.table({"id": range(4000), "d": pa.array(values, pa.float64())}), source / "a.parquet")
    if way == "write":
        rows = spark.read.parquet(str(source)).coalesce(1).write.format("asyncpq").mode("append")
        register(spark)
        rows.options(publish="plain", pageRows=100, rowGroupRows=500).save(str(target))
    else:
        layout: dict[str, Any] = {"sort_by": ["d"]} if way == "sorted" else {"zorder_by": ["d", "id"]}
        optimize(spark, str(source), str(target), **layout, page_rows=100, row_group_rows=500)

    def holds(value: float | None, bound: float) -> bool:
        return value is not None and (math.isnan(value) or value > bound)

    bounds = [-math.inf, -1.0, 0.0, 24.0, 24.9375, 1e9, math.inf]
    expected = [sum(holds(value, bound) for value in values) for bound in bounds]
    texts = [f"CAST('{bound}' AS DOUBLE)" for bound in bounds]
    restored_conf.set("spark.sql.parquet.filterPushdown", "true")
    reader = spark.read.option("recursiveFileLookup", "true")
    conditions = {text: f"d > {text}" for text in texts} | {"zeros": "isnan(d) OR d = 0D"}
    counts = [
        reader.parquet(str(target)).filter(condition).select(F.lit(name), F.count("*"))
        for name, condition in conditions.items()
    ]
    found = dict(map(tuple, reduce(DataFrame.union, counts).collect()))
    zeros = sum(value is not None and (math.isnan(value) or value == 0) for value in values)
    assert found == {**dict(zip(texts, expected, strict=True)), "zeros": zeros}
    files = [str(path) for path in target.glob("data/*/*.parquet")]
    for bound, text, number in zip(bounds, texts, expected, strict=True):
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files}) WHERE d > {text}").fetchall() == [(number,)]
        assert pl.scan_parquet(files).filter(pl.col("d") > bound).collect().height == number
        numbers = sum(value is not None and value > bound for value in values)  # NaN compares as unknown in pyarrow
        assert ds.dataset(files).count_rows(filter=ds.field("d") > bound) == numbers


_MICROS = [None, -1, 0, 1, 1_700_000_000_123_456, -(2**62) // 1000]
_NS, _NZ = pa.timestamp("ns"), pa.timestamp("ns", "UTC")


def _nanoseconds(digits: int) -> pa.Table:
    exact = [None if one is None else one * 1000 + digits for one in _MICROS]
    return pa.table(
        {
            "id": pa.array(range(len(exact)), pa.int32()),
            "a": pa.array(exact, _NS),
            "b": pa.array(exact, _NZ),
            "s": pa.array(
                [{"x": one, "l": [one, None]} for one in exact], pa.struct([("x", _NZ), ("l", pa.list_(_NS))])
            ),
            "m": pa.array([[(1, one)] for one in exact], pa.map_(pa.int32(), _NZ)),
        }
    )


def test_nanoseconds_become_microseconds_if_that_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _nanoseconds(0))
    result = optimize(spark, source, str(tmp_path / "target"), ["b", "id"], partitions=1)
    found = table_of(result).sort_by("id")
    assert found["a"].type == pa.timestamp("us")
    assert found["b"].type == pa.timestamp("us", "UTC")
    for name, unit in [("a", found["a"]), ("b", found["b"])]:
        assert unit.cast(pa.int64()).to_pylist() == _MICROS, name
    assert [None if row["x"] is None else row["x"] for row in found["s"].to_pylist()] == found["b"].to_pylist()
    assert [row["l"] for row in found["s"].to_pylist()] == [[one, None] for one in found["a"].to_pylist()]
    assert [row[0][1] for row in found["m"].to_pylist()] == found["b"].to_pylist()


def test_digits_below_a_microsecond_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    for column in ("a", "b", "s", "m"):
        table = _nanoseconds(0)
        lossy = table.set_column(table.schema.get_field_index(column), column, _nanoseconds(1)[column])
        source = write_lake(tmp_path / column, lossy, files=1)
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond") as caught:
            optimize(spark, source, target, "id")
        assert f"column {column!r}" in str(caught.value)
        assert not files_left(tmp_path / "target")
    for columns in (["id", "A"], ["ID", "s.x"], ["`a`"], ["*"]):  # however they are spelled, and parts of them
        lossy = _nanoseconds(1)
        source = write_lake(tmp_path / f"columns {columns[-1].replace('*', 'all')}", lossy, files=1)
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
            optimize(spark, source, target, "a" if columns == ["`a`"] else "id", columns=columns)
    optimize(spark, str(tmp_path / "m"), target, "id", partitions=1, columns=["id", "a", "b", "s"])


def test_digits_below_a_microsecond_are_dropped_if_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _nanoseconds(999))
    result = optimize(spark, source, str(tmp_path / "target"), "id", partitions=1, timestamp_loss="truncate")
    found = table_of(result)
    assert found["a"].cast(pa.int64()).to_pylist() == _MICROS
    assert [row["x"] for row in found["s"].to_pylist()] == found["b"].to_pylist()


def test_int96_is_refused_where_spark_would_drop_digits(spark: SparkSession, tmp_path: Path) -> None:
    exact = pa.table({"t": pa.array([1_000, None, -2_000], _NS)})
    source = write_lake(tmp_path / "exact", exact, files=1, use_deprecated_int96_timestamps=True)
    result = optimize(spark, source, str(tmp_path / "a"), "t", partitions=1)
    assert table_of(result)["t"].cast(pa.int64()).to_pylist() == [None, -2, 1]
    lossy = pa.table({"t": pa.array([1_001], _NS)})
    source = write_lake(tmp_path / "lossy", lossy, files=1, use_deprecated_int96_timestamps=True)
    with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
        optimize(spark, source, str(tmp_path / "b"), "t")


@pytest.mark.parametrize("loss", ["error", "truncate"])
def test_files_of_several_units_are_read_by_the_unit_of_each(spark: SparkSession, tmp_path: Path, loss: str) -> None:
    folder = Path(write_lake(tmp_path / "source", pa.table({"t": pa.array([1_000], _NS)}), files=1))
    pq.write_table(pa.table({"t": pa.array([2], pa.timestamp("us"))}), folder / "part-1.parquet")
    pq.write_table(pa.table({"t": pa.array([3], pa.timestamp("ms"))}), folder / "part-2.parquet")
    result = optimize(spark, str(folder), str(tmp_path / "target"), "t", timestamp_loss=loss)  # type: ignore[arg-type]
    assert table_of(result)["t"].cast(pa.int64()).to_pylist() == [1, 2, 3_000]


def test_one_file_with_digits_among_others_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"t": pa.array([5, None], pa.timestamp("us")), "n": [1, 2]})
    source = write_lake(tmp_path / "source", rows, files=2)
    lossy = rows.set_column(0, "t", pa.array([1_001, None], _NS))
    for name, options in (("int96", {"use_deprecated_int96_timestamps": True}), ("nanoseconds", {})):
        pq.write_table(lossy, Path(source) / "part-9.parquet", **options)
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
            optimize(spark, source, str(tmp_path / name), "n")
        assert not files_left(tmp_path / name)
        result = optimize(spark, source, str(tmp_path / f"{name} cut"), "n", timestamp_loss="truncate")
        assert sorted(map(str, table_of(result)["t"].cast(pa.int64()).to_pylist())) == ["1", "5", "None", "None"]


def test_spark_reads_files_whose_timestamps_lose_no_digits(spark: SparkSession, tmp_path: Path) -> None:
    micros = pa.table({"t": pa.array([5, None], pa.timestamp("us")), "n": [1, 2]})
    nanos = micros.set_column(0, "t", pa.array([1_000, None], _NS))
    int96 = {"use_deprecated_int96_timestamps": True}
    lakes = {
        "us": write_lake(tmp_path / "us", micros),
        "int96": write_lake(tmp_path / "int96", micros, **int96),
        "ns": write_lake(tmp_path / "ns", nanos),
        "last": write_lake(tmp_path / "last", micros),
    }
    pq.write_table(micros, Path(lakes["last"]) / "part-9.parquet", **int96)

    def refusal(lake: str, loss: TimestampLoss, columns: list[str] | None = None) -> str:
        settings, conf = SparkSettings.of(spark), replace(ReadConf.of(spark), timestamp_loss=loss)
        try:
            plan_scan(spark, LakeTarget(target=lakes[lake]), None, columns, settings, conf, "spark")
        except UnsupportedFeatureError as error:
            return str(error)
        return ""

    refused: list[tuple[TimestampLoss, list[str]]] = [("error", ["int96", "ns", "last"]), ("truncate", ["ns"])]
    for loss, names in refused:
        refusals = {lake: refusal(lake, loss) for lake in lakes}
        assert [lake for lake, why in refusals.items() if "nanoseconds" in why] == names
        assert {refusals[lake] for lake in lakes if lake not in names} == {""}
    assert refusal("last", "error", ["n"]) == ""  # without timestamps, no file is opened
