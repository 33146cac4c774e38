"""Conditions in Spark's SQL, parsed for pruning."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

pytest.importorskip("sqlglot", reason="needs sqlglot: pip install asyncpq[spark]")
pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq[spark]")

from pyspark.sql.types import DateType, StructField, StructType

from asyncpq.expressions import And, Comparison, Constant, Expression, In, IsNull, Like, Not, Or
from asyncpq.spark.reads.predicates import Condition, Unknown, may_name, read_condition
from asyncpq.spark.reads.pruning_terms import date_of, time_of
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
    ],
)
def test_conditions_that_are_understood(text: str, condition: Expression) -> None:
    assert read_condition(text) == condition


@pytest.mark.parametrize(
    "text", ["id = 'a\\b'", 'id = "a"', "!(id = 1)", "id = 1 -- all", "length(name) = 3", "id IN (SELECT 1)", "id ="]
)
def test_other_conditions_are_unknown(text: str) -> None:
    assert isinstance(read_condition(text), Unknown)


def test_an_unknown_part_leaves_the_others() -> None:
    condition = read_condition("id = 1 AND length(name) = 3")
    assert isinstance(condition, And)
    assert condition.args[0] == Comparison("id", "==", 1)
    assert isinstance(condition.args[1], Unknown)
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
