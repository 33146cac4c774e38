"""What can be pickled is what it was before; what cannot says what to do, and names nothing from inside asyncpq."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col


@pytest.fixture
def path(tmp_path: Path) -> str:
    pq.write_table(pa.table({"id": list(range(100))}), tmp_path / "a.parquet", row_group_size=10)
    return str(tmp_path / "a.parquet")


@pytest.mark.parametrize("many", [False, True])
async def test_a_plan(path: str, many: bool) -> None:
    async with asyncpq.Session() as session:
        opened = await (session.open_dataset([path]) if many else session.open_file(path))
        plan = await opened.plan(where=col("id") == 42)
        same = pickle.loads(pickle.dumps(plan))
        assert same == plan == copy.deepcopy(plan)
        assert (same.explain(), same.to_dict()) == (plan.explain(), plan.to_dict())
    assert "<img" in same._repr_html_()


@pytest.mark.parametrize("change", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_what_belongs_to_a_process(path: str, change: Callable[[Any], Any]) -> None:
    async with asyncpq.Session() as session:
        file, dataset = await session.open_file(path), await session.open_dataset([path])
        for one in (session, file, dataset, file.scan(), dataset.scan(), asyncpq.open_file(path)):
            with pytest.raises(TypeError, match=r"cannot be pickled or copied: (make one|call it) in each process"):
                change(one)


async def test_a_dataset_of_duckdb(path: str) -> None:
    import asyncpq.blocking
    import asyncpq.duckdb

    with asyncpq.blocking.open_file(path) as file, pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(asyncpq.duckdb.dataset(file))


def test_a_session_is_closed_in_its_own_loop(path: str) -> None:
    first = asyncio.new_event_loop()
    session = asyncpq.Session()

    async def read() -> int:
        return await (await session.open_file(path)).count()

    async def enter() -> None:
        await session

    async def close() -> None:
        await session.close()

    first.run_until_complete(enter())
    with pytest.raises(asyncpq.UsageError, match="belongs to the event loop") as caught:
        asyncio.run(close())
    assert "Close it there" in str(caught.value)
    assert first.run_until_complete(read()) == 100  # it is still open
    first.run_until_complete(close())
    asyncio.run(close())  # it is closed already
    first.close()


@pytest.mark.parametrize("of", ["file", "dataset"])
def test_a_scan_is_not_closed_in_another_loop(of: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet", row_group_size=10)
    own, other = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def begun() -> tuple[asyncpq.Session, Any]:
        session = await asyncpq.Session()
        path = str(tmp_path / "a.parquet") if of == "file" else str(tmp_path)
        opened = await (session.open_file(path) if of == "file" else session.open_dataset(path))
        scan = await opened.scan(batch_size=10).__aenter__()
        await anext(scan)
        return session, scan

    async def refused(scan: Any) -> None:
        for close in (scan.close, lambda: scan.__aexit__(None, None, None)):
            with pytest.raises(asyncpq.UsageError, match="a scan belongs to the event loop") as caught:
                async with asyncio.timeout(10):
                    await close()
            assert "Close it there" in str(caught.value)

    try:
        session, scan = own.run_until_complete(begun())
        other.run_until_complete(refused(scan))
        own.run_until_complete(scan.close())
        other.run_until_complete(scan.close())  # closed already
        own.run_until_complete(session.close())
    finally:
        own.close()
        other.close()
