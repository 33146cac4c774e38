"""The watchdog: one timer for all timeouts of a store (deadline, first byte, silence, low throughput).

``asyncio.timeout`` for each of them, or one timer for each fetch, would cost more than all else that is added to a
GET. On expiry the watchdog does what ``asyncio.timeout`` does: cancel the task, take the cancellation back, raise a
typed error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Literal, TypeVar

from asyncpq.errors import DeadlineExceededError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.retry import RetryableError

_Phase = Literal["rest", "head", "body"]


class Watchdog:
    """Watches the fetches of one store in one event loop.

    Attributes:
        watches: those of the fetches under way.
    """

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        # The shortest timeout of all phases, so that a timer set for one phase is in time for the next one. Bodies are
        # looked at four times as often: only their progress between looks is known.
        self._period = min(options.stall_timeout_s / 4, options.connect_timeout_s + options.first_byte_timeout_s)
        self.watches: set[Watch] = set()
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf

    def add(self, watch: Watch, now: float, deadline: float) -> None:
        """Watch from now on; ``deadline`` may be infinite."""
        self.watches.add(watch)
        due = now + self._period
        if deadline < due:
            due = deadline
        if due < self._due:
            self._arm(watch.loop, due)

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._due = math.inf

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle, self._due = None, math.inf
        now = loop.time()
        due = math.inf
        for watch in tuple(self.watches):
            due = min(due, watch.look(now))
        if self.watches:
            self._arm(loop, min(due, now + self._period))


class Watch:
    """One fetch under the watchdog, from its beginning until :meth:`stop`.

    Args:
        deadline: in ``loop.time()``, or None.
        upload_s: further time before the response head is due, for a request with a body.

    Attributes:
        loop: the running one.
        since: beginning of the present attempt or of its body.
        received: body bytes of the attempt so far.
    """

    __slots__ = (
        "_cancelling",
        "_deadline",
        "_dog",
        "_last",
        "_phase",
        "_seen",
        "_task",
        "_upload_s",
        "_what",
        "loop",
        "received",
        "since",
    )

    def __init__(self, dog: Watchdog, deadline: float | None, upload_s: float = 0.0) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a fetch runs inside a task")
        self._dog = dog
        self._task = task
        self.loop = loop = task.get_loop()
        self._deadline = math.inf if deadline is None else deadline
        self._upload_s = upload_s
        self._cancelling = task.cancelling()
        self._phase: _Phase = "rest"
        self.since = self._last = now = loop.time()
        self._what = ""
        self.received = self._seen = 0
        dog.add(self, now, self._deadline)

    def rest(self) -> None:
        """Begin to wait for a connection or the next attempt: only the deadline counts."""
        self._phase = "rest"

    def expect_head(self) -> float:
        """Begin an attempt; return the loop's time."""
        self._phase = "head"
        self.received = self._seen = 0
        self.since = now = self.loop.time()
        return now

    def expect_body(self) -> float:
        """Begin the body; return the seconds until the head came."""
        began = self.since
        self._phase = "body"
        self.since = self._last = now = self.loop.time()
        return now - began

    @property
    def without_response(self) -> bool:
        """Whether an attempt is under way and no byte of a response has come."""
        return self._phase == "head" and not self._what

    def stop(self) -> None:
        """End the watch."""
        self._phase = "rest"
        self._dog.watches.discard(self)

    def raise_if_silent(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise RetryableError if the watchdog cancelled a slow attempt."""
        if self._what and self._what not in ("deadline", "hedge") and self._task.uncancel() <= self._cancelling:
            what, self._what = self._what, ""
            self._phase = "rest"
            raise RetryableError(TransportError(what, url=url, byte_range=byte_range)) from None

    def raise_if_deadline(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise DeadlineExceededError if the watchdog cancelled at the deadline."""
        if self._what == "deadline" and self._task.uncancel() <= self._cancelling:
            raise DeadlineExceededError(
                "the read's deadline passed", url=url, byte_range=byte_range, hint="Raise read_timeout_s."
            ) from None

    def overtake(self) -> None:
        """Cancel the attempt, unless it is ending already: a second request has the bytes."""
        if self._phase != "rest" and not self._what:
            self._expire("hedge")

    def overtaken(self) -> bool:
        """In ``except CancelledError``: whether :meth:`overtake` cancelled it; takes the cancellation back."""
        if self._what == "hedge" and self._task.uncancel() <= self._cancelling:
            self._what = ""
            return True
        return False

    def look(self, now: float) -> float:
        """Cancel the task if a timeout has passed; return the time of the next look."""
        if self._what:
            return math.inf  # cancelled; it has not run since
        deadline = self._deadline
        if now >= deadline:
            return self._expire("deadline")
        options = self._dog.options
        if self._phase == "head":
            due = self.since + options.connect_timeout_s + options.first_byte_timeout_s + self._upload_s
            if now >= due:
                return self._expire(f"no response within {now - self.since:.1f} s")
            return min(due, deadline)
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
            return min(due, deadline)
        return deadline

    def _expire(self, reason: str) -> float:
        self._what = reason
        self._task.cancel()
        return math.inf


T = TypeVar("T")


async def within_deadline(
    call: Awaitable[T], deadline: float | None, url: str, byte_range: tuple[int, int] | None = None
) -> T:
    """Await ``call`` until ``deadline`` (``loop.time()``), which cancels it.

    Raises:
        DeadlineExceededError: the deadline passed.
    """
    if deadline is None:
        return await call
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceededError(
            "the read's deadline passed", url=url, byte_range=byte_range, hint="Raise read_timeout_s."
        ) from error
