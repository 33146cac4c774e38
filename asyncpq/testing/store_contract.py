"""What every store must do (asyncpq.storage.base.Store), as checks that any test runner can run.

Give them your store as a :class:`StoreStorage`, each check one whose "key" holds :data:`DATA`; a filesystem of
fsspec comes as one by :func:`filesystem_storage`::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
    async def test_filesystem(check):
        async with filesystem_storage("my-protocol://folder/", {}) as storage:
            await check(storage)

A check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from asyncpq.errors import (
    AsyncpqError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.options import LimitOptions, RetryOptions
from asyncpq.storage import open_store
from asyncpq.storage.base import RequestContext, Store, StoreLimits
from asyncpq.storage.urls import split_url
from asyncpq.testing.catalog_contract import equal

DATA = random.Random(7).randbytes(200_000)
#: File systems have coarse clocks: so long is waited before an object is replaced.
_CLOCK_S = 0.02


class StoreStorage(Protocol):
    """A store, and a way to change what it holds."""

    @property
    def store(self) -> Store:
        """Not yet closed."""

    def url(self, key: str) -> str:
        """Of the object ``key``, a plain name."""

    async def put(self, key: str, data: bytes) -> None:
        """Make or replace an object, at once as a whole."""

    async def delete(self, key: str) -> None:
        """Delete an object that is there."""


@contextlib.asynccontextmanager
async def filesystem_storage(prefix: str, storage_options: Mapping[str, Any]) -> AsyncIterator[StoreStorage]:
    """An fsspec filesystem as a session reads it, and writes through fsspec itself; ``DATA`` is at "key".

    Args:
        prefix: url of a folder that may be written to, with a slash at its end.
        storage_options: of the filesystem.
    """
    import fsspec

    protocol, _ = split_url(prefix)
    limits = LimitOptions()
    store = open_store(
        protocol,
        storage_options,
        retry=RetryOptions(),
        limits=StoreLimits(limits.max_connections, limits.max_connections - limits.lookup_connections),
    )
    storage = _FilesystemStorage(store, prefix, fsspec.filesystem(protocol, **storage_options))
    try:
        await storage.put("key", DATA)
        yield storage
    finally:
        await store.close()


class _FilesystemStorage:
    def __init__(self, store: Store, prefix: str, filesystem: Any) -> None:
        self.store = store
        self._prefix = prefix
        self._filesystem = filesystem

    def url(self, key: str) -> str:
        return self._prefix + key

    async def put(self, key: str, data: bytes) -> None:
        path = self._filesystem._strip_protocol(self.url(key))
        await asyncio.to_thread(self._filesystem.pipe_file, path, data)

    async def delete(self, key: str) -> None:
        path = self._filesystem._strip_protocol(self.url(key))
        await asyncio.to_thread(self._filesystem.rm_file, path)


# -- the checks -----------------------------------------------------------------------------------


async def check_tail(storage: StoreStorage) -> None:
    """The last bytes, all of a shorter object, and the object's size, in one request."""
    stored = await storage.store.open_object(storage.url("key"))
    for length in (1, 8, 1000, len(DATA) - 1, len(DATA), len(DATA) + 1, 10**9):
        context = _context()
        result = await stored.fetch_tail(length, context=context)
        equal(result.data, DATA[-length:], "the object's last bytes")
        equal(result.start, max(0, len(DATA) - length), "where they begin")
        equal(result.validator.size, len(DATA), "the object's size")
        equal(_gets(context), 1, "requests for a tail")
        equal(context.metrics.bytes_fetched, len(result.data), "the bytes that were counted")


async def check_ranges(storage: StoreStorage) -> None:
    """Exactly the bytes asked for, of the version asked for."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=_context())).validator
    numbers = random.Random(11)
    spans = [(0, 1), (len(DATA) - 1, len(DATA)), (0, len(DATA)), (1, len(DATA) - 1)]
    spans += [(start, numbers.randrange(start + 1, len(DATA) + 1)) for start in numbers.sample(range(len(DATA)), 20)]
    for start, stop in spans:
        for asked in (None, pin):
            result = await stored.fetch_range(start, stop, context=_context(), pin=asked)
            equal(result.data, DATA[start:stop], "the bytes of the range")
            equal((result.start, result.stop), (start, stop), "the range that was given")
            assert result.validator.same_version(pin), "another version than the pinned one"


async def check_many_at_once(storage: StoreStorage) -> None:
    """A hundred ranges at once, half of them a scan's."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=_context())).validator
    context = _context()

    async def fetch(index: int) -> bool:
        start = index * 1000
        read = context if index % 2 else _context(scan=True)
        return (await stored.fetch_range(start, start + 1000, context=read, pin=pin)).data == DATA[start : start + 1000]

    assert all(await asyncio.gather(*(fetch(index) for index in range(100)))), (
        "some of the concurrent reads have other bytes"
    )
    equal(_gets(context) - context.metrics.retries, 50, "requests for 50 ranges")


async def check_requests_are_recorded(storage: StoreStorage) -> None:
    """A read's metrics know of each request what it was for, and what came."""
    stored = await storage.store.open_object(storage.url("key"))
    context = _context().step("index", 3)
    await stored.fetch_range(10, 30, context=context)
    (record,) = (record for record in context.metrics.log if _is_get(record))
    equal((record.purpose, record.attempt), ("index", 1), "purpose and attempt of the request")
    assert record.round >= 3, "the round is not the context's"
    others = [other for other in context.metrics.log if other is not record and not _redirects(other)]
    assert all(other.purpose == "stat" for other in others), "more requests than the one for the bytes"
    equal(context.metrics.requests, len(context.metrics.log), "requests in the log")
    equal((record.start, record.stop, record.bytes), (10, 30, 20), "range and bytes in the log")
    assert record.status in (200, 206), "the status is none of a success"
    assert record.seconds >= 0, "the time is negative"


async def check_nothing_there(storage: StoreStorage) -> None:
    """No object: an error that names its url."""
    error = await _raised(ObjectNotFoundError, _open_and_fetch(storage, "missing"))
    assert error.url is not None, "the error names no url"
    assert error.url.endswith("missing"), "the error names another url"


async def check_empty_object(storage: StoreStorage) -> None:
    """An object without bytes is no Parquet file."""
    await storage.put("empty", b"")
    error = await _raised(NotParquetError, _open_and_fetch(storage, "empty"))
    assert "empty" in str(error), "the error does not say that the object is empty"


async def check_range_past_the_end(storage: StoreStorage) -> None:
    """A range that the object does not have is an error, not fewer bytes."""
    stored = await storage.store.open_object(storage.url("key"))
    size = len(DATA)
    for start, stop in ((size - 10, size + 1), (size, size + 1), (size + 5, size + 9)):
        await _raised(InvalidResponseError, stored.fetch_range(start, stop, context=_context()))


async def check_another_version(storage: StoreStorage) -> None:
    """A replaced object is noticed, whatever its length, and can be read."""
    stored = await storage.store.open_object(storage.url("key"))
    for length in (len(DATA), len(DATA) + 1, 10):
        first = await stored.fetch_tail(8, context=_context())
        await asyncio.sleep(_CLOCK_S)
        fill = bytes([first.data[-1] ^ 1])
        await storage.put("key", fill * length)
        await _raised(ObjectChangedError, stored.fetch_range(0, 8, context=_context(), pin=first.validator))
        second = await stored.fetch_tail(8, context=_context())
        equal(second.data, fill * 8, "the bytes of the new version")
        assert not second.validator.same_version(first.validator), "the new version has the old one's validator"
        equal(
            (await stored.fetch_range(0, 8, context=_context(), pin=second.validator)).data,
            fill * 8,
            "the bytes of the pinned new version",
        )


async def check_deleted_between_reads(storage: StoreStorage) -> None:
    """A deleted object is another version."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=_context())).validator
    await storage.delete("key")
    await _raised(ObjectChangedError, stored.fetch_range(0, 8, context=_context(), pin=pin))


async def check_identities(storage: StoreStorage) -> None:
    """The same url is the same object, another url another one; who reads is one."""
    stored = await storage.store.open_object(storage.url("key"))
    again = await storage.store.open_object(storage.url("key"))
    await storage.put("other", DATA)
    other = await storage.store.open_object(storage.url("other"))
    assert stored.identity == again.identity != other.identity, (
        "the same object has two identities, or two objects have one"
    )
    credentials = [await storage.store.credential_identity(storage.url(key)) for key in ("key", "other", "key")]
    equal(len(set(credentials)), 1, "identities of the same credentials")


async def check_closing(storage: StoreStorage) -> None:
    """Closing twice is as once; afterwards nothing can be opened."""
    stored = await storage.store.open_object(storage.url("key"))
    await stored.fetch_tail(8, context=_context())
    await stored.close()
    await storage.store.close()
    await storage.store.close()
    await _raised(UsageError, storage.store.open_object(storage.url("key")))


async def check_cancellation(storage: StoreStorage) -> None:
    """A cancelled fetch is one, or had its bytes already; the store stays usable."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=_context())).validator
    for delay in (0.0, 0.0005, 0.001, 0.002):
        fetches = [stored.fetch_range(0, 100_000, context=_context(), pin=pin) for _ in range(12)]
        tasks = [asyncio.ensure_future(fetch) for fetch in fetches]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            isinstance(out, asyncio.CancelledError) or getattr(out, "data", b"") == DATA[:100_000] for out in outcomes
        ), "a cancelled fetch ended otherwise"
    result = await stored.fetch_range(5, 50, context=_context(), pin=pin)
    equal(result.data, DATA[5:50], "the bytes after cancelled fetches")


async def check_nothing_is_left(storage: StoreStorage) -> None:
    """Closing takes descriptors, tasks and asyncpq's threads along. Descriptors are counted on Linux only."""

    def held() -> tuple[int, int, set[str]]:
        threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("asyncpq-")}
        folder = "/proc/self/fd"
        return len(os.listdir(folder)) if os.path.isdir(folder) else 0, len(asyncio.all_tasks()), threads

    await asyncio.to_thread(len, "")  # the loop's own threads stay
    before = held()
    stored = await storage.store.open_object(storage.url("key"))
    await asyncio.gather(*(stored.fetch_range(0, 100_000, context=_context()) for _ in range(10)))
    await storage.store.close()
    for _ in range(500):  # servers in this process close their ends
        if held() == before:
            break
        await asyncio.sleep(0.01)
    equal(held(), before, "what is held after closing")


async def check_listing(storage: StoreStorage) -> None:
    """What is there now, by name, of the versions that GETs give; or the store says that it has no listings."""
    names = ["listed-10", "listed-2", "listed-\N{LATIN SMALL LETTER E WITH ACUTE}", "listed-a b+c%20"]
    for name in names:
        await storage.put(name, name.encode())
    try:
        found = await storage.store.list_objects(storage.url("listed-"), context=_context())
    except UnsupportedStoreError as error:
        equal(bool(error.hint), True, "the store that has no listings says what to do")
        return
    urls = [storage.url(name) for name in sorted(names)]
    equal([listed.url for listed in found], urls, "urls that are listed")
    for listed, name in zip(found, sorted(names), strict=True):
        equal(listed.size, len(name.encode()), f"the listed size of {name!r}")
        stored = await storage.store.open_object(listed.url)
        result = await stored.fetch_tail(100, context=_context())
        equal(result.data, name.encode(), f"the bytes of {name!r}")
        same = listed.validator is None or result.validator.same_version(listed.validator)
        equal(same, True, f"a GET of {name!r} gives the version {listed.validator} that is listed")
    await storage.delete("listed-2")
    context = _context().step("list", 2)
    found = await storage.store.list_objects(storage.url("listed-"), context=context)
    urls.remove(storage.url("listed-2"))
    equal([listed.url for listed in found], urls, "urls that are listed once one is deleted")
    told = {(record.purpose, record.round) for record in context.metrics.log}
    equal(told, {("list", 2)}, "purpose and round of the requests")
    nothing = await storage.store.list_objects(storage.url("missing-"), context=_context())
    equal(nothing, [], "what is listed where nothing is")


async def check_names_that_cannot_be(storage: StoreStorage) -> None:
    """Whatever a url names, what comes is bytes or one of asyncpq's errors."""
    for key in ("a/../b", "x" * 300, "a\nb", "nul\0"):
        await _raised(AsyncpqError, _open_and_fetch(storage, key))


STORE_CHECKS: tuple[Callable[[StoreStorage], Awaitable[None]], ...] = (
    check_tail,
    check_ranges,
    check_many_at_once,
    check_requests_are_recorded,
    check_nothing_there,
    check_empty_object,
    check_range_past_the_end,
    check_another_version,
    check_deleted_between_reads,
    check_identities,
    check_closing,
    check_cancellation,
    check_nothing_is_left,
    check_listing,
    check_names_that_cannot_be,
)


async def _raised(kind: type[AsyncpqError], work: Awaitable[object]) -> AsyncpqError:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def _open_and_fetch(storage: StoreStorage, key: str) -> bytes:
    stored = await storage.store.open_object(storage.url(key))
    return (await stored.fetch_tail(8, context=_context())).data


def _context(*, scan: bool = False) -> RequestContext:
    """A read of its own, with half a minute."""
    return RequestContext(ReadMetrics(), asyncio.get_running_loop().time() + 30, scan)


def _gets(context: RequestContext) -> int:
    """Requests for bytes: filesystems are asked for an object's info besides, and urls may redirect."""
    return sum(map(_is_get, context.metrics.log))


def _is_get(record: RequestRecord) -> bool:
    return record.method == "GET" and not _redirects(record)


def _redirects(record: RequestRecord) -> bool:
    return 300 <= record.status < 400
