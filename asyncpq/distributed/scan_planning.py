"""Plan a scan: prune files and row groups, and pack the rest into tasks.

This process plans with the code of every read (``DatasetFiles.described``); if very many files must be opened, an
engine's workers may do that (``PlanningJobs``). If a file was opened, its task carries the parts of the footer (up to
16 KiB a file) and the page locations that it needs, in the encoding of the index table "footers". So tasks open none of
these files again. Plans of up to 64 MiB are sent; larger ones go to the work folder, where later plans remove those of
a week ago. ``DataFile.pinned`` makes another version an error, not a reason to restart.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Generic, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import pyarrow as pa

from asyncpq.dataset import Dataset, scan_request, state_of
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.file_statistics import Learnt
from asyncpq.datasets.model import DataFile, TableField, View
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileSet, GivenFiles
from asyncpq.distributed.engine_scans import SET_FILES, STORED_OTHERWISE, file_sets
from asyncpq.distributed.packing import MOST_VERSIONS, PieceStore, TaskPacker, cost_of, group_pieces
from asyncpq.distributed.scan_tasks import (
    PlannedFile,
    PlanRequests,
    TaskPiece,
    TaskScan,
    columns_of,
    pack_task,
    read_task,
    state_of_scan,
)
from asyncpq.distributed.worker_sessions import WorkerSettings, refresh_hint, worker_options
from asyncpq.errors import ObjectChangedError, UsageError
from asyncpq.events import Operation
from asyncpq.expressions import columns as columns_in
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_made, encode_shared
from asyncpq.indexing.index_model import file_key
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.runtime import runtime_of
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.opening.keywords import check_keywords
from asyncpq.options import DEFAULT_BATCH_SIZE, KIB, MIB, require_class, require_whole
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import encode_offset_index
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.executor import one_table
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session
from asyncpq.storage.base import RequestContext, Validator, listing_check
from asyncpq.storage.threads import results_of
from asyncpq.storage.urls import split_url
from asyncpq.typing import Predicate

#: Files of a sample, and the least number of files that are worth one.
_SAMPLE: Final = 16
_LEAST_SAMPLED: Final = 64
#: Above so many files, their folder is listed to look at them again.
_FEW_LISTINGS: Final = 32


#: This process plans at most so many files if an engine offers jobs: a job takes about as long.
MOST_PLANNED_HERE: Final = 4096
#: Candidates that are gathered from the sets of an index before they are planned.
GATHERED_FILES: Final = SET_FILES

S = TypeVar("S", bound=TaskScan)


@dataclass(frozen=True)
class ScanTask:
    """The files and rows of a scan that one worker reads: small, picklable, and without a session.

    Attributes:
        scan: what all tasks of the scan share.
        number: position of the task in the plan; the rows of the tasks, in this order, are in the dataset's order.
        data: the task's files, encoded: versions, rows to read, and metadata.
        num_files: number of files of the task; a large file may be in several tasks.
        num_bytes: approximate compressed bytes to read.
    """

    scan: TaskScan = field(repr=False)
    number: int
    data: bytes = field(repr=False)
    num_files: int
    num_bytes: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches. Tasks of one process share a session, its caches and its event loop.

        Raises:
            ObjectChangedError, ObjectNotFoundError: a file was replaced or deleted after it was planned.
            AsyncpqError: the errors of :meth:`asyncpq.Dataset.scan`.
        """
        return read_task(self.scan, self.data)

    def to_table(self) -> pa.Table:
        """Return the rows as one table. Raises the errors of :meth:`read`."""
        batches = [*self.read()]
        return one_table(batches, batches[0].schema if batches else self.scan.batch_schema())


@dataclass(frozen=True, kw_only=True)
class ScanTasks(Sequence[ScanTask], Generic[S]):
    """The tasks of a scan in the dataset's order, and the cost of planning them: a sequence of :class:`ScanTask`. Made
    by :func:`plan_scan` and :func:`plan_tasks`.

    Attributes:
        scan: what all tasks share: a :class:`TaskScan`, such as an engine's :class:`EngineScan`.
        pieces: for each task its encoded files; of asyncpq's own. The items of this sequence are the tasks.
        metrics: cost of planning.
        index_report: lines of text on the files that each table of the index ruled out; empty without an index.
        facts: the union of :meth:`EngineRules.facts` of the opened files; empty without an engine's rules.
        num_files: number of files that tasks read, at least in part.
        whole_bytes: size of these files.
        versions: versions of these files by url (None: not known); incomplete if there are more than
            ``packing.MOST_VERSIONS``.
        num_rows: number of rows that tasks read; rows of unopened files count only if the listing has their number.
        prices: the store's latency in seconds and bandwidth in bytes per second, as planning has measured them.
        unopened: number of files that were planned without opening them.
        is_sampled: whether all files were planned whole because none of an opened sample was ruled out (``may_sample``
            of :func:`plan_tasks`). Rows and bytes are then extrapolated, and only an engine's own reader can read it.
    """

    scan: S
    pieces: tuple[tuple[TaskPiece, ...], ...]
    metrics: ReadMetrics
    index_report: tuple[str, ...] = ()
    facts: frozenset[str] = frozenset()
    num_files: int = 0
    whole_bytes: int = 0
    versions: Mapping[str, Validator | None] = field(default_factory=dict)
    num_rows: int = 0
    prices: Prices
    unopened: int = 0
    is_sampled: bool = False

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, index: int) -> ScanTask: ...

    @overload
    def __getitem__(self, index: slice) -> list[ScanTask]: ...

    def __getitem__(self, index: int | slice) -> ScanTask | list[ScanTask]:
        """Return a task, which is encoded now."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        pieces = self.pieces[number]
        sizes = sum(piece.num_files for piece in pieces), sum(piece.num_bytes for piece in pieces)
        return ScanTask(self.scan, number, pack_task(pieces), *sizes)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches that tasks read; empty for an engine's scan without ``output``."""
        return self.scan.batch_schema()

    @property
    def num_bytes(self) -> int:
        """Approximate compressed bytes that tasks read."""
        return sum(piece.num_bytes for pieces in self.pieces for piece in pieces)

    @property
    def stored_alike(self) -> bool:
        """Whether all files that tasks read certainly store the columns with the dataset's names and types, so that an
        engine may read them with its own reader."""
        return not self.unopened and STORED_OTHERWISE not in self.facts

    async def check_versions(self, session: Session, folder: str) -> None:
        """Check that the files still have their planned versions, before a reader other than the tasks reads them.

        Args:
            session: a session of this process, which lists the files.
            folder: url of the folder of all files. There may be at most ``packing.MOST_VERSIONS`` files.

        Raises:
            ObjectChangedError: a file does not have its planned version.
        """
        runtime, versions = runtime_of(session), self.versions
        store, _ = await runtime.store(folder)
        any_changed = listing_check(store)
        if any_changed is not None and not await runtime.in_thread(partial(any_changed, versions.items())):
            return
        context = RequestContext(ReadMetrics(), purpose="list")
        urls = versions if len(versions) <= _FEW_LISTINGS else [folder]
        loop = asyncio.get_running_loop()
        lists = await results_of([loop.create_task(store.list_objects(url, context=context)) for url in urls])
        listed = {item.url: item.validator for item in itertools.chain.from_iterable(lists)}
        for url, planned in versions.items():
            found = listed.get(url)
            if planned is None or found is None or not found.same_version(planned):
                raise ObjectChangedError(
                    "the file was replaced or deleted while the scan was planned", url=url, hint="Plan again."
                )

    def encoded(self) -> list[bytes]:
        """Return the ``data`` of each task, for :func:`read_task`: for engines that send ``scan`` to workers once."""
        return [pack_task(pieces) for pieces in self.pieces]

    def one_task(self) -> bytes:
        """Return the ``data`` of one task that reads what all tasks read, for :func:`read_task`: for a plan so small
        that the planner reads it."""
        return pack_task([piece for pieces in self.pieces for piece in pieces])


@dataclass(frozen=True, kw_only=True)
class PlannedChunk:
    """The plan of consecutive files, which a worker makes with :meth:`of`, and :meth:`PlanningJobs.chunks` yields in
    the planner. Picklable. Only asyncpq reads its attributes.

    Attributes:
        pieces: what tasks read of the files, encoded.
        versions: versions of the files that tasks read, by url; None for a file whose version is not known.
        num_rows: number of rows that tasks read.
        learnt: for each column, by url, the bounds and null counts in the footers that were opened, with which later
            plans rule out files.
        facts: the union of :meth:`EngineRules.facts` of the opened files with rows to read.
        metrics: cost of the worker's planning.
    """

    pieces: tuple[TaskPiece, ...]
    versions: Mapping[str, Validator | None]
    num_rows: int
    learnt: Mapping[str, Mapping[str, Learnt]]
    facts: frozenset[str]
    metrics: ReadMetrics

    @classmethod
    async def of(
        cls,
        scan: TaskScan,
        files: Sequence[DataFile],
        session: Session,
        *,
        skips: bool,
        num_files: int,
        task_bytes: int,
    ) -> Self:
        """Plan ``files`` in a worker's session, as :func:`plan_tasks` does for few files. Call it on a worker, by
        :func:`run_on_worker`.

        Args:
            scan, skips: the arguments of :meth:`PlanningJobs.chunks`.
            files: one or more consecutive items of its ``files``.
            session: a session of the worker.
            num_files: number of all its ``files``, to which the cost of this chunk is extrapolated.
            task_bytes: as in :func:`plan_tasks`.

        Raises:
            AsyncpqError: a file cannot be opened.
        """
        state = state_of_scan(replace(scan, skips=skips), runtime_of(session), files)
        state.source = GivenFiles(files, view=View(scan.view), description=scan.description)
        request = ScanRequest(columns=scan.columns, where=scan.where)
        operation = runtime_of(session).operation("plan", scan.url)
        requests = scan.requests(state, request)
        variants = None if scan.fields is None else FieldVariants(scan.variants)
        planned: list[PlannedFile] = []
        with operation:
            found = DatasetFiles(state, request, operation, scan=True, requests=requests)
            look = partial(plan_opened, requests, variants, task_bytes)
            async with aclosing(found.described(look)) as described:
                async for parts in described:
                    planned += parts
        # the other files match as often as these
        packer = TaskPacker(task_bytes, sum(map(cost_of, planned)) * num_files // len(files))
        pieces = [piece for file in planned for piece in packer.add(file)] + [*packer.finish()]
        return cls(
            pieces=tuple([piece.encoded() for piece in pieces]),
            versions={file.url: file.validator for file in planned},
            num_rows=sum(file.num_rows for file in planned),
            learnt=state.known.learnt,
            facts=requests.facts,
            metrics=_sent(operation.metrics),
        )


class PlanningJobs(Protocol):
    """Plans very many files on workers: ``jobs`` of :func:`plan_tasks`. An engine implements it, so that workers call
    :meth:`PlannedChunk.of`; :func:`plan_tasks` uses it if more than 4096 files have to be opened."""

    def chunks(self, scan: TaskScan, files: Sequence[DataFile], *, skips: bool) -> AsyncGenerator[PlannedChunk]:
        """Divide ``files`` among workers, and yield the plans that they return, in the order of ``files``; each file is
        in one plan. ``skips``: leave out bad files, instead of failing."""


class TaskKeywords(TypedDict, total=False):
    """The keyword arguments that say how large tasks are: of :func:`plan_scan` and :func:`plan_tasks`."""

    task_bytes: int
    most_tasks: int
    parallelism: int
    work_folder: str | None


async def plan_scan(
    dataset: Dataset,
    columns: Sequence[str | int] | None = None,
    where: Predicate | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    worker: WorkerSettings | None = None,
    **limits: Unpack[TaskKeywords],
) -> ScanTasks[TaskScan]:
    """Plan a scan of a dataset for any number of workers: prune its files and pages, and pack the others into tasks.

    The tasks read the versions of the files that exist now. Their rows together are those of
    ``dataset.scan(columns, where)``.

    Args:
        columns, where, batch_size: as in :meth:`asyncpq.Dataset.scan`.
        task_bytes: approximate compressed bytes that a task reads; 64 MiB by default. A larger row group is one task.
        most_tasks: maximum number of tasks, 100,000 by default; tasks are larger if need be.
        parallelism: number of tasks that run at once; a small scan is divided into as many tasks.
        work_folder: url of a folder that workers can read, for plans of more than 64 MiB. None: ``_asyncpq_plans``
            below the dataset.
        worker: how workers open their session. None: with the options of the dataset's, storage options included.

    Raises:
        ColumnNotFoundError, PredicateTypeError, ...: the arguments do not fit the dataset's columns.
        InvalidOptionError: an argument is invalid; or the plan is too large to send, and the work folder not writable.
    """
    check_keywords("plan_scan()", limits, TaskKeywords, others=("columns", "where", "batch_size", "worker"))
    scan = await scan_of(dataset, columns, where, batch_size=batch_size, worker=worker)
    return await plan_tasks(state_of(dataset), scan, **limits)


async def scan_of(
    dataset: Dataset,
    columns: Sequence[str | int] | None = None,
    where: Predicate | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    worker: WorkerSettings | None = None,
) -> TaskScan:
    """Return what all tasks of a scan of the dataset share; the arguments are those of :func:`plan_scan`."""
    require_whole("batch_size", batch_size, 1)
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"a scan is planned of an open asyncpq.Dataset, not of {type(dataset).__name__}",
            hint="Open it: dataset = await session.open_dataset(url).",
        )
    state = state_of(dataset)
    request, output = await scan_request(dataset, columns, where)
    return TaskScan.of(
        state,
        columns=None if request.columns is None else tuple(request.columns),
        output=output,
        batch_size=batch_size,
        where=request.where,
        settings=worker_options(state.runtime) if worker is None else worker,
    )


async def plan_tasks(
    state: DatasetState,
    scan: S,
    *,
    jobs: PlanningJobs | None = None,
    may_sample: bool = False,
    opens_all: bool = False,
    **limits: Unpack[TaskKeywords],
) -> ScanTasks[S]:
    """Prune the files of a dataset for ``scan``, and pack the remaining rows into tasks. Engines without rules of their
    own call :func:`plan_scan`.

    Without a predicate, files are not opened if the listing identifies their versions.

    Args:
        state: the dataset, such as :meth:`asyncpq.distributed.EngineDataset.of`.
        scan: what all tasks share: a :class:`TaskScan`, such as an engine's :class:`asyncpq.distributed.EngineScan`.
        jobs: plans very many files on workers. None: this process plans all files.
        may_sample: open a sample of the files first; if none of it is ruled out, plan all files whole
            (``ScanTasks.is_sampled``).
        opens_all: open all files that may match, for :attr:`ScanTasks.facts`; requires ``may_sample=False``.
        limits: ``task_bytes``, ``most_tasks``, ``parallelism`` and ``work_folder``, as in :func:`plan_scan`.

    Raises:
        InvalidOptionError: a limit is invalid; or the plan is too large to send, and the work folder not writable.
        AsyncpqError: a file cannot be opened.
    """
    check_keywords("plan_tasks()", limits, TaskKeywords, others=("jobs", "may_sample", "opens_all"))
    sizes = {"task_bytes": 64 * MIB, "most_tasks": 100_000, "parallelism": 1}
    sizes.update({name: limits[name] for name in sizes if name in limits})  # type: ignore[literal-required]
    if limits.get("work_folder") is not None:
        require_class("work_folder", limits["work_folder"], str)
    for name, value in sizes.items():
        require_whole(name, value, 1)
    task_bytes = sizes["task_bytes"]
    operation = state.runtime.operation("plan", state.url)
    pieces = PieceStore(state, task_bytes, limits.get("work_folder"))
    with refresh_hint(state.source.view is View.SNAPSHOT), operation:
        planner = _FilePlanner(state, scan, operation, pieces, task_bytes)
        await planner.plan(jobs, may_sample=may_sample, opens_all=opens_all)
        groups = group_pieces(await pieces.finish(), **sizes)
    return ScanTasks(
        scan=replace(scan, variants=tuple(planner.variants.known)),
        pieces=tuple(groups),
        metrics=operation.metrics,
        index_report=planner.index_report,
        facts=planner.facts,
        num_files=pieces.num_files,
        whole_bytes=pieces.whole_bytes,
        versions=pieces.versions,
        num_rows=pieces.num_rows,
        prices=state.runtime.price_book.prices(operation.metrics.server or split_url(state.url)[0]),
        unopened=planner.num_unopened + planner.num_assumed,
        is_sampled=planner.num_assumed > 0,
    )


def _sent(metrics: ReadMetrics) -> ReadMetrics:
    """Return a copy of a worker's metrics with the counts that the planner adds to its own, without counts of files,
    which the planner has made already."""
    counts = metrics.counts()
    names = ReadMetrics.__dataclass_fields__.keys() & counts.keys() - {"files_total", "files_ruled_out"}
    return ReadMetrics(**{name: counts[name] for name in names})


def is_planned_by_workers(file: DataFile) -> bool:
    """Return whether a worker can plan the file. Files with deleted rows, or with a footer in an index, are planned in
    the planner's process."""
    return (
        file.content is None
        and file.deletes is None
        and file.unreadable is None
        and (file.entry is None or file.entry.known is None)
    )


class _FilePlanner:
    """Opens the files that may match, here or, if they are very many, on workers, and adds what they keep to the
    pieces. Statistics of their footers stay in the session's memory, for later plans of the same dataset.

    Attributes:
        variants: the ways in which files have the columns.
        facts: of the files that were opened.
        index_report: how the index ruled out files.
        num_unopened: files that were planned whole without opening them, since there is no condition.
        num_assumed: files that were planned whole, as a sample of them was.
    """

    def __init__(
        self, state: DatasetState, scan: TaskScan, operation: Operation, pieces: PieceStore, task_bytes: int
    ) -> None:
        self._request = ScanRequest(columns=scan.columns, where=scan.where)
        self._requests = scan.requests(state, self._request)
        self.variants = FieldVariants()
        self._facts: frozenset[str] = frozenset()  # of workers
        self.index_report: tuple[str, ...] = ()
        self.num_unopened = self.num_assumed = 0
        self._num_candidates = 0  # so far
        self._state = state
        self._scan = scan
        self._task_bytes = task_bytes
        self._operation = operation
        self._pieces = pieces
        num_columns = len(scan.schema)
        wanted = (
            num_columns
            if scan.columns is None
            else len({*scan.columns, *(() if scan.where is None else columns_in(scan.where))})
        )
        self._share = min(1.0, wanted / max(1, num_columns))  # of a file's bytes, estimated

    @property
    def facts(self) -> frozenset[str]:
        return self._requests.facts | self._facts

    async def plan(self, jobs: PlanningJobs | None, *, may_sample: bool, opens_all: bool) -> None:
        """Plan all files."""
        state, scan = self._state, self._scan
        memory, key = state.runtime.memory, columns_of(scan).token
        if scan.where is not None:
            state.known.recall(memory, key, scan.where, scan.schema)
        opens_all = opens_all or scan.where is not None or state.skips
        may_sample = may_sample and scan.where is not None and not state.skips
        files = self._dataset_files(state)
        async with aclosing(self._sets()) as sets:
            async for found in sets:
                await files.extend(found if opens_all else await self._plan_unopened(found))
                if len(files.candidates) > GATHERED_FILES:
                    await self._plan_candidates(files, jobs, may_sample=False)
                    may_sample = False
        await self._plan_candidates(files, jobs, may_sample=may_sample)
        self.index_report = files.report()
        state.known.remember(memory, key)

    async def _sets(self) -> AsyncGenerator[FileSet]:
        state = self._state
        if self._request.matches_nothing:
            yield FileSet(())
            return
        async with aclosing(file_sets(state.source, self._request, self._operation)) as sets:
            while True:
                async with state.runtime.deadline(state.url):
                    found = await anext(sets, None)
                if found is None:
                    return
                yield found

    async def _plan_unopened(self, found: FileSet) -> FileSet:
        """Plan those of ``found`` that need not be opened; return the others."""
        remaining = list[DataFile]()
        for file in found.files:
            planned = plan_unopened(file, self._task_bytes, self._share)
            if planned is None:
                remaining.append(file)
            else:
                await self._pieces.add(planned)
        num_planned = len(found.files) - len(remaining)
        self.num_unopened += num_planned
        self._operation.metrics.files_total += num_planned
        return found._replace(files=remaining, total=None if found.total is None else found.total - num_planned)

    async def _plan_candidates(self, files: DatasetFiles, jobs: PlanningJobs | None, *, may_sample: bool) -> None:
        """Plan the candidates of ``files``, and forget them. ``may_sample`` may be true only if there are no others."""
        candidates = files.candidates
        if not candidates:
            return
        self._num_candidates += len(candidates)
        may_sample = may_sample and _LEAST_SAMPLED <= len(candidates) <= MOST_VERSIONS
        if assumed := await self._sampled(candidates) if may_sample else []:
            self.num_assumed = len(assumed)
            for planned in assumed:
                await self._pieces.add(planned)
        elif (
            jobs is not None
            and self._num_candidates > MOST_PLANNED_HERE
            and all(map(is_planned_by_workers, candidates))
        ):
            await self._plan_on_workers(jobs, candidates)
        else:
            async for planned in self._opened(files):
                await self._pieces.add(planned)
        files.drop_candidates()

    def _dataset_files(self, state: DatasetState) -> DatasetFiles:
        return DatasetFiles(state, self._request, self._operation, scan=True, requests=self._requests)

    async def _opened(self, files: DatasetFiles) -> AsyncIterator[PlannedFile]:
        look = partial(plan_opened, self._requests, self._table_variants, self._task_bytes)
        async with aclosing(files.described(look)) as described:
            async for parts in described:
                for planned in parts:
                    yield planned

    async def _plan_on_workers(self, jobs: PlanningJobs, candidates: Sequence[DataFile]) -> None:
        state, scan = self._state, self._scan
        if (variants := self._table_variants) is not None:
            for file in candidates:
                variants.number(file.fields)  # so that all workers give them the same numbers
        sent = replace(scan, variants=tuple(self.variants.known))
        async with aclosing(jobs.chunks(sent, candidates, skips=state.skips)) as chunks:
            async for chunk in chunks:
                await self._pieces.add_packed(chunk.pieces, chunk.versions, chunk.num_rows)
                state.known.add(chunk.learnt, state.runtime.memory.max_bytes)
                self._facts |= chunk.facts
                self._operation.metrics.add_part(chunk.metrics)

    @property
    def _table_variants(self) -> FieldVariants | None:
        return None if self._scan.fields is None else self.variants

    async def _sampled(self, candidates: Sequence[DataFile]) -> list[PlannedFile]:
        """Return the plan to read all files whole, with the rows and bytes that a sample of them keeps on average.

        Empty if a file of the sample is ruled out, or a file must be opened for planning.
        """
        whole = [plan_unopened(file, self._task_bytes, self._share) for file in candidates]
        files = [file for file in whole if file is not None]
        if len(files) < len(candidates):
            return []
        chosen = [candidates[number * len(candidates) // _SAMPLE] for number in range(_SAMPLE)]
        source, metrics = self._state.source, self._operation.metrics
        total, ruled_out = metrics.files_total, metrics.files_ruled_out
        given = GivenFiles(chosen, view=source.view, description=source.description)
        kept = [planned async for planned in self._opened(self._dataset_files(replace(self._state, source=given)))]
        metrics.files_total, metrics.files_ruled_out = total, ruled_out
        if len({planned.url for planned in kept}) < _SAMPLE:
            return []
        size = sum(file.validator.size for file in chosen if file.validator is not None)
        rows, num_bytes = (
            sum(numbers) / size for numbers in zip(*[(p.num_rows, p.num_bytes) for p in kept], strict=True)
        )
        return [
            replace(file, num_rows=int(rows * file.validator.size), num_bytes=int(num_bytes * file.validator.size))
            for file in files
            if file.validator is not None
        ]


_MOST_FOOTER_BYTES: Final = 16 * KIB  # footer payload of one file in a task
_MOST_SHARED_BYTES: Final = 256 * KIB  # larger footers are not compressed to fit
_PAYLOAD_FILE: Final = 0  # id of the file in the keys of its payloads


def plan_unopened(file: DataFile, most_bytes: int, share: float) -> PlannedFile | None:
    """Return the plan to read a whole file without opening it; None if the file must be opened for planning, such as
    a file of more than ``most_bytes`` bytes. ``share`` is the estimated fraction of its bytes that is read."""
    validator, entry = file.validator, file.entry
    if validator is None or not validator.is_strong or file.content is not None or file.deletes is not None:
        return None
    if validator.size > most_bytes or file.fields is not None or (entry is not None and not entry.access.is_all):
        return None
    return PlannedFile(
        url=file.url,
        validator=validator,
        num_rows=file.num_rows or 0,
        num_bytes=int(validator.size * share),
        filtered=False,
        immutable=file.immutable,
        partition=file.partition,
    )


class FieldVariants:
    """The different ways in which files of a table have its columns, numbered from 1."""

    def __init__(self, known: Sequence[tuple[TableField, ...]] = ()) -> None:
        self.known: list[tuple[TableField, ...]] = list(known)

    def number(self, fields: tuple[TableField, ...] | None) -> int:
        """Return the number of ``fields``; add them if they are new. 0 for None: the table's own fields apply."""
        if fields is None:
            return 0
        if fields not in self.known:
            self.known.append(fields)
        return self.known.index(fields) + 1


async def plan_opened(
    requests: PlanRequests, variants: FieldVariants | None, task_bytes: int, opened: OpenedFile
) -> list[PlannedFile]:
    """Return the plans of a file that was opened and pruned: one for each run of row groups that one task may read.
    Empty if pruning excluded the whole file. ``variants``: None if tasks match the columns themselves, by name."""
    if opened.plan is None:
        return []
    version, file = opened.version, opened.file
    requests.planned(opened)
    fields = 0 if variants is None else variants.number(file.fields)
    footers: dict[tuple[int, ...], dict[int, bytes]] = {}
    planned: list[PlannedFile] = []
    for groups in _runs(opened.plan.fetch_plan.row_groups, task_bytes):
        leaves = tuple(sorted(column.chunk.leaf for column in groups[0].columns))
        if leaves not in footers:
            footers[leaves] = _footers(version, leaves)
        rows = _rows(version, groups)
        planned.append(
            PlannedFile(
                url=file.url,
                validator=None if file.content is not None else version.validator,
                rows=None if rows.num_rows == version.metadata.num_rows else rows,
                num_rows=rows.num_rows,
                num_bytes=sum(map(_num_bytes, groups)),
                filtered=groups[0].filtered,
                immutable=file.immutable,
                partition=file.partition,
                fields=fields,
                content=file.content,
                footers=footers[leaves],
                pages=_pages(groups) if footers[leaves] else {},
            )
        )
    return planned


def _runs(groups: Sequence[RowGroupPlan], task_bytes: int) -> Iterator[list[RowGroupPlan]]:
    """Divide row groups into runs of consecutive ones, of at most ``task_bytes`` bytes, whose rows either all need
    the filter or all match. A larger row group forms a run of its own."""
    run: list[RowGroupPlan] = []
    size = 0
    for group in groups:
        num_bytes = _num_bytes(group)
        if run and (group.filtered is not run[0].filtered or size + num_bytes > task_bytes):
            yield run
            run, size = [], 0
        run.append(group)
        size += num_bytes
    if run:
        yield run


def _num_bytes(group: RowGroupPlan) -> int:
    return sum(column.num_bytes for column in group.columns)


def _rows(version: FileVersion, groups: Sequence[RowGroupPlan]) -> RowRanges:
    known = version.metadata.row_groups
    return RowRanges.from_sorted(
        (start + known[group.ordinal].first_row, stop + known[group.ordinal].first_row)
        for group in groups
        for start, stop in group.rows
    )


def _footers(version: FileVersion, leaves: Sequence[int]) -> dict[int, bytes]:
    """Return the encoded entries of the footer that reading these leaves requires, keyed by leaf. Empty if they
    exceed the size limits: then the task reads the footer itself."""
    metadata = version.metadata
    chunks = {leaf: leaf_pieces(metadata, leaf) for leaf in leaves}
    if sum(len(chunk) for pieces in chunks.values() for chunk in pieces) > _MOST_FOOTER_BYTES:
        return {}
    shared = shared_pieces(metadata)
    if sum(map(len, shared)) > _MOST_SHARED_BYTES:
        return {}
    entry = SharedEntry(version.footer_start, version.size, len(metadata.schema.leaves), shared)
    footers = {SHARED: encode_shared(file_key(_PAYLOAD_FILE, SHARED), entry)}
    for leaf, pieces in chunks.items():
        footers[leaf] = encode_leaf(file_key(_PAYLOAD_FILE, leaf), LeafEntry(pieces, []))
    return footers if sum(map(len, footers.values())) <= _MOST_FOOTER_BYTES else {}


def _pages(groups: Sequence[RowGroupPlan]) -> dict[int, bytes]:
    """Return the encoded page locations of the planned row groups, keyed by leaf."""
    made: dict[int, dict[int, MadeIndex]] = {}
    for group in groups:
        for column in group.columns:
            if column.offsets is not None:
                index = MadeIndex(encode_offset_index(column.offsets), None)
                made.setdefault(column.chunk.leaf, {})[group.ordinal] = index
    return {leaf: encode_made(file_key(_PAYLOAD_FILE, leaf), indexes) for leaf, indexes in made.items()}
