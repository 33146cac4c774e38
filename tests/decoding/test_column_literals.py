"""Literals without a type of their own have their column's, also in lists, structs and dictionaries."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.decoding.column_literals import resolve_literals
from asyncpq.errors import ColumnNotFoundError, PredicateTypeError
from asyncpq.expressions import tree
from asyncpq.expressions.scalars import Untyped

NOW = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def resolved(type_: pa.DataType, text: str, *, is_number: bool) -> Any:
    expr = tree.Comparison("x", "==", Untyped(text, is_number))
    found = resolve_literals(expr, NOW, {"x": type_})
    assert isinstance(found, tree.Comparison)
    return found.value


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.int64(), "16777217", 16777217),
        (pa.int64(), "1.5", Decimal("1.5")),
        (pa.int64(), "1e3", 1000),
        (pa.decimal128(5, 2), "0.30", Decimal("0.30")),
        (pa.float64(), "0.3", 0.3),
        (pa.float32(), "0.1", 0.10000000149011612),
        (pa.float32(), "1e300", 1e300),
        (pa.dictionary(pa.int32(), pa.float64()), "0.5", 0.5),
    ],
)
def test_numbers(type_: pa.DataType, text: str, expected: Any) -> None:
    found = resolved(type_, text, is_number=True)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.string(), "a", "a"),
        (pa.dictionary(pa.int32(), pa.string()), "a", "a"),
        (pa.binary(), "é", b"\xc3\xa9"),
        (pa.uuid(), str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (pa.date32(), "2024-05-01", dt.date(2024, 5, 1)),
        (pa.time64("us"), "12:30", dt.time(12, 30)),
        (pa.timestamp("ns"), "2024-05-01", dt.datetime(2024, 5, 1)),
        (pa.timestamp("ns", "Europe/Paris"), "2024-05-01 00:00:00Z", NOW),
    ],
)
def test_text(type_: pa.DataType, text: str, expected: Any) -> None:
    found = resolved(type_, text, is_number=False)
    assert (type(found), found) == (type(expected), expected)


def test_elements_of_lists_and_fields_of_structs() -> None:
    types = {"l": pa.list_(pa.date32()), "s": pa.struct({"x": pa.date32()})}
    day = Untyped("2024-05-01", is_number=False)
    expr = tree.Or((tree.Has("l", day), tree.KeyIn("s.x", (day, 1))))
    date = dt.date(2024, 5, 1)
    assert resolve_literals(expr, NOW, types) == tree.Or((tree.Has("l", date), tree.KeyIn("s.x", (date, 1))))


def test_a_predicate_of_plain_literals_stays_as_it_is() -> None:
    expr = tree.Comparison("x", "==", 1)
    assert resolve_literals(expr, NOW, {}) is expr


def test_errors_name_the_column() -> None:
    with pytest.raises(PredicateTypeError, match=r"'2024' is compared with a column of type date32.*column 'x'"):
        resolved(pa.date32(), "2024", is_number=False)
    with pytest.raises(ColumnNotFoundError, match="'x'"):
        resolve_literals(tree.Comparison("x", "==", Untyped("1", is_number=True)), NOW, {})
