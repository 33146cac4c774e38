"""Prefetch: fetch units of one file or of many ahead, and decode them in order, within the session's budget of bytes.

The budget is granted to units in delivery order over all files, so the unit that the consumer waits for never waits for
bytes of later ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from asyncpq.errors import UsageError, closed_while_reading
from asyncpq.objects.read_plan import DECODED_AHEAD, Unit
from asyncpq.objects.runtime import Runtime
from asyncpq.waiting import wait_futures

# A decoded unit of fewer bytes than the fetched ones, divided by this, does not count as decoded ahead, and takes only
# its rows' bytes from the budget.
_FEW = 4
_GROWTH = 2.0  # bytes of rows for each fetched one, before a unit was decoded
_FEW_COLUMNS = 500  # of tables: their bytes are added up on the event loop
_NEWEST = 0.5  # weight of the last fetch in the time that a fetch takes


class UnitScan(Protocol):
    """Fetches and decodes units, as :class:`asyncpq.scan.file_scan.FileScan` does. Hashable."""

    rows_matched: int  # rows that came out so far

    def ahead_bytes(self, pace_bytes: float | None) -> float: ...

    def may_decode(self, unit: Unit, others: int, num_bytes: float) -> bool: ...

    async def units(self, unit_bytes: int | None) -> list[Unit]: ...

    async def run(self, unit: Unit) -> list[pa.Table]: ...

    async def fetch_unit(self, unit: Unit) -> Any: ...

    async def decode(self, unit: Unit, fetched: Any) -> list[pa.Table]: ...


class Job(NamedTuple):
    """A unit of a file's plan, for the pipeline to fetch and decode.

    Attributes:
        scan: the file scan that the unit belongs to. All units of one scan follow one another.
        last: no further unit of this scan follows.
    """

    scan: UnitScan
    unit: Unit
    last: bool


class Landed(NamedTuple):
    """A finished job and its rows: one table for each row group with matching rows."""

    job: Job
    tables: list[pa.Table]


class _Running(NamedTuple):
    """A job that is being fetched or decoded, and its task."""

    job: Job
    task: asyncio.Task[list[pa.Table]]
    begun: asyncio.Future[bool]  # whether its decoding has begun; False if it failed before
    num_bytes: int  # that its unit fetches first


async def jobs_of(scan: UnitScan, units: Iterable[Unit]) -> AsyncGenerator[Job]:
    """Yield a job for each unit of one file's plan."""
    todo = list(units)
    for unit in todo:
        yield Job(scan, unit, unit is todo[-1])


async def _may_follow(previous: _Running, job: Job) -> bool:
    """Wait until ``job`` may be decoded: when ``previous`` has begun, or has ended if ``job`` continues its row group.
    Return False if ``previous`` failed."""
    continued = previous.job.scan is job.scan and not previous.job.unit.pieces[-1].last
    before: asyncio.Future[Any] = previous.task if continued else previous.begun
    if not before.done():
        await wait_futures((before,))
    if continued:
        return not before.cancelled() and before.exception() is None
    return previous.begun.result()


def _failed_to_begin(begun: asyncio.Future[bool], task: asyncio.Task[Any]) -> None:
    if not begun.done():
        begun.set_result(False)


class _ThroughputMeter:
    """Measures how many bytes are decoded in the time that a fetch takes: of one pipeline, by its event loop's clock.

    By Little's law so many bytes under way keep the decoding busy. More would only take memory.
    """

    def __init__(self) -> None:
        self._fetch_s: float | None = None  # of a unit, smoothed
        self._decoding = 0  # units
        self._began = 0.0  # when the first of them did
        self._num_bytes = 0  # decoded
        self._decode_s = 0.0  # during which one unit or more was decoded

    @property
    def bytes_a_fetch(self) -> float | None:
        """The bytes that are decoded while one unit is fetched; None until a unit was decoded."""
        if self._fetch_s is None or not self._num_bytes:
            return None
        busy_s = self._decode_s + (asyncio.get_running_loop().time() - self._began if self._decoding else 0.0)
        return self._num_bytes / max(busy_s, 1e-6) * self._fetch_s

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Measure the block, which fetches a unit."""
        clock = asyncio.get_running_loop().time
        began = clock()
        yield
        seconds = clock() - began
        self._fetch_s = seconds if self._fetch_s is None else self._fetch_s + _NEWEST * (seconds - self._fetch_s)

    @contextmanager
    def decoding(self, num_bytes: int) -> Iterator[None]:
        """Measure the block, which decodes ``num_bytes`` fetched bytes."""
        clock = asyncio.get_running_loop().time
        if not self._decoding:
            self._began = clock()
        self._decoding += 1
        try:
            yield
            self._num_bytes += num_bytes
        finally:
            self._decoding -= 1
            if not self._decoding:
                self._decode_s += clock() - self._began


class Pipeline:
    """Fetches and decodes jobs ahead of their consumer; returns them in order, or as they become ready.

    Bytes are granted in delivery order. The unit that the consumer waits for is always granted, even over the budget;
    further units wait for the session's budget, and until no more bytes are under way or wait to be decoded than keep
    the decoding busy (:meth:`FileScan.ahead_bytes`). Decoded units that wait for their consumer are bounded apart
    (:meth:`FileScan.may_decode`). The caller must close the pipeline, or its tasks stay.

    The next job is taken from ``jobs`` once the one before has its bytes. An exception of ``jobs`` is raised after all
    earlier jobs were delivered. ``jobs`` is closed with the pipeline. Without ``ordered``, jobs of different scans are
    delivered as they become ready, those of one scan in order. Units of different row groups are decoded concurrently.
    """

    def __init__(self, jobs: AsyncGenerator[Job], runtime: Runtime, *, ordered: bool = True) -> None:
        self._jobs = jobs
        self._runtime = runtime
        self._ordered = ordered
        self._running: deque[_Running] = deque()
        self._head: _Running | None = None
        self._decoded: dict[int, float] = {}  # bytes of rows, by id of the job: expected until it is decoded
        self._growth = _GROWTH
        self._decode_turn = asyncio.Lock()  # of the unit that waits to be decoded next
        self._throughput = _ThroughputMeter()
        self._taken: dict[int, int] = {}  # bytes of the budget, by id of the job
        self._dropped: set[UnitScan] = set()
        self._drained = asyncio.Event()
        self._moved = asyncio.Event()  # a unit has begun to be decoded, was delivered, or is gone
        self._started = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._ending: list[asyncio.Task[Any]] = []
        self._closed = False

    def start(self) -> None:
        """Start to fetch the jobs."""
        if self._pump is not None or self._closed:
            raise UsageError("this pipeline was started before", hint="Make a new pipeline for each read.")
        self._drained.set()
        self._pump = asyncio.get_running_loop().create_task(self._fetch_ahead())

    async def _fetch_ahead(self) -> None:
        previous: _Running | None = None
        async with aclosing(self._jobs) as jobs:
            async for job in jobs:
                while not self._may_fetch(job):
                    await self._next_move()
                if job.scan in self._dropped:
                    continue
                await self._grant(job.unit.num_bytes)
                self._taken[id(job)] = job.unit.num_bytes
                if job.scan in self._dropped:
                    self._release_bytes(job)
                    continue
                after = previous if previous is not None and (self._ordered or previous.job.scan is job.scan) else None
                loop = asyncio.get_running_loop()
                begun: asyncio.Future[bool] = loop.create_future()
                task = loop.create_task(self._run(job, begun, after))
                previous = _Running(job, task, begun, job.unit.first_bytes)
                previous.task.add_done_callback(partial(_failed_to_begin, begun))
                self._running.append(previous)
                self._drained.clear()
                self._started.set()

    def _may_fetch(self, job: Job) -> bool:
        """Return whether ``job`` is to be fetched now."""
        wanted = job.scan.ahead_bytes
        size = job.unit.first_bytes
        waiting = sum([running.num_bytes for running in self._running if not running.begun.done()])
        if waiting and waiting + size > wanted(self._throughput.bytes_a_fetch):
            return False
        # those with few rows, too, which wait for their consumer without a bound on decoded units
        ahead = sum([running.num_bytes for running in self._running if id(running.job) not in self._decoded])
        return not ahead or ahead + size <= wanted(None)

    def _may_decode(self, job: Job) -> bool:
        """Return whether ``job`` is to be decoded while others are, or wait for their consumer."""
        head = 0 if self._head is None else id(self._head.job)
        others = [num_bytes for key, num_bytes in self._decoded.items() if key != head]
        if not others:
            return True
        expected = sum(others) + self._growth * job.unit.num_bytes
        return len(self._decoded) < DECODED_AHEAD and job.scan.may_decode(job.unit, len(others), expected)

    async def _next_move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _grant(self, size: int) -> None:
        """Wait until the budget has room for the next job, or until no job is running."""
        budget = self._runtime.budget
        if not self._running:
            budget.take(size)
            return
        granted = budget.request(size)
        if granted.done():
            return
        drained = asyncio.ensure_future(self._drained.wait())
        try:
            await wait_futures((granted, drained), return_when=asyncio.FIRST_COMPLETED)
            if not budget.withdraw(granted):
                budget.take(size)
        except asyncio.CancelledError:
            if budget.withdraw(granted):
                budget.release(size)
            raise
        finally:
            drained.cancel()

    async def _run(self, job: Job, begun: asyncio.Future[bool], previous: _Running | None) -> list[pa.Table]:
        scan, unit = job.scan, job.unit
        with self._throughput.fetching():
            fetched = await scan.fetch_unit(unit)
        if previous is not None and not await _may_follow(previous, job):
            # The consumer meets the failed job first. Later jobs must not take the decode slots of earlier ones.
            raise asyncio.CancelledError
        previous = None  # whose rows would stay in memory
        async with self._decode_turn:
            while not self._may_decode(job):
                await self._next_move()
            self._decoded[id(job)] = self._growth * unit.num_bytes
        begun.set_result(True)
        self._moved.set()
        with self._throughput.decoding(unit.first_bytes):
            tables = await scan.decode(unit, fetched)
        num_columns = sum([table.num_columns for table in tables])
        measure = partial(_num_bytes, tables)
        num_bytes = measure() if num_columns <= _FEW_COLUMNS else await self._runtime.in_thread(measure)
        self._growth = num_bytes / max(1, unit.num_bytes)
        if num_bytes * _FEW < unit.num_bytes:  # as of a filter: no memory to wait for
            self._end_decoded(job)
            self._release_bytes(job, num_bytes)
        elif id(job) in self._decoded:
            self._decoded[id(job)] = num_bytes
            self._moved.set()
        return tables

    async def next(self, bound: AbstractAsyncContextManager[None] | None = None) -> Landed | None:
        """Return the next finished unit and its rows, or None at the end. Raises the unit's error.

        Args:
            bound: a deadline that applies while waiting for a running unit, but not while waiting for the next job.
        """
        while not self._running:
            pump = self._pump
            if pump is None or self._closed:
                raise UsageError("the scan is closed", hint="Begin a new scan to read again.")
            if pump.done():
                pump.result()
                if not self._running:
                    return None
                break
            self._started.clear()
            waiting = asyncio.ensure_future(self._started.wait())
            try:
                await wait_futures((waiting, pump), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        async with bound or nullcontext():
            running = await self._next_running()
        self._head = running
        self._moved.set()
        if running.task.cancelled():  # not by the consumer, who would not be here
            raise closed_while_reading()
        return Landed(running.job, running.task.result())

    @property
    def head(self) -> Job | None:
        """The job that the last :meth:`next` returned or raised the error of; None after :meth:`done_with_head`."""
        return None if self._head is None else self._head.job

    async def _next_running(self) -> _Running:
        """Wait until the unit to deliver next is done; return it."""
        if self._closed:  # since the caller looked
            raise closed_while_reading()
        if self._ordered:
            head = self._running[0]  # close() may take it out while it is waited for
            if not head.task.done():
                await wait_futures((head.task,))
            return head
        while not self._closed:
            # Of each scan the first one that was not delivered: its last unit says that the scan is complete.
            heads: dict[UnitScan, _Running] = {}
            for running in self._running:
                heads.setdefault(running.job.scan, running)
            for head in heads.values():
                if head.task.done():
                    return head
            self._started.clear()  # one that begins meanwhile may be done first
            begun = asyncio.ensure_future(self._started.wait())
            try:
                await wait_futures(
                    (begun, *[head.task for head in heads.values()]), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                begun.cancel()
        raise closed_while_reading()

    def done_with_head(self) -> None:
        """Give back the budget of the unit that :meth:`next` returned last. Call it once the unit's tables were
        consumed."""
        running, self._head = self._head, None
        if self._closed:  # which has given its bytes back
            raise closed_while_reading()
        if running is None:
            raise UsageError("the pipeline has no unit that is being consumed")
        self._running.remove(running)
        self._release_bytes(running.job)
        self._end_decoded(running.job)
        if not self._running:
            self._drained.set()

    def _end_decoded(self, job: Job) -> None:
        """Let others be decoded in the place of ``job``."""
        self._decoded.pop(id(job), None)
        self._moved.set()

    def _release_bytes(self, job: Job, left: int = 0) -> None:
        """Give the budget back what ``job`` has taken from it, except for ``left`` bytes."""
        taken = self._taken.pop(id(job), 0)
        if left:
            self._taken[id(job)] = left
        self._runtime.budget.release(taken - left)

    async def drop(self, scan: UnitScan) -> None:
        """Cancel the remaining units of one scan after an error; the other scans go on."""
        self._dropped.add(scan)
        self._head = None
        left = [running for running in self._running if running.job.scan is scan]
        for running in left:
            self._running.remove(running)
            self._end(running.task, running.job)
        if left:
            await wait_futures([running.task for running in left])
        for running in left:
            self._end_decoded(running.job)
        if not self._running:
            self._drained.set()

    async def close(self) -> None:
        """Cancel the running tasks, wait until they have ended, and release their budget. Idempotent: a cancelled
        close can be called again, and its tasks release their bytes in any case."""
        self._closed = True
        if self._pump is not None and self._pump not in self._ending:
            self._end(self._pump)
        while self._running:
            running = self._running.popleft()
            self._end(running.task, running.job)
        if self._ending:
            await wait_futures(self._ending)
        # A cancelled task holds its traceback, whose frames hold this pipeline, and all that it has fetched.
        self._ending.clear()
        self._pump = self._head = None

    def _end(self, task: asyncio.Task[Any], job: Job | None = None) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            if job is not None:
                self._release_bytes(job)
            if not task.cancelled():
                task.exception()  # retrieved, since the consumer has left and asyncio would log it

        self._ending.append(task)
        if task.done():
            ended(task)
        else:
            task.cancel()
            task.add_done_callback(ended)


def _num_bytes(tables: Iterable[pa.Table]) -> int:
    return sum([table.nbytes for table in tables])
