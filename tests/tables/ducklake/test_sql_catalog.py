"""A DuckLake's catalog database: missing, unreachable, misspelt, or without its driver."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq import DuckLakeTable, col
from asyncpq.tables.ducklake.sql_catalog import SqlCatalog
from tests.ducklake_lakes import Lake, read


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Its rows and deletes are all in files."""
    with Lake(tmp_path) as lake:
        yield lake


async def test_no_database_keeps_a_process_from_ending(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may never answer: it is asked in daemon threads, which end with their calls."""
    lake.sql("CREATE TABLE t AS SELECT 1 AS x")
    threads = []
    for name in ("state", "statistics"):
        call = getattr(SqlCatalog, name)

        def noted(*args: Any, call: Any = call) -> Any:
            threads.append(threading.current_thread())
            return call(*args)

        monkeypatch.setattr(SqlCatalog, name, noted)
    async with asyncpq.Session() as session:
        assert (await read(session, lake.table("t"), col("x") == 1)).num_rows == 1
    assert [thread.daemon for thread in threads] == [True, True]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


async def test_no_catalog(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.ObjectNotFoundError, match="no DuckLake catalog"):
            await session.open_dataset(DuckLakeTable(f"sqlite:///{tmp_path}/none.sqlite", "t"))
        assert os.listdir(tmp_path) == []
        (tmp_path / "empty.sqlite").touch()
        with pytest.raises(asyncpq.StoreError, match=r"ducklake_metadata.*is the catalog of a DuckLake"):
            await session.open_dataset(DuckLakeTable(f"sqlite:///{tmp_path}/empty.sqlite", "t"))
        with pytest.raises(asyncpq.StoreError) as caught:
            await session.open_dataset(DuckLakeTable("postgresql+psycopg://u:secret@127.0.0.1:1/d", "t"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("password", ["a@secret", "a@b:secret", "a:b@secret"])
def test_a_password_that_is_not_encoded_is_not_shown(password: str) -> None:
    with pytest.raises(asyncpq.UsageError, match="percent-encoded") as caught:
        DuckLakeTable(f"postgresql+psycopg://u:{password}@h/d", "t")
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_sqlalchemy_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(asyncpq.UsageError, match=r"Install SQLAlchemy: pip install .*\[ducklake\]"):
        DuckLakeTable("sqlite://", "t")


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One row in each file."""
    with Lake(tmp_path_factory.mktemp("statistics")) as lake:
        lake.sql(
            "CREATE TABLE t (id INTEGER, f DOUBLE, ttz TIMETZ, v VARCHAR, tz TIMESTAMPTZ)",
            "INSERT INTO t VALUES (1, 1.5, NULL, repeat('z', 300) || 'a', '2020-01-01 00:00:00+00')",
            "INSERT INTO t VALUES (2, 'nan', NULL, repeat(chr(1114111), 300), '2019-12-31 22:00:00-03')",
            "INSERT INTO t VALUES (3, '-0.0'::DOUBLE, '12:00:00+01', '', NULL)",
            "INSERT INTO t VALUES (4, '-inf', NULL, NULL, NULL)",
            "INSERT INTO t VALUES (5, NULL, NULL, 'z', '2019-12-31 23:59:59+00')",
        )
        yield lake


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        "ducklake_data_file SET record_count = 'many', file_size_bytes = -1",
        "ducklake_data_file SET record_count = -1, file_size_bytes = 9223372036854775807",
        "ducklake_data_file SET begin_snapshot = 'x'",
        "ducklake_data_file SET path = 5",
        "ducklake_data_file SET path = NULL",
        "ducklake_data_file SET data_file_id = 'x'",
        "ducklake_column SET column_order = 'x' WHERE column_name = 'x'",
        "ducklake_column SET begin_snapshot = 'x'",
        "ducklake_column SET column_type = 'decimal(99999,3)'",
        "ducklake_column SET column_id = 1",
        "ducklake_column SET parent_column = 1",
        "ducklake_column SET initial_default = '1e999999999', column_type = 'decimal(9,2)'",
        "ducklake_column SET initial_default = '99999999999999999999999'",
        "ducklake_snapshot SET snapshot_time = 5",
        "ducklake_snapshot SET snapshot_time = '99999-01-01 00:00:00+00'",
        "ducklake_file_column_stats SET min_value = 5, max_value = x'00'",
        "ducklake_file_column_stats SET value_count = 'x', null_count = 'y'",
        "ducklake_file_column_stats SET data_file_id = 'x'",
        "ducklake_table SET path = 5, table_id = 'x'",
        "ducklake_metadata SET value = 5",
        "ducklake_delete_file SET path = 5, format = 7",
        "ducklake_delete_file SET data_file_id = 'x'",
    ],
)
async def test_values_of_any_type_in_any_column(lake: Lake, tmp_path: Path, change: str) -> None:
    """As SQLite takes them: rows, or a typed error."""
    lake.sql("CREATE TABLE t AS SELECT i AS x, i % 3 AS y FROM range(100) r(i)", "DELETE FROM t WHERE x < 9")
    with sqlite3.connect(tmp_path / "catalog.sqlite") as catalog:
        catalog.execute(f"UPDATE {change}")
    try:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(lake.table("t"))
            assert (await dataset.read(where=col("x") >= 50)).num_rows in (0, 50)
            await dataset.count()
    except asyncpq.AsyncpqError as error:
        assert isinstance(error, (asyncpq.FormatError, asyncpq.StoreError, asyncpq.QueryError))  # noqa: PT017


def test_ids_of_snapshots_are_of_64_bits(lake: Lake) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="snapshot must be an id"):
        DuckLakeTable("sqlite:///x", "t", snapshot=1 << 63)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": None}, "table=None: must be a str"),
        ({"table": "t", "snapshot": "1"}, "snapshot must be an id"),
        ({"table": "t", "as_of": "2024-02-29"}, "as_of='2024-02-29': must be a datetime"),
        ({"table": "t", "as_of": dt.date(2024, 2, 29)}, "must be a datetime"),
    ],
    ids=str,
)
def test_arguments_of_other_types_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match=message):
        DuckLakeTable("sqlite:///x", **arguments)
