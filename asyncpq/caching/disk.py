"""The disk tier: a folder of entries, shared by all processes on a host."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from asyncpq.caching.entry import ContentKey, EntryCodec, Pointer, PointerKey, decode_pointer, encode_pointer
from asyncpq.caching.entry_folder import EntryFolder, Outcome, UnsafeFolderError
from asyncpq.caching.tiers import Attempt, Backoff, TierCounters
from asyncpq.errors import InvalidOptionError
from asyncpq.options import DiskCacheOptions
from asyncpq.storage.concurrency import Threads

_READERS = 2
_WRITERS = 1  # what a folder can take; readers do not wait for it
_LARGEST_READ = 16  # what a read of more than 1/16 of the budget brings is not kept
_MAX_DROPPED = 1024  # so many pointers are remembered that a disk did not let go of
_WRITTEN_AT = struct.Struct("<d")  # before a pointer: time.time() when it was written

logger = logging.getLogger(__name__)


class DiskCache(TierCounters):
    """See :class:`asyncpq.caching.tiers.CacheTier`. Belongs to one event loop at a time.

    Whatever goes wrong with the folder or the disk is a miss, or a value that is not kept. After
    repeated failures, and where the disk does not answer in time, it is left alone for a while: for
    reads and for writes apart, as a full disk can still be read.
    """

    name: Final = "disk"

    def __init__(self, options: DiskCacheOptions) -> None:
        super().__init__()
        self._path = os.path.abspath(os.path.expanduser(options.path))
        self._max_read_bytes = options.max_bytes // _LARGEST_READ
        self._timeout_s = options.timeout_s
        # without a secret: whoever could change an entry in a folder of mode 0700 is this user
        self._folder = EntryFolder(self._path, options.max_bytes, EntryCodec(None))
        self._threads: _Threads | None = None
        self._closed = False
        self._reading = Backoff()
        self._writing = Backoff()
        # Dropping a pointer does not queue behind the writes. Until those that were put before are through and the
        # disk has let go of it, it is not found, nor put by them.
        self._dropped: dict[bytes, _Dropped] = {}
        self._putting: Counter[bytes] = Counter()
        self._changes = 0  # of pointers: what came first has the lower number

    def __repr__(self) -> str:
        return f"DiskCache({self._path!r})"

    async def open(self) -> None:
        """Make the folder if it is not there. A folder that cannot be made, or read, is no error: see above.

        Raises:
            InvalidOptionError: the path is a link or no folder, or not this user's alone.
        """
        attempt = self._begin(self._reading)
        if attempt is None:
            return
        try:
            preparing = self._start_threads().reading.start(self._folder.prepare)
            done, _ = await asyncio.wait((preparing,), timeout=self._timeout_s)
            if not done:
                raise self._no_answer()
            preparing.result()
        except UnsafeFolderError as error:
            raise InvalidOptionError(
                f"the disk cache's folder {self._path} {error}",
                hint="Name a folder that is yours alone (mode 0700), or one that is not there yet.",
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
        return None if value is None or name in self._dropped else _decode_pointer(value)

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Keep ``pointer``, unless the one that is there was validated later."""
        attempt = self._begin(self._writing)
        if attempt is None:
            return
        name = key.encode()
        self._changes += 1
        change = self._changes

        def put() -> Outcome:
            dropped = self._dropped.get(name)
            if dropped is None:
                (value,) = self._folder.read_many([name], Outcome([None])).values
                present = None if value is None else _decode_pointer(value)
                if present is not None and present.validated_at > pointer.validated_at:
                    return Outcome([])
            elif dropped.change > change:
                return Outcome([])
            elif (left := self._folder.drop(name)).error is not None:
                return left
            try:
                value = _encode_pointer(pointer)
            except ValueError:
                return Outcome([])  # a size that nobody can have
            outcome = self._folder.write_many({name: value})
            dropped = self._dropped.get(name)
            if dropped is not None and dropped.change > change:  # while it was written
                outcome.error = self._folder.drop(name).error or outcome.error
            return outcome

        def ended(future: asyncio.Future[Outcome]) -> None:
            self._putting[name] -= 1
            if not self._putting[name]:
                del self._putting[name]
            dropped = self._dropped.get(name)
            if dropped is None or future.cancelled() or future.exception() is not None:
                return
            if dropped.change < change:
                if future.result().error is None:
                    del self._dropped[name]
            elif dropped.removed and name not in self._putting and future.result().error is None:
                del self._dropped[name]

        self._putting[name] += 1
        running = self._start_threads().writing.start(put)
        running.add_done_callback(ended)
        await self._written(attempt, running)

    async def drop_pointer(self, key: PointerKey) -> None:
        """From now on this process does not find it, whatever the disk does; nor others, where the disk takes that."""
        attempt = self._begin(self._reading)
        if self._closed:
            return
        name = key.encode()
        self._changes += 1
        dropped = _Dropped(self._changes)
        self._dropped.pop(name, None)
        self._dropped[name] = dropped
        while len(self._dropped) > _MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]
        if attempt is None:
            return
        # tried while writes are left alone, too: a disk that takes nothing new may still let go of the old
        writing = self._writing.begin()
        try:
            outcome = await self._answer(attempt, self._start_threads().reading.start(self._folder.drop, name))
            if outcome is None:
                return
            attempt.succeeded()
            if outcome.error is not None:
                self._failed(writing, "writes", outcome.error)
                return
            dropped.removed = True
            if name not in self._putting and self._dropped.get(name) is dropped:
                del self._dropped[name]
        finally:
            attempt.withdrawn()
            if writing is not None:
                writing.withdrawn()  # that it lets go does not say that it takes anything

    async def close(self) -> None:
        """Waits for the writes and reads that have begun, each for ``timeout_s``, and ends the threads. Idempotent."""
        self._closed = True
        threads, self._threads = self._threads, None
        if threads is not None and threads.process == os.getpid():
            await threads.writing.close(self._timeout_s)
            await threads.reading.close(self._timeout_s)

    # -- threads --------------------------------------------------------------------------------

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
        """What came in time, if anything."""
        done, _ = await asyncio.wait((reading,), timeout=self._timeout_s)
        if not done:
            self._failed(attempt, "reads", self._no_answer())
        return reading.result() if done and not reading.cancelled() else None

    async def _written(self, attempt: Attempt, writing: asyncio.Future[Outcome]) -> None:
        """For as long as it takes: until then what is to be written is in memory, and counted by whoever waits."""
        try:
            await asyncio.wait((writing,))
            if not writing.cancelled():  # by close()
                self._ended(attempt, "writes", writing.result())
        finally:
            attempt.withdrawn()

    def _begin(self, backoff: Backoff) -> Attempt | None:
        attempt = None if self._closed else backoff.begin()
        self.skipped += attempt is None
        return attempt

    def _ended(self, attempt: Attempt, what: str, outcome: Outcome) -> None:
        self.evictions += outcome.evicted
        if outcome.error is not None:
            self._failed(attempt, what, outcome.error)
        elif attempt.succeeded():
            logger.info("the disk cache in %s: %s succeed again", self._path, what)

    def _failed(self, attempt: Attempt | None, what: str, error: OSError) -> None:
        self.errors += 1
        if attempt is not None and attempt.failed():
            logger.warning("the disk cache in %s: %s fail and are left alone for a while: %s", self._path, what, error)

    def _no_answer(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self._timeout_s} s")

    def _start_threads(self) -> _Threads:
        """This process's threads: those of a process that was forked are not in the child."""
        if self._threads is None or self._threads.process != os.getpid():
            self._threads = _Threads()
        return self._threads


@dataclass(slots=True)
class _Dropped:
    """A pointer that is not found any more.

    Attributes:
        change: number of this among the changes of pointers.
        removed: the disk has let go of what was there.
    """

    change: int
    removed: bool = False


class _Threads:
    def __init__(self) -> None:
        self.process = os.getpid()
        self.reading = Threads(_READERS, "asyncpq-disk-read")
        self.writing = Threads(_WRITERS, "asyncpq-disk-write")


# Two clocks are read one after the other, and time may pass in between: in the order in which a pointer
# comes out older than it is, never younger.


def _encode_pointer(pointer: Pointer) -> bytes:
    written_at = time.time()
    age_s = max(time.monotonic() - pointer.validated_at, 0.0)
    return _WRITTEN_AT.pack(written_at) + encode_pointer(pointer.validator, age_s)


def _decode_pointer(value: bytes) -> Pointer | None:
    if len(value) < _WRITTEN_AT.size:
        return None
    (written_at,) = _WRITTEN_AT.unpack_from(value)
    found = decode_pointer(value[_WRITTEN_AT.size :])
    if found is None:
        return None
    validator, age_s = found
    now = time.monotonic()
    kept_s = time.time() - written_at
    # where the clock went back, nobody knows how long ago that was
    return Pointer(validator, now - age_s - kept_s if kept_s >= 0 else -math.inf)
