"""``read_timeout_s`` ends each verb of a dataset as a whole, though each of its requests is answered in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.io

NUM_FILES = 40
TIMEOUT_S = 0.5
GUARD_S = 60  # far more than a verb takes that is ended, or one that is not
URL = "s3://lake/slow/"
KEYS = {"id": list(range(NUM_FILES))}
SLOW = Fault(latency_s=0.2, times=None)
Verb = Callable[[asyncpq.Dataset], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "count": lambda dataset: dataset.count(col("id") >= 0),
    "count pyarrow": lambda dataset: dataset.count(pc.field("id") >= 0),
    "plan": lambda dataset: dataset.plan(where=col("id") >= 0),
    "plan lookup": lambda dataset: dataset.plan(lookup=KEYS),
    "lookup": lambda dataset: dataset.lookup(KEYS),
    "take": lambda dataset: dataset.take([(f"{URL}{number}.parquet", 0) for number in range(NUM_FILES)]),
    "why lookup": lambda dataset: dataset.why(lookup=KEYS),
    "why count": lambda dataset: dataset.why(where=col("id") >= 0, count=True),
}


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as server:
        for number in range(NUM_FILES):
            server.put(f"lake/slow/{number}.parquet", parquet_bytes(pa.table({"id": [number]})))
        yield server


def hurried(server: ObjectServer) -> asyncpq.Session:
    return asyncpq.Session(
        server.storage_options,
        memory_cache_bytes=0,
        retry=asyncpq.RetryOptions(read_timeout_s=TIMEOUT_S),
        limits=asyncpq.LimitOptions(max_connections=3, lookup_connections=1),
    )


@pytest.mark.parametrize("verb", VERBS)
async def test_verbs(server: ObjectServer, verb: str) -> None:
    async with asyncio.timeout(GUARD_S), hurried(server) as session:
        dataset = await session.open_dataset(URL)
        server.faults = [SLOW]
        with pytest.raises(asyncpq.DeadlineExceededError, match="read_timeout_s"):
            await VERBS[verb](dataset)
        server.faults = []
        assert (await dataset.take([(f"{URL}7.parquet", 0)])).to_pylist() == [{"id": 7}]


async def test_open_dataset(server: ObjectServer) -> None:
    async with asyncio.timeout(GUARD_S), hurried(server) as session:
        server.faults = [SLOW]
        with pytest.raises(asyncpq.DeadlineExceededError, match="read_timeout_s"):
            await session.open_dataset(URL, schema_policy="permissive")


@pytest.mark.parametrize("form", ["pyarrow", "SQL"])
async def test_long_predicates_are_compiled_in_threads(
    server: ObjectServer, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: Any = " or ".join(f"id = {number}" for number in range(300))
    if form == "pyarrow":
        where = pc.field("id") == 0
        for number in range(1, 300):
            where = where | (pc.field("id") == number)
    async with asyncio.timeout(GUARD_S), asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(URL)
        threads: set[int] = set()
        bind = dataset._predicate

        def bound(where: Any) -> Any:
            threads.add(threading.get_ident())
            return bind(where)

        monkeypatch.setattr(dataset, "_predicate", bound)
        assert await dataset.count(where) == NUM_FILES
        assert len(await dataset.files(where)) == NUM_FILES
        await dataset.plan(where=where)
        scan = dataset.scan(where=where)
        for _ in range(2):  # each stream is a read of its own, by the same scan
            assert (await asyncio.to_thread(pa.table, scan)).num_rows == NUM_FILES
    assert threading.get_ident() not in threads
    assert threads
