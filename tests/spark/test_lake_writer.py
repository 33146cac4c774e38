"""``df.write.format("asyncpq")`` on the cluster: what a table would hold, whatever becomes of tasks and executors."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

import asyncpq
import asyncpq.blocking
import asyncpq.spark
from asyncpq.errors import AmbiguousColumnError, SchemaMismatchError
from asyncpq.indexing.build.adding import ORPHANS_S
from asyncpq.spark import index_builds
from asyncpq.spark.lake_writer import arranged, fitted
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark.cluster import Cluster
from tests.spark.credentials import CANARY
from tests.spark.writing_tasks import DieWhileWriting, FailLast, TwoAttempts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.conf import RuntimeConfig

    from tests.spark.lake_store import LakeStore

_ALL_TYPES = (
    "id",
    "cast(id as string) as Name",
    "cast(id % 100 as tinyint) as tiny",
    "cast(id % 100 as smallint) as small",
    "cast(id as int) as whole",
    "cast(id / 7 as float) as single",
    "case when id % 5 = 0 then cast('NaN' as double) when id % 5 = 1 then null else id / 3 end as real",
    "cast(id as decimal(7, 2)) as few",
    "cast(id as decimal(38, 10)) as many",
    "id % 3 = 0 as flag",
    "cast(cast(id as string) as binary) as bytes",
    "date_add(date'0999-03-01', cast(id as int)) as day",
    "timestamp_micros(id * 1234567 - 30000000000000000) as at",
    "cast(timestamp_micros(id * 1234567) as timestamp_ntz) as local",
    "make_dt_interval(0, 0, 0, id) as lasted",
    "array(id, null, id + 1) as items",
    "struct(id as a, array(struct(id as c)) as b) as nested",
    "map(cast(id as string), array(id)) as held",
    "parse_json(concat('{\"a\": ', id, '}')) as any",
    "cast(null as string) as nothing",
)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession, restored_conf: RuntimeConfig) -> None:
    from asyncpq.spark.shipping import register

    register(spark)
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")


def rows(spark: SparkSession, start: int, stop: int, partitions: int = 2) -> DataFrame:
    return spark.range(start, stop, 1, partitions).toDF("id")


def save(frame: DataFrame, target: object, mode: str = "append", **options: str) -> None:
    frame.write.format("asyncpq").mode(mode).options(**options).save(str(target))


def ids(target: object, **session: Any) -> Counter[int]:
    """What readers of the index see."""
    with asyncpq.blocking.Session(**session) as opened:
        table = opened.open_dataset(str(target), index=f"{target}/_asyncpq", view="snapshot").read(columns=["id"])
    return Counter(table.column("id").to_pylist())


def files(target: Path) -> set[str]:
    return {str(path.relative_to(target)) for path in target.glob("data/*/*")}


def committed(target: Path) -> set[str]:
    with asyncpq.blocking.Session() as session:
        dataset = session.open_dataset(str(target))
        return {str(Path(url).relative_to(target)) for url in dataset.files()}


def same(frame: DataFrame, oracle: DataFrame) -> None:
    assert frame.schema == oracle.schema
    assert sorted(map(repr, frame.collect())) == sorted(map(repr, oracle.collect()))


def test_a_lake_holds_what_a_table_would(spark: SparkSession, tmp_path: Path, restored_conf: RuntimeConfig) -> None:
    restored_conf.set("spark.sql.session.timeZone", "America/New_York")
    lake, plain = tmp_path / "lake", str(tmp_path / "plain")
    first = rows(spark, 0, 500).selectExpr(*_ALL_TYPES)
    # other names by case, and another order: what Spark's own rules call the same columns
    later = rows(spark, 1000, 1100, 1).selectExpr(*reversed(_ALL_TYPES)).withColumnRenamed("Name", "NAME")
    for frame, mode in ((first, "append"), (later, "append")):
        save(frame, lake, mode)
        frame.select(*first.columns).write.mode(mode).parquet(plain)
    oracle = spark.read.parquet(plain)
    # not all files: an attempt of a task that Spark gave up may have left one, which is not committed
    same(spark.read.parquet(*[f"{lake}/{path}" for path in committed(lake)]), oracle)
    same(spark.read.format("asyncpq").load(str(lake)).select(*oracle.columns), oracle)
    last = rows(spark, 0, 7).selectExpr("id", "'x' as other")
    save(last, lake, "overwrite")
    last.write.mode("overwrite").parquet(plain)
    same(spark.read.format("asyncpq").load(str(lake)), spark.read.parquet(plain))
    assert len(committed(lake)) < len(files(lake))  # the others are for those who still read them


def test_rows_that_are_none(spark: SparkSession, tmp_path: Path) -> None:
    nothing = rows(spark, 0, 10).where("id < 0")
    save(nothing, tmp_path / "lake")
    with asyncpq.blocking.Session() as session:
        dataset = session.open_dataset(str(tmp_path / "lake"))
        assert (dataset.schema.names, dataset.count(), files(tmp_path / "lake")) == (["id"], 0, set())
    _is_empty(spark, tmp_path / "lake")
    save(rows(spark, 0, 10), tmp_path / "lake")
    save(nothing, tmp_path / "lake")
    assert ids(tmp_path / "lake") == Counter(range(10))
    save(nothing, tmp_path / "lake", "overwrite")
    assert ids(tmp_path / "lake") == Counter()
    _is_empty(spark, tmp_path / "lake")
    assert asyncpq.spark.optimize(spark, str(tmp_path / "lake"), str(tmp_path / "other"), sort_by=["id"]).rows == 0
    with pytest.raises(PySparkException, match="without columns"):
        save(rows(spark, 0, 3).select(), tmp_path / "columns")


def _is_empty(spark: SparkSession, lake: Path) -> None:
    """The columns are still those that were written."""
    loaded = spark.read.format("asyncpq").load(str(lake))
    for found in (loaded, asyncpq.spark.scan(spark, str(lake)), loaded.where("id = 3")):
        assert (found.schema.simpleString(), found.count()) == ("struct<id:bigint>", 0)
    joined = asyncpq.spark.lookup_join(spark.range(3), str(lake), on="id", how="left")
    assert sorted(row.id for row in joined.collect()) == [0, 1, 2]
    estimate = asyncpq.spark.explain_lookup_join(spark.range(3), str(lake), on="id")
    assert (estimate.refused, estimate.num_keys, estimate.num_bytes, estimate.scan_s) == (None, 3, 0, 0.0)


def test_files_are_laid_out_as_asked(spark: SparkSession, tmp_path: Path) -> None:
    options = {
        "compression": "snappy",
        "pageRows": "100",
        "rowGroupRows": "1000",
        "bloomFilters": '["id"]',
        "sortedBy": '["id"]',
        "indexKinds": '["footers", {"kind": "keys", "columns": ["id"]}]',
    }
    save(rows(spark, 0, 3000, 1), tmp_path / "lake", **options)
    (path,) = files(tmp_path / "lake")
    metadata = pq.read_metadata(tmp_path / "lake" / path)
    chunk = metadata.row_group(0).column(0)
    assert (metadata.num_row_groups, chunk.compression) == (3, "SNAPPY")
    assert chunk.has_offset_index
    assert chunk.bloom_filter_length is not None
    assert [one.column_index for one in metadata.row_group(0).sorting_columns] == [0]
    with asyncpq.blocking.Session() as session:
        dataset = session.open_dataset(str(tmp_path / "lake"))
        assert dataset.lookup({"id": [5, 2999, 3000]}).num_rows == 2
        index = session.open_index(str(tmp_path / "lake" / "_asyncpq"))
        assert {report.kind for report in index.show().tables} == {"files", "footers", "keys"}


def test_of_two_attempts_one_counts(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    lake = tmp_path / "lake"
    slow = rows(spark, 0, 4, 4).mapInArrow(TwoAttempts(tmp_path / "attempts"), "id long")
    save(slow, lake)
    assert len(list((tmp_path / "attempts").iterdir())) == 2  # there were two
    assert ids(lake) == Counter(range(4))
    named = committed(lake)
    assert len(named) == 4
    # whatever the other one has left is nobody's, and goes with a vacuum
    left = files(lake) - named
    assert all(path.startswith("data/") for path in left)
    assert index_builds.vacuum(spark, f"{lake}/_asyncpq").files == ()  # they are young
    for path in left:
        os.utime(lake / path, (time.time() - 2 * ORPHANS_S,) * 2)
    assert set(index_builds.vacuum(spark, f"{lake}/_asyncpq").files) >= left
    assert {path for path in files(lake) if not Path(path).name.startswith(".")} == named


def test_what_fails_leaves_the_lake_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    save(rows(spark, 0, 4), lake)
    before = files(lake)
    failing = rows(spark, 100, 104, 4).mapInArrow(FailLast(lake, len(before) + 3, 103), "id long")
    for mode in ("append", "overwrite"):
        with pytest.raises(PySparkException, match="this row is refused"):
            save(failing, lake, mode)
        assert ids(lake) == Counter(range(4))
        until = time.monotonic() + 20
        while files(lake) != before and time.monotonic() < until:
            time.sleep(0.1)
        assert files(lake) == before  # also the three that were written


def test_writers_at_once_and_a_reader(spark: SparkSession, tmp_path: Path) -> None:
    lake, done = tmp_path / "lake", threading.Event()
    save(rows(spark, 0, 10), lake)
    seen: list[Counter[int]] = []

    def read() -> None:
        with asyncpq.blocking.Session() as session:
            dataset = session.open_dataset(str(lake), index=f"{lake}/_asyncpq", view="snapshot")
            while not done.is_set():
                seen.append(Counter(dataset.read(columns=["id"]).column("id").to_pylist()))
                time.sleep(0.02)

    def write(start: int, mode: str) -> None:
        spark.createDataFrame([], "id long")  # makes the session the thread's: else Spark does not find the source
        save(rows(spark, start, start + 20), lake, mode)

    with ThreadPoolExecutor(4) as pool:
        reading = pool.submit(read)
        try:
            jobs = [
                pool.submit(write, 100, "append"),
                pool.submit(write, 200, "append"),
                pool.submit(write, 300, "overwrite"),
            ]
            for job in jobs:
                job.result()
        finally:
            done.set()
        reading.result()
    last = ids(lake)
    assert last >= Counter(range(300, 320))  # the overwriting write is the last one, or others came after it
    whole = [Counter(range(start, start + size)) for start, size in ((0, 10), (100, 20), (200, 20), (300, 20))]
    for found in [*seen, last]:
        assert found == sum((part for part in whole if part <= found), Counter())
        assert not (found >= whole[0] and found >= whole[3])


def test_a_lake_in_s3(spark: SparkSession, lake_store: LakeStore, cluster: Cluster) -> None:
    target = f"{lake_store.url}/a lake+"
    options = {
        "storageOptions": json.dumps(lake_store.settings["storage_options"]),
        "credentialsProvider": lake_store.settings["credentials_provider"],
    }
    save(rows(spark, 0, 1000, 3), target, **options)
    save(rows(spark, 1000, 1500, 1), target, fileBytes="1", rowGroupRows="100", **options)
    assert ids(target, storage_options=lake_store.session_options) == Counter(range(1500))
    assert len(lake_store.keys("a lake+/data/")) == 3 + 5
    reader = spark.read.format("asyncpq").options(**options)
    assert reader.load(target).where("id >= 990 and id < 1010").count() == 20
    with pytest.raises(PySparkException, match="credentialsProvider"):
        save(rows(spark, 0, 1), target, secret=CANARY)
    assert not any(CANARY in log.read_text("utf-8", "replace") for log in cluster.logs() if log.name != "driver.log")


@pytest.mark.slow  # the executor must come back
def test_an_executor_that_dies_while_it_writes(
    spark: SparkSession, cluster: Cluster, lake_store: LakeStore, tmp_path: Path, restored_conf: RuntimeConfig
) -> None:
    restored_conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    options = {
        "storageOptions": json.dumps(lake_store.settings["storage_options"]),
        "credentialsProvider": lake_store.settings["credentials_provider"],
    }
    dying = rows(spark, 0, 4000, 4).mapInArrow(DieWhileWriting(tmp_path / "once"), "id long")
    target = f"{lake_store.url}/lake"
    save(dying, target, rowGroupRows="100", fileBytes="1", **options)
    assert (tmp_path / "once").exists()
    assert ids(target, storage_options=lake_store.session_options) == Counter(range(4000))
    cluster.wait_for_executors(spark.sparkContext.applicationId)


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_that_is_written_again_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    batch = {"txnAppId": "copy", "txnVersion": "7"}
    save(rows(spark, 0, 10), tmp_path, **batch)
    first = sorted(tmp_path.glob("data/*/*.parquet"))
    save(rows(spark, 0, 10), tmp_path, **batch)
    assert sorted(tmp_path.glob("data/*/*.parquet")) == first
    assert ids(tmp_path) == Counter(range(10))
    save(rows(spark, 10, 20), tmp_path, txnAppId="copy", txnVersion="8")
    save(rows(spark, 20, 30), tmp_path, txnAppId="other", txnVersion="7")
    save(rows(spark, 0, 10), tmp_path)  # no batch
    assert ids(tmp_path) == Counter([*range(30), *range(10)])


def test_a_batch_whose_first_write_failed_is_written(spark: SparkSession, tmp_path: Path) -> None:
    batch = {"txnAppId": "copy", "txnVersion": "0"}
    with pytest.raises(PySparkException):
        save(rows(spark, 0, 10).selectExpr("IF(id = 9, raise_error('no'), id) AS id"), tmp_path, **batch)
    save(rows(spark, 0, 10), tmp_path, **batch)
    assert ids(tmp_path) == Counter(range(10))


def test_a_batch_needs_both_options(spark: SparkSession, tmp_path: Path) -> None:
    wrongs = [{"txnAppId": "a"}, {"txnVersion": "1"}, {"txnAppId": "a", "txnVersion": "x"}]
    for wrong in [*wrongs, {"txnAppId": "a", "txnVersion": "1", "publish": "plain"}]:
        with pytest.raises(PySparkException, match="InvalidOptionError: txnAppId"):
            save(rows(spark, 0, 1), tmp_path, **wrong)


def test_names_of_batches() -> None:
    from asyncpq.datasets.listing import WRITTEN
    from asyncpq.distributed.lake_writes import batch_job, is_same_batch

    job, again = batch_job("copy", 7), batch_job("copy", 7)
    assert job != again
    assert is_same_batch(f"data/{again}/00000-1.parquet", job)
    assert not is_same_batch(f"data/{batch_job('copy', 8)}/00000-1.parquet", job)
    assert not is_same_batch(f"data/{batch_job('copy7', 7)}/00000-1.parquet", job)
    assert WRITTEN.fullmatch(f"data/{job}/00000-1.parquet")


LAKE = pa.schema({"id": pa.int64(), "price": pa.float64(), "n": pa.int16(), "s": pa.string()})
CONF = ReadConf()


_TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "double": DoubleType(),
    "float": FloatType(),
    "int": IntegerType(),
    "large decimal": DecimalType(20, 0),
    "smallint": ShortType(),
    "string": StringType(),
    "tinyint": ByteType(),
}


def columns_of(text: str) -> StructType:
    """The columns of a text as ``id bigint, s string``."""
    pairs = [column.split(" ", 1) for column in text.split(", ")]
    return StructType([StructField(name, _TYPES[dtype]) for name, dtype in pairs])


def fit(text: str, conf: ReadConf = CONF) -> tuple[StructType, tuple[int | None, ...]]:
    return fitted(columns_of(text), LAKE, conf, "s3://b/lake/")


def test_the_lake_s_order_and_spelling() -> None:
    struct, order = fit("S string, ID bigint, n smallint, price double")
    assert struct.names == LAKE.names
    assert order == (1, 3, 2, 0)


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_columns_in_any_order_and_missing_ones(order: list[int], missing: set[int]) -> None:
    """Values stay with their names; a missing column is null."""
    table = pa.table({"id": [1, 2], "price": [0.5, None], "n": pa.array([3, None], pa.int16()), "s": ["a", None]})
    table = table.cast(LAKE)
    names = [LAKE.names[at] for at in order if at not in missing]
    types = {"id": "bigint", "price": "double", "n": "smallint", "s": "string"}
    _, places = fit(", ".join(f"{name} {types[name]}" for name in names) or "id bigint")
    given_columns = table.select(names or ["id"])
    (batch,) = given_columns.combine_chunks().to_batches()
    found = pa.table(arranged(batch, places, LAKE))
    assert found.schema.equals(LAKE)
    for name in LAKE.names:
        expected = table[name] if name in given_columns.column_names else pa.nulls(2, LAKE.field(name).type)
        assert found[name].to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("text", "values"),
    [("id int, n tinyint", ([2**31 - 1, -(2**31)], [127, -128])), ("id tinyint, price float", ([1, -1], [0.5, -0.0]))],
)
def test_narrower_numbers_are_widened(text: str, values: tuple[list[Any], ...]) -> None:
    struct, order = fit(text)
    assert [field.dataType for field in struct] == [field.dataType for field in fit("id bigint, n smallint")[0]]
    types = {"int": pa.int32(), "tinyint": pa.int8(), "float": pa.float32()}
    arrays = [pa.array(column, types[one.split()[1]]) for column, one in zip(values, text.split(", "), strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[one.split()[0] for one in text.split(", ")])
    found = arranged(batch, order, LAKE)
    assert found.schema.equals(LAKE)
    for name, column in zip(batch.schema.names, values, strict=True):
        assert str(found.column(name).to_pylist()) == str(column)  # -0.0 too


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("id bigint, extra int", "extra"),
        ("id large decimal", "id"),
        ("n int", "n"),  # wider than the lake's
        ("price bigint", "price"),  # not all integers are floats
        ("s binary", "s"),
        ("id double", "id"),
    ],
)
def test_other_columns_are_refused(text: str, column: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        fit(text)
    assert caught.value.column == column
    assert "s3://b/lake/" in str(caught.value)


def test_names_that_differ_in_case_alone() -> None:
    with pytest.raises(AmbiguousColumnError):
        fit("id bigint, ID bigint")
