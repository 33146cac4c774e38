"""Sessions of several hosts over one shared cache: what the store is asked for, and rows that equal pyarrow's, whatever
the server does or holds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.servers import ValkeyServer

TABLE = pa.table(
    {
        "id": range(40_000),
        "name": [f"name {row % 999}" for row in range(40_000)],
        "x": [row / 7 for row in range(40_000)],
    }
)
KEYS = [17, 12_345, 39_999]
COLUMNS = ["name", "x"]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    data = parquet_bytes(TABLE, write_page_index=True, row_group_size=10_000, data_page_size=4096)
    with ObjectServer.in_thread() as server:
        server.put("bucket/a.parquet", data)
        yield server


@pytest.fixture
def options(valkey: ValkeyServer) -> asyncpq.SharedCacheOptions:
    valkey.admin.flushall()
    return asyncpq.SharedCacheOptions(url=valkey.url, secret="secret", timeout_s=20.0, connect_timeout_s=20.0)


async def read(store: ObjectServer, options: asyncpq.SharedCacheOptions) -> tuple[int, int]:
    """A new host looks keys up. Returns hits in the shared cache, and requests to the store."""
    before = len(store.log)
    session = asyncpq.Session(
        store.storage_options,
        shared_cache=options,
        cache_policy=asyncpq.immutable(),
        requests=asyncpq.RequestOptions(tail_bytes=16 * 1024),
    )
    async with session, await session.open_file("s3://bucket/a.parquet") as file:
        found = await file.lookup({"id": KEYS}, COLUMNS)
        assert found == TABLE.filter(pc.is_in(TABLE["id"], pa.array(KEYS))).select(COLUMNS)
    return session.metrics.shared_hits, len(store.log) - before


async def test_what_one_host_fetched_another_does_not(store: ObjectServer, options: asyncpq.SharedCacheOptions) -> None:
    hits, requests = await read(store, options)
    assert hits == 0
    assert requests >= 2
    hits, requests = await read(store, options)
    assert hits > 5
    assert requests == 0


async def test_another_secret_shares_nothing(store: ObjectServer, options: asyncpq.SharedCacheOptions) -> None:
    _, requests = await read(store, options)
    assert await read(store, replace(options, secret=None)) == (0, requests)
    assert await read(store, replace(options, secret="another")) == (0, requests)


async def test_whatever_it_holds_the_rows_are_right(
    store: ObjectServer, valkey: ValkeyServer, options: asyncpq.SharedCacheOptions
) -> None:
    choose = random.Random(4)
    for _ in range(20):
        await read(store, options)
        stored = valkey.stored()
        values = list(stored.values())
        for key, value in stored.items():
            how = choose.randrange(5)
            if how == 0:
                value = choose.choice(values)
            elif how == 1:
                value = value[: choose.randrange(1, len(value))]
            elif how == 2:
                place = choose.randrange(len(value))
                value = value[:place] + bytes([value[place] ^ (1 << choose.randrange(8))]) + value[place + 1 :]
            elif how == 3:
                valkey.admin.delete(key)
                continue
            valkey.admin.set(key, value)


async def test_a_server_that_answers_nothing_costs_time_and_no_rows(
    store: ObjectServer, valkey: ValkeyServer, options: asyncpq.SharedCacheOptions
) -> None:
    await read(store, options)
    valkey.pause()
    try:
        hits, requests = await read(store, replace(options, timeout_s=0.05))
    finally:
        valkey.resume()
    assert hits == 0
    assert requests >= 2
