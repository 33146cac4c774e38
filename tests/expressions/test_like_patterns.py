"""ANSI's LIKE is what a regular expression of the same pattern finds."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.expressions import tree
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


@given(
    st.lists(st.sampled_from([*ALPHABET, "!%", "!_", "!!"]), max_size=6).map("".join),
    st.booleans(),
    st.lists(st.text(ALPHABET, max_size=5), min_size=1, max_size=20),
)
def test_rows_are_those_of_a_regular_expression(pattern: str, escaped: bool, texts: list[str]) -> None:
    escape = "!" if escaped else None
    try:
        expr = like("s", pattern, escape)
    except ValueError:
        assert escaped
        assert re.search(r"!([^%_!]|$)", pattern, re.DOTALL)
        return
    values = pa.array([*texts, None])
    mask = compile_filter(expr, {"s": pa.string()}).mask({"s": values}, len(values))
    assert mask.to_pylist() == [*[matches(pattern, escape, text) for text in texts], None]


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
