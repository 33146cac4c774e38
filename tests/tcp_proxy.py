"""A TCP proxy for tests: replies can be held back, replaced, and are counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from types import TracebackType


class TcpProxy:
    """Between clients and ``127.0.0.1:port``, while in ``async with``. With ``tls`` clients speak TLS.

    Attributes:
        port: where it listens.
        let_through: while it is cleared, no reply reaches a client.
        replies: what clients are sent in place of the server's replies, or None.
        requests, reply_bytes: what passed in each direction.
        connections: those that were made.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        self.let_through = asyncio.Event()
        self.let_through.set()
        self.replies: bytes | None = None
        self.requests = bytearray()
        self.reply_bytes = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self.let_through.set()
        await self.until_closed()

    def reset(self) -> None:
        """Break every connection off, as a machine does that has lost its memory of them."""
        for writer in self._writers:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def until_closed(self) -> None:
        """Until every connection has ended."""
        while self._writers:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)

    async def until_asked(self, command: bytes, times: int) -> None:
        """Until so many of a command have passed."""
        while self.requests.count(command) < times:  # noqa: ASYNC110 - nobody else waits for it
            await asyncio.sleep(0.001)

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(to_client)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.ensure_future(self._pass_replies(from_server, to_client))
        with contextlib.suppress(OSError):
            while data := await from_client.read(1 << 16):
                self.requests += data
                to_server.write(data)
                await to_server.drain()
        to_server.transport.abort()
        back.cancel()
        await asyncio.wait((back,))
        to_client.transport.abort()
        self._writers.discard(to_client)

    async def _pass_replies(self, from_server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await from_server.read(1 << 16):
                await self.let_through.wait()
                if self.replies is not None:
                    data = self.replies
                self.reply_bytes += len(data)
                to_client.write(data)
                await to_client.drain()
        to_client.transport.abort()
