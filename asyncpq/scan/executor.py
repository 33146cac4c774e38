"""The executor: runs the scans of one file or many, and starts them again where that is allowed.

It takes planned files from a :class:`ScannedFiles`, which finds, opens and plans them: :class:`OneFile` gives an open
file, :class:`asyncpq.datasets.dataset_files.DatasetFiles` those of a dataset. A single small file is fetched in one
round and decoded at once. All others go through one :class:`asyncpq.scan.prefetch.Pipeline`, in the order of the files
or as they become ready.

A single file that changed during a read is read again from its start. A scan, which delivers rows while it reads, does
so only if it has delivered no row of the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from asyncpq.decoding.arrow import counted
from asyncpq.errors import AsyncpqError, ObjectChangedError, UsageError
from asyncpq.objects.runtime import INLINE_STEPS, Runtime
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.records import dataclass
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner

if TYPE_CHECKING:
    from asyncpq.scan.prefetch import Job, Pipeline, UnitScan


class FilePlan(Protocol):
    """The plan of one file's read, such as a :class:`asyncpq.scan.file_planner.ScanPlan`."""

    @property
    def num_bytes(self) -> int:
        """The bytes that are fetched."""

    @property
    def has_rows(self) -> bool:
        """Whether anything is read."""

    @property
    def file_scan(self) -> UnitScan:
        """The object that fetches and decodes what is planned."""


class ScannedFile(Protocol):
    """A file of a scan, open and planned."""

    number: int  # its place among the files of the scan
    delivered: bool  # rows of it were given out

    @property
    def reading(self) -> FilePlan | None:
        """The plan of the file; None if the file was ruled out before it was planned."""

    async def finish(self) -> None:
        """Check that all planned rows were read, and that the file still has its version. Raises CorruptFileError if
        rows are missing, ObjectChangedError if the file has another version now."""


F = TypeVar("F", bound=ScannedFile)

_COLUMNS_A_STEP = 32  # of a table that is joined with others


class ScannedFiles(Protocol[F]):
    """Finds, opens and plans the files of one scan, and decides whether the scan goes on after an error."""

    async def start(self) -> None:
        """Find the files to scan."""

    async def alone(self) -> F | None:
        """Find the files, if they are not yet found; if the scan has exactly one, plan and return it, else return None.

        :meth:`planned` yields this file again.
        """

    def planned(self) -> AsyncGenerator[F]:
        """Yield the files that are not yet read; they are planned ahead of the reading. A file without rows to read is
        finished here and not yielded."""

    async def renewed(self) -> bool:
        """Return whether the list of files has changed, so that all files must be read again."""

    def advanced(self, file: F) -> None:
        """Note that another unit of ``file`` was read."""

    async def done(self, file: F) -> None:
        """Mark ``file`` as read: its rows were delivered, or no row of it can match."""

    async def failed(self, file: F, error: AsyncpqError, *, given_out: bool) -> bool:
        """Prepare to read ``file`` again after ``error``; return True if the file is skipped instead.

        A file of which rows were already delivered (``given_out``) is not read again, since its rows would repeat.
        Raises ``error`` if the file can neither be read again nor skipped.
        """

    async def give_up(self, file: F) -> None:
        """Release ``file`` before all of its rows were read; :meth:`planned` may yield it again."""

    async def close(self) -> None:
        """Cancel running work and release all files. Idempotent."""


class UnitRows(NamedTuple, Generic[F]):
    """The rows of one unit (see the package) of a file: a table for each row group with matching rows."""

    file: F
    tables: list[pa.Table]


@dataclass(slots=True, eq=False)
class OneFile:
    """An open file as the only one of a scan: both the :class:`ScannedFiles` and its :class:`ScannedFile`.

    ``planner`` makes its plan, and a new one after each change of the object. If ``scan``, rows are delivered as they
    are decoded; otherwise all rows are returned at the end.
    """

    planner: ScanPlanner
    scan: bool = field(kw_only=True)
    plan: ScanPlan | None = field(default=None, init=False)  # of the version that is read; None before it is planned
    number: int = field(default=0, init=False)
    delivered: bool = field(default=False, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)
    _advances: bool = field(default=False, init=False)

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows; it stays the same if the file is read again. Raises UsageError before
        the scan is started."""
        if self._schema is None:
            raise UsageError("the scan has not been entered", hint="Write `async with file.scan(...) as scan:`.")
        return self._schema

    @property
    def reading(self) -> ScanPlan | None:
        """The plan; None until :meth:`start` has ended."""
        return self.plan

    async def start(self) -> None:
        """Plan the file, if it is not planned yet."""
        await self.alone()

    async def alone(self) -> OneFile:
        """Plan and return this file: it is the only one of the scan."""
        if self.plan is None:
            self.plan = await self.planner.prepare(scan=self.scan)
            self._schema = self.plan.shape.schema
        return self

    async def planned(self) -> AsyncGenerator[OneFile]:
        """Plan this file and yield it. If nothing is to be read, it is finished first."""
        async with self.planner.deadline():
            await self.alone()
            if self.plan is not None and not self.plan.has_rows:
                await self.finish()
        yield self

    async def finish(self) -> None:
        """Check that all planned rows were read, and that the file still has its version."""
        if self.plan is not None:
            self.plan.file_scan.check_complete()
            if not self.plan.file_scan.read.current:
                await self.plan.file_scan.read.ensure_current()

    async def renewed(self) -> bool:
        """Return False: the scan has one named file, so no newer listing can replace it."""
        return False

    def advanced(self, file: OneFile) -> None:
        """Tell the progress of a file that takes several units."""
        operation = self.planner.operation
        if self.plan is None or operation.on_event is None:
            return
        done, total = self.plan.file_scan.progress
        self._advances = self._advances or done < total
        if self._advances:
            operation.progress("read", done, total, "rows")

    async def done(self, file: OneFile) -> None:
        """Do nothing: the plan is kept for reports about the scan."""

    async def failed(self, file: OneFile, error: AsyncpqError, *, given_out: bool) -> bool:
        """Plan the object's new version after a change, or plan without the page index that was wrong. Raises other
        errors."""
        if isinstance(error, ObjectChangedError):
            await self.planner.changed(error, restartable=not given_out)
        elif isinstance(error, PageLocationError) and not given_out:
            self.planner.relocated(error)
        else:
            raise error
        self.plan = None
        return False

    async def give_up(self, file: OneFile) -> None:
        """Do nothing: the file's handle stays open."""

    async def close(self) -> None:
        """Do nothing: the file's handle stays open."""


@dataclass(slots=True, eq=False)
class ScanExecutor(Generic[F]):
    """Runs the scan of one or more files.

    Rows are returned in the order of the files if ``ordered``; else as files become ready, each file's in order.

    Attributes:
        rows_matched: rows of the files that are done with.
    """

    runtime: Runtime
    url: str
    files: ScannedFiles[F]
    ordered: bool = field(default=True, kw_only=True)
    rows_matched: int = field(default=0, init=False)
    _round_bytes: int | None = field(default=None, init=False)  # files of so few bytes are one unit
    _pipeline: Pipeline | None = field(default=None, init=False)
    _open: dict[int, F] = field(default_factory=dict, init=False)
    _reading: dict[UnitScan, F] = field(default_factory=dict, init=False)
    _done: set[int] = field(default_factory=set, init=False)
    _ended: asyncio.Event | None = field(default=None, init=False)  # a file is done with, while others wait for room
    _again: bool = field(default=False, init=False)
    _collected: dict[int, list[pa.Table]] | None = field(default=None, init=False)

    # -- all rows at once -------------------------------------------------------------------------

    async def collect(self) -> dict[int, list[pa.Table]]:
        """Return all rows, the tables of each file by its number, in the order of the files. Files that change are read
        again. Raises AsyncpqError if a file cannot be read. A read that fails or is cancelled ends what it runs."""
        try:
            return await self._collect()
        except BaseException:
            await self.close()
            raise

    async def _collect(self) -> dict[int, list[pa.Table]]:
        most = self.runtime.options.limits.round_bytes
        while (file := await self._alone()) is not None:
            plan = file.reading
            if plan is not None and plan.num_bytes > most:
                break
            try:
                tables = [] if plan is None else await self._run(plan)
                await file.finish()
            except AsyncpqError as error:
                if not await self.files.renewed() and await self.files.failed(file, error, given_out=False):
                    return {}
                await self.files.give_up(file)
                continue
            if not await self.files.renewed():
                await self._finished(file)
                return {file.number: tables}
            await self.files.give_up(file)
        self._collected, self._round_bytes = {}, most
        self._begin()
        while (rows := await self.next()) is not None:
            self._collected.setdefault(rows.file.number, []).extend(rows.tables)
            self.done_with_head()
        return dict(sorted(self._collected.items()))

    async def _alone(self) -> F | None:
        """Return the scan's only file, planned; None if it has more or none. One that cannot be opened may be of an
        old list of files."""
        while True:
            try:
                return await self.files.alone()
            except AsyncpqError:
                if not await self.files.renewed():
                    raise

    async def _run(self, plan: FilePlan) -> list[pa.Table]:
        """Return the rows of the scan's only file, fetched as one unit."""
        units, budget = await plan.file_scan.units(None), self.runtime.budget
        budget.take(plan.num_bytes)  # granted at once, even over the budget; other reads wait for these bytes
        try:
            return await plan.file_scan.run(units[0]) if units else []
        finally:
            budget.release(plan.num_bytes)

    # -- rows as they come ------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the files and start to fetch their units."""
        await self.files.start()
        self._begin()

    def _begin(self) -> None:
        """Start the pipeline, which fetches and decodes ahead, over the files that are not yet read."""
        from asyncpq.scan.prefetch import Pipeline  # many lookups need none

        self._pipeline = Pipeline(self._jobs(), self.runtime, ordered=self.ordered)
        self._pipeline.start()

    async def _jobs(self) -> AsyncGenerator[Job]:
        from asyncpq.scan.prefetch import jobs_of

        limits = self.runtime.options.limits
        async with aclosing(self.files.planned()) as files:
            async for file in files:
                self._open[file.number] = file
                plan = file.reading
                if plan is None or not plan.has_rows:
                    await self._finished(file)
                    continue
                self._reading[plan.file_scan] = file
                whole = self._round_bytes is not None and plan.num_bytes <= self._round_bytes
                units = await plan.file_scan.units(None if whole else limits.unit_bytes)
                async for job in jobs_of(plan.file_scan, units):
                    yield job
                while len(self._open) >= limits.files_ahead:  # each may hold a descriptor
                    self._ended = asyncio.Event()
                    await self._ended.wait()

    async def next(self) -> UnitRows[F] | None:
        """Return the next unit's rows; None at the end. After they are consumed, call :meth:`done_with_head`. Raises
        AsyncpqError if a file cannot be read, or has changed after some of its rows were delivered."""
        while True:
            again, rows = await self._next()
            if not again:
                return rows

    async def _next(self) -> tuple[bool, UnitRows[F] | None]:
        """Return whether reading was started again; if not, also the next unit's rows, or None at the end."""
        pipeline = self._pipeline
        if pipeline is None:
            raise UsageError("the scan is closed", hint="Begin a new scan to read again.")
        file: F | None = None
        try:
            landed = await pipeline.next(self.runtime.deadline(self.url))
            if landed is not None:
                file = self._reading[landed.job.scan]
                if landed.job.last:
                    async with self.runtime.deadline(self.url):
                        await file.finish()
        except AsyncpqError as error:
            if await self._begin_anew_if_renewed():
                return True, None
            if file is None and pipeline.head is not None:
                file = self._reading.get(pipeline.head.scan)  # none if the session was closed
            if file is None:
                raise
            await self._failed(file, error)
            return True, None
        if await self._begin_anew_if_renewed():
            return True, None
        if landed is None and self._again:  # the others are done with
            self._again = False
            await self._stop()
            self._begin()
            return True, None
        if landed is None or file is None:
            return False, None
        file.delivered |= bool(landed.tables)
        self.files.advanced(file)
        if landed.job.last:
            await self._finished(file)
        return False, UnitRows(file, landed.tables)

    def done_with_head(self) -> None:
        """Release the bytes of the unit that :meth:`next` returned last, since its rows were consumed."""
        if self._pipeline is not None:
            self._pipeline.done_with_head()

    async def _finished(self, file: F) -> None:
        """Check a file whose units were all delivered (its number of rows, its version), and mark it as read."""
        self._done.add(file.number)
        self._open.pop(file.number, None)
        if (plan := file.reading) is not None:
            self.rows_matched += plan.file_scan.rows_matched
            self._reading.pop(plan.file_scan, None)
        if self._ended is not None:
            self._ended.set()
        await self.files.done(file)

    # -- beginning again --------------------------------------------------------------------------

    async def _begin_anew_if_renewed(self) -> bool:
        """If the list of files has changed, begin to read all files again. Return whether it has."""
        if not await self.files.renewed():
            return False
        await self._stop()
        self._done.clear()
        self.rows_matched = 0
        if self._collected is not None:
            self._collected.clear()
        self._begin()
        return True

    async def _failed(self, file: F, error: AsyncpqError) -> None:
        """After an error, skip ``file`` or read its new version; raise ``error`` if neither is allowed."""
        # rows that were delivered cannot be taken back; without an order, those of other files can stay
        alone = self._collected is None and not self.ordered
        exposed = [file] if alone else [*self._open.values(), file]
        given_out = self._collected is None and any(other.delivered for other in exposed)
        left_out = await self.files.failed(file, error, given_out=given_out)
        if left_out:
            self._done.add(file.number)
            self._open.pop(file.number, None)
            if self._collected is not None:
                self._collected.pop(file.number, None)  # rows of its units before the bad one
        scan = next((scan for scan, read in self._reading.items() if read is file), None)
        if not alone or scan is None or self._pipeline is None:
            await self._stop()
            self._begin()
            return
        await self._pipeline.drop(scan)
        self._reading.pop(scan, None)
        if self._ended is not None:
            self._ended.set()
        if not left_out and self._open.pop(file.number, None) is not None:
            self._again = True  # it is read once the others are
            await self.files.give_up(file)

    async def _stop(self) -> None:
        """Cancel the pipeline and release the files that are not yet read."""
        try:
            if self._pipeline is not None:
                await self._pipeline.close()
        finally:
            self._pipeline = None
            for number in [*self._open]:
                await self.files.give_up(self._open.pop(number))
            self._reading.clear()
            if self._collected is not None:
                self._collected = {number: rows for number, rows in self._collected.items() if number in self._done}

    async def close(self) -> None:
        """End the scan and everything it runs. Idempotent."""
        try:
            await self._stop()
        finally:
            await self.files.close()


def one_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Concatenate ``batches`` to one table of ``schema``. Without columns, the table still has the batches' number of
    rows."""
    if len(schema) or not batches:
        return pa.Table.from_batches(batches, schema=schema)
    return counted(sum(batch.num_rows for batch in batches))


async def joined(runtime: Runtime, parts: Sequence[pa.Table | pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Do what :func:`one_table` does with the batches of ``parts``; in a thread if there are many."""

    def join() -> pa.Table:
        batches: list[pa.RecordBatch] = []
        for part in parts:
            batches += part.to_batches() if isinstance(part, pa.Table) else (part,)
        return one_table(batches, schema)

    steps = len(parts) * (1 + len(schema) // _COLUMNS_A_STEP)
    return join() if steps <= INLINE_STEPS else await runtime.in_thread(join)
