"""Single flight: several reads that want the same bytes at once share one fetch.

A flight is a task of the session without any read's deadline. Waiters are counted and shielded: cancelling one leaves
the others unharmed, and a flight without waiters is cancelled. Its failure goes to its waiters and is not kept.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, Generic, TypeVar

from asyncpq.errors import UsageError

T = TypeVar("T")


class Flight(Generic[T]):
    """One running fetch (``task``) and the number of reads that wait for it. It began at ``time.monotonic()`` of its
    first step; infinite until then."""

    __slots__ = ("_gates", "_waiters", "began", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.began = math.inf
        self._waiters = 0
        self._gates: list[_Gate] = []

    def join(self) -> None:
        """Count a waiter; pair with :meth:`leave`. Join before the first await, which keeps the flight alive."""
        self._waiters += 1

    def leave(self) -> None:
        self._waiters -= 1
        if self._waiters == 0 and not self.task.done():
            self.task.cancel()

    async def wait(self) -> T:
        """Return the flight's result to a reader that has joined."""
        await landing((self,))
        task = self.task
        if task.cancelled():
            # only close() cancels a flight that has waiters
            raise UsageError("the session was closed while this read was under way")
        return task.result()

    def pass_gate(self, gate: _Gate) -> None:
        """Notify ``gate`` when the flight ends."""
        self._gates.append(gate)

    def landed(self) -> None:
        """Notify the gates: the task has ended."""
        failed = self.task.cancelled() or self.task.exception() is not None
        for gate in self._gates:
            gate.count -= 1
            if (gate.count == 0 or failed) and not gate.future.done():
                gate.future.set_result(None)


class _Gate:
    """Opens once ``count`` flights have succeeded, or one has failed."""

    __slots__ = ("count", "future")

    def __init__(self, count: int) -> None:
        self.count = count
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def landing(flights: Iterable[Flight[Any]]) -> None:
    """Wait until all of ``flights``, which the caller has joined, have succeeded, or one has failed. A cancelled wait
    leaves them running, as :func:`asyncio.wait` does, which makes several futures and callbacks for each flight."""
    pending = [flight for flight in flights if not flight.task.done()]
    if pending:
        gate = _Gate(len(pending))
        for flight in pending:
            flight.pass_gate(gate)
        await gate.future


class SingleFlight:
    """The flights of one event loop, by key. A flight may have several keys."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def get(self, key: Hashable) -> Flight[Any] | None:
        """Return the running flight that fetches ``key``; None if it has ended or was abandoned."""
        flight = self._flights.get(key)
        return None if flight is None or flight.task.done() or flight.task.cancelling() else flight

    def start(self, keys: Iterable[Hashable], fetch: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        """Start ``fetch`` as a flight under all of ``keys``. The caller joins it before awaiting."""

        async def begin() -> T:
            flight.began = time.monotonic()
            return await fetch()

        task = asyncio.get_running_loop().create_task(begin())
        flight = Flight(task)
        names = tuple(keys)
        for key in names:
            self._flights[key] = flight
        self._tasks.add(task)

        def landed(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            for key in names:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            flight.landed()  # it retrieves the exception, which asyncio would log for a flight without waiters

        task.add_done_callback(landed)
        return flight

    async def run(self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the flight under ``key``; start one if there is none."""
        flight: Flight[T] = self.get(key) or self.start((key,), fetch)
        flight.join()
        try:
            return await flight.wait()
        finally:
            flight.leave()

    async def close(self) -> None:
        """Cancel the running flights and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._flights.clear()
