"""Turns on the event loop: the work of many tasks that are ready at once is spread over several of its iterations.

A read of a lake opens a hundred files ahead. If they all come at once, planning them would keep all other tasks waiting
for their sum. Owners (:data:`work_owner`, such as tokens of the service) have their turns one after the other, however
many tasks of each wait.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import Final

from asyncpq.storage.threads import OwnersQueue

SLICE_S: Final = 0.005  # of one iteration
_MOST: Final = 64


class LoopTurns:
    """Belongs to one event loop."""

    __slots__ = ("_began_s", "_no_owner", "_num", "_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: OwnersQueue[asyncio.Future[None]] = OwnersQueue()
        # All owners wait for :meth:`_next`. A context of its own: the loops of two threads cannot be in one at once.
        self._no_owner = Context()
        self._running = False  # whether :meth:`_next` will be called in the next iteration
        # The loop's CPU time when it was called last. Times in which the loop waits for Python's lock do not count.
        self._began_s = 0.0
        self._num = 1  # turns of one iteration, so that they take about :data:`SLICE_S`

    async def turn(self) -> None:
        """Wait for an iteration with time for some milliseconds of work, in the order of the calls of one owner."""
        loop = asyncio.get_running_loop()
        if not self._running:
            self._running = True
            self._num = 1
            self._began_s = time.thread_time()
            loop.call_soon(self._next, context=self._no_owner)
        elif self._waiting or time.thread_time() - self._began_s > SLICE_S:
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        before_s, self._began_s = self._began_s, time.thread_time()
        if not self._waiting:
            self._running = False
            return
        self._num = min(self._num * 2, _MOST) if self._began_s - before_s < SLICE_S else max(self._num // 2, 1)
        num = self._num
        while num and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                num -= 1
        loop.call_soon(self._next, context=self._no_owner)
