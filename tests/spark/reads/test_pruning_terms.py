"""Predicates for pruning from conditions with Spark's semantics, without a JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import DecimalType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

from asyncpq.engine.foreign_conditions import Untranslated
from asyncpq.expressions import And, Comparison, Constant, Expression, IsNull, Not, Or, col
from asyncpq.spark.reads.pruning_terms import LakeColumns, pruning_terms, wall_clock_times
from asyncpq.spark.types.read_conf import ReadConf

_STRUCT = StructType(
    [
        StructField("Id", LongType()),
        StructField("x", DoubleType()),
        StructField("name", StringType()),
        StructField("at", TimestampType()),
        StructField("s", StructType([StructField("b", LongType())])),
        StructField("price", DecimalType(11, 2)),
    ]
)
_SCHEMA = pa.schema(
    [
        ("Id", pa.int64()),
        ("x", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("s", pa.struct([("b", pa.int64())])),
        ("price", pa.decimal128(11, 2)),
    ]
)
_COLUMNS = LakeColumns(_STRUCT, _SCHEMA, ReadConf())


def _terms(condition: Expression, instants: dict[dt.datetime, dt.datetime] | None = None) -> Expression | None:
    return pruning_terms(condition, _COLUMNS, _SCHEMA, instants or {})


def test_columns_are_found_without_case() -> None:
    assert _COLUMNS.split("id") == (0, [])
    assert _COLUMNS.split("S.b") == (4, ["b"])
    assert not _COLUMNS.knows("nothing")
    found = _COLUMNS.find("s.B")
    assert found is not None
    assert found.name == "s.b"


def test_a_path_means_the_field_that_exists() -> None:
    """``st.a.b`` lies in the column ``st``, though there is a column ``st.a``."""
    inner = StructType().add("a.b", LongType()).add("A", StructType().add("c", LongType()).add("d.e", LongType()))
    struct = StructType().add("st.a", StructType().add("c", LongType()).add("x", LongType())).add("st", inner)
    stored = pa.struct({"a.b": pa.int64(), "A": pa.struct({"c": pa.int64(), "d.e": pa.int64()})})
    schema = pa.schema({"st.a": pa.struct({"c": pa.int64(), "x": pa.int64()}), "st": stored})
    lake = LakeColumns(struct, schema, ReadConf())
    assert lake.split("st.a.b") == (1, ["a.b"])
    assert lake.split("st.a.d.e") == (1, ["a", "d.e"])
    assert lake.split("st.a.x") == (0, ["x"])
    assert lake.split("st.a") == (0, [])
    assert lake.split("st.a.c") == (None, [])  # two fields
    assert lake.knows("st.a.c")
    assert lake.split("st.a.nothing") == (0, ["nothing"])
    assert lake.split("none.a") == (None, [])
    assert not lake.knows("none.a")
    assert pruning_terms(col("st.a.b") == 3, lake, schema, {}) == Comparison("st.a.b", "==", 3)
    assert pruning_terms(col("st.a.c") == 3, lake, schema, {}) is None
    by_fields = LakeColumns(struct, schema, ReadConf(), by_fields=True)
    assert by_fields.split("st.a.b") == (1, ["a", "b"])  # as Spark has it
    assert by_fields.split("st.a.c") == (1, ["a", "c"])


def test_a_comparison_prunes_by_the_lakes_name() -> None:
    assert _terms(col("id") == 17) == Comparison("Id", "==", 17)
    assert _terms(col("nothing") == 17) is None


def test_an_unknown_part_of_a_conjunction_does_not_hinder_the_others() -> None:
    assert _terms(And((col("id") == 17, Untranslated("f(x)")))) == Comparison("Id", "==", 17)
    assert _terms(Or((col("id") == 17, Untranslated("f(x)")))) is None


def test_nan_is_greater_than_all_numbers() -> None:
    assert _terms(col("x") > 1.0) == Not(Comparison("x", "<=", 1.0))
    assert _terms(col("x") >= 1.0) == Not(Comparison("x", "<", 1.0))
    assert _terms(col("x") < 1.0) == Comparison("x", "<", 1.0)


def test_nan_is_a_text_to_conditions_on_text() -> None:
    """Spark casts the column: NOT x LIKE '0%' is true for NaN."""
    for condition in (col("x").contains("N"), ~col("x").like("0%"), col("x").starts_with("N")):
        assert _terms(condition) in (Not(IsNull("x")), None)


def test_wall_clock_times_need_their_instants() -> None:
    moment = dt.datetime(2024, 5, 1, 12)
    condition = col("at") == moment
    assert wall_clock_times(condition) == {moment}
    assert _terms(condition) is None
    instant = moment.replace(tzinfo=dt.UTC)
    assert _terms(condition, {moment: instant}) == Comparison("at", "==", instant)


_BEYOND = 10**20


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (col("id") <= _BEYOND, Not(IsNull("Id"))),
        (col("id") != _BEYOND, Not(IsNull("Id"))),
        (col("id") > -_BEYOND, Not(IsNull("Id"))),
        (col("id") == _BEYOND, Constant(False)),
        (col("id") > _BEYOND, Constant(False)),
        (Not(col("id") <= _BEYOND), Constant(False)),
        (col("id").is_in([5, _BEYOND]), Comparison("Id", "==", 5)),
        (And((col("id") >= 7, col("id") < _BEYOND)), And((Comparison("Id", ">=", 7), Not(IsNull("Id"))))),
        (col("price") < _BEYOND, Not(IsNull("price"))),
        (col("price") == Decimal("1000000000.00"), Constant(False)),
        (col("price") >= Decimal("-1000000000.00"), Not(IsNull("price"))),
    ],
    ids=str,
)
def test_literals_beyond_the_columns_type_prune(condition: Expression, expected: Expression) -> None:
    assert _terms(condition) == expected
