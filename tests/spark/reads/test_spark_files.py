"""Planned files through Spark's own reader: the rows of ``spark.read.parquet`` without pushdown, or a reason."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import asyncpq.blocking
from asyncpq import col
from asyncpq.errors import ObjectChangedError, UnsupportedFeatureError
from asyncpq.indexing import Bounds, Footers
from asyncpq.spark.reads import reader_choice, spark_files
from asyncpq.spark.reads.reader_choice import ReaderName
from asyncpq.spark.reads.scan import explain_scan, scan
from tests.spark import evolved_lakes, scan_lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

_READERS: Sequence[ReaderName] = ("auto", "asyncpq", "spark")
_PUSHDOWN = "spark.sql.parquet.filterPushdown"
_ROWS = 300

Query = Callable[[DataFrame], DataFrame]


def _answers(frames: Sequence[DataFrame]) -> list[list[str]]:
    """The rows of each as texts, in order: one job for all."""
    shown = [
        frame.select(F.lit(at).alias("at"), F.struct("*").cast("string").alias("row"))
        for at, frame in enumerate(frames)
    ]
    found: list[list[str]] = [[] for _ in frames]
    for row in reduce(DataFrame.unionAll, shown).collect():
        found[row["at"]].append(row["row"])
    return [sorted(rows) for rows in found]


def _native_answers(conf: RuntimeConfig, make: Callable[[], Sequence[DataFrame]]) -> list[list[str]]:
    """The answers of Spark's own reader, which loses rows with NaN unless its pushdown is off."""
    conf.set(_PUSHDOWN, "false")
    try:
        return _answers(make())
    finally:
        conf.set(_PUSHDOWN, "true")


def _query(rng: random.Random) -> Query:
    """What a user does with a scan: more conditions, some columns, counts."""
    where = scan_lakes.sql(rng, 1)
    columns = rng.sample([*scan_lakes.COLUMNS, "st.D", "part"], k=rng.randrange(1, 4))
    shape = rng.randrange(4)

    def query(frame: DataFrame) -> DataFrame:
        if shape == 0:
            return frame.filter(where)
        if shape == 1:
            return frame.filter(where).select(*columns)
        if shape == 2:
            return frame.filter(where).groupBy("part").count()
        return frame.select(*columns).distinct()

    return query


@pytest.fixture(autouse=True)
def _without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """These lakes are so small that the driver would read them."""
    monkeypatch.setattr(reader_choice, "DRIVER_START_S", 100.0)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions with two files each, of pyarrow's: bounds without NaN, and -0.0 among them."""
    folder = tmp_path_factory.mktemp("readers")
    rng = random.Random(23)
    for number in range(4):
        path = folder / f"part={number % 2}" / f"{number}.parquet"
        scan_lakes.write(path, scan_lakes.table(rng, _ROWS, _ROWS * number))
    return folder


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_random_queries_by_each_reader(
    spark: SparkSession, restored_conf: RuntimeConfig, lake: Path, adaptive: str
) -> None:
    restored_conf.set("spark.sql.adaptive.enabled", adaptive)
    rng = random.Random(f"readers {adaptive}")
    queries = [_query(rng) for _ in range(6)]
    wheres = [rng.choice([None, scan_lakes.sql(rng, 1)]) for _ in queries]
    native = spark.read.parquet(str(lake))
    expected = _native_answers(
        restored_conf,
        lambda: [
            query(native if where is None else native.filter(where))
            for query, where in zip(queries, wheres, strict=True)
        ],
    )
    for reader in _READERS:
        scans = [scan(spark, str(lake), where=where, reader=reader) for where in wheres]
        found = _answers([query(frame) for query, frame in zip(queries, scans, strict=True)])
        assert found == expected, reader


def test_random_evolved_lakes_by_each_reader(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    rng = random.Random(77)
    lakes, conditions, schemas = [], [], []
    for number in range(4):
        shapes = {name: evolved_lakes.shape(rng) for name in "pqr"}
        types = [
            {name: evolved_lakes.file_type(rng, asked, cases=True, same_leaves=False) for name, asked in shapes.items()}
            for _ in range(3)
        ]
        folder = tmp_path / str(number)
        evolved_lakes.write_files(rng, folder, types, 40, int96=False)
        leaves = [leaf for name, asked in shapes.items() for leaf in asked.leaves(name)]
        lakes.append(str(folder))
        conditions.append(evolved_lakes.condition(rng, leaves) if leaves else "true")
        schemas.append(", ".join(f"{name} {asked.ddl}" for name, asked in shapes.items()))
    shown = F.to_json(F.struct("*"))
    natives = [spark.read.schema(schema).parquet(folder) for folder, schema in zip(lakes, schemas, strict=True)]
    expected = _native_answers(
        restored_conf,
        lambda: [frame.filter(where).select(shown) for frame, where in zip(natives, conditions, strict=True)],
    )
    for reader in _READERS:
        scans = [scan(spark, lake, schema=schema, reader=reader) for lake, schema in zip(lakes, schemas, strict=True)]
        found = _answers([frame.filter(where).select(shown) for frame, where in zip(scans, conditions, strict=True)])
        assert found == expected, reader


def test_conditions_of_later_filters_lose_no_rows(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path
) -> None:
    """Spark's pushdown skips each of these row groups, although a row matches. That of numbers is kept."""
    moment = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    rows = {
        "f": pa.array([1.0, math.nan], pa.float32()),
        "d": pa.array([1.0, math.nan]),
        "st": pa.array([{"i": 1, "d": 1.0}, {"i": 2, "d": math.nan}]),
        "deep": pa.array([{"st": {"d": 1.0}}, {"st": {"d": math.nan}}]),
        "ms": pa.array([moment, moment], pa.timestamp("ms", "UTC")),
        "n": pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(5, 2)),
        "i": pa.array([1, 2], pa.int64()),
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    schema = (
        "f float, d double, st struct<i: bigint, d: double>, deep struct<st: struct<d: double>>, ms timestamp,"
        " n decimal(20,2), i bigint"
    )
    wheres = [
        "f > 5",
        "d > 5",
        "st.d > 5",
        "deep.st.d > 5",
        "ms < timestamp'2024-05-01 00:00:00.0005Z'",
        "n < 99999999999.99",
        "i > 1",
    ]
    native = spark.read.schema(schema).parquet(str(tmp_path))
    expected = _native_answers(restored_conf, lambda: [native.filter(where) for where in wheres])
    assert [len(rows) for rows in expected] == [1, 1, 1, 1, 2, 2, 1]
    ours = scan(spark, str(tmp_path), schema=schema, reader="spark")
    assert ours.schema == native.schema
    assert _answers([ours.filter(where) for where in wheres]) == expected
    assert _answers([scan(spark, str(tmp_path), where=where, schema=schema, reader="spark") for where in wheres]) == (
        expected
    )


def test_dates_of_the_old_calendar_after_a_first_file_without(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path
) -> None:
    """Spark's pushdown loses days near one that the old calendar lacks, such as 1582-10-10."""
    lake = tmp_path / "lake"
    lake.mkdir()
    for name, mode, day in [("a", "CORRECTED", "2024-01-01"), ("b", "LEGACY", "1582-10-16")]:
        restored_conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", mode)
        spark.sql(f"SELECT DATE '{day}' AS d").coalesce(1).write.parquet(str(tmp_path / name))
        (written,) = (tmp_path / name).glob("*.parquet")
        written.rename(lake / f"{name}.parquet")
    where = "d > DATE '1582-10-10'"
    for found in (
        scan(spark, str(lake), reader="spark").filter(where),
        scan(spark, str(lake), where=where, reader="spark"),
    ):
        assert sorted(str(row.d) for row in found.collect()) == ["1582-10-16", "2024-01-01"]


def test_nulls_of_structs_that_the_writer_did_not_count(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path
) -> None:
    kind = pa.struct([("s", pa.dictionary(pa.int32(), pa.string())), ("i", pa.int32())])
    pq.write_table(pa.table({"st": pa.array([{"s": "a", "i": 1}, None], kind)}), tmp_path / "a.parquet")
    (statistics, *_) = [pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).statistics]
    assert statistics.null_count == 0  # one is null
    wheres = ["st.s IS NULL", "st.s IS NOT NULL", "st.i IS NULL", "st.s <=> NULL"]
    native = spark.read.parquet(str(tmp_path))
    expected = _native_answers(restored_conf, lambda: [native.filter(where) for where in wheres])
    assert [len(rows) for rows in expected] == [1, 1, 1, 1]
    for reader in _READERS:
        scans = [scan(spark, str(tmp_path), where=where, reader=reader) for where in wheres]
        assert _answers(scans) == expected, reader


def test_numbers_and_texts_are_still_pushed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"i": [1], "s": ["a"], "d": [1.0], "st": [{"d": 1.0, "e": 1}]}), tmp_path / "a.parquet")
    scan(spark, str(tmp_path), reader="spark").filter("i = 1 AND s = 'a' AND d = 1").select("st.e").explain()
    shown = capsys.readouterr().out
    assert "EqualTo(i,1), EqualTo(s,a)" in shown
    assert "EqualTo(d" not in shown
    assert "ReadSchema: struct<i:bigint,s:string,d:double,st:struct<e:bigint>>" in shown


# -- the files that Spark lists -------------------------------------------------------------------


def _files(folder: Path, names: Sequence[str]) -> str:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"row": pa.array([number], pa.int64())}), folder / name)
    return str(folder)


def test_only_planned_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """By their paths, by the folders of partitions, and by their names."""
    many = _files(tmp_path / "many", [f"{at:02}.parquet" for at in range(80)])
    named = _files(tmp_path / "named", [f"p={at % 40}/{at:02}.parquet" for at in range(80)])
    folders = _files(tmp_path / "folders", [f"p={at % 2}/{at // 2:02}.parquet" for at in range(80)])
    for lake, where, files in (
        (many, "row < 3", 3),
        (many, "row < 50", 50),
        (named, "row < 50", 50),
        (folders, "p = 1", 40),
    ):
        plan = explain_scan(spark, lake, where=where, reader="spark")
        assert plan.files == files
        frame = plan.frame(spark)
        assert len(frame.inputFiles()) == files
        native = spark.read.parquet(lake).filter(where)
        assert frame.schema == native.schema
        assert sorted(frame.collect()) == sorted(native.collect())


def test_sparks_listing_is_compared_whole(spark: SparkSession, tmp_path: Path) -> None:
    """The JVM joins the paths of some files at a time."""
    names = [f"{number} é%20,b.parquet" for number in range(201)]  # more than one answer of the JVM holds
    url = _files(tmp_path, names)
    frame = spark.read.parquet(url)
    assert sorted(spark_files._files_of(spark, frame)) == sorted(frame.inputFiles())
    assert spark_files._files_of(spark, spark.range(1)) == []
    assert explain_scan(spark, url, reader="spark").frame(spark).count() == len(names)


def test_files_with_odd_names(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"p={value}/{name}" for value in ("a b", "x%41") for name in ("a b.parquet", "y%41(1).parquet")]
    lake = _files(tmp_path / "lake", names)
    frame = scan(spark, lake, reader="spark")
    assert sorted(frame.collect()) == sorted(spark.read.parquet(lake).collect())
    one = f"{lake}/{names[-1]}"
    assert scan(spark, one, reader="spark").collect() == spark.read.parquet(one).collect()
    pattern = _files(tmp_path / "pattern", ["a[1].parquet", "b.parquet"])
    assert scan(spark, pattern, reader="spark").count() == 2
    assert "as a pattern" in explain_scan(spark, pattern, where="row = 0", reader="auto").reason


def test_markers_of_folders_are_no_files(spark: SparkSession, tmp_path: Path) -> None:
    lake = _files(tmp_path / "lake", ["p=1/a.parquet", "p=2/b.parquet"])
    rows = sorted(spark.read.parquet(lake).collect())
    for marker in ("p=1_$folder$", "p=1/x_$folder$"):
        (tmp_path / "lake" / marker).touch()
    for reader in ("spark", "auto", "asyncpq"):
        assert sorted(scan(spark, lake, reader=reader).collect()) == rows
    full = _files(tmp_path / "full", ["p=1/a_$folder$"])  # no marker, for it has rows; Spark's S3 never lists it
    assert "_$folder$" in explain_scan(spark, full, reader="auto").reason
    assert scan(spark, full).count() == 1


def test_what_spark_may_read_otherwise_is_read_by_asyncpq(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = _files(tmp_path / "lake", ["p=1/a.parquet", "p=2/b.parquet"])
    split = tmp_path / "split" / "a.parquet"
    split.parent.mkdir()
    pq.write_table(pa.table({"d": [1.5]}), split, use_dictionary=False, column_encoding={"d": "BYTE_STREAM_SPLIT"})
    brotli = tmp_path / "brotli" / "a.parquet"
    brotli.parent.mkdir()
    pq.write_table(pa.table({"d": [1.5]}), brotli, compression="brotli")
    cases: list[tuple[str, dict[str, Any], str]] = [
        (lake, {"on_bad_file": "skip"}, "bad files are skipped"),
        (lake, {"partitioning": ["x"]}, "partitioning="),
        (str(split.parent), {}, "codec or an encoding"),
        (str(brotli.parent), {}, "codec or an encoding"),
    ]
    for url, options, reason in cases:
        plan = explain_scan(spark, url, reader="auto", **options)
        assert plan.reader == "asyncpq"
        assert reason in str(plan)
        with pytest.raises(UnsupportedFeatureError, match=reason):
            scan(spark, url, reader="spark", **options)
    unlisted = tmp_path / "lake" / "p=2" / "c.parquet"
    with monkeypatch.context() as patched:
        place = spark_files._places

        def late(root: str, plan: Any) -> Any:
            pq.write_table(pa.table({"row": [7]}), unlisted)
            return place(root, plan)

        patched.setattr(spark_files, "_places", late)
        plan = explain_scan(spark, lake, reader="auto")
        assert (plan.reader, len(plan.frame(spark).inputFiles())) == ("spark", 2)  # not by the folder, but by paths
    unlisted.unlink()


def test_files_that_the_index_does_not_list(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's listing of the folder has them."""
    lake = _files(tmp_path / "lake", [f"{at:02}.parquet" for at in range(40)])
    with asyncpq.blocking.Session() as session:
        session.build_index(lake, [Bounds("row"), Footers()])
    pq.write_table(pa.table({"row": [99]}), tmp_path / "lake" / "more.parquet")
    assert scan(spark, lake, view="snapshot", reader="spark").count() == 40
    assert scan(spark, lake, reader="spark").count() == 41
    (tmp_path / "lake" / "p=1").mkdir()
    for name in ("00", "more"):  # names of planned files, in a folder that the index does not list
        pq.write_table(pa.table({"row": [7]}), tmp_path / "lake" / "p=1" / f"{name}.parquet")
    plan = explain_scan(spark, lake, view="snapshot", reader="auto")
    assert (plan.reader, plan.reason) == ("asyncpq", "Spark lists other files than asyncpq has planned")
    assert plan.frame(spark).count() == 40


def test_types_wider_than_those_of_the_first_file(spark: SparkSession, tmp_path: Path) -> None:
    for number, dtype in enumerate((pa.int32(), pa.int64())):
        (tmp_path / "lake").mkdir(exist_ok=True)
        pq.write_table(pa.table({"row": pa.array([number], dtype)}), tmp_path / "lake" / f"{number}.parquet")
    with asyncpq.blocking.Session() as session:
        session.build_index(str(tmp_path / "lake"), [Bounds("row"), Footers()], schema_policy="permissive")
    plan = explain_scan(spark, str(tmp_path / "lake"), view="snapshot", reader="auto")
    assert (plan.reader, plan.reason) == ("asyncpq", "the dataset has wider types than Spark infers")
    assert sorted(plan.frame(spark).collect()) == [(0,), (1,)]


def test_a_file_that_is_replaced_while_the_scan_is_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by one of the same size."""
    lake = _files(tmp_path, ["a.parquet", "b.parquet"])
    place = spark_files._places

    def replaced(root: str, plan: Any) -> Any:
        pq.write_table(pa.table({"row": pa.array([9], pa.int64())}), tmp_path / "c")
        (tmp_path / "c").replace(tmp_path / "b.parquet")
        return place(root, plan)

    monkeypatch.setattr(spark_files, "_places", replaced)
    with pytest.raises(ObjectChangedError, match=r"b\.parquet"):
        scan(spark, lake, reader="spark")


def test_the_plan_says_which_reader_and_why(spark: SparkSession, lake: Path) -> None:
    plan = explain_scan(spark, str(lake))
    assert plan.reader == "spark"
    assert "reader: spark, since it is estimated at less time; about" in str(plan)
    assert explain_scan(spark, str(lake), reader="asyncpq").reason == "the argument reader names it"
    assert explain_scan(spark, str(lake), where=col("row") < 0, reader="auto").reason == "no file is left"


# -- samples ---------------------------------------------------------------------------------------


def _random_lake(folder: Path) -> str:
    """80 files, of which none can be ruled out by an id."""
    rng = random.Random(5)
    folder.mkdir()
    for number in range(80):
        ids = [0, *rng.sample(range(100_000), k=200), 100_000]
        pq.write_table(pa.table({"id": ids, "x": [float(n) for n in ids]}), folder / f"{number:02}.parquet")
    return str(folder)


def test_a_sample_tells_that_all_files_are_left(spark: SparkSession, tmp_path: Path) -> None:
    lake = _random_lake(tmp_path / "lake")
    native = spark.read.parquet(lake)
    plan = explain_scan(spark, lake, where="id = 100000")
    assert (plan.reader, plan.files, plan.read.is_sampled, plan.read.metrics.files_opened) == ("spark", 80, True, 16)
    assert plan.read.num_rows == pytest.approx(80 * 202, rel=0.01)
    assert plan.frame(spark).count() == native.where("id = 100000").count() == 80
    ruled_out = explain_scan(spark, lake, where="id = 100001", reader="spark")
    assert (ruled_out.files, ruled_out.read.is_sampled) == (0, False)
    assert not explain_scan(spark, lake, where="id = 100000", reader="asyncpq").read.is_sampled


def test_a_sample_that_spark_cannot_read_is_no_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = _random_lake(tmp_path / "lake")

    def refuse(*_: object, **__: object) -> None:
        raise spark_files.NotForSpark("of a reason")

    monkeypatch.setattr(reader_choice, "spark_frame", refuse)
    plan = explain_scan(spark, lake, where="id = 100000")
    assert (plan.reader, plan.reason, plan.read.is_sampled) == ("asyncpq", "of a reason", False)
    assert plan.frame(spark).count() == 80


def test_a_sample_that_keeps_little_is_no_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = _random_lake(tmp_path / "lake")
    monkeypatch.setattr(reader_choice, "_SPARK_START_S", 100.0)
    plan = explain_scan(spark, lake, where="id = 100000")
    assert (plan.reader, plan.read.is_sampled) == ("asyncpq", False)
    assert plan.frame(spark).count() == 80
