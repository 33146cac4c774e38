"""What users write becomes the trees that it means, and mistakes are named."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    Like,
    Not,
    Or,
    StartsWith,
    col,
    parse_filters,
)

A, B, C = Comparison("a", "==", 1), Comparison("b", "<", 2), IsNull("c")


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


def test_boxes_are_checked() -> None:
    assert str(col("g").intersects_box(170, -50, -170, -30)) == "g intersects box 170.0, -50.0, -170.0, -30.0"
    for corners in ((0, 1, 1, 0), (math.nan, 0, 1, 1), ("0", 0, 1, 1), (None, 0, 1, 1), (True, 0, 1, 1)):
        with pytest.raises(ExpressionError):
            col("g").intersects_box(*corners)
