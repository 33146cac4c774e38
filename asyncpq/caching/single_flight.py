"""Single flight: several reads that need the same bytes at the same time share one fetch.

A flight is a task of the session without any read's deadline. Waiters are counted and shielded: cancelling one leaves
the others unharmed, and a flight without waiters is cancelled. A flight's error is raised in its waiters, not kept. Its
result can be had until the last waiter has left, who may keep it: a read that begins in between would fetch it again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from asyncpq.errors import closed_while_reading
from asyncpq.storage.threads import shared_context, work_owner
from asyncpq.waiting import wait_futures

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Flight(Generic[T]):
    """One running fetch (``task``, set by :meth:`SingleFlight.start`) and the number of reads that wait for it.
    ``began`` is ``time.monotonic()`` at the fetch's first step; infinite until then."""

    __slots__ = ("_gates", "_waiters", "began", "forget", "task")

    task: asyncio.Task[T]

    def __init__(self) -> None:
        self.began: float = math.inf
        self._waiters = 0
        self._gates: list[_Gate] = []
        self.forget: Callable[[], None] | None = None  # takes the flight, once it has ended, from its table

    @property
    def can_be_joined(self) -> bool:
        """Whether the flight is not cancelled and has not failed."""
        task = self.task
        return not (task.cancelled() or task.exception()) if task.done() else not task.cancelling()

    def join(self) -> None:
        """Count the caller as a waiter, until it calls :meth:`leave`. A new flight is joined before the first await:
        a flight whose last waiter has left is cancelled."""
        self._waiters += 1

    def leave(self) -> None:
        """End the wait of one caller. If it was the last one, cancel the flight."""
        self._waiters -= 1
        if self._waiters:
            return
        if not self.task.done():
            self.task.cancel()
        elif self.forget is not None:
            self.forget()

    async def wait(self) -> T:
        """Wait for the flight and return its result, or raise its error. The caller has joined the flight. Raises
        UsageError if the session was closed."""
        await landing((self,))
        return self.result()

    def result(self) -> T:
        """Return the result of the flight, which has ended, or raise its error, as :meth:`wait` does."""
        task = self.task
        if task.cancelled():
            # only close() cancels a flight that has waiters
            raise closed_while_reading()
        return task.result()

    def pass_gate(self, gate: _Gate) -> None:
        """Register ``gate``, which waits for a group of flights, to be notified when this flight ends."""
        self._gates.append(gate)

    def landed(self) -> None:
        """Record that the task has ended, and notify the gates."""
        failed = self.task.cancelled() or self.task.exception() is not None
        if self.forget is not None and (failed or not self._waiters):
            self.forget()
        for gate in self._gates:
            gate.count -= 1
            if (gate.count == 0 or failed) and not gate.future.done():
                gate.future.set_result(None)


class _Gate:
    """A future that is done once ``count`` flights have succeeded, or one has failed. Flights notify it as they end."""

    __slots__ = ("count", "future")

    def __init__(self, count: int) -> None:
        self.count: int = count
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()


async def landing(flights: Iterable[Flight[Any]]) -> None:
    """Wait until all of ``flights``, which the caller has joined, have succeeded, or one has failed. If the wait is
    cancelled, the flights go on. (:func:`asyncio.wait` would create several futures and callbacks for each flight.)"""
    pending = [flight for flight in flights if not flight.task.done()]
    if pending:
        gate = _Gate(len(pending))
        for flight in pending:
            flight.pass_gate(gate)
        await gate.future


def ended(flights: Iterable[Flight[T]]) -> list[tuple[Flight[T], T]]:
    """Return those of ``flights`` that have ended, with their results. Raises the error of one that has failed."""
    return [(flight, flight.result()) for flight in flights if flight.task.done()]


class SingleFlight:
    """The running fetches (flights) of one event loop, by key. A flight may have several keys."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def get(self, key: Hashable) -> Flight[Any] | None:
        """Return the flight that fetches ``key``, or has fetched it; None if none is, or it failed or is cancelled."""
        flight = self._flights.get(key)
        return flight if flight is not None and flight.can_be_joined else None

    def split(self, keys: Iterable[K]) -> tuple[dict[Flight[Any], list[K]], list[K]]:
        """Divide ``keys`` into those of flights, by flight, and the others."""
        running: dict[Flight[Any], list[K]] = {}
        others: list[K] = []
        flights = self._flights
        if not flights:
            return running, list(keys)
        for key in keys:
            flight = flights.get(key)
            if flight is not None and flight.can_be_joined:
                running.setdefault(flight, []).append(key)
            else:
                others.append(key)
        return running, others

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Let later reads fetch ``keys`` again, whose results are damaged, although waiters of theirs are left."""
        for key in keys:
            flight = self._flights.get(key)
            if flight is not None and flight.task.done():
                del self._flights[key]

    def start(self, keys: Iterable[Hashable], fetch: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        """Start ``fetch`` and return its flight, registered under all of ``keys``. The caller joins the flight before
        awaiting anything."""
        flight: Flight[T] = Flight()
        not_begun = [flight]

        async def begin() -> T:
            # taken out, since a task that fails holds its frames, which would hold the flight and so the task
            not_begun.pop().began = time.monotonic()
            return await fetch()

        context = None if work_owner.get() is None else shared_context()
        # an eager task factory takes the first step at once
        flight.task = task = asyncio.get_running_loop().create_task(begin(), context=context)
        names: dict[Hashable, Flight[Any]] = dict.fromkeys(keys, flight)  # each is hashed once
        self._flights.update(names)
        self._tasks.add(task)

        def forget() -> None:
            flight.forget = None
            for key in names:
                if self._flights.get(key) is flight:
                    del self._flights[key]

        def landed(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            flight.forget = forget
            flight.landed()  # it retrieves the exception, which asyncio would log for a flight without waiters

        task.add_done_callback(landed)
        return flight

    async def run(self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the running flight for ``key``; if there is none, start one with ``fetch``."""
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
            await wait_futures(tasks)
        self._flights.clear()


class Claims:
    """The parts that reads decode now, by key: others that need one wait until that read has ended, and look in memory
    first. A read that fails or is cancelled leaves the part to the next one."""

    def __init__(self) -> None:
        self._claimed: dict[Hashable, asyncio.Future[None]] = {}

    async def wait(self, keys: Iterable[Hashable]) -> bool:
        """Wait for the reads that have claimed any of ``keys``; return whether there were some. A read that holds
        claims must not wait."""
        claimed = {future for key in keys if (future := self._claimed.get(key)) is not None}
        if claimed:
            await wait_futures(claimed)
        return bool(claimed)

    @contextmanager
    def claim(self, keys: Iterable[Hashable]) -> Iterator[None]:
        """Claim those of ``keys`` that no other read has claimed, for the length of the ``with`` block."""
        names = [key for key in keys if key not in self._claimed]
        if not names:
            yield
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._claimed.update(dict.fromkeys(names, ended))
        try:
            yield
        finally:
            for key in names:
                del self._claimed[key]
            ended.set_result(None)
