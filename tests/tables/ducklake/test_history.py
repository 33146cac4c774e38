"""A DuckLake table of any history, at any of its snapshots, has the rows that DuckDB gives it; and its text values
are DuckDB's."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.testing import check_catalog
from tests.ducklake_lakes import Lake, assert_same
from tests.example_counts import examples

# -- histories ------------------------------------------------------------------------------------

numbers = st.integers(0, 60)
steps = st.one_of(
    st.tuples(st.just("insert"), numbers, st.integers(1, 25)),
    st.tuples(st.just("delete"), numbers, st.integers(1, 10)),
    st.tuples(st.just("delete every"), st.integers(0, 6), st.just(7)),
    st.tuples(st.just("update"), numbers, st.integers(1, 10)),
    st.tuples(st.sampled_from(["rename", "add", "drop", "merge", "flush", "rewrite"]), st.just(0), st.just(0)),
)


class History:
    """Statements for a table of ``id`` and columns that come and go. DuckDB 1.5 fails at some that widen a type."""

    def __init__(self) -> None:
        self.columns = ["v"]
        self.made = 0

    def statement(self, step: tuple[str, int, int]) -> str | None:
        name, at, number = step
        match name:
            case "insert":
                values = ", ".join(f"'{column}' || i" for column in self.columns)
                return f"INSERT INTO t SELECT i, i / 8, {values} FROM range({at}, {at + number}) r(i)"
            case "delete":
                return f"DELETE FROM t WHERE id BETWEEN {at} AND {at + number}"
            case "delete every":
                return f"DELETE FROM t WHERE id % {number} = {at}"
            case "update":
                return f"UPDATE t SET {self.columns[-1]} = NULL WHERE id BETWEEN {at} AND {at + number}"
            case "rename":
                old, self.columns[0] = self.columns[0], self._name()
                return f"ALTER TABLE t RENAME COLUMN {old} TO {self.columns[0]}"
            case "add":
                self.columns.append(self._name())
                return f"ALTER TABLE t ADD COLUMN {self.columns[-1]} VARCHAR DEFAULT 'default'"
            case "drop" if len(self.columns) > 1:
                return f"ALTER TABLE t DROP COLUMN {self.columns.pop(0)}"
            case "merge":
                return "CALL ducklake_merge_adjacent_files('lake')"
            case "flush":
                return "CALL ducklake_flush_inlined_data('lake')"
            case "rewrite":
                return "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)"
        return None

    def _name(self) -> str:
        self.made += 1
        return "vwx"[self.made % 3] if "vwx"[self.made % 3] not in self.columns else f"c{self.made}"


async def check(history: list[tuple[str, int, int]], inline_rows: int, value: int, back: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Lake(Path(folder), inline_rows=inline_rows) as lake:
        lake.sql("CREATE TABLE t (id SMALLINT, f DECIMAL(9,3), v VARCHAR)")
        known = History()
        for step in history:
            statement = known.statement(step)
            if statement is not None:
                with contextlib.suppress(duckdb.TransactionException):  # DuckDB 1.5 fails at some with inlined rows
                    lake.sql(statement)
        snapshot = max(1, lake.newest - back)
        await assert_same(lake, "t", snapshots=[snapshot])
        async with asyncpq.Session() as session:
            await check_catalog(session, lake.table("t", snapshot=snapshot))
        for where in (col("id") == value, (col("f") > Decimal(value) / 8) | col("id").is_null(), ~(col("id") <= value)):
            await assert_same(lake, "t", snapshots=[snapshot], where=where)


@pytest.mark.heavy
@settings(max_examples=examples(2, thorough=100))
@given(st.lists(steps, min_size=3, max_size=12), st.sampled_from([0, 10]), numbers, st.integers(1, 10))
def test_histories(history: list[tuple[str, int, int]], inline_rows: int, value: int, back: int) -> None:
    asyncio.run(check(history, inline_rows, value, back))


@pytest.mark.slow
@pytest.mark.timeout(600)  # a history takes a second on a busy machine
@settings(max_examples=examples(40, thorough=400))
@given(st.lists(steps, min_size=5, max_size=25), st.sampled_from([0, 10]), numbers, st.integers(1, 20))
def test_long_histories(history: list[tuple[str, int, int]], inline_rows: int, value: int, back: int) -> None:
    asyncio.run(check(history, inline_rows, value, back))


# -- text -----------------------------------------------------------------------------------------


# -- nested values as text ------------------------------------------------------------------------
