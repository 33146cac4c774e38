"""Connections of the shared cache (``shared.py``) to a Valkey or Redis server.

A connection is used again only after every pending reply was read. A task of its own makes each connection, so a caller
whose timeout passes does not restart the attempt.

The only module that imports valkey-py, which reads urls and makes TLS contexts. Reading 8 entries of 4 KiB through its
``BlockingConnectionPool`` takes 12 % more CPU one at a time (24 % with the parser below) and 20 to 34 % more at 64 at
once, where the slowest hundredth waits for 1 s instead of 0.06, since the pool does not serve its waiters in order. A
timeout cancels its attempt to connect, and its parsers read a reply of any length that the server announces.

Not used: valkey-py's pipelines (twice the CPU of each call), redis-py (the same code, further from Valkey),
valkey-glide (no less CPU, a native library with its own threads in each process, and no bound on the length of a
reply).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from valkey.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from valkey.exceptions import ResponseError, ValkeyError

from asyncpq.errors import InvalidOptionError, StoreError
from asyncpq.storage.hosts import connect, look_up
from asyncpq.storage.threads import end_tasks
from asyncpq.waiting import wait_futures

Reply = bytes | int | list[Any] | ResponseError | None
"""A server's reply. An error of the server is returned as a ResponseError, not raised."""

_QUERY: Final = {"db", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
MAX_ELEMENTS: Final = 16  # of an array in a reply; TIME has two
# Errors of connecting: those of valkey-py, of sockets and TLS, and of malformed host names
_FAILURES = (ValkeyError, OSError, EOFError, UnicodeError)


class _Reader(asyncio.StreamReader):
    """Counts the bytes that have come, to tell whether some came that nobody asked for."""

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.received: int = 0

    def feed_data(self, data: Any) -> None:
        self.received += len(data)
        super().feed_data(data)


class Wire:
    """A connection, lent for one exchange of commands and RESP2 replies. Lengths of replies are checked first."""

    __slots__ = ("_max_bytes", "_max_elements", "_reader", "_taken", "owed", "writer")

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter, max_bytes: int, max_elements: int) -> None:
        self._reader = reader
        self.writer: asyncio.StreamWriter = writer
        self._max_bytes = max_bytes
        self._max_elements = max_elements
        self._taken = 0  # bytes of all replies
        self.owed: int = 0  # replies that are still to be read

    @property
    def is_clean(self) -> bool:
        """Whether the connection is open, and every byte that has come was read."""
        reader = self._reader
        return not self.owed and not reader.at_eof() and reader.exception() is None and reader.received == self._taken

    async def send(self, commands: Sequence[tuple[bytes | int, ...]]) -> None:
        """Send all commands at once. The caller then awaits :meth:`reply` once for each command, in order."""
        self.owed += len(commands)
        packed: list[bytes] = []
        for command in commands:
            packed.append(b"*%d\r\n" % len(command))
            for word in command:
                text = word if isinstance(word, bytes) else b"%d" % word
                packed += (b"$%d\r\n" % len(text), text, b"\r\n")
        self.writer.writelines(packed)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """Read the next reply. Raises OSError if the connection breaks, or the server violates the protocol."""
        reply = await self._read(nested=False)
        self.owed -= 1
        return reply

    async def _read(self, nested: bool) -> Reply:
        try:
            line = await self._reader.readuntil(b"\r\n")
            self._taken += len(line)
            kind, text = line[:1], line[1:-2]
            if kind == b"$":
                length = int(text)
                if length == -1:
                    return None
                if not 0 <= length <= self._max_bytes:
                    raise ConnectionAbortedError(
                        f"the server announced a reply of {length} bytes; the limit is {self._max_bytes}"
                    )
                self._taken += length + 2
                return (await self._reader.readexactly(length + 2))[:-2]
            if kind == b"+":
                return text
            if kind == b":":
                return int(text)
            if kind == b"-":
                return ResponseError(text.decode("utf-8", "replace"))
            if kind == b"*" and not nested and 0 <= int(text) <= self._max_elements:
                return [await self._read(nested=True) for _ in range(int(text))]
        except (ValueError, asyncio.LimitOverrunError):
            pass
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error
        raise ConnectionAbortedError("the server sent bytes that are not a RESP2 reply")


class ValkeyConnections:
    """A pool of at most ``max_connections`` connections to one server. Belongs to one event loop.

    The url is valkey://, valkeys:// (TLS), redis://, rediss:// (TLS) or unix://, with user and password. A url that
    cannot be used raises InvalidOptionError, whose message does not show the url. Connecting (address, TCP, TLS,
    authentication) takes at most ``connect_timeout_s``. A connection is closed when the server announces a reply of
    more than ``max_reply_bytes`` bytes or ``max_elements`` elements.
    """

    def __init__(
        self,
        url: str,
        *,
        max_connections: int,
        connect_timeout_s: float,
        max_reply_bytes: int,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        self._settings: Any = _settings(url)
        unix = isinstance(self._settings, UnixDomainSocketConnection)
        self.place: str = self._settings.path if unix else f"{self._settings.host}:{self._settings.port}"
        self._limits = (max_reply_bytes, max_elements)
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[Wire] = []
        self._count = 0  # idle, lent and being made
        self._waiting: deque[asyncio.Future[Wire]] = deque()
        self._making: set[asyncio.Task[None]] = set()
        self._connecting = 0  # connections being made that have not failed
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Wire]:
        """Yield a connection for one exchange of commands and replies. The connection is closed, not used again, after
        an error, a cancellation or an unread reply. Raises OSError if no connection can be made, the connection breaks,
        or the server violates the protocol."""
        wire = await self._acquire()
        try:
            yield wire
        except BaseException:
            self._discard(wire)
            raise
        self._give_back(wire)

    async def _acquire(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_clean:
                return wire
            self._discard(wire)
        if self._closed:
            raise ConnectionAbortedError("the connections to the server were closed")
        waiter: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._connect_for_waiting()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def _connect_for_waiting(self) -> None:
        """Begin to make a connection, if more callers wait than connections are being made."""
        if self._closed or self._count >= self._max_connections or self._connecting >= len(self._waiting):
            return
        self._count += 1
        self._connecting += 1
        task = asyncio.get_running_loop().create_task(self._make())
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self) -> None:
        """Connect, and hand the connection to a waiting caller. If that fails, all waiting callers get the error, since
        their own attempts would fail too."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                wire = await self._connect()
        except BaseException as error:
            self._count -= 1
            self._connecting -= 1  # first: a refused waiter may call again before this task ends
            self._refuse_waiting(f"connecting failed: {type(error).__name__}", error)
            if not isinstance(error, _FAILURES):
                raise
        else:
            self._connecting -= 1
            self._give_back(wire)

    async def _connect(self) -> Wire:
        settings, loop, reader = self._settings, asyncio.get_running_loop(), _Reader()
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport: Any
        if isinstance(settings, UnixDomainSocketConnection):
            transport, _ = await loop.create_unix_connection(lambda: protocol, settings.path)
        else:
            # one context for all connections: loading the certificates takes longer than a handshake
            context = settings.ssl_context.get() if isinstance(settings, SSLConnection) else None
            sock = await connect(await look_up(settings.host, settings.port))
            transport, _ = await loop.create_connection(
                lambda: protocol, sock=sock, ssl=context, server_hostname=settings.host if context else None
            )
        wire = Wire(reader, asyncio.StreamWriter(transport, protocol, reader, loop), *self._limits)
        try:
            commands = _greeting(settings)
            await wire.send(commands)
            for command in commands:
                reply = await wire.reply()
                if reply != b"OK":
                    raise (
                        reply
                        if isinstance(reply, ResponseError)
                        else ConnectionAbortedError(f"{command[0].decode()} failed")
                    )
        except BaseException:
            self._close(wire)
            raise
        return wire

    def _refuse_waiting(self, reason: str, cause: BaseException | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                refusal = ConnectionError(reason)
                refusal.__cause__ = cause
                waiter.set_exception(refusal)

    def _give_back(self, wire: Wire) -> None:
        if self._closed or not wire.is_clean:
            self._discard(wire)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(wire)
                return
        self._idle.append(wire)

    def _discard(self, wire: Wire) -> None:
        self._close(wire)
        self._count -= 1
        self._connect_for_waiting()

    def _close(self, wire: Wire) -> None:
        """Close the connection at once, without waiting until the server has taken all bytes."""
        wire.writer.transport.abort()
        task = asyncio.get_running_loop().create_task(_see_out(wire.writer))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close idle connections now, and connections in use when their exchange ends. Idempotent."""
        self._closed = True
        self._refuse_waiting("the connections to the server were closed")
        await end_tasks(self._making)
        while self._idle:
            self._discard(self._idle.pop())
        if self._leaving:
            await wait_futures(self._leaving, timeout=self._connect_timeout_s)


def _greeting(settings: Any) -> list[tuple[bytes, ...]]:
    """Return the commands that begin a connection."""
    commands: list[tuple[bytes, ...]] = []
    password = (settings.password or "").encode()
    if settings.username:
        commands.append((b"AUTH", settings.username.encode(), password))
    elif password:
        commands.append((b"AUTH", password))
    if settings.db:
        commands.append((b"SELECT", b"%d" % int(settings.db)))
    return commands


async def _see_out(writer: asyncio.StreamWriter) -> None:
    """Wait until the socket of ``writer`` is closed, and retrieve its exception, which asyncio would log."""
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _settings(url: str) -> Any:
    """Return a connection of valkey-py for ``url``, of which only the settings are used."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        unix = parts.scheme == "unix"
        if parts.fragment or (unix and parts.netloc and "@" not in parts.netloc) or (not unix and "@" in parts.path):
            raise ValueError("the password has a / or # that is not percent-encoded")
        factory: Any = ConnectionPool.from_url(url)
    except (ValueError, ValkeyError):
        # its message may quote a part of the password
        raise InvalidOptionError("the url of the Valkey server cannot be read", hint=_URL_HINT) from None
    unknown = query.keys() - _QUERY
    if unknown:
        raise InvalidOptionError(
            f"the url of the Valkey server has {len(unknown)} unsupported query parameters", hint=_URL_HINT
        )
    arguments = factory.connection_kwargs
    if issubclass(factory.connection_class, SSLConnection) and arguments.get("ssl_cert_reqs") != "none":
        arguments.setdefault("ssl_check_hostname", True)
    try:
        settings = factory.make_connection()
        _greeting(settings)
    except (TypeError, ValueError, ValkeyError):
        raise InvalidOptionError("the url of the Valkey server cannot be used", hint=_URL_HINT) from None
    return settings


_URL_HINT = (
    "Write valkey://user:password@host:port, valkeys:// for TLS, or unix:///path, with / ? # @ : and % of user and "
    f"password percent-encoded. Parameters: {', '.join(sorted(_QUERY))}."
)


async def count_keys(url: str, prefix: str, *, remove: bool, timeout_s: float) -> int:
    """Count a server's keys that begin with ``prefix``, and with ``remove`` remove them; return their number.

    Raises StoreError, whose message does not show the url, if the server cannot be reached or refuses a command.
    """
    from valkey.asyncio import Valkey

    count = 0
    # With brackets, * and ? taken for themselves
    pattern = "".join([f"\\{character}" if character in "*?[]\\^-" else character for character in prefix]) + "*"
    try:
        async with Valkey.from_url(url, socket_connect_timeout=timeout_s, socket_timeout=timeout_s) as client:
            batch: list[bytes] = []
            async for key in client.scan_iter(match=pattern, count=1000):
                count += 1
                batch.append(key)
                if remove and len(batch) >= 1000:
                    await client.unlink(*batch)
                    batch.clear()
            if remove and batch:
                await client.unlink(*batch)
    except ResponseError as error:
        raise StoreError(
            f"the server of the shared cache refused the command ({type(error).__name__})",
            hint="Allow this user the commands SCAN and, to clear the cache, UNLINK.",
        ) from None
    except (*_FAILURES, ValueError) as error:
        raise StoreError(
            f"the server of the shared cache cannot be reached ({type(error).__name__})",
            hint="Check the url, and that the server is running.",
        ) from None
    return count
