"""Read any byte ranges of one version of an object of any format.

The first GET is a suffix range, as for Parquet files, without a HEAD: it gives size and validator, and the bytes that a
reader of Parquet asks for first. Later GETs are pinned to that version. Caches keep each range as it was asked for, so
that the same reader finds it again, in this process or another one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from asyncpq.caching.entry_format import ContentKey
from asyncpq.errors import NotParquetError, ObjectChangedError
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.source import ObjectSource, Tail
from asyncpq.objects.version import ObjectVersion
from asyncpq.storage.base import RequestContext, Validator

#: What Arrow's readers ask for first: their read needs no other request for the footer, unless that is longer.
TAIL_BYTES: Final = 64 * 1024
_MEMORY_SHARE: Final = 16  # reads of more than this part of the memory cache are on probation there


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
    source.runtime.memory.put(version.tail_key, Tail(tail.start, data), len(data))
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
    heads = [_head(part, tail) for part in cut]
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


async def _known_tail(source: ObjectSource, version: ObjectVersion, stop: int, context: RequestContext) -> Tail | None:
    """Return the cached end of the object; None if it is not cached. ``stop`` is the end of the last range to read:
    tiers other than memory are asked only if the ranges reach into the tail.

    The tiers have the tail under the range that the first GET asked for.
    """
    memory = source.runtime.memory
    tail: Tail | None = memory.get(version.tail_key)
    start, tiers = max(0, version.size - TAIL_BYTES), source.tiers_of(version)
    if tail is not None or tiers is None or stop <= start:
        return tail
    key = version.key("range", start, version.size)
    entries, hits = await tiers.get_many([key])
    data = entries.get(key, b"")
    if len(data) != version.size - start:
        return None
    context.metrics.count_hits(hits)
    tail = Tail(start, data)
    memory.put(version.tail_key, tail, len(data))
    return tail


def _head(part: tuple[int, int], tail: Tail | None) -> tuple[int, int]:
    """Return what must be fetched of the range ``part``: the bytes in front of ``tail``, the cached end of the
    object."""
    start, stop = part
    return (start, tail.start) if tail is not None and start < tail.start < stop else part


def _joined(data: bytes, tail: Tail | None, part: tuple[int, int], head: tuple[int, int]) -> bytes:
    return data if tail is None or head == part else data + tail.data[: part[1] - tail.start]
