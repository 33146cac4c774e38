"""What users write becomes the trees that it means, and mistakes are named."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from functools import reduce
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
    Expression,
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
from asyncpq.expressions.tree import MAX_NESTING

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


class Unprintable:
    def __repr__(self) -> str:
        raise AttributeError


@pytest.mark.parametrize(
    "where",
    [
        *(True, False, "id = 1", 7, pytest.param(10**5000, id="long"), object(), lambda row: True, {"id": 1}, []),
        *(pytest.param(Unprintable(), id="unprintable"), pytest.param({"id": Unprintable()}, id="unprintable value")),
    ],
)
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


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: col("a") == 1 | col("id") == 2,
        lambda: col("a") == 1 & col("id") == 2,
        lambda: True & col("id"),
        lambda: col("id") | True,
    ],
)
def test_comparisons_without_parentheses(mistake: Callable[[], Any]) -> None:
    with pytest.raises(ExpressionError, match="Put each comparison in parentheses") as caught:
        mistake()
    assert caught.value.column == "id"


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


def test_the_limit_of_levels() -> None:
    """The number of terms has no limit, that of levels has; errors are typed before Python's recursion ends."""
    negated: Expression = A
    alternating: Expression = A
    for level in range(MAX_NESTING):
        negated, alternating = ~negated, (alternating & B) if level % 2 else (alternating | C)
    assert parse_filters(negated) is negated
    assert parse_filters(alternating) is alternating
    wide = reduce(operator.or_, [col("a") == number for number in range(10_000)])
    assert parse_filters(wide) is wide
    assert str(wide).count("or") == 9_999
    assert pickle.loads(pickle.dumps(wide)) == wide
    for _ in range(5_000):
        negated, alternating = ~negated, (alternating & B) | C
    for deep in (negated, alternating):
        with pytest.raises(ExpressionError, match=f"more than {MAX_NESTING} levels"):
            parse_filters(deep)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("isin", r"write is_in\(values\)"),
        ("isnull", r"write is_null\(\)"),
        ("isna", r"write is_null\(\)"),
        ("is_not_null", r"write is_valid\(\)"),
        ("isNotNull", r"write is_valid\(\)"),
        ("notnull", r"write is_valid\(\)"),
        ("not_in", r"write ~col\(...\).is_in\(values\)"),
        ("startswith", r"write starts_with\(prefix\)"),
        ("str_endswith", r"its methods: "),
        ("ends_with", r'write like\("%suffix"\)'),
        ("isnan", r"write is_nan\(\)"),
        ("ilike", r"write has_tokens\(text\)"),
        ("ge", r"write col\(...\) >= value"),
        ("city", r"its methods: .*is_in.*col\('a.b'\)"),
    ],
)
def test_words_of_other_libraries(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=f"a column has no {name}: {says}"):
        getattr(col("x"), name)
    assert not hasattr(col("x"), "__arrow_c_array__")


def test_columns_can_be_copied_and_pickled() -> None:
    assert pickle.loads(pickle.dumps(col("x"))).name == copy.deepcopy(col("x")).name == "x"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("isin", r"write is_in\(values\)"),
        ("isnull", r"write is_null\(\)"),
        ("is_not_null", r"write is_valid\(\)"),
        ("city", r"its methods: .*is_in.*variant_get"),
    ],
)
def test_words_of_other_libraries_for_a_part_of_a_variant(name: str, says: str) -> None:
    part = col("x").variant_get("$.a", "int64")
    with pytest.raises(AttributeError, match=f"a part of a variant has no {name}: {says}"):
        getattr(part, name)
    assert copy.deepcopy(part).is_null() == part.is_null()


def test_a_column_as_an_attribute_of_col() -> None:
    """Polars has ``pl.col.id``."""
    with pytest.raises(AttributeError, match=r'write col\("id"\)'):
        _ = col.id  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"write col\('id'\)"):
        _ = col["id"]  # type: ignore[index]
    assert pickle.loads(pickle.dumps(col)) is copy.deepcopy(col) is col
    assert not hasattr(col, "__wrapped__")
