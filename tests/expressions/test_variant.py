"""Parts of VARIANT columns: what a path and a type may be, and how their comparisons are equal and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq import col
from asyncpq.errors import ExpressionError
from asyncpq.expressions.tree import VariantTest, variant_path, variant_type

NAMES = st.text(st.characters(exclude_characters="'?", exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$", ()),
        ("$.a", ("a",)),
        ("$.a.b c", ("a", "b c")),
        ("$[0]", (0,)),
        ("$.a[2147483647].b", ("a", 2147483647, "b")),
        ("$['a.b']", ("a.b",)),
        ('$["a[0]"].c', ("a[0]", "c")),
        ("$.a[0]['b c'][\"d.e\"].f g", ("a", 0, "b c", "d.e", "f g")),
    ],
)
def test_paths(text: str, path: tuple[str | int, ...]) -> None:
    assert variant_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        ".a",
        "$a",
        "$.",
        "$[",
        "$[-1]",
        "$[2147483648]",
        "$['a?']",
        "$.a.",
        "$ .a",
        "$[x]",
        "$['a'",
        "$[ 0]",
        7,
        None,
    ],
)
def test_what_is_no_path(text: object) -> None:
    with pytest.raises(ExpressionError, match="not a path"):
        variant_path(text)


@given(st.lists(NAMES | st.integers(0, 2**31 - 1), max_size=5))
def test_every_path_can_be_written(path: list[str | int]) -> None:
    text = "$" + "".join(f"[{part}]" if isinstance(part, int) else f"['{part}']" for part in path)
    assert variant_path(text) == tuple(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bigint", "int64"),
        ("long", "int64"),
        ("real", "float"),
        ("float64", "double"),
        ("boolean", "bool"),
        ("date32", "date"),
        ("timestamp[us, tz=UTC]", "timestamp"),
        ("decimal(5)", "decimal(5, 0)"),
        ("decimal(38,38)", "decimal(38, 38)"),
    ],
)
def test_types_have_the_names_of_sql_and_of_arrow(name: str, kind: str) -> None:
    assert variant_type(name) == variant_type(kind) == kind


@pytest.mark.parametrize(
    "name", ["", "INT64", "uint8", "decimal", "decimal(0)", "decimal(39, 1)", "decimal(5, 6)", "array<int>", 7, None]
)
def test_what_is_no_type(name: object) -> None:
    with pytest.raises(ExpressionError, match="not a type"):
        variant_type(name)


def test_comparisons_of_parts() -> None:
    one, same, other = (col("v").variant_get(path, "bigint") > 5 for path in ("$.a", "$.a", "$.b"))
    assert isinstance(one, VariantTest)
    assert one._key() == same._key() != other._key()
    assert (one.column, one.path, one.type, one.literals) == ("v", ("a",), "int64", (5,))
    doubled = one.with_literals(lambda literal: 2 * literal)  # type: ignore[operator]
    assert (doubled.literals, doubled.path) == ((10,), ("a",))
    assert str(col("v").variant_get("$.a", "int64") == 5) == "variant_get(v, '$.a', 'int64') == 5"
