"""The contract of a store (:class:`asyncpq.storage.base.Store`), as checks for any test runner.

Give each check your store as a new :class:`StoreStorage` whose object "key" holds :data:`DATA`.
:func:`filesystem_storage` makes one from a filesystem of fsspec::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
    async def test_filesystem(check):
        async with filesystem_storage("my-protocol://folder/", {}) as storage:
            await check(storage)

A failed check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from asyncpq import errors
from asyncpq.metrics import RequestRecord
from asyncpq.options import LimitOptions, RetryOptions
from asyncpq.storage import open_store
from asyncpq.storage.base import RequestContext, Store, StoreLimits
from asyncpq.storage.urls import split_url
from asyncpq.testing.assertions import checks_of, equal, raised, request_context

DATA = random.Random(7).randbytes(200_000)
#: Wait before an object is replaced: file systems have coarse clocks.
_CLOCK_GRAIN_S = 0.02


class StoreStorage(Protocol):
    """A store, and a way to change its objects without the store's knowledge."""

    @property
    def store(self) -> Store:
        """The store to check, open."""

    def url(self, key: str) -> str:
        """Return the url of the object ``key``, which is a plain name."""

    async def put(self, key: str, data: bytes) -> None:
        """Create or replace an object atomically."""

    async def delete(self, key: str) -> None:
        """Delete an existing object."""


@contextlib.asynccontextmanager
async def filesystem_storage(prefix: str, storage_options: Mapping[str, Any]) -> AsyncIterator[StoreStorage]:
    """Open a filesystem of fsspec as a session reads it; objects are changed through fsspec. ``DATA`` is at "key".

    ``prefix``: url of a writable folder, with a trailing slash. ``storage_options``: options of the filesystem.
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
        await asyncio.to_thread(self._filesystem.pipe, self.url(key), data)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._filesystem.rm, self.url(key))


# -- the checks -----------------------------------------------------------------------------------


async def check_tail(storage: StoreStorage) -> None:
    """Check that one request returns a tail (the last bytes, or all of a shorter object) and the object's size."""
    stored = await storage.store.open_object(storage.url("key"))
    for length in (1, 8, 1000, len(DATA) - 1, len(DATA), len(DATA) + 1, 10**9):
        context = request_context()
        result = await stored.fetch_tail(length, context=context)
        equal(result.data, DATA[-length:], "the object's last bytes")
        equal(result.start, max(0, len(DATA) - length), "the start of the tail")
        equal(result.validator.size, len(DATA), "the object's size")
        equal(_gets(context), 1, "requests for a tail")
        equal(context.metrics.bytes_fetched, len(result.data), "the bytes in the metrics")


async def check_ranges(storage: StoreStorage) -> None:
    """Check that a range returns exactly its bytes, from the pinned version."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=request_context())).validator
    numbers = random.Random(11)
    spans = [(0, 1), (len(DATA) - 1, len(DATA)), (0, len(DATA)), (1, len(DATA) - 1)]
    spans += [(start, numbers.randrange(start + 1, len(DATA) + 1)) for start in numbers.sample(range(len(DATA)), 20)]
    for start, stop in spans:
        for pinned in (None, pin):
            result = await stored.fetch_range(start, stop, context=request_context(), pin=pinned)
            equal(result.data, DATA[start:stop], "the bytes of the range")
            equal((result.start, result.stop), (start, stop), "the range that was given")
            assert result.validator.same_version(pin), "another version than the pinned one"


async def check_many_at_once(storage: StoreStorage) -> None:
    """Check that a hundred concurrent ranges, half of them for a scan, all return their bytes."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=request_context())).validator
    context = request_context()

    async def fetch(index: int) -> bool:
        start = index * 1000
        read = context if index % 2 else request_context(scan=True)
        return (await stored.fetch_range(start, start + 1000, context=read, pin=pin)).data == DATA[start : start + 1000]

    assert all(await asyncio.gather(*(fetch(index) for index in range(100)))), "a concurrent read returned wrong bytes"
    equal(_gets(context) - context.metrics.retries, 50, "requests for 50 ranges")


async def check_requests_are_recorded(storage: StoreStorage) -> None:
    """Check that a read's metrics have a record of each request, with its purpose and result."""
    stored = await storage.store.open_object(storage.url("key"))
    context = request_context().step("index", 3)
    await stored.fetch_range(10, 30, context=context)
    (record,) = (record for record in context.metrics.log if _is_get(record))
    equal((record.purpose, record.attempt), ("index", 1), "purpose and attempt of the request")
    assert record.round >= 3, "the round is not the context's"
    others = [other for other in context.metrics.log if other is not record and not _redirects(other)]
    assert all(other.purpose == "stat" for other in others), "more requests than the one for the bytes"
    equal(context.metrics.requests, len(context.metrics.log), "requests in the log")
    equal((record.start, record.stop, record.bytes), (10, 30, 20), "range and bytes in the log")
    assert record.status in (200, 206), "the status is not that of a success"
    assert record.seconds >= 0, "the time is negative"


async def check_nothing_there(storage: StoreStorage) -> None:
    """Check that a missing object raises an error with its url."""
    error = await raised(errors.ObjectNotFoundError, _open_and_fetch(storage, "missing"))
    assert error.url is not None, "the error names no url"
    assert error.url.endswith("missing"), "the error names another url"


async def check_empty_object(storage: StoreStorage) -> None:
    """Check that an empty object raises NotParquetError."""
    await storage.put("empty", b"")
    error = await raised(errors.NotParquetError, _open_and_fetch(storage, "empty"))
    assert "empty" in str(error), "the error does not say that the object is empty"


async def check_range_past_the_end(storage: StoreStorage) -> None:
    """Check that a range past the end raises an error, and does not return fewer bytes."""
    stored = await storage.store.open_object(storage.url("key"))
    size = len(DATA)
    for start, stop in ((size - 10, size + 1), (size, size + 1), (size + 5, size + 9)):
        await raised(errors.InvalidResponseError, stored.fetch_range(start, stop, context=request_context()))


async def check_another_version(storage: StoreStorage) -> None:
    """Check that a replaced object is noticed, whatever its length, and that its new version can be read."""
    stored = await storage.store.open_object(storage.url("key"))
    for length in (len(DATA), len(DATA) + 1, 10):
        first = await stored.fetch_tail(8, context=request_context())
        await asyncio.sleep(_CLOCK_GRAIN_S)
        fill = bytes([first.data[-1] ^ 1])
        await storage.put("key", fill * length)
        await raised(
            errors.ObjectChangedError, stored.fetch_range(0, 8, context=request_context(), pin=first.validator)
        )
        second = await stored.fetch_tail(8, context=request_context())
        equal(second.data, fill * 8, "the bytes of the new version")
        assert not second.validator.same_version(first.validator), "the new version has the old one's validator"
        equal(
            (await stored.fetch_range(0, 8, context=request_context(), pin=second.validator)).data,
            fill * 8,
            "the bytes of the pinned new version",
        )


async def check_deleted_between_reads(storage: StoreStorage) -> None:
    """Check that a read of an object that was deleted meanwhile reports a changed object."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=request_context())).validator
    await storage.delete("key")
    await raised(errors.ObjectChangedError, stored.fetch_range(0, 8, context=request_context(), pin=pin))


async def check_identities(storage: StoreStorage) -> None:
    """Check that equal urls have equal cache identities and different urls different ones, and that the credentials
    have the same identity for each url."""
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
    """Check that a store can be closed twice, and that a closed store opens no object."""
    stored = await storage.store.open_object(storage.url("key"))
    await stored.fetch_tail(8, context=request_context())
    await stored.close()
    await storage.store.close()
    await storage.store.close()
    await raised(errors.UsageError, storage.store.open_object(storage.url("key")))


async def check_cancellation(storage: StoreStorage) -> None:
    """Check that a cancelled fetch ends, and that the store stays usable."""
    stored = await storage.store.open_object(storage.url("key"))
    pin = (await stored.fetch_tail(8, context=request_context())).validator
    for delay in (0.0, 0.0005, 0.001, 0.002):
        fetches = [stored.fetch_range(0, 100_000, context=request_context(), pin=pin) for _ in range(12)]
        tasks = [asyncio.ensure_future(fetch) for fetch in fetches]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            isinstance(out, asyncio.CancelledError) or getattr(out, "data", b"") == DATA[:100_000] for out in outcomes
        ), "a cancelled fetch was neither cancelled nor finished"
    result = await stored.fetch_range(5, 50, context=request_context(), pin=pin)
    equal(result.data, DATA[5:50], "the bytes after cancelled fetches")


async def check_nothing_is_left(storage: StoreStorage) -> None:
    """Check that closing frees descriptors (counted on Linux only), tasks and asyncpq's threads."""

    def held() -> tuple[int, int, set[str]]:
        threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("asyncpq-")}
        folder = "/proc/self/fd"
        return len(os.listdir(folder)) if os.path.isdir(folder) else 0, len(asyncio.all_tasks()), threads

    await asyncio.to_thread(len, "")  # starts the loop's own threads, which stay
    before = held()
    stored = await storage.store.open_object(storage.url("key"))
    await asyncio.gather(*(stored.fetch_range(0, 100_000, context=request_context()) for _ in range(10)))
    await storage.store.close()
    for _ in range(500):  # servers in this process need time to close their side
        if held() == before:
            break
        await asyncio.sleep(0.01)
    equal(held(), before, "descriptors, tasks and threads after closing")


async def check_listing(storage: StoreStorage) -> None:
    """Check that a listing is complete, sorted, and has the versions that GETs return; or is refused with a hint."""
    names = ["listed-10", "listed-2", "listed-\N{LATIN SMALL LETTER E WITH ACUTE}", "listed-a b+c%20"]
    for name in names:
        await storage.put(name, name.encode())
    try:
        listing = await storage.store.list_objects(storage.url("listed-"), context=request_context())
    except errors.UnsupportedStoreError as error:
        equal(bool(error.hint), True, "a store without listings gives a hint")
        return
    urls = [storage.url(name) for name in sorted(names)]
    equal([listed.url for listed in listing], urls, "urls that are listed")
    for listed, name in zip(listing, sorted(names), strict=True):
        equal(listed.size, len(name.encode()), f"the listed size of {name!r}")
        stored = await storage.store.open_object(listed.url)
        result = await stored.fetch_tail(100, context=request_context())
        equal(result.data, name.encode(), f"the bytes of {name!r}")
        same = listed.validator is None or result.validator.same_version(listed.validator)
        equal(same, True, f"a GET of {name!r} gives the version {listed.validator} that is listed")
    await storage.delete("listed-2")
    context = request_context().step("list", 2)
    listing = await storage.store.list_objects(storage.url("listed-"), context=context)
    urls.remove(storage.url("listed-2"))
    equal([listed.url for listed in listing], urls, "urls that are listed once one is deleted")
    recorded = {(record.purpose, record.round) for record in context.metrics.log}
    equal(recorded, {("list", 2)}, "purpose and round of the requests")
    nothing = await storage.store.list_objects(storage.url("missing-"), context=request_context())
    equal(nothing, [], "the listing of a prefix without objects")


async def check_names_that_cannot_be(storage: StoreStorage) -> None:
    """Check that a url that no object can have raises one of asyncpq's errors."""
    for key in ("a/../b", "x" * 300, "a\nb", "nul\0"):
        await raised(errors.AsyncpqError, _open_and_fetch(storage, key))


STORE_CHECKS: tuple[Callable[[StoreStorage], Awaitable[None]], ...] = checks_of(globals())


async def _open_and_fetch(storage: StoreStorage, key: str) -> bytes:
    stored = await storage.store.open_object(storage.url(key))
    return bytes((await stored.fetch_tail(8, context=request_context())).data)


def _gets(context: RequestContext) -> int:
    """Return the number of requests for bytes, without redirects and a filesystem's requests for an object's info."""
    return sum(map(_is_get, context.metrics.log))


def _is_get(record: RequestRecord) -> bool:
    return record.method == "GET" and not _redirects(record)


def _redirects(record: RequestRecord) -> bool:
    return 300 <= record.status < 400
