"""What a cache tier outside this process offers, and how tiers are asked one after another.

The memory tier holds parsed values and is asked directly; these tiers hold bytes. Whatever they
return was verified by them (version, checksum, authentication): a doubtful entry is a miss.

What a cache tier counts, alike for all of them.

When to leave a failing tier alone, and when to ask it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from asyncpq.caching.entry import ContentKey, Pointer, PointerKey

# No options: what they cost is a later hit, never a read. More than what comes in while a tier is busy with one put
# would be memory that no budget knows of.
PENDING_BYTES = 64 << 20  # on their way into the tiers; what comes on top of that is not kept there
PENDING_PUTS = 256  # and so many puts: small ones cost a tier more than their bytes
# A worker that ends must not lose what it has just fetched, and must end whatever the disk does: a disk takes
# PENDING_BYTES in this time at 32 MiB/s.
FLUSH_S = 2.0


class CacheTier(Protocol):
    """One tier of cached bytes, shared with other processes or hosts.

    A tier that fails answers as if it were empty and does not raise: it must never cost a read its
    rows.
    """

    @property
    def name(self) -> str:
        """ "disk" or "shared", for metrics."""

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        """One multi-get: the bytes of each key, or None."""

    @property
    def max_read_bytes(self) -> int:
        """What a read that takes more than this brings is not put here: it would push out too much."""

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        """Keep entries; those that a ``scan`` brought must not push out what lookups use."""

    async def get_pointer(self, key: PointerKey) -> Pointer | None: ...

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None: ...

    async def drop_pointer(self, key: PointerKey) -> None: ...

    async def close(self) -> None: ...


class Tiers:
    """The tiers of one session, nearest first. Belongs to one event loop."""

    def __init__(self, tiers: Sequence[CacheTier]) -> None:
        self._tiers = tuple(tiers)
        self._pending_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tiers)

    def take(self, read_bytes: int) -> bool:
        """Whether any tier keeps what a read of so many bytes brings."""
        return any(read_bytes <= tier.max_read_bytes for tier in self._tiers)

    async def get_many(
        self, keys: Sequence[ContentKey], *, read_bytes: int = 0, scan: bool = False
    ) -> tuple[dict[ContentKey, bytes], dict[str, int]]:
        """Ask each tier for what the tiers above it did not have; what a lower tier had is put above it.

        Args:
            keys: distinct.
            read_bytes, scan: as in :meth:`put_many`.

        Returns:
            The bytes that were found, and how many entries of them by the name of the tier.
        """
        found: dict[ContentKey, bytes] = {}
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
                found.update(hits)
                missing = [key for key in missing if key not in hits]
        return found, hits_by_tier

    def put_many(self, entries: Mapping[ContentKey, bytes], *, read_bytes: int = 0, scan: bool = False) -> None:
        """Have ``entries`` kept in every tier, some time after this call.

        Args:
            read_bytes: what the read that they are of takes in all; a tier that this is too much for does not get them.
            scan: that read is a scan.
        """
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
        """The nearest tier's, which every tier above it may serve from now on."""
        for depth, tier in enumerate(self._tiers):
            pointer = await tier.get_pointer(key)
            if pointer is not None:
                for upper in self._tiers[:depth]:
                    self._soon(upper.put_pointer(key, pointer))
                return pointer
        return None

    def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Have the pointer kept in every tier, some time after this call."""
        for tier in self._tiers if len(self._tasks) < PENDING_PUTS else ():
            self._soon(tier.put_pointer(key, pointer))

    async def drop_pointer(self, key: PointerKey) -> None:
        for tier in self._tiers:
            await tier.drop_pointer(key)

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Let what is on its way arrive, for a moment; then close the tiers. Idempotent."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=FLUSH_S)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            for tier in self._tiers:
                await tier.close()


class TierCounters:
    """Base of the tiers that are counted.

    Attributes:
        hits: entries that were asked for and found, pointers included.
        misses: those that the tier answered not to have; what it did not answer is none.
        errors: calls that failed, in part or whole, or were not answered in time; commands that a server refused.
        skipped: calls that were not made: the tier had failed shortly before, or is closed.
        evictions: entries that this process removed to keep a budget. What a server removes is not known here.
    """

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.errors = 0
        self.skipped = 0
        self.evictions = 0

    def counters(self) -> dict[str, int]:
        """All of these, by name, as of now."""
        return {
            "hits": self.hits,
            "misses": self.misses,
            "errors": self.errors,
            "skipped": self.skipped,
            "evictions": self.evictions,
        }


class Backoff:
    """Counts failures in a row. After some of them the tier is left alone; then one call goes first, and the others
    if it succeeds. Each time that it fails the pause is longer.

    Args:
        failures: in a row that the pause begins with.
        first_s: the first pause; each further failure doubles it.
        longest_s: no pause is longer.
        clock: seconds that never go back.
    """

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
        """One call that may be made now, which must be told how it ended; None: leave the tier alone."""
        attempt = Attempt(self)
        if self._failures >= self._allowed:
            if self._probe is not None or self._clock() < self._until:
                return None
            self._probe = attempt
        return attempt

    def _failed(self, attempt: Attempt) -> bool:
        paused = self._failures >= self._allowed
        if paused and attempt is not self._probe:
            return False  # it had begun before
        self._failures += 1
        beyond = self._failures - self._allowed
        if beyond >= 0:
            self._until = self._clock() + min(self._first_s * 2.0 ** min(beyond, 32), self._longest_s)
        return beyond >= 0 and not paused

    def _succeeded(self) -> bool:
        paused = self._failures >= self._allowed
        self._failures = 0
        return paused

    def _ended(self, attempt: Attempt) -> None:
        if attempt is self._probe:
            self._probe = None


class Attempt:
    """A call that :class:`Backoff` allowed. Tell it one of these; what comes after that changes nothing."""

    __slots__ = ("_backoff",)

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Backoff | None = backoff

    def failed(self) -> bool:
        """True if the tier is left alone from now on."""
        backoff = self._backoff
        begins = backoff is not None and backoff._failed(self)
        self.withdrawn()
        return begins

    def succeeded(self) -> bool:
        """True if the tier was left alone until now."""
        backoff = self._backoff
        ends = backoff is not None and backoff._succeeded()
        self.withdrawn()
        return ends

    def withdrawn(self) -> None:
        """Nobody knows how it would have ended."""
        if self._backoff is not None:
            self._backoff._ended(self)
            self._backoff = None
