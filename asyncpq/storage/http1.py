"""HTTP/1.1 for the hot path (RFC 9112): pooled connections, each with one request at a time.

A GET of a few pages costs a third of a GET through aiohttp: the request is one string, the response is parsed in the
socket's own buffer, and the reading task wakes once, when the whole response has come. Redirects, cookies, proxies and
content codings are not supported; stores that need them use :class:`asyncpq.storage.aiohttp_wire.AiohttpWire`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from asyncpq.records import NamedTuple
from asyncpq.storage.hosts import Address, connect, look_up
from asyncpq.waiting import wait_futures

_MAX_LINE_BYTES = 8 * 1024
# Bytes of a chunked body's lines: sizes with their extensions, and trailers. A chunk of one byte has 5 of them.
_FREE_LINE_BYTES = 64 * 1024
_LINE_BYTES_OF_A_BYTE = 16
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?", re.ASCII)
_KNOWN_STATUS_LINES = {"HTTP/1.1 206 Partial Content": (206, 1), "HTTP/1.1 200 OK": (200, 1)}
# A header field with the line end before it; a value has no leading blanks.
_FIELD = re.compile(r"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


class _KnownHead(NamedTuple):
    """A pattern for frequent response heads: of one status line and one sequence of field names.

    It parses such a head in half the time. A head with other names, or with blanks after a value, does not match.
    """

    pattern: re.Pattern[str]
    status: int
    version: int
    names: tuple[str, ...]  # in lower case


_USES = 32  # of the same names before their pattern is made, which takes as long as it saves in 100 heads
_MAX_SEEN = 256
_MAX_KNOWN = 4
_seen: dict[tuple[str, ...], int] = {}  # number of heads by status line and field names
_known_heads: tuple[_KnownHead, ...] = ()


class ProtocolError(Exception):
    """The received bytes are not an HTTP/1.1 response."""


class HeadTooLongError(ProtocolError):
    """The head of the response is longer than the limit."""


class TlsExpectedError(ProtocolError):
    """The server answered a request in clear text with a TLS alert."""


class NoTlsError(ConnectionError):
    """The server answers a TLS handshake with nothing, and a request in clear text with HTTP."""


_HANDSHAKE_S = 2.0  # without an answer to a TLS handshake before a request is tried that plain HTTP answers
_CLEAR_STATUSES = frozenset({b"200", b"204", b"401", b"403", b"404", b"405", b"501"})
_TLS_ALERT = b"\x15\x03"  # content type and major version (RFC 8446, section 5.1)


def parse_head(head: str) -> tuple[int, int, dict[str, str]]:
    """Parse a response's head, without its final empty line, to status, minor version and headers (lower-case names).

    The first of repeated headers counts. Raises ProtocolError if the head is malformed.
    """
    for pattern, status, version, lower in _known_heads:
        match = pattern.fullmatch(head)
        if match is not None:
            return status, version, dict(zip(lower, match.groups(), strict=True))
    end = head.find("\r\n")
    if end < 0:
        end = len(head)
    known = _KNOWN_STATUS_LINES.get(head[:end])
    if known is None:
        status_line = _STATUS_LINE.fullmatch(head, 0, end)
        if status_line is None:
            raise ProtocolError("the response does not begin with an HTTP/1.1 status line")
        known = int(status_line[2]), int(status_line[1])
    pairs = _FIELD.findall(head, end)
    if not len(pairs) == head.count("\n") == head.count("\r") or "\0" in head:
        raise ProtocolError("a header of the response is malformed")
    if not pairs:
        return *known, {}
    names, values = zip(*pairs, strict=True)
    lower = tuple([name.lower() for name in names])
    if " \r" in head or "\t\r" in head or head[-1] in " \t":
        values = tuple([value.rstrip(" \t") for value in values])
    fields = dict(zip(lower, values, strict=True))
    if len(fields) < len(pairs):
        fields = dict(zip(reversed(lower), reversed(values), strict=True))
        if len({value for name, value in zip(lower, values, strict=True) if name == "content-length"}) > 1:
            raise ProtocolError("the response has two different Content-Length headers")
    else:
        _learn(head[:end], *known, names, lower)
    return *known, fields


def _learn(status_line: str, status: int, version: int, names: tuple[str, ...], lower: tuple[str, ...]) -> None:
    """Count heads with this status line and these field names (none repeated); make a :class:`_KnownHead` once they
    came often."""
    global _known_heads  # replaced as a whole, since threads parse at the same time
    key = (status_line, *names)
    uses = _seen.get(key, 0) + 1
    if len(_seen) >= _MAX_SEEN:
        _seen.clear()
    _seen[key] = uses
    if uses == _USES:
        values = [re.escape(f"\r\n{name}:") + r"[ \t]*+([^\r\n\0]*+)(?<![ \t])" for name in names]
        pattern = re.compile(re.escape(status_line) + "".join(values))
        _known_heads = (_KnownHead(pattern, status, version, lower), *_known_heads[: _MAX_KNOWN - 1])


class ChunkedBody:
    """Decoder of the chunked transfer coding (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self.data: bytearray = bytearray()  # decoded so far
        self.over: bool = False  # bytes follow the end
        self._pending = b""
        self._left = 0  # bytes of the current chunk to come
        self._behind_chunk = False  # at the line end that closes a chunk
        self._in_trailers = False
        self._line_bytes = 0

    def feed(self, coded: bytes) -> bool:
        """Decode the next bytes of the body; return True at its end, when :attr:`data` is complete."""
        coded = self._pending + coded
        position = 0
        while True:
            if self._left:
                part = coded[position : position + self._left]
                self.data += part
                position += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._behind_chunk = True
            end = coded.find(b"\r\n", position)
            if end < 0:
                if len(coded) - position > _MAX_LINE_BYTES:
                    raise ProtocolError("a line of the chunked body is too long")
                break
            line, position = coded[position:end], end + 2
            self._line_bytes += len(line) + 2
            if self._line_bytes > _FREE_LINE_BYTES + _LINE_BYTES_OF_A_BYTE * len(self.data):
                raise ProtocolError("the chunked body has more chunk sizes, extensions and trailers than data")
            if self._behind_chunk:
                if line:
                    raise ProtocolError("a chunk of the body is longer than its chunk size")
                self._behind_chunk = False
            elif self._in_trailers:
                if not line:
                    self.over = position < len(coded)
                    return True
            else:
                size = _CHUNK_SIZE.fullmatch(line)
                if size is None:
                    raise ProtocolError(f"the chunk size {line[:40]!r} of the body is malformed")
                self._left = int(size[1], 16)
                self._in_trailers = self._left == 0
        self._pending = coded[position:]
        return False


# Of a connection; a head must fit. A response that fits takes one read of the socket: 40 kB cost 41 us, in two 48 us.
_BUFFER_BYTES = 64 * 1024


def _memory_for(size: int) -> memoryview:
    """Return memory for a large body: from Arrow's pool if pyarrow is imported.

    The pool gives memory that was used before. The first touch of new memory costs three times the CPU of receiving the
    bytes (64 MB from a local server: 65 against 22 ms per 100 MB).
    """
    # the package has the name only after its extension module is whole
    allocate = getattr(sys.modules.get("pyarrow"), "allocate_buffer", bytearray)
    return memoryview(allocate(size)).cast("B")


class Body(NamedTuple):
    """The body of a response. A large one is a view of the memory into which it was received."""

    data: bytes | memoryview  # at most the requested bytes, and one more if the body is longer
    complete: bool  # the response ended with ``data``


class Receiver(Protocol):
    """Called with the parts of a response while it is received."""

    received: int  # bytes of the body so far

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        """Check status and headers (lower-case names); return the body's length to read. Exceptions end the
        exchange."""

    def cut_off(self, data: bytes | memoryview) -> None:
        """Keep ``data``, the bytes of a body that came before the exchange failed or was cancelled."""


class Connection(asyncio.BufferedProtocol):
    """One connection, for one exchange at a time. It is in the set ``open_`` while its socket is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_: set[Connection]) -> None:
        self.loop = loop
        self._open = open_
        self._transport: asyncio.Transport | None = None
        self._memory = bytearray(_BUFFER_BYTES)
        self._buffer = memoryview(self._memory)  # the socket fills it: self._memory, or the memory of a large body
        self._start = 0  # offset of the body in the buffer
        self._filled = 0  # bytes of the buffer that are filled
        self._waiter: asyncio.Future[Body] | None = None
        self._receiver: Receiver | None = None
        self._in_head = True
        self._without_body = False
        self._wanted = 0
        self._length: int | None = None  # of the body; None for chunks, and for a body that ends with the connection
        self._target = 0  # bytes of the body to take
        self._chunks: ChunkedBody | None = None
        self._keep_alive = False
        self.closed: asyncio.Future[None] = loop.create_future()
        self.reusable: bool = False  # another request may be sent
        self.untouched: bool = True  # no byte has come back for the last request
        self.idle_since: float = 0.0  # in the loop's clock; set by the pool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._open.add(self)
        self.reusable = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.abort()  # bytes without a request
            return
        self.untouched = False
        self._filled += nbytes
        try:
            if not self._in_head or self._take_head():
                self._take_body()
        except Exception as error:  # noqa: BLE001  # raised where the exchange is awaited
            waiter.set_exception(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if self._in_head or exc is not None:
                waiter.set_exception(exc or ConnectionResetError("the server closed the connection"))
            else:
                self._finish(complete=self._length is None and self._chunks is None)
        self._open.discard(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def start(self, request: bytes, receiver: Receiver, *, without_body: bool = False) -> asyncio.Future[Body]:
        """Send a request; return a future of the response's body. The caller must call :meth:`end` in any case.

        ``without_body``: the response has no body, whatever its headers say (HEAD). This call and the future raise
        ProtocolError, OSError if the connection broke, and the receiver's errors.
        """
        self._in_head, self._keep_alive, self.reusable, self.untouched = True, False, False, True
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection was closed before the request was sent")
        self._receiver = receiver
        self._without_body = without_body
        self._start = self._filled = self._target = 0
        self._waiter = waiter = self.loop.create_future()
        transport.write(request)
        return waiter

    def end(self) -> None:
        """End the exchange; close the connection, unless the whole response was received."""
        self._waiter = None
        if not self.reusable:
            receiver, self._receiver = self._receiver, None
            if receiver is not None and not self._in_head:
                receiver.cut_off(self._taken())
            self.abort()

    def abort(self) -> None:
        """Close the connection at once. Idempotent."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _take_head(self) -> bool:
        """Parse the response's head; return False if a part of the head is still missing."""
        while True:
            end = self._memory.find(b"\r\n\r\n", self._start, self._filled)
            if end < 0:
                if self._memory.startswith(_TLS_ALERT, 0, self._filled):
                    raise TlsExpectedError("it is a TLS alert")
                if self._memory.find(b"\n\n", self._start, self._filled) >= 0:
                    raise ProtocolError("a line of the response's head ends without a carriage return")
                if self._filled == _BUFFER_BYTES:
                    raise HeadTooLongError(f"the head of the response is longer than {_BUFFER_BYTES} bytes")
                return False
            head = self._memory[self._start : end].decode("utf-8", "surrogateescape")
            status, version, headers = parse_head(head)
            self._start = end + 4
            if status >= 200:
                break
            if status == 101:
                raise ProtocolError("the server switched protocols (status 101), which asyncpq did not request")
        self._in_head = False
        self._frame(status, version, headers)
        self._wanted = 0 if self._receiver is None else self._receiver.head(status, headers)
        self._target = self._wanted + 1 if self._length is None else min(self._length, self._wanted + 1)
        if self._chunks is None and self._target > _BUFFER_BYTES - self._start:
            come = self._buffer[self._start : self._filled]
            try:
                self._buffer = _memory_for(self._target + 1)  # one byte more shows a surplus
            except (MemoryError, OverflowError) as error:
                raise ProtocolError(f"the response announces {self._target} bytes, too many for memory") from error
            self._start, self._filled = 0, len(come)
            self._buffer[: len(come)] = come
        return True

    def _frame(self, status: int, version: int, headers: dict[str, str]) -> None:
        """Find out from the headers where the body ends (RFC 9112, section 6.3)."""
        connection = headers.get("connection")
        self._keep_alive = version == 1 and (connection is None or "close" not in connection.lower())
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        self._length = self._chunks = None
        if self._without_body or status in (204, 304):
            self._length = 0
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise ProtocolError(
                    f"the body has Transfer-Encoding {coding!r} and Content-Length {length!r}, expected chunked alone"
                )
            self._chunks = ChunkedBody()
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 20):
                raise ProtocolError(f"the Content-Length {length!r} of the response is not a number")
            self._length = int(length)
        else:
            self._keep_alive = False

    def _take_body(self) -> None:
        chunks = self._chunks
        if chunks is not None:
            ended = chunks.feed(bytes(self._buffer[self._start : self._filled]))
            self._start = self._filled = 0
            come = len(chunks.data)
        else:
            come = self._filled - self._start
            ended = come >= self._target
        if self._receiver is not None:
            self._receiver.received = come if come < self._target else self._target
        if ended or come >= self._target:
            self._finish(complete=ended if chunks is not None else self._target == self._length)

    def _taken(self) -> bytes | memoryview:
        """Return the received bytes of the body: at most the requested number and one more."""
        if self._chunks is not None:
            return bytes(self._chunks.data[: self._target])
        taken = self._buffer[self._start : min(self._start + self._target, self._filled)]
        return bytes(taken) if taken.obj is self._memory else taken.toreadonly()

    def _finish(self, *, complete: bool) -> None:
        chunks, waiter = self._chunks, self._waiter
        data = self._taken()
        if chunks is not None:
            surplus = chunks.over or len(chunks.data) > self._wanted
        else:
            surplus = self._filled - self._start > self._target or len(data) > self._wanted
        if self._buffer.obj is not self._memory:
            self._buffer = memoryview(self._memory)
        self._start = self._filled = 0
        self._receiver = self._chunks = None
        complete = complete and len(data) <= self._wanted
        self.reusable = complete and self._keep_alive and not surplus
        if waiter is not None:
            waiter.set_result(Body(data, complete))


_RESOLVED_S = 10.0  # the addresses of a name are used again within this time


class Endpoint(NamedTuple):
    """The server of a connection: host, port, and whether TLS is used."""

    host: str
    port: int
    tls: bool


class ConnectionPool:
    """The connections of one event loop. Each is kept for further requests until it was idle for ``keepalive_s``.

    ``ssl_context`` is for https: True trusts the system's CAs; False accepts any certificate. ``connect_timeout_s``
    limits DNS, TCP and TLS together.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | bool, connect_timeout_s: float, keepalive_s: float) -> None:
        self._ssl = ssl_context
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._idle: dict[Endpoint, deque[Connection]] = {}
        self._open: set[Connection] = set()
        # when the host was looked up, in the loop's clock, and the lookup
        self._resolved: dict[Endpoint, tuple[float, asyncio.Task[list[Any]]]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def take_idle(self, endpoint: Endpoint) -> Connection | None:
        """Take an idle connection to ``endpoint`` out of the pool; None if there is none."""
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.loop.time() - connection.idle_since < self._keepalive_s:
                return connection
            connection.abort()
        return None

    def has_served(self, endpoint: Endpoint) -> bool:
        """Return whether a connection to ``endpoint`` was kept after a response."""
        return endpoint in self._idle

    async def connect(self, endpoint: Endpoint) -> Connection:
        """Make a connection; raise OSError (or its subclass TimeoutError) if this fails."""
        loop = asyncio.get_running_loop()
        context, name = (self._context(), endpoint.host) if endpoint.tls else (None, None)
        async with asyncio.timeout(self._connect_timeout_s):
            sock = await connect(await self._resolve(endpoint, loop))
            connection = Connection(loop, self._open)
            made = loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=name)
            try:
                await (self._handshake(made, endpoint, loop) if endpoint.tls else made)
            except BaseException:
                # uvloop does not call connection_lost when the connecting task was cancelled
                connection.abort()
                connection.connection_lost(None)
                raise
        if self._closed:
            connection.abort()
            raise ConnectionAbortedError("the connection pool was closed")
        return connection

    async def _handshake(
        self, made: Coroutine[Any, Any, object], endpoint: Endpoint, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Wait for a connection with TLS; raise NoTlsError if the server has none."""
        connecting = asyncio.ensure_future(made)
        try:
            done, _ = await wait_futures((connecting,), timeout=_HANDSHAKE_S)
            if not done and await self._answers_in_clear_text(endpoint, loop) and not connecting.done():
                raise NoTlsError("the server answers without TLS")
            await connecting
        except BaseException:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            raise

    async def _answers_in_clear_text(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a request without TLS, which says nothing of the reads, is answered as only a server without
        TLS does. Those with TLS answer it by status 400 or a redirect to https, if at all."""
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                with await connect(await self._resolve(endpoint, loop)) as sock:
                    await loop.sock_sendall(sock, b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    answer = b""
                    while len(answer) < len(b"HTTP/1.1 200") and (more := await loop.sock_recv(sock, 12)):
                        answer += more
                    return answer.startswith(b"HTTP/") and answer[9:12] in _CLEAR_STATUSES
        except OSError:  # TimeoutError is one
            return False

    async def _resolve(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> list[Address]:
        """Return the host's addresses. Concurrent calls share one DNS lookup."""
        resolved = self._resolved.get(endpoint)
        if resolved is None or resolved[0] + _RESOLVED_S < loop.time():
            lookup = loop.create_task(look_up(endpoint.host, endpoint.port))
            resolved = self._resolved[endpoint] = (loop.time(), lookup)
        _, lookup = resolved
        if not lookup.done():
            await wait_futures((lookup,))
        if lookup.cancelled():
            raise ConnectionAbortedError("the connection pool was closed")
        try:
            return list(lookup.result())
        except OSError:
            if self._resolved.get(endpoint) is resolved:
                del self._resolved[endpoint]
            raise

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """End the exchange, and keep the connection for further requests if it can be used again."""
        connection.end()
        if not connection.reusable or self._closed:
            connection.abort()
            return
        loop = connection.loop
        connection.idle_since = loop.time()
        idle = self._idle.get(endpoint)
        if idle is None:
            idle = self._idle[endpoint] = deque()
        idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._keepalive_s, self._drop_old)

    def _drop_old(self) -> None:
        """Close connections that were idle for too long."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for idle in self._idle.values():
            while idle and (not idle[0].reusable or now - idle[0].idle_since >= self._keepalive_s):
                idle.popleft().abort()
        if any(self._idle.values()):
            self._sweep = loop.call_later(self._keepalive_s, self._drop_old)

    def _context(self) -> ssl.SSLContext:
        if isinstance(self._ssl, bool):
            context = ssl.create_default_context()
            if not self._ssl:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._ssl = context
        return self._ssl

    async def close(self) -> None:
        """Close all connections and wait until they are closed. Idempotent."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        lookups = [lookup for _, lookup in self._resolved.values()]
        self._resolved.clear()
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)
        open_ = list(self._open)
        for connection in open_:
            connection.abort()
        if open_:
            await wait_futures([connection.closed for connection in open_])
