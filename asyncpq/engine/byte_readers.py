"""Byte ranges of objects of any format, read with the caches, coalescing, pinning and retries of a session.

The first GET is a suffix range, as for Parquet files, without a HEAD: it returns size, validator and the object's end.
Later GETs are pinned to that version. Caches keep each range as it was requested.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from asyncpq.caching.entry_format import ContentKey
from asyncpq.errors import NotParquetError, ObjectChangedError
from asyncpq.events import Operation, OperationName
from asyncpq.objects.loop_threads import wait_in
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.runtime import runtime_of
from asyncpq.objects.source import ObjectSource, open_source
from asyncpq.objects.version import ObjectVersion
from asyncpq.session import Session
from asyncpq.storage.base import ListedObject, RequestContext, Validator, http_date_s, info_time_s
from asyncpq.storage.urls import safe_url

__all__ = ["ByteReader", "Folder", "ObjectVersion", "modified_s", "wait_in"]

#: What Arrow's readers ask for first: their read needs no other request for the footer, unless that is longer.
TAIL_BYTES: Final = 64 * 1024
_MEMORY_SHARE: Final = 16  # reads of more than this part of the memory cache are on probation there


class Folder(NamedTuple):
    """The result of :meth:`ByteReader.folder`.

    Attributes:
        objects: each with ``url``, ``size`` in bytes, ``validator`` (None if the listing cannot tell versions apart)
            and ``modified`` in seconds since the epoch (None if unknown).
        folders: urls of folders, sorted, each with a slash at its end.
    """

    objects: Sequence[ListedObject]
    folders: list[str]


class ByteReader:
    """Reads byte ranges of objects with a session, in its event loop. Each call counts in ``session.metrics``, sends
    events to ``on_event``, and raises DeadlineExceededError after ``RetryOptions.read_timeout_s``.

    To pass an :class:`ObjectVersion` to another process, pickle its ``validator``; :meth:`pinned` returns the version.
    """

    def __init__(self, session: Session) -> None:
        self._runtime = runtime_of(session)

    async def version(self, url: str) -> ObjectVersion:
        """Return the current version of an object: the cached one while the session's cache policy allows it, else that
        of a GET of the object's end.

        Raises:
            ObjectNotFoundError, AccessDeniedError, ...: the store refused the request.
        """
        async with self._operation("open", url) as (source, operation):
            return await present_version(source, RequestContext(operation.metrics))

    async def pinned(self, url: str, validator: Validator) -> ObjectVersion:
        """Return the version of an object that ``validator`` identifies, without a request. Reads of it raise
        ObjectChangedError if the object is replaced."""
        async with self._operation("open", url) as (source, _):
            source.handle.learn(validator)
            return source.object_version(validator)

    async def read(
        self, url: str, ranges: Sequence[tuple[int | None, int | None]], version: ObjectVersion | None = None
    ) -> list[bytes]:
        """Return byte ranges of one version of an object, in the order of ``ranges``.

        Ranges that no cache has are fetched in one round, and merged where that costs less.

        Args:
            ranges: pairs of start and stop like those of a slice: negative numbers count from the object's end, None
                means its beginning or end. They are cut at the object's end, and may overlap.
            version: the version to read. None: the current one; if the object is replaced during the call, all ranges
                are read again from the new version.

        Raises:
            ObjectChangedError: the object no longer has this version.
            StoreError: the store failed.
        """

        def of(size: int) -> list[tuple[int, int]]:
            return [slice(start, stop).indices(size)[:2] for start, stop in ranges]

        async with self._operation("read", url) as (source, operation):
            if version is not None:
                source.handle.learn(version.validator)
                return await read_ranges(source, version, of(version.size), RequestContext(operation.metrics))
            while True:
                context = RequestContext(operation.metrics, round=operation.metrics.rounds + 1)
                present = await present_version(source, context)
                context = context.step("data", operation.metrics.rounds + 1)
                try:
                    return await read_ranges(source, present, of(present.size), context)
                except ObjectChangedError:
                    if not await source.restarts(None, operation):
                        raise

    async def folder(self, url: str, *, deep: bool) -> Folder:
        """List the objects and folders directly in a folder, or with ``deep`` at all levels below it. Both lists are
        empty if there is no such folder.

        Args:
            url: url of the folder, with a slash at its end.

        Raises:
            UnsupportedStoreError: the store, such as a web server, has no listings.
        """
        runtime, shown, folders = self._runtime, safe_url(url), set[str]()

        def wanted(folder: str) -> bool:
            folders.add(folder)
            return False

        with runtime.operation("files", shown) as operation:
            async with runtime.deadline(shown):
                store, _ = await runtime.store(url)
                context = RequestContext(operation.metrics, purpose="list")
                listed = await store.list_objects(url, context=context, wants=None if deep else wanted)
        objects = list[ListedObject]()
        for item in listed:  # a store may list what is not wanted, too
            ends = [at + 1 for at, letter in enumerate(item.url[len(url) :], len(url)) if letter == "/"]
            folders.update(item.url[:end] for end in (ends if deep else ends[:1]))
            if deep or not ends:
                objects.append(item)
        return Folder(objects, sorted(folders - {url}))

    @asynccontextmanager
    async def _operation(self, name: OperationName, url: str) -> AsyncIterator[tuple[ObjectSource, Operation]]:
        runtime, shown = self._runtime, safe_url(url)
        with runtime.operation(name, shown) as operation:
            async with runtime.deadline(shown):
                source = await open_source(runtime, url)
                try:
                    yield source, operation
                    source.describe(operation.metrics)
                finally:
                    await source.handle.close()


def modified_s(validator: Validator) -> float | None:
    """Return the time at which a version was written, in seconds since the epoch; None if the store did not send it."""
    modified = http_date_s(validator.last_modified)
    return info_time_s(validator.last_modified) if modified is None else modified


# -- through the caches ------------------------------------------------------------------------------


async def present_version(source: ObjectSource, context: RequestContext) -> ObjectVersion:
    """Return the object's current version: one in the caches, validated if the cache policy requires it, or else the
    version that one suffix GET finds.

    An empty object has a version of size 0. Raises StoreError.
    """
    pointer = await source.known_pointer()
    if pointer is not None and source.freshness.may_be_current(pointer):
        source.handle.learn(pointer.validator)
        version = source.object_version(pointer.validator)
        if version.can_validate:
            if source.freshness.pointer() is None:
                source.freshness.keep(pointer)
            try:
                read = ObjectRead(source, version, context.metrics, round=context.round, began=context.began)
                await read.ensure_current()
            except ObjectChangedError:
                await source.forget(version)
            else:
                context.metrics.cache_hits += 1
                return version
    return await source.runtime.flights.run(
        ("object version", source.freshness.key), lambda: _fetch_version(source, context)
    )


async def _fetch_version(source: ObjectSource, context: RequestContext) -> ObjectVersion:
    sent = time.monotonic()
    context.metrics.cache_misses += 1
    try:
        tail = await source.handle.fetch_tail(TAIL_BYTES, context=context.step("tail", context.round))
    except NotParquetError:  # the store's word for an empty object
        return source.object_version(Validator(0), sent)
    data = bytes(tail.data)
    version = source.object_version(tail.validator, sent)
    source.runtime.memory.put(version.tail_key, data, len(data))
    if version.can_validate:
        source.freshness.point_to(version, sent)
        tiers = source.tiers_of(version)
        if tiers is not None:
            tiers.put_many({version.key("range", tail.start, tail.stop): data})
    return version


async def read_ranges(
    source: ObjectSource, version: ObjectVersion, ranges: Sequence[tuple[int, int]], context: RequestContext
) -> list[bytes]:
    """Return the bytes of each range ``(start, stop)``, in order; ranges are cut at the object's end, and may overlap.

    Ranges that no cache has are coalesced and sent at once. Raises ObjectChangedError, and drops the cached pointer to
    ``version``, if the object has another version now; StoreError if the store fails.
    """
    cut = [(min(start, version.size), min(stop, version.size)) for start, stop in ranges]
    tail = await _known_tail(source, version, max([stop for _, stop in cut], default=0), context)
    tail_start = version.size if tail is None else version.tail_start(tail)
    heads = [_head(part, tail_start) for part in cut]
    keys = {part: version.key("range", *part) for part in (*heads,) if part[0] < part[1]}
    total = sum([stop - start for start, stop in keys])
    read = ObjectRead(source, version, context.metrics, admit=False, num_bytes=total, began=context.began)
    try:
        parts = await read.fetch(list(keys.values()), "data", context.round)
    except ObjectChangedError:
        await source.forget(version)
        raise
    fetched: dict[ContentKey, bytes] = {key: bytes(parts.data[key]) for key in parts.fetched}
    if fetched and version.can_validate:
        memory = source.runtime.memory
        memory.put_many(fetched, scan=total * _MEMORY_SHARE > memory.max_bytes)
        read.share(parts)
    found = {part: fetched.get(key) or bytes(parts.data[key]) for part, key in keys.items()}
    return [_joined(found.get(head, b""), tail, part, head) for part, head in zip(cut, heads, strict=True)]


async def _known_tail(source: ObjectSource, version: ObjectVersion, stop: int, context: RequestContext) -> bytes | None:
    """Return the cached end of the object; None if it is not cached. ``stop`` is the end of the last range to read:
    tiers other than memory are asked only if the ranges reach into the tail.

    The tiers have the tail under the range that the first GET asked for.
    """
    memory = source.runtime.memory
    tail: bytes | None = memory.get(version.tail_key)
    start, tiers = max(0, version.size - TAIL_BYTES), source.tiers_of(version)
    if tail is not None or tiers is None or stop <= start:
        return tail
    key = version.key("range", start, version.size)
    entries, hits = await tiers.get_many([key])
    data = entries.get(key, b"")
    if len(data) != version.size - start:
        return None
    context.metrics.count_hits(hits)
    memory.put(version.tail_key, data, len(data))
    return data


def _head(part: tuple[int, int], tail_start: int) -> tuple[int, int]:
    """Return what must be fetched of the range ``part``: the bytes before the object's cached end."""
    start, stop = part
    return (start, tail_start) if start < tail_start < stop else part


def _joined(data: bytes, tail: bytes | None, part: tuple[int, int], head: tuple[int, int]) -> bytes:
    return data if tail is None or head == part else data + tail[: part[1] - head[1]]
