"""Sends a request, watches its clock, holds its body to the byte, sends it again.

What the request is, and whether its response is good, is the business of an :class:`Exchange`. This
is the hot path of a lookup: what is added here is added to every GET.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from yarl import URL

from asyncpq.errors import AsyncpqError, InvalidResponseError, TransportError
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import RequestContext, StoreLimits
from asyncpq.storage.http1 import Body
from asyncpq.storage.responses import ERROR_BODY_BYTES, ExpectedBody, RangeRequest
from asyncpq.storage.retry import RetryableError, delay_before_retry_s
from asyncpq.storage.watchdog import Watch, Watchdog
from asyncpq.storage.wire import Wire

DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "asyncpq"}


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
    """Sends exchanges over a wire, within the limits. Belongs to one event loop."""

    def __init__(self, wire: Wire, *, retry: RetryOptions, limits: StoreLimits) -> None:
        self._wire = wire
        self._retry = retry
        self._slots = asyncio.Semaphore(limits.max_connections)
        self._scan_slots = asyncio.Semaphore(max(1, limits.scan_connections))
        self._watchdog = Watchdog(retry)

    async def send(self, exchange: Exchange, context: RequestContext) -> tuple[ExpectedBody, bytes]:
        """Send until there is a good response, or no attempt or time left. Gives its whole body.

        Raises:
            StoreError, NotParquetError: as the exchange says.
            RangeIgnoredError: as the exchange says.
            TransportError: the connection failed, each time.
            DeadlineExceededError: ``context.deadline`` passed.
        """
        watch = self._watchdog.watch(context.deadline)
        attempt = 1
        try:
            while True:
                try:
                    return await self._send_in_turn(exchange, context, attempt, watch)
                except RetryableError as failure:
                    delay = delay_before_retry_s(
                        failure, attempt=attempt, options=self._retry, now=watch.now(), deadline=context.deadline
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
        self._watchdog.close()
        await self._wire.close()

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
        request = exchange.request
        url, headers = await exchange.prepare()
        started = watch.expect_head()
        response = _Response(exchange, watch)
        try:
            body = await self._wire.exchange(exchange.method, url, headers, request, response.on_head, watch.progress)
            expected = response.expected
            if expected is None:
                raise exchange.refuse(response.status, response.headers, body.data)
            if not body.complete or len(body.data) != expected.length:
                raise _wrong_length(body, expected.length, request)
            return expected, body.data
        except asyncio.CancelledError:
            watch.raise_if_silent(request.url, request.byte_range)
            raise
        finally:
            context.metrics.record(
                RequestRecord(
                    exchange.method,
                    context.purpose,
                    request.start,
                    request.stop,
                    response.status,
                    watch.received,
                    attempt,
                    context.round,
                    watch.now() - started,
                )
            )


class _Response:
    """The head of the response to one attempt, and what the exchange makes of it."""

    __slots__ = ("_exchange", "_watch", "expected", "headers", "status")

    def __init__(self, exchange: Exchange, watch: Watch) -> None:
        self._exchange = exchange
        self._watch = watch
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.expected: ExpectedBody | None = None

    def on_head(self, status: int, headers: Mapping[str, str]) -> int:
        """Bytes of the body that are wanted."""
        self.status, self.headers = status, headers
        self.expected = expected = self._exchange.accept(status, headers) if status < 300 else None
        self._watch.expect_body()
        return ERROR_BODY_BYTES if expected is None else expected.length


def _wrong_length(body: Body, length: int, request: RangeRequest) -> Exception:
    what = f"the response body has {len(body.data)} bytes instead of {length}"
    if len(body.data) <= length:
        return RetryableError(TransportError(what, url=request.url, byte_range=request.byte_range))
    return InvalidResponseError(f"{what} or more", url=request.url, byte_range=request.byte_range)
