"""The contract of a store that writes (:class:`asyncpq.storage.base.WritableStore`), as checks for any test runner.

Run them like those of :mod:`asyncpq.testing.store_contract`, on the same :class:`StoreStorage`. A store that cannot
write passes if it says so. A failed check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from asyncpq.errors import (
    AsyncpqError,
    ConcurrentCommitUnsupported,
    ObjectNotFoundError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.storage.base import WritableStore, writable
from asyncpq.testing.assertions import equal, raised, request_context
from asyncpq.testing.store_contract import StoreStorage

_LARGE_BYTES = 16 * 1024 * 1024 + 1  # S3 takes them in several requests
_MAX_CLOCK_SKEW_S = 300.0  # between the store's clock and this computer's


async def check_put(storage: StoreStorage) -> None:
    """A put object can be read and replaces the one before, also for objects that are open."""
    store = _writable(storage)
    if store is None:
        return
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
    equal(
        (await stored.fetch_tail(10, context=request_context())).data, b"four", "the bytes of an object opened before"
    )


async def check_put_after_missing(storage: StoreStorage) -> None:
    """A missing object is not cached as missing."""
    store = _writable(storage)
    if store is None:
        return
    url = storage.url("written-later")
    await raised(ObjectNotFoundError, _read(store, url))
    await store.put_object(url, b"here", context=request_context())
    equal(await _read(store, url), b"here", "the bytes that are read")


async def check_create(storage: StoreStorage) -> None:
    """Creating succeeds once and never replaces an object."""
    store = await _creating(storage)
    if store is None:
        return
    url = storage.url("created/1")
    outcomes = [await store.create_object(url, data, context=request_context()) for data in (b"one", b"two", b"one")]
    equal(outcomes, [True, False, False], "the results of create")
    equal(await _read(store, url), b"one", "the bytes that are read")
    await store.delete_objects([url], context=request_context())
    equal(
        await store.create_object(url, b"two", context=request_context()),
        True,
        "the result of create_object after deleting",
    )


async def check_create_at_once(storage: StoreStorage) -> None:
    """Of many concurrent creations of one object, exactly one succeeds."""
    store = await _creating(storage)
    if store is None:
        return
    for turn in range(5):
        url = storage.url(f"contended/{turn}")
        contents = [f"{turn} by {number}".encode() for number in range(12)]
        outcomes = await asyncio.gather(
            *(store.create_object(url, content, context=request_context()) for content in contents)
        )
        equal(sum(outcomes), 1, "the number of creations that succeeded")
        equal(await _read(store, url), contents[outcomes.index(True)], "the bytes that are read")


async def check_probe(storage: StoreStorage) -> None:
    """The probe leaves nothing behind and runs once."""
    store = _writable(storage)
    if store is None:
        return
    folder = storage.url("probed/")
    answer = await store.probe_create(folder, context=request_context())
    context = request_context()
    equal(await store.probe_create(folder, context=context), answer, "the second answer")
    equal(context.metrics.requests, 0, "requests for the second answer")
    equal(await store.list_objects(folder, context=request_context()), [], "objects after the probe")


async def check_put_file(storage: StoreStorage) -> None:
    """A put file of any length replaces the object before."""
    store = _writable(storage)
    if store is None:
        return
    url = storage.url("stored/file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "content")
        for length in (10, _LARGE_BYTES, 1000):
            data = random.Random(length).randbytes(length)
            await asyncio.to_thread(path.write_bytes, data)
            await store.put_file(url, path, context=request_context())
            assert await _read(store, url) == data, f"the stored file of {length} bytes has wrong bytes"
        await raised(AsyncpqError, store.put_file(url, Path(folder, "missing"), context=request_context()))
    equal(len(await _read(store, url)), 1000, "the length after a file that was not there")


async def check_create_stream(storage: StoreStorage) -> None:
    """A created stream of any length appears once it is complete, replaces nothing, and leaves nothing if it fails."""
    store = await _creating(storage)
    if store is None:
        return
    folder = storage.url("streamed/")
    for length in (0, 10, _LARGE_BYTES):
        url, data = f"{folder}{length}", random.Random(length).randbytes(length)
        seen: list[list[str]] = []

        async def pieces(data: bytes = data, url: str = url, seen: list[list[str]] = seen) -> AsyncIterator[bytes]:
            for at in range(0, len(data), 3_000_001):
                yield data[at : at + 3_000_001]
            seen.append([each.url for each in await store.list_objects(url, context=request_context())])

        equal(await store.create_stream(url, pieces(), context=request_context()), True, "the results of create")
        equal(seen, [[]], "listings from before the stream ended")
        if length:
            assert await _read(store, url) == data, f"the object of {length} bytes has wrong bytes"
            equal(
                await store.create_stream(url, _pieces(b"x" * (length + 1)), context=request_context()),
                False,
                "the second",
            )
            assert await _read(store, url) == data, "an existing object was replaced"

    async def failing(length: int) -> AsyncIterator[bytes]:
        yield bytes(length)
        raise _PiecesError

    before = await store.list_objects(folder, context=request_context())
    for length in (10, _LARGE_BYTES):
        try:
            await store.create_stream(f"{folder}failed", failing(length), context=request_context())
        except _PiecesError:
            pass
        else:
            raise AssertionError("the error of the pieces was not raised")
    equal(await store.list_objects(folder, context=request_context()), before, "objects after a stream that failed")


async def check_readers_see_whole_objects(storage: StoreStorage) -> None:
    """A reader sees the old or the new content of an object that is replaced, never a mixture."""
    store = _writable(storage)
    if store is None:
        return
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
        except AsyncpqError:  # the store may notice the replacement instead
            data = contents[0]
        finally:
            await stored.close()
        assert data in contents, "a reader saw a part of an object, or a mixture"
        await asyncio.sleep(0)
    await writing


async def check_delete(storage: StoreStorage) -> None:
    """Deleting removes objects; a missing object is no error."""
    store = _writable(storage)
    if store is None:
        return
    urls = [storage.url(f"deleted/{number}") for number in range(20)]
    for url in urls[::2]:
        await store.put_object(url, b"1", context=request_context())
    kept = storage.url("deleted/kept")
    await store.put_object(kept, b"1", context=request_context())
    await store.delete_objects(urls, context=request_context())
    await store.delete_objects([], context=request_context())
    listed = await store.list_objects(storage.url("deleted/"), context=request_context())
    equal([each.url for each in listed], [kept], "objects that are left")


async def check_clock(storage: StoreStorage) -> None:
    """Listings and ``clock()`` use one clock, which is about right."""
    store = _writable(storage)
    if store is None:
        return
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


async def check_writes_are_recorded(storage: StoreStorage) -> None:
    """Writes are recorded as requests, with their purpose."""
    store = _writable(storage)
    if store is None:
        return
    context = request_context().step("data", 3)
    url = storage.url("recorded")
    await store.put_object(url, b"12345", context=context)
    await store.delete_objects([url], context=context)
    recorded = [(record.method, record.purpose, record.stop, record.round) for record in context.metrics.log]
    equal(recorded, [("PUT", "write", 5, 3), ("DELETE", "write", 0, 3)], "method, purpose, bytes and round")
    assert all(200 <= record.status < 300 for record in context.metrics.log), "the status is not that of a success"


async def check_writing_when_closed(storage: StoreStorage) -> None:
    """A closed store writes nothing."""
    store = _writable(storage)
    if store is None:
        return
    await store.close()
    await raised(UsageError, store.put_object(storage.url("late"), b"1", context=request_context()))


async def check_writing_to_names_that_cannot_be(storage: StoreStorage) -> None:
    """A url that cannot name an object is written to, or gives one of asyncpq's errors."""
    store = _writable(storage)
    if store is None:
        return
    for key in ("x" * 2000, "nul\0", "key/below an object"):
        try:
            await store.put_object(storage.url(key), b"1", context=request_context())
        except AsyncpqError as error:
            equal(error.url is not None, True, "the error names an url")


STORE_WRITE_CHECKS: tuple[Callable[[StoreStorage], Awaitable[None]], ...] = (
    check_put,
    check_put_after_missing,
    check_create,
    check_create_at_once,
    check_probe,
    check_put_file,
    check_create_stream,
    check_readers_see_whole_objects,
    check_delete,
    check_clock,
    check_writes_are_recorded,
    check_writing_when_closed,
    check_writing_to_names_that_cannot_be,
)


def _writable(storage: StoreStorage) -> WritableStore | None:
    try:
        return writable(storage.store, storage.url(""))
    except UnsupportedStoreError as error:
        equal(bool(error.hint), True, "a store that cannot write gives a hint")
        return None


async def _creating(storage: StoreStorage) -> WritableStore | None:
    """The store, if it can refuse to create an existing object."""
    store = _writable(storage)
    if store is None or await store.probe_create(storage.url("created/"), context=request_context()):
        return store
    try:
        await store.create_object(storage.url("created/0"), b"1", context=request_context())
    except ConcurrentCommitUnsupported as error:
        equal(bool(error.hint), True, "a store that cannot create gives a hint")
    return None


async def _read(store: WritableStore, url: str) -> bytes:
    stored = await store.open_object(url)
    return (await stored.fetch_tail(1 << 30, context=request_context())).data


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _PiecesError(Exception):
    """Raised by the pieces of a stream."""
