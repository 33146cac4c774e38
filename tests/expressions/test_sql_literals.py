"""Literals of SQL have the value that their type gives them, or an error."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pytest

from asyncpq.expressions.scalars import TimeOfDay, Timestamp, Untyped
from asyncpq.expressions.sql_literals import interval, moment, typed_literal

UTC = dt.UTC


def text(value: str) -> Untyped:
    return Untyped(value, is_number=False)


def number(value: str) -> Untyped:
    return Untyped(value, is_number=True)


@pytest.mark.parametrize(
    ("target", "value", "lengths", "expected"),
    [
        ("BIGINT", 5, (), 5),
        ("INT", text(" 42 "), (), 42),
        ("SMALLINT", number("2.0"), (), 2),
        ("UTINYINT", 255, (), 255),
        ("DECIMAL", text("1.50"), (5, 2), Decimal("1.50")),
        ("DECIMAL", 1, (3,), Decimal(1)),
        ("DOUBLE", number("0.3"), (), 0.3),
        ("VARCHAR", text("ab"), (2,), "ab"),
        ("TEXT", 5, (), "5"),
        ("VARBINARY", b"\xff", (), b"\xff"),
        ("BOOLEAN", text("TRUE"), (), True),
        ("BOOLEAN", False, (), False),
        ("DATE", text("2024-02-29"), (), dt.date(2024, 2, 29)),
        ("TIME", text("23:59"), (), dt.time(23, 59)),
        ("TIME", text("23:59:59.000000001"), (), TimeOfDay(86_399_000_000_001)),
        ("UUID", text(str(uuid.UUID(int=7))), (), uuid.UUID(int=7)),
    ],
)
def test_values(target: str, value: Any, lengths: tuple[int, ...], expected: Any) -> None:
    found = typed_literal(target, value, lengths)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("target", "value", "lengths"),
    [
        ("INT", number("1.5"), ()),
        ("UTINYINT", -1, ()),
        ("INT", True, ()),
        ("INT", text("inf"), ()),
        ("DECIMAL", number("12.3"), (2, 1)),
        ("CHAR", text("a"), (3,)),
        ("VARCHAR", number("1.50"), ()),
        ("VARCHAR", True, ()),
        ("DATE", number("20240229"), ()),
        ("DATE", text("2023-02-29"), ()),
        ("TIME", text("24:00"), ()),
        ("TIMESTAMP", text("2024-01-01 00:00:00"), (3,)),
        ("TIMESTAMPTZ", text("2024-01-01"), ()),
        ("BOOLEAN", text("yes"), ()),
        ("BOOLEAN", 1, ()),
        ("JSON", text("{}"), ()),
        ("TEXT", b"a", ()),
    ],
)
def test_what_a_type_does_not_hold_is_refused(target: str, value: Any, lengths: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        typed_literal(target, value, lengths)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2024-05-01", dt.datetime(2024, 5, 1)),
        ("2024-05-01T12:30", dt.datetime(2024, 5, 1, 12, 30)),
        ("1969-12-31 23:59:59.5", dt.datetime(1969, 12, 31, 23, 59, 59, 500_000)),
        ("2024-05-01 12:30:00Z", dt.datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
        ("2024-05-01 12:30:00 +02", dt.datetime(2024, 5, 1, 10, 30, tzinfo=UTC)),
        ("2024-05-01 12:30:00-05:30", dt.datetime(2024, 5, 1, 18, 0, tzinfo=UTC)),
        ("1970-01-01 00:00:00.000000001", Timestamp(1)),
        ("1970-01-01 01:00:00.000000001+01:00", Timestamp(1, "UTC")),
    ],
)
def test_moments(written: str, expected: Any) -> None:
    assert moment(written) == expected


@pytest.mark.parametrize(
    ("written", "unit", "expected"),
    [
        ("7", "DAY", dt.timedelta(days=7)),
        ("7 days", "", dt.timedelta(days=7)),
        ("-1.5", "hours", dt.timedelta(minutes=-90)),
        ("2", "WEEK", dt.timedelta(weeks=2)),
    ],
)
def test_intervals(written: str, unit: str, expected: dt.timedelta) -> None:
    assert interval(written, unit) == expected


@pytest.mark.parametrize(("written", "unit"), [("1", "MONTH"), ("1 day 2 hours", ""), ("x", "DAY"), ("1e-9", "SECOND")])
def test_other_intervals_are_refused(written: str, unit: str) -> None:
    with pytest.raises((ValueError, ArithmeticError)):
        interval(written, unit)
