"""Conditions that another engine applies: what it gets of them, and what asyncpq leaves out by them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncpq import Expression, col, now
from asyncpq.decoding.filter import compile_filter
from asyncpq.engine.foreign_conditions import (
    ForeignColumn,
    ForeignCondition,
    ForeignTest,
    SinceEpoch,
    Untranslated,
    constant,
    since_epoch,
)
from asyncpq.errors import ExpressionError

_NAN = float("nan")
_SCHEMA = pa.schema([("n", pa.int32()), ("x", pa.float64()), ("l", pa.list_(pa.int64())), ("s", pa.string())])


def _column(test: ForeignTest) -> ForeignColumn | None:
    name = test.columns[0]
    if name not in _SCHEMA.names:
        return None
    stored = _SCHEMA.field(name).type
    if name == "l":
        return ForeignColumn(name, stored.value_type, lambda value: value, is_list=True)
    return ForeignColumn(name, stored, lambda value: value, is_float=name == "x")


def _pruning(condition: Expression) -> str:
    return str(ForeignCondition(condition).pruning(_SCHEMA, _column))


@pytest.mark.parametrize(
    ("condition", "pruning"),
    [
        (col("n") == 5, "n == 5"),
        (col("n") == 1 << 40, "false"),
        (col("n") <= 1 << 40, "not (n is null)"),
        (~(col("n") > 5), "n <= 5"),
        (col("n").is_in([1, None]), "(n == 1) or (n is null)"),
        ((col("n") == 5) & Untranslated("f(n)"), "n == 5"),
        ((col("n") == 5) | Untranslated("f(n)"), "None"),
        (~((col("n") == 5) & Untranslated("f(n)")), "None"),
        (col("other") == 5, "None"),
        (col("n") == col("x"), "None"),
        (col("l").has(3), "l has 3"),
        (col("l").is_null(), "l is null"),
        (col("l") == 1 << 80, "None"),
        (col("s").starts_with("a"), "s starts with 'a'"),
        (constant(False), "false"),
        (constant(None), "false"),
        (~constant(None), "false"),
        (constant(True), "None"),
    ],
    ids=str,
)
def test_pruning(condition: Expression, pruning: str) -> None:
    assert _pruning(condition) == pruning


@pytest.mark.parametrize("literal", [1.0, _NAN, 0.0, float("inf")])
@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("negated", [False, True])
def test_nan_exceeds_all_numbers(op: str, literal: float, negated: bool) -> None:
    compared: dict[str, Any] = {
        "==": lambda x: x == literal or (x != x and literal != literal),
        "<": lambda x: x < literal or (literal != literal and x == x),
    }
    compared["!="] = lambda x: not compared["=="](x)
    compared["<="] = lambda x: compared["<"](x) or compared["=="](x)
    compared[">"] = lambda x: not compared["<="](x)
    compared[">="] = lambda x: not compared["<"](x)
    column: Any = col("x")
    made: dict[str, Any] = {
        "==": column == literal,
        "!=": column != literal,
        "<": column < literal,
        "<=": column <= literal,
        ">": column > literal,
        ">=": column >= literal,
    }
    condition = ~made[op] if negated else made[op]
    pruning = ForeignCondition(condition).pruning(_SCHEMA, _column)
    values = [-1.0, -0.0, 0.0, 1.0, 2.0, float("inf"), _NAN, None]
    assert pruning is not None
    kept = compile_filter(pruning, _SCHEMA).mask({"x": pa.array(values)}, len(values)).to_pylist()
    for value, keep in zip(values, kept, strict=True):
        if value is not None and compared[op](value) is not negated:
            assert keep, (condition, pruning, value)


def test_a_condition_in_another_language() -> None:
    condition = (col("n") == 5) & ~(col("s").like("a%") | col("l").has(3)) & constant(None)
    condition &= col("n").is_in([1, None]) & (col("n") < col("x")) & col("x").is_null(nan_is_null=True)

    def said(test: ForeignTest) -> str:
        return f"{'~'.join(test.columns)} {test.verb} {list(test.values)}"

    words = ForeignCondition(condition).expressed(
        said,
        constant=str,
        junction=lambda word, parts: f"({f' {word} '.join(parts)})",
        negated=lambda part: f"not {part}",
    )
    assert words == (
        "(n == [5] and not (s like ['a%'] or l has [3]) and None and n in [1, None] and n~x < []"
        " and x is null or nan [])"
    )


def test_what_a_condition_names() -> None:
    condition = ForeignCondition([("a", "=", 5), ("b.c", "in", [1, 2])])
    assert condition.columns == ("a", "b.c")
    assert [test.is_list for test in condition.tests] == [False, True]
    assert condition.reasons == ()
    partly = ForeignCondition((col("a") == col("b")) | Untranslated("f(a)") | Untranslated("f(a)"))
    assert partly.columns == ("a", "b")
    assert partly.reasons == ("f(a)",)
    assert len(partly.tests) == 1
    assert str(ForeignCondition(Untranslated("?"))) == "?"
    with pytest.raises(ExpressionError):
        ForeignCondition("a = 5")


def test_relative_times() -> None:
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    condition = ForeignCondition((col("t") > now() - dt.timedelta(hours=1)) & (col("u") > now()))
    before, at = (test.values[0] for test in condition.at(noon, ["u"]).tests)
    assert (before, at) == (noon - dt.timedelta(hours=1), noon.replace(tzinfo=None))


def test_times_as_numbers() -> None:
    day = dt.date(1970, 1, 3)
    assert since_epoch(day) == SinceEpoch(2)
    assert since_epoch(dt.datetime(1970, 1, 1, 0, 0, 1)) == SinceEpoch(None, 10**9)
    assert since_epoch(dt.datetime(1970, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-1)))) == SinceEpoch(
        None, 3600 * 10**9, zoned=True
    )
    (far,) = ForeignCondition(col("t") == pa.scalar(1 << 40, pa.timestamp("s", "UTC"))).tests
    assert since_epoch(far.values[0]) == SinceEpoch(None, (1 << 40) * 10**9, zoned=True)
    (late,) = ForeignCondition(col("d") == pa.scalar(10**7, pa.date32())).tests
    assert since_epoch(late.values[0]) == SinceEpoch(10**7)
    for other in (5, "1970-01-01", None, Decimal(1)):
        assert since_epoch(other) is None


@pytest.mark.parametrize(
    ("condition", "pruning"),
    [
        (col("y") > 1e300, "not (y < inf)"),
        (col("y") < 1e300, "y < inf"),
        (col("y") >= -1e300, "not (y <= -inf)"),
        (col("y") < -1e300, "y <= -inf"),
        (col("y") == 1e300, "None"),
    ],
    ids=str,
)
def test_literals_beyond_narrow_floats(condition: Expression, pruning: str) -> None:
    schema = pa.schema([("y", pa.float32())])

    def column(test: ForeignTest) -> ForeignColumn:
        return ForeignColumn("y", pa.float32(), lambda value: value, is_float=True)

    assert str(ForeignCondition(condition).pruning(schema, column)) == pruning
