"""Build indexes in tasks: the planner lists files and commits, workers read, sort and write.

The planner runs the builder of :mod:`asyncpq.indexing.build.index_builder` with :class:`TaskExecutor`, whose rounds
have the steps of ``build_steps``. An engine that moves rows between tasks, such as Spark, runs the steps itself
(:class:`BuildSteps`). For any other, :class:`StoredSteps` makes tasks of them: tasks that read files leave their pieces
in a work folder, where the tasks that write segments find them.

The processes of a local build (:func:`worker_processes`) start anew and know nothing of this one.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import shutil
import tempfile
import threading
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, Unpack

import pyarrow as pa

from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.providers import RuntimeReader
from asyncpq.distributed import build_steps
from asyncpq.distributed.build_steps import CollectFiles, CutPieces, WriteSegments, one_row, order_in
from asyncpq.distributed.worker_sessions import WorkerSettings, run_on_worker, worker_options
from asyncpq.errors import (
    InvalidOptionError,
    ObjectChangedError,
    StoreError,
    UnsupportedStoreError,
    UsageError,
    named_error,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends.folder import ObjectBackend
from asyncpq.indexing.build.build_executor import ExecutorFactory, OnFileDone
from asyncpq.indexing.build.file_rows import FileRows, IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.commits import files_in
from asyncpq.indexing.index import Index
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.indexing.kinds import IndexKind
from asyncpq.indexing.manifest import FILES
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.opening import indexes as index_opening
from asyncpq.opening.datasets import DatasetOptions
from asyncpq.opening.keywords import TargetKeywords, check_keywords
from asyncpq.options import MIB, BuildOptions, require_class
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.storage.base import RequestContext, writable
from asyncpq.storage.local import remove_empty_folders
from asyncpq.storage.threads import call_each, results_of
from asyncpq.storage.urls import absolute, safe_url
from asyncpq.tables import catalog_of
from asyncpq.typing import DatasetTarget, IndexTarget
from asyncpq.waiting import wait_futures

logger: logging.Logger = logging.getLogger(__name__)

_BUILDING = BuildOptions()
_ATTEMPTS: Final = 3  # for files that change while they are read
_PLANNER_BYTES: Final = 32 * MIB  # rows that the planner writes itself
_READS: Final = 16  # pieces that a task fetches at once


class BuildSteps(Protocol):
    """An engine's tasks for one round of an index build. A round is a set of files that are read and committed
    together. First, tasks read files into pieces (encoded index rows); then others write the pieces.

    An engine implements this class, and passes a function that returns a new object to
    :func:`asyncpq.distributed.build_in_steps` or :func:`asyncpq.distributed.refresh_in_steps`. Each method returns the
    tables that its tasks yield, as one table. The planner calls :meth:`pieces`, then :meth:`payloads` or, if all
    payloads are too large for its memory, :meth:`written`; at last :meth:`close`.
    """

    async def pieces(self, collecting: CollectFiles, tasks: Sequence[bytes]) -> pa.Table:
        """Read the files in tasks. Return all pieces: rows of the schema ``collecting.output``, whose "payload" (the
        encoded index rows) may be null unless "part" is :attr:`BuildStep.FILES_NUMBER`.

        Args:
            collecting: the :class:`BuildStep` that tasks call with batches of the columns "id" (int32, number of the
                task) and "payload" (binary, its item of ``tasks``).
            tasks: the encoded files of each task.
        """

    async def payloads(self) -> pa.Table:
        """Return the pieces of all index tables but "files": at least the columns "task", "part", "digest" and
        "payload" (the encoded index rows) of :meth:`pieces`."""

    async def written(self, cutting: CutPieces, writing: WriteSegments, num_bytes: int) -> pa.Table:
        """Write all index tables but "files" in tasks; return descriptions of the written segments.

        Args:
            cutting: the :class:`BuildStep` that tasks call with these pieces; it yields rows with the column "bin".
            writing: the :class:`BuildStep` that tasks then call with all rows of one or more bins. Its rows are the
                result.
            num_bytes: bytes of all payloads.
        """

    async def close(self) -> None:
        """Free the pieces. Called once, also after an error, last of all methods."""


@dataclass(eq=False)
class TaskExecutor:
    """A :class:`asyncpq.indexing.build.build_executor.BuildExecutor` that reads and writes in tasks.

    Attributes:
        settings: the session of the workers.
        make_steps: returns the steps of one round, which an engine runs.
        at: url of the index. None if the index has no url: then only this process can write it.
    """

    settings: WorkerSettings
    make_steps: StepsFactory
    at: str | None
    runtime: Runtime
    backend: IndexBackend
    operation: Operation
    options: BuildOptions
    rounds: int = 1

    def files_between_commits(self, num_files: int) -> int:
        """Return the number of files between commits: ``checkpoint_files``, or more for ``max_segments`` commits at
        most."""
        most = max(self.options.checkpoint_files, -(-num_files // self.options.max_segments))
        self.rounds = max(1, -(-num_files // most))
        return most

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        """Read files in tasks and write their index rows as segments, as :meth:`BuildExecutor.segments` describes."""
        for attempt in range(_ATTEMPTS):
            costs = [build_steps.cost_of(work, reads_values=bool(wanted.by_value)) for work in works]
            groups = build_steps.packed(costs, build_steps.TASK_BYTES)
            tasks = [build_steps.shipped([works[number] for number in numbers]) for numbers in groups]
            steps = self.make_steps()
            try:
                collecting = build_steps.CollectFiles(self.settings, wanted, tuple(index_tables))
                pieces = (await steps.pieces(collecting, tasks)).to_pylist()
                return await self._written(steps, pieces, works, collecting, build, on_file_done)
            except ObjectChangedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                logger.warning("%d files are read again: %s", len(works), error)
            finally:
                await steps.close()
        raise AssertionError("the last attempt returns or raises")

    async def _written(
        self,
        steps: BuildSteps,
        pieces: Sequence[Mapping[str, Any]],
        works: Sequence[FileTask],
        collecting: CollectFiles,
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        index_tables, wanted = collecting.tables, collecting.wanted
        files = [piece for piece in pieces if piece["part"] == build_steps.BuildStep.FILES_NUMBER]
        rows = [piece for piece in pieces if piece["part"] != build_steps.BuildStep.FILES_NUMBER]
        results = _file_rows(works, [build_steps.decoded(piece["payload"]) for piece in files])
        readable = RowRanges((result.work.id, result.work.id + 1) for result in results if result.num_rows is not None)
        payloads, segments = files, list[Segment]()
        if sum(piece["num_bytes"] for piece in rows) > _PLANNER_BYTES:
            segments = await self._written_by_tasks(steps, index_tables, rows, readable, build)
        elif rows:
            payloads = [*files, *(await steps.payloads()).to_pylist()]
        digests = {piece["task"]: piece["digest"] for piece in pieces}
        if any(payload["digest"] != digests.get(payload["task"]) for payload in payloads):
            raise ObjectChangedError(
                "a file changed during the build: a task that ran twice read two versions",
                hint="Build again when no files change: the build goes on where it stopped.",
            )
        # this process writes the list of files, small index tables, and empty ones
        ids = {FILES: RowRanges((result.work.id, result.work.id + 1) for result in results if not result.gone)}
        done = {FILES, *(segment.table for segment in segments)}
        ids.update((table, readable) for table in wanted.tables if table not in done)
        segments += await self._written_here(index_tables, payloads, ids, build)
        self._check_rows(index_tables, pieces, segments)
        for result in results:
            on_file_done(result, self.operation.part(safe_url(result.work.file.url), 0))
        return segments

    async def _written_by_tasks(
        self,
        steps: BuildSteps,
        index_tables: tuple[IndexTable, ...],
        pieces: Sequence[Mapping[str, Any]],
        readable: RowRanges,
        build: str,
    ) -> list[Segment]:
        """Let tasks write all index tables but "files", whose rows ``steps`` have and ``pieces`` describe; return the
        segments. Raises StoreError if the planner does not find one. ``readable``: ids of readable files."""
        num_bytes = sum(piece["num_bytes"] for piece in pieces)
        if self.at is None:
            raise UnsupportedStoreError(
                f"the index has no url and {num_bytes} bytes, of which the planner writes at most {_PLANNER_BYTES};"
                " workers can only write to a url",
                url=self.backend.description,
                hint="Put the index into a folder: at='s3://bucket/indexes/trips/'.",
            )
        ranges = build_steps.planned(pieces, self.options, builds=self.rounds)
        writing = build_steps.WriteSegments(self.settings, self.at, build, index_tables, ranges, self.options)
        table = await steps.written(build_steps.CutPieces(ranges), writing, num_bytes)
        ids = tuple(readable)
        segments = [build_steps.segment_of(index_tables[row["part"]], row["segment"], ids) for row in table.to_pylist()]
        there = await self.backend.ages("segments", operation=self.operation)
        missing = [segment.name for segment in segments if segment.name not in there]
        if missing:
            raise StoreError(
                f"the planner does not find {len(missing)} segments that workers wrote, such as {missing[0]!r}",
                url=self.backend.description,
                hint="Use a place that planner and workers share: an object store, or a disk that all of them mount.",
            )
        return segments

    async def _written_here(
        self,
        index_tables: Sequence[IndexTable],
        payloads: Sequence[Mapping[str, Any]],
        ids: Mapping[IndexTable, RowRanges],
        build: str,
    ) -> list[Segment]:
        """Write index tables in this process from encoded rows; return the segments. ``ids``: file ids by table."""
        with ExitStack() as open_sorts:
            memory = max(MIB, self.options.memory_bytes // 2 // len(ids))
            folder = build_steps.folder_of(self.options)
            sorts = {
                table: open_sorts.enter_context(ExternalSort(table.schema, memory, folder))
                for table, files in ids.items()
                if files
            }
            for payload in payloads:
                sort = sorts[index_tables[payload["part"]]]
                await self.runtime.in_thread(partial(sort.add, build_steps.decoded(payload["payload"])))
            rows = [(table, sort, ids[table]) for table, sort in sorts.items()]
            return await build_steps.write_sorted(self.runtime, self.backend, build, rows, self.options, self.operation)

    def _check_rows(
        self, index_tables: Sequence[IndexTable], pieces: Sequence[Mapping[str, Any]], segments: Sequence[Segment]
    ) -> None:
        counts = dict.fromkeys(index_tables, 0)
        for piece in pieces:
            counts[index_tables[piece["part"]]] += piece["num_rows"]
        for segment in segments:
            counts[segment.table] -= segment.num_rows
        wrong = [str(index_table) for index_table, count in counts.items() if count]
        if wrong:
            raise StoreError(
                f"rows of these index tables were lost or duplicated between tasks: {', '.join(wrong)}",
                url=self.backend.description,
                hint="Build again. Nothing was committed.",
            )


def _file_rows(works: Sequence[FileTask], tables: Sequence[pa.Table]) -> list[FileRows]:
    """Return the index rows of each file in ``works``. A file without a row in ``tables`` is marked as deleted."""
    rows: dict[int, FileRows] = {}
    by_id = {work.id: work for work in works}
    for table in tables:
        texts = table.column("problem").to_pylist()
        for number, (file, text) in enumerate(zip(files_in(table), texts, strict=True)):
            name, _, message = (text or "").partition(": ")
            rows[file.id] = FileRows(
                work=by_id[file.id],
                tables={FILES: table.slice(number, 1)},
                num_rows=file.num_rows,
                validator=file.validator,
                problem=None if text is None else named_error(name, message),
            )
    return [rows.get(work.id) or FileRows(work=work, tables={}, gone=True) for work in works]


# -- tasks for any engine -------------------------------------------------------------------------

_FILES_OF_TASK: Final = pa.schema({"id": pa.int32(), "payload": pa.binary()})
_PLACES: Final = pa.schema([*build_steps.PIECES, ("url", pa.string()), ("start", pa.int64()), ("stop", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class CollectTask:
    """Reads files of a build; leaves their index rows in the work folder. Small, picklable, without a session.

    Attributes:
        number: its place among the tasks of the round; the largest comes first and should start first.
        collecting: the step that it runs.
        files: its files, encoded.
        folder: url of the work folder, with a slash at its end.
    """

    number: int
    collecting: CollectFiles = field(repr=False)
    files: bytes = field(repr=False)
    folder: str

    def run(self) -> pa.Table:
        """Read the files. Returns the descriptions of the pieces, for the planner. It may run again."""
        settings, url = self.collecting.settings, f"{self.folder}{self.number}-{uuid.uuid4().hex}.pieces"
        payloads, described, stop = list[bytes](), list[pa.RecordBatch](), 0
        for piece in self.collecting(iter([one_row([self.number, self.files], _FILES_OF_TASK)])):
            (values,) = piece.to_pylist()
            start = stop
            if values["part"] != build_steps.BuildStep.FILES_NUMBER:
                payloads.append(values["payload"])
                stop, values["payload"] = start + len(values["payload"]), None
            described.append(one_row([*values.values(), url, start, stop], _PLACES))

        async def put(session: Session) -> None:
            store, _ = await runtime_of(session).store(url)
            context = RequestContext(ReadMetrics(), purpose="write")
            await writable(store, url).put_object(url, b"".join(payloads), context=context)

        if payloads:
            run_on_worker(settings, put)
        return pa.Table.from_batches(described, _PLACES)


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """Writes index rows as segments, from pieces in the work folder. Small, picklable, without a session.

    Attributes:
        number: its place among the tasks of the round.
        num_bytes: size of the pieces.
        cutting, writing: the steps that it runs.
        pieces: where the pieces are in the work folder.
    """

    number: int
    num_bytes: int
    cutting: CutPieces = field(repr=False)
    writing: WriteSegments = field(repr=False)
    pieces: Sequence[Mapping[str, Any]] = field(repr=False)  # rows of the schema _PLACES

    def run(self) -> pa.Table:
        """Write the segments. Returns their descriptions, for the planner. It may run again: segments count once they
        are committed."""
        moved = self.cutting(self._read())
        mine = (batch for batch in moved if batch.column("bin")[0].as_py() == self.number)
        return pa.Table.from_batches(self.writing(mine), build_steps.WRITTEN)

    def _read(self) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([build_steps.PIECES.field(name) for name in build_steps.CUT])
        for start in range(0, len(self.pieces), _READS):
            some = self.pieces[start : start + _READS]
            payloads = run_on_worker(self.writing.settings, partial(_payloads, some))
            for piece, payload in zip(some, payloads, strict=True):
                yield one_row([payload if name == "payload" else piece[name] for name in build_steps.CUT], schema)


#: A task of a build: ``run()`` in any process gives what the planner needs of it.
BuildTask: TypeAlias = CollectTask | WriteTask

#: Runs one task on a worker, and returns what its ``run()`` returns.
TaskRunner: TypeAlias = Callable[[BuildTask], Awaitable[pa.Table]]


async def _payloads(pieces: Sequence[Mapping[str, Any]], session: Session) -> list[bytes]:
    return await _read_pieces(runtime_of(session), pieces)


async def _read_pieces(runtime: Runtime, pieces: Sequence[Mapping[str, Any]]) -> list[bytes]:
    operation = runtime.operation("build", safe_url(pieces[0]["url"]))
    with operation:
        reader = RuntimeReader(runtime, operation)
        return await results_of([reader.read_bytes(piece["url"], piece["start"], piece["stop"]) for piece in pieces])


@dataclass(eq=False)
class StoredSteps:
    """Runs the steps of a round (:class:`BuildSteps`) as tasks that leave their pieces in the folder ``folder``."""

    run: TaskRunner
    runtime: Runtime
    folder: str
    _places: pa.Table = field(default_factory=_PLACES.empty_table)

    async def pieces(self, collecting: CollectFiles, tasks: Sequence[bytes]) -> pa.Table:
        self._places = await self._ran(
            [
                CollectTask(number=number, collecting=collecting, files=files, folder=self.folder)
                for number, files in enumerate(tasks)
            ]
        )
        return self._places

    async def payloads(self) -> pa.Table:
        stored = self._stored()
        payloads = await _read_pieces(self.runtime, stored) if stored else []
        return pa.Table.from_pylist(
            [piece | {"payload": payload} for piece, payload in zip(stored, payloads, strict=True)], _PLACES
        )

    async def written(self, cutting: CutPieces, writing: WriteSegments, num_bytes: int) -> pa.Table:
        ranges, bins = writing.ranges, dict[int, list[Mapping[str, Any]]]()
        for piece in self._stored():
            cuts, first = ranges.cuts[piece["part"]], ranges.first[piece["part"]]
            low, high = (first + bisect_left(cuts, order_in(piece[end])) for end in ("first", "last"))
            for number in dict.fromkeys(ranges.bins[low : high + 1]):
                bins.setdefault(number, []).append(piece)
        return await self._ran(
            [
                WriteTask(
                    number=number,
                    num_bytes=sum(piece["stop"] - piece["start"] for piece in pieces),
                    cutting=cutting,
                    writing=writing,
                    pieces=pieces,
                )
                for number, pieces in sorted(bins.items())
            ]
        )

    async def close(self) -> None:
        """Delete the pieces, those of attempts that failed too."""
        await remove_folder(self.runtime, self.folder)

    def _stored(self) -> list[dict[str, Any]]:
        return [piece for piece in self._places.to_pylist() if piece["part"] != build_steps.BuildStep.FILES_NUMBER]

    async def _ran(self, tasks: Sequence[BuildTask]) -> pa.Table:
        """Run the tasks; the first error ends the others."""
        return pa.concat_tables(await call_each(self.run, tasks, at_once=len(tasks)))


async def remove_folder(runtime: Runtime, folder: str) -> None:
    """Delete the objects below the url ``folder``, a work folder of tasks. Errors of the store are only logged."""
    context = RequestContext(ReadMetrics(), purpose="list")
    try:
        store = writable((await runtime.store(folder))[0], folder)
        urls = [item.url for item in await store.list_objects(folder, context=context)]
        await store.delete_objects(urls, context=context.step("write", context.round + 1))
        await runtime.in_thread(partial(remove_empty_folders, folder))
    except StoreError as error:
        logger.warning("pieces of tasks could not be removed from %s: %s", safe_url(folder), error)


class TaskBuildKeywords(TargetKeywords, total=False):
    """The keyword arguments of :func:`build_index`, those of the dataset included."""

    at: IndexTarget | None
    building: BuildOptions
    work_folder: str | None
    worker: WorkerSettings | None


async def build_index(
    session: Session,
    target: DatasetTarget,
    kinds: Sequence[IndexKind],
    run: TaskRunner,
    **options: Unpack[TaskBuildKeywords],
) -> Index:
    """Build an index as :meth:`asyncpq.Session.build_index` does; tasks read the files and write the index.

    The planner passes tasks to ``run``, all of a round at once: first those that read files, then those that write
    index rows. It commits after each round. An interrupted build continues; an existing index is refreshed.

    Args:
        target, kinds, options: as in :meth:`asyncpq.Session.build_index`.
        run: a function that runs ``task.run()`` on a worker and returns an awaitable of its result, such as ``lambda
            task: client.submit(call, task)`` with Dask.
        at: url of the index, which workers can write. None: ``_asyncpq/`` below the prefix.
        building: limits of the build; ``memory_bytes`` is the limit of each task, and of the planner.
        work_folder: url of a folder that workers can write, for index rows that go from task to task. None: below the
            index's folder.
        worker: how workers open their session. None: with the options of ``session``, storage options included.

    Raises:
        InvalidOptionError: ``at`` is not a folder's url, and ``work_folder`` is None.
        AsyncpqError: as :meth:`asyncpq.Session.build_index`. Errors of ``run`` pass unchanged.
    """
    check_keywords("build_index()", options, TaskBuildKeywords, others=("kinds", "run"))
    given: Any = dict(options)
    at, building = given.pop("at", None), given.pop("building", _BUILDING)
    work_folder, worker = given.pop("work_folder", None), given.pop("worker", None)
    at = _place(target, at, given)
    url = at if isinstance(at, str) else None

    def executor(runtime: Runtime, backend: IndexBackend, operation: Operation, building: BuildOptions) -> TaskExecutor:
        folder = work_folder
        if folder is None:
            if url is None or not isinstance(backend, ObjectBackend):
                raise InvalidOptionError(
                    "work_folder must be given, since the index is in no folder",
                    option="work_folder",
                    url=backend.description,
                    hint="Pass the url of a folder that the workers reach: work_folder='s3://bucket/work/'.",
                )
            folder = url
        steps = partial(StoredSteps, run, runtime_of(session), f"{folder.rstrip('/')}/pieces-{uuid.uuid4().hex}/")
        # `runtime` may have a table's own storage options
        own = {**runtime.storage_options, **runtime_of(session).storage_options}
        settings = replace(worker_options(runtime), storage_options=own) if worker is None else worker
        return TaskExecutor(settings, steps, url, runtime, backend, operation, building)

    return await index_opening.build(
        runtime_of(session), absolute(target), kinds, at, DatasetOptions(**given), building, executor
    )


#: Makes the steps of one round, which an engine runs.
StepsFactory: TypeAlias = Callable[[], BuildSteps]


async def build_in_steps(
    session: Session,
    target: DatasetTarget,
    kinds: Sequence[IndexKind],
    steps: StepsFactory,
    worker: WorkerSettings,
    *,
    at: IndexTarget | None = None,
    building: BuildOptions = _BUILDING,
    **options: Unpack[TargetKeywords],
) -> Index:
    """Build an index as :func:`build_index` does, for an engine such as Spark that moves rows between its tasks itself.

    Args:
        target, kinds, at, options: as in :meth:`asyncpq.Session.build_index`.
        steps: a function without arguments, called for each round of the build, that returns a new
            :class:`asyncpq.distributed.BuildSteps`.
        worker: how workers open their session.
        building: limits of the build; ``memory_bytes`` is the limit of each task, and of the planner.

    Raises:
        AsyncpqError: as :meth:`asyncpq.Session.build_index`. Errors of ``steps`` pass unchanged.
    """
    place, executor = _in_steps(_place(target, at, options), steps, worker)
    return await index_opening.build(
        runtime_of(session), absolute(target), kinds, place, DatasetOptions(**options), building, executor
    )


async def refresh_in_steps(
    session: Session,
    at: IndexTarget,
    steps: StepsFactory,
    worker: WorkerSettings,
    *,
    files: Sequence[str] | None = None,
    table: DatasetTarget | None = None,
    building: BuildOptions = _BUILDING,
    **options: Unpack[TargetKeywords],
) -> Index:
    """Refresh an index as :meth:`asyncpq.indexing.Index.refresh` does, and return it.

    Args:
        at, steps, worker, building: as in :func:`build_in_steps`.
        files: as in :meth:`asyncpq.indexing.Index.refresh`.
        table, options: the table of the index, as ``target`` of :meth:`asyncpq.Session.open_dataset`, with its
            arguments ``format`` and ``version``; None for an index of plain files.

    Raises:
        ObjectNotFoundError: there is no index at the place.
        StoreError: a store failed. The next refresh continues from what was committed.
    """
    place, executor = _in_steps(absolute(at), steps, worker)
    index = await index_opening.open_existing(
        runtime_of(session), place, table, DatasetOptions(**options), building, None, executor
    )
    await index.refresh(files)
    return index


def _place(target: DatasetTarget, at: IndexTarget | None, options: TargetKeywords) -> Any:
    """Return the place of an index; if ``at`` is None, that below the prefix ``target``."""
    if at is None:
        named = absolute(target)
        is_table = catalog_of(named, options.get("format"), options.get("version")) is not None
        at = index_opening.place_below(None if is_table else parse_target(named))
    return absolute(at)


def _in_steps(place: Any, steps: StepsFactory, worker: WorkerSettings) -> tuple[Any, ExecutorFactory]:
    return place, partial(TaskExecutor, worker, steps, place if isinstance(place, str) else None)


async def build_in_processes(
    session: Session,
    target: DatasetTarget,
    kinds: Sequence[IndexKind],
    workers: int,
    *,
    at: IndexTarget | None,
    building: BuildOptions,
    options: TargetKeywords,
) -> Index:
    """Build an index in ``workers`` processes of this host: :meth:`asyncpq.Session.build_index` has the arguments."""
    async with own_folder(building) as (folder, own), worker_processes(workers) as run:
        return await build_index(session, target, kinds, run, at=at, building=own, work_folder=folder, **options)


@asynccontextmanager
async def own_folder(building: BuildOptions) -> AsyncIterator[tuple[str, BuildOptions]]:
    """Yield a new local folder, and the options with it: a worker that is killed leaves its temporary files. It is
    removed with the block. Raises InvalidOptionError if ``building`` are no such options."""
    require_class("building", building, BuildOptions)
    folder = await asyncio.to_thread(tempfile.mkdtemp, dir=building.folder)
    try:
        yield folder, replace(building, folder=folder)
    finally:
        # not in a thread, since none starts at exit; tasks have removed their pieces already
        shutil.rmtree(folder, ignore_errors=True)


class _Task(Protocol):
    def run(self) -> Any: ...


#: Runs a task in a process; its result is that of ``task.run()``.
RunsTask: TypeAlias = Callable[[Any], Awaitable[Any]]

_GRACE_S: Final = 3.0  # for tasks under way when their block is cancelled; they are killed then
_pools: set[ProcessPoolExecutor] = set()  # whose blocks are entered


@asynccontextmanager
async def worker_processes(count: int) -> AsyncIterator[RunsTask]:
    """Yield a function that runs a task in one of ``count`` processes and awaits its result. They end with the block,
    soon also if it is cancelled, or are killed at the end of this process.

    Raises:
        UsageError: a process ended by itself: for lack of memory, or since it cannot import the script.
    """
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    _pools.add(pool)

    async def run(task: _Task) -> Any:
        try:
            return await asyncio.wrap_future(pool.submit(_call, task))
        except BrokenProcessPool as error:
            raise UsageError(
                "a worker process ended before its task",
                hint="A script needs `if __name__ == '__main__':` around its code, since workers import it. For lack of"
                " memory, take fewer workers.",
            ) from error

    try:
        yield run
    finally:
        ending = asyncio.ensure_future(asyncio.to_thread(pool.shutdown, cancel_futures=True))
        await wait_futures([ending], timeout=_GRACE_S)
        if not ending.done():
            _kill(pool)
        try:
            await ending
        except RuntimeError:  # at exit no thread starts, and the workers were killed
            pool.shutdown(wait=False, cancel_futures=True)
        _pools.discard(pool)


def _call(task: _Task) -> Any:
    return task.run()


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):  # noqa: SLF001  # public from Python 3.14 on: kill_workers
        process.kill()


def _kill_workers() -> None:
    """Kill the workers of all blocks, for whose tasks the end of this process would wait."""
    for pool in list(_pools):
        _kill(pool)


# before concurrent.futures waits for all tasks; functions of `atexit` run after that
threading._register_atexit(_kill_workers)  # type: ignore[attr-defined]  # noqa: SLF001
