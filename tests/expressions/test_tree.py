"""The expression tree: building, literals, equality, text, filter lists."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

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
    simplify,
)
from asyncpq.expressions.scalars import Timestamp, as_scalar

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
