"""The contracts of a store (:class:`asyncpq.storage.base.Store`) and of one that writes
(:class:`asyncpq.storage.base.WritableStore`), as checks for any test runner.

Give each check your store as a new :class:`StoreStorage` whose object "key" holds :data:`DATA`.
:func:`filesystem_storage` makes one from a filesystem of fsspec::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
    async def test_filesystem(check):
        async with filesystem_storage("my-protocol://folder/", {}) as storage:
            await check(storage)

The checks of writes (``STORE_WRITE_CHECKS``) run on the same storage; a store that cannot write passes if it says so. A
failed check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from asyncpq import errors
from asyncpq.metrics import RequestRecord
from asyncpq.options import LimitOptions, RetryOptions
from asyncpq.storage import open_store
from asyncpq.storage.base import RequestContext, Store, StoreLimits, WritableStore, writable
from asyncpq.storage.urls import split_url
from asyncpq.testing.assertions import checks_of, equal, raised, request_context

DATA = random.Random(7).randbytes(200_000)
#: Wait before an object is replaced: file systems have coarse clocks.
_CLOCK_GRAIN_S = 0.02


class StoreStorage(Protocol):
    """A store to check, and a way to change its objects without the store's knowledge. Implement it for the checks in
    ``STORE_CHECKS``."""

    @property
    def store(self) -> Store:
        """The store to check (:class:`asyncpq.storage.base.Store`), open for reads."""

    def url(self, key: str) -> str:
        """Return the url at which the store has the object ``key``, a plain name such as "key"."""

    async def put(self, key: str, data: bytes) -> None:
        """Create or replace an object atomically."""

    async def delete(self, key: str) -> None:
        """Delete an existing object."""


@contextlib.asynccontextmanager
async def filesystem_storage(prefix: str, storage_options: Mapping[str, Any]) -> AsyncIterator[StoreStorage]:
    """Return an async context manager of the :class:`StoreStorage` of an fsspec filesystem, with ``DATA`` at "key", for
    ``STORE_CHECKS``.

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


_LARGE_BYTES = 16 * 1024 * 1024 + 1  # S3 takes them in several requests
_MAX_CLOCK_SKEW_S = 300.0  # between the store's clock and this computer's
Check = Callable[[StoreStorage], Awaitable[None]]


def _writing(check: Callable[[StoreStorage, WritableStore], Awaitable[None]]) -> Check:
    """Make a check that runs ``check`` on a store that can write, and that any other store refuses to write, with a
    hint."""

    @functools.wraps(check)
    async def checked(storage: StoreStorage) -> None:
        try:
            store = writable(storage.store, storage.url(""))
        except errors.UnsupportedStoreError as error:
            equal(bool(error.hint), True, "a store that cannot write gives a hint")
        else:
            await check(storage, store)

    return checked


def _creating(check: Callable[[StoreStorage, WritableStore], Awaitable[None]]) -> Check:
    """Make a check that runs ``check`` on a store that can refuse to create an existing object; any other store must
    raise an error with a hint."""

    async def checked(storage: StoreStorage, store: WritableStore) -> None:
        if await store.probe_create(storage.url("created/"), context=request_context()):
            await check(storage, store)
            return
        try:
            await store.create_object(storage.url("created/0"), b"1", context=request_context())
        except errors.ConcurrentCommitUnsupported as error:
            equal(bool(error.hint), True, "a store that cannot create gives a hint")

    return _writing(functools.wraps(check)(checked))


@_writing
async def check_put(storage: StoreStorage, store: WritableStore) -> None:
    """Check that a put object can be read and replaces the previous one, also for objects that are open."""
    url = storage.url("written/a b+c%20")
    stored = None
    for data in (b"one", b"", b"three" * 50_000):
        await store.put_object(url, data, context=request_context())
        listed = await store.list_objects(url, context=request_context())
        equal([(each.url, each.size) for each in listed], [(url, len(data))], "the listing")
        if data:
            stored = await store.open_object(url)
            equal((await stored.fetch_tail(10**6, context=request_context())).data, data, "the bytes that are read")
    await store.put_object(url, b"four", context=request_context())
    assert stored is not None, "nothing was opened"
    tail = await stored.fetch_tail(10, context=request_context())
    equal(tail.data, b"four", "the bytes of an object opened before")


@_writing
async def check_put_after_missing(storage: StoreStorage, store: WritableStore) -> None:
    """Check that an object can be read after it was missing and then put."""
    url = storage.url("written-later")
    await raised(errors.ObjectNotFoundError, _read(store, url))
    await store.put_object(url, b"here", context=request_context())
    equal(await _read(store, url), b"here", "the bytes that are read")


@_creating
async def check_create(storage: StoreStorage, store: WritableStore) -> None:
    """Check that creating an object succeeds once and never replaces an object."""
    url = storage.url("created/1")
    outcomes = [await store.create_object(url, data, context=request_context()) for data in (b"one", b"two", b"one")]
    equal(outcomes, [True, False, False], "the results of create")
    equal(await _read(store, url), b"one", "the bytes that are read")
    await store.delete_objects([url], context=request_context())
    again = await store.create_object(url, b"two", context=request_context())
    equal(again, True, "the result of create_object after deleting")


@_creating
async def check_create_at_once(storage: StoreStorage, store: WritableStore) -> None:
    """Check that exactly one of many concurrent creations of one object succeeds."""
    for turn in range(5):
        url = storage.url(f"contended/{turn}")
        contents = [f"{turn} by {number}".encode() for number in range(12)]
        creations = [store.create_object(url, content, context=request_context()) for content in contents]
        outcomes = await asyncio.gather(*creations)
        equal(sum(outcomes), 1, "the number of creations that succeeded")
        equal(await _read(store, url), contents[outcomes.index(True)], "the bytes that are read")


@_writing
async def check_probe(storage: StoreStorage, store: WritableStore) -> None:
    """Check that ``probe_create``, which finds out whether the store refuses to create an existing object, leaves no
    object behind, and sends no request when it is called again."""
    folder = storage.url("probed/")
    answer = await store.probe_create(folder, context=request_context())
    context = request_context()
    equal(await store.probe_create(folder, context=context), answer, "the second answer")
    equal(context.metrics.requests, 0, "requests for the second answer")
    equal(await store.list_objects(folder, context=request_context()), [], "objects after the probe")


@_writing
async def check_put_file(storage: StoreStorage, store: WritableStore) -> None:
    """Check that ``put_file`` replaces the previous object with a file of any length."""
    url = storage.url("stored/file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "content")
        for length in (10, _LARGE_BYTES, 1000):
            data = random.Random(length).randbytes(length)
            await asyncio.to_thread(path.write_bytes, data)
            await store.put_file(url, path, context=request_context())
            assert await _read(store, url) == data, f"the stored file of {length} bytes has wrong bytes"
        await raised(errors.AsyncpqError, store.put_file(url, Path(folder, "missing"), context=request_context()))
    equal(len(await _read(store, url)), 1000, "the length after a file that was not there")


@_creating
async def check_create_stream(storage: StoreStorage, store: WritableStore) -> None:
    """Check that a streamed object appears when complete, replaces nothing, and leaves nothing on failure."""
    folder = storage.url("streamed/")
    for length in (0, 10, _LARGE_BYTES):
        url, data = f"{folder}{length}", random.Random(length).randbytes(length)
        seen: list[list[str]] = []

        async def pieces(data: bytes = data, url: str = url, seen: list[list[str]] = seen) -> AsyncIterator[bytes]:
            for start in range(0, len(data), 3_000_001):
                yield data[start : start + 3_000_001]
            seen.append([each.url for each in await store.list_objects(url, context=request_context())])

        created = await store.create_stream(url, pieces(), context=request_context())
        equal(created, True, "the result of create_stream")
        equal(seen, [[]], "listings from before the stream ended")
        if length:
            assert await _read(store, url) == data, f"the object of {length} bytes has wrong bytes"
            again = await store.create_stream(url, _pieces(b"x" * (length + 1)), context=request_context())
            equal(again, False, "the result of the second create_stream")
            assert await _read(store, url) == data, "an existing object was replaced"

    async def failing(length: int) -> AsyncIterator[bytes]:
        yield bytes(length)
        raise _PiecesError

    before = await store.list_objects(folder, context=request_context())
    for length in (10, _LARGE_BYTES):
        await raised(_PiecesError, store.create_stream(f"{folder}failed", failing(length), context=request_context()))
    equal(await store.list_objects(folder, context=request_context()), before, "objects after a stream that failed")


@_writing
async def check_readers_see_whole_objects(storage: StoreStorage, store: WritableStore) -> None:
    """Check that a reader sees the old or the new content of an object that is replaced, never a mixture."""
    url = storage.url("replaced")
    contents = [bytes([number]) * 300_000 for number in range(4)]
    await store.put_object(url, contents[0], context=request_context())

    async def write() -> None:
        for content in contents * 3:
            await store.put_object(url, content, context=request_context())

    writing = asyncio.ensure_future(write())
    while not writing.done():
        stored = await store.open_object(url)
        try:
            data = (await stored.fetch_tail(10**6, context=request_context())).data
        except errors.AsyncpqError:  # the store may notice the replacement instead
            data = contents[0]
        finally:
            await stored.close()
        assert data in contents, "a reader saw a part of an object, or a mixture"
        await asyncio.sleep(0)
    await writing


@_writing
async def check_delete(storage: StoreStorage, store: WritableStore) -> None:
    """Check that deleting removes objects, and that deleting a missing object raises nothing."""
    urls = [storage.url(f"deleted/{number}") for number in range(20)]
    for url in urls[::2]:
        await store.put_object(url, b"1", context=request_context())
    kept = storage.url("deleted/kept")
    await store.put_object(kept, b"1", context=request_context())
    await store.delete_objects(urls, context=request_context())
    await store.delete_objects([], context=request_context())
    listed = await store.list_objects(storage.url("deleted/"), context=request_context())
    equal([each.url for each in listed], [kept], "objects that are left")


@_writing
async def check_clock(storage: StoreStorage, store: WritableStore) -> None:
    """Check that listings and ``clock()`` use the same clock, and that the clock is about right."""
    url = storage.url("timed/object")
    before = await store.clock(storage.url("timed/"), context=request_context())
    await store.put_object(url, b"1", context=request_context())
    (listed,) = await store.list_objects(url, context=request_context())
    after = await store.clock(storage.url("timed/"), context=request_context())
    assert listed.modified is not None, "the listing does not say when an object was written"
    assert before - 2 <= listed.modified <= after + 2, f"written at {listed.modified}, not within {before} and {after}"
    assert abs(after - time.time()) < _MAX_CLOCK_SKEW_S, "the store's clock is far from this computer's"
    remaining = await store.list_objects(storage.url("timed/"), context=request_context())
    equal([each.url for each in remaining], [url], "objects after asking for the time")


@_writing
async def check_writes_are_recorded(storage: StoreStorage, store: WritableStore) -> None:
    """Check that metrics record writes as requests, with their purpose."""
    context = request_context().step("data", 3)
    url = storage.url("recorded")
    await store.put_object(url, b"12345", context=context)
    await store.delete_objects([url], context=context)
    recorded = [(record.method, record.purpose, record.stop, record.round) for record in context.metrics.log]
    equal(recorded, [("PUT", "write", 5, 3), ("DELETE", "write", 0, 3)], "method, purpose, bytes and round")
    assert all(200 <= record.status < 300 for record in context.metrics.log), "the status is not that of a success"


@_writing
async def check_writing_when_closed(storage: StoreStorage, store: WritableStore) -> None:
    """Check that a closed store writes nothing."""
    await store.close()
    await raised(errors.UsageError, store.put_object(storage.url("late"), b"1", context=request_context()))


@_writing
async def check_writing_to_names_that_cannot_be(storage: StoreStorage, store: WritableStore) -> None:
    """Check that writing to a url that no object can have succeeds or raises one of asyncpq's errors."""
    for key in ("x" * 2000, "nul\0", "key/below an object"):
        try:
            await store.put_object(storage.url(key), b"1", context=request_context())
        except errors.AsyncpqError as error:
            equal(error.url is not None, True, "the error names an url")


STORE_WRITE_CHECKS: tuple[Check, ...] = tuple(check for check in checks_of(globals()) if check not in STORE_CHECKS)


async def _read(store: WritableStore, url: str) -> bytes:
    stored = await store.open_object(url)
    return bytes((await stored.fetch_tail(1 << 30, context=request_context())).data)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _PiecesError(Exception):
    """The error that the iterator of a failing stream raises."""
