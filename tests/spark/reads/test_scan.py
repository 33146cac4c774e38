"""``scan`` against ``spark.read.parquet``, whose pushdown is off: the same rows, types and columns."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

import asyncpq
from asyncpq import col
from asyncpq.distributed import packing
from asyncpq.errors import ColumnNotFoundError, ExpressionError, InvalidOptionError, ObjectNotFoundError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark.reads import scan as scan_module
from asyncpq.spark.reads import task_rows
from asyncpq.spark.reads.conditions import Condition
from asyncpq.spark.reads.reader_choice import ReaderName
from asyncpq.spark.reads.scan import explain_scan
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark import scan_lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(scan_module.scan, reader="asyncpq")

ROWS = 900


@pytest.fixture
def no_pushdown(restored_conf: RuntimeConfig) -> RuntimeConfig:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")
    return restored_conf


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scans")
    rng = random.Random(11)
    for number in range(4):
        path = folder / f"part={number % 2}" / f"day=2024-01-0{1 + number // 2}" / f"{number}.parquet"
        scan_lakes.write(path, scan_lakes.table(rng, ROWS, ROWS * number))
    return folder


def same_rows(ours: DataFrame, theirs: DataFrame) -> None:
    """In one job for both: schemas alike, and each row as often."""
    assert ours.schema == theirs.schema
    tagged = ours.withColumn("_side", F.lit(1)).unionAll(theirs.withColumn("_side", F.lit(2))).toArrow()
    sides: dict[int, list[str]] = {1: [], 2: []}
    for row in tagged.to_pylist():
        sides[row.pop("_side")].append(repr(row))
    assert sorted(sides[1]) == sorted(sides[2])


def test_random_questions(spark: SparkSession, no_pushdown: RuntimeConfig, lake: Path) -> None:
    rng = random.Random(5)
    native = spark.read.parquet(str(lake))
    conf = ReadConf.of(spark)
    names = native.columns
    pairs: list[tuple[DataFrame, DataFrame]] = []
    for _ in range(8):
        where = scan_lakes.condition(rng) if rng.random() < 0.6 else scan_lakes.sql(rng)
        columns = rng.choice([None, rng.sample(names, k=3), [rng.choice(names).upper()]])
        theirs = native.filter(Condition(where).column(native.schema, conf))
        ours = scan(spark, str(lake), where=where, columns=columns, reader="asyncpq")
        if columns is not None:
            theirs = theirs.select(*columns)
        assert ours.schema == theirs.schema, (where, columns)
        pairs.append((ours, theirs))
    tagged = [
        side.select(F.lit(f"{at} {number}").alias("q"), F.struct("*").cast("string").alias("v"))
        for at, pair in enumerate(pairs)
        for number, side in enumerate(pair)
    ]
    union = tagged[0]
    for one in tagged[1:]:
        union = union.unionAll(one)
    found: dict[str, list[str]] = {}
    for row in union.collect():
        found.setdefault(row["q"], []).append(row["v"])
    for at in range(len(pairs)):
        assert sorted(found.get(f"{at} 0", [])) == sorted(found.get(f"{at} 1", []))


def test_partitions_lists_patterns_and_schemas(spark: SparkSession, no_pushdown: RuntimeConfig, lake: Path) -> None:
    same_rows(
        scan(spark, str(lake), where="day = '2024-01-02' AND part = 1", columns=["row", "day", "part", "d"]),
        spark.read.parquet(str(lake)).filter("day = '2024-01-02' AND part = 1").select("row", "day", "part", "d"),
    )
    files = [str(path) for path in sorted(lake.rglob("*.parquet"))][:2]
    same_rows(
        scan(spark, files, where=col("row") < 50, columns=["row", "s"], partitioning=None),
        spark.read.parquet(*files).filter("row < 50").select("row", "s"),
    )
    same_rows(
        scan(spark, f"{lake}/part=1/*/*.parquet", columns=["ROW"], partitioning=None),
        spark.read.parquet(f"{lake}/part=1/*/*.parquet").select("ROW"),
    )
    folders = [f"{lake}/part=0/day=2024-01-02", f"{lake}/part=1"]
    named = spark.read.option("basePath", str(lake)).parquet(*folders)
    for reader in ("asyncpq", "auto"):
        listed: Any = scan_module.scan(spark, [f"{folder}/" for folder in folders], reader=reader)
        same_rows(listed.select(*named.columns), named)
    same_rows(
        scan(spark, f"{lake}/part={{0,1}}/day=*{{2,3}}/", columns=["row", "day"]),
        named.filter("day = '2024-01-02'").select("row", "day"),
    )
    schema = "s string, row bigint, missing double, part string"
    same_rows(
        scan(spark, str(lake), schema=schema, where="row % 100 = 3"),
        spark.read.schema(schema).parquet(str(lake)).filter("row % 100 = 3"),
    )


def test_an_index(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path) -> None:
    rng = random.Random(1)
    for number in range(5):
        keys = pa.array([f"k{number}-{at % 50}" for at in range(300)])
        rows = scan_lakes.table(rng, 300, 300 * number).append_column("key", keys)
        scan_lakes.write(tmp_path / "lake" / f"{number}.parquet", rows)
    with asyncpq.blocking.Session() as session:
        session.build_index(str(tmp_path / "lake"), [Bounds("row"), Keys("key"), Footers()])
    plan = explain_scan(spark, str(tmp_path / "lake"), where=col("key") == "k3-7", columns=["row"])
    assert plan.read.scan.view == "listed"
    assert plan.files == 1
    assert "index" in str(plan)
    native = spark.read.parquet(str(tmp_path / "lake"))
    same_rows(
        scan(spark, str(tmp_path / "lake"), where=(col("key") == "k3-7") | (col("row") < 10)),
        native.filter("key = 'k3-7' OR row < 10"),
    )


@pytest.mark.parametrize("reader", ["asyncpq", "spark"])
def test_five_ways_to_use_one_frame_twice(spark: SparkSession, lake: Path, reader: ReaderName) -> None:
    """Where a predicate leaked from one use of a relation into another, all of these were wrong."""
    total = 4 * ROWS
    frame = scan(spark, str(lake), columns=["row"], reader=reader)
    assert (frame.filter("row = 5").count(), frame.count()) == (1, total)
    union = frame.filter("row = 5").union(frame.filter("row = 2000"))
    crossed = frame.filter("row = 7").crossJoin(frame.agg(F.count("*").alias("n")))
    assert sorted(row[0] for row in union.collect()) == [5, 2000]
    assert [tuple(row) for row in crossed.collect()] == [(7, total)]
    frame.createOrReplaceTempView("scanned")
    narrow = scan(spark, str(lake), where="row = 9", columns=["row"], reader=reader)
    narrow.createOrReplaceTempView("narrow")
    try:
        found = spark.sql(
            "SELECT (SELECT count(*) FROM scanned WHERE row = 8) AS a, (SELECT count(*) FROM scanned) AS b,"
            " (SELECT count(*) FROM narrow) AS c, (SELECT count(*) FROM narrow n JOIN scanned s ON n.row < s.row) AS d"
        ).collect()
    finally:
        for name in ("scanned", "narrow"):
            spark.catalog.dropTempView(name)
    assert tuple(found[0]) == (1, total, 1, total - 10)


@pytest.mark.parametrize("way", ["rows", "work folder"])
def test_large_plans(
    spark: SparkSession,
    no_pushdown: RuntimeConfig,
    monkeypatch: pytest.MonkeyPatch,
    lake: Path,
    tmp_path: Path,
    way: str,
) -> None:
    monkeypatch.setattr(task_rows, "MOST_CLOSURE_BYTES", 0)
    settings: dict[str, Any] = {"split_bytes": 64 << 10}
    if way == "work folder":
        monkeypatch.setattr(packing, "MOST_SENT_BYTES", 2000)
        settings["work_folder"] = str(tmp_path / "work")
    frame = scan(spark, str(lake), where=col("row") >= 100, columns=["row"], reader="asyncpq", **settings)
    same_rows(frame, spark.read.parquet(str(lake)).filter("row >= 100").select("row"))
    assert frame.select(F.spark_partition_id().alias("p")).distinct().count() > 1
    assert (tmp_path / "work").exists() == (way == "work folder")


def test_nothing_matches(spark: SparkSession, lake: Path) -> None:
    for where in (col("row") < 0, "row < 0", "row = NULL", [("row", "<", 0)]):
        frame = scan(spark, str(lake), where=where)
        assert frame.schema == spark.read.parquet(str(lake)).schema
        assert frame.collect() == []
    assert explain_scan(spark, str(lake), where=col("row") < 0).splits == 0


def test_columns_without_those_of_the_predicate(spark: SparkSession, lake: Path) -> None:
    assert scan(spark, str(lake), where=col("row") == 17, columns=["part"]).collect() == [(0,)]
    assert scan(spark, str(lake), where=col("row") == 17, columns=[]).count() == 1
    (row,) = scan(spark, str(lake), where="row = 17", columns=["st.i", "Row"]).collect()
    assert row.__fields__ == ["i", "Row"]


def test_what_cannot_be_asked(spark: SparkSession, lake: Path) -> None:
    for where in (col("nope") == 1, "nope = 1"):
        with pytest.raises(AnalysisException, match="nope"):
            scan(spark, str(lake), where=where)
    with pytest.raises(ColumnNotFoundError, match=r"no such column.*Did you mean 'part'"):
        scan(spark, str(lake), columns=["prat"])
    with pytest.raises(ExpressionError, match="has_tokens"):
        scan(spark, str(lake), where=col("s").has_tokens("a"))
    with pytest.raises(ObjectNotFoundError):
        scan(spark, str(lake / "nothing"))
    with pytest.raises(InvalidOptionError, match="no such setting"):
        scan(spark, str(lake), no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidOptionError, match="credential"):
        scan(spark, "s3://user:pass@bucket/x/")


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_was_replaced_or_deleted(spark: SparkSession, tmp_path: Path, change: str) -> None:
    for name in "ab":
        pq.write_table(pa.table({"v": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    frame = scan(spark, str(tmp_path), reader="asyncpq")
    if change == "replaced":
        pq.write_table(pa.table({"v": range(1000)}), tmp_path / "b.parquet")
    else:
        (tmp_path / "b.parquet").unlink()
    with pytest.raises(PySparkException, match=r"b\.parquet.*Plan again"):
        frame.collect()
    assert scan(spark, str(tmp_path)).count() == (1003 if change == "replaced" else 3)


def test_a_deleted_file_fails_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(pa.table({"v": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    frame = scan(spark, str(tmp_path), reader="spark")
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST.*b\.parquet"):  # py4j's or Spark's, by Spark's version
        frame.collect()


def test_each_scan_plans_anew(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), tmp_path / "a.parquet")
    assert scan_module.scan(spark, str(tmp_path)).count() == 1
    pq.write_table(pa.table({"v": [2]}), tmp_path / "b.parquet")
    assert scan_module.scan(spark, str(tmp_path)).count() == 2


def test_a_plan_is_logged_in_one_line(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")
    caplog.set_level("INFO", "asyncpq")
    plan = explain_scan(spark, str(tmp_path), where="id = 3")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "asyncpq.spark.reads.scan"]
    assert line == plan.summary
    assert f"1 of 1 file, {plan.num_bytes} bytes" in line
    assert line.endswith(f"read by {plan.reader}, since {plan.reason}")
