"""Times relative to now: one instant for a read, as the column's type wants it, and never compared unresolved."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col, now
from asyncpq.decoding.column_literals import resolve_literals
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import ColumnNotFoundError, ExpressionError, PredicateTypeError, QueryError, UsageError
from asyncpq.expressions import Comparison, Expression, has_open_literals, parse_filters, resolve_times
from asyncpq.pruning.literals import Domain, ValueKind, domain_of
from asyncpq.scan.request import ScanRequest

WEEK = dt.timedelta(days=7)
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
TYPES = {
    "zoned": pa.timestamp("ms", "Europe/Paris"),
    "plain": pa.timestamp("us"),
    "kind": pa.dictionary(pa.int8(), pa.timestamp("s")),
    "day": pa.date32(),
    "number": pa.int64(),
    "struct": pa.struct([("at", pa.timestamp("ns"))]),
}


class Fine(dt.timedelta):
    """As pandas has it: sums of it are of its kind, and perhaps finer than a microsecond."""

    nanoseconds = 0

    def __radd__(self, other: dt.timedelta) -> Fine:
        total = other + dt.timedelta(self.days, self.seconds)
        found = Fine(total.days, total.seconds)
        found.nanoseconds = total.seconds
        return found


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (now(), "now"),
        (now() - WEEK, "now - 7 days"),
        (now() - dt.timedelta(hours=36), "now - 1 day, 12:00:00"),
        (dt.timedelta(minutes=5) + now(), "now + 0:05:00"),
        (now() - WEEK + WEEK, "now"),
        (now() - Fine(days=2), "now - 2 days"),
    ],
)
def test_arithmetic(time: Any, text: str) -> None:
    assert str(time) == text
    assert str(col("a") >= time) == f"a >= {text}"
    assert pickle.loads(pickle.dumps(time)) == time
    assert type(time.offset) is dt.timedelta


@pytest.mark.parametrize("mistake", [lambda: now() + 7, lambda: now() - NOON, lambda: now() - now()])
def test_other_arithmetic_is_refused(mistake: Any) -> None:
    with pytest.raises(TypeError):
        mistake()


def test_finer_offsets_are_refused() -> None:
    with pytest.raises(ExpressionError, match="finer than a microsecond"):
        now() + Fine(seconds=1)


def test_equal_where_they_ask_the_same() -> None:
    assert (col("a") > now() - WEEK) == (col("a") > now() - dt.timedelta(hours=168))
    assert (col("a") > now()) != (col("a") > now() - WEEK)
    assert len({col("a") > now(), col("a") > now()}) == 1


def test_resolved_in_all_parts() -> None:
    expr = ~(col("a") < now()) & (col("a").is_in([now() - WEEK, None]) | (col("b") == 1))
    assert has_open_literals(expr)
    found = resolve_times(expr, NOON)
    assert found == ~(col("a") < NOON) & (col("a").is_in([NOON - WEEK, None]) | (col("b") == 1))
    assert not has_open_literals(found)
    assert resolve_times(found, NOON) is found
    paris = NOON.astimezone(dt.timezone(dt.timedelta(hours=1)))
    assert resolve_times(col("a") < now(), paris, ["a"]) == (col("a") < NOON.replace(tzinfo=None))


def test_filter_lists() -> None:
    assert parse_filters([("a", ">=", now() - WEEK)]) == (col("a") >= now() - WEEK)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("zoned", NOON - WEEK),
        ("plain", NOON.replace(tzinfo=None) - WEEK),
        ("kind", NOON.replace(tzinfo=None) - WEEK),
        ("struct.at", NOON.replace(tzinfo=None) - WEEK),
    ],
)
def test_as_the_type_wants_it(column: str, expected: dt.datetime) -> None:
    found = resolve_literals(col(column) >= now() - WEEK, NOON, TYPES)
    assert found == Comparison(column, ">=", expected)
    compile_filter(found, TYPES)


def test_other_columns_are_refused() -> None:
    with pytest.raises(PredicateTypeError, match="Compare it with a date") as caught:
        resolve_literals(col("day") >= now(), NOON, TYPES)
    assert caught.value.column == "day"
    for column in ("number", "struct"):
        with pytest.raises(PredicateTypeError, match="compared with timestamps"):
            resolve_literals(col(column) >= now(), NOON, TYPES)
    with pytest.raises(ColumnNotFoundError):
        resolve_literals(col("zzz") >= now(), NOON, TYPES)
    with pytest.raises(ExpressionError, match="out of datetime's range"):
        resolve_literals(col("zoned") >= now() - dt.timedelta(days=10**7), NOON, TYPES)


@pytest.mark.parametrize("expr", [col("zoned") >= now(), col("zoned").is_in([now(), NOON]), ~(col("plain") == now())])
def test_unresolved_ones_are_never_compared(expr: Expression) -> None:
    with pytest.raises(PredicateTypeError):
        compile_filter(expr, TYPES)
    for domain in (Domain.TIMESTAMP, Domain.DATE, Domain.INTEGER):
        with pytest.raises(UsageError, match="now"):
            domain_of(ValueKind(domain, unit="us")).to_key(now())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Rows of the last 100 hours, half an hour off the full ones."""
    moment = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=30)
    moments = [moment - dt.timedelta(hours=hours) for hours in range(100)]
    plain = [when.replace(tzinfo=None) for when in moments]
    table = pa.table(
        {
            "zoned": pa.array(moments, pa.timestamp("ms", "America/New_York")),
            "plain": pa.array(plain, pa.timestamp("us")),
            "struct": pa.array([{"at": np.datetime64(when, "ns")} for when in plain], TYPES["struct"]),
            "day": [when.date() for when in moments],
        }
    )
    path = tmp_path / "moments.parquet"
    pq.write_table(table, path, row_group_size=10, write_page_index=True)
    return path


@pytest.mark.parametrize("column", ["zoned", "plain", "struct.at"])
async def test_reads(path: Path, column: str) -> None:
    day = dt.timedelta(days=1)
    async with asyncpq.open_file(path) as file:
        assert await file.count(col(column) >= now() - day) == 24
        assert await file.count(~(col(column) >= now() - day)) == 76
        assert await file.count([(column, ">", now() - 2 * day), (column, "<=", now() - day)]) == 24
        assert (await file.read(["day"], col(column) > now())).num_rows == 0
        plan = await file.plan(where=col(column) >= now() - day)
        assert plan.pruning.row_groups_kept == 3


async def test_explained_as_resolved(path: Path) -> None:
    async with asyncpq.open_file(path) as file:
        before = dt.datetime.now(dt.UTC)
        where = (await file.plan(where=col("zoned") >= now() - WEEK)).where
        after = dt.datetime.now(dt.UTC)
    assert where is not None
    resolved, _, asked = where.partition(" (that is ")
    assert asked == "zoned >= now - 7 days)"
    assert before - WEEK <= dt.datetime.fromisoformat(resolved.removeprefix("zoned >= ")) <= after - WEEK


async def test_a_read_that_starts_again_keeps_its_instant(path: Path) -> None:
    where = col("zoned") >= now()
    async with asyncpq.open_file(path) as file:
        preparation = file._prepare("read", ScanRequest(where=where, unresolved=where))
        with preparation.operation:
            await preparation.prepare(scan=False)
            first = preparation.request.where
            await preparation.prepare(scan=False)
        assert preparation.request.where == first


async def test_bad_questions(path: Path) -> None:
    async with asyncpq.open_file(path) as file:
        with pytest.raises(PredicateTypeError, match="date") as caught:
            await file.count(col("day") >= now() - WEEK)
        assert caught.value.url == str(path)
        with pytest.raises(QueryError, match="not times relative to now"):
            await file.lookup({"zoned": now()})
        with pytest.raises(QueryError, match="no such column"):
            await file.count(col("zzz") >= now())
