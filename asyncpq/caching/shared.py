"""The shared tier: entries in a Valkey or Redis server, for all processes of a fleet.

The cache cancels an exchange that takes longer than a fetch from the store. After a failure, it does not use the server
for a while; after a refusal, it does not send the refused command. The server is not trusted: entries and replies may
be anything. GETRANGE limits the size of each reply, which MGET would not; all entries of a read take one round trip.
Each cause of a refusal is logged once a minute, without secrets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from asyncpq.caching.entry_format import (
    HEADER_BYTES,
    ContentKey,
    EntryCodec,
    Pointer,
    PointerKey,
    decode_pointer,
    encode_pointer,
)
from asyncpq.caching.tiers import Attempt, Backoff, TierCounters
from asyncpq.errors import InvalidOptionError, install_hint
from asyncpq.options import SharedCacheOptions

if TYPE_CHECKING:
    from asyncpq.caching.valkey_connections import Reply, ValkeyConnections, Wire


_LATE_S: Final = 0.005  # an idle loop is not later than this
_MAX_FORGIVEN: Final = 3


class Patience:
    """Makes ``timeout``, an entered :class:`asyncio.Timeout`, expire after ``allowed_s`` seconds. If the event loop was
    busy meanwhile, the reply may be waiting unread in the socket: the timeout is then extended, to four times
    ``allowed_s`` at most."""

    def __init__(self, timeout: asyncio.Timeout, allowed_s: float) -> None:
        self._timeout = timeout
        self._allowed_s = allowed_s
        self._forgiven = 0
        self._loop = asyncio.get_running_loop()
        self._start()

    def _start(self) -> None:
        self._due = self._loop.time() + self._allowed_s
        self._timeout.reschedule(self._due + 0.001)  # just after _look
        self._handle = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        when = self._timeout.when()
        if self._timeout.expired() or when is None or when < self._due:
            return  # it has ended, or was rescheduled to end earlier
        late_s = self._loop.time() - self._due
        if late_s > max(_LATE_S, 0.1 * self._allowed_s) and self._forgiven < _MAX_FORGIVEN:
            self._forgiven += 1
            self._start()

    def end(self) -> None:
        """Stop the timeout: the reply has come, or is no longer needed."""
        self._handle.cancel()


EVERY_S: Final = 60.0
_MAX_CAUSES = 32  # a server may send any code
_CODE = re.compile(r"[A-Z]{2,24}(?= |$)")  # begins a server's error
_MEANINGS: Final = {
    "NOAUTH": "the url names no user and password",
    "NOPERM": "its user may not run it, or not with keys that begin with the prefix; see cache/valkey/users.acl",
    "OOM": "it has no memory left, and may evict nothing; see cache/valkey/valkey.conf",
    "READONLY": "it is a replica",
    "NOREPLICAS": "it has too few replicas",
    "LOADING": "it is starting",
    "MOVED": "it is a cluster, which is not supported",
    "ASK": "it is a cluster, which is not supported",
    "CROSSSLOT": "it is a cluster, which is not supported",
    "CLUSTERDOWN": "it is a cluster, which is not supported",
}

_OTHER = "an error"

_log = logging.getLogger("asyncpq.caching.shared")


def cause_of(error: BaseException, handled: BaseException | None) -> str:
    """Return the class name of the exception that first caused ``error``, and the code if the server sent an error.
    ``handled`` is the exception that the caller was handling already, which Python adds to the context of ``error``;
    the search ends there."""
    first_error = error
    cause: BaseException | None = error
    while cause is not None and cause is not handled:
        if isinstance(cause, Exception):  # not the cancellation behind a timeout
            first_error = cause
        cause = cause.__cause__ or cause.__context__
    name = type(first_error).__name__
    return f"{name} {_code(str(first_error))}" if name == "ResponseError" else name


def _code(message: str) -> str:
    match = _CODE.match(message)
    return _OTHER if match is None else match.group()


class Refusals:
    """Logs the commands that the server at ``place`` (host and port) refuses, each cause once in ``EVERY_S`` s, and
    pauses each of them for ``pause_s`` seconds: a replica, a full server or a user without permission refuses it again.
    """

    def __init__(self, place: str, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._pause_s = pause_s
        self._paused_until: dict[str, float] = {}  # by command
        self._refused = 0
        self._last: dict[str, int] = {}  # by command, the number of its last refusal
        self._clock = clock
        self._told_at: dict[tuple[str, str], float] = {}
        self._untold: dict[tuple[str, str], int] = {}

    def begin(self, commands: Iterable[str]) -> int | None:
        """Return a token for :meth:`end` if none of the commands is paused, else None. After a pause one exchange may
        try, while the others wait for its end."""
        if self._paused_until:
            now = self._clock()
            paused = [command for command in commands if command in self._paused_until]
            if any(now < self._paused_until[command] for command in paused):
                return None
            for command in paused:
                self._paused_until[command] = now + self._pause_s
        return self._refused

    def end(self, commands: Iterable[str], token: int) -> None:
        """End the pause of the commands of a complete exchange that were not refused since it began."""
        if self._paused_until:
            for command in commands:
                if self._last.get(command, 0) <= token:
                    self._paused_until.pop(command, None)

    def add(self, command: str, message: str) -> None:
        """Pause ``command``, which the server refused, and log why. Of the server's error ``message`` the log shows
        only the code."""
        self._refused += 1
        self._last[command] = self._refused
        self._paused_until[command] = self._clock() + self._pause_s
        cause = (command, _code(message))
        if cause not in self._told_at and len(self._told_at) >= _MAX_CAUSES:
            cause = (command, _OTHER)
        now = self._clock()
        if now < self._told_at.get(cause, float("-inf")) + EVERY_S:
            self._untold[cause] = self._untold.get(cause, 0) + 1
            return
        self._told_at[cause] = now
        untold = self._untold.pop(cause, 0)
        meaning = _MEANINGS.get(cause[1])
        _log.warning(
            "the shared cache at %s refuses %s with %s%s; the command is paused for %s s%s",
            self._place,
            *cause,
            f": {meaning}" if meaning else "",
            self._pause_s,
            f" ({untold} times more before)" if untold else "",
        )


MAX_POINTER_BYTES: Final = 64 * 1024  # its entry, most of which is an ETag
# Sent and read at once; more of both go over the same connection one after the other.
WINDOW_ENTRIES: Final = 256
WINDOW_BYTES: Final = 8 << 20
_WRITTEN = struct.Struct("<Q")  # the server's clock when a pointer was written, in microseconds

T = TypeVar("T")


class SharedCache(TierCounters):
    """A :class:`~asyncpq.caching.tiers.CacheTier` in a Valkey or Redis server. Belongs to one event loop. Raises
    InvalidOptionError if the url cannot be used, or valkey-py is not installed."""

    name: Final = "shared"

    def __init__(self, options: SharedCacheOptions) -> None:
        super().__init__()
        try:
            from asyncpq.caching.valkey_connections import ValkeyConnections
        except ImportError as error:
            raise InvalidOptionError(
                "a shared cache needs the package valkey, which is not installed", hint=install_hint("valkey", "valkey")
            ) from error
        self._options = options
        self._entry_bytes = options.max_entry_bytes + HEADER_BYTES
        self._connections: ValkeyConnections = ValkeyConnections(
            options.url,
            max_connections=options.max_connections,
            connect_timeout_s=options.connect_timeout_s,
            max_reply_bytes=max(self._entry_bytes, MAX_POINTER_BYTES),
        )
        secret = options.secret
        self._codec = EntryCodec(secret.encode() if isinstance(secret, str) else secret)
        self._prefix = options.prefix.encode()
        self._ttl_ms = max(1, round(options.ttl_s * 1000))
        self._refusals = Refusals(self._connections.place, options.retry_after_s)
        self._backoff = Backoff(failures=1, first_s=options.retry_after_s, longest_s=options.retry_after_s)
        # writes leave half of the connections to reads
        self._writers = asyncio.Semaphore(max(1, options.max_connections // 2))
        self._running: set[asyncio.Timeout] = set()
        self._none_running = asyncio.Event()
        self._owner: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"SharedCache({self._connections.place!r})"

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        """Return the bytes of each key in order, None for a miss. If the connection fails or the time is up, keys
        without a reply count as misses."""
        values: list[bytes | None] = [None] * len(keys)
        limit = self._options.max_entry_bytes
        sizes = [min(max(key.stop - key.start, 0), limit) for key in keys]

        async def ask(wire: Wire) -> bool:
            for start, stop in _windows(sizes):
                names = [key.encode() for key in keys[start:stop]]
                await wire.send([self._get(name, self._entry_bytes) for name in names])
                for index, name in enumerate(names, start):
                    values[index] = self._decode(name, await wire.reply())
            return True

        if keys:
            answered = await self._exchange(ask, sum(sizes), "GETRANGE")
            hits = len(values) - values.count(None)
            self.hits += hits
            self.misses += len(values) - hits if answered else 0
        return values

    @property
    def max_read_bytes(self) -> int:
        return self._options.max_read_bytes

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        """Store the entries for ``ttl_s`` seconds, except those larger than ``max_entry_bytes``. ``scan`` is ignored:
        the server evicts the entries that are used least often (cache/valkey/valkey.conf)."""
        kept = [(key, value) for key, value in entries.items() if len(value) <= self._options.max_entry_bytes]
        sizes = [len(value) for _, value in kept]

        async def tell(wire: Wire) -> None:
            for start, stop in _windows(sizes):
                named = [(key.encode(), value) for key, value in kept[start:stop]]
                await wire.send([self._set(name, self._codec.encode(name, value)) for name, value in named])
                for _ in named:
                    self._written("SET", await wire.reply())

        if kept:
            await self._write(tell, sum(sizes), "SET")

    # -- pointers ---------------------------------------------------------------------------------
    # Hosts' clocks differ, and a stopped server may execute a command late. So the time that a pointer has been kept
    # is measured by the server's clock alone, whose time is written with each pointer.

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        """Return the pointer; None if the server lacks it or does not answer. ``validated_at`` is converted to this
        process's clock; minus infinity if unknown."""
        name = key.encode()

        answer = await self._exchange(partial(self._ask_pointer, name), 0, "GETRANGE", "TIME")
        if answer is None:
            return None
        self.hits += answer[0] is not None
        self.misses += answer[0] is None
        return answer[0]

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        """Store the pointer for ``ttl_s`` seconds, unless the server has one that was validated then or later."""
        name = key.encode()

        async def tell(wire: Wire) -> None:
            there, now = await self._ask_pointer(name, wire)
            if now is None or (there is not None and there.validated_at >= pointer.validated_at):
                return
            age_s = max(0.0, time.monotonic() - pointer.validated_at)  # at least what it was at ``now``
            value = _WRITTEN.pack(now) + encode_pointer(pointer.validator, age_s)
            if len(value) + HEADER_BYTES <= MAX_POINTER_BYTES:
                await wire.send([self._set(name, self._codec.encode(name, value))])
                self._written("SET", await wire.reply())

        await self._write(tell, 0, "GETRANGE", "TIME", "SET")

    async def drop_pointer(self, key: PointerKey) -> None:
        async def tell(wire: Wire) -> None:
            await wire.send([(b"DEL", self._prefix + key.encode())])
            self._written("DEL", await wire.reply())

        await self._exchange(tell, 0, "DEL")

    async def _ask_pointer(self, name: bytes, wire: Wire) -> tuple[Pointer | None, int | None]:
        """Return the pointer, None for none, and the server's time in microseconds, None if it does not tell."""
        asked_at = time.monotonic()  # before the reply, so that the pointer never seems younger than it is
        await wire.send([self._get(name, MAX_POINTER_BYTES), _TIME])
        entry, now = self._decode(name, await wire.reply()), self._microseconds(await wire.reply())
        return self._pointer(entry, now, asked_at), now

    def _pointer(self, value: bytes | None, now: int | None, asked_at: float) -> Pointer | None:
        if value is None or now is None or len(value) < _WRITTEN.size:
            return None
        decoded = decode_pointer(value[_WRITTEN.size :])
        if decoded is None:
            return None
        validator, age_s = decoded
        kept_s = (now - _WRITTEN.unpack_from(value)[0]) / 1e6
        # if the server's clock was set back, the age is unknown
        return Pointer(validator, asked_at - age_s - kept_s if kept_s >= 0 else -float("inf"))

    def _get(self, name: bytes, max_bytes: int) -> tuple[bytes | int, ...]:
        return (b"GETRANGE", self._prefix + name, 0, max_bytes - 1)

    def _set(self, name: bytes, entry: bytes) -> tuple[bytes | int, ...]:
        return (b"SET", self._prefix + name, entry, b"PX", self._ttl_ms)

    def _decode(self, name: bytes, reply: Reply) -> bytes | None:
        if isinstance(reply, bytes):
            return self._codec.decode(name, reply) if reply else None
        if isinstance(reply, Exception):
            if not str(reply).startswith("WRONGTYPE"):  # another program's key is a miss
                self._refused("GETRANGE", reply)
            return None
        raise ConnectionAbortedError(f"the server replied to GETRANGE with {type(reply).__name__}, expected bytes")

    def _microseconds(self, reply: Reply) -> int | None:
        """Return the server's time in microseconds, from its reply to TIME; None if the server refused the command."""
        if isinstance(reply, Exception):
            self._refused("TIME", reply)
            return None
        try:
            seconds, microseconds = map(int, reply)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ConnectionAbortedError("the server's reply to TIME is not a pair of integers") from None
        return min(max(seconds * 1_000_000 + microseconds, 0), (1 << 64) - 1)

    def _written(self, command: str, reply: Reply) -> None:
        """If ``reply`` is an error, count, log and pause: the server refused to write (no memory, no permission)."""
        if isinstance(reply, Exception):
            self._refused(command, reply)

    def _refused(self, command: str, reply: Exception) -> None:
        self.errors += 1
        self._refusals.add(command, str(reply))

    async def _exchange(self, talk: Callable[[Wire], Awaitable[T]], size: int, *commands: str) -> T | None:
        """Run ``talk``, which sends ``commands`` and reads replies, on a connection; return its result. None if the
        exchange fails, or the cache or a command pauses after earlier failures. The timeout grows with ``size``, the
        bytes that may be transferred."""
        loop = asyncio.get_running_loop()
        owner = (loop, os.getpid())
        if self._owner is None:
            self._owner = owner
        usable = not self._closed and self._owner == owner
        attempt = self._backoff.begin() if usable else None
        permit = self._refusals.begin(commands) if attempt is not None else None
        if attempt is None or permit is None:
            if attempt is not None:
                attempt.withdrawn()
            self.skipped += 1
            return None
        handled = sys.exception()
        allowed_s = self._options.timeout_s + size / self._options.min_throughput_bytes_s
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                patience = Patience(timeout, allowed_s)
                self._running.add(timeout)
                try:
                    async with self._connections.lend() as wire:
                        result = await talk(wire)
                finally:
                    patience.end()
                    self._running.discard(timeout)
                    if not self._running:
                        self._none_running.set()
        except OSError as error:
            if not self._closed:
                self._failed(attempt, error, handled)
            return None
        else:
            self._refusals.end(commands, permit)
            if attempt.succeeded():
                _log.info("the shared cache at %s answers again", self._connections.place)
            return result
        finally:
            attempt.withdrawn()

    async def _write(self, talk: Callable[[Wire], Awaitable[None]], size: int, *commands: str) -> None:
        async with self._writers:
            await self._exchange(talk, size, *commands)

    def _failed(self, attempt: Attempt, error: OSError, handled: BaseException | None) -> None:
        self.errors += 1
        if attempt.failed():
            # without the error's text, which may quote the url
            _log.warning(
                "the shared cache at %s failed (%s) and is paused for %s s",
                self._connections.place,
                cause_of(error, handled),
                self._options.retry_after_s,
            )

    async def close(self) -> None:
        """Break off the running exchanges and close all connections. Idempotent."""
        self._closed = True
        loop = asyncio.get_running_loop()
        if self._owner is not None and self._owner != (loop, os.getpid()):
            return  # the connections belong to another loop, or to the parent of this forked process
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(loop.time())
        while self._running:
            self._none_running.clear()
            await self._none_running.wait()
        await self._connections.close()


_TIME: Final[tuple[bytes | int, ...]] = (b"TIME",)


def _windows(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split entries into runs that are each sent and read at once: yield the start and stop index of each run.
    ``sizes`` are the entries' bytes; ``WINDOW_ENTRIES`` and ``WINDOW_BYTES`` limit a run."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (total + size > WINDOW_BYTES or index - start >= WINDOW_ENTRIES):
            yield start, index
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes)
