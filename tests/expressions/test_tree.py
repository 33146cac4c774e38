"""The expression tree: building, literals, equality, text, filter lists."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.blocking import BlockingDataset, BlockingFile, BlockingSession
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
    columns,
    simplify,
)
from asyncpq.expressions.scalars import Timestamp, as_scalar
from asyncpq.expressions.tree import VariantTest, variant_path, variant_type

A, B, C = Comparison("a", "==", 1), Comparison("b", "<", 2), IsNull("c")


NANOS = 1_700_000_000_000_000_001


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


HINT = "In SQL, double quotes name columns, and text stands in single quotes: "


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ('user = "u-1"', "'u-1'"),
        ('"u-1" <> user', "'u-1'"),
        ('id = 1 AND (id = 2 OR user >= "it\'s")', "'it''s'"),
        ('user BETWEEN "a" AND "b"', "'a'"),
        ('user IS NOT DISTINCT FROM "u-1"', "'u-1'"),
        ('user IN ("u-1", "u-2")', "'u-1'"),
        ('user LIKE "u%"', "'u%'"),
        ('starts_with(user, "u")', "'u'"),
        ('list_contains(tags, "u")', "'u'"),
        ("user = u1", "'u1'"),
        (f'user = "{"x" * 99}"', f"'{'x' * 60}...'"),
    ],
)
def test_a_text_in_double_quotes(tmp_path: Path, where: str, shown: str, many: bool) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "user": ["u-1"], "tags": [["u"]]}), path)
    with BlockingSession() as session:
        opened: BlockingFile | BlockingDataset = session.open_dataset([path]) if many else session.open_file(path)
        with pytest.raises(asyncpq.QueryError) as caught:
            opened.count(where)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(f"{HINT}{shown}.")


def test_a_mistyped_column_is_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "user": ["u-1"]}), tmp_path / "a.parquet")
    with BlockingSession() as session, pytest.raises(asyncpq.ColumnNotFoundError) as caught:
        session.open_file(tmp_path / "a.parquet").count("\"usr\" = 'u-1'")
    assert caught.value.hint == "Did you mean 'user'?"


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
