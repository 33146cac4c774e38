"""One aiohttp session: sends a request, watches its clock, reads its body to the byte, sends it again.

What the request is, and whether its response is good, is the business of an :class:`Exchange`. This
is the hot path of a lookup: what is added here is added to every GET.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import aiohttp
from yarl import URL

from asyncpq.errors import AsyncpqError, InvalidResponseError, StoreError, TransportError, UsageError
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import RequestContext, StoreLimits
from asyncpq.storage.responses import ERROR_BODY_BYTES, ExpectedBody, RangeIgnoredError, RangeRequest
from asyncpq.storage.retry import RetryableError, delay_before_retry_s
from asyncpq.storage.watchdog import Watch, Watchdog

_READ_BUFFER_BYTES = 256 * 1024
_KEEPALIVE_S = 15.0  # shorter than the idle timeouts of S3 (20 s) and of common load balancers


class Exchange(Protocol):
    """One request, however often it is sent."""

    @property
    def method(self) -> str:
        """ "GET" or "HEAD"."""

    @property
    def request(self) -> RangeRequest: ...

    async def prepare(self) -> tuple[URL, dict[str, str]]:
        """Url and headers for the next attempt, signed now."""

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        """What the body must be, or None to have the start of the body given to ``refuse``.

        Raises:
            AsyncpqError, RetryableError, RangeIgnoredError: the response is refused unread.
        """

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        """The error that the response, with the first bytes of its body, stands for."""


class Transport:
    """Sends exchanges over one pool of connections, within the limits. Belongs to one event loop."""

    def __init__(
        self,
        *,
        retry: RetryOptions,
        limits: StoreLimits,
        ssl_context: ssl.SSLContext | bool = True,
        headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self._retry = retry
        self._slots = asyncio.Semaphore(limits.max_connections)
        self._scan_slots = asyncio.Semaphore(max(1, limits.scan_connections))
        self._ssl = ssl_context
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "asyncpq", **(headers or {})}
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._watchdog = Watchdog(retry)
        self._closed = False

    async def send(self, exchange: Exchange, context: RequestContext) -> tuple[ExpectedBody, bytes]:
        """Send until there is a good response, or no attempt or time left. Gives its whole body.

        Raises:
            StoreError, NotParquetError: as the exchange says.
            RangeIgnoredError: as the exchange says.
            TransportError: the connection failed, each time.
            DeadlineExceededError: ``context.deadline`` passed.
        """
        loop = asyncio.get_running_loop()
        watch = self._watchdog.watch(context.deadline)
        attempt = 1
        try:
            while True:
                try:
                    return await self._send_in_turn(exchange, context, attempt, watch)
                except RetryableError as failure:
                    delay = delay_before_retry_s(
                        failure, attempt=attempt, options=self._retry, now=loop.time(), deadline=context.deadline
                    )
                attempt += 1
                watch.rest()
                if delay > 0.0:
                    await asyncio.sleep(delay)
        except asyncio.CancelledError:
            watch.raise_if_deadline(exchange.request.url, exchange.request.byte_range)
            raise
        finally:
            watch.stop()

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        self._watchdog.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send_in_turn(
        self, exchange: Exchange, context: RequestContext, attempt: int, watch: Watch
    ) -> tuple[ExpectedBody, bytes]:
        """Wait for a connection that may be used: scans leave some to lookups."""
        if context.scan:
            async with self._scan_slots, self._slots:
                return await self._send_once(exchange, context, attempt, watch)
        await self._slots.acquire()
        try:
            return await self._send_once(exchange, context, attempt, watch)
        finally:
            self._slots.release()

    async def _send_once(
        self, exchange: Exchange, context: RequestContext, attempt: int, watch: Watch
    ) -> tuple[ExpectedBody, bytes]:
        session = self._session or self._connect()
        request = exchange.request
        method = exchange.method
        url, headers = await exchange.prepare()
        started = watch.expect_head()
        status = 0
        complete = False
        response: aiohttp.ClientResponse | None = None
        try:
            response = await session.request(method, url, headers=headers, allow_redirects=False)
            status = response.status
            expected = exchange.accept(status, response.headers) if status < 300 else None
            watch.expect_body()
            if expected is None:
                body, complete = await _read_start(response, watch)
                raise exchange.refuse(status, response.headers, body)
            content = response.content
            body = await read_exactly(content.readany, content.at_eof, expected.length, request, watch)
            complete = True
            return expected, body
        except asyncio.CancelledError:
            watch.raise_if_silent(request.url, request.byte_range)
            raise
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            quotes_url = isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL)
            raise connection_failure(error, request) from (None if quotes_url else error)
        finally:
            if response is not None and not complete:
                response.close()  # never leave unread bytes to the connection's next request
            context.metrics.record(
                RequestRecord(
                    method,
                    context.purpose,
                    request.start,
                    request.stop,
                    status,
                    watch.received,
                    attempt,
                    context.round,
                    watch.now() - started,
                )
            )

    def _connect(self) -> aiohttp.ClientSession:
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        # No limit in the connector: the semaphores know who may have which connection.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl, keepalive_timeout=_KEEPALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._retry.connect_timeout_s),
            read_bufsize=_READ_BUFFER_BYTES,
            trust_env=self._trust_env,
        )
        return self._session


async def read_exactly(
    read_part: Callable[[], Awaitable[bytes]],
    at_end: Callable[[], bool],
    length: int,
    request: RangeRequest,
    watch: Watch,
) -> bytes:
    """A body, which must have ``length`` bytes.

    Args:
        read_part: the next bytes of the body, none at its end.
        at_end: True if it is certain that nothing follows.

    Raises:
        RetryableError: it is shorter.
        InvalidResponseError: it is longer.
    """
    parts: list[bytes] = []
    received = 0
    while received < length:
        part = await read_part()
        if not part:
            break
        received += len(part)
        watch.progress(received)
        parts.append(part)
    if received == length and not at_end():
        part = await read_part()  # the end of a chunked body, or more than there should be
        received += len(part)
        watch.progress(received)
    if received == length:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    what = f"the response body has {received} bytes instead of {length}"
    if received < length:
        raise RetryableError(TransportError(what, url=request.url, byte_range=request.byte_range))
    raise InvalidResponseError(f"{what} or more", url=request.url, byte_range=request.byte_range)


async def _read_start(response: aiohttp.ClientResponse, watch: Watch) -> tuple[bytes, bool]:
    """At most ERROR_BODY_BYTES of the body, and whether that is all of it."""
    parts: list[bytes] = []
    received = 0
    while received < ERROR_BODY_BYTES:
        part = await response.content.readany()
        if not part:
            return b"".join(parts), True
        received += len(part)
        watch.progress(received)
        parts.append(part)
    return b"".join(parts)[:ERROR_BODY_BYTES], False


def connection_failure(error: aiohttp.ClientError | OSError, request: RangeRequest) -> Exception:
    """What an aiohttp error stands for. Its text is not used: it may quote the url with its query."""
    where = {"url": request.url, "byte_range": request.byte_range}
    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return TransportError(f"the TLS connection failed ({kind})", url=request.url, hint="Check the certificate.")
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.InvalidURL):
        return InvalidResponseError(f"the server does not speak HTTP here ({kind})", url=request.url)
    detail = ""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.strerror:
        detail = f": {cause.strerror}"
    return RetryableError(TransportError(f"the connection failed ({kind}{detail})", **where))  # type: ignore[arg-type]


__all__ = ["Exchange", "RangeIgnoredError", "Transport", "connection_failure", "read_exactly"]
