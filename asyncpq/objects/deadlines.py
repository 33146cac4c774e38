"""Deadlines of calls: one timer for all of a session."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any

from asyncpq.errors import AsyncpqError, DeadlineExceededError


class Deadlines:
    """One timer for all deadlines of a session. All deadlines are equally long, so they expire in order.

    ``asyncio.timeout`` is not used because it sets a timer for each read. That takes about 20 Python calls, a tenth of
    the calls of a lookup in memory.
    """

    __slots__ = ("running", "timeout_s", "timer")

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s: float | None = timeout_s
        self.running: dict[Deadline, float] = {}  # when they end, by time.monotonic(); in the order of their ends
        self.timer: asyncio.TimerHandle | None = None  # set for the first deadline, or an earlier one that is over

    def arm(self) -> None:
        """Start the timer for the first deadline. The timer must not be running."""
        if self.running:
            ends = next(iter(self.running.values()))
            self.timer = asyncio.get_running_loop().call_later(max(0.0, ends - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self.timer = None
        now = time.monotonic()
        for deadline in [deadline for deadline, ends in self.running.items() if ends <= now]:
            del self.running[deadline]
            deadline.expire()
        self.arm()

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Deadline:
    """The context manager that :meth:`Runtime.deadline` returns.

    On expiry it cancels the task, and converts the cancellation to DeadlineExceededError, as ``asyncio.timeout`` does
    to TimeoutError.
    """

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_task", "_url")

    def __init__(self, deadlines: Deadlines, url: str) -> None:
        self._deadlines = deadlines
        self._url = url
        self._expired = False
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def expire(self) -> None:
        """Cancel the task whose deadline has passed."""
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> None:
        self._task = task = asyncio.current_task()
        deadlines = self._deadlines
        if task is not None and deadlines.timeout_s is not None:
            self._cancelling = task.cancelling()
            deadlines.running[self] = time.monotonic() + deadlines.timeout_s
            if deadlines.timer is None:
                deadlines.arm()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deadlines.running.pop(self, None)
        task, self._task = self._task, None  # its error's frames have this deadline
        if not self._expired or task is None:
            return
        ended = task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
        if ended or (isinstance(error, TimeoutError) and not isinstance(error, AsyncpqError)):
            raise DeadlineExceededError(
                f"the call did not end within {self._deadlines.timeout_s} s",
                url=self._url,
                hint="Raise RetryOptions.read_timeout_s if the store is slow.",
            ) from error
