"""A DuckLake's catalog database: missing, unreachable, misspelt, or without its driver."""

from __future__ import annotations

import os
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
        with pytest.raises(asyncpq.StoreError, match="ducklake_metadata"):
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
    with pytest.raises(asyncpq.UsageError, match=r"Install SQLAlchemy, as the extra asyncpq\[ducklake\] does"):
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
