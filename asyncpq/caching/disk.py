"""The disk tier: a folder of cache entries, shared by all processes on a host.

A pointer (:mod:`asyncpq.caching.entry_format`) names the version that an object had when it was last seen. Dropping a
pointer takes effect at once, without waiting for the writing thread: later reads do not return it, and queued writes
skip it. If a disk call never returns, only its daemon thread waits for it, not the session or the process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from asyncpq.caching.disk_files import EntryFolder, Outcome, UnsafeFolderError
from asyncpq.caching.entry_format import ContentKey, EntryCodec, Pointer, PointerKey, decode_pointer, encode_pointer
from asyncpq.caching.tiers import Attempt, Backoff, TierCounters
from asyncpq.errors import InvalidOptionError
from asyncpq.options import DiskCacheOptions
from asyncpq.storage.threads import Threads
from asyncpq.waiting import wait_futures

_READERS = 2
_WRITERS = 1  # one thread: an entry folder allows one writer; readers do not wait for it
_LARGEST_READ = 16  # a read of more than 1/16 of the budget is not kept
_MAX_DROPPED = 1024  # dropped pointers that are remembered while the disk may still hold them
_WRITTEN_AT = struct.Struct("<d")  # precedes a pointer: time.time() of the write

logger: logging.Logger = logging.getLogger(__name__)


class DiskCache(TierCounters):
    """The cache tier in a folder on disk (:class:`asyncpq.caching.tiers.CacheTier`). For one event loop at a time.

    If the folder or the disk fails, a read is a miss and a written value is not kept. After repeated failures or
    timeouts the cache does not use the disk for a while. Reads and writes pause separately: full disks can be read.
    """

    name: Final = "disk"

    def __init__(self, options: DiskCacheOptions) -> None:
        super().__init__()
        self._path = os.path.abspath(os.path.expanduser(options.path))
        self._max_read_bytes = options.max_bytes // _LARGEST_READ
        self._timeout_s = options.timeout_s
        # without a secret: only this user can change entries in a folder of mode 0700
        self._folder = EntryFolder(self._path, options.max_bytes, EntryCodec(None))
        self._threads: _Threads | None = None
        self._closed = False
        self._reading = Backoff()
        self._writing = Backoff()
        self._pointers = _PointerChanges()

    def __repr__(self) -> str:
        return f"DiskCache({self._path!r})"

    async def open(self) -> None:
        """Make the folder if it does not exist. A folder that cannot be made or read is not an error: the cache stays
        empty. Raises InvalidOptionError if the path is a link or no folder, or another user owns or can write it."""
        attempt = self._begin(self._reading)
        if attempt is None:
            return
        try:
            preparing = self._start_threads().reading.start(self._folder.prepare)
            done, _ = await wait_futures((preparing,), timeout=self._timeout_s)
            if not done:
                raise self._no_answer()
            preparing.result()
        except UnsafeFolderError as error:
            raise InvalidOptionError(
                f"the disk cache's folder {self._path} {error}",
                hint="Name a folder that is yours alone (mode 0700), or one that does not exist yet.",
            ) from error
        except OSError as error:
            self._failed(attempt, "reads", error)
        finally:
            attempt.withdrawn()

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        return await self._read([key.encode() for key in keys]) if keys else []

    @property
    def max_read_bytes(self) -> int:
        return self._max_read_bytes

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        attempt = self._begin(self._writing) if entries else None
        if attempt is not None:
            values = {key.encode(): value for key, value in entries.items()}
            await self._written(attempt, self._start_threads().writing.start(self._folder.write_many, values, scan))

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        name = key.encode()
        (value,) = await self._read([name])
        return None if value is None or self._pointers.is_dropped(name) else _decode_pointer(value)

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Write ``pointer`` (the object's last seen version), unless the pointer on the disk was validated later."""
        attempt = self._begin(self._writing)
        if attempt is None:
            return
        name = key.encode()
        change = self._pointers.begin_put(name)

        def ended(future: asyncio.Future[Outcome]) -> None:
            done = not future.cancelled() and future.exception() is None and future.result().error is None
            self._pointers.end_put(name, change, done)

        running = self._start_threads().writing.start(self._put_pointer, name, pointer, change)
        running.add_done_callback(ended)
        await self._written(attempt, running)

    def _put_pointer(self, name: bytes, pointer: Pointer, change: int) -> Outcome:
        """Write the pointer, in the writing thread. Does nothing if the pointer was dropped after this put (number
        ``change``) began, or if the disk has a pointer that was validated later."""
        dropped = self._pointers.dropped_at(name)
        if dropped > change:
            return Outcome([])
        value = None if dropped else self._folder.read_many([name], Outcome([None])).values[0]
        present = None if value is None else _decode_pointer(value)
        if present is not None and present.validated_at > pointer.validated_at:
            return Outcome([])
        if dropped:
            removal = self._folder.drop(name)
            if removal.error is not None:
                return removal
        try:
            value = _encode_pointer(pointer)
        except ValueError:
            return Outcome([])  # an impossible size
        outcome = self._folder.write_many({name: value})
        if self._pointers.dropped_at(name) > change:  # during the write
            outcome.error = self._folder.drop(name).error or outcome.error
        return outcome

    async def drop_pointer(self, key: PointerKey) -> None:
        """Hide the pointer from this process at once, and try to remove it from the disk."""
        attempt = self._begin(self._reading)
        if self._closed:
            return
        name = key.encode()
        change = self._pointers.drop(name)
        if attempt is None:
            return
        # also while writes are paused: a full disk can still remove files
        writing = self._writing.begin()
        try:
            outcome = await self._answer(attempt, self._start_threads().reading.start(self._folder.drop, name))
            if outcome is None:
                return
            attempt.succeeded()
            if outcome.error is not None:
                self._failed(writing, "writes", outcome.error)
                return
            self._pointers.removed(name, change)
        finally:
            attempt.withdrawn()
            if writing is not None:
                writing.withdrawn()  # a removal does not prove that writes work

    async def close(self) -> None:
        """Wait up to ``timeout_s`` each for the running writes and reads, and end the threads. Idempotent."""
        self._closed = True
        threads, self._threads = self._threads, None
        if threads is not None and threads.process == os.getpid():
            await threads.writing.close(self._timeout_s)
            await threads.reading.close(self._timeout_s)

    async def _read(self, keys: list[bytes]) -> list[bytes | None]:
        attempt = self._begin(self._reading)
        if attempt is None:
            return [None] * len(keys)
        asked = Outcome([None] * len(keys))
        try:
            reading = self._start_threads().reading.start(self._folder.read_many, keys, asked)
            outcome = await self._answer(attempt, reading)
            if outcome is not None:
                self._ended(attempt, "reads", outcome)
        finally:
            attempt.withdrawn()
            asked.abandoned = True
        values = list(asked.values)
        hits = len(values) - values.count(None)
        self.hits += hits
        if outcome is not None and outcome.error is None:
            self.misses += len(values) - hits
        return values

    async def _answer(self, attempt: Attempt, reading: asyncio.Future[Outcome]) -> Outcome | None:
        """Wait for ``reading`` and return its outcome; None if the read takes longer than ``timeout_s``, or was
        cancelled. A timeout counts as a failure of ``attempt``."""
        done, _ = await wait_futures((reading,), timeout=self._timeout_s)
        if not done:
            self._failed(attempt, "reads", self._no_answer())
        return reading.result() if done and not reading.cancelled() else None

    async def _written(self, attempt: Attempt, writing: asyncio.Future[Outcome]) -> None:
        """Wait for ``writing``, count its outcome, and report it to ``attempt``. There is no timeout: the values stay
        in memory until the write ends, and the caller counts their bytes."""
        try:
            await wait_futures((writing,))
            if not writing.cancelled():  # by close()
                self._ended(attempt, "writes", writing.result())
        finally:
            attempt.withdrawn()

    def _begin(self, backoff: Backoff) -> Attempt | None:
        attempt = None if self._closed else backoff.begin()
        self.skipped += attempt is None
        return attempt

    def _ended(self, attempt: Attempt, calls: str, outcome: Outcome) -> None:
        self.evictions += outcome.evicted
        if outcome.error is not None:
            self._failed(attempt, calls, outcome.error)
        elif attempt.succeeded():
            logger.info("the disk cache in %s: %s succeed again", self._path, calls)

    def _failed(self, attempt: Attempt | None, calls: str, error: OSError) -> None:
        self.errors += 1
        if attempt is not None and attempt.failed():
            logger.warning("the disk cache in %s: %s fail and are paused for a while: %s", self._path, calls, error)

    def _no_answer(self) -> TimeoutError:
        return TimeoutError(f"the disk did not answer within {self._timeout_s} s")

    def _start_threads(self) -> _Threads:
        """Return the reading and the writing thread of this process; start those that do not run (as after a fork)."""
        if self._threads is None or self._threads.process != os.getpid():
            self._threads = _Threads()
        return self._threads


class _PointerChanges:
    """Orders the drops and puts of pointers, so that a drop takes effect at once, without waiting for running writes.

    A dropped pointer counts as missing until the disk has removed it. A put that began before the drop does not write
    the pointer. Each drop or put is a change, numbered from 1 in the order in which they began. ``name`` is the
    pointer's encoded key.
    """

    def __init__(self) -> None:
        self._dropped: dict[bytes, int] = {}  # numbers of the drops
        self._removed: set[bytes] = set()  # dropped names that are gone from the disk
        self._putting: Counter[bytes] = Counter()
        self._last = 0

    def __len__(self) -> int:
        """Return the number of pointers that have a drop or put in progress."""
        return len(self._dropped) + len(self._putting)

    def is_dropped(self, name: bytes) -> bool:
        return name in self._dropped

    def dropped_at(self, name: bytes) -> int:
        """Return the number of the drop that hides the pointer ``name``; 0 if the pointer is not dropped."""
        return self._dropped.get(name, 0)

    def begin_put(self, name: bytes) -> int:
        """Record that a put of the pointer begins; return the number of this change."""
        self._last += 1
        self._putting[name] += 1
        return self._last

    def end_put(self, name: bytes, change: int, done: bool) -> None:
        """Record that the put with number ``change`` has ended; ``done`` is True if there was no error."""
        self._putting[name] -= 1
        if not self._putting[name]:
            del self._putting[name]
        dropped = self.dropped_at(name)
        if done and dropped and (dropped < change or (name in self._removed and name not in self._putting)):
            self._forget(name)

    def drop(self, name: bytes) -> int:
        """Record that the pointer is dropped, which hides it; return the number of this change."""
        self._last += 1
        self._forget(name)
        self._dropped[name] = self._last
        while len(self._dropped) > _MAX_DROPPED:
            self._forget(next(iter(self._dropped)))
        return self._last

    def removed(self, name: bytes, change: int) -> None:
        """Record that the disk has removed the pointer that the drop with number ``change`` hid."""
        if self.dropped_at(name) != change:
            return
        if name in self._putting:
            self._removed.add(name)
        else:
            self._forget(name)

    def _forget(self, name: bytes) -> None:
        self._dropped.pop(name, None)
        self._removed.discard(name)


class _Threads:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.reading = Threads(_READERS, "asyncpq-disk-read")
        self.writing = Threads(_WRITERS, "asyncpq-disk-write")


# Two clocks are read one after the other, in the order in which a pause between them makes the pointer older, never
# younger.


def _encode_pointer(pointer: Pointer) -> bytes:
    written_at = time.time()
    age_s = max(time.monotonic() - pointer.validated_at, 0.0)
    return _WRITTEN_AT.pack(written_at) + encode_pointer(pointer.validator, age_s)


def _decode_pointer(value: bytes) -> Pointer | None:
    if len(value) < _WRITTEN_AT.size:
        return None
    (written_at,) = _WRITTEN_AT.unpack_from(value)
    decoded = decode_pointer(value[_WRITTEN_AT.size :])
    if decoded is None:
        return None
    validator, age_s = decoded
    now = time.monotonic()
    kept_s = time.time() - written_at
    # if the clock was set back, the age is unknown
    return Pointer(validator, now - age_s - kept_s if kept_s >= 0 else -math.inf)
