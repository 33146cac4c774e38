"""The cache tiers outside this process: their contract, the order in which reads use them, and their backoff.

The memory tier holds parsed values and is asked directly. Each tier verifies its bytes (version, checksum,
authentication): a doubtful entry is a miss.

A read asks each tier once, for all parts that memory lacks. Parts that the store sent are put into the tiers in the
background, after they were parsed or decoded without an error; a session that closes waits ``FLUSH_S`` seconds for
this. Not put into tiers: objects whose versions the store cannot tell apart, encrypted and local files, and files that
an index build reads once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.storage.threads import end_tasks
from asyncpq.waiting import wait_futures

# Constants, not options: exceeding them costs a later hit, never a read. Pending puts are memory outside of any budget.
PENDING_BYTES = 64 << 20  # further puts are dropped
PENDING_PUTS = 256  # likewise: small puts cost a tier more than their bytes
# Bounds the end of a worker, which should not lose what it has just fetched: PENDING_BYTES at 32 MiB/s.
FLUSH_S = 2.0


class CacheTier(Protocol):
    """One tier of cached bytes, shared with other processes or hosts.

    A failing tier behaves like an empty one and does not raise, so a read never loses rows by it.
    """

    @property
    def name(self) -> str:
        """The tier's name in metrics: "disk" or "shared"."""

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        """Return the bytes of each key in order, None for a key that the tier lacks. Takes one request for all keys."""

    @property
    def max_read_bytes(self) -> int:
        """The largest read, in bytes, whose entries are put into this tier: a larger read would evict too much."""

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        """Store entries. With ``scan``, the entries come from a scan, and must not evict entries that lookups use."""

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        """Return the stored version of an object; None if the tier lacks it."""

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Store the version of an object, unless the tier has one that was validated later."""

    async def drop_pointer(self, key: PointerKey) -> None:
        """Remove the version of an object, since it has changed; do nothing if the tier lacks it."""

    async def close(self) -> None:
        """Release files and connections. Later calls find and store nothing. Idempotent."""


class Tiers:
    """The cache tiers outside the process that one session uses, nearest first. Belongs to one event loop."""

    def __init__(self, tiers: Sequence[CacheTier]) -> None:
        self._tiers = tuple(tiers)
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tiers)

    def take(self, read_bytes: int) -> bool:
        """Return whether any tier stores entries of a read that fetches ``read_bytes`` bytes in all."""
        return any(read_bytes <= tier.max_read_bytes for tier in self._tiers)

    async def get_many(
        self, keys: Sequence[ContentKey], *, read_bytes: int = 0, scan: bool = False
    ) -> tuple[dict[ContentKey, bytes], dict[str, int]]:
        """Return two mappings: cached bytes by key, and numbers of hits by the tier's name. ``keys`` are distinct.

        Each tier is asked only for what the tiers before it lack. A hit is copied to the tiers before it, as
        :meth:`put_many` does with ``read_bytes`` and ``scan``.
        """
        values_by_key: dict[ContentKey, bytes] = {}
        hits_by_tier: dict[str, int] = {}
        missing = list(keys)
        for depth, tier in enumerate(self._tiers):
            if not missing:
                break
            values = await tier.get_many(missing)
            hits = {key: value for key, value in zip(missing, values, strict=True) if value is not None}
            if hits:
                hits_by_tier[tier.name] = len(hits)
                self._put(self._tiers[:depth], hits, read_bytes, scan)
                values_by_key.update(hits)
                missing = [key for key in missing if key not in hits]
        return values_by_key, hits_by_tier

    def put_many(self, entries: Mapping[ContentKey, bytes], *, read_bytes: int = 0, scan: bool = False) -> None:
        """Put ``entries`` into every tier, in the background. A tier is left out if its ``max_read_bytes`` is below
        ``read_bytes``, the size of the whole read. ``scan``: the entries come from a scan."""
        self._put(self._tiers, entries, read_bytes, scan)

    def _put(
        self, tiers: Sequence[CacheTier], entries: Mapping[ContentKey, bytes], read_bytes: int, scan: bool
    ) -> None:
        tiers = [tier for tier in tiers if read_bytes <= tier.max_read_bytes]
        size = sum([len(value) for value in entries.values()])
        if tiers and entries and len(self._tasks) < PENDING_PUTS and self._pending_bytes + size <= PENDING_BYTES:
            self._pending_bytes += size
            self._soon(self._put_all(tiers, entries, scan, size))

    async def _put_all(
        self, tiers: Sequence[CacheTier], entries: Mapping[ContentKey, bytes], scan: bool, size: int
    ) -> None:
        try:
            for tier in tiers:
                await tier.put_many(entries, scan=scan)
        finally:
            self._pending_bytes -= size

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        """Return the pointer from the nearest tier that has one, and put it into the tiers above; None if none has."""
        for depth, tier in enumerate(self._tiers):
            pointer = await tier.get_pointer(key)
            if pointer is not None:
                for upper in self._tiers[:depth]:
                    self._soon(upper.put_pointer(key, pointer))
                return pointer
        return None

    def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Put the pointer into every tier, in the background."""
        for tier in self._tiers if len(self._tasks) < PENDING_PUTS else ():
            self._soon(tier.put_pointer(key, pointer))

    async def drop_pointer(self, key: PointerKey) -> None:
        """Remove the pointer from every tier, since the object has changed."""
        for tier in self._tiers:
            await tier.drop_pointer(key)

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait up to ``FLUSH_S`` for pending puts."""
        if self._tasks:
            await wait_futures(self._tasks, timeout=FLUSH_S)

    async def close(self) -> None:
        """Wait up to ``FLUSH_S`` for pending puts, then close the tiers. Idempotent."""
        try:
            await self.flush()
        finally:
            await end_tasks(self._tasks)
            for tier in self._tiers:
                await tier.close()


class TierCounters:
    """Base class of tiers that count hits, misses, errors, skipped calls and evictions."""

    def __init__(self) -> None:
        self.hits = 0  # entries that the tier returned, pointers included
        self.misses = 0  # entries that the tier answered that it lacks; entries without an answer are not counted
        self.errors = 0  # calls that failed in part or whole, or timed out; commands that a server refused
        self.skipped = 0  # calls not made, since the tier had just failed or is closed
        self.evictions = 0  # entries that this process removed to keep a budget, without a server's own evictions

    def counters(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in ("hits", "misses", "errors", "skipped", "evictions")}


class Backoff:
    """Pauses a tier after ``failures`` failed calls in a row. After a pause one call probes the tier; the others wait
    until that call succeeds. The first pause lasts ``first_s`` seconds; each failed probe doubles the pause, up to
    ``longest_s``."""

    def __init__(
        self,
        *,
        failures: int = 3,
        first_s: float = 1.0,
        longest_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._failures = 0
        self._until = float("-inf")
        self._probe: Attempt | None = None

    def begin(self) -> Attempt | None:
        """Return an attempt, which permits one call and takes the report of its outcome; None during a pause."""
        attempt = Attempt(self)
        if self._failures >= self._allowed:
            if self._probe is not None or self._clock() < self._until:
                return None
            self._probe = attempt
        return attempt

    def count_failure(self, attempt: Attempt) -> bool:
        """Count a failed call; return whether a pause begins. Calls that began before the current pause are ignored."""
        paused = self._failures >= self._allowed
        if paused and attempt is not self._probe:
            return False
        self._failures += 1
        beyond = self._failures - self._allowed
        if beyond >= 0:
            self._until = self._clock() + min(self._first_s * 2.0 ** min(beyond, 32), self._longest_s)
        return beyond >= 0 and not paused

    def count_success(self) -> bool:
        """Count a successful call, which resets the count of failures; return whether the call ends a pause."""
        paused = self._failures >= self._allowed
        self._failures = 0
        return paused

    def end(self, attempt: Attempt) -> None:
        """If ``attempt`` was the probe after a pause, let another call probe the tier. Does nothing otherwise."""
        if attempt is self._probe:
            self._probe = None


class Attempt:
    """A call that :class:`Backoff` permitted. Only the first report of the call's outcome counts."""

    __slots__ = ("_backoff",)

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Backoff | None = backoff

    def failed(self) -> bool:
        """Report that the call failed; return whether a pause of the tier begins."""
        backoff = self._backoff
        begins = backoff is not None and backoff.count_failure(self)
        self.withdrawn()
        return begins

    def succeeded(self) -> bool:
        """Report that the call succeeded; return whether that ends a pause of the tier."""
        backoff = self._backoff
        ends = backoff is not None and backoff.count_success()
        self.withdrawn()
        return ends

    def withdrawn(self) -> None:
        """Report that the call ended without a known outcome. Does nothing after another report."""
        if self._backoff is not None:
            self._backoff.end(self)
            self._backoff = None
