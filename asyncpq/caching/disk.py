"""The disk tier: a folder of entries, shared by all processes on a host."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from asyncpq.caching.backoff import Backoff
from asyncpq.caching.entry import EntryCodec, decode_pointer, encode_pointer
from asyncpq.caching.entry_folder import EntryFolder, Outcome, UnsafeFolderError
from asyncpq.caching.keys import ContentKey, Pointer, PointerKey
from asyncpq.errors import InvalidOptionError
from asyncpq.options import DiskCacheOptions
from asyncpq.storage.threads import Threads

_READERS = 2
_WRITERS = 1  # what a folder can take; readers do not wait for it
_WRITTEN_AT = struct.Struct("<d")  # before a pointer: time.time() when it was written

logger = logging.getLogger(__name__)


class DiskCache:
    """See :class:`asyncpq.caching.tiers.CacheTier`. Belongs to one event loop at a time.

    Whatever goes wrong with the folder or the disk is a miss, or a value that is not kept. After
    repeated failures, and where the disk does not answer in time, it is left alone for a while: for
    reads and for writes apart, as a full disk can still be read.

    Attributes:
        hits, misses: content keys looked up.
        errors: batches that failed, in part or whole.
        evictions: entries that this process removed to keep the budget.
    """

    name: Final = "disk"

    def __init__(self, options: DiskCacheOptions) -> None:
        self._path = os.path.abspath(os.path.expanduser(options.path))
        self._timeout_s = options.timeout_s
        # without a secret: whoever could change an entry in a folder of mode 0700 is this user
        self._folder = EntryFolder(self._path, options.max_bytes, EntryCodec(None))
        self._threads: _Threads | None = None
        self._closed = False
        self._reading = Backoff()
        self._writing = Backoff()
        self.hits = 0
        self.misses = 0
        self.errors = 0
        self.evictions = 0

    def __repr__(self) -> str:
        return f"DiskCache({self._path!r})"

    async def open(self) -> None:
        """Make the folder if it is not there. A folder that cannot be made, or read, is no error: see above.

        Raises:
            InvalidOptionError: the path is a link or no folder, or not this user's alone.
        """
        preparing = self._start_threads().reading.start(self._folder.prepare)
        done, _ = await asyncio.wait((preparing,), timeout=self._timeout_s)
        try:
            if not done:
                raise TimeoutError(f"no answer within {self._timeout_s} s")
            preparing.result()
        except UnsafeFolderError as error:
            raise InvalidOptionError(
                f"the disk cache's folder {self._path} {error}",
                hint="Name a folder that is yours alone (mode 0700), or one that is not there yet.",
            ) from error
        except OSError as error:
            self._failed(self._reading, error)

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        if not keys:
            return []
        values = await self._read([key.encode() for key in keys])
        hits = sum(value is not None for value in values)
        self.hits += hits
        self.misses += len(values) - hits
        return values

    async def put_many(self, entries: Mapping[ContentKey, bytes]) -> None:
        if entries:
            values = {key.encode(): value for key, value in entries.items()}
            await self._write(self._folder.write_many, values)

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        (value,) = await self._read([key.encode()])
        return None if value is None else _decode_pointer(value)

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Keep ``pointer``, unless the one that is there was validated later."""
        name = key.encode()

        def put_newer() -> Outcome:
            (value,) = self._folder.read_many([name], Outcome([None])).values
            present = None if value is None else _decode_pointer(value)
            if present is not None and present.validated_at > pointer.validated_at:
                return Outcome([])
            try:
                value = _encode_pointer(pointer)
            except ValueError:
                return Outcome([])  # a size that nobody can have
            return self._folder.write_many({name: value})

        await self._write(put_newer)

    async def drop_pointer(self, key: PointerKey) -> None:
        """Tried in any case: a disk that takes nothing new may still let go of the old."""
        if not self._closed:
            dropping = self._start_threads().writing.start(self._folder.drop, key.encode())
            await self._wait(self._writing, dropping)

    async def close(self) -> None:
        """Waits for the writes that have begun, and ends the threads. Idempotent."""
        self._closed = True
        threads, self._threads = self._threads, None
        if threads is not None and threads.process == os.getpid():
            await threads.reading.close()
            await threads.writing.close()

    # -- threads --------------------------------------------------------------------------------

    async def _read(self, keys: list[bytes]) -> list[bytes | None]:
        outcome = Outcome([None] * len(keys))
        if not self._closed and self._reading.ready:
            reading = self._start_threads().reading.start(self._folder.read_many, keys, outcome)
            if not await self._wait(self._reading, reading):
                outcome.abandoned = True
        return list(outcome.values)

    async def _write(self, work: Callable[..., Outcome], *arguments: object) -> None:
        if not self._closed and self._writing.ready:
            writing = self._start_threads().writing.start(work, *arguments)
            # for as long as it takes: until then what is to be written is in memory, and counted by whoever waits
            await asyncio.wait((writing,))
            self._ended(self._writing, writing)

    async def _wait(self, backoff: Backoff, future: asyncio.Future[Outcome]) -> bool:
        """Whether it ended in time."""
        done, _ = await asyncio.wait((future,), timeout=self._timeout_s)
        if done:
            self._ended(backoff, future)
        else:
            self._failed(backoff, TimeoutError(f"no answer within {self._timeout_s} s"))
        return bool(done)

    def _ended(self, backoff: Backoff, future: asyncio.Future[Outcome]) -> None:
        if future.cancelled():
            return  # by close()
        outcome = future.result()
        self.evictions += outcome.evicted
        if outcome.error is None:
            backoff.succeeded()
        else:
            self._failed(backoff, outcome.error)

    def _failed(self, backoff: Backoff, error: OSError) -> None:
        self.errors += 1
        backoff.failed()
        if not backoff.ready:
            logger.warning("the disk cache in %s is left alone for a while: %s", self._path, error)

    def _start_threads(self) -> _Threads:
        """This process's threads: those of a process that was forked are not in the child."""
        if self._threads is None or self._threads.process != os.getpid():
            self._threads = _Threads()
        return self._threads


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
