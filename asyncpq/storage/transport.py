"""The transport: sends a request within the store's limits, retries, hedges, and resumes a body that broke off.

An :class:`Exchange` knows the request, its carrier, and what a good response is. This is the hot path of a lookup:
every GET pays for what is added here. Hedging is off by default.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from asyncpq.errors import AsyncpqError, InvalidResponseError, ObjectChangedError, TransportError
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import RequestContext, StoreLimits, Unpicklable
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import ConnectionLimiter, Watch, Watchdog
from asyncpq.storage.response_checks import (
    ERROR_BODY_BYTES,
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    check_chunked_whole,
    expects_tls,
    strong_etag,
    tls_expected,
)
from asyncpq.storage.retries import Attempts, RetryableError, RetryBudget
from asyncpq.storage.threads import Threads, end_tasks
from asyncpq.waiting import wait_futures

T = TypeVar("T")

Outcome = tuple[ExpectedBody, bytes | memoryview]


_PROGRESS_BYTES = 64 * 1024  # of a body: an attempt that received as much does not count as failed


class Resumption:
    """Assembles the body of one GET from several attempts. A retry of the same version requests the rest."""

    __slots__ = ("_expected", "_parts", "_request", "_whole")

    def __init__(self, whole: RangeRequest) -> None:
        self._whole = self._request = whole
        self._expected: ExpectedBody | None = None  # of the whole body
        self._parts: list[bytes | memoryview] = []

    @property
    def begun(self) -> bool:
        """Whether a part of the body has been received, so that the next attempt requests only the rest."""
        return bool(self._parts)

    def keep(self, is_part: bool, expected: ExpectedBody | None, data: bytes | memoryview) -> RangeRequest:
        """Keep ``data``, which a failed attempt received, if it can be continued; return the request of the next
        attempt. ``is_part``: the response has a Content-Range."""
        if is_part and expected is not None and 0 < len(data) < expected.length:
            pin = self._request.pin or expected.validator
            if strong_etag(pin) is not None and pin.size != UNKNOWN_SIZE:
                if self._expected is None:
                    self._expected = expected
                self._parts.append(data)
                start, stop = expected.start + len(data), expected.start + expected.length
                self._request = RangeRequest(start, stop, self._whole.url, pin)
        return self._request

    def start_over(self) -> bool:
        """Drop the received parts, since the object no longer has their version. Return False, and drop nothing, if
        there are none, or if the caller pinned the version."""
        if not self.begun or self._whole.pin is not None:
            return False
        self._request, self._expected = self._whole, None
        self._parts.clear()
        return True

    def complete(self, is_part: bool, expected: ExpectedBody, data: bytes | memoryview) -> Outcome:
        """Join the received parts with the body of the last attempt; return the whole body and its description.

        Raises InvalidResponseError if the last response is not the rest of the body.
        """
        if self._expected is None:
            return expected, data
        if not is_part:
            raise InvalidResponseError(
                "the server sent the whole object instead of the rest of it",
                url=self._whole.url,
                byte_range=self._request.byte_range,
            )
        return self._expected, b"".join([*self._parts, data])


#: Larger GETs are not hedged: their time is mostly that of their body.
HEDGED_BYTES = 1024 * 1024

_KEPT_TIMES = 128
_FEWEST_TIMES = 20  # for a 95th percentile
_TIMES_BETWEEN = 16  # after which it is computed again
_SAVED_HEDGES = 4.0


class Hedging:
    """Decides when a small GET that has no response yet is sent a second time: for at most ``ratio`` of GETs.

    The delay is the 95th percentile of recent small GETs. See Dean and Barroso, The Tail at Scale (CACM 56, 2, 2013).
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._account = 0.0
        self._times: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._learnt = 0
        self._p95_s: float | None = None

    def begin(self) -> float | None:
        """Count a small GET; return the seconds after which it may be sent again. None while too few were measured."""
        self._account = min(self._account + self._ratio, _SAVED_HEDGES)
        return self._p95_s

    def take(self) -> bool:
        """Return whether the fraction allows a second request now; if so, count it."""
        if self._account < 1.0:
            return False
        self._account -= 1.0
        return True

    def learn(self, seconds: float) -> None:
        """Count the time of a small GET's response."""
        self._times.append(seconds)
        self._learnt += 1
        if self._learnt % _TIMES_BETWEEN == 0 and len(self._times) >= _FEWEST_TIMES:
            times = sorted(self._times)
            self._p95_s = times[len(times) * 95 // 100]


_CHECKED_AT_ONCE = 32 * 1024  # bytes of a body; a page of a listing of so many takes a few milliseconds
_THREADS = 2

_READS = frozenset({"GET", "HEAD"})
_UPLOAD_BYTES_S = 64 * 1024  # slower uploads time out


class Exchange(Protocol):
    """One request, over all its attempts: how it is sent, and what a good response is. A hedge sends a shallow copy."""

    method: str  # "GET" or "HEAD"; or the method of a write, which every attempt sends whole and which is never hedged
    request: RangeRequest  # of the next attempt; the transport changes it when only the rest of a body is missing

    @property
    def host(self) -> str:
        """Host that is asked, whose requests are paced together; "" for the store's only one."""

    def prepare(self, context: RequestContext) -> Coroutine[Any, Any, RequestContext] | None:
        """Return a coroutine to await before the request is sent, such as the opening of a session; None if nothing has
        to come first. It has no time limit.

        The coroutine returns the request's context, which is of a later round if another request had to come first.
        """

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """Sign and send one attempt. Raises the errors of :meth:`asyncpq.storage.aiohttp_wire.AiohttpWire.exchange`."""

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        """Check the head of a response. Return what body must follow; None if the response is an error, and ``refuse``
        should be called with the start of its body.

        Raises AsyncpqError, RetryableError or RangeIgnoredError to refuse the response, whose body is then not read.
        """

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        """Return the error for a response that :meth:`accept` did not accept; ``body`` is the start of its body."""


class Transport(Unpicklable):
    """Sends the requests (exchanges) of one store, within its limits. Belongs to one event loop."""

    def __init__(self, *, retry: RetryOptions, limits: StoreLimits) -> None:
        self._retry = retry
        self._limiter = ConnectionLimiter(limits)
        self._budget = RetryBudget(retry.retry_budget)
        self._watchdog = Watchdog(retry)
        self._hedging = Hedging(retry.hedge_ratio) if retry.hedge_ratio > 0 else None
        self._hedges: set[asyncio.Task[Outcome]] = set()
        self._threads = Threads(_THREADS, "asyncpq-bodies")

    async def send(self, exchange: Exchange, context: RequestContext) -> Outcome:
        """Send an exchange until a good response has come, or no attempt or time is left. Return the body and its
        description.

        Raises the errors of ``accept`` and ``refuse``, TransportError if the connection failed in each attempt, and
        DeadlineExceededError if no attempt could begin within ``read_timeout_s``.
        """
        limiter, budget, scan = self._limiter, self._budget, context.scan
        pace = limiter.pace_of(exchange.host)
        reception = _Reception(self._watchdog, exchange)
        resumption: Resumption | None = None
        attempts: Attempts | None = None  # made after the first failure: most requests have none
        number, began, served = 1, reception.since, pace.served
        try:
            while True:
                if not limiter.try_take(scan, pace):
                    context.metrics.paced_s += await limiter.wait(scan, pace)
                try:
                    if number == 1 and self._hedging is not None and exchange.method in _READS:
                        expected, data = await self._send_hedged(exchange, context, reception, self._hedging)
                    else:
                        expected, data = await self._send_once(exchange, context, reception, number)
                    limiter.succeeded(reception.sent, reception.loop.time(), pace)
                    if budget.available < budget.most:
                        budget.succeeded(number)
                    return (
                        (expected, data)
                        if resumption is None
                        else resumption.complete(reception.is_part, expected, data)
                    )
                except RetryableError as error:
                    failure = error.with_traceback(None)  # its frames hold this one, and the response
                except ObjectChangedError as error:
                    if resumption is None or not resumption.start_over():
                        raise
                    failure = RetryableError(error)
                finally:
                    limiter.give(scan)
                reception.rest()
                if attempts is None:
                    attempts = Attempts(limiter, pace, budget, self._retry, began, served)
                if resumption is None:
                    resumption = Resumption(exchange.request)
                rest = resumption.keep(reception.is_part, reception.expected, reception.partial)
                went_on = rest is not exchange.request and len(reception.partial) >= _PROGRESS_BYTES
                delay = attempts.delay_s(failure, reception.loop.time(), went_on=went_on)
                number, exchange.request = attempts.number, rest
                if delay > 0.0:
                    await asyncio.sleep(delay)
        finally:
            reception.stop()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work``, such as the parsing of a large body, in a thread of the store, and return its result."""
        started = self._threads.start(work)
        del work  # an error's frames would hold what it works on
        return await started

    async def close(self) -> None:
        """Cancel the hedges (second requests), stop the watchdog and end the threads. Idempotent."""
        self._watchdog.close()
        await end_tasks(self._hedges)
        await self._threads.close()

    async def _send_once(
        self, exchange: Exchange, context: RequestContext, reception: _Reception, attempt: int, *, hedge: bool = False
    ) -> Outcome:
        request = exchange.request
        preparing = exchange.prepare(context)
        if preparing is not None:
            context = await preparing
        started = reception.begin()
        throttled = False
        data: bytes | memoryview = b""
        try:
            data, complete = await exchange.send(reception)
            expected = reception.expected
            if expected is None:
                if reception.status == 400 and expects_tls(data):
                    raise tls_expected(request)
                raise exchange.refuse(reception.status, reception.headers, bytes(data))
            if expected.check is not None and complete:
                if len(data) <= _CHECKED_AT_ONCE:
                    expected.check(bytes(data))
                else:
                    reception.rest()
                    await self.in_thread(partial(expected.check, bytes(data)))
                return expected, data
            if expected.is_chunked_whole and complete:
                return check_chunked_whole(request, expected, len(data)), data
            if not complete or len(data) != expected.length:
                if not complete:  # a complete body of a wrong length is not trusted
                    reception.partial = data
                raise _wrong_length(data, expected, request)
            return expected, data
        except RetryableError as failure:
            throttled = failure.throttled
            if throttled:
                pace = self._limiter.pace_of(exchange.host)
                failure.known = not self._limiter.refused(
                    started, reception.loop.time(), attempt, pace, failure.retry_after_s
                )
            raise
        except asyncio.CancelledError:
            reception.raise_if_silent(request.url, request.byte_range)
            raise
        finally:
            data = b""  # an error's frames would hold a large body until the garbage collector comes
            context.metrics.record(
                RequestRecord(
                    exchange.method,
                    context.purpose,
                    request.start,
                    request.stop,
                    reception.status,
                    reception.received,
                    attempt,
                    context.round,
                    reception.loop.time() - started,
                    throttled,
                    hedge,
                    started,
                    reception.head_s,
                    request.url,
                )
            )

    async def _send_hedged(
        self, exchange: Exchange, context: RequestContext, reception: _Reception, hedging: Hedging
    ) -> Outcome:
        """Send an attempt, and a second one if the first has no response in time; return the first good response."""
        request = exchange.request
        delay_s = hedging.begin() if request.length <= HEDGED_BYTES else None
        reception.hedging = hedging if request.length <= HEDGED_BYTES else None
        if delay_s is None:
            return await self._send_once(exchange, context, reception, 1)
        second: list[asyncio.Task[Outcome]] = []

        def start() -> None:
            limiter = self._limiter
            # never while the store is throttling
            pace = limiter.pace_of(exchange.host)
            if not reception.without_response or pace.limit < math.inf or not limiter.try_take(context.scan, pace):
                return
            if not hedging.take():
                limiter.give(context.scan)
            else:
                task = reception.loop.create_task(self._send_second(copy.copy(exchange), context))
                second.append(task)
                self._hedges.add(task)
                task.add_done_callback(ended)

        def ended(task: asyncio.Task[Outcome]) -> None:
            self._hedges.discard(task)
            self._limiter.give(context.scan)
            if not task.cancelled() and task.exception() is None:
                reception.overtake()

        timer = reception.loop.call_later(delay_s, start)
        try:
            return await self._send_once(exchange, context, reception, 1)
        except RetryableError:
            reception.rest()
            if not second or not await _succeeds(second[0]):
                raise
            return second[0].result()
        except asyncio.CancelledError:
            if not reception.overtaken():
                raise
            return second[0].result()
        finally:
            timer.cancel()
            for task in second:
                task.cancel()

    async def _send_second(self, exchange: Exchange, context: RequestContext) -> Outcome:
        reception = _Reception(self._watchdog, exchange)
        try:
            return await self._send_once(exchange, context, reception, 1, hedge=True)
        finally:
            reception.stop()


async def _succeeds(task: asyncio.Task[Outcome]) -> bool:
    await wait_futures((task,))
    return not task.cancelled() and task.exception() is None


class _Reception(Watch):
    """Receives the response to the current attempt: its checked head, and its body so far. The watchdog cancels it if
    it stalls."""

    def __init__(self, dog: Watchdog, exchange: Exchange) -> None:
        request = exchange.request
        upload_s = 0.0 if exchange.method in _READS else (request.stop - request.start) / _UPLOAD_BYTES_S
        super().__init__(dog, upload_s)
        self._exchange = exchange
        self.hedging: Hedging | None = None  # learns the response's time

    def begin(self) -> float:
        """Begin an attempt; return the event loop's time in seconds."""
        self.sent: float = self.expect_head()
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.expected: ExpectedBody | None = None  # the body that must follow the accepted head
        self.partial: bytes | memoryview = b""  # received bytes of a body that broke off
        return self.sent

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        seconds = self.expect_body()
        if self.hedging is not None:
            self.hedging.learn(seconds)
        self.status, self.headers = status, headers
        self.expected = expected = self._exchange.accept(status, headers) if status < 300 else None
        return ERROR_BODY_BYTES if expected is None else expected.length

    @property
    def is_part(self) -> bool:
        """Whether the accepted response has the bytes that its Content-Range names. Some servers say so with 200."""
        return self.status == 206 or "content-range" in self.headers

    def cut_off(self, data: bytes | memoryview) -> None:
        self.partial = data


def _wrong_length(data: bytes | memoryview, expected: ExpectedBody, request: RangeRequest) -> Exception:
    length = expected.length
    message = f"the response body has {len(data)} bytes instead of {length}"
    if expected.is_chunked_whole and len(data) > length:
        return RangeIgnoredError(None)
    is_at_most = expected.check is not None or expected.is_chunked_whole
    if len(data) == length or (is_at_most and len(data) < length):
        message = f"the response body ended too early, after {len(data)} bytes"
    if len(data) <= length:
        return RetryableError(TransportError(message, url=request.url, byte_range=request.byte_range))
    return InvalidResponseError(f"{message} or more", url=request.url, byte_range=request.byte_range)
