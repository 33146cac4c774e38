"""A DuckLake table of any history, at any of its snapshots, has the rows that DuckDB gives it; and its text values
are DuckDB's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import ColumnBounds, TableField
from asyncpq.expressions.scalars import Timestamp
from asyncpq.tables.ducklake.inlined import parse_nested
from asyncpq.tables.ducklake.schema import DuckLakeColumn
from asyncpq.tables.ducklake.values import bounds_of_statistics, value_of_text
from asyncpq.testing import check_catalog
from tests.ducklake_lakes import Lake, assert_same

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


@settings(max_examples=5)
@given(st.lists(steps, min_size=3, max_size=12), st.sampled_from([0, 10]), numbers, st.integers(1, 10))
def test_histories(history: list[tuple[str, int, int]], inline_rows: int, value: int, back: int) -> None:
    asyncio.run(check(history, inline_rows, value, back))


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(steps, min_size=5, max_size=25), st.sampled_from([0, 10]), numbers, st.integers(1, 20))
def test_long_histories(history: list[tuple[str, int, int]], inline_rows: int, value: int, back: int) -> None:
    asyncio.run(check(history, inline_rows, value, back))


# -- text -----------------------------------------------------------------------------------------

_connection = duckdb.connect()


def text_of(value: object, kind: str) -> str:
    found = _connection.execute(f"SELECT CAST(CAST(? AS {kind}) AS VARCHAR)", [value]).fetchall()[0][0]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("type_name", "kind", "values"),
    [
        ("boolean", "BOOLEAN", st.booleans()),
        ("int64", "BIGINT", st.integers(-(2**63), 2**63 - 1)),
        ("float64", "DOUBLE", st.floats(allow_nan=False)),
        ("float32", "FLOAT", st.floats(allow_nan=False, width=32)),
        ("decimal(38,6)", "DECIMAL(38,6)", st.decimals(-(10**30), 10**30, places=6)),
        ("varchar", "VARCHAR", st.text(st.characters(codec="utf-8"))),
        ("blob", "BLOB", st.binary()),
        ("date", "DATE", st.dates()),
        ("time", "TIME", st.times()),
        ("timestamp", "TIMESTAMP", st.datetimes()),
        ("uuid", "UUID", st.uuids()),
    ],
)
@settings(max_examples=40)
@given(data=st.data())
def test_text_is_what_duckdb_writes(
    type_name: str, kind: str, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    value = data.draw(values)
    found = value_of_text(text_of(value, kind), type_name)
    assert found == value
    assert type(found) is type(value)


def test_text_of_finer_and_zoned_times() -> None:
    assert value_of_text("1969-12-31 23:59:59.999999999", "timestamp_ns") == Timestamp(-1)
    assert value_of_text("2020-01-02 03:04:05.5+05:30", "timestamptz") == dt.datetime(
        2020, 1, 1, 21, 34, 5, 500000, tzinfo=dt.UTC
    )
    assert value_of_text("2020-01-02", "timestamp") == dt.datetime(2020, 1, 2)  # a bound from when it was a date


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int32", "1.0"),
        ("int32", "１"),  # noqa: RUF001  # a digit, but not DuckDB's
        ("boolean", "t"),
        ("float64", "1_0"),
        ("decimal(5,2)", "NaN"),
        ("date", "infinity"),
        ("date", "0044-03-15 (BC)"),
        ("timestamp", "290000-12-22 00:00:00"),
        ("timestamp", "2020-01-01 00:00:00+00"),
        ("timestamp", "2020-01-01 00:00:00.123456789"),
        ("timestamptz", "2020-01-01 00:00:00"),
        ("time", "24:00:00"),
        ("timetz", "12:00:00"),
        ("blob", "\\xZ"),
        ("blob", "é"),
        ("variant", "1"),
    ],
)
def test_other_text_is_refused(type_name: str, text: str) -> None:
    with pytest.raises(ValueError):
        value_of_text(text, type_name)


@given(st.floats(allow_nan=False, width=32))
def test_a_float_bound_holds_as_either_type(value: float) -> None:
    """The text of a FLOAT, read as a DOUBLE, bounds the FLOAT."""
    text = text_of(value, "FLOAT")
    bounds = bounds_of_statistics(
        "float64", min_text=text, max_text=text, value_count=1, null_count=0, contains_nan=False, record_count=1
    )
    assert bounds is not None
    assert isinstance(bounds.min, float)
    assert isinstance(bounds.max, float)
    exact = pa.scalar(value, pa.float32()).as_py()
    assert bounds.min <= exact <= bounds.max
    assert bounds.min <= float(text) <= bounds.max


@pytest.mark.parametrize(
    ("value_count", "null_count", "record_count", "known", "all_null"),
    [
        (7, 3, 10, 3, False),
        (10, 0, 10, 0, False),
        (0, 10, 10, 10, True),
        (0, 0, 10, None, False),  # not counted
        (20, 3, 10, None, False),  # of a list's elements
        (None, None, 10, None, False),
    ],
)
def test_counts(value_count: int, null_count: int, record_count: int, known: int | None, all_null: bool) -> None:
    bounds = bounds_of_statistics(
        "decimal(5,2)",
        min_text="-1.50",
        max_text="2",
        value_count=value_count,
        null_count=null_count,
        contains_nan=None,
        record_count=record_count,
    )
    assert bounds == ColumnBounds(
        min=Decimal("-1.50"), max=Decimal(2), null_count=known, all_null=all_null, may_be_nan=False
    )


@pytest.mark.parametrize("type_name", ["timetz", "interval", "int128", "blob", "json", "variant"])
def test_types_without_bounds_say_nothing(type_name: str) -> None:
    """DuckDB up to 1.4 writes that none of them is null, whatever they hold."""
    bounds = bounds_of_statistics(
        type_name, min_text=None, max_text=None, value_count=10, null_count=0, contains_nan=None, record_count=10
    )
    assert bounds is None


def test_zero_has_no_sign_in_text() -> None:
    bounds = bounds_of_statistics(
        "float64", min_text="0.0", max_text="-0.0", value_count=1, null_count=0, contains_nan=False, record_count=1
    )
    assert bounds is not None
    assert repr((bounds.min, bounds.max)) == "(-0.0, 0.0)"


# -- nested values as text ------------------------------------------------------------------------

TEXT = DuckLakeColumn(TableField(name="text", type=pa.string()), "varchar", ())
LISTS = DuckLakeColumn(TableField(name="lists", type=pa.list_(pa.string())), "list", (TEXT,))
MAPS = DuckLakeColumn(TableField(name="maps", type=pa.map_(pa.string(), pa.string())), "map", (TEXT, TEXT))
texts = st.one_of(
    st.text(alphabet=" \t\v\x1c\x1f\x85\xa0\u2003\u2028a'\"\\\\,=:[]{}()"), st.sampled_from(["NULL", "null", "NULLa"])
)


@given(st.lists(st.one_of(st.none(), texts)), st.dictionaries(texts, st.one_of(st.none(), texts)))
@settings(max_examples=100, deadline=None)
def test_texts_in_nested_values_are_those_that_duckdb_casts(
    found: list[str | None], pairs: dict[str, str | None]
) -> None:
    """Among them texts that begin or end with what is white space to Python and not to DuckDB."""
    with duckdb.connect() as connection:
        query = "SELECT ?::VARCHAR[]::VARCHAR, map(?::VARCHAR[], ?::VARCHAR[])::VARCHAR"
        row = connection.execute(query, [found, list(pairs), list(pairs.values())]).fetchone()
    assert row is not None
    assert parse_nested(row[0], LISTS) == found
    assert parse_nested(row[1], MAPS) == list(pairs.items())
