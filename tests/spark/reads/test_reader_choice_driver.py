"""Few rows are read on the driver: as by tasks, and at the call."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructField, StructType

from asyncpq import col
from asyncpq.errors import ObjectChangedError
from asyncpq.spark.reads import reader_choice
from asyncpq.spark.reads import scan as scans
from asyncpq.spark.reads.reader_choice import driver_may_read
from asyncpq.spark.reads.scan import explain_scan, scan
from asyncpq.spark.reads.task_rows import local_rows, read_few
from tests.spark import types_files
from tests.spark.joined import same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1000


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files; ``text`` takes 1 KiB a row."""
    folder = tmp_path_factory.mktemp("driver")
    for number in range(3):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "text": [f"{n:1024}" for n in ids]})
        pq.write_table(table, folder / f"{number}.parquet", write_page_index=True, max_rows_per_page=100)
    return f"{folder}/"


def _by_tasks(frame: DataFrame) -> bool:
    """Whether the plan has a function of Python."""
    return "MapInArrow" in frame._jdf.queryExecution().toString()


def test_the_driver_reads_few_rows_and_tasks_read_many(spark: SparkSession, lake: str) -> None:
    native = spark.read.parquet(lake)
    some = [(17, 1), (ROWS + 5, 1), (-1, 0)]
    frames = [scan(spark, lake, where=col("id") == number) for number, _ in some]
    assert [frame.count() for frame in frames] == [count for _, count in some]
    same(frames, [native.filter(f"id = {number}") for number, _ in some])
    assert not any(map(_by_tasks, frames))
    two = scan(spark, lake, where=col("id").is_in([3, 2 * ROWS + 3]), columns=["text"])
    assert sorted(row.text.strip() for row in two.collect()) == ["2003", "3"]
    assert not _by_tasks(two)
    # the estimate is too low: these rows take more than a MiB, which shows when they are read
    many = scan(spark, lake, where=col("id") < 2 * ROWS)
    assert "on the driver" in str(explain_scan(spark, lake, where=col("id") < 2 * ROWS))
    assert _by_tasks(many)
    assert many.count() == 2 * ROWS
    # the caller wants tasks
    assert _by_tasks(scan(spark, lake, where=col("id") == 17, reader="asyncpq"))


def test_types_and_time_zones(spark: SparkSession, tmp_path: Path, restored_conf: Any) -> None:
    columns = types_files.every_type()
    del columns["deep"]
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    pq.write_table(types_files.required(columns), tmp_path / "1.parquet")
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        restored_conf.set("spark.sql.session.timeZone", zone)
        frame = scan(spark, str(tmp_path))
        assert not _by_tasks(frame)
        same([frame], [scan(spark, str(tmp_path), reader="asyncpq")])
        types_files.assert_same(frame.toArrow(), scan(spark, str(tmp_path), reader="asyncpq").toArrow())


@pytest.mark.parametrize(
    ("ddl", "may"),
    [
        ("a int, b timestamp, c interval day to second, d decimal(38,2)", True),
        ("a array<int>, b map<string,date>, c struct<x: int, y: string>", True),
        ("a array<timestamp>", False),
        ("a struct<x: timestamp_ntz>", False),
        ("a array<array<int>>", False),
        ("a map<string, struct<x: int>>", False),
        ("a variant", False),
    ],
)
def test_types_that_the_driver_may_read(spark: SparkSession, restored_conf: Any, ddl: str, may: bool) -> None:
    struct: Any = StructType.fromDDL(ddl)
    assert driver_may_read(spark, struct, 0.02, 1000) == may
    for limit in ("10000", "0"):
        restored_conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", limit)
        none = local_rows(spark, [], struct)
        assert (none.schema, none.collect()) == (struct, [])
    assert not driver_may_read(spark, struct, 0.02, 1000)


def test_intervals_of_months(spark: SparkSession, tmp_path: Path) -> None:
    made = "SELECT id, make_ym_interval(0, int(id)) AS m FROM range(5)"
    spark.sql(made).coalesce(1).write.parquet(f"{tmp_path}/lake")
    plan = explain_scan(spark, f"{tmp_path}/lake", where=col("id") < 3)
    assert plan.choice.on_driver
    native = spark.read.parquet(f"{tmp_path}/lake").filter("id < 3")
    same([plan.frame(spark).selectExpr("id", "string(m)")], [native.selectExpr("id", "string(m)")])


def test_vectors_are_left_to_tasks(spark: SparkSession) -> None:
    from pyspark.ml.linalg import VectorUDT

    struct = StructType([StructField("features", VectorUDT())])
    assert not driver_may_read(spark, struct, 0.02, 1000)


def test_long_reads_are_left_to_tasks(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch, restored_conf: Any
) -> None:
    """Also where one task would read them."""
    struct: Any = StructType.fromDDL("a int")
    assert driver_may_read(spark, struct, 0.4, 10 << 20)
    assert not driver_may_read(spark, struct, 0.6, 1000)
    assert not driver_may_read(spark, struct, 0.1, 20 << 20)
    restored_conf.set("spark.sql.leafNodeDefaultParallelism", "1")
    assert explain_scan(spark, lake, where=col("id") == 17).choice.on_driver
    monkeypatch.setattr(reader_choice, "_FILE_S", 1.0)
    assert not explain_scan(spark, lake, where=col("id") == 17).choice.on_driver


def test_without_a_limit_of_batches_the_driver_does_not_read(
    spark: SparkSession, lake: str, restored_conf: Any
) -> None:
    restored_conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    plan = explain_scan(spark, lake, where=col("id") == 17)
    assert not plan.choice.on_driver
    assert plan.frame(spark).count() == 1


def test_what_is_too_much_is_not_read_on() -> None:
    batch = pa.record_batch({"a": pa.array(range(50_000), pa.int64())})  # 400 kB
    yielded, ended = list[int](), list[int]()

    def rows(count: int) -> Generator[pa.RecordBatch]:
        try:
            for number in range(count):
                yielded.append(number)
                yield batch
        finally:
            ended.append(count)

    assert read_few(rows(4)) is None
    assert (yielded, ended) == ([0, 1, 2], [4])
    assert read_few(rows(2)) == [batch] * 2


def test_rows_are_those_of_the_call(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is replaced after the call does not matter; one that is replaced while it is planned is an error."""

    def write(first: int) -> None:
        pq.write_table(pa.table({"id": range(first, first + 100)}), tmp_path / "0.parquet")

    write(0)
    plan = explain_scan(spark, str(tmp_path), where=col("id") < 3)
    frame = scan(spark, str(tmp_path), where=col("id") < 3)
    write(1)
    assert sorted(row.id for row in frame.collect()) == [0, 1, 2]
    with pytest.raises(ObjectChangedError, match=r"0\.parquet") as caught:
        plan.frame(spark)
    assert "Plan again" in str(caught.value.hint)

    def read(*_: object) -> None:
        raise AssertionError("an explained scan reads nothing")

    monkeypatch.setattr(scans, "read_task", read)
    assert "on the driver" in str(explain_scan(spark, str(tmp_path), where=col("id") < 3))


def test_counts_of_the_driver(spark: SparkSession, lake: str) -> None:
    plan = explain_scan(spark, lake, where=col("id") == 17)
    plan.frame(spark)
    assert (plan.task_counts["files_read"], plan.task_counts["rows_returned"]) == (1, 1)
