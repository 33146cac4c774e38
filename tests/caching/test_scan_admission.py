"""Reads of a session as the memory cache sees them: after scans, large counts and takes, lookups need no request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer, RecordingCache
from tests.parquet_bytes import parquet_bytes

ROWS = 40_000
BUDGET_BYTES = 3 << 19
KEYS = range(0, ROWS, 700)  # of 58 pages


def parquet(*, page_index: bool = True) -> bytes:
    return parquet_bytes(
        pa.table({"id": range(ROWS), "value": [float(row) for row in range(ROWS)]}),
        row_group_size=ROWS // 2,
        max_rows_per_page=500,
        write_batch_size=500,
        use_dictionary=False,
        compression="none",
        write_page_index=page_index,
    )


def session(server: ObjectServer, cache: asyncpq.MemoryCache) -> asyncpq.Session:
    return asyncpq.Session(
        server.storage_options,
        memory_cache=cache,
        requests=asyncpq.RequestOptions(tail_bytes=1 << 14),
        cache_policy=asyncpq.immutable(),
    )


async def scan(file: asyncpq.File) -> None:
    assert (await file.read()).num_rows == ROWS


async def filtered_scan(file: asyncpq.File) -> None:
    assert (await file.read(where=col("value") >= ROWS / 4)).num_rows == ROWS * 3 / 4


async def count(file: asyncpq.File) -> None:
    assert await file.count(col("value").is_in([1.0, ROWS - 1.0])) == 2
    assert await file.count(col("value") != 7.0) == ROWS - 1


async def take(file: asyncpq.File) -> None:
    assert (await file.take(range(0, ROWS, 100))).num_rows == ROWS / 100


@pytest.mark.sampled(2)
@pytest.mark.parametrize("read", [scan, filtered_scan, count, take])
@pytest.mark.parametrize("page_index", [True, False])
async def test_lookups_keep_their_pages(
    server: ObjectServer, read: Callable[[asyncpq.File], Awaitable[None]], page_index: bool
) -> None:
    server.put("bucket/looked-up.parquet", parquet())
    server.put("bucket/scanned.parquet", parquet(page_index=page_index))
    async with session(server, asyncpq.MemoryCache(BUDGET_BYTES)) as s:
        file = await s.open_file("s3://bucket/looked-up.parquet")
        scanned = await s.open_file("s3://bucket/scanned.parquet")
        for _ in range(3):
            for key in KEYS:
                assert (await file.lookup({"id": key})).num_rows == 1
        assert s.memory_cache.current_bytes > BUDGET_BYTES / 2
        for _ in range(2):
            await read(scanned)
        server.log.clear()
        for key in reversed(KEYS):
            assert (await file.lookup({"id": key})).num_rows == 1
        assert server.log == []


async def test_a_scan_uses_the_room_that_is_free(server: ObjectServer) -> None:
    server.put("bucket/scanned.parquet", parquet())
    async with session(server, asyncpq.MemoryCache(1 << 24)) as s:
        file = await s.open_file("s3://bucket/scanned.parquet")
        await filtered_scan(file)
        server.log.clear()
        await filtered_scan(file)
        assert (await file.lookup({"id": ROWS - 1})).num_rows == 1
        requested = [request.range for request in server.log]
        await file.lookup({"id": ROWS - 1})
        assert [request.range for request in server.log] == requested
        assert requested == []


async def test_what_a_scan_would_not_find_again_is_not_kept(server: ObjectServer) -> None:
    server.put("bucket/scanned.parquet", parquet())
    async with session(server, asyncpq.MemoryCache(300_000)) as s:
        file = await s.open_file("s3://bucket/scanned.parquet")
        await filtered_scan(file)
        kept = s.memory_cache.current_bytes
        assert kept < 100_000  # footer, tail and indexes


async def kinds(server: ObjectServer, budget: int, *reads: Callable[[asyncpq.File], Awaitable[Any]]) -> set[Any]:
    """(operation, kind, whether as a scan) of what reads ask the cache."""
    server.put("bucket/file.parquet", parquet())
    cache = RecordingCache(budget)
    async with session(server, cache) as s:
        file = await s.open_file("s3://bucket/file.parquet")
        for read in reads:
            await read(file)
    return {(access.operation, access.kind, access.scan) for access in cache.trace}


async def test_scans_say_so(server: ObjectServer) -> None:
    seen = await kinds(server, 1 << 26, filtered_scan, filtered_scan)
    assert {scan for _, kind, scan in seen if kind == "page"} == {True}
    assert {("put", "page", True), ("get", "page", True)} <= seen


async def test_lookups_do_not(server: ObjectServer) -> None:
    seen = await kinds(server, 1 << 24, lambda file: file.lookup({"id": 7}), lambda file: file.lookup({"id": 7}))
    assert {scan for _, _, scan in seen} == {False}


async def test_explaining_a_read_is_not_using_it(server: ObjectServer) -> None:
    seen = await kinds(server, 1 << 24, lambda file: file.plan(lookup={"id": 7}))
    assert {scan for operation, kind, scan in seen if kind == "page" and operation == "get"} == {True}
