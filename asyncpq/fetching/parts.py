"""Parts of one version of an object: from memory, a running fetch, another cache tier, or the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from asyncpq.caching.keys import ContentKey
from asyncpq.caching.single_flight import Flight, landing
from asyncpq.fetching.source import ObjectSource, Tail, undated
from asyncpq.fetching.version import FileVersion
from asyncpq.planning.coalesce import ByteRange, cut
from asyncpq.storage.base import RequestContext


async def fetch_parts(
    source: ObjectSource,
    version: FileVersion,
    keys: Sequence[ContentKey],
    context: RequestContext,
    *,
    admit: bool = True,
    decoded: bool = False,
) -> tuple[dict[ContentKey, Any], Collection[ContentKey]]:
    """The bytes of each key: from memory, a running fetch, another tier, or the store.

    Misses of one call are coalesced and sent at once.

    Args:
        keys: distinct parts of ``version``.
        context: whose requests they are.
        admit: keep pages that the store had to send in memory and tiers. Parts of other kinds are always put
            into the tiers, and in memory by the caller, once they are parsed.
        decoded: what memory holds decoded, or parsed, is given so; else such a part is fetched again.

    Returns:
        The bytes, and the keys that the store was asked for (which validated the version).

    Raises:
        ObjectChangedError: the object has another version now.
        StoreError: the store failed.
    """
    resources = source.resources
    metrics = context.metrics
    found: dict[ContentKey, Any] = {}
    missing: list[ContentKey] = []
    for key, value in zip(keys, resources.memory.get_many(keys, scan=context.scan), strict=True):
        if value is None or not (decoded or isinstance(value, bytes)):
            missing.append(key)
        else:
            found[key] = value
    if missing:
        missing = await _near(source, version, missing, found, context, admit)
    metrics.cache_hits += len(found)
    if not missing:
        return found, ()
    metrics.cache_misses += len(missing)
    await _fly(source, version, missing, found, context, admit)
    return found, missing


async def _near(
    source: ObjectSource,
    version: FileVersion,
    missing: list[ContentKey],
    found: dict[ContentKey, Any],
    context: RequestContext,
    admit: bool,
) -> list[ContentKey]:
    """What neither the object's tail nor a tier outside this process has; the rest is put into ``found``."""
    resources = source.resources
    tiers = source.tiers_of(version)
    tail: Tail | None = resources.memory.get(version.key("tail", 0, 0), scan=context.scan)
    if tail is not None:
        inside = tail.cut_out(missing)
        if inside:
            found.update(inside)
            missing = [key for key in missing if key not in inside]
            if tiers is not None:
                tiers.put_many(_lasting(inside, admit))
                _keep_pages(source, inside, context)  # or they would be put there with every read
    if missing and tiers is not None:
        context.metrics.wait_begins()
        try:
            lower, hits = await tiers.get_many(missing)
        finally:
            context.metrics.wait_ends()
        context.metrics.count_hits(hits)
        found.update(lower)
        _keep_pages(source, lower, context)
        missing = [key for key in missing if key not in lower]
    return missing


async def _fly(
    source: ObjectSource,
    version: FileVersion,
    missing: Sequence[ContentKey],
    found: dict[ContentKey, Any],
    context: RequestContext,
    admit: bool,
) -> None:
    """Join running flights, start the others, wait for all; fills ``found``."""
    flights = source.resources.flights
    joined: dict[int, tuple[Flight[dict[ContentKey, bytes]], list[ContentKey]]] = {}
    rest: list[ContentKey] = []
    for key in missing:
        flight = flights.get(key)
        if flight is None:
            rest.append(key)
        else:
            joined.setdefault(id(flight), (flight, []))[1].append(key)
    for flight, _ in joined.values():
        flight.join()
    if rest:
        timeless = undated(context)
        for members in _groups(source, rest):
            flight = flights.start(members, partial(_fetch_group, source, version, members, timeless, admit))
            flight.join()
            joined[id(flight)] = (flight, members)
    context.metrics.wait_begins()
    try:
        await landing([flight for flight, _ in joined.values()])
        for flight, members in joined.values():
            if flight.task.done():  # all are, unless one has failed, which raises here
                data = await flight.wait()
                for key in members:
                    found[key] = data[key]
    finally:
        context.metrics.wait_ends()
        for flight, _ in joined.values():
            flight.leave()


def _groups(source: ObjectSource, keys: list[ContentKey]) -> list[list[ContentKey]]:
    """Parts that one merged range brings, for each merged range."""
    if len(keys) == 1:
        return [keys]
    ordered = sorted(keys, key=_start)
    # parts are cut inside the flight, which joins what a cut divides
    merged = source.merge([(key.start, key.stop) for key in ordered], part_bytes=1 << 62)
    groups: list[list[ContentKey]] = []
    position = 0
    for item in merged:
        members: list[ContentKey] = []
        while position < len(ordered) and ordered[position].start < item.stop:
            members.append(ordered[position])
            position += 1
        groups.append(members)
    return groups


def _start(key: ContentKey) -> int:
    return key.start


async def _fetch_group(
    source: ObjectSource, version: FileVersion, members: Sequence[ContentKey], context: RequestContext, admit: bool
) -> dict[ContentKey, bytes]:
    start = members[0].start
    stop = members[0].stop if len(members) == 1 else max([key.stop for key in members])
    if stop - start <= source.resources.options.requests.part_bytes:
        sent = time.monotonic()
        result = await source.handle.fetch_range(start, stop, context=context, pin=version.validator)
        source.validated_by(result, version, sent)
        data = result.data
    else:
        data = await _get_in_parts(source, version, start, stop, context)
    if len(members) == 1:
        parts = {members[0]: data}
    else:
        parts = {key: data[key.start - start : key.stop - start] for key in members}
    if admit:
        _keep_pages(source, parts, context)
    tiers = source.tiers_of(version)
    if tiers is not None:
        tiers.put_many(_lasting(parts, admit))
    return parts


async def _get_in_parts(
    source: ObjectSource, version: FileVersion, start: int, stop: int, context: RequestContext
) -> bytes:
    """Many bytes of ``version`` from the store, in parts side by side."""

    async def get(part: ByteRange) -> bytes:
        sent = time.monotonic()
        result = await source.handle.fetch_range(*part, context=context, pin=version.validator)
        source.validated_by(result, version, sent)
        return result.data

    parts = cut(ByteRange(start, stop), source.resources.options.requests.part_bytes)
    tasks = [asyncio.ensure_future(get(part)) for part in parts]
    try:
        return b"".join(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _keep_pages(source: ObjectSource, parts: dict[ContentKey, bytes], context: RequestContext) -> None:
    """Parts of the other kinds are kept parsed or decoded by whoever asked for them."""
    put = source.resources.memory.put
    for key, value in parts.items():
        if key.kind == "page":
            put(key, value, len(value), scan=context.scan)


def _lasting(parts: dict[ContentKey, bytes], admit: bool) -> dict[ContentKey, bytes]:
    """What tiers outside this process are to keep."""
    return {key: value for key, value in parts.items() if key.kind != "part" and (admit or key.kind != "page")}
