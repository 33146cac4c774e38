"""The files of a dataset for one read: listed, ruled out, opened ahead, planned, and streamed as batches.

A file can be ruled out in three steps: by partition values and a table's bounds; by the footer of an earlier read, if
the version is the same; and by the file's footer before its indexes are fetched. The cost of each file is counted
separately and then added to the read's.

A cached listing is validated like a cached footer: the read begins with the files of the last listing, while the next
one is requested. The ETags of a listing validate cached footers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import field
from functools import partial
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from asyncpq.datasets.file_statistics import FileStatistics
from asyncpq.datasets.model import DataFile, View, urls_of
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile, Opener, is_bad_file
from asyncpq.datasets.providers import FileProvider, FileSet, ListingCost, SkippedFile
from asyncpq.datasets.schemas import SchemaUnifier
from asyncpq.datasets.small_files import FEWEST, MOST, MOST_BYTES, SmallFiles
from asyncpq.errors import AsyncpqError, ObjectChangedError, ObjectNotFoundError, RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.objects.runtime import INLINE_STEPS, Runtime
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.records import dataclass
from asyncpq.scan.executor import ScanExecutor
from asyncpq.scan.plan import Plan
from asyncpq.scan.request import ScanRequest, predicate_steps
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.storage.threads import end_tasks, result_of
from asyncpq.storage.urls import safe_url

T = TypeVar("T")

_MAX_AGREED = 64

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DatasetState:
    """The state that all reads of a dataset share.

    Attributes:
        url: url of the dataset, without secrets.
        source: returns the files of each read.
        skips: leave bad files out and report them; else a bad file's error ends the read.
        skips_missing: leave out files that do not exist, whatever ``skips`` is.
        known: statistics of the files that were opened.
        unifier: checks the schemas of further files; None if they may differ.
        agreed: schemas that the unifier has accepted.
        has_index: an index exists in ``_asyncpq/`` below the folder.
        is_written: asyncpq wrote some of the files; the folder's index decides which of them are live.
        prefix: url of the folder, without secrets; None for a pattern, a list or a table.
        partitions: columns whose values are in the files' paths; None for a table.
    """

    runtime: Runtime
    url: str
    source: FileProvider
    columns: DatasetColumns
    skips: bool
    skips_missing: bool = False
    known: FileStatistics = field(init=False)
    unifier: SchemaUnifier | None = None
    agreed: set[tuple[bytes, str | None]] = field(default_factory=set)
    has_index: bool = False
    is_written: bool = False
    prefix: str | None = None
    partitions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.known = FileStatistics(trust_statistics=self.runtime.options.read.trust_statistics)

    def leaves_out(self, error: AsyncpqError) -> bool:
        """Return whether reads leave out a file that raises ``error``, because of ``skips`` or ``skips_missing``."""
        is_missing = isinstance(error, ObjectNotFoundError) or (isinstance(error, ObjectChangedError) and error.is_gone)
        return (self.skips and is_bad_file(error)) or (self.skips_missing and is_missing)


class FileRequests(Protocol):
    """Makes the request for each file of a read, and decides from the file's footer whether it is needed."""

    def accept(self, opened: OpenedFile) -> None:
        """Check the file's schema against the dataset's, and perhaps set ``opened.file.fields``, by which its
        columns are matched. Raises SchemaMismatchError if the schemas conflict."""

    def request(self, opened: OpenedFile) -> ScanRequest:
        """Return the request for a file that :meth:`accept` has accepted."""

    async def may_match(self, opened: OpenedFile) -> bool:
        """Return whether the file may have matching rows, according to the statistics in its footer."""


class SameRequest:
    """A :class:`FileRequests` with the same request for every file. It checks each file's schema, and keeps the file's
    statistics for later reads."""

    def __init__(self, state: DatasetState, ask: ScanRequest) -> None:
        #: The predicate to prune by, simplified, and how long it takes to be searched in statistics, in steps of
        #: :meth:`asyncpq.objects.runtime.Runtime.off_loop`.
        self.where: Expression | None = ask.simple_pruning
        self.steps: int = predicate_steps(self.where)
        self.matches_nothing: bool = ask.matches_nothing
        self._state = state
        self._ask = ask
        self._learn: Callable[[OpenedFile], Callable[[], bool]] | None = None

    def accept(self, opened: OpenedFile) -> None:
        state = self._state
        if state.unifier is not None and (schema_bytes := opened.schema_bytes) not in state.agreed:
            state.unifier.add(opened.version.url, opened.schema)
            if len(state.agreed) < _MAX_AGREED:
                state.agreed.add(schema_bytes)

    def request(self, opened: OpenedFile) -> ScanRequest:
        return self._ask

    async def may_match(self, opened: OpenedFile) -> bool:
        if self._learn is None:
            self._learn = self._state.known.learning(self.where, self._state.columns)
        search = self._learn(opened)
        return search() if self.steps <= INLINE_STEPS else await self._state.runtime.in_thread(search)


FILES_A_STEP: Final = 10  # whose statistics are searched
_COUNTED_A_STEP: Final = 5  # whose known rows are summed up
_FEW_FILES: Final = 4  # of so few planned files, nothing is concluded for the others


class DatasetFiles:
    """The files of a dataset that may have matching rows: :class:`asyncpq.scan.executor.ScannedFiles`.

    Each read of listed files lists them again. The read begins with the files of the last listing, and starts again if
    the new listing differs; it returns no rows before the new listing is complete. A ``scan`` returns rows as they are
    decoded; other reads return all rows at the end, so a file can be read again at any time. Files are in order if
    ``ordered``, else as they become ready. ``requests`` makes the request for each file; by default ``ask`` is the
    request for all.
    """

    def __init__(
        self,
        state: DatasetState,
        ask: ScanRequest,
        operation: Operation,
        *,
        scan: bool,
        ordered: bool = True,
        requests: FileRequests | None = None,
    ) -> None:
        self.skipped: list[SkippedFile] = []  # bad files that were left out so far
        self.rows_known: int = 0  # number of rows of files that are counted without opening them
        self.report: Callable[[], tuple[str, ...]] = tuple  # returns ``explain()`` lines: how an index ruled out files
        self.cost: ListingCost | None = None  # cost of the listing
        self.fates: dict[str, str] = {}  # of a read with a trace: what ruled out files before they were opened, by url
        self.ordered = ordered
        self._state = state
        self._runtime = state.runtime
        self._ask = ask
        self._same = SameRequest(state, ask)
        self._own_requests = requests
        self._operation = operation
        self._metrics = operation.metrics
        self._scan = scan
        self._used: FileSet | None = None
        self._listing: asyncio.Task[FileSet] | None = None
        # Numbers, not files: a lake of 100,000 would be as many objects, though few of them are opened at once.
        self._candidates: Sequence[int] = ()
        self._made: dict[int, DataFile] = {}  # candidates that are not as the listing has them, or of earlier listings
        self._done: set[int] = set()
        self._first: OpenedFile | None = None  # a file that `alone` has opened: `planned` yields the same object
        self._relocated: dict[int, FileVersion] = {}  # versions whose page indexes were dropped, by file number
        self._fitting: set[Hashable] = set()  # schemas and partition values of files whose columns can be matched
        self._num_extended = 0  # files of :meth:`extend`
        self._planned_bytes = 0
        self._num_opened = self._num_planned = 0  # files that were opened, and those of them with rows to plan

    async def start(self) -> None:
        """Find the files of the read; without a request if the predicate is never true."""
        source = self._state.source
        if self._ask.unparsed is not None:
            self._ask = await self._ask.parsed(self._runtime)
            self._same = SameRequest(self._state, self._ask)
        await self._simplify()
        if self._same.matches_nothing:
            await self._find(source.known or FileSet(()))
            return
        files = await source.files(self._ask, self._operation, scan=self._scan, allow_stale=self._ask.by_file is None)
        self._listing = files.renewal
        self._check_access(files)
        await self._find(files)

    async def _simplify(self) -> None:
        """Simplify the predicate once for all files."""
        if self._ask.where is not None and self._ask.bound is None:
            self._ask = await self._runtime.off_loop(self._ask.simplified, predicate_steps(self._ask.where))
            self._same = SameRequest(self._state, self._ask)

    def _check_access(self, found: FileSet) -> None:
        """Raise RowIndexError if the request names rows of a file that the dataset does not have."""
        by_file = self._ask.by_file
        # a table or an index that prunes by the predicate does not return all files
        prunes = found.total is not None or self._state.source.view is View.TABLE
        if by_file is None or (self._ask.where is not None and prunes):
            return
        missing = by_file.keys() - set(urls_of(found.files))
        if missing:
            raise RowIndexError(
                "the dataset has no such file", url=safe_url(min(missing)), hint="Use the urls of Dataset.files()."
            )

    async def _find(self, found: FileSet) -> None:
        """Set the files to read: those of ``found`` that partition values and known statistics do not rule out."""
        self._use(found, *await self._pruned(found.files))

    async def _pruned(self, files: Sequence[DataFile]) -> tuple[list[int], int, dict[str, str]]:
        """Return the numbers of the files that partition values and known statistics do not rule out; how many rows
        others have, if the read only counts rows; and, if it has a trace, what rules out files, by url."""
        state, where, by_file, runtime = self._state, self._same.where, self._ask.by_file, self._runtime
        known, schema = state.known, state.columns.schema
        steps = self._same.steps + len(files) // FILES_A_STEP
        numbers, num_rows = list[int](), 0
        if self._ask.limit != 0:
            numbers = await runtime.off_loop(known.search(files, where, schema, by_file), steps)
        if _counts_all(self._ask) and runtime.options.read.trust_statistics:
            count = partial(known.count_known, files, numbers)
            numbers, num_rows = await runtime.off_loop(count, len(numbers) // _COUNTED_A_STEP)
        if self._metrics.trace is None:
            return numbers, num_rows, {}
        return numbers, num_rows, await runtime.off_loop(known.fates(files, where, schema, by_file), steps)

    def _use(self, found: FileSet, numbers: Sequence[int], num_rows: int, fates: dict[str, str]) -> None:
        """Set the files to read: those of ``found`` with the given numbers. ``num_rows``: of others, which are counted
        without being opened. ``fates``: what ruled out files."""
        metrics = self._metrics
        self._used, self._candidates, self._made, self.fates = found, numbers, {}, fates
        self.rows_known += num_rows + found.num_rows
        total = len(found.files) if found.total is None else found.total
        metrics.files_total = total + len(found.bad)
        metrics.files_skipped = len(found.bad)
        self.skipped.extend(found.bad)
        metrics.files_ruled_out = total - len(numbers)
        self.report, self.cost = found.report, found.cost

    async def renewed(self) -> bool:
        """Wait for the newer listing, if one was requested; return whether its files differ from the read's."""
        listing, used = self._listing, self._used
        if listing is None or used is None:
            return False
        async with self._runtime.deadline(self._state.url):
            files = await result_of(listing)
        self._listing = None
        same_rows = files.num_rows == used.num_rows
        if files.files is used.files and same_rows and [url for url, _ in files.bad] == [url for url, _ in used.bad]:
            return False
        pruned = await self._pruned(files.files)  # first, since the read goes on meanwhile
        self._done.clear()
        self.skipped.clear()
        self.rows_known = self._metrics.files_opened = self._metrics.files_read = 0
        if files.total is None:
            self._state.known.keep_only(files.files)
        self._use(files, *pruned)
        return True

    def _opener(self) -> Opener:
        state, used, limits = self._state, self._used, self._runtime.options.limits
        return Opener(
            runtime=self._runtime,
            operation=self._operation,
            rounds=0 if used is None else used.rounds,
            tail_hint=state.url,
            prefix=state.prefix,
            by_index=state.source.view is View.SNAPSHOT,
            listing=used,
            scan=self._scan,
            ordered=self.ordered,
            few=self._ask.limit is not None,
            restarts=limits.max_restarts if self._may_restart else 0,
            skip=self._skip if state.skips or state.skips_missing else None,
            leaves_out=state.leaves_out,
        )

    @property
    def _may_restart(self) -> bool:
        """Whether a file that was replaced may be read in its new version; False if the request names rows by
        number, or the files are a table's."""
        return self._ask.by_file is None and self._state.source.view is not View.TABLE

    async def alone(self) -> OpenedFile | None:
        if self._used is None:
            await self.start()
        todo = self._todo()
        if len(todo) != 1:
            return None
        opened = await self._opener().open(*next(self._numbered(todo)), self._prepare)
        self._first = None if opened is None else opened[0]
        return self._first

    async def planned(self) -> AsyncGenerator[OpenedFile]:
        first, self._first = self._first, None
        if first is not None:
            yield first
            return
        todo = self._todo()
        small = self._small_files(len(todo))
        files = self._numbered(todo)
        reads = self._each(files) if small is None else self._with_groups(files, small)
        async with aclosing(reads) as planned:
            async for opened in planned:
                yield opened

    def _todo(self) -> list[int]:
        return [number for number in self._candidates if number not in self._done]

    def _numbered(self, numbers: Iterable[int]) -> Iterator[tuple[int, DataFile]]:
        """Return an iterator over the files with these numbers. They are those of the listing in use at the time of the
        call, although a newer one may be in use when the iterator reaches them."""
        listed, made = self.listed, self._made
        return ((number, made[number] if number in made else listed[number]) for number in numbers)

    async def _each(self, todo: Iterable[tuple[int, DataFile]]) -> AsyncGenerator[OpenedFile]:
        """Open and plan each file by itself."""
        async with aclosing(self._opener().files(todo, self._prepare)) as files:
            async for opened, _ in files:
                yield opened

    def _small_files(self, num_files: int) -> SmallFiles | None:
        """Return what reads small files together; None if each file is planned by itself: there are few, or the read
        needs rows of each apart, perhaps of the first ones only."""
        ask = self._ask
        if num_files < FEWEST or self._own_requests is not None or self._metrics.trace is not None:
            return None
        if ask.by_file is not None or ask.limit is not None or ask.read_dictionary or ask.unresolved is not None:
            return None
        return SmallFiles(self._runtime, ask, self._state.columns, scan=self._scan)

    async def _with_groups(self, todo: Iterable[tuple[int, DataFile]], small: SmallFiles) -> AsyncGenerator[OpenedFile]:
        """Open the files, and read those that are small and alike in groups, of which the first one is yielded. The
        first groups are small, so that the first rows come early."""

        async def prepare(opened: OpenedFile) -> Hashable | None:
            return await self._prepare(opened, small)

        waiting: list[OpenedFile] = []
        taken: OpenedFile | None = None  # the file that came last, until it waits or is yielded
        last: Hashable | None = None
        most, size = 4 * FEWEST, 0
        try:
            async with aclosing(self._opener().files(todo, prepare)) as files:
                async for taken, kind in files:
                    if waiting and (kind != last or len(waiting) >= most or size > MOST_BYTES):
                        async with aclosing(self._together(waiting, last, small)) as group:
                            async for file in group:
                                yield file
                        most, size = min(2 * most, MOST), 0
                    last = kind
                    opened, taken = taken, None
                    if kind is None:
                        yield opened
                    else:
                        waiting.append(opened)
                        size += opened.version.size
                        await opened.source.handle.close()  # all of it has come
                if waiting:
                    async with aclosing(self._together(waiting, last, small)) as group:
                        async for file in group:
                            yield file
        finally:
            for opened in waiting if taken is None else (*waiting, taken):
                await self.give_up(opened)

    async def _together(
        self, waiting: list[OpenedFile], kind: Hashable, small: SmallFiles
    ) -> AsyncGenerator[OpenedFile]:
        """Read the files ``waiting``, which are of one kind, together; if that is not possible, each by itself."""
        if len(waiting) >= FEWEST:
            rows = await small.read(waiting, kind)
            if rows is not None:
                first, *others = waiting
                waiting.clear()
                first.ready, first.others = rows, others
                yield first
                return
        todo = [(opened.number, opened.file) for opened in waiting]
        while waiting:
            await self.give_up(waiting.pop())
        async with aclosing(self._each(todo)) as files:
            async for opened in files:
                yield opened

    async def _prepare(self, opened: OpenedFile, small: SmallFiles | None = None) -> Hashable | None:
        """Plan an opened file, unless the statistics in its footer rule it out. If ``small`` reads it together with
        others, return its kind instead."""
        relocated = self._relocated.get(opened.number)
        if relocated is not None and relocated.digest == opened.version.digest:
            opened.version = relocated  # the version from the cache may still have the page indexes
        requests: FileRequests = self._own_requests or self._same
        columns = self._state.columns
        requests.accept(opened)
        self._num_opened += 1
        # a report shows the plan of each file
        plain = self._metrics.trace is None and self._own_requests is None
        if plain and _counts_all(self._ask) and opened.counts_all_rows:
            self._check_fit(opened)
            await opened.finish()
            opened.rows_counted = self._state.known.learn_num_rows(opened)
            return None
        if await requests.may_match(opened):
            kind = None if small is None else small.kind_of(opened)
            if kind is not None:
                return kind
            ask = requests.request(opened)
            self._num_planned += 1
            size = await opened.prepare(
                ask, columns, scan=self._scan, other_bytes=self._planned_bytes, files=self._expected_files()
            )
            self._planned_bytes += size  # other files may have added theirs during the await
        if not opened.has_rows:
            await opened.finish()
        return None

    def _check_fit(self, opened: OpenedFile) -> None:
        """Raise SchemaMismatchError if the file's columns cannot be matched, once for files that are alike."""
        file = opened.file
        key = (opened.schema_bytes, file.fields, *file.partition.items())
        if key not in self._fitting:
            opened.view(self._state.columns)
            if len(self._fitting) >= _MAX_AGREED:
                self._fitting.clear()  # the files of one folder come together
            self._fitting.add(key)

    def _expected_files(self) -> int:
        """Return how many files the read is expected to plan, if the same share of the remaining files is planned as
        of those opened so far."""
        planned, opened = self._num_planned, self._num_opened
        return planned if planned < _FEW_FILES else max(planned, len(self._candidates) * planned // opened)

    async def plans(self) -> list[Plan]:
        """Plan the files, and return the plans in the files' order; no data is read.

        If the read's metrics record a trace, the result has also plans without row groups to read. Files that the
        statistics in their footer rule out have no plan.
        """

        async def describe(opened: OpenedFile) -> Plan | None:
            return await opened.describe(scan=self._scan)

        async with aclosing(self.described(describe)) as plans:
            return [plan async for plan in plans if plan is not None]

    @property
    def listed(self) -> Sequence[DataFile]:
        """The files that were found, before partition values and statistics ruled out any."""
        return () if self._used is None else self._used.files

    def ruled_out(self) -> dict[str, int]:
        """Return how many files were not opened, by the reason: a :data:`asyncpq.reports.documents.Fate`, such as
        "index". Needs metrics that record a trace."""
        used = self._used
        if used is None:
            return {}
        counts = Counter(self.fates.values())
        unlisted = (len(used.files) if used.total is None else used.total) - len(used.files)
        counts["index"] += used.by_index
        counts["table"] += unlisted - used.by_index
        return {fate: count for fate, count in counts.items() if count}

    async def _find_listed(self) -> None:
        """Find the files, those of a listing that is made now."""
        found = FileSet(())
        await self._simplify()
        if not self._same.matches_nothing:
            async with self._runtime.deadline(self._state.url):
                found = await self._state.source.files(self._ask, self._operation, scan=self._scan)
            self._check_access(found)
        await self._find(found)

    @property
    def candidates(self) -> list[DataFile]:
        """The files that were found and are not ruled out, in order."""
        return [file for _, file in self._numbered(self._candidates)]

    async def extend(self, found: FileSet) -> None:
        """Add files that the caller has found, and count them."""
        metrics, earlier, made = self._metrics, self._candidates, self._made
        before = metrics.files_total, metrics.files_ruled_out, metrics.files_skipped
        await self._find(found)
        made.update({self._num_extended + number: found.files[number] for number in self._candidates})
        self._candidates = [*earlier, *[self._num_extended + number for number in self._candidates]]
        self._made = made
        self._num_extended += len(found.files)
        metrics.files_total += before[0]
        metrics.files_ruled_out += before[1]
        metrics.files_skipped += before[2]

    def drop_candidates(self) -> None:
        """Forget the candidates, which the caller is done with."""
        self._candidates, self._made = (), {}

    async def described(self, look: Callable[[OpenedFile], Awaitable[T]]) -> AsyncGenerator[T]:
        """Plan each file that is not ruled out, without reading data; yield the result of ``look`` for each, in order.

        If the read's metrics record a trace, files whose plans have no row groups to read are included.
        """
        if self._used is None:
            await self._find_listed()
        traced = self._metrics.trace is not None

        async def prepare(opened: OpenedFile) -> T | None:
            await self._prepare(opened)
            return await look(opened) if opened.has_rows or (traced and opened.plan is not None) else None

        async with aclosing(self._opener().files(self._numbered(self._candidates), prepare)) as files:
            async for opened, looked in files:
                await self._end(opened)
                if looked is not None:
                    yield looked

    def advanced(self, file: OpenedFile) -> None:
        """Do nothing: the progress of a dataset's read is told by files."""

    async def done(self, file: OpenedFile) -> None:
        self._first = None
        self.rows_known += file.rows_counted
        together = file.ready is not None
        for opened in (file, *file.others):
            self._metrics.files_read += together or opened.has_rows
            await self._end(opened)

    async def _end(self, opened: OpenedFile) -> None:
        self._done.add(opened.number)
        self._relocated.pop(opened.number, None)
        self._metrics.files_opened += 1
        await opened.close()
        self._operation.part_ended(opened.operation, None, self._num_done)

    async def give_up(self, file: OpenedFile) -> None:
        self._first = None
        for opened in (file, *file.others):
            self._metrics.add_part(opened.operation.metrics)
            await opened.close()

    async def failed(self, file: OpenedFile, error: AsyncpqError, *, given_out: bool) -> bool:
        if file.ready is not None:
            raise error  # no fault of the files
        changed = isinstance(error, ObjectChangedError)
        relocated = False
        if isinstance(error, PageLocationError) and error.dropped:  # read the file once more, without its page index
            relocated = self._relocated.setdefault(file.number, file.version) is file.version
        if changed:
            await file.changed()
            self._relocated.pop(file.number, None)
        leaves_out = self._state.leaves_out(error)
        if given_out or (changed and file.file.pinned and not leaves_out):
            raise error
        if leaves_out and not relocated:
            self._first = None
            await file.close()
            self._skip(file.number, file.operation, error)
            return True
        if changed and file.file.entry is not None and self._ask.by_file is None:
            file.operation.restarts()  # the new version is read without the index
            self._made[file.number] = file.file.unindexed()
            return False
        if changed and self._may_restart and self._metrics.restarts < self._runtime.options.limits.max_restarts:
            file.operation.restarts()
            return False
        if relocated:
            return False
        raise error

    def _skip(self, number: int, part: Operation, error: AsyncpqError) -> None:
        logger.warning("%s is skipped: %s", part.url, error)
        self._done.add(number)
        self.skipped.append(SkippedFile(part.url, error))
        self._metrics.files_skipped += 1
        self._operation.part_ended(part, error, self._num_done)

    @property
    def _num_done(self) -> int:
        return self._metrics.files_ruled_out + len(self._done)

    async def close(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            await end_tasks((listing,))


def _counts_all(ask: ScanRequest) -> bool:
    """Whether a read needs no more than the number of all rows, which footers have."""
    return ask.rows_only and ask.where is None and ask.by_file is None


class DatasetScan(RecordBatchStream):
    """Batches of a dataset's rows. Use it as ``async with dataset.scan(...) as scan: async for batch in scan``.

    If the block is left early, or by an error or a cancellation, the tasks of the scan end first. Created by
    :meth:`asyncpq.Dataset.scan`. ``metrics`` is the cost of the files that are done so far.
    """

    def __init__(
        self,
        runtime: Runtime,
        files: DatasetFiles,
        operation: Operation,
        schema: pa.Schema,
        *,
        batch_size: int,
        limit: int | None,
    ) -> None:
        executor = ScanExecutor(runtime, operation.url, files, ordered=files.ordered)
        super().__init__(operation, executor, lambda: schema, batch_size=batch_size, limit=limit)
        self._files = files

    @property
    def skipped(self) -> list[SkippedFile]:
        """List of the bad files (damaged, unreadable or with other columns) that were left out so far, each an
        :class:`asyncpq.SkippedFile`; empty unless the dataset was opened with ``on_bad_file="skip"``."""
        return self._files.skipped
