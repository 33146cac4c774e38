"""The limits that all requests of one store share: connections, and the timer of their timeouts.

``ConnectionLimiter`` grants connections and lowers their number while the store throttles; ``Watchdog`` cancels
requests that stall.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Literal, TypeVar

from asyncpq.errors import TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.retries import RetryableError

T = TypeVar("T")

_LEAST_CONNECTIONS = 2  # connections that throttling leaves, one of them for lookups


class ConnectionLimiter:
    """Limits how many requests of a store run at once; lowers the limit while the store throttles.

    Additive increase, multiplicative decrease: a throttled request halves the limit, once for all requests that were
    running together; as many successes as the limit has connections raise it by one. Scans lose connections first.
    Connections are granted in the order of the calls, except to scans at their own limit.

    ``used`` requests are running; ``limit`` are allowed now, ``most`` without throttling. ``scans`` and ``scan_limit``
    count those of scans alone.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self.most: int = limits.max_connections
        self._most_scans = max(1, limits.scan_connections)
        self._allowed = float(self.most)
        self.limit: int = self.most
        self.scan_limit: int = self._most_scans
        self.used: int = 0
        self.scans: int = 0
        self._lookups: deque[tuple[int, asyncio.Future[None]]] = deque()  # waiters, by ticket
        self._scans: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._tickets = 0
        self._slowed_at = -math.inf

    def try_take(self, scan: bool) -> bool:
        """Take a connection if the limit, and for a ``scan`` also the limit of scans, leaves one; return whether it was
        taken."""
        if self.used >= self.limit or (scan and self.scans >= self.scan_limit):
            return False
        self.used += 1
        self.scans += scan
        return True

    async def wait(self, scan: bool) -> None:
        """Wait for a connection and take it, after :meth:`try_take` failed. A cancelled wait takes no connection."""
        granted = asyncio.get_running_loop().create_future()
        self._tickets += 1
        (self._scans if scan else self._lookups).append((self._tickets, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(scan)
            raise

    def give(self, scan: bool) -> None:
        """Give a connection back."""
        self.used -= 1
        self.scans -= scan
        if self._lookups or self._scans:
            self._grant()

    def slow_down(self, sent: float, now: float) -> None:
        """Halve the limit: the store throttled a request sent at ``sent``, which still holds its connection."""
        if sent > self._slowed_at:  # else it was under way when the limit was last halved
            self._slowed_at = now
            least = float(min(_LEAST_CONNECTIONS, self.most))
            self._allow(max(min(self._allowed, float(self.used)) / 2, least))

    def speed_up(self) -> None:
        """Raise the limit after a successful request."""
        if self._allowed < self.most:
            self._allow(min(self._allowed + 1.0 / self._allowed, float(self.most)))

    def _allow(self, allowed: float) -> None:
        self._allowed = allowed
        self.limit = int(allowed)
        self.scan_limit = min(self._most_scans, max(1, self.limit - (self.most - self._most_scans)))
        self._grant()

    def _grant(self) -> None:
        while self.used < self.limit:
            lookups, scans = self._lookups, self._scans
            scan = bool(scans) and self.scans < self.scan_limit and (not lookups or scans[0][0] < lookups[0][0])
            if not scan and not lookups:
                return
            _, granted = (scans if scan else lookups).popleft()
            if not granted.done():
                self.used += 1
                self.scans += scan
                granted.set_result(None)


class Watchdog:
    """One timer for all timeouts of a store's fetches (first byte, silence, low throughput).

    ``asyncio.timeout`` for each of them, or one timer for each fetch, would cost more than everything else that asyncpq
    adds to a GET. On expiry the watchdog does what ``asyncio.timeout`` does: it cancels the task, takes the
    cancellation back, and raises a typed error.
    """

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        # The shortest timeout of all phases, so that a timer set for one phase is in time for the next one. Bodies are
        # looked at four times as often: only their progress between looks is known.
        self._period = min(options.stall_timeout_s / 4, options.connect_timeout_s + options.first_byte_timeout_s)
        self.watches: set[Watch] = set()  # of the fetches under way
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf

    def add(self, watch: Watch, now: float) -> None:
        """Add a watch, whose timeouts count from now on."""
        self.watches.add(watch)
        due = now + self._period
        if due < self._due:
            self._arm(watch.loop, due)

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._due = math.inf

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.close()
        self._due = due
        self._handle = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle, self._due = None, math.inf
        now = loop.time()
        due = min([watch.look(now) for watch in tuple(self.watches)], default=math.inf)
        if self.watches:
            self._arm(loop, min(due, now + self._period))


class Watch:
    """Measures the timeouts of one fetch for the watchdog, from its creation until :meth:`stop`.

    ``upload_s``: additional seconds until the response head must have arrived, for a request with a body.
    """

    def __init__(self, dog: Watchdog, upload_s: float = 0.0) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a fetch must run inside an asyncio task")
        self._dog = dog
        self._task = task
        self.loop: asyncio.AbstractEventLoop = task.get_loop()
        loop = self.loop
        self._upload_s = upload_s
        self._cancelling = task.cancelling()
        self._phase: Literal["rest", "head", "body"] = "rest"
        self.since: float = loop.time()  # beginning of the current attempt or of its body
        self._last = now = self.since
        self._expired = ""  # why the task was cancelled
        self.received: int = 0  # body bytes of the attempt so far
        self._seen = 0
        self.head_s: float | None = None  # from the beginning of the attempt until the head came
        dog.add(self, now)

    def rest(self) -> None:
        """Suspend the timeouts while the fetch waits for a connection or the next attempt."""
        self._phase = "rest"

    def expect_head(self) -> float:
        """Begin an attempt, which waits for the response head; return the event loop's time in seconds."""
        self._phase = "head"
        self.received = self._seen = 0
        self.head_s = None
        self.since = now = self.loop.time()
        return now

    def expect_body(self) -> float:
        """Record that the head has arrived, and wait for the body; return the seconds that the head took."""
        began = self.since
        self._phase = "body"
        self.since = self._last = now = self.loop.time()
        self.head_s = seconds = now - began
        return seconds

    @property
    def without_response(self) -> bool:
        """Whether an attempt is running and no byte of a response has arrived."""
        return self._phase == "head" and not self._expired

    def stop(self) -> None:
        """End the watch."""
        self._phase = "rest"
        self._dog.watches.discard(self)

    def raise_if_silent(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """Raise RetryableError if the watchdog cancelled the task for a timeout. For use in ``except
        CancelledError``."""
        reason = self._expired
        if reason and reason != "hedge" and self._task.uncancel() <= self._cancelling:
            self._expired = ""
            self._phase = "rest"
            raise RetryableError(TransportError(reason, url=url, byte_range=byte_range)) from None

    def overtake(self) -> None:
        """Cancel the attempt, since a second request (a hedge) has the bytes. Does nothing if the attempt is ending
        already."""
        if self._phase != "rest" and not self._expired:
            self._expire("hedge")

    def overtaken(self) -> bool:
        """Return whether :meth:`overtake` cancelled the task, and undo the cancellation.

        For use in ``except CancelledError``.
        """
        if self._expired == "hedge" and self._task.uncancel() <= self._cancelling:
            self._expired = ""
            return True
        return False

    def look(self, now: float) -> float:
        """Cancel the task if a timeout has passed; return the event loop's time at which to look again."""
        if self._expired:
            return math.inf  # cancelled; it has not run since
        options = self._dog.options
        if self._phase == "head":
            due = self.since + options.connect_timeout_s + options.first_byte_timeout_s + self._upload_s
            if now >= due:
                return self._expire(f"no response within {now - self.since:.1f} s")
            return due
        if self._phase == "body":
            if self.received != self._seen:
                self._seen, self._last = self.received, now
            due = self._last + options.stall_timeout_s
            if now >= due:
                return self._expire(f"the response body stopped for {now - self._last:.1f} s")
            whole = now - self.since
            if whole < options.stall_timeout_s:
                due = min(due, self.since + options.stall_timeout_s)
            elif self.received < whole * options.min_throughput_bytes_s:
                return self._expire(f"the response body came at {self.received / whole:.0f} bytes/s")
            return due
        return math.inf

    def _expire(self, reason: str) -> float:
        self._expired = reason
        self._task.cancel()
        return math.inf
