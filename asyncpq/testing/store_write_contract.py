"""The contract of a store that writes (:class:`asyncpq.storage.base.WritableStore`), as checks for any test runner.

Run them like those of :mod:`asyncpq.testing.store_contract`, on the same :class:`StoreStorage`. A store that cannot
write passes if it says so. A failed check raises AssertionError.
"""

from __future__ import annotations

import asyncio
import functools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from asyncpq import errors
from asyncpq.storage.base import WritableStore, writable
from asyncpq.testing.assertions import checks_of, equal, raised, request_context
from asyncpq.testing.store_contract import StoreStorage

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


STORE_WRITE_CHECKS: tuple[Check, ...] = checks_of(globals())


async def _read(store: WritableStore, url: str) -> bytes:
    stored = await store.open_object(url)
    return bytes((await stored.fetch_tail(1 << 30, context=request_context())).data)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _PiecesError(Exception):
    """The error that the iterator of a failing stream raises."""
