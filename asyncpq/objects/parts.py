"""Get parts of one version of an object: from memory, a running fetch, another cache tier, or the store.

A part is what caches keep under one key: a footer, an index, a page, a dictionary or a range of bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from asyncpq.caching.entry_format import ContentKey
from asyncpq.caching.single_flight import Flight, landing
from asyncpq.caching.tiers import Tiers
from asyncpq.metrics import Tier, TracedPart
from asyncpq.objects.coalesce import ByteRange, cut
from asyncpq.objects.measured_round import MeasuredRound
from asyncpq.objects.prices import Prices
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.objects.source import ObjectSource, Tail
from asyncpq.objects.version import ObjectVersion
from asyncpq.storage.base import RangeResult, RequestContext, is_here

# Reading less than this takes less time than making tasks to read it concurrently: one part, and all of one task.
_FEW_BYTES: Final = 64 * 1024
_TASK_BYTES: Final = 1 << 20
_start: Final = attrgetter("start")
PARTS_A_STEP: Final = 10  # see Runtime.off_loop


class _Group(NamedTuple):
    """The parts that one task has fetched, and whether a response for them validated the version."""

    data: dict[ContentKey, bytes | memoryview]
    validated: bool


class Arrivals(Protocol):
    """Receives parts as they come from the store, while others are still fetched."""

    def begin(self, missing: Collection[ContentKey]) -> None:
        """Prepare for the parts, of which ``missing`` are fetched; all others follow at once."""

    def landed(self, parts: Mapping[ContentKey, Any]) -> None:
        """Take ``parts``, which have come. A later call may have some of them again."""


class Parts(NamedTuple):
    """The bytes of the requested parts, and where they came from."""

    data: dict[ContentKey, Any]  # for each key the bytes (views for parts of chunks), or the decoded form in memory
    asked: Collection[ContentKey] = ()  # keys that were requested from the store
    validated: bool = False  # a response since the read began has validated the version
    fetched: Collection[ContentKey] = ()  # keys that this call, not a concurrent one, requested
    from_tail: Collection[ContentKey] = ()  # keys whose bytes came with the object's first GET


async def fetch_parts(
    source: ObjectSource,
    version: ObjectVersion,
    keys: Sequence[ContentKey],
    context: RequestContext,
    *,
    admit: bool = True,
    decoded: bool = False,
    read_bytes: int = 0,
    prices: Prices | None = None,
    arrivals: Arrivals | None = None,
) -> Parts:
    """Return the bytes of each key: from memory, a running fetch, another cache tier, or the store.

    The cache misses of one call are coalesced, and all requests are sent at once. Pages are put into memory when they
    arrive; after decoding the caller calls :func:`share_parts`, or :func:`discard_parts` if they are damaged.

    Args:
        keys: distinct parts of ``version``.
        context: counts the requests.
        admit: keep fetched pages in memory.
        decoded: return parts that memory holds decoded or parsed in that form; otherwise fetch them again.
        read_bytes: the bytes of the whole read; see :func:`share_pages`.
        prices: decide which misses become one request; by default the server's current prices.
        arrivals: receives the parts as they come, unless all are known at once.

    Raises:
        ObjectChangedError: the object has another version now.
        StoreError: the store failed.
    """
    metrics = context.metrics
    local = partial(_from_memory, source, version, keys, context, decoded=decoded)
    few = len(keys) <= INLINE_STEPS * PARTS_A_STEP
    found, missing, inside = local() if few else await source.runtime.in_thread(local)
    tiers = source.tiers_of(version) if inside or missing else None
    if inside and tiers is not None:
        _keep_pages(source, inside, context)  # else each read would write them to the tiers
    trace = metrics.trace
    if trace is not None:
        trace.parts += _traced(version, found, "memory")
    if missing and tiers is not None:
        lower = await _from_tiers(version, tiers, missing, read_bytes, context)
        found.update(lower)
        _keep_pages(source, lower, context)
        missing = [key for key in missing if key not in lower]
    metrics.cache_hits += len(found)
    metrics.cache_misses += len(missing)
    if not missing:
        return Parts(found, (), False, (), inside)
    if trace is not None:
        trace.parts += _traced(version, missing, "store")
    prices = prices or source.prices()
    if arrivals is not None:
        arrivals.begin(missing)
        arrivals.landed(found)
    fetched, validated = await _fly(source, version, missing, found, context, admit, prices, arrivals)
    if arrivals is not None:
        arrivals.landed(found)
    return Parts(found, missing, validated, fetched, inside)


def _from_memory(
    source: ObjectSource, version: ObjectVersion, keys: Sequence[ContentKey], context: RequestContext, *, decoded: bool
) -> tuple[dict[ContentKey, Any], list[ContentKey], dict[ContentKey, bytes]]:
    """Return three results: the parts that memory has, by key; the keys of all others; and, by key, the parts that were
    cut out of the object's cached tail."""
    found: dict[ContentKey, Any] = {}
    missing: list[ContentKey] = []
    for key, value in zip(keys, source.runtime.memory.get_many(keys, scan=context.probation), strict=True):
        if value is None or not (decoded or isinstance(value, bytes)):
            missing.append(key)
        else:
            found[key] = value
    inside: dict[ContentKey, bytes] = {}
    if not missing:
        return found, missing, inside
    tail: Tail | None = source.runtime.memory.get(version.tail_key, scan=context.probation)
    if tail is not None and (inside := tail.cut_out(missing)):
        found.update(inside)
        missing = [key for key in missing if key not in inside]
    if missing and version.spans.weight and (known := version.spans.cut_out(missing)):
        found.update(known)  # not for the tiers: only reads with the index may rely on its bytes
        missing = [key for key in missing if key not in known]
    return found, missing, inside


def share_parts(
    source: ObjectSource, version: ObjectVersion, parts: Parts, *, read_bytes: int = 0, scan: bool = False
) -> None:
    """Write fetched parts, once they were decoded without an error, to the cache tiers outside this process.

    Slices of column chunks whose pages are unknown are left out: :func:`share_pages` writes their pages. ``read_bytes``
    and ``scan`` as there.
    """
    if parts.fetched or parts.from_tail:
        new = [key for key in (*parts.fetched, *parts.from_tail) if key.kind != "part"]
        pages = {key: bytes(parts.data[key]) for key in new}
        share_pages(source, version, pages, read_bytes=read_bytes, scan=scan)


def share_pages(
    source: ObjectSource, version: ObjectVersion, pages: Mapping[ContentKey, bytes], *, read_bytes: int, scan: bool
) -> None:
    """Write pages, once they were decoded without an error, to the cache tiers outside this process.

    ``read_bytes``: the bytes of the whole read; a tier stores no pages of too large a read. ``scan``: a scan read them,
    so they must not evict what lookups use.
    """
    tiers = source.tiers_of(version) if pages else None
    if tiers is not None:
        tiers.put_many(pages, read_bytes=read_bytes, scan=scan)


def discard_parts(source: ObjectSource, version: ObjectVersion, keys: Iterable[ContentKey]) -> None:
    """Drop damaged parts, and the object's tail, from memory: the damage may have happened in transit."""
    memory = source.runtime.memory
    memory.discard(version.tail_key)
    for key in keys:
        memory.discard(key)


def _traced(version: ObjectVersion, keys: Iterable[ContentKey], tier: Tier) -> list[TracedPart]:
    return [TracedPart(version.url, key.kind, key.start, key.stop, tier) for key in keys]


async def _from_tiers(
    version: ObjectVersion, tiers: Tiers, missing: Sequence[ContentKey], read_bytes: int, context: RequestContext
) -> dict[ContentKey, bytes]:
    began = time.monotonic()
    context.metrics.wait_begins()
    try:
        found, hits = await tiers.get_many(missing, read_bytes=read_bytes, scan=context.scan)
    finally:
        context.metrics.wait_ends()
    context.metrics.count_hits(hits)
    if (trace := context.metrics.trace) is not None:
        trace.waited.append((began, time.monotonic()))
        trace.parts += _traced(version, found, "shared" if hits.get("shared") and not hits.get("disk") else "disk")
    # a checksum proves that an entry was not changed, not that the bytes were right when they were put
    return {key: value for key, value in found.items() if len(value) == key.stop - key.start}


async def _fly(
    source: ObjectSource,
    version: ObjectVersion,
    missing: Sequence[ContentKey],
    found: dict[ContentKey, Any],
    context: RequestContext,
    admit: bool,
    prices: Prices,
    arrivals: Arrivals | None,
) -> tuple[list[ContentKey], bool]:
    """Fetch ``missing`` and add the parts to ``found``: join fetches that run already, start the others, and wait for
    all. ``arrivals`` is told of each fetch that ends.

    Returns:
        The keys of the fetches that this call started, and whether the version was validated by a fetch that began
        after the read did.
    """
    validated = False
    flights = source.runtime.flights
    joined: dict[int, tuple[Flight[_Group], list[ContentKey]]] = {}
    rest: list[ContentKey] = []
    for key in missing:
        flight = flights.get(key)
        if flight is None:
            rest.append(key)
        else:
            joined.setdefault(id(flight), (flight, []))[1].append(key)
    for flight, _ in joined.values():
        flight.join()
    measured = None
    try:
        if rest:
            groups, part_bytes = _groups(rest, prices)
            if not joined:
                measured = MeasuredRound(source, [_span(members) for members in groups], part_bytes, context)
            _start_fetches(source, version, groups, part_bytes, joined, context, admit)
        awaited = [flight for flight, _ in joined.values()]
        context.metrics.wait_begins()
        try:
            with _told(arrivals, awaited):
                await landing(awaited)
        finally:
            context.metrics.wait_ends()
        for flight, members in joined.values():
            if flight.task.done():  # all are, unless one has failed, which raises here
                group = flight.result()
                # a response to a request from before this read validates by its age alone
                validated |= group.validated and flight.began >= context.began
                for key in members:
                    found[key] = group.data[key]
        if measured is not None:
            measured.ended()
    finally:
        if measured is not None:
            measured.close()
        for flight, _ in joined.values():
            flight.leave()
    return rest, validated


@contextmanager
def _told(arrivals: Arrivals | None, flights: Sequence[Flight[_Group]]) -> Iterator[None]:
    """Tell ``arrivals`` of each of ``flights`` that ends well in the block."""
    if arrivals is None:
        yield
        return
    landed = arrivals.landed

    def tell(task: asyncio.Task[_Group]) -> None:
        if not task.cancelled() and task.exception() is None:
            landed(task.result().data)

    for flight in flights:
        flight.task.add_done_callback(tell)
    try:
        yield
    finally:
        for flight in flights:
            flight.task.remove_done_callback(tell)


def _start_fetches(
    source: ObjectSource,
    version: ObjectVersion,
    groups: Sequence[list[ContentKey]],
    part_bytes: int,
    joined: dict[int, tuple[Flight[_Group], list[ContentKey]]],
    context: RequestContext,
    admit: bool,
) -> None:
    """Start to fetch the groups, and add each fetch to ``joined`` once it runs."""
    tasks: Iterable[Sequence[list[ContentKey]]] = _together(groups) if is_here(source.handle) else zip(groups)
    for some in tasks:
        members = some[0] if len(some) == 1 else [key for group in some for key in group]
        work = partial(_fetch_groups, source, version, some, context, admit, part_bytes)
        flight = source.runtime.flights.start(members, work)
        flight.join()
        joined[id(flight)] = (flight, members)


def _groups(keys: list[ContentKey], prices: Prices) -> tuple[list[list[ContentKey]], int]:
    """Group the parts such that each group is fetched as one merged range. Return the groups, and the size in bytes to
    which longer ranges are cut."""
    if len(keys) == 1:
        return [keys], prices.part_bytes(_span(keys))
    ordered = sorted(keys, key=_start)
    # parts are cut inside the flight, which joins what a cut divides
    merged = prices.merge([(key.start, key.stop) for key in ordered])
    groups: list[list[ContentKey]] = []
    position = 0
    for item in merged:
        members: list[ContentKey] = []
        while position < len(ordered) and ordered[position].start < item.stop:
            members.append(ordered[position])
            position += 1
        groups.append(members)
    return groups, prices.part_bytes(sum([item.stop - item.start for item in merged]))


def _span(members: Sequence[ContentKey]) -> int:
    """Return the length of the range that holds the parts, which are sorted by their start."""
    if len(members) == 1:
        return members[0].stop - members[0].start
    return max([key.stop for key in members]) - members[0].start


def _together(groups: Sequence[list[ContentKey]]) -> list[list[list[ContentKey]]]:
    """Distribute the groups over tasks: small groups share a task, which fetches them one after another."""
    tasks: list[list[list[ContentKey]]] = []
    few: list[list[ContentKey]] = []
    left = 0
    for members in groups:
        size = _span(members)
        if size > _FEW_BYTES:
            tasks.append([members])
            continue
        if size > left:
            tasks.append(few := [])
            left = _TASK_BYTES
        few.append(members)
        left -= size
    return tasks


async def _fetch_groups(
    source: ObjectSource,
    version: ObjectVersion,
    groups: Sequence[Sequence[ContentKey]],
    context: RequestContext,
    admit: bool,
    part_bytes: int,
) -> _Group:
    """Fetch ``groups`` one after the other. A range longer than ``part_bytes`` is fetched by several concurrent
    requests."""
    data: dict[ContentKey, bytes | memoryview] = {}
    validated = False
    keep = context if admit else None
    for members in groups:
        start, length = members[0].start, _span(members)
        if length <= part_bytes:
            results = [await _get(source, version, (start, start + length), context)]
        else:
            ranges = cut(ByteRange(start, start + length), part_bytes)
            results = await _get_each(source, version, ranges, context)
        if len(members) <= PARTS_A_STEP:
            data |= _cut_out(source, members, results, keep)
        else:
            cut_out = partial(_cut_out, source, members, results, keep)
            data |= await source.runtime.off_loop(cut_out, len(members) // PARTS_A_STEP)
        validated |= results[0].validates or any(result.validates for result in results)
    return _Group(data, validated)


async def _get_each(
    source: ObjectSource, version: ObjectVersion, ranges: Iterable[ByteRange], context: RequestContext
) -> list[RangeResult]:
    """Fetch ``ranges`` concurrently, and return their results in order."""
    tasks = [asyncio.ensure_future(_get(source, version, part, context)) for part in ranges]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _get(
    source: ObjectSource, version: ObjectVersion, part: tuple[int, int], context: RequestContext
) -> RangeResult:
    sent = time.monotonic()
    result = await source.handle.fetch_range(*part, context=context, pin=version.validator)
    source.freshness.validated_by(result, version, sent)
    return result


def _cut_out(
    source: ObjectSource, members: Sequence[ContentKey], results: Sequence[RangeResult], admit: RequestContext | None
) -> dict[ContentKey, bytes | memoryview]:
    """Cut the parts ``members`` out of ``results``, the responses for adjacent ranges, and return them by key. If
    ``admit`` is not None, pages are also kept in memory."""
    parts: dict[ContentKey, bytes | memoryview]
    if len(results) == 1:
        data, start = results[0].data, members[0].start
        if len(members) > 1:
            data = memoryview(data)
        # What is used once, together, is a view. What is kept is copied: a view keeps the whole response in memory.
        used_once = ("part",) if admit is not None else ("part", "page")
        parts = {}
        for key in members:
            part = data if len(members) == 1 else data[key.start - start : key.stop - start]
            parts[key] = part if key.kind in used_once else bytes(part)
    else:
        parts = {key: _joined(results, key) for key in members}
    if admit is not None:
        _keep_pages(source, parts, admit)
    return parts


def _joined(results: Sequence[RangeResult], key: ContentKey) -> bytes | memoryview:
    """Return the bytes of the part ``key``, joined from ``results``, the responses for adjacent ranges."""
    pieces = [
        memoryview(result.data)[max(0, key.start - result.start) : key.stop - result.start]
        for result in results
        if result.start < key.stop and key.start < result.stop
    ]
    return pieces[0] if key.kind == "part" and len(pieces) == 1 else b"".join(pieces)


def _keep_pages(source: ObjectSource, parts: Mapping[ContentKey, bytes | memoryview], context: RequestContext) -> None:
    """Put the pages among ``parts`` into the memory cache. The callers put parts of other kinds there, once parsed or
    decoded."""
    pages: dict[ContentKey, bytes] = {}
    for key, value in parts.items():
        if key.kind == "page":
            pages[key] = bytes(value)
    if pages:
        source.runtime.memory.put_many(pages, scan=context.probation)
