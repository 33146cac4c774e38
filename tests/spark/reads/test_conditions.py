"""Conditions in Spark's SQL, and of PySpark's columns, for pruning."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sqlglot", reason="needs sqlglot: pip install asyncpq-parquet[spark]")
pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import DataType, DateType, FloatType, IntegerType, StringType, StructField, StructType

from asyncpq import col
from asyncpq.engine.foreign_conditions import Untranslated
from asyncpq.expressions import And, Comparison, Constant, Expression, In, IsNull, Like, Not, Or
from asyncpq.spark.reads.conditions import (
    Condition,
    FunctionCall,
    Name,
    Node,
    Value,
    may_name,
    predicate,
    read_condition,
)
from asyncpq.spark.reads.pruning_terms import date_of, time_of
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("id = 17", Comparison("id", "==", 17)),
        ("17 < id", Comparison("id", ">", 17)),
        ("id <> -1.5", Comparison("id", "!=", Decimal("-1.5"))),
        ("a.b >= 1e3", Comparison("a.b", ">=", 1000.0)),
        ("id IN (1, 2)", In("id", (1, 2))),
        ("id BETWEEN 1 AND 2", And((Comparison("id", ">=", 1), Comparison("id", "<=", 2)))),
        ("name LIKE 'a%' OR name IS NULL", Or((Like("name", "a%"), IsNull("name")))),
        ("NOT (id = 5L)", Not(Comparison("id", "==", 5))),
        ("day = DATE '2024-05-01'", Comparison("day", "==", dt.date(2024, 5, 1))),
        ("true", Constant(True)),
        ("day = date'2024-05-01'", Comparison("day", "==", dt.date(2024, 5, 1))),
        ("at < timestamp_ntz'2024-05-01 10:00:00'", Comparison("at", "<", dt.datetime(2024, 5, 1, 10))),
        ("raw = X'00fF'", Comparison("raw", "==", b"\x00\xff")),
        ("raw = x'1'", Comparison("raw", "==", b"\x01")),
        ("name = 'it''s'", Comparison("name", "==", "it's")),
        ('name = "it\'s"', Comparison("name", "==", "it's")),
        ('name = "say ""a"""', Comparison("name", "==", 'say "a"')),
        ("!flag", Not(Comparison("flag", "==", True))),
        ("!(id = 5) AND flag", And((Not(Comparison("id", "==", 5)), Comparison("flag", "==", True)))),
        ("id !> 5", Comparison("id", "<=", 5)),
        ("id !< 5", Comparison("id", ">=", 5)),
        ("id != 5", Comparison("id", "!=", 5)),
        ("id = 1 -- all", Comparison("id", "==", 1)),
        ("id = 1 /* 'a */ AND name = '--'", And((Comparison("id", "==", 1), Comparison("name", "==", "--")))),
        ("`a;b` = 1", Comparison("a;b", "==", 1)),
    ],
)
def test_conditions_that_are_understood(text: str, condition: Expression) -> None:
    assert read_condition(text) == condition


@pytest.mark.parametrize(
    "text",
    [
        "id = 'a\\b'",
        "id = r'a'",
        "name = 'a' 'b'",
        "id = 1 /* a /* b */",
        "id = 1 /*+ a */",
        "id = 1 -- a\\\n",
        "v:a = 1",
        "id = :a",
        "length(name) = 3",
        "id IN (SELECT 1)",
        "id =",
        "id = 'a",
    ],
)
def test_other_conditions_are_unknown(text: str) -> None:
    assert isinstance(read_condition(text), Untranslated)


def test_an_unknown_part_leaves_the_others() -> None:
    condition = read_condition("id = 1 AND length(name) = 3")
    assert isinstance(condition, And)
    assert condition.args[0] == Comparison("id", "==", 1)
    assert isinstance(condition.args[1], Untranslated)
    struct = StructType([StructField("day", DateType())])
    assert Condition("id = 1 AND length(name) = 3").unknown_names(struct, ReadConf()) == ["id"]
    assert not Condition("day = current_date").unknown_names(struct, ReadConf())


def test_columns_that_a_condition_may_name() -> None:
    assert may_name("Id = 1", "ID")
    assert may_name("count(*) > 1", "anything")
    assert not may_name("name = 'a'", "day")


def test_dates_and_times_in_full_form_only() -> None:
    assert date_of("2024-05-01") == dt.date(2024, 5, 1)
    assert date_of("2024-5-1") is None
    assert date_of("2024-05-41") is None
    assert time_of("2024-05-01 10:00:00.5") == dt.datetime(2024, 5, 1, 10, 0, 0, 500_000)
    assert time_of("2024-05-01") == dt.datetime(2024, 5, 1)
    assert time_of("10:00") is None


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("i::bigint = 5", Comparison("i", "==", 5)),
        ("CAST(i AS INT) IN (5, 6)", In("i", (5, 6))),
        ("try_cast(f as double) < 1", Comparison("f", "<", 1)),
        ("day::date = date'2024-05-01'", Comparison("day", "==", dt.date(2024, 5, 1))),
    ],
)
def test_casts_that_keep_all_values_are_left_out(text: str, condition: Expression) -> None:
    assert read_condition(text, type_of=_TYPES.get) == condition


@pytest.mark.parametrize("text", ["i::smallint = 5", "i::string = '5'", "day::timestamp < '2024-05-01'", "no::int = 5"])
def test_other_casts_are_unknown(text: str) -> None:
    assert isinstance(read_condition(text, type_of=_TYPES.get), Untranslated)


_TYPES: dict[str, DataType] = {"i": IntegerType(), "f": FloatType(), "day": DateType()}


def test_settings_decide_what_quotes_mean() -> None:
    assert isinstance(read_condition('a = "b"', ReadConf(double_quoted_identifiers=True)), Untranslated)
    assert isinstance(read_condition("a = 'it''s'", ReadConf(consecutive_string_literals=True)), Untranslated)
    both = read_condition("a = 'x''y' AND b = 1", ReadConf(consecutive_string_literals=True))
    assert isinstance(both, And)
    assert both.args[1] == Comparison("b", "==", 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("length(name) = 3", "asyncpq does not translate LENGTH(name) = 3"),
        ("name = :other", "the text has ':', which asyncpq does not interpret"),
        ("name =", "asyncpq cannot parse 'name ='"),
        ("name = 5", "all rows may match, or Spark may compare"),
    ],
)
def test_a_condition_that_skips_nothing_is_logged(text: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    struct, schema = StructType([StructField("name", StringType())]), pa.schema([("name", pa.string())])
    assert Condition("name = 'a'").terms(struct, schema, ReadConf(), {}) is not None
    assert not caplog.messages
    assert Condition(text).terms(struct, schema, ReadConf(), {}) is None
    (message,) = caplog.messages
    assert message.startswith(f"the condition {text} skips no data: {reason}")


_A, _B = Name(["a"]), Name(["s", "b"])


def _call(function: str, *arguments: Node) -> FunctionCall:
    return FunctionCall(function, arguments, lambda: f"the function {function}")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (_A, "a == True"),
        (Value(None), "null"),
        (Value(False), "false"),
        (_call("<", Value(5), _B), "s.b > 5"),
        (_call("<=>", _A, Value(None)), "a is null"),
        (_call("<=>", _A, Value(5)), "(a == 5) and (not (a is null))"),
        (_call("in", _A, Value(1), Value(2)), "a in [1, 2]"),
        (_call("isnotnull", _A), "not (a is null)"),
        (_call("like", _A, Value("x%")), "a like 'x%'"),
        (_call("not", _call("or", _A, col("c") == 1)), "not ((a == True) or (c == 1))"),
        (_call("and", _A, _call("f", _A)), "(a == True) and (?)"),
    ],
)
def test_what_is_understood(node: Node, expected: str) -> None:
    assert str(predicate(node)) == expected


@pytest.mark.parametrize(
    "node",
    [
        None,
        Value(5),
        Name(["a.b"]),
        _call("=", _A, _B),
        _call("=", _A, Value(None)),
        _call("=", Value(1), Value(1)),
        _call("in", _A),
        _call("like", _A, Value(5)),
        _call("like", _A, Value("%a_" * 200)),
        _call("=", _A, _call("f", _A)),
    ],
)
def test_what_is_not(node: Node) -> None:
    made: Expression = predicate(node)
    assert isinstance(made, Untranslated)
    assert made.reason.startswith("asyncpq does not translate ")


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

    from asyncpq.spark.reads.conditions import read_column

    assert {str(read_column(make(functions))) for make in CASES.values()} == set(CASES)
    for make in _UNKNOWN:
        assert str(read_column(make(functions))) == "?"


@pytest.mark.parametrize("literal", [{"date": 10**7}, {"timestamp": 1 << 62}, {"timestamp_ntz": -(1 << 62)}])
def test_times_outside_of_pythons_years_prune_nothing(literal: dict[str, int]) -> None:
    pytest.importorskip("grpc", reason="needs Spark Connect: pip install pyspark[connect]")
    from pyspark.sql.connect.proto import expressions_pb2

    from asyncpq.spark.reads import conditions
    from asyncpq.spark.types.read_conf import ReadConf

    message = expressions_pb2.Expression(literal=expressions_pb2.Expression.Literal(**literal))  # type: ignore[arg-type]
    assert conditions._of_message(message, ReadConf()) is None


def test_columns_of_classic_spark_prune_and_give_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions

    from asyncpq.spark import explain_scan, scan
    from asyncpq.spark.reads.conditions import read_column
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
