"""One timer for everything that may take too long: deadlines, first bytes, silence, trickle.

``asyncio.timeout`` for each of them, or only a timer for each fetch, would cost more than all the rest
that is added to a GET. So there is one timer for all fetches of a store. What happens then is what
``asyncio.timeout`` does: cancel the task, take the cancellation back, raise something better.

A deadline for calls that have no clock of their own.
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
    """Watches the fetches of one store, in one event loop.

    Attributes:
        watches: of the fetches that are under way.
    """

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        # No phase may last longer than the shortest of these unseen, so a timer set for one phase is in
        # time for the next one too. Bodies are looked at more often: what came is compared, not timed.
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
        """Set no more timers."""
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
    """One fetch as the watchdog sees it: made where it begins, until :meth:`stop`.

    Args:
        deadline: in ``loop.time()``, or None.
        upload_s: further time before the head is due, for a body that is sent.

    Attributes:
        loop: the running one.
        since: when the present attempt, or then its body, began.
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
        """Waiting for a turn or between attempts: only the deadline counts."""
        self._phase = "rest"

    def expect_head(self) -> float:
        """An attempt begins; returns the loop's time."""
        self._phase = "head"
        self.received = self._seen = 0
        self.since = now = self.loop.time()
        return now

    def expect_body(self) -> float:
        """The head has come; returns the seconds that it took."""
        began = self.since
        self._phase = "body"
        self.since = self._last = now = self.loop.time()
        return now - began

    @property
    def without_response(self) -> bool:
        """An attempt is under way, and nothing has come back yet."""
        return self._phase == "head" and not self._what

    def stop(self) -> None:
        """The fetch has ended."""
        self._phase = "rest"
        self._dog.watches.discard(self)

    def raise_if_silent(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise RetryableError if the server was too slow; else return."""
        if self._what and self._what not in ("deadline", "hedge") and self._task.uncancel() <= self._cancelling:
            what, self._what = self._what, ""
            self._phase = "rest"
            raise RetryableError(TransportError(what, url=url, byte_range=byte_range)) from None

    def raise_if_deadline(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise DeadlineExceededError if that is why; else return."""
        if self._what == "deadline" and self._task.uncancel() <= self._cancelling:
            raise DeadlineExceededError(
                "the read's deadline passed", url=url, byte_range=byte_range, hint="Raise read_timeout_s."
            ) from None

    def overtake(self) -> None:
        """Another request has got the bytes: end the attempt, unless it is ending already."""
        if self._phase != "rest" and not self._what:
            self._expire("hedge")

    def overtaken(self) -> bool:
        """In ``except CancelledError``: whether :meth:`overtake` is why; the cancellation is then taken back."""
        if self._what == "hedge" and self._task.uncancel() <= self._cancelling:
            self._what = ""
            return True
        return False

    def look(self, now: float) -> float:
        """Cancel the task if something is due; return when to look again."""
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

    def _expire(self, what: str) -> float:
        self._what = what
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
