"""Single flight: what several reads want at once is fetched once.

A flight is its own task, owned by the session, and carries nobody's deadline. Waiters are counted
and shielded: one that is cancelled leaves the others unharmed, and a flight without waiters is
cancelled. Failures go to the waiters of that flight and are not kept.
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
    """One running fetch and the number of reads that wait for it.

    Attributes:
        task: what runs.
        began: ``time.monotonic()`` when it did; infinite until then.
    """

    __slots__ = ("_gates", "_waiters", "began", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.began = math.inf
        self._waiters = 0
        self._gates: list[_Gate] = []

    def join(self) -> None:
        """Count a waiter from now on; pair with :meth:`leave`. Joining before the first await keeps
        the flight alive until its waiter gets to wait."""
        self._waiters += 1

    def leave(self) -> None:
        self._waiters -= 1
        if self._waiters == 0 and not self.task.done():
            self.task.cancel()

    async def wait(self) -> T:
        """The flight's result, for a reader that has joined."""
        await landing((self,))
        task = self.task
        if task.cancelled():
            # only close() cancels a flight that has waiters
            raise UsageError("the session was closed while this read was under way")
        return task.result()

    def pass_gate(self, gate: _Gate) -> None:
        """Have ``gate`` told when the flight has landed."""
        self._gates.append(gate)

    def landed(self) -> None:
        """The task has ended."""
        failed = self.task.cancelled() or self.task.exception() is not None
        for gate in self._gates:
            gate.count -= 1
            if (gate.count == 0 or failed) and not gate.future.done():
                gate.future.set_result(None)


class _Gate:
    """Opens once ``count`` flights have landed, or one has failed."""

    __slots__ = ("count", "future")

    def __init__(self, count: int) -> None:
        self.count = count
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def landing(flights: Iterable[Flight[Any]]) -> None:
    """Until all of ``flights``, which the caller has joined, have landed, or one of them has failed.

    Cancelled, it leaves them flying, as :func:`asyncio.wait` does; that makes several futures and callbacks for each.
    """
    pending = [flight for flight in flights if not flight.task.done()]
    if pending:
        gate = _Gate(len(pending))
        for flight in pending:
            flight.pass_gate(gate)
        await gate.future


class SingleFlight:
    """The flights of one event loop, by key. A flight may stand under several keys."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def get(self, key: Hashable) -> Flight[Any] | None:
        """The running flight that will bring ``key``; a finished or abandoned one is none."""
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
            flight.landed()  # which takes the exception: without waiters, nobody asked for it

        task.add_done_callback(landed)
        return flight

    async def run(self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the flight under ``key``, started if there is none."""
        flight: Flight[T] = self.get(key) or self.start((key,), fetch)
        flight.join()
        try:
            return await flight.wait()
        finally:
            flight.leave()

    async def close(self) -> None:
        """Cancel what still flies and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._flights.clear()
