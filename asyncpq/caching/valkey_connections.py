"""Connections of the shared cache (``shared.py``) to a Valkey or Redis server.

A connection is used again only after every pending reply was read.

The only module that imports valkey-py, for urls, TLS, authentication and streams. Other parts of it are replaced:

- Its pool connects within the caller's timeout, so a short timeout would cancel every attempt to connect. Connecting in
  tasks that outlive their callers would take as much code around that pool as this pool has. It waits when it is
  closed. It also costs each read more: 162 Python calls and 62 us for 8 entries of 4 KiB, instead of 136 and 54 us (the
  library's whole client: 478 and 143 us).
- Its parsers read a reply of any length that the server announces.
- Its packing of commands takes several times as long as these few kinds of arguments need.

A task of its own makes each connection, so a caller whose timeout passes does not restart the attempt.

Not used: valkey-py's pipelines (twice the CPU of each call), redis-py (the same code, further from Valkey),
valkey-glide (no less CPU, a native library with its own threads in each process, and no bound on the length of a
reply).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

from valkey.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from valkey.exceptions import ResponseError, ValkeyError

from asyncpq.errors import InvalidOptionError, StoreError
from asyncpq.storage.threads import connect, end_tasks, look_up

Reply = bytes | int | list[Any] | ResponseError | None
"""A server's reply. An error of the server is returned as a ResponseError, not raised."""

_QUERY: Final = {"db", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"}
MAX_ELEMENTS: Final = 16  # of an array in a reply; TIME has two
# Errors that the library lets through: its own, those of sockets and TLS, and of malformed host names
_FAILURES = (ValkeyError, OSError, EOFError, UnicodeError)


class _Parser:
    """Parses RESP2 replies and checks their length before reading them. Implements valkey-py's parser interface."""

    def __init__(self, max_bytes: int, max_elements: int, socket_read_size: int) -> None:
        self._max_bytes = max_bytes
        self._max_elements = max_elements
        self._reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    def on_connect(self, connection: AbstractConnection) -> None:
        self._reader, self.writer = connection._reader, connection._writer

    def on_disconnect(self) -> None:
        self._reader = None

    async def can_read_destructive(self) -> bool:
        """Return whether the server has closed the connection, or sent bytes that no command asked for."""
        reader = self._reader
        return reader is None or reader.at_eof() or reader.exception() is not None or bool(reader._buffer)  # type: ignore[attr-defined]

    async def read_response(self, disable_decoding: bool = False) -> Reply:
        if self._reader is None:
            raise ConnectionResetError("the connection to the server is closed")
        return await self._read(self._reader, nested=False)

    async def _read(self, reader: asyncio.StreamReader, nested: bool) -> Reply:
        try:
            line = await reader.readuntil(b"\r\n")
            kind, text = line[:1], line[1:-2]
            if kind == b"$":
                length = int(text)
                if length == -1:
                    return None
                if not 0 <= length <= self._max_bytes:
                    raise ConnectionAbortedError(
                        f"the server announced a reply of {length} bytes; the limit is {self._max_bytes}"
                    )
                return (await reader.readexactly(length + 2))[:-2]
            if kind == b"+":
                return text
            if kind == b":":
                return int(text)
            if kind == b"-":
                return ResponseError(text.decode("utf-8", "replace"))
            if kind == b"*" and not nested and 0 <= int(text) <= self._max_elements:
                return [await self._read(reader, nested=True) for _ in range(int(text))]
        except (ValueError, asyncio.LimitOverrunError):
            pass
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error
        raise ConnectionAbortedError("the server sent bytes that are not a RESP2 reply")


class Wire:
    """A connection for one exchange of commands and replies."""

    __slots__ = ("_connection", "owed")

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.owed: int = 0  # replies that are still to be read

    async def send(self, commands: Sequence[tuple[bytes | int, ...]]) -> None:
        """Send all commands at once. The caller then awaits :meth:`reply` once for each command, in order."""
        self.owed += len(commands)
        packed: list[bytes] = []
        for command in commands:
            packed.append(b"*%d\r\n" % len(command))
            for word in command:
                text = word if isinstance(word, bytes) else b"%d" % word
                packed += (b"$%d\r\n" % len(text), text, b"\r\n")
        await self._connection.send_packed_command(packed)

    async def reply(self) -> Reply:
        try:
            reply: Reply = await self._connection.read_response()
        except ResponseError as refused:
            reply = refused
        self.owed -= 1
        return reply


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
        self._factory: Any = _factory(url, max_reply_bytes, max_elements)
        arguments = self._factory.connection_kwargs
        self.place: str = str(
            arguments.get("path", f"{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}")
        )
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[AbstractConnection] = []
        self._count = 0  # idle, lent and being made
        self._waiting: deque[asyncio.Future[AbstractConnection]] = deque()
        self._making: set[asyncio.Task[None]] = set()
        self._connecting = 0  # connections being made that have not failed
        self._leaving: set[asyncio.Task[None]] = set()
        self._ssl: Any = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Wire]:
        """Yield a connection for one exchange of commands and replies. The connection is closed, not used again, after
        an error, a cancellation or an unread reply. Raises OSError if no connection can be made, the connection breaks,
        or the server violates the protocol."""
        connection = await self._acquire()
        wire = Wire(connection)
        try:
            yield wire
        except BaseException as error:
            await self._discard(connection)
            if isinstance(error, _FAILURES) and not isinstance(error, OSError):
                raise ConnectionError(f"the connection to the server failed: {type(error).__name__}") from error
            raise
        if wire.owed:
            await self._discard(connection)
        else:
            await self._give_back(connection)

    async def _acquire(self) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            if not await _parser(connection).can_read_destructive():
                return connection
            await self._discard(connection)
        if self._closed:
            raise ConnectionAbortedError("the connections to the server were closed")
        loop = asyncio.get_running_loop()
        if self._count < self._max_connections and self._connecting <= len(self._waiting):
            self._count += 1
            self._connecting += 1
            task = loop.create_task(self._make())
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        waiter: asyncio.Future[AbstractConnection] = loop.create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                await self._give_back(waiter.result())
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    async def _make(self) -> None:
        """Connect, and hand the connection to a waiting caller. If that fails, all waiting callers get the error, since
        their own attempts would fail too."""
        connection = self._factory.make_connection()
        if isinstance(connection, SSLConnection):
            # one context for all connections: loading the certificates takes longer than a handshake
            self._ssl = connection.ssl_context = self._ssl or connection.ssl_context
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if isinstance(connection, Connection):
                    await _reach(connection)
                await connection.connect()
        except BaseException as error:
            await self._discard(connection)
            self._connecting -= 1  # first: a refused waiter may call again before this task ends
            self._refuse_waiting(f"connecting failed: {type(error).__name__}", error)
            if not isinstance(error, _FAILURES):
                raise
        else:
            self._connecting -= 1
            await self._give_back(connection)

    def _refuse_waiting(self, reason: str, cause: BaseException | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                refusal = ConnectionError(reason)
                refusal.__cause__ = cause
                waiter.set_exception(refusal)

    async def _give_back(self, connection: AbstractConnection) -> None:
        if self._closed:
            await self._discard(connection)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    async def _discard(self, connection: AbstractConnection) -> None:
        """Close the connection at once, without waiting until the server has taken all bytes."""
        self._count -= 1
        writer = _parser(connection).writer
        if writer is not None:
            writer.transport.abort()
            task = asyncio.get_running_loop().create_task(_see_out(writer))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close idle connections now, and connections in use when their exchange ends. Idempotent."""
        self._closed = True
        self._refuse_waiting("the connections to the server were closed")
        await end_tasks(self._making)
        while self._idle:
            await self._discard(self._idle.pop())
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=self._connect_timeout_s)


async def _reach(connection: Connection) -> None:
    """Connect a socket to the server, and let valkey-py use it, which would look the host up in the event loop's
    threads."""
    arguments = dict(connection._connection_arguments())
    host = arguments.pop("host")
    arguments["sock"] = await connect(await look_up(host, arguments.pop("port")))
    if "ssl" in arguments:
        arguments["server_hostname"] = host
    connection._connection_arguments = lambda: arguments  # type: ignore[method-assign]


async def _see_out(writer: asyncio.StreamWriter) -> None:
    """Wait until the socket of ``writer`` is closed, and retrieve its exception, which asyncio would log."""
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _parser(connection: AbstractConnection) -> _Parser:
    return cast("_Parser", connection._parser)


def _factory(url: str, max_reply_bytes: int, max_elements: int) -> Any:
    """Return a connection pool of valkey-py for ``url``, which is used only to make connections."""
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
    # The library's name and version are not sent: that needs a permission and a round trip.
    arguments.update(
        protocol=2,
        socket_timeout=None,
        lib_name=None,
        lib_version=None,
        parser_class=partial(_Parser, max_reply_bytes, max_elements),
    )
    try:
        factory.make_connection()
    except (TypeError, ValueError, ValkeyError):
        raise InvalidOptionError("the url of the Valkey server cannot be used", hint=_URL_HINT) from None
    return factory


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
