"""A cheap HTTP/1.1 client: whole requests made beforehand, sent over raw connections.

It shares the machine with the service that it measures. So it parses no more of an answer than its end needs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HOST = "127.0.0.1"
_HEAD_BYTES = 64 << 10
_PIECE_BYTES = 256 << 10
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``status``: 0 if no head came; ``complete``: whether the body has its end."""

    status: int
    body: bytes
    complete: bool
    keeps: bool = False


NO_ANSWER: Final = Answer(0, b"", False)


def request(method: str, path: str, token: str | None = None, body: bytes | None = None) -> bytes:
    """Return a whole request. ``path`` is encoded already."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect. Raises OSError if nothing listens there."""
        return cls(*await asyncio.open_connection(HOST, port, limit=_HEAD_BYTES))

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def send(self, data: bytes) -> None:
        """Send a request, or a part of one."""
        self._writer.write(data)
        await self._writer.drain()

    async def first_bytes(self) -> bytes:
        """Return the head of the answer and what of its body came with it."""
        return await self._reader.read(_HEAD_BYTES)

    async def ask(self, data: bytes, *, body: bool = True) -> Answer:
        """Send a request and receive its answer, which is incomplete if the connection ends before.

        Args:
            data: of :func:`request`.
            body: whether to keep the answer's body, or only to receive it.
        """
        status, parts, keeps = 0, bytearray(), False
        try:
            # the service may answer and close before it has the whole body
            sending = asyncio.ensure_future(self.send(data)) if len(data) > _HEAD_BYTES else None
            try:
                if sending is None:
                    self._writer.write(data)
                head = await self._reader.readuntil(b"\r\n\r\n")
                status, headers = _parsed(head)
                keeps = headers.get("connection") != "close"
                if "content-length" in headers:
                    await self._take(int(headers["content-length"]), parts if body else None)
                elif headers.get("transfer-encoding") == "chunked":
                    while size := int(await self._reader.readuntil(b"\r\n"), 16):
                        await self._take(size, parts if body else None)
                        await self._reader.readexactly(2)
                    await self._reader.readexactly(2)
            finally:
                if sending is not None:
                    keeps = keeps and sending.done() and not sending.cancelled() and sending.exception() is None
                    sending.cancel()
                    await asyncio.wait((sending,))
                    if not sending.cancelled():
                        sending.exception()
        except (OSError, EOFError):
            return Answer(status, bytes(parts), False)
        return Answer(status, bytes(parts), True, keeps)

    async def _take(self, size: int, parts: bytearray | None) -> None:
        while size:
            data = await self._reader.read(min(size, _PIECE_BYTES))
            if not data:
                raise EOFError
            size -= len(data)
            if parts is not None:
                parts += data

    def close(self) -> None:
        """Close in the usual way."""
        self._writer.close()

    def reset(self) -> None:
        """End the connection as a client that is killed does: by RST."""
        under: socket.socket | None = self._writer.get_extra_info("socket")
        if under is not None and not self._writer.is_closing():
            under.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort()


def _parsed(head: bytes) -> tuple[int, Mapping[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split(" ", 2)[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


class Client:
    """Asks with as many connections as it has requests at once, and keeps them for the next ones."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[Connection] = []

    async def ask(self, data: bytes, timeout_s: float, *, body: bool = True) -> Answer | None:
        """Send a request and return its answer; None if it takes longer than ``timeout_s``."""
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                kept = connection = self._kept()
                if connection is None:
                    connection = await Connection.open(self.port)
                answer = await connection.ask(data, body=body)
                if kept is not None and answer == NO_ANSWER:  # the service may close a connection that is not used
                    kept.close()
                    connection = await Connection.open(self.port)
                    answer = await connection.ask(data, body=body)
        except TimeoutError:
            if connection is not None:
                connection.reset()
            return None
        except OSError:
            return NO_ANSWER
        except BaseException:
            if connection is not None:
                connection.reset()
            raise
        if answer.complete and answer.keeps:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


async def sleep_until(at: float) -> None:
    """Sleep until ``time.perf_counter()`` is ``at``."""
    left = at - time.perf_counter()
    await asyncio.sleep(max(0.0, left))
