"""Columns and parts of variants in SQL: the predicate is that of Python, or the error says what to write."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import Expression, col
from asyncpq.errors import ExpressionError, PredicateTypeError
from asyncpq.expressions.scalars import TimeOfDay, Timestamp, Untyped
from asyncpq.expressions.sql import parse_sql
from asyncpq.expressions.sql_operands import interval, moment, typed_literal
from tests.parquet_files import EditedFile
from tests.reads import ask, rows_left
from tests.variants import MISSING, plain, shredded

VALUES: list[Any] = [*[{"a": number, "b": number % 3 == 0} for number in range(40)], {"a": "x y"}, {"a": 2.5}, MISSING]
A = col("v").variant_get("$.a", "int64")


def file_of(make: Any = shredded, values: list[Any] = VALUES) -> bytes:
    table = pa.table({"id": pa.array(range(len(values))), "v": make(values)})
    return EditedFile.of(table, row_group_size=10, rows_per_page=1).data()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("variant_get(v, '$.a', 'int64') = 3", A == 3),
        ("try_variant_get(v, '$.a', 'bigint') = 3", A == 3),
        ("TRY_VARIANT_GET(v, '$.a', 'BIGINT') = 3", A == 3),
        ("3 < (variant_get(v, '$.a', 'long'))", A > 3),
        ("variant_get(v, '$.a', 'int64') IS NULL", A.is_null()),
        ("variant_get(v, '$.a', 'int64') IS NOT NULL", ~A.is_null()),
        ("NOT variant_get(v, '$.b', 'boolean')", ~(col("v").variant_get("$.b", "bool") == True)),  # noqa: E712
        ("variant_get(v, '$.a', 'string') LIKE 'x%'", col("v").variant_get("$.a", "string").like("x%")),
        ("contains(variant_get(v, '$.a', 'string'), ' y')", col("v").variant_get("$.a", "string").contains(" y")),
        ("variant_get(v, '$.a', 'int64') BETWEEN 3 AND 5", A.between(3, 5)),
        ("variant_get(s.v, '$[''a b''][0]', 'date') = DATE '2024-05-01'",
         col("s.v").variant_get("$['a b'][0]", "date") == dt.date(2024, 5, 1)),
        ("variant_get(v, '$', 'DECIMAL(5,2)') = CAST('1.50' AS DECIMAL(5, 2))",
         col("v").variant_get("$", "decimal(5, 2)") == Decimal("1.50")),
    ],
)  # fmt: skip
def test_parts_of_variants(text: str, expected: Expression) -> None:
    assert parse_sql(text) == expected


@pytest.mark.parametrize("make", [plain, shredded])
def test_the_rows_are_those_of_the_python_form(make: Any) -> None:
    text = col("v").variant_get("$.a", "string")
    pairs: list[tuple[str, Expression]] = [
        ("variant_get(v, '$.a', 'bigint') = 7 AND id < 100", (A == 7) & (col("id") < 100)),
        ("variant_get(v, '$.a', 'bigint') > 7.5", A > 7.5),
        ("variant_get(v, '$.a', 'decimal(9, 1)') = 2.5",
         col("v").variant_get("$.a", "decimal(9, 1)") == Decimal("2.5")),
        ("variant_get(v, '$.a', 'double') IN (2.5, 1)", col("v").variant_get("$.a", "double").is_in([2.5, 1.0])),
        ("variant_get(v, '$.a', 'string') IN ('7', 'x y')", text.is_in(["7", "x y"])),
        ("variant_get(v, '$.a', 'bigint') NOT IN (1, 2)", ~A.is_in([1, 2]) & A.is_valid()),
        ("variant_get(v, '$.a', 'bigint') NOT IN (1, NULL)", (A == 0) & (A == 1)),
        ("variant_get(v, '$.a', 'bigint') IS DISTINCT FROM 7", ~(A.is_in([7]))),
        ("variant_get(v, '$.b', 'boolean') OR variant_get(v, '$.a', 'string') LIKE '%y'",
         (col("v").variant_get("$.b", "bool") == True) | text.like("%y")),  # noqa: E712
    ]  # fmt: skip

    async def question(reader: asyncpq.File) -> None:
        for condition, expr in pairs:
            expected = (await reader.read(["id"], expr))["id"].to_pylist()
            assert (await reader.read(["id"], condition))["id"].to_pylist() == expected, condition
            assert expected or "NULL" in condition, condition

    ask(file_of(make), question)


def test_times_in_parts_of_variants() -> None:
    values = [{"t": text} for text in ("2024-05-01 12:00:00", "2999-01-01 00:00:00", "no time")]

    async def question(reader: asyncpq.File) -> None:
        for text, expected in (
            ("variant_get(v, '$.t', 'timestamp') < now() - INTERVAL '7' DAY", [0]),
            ("variant_get(v, '$.t', 'timestamp_ntz') >= now()", [1]),
            ("variant_get(v, '$.t', 'timestamp') = '2024-05-01 14:00:00+02:00'", [0]),
            ("variant_get(v, '$.t', 'date') = '2024-05-01'", [0]),
        ):
            assert (await reader.read(["id"], text))["id"].to_pylist() == expected, text
        with pytest.raises(PredicateTypeError, match="no offset"):
            await reader.read(["id"], "variant_get(v, '$.t', 'timestamp') = '2024-05-01 14:00:00'")
        with pytest.raises(PredicateTypeError, match="text in quotes is neither"):
            await reader.read(["id"], "variant_get(v, '$.t', 'int') = '5'")

    ask(file_of(plain, values), question)


def test_parts_prune_by_their_own_columns() -> None:
    data = file_of(values=VALUES[:40])
    for text in ("variant_get(v, '$.a', 'bigint') = 7", "variant_get(v, '$.a', 'bigint') IN (7)"):
        assert rows_left(data, parse_sql(text)) == 1
    assert rows_left(data, parse_sql("variant_get(v, '$.a', 'bigint') IN (7, 12)")) == 2


def test_isnan_of_a_part() -> None:
    part = col("v").variant_get("$.a", "double")
    assert parse_sql("isnan(variant_get(v, '$.a', 'double'))") == part.is_nan()

    async def question(reader: asyncpq.File) -> None:
        assert (await reader.read(["id"], part.is_nan())).num_rows == 0
        assert (await reader.read(["id"], ~part.is_nan())).num_rows > 0

    ask(file_of(plain, VALUES), question)


def test_a_column_may_have_the_name_that_a_part_is_shown_by() -> None:
    name = "variant_get(v, '$.a', 'int64')"
    both = parse_sql(f'"{name}" = 1 AND {name} = 2')
    assert both == (col(name) == 1) & (A == 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("variant_get(v, '$.a', 'int64') = id", "a part of a variant with a column"),
        ("variant_get(v, '$.a', 'int64') IS NOT DISTINCT FROM id", "a part of a variant with a column"),
        ("variant_get(v, '$.a') = 3", "needs a column, a path and a type"),
        ("variant_get(v, '$.a', 3) = 3", "its type in quotes"),
        ("variant_get(v, a, 'int') = 3", "its type in quotes"),
        ("variant_get('v', '$.a', 'int') = 3", "is about no column"),
        ("variant_get(v, 'a', 'int') = 3", "not a path"),
        ("variant_get(v, '$.a', 'uint8') = 3", "not a type"),
        ("list_contains(variant_get(v, '$.a', 'string'), 'x')", "this test does not work"),
        ("has_tokens(variant_get(v, '$.a', 'string'), 'x')", "this test does not work"),
    ],
)
def test_what_is_no_test_of_a_part(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=says):
        parse_sql(text)


@pytest.mark.parametrize(
    "text",
    [
        "v:a::int = 3",
        "CAST(v:a AS int) = 3",
        "v.a::int = 3",
        "v['a'] = 3",
        "v -> '$.a' = 3",
        "v ->> '$.a' = '3'",
        "json_extract(v, '$.a') = 3",
        "json_extract_string(v, '$.a') = '3'",
        "variant_extract(v, 'a')::int = 3",
        "variant_extract(v, 'a') IN (3)",
        "get_path(v, 'a') IS NULL",
    ],
)
def test_errors_about_other_engines_forms_say_what_to_write(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_sql(text)
    assert "try_variant_get(v, '$.a', 'bigint')" in (caught.value.hint or "")


# -- literals that state their type ----------------------------------------------------------------


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
