"""Columns of PySpark as conditions of scans, in classic Spark and in Spark Connect."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)

#: For each column, made with the functions of classic Spark or of Spark Connect, its predicate.
CASES: dict[str, Callable[[Any], Any]] = {
    "id == 17": lambda F: F.col("id") == 17,  # noqa: N803
    "id > 3": lambda F: F.lit(3) < F.col("id"),  # noqa: N803
    "not (id == 3)": lambda F: F.col("id") != 3,  # noqa: N803
    "(id >= 1) and (id <= 2)": lambda F: F.col("id").between(1, 2),  # noqa: N803
    "(st.x in [1, 2]) or (x y is null)": lambda F: F.col("st.x").isin(1, 2) | F.col("`x y`").isNull(),  # noqa: N803
    "(s == 'it\\'s \\\\ \"x\"') and (not (flag == True))": (
        lambda F: (F.col("s") == 'it\'s \\ "x"') & ~F.col("flag")  # noqa: N803
    ),
    "(n == 5) and (not (n is null))": lambda F: F.col("n").eqNullSafe(5),  # noqa: N803
    "n is null": lambda F: F.col("n").eqNullSafe(None),  # noqa: N803
    "not (n is null)": lambda F: F.col("n").isNotNull(),  # noqa: N803
    "s starts with 'a'": lambda F: F.col("s").startswith("a"),  # noqa: N803
    "s contains 'a'": lambda F: F.col("s").contains("a"),  # noqa: N803
    "s like 'a_'": lambda F: F.col("s").like("a_"),  # noqa: N803
    "day > 2024-05-01": lambda F: F.col("day") > _NOON.date(),  # noqa: N803
    "at > 2024-05-01T12:00:00+00:00": lambda F: F.col("at") > _NOON,  # noqa: N803
    "price == 1.50": lambda F: F.col("price") == Decimal("1.50"),  # noqa: N803
    "raw == b'\\x00'": lambda F: F.col("raw") == F.lit(b"\x00"),  # noqa: N803
    "x == 1.5": lambda F: F.col("x") == 1.5,  # noqa: N803
    "(id == 5) and (?)": lambda F: F.expr("id = 5 AND length(s) = 3"),  # noqa: N803
    "?": lambda F: F.length("s") == 3,  # noqa: N803
    "true": lambda F: F.lit(True),  # noqa: N803
}
_UNKNOWN: list[Callable[[Any], Any]] = [
    lambda F: F.col("`5`") == F.col("id"),  # noqa: N803
    lambda F: F.col("`st.x`") == 1,  # noqa: N803
    lambda F: F.col("id").cast("int") == 3,  # noqa: N803
    lambda F: F.col("id").isin([]),  # noqa: N803
]


def test_columns_of_connect() -> None:
    pytest.importorskip("grpc", reason="needs Spark Connect: pip install pyspark[connect]")
    from pyspark.sql.connect import functions

    from asyncpq.spark.reads.column_conditions import read_column

    assert {str(read_column(make(functions))) for make in CASES.values()} == set(CASES)
    for make in _UNKNOWN:
        assert str(read_column(make(functions))) == "?"


@pytest.mark.parametrize("literal", [{"date": 10**7}, {"timestamp": 1 << 62}, {"timestamp_ntz": -(1 << 62)}])
def test_times_outside_of_pythons_years_prune_nothing(literal: dict[str, int]) -> None:
    pytest.importorskip("grpc", reason="needs Spark Connect: pip install pyspark[connect]")
    from pyspark.sql.connect.proto import expressions_pb2

    from asyncpq.spark.reads import column_conditions
    from asyncpq.spark.types.read_conf import ReadConf

    message = expressions_pb2.Expression(literal=expressions_pb2.Expression.Literal(**literal))  # type: ignore[arg-type]
    assert column_conditions._of_message(message, ReadConf()) is None


def test_columns_of_classic_spark_prune_and_give_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions

    from asyncpq.spark import explain_scan, scan
    from asyncpq.spark.reads.column_conditions import read_column
    from asyncpq.spark.reads.reader_choice import ReaderName

    assert {str(read_column(make(functions))) for make in CASES.values()} == set(CASES)
    for make in _UNKNOWN:
        assert str(read_column(make(functions))) == "?"
    for number in range(3):
        numbers = range(number * 100, number * 100 + 100)
        table = pa.table(
            {
                "id": numbers,
                "5": [0] * 100,
                "s": [f"k{n}" for n in numbers],
                "at": pa.array([_NOON + dt.timedelta(days=n) for n in numbers], pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, tmp_path / f"{number}.parquet")
    native = spark.read.parquet(str(tmp_path))
    col = functions.col
    for column, files in [
        (col("id") == 117, 1),
        ((col("id") > 150) & (functions.length("s") > 1), 2),
        (col("at") < _NOON + dt.timedelta(days=50), 1),
        (col("s").isin("k7", "k205"), 2),
        (col("id") == col("`5`"), 3),
        (~(col("id") < 250), 1),
    ]:
        assert explain_scan(spark, str(tmp_path), where=column).files == files
        expected = sorted(native.filter(column).select("s").collect())
        for reader in get_args(ReaderName):
            rows = scan(spark, str(tmp_path), where=column, columns=["s"], reader=reader).collect()
            assert sorted(rows) == expected
