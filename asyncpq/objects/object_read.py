"""One read of one version of one object: its cost, its freshness, and what the caches keep of it.

It gets parts of the object from memory, a running fetch, another cache tier, or the store. A part is what caches keep
under one key: a footer, an index, a page, a dictionary or a range of bytes.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from asyncpq.caching.entry_format import ContentKey
from asyncpq.caching.single_flight import Flight, ended, landing
from asyncpq.caching.tiers import Tiers
from asyncpq.metrics import Purpose, ReadMetrics, RequestRecord, Tier, TracedPart
from asyncpq.objects.coalesce import ByteRange, cut
from asyncpq.objects.prices import LARGE_BYTES, MANY_REQUESTS, Measured, Prices
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion, ObjectVersion
from asyncpq.options import MIB
from asyncpq.records import NamedTuple, dataclass
from asyncpq.storage.base import RangeResult, RequestContext
from asyncpq.storage.threads import results_of


class MeasuredRound:
    """Measures one round of requests, from its making on, from which the session learns what requests and bytes cost
    at the server. A large one is measured together with the others that run at its server, until it is closed.

    Args:
        log: has the requests of the read.
        sizes: bytes of the ranges, of which those longer than ``part_bytes`` take several requests.
    """

    __slots__ = ("_began", "_burst", "_log", "_logged", "_num_bytes", "_requests", "_source")

    def __init__(
        self, source: ObjectSource, log: Sequence[RequestRecord], sizes: Sequence[int], part_bytes: int
    ) -> None:
        self._source = source
        self._log = log
        self._logged = len(self._log)
        self._num_bytes = sum(sizes)
        self._requests = sum([-(-size // part_bytes) for size in sizes])
        self._burst = source.burst() if self._num_bytes >= LARGE_BYTES else None
        if self._burst is not None:
            self._burst.join(self._num_bytes)
        self._began = time.monotonic()

    def ended(self) -> None:
        """Learn from the round, which went without errors."""
        burst, self._burst = self._burst, None
        if burst is None:
            seconds = time.monotonic() - self._began
            self._source.learn_prices(Measured(self._requests, self._num_bytes, seconds))
            return
        fastest_s = None
        if self._requests >= MANY_REQUESTS:
            fastest_s = min(
                [record.seconds for record in self._log[self._logged :] if record.status in (200, 206)], default=None
            )
        measured = burst.ended(self._requests, self._num_bytes, fastest_s)
        if measured is not None:
            self._source.learn_prices(measured)

    def close(self) -> None:
        """Leave the others, if the round has not ended. Idempotent."""
        if self._burst is not None:
            self._burst.failed()
            self._burst = None


# Reading less than this takes less time than making tasks to read it concurrently: one part, and all of one task.
_FEW_BYTES: Final = 64 * 1024
_TASK_BYTES: Final = 1 << 20
_LARGE_SHARE: Final = 16  # a read of more than this part of the memory cache would evict what lookups use
_start: Final = attrgetter("start")
PARTS_A_STEP: Final = 10  # see Runtime.off_loop
_FIRST_TURNS: Final = 12  # GETs in turns that run at once: so many use a fast network


class _Fetched(NamedTuple):
    """The parts that one task has fetched, and whether a response for them validated the version."""

    data: dict[ContentKey, bytes | memoryview]
    validated: bool


class _Range(NamedTuple):
    """A byte range to fetch, and the keys of the parts that are cut out of it, which are sorted by their start."""

    start: int
    stop: int
    keys: list[ContentKey]


class _Turns:
    """Starts the GETs of a round in their order, so that the first parts come first, and are decoded during the others.

    Some run at once. As many more begin whenever the bytes of these should have come at the believed bandwidth: then
    single connections are slow.
    """

    def __init__(self, prices: Prices, sizes: Sequence[int]) -> None:
        self._wave = max(_FIRST_TURNS, round(prices.bandwidth_bytes_s / prices.connection_bytes_s))
        bandwidth_bytes_s = max(prices.bandwidth_bytes_s, prices.crowded_bytes_s or 0.0)
        self._wave_s = prices.latency_s + self._wave * sum(sizes) / len(sizes) / bandwidth_bytes_s
        self._free = asyncio.Semaphore(self._wave)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if self._timer is None and self._free.locked():
            self._timer = asyncio.get_running_loop().call_later(self._wave_s, self._begin_more)
        await self._free.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._free.release()

    def _begin_more(self) -> None:
        self._timer = None
        if self._free.locked():
            self._timer = asyncio.get_running_loop().call_later(self._wave_s, self._begin_more)
            for _ in range(self._wave):
                self._free.release()


_AT_ONCE: Final = nullcontext()  # in the place of turns


class Arrivals(Protocol):
    """Receives parts as they come from the store, while others are still fetched."""

    def begin(self, missing: Collection[ContentKey]) -> None:
        """Prepare for the parts, of which ``missing`` are fetched; all others follow at once."""

    def landed(self, parts: Mapping[ContentKey, Any]) -> None:
        """Take ``parts``, which have come. A later call may have some of them again."""


class Parts(NamedTuple):
    """The bytes of the requested parts, and where they came from.

    Attributes:
        data: for each key the bytes (views for parts of chunks), or the decoded form in memory.
        asked: keys that were requested from the store.
        fetched: keys that this call, not a concurrent one, requested.
        from_tail: keys whose bytes came with the object's first GET.
    """

    data: dict[ContentKey, Any]
    asked: Collection[ContentKey] = ()
    fetched: Collection[ContentKey] = ()
    from_tail: Collection[ContentKey] = ()


V = TypeVar("V", bound=ObjectVersion)


@dataclass(slots=True, eq=False)
class ObjectRead(Generic[V]):
    """One read of one version of an object. It ends with the call that it serves, or when the object has changed.

    Attributes:
        source: the object.
        version: the version that is read. Each request is pinned to it.
        metrics: count what the read costs.
        scan: rows are delivered while they are read; scans leave some connections to lookups.
        probation: cache what is fetched on probation, so that it evicts nothing that lookups use.
        admit: keep fetched pages in memory.
        num_bytes: bytes of the whole call; cache tiers outside this process keep no pages of too large a call.
        round: the dependency step of its first request for data (see :class:`RequestContext`).
        began: ``time.monotonic()`` at its start; responses to earlier requests do not validate for it.
        asked: the same, if the read has waited for its turn since: a validation that began and ended meanwhile is
            valid for it.
        prices: of requests and bytes at the server, for all of the read.
        current: the version is known to be the object's, as far as the cache policy asks.
        tiers: cache tiers outside this process to use; None if there are none.
    """

    source: ObjectSource
    version: V
    metrics: ReadMetrics
    scan: bool = False
    probation: bool = False
    admit: bool = True
    num_bytes: int = 0
    round: int = 1
    began: float = field(default_factory=time.monotonic)
    asked: float = math.inf
    prices: Prices = field(init=False)
    current: bool = field(init=False)
    tiers: Tiers | None = field(init=False)

    def __post_init__(self) -> None:
        source = self.source
        self.prices = source.prices()
        self.current = source.freshness.policy.kind == "immutable"
        # without validation, another version may look like this one
        self.tiers = source.tiers if self.version.can_validate else None

    def planned(self, num_bytes: int) -> None:
        """Decide what the caches keep of the read, which is planned now: the call fetches ``num_bytes`` bytes. The next
        round is its first for data."""
        memory = self.source.runtime.memory.max_bytes
        self.num_bytes = num_bytes
        # so large a count or take would evict entries that lookups use
        self.probation = self.scan or 0 < memory < num_bytes * _LARGE_SHARE
        self.admit = not self.probation or num_bytes < memory
        self.round = self.metrics.rounds + 1

    # -- parts --------------------------------------------------------------------------------------

    async def fetch(
        self,
        keys: Sequence[ContentKey],
        purpose: Purpose,
        round_: int,
        *,
        decoded: bool = False,
        arrivals: Arrivals | None = None,
    ) -> Parts:
        """Return the bytes of each key: from memory, a running fetch, another cache tier, or the store.

        The cache misses of one call are coalesced, and all requests are sent at once. Pages are put into memory when
        they arrive; after decoding the caller calls :meth:`share`, or :meth:`discard` if they are damaged. If a fetch
        that began after this read validates the version, the read is ``current``.

        Args:
            keys: distinct parts of the version.
            purpose: reason of the requests.
            round_: their dependency step.
            decoded: return parts that memory holds decoded or parsed in that form; otherwise fetch them again.
            arrivals: receives the parts as they come, unless all are known at once.

        Raises:
            ObjectChangedError: the object has another version now.
            StoreError: the store failed.
        """
        metrics, tiers = self.metrics, self.tiers
        few = len(keys) <= INLINE_STEPS * PARTS_A_STEP
        in_memory = partial(self._from_memory, keys, decoded)
        found, missing, inside = in_memory() if few else await self.source.runtime.in_thread(in_memory)
        if inside and tiers is not None:
            self._keep_pages(inside)  # else each read would write them to the tiers
        if metrics.trace is not None:
            await self.source.runtime.off_loop(partial(self._trace, found, "memory"), len(found) // PARTS_A_STEP)
        if missing and tiers is not None:
            lower = await self._from_tiers(tiers, missing)
            found.update(lower)
            self._keep_pages(lower)
            missing = [key for key in missing if key not in lower]
        metrics.cache_hits += len(found)
        metrics.cache_misses += len(missing)
        if not missing:
            return Parts(found, (), (), inside)
        if metrics.trace is not None:
            await self.source.runtime.off_loop(partial(self._trace, missing, "store"), len(missing) // PARTS_A_STEP)
        if arrivals is not None:
            arrivals.begin(missing)
            arrivals.landed(found)
        fetched = await self._from_store(missing, found, RequestContext(metrics, self.scan, round_, purpose), arrivals)
        if not few:
            await asyncio.sleep(0)  # what follows takes a turn of its own
        if arrivals is not None:
            arrivals.landed(found)
        return Parts(found, missing, fetched, inside)

    def share(self, parts: Parts, *, scan: bool = False) -> None:
        """Write fetched parts, once they were decoded without an error, to the cache tiers outside this process.

        Slices of column chunks whose pages are unknown are left out: :meth:`share_pages` writes their pages. ``scan``
        as there.
        """
        if self.tiers is not None and (parts.fetched or parts.from_tail):
            new = [key for key in (*parts.fetched, *parts.from_tail) if key.kind != "part"]
            self.share_pages({key: bytes(parts.data[key]) for key in new}, scan=scan)

    def share_pages(self, pages: Mapping[ContentKey, bytes], *, scan: bool) -> None:
        """Write pages, once they were decoded without an error, to the cache tiers outside this process. ``scan``: a
        scan read them, so they must not evict what lookups use."""
        if self.tiers is not None and pages:
            self.tiers.put_many(pages, read_bytes=self.num_bytes, scan=scan)

    def discard(self, keys: Iterable[ContentKey]) -> None:
        """Drop damaged parts, and the object's tail, from memory and from fetches that other reads still wait for: the
        damage may have happened in transit."""
        keys, memory = list(keys), self.source.runtime.memory
        self.source.runtime.flights.forget(keys)
        memory.discard(self.version.tail_key)
        for key in keys:
            memory.discard(key)
            if holder := self.version.kept_chunks.holder(key.start, key.stop):
                memory.discard(holder)

    # -- freshness ------------------------------------------------------------------------------------

    def start_validation(self) -> Flight[None] | None:
        """Start a request that validates the version, or join one that began after this read; None if the read is
        current, or the cache policy requires none. The caller waits for it with :meth:`validation_ended`."""
        source, version = self.source, self.version
        if self.current or source.freshness.is_fresh(version, self.asked):
            return None
        flights, key = source.runtime.flights, ("validate", version.digest)
        flight: Flight[None] | None = flights.get(key)
        if flight is None or flight.began < self.began:
            context = RequestContext(self.metrics, round=self.round)  # no scan's: it is small, and waited for
            flight = flights.start((key,), partial(source.validate, version, context))
        flight.join()
        return flight

    async def validation_ended(self, validation: Flight[None]) -> None:
        """Wait for the end of a validation that :meth:`start_validation` returned, then leave its flight. Raises
        ObjectChangedError if the object has another version."""
        self.metrics.wait_begins()
        try:
            await validation.wait()
        finally:
            self.metrics.wait_ends()
            validation.leave()

    async def ensure_current(self) -> None:
        """Validate the version, if the cache policy requires it and no response of this read has validated it. Raises
        ObjectChangedError if the object has another version."""
        validation = self.start_validation()
        if validation is not None:
            await self.validation_ended(validation)
        self.current = True

    # -- inside -------------------------------------------------------------------------------------

    def _from_memory(
        self, keys: Sequence[ContentKey], decoded: bool
    ) -> tuple[dict[ContentKey, Any], list[ContentKey], dict[ContentKey, bytes]]:
        """Return three results: the parts that memory has, by key; the keys of all others; and, by key, the parts that
        were cut out of the object's cached tail. ``decoded`` as in :meth:`fetch`."""
        memory, version = self.source.runtime.memory, self.version
        found: dict[ContentKey, Any] = {}
        missing: list[ContentKey] = []
        for key, value in zip(keys, memory.get_many(keys, scan=self.probation), strict=True):
            if value is None or not (decoded or isinstance(value, bytes)):
                missing.append(key)
            else:
                found[key] = value
        inside: dict[ContentKey, bytes] = {}
        if not missing:
            return found, missing, inside
        tail: bytes | None = memory.get(version.tail_key, scan=self.probation)
        if tail is not None and (inside := version.cut_from_tail(tail, missing)):
            found.update(inside)
            missing = [key for key in missing if key not in inside]
        if missing and version.spans.weight and (known := version.spans.cut_out(missing)):
            found.update(known)  # not for the tiers: only reads with the index may rely on its bytes
            missing = [key for key in missing if key not in known]
        if missing and version.kept_chunks:
            found.update(self._cut_from_chunks(missing))
            missing = [key for key in missing if key not in found]
        return found, missing, inside

    def _cut_from_chunks(self, keys: Sequence[ContentKey]) -> Iterator[tuple[ContentKey, bytes]]:
        """Yield the key and the bytes of each of the parts ``keys`` that a column chunk in memory has."""
        memory, version = self.source.runtime.memory, self.version
        for key in keys:
            holder = version.kept_chunks.holder(key.start, key.stop)
            chunk = None if holder is None or holder == key else memory.get(holder, scan=self.probation)
            if holder is not None and chunk is not None:
                yield key, bytes(chunk[key.start - holder.start : key.stop - holder.start])

    async def _from_tiers(self, tiers: Tiers, missing: Sequence[ContentKey]) -> dict[ContentKey, bytes]:
        metrics, began = self.metrics, time.monotonic()
        metrics.wait_begins()
        try:
            found, hits = await tiers.get_many(missing, read_bytes=self.num_bytes, scan=self.scan)
        finally:
            metrics.wait_ends()
        metrics.count_hits(hits)
        if metrics.trace is not None:
            metrics.trace.waited.append((began, time.monotonic()))
            self._trace(found, "shared" if hits.get("shared") and not hits.get("disk") else "disk")
        # a checksum proves that an entry was not changed, not that the bytes were right when they were put
        return {key: value for key, value in found.items() if len(value) == key.stop - key.start}

    async def _from_store(
        self,
        missing: Sequence[ContentKey],
        found: dict[ContentKey, Any],
        context: RequestContext,
        arrivals: Arrivals | None,
    ) -> list[ContentKey]:
        """Fetch ``missing`` and add the parts to ``found``: join fetches that run already, start the others, and wait
        for all. ``arrivals`` is told of each fetch that ends. Return the keys of the fetches that this call started.
        """
        source, metrics = self.source, self.metrics
        waits: dict[Flight[_Fetched], list[ContentKey]]
        waits, rest = source.runtime.flights.split(missing)
        merged: tuple[list[ContentKey], tuple[list[_Range], int]] | None = None
        if len(rest) > INLINE_STEPS * PARTS_A_STEP:
            merged = rest, await source.runtime.in_thread(partial(self._ranges, rest))
            waits, rest = source.runtime.flights.split(missing)  # another read may have begun to fetch some
        for flight in waits:
            flight.join()
        measured = None
        metrics.wait_begins()
        try:
            if rest:
                ranges, part_bytes = merged[1] if merged and merged[0] == rest else self._ranges(rest)
                sizes = [stop - start for start, stop, _ in ranges]
                if not waits and not source.is_here:
                    measured = MeasuredRound(source, metrics.log, sizes, part_bytes)
                turns = _AT_ONCE if arrivals is None else _Turns(self.prices, sizes)
                for task in _tasks(ranges) if source.is_here else [[item] for item in ranges]:
                    keys = task[0].keys if len(task) == 1 else [key for item in task for key in item.keys]
                    flight = source.runtime.flights.start(keys, partial(self._fetch, task, part_bytes, context, turns))
                    flight.join()
                    waits[flight] = keys
            if arrivals is None:
                await landing(waits)
            else:
                with _told(arrivals, waits):
                    await landing(waits)
            for flight, fetched in ended(waits):
                # a response to a request from before this read validates by its age alone
                self.current |= fetched.validated and flight.began >= self.began
                keys, data = waits[flight], fetched.data
                # all of them, whose hashes are known, or some
                found.update(data if len(keys) == len(data) else {key: data[key] for key in keys})
            if measured is not None:
                measured.ended()
        finally:
            if measured is not None:
                measured.close()
            for flight in waits:
                flight.leave()
            metrics.wait_ends()
        return rest

    def _ranges(self, keys: list[ContentKey]) -> tuple[list[_Range], int]:
        """Merge the parts to the ranges to fetch. Return these, and the size in bytes to which longer ones are cut."""
        prices = self.prices
        if len(keys) == 1:
            (key,) = keys
            size = key.stop - key.start
            part_bytes = size if size <= min(MIB, prices.most_part_bytes) else prices.part_bytes(size)
            return [_Range(key.start, key.stop, keys)], part_bytes
        ordered = sorted(keys, key=_start)
        # ranges are cut inside the flight, which joins what a cut divides
        _, _, starts, stops = zip(*ordered, strict=True)
        ranges: list[_Range] = []
        position = size = 0
        for start, stop in prices.merge(starts, stops):
            first, position = position, bisect_left(starts, stop, position)
            ranges.append(_Range(start, stop, ordered[first:position]))
            size += stop - start
        return ranges, prices.part_bytes(size)

    async def _fetch(
        self,
        ranges: Sequence[_Range],
        part_bytes: int,
        context: RequestContext,
        turns: AbstractAsyncContextManager[None],
    ) -> _Fetched:
        """Fetch ``ranges`` one after the other. One that is longer than ``part_bytes`` is fetched by several concurrent
        requests. Each request is sent inside ``turns``."""
        data: dict[ContentKey, bytes | memoryview] = {}
        validated = False
        for start, stop, keys in ranges:
            if stop - start <= part_bytes:
                results = [await self._get(start, stop, context, turns)]
            else:
                results = await self._get_each(cut(ByteRange(start, stop), part_bytes), context, turns)
            if len(keys) <= PARTS_A_STEP:
                data |= self._cut_out(keys, results)
            else:
                cut_out = partial(self._cut_out, keys, results)
                data |= await self.source.runtime.off_loop(cut_out, len(keys) // PARTS_A_STEP)
            validated |= results[0].validates or any(result.validates for result in results)
        return _Fetched(data, validated)

    async def _get_each(
        self, ranges: Iterable[ByteRange], context: RequestContext, turns: AbstractAsyncContextManager[None]
    ) -> list[RangeResult]:
        """Fetch ``ranges`` concurrently, and return their results in order."""
        return await results_of([self._get(start, stop, context, turns) for start, stop in ranges])

    async def _get(
        self, start: int, stop: int, context: RequestContext, turns: AbstractAsyncContextManager[None]
    ) -> RangeResult:
        source = self.source
        async with turns:
            sent = time.monotonic()
            result = await source.handle.fetch_range(start, stop, context=context, pin=self.version.validator)
        source.freshness.validated_by(result, self.version, sent)
        return result

    def _cut_out(
        self, keys: Sequence[ContentKey], results: Sequence[RangeResult]
    ) -> dict[ContentKey, bytes | memoryview]:
        """Cut the parts ``keys`` out of ``results``, the responses for adjacent ranges, and return them by key."""
        parts: dict[ContentKey, bytes | memoryview]
        if len(results) == 1:
            data, start = results[0].data, keys[0].start
            if len(keys) > 1:
                data = memoryview(data)
            # What is used once, together, is a view. What is kept is copied: a view keeps the whole response in memory.
            used_once = ("part",) if self.admit else ("part", "page")
            parts = {}
            for key in keys:
                part = data if len(keys) == 1 else data[key.start - start : key.stop - start]
                parts[key] = part if key.kind in used_once else bytes(part)
        else:
            parts = {key: _joined(results, key) for key in keys}
        if self.admit:
            self._keep_pages(parts)
        return parts

    def _keep_pages(self, parts: Mapping[ContentKey, bytes | memoryview]) -> None:
        """Put the pages among ``parts`` into the memory cache. The callers put parts of other kinds there, once parsed
        or decoded."""
        pages: dict[ContentKey, bytes] = {}
        for key, value in parts.items():
            if key.kind == "page":
                pages[key] = bytes(value)
        if pages:
            self.source.runtime.memory.put_many(pages, scan=self.probation)

    def _trace(self, keys: Iterable[ContentKey], tier: Tier) -> None:
        """Record in the metrics' trace that the parts come from ``tier``."""
        if (trace := self.metrics.trace) is not None:
            trace.parts += [TracedPart(self.version.url, key.kind, key.start, key.stop, tier) for key in keys]


#: A read of a Parquet file.
FileRead: TypeAlias = ObjectRead[FileVersion]


@contextmanager
def _told(arrivals: Arrivals, flights: Iterable[Flight[_Fetched]]) -> Iterator[None]:
    """Tell ``arrivals`` of each of ``flights`` that ends well in the block."""
    landed, tasks = arrivals.landed, [flight.task for flight in flights]

    def tell(task: asyncio.Task[_Fetched]) -> None:
        if not task.cancelled() and task.exception() is None:
            landed(task.result().data)

    for task in tasks:
        task.add_done_callback(tell)
    try:
        yield
    finally:
        for task in tasks:
            task.remove_done_callback(tell)


def _tasks(ranges: Sequence[_Range]) -> list[list[_Range]]:
    """Distribute the ranges over tasks: small ones share a task, which fetches them one after another."""
    tasks: list[list[_Range]] = []
    few: list[_Range] = []
    left = 0
    for item in ranges:
        size = item.stop - item.start
        if size > _FEW_BYTES:
            tasks.append([item])
            continue
        if size > left:
            tasks.append(few := [])
            left = _TASK_BYTES
        few.append(item)
        left -= size
    return tasks


def _joined(results: Sequence[RangeResult], key: ContentKey) -> bytes | memoryview:
    """Return the bytes of the part ``key``, joined from ``results``, the responses for adjacent ranges."""
    pieces = [
        memoryview(result.data)[max(0, key.start - result.start) : key.stop - result.start]
        for result in results
        if result.start < key.stop and key.start < result.stop
    ]
    return pieces[0] if key.kind == "part" and len(pieces) == 1 else b"".join(pieces)
