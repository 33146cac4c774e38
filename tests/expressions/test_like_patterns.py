"""ANSI's LIKE is what a regular expression of the same pattern finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.filter import compile_filter
from asyncpq.expressions import parse_where, tree
from asyncpq.expressions.like_patterns import like

ALPHABET = "ab%_\\\n.é!"


def matches(pattern: str, escape: str | None, text: str) -> bool:
    found, characters = "", iter(pattern)
    for character in characters:
        if character == escape:
            found += re.escape(next(characters))
        else:
            found += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return re.fullmatch(found, text, re.DOTALL) is not None


PARTS = [*ALPHABET, "!%", "!_", "!!"]
ENDS = st.sampled_from(["", "%", "!%"])
#: A backslash between two ends, which are a wildcard, the same character escaped, or nothing.
BACKSLASHES = st.tuples(ENDS, st.sampled_from(["\\", "a\\", "\\b", "\\\\", "\\!%", "!%\\"]), ENDS).map("".join)


@settings(max_examples=max(200, settings().max_examples))
@given(
    st.tuples(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.booleans())
    | st.tuples(BACKSLASHES, st.just(True)),
    st.lists(st.text(ALPHABET, max_size=5), min_size=1, max_size=20),
)
def test_rows_are_those_of_a_regular_expression(condition: tuple[str, bool], texts: list[str]) -> None:
    pattern, escaped = condition
    escape = "!" if escaped else None
    try:
        expr = like("s", pattern, escape)
    except ValueError:
        assert escaped
        assert re.search(r"!([^%_!]|$)", pattern, re.DOTALL)
        return
    near = re.sub("!(.)", r"\1", pattern, flags=re.DOTALL) if escaped else pattern
    texts = [*texts, near, f"{near}b", f"b{near}"]
    values = pa.array([*texts, None])
    mask = compile_filter(expr, {"s": pa.string()}).mask({"s": values}, len(values))
    assert mask.to_pylist() == [*[matches(pattern, escape, text) for text in texts], None]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"%\!%", [r"\%", r"a\%", r"%\%"]),
        (r"!%\%", [r"%\t", r"%\%"]),
        (r"!%\!%", [r"%\%"]),
        (r"%a\!%", [r"a\%"]),
        (r"%\%", [r"\%", r"a\%", r"a\%b", r"%\t", r"x%\t", r"%\%"]),
    ],
)
def test_an_escaped_percent_at_an_end_is_no_wildcard(pattern: str, found: list[str]) -> None:
    values = pa.array([r"\%", r"a\%", r"a\%b", r"%\t", r"x%\t", r"%\%", "%"])
    mask = compile_filter(like("s", pattern, "!"), {"s": pa.string()}).mask({"s": values}, len(values))
    assert values.filter(mask).to_pylist() == found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", tree.Comparison("s", "==", "abc")),
        ("a%", tree.Like("s", "a%")),
        ("a%%%", tree.Like("s", "a%")),
        ("a\\b%", tree.StartsWith("s", "a\\b")),
        ("%a\\b%", tree.Contains("s", "a\\b")),
        ("a!%b%", tree.Like("s", "a\\%b%")),
    ],
)
def test_patterns_prune_where_they_can(pattern: str, expected: tree.Expression) -> None:
    assert like("s", pattern, "!") == expected


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 0),
        ("a", 0),
        ("%", 1),
        ("%%%", 1),
        ("_%_", 3),
        ("a\\%b\\_", 0),
        ("\\%%%\\__", 2),
        ("%a%b__c", 4),
        ("\\\\%%", 1),
    ],
)
def test_wildcards_are_counted(pattern: str, count: int) -> None:
    assert tree.Like("s", pattern).num_wildcards == count
    assert tree.Like("s", pattern.encode()).num_wildcards == count


def test_patterns_have_a_bounded_number_of_wildcards() -> None:
    """Whatever they come from."""
    for part in ("a%", "_", "a%%%%"):
        most, more = part * tree.MAX_WILDCARDS, part * (tree.MAX_WILDCARDS + 1)
        assert tree.Like("s", most).num_wildcards == tree.MAX_WILDCARDS
        makers: list[Callable[[], object]] = [
            partial(tree.Like, "s", more),
            partial(asyncpq.col("s").like, more),
            partial(asyncpq.col("s").like, more.encode()),
            partial(parse_where, f"s LIKE '{more}'"),
            partial(parse_where, f"s LIKE '{more}' ESCAPE '!'"),
        ]
        for make in makers:
            with pytest.raises(asyncpq.ExpressionError, match=f"{tree.MAX_WILDCARDS + 1} wildcards"):
                make()
    assert tree.Like("s", "a%" * tree.MAX_WILDCARDS + "\\%" * 500).num_wildcards == tree.MAX_WILDCARDS
