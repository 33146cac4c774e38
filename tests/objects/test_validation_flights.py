"""With ``etag(0)`` a read gives what the object was after the read began: an answer to what another read asked before
that says nothing. Reads that begin together still ask once."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.objects import runtime
from asyncpq.objects.runtime import SLICE_S
from asyncpq.storage.base import RangeResult, Store
from asyncpq.testing import ObjectServer, StoreCall, WrappedStore, wrap_store
from asyncpq.testing.stores import Fetch
from tests.parquet_bytes import parquet_bytes

ROWS = 5000
HANGS_S = 20.0
URL = "s3://bucket/a.parquet"


def table(seed: int) -> pa.Table:
    return pa.table({"id": range(ROWS), "price": [float(seed + row) for row in range(ROWS)]})


def parquet(seed: int) -> bytes:
    return parquet_bytes(table(seed), write_page_index=True, row_group_size=1000, max_rows_per_page=100)


class HoldingStore(WrappedStore):
    """Once told to, it keeps the next good answer of a purpose back, until it is let go."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.purpose = ""
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()

    async def around(self, call: StoreCall, fetch: Fetch) -> RangeResult:
        result = await fetch()
        if call.purpose == self.purpose:
            self.purpose = ""
            self.held.set()
            await self.let_go.wait()
        return result


@pytest.mark.parametrize("purpose", ["validate", "data"])
async def test_an_answer_from_before_is_none(server: ObjectServer, purpose: str) -> None:
    """One read has been told that the old version is there; it is replaced; another read begins, and is told so."""
    server.put("bucket/a.parquet", parquet(0))
    requests = asyncpq.RequestOptions(tail_bytes=1 << 10)
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0), requests=requests) as session:
        store = wrap_store(session, URL, HoldingStore)
        one, other = [await session.open_file(URL) for _ in range(2)]
        await one.plan(lookup={"id": 7})  # indexes, and no pages
        if purpose == "validate":
            await one.lookup({"id": 7})
        store.purpose = purpose
        first = asyncio.ensure_future(one.lookup({"id": 7}))
        await store.held.wait()
        server.put("bucket/a.parquet", parquet(1))
        second = asyncio.ensure_future(other.lookup({"id": 7}))
        await asyncio.wait((second,), timeout=0.1 if purpose == "data" else HANGS_S)
        store.let_go.set()  # the second waits for the same pages, and must not take the first one's word
        assert await second == table(1).slice(7, 1)
        assert await first in (table(0).slice(7, 1), table(1).slice(7, 1))


async def test_an_unknown_column_is_asked_about_anew(server: ObjectServer) -> None:
    """What a question is refused by is no older than the question."""
    server.put("bucket/a.parquet", parquet(0))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        store = wrap_store(session, URL, HoldingStore)
        one, other = [await session.open_file(URL) for _ in range(2)]
        store.purpose = "validate"
        first = asyncio.ensure_future(one.read(["cost"]))
        await store.held.wait()
        server.put("bucket/a.parquet", parquet_bytes(table(1).rename_columns(["id", "cost"])))
        async with asyncio.timeout(HANGS_S):
            assert (await other.read(["cost"])).num_rows == ROWS
        store.let_go.set()
        with pytest.raises(asyncpq.ColumnNotFoundError):
            await first


@pytest.mark.parametrize("slice_s", [SLICE_S, 0.0])
async def test_reads_that_begin_together_ask_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    """Also if they wait for their turns."""
    monkeypatch.setattr(runtime, "SLICE_S", slice_s)
    server.put("bucket/a.parquet", parquet(0))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(URL)
        await file.lookup({"id": 7})
        server.log.clear()
        found = await asyncio.gather(*(file.lookup({"id": 7}) for _ in range(50)))
        assert all(rows == table(0).slice(7, 1) for rows in found)
        assert len(server.log) == 1
