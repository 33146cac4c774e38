"""What every store promises (asyncpq/storage/base.py), asked of every store."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncpq.errors import (
    AsyncpqError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    UsageError,
)
from asyncpq.storage.base import Guarantee, RequestContext
from asyncpq.testing import ObjectServer
from tests.store_backends import (
    Backend,
    LocalBackend,
    LocalStackBackend,
    MemoryBackend,
    ServerBackend,
    local_through_fsspec,
    new_context,
    open_test_store,
)

DATA = random.Random(7).randbytes(200_000)
KINDS = ["s3", "s3-unsigned", "s3-through-s3fs", "s3-localstack", "http", "local", "memory", "local-through-fsspec"]
PINNING = {"s3", "s3-unsigned", "s3-through-s3fs", "s3-localstack", "http", "local"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with ObjectServer() as server:
        made: Backend
        if kind == "s3":
            made = ServerBackend(server, "s3", server.storage_options)
        elif kind == "s3-unsigned":
            made = ServerBackend(server, "s3", {"anon": True, "endpoint_url": server.endpoint})
        elif kind == "s3-through-s3fs":
            made = ServerBackend(server, "s3", {**server.storage_options, "requester_pays": True})
        elif kind == "s3-localstack":
            endpoint = request.getfixturevalue("localstack")
            made = LocalStackBackend(endpoint, f"contract-{os.urandom(8).hex()}")
        elif kind == "http":
            made = ServerBackend(server, "http", {})
        elif kind == "local":
            made = LocalBackend(tmp_path, open_test_store("file", {}))
        elif kind == "memory":
            made = MemoryBackend()
        else:
            made = local_through_fsspec(tmp_path)
        await made.put("key", DATA)
        yield made
        await made.store.close()


async def open_and_fetch(backend: Backend, key: str) -> bytes:
    stored = await backend.store.open_object(backend.url(key))
    return (await stored.fetch_tail(8, context=new_context())).data


def calls(context: RequestContext) -> int:
    """Requests for bytes: filesystems are asked for an object's info besides."""
    return sum(record.method == "GET" for record in context.metrics.log)


async def test_tail(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    for length in (1, 8, 1000, len(DATA) - 1, len(DATA), len(DATA) + 1, 10**9):
        context = new_context()
        result = await stored.fetch_tail(length, context=context)
        assert result.data == DATA[-length:]
        assert result.start == max(0, len(DATA) - length)
        assert result.validator.size == len(DATA)
        assert calls(context) == 1
        assert context.metrics.bytes_fetched == len(result.data)


async def test_ranges(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    numbers = random.Random(11)
    spans = [(0, 1), (len(DATA) - 1, len(DATA)), (0, len(DATA)), (1, len(DATA) - 1)]
    spans += [(start, numbers.randrange(start + 1, len(DATA) + 1)) for start in numbers.sample(range(len(DATA)), 20)]
    for start, stop in spans:
        for asked in (None, pin):
            result = await stored.fetch_range(start, stop, context=new_context(), pin=asked)
            assert result.data == DATA[start:stop]
            assert (result.start, result.stop) == (start, stop)
            assert result.validator.same_version(pin)


async def test_many_at_once(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    context = new_context(30)

    async def fetch(index: int) -> bool:
        start = index * 1000
        read = context if index % 2 else new_context(30, scan=True)
        return (await stored.fetch_range(start, start + 1000, context=read, pin=pin)).data == DATA[start : start + 1000]

    assert all(await asyncio.gather(*(fetch(index) for index in range(100))))
    assert calls(context) - context.metrics.retries == 50


async def test_requests_are_recorded(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    context = new_context().step("index", 3)
    await stored.fetch_range(10, 30, context=context)
    (record,) = (record for record in context.metrics.log if record.method == "GET")
    stats = [record for record in context.metrics.log if record.method == "HEAD"]
    through_fsspec = stored.client == "fsspec"
    assert (record.method, record.purpose, record.round, record.attempt) == ("GET", "index", 3 + through_fsspec, 1)
    assert [(stat.purpose, stat.round, stat.status) for stat in stats] == [("stat", 3, 200), ("stat", 5, 200)][
        : 2 * through_fsspec
    ]
    assert context.metrics.requests == 1 + len(stats)
    assert (record.start, record.stop, record.bytes) == (10, 30, 20)
    assert record.status in (200, 206)
    assert record.seconds >= 0


async def test_nothing_there(backend: Backend) -> None:
    with pytest.raises(ObjectNotFoundError) as caught:
        await open_and_fetch(backend, "missing")
    assert caught.value.url is not None
    assert caught.value.url.endswith("missing")


async def test_empty_object(backend: Backend) -> None:
    await backend.put("empty", b"")
    stored = await backend.store.open_object(backend.url("empty"))
    with pytest.raises(NotParquetError, match="empty"):
        await stored.fetch_tail(8, context=new_context())


async def test_range_past_the_end(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    size = len(DATA)
    for start, stop in ((size - 10, size + 1), (size, size + 1), (size + 5, size + 9)):
        with pytest.raises(InvalidResponseError):
            await stored.fetch_range(start, stop, context=new_context())


@pytest.mark.parametrize("length", [len(DATA), len(DATA) + 1, 10])
async def test_another_version_is_noticed(backend: Backend, length: int) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    first = await stored.fetch_tail(8, context=new_context())
    await asyncio.sleep(0.01)  # file systems have coarse clocks
    await backend.put("key", b"x" * length)
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 8, context=new_context(), pin=first.validator)
    second = await stored.fetch_tail(8, context=new_context())
    assert second.data == b"x" * 8
    assert not second.validator.same_version(first.validator)
    assert (await stored.fetch_range(0, 8, context=new_context(), pin=second.validator)).data == b"x" * 8


async def test_deleted_between_reads(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    await backend.delete("key")
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 8, context=new_context(), pin=pin)


async def test_guarantee_and_identity(backend: Backend, kind: str) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    await stored.fetch_tail(8, context=new_context())
    assert stored.guarantee is (Guarantee.PINNED if kind in PINNING else Guarantee.BRACKETED)
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    stored.learn(pin)
    assert stored.guarantee is (Guarantee.PINNED if kind in PINNING else Guarantee.BRACKETED)
    again = await backend.store.open_object(backend.url("key"))
    await backend.put("other", DATA)
    other = await backend.store.open_object(backend.url("other"))
    assert stored.identity == again.identity != other.identity
    assert stored.client == {"s3-through-s3fs": "s3fs", "local": "file"}.get(
        kind, "fsspec" if kind not in PINNING else "aiohttp" if kind == "http" else "direct"
    )
    assert "secret" not in repr(stored) + repr(backend.store)


async def test_credential_identity(backend: Backend, kind: str) -> None:
    identity = await backend.store.credential_identity(backend.url("key"))
    assert identity == await backend.store.credential_identity(backend.url("other"))
    if kind == "s3-unsigned":
        assert identity == "anonymous"
    elif kind.startswith("s3"):
        assert re.fullmatch("[0-9a-f]{16}", identity)
    else:
        assert identity == ""


async def test_closed_store(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    await stored.fetch_tail(8, context=new_context())
    await stored.close()
    await backend.store.close()
    await backend.store.close()
    with pytest.raises(UsageError):
        await backend.store.open_object(backend.url("key"))


async def test_cancelled_reads_leave_the_store_usable(backend: Backend) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    for delay in (0.0, 0.0005, 0.001, 0.002):
        tasks = [asyncio.create_task(stored.fetch_range(0, 100_000, context=new_context(), pin=pin)) for _ in range(12)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            isinstance(out, asyncio.CancelledError) or getattr(out, "data", b"") == DATA[:100_000] for out in outcomes
        )
    result = await stored.fetch_range(5, 50, context=new_context(), pin=pin)
    assert result.data == DATA[5:50]


async def test_nothing_is_left_after_closing(backend: Backend) -> None:
    def resources() -> tuple[int, int, set[str]]:
        threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("asyncpq-")}
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), threads

    if isinstance(backend, ServerBackend | LocalStackBackend):  # the loop's own threads are made with the first name
        await asyncio.to_thread(len, "")
    before = resources()
    stored = await backend.store.open_object(backend.url("key"))
    await asyncio.gather(*(stored.fetch_range(0, 100_000, context=new_context()) for _ in range(10)))
    await backend.store.close()
    await asyncio.sleep(0.05)  # the server closes its ends of the connections
    assert resources() == before


async def test_errors_are_asyncpqs_own(backend: Backend) -> None:
    for key in ("a/../b", "x" * 300, "a\nb", "nul\0"):
        with pytest.raises(AsyncpqError):
            await open_and_fetch(backend, key)
