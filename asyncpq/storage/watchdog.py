"""One timer for everything that may take too long: deadlines, first bytes, silence, trickle.

``asyncio.timeout`` for each of them, or only a timer for each fetch, would cost more than all the rest
that is added to a GET. So there is one timer for all fetches of a store. What happens then is what
``asyncio.timeout`` does: cancel the task, take the cancellation back, raise something better.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal

from asyncpq.errors import DeadlineExceededError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.retry import RetryableError

_Phase = Literal["rest", "head", "body"]


class Watchdog:
    """Watches the fetches of one store, in one event loop."""

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        # No phase may last longer than the shortest of these unseen, so a timer set for one phase is in
        # time for the next one too.
        self._period = min(options.stall_timeout_s, options.connect_timeout_s + options.first_byte_timeout_s)
        self._watches: set[Watch] = set()
        self._handle: asyncio.TimerHandle | None = None

    def watch(self, deadline: float | None) -> Watch:
        """Watch the current task until :meth:`Watch.stop`; ``deadline`` in ``loop.time()`` or None."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a fetch runs inside a task")
        loop = task.get_loop()
        now = loop.time()
        watch = Watch(self, task, loop, now, deadline)
        self._watches.add(watch)
        self._arm(loop, min(now + self._period, math.inf if deadline is None else deadline))
        return watch

    def forget(self, watch: Watch) -> None:
        """The fetch has ended."""
        self._watches.discard(watch)

    def close(self) -> None:
        """Set no more timers."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        handle = self._handle
        if handle is not None:
            if handle.when() <= when:
                return
            handle.cancel()
        self._handle = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        now = loop.time()
        due = math.inf
        for watch in tuple(self._watches):
            due = min(due, watch.look(now))
        if self._watches:
            self._arm(loop, min(due, now + self._period))


class Watch:
    """One fetch as the watchdog sees it.

    Attributes:
        received: body bytes of the attempt so far.
    """

    __slots__ = ("_cancelling", "_deadline", "_dog", "_last", "_loop", "_phase", "_since", "_task", "_what", "received")

    def __init__(
        self,
        dog: Watchdog,
        task: asyncio.Task[object],
        loop: asyncio.AbstractEventLoop,
        now: float,
        deadline: float | None,
    ) -> None:
        self._dog = dog
        self._task = task
        self._loop = loop
        self._deadline = deadline
        self._cancelling = task.cancelling()
        self._phase: _Phase = "rest"
        self._since = self._last = now
        self._what = ""
        self.received = 0

    def now(self) -> float:
        """``loop.time()``."""
        return self._loop.time()

    def rest(self) -> None:
        """Waiting for a turn or between attempts: only the deadline counts."""
        self._phase = "rest"

    def expect_head(self) -> float:
        """An attempt begins; returns ``now()``."""
        self._phase = "head"
        self.received = 0
        self._since = self._loop.time()
        return self._since

    def expect_body(self) -> None:
        """The head has come."""
        self._phase = "body"
        self._since = self._last = self._loop.time()

    def progress(self, received: int) -> None:
        """Some of the body has come: ``received`` bytes in all."""
        self.received = received
        self._last = self._loop.time()

    def stop(self) -> None:
        """The fetch has ended."""
        self._dog.forget(self)

    def raise_if_silent(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise RetryableError if the server was too slow; else return."""
        if self._what and self._what != "deadline" and self._task.uncancel() <= self._cancelling:
            what, self._what = self._what, ""
            self._phase = "rest"
            raise RetryableError(TransportError(what, url=url, byte_range=byte_range)) from None

    def raise_if_deadline(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """In ``except CancelledError``: raise DeadlineExceededError if that is why; else return."""
        if self._what == "deadline" and self._task.uncancel() <= self._cancelling:
            raise DeadlineExceededError(
                "the read's deadline passed", url=url, byte_range=byte_range, hint="Raise read_timeout_s."
            ) from None

    def look(self, now: float) -> float:
        """Cancel the task if something is due; return when to look again."""
        if self._what:
            return math.inf  # cancelled; it has not run since
        deadline = math.inf if self._deadline is None else self._deadline
        if now >= deadline:
            return self._expire("deadline")
        options = self._dog.options
        if self._phase == "head":
            due = self._since + options.connect_timeout_s + options.first_byte_timeout_s
            if now >= due:
                return self._expire(f"no response within {now - self._since:.1f} s")
            return min(due, deadline)
        if self._phase == "body":
            due = self._last + options.stall_timeout_s
            if now >= due:
                return self._expire(f"the response body stopped for {now - self._last:.1f} s")
            whole = now - self._since
            if whole < options.stall_timeout_s:
                due = min(due, self._since + options.stall_timeout_s)
            elif self.received < whole * options.min_throughput_bytes_s:
                return self._expire(f"the response body came at {self.received / whole:.0f} bytes/s")
            return min(due, deadline)
        return deadline

    def _expire(self, what: str) -> float:
        self._what = what
        self._task.cancel()
        return math.inf
