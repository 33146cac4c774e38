"""Tables of DuckLake that are pickled."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import asyncpq
from asyncpq import DuckLakeTable
from tests.ducklake_lakes import Lake


async def test_a_table_of_a_url_can_be_pickled(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        await check(lake)


async def check(lake: Lake) -> None:
    lake.sql("CREATE TABLE t AS SELECT i AS id FROM range(50) r(i)", "DELETE FROM t WHERE id < 10")
    before = lake.newest
    lake.sql("DELETE FROM t WHERE id < 20")
    for table, expected in ((lake.table("t"), 30), (lake.table("t", snapshot=before), 40)):
        copied = pickle.loads(pickle.dumps(table))
        assert repr(copied) == repr(table)
        async with asyncpq.Session() as session:
            assert await (await session.open_dataset(copied)).count() == expected


def test_a_table_of_an_engine_cannot_be_pickled() -> None:
    table = DuckLakeTable(create_engine("sqlite:///lake.db"), "t")
    with pytest.raises(TypeError, match="make it of the catalog's url"):
        pickle.dumps(table)
