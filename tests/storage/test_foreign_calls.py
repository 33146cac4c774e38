"""Calls of fsspec's filesystems that swallow their cancellation, as adlfs does while its host is silent."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

import asyncpq
from asyncpq.errors import DeadlineExceededError, TransportError, UsageError
from asyncpq.storage import fsspec as fsspec_store
from asyncpq.storage.base import Store
from asyncpq.storage.foreign_calls import LEAVE_S, ForeignCalls
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

#: A call may take 0.3 s.
SHORT = replace(
    FAST_RETRIES, connect_timeout_s=0.1, first_byte_timeout_s=0.1, stall_timeout_s=0.1, min_throughput_bytes_s=1e6
)
LIMIT_S = 0.3
SOON_S = 15.0  # the machine may have other work


def file() -> bytes:
    return parquet_bytes(pa.table({"id": range(100)}))


class Silent(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """A folder of one file, whose host does not answer to the methods in ``silent``, but for those in ``answered``
    later calls. It swallows cancellations while it waits, until ``released`` is set."""

    protocol = "silent"
    cachable = False
    silent: frozenset[str] = frozenset()
    stubborn = True
    released = asyncio.Event()
    late: Exception | None = None  # what the call then raises
    data = file()

    async def _wait(self, name: str) -> None:
        while name in self.silent and not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
            else:
                if self.late is not None:
                    raise self.late

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        await self._wait("info")
        if not path.endswith(".parquet"):
            return {"name": path, "size": 0, "type": "directory"}
        return {"name": path, "size": len(self.data), "type": "file", "etag": "1"}

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        await self._wait("ls")
        return [await self._info(f"{path.rstrip('/')}/a.parquet")]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        await self._wait("cat_file")
        return self.data[start:end]


class SilentFlat(Silent):
    """The same with a listing of all files below a folder, as stores of objects have it."""

    protocol = "silentflat"

    async def _find(self, path: str, **options: Any) -> dict[str, dict[str, Any]]:
        await self._wait("find")
        info = await self._info(f"{path.rstrip('/')}/a.parquet")
        return {info["name"]: info}


class SilentThreads(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """A blocking filesystem that does not answer."""

    protocol = "silentthreads"
    cachable = False

    released = threading.Event()

    def find(self, path: str, **options: Any) -> Any:
        self.released.wait(10 * SOON_S)

    info = cat_file = find


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Silent, SilentFlat, SilentThreads):
        monkeypatch.setitem(_registry, kind.protocol, kind)
    monkeypatch.setattr(Silent, "released", asyncio.Event())
    monkeypatch.setattr(SilentThreads, "released", threading.Event())
    for name in ("silent", "stubborn", "late"):
        monkeypatch.setattr(Silent, name, getattr(Silent, name))
    monkeypatch.setattr(fsspec_store, "CLOSE_S", 0.2)


ALL = frozenset({"info", "ls", "find", "cat_file"})


@asynccontextmanager
async def closed_after(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        Silent.released.set()
        await store.close()


def took(began: float, least_s: float = 0.0) -> bool:
    return least_s <= time.monotonic() - began < least_s + SOON_S


@pytest.mark.parametrize("stubborn", [True, False])
@pytest.mark.parametrize("protocol", ["silent", "silentflat"])
async def test_a_listing_whose_store_does_not_answer_ends(protocol: str, stubborn: bool) -> None:
    Silent.silent, Silent.stubborn = ALL, stubborn
    async with closed_after(open_test_store(protocol, {}, SHORT)) as store:
        began = time.monotonic()
        with pytest.raises(TransportError, match="does not answer"):
            await store.list_objects(f"{protocol}://bucket/lake/", context=new_context())
        assert took(began, 2 * LIMIT_S)


async def test_a_long_listing_of_a_store_that_answers_goes_on() -> None:
    Silent.silent = frozenset({"find"})
    async with closed_after(open_test_store("silentflat", {}, SHORT)) as store:
        listing = asyncio.create_task(store.list_objects("silentflat://bucket/lake/", context=new_context()))
        await asyncio.sleep(4 * LIMIT_S)
        assert not listing.done()
        Silent.released.set()
        assert [listed.url for listed in await listing] == ["silentflat://bucket/lake/a.parquet"]


async def test_one_answer_of_a_listing_that_is_lost_is_asked_for_again() -> None:
    Silent.silent, Silent.stubborn = frozenset({"ls"}), False
    async with closed_after(open_test_store("silent", {}, SHORT)) as store:
        context = new_context()
        with pytest.raises(TransportError, match="given up after 4 attempts"):
            await store.list_objects("silent://bucket/lake/", context=context)
        assert len(context.metrics.log) == SHORT.max_attempts


async def open_dataset(session: asyncpq.Session, protocol: str) -> Any:
    return await session.open_dataset(f"{protocol}://bucket/lake/")


async def open_file(session: asyncpq.Session, protocol: str) -> Any:
    return await session.open_file(f"{protocol}://bucket/lake/a.parquet")


async def read(session: asyncpq.Session, protocol: str) -> Any:
    """Read a file that has fallen silent."""
    Silent.silent = frozenset()
    opened = await session.open_file(f"{protocol}://bucket/lake/a.parquet")
    Silent.silent = ALL
    session.memory_cache.clear()
    return await opened.read()


async def scan(session: asyncpq.Session, protocol: str) -> Any:
    """Scan a folder whose host falls silent after the listing."""
    Silent.silent = frozenset({"cat_file"})
    dataset = await session.open_dataset(f"{protocol}://bucket/lake/")
    return await dataset.read()


CALLS = [
    *((call, protocol) for call in (open_dataset, open_file, read, scan) for protocol in ("silent", "silentflat")),
    (open_dataset, "silentthreads"),
    (open_file, "silentthreads"),
]


@pytest.mark.parametrize(("call", "protocol"), CALLS)
@pytest.mark.parametrize("way", ["timeout", "deadline", "close"])
async def test_any_call_ends_in_time(
    way: str, call: Callable[[asyncpq.Session, str], Coroutine[Any, Any, Any]], protocol: str
) -> None:
    Silent.silent = ALL
    retry = asyncpq.RetryOptions(read_timeout_s=0.4 if way == "deadline" else 60.0)
    session, closing = await asyncpq.Session(retry=retry), asyncio.Event()

    async def close() -> None:
        await closing.wait()
        await session.close()

    closed = asyncio.create_task(close())
    began = time.monotonic()
    task = asyncio.create_task(call(session, protocol))
    if way == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await task
    elif way == "deadline":
        with pytest.raises(DeadlineExceededError):
            await task
    else:
        await asyncio.sleep(0.4)
        closing.set()
        with pytest.raises(UsageError, match="closed"):
            await task
    assert took(began, 0.4)
    SilentThreads.released.set()
    closing.set()
    await closed


async def test_a_call_that_does_not_end_is_left(caplog: pytest.LogCaptureFixture) -> None:
    Silent.silent, Silent.late = frozenset({"ls"}), ValueError("too late")
    with caplog.at_level(logging.DEBUG, "asyncio"):
        store = open_test_store("silent", {}, SHORT)
        before = asyncio.all_tasks()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await store.list_objects("silent://bucket/lake/", context=new_context())
        assert took(began, 0.1 + LEAVE_S)
        assert asyncio.all_tasks() == before  # asyncio.run would wait for it
        Silent.released.set()
        await store.close()
        await store.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_call_that_never_ends_holds_no_end_of_its_store_or_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def endless() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass

    async def main() -> None:
        calls = ForeignCalls()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await calls.run(endless())
        waiter = asyncio.create_task(calls.run(endless()))
        await asyncio.sleep(0)
        await calls.close()
        with pytest.raises(UsageError, match="closed"):
            await waiter
        with pytest.raises(UsageError, match="closed"):
            await calls.run(endless())

    began = time.monotonic()
    await asyncio.to_thread(asyncio.run, main())
    assert took(began)
    assert caplog.records == []


class Endless:
    """A call that swallows its cancellations, and counts them."""

    swallowed = 0
    closed = False

    async def run(self) -> None:
        try:
            while True:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    self.swallowed += 1
        finally:
            self.closed = True


async def test_a_call_that_was_left_does_nothing_more() -> None:
    calls, call = ForeignCalls(), Endless()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await calls.run(call.run())
    assert call.closed
    assert call.swallowed == 1
    await calls.close()


async def test_the_end_of_an_event_loop_ends_calls_that_swallow_it(caplog: pytest.LogCaptureFixture) -> None:
    endless = [Endless() for _ in range(3)]

    async def main() -> None:
        calls = ForeignCalls()
        waiters = [asyncio.create_task(calls.run(call.run())) for call in endless]
        await asyncio.sleep(0.05)
        assert not any(waiter.done() for waiter in waiters)

    began = time.monotonic()
    await asyncio.to_thread(asyncio.run, main())
    assert took(began)
    assert all(call.closed for call in endless)
    assert caplog.records == []


async def test_a_call_whose_client_cleans_up_slowly_is_left_in_the_middle() -> None:
    async def slow() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1000)  # such as a session that is closed

    calls = ForeignCalls()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await calls.run(slow())
    await calls.close()


async def test_a_client_that_waits_for_tasks_of_its_own_holds_no_one() -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass

    async def both() -> None:
        await asyncio.gather(stubborn(), stubborn())

    calls, began = ForeignCalls(), time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await calls.run(both())
    await calls.close()
    assert took(began)
    released.set()
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_cancels_its_own_call_has_failed() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    calls = ForeignCalls()
    with pytest.raises(ConnectionAbortedError):
        await calls.run(cancelled())
    await calls.close()
