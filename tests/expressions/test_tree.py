"""The expression tree: building, literals, equality, text, filter lists."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncpq.errors import ExpressionError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Has,
    HasPhrase,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    col,
    columns,
    parse_filters,
    simplify,
)
from asyncpq.expressions.scalars import Timestamp, as_scalar

A, B, C = Comparison("a", "==", 1), Comparison("b", "<", 2), IsNull("c")
NANOS = 1_700_000_000_000_000_001


def test_builder() -> None:
    assert (col("a") == 1) == Comparison("a", "==", 1)
    assert (col("a") > 1) == Comparison("a", ">", 1)
    assert (np.int64(1) <= col("a")) == Comparison("a", ">=", 1)
    assert (col("a") != col("b")) == ColumnComparison("a", "!=", "b")
    assert col("a").is_in([1, None]) == In("a", (1, None))
    assert col("a").is_null() == IsNull("a", False)
    assert col("a").is_valid() == Not(IsNull("a"))
    assert col("a").between(1, 2) == And((Comparison("a", ">=", 1), Comparison("a", "<=", 2)))
    assert col("a.b").starts_with("x") == StartsWith("a.b", "x")
    assert col("a").contains(b"x") == Contains("a", b"x")
    assert col("a").like("x%") == Like("a", "x%")
    assert col("a").has_tokens("New york, NEW") == HasTokens("a", ("new", "york"))
    assert col("a").has_phrase("New york, NEW") == HasPhrase("a", ("new", "york", "new"))
    assert col("a").has(1) == Has("a", 1)
    assert Has("a", 1) != Has("a", 1.0)
    assert And((A, B, C)) == (A & B & C)
    assert Or((A, B, C)) == (A | B | C)
    assert And((A, Or((B, C)))) == (A & (B | C))
    assert And((Not(A), Constant(True))) == (~A & True)
    assert Or((Constant(False), A)) == (False | A)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: bool(A),
        lambda: 1 < col("a") < 5,
        lambda: A and B,
        lambda: A & 1,  # type: ignore[operator]  # the mistake
        lambda: ~col("a"),
        lambda: col("a") & A,
        lambda: A | col("a"),
        lambda: bool(col("a")),
        lambda: col("a") == object(),
        lambda: col("a") == [1],
        lambda: col("a") == pa.array([1]),
        lambda: col("a").is_in("abc"),
        lambda: col("a").is_in(5),  # type: ignore[arg-type]  # the mistake
        lambda: col("a").is_in([[1]]),
        lambda: col("a").starts_with(5),  # type: ignore[arg-type]  # the mistake
        lambda: col("a").contains(5),  # type: ignore[arg-type]  # the mistake
        lambda: col("a").like(None),  # type: ignore[arg-type]  # the mistake
        lambda: col("a").has_tokens(b"x"),  # type: ignore[arg-type]  # the mistake
        lambda: col("a").has_tokens(""),
        lambda: col("a").has_phrase(" ...\N{COMBINING ACUTE ACCENT}"),
        lambda: col("a").has(None),
        lambda: col("a").has([1]),
        lambda: col(5),  # type: ignore[arg-type]  # the mistake
        lambda: col("a") == np.datetime64("2024-01", "as"),
    ],
)
def test_mistakes_are_named(mistake: Callable[[], Any]) -> None:
    with pytest.raises(ExpressionError):
        mistake()


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "scalar"),
    [
        (np.int8(3), 3),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.datetime64("2024-02-29T01:02:03.000004"), dt.datetime(2024, 2, 29, 1, 2, 3, 4)),
        (np.datetime64("2024-02-29"), dt.date(2024, 2, 29)),
        (np.datetime64(NANOS, "ns"), Timestamp(NANOS)),
        (np.datetime64(NANOS - 1, "ns"), dt.datetime(2023, 11, 14, 22, 13, 20)),
        (np.datetime64("NaT", "us"), None),
        (np.timedelta64(5, "s"), dt.timedelta(seconds=5)),
        (np.timedelta64(5000, "ns"), dt.timedelta(microseconds=5)),
        (pa.scalar(7, pa.uint8()), 7),
        (pa.scalar(None, pa.int8()), None),
        (pa.scalar(Decimal("1.50")), Decimal("1.50")),
        (pa.scalar("x", pa.large_string()), "x"),
        (pa.scalar(NANOS, pa.timestamp("ns", "UTC")), Timestamp(NANOS, "UTC")),
        (Colour.RED, 1),
        (bytearray(b"x"), b"x"),
        (uuid.UUID(int=1), uuid.UUID(int=1)),
    ],
)
def test_literals_are_unwrapped(value: Any, scalar: Any) -> None:
    found = as_scalar(value)
    assert found == scalar
    assert type(found) is type(scalar)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (0.0, -0.0), (0, False), ("a", b"a"), (Decimal("1.0"), Decimal("1.00")), (1, Decimal(1))],
)
def test_other_literals_are_other_questions(left: Any, right: Any) -> None:
    assert Comparison("a", "==", left) != Comparison("a", "==", right)
    assert In("a", (left,)) != In("a", (right,))


@pytest.mark.parametrize("node", [A, B, C, A & B, A | B, ~A, In("a", (1, math.nan)), KeyIn("a", (1,)), Constant(True)])
def test_equal_questions_are_equal(node: Any) -> None:
    import copy

    twin = copy.deepcopy(node)
    assert node == twin
    assert hash(node) == hash(twin)
    assert len({node, twin}) == 1
    assert node != "a"


def test_same_instant_in_two_zones_is_two_literals() -> None:
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    assert Comparison("a", "==", noon) != Comparison("a", "==", noon.astimezone(dt.timezone(dt.timedelta(hours=1))))


def test_nodes_are_immutable() -> None:
    with pytest.raises(AttributeError):
        A.value = 2  # type: ignore[misc]  # the point


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((A & B) | ~C, "((a == 1) and (b < 2)) or (not (c is null))"),
        (In("a", tuple(range(20))), "a in [0, 1, 2, 3, 4, 5, 6, 7, ... 20 values]"),
        (KeyIn("a", (1, None)), "a == any of [1, null]"),
        (IsNull("a", True), "a is null or nan"),
        (StartsWith("a", "x"), "a starts with 'x'"),
        (Contains("a", "x"), "a contains 'x'"),
        (Like("a", "x%"), "a like 'x%'"),
        (HasTokens("a", ("x", "y")), "a has tokens ['x', 'y']"),
        (HasPhrase("a", ("x", "y")), "a has phrase 'x y'"),
        (Has("a", "x"), "a has 'x'"),
        (ColumnComparison("a", "<", "b"), "a < b"),
        (And(()), "true"),
        (Or(()), "false"),
        (Constant(None), "null"),
        (Comparison("a", "==", dt.date(2024, 2, 29)), "a == 2024-02-29"),
        (Comparison("a", "==", Decimal("1.50")), "a == 1.50"),
    ],
)
def test_text(expr: Any, text: str) -> None:
    assert str(expr) == repr(expr) == text


def test_columns() -> None:
    assert columns((A & B) | ~C | A | (col("x") < col("a"))) == ("a", "b", "c", "x")
    assert columns(Constant(True)) == ()


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (~~A, A),
        (A & True, A),
        (A & False, Constant(False)),
        (A | True, Constant(True)),
        (A | False, A),
        (~Constant(None), Constant(None)),
        (And((And((A, B)), And((C,)))), And((A, B, C))),
        (And((A, A)), A),
        (And(()), Constant(True)),
        (Or(()), Constant(False)),
        (col("a") == None, Constant(None)),  # noqa: E711  # this is how it is written
        (Or((Not(Or((A, True and Constant(False)))), B)), Or((Not(A), B))),
    ],
)
def test_simplify(expr: Any, simple: Any) -> None:
    assert simplify(expr) == simple


@pytest.mark.parametrize(
    ("filters", "expr"),
    [
        ([("a", "=", 1)], A),
        ([("a", "==", 1), ("b", "<", 2)], A & B),
        ([[("a", "==", 1)], [("b", "<", 2)]], A | B),
        ([[("a", "==", 1), ("b", "<", 2)], [("a", "==", 1)]], Or((A & B, A))),
        ([("a", "in", {5})], In("a", (5,))),
        ([("a", "not in", [5, None])], Not(In("a", (5, None)))),
        ((("a", "==", 1),), A),
        ([["a", "==", 1]], A),
        (A, A),
    ],
)
def test_filter_lists(filters: Any, expr: Any) -> None:
    assert parse_filters(filters) == expr


@pytest.mark.parametrize("where", [True, False, "id = 1", 7, object(), lambda row: True, {"id": 1}, []])
def test_what_is_no_predicate_is_told_what_is(where: Any) -> None:
    with pytest.raises(ExpressionError, match="is not a predicate") as caught:
        parse_filters(where)
    for form in ("asyncpq.col", 'col("id") == 1', "filters=", '[("id", "==", 1)]', "pyarrow.compute"):
        assert form in str(caught.value)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: parse_filters(col("id")),
        lambda: (col("a") == 1) & col("id"),
        lambda: col("id") | (col("a") == 1),
        lambda: ~col("id"),
    ],
)
def test_a_bare_column_is_no_predicate(mistake: Callable[[], Any]) -> None:
    with pytest.raises(ExpressionError, match="is a column, not a predicate") as caught:
        mistake()
    assert caught.value.column == "id"
    assert "col('id') == 1" in str(caught.value)


def test_one_filter_is_not_a_list() -> None:
    with pytest.raises(ExpressionError, match="in a list"):
        parse_filters(("a", "==", 1))


def test_a_bound_of_none_is_null() -> None:
    assert col("a").between(None, 3) == And((Comparison("a", ">=", None), Comparison("a", "<=", 3)))


@pytest.mark.parametrize(
    ("filters", "named"),
    [
        ([], "[]"),
        ([[]], "[]"),
        ("a", "'a'"),
        ([("a", "~", 1)], "'~'"),
        ([("a", "==")], "('a', '==')"),
        ([("b", "<", 2), ("a", "==", object)], "('a', '=='"),
        ([("a", "in", "abc")], "'abc'"),
        ([[("b", "<", 2)], [("a",)]], "('a',)"),
        ([("b", "<", 2), 7], "7"),
        ([("a", [], 2)], "[]"),
    ],
)
def test_bad_filter_lists_are_named(filters: Any, named: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_filters(filters)
    assert named in str(caught.value)
