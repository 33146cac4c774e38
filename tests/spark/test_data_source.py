"""``spark.read.format("asyncpq")`` gives what ``spark.read.parquet`` gives, however it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.spark.source_lake import ROWS, lake_table, write_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession, restored_conf: Any) -> None:
    from asyncpq.spark.shipping import register

    register(spark)
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses NaN rows


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_lake(tmp_path_factory.mktemp("lake"))


def _reader(spark: SparkSession, **options: str) -> DataFrameReader:
    return spark.read.format("asyncpq").options(**options)


def same(frame: DataFrame, oracle: DataFrame) -> None:
    """The same columns, types and rows, whatever their order."""
    assert frame.schema == oracle.schema
    assert _rows(frame) == _rows(oracle)


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_all_columns_and_rows(spark: SparkSession, lake: str) -> None:
    frame = _reader(spark).load(lake)
    same(frame, spark.read.parquet(lake))
    assert frame.count() == ROWS


def test_a_pattern_a_file_and_lists(spark: SparkSession, lake: str) -> None:
    same(_reader(spark).load(f"{lake}/part=1/Kind=a/2.parquet"), spark.read.parquet(f"{lake}/part=1/Kind=a/2.parquet"))
    paths = [f"{lake}/part=0/Kind=a/0.parquet", f"{lake}/part=2/Kind=b/5.parquet"]
    columns = ["id", "Name", "tags"]
    listed = _reader(spark).load(paths).select(columns)
    same(listed, spark.read.parquet(*paths).select(columns))
    same(
        _reader(spark).load(f"{lake}/part=1/*/*.parquet").select(columns),
        spark.read.parquet(f"{lake}/part=1").select(columns),
    )


@pytest.mark.parametrize("columns", ["id", "NAME,Id, part", '["tags", "kind", "pair"]'])
def test_columns(spark: SparkSession, lake: str, columns: str) -> None:
    names = [name.strip(' []"') for name in columns.split(",")]
    frame = _reader(spark, Columns=columns).load(lake)
    oracle = spark.read.parquet(lake)
    spelt = {name.lower(): name for name in oracle.columns}
    same(frame, oracle.select([spelt[name.lower()] for name in names]))


@pytest.mark.parametrize(
    "schema",
    [
        "id bigint",
        "part int, x double, NAME string",
        "lacking int, id bigint, tags array<string>",
        "small int, pair struct<b: string>",
    ],
)
def test_a_schema_of_the_user(spark: SparkSession, lake: str, schema: str) -> None:
    frame = _reader(spark).schema(schema).load(lake)
    same(frame, spark.read.schema(schema).parquet(lake).select(frame.columns))  # which adds the folders' columns


def test_a_schema_that_says_not_null(spark: SparkSession, lake: str) -> None:
    frame = _reader(spark).schema("id bigint not null").load(lake)
    assert not frame.schema["id"].nullable
    assert frame.count() == ROWS
    with pytest.raises(Exception, match=r"NOT NULL.*'Name'"):
        _reader(spark).schema("Name string not null").load(lake).count()
    never_null = spark.createDataFrame([], "tags array<string>").selectExpr("transform(tags, t -> 'a') as tags").schema
    with pytest.raises(Exception, match=r"InvalidOptionError.*'tags'"):
        _reader(spark).schema(never_null).load(lake).count()


def test_views(spark: SparkSession, lake: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW lake_view USING asyncpq OPTIONS (path '{lake}', columns 'id, x')")
    try:
        same(
            spark.sql("SELECT * FROM lake_view WHERE id < 10"),
            spark.read.parquet(lake).select("id", "x").filter("id < 10"),
        )
        assert spark.sql("SELECT count(*) FROM lake_view").first()[0] == ROWS  # type: ignore[index]  # there is a row
    finally:
        spark.catalog.dropTempView("lake_view")


def test_tables_take_their_options_from_the_query(spark: SparkSession, lake: str) -> None:
    spark.sql(f"CREATE TABLE lake_table USING asyncpq OPTIONS (path '{lake}', columns 'id, part')")
    try:
        oracle = spark.read.parquet(lake).select("id", "part")
        same(spark.sql(f"SELECT * FROM lake_table WITH (path = '{lake}', COLUMNS = 'id, part')"), oracle)
        with pytest.raises(Exception, match=r"FROM t WITH \(path="):
            spark.sql("SELECT * FROM lake_table").collect()
    finally:
        spark.sql("DROP TABLE lake_table")


WRONG = [
    ({"collumns": "id"}, "there is no option 'collumns'.*Did you mean 'columns'"),
    ({"nothing": "1"}, "there is no option 'nothing'.*Known: "),
    ({"recursiveFileLookup": "true"}, "Leave it out: a folder is read with all that is below it"),
    ({"columns": "nothing"}, "no such column; column 'nothing'"),
    ({"predicate": "id > 5"}, "predicate: must be JSON"),
    ({"pushdown": "true"}, r"SPARK-58551.*asyncpq\.spark\.scan"),
    ({"secretAccessKey": "abc"}, "credentials_provider"),
    ({"view": "snapshot"}, "index"),
    ({"format": "delta"}, "Delta|delta"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_errors_are_readable(spark: SparkSession, lake: str, options: dict[str, str], message: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=message):
        _reader(spark, **options).load(lake).count()


def test_nothing_there(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"^\[PYTHON_DATA_SOURCE_ERROR\].*ObjectNotFoundError.*nothing"):
        _reader(spark).load(str(tmp_path / "nothing"))
    with pytest.raises(AnalysisException, match="the path is missing"):
        _reader(spark).load()


def test_a_file_that_is_replaced_after_the_plan_is_named(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    file = tmp_path / "a.parquet"
    pq.write_table(lake_table(0, 10), file)
    frame = _reader(spark, columns="id").load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == 1  # planned, not read
    pq.write_table(lake_table(5, 10), file)
    with pytest.raises(PySparkException, match=r"ObjectChangedError.*a\.parquet.*Plan again"):
        frame.collect()
    assert _reader(spark, columns="id").load(str(tmp_path)).agg({"id": "max"}).first()[0] == 14  # type: ignore[index]


def test_many_splits(spark: SparkSession, lake: str) -> None:
    frame = _reader(spark, splitBytes=str(1 << 16)).load(lake)
    assert frame.rdd.getNumPartitions() > 1
    same(frame, spark.read.parquet(lake))
