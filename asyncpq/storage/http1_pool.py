"""Connections of the hot path, kept for the next request while they are young."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Any, NamedTuple

import aiohappyeyeballs

from asyncpq.storage.http1 import Connection

_RESOLVED_S = 10.0  # for how long a name's addresses are used again


class Endpoint(NamedTuple):
    """Where connections go to."""

    host: str
    port: int
    tls: bool


class _Resolved(NamedTuple):
    """A host name that was looked up, or is; ``at`` of the loop's clock."""

    at: float
    task: asyncio.Task[list[Any]]


class ConnectionPool:
    """Connections of one event loop, kept for the next request while they are young.

    Args:
        ssl_context: for https; True for the system's trust, False to trust anyone.
        connect_timeout_s: to connect and to agree on TLS.
        keepalive_s: an idle connection is not used after this time.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | bool, connect_timeout_s: float, keepalive_s: float) -> None:
        self._ssl = ssl_context
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._idle: dict[Endpoint, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._resolved: dict[Endpoint, _Resolved] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def take_idle(self, endpoint: Endpoint) -> Connection | None:
        """A connection that was used before and is free now."""
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.loop.time() - connection.idle_since < self._keepalive_s:
                return connection
            connection.abort()
        return None

    async def connect(self, endpoint: Endpoint) -> Connection:
        """A new connection.

        Raises:
            OSError: none can be made; TimeoutError is one.
        """
        async with asyncio.timeout(self._connect_timeout_s):
            connection = await self._connect(endpoint, asyncio.get_running_loop())
        if self._closed:
            connection.abort()
            raise ConnectionAbortedError("the pool was closed")
        return connection

    async def _connect(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Connection:
        context = self._context() if endpoint.tls else None
        addresses = await self._resolve(endpoint, loop)
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=0.25, loop=loop)
        connection = Connection(loop, self._open)
        try:
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else endpoint.host,
            )
        except BaseException:
            # uvloop does not tell a protocol that its connection is lost when it is made for nobody
            connection.abort()
            connection.connection_lost(None)
            raise
        return connection

    async def _resolve(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop
    ) -> list[aiohappyeyeballs.AddrInfoType]:
        """The host's addresses; a burst of connections asks once."""
        resolved = self._resolved.get(endpoint)
        if resolved is None or resolved.at + _RESOLVED_S < loop.time():
            asking = loop.create_task(loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
            resolved = self._resolved[endpoint] = _Resolved(loop.time(), asking)
        await asyncio.wait((resolved.task,))
        if resolved.task.cancelled():
            raise ConnectionAbortedError("the pool was closed")
        try:
            return list(resolved.task.result())
        except OSError:
            if self._resolved.get(endpoint) is resolved:
                del self._resolved[endpoint]
            raise

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """The exchange has ended, or is given up; the connection is kept if it can be."""
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
        """Close what has been idle for too long."""
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
        """Close all connections and wait until they are. Idempotent."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        asking = [resolved.task for resolved in self._resolved.values()]
        self._resolved.clear()
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        for task in asking:
            if not task.cancelled():
                task.exception()
        open_ = list(self._open)
        for connection in open_:
            connection.abort()
        if open_:
            await asyncio.wait([connection.closed for connection in open_])
