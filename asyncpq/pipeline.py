"""Read-ahead: the units of a read, fetched ahead and decoded in order, within the session's budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from asyncpq.errors import UsageError
from asyncpq.fetching.source import ObjectSource
from asyncpq.planning.read_plan import Unit
from asyncpq.read import Read

DECODED_AHEAD = 2  # units that may lie decoded before their consumer comes


class _Running(NamedTuple):
    """A unit on its way: what it holds of the budget, and its task."""

    size: int
    task: asyncio.Task[list[pa.Table]]


class Pipeline:
    """Runs units in order with read-ahead.

    Bytes are granted in delivery order. The unit that the consumer waits for is always granted, over
    budget if need be; further ones wait for the session's budget. Close it, or it leaves tasks.
    """

    def __init__(self, read: Read, units: Sequence[Unit], source: ObjectSource) -> None:
        self._read = read
        self._units = units
        self._resources = source.resources
        self._running: deque[_Running] = deque()
        self._decode_slots = asyncio.Semaphore(DECODED_AHEAD)
        self._drained = asyncio.Event()
        self._started = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._ending: list[asyncio.Task[Any]] = []
        self._closed = False

    def start(self) -> None:
        """Begin fetching."""
        if self._pump is not None or self._closed:
            raise UsageError("a pipeline is started once")
        self._drained.set()
        self._pump = asyncio.get_running_loop().create_task(self._fetch_ahead())

    async def _fetch_ahead(self) -> None:
        previous: asyncio.Task[list[pa.Table]] | None = None
        for unit in self._units:
            await self._grant(unit.num_bytes)
            previous = asyncio.get_running_loop().create_task(self._run(unit, previous))
            self._running.append(_Running(unit.num_bytes, previous))
            self._drained.clear()
            self._started.set()

    async def _grant(self, size: int) -> None:
        """Wait until the budget has room, or nothing of this read is under way any more."""
        budget = self._resources.budget
        if not self._running:
            budget.take(size)
            return
        granted = budget.request(size)
        drained = asyncio.ensure_future(self._drained.wait())
        try:
            await asyncio.wait((granted, drained), return_when=asyncio.FIRST_COMPLETED)
            if not budget.withdraw(granted):
                budget.take(size)
        except asyncio.CancelledError:
            if budget.withdraw(granted):
                budget.release(size)
            raise
        finally:
            drained.cancel()

    async def _run(self, unit: Unit, previous: asyncio.Task[list[pa.Table]] | None) -> list[pa.Table]:
        items = [item for piece in unit.pieces for item in piece.items]
        fetched = await self._read.fetch(items, self._read.context.round)
        if previous is not None:
            await asyncio.wait((previous,))
            if previous.cancelled() or previous.exception() is not None:
                return []  # the consumer meets that one first
        await self._decode_slots.acquire()
        return await self._read.decode(unit, fetched)

    async def next(self) -> list[pa.Table] | None:
        """The next unit's tables, or None at the end. Raises what fetching or decoding raised."""
        while not self._running:
            pump = self._pump
            if pump is None or self._closed:
                raise UsageError("the scan is closed")
            if pump.done():
                pump.result()
                if not self._running:
                    return None
                break
            self._started.clear()
            waiting = asyncio.ensure_future(self._started.wait())
            try:
                await asyncio.wait((waiting, pump), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        running = self._running[0]
        task = running.task
        await asyncio.wait((task,))
        if task.cancelled():  # not by the consumer, who would not be here
            raise UsageError("the session was closed while this read was under way")
        return task.result()

    def done_with_head(self) -> None:
        """The tables of the last :meth:`next` were consumed: their bytes are free for read-ahead."""
        running = self._running.popleft()
        self._resources.budget.release(running.size)
        self._decode_slots.release()
        if not self._running:
            self._drained.set()

    async def close(self) -> None:
        """Cancel what runs, wait until it has ended, give the budget back. Idempotent: a cancelled close can be
        called again, and what it was to wait for gives its bytes back in any case."""
        self._closed = True
        if self._pump is not None and self._pump not in self._ending:
            self._end(self._pump, 0)
        while self._running:
            running = self._running.popleft()
            self._end(running.task, running.size)
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, task: asyncio.Task[Any], size: int) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            self._resources.budget.release(size)
            if not task.cancelled():
                task.exception()  # the consumer has left: nobody else will look at it

        self._ending.append(task)
        if task.done():
            ended(task)
        else:
            task.cancel()
            task.add_done_callback(ended)
