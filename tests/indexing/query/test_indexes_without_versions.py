"""Indexes over files whose store cannot tell versions apart: what is read is what the files have now."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.indexing import Footers, Keys, Pages
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

FILES = 3
WRITTEN_S = 1_700_000_000.0


def file_bytes(first: int) -> bytes:
    """A file with the ids ``[first, first + 100)``, whose size is that of any other."""
    return parquet_bytes(pa.table({"id": range(first, first + 100)}), use_dictionary=False, compression="none")


def seen_after(seconds: float) -> Fault:
    """No ETags, and a time in whole seconds, that many before the server's clock."""
    return Fault(times=None, etag="none", headers={"Date": formatdate(WRITTEN_S + seconds, usegmt=True)})


NO_TIME = Fault(times=None, etag="none", headers={"Last-Modified": None})


@pytest.mark.parametrize(
    ("building", "reading", "why"),
    [
        (NO_TIME, NO_TIME, "cannot tell its versions apart"),
        (seen_after(0), seen_after(1), "cannot tell its versions apart"),
        (seen_after(0), seen_after(9), "built for another version"),
    ],
    ids=["no time", "within one second", "written and built within one second"],
)
async def test_files_that_are_replaced(tmp_path: Path, building: Fault, reading: Fault, why: str) -> None:
    old, new = file_bytes(100), file_bytes(9000)
    assert len(old) == len(new)
    index = f"{tmp_path}/"
    async with ObjectServer() as server:
        urls = [f"{server.endpoint}/bucket/{number}.parquet" for number in range(FILES)]
        for number in range(FILES):
            server.put(f"bucket/{number}.parquet", file_bytes(100 * number), modified=WRITTEN_S)
        server.faults = [building]
        async with asyncpq.Session() as session:
            await session.build_index(urls, [Keys("id"), Footers()], at=index)
        server.put("bucket/1.parquet", new, modified=WRITTEN_S)
        server.faults = [reading]
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(urls, index=index)
            with asyncpq.measure() as cost:
                assert (await dataset.lookup({"id": [150, 9050]}))["id"].to_pylist() == [9050]
            assert any(why in reason for reason in cost.fallbacks)
            assert (await dataset.read(where="id >= 9000")).num_rows == 100
            assert await dataset.count() == FILES * 100


async def test_pages_of_a_file_that_is_replaced(tmp_path: Path) -> None:
    def paged_bytes(ids: range) -> bytes:
        table = pa.table({"id": ids})
        return parquet_bytes(table, use_dictionary=False, compression="none", max_rows_per_page=100)

    old, new = paged_bytes(range(1000)), paged_bytes(range(999, -1, -1))
    assert len(old) == len(new)
    index = f"{tmp_path}/"
    async with ObjectServer() as server:
        server.faults = [NO_TIME]
        urls = [f"{server.endpoint}/bucket/0.parquet"]
        server.put("bucket/0.parquet", old)
        async with asyncpq.Session() as session:
            await session.build_index(urls, [Pages()], at=index)
        server.put("bucket/0.parquet", new)
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(urls, index=index)
            found = await dataset.read(where="id >= 950")
            assert found["id"].to_pylist() == list(range(999, 949, -1))


@pytest.mark.parametrize(
    ("building", "reading"), [(NO_TIME, NO_TIME), (seen_after(0), seen_after(9))], ids=["no time", "new when built"]
)
async def test_files_that_never_change_are_read_with_their_index(
    tmp_path: Path, building: Fault, reading: Fault
) -> None:
    index = f"{tmp_path}/"
    async with ObjectServer() as server:
        urls = [f"{server.endpoint}/bucket/{number}.parquet" for number in range(FILES)]
        for number in range(FILES):
            server.put(f"bucket/{number}.parquet", file_bytes(100 * number), modified=WRITTEN_S)
        server.faults = [building]
        async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
            await session.build_index(urls, [Keys("id"), Footers()], at=index)
        server.faults = [reading]
        async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
            dataset = await session.open_dataset(urls, index=index)
            with asyncpq.measure() as cost:
                assert (await dataset.lookup({"id": 150}))["id"].to_pylist() == [150]
            assert not any("without the index" in reason for reason in cost.fallbacks)
