"""``date_trunc`` means what it means in DuckDB, as a range of the column."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.errors import ExpressionError
from asyncpq.expressions.sql import parse_sql

UNITS = ["second", "minute", "hour", "day", "week", "month", "quarter", "year"]
#: Times around the beginnings of units, and null.
BEGINNINGS = [
    dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 29), dt.datetime(2024, 4, 1), dt.datetime(2024, 4, 29, 13),
    dt.datetime(2024, 4, 29, 13, 30), dt.datetime(2024, 4, 29, 13, 30, 7), dt.datetime(2024, 12, 31),
    dt.datetime(1969, 12, 29), dt.datetime(1960, 2, 29, 23, 59, 59),
]  # fmt: skip
MOMENTS = [moment + dt.timedelta(microseconds=step) for moment in BEGINNINGS for step in (-1, 0, 1, 3_600_000_000)] + [
    None
]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]


def conditions(literals: list[str]) -> list[str]:
    some = [f"date_trunc('{unit}', ts) {op} {literal}" for unit in UNITS for op in OPERATORS for literal in literals]
    some += [f"{literal} < date_trunc('{unit}', ts)" for unit in UNITS for literal in literals]
    some += [f"date_trunc('{unit}', ts) BETWEEN {literals[0]} AND {literals[-1]}" for unit in UNITS]
    return [text for condition in some for text in (condition, f"NOT ({condition})")]


async def differences(path: Path, texts: list[str]) -> list[str]:
    wrong = []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        # DuckDB 1.5 takes NOT (date_trunc('day', ts) = t) for true where ts is null, unless t is a midnight
        connection.execute("PRAGMA disable_optimizer")
        connection.execute(f"CREATE TABLE t AS FROM '{path}'")
        async with asyncpq.Session() as session, await session.open_file(path) as file:
            for text in texts:
                (expected,) = connection.execute(f"SELECT count(*) FROM t WHERE {text}").fetchone() or (None,)
                if await file.count(where=text) != expected:
                    wrong.append(text)
    return wrong


@pytest.mark.heavy
async def test_timestamps(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ts": pa.array(MOMENTS, pa.timestamp("us"))}), tmp_path / "a.parquet")
    literals = [f"TIMESTAMP '{moment}'" for moment in (*BEGINNINGS[:2], MOMENTS[18], BEGINNINGS[-1])]
    texts = conditions([*literals, "DATE '2024-04-29'", "'2024-02-29'", "'2024-04-29 13:30:00'"])
    assert await differences(tmp_path / "a.parquet", texts) == []


async def test_instants_are_truncated_in_utc(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ts": pa.array(MOMENTS, pa.timestamp("us", "Europe/Berlin"))}), tmp_path / "a.parquet")
    literals = ["TIMESTAMPTZ '2024-02-29 00:00:00+00'", "TIMESTAMPTZ '2024-04-29 15:00:00+02'"]
    assert await differences(tmp_path / "a.parquet", conditions(literals)) == []


async def test_dates(tmp_path: Path) -> None:
    days = [None if moment is None else moment.date() for moment in MOMENTS]
    pq.write_table(pa.table({"ts": pa.array(days, pa.date32())}), tmp_path / "a.parquet")
    texts = [text for text in conditions(["DATE '2024-04-29'", "'2024-02-29'"]) if not text.count("our'")]
    texts = [text for text in texts if "second" not in text and "minute" not in text]
    assert await differences(tmp_path / "a.parquet", texts) == []


def test_it_is_a_range_that_bounds_answer() -> None:
    expected = "ts >= TIMESTAMP '2024-05-01' AND ts < TIMESTAMP '2024-05-02'"
    assert str(parse_sql("date_trunc('day', ts) = TIMESTAMP '2024-05-01'")) == str(parse_sql(expected))
    assert str(parse_sql("date_trunc('month', ts) < TIMESTAMP '2024-05-02'")) == str(
        parse_sql("ts < TIMESTAMP '2024-06-01'")
    )


@pytest.mark.parametrize(
    "text",
    [
        "date_trunc('century', ts) = DATE '2024-05-01'",
        "date_trunc('day', ts) = other",
        "date_trunc('day', ts) = date_trunc('day', other)",
        "date_trunc('day', ts) = 5",
        "date_trunc('day', ts) = 'yesterday'",
        "date_trunc('day', TIMESTAMP '2024-05-01') = DATE '2024-05-01'",
        "date_trunc('day', ts) IN ('2024-05-01')",
        "date_trunc('day', ts) IS NULL",
        "date_trunc('year', ts) > DATE '9999-12-31'",
    ],
)
def test_the_rest_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_sql(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["year(ts) = 2024", "EXTRACT(MONTH FROM ts) = 5", "month(ts) = 5", "day(ts) = 1", "date(ts) = '2024-05-01'"]
)
def test_parts_of_times_get_a_hint_of_ranges(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"date_trunc\('month', ts\)"):
        parse_sql(text)


@pytest.mark.parametrize("text", ["CAST(ts AS DATE) = '2024-05-01'", "ts::date = '2024-05-01'"])
def test_the_day_of_a_time_gets_a_hint(text: str) -> None:
    """DATE '2024-05-01' instead would be midnight alone."""
    with pytest.raises(ExpressionError, match=r"date_trunc\('day', ts\)"):
        parse_sql(text)


def test_is_nan_gets_a_hint() -> None:
    with pytest.raises(ExpressionError, match=r"isnan\(x\) tests for NaN"):
        parse_sql("x IS NAN")


def test_a_null_literal_is_null() -> None:
    assert str(parse_sql("date_trunc('day', ts) = NULL")) == "null"
