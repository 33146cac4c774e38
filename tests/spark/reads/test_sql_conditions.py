"""Conditions in Spark's SQL, parsed for pruning."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("sqlglot", reason="needs sqlglot: pip install asyncpq-parquet[spark]")
pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import DataType, DateType, FloatType, IntegerType, StringType, StructField, StructType

from asyncpq.engine.foreign_conditions import Untranslated
from asyncpq.expressions import And, Comparison, Constant, Expression, In, IsNull, Like, Not, Or
from asyncpq.spark.reads.predicates import Condition
from asyncpq.spark.reads.pruning_terms import date_of, time_of
from asyncpq.spark.reads.sql_conditions import may_name, read_condition
from asyncpq.spark.types.read_conf import ReadConf


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
