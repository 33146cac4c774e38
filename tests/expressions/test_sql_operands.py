"""Columns and parts of variants in SQL: the predicate is that of Python, or the error says what to write."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import Expression, col
from asyncpq.errors import ExpressionError, PredicateTypeError
from asyncpq.expressions.sql import parse_sql
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
