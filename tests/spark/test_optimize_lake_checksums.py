"""Checksums say whether two DataFrames hold the same rows, whatever their order, and where not, in which column."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql import functions as F  # noqa: N812

from asyncpq.spark.optimize_lake import RowLayout, checksums, find_keys
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

_ROWS = """
    SELECT id, CAST(NULL AS STRING) AS nothing,
        map('a', id, 'b', NULL) AS m, array(array(id), NULL, array()) AS a,
        named_struct('x', array(map(1, 'q')), 'y.z', CAST(NULL AS BIGINT)) AS s,
        parse_json('{"k": 1}') AS v, 'text' COLLATE UTF8_LCASE AS c, double(id % 7) AS `d.e`, X'00' AS b
    FROM range(50)
"""

#: In one row of 50: a column, and what it is there instead. Hashes of nested values that pass over nulls and borders of
#: lists, or that go by a collation, would not tell most of these apart.
CHANGES = {
    "nothing": "''",
    "m": "map('a', id, 'b', 0)",
    "a": "array(array(id), array(), NULL)",
    "s": "named_struct('x', array(map(1, 'q')), 'y.z', id)",
    "v": "parse_json('{\"k\": 1.5}')",
    "c": "'TEXT'",
    "d.e": "-1D",
    "b": "X''",
}


def test_the_order_of_rows_and_of_maps_is_no_difference(spark: SparkSession) -> None:
    frame = spark.sql(_ROWS)
    other = spark.sql(
        _ROWS.replace("map('a', id, 'b', NULL)", "map('b', NULL, 'a', id)").replace("double(", "-double(")
    )
    other = other.withColumns({"d.e": -other["`d.e`"]}).repartition(3).orderBy("id", ascending=False)  # 0 is -0
    known = checksums(frame)
    assert known.rows == 50
    assert known.columns["nothing"].nulls == 50
    assert known.differences(checksums(other)) == []


def test_one_value_that_differs_is_found_in_its_column(spark: SparkSession) -> None:
    known = checksums(spark.sql(_ROWS))
    frame = spark.sql(_ROWS)
    for names in (list(CHANGES)[::2], list(CHANGES)[1::2]):
        changed = frame.selectExpr(
            *[
                f"IF(id = 7, {CHANGES[name]}, `{name}`) AS `{name}`" if name in names else f"`{name}`"
                for name in frame.columns
            ]
        )
        assert known.differences(checksums(changed)) == [f"column {name!r}" for name in names]


def test_rows_that_come_once_more_or_are_put_together_otherwise_are_found(spark: SparkSession) -> None:
    known = checksums(spark.sql(_ROWS).select("id", "`d.e`"))
    frame = spark.sql(_ROWS).select("id", "`d.e`")
    twice = frame.union(frame.filter("id = 3")).union(frame.filter("id = 3"))  # an exclusive or would be the same
    assert known.differences(checksums(twice))[-1] == "50 rows and 52"
    pairs = [checksums(frame.union(frame.filter(f"id = {one}")).union(frame.filter(f"id = {one}"))) for one in (3, 5)]
    assert pairs[0].columns["id"].xor == pairs[1].columns["id"].xor
    assert pairs[0].differences(pairs[1]) == ["column 'id'", "column 'd.e'"]  # by the sum
    swapped = frame.selectExpr("CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE id END AS id", "`d.e`")
    assert known.differences(checksums(swapped)) == ["which values belong to one row"]
    fewer = frame.drop("`d.e`").select("id")
    assert known.differences(checksums(fewer))[0] == "column 'd.e'"


def test_a_struct_of_nulls_is_no_null(spark: SparkSession) -> None:
    frame = spark.sql("SELECT id, IF(id = 1, NULL, named_struct('x', CAST(NULL AS INT))) AS s FROM range(3)")
    swapped = frame.selectExpr("CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE id END AS id", "s")
    assert checksums(frame).differences(checksums(swapped)) == ["which values belong to one row"]


@pytest.mark.parametrize("dtype", [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()])
def test_lists_with_nulls_and_dictionaries_are_read(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, dtype: pa.DataType
) -> None:
    """For a null, Spark's code looks up the dictionary number left by an earlier batch, which had more values."""
    many, few = ([[None if at % 3 else at % different] * (at % 4) for at in range(6000)] for different in (50, 2))
    for column in (
        pa.array(many + few, pa.list_(dtype)),
        pa.array([[("key", item)] for items in many + few for item in items], pa.map_(pa.string(), dtype)),
    ):
        pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", row_group_size=len(column) // 2)
        found = []
        for vectorized in ("true", "false"):
            restored_conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
            found.append(checksums(spark.read.parquet(str(tmp_path))))
        assert found[0] == found[1]


#: A key, the partitions, and the most rows of one of them over their average: with the rows of heavy keys divided, and
#: without.
DIVIDED = [
    ("id", 6, 1.2, 1.2),
    ("id", 13, 1.2, 1.2),
    ("hash % 2 = 0", 2, 1.1, 1.1),
    ("pmod(hash, 8)", 8, 1.2, 1.1),
    ("if(pmod(hash, 100) < 23, 5, pmod(hash, 1000))", 8, 1.2, 7.0),
    ("if(pmod(hash, 10) = 0, null, hash % 2 = 0)", 2, 1.2, 1.3),
    ("element_at(array(double('NaN'), -0.0D, 0.0D, double(null)), int(pmod(hash, 4)) + 1)", 5, 1.2, 3.0),
    ("element_at(array('a', 'A', 'B', null), int(pmod(hash, 4)) + 1) COLLATE UTF8_LCASE", 4, 1.2, 2.1),
    ("array(int(pmod(hash, 5)), null)", 5, 1.2, 1.1),
    ("named_struct('x', if(id % 3 = 0, null, id % 7), 'y', id)", 7, 1.2, 1.2),
    ("1", 3, 1.1, 3.0),
    ("int(null)", 2, 1.1, 2.0),
]


@pytest.mark.parametrize(("key", "partitions", "divided", "whole"), DIVIDED)
def test_partitions_have_consecutive_keys_and_about_as_many_rows(
    spark: SparkSession, key: str, partitions: int, divided: float, whole: float
) -> None:
    rows = 20_000
    frame = spark.range(rows).selectExpr("id", "xxhash64(id) AS hash").selectExpr(f"{key} AS part", "id AS z")
    layout = RowLayout(find_keys("sort_by", "part", frame.schema, ReadConf.of(spark)))
    for salt, most in ((True, divided), (False, whole)):
        arranged = layout.arranged(frame, rows, partitions, salt=salt)
        assert checksums(arranged) == checksums(frame)
        found = arranged.groupBy(F.spark_partition_id().alias("at")).agg(
            F.count("*").alias("rows"), F.min(F.struct("part")).alias("low"), F.max(F.struct("part")).alias("high")
        )
        assert max(row["rows"] for row in found.select("rows").collect()) <= most * rows / partitions
        pairs = found.alias("a").join(found.alias("b"), F.col("a.at") < F.col("b.at"))
        assert pairs.filter("a.high > b.low").isEmpty()


def test_many_partitions_of_many_rows_are_divided_without_an_overflow(spark: SparkSession) -> None:
    frame = spark.range(700_000).selectExpr("xxhash64(id) AS key")
    layout = RowLayout(find_keys("sort_by", "key", frame.schema, ReadConf.of(spark)))
    arranged = layout.arranged(frame, 700_000, 10_000, salt=True)
    assert len(arranged.limit(1).collect()) == 1
