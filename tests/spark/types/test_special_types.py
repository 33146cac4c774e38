"""GEOMETRY, GEOGRAPHY, VOID, TIME and intervals of months, against Spark's own reader and writer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException, SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

import asyncpq
import asyncpq.spark
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.writing import WKB_KEY, with_wkb_types

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(asyncpq.spark.scan, reader="asyncpq")

_POINT = "X'010100000000000000000031400000000000001C40'"
_SPATIAL = (
    "id",
    f"if(id = 1, null, st_geomfromwkb({_POINT}, 4326)) AS g",
    f"if(id = 2, null, st_geogfromwkb({_POINT})) AS h",
    f"array(st_geomfromwkb({_POINT}), null) AS l",
    f"struct(st_geomfromwkb({_POINT}, 3857) AS x, id) AS s",
    f"map('a', st_geogfromwkb({_POINT})) AS m",
    "null AS v",
    "struct(null AS v, id) AS sv",
)
_MONTHS = (
    "id",
    "if(id = 2, null, make_ym_interval(0, cast(id AS int) * 7 - 9)) AS i",
    "array(make_ym_interval(cast(id AS int), 1), null) AS l",
    "struct(make_ym_interval(178956970, 7) AS most, make_ym_interval(-178956970, -8) AS least) AS s",
    "cast(make_ym_interval(cast(id AS int), 0) AS interval year) AS y",
    "cast(make_ym_interval(0, cast(id AS int)) AS interval month) AS m",
)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession, restored_conf: RuntimeConfig) -> None:
    asyncpq.spark.register(spark)
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")


def rows(frame: DataFrame) -> list[str]:
    """PySpark gives no intervals of months."""
    intervals = [one.name for one in frame.schema if "interval" in one.dataType.simpleString()]
    shown = frame.select(
        *[frame[name].cast("string").alias(name) if name in intervals else name for name in frame.columns]
    )
    return sorted(map(str, shown.collect()))


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    assert found.schema == expected.schema
    assert rows(found) == rows(expected) != []


def test_places_are_read_and_written_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    source, target, sorted_ = (str(tmp_path / name) for name in ("source", "target", "sorted"))
    spark.range(4).selectExpr(*_SPATIAL).coalesce(1).write.parquet(source)
    frame = spark.read.parquet(source)
    assert_same(scan(spark, source), frame)
    assert_same(scan(spark, source, where="g IS NULL"), frame.where("g IS NULL"))
    assert_same(scan(spark, source, columns=["s.x"]), frame.select("s.x"))
    assert_same(spark.read.format("asyncpq").load(source), frame)
    asyncpq.spark.build_index(spark, source, [Bounds(), Keys("id"), Footers()])
    assert_same(scan(spark, source), frame)
    keys = spark.range(2)
    assert_same(asyncpq.spark.lookup_join(keys, source, on="id"), keys.join(frame, "id"))

    frame.write.format("asyncpq").mode("append").save(target)
    (path,) = Path(target).glob("data/*/*.parquet")
    types = {column.path: str(column.logical_type) for column in pq.ParquetFile(path).schema}
    assert types["g"] == "Geometry(crs=)"  # OGC:CRS84 is the default
    assert types["h"] == "Geography(crs=, algorithm=spherical)"
    assert types["s.x"] == "Geometry(crs=EPSG:3857)"
    assert types["l.list.element"] == "Geometry(crs=SRID:0)"
    assert_same(spark.read.parquet(str(path)), frame)
    assert_same(scan(spark, target), frame)
    result = asyncpq.spark.optimize(spark, source, sorted_, sort_by="id")
    assert result.rows == 4
    assert_same(scan(spark, sorted_), frame)


def test_void_in_lists_is_read(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "source")
    lists = ("array(null, null) AS l", "array(struct(null AS v), struct(null AS v)) AS s")
    spark.range(3).selectExpr("id", *lists).coalesce(1).write.parquet(source)
    frame = spark.read.parquet(source)
    assert_same(scan(spark, source), frame)
    for column in ("l", "s", "map('a', null) AS m"):
        with pytest.raises(PySparkException, match=f"void in arrays and maps; column '{column[-1]}'"):
            frame.selectExpr(column).write.format("asyncpq").mode("append").save(str(tmp_path / "target"))


async def test_services_read_places_as_well_known_binary(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).selectExpr(*_SPATIAL)
    frame.coalesce(1).write.format("asyncpq").mode("append").save(str(tmp_path))
    point = bytes.fromhex(_POINT[2:-1])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        found = (await dataset.read(["g", "h", "s", "v"])).to_pylist()
    assert sorted(found, key=lambda row: row["s"]["id"]) == [
        {"g": point, "h": point, "s": {"x": point, "id": 0}, "v": None},
        {"g": None, "h": point, "s": {"x": point, "id": 1}, "v": None},
        {"g": point, "h": None, "s": {"x": point, "id": 2}, "v": None},
    ]


@pytest.mark.parametrize(
    "about",
    ["{}", '{"crs": "OGC:CRS84", "edges": "spherical"}', '{"crs": "SRID:0"}', '{"crs": "EPSG:3857"}', None],
    ids=str,
)
@pytest.mark.parametrize("asked", [None, "binary", "geometry(0)", "geography(4326)"])
def test_files_of_other_writers(spark: SparkSession, tmp_path: Path, about: str | None, asked: str | None) -> None:
    """Whose footers have no words of Spark's."""
    metadata = None if about is None else {WKB_KEY: about.encode()}
    stored = with_wkb_types(pa.schema([pa.field("g", pa.binary(), metadata=metadata)]))
    values = pa.table({"g": [bytes.fromhex(_POINT[2:-1]), None]})
    pq.write_table(values.cast(stored), tmp_path / "one.parquet")
    schema = None if asked is None else f"g {asked}, more geometry(0)"
    native = spark.read if schema is None else spark.read.schema(schema)
    assert_same(scan(spark, str(tmp_path), schema=schema), native.parquet(str(tmp_path)))


@pytest.mark.parametrize("about", ['{"crs": "EPSG:99999"}', '{"crs": {"id": 1}}', '{"crs": "SRID:ANY"}'])
def test_systems_that_spark_does_not_know(spark: SparkSession, tmp_path: Path, about: str) -> None:
    stored = with_wkb_types(pa.schema([pa.field("g", pa.binary(), metadata={WKB_KEY: about.encode()})]))
    pq.write_table(pa.table({"g": [b""]}).cast(stored), tmp_path / "one.parquet")
    with pytest.raises(PySparkException):
        spark.read.parquet(str(tmp_path))
    with pytest.raises(UnsupportedFeatureError) as caught:
        scan(spark, str(tmp_path))
    assert caught.value.column == "g"
    assert scan(spark, str(tmp_path), schema="g binary").collect() == [(b"",)]


def test_months_where_the_first_file_has_years(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's reader keeps them, by a value that no cast gives: nothing is cut off without a word."""
    years, both, source = (str(tmp_path / name) for name in ("years", "both", "source"))
    year, months = "make_ym_interval(3, 0)", "make_ym_interval(0, 38)"
    for at, value, kind in ((years, year, "year"), (both, months, "year to month")):
        interval = f"CAST({value} AS INTERVAL {kind})"
        spark.range(1).selectExpr(
            f"{interval} AS y", f"named_struct('a', array({interval}, null), 'm', map(1, {interval})) AS s"
        ).coalesce(1).write.parquet(at)
    (tmp_path / "source").mkdir()
    for number, at in enumerate((years, both)):
        next(Path(at).glob("*.parquet")).rename(tmp_path / "source" / f"{number}.parquet")
    for columns in (["y"], ["s.a"], ["s.m"]):
        with pytest.raises(SparkRuntimeException, match=r"SchemaMismatchError: a file has months.*mergeSchema"):
            scan(spark, source, columns=columns).collect()
    first = scan(spark, f"{source}/0.parquet")
    assert_same(first, spark.read.parquet(f"{source}/0.parquet"))
    asked = "y interval year to month, s struct<a: array<interval year to month>, m: map<int, interval year to month>>"
    assert_same(scan(spark, source, schema=asked), spark.read.schema(asked).parquet(source))


def test_intervals_of_months_are_scanned(spark: SparkSession, tmp_path: Path) -> None:
    """They travel as numbers, as PySpark takes no others; where it has to be given some, the column is named."""
    source = str(tmp_path / "source")
    spark.range(4).selectExpr(*_MONTHS).coalesce(1).write.parquet(source)
    frame = spark.read.parquet(source)
    assert_same(scan(spark, source), frame)
    where = "i > INTERVAL '-3' MONTH"
    assert_same(scan(spark, source, where=where, columns=["id", "i"]), frame.where(where).select("id", "i"))
    asked = "id bigint, l array<interval month>, more interval year to month"
    assert_same(scan(spark, source, schema=asked), spark.read.schema(asked).parquet(source))
    asyncpq.spark.build_index(spark, source, [Bounds(), Keys("id"), Footers()])
    assert_same(scan(spark, source), frame)
    assert_same(asyncpq.spark.lookup_join(spark.range(1), source, on="id", columns=[]), spark.range(1))
    for work in (
        lambda: asyncpq.spark.lookup_join(spark.range(1), source, on="id"),
        lambda: asyncpq.spark.optimize(spark, source, str(tmp_path / "sorted"), sort_by="id"),
    ):
        with pytest.raises(UnsupportedFeatureError, match="year to month") as caught:
            work()
        assert caught.value.column == "i"
    for job in (
        lambda: spark.read.format("asyncpq").load(source),
        lambda: spark.read.format("asyncpq").schema(frame.schema).load(source).collect(),
        lambda: (
            spark.readStream.format("asyncpq")
            .schema(frame.schema)
            .load(source)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
            .processAllAvailable()
        ),
        lambda: frame.write.format("asyncpq").mode("append").save(str(tmp_path / "target")),
    ):
        with pytest.raises(PySparkException, match=r"year to month.*column 'i'"):
            job()
    assert not (tmp_path / "target").exists()


def test_time(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    restored_conf.set("spark.sql.timeType.enabled", "true")
    frame = spark.sql("SELECT id, TIME'12:34:56.789' AS t FROM range(2)")
    frame.coalesce(1).write.format("asyncpq").mode("append").save(str(tmp_path / "lake"))
    frame.coalesce(1).write.parquet(str(tmp_path / "plain"))
    for name in ("lake", "plain"):
        assert_same(scan(spark, str(tmp_path / name)), spark.read.parquet(str(tmp_path / "plain")))


def test_what_a_field_says_of_its_places() -> None:
    about: Any = json.dumps({"crs": "EPSG:3857"}).encode()
    field = pa.field("g", pa.binary(), nullable=False, metadata={WKB_KEY: about})
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("l", pa.list_(pa.struct([field])))], metadata={"a": "b"})
    (inner,) = with_wkb_types(schema).field("l").type.value_type
    assert (inner.type.extension_name, inner.nullable, inner.type.storage_type) == ("geoarrow.wkb", False, pa.binary())
    assert with_wkb_types(schema).metadata == {b"a": b"b"}
    assert with_wkb_types(schema).field("id") == schema.field("id")
