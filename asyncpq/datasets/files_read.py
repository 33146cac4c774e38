"""One read over the files of a dataset: ruled out, opened ahead, read in order or as they become ready."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.known_files import KnownFiles
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask, Columns, OpenedFile
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    FormatError,
    ObjectChangedError,
    ObjectNotFoundError,
    SchemaMismatchError,
    UsageError,
)
from asyncpq.events import Operation
from asyncpq.pipeline import Job, Pipeline
from asyncpq.plan import Plan
from asyncpq.read import Read
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url

logger = logging.getLogger(__name__)

_BAD_FILE = (FormatError, ObjectNotFoundError, AccessDeniedError, SchemaMismatchError)


class SkippedFile(NamedTuple):
    """A file that a read left out since ``on_bad_file`` is "skip", and why."""

    url: str
    error: AsyncpqError


@dataclass(slots=True)
class DatasetState:
    """What all reads of a dataset share.

    Attributes:
        url: of the dataset, safe to be shown.
        source: where its files come from.
        known: what was learnt of files that were opened.
        skips: bad files are left out and reported; else they end the read.
    """

    resources: Resources
    url: str
    source: FileSource
    columns: Columns
    skips: bool
    known: KnownFiles = field(default_factory=KnownFiles)


class FileRows(NamedTuple):
    """What came out of one unit of a file."""

    file: OpenedFile
    tables: list[pa.Table]


class FilesRead:
    """Reads the files of a dataset that may hold what is asked.

    Files are looked for anew by each read where the dataset is a listing: with the files of the last one at once,
    and over again should the listing, which is on its way meanwhile, be another. Nothing is given out before.

    Args:
        scan: units are given out as they come; else all at the end (:meth:`collect`), so any file may begin anew.
        ordered: in the order of the files, else as they become ready.

    Attributes:
        skipped: bad files, where they are left out.
        rows_matched: of the files that are done with.
    """

    def __init__(
        self, state: DatasetState, ask: Ask, operation: Operation, *, scan: bool, ordered: bool = True
    ) -> None:
        self.skipped: list[SkippedFile] = []
        self.rows_matched = 0
        self._state = state
        self._resources = state.resources
        self._ask = ask
        self._operation = operation
        self._metrics = operation.metrics
        self._scan = scan
        self._ordered = ordered
        self._used: FileSet | None = None
        self._listing: asyncio.Task[FileSet] | None = None
        self._candidates: Sequence[tuple[int, DataFile]] = ()
        self._done: set[int] = set()
        self._open: dict[int, OpenedFile] = {}
        self._reading: dict[Read, OpenedFile] = {}
        self._pipeline: Pipeline | None = None
        self._rounds = 0
        self._collected: dict[int, list[pa.Table]] | None = None
        self._plans: dict[int, Plan] | None = None

    async def start(self) -> None:
        """Find the files and begin to open them."""
        source = self._state.source
        context = RequestContext(self._metrics, scan=self._scan, purpose="list")
        if source.known is not None:
            self._listing = self._resources.spawn(source.files(self._ask.where, context))
            self._begin(source.known)
        else:
            self._begin(await source.files(self._ask.where, context))

    def _begin(self, found: FileSet) -> None:
        """Rule files out, and read those that are left."""
        self._find(found)
        self._run()

    def _find(self, found: FileSet) -> None:
        """Rule files out."""
        state, metrics, files = self._state, self._metrics, found.files
        self._used = found
        self._rounds = metrics.rounds if self._listing is None else 0
        self._candidates = [(number, files[number]) for number in state.known.candidates(files, self._ask, state.columns)]
        metrics.files_total = len(files)
        metrics.files_ruled_out = len(files) - len(self._candidates)

    def _run(self) -> None:
        """Read the candidates that are not done with."""
        self._pipeline = Pipeline(self._jobs(), self._resources, ordered=self._ordered)
        self._pipeline.start()

    # -- files, opened ahead ----------------------------------------------------------------------

    async def _jobs(self) -> AsyncGenerator[Job]:
        limits = self._resources.options.limits
        round_bytes = None if self._scan else limits.round_bytes
        todo = iter([item for item in self._candidates if item[0] not in self._done])
        window: deque[asyncio.Task[OpenedFile | None]] = deque()
        ahead = limits.files_ahead if self._ask.limit is None else 1  # with a limit, the first ones may be enough
        try:
            while True:
                for item in itertools.islice(todo, ahead - len(window)):
                    window.append(asyncio.get_running_loop().create_task(self._open_file(*item)))
                if not window:
                    return
                awaited = [window[0]] if self._ordered else window
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                task = next(task for task in window if task.done())
                window.remove(task)
                ahead = min(ahead * 2, limits.files_ahead)
                opened = task.result()
                if opened is not None:
                    self._reading[opened.prepared.read] = opened
                    for job in opened.jobs(limits.unit_bytes, round_bytes):
                        yield job
        finally:
            for task in window:
                task.cancel()
            if window:
                await asyncio.wait(window)
                for task in window:
                    if not task.cancelled():
                        task.exception()  # the read ends for another reason

    async def _open_file(self, number: int, file: DataFile) -> OpenedFile | None:
        """A file that has something to read; None for one that has nothing, or is skipped."""
        part = self._operation.part(safe_url(file.url), self._rounds)
        attempts = self._resources.options.limits.max_restarts if self._may_restart else 0
        while True:
            try:
                opened = await self._prepared(number, file, part)
            except ObjectChangedError:
                if attempts == 0:
                    self._metrics.add_part(part.metrics)
                    raise
                attempts -= 1
                part.restarts()
            except _BAD_FILE as error:
                if not self._state.skips:
                    self._metrics.add_part(part.metrics)
                    raise
                self._skip(number, part, error)
                return None
            except BaseException:
                self._metrics.add_part(part.metrics)
                raise
            else:
                return opened

    @property
    def _may_restart(self) -> bool:
        """Whether another version of a file will do: not where rows are named, or a table names the file."""
        return self._ask.access is None and self._state.source.view is View.LISTED

    async def _prepared(self, number: int, file: DataFile, part: Operation) -> OpenedFile | None:
        used = self._used
        opened = await OpenedFile.open(
            self._resources,
            number,
            file,
            part,
            neighbours=self._state.url,
            listed_at=None if used is None else used.listed_at,
            scan=self._scan,
        )
        try:
            await opened.prepare(self._ask, self._state.columns, scan=self._scan)
            self._state.known.learn(opened, self._ask, self._state.columns)
            if self._plans is not None:
                self._plans[number] = opened.describe(scan=self._scan)
            elif not opened.prepared.plan.row_groups:
                await opened.finish()
        except BaseException as error:
            if isinstance(error, ObjectChangedError):
                await opened.changed()
            await opened.close()
            raise
        self._open[number] = opened
        if opened.prepared.plan.row_groups and self._plans is None:
            return opened
        await self._end(opened)
        return None

    # -- rows -------------------------------------------------------------------------------------

    async def next(self) -> FileRows | None:
        """The next unit's rows; None at the end. Call :meth:`done_with_head` once they are consumed.

        Raises:
            AsyncpqError: a file could not be read, or has changed after rows of it were given out.
        """
        while True:
            async with self._resources.deadline(self._state.url):
                again, found = await self._next()
            if not again:
                return found

    async def _next(self) -> tuple[bool, FileRows | None]:
        """Whether reading began again; if not, the next unit's rows, or None at the end."""
        pipeline = self._pipeline
        if pipeline is None:
            raise UsageError("the read is closed")
        opened: OpenedFile | None = None
        try:
            landed = await pipeline.next()
            if landed is not None:
                opened = self._reading[landed.job.read]
                if landed.job.last:
                    await opened.finish()
        except AsyncpqError as error:
            if await self._listing_differs():
                return True, None
            if opened is None and pipeline.head is not None:
                opened = self._reading[pipeline.head.read]
            if opened is None:
                raise
            await self._failed(opened, error)
            return True, None
        if await self._listing_differs():
            return True, None
        if landed is None or opened is None:
            return False, None
        opened.delivered |= bool(landed.tables)
        if landed.job.last:
            await self._end(opened)
        return False, FileRows(opened, landed.tables)

    def done_with_head(self) -> None:
        """What :meth:`next` gave was consumed: there is room for further rows."""
        if self._pipeline is not None:
            self._pipeline.done_with_head()

    async def collect(self) -> list[tuple[int, list[pa.Table]]]:
        """All rows, by the number of their file, in the order of the files."""
        self._collected = {}
        await self.start()
        while (rows := await self.next()) is not None:
            self._collected.setdefault(rows.file.number, []).extend(rows.tables)
            self.done_with_head()
        return sorted(self._collected.items())

    async def plans(self) -> list[Plan]:
        """What would be read of the files that are not ruled out, in their order; nothing is."""
        self._plans = {}
        async with self._resources.deadline(self._state.url):
            context = RequestContext(self._metrics, purpose="list")
            self._find(await self._state.source.files(self._ask.where, context))
        async with aclosing(self._jobs()) as jobs:
            async for _ in jobs:
                pass
        return [plan for _, plan in sorted(self._plans.items())]

    def url(self, number: int) -> str:
        """Of a file, as the dataset has it."""
        return "" if self._used is None else self._used.files[number].url

    # -- beginning again --------------------------------------------------------------------------

    async def _listing_differs(self) -> bool:
        """Wait for the listing that is on its way; read its files instead where they are others than those used."""
        listing, used = self._listing, self._used
        if listing is None or used is None:
            return False
        found = await asyncio.shield(listing)
        self._listing = None
        if found.files is used.files:
            return False
        await self._stop()
        self._done.clear()
        self.skipped.clear()
        self.rows_matched = 0
        if self._collected is not None:
            self._collected.clear()
        self._begin(found)
        return True

    async def _failed(self, opened: OpenedFile, error: AsyncpqError) -> None:
        """Read on without the file whose unit failed, or with its new version; raise where neither may be."""
        changed = isinstance(error, ObjectChangedError)
        if changed:
            await opened.changed()
        # rows that were given out cannot be taken back
        if self._collected is None and any(file.delivered for file in self._open.values()):
            raise error
        if changed and self._may_restart and self._metrics.restarts < self._resources.options.limits.max_restarts:
            self._operation.restarts()
        elif isinstance(error, _BAD_FILE) and self._state.skips:
            del self._open[opened.number]
            await opened.close()
            self._skip(opened.number, opened.operation, error)
        else:
            raise error
        await self._stop()
        self._run()

    def _skip(self, number: int, part: Operation, error: AsyncpqError) -> None:
        logger.warning("%s is skipped: %s", part.url, error)
        self._done.add(number)
        self.skipped.append(SkippedFile(part.url, error))
        self._metrics.files_skipped += 1
        self._operation.part_ended(part, error, self._num_done)

    async def _end(self, opened: OpenedFile) -> None:
        """A file is done with."""
        self._done.add(opened.number)
        del self._open[opened.number]
        read = opened.prepared.read
        self._reading.pop(read, None)
        self.rows_matched += read.rows_matched
        self._metrics.files_opened += 1
        self._metrics.files_read += self._plans is None and bool(opened.prepared.plan.row_groups)
        await opened.close()
        self._operation.part_ended(opened.operation, None, self._num_done)

    @property
    def _num_done(self) -> int:
        return self._metrics.files_ruled_out + len(self._done)

    async def _stop(self) -> None:
        """End what runs, and forget of files that are not done with."""
        try:
            if self._pipeline is not None:
                await self._pipeline.close()
        finally:
            self._pipeline = None
            for opened in [*self._open.values()]:
                del self._open[opened.number]
                self._metrics.add_part(opened.operation.metrics)
                await opened.close()
            self._reading.clear()
            if self._collected is not None:
                self._collected = {number: rows for number, rows in self._collected.items() if number in self._done}

    async def close(self) -> None:
        """End the read and everything it runs. Idempotent."""
        listing, self._listing = self._listing, None
        try:
            if listing is not None:
                listing.cancel()
                await asyncio.wait((listing,))
        finally:
            await self._stop()
