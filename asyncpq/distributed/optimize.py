"""Rewrite a dataset, sorted, into a new lake of which lookups read little: in tasks, with one commit at the end.

:func:`plan_optimize` checks the target and plans a scan of the source. One :class:`RewriteTask` may read, sort and
write all rows. Several share them: each :class:`SortTask` leaves sorted pieces in a work folder, which are cut into
ranges of rows, and a :class:`RewriteTask` writes each range. Rows are ordered by key, then by their place in the
source, so ranges also divide the rows of a frequent key.

Each task reads back the files that it wrote: their :class:`RowDigest` must be that of the sorted rows. The numbers of
the rows of all tasks show that each row was sorted and written once. An engine that sorts rows itself, as Spark does,
checks the target with :meth:`asyncpq.distributed.LakeWrite.check_folder`, and writes with that class.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.dataset import state_of
from asyncpq.datasets.model import View
from asyncpq.datasets.providers import RuntimeReader
from asyncpq.datasets.schemas import output_schema
from asyncpq.distributed.build_tasks import own_folder, remove_folder, worker_processes
from asyncpq.distributed.lake_writes import (
    LakeWrite,
    RewriteResult,
    SourceFiles,
    WrittenPart,
    discard_job,
    job_folder,
    sent_part,
    timed,
    write_in,
)
from asyncpq.distributed.row_order import RowOrder, ZOrder, sampled_z_order, writable_schema
from asyncpq.distributed.scan_planning import ScanTask, plan_scan
from asyncpq.distributed.scan_tasks import open_task
from asyncpq.distributed.worker_sessions import WorkerSettings, plan_again_hint, run_on_worker, worker_options
from asyncpq.errors import CorruptFileError, InvalidOptionError
from asyncpq.events import Operation
from asyncpq.indexing.build.build_executor import from_thread
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.kinds import check_kinds
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.opening.datasets import DatasetOptions
from asyncpq.opening.keywords import RewriteKeywords, check_keywords
from asyncpq.opening.targets import open_target
from asyncpq.options import MIB, BuildOptions, one_of, require_class, require_whole
from asyncpq.scan.request import column_names, names_alone
from asyncpq.session import Session
from asyncpq.storage.base import RequestContext, writable
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.typing import DatasetTarget
from asyncpq.writing import WriteOptions, folder_url

_BATCH_ROWS: Final = 1 << 16
#: Bytes of a sorted piece, in memory: what a range reads for nothing at each of its ends.
_PIECE_BYTES: Final = 4 * MIB
#: Rows of fewer bytes are not divided among tasks.
_LEAST_RANGE_BYTES: Final = 16 * MIB
_TASK_BYTES: Final = 64 * MIB  # of a task that sorts, about
_ALL_BYTES: Final = 1 << 60
_READS: Final = 8  # pieces that a task fetches at once
_NUMBER_BITS: Final = 40  # of a row's number in its task
_MASK: Final = (1 << 64) - 1
_IPC: Final = pa.ipc.IpcWriteOptions(compression="lz4")

#: A row's place in the order: its key, and its number.
Place: TypeAlias = tuple[bytes, int]
#: Is told of a step of a rewrite: its name, rows done, and of how many.
Watcher: TypeAlias = Callable[[str, int, int | None], None]


def _unwatched(step: str, done: int, total: int | None) -> None:
    """Ignore the step."""


class Tally(NamedTuple):
    """A number of rows, and the sum of their numbers modulo 2^64. Equal sums show that each row came once."""

    rows: int = 0
    numbers: int = 0

    def plus(self, numbers: pa.Array) -> Tally:
        """Return the tally with more rows, which have these numbers."""
        return Tally(self.rows + len(numbers), (self.numbers + (pc.sum(numbers).as_py() or 0)) & _MASK)

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the sum of ``tallies``, at least one."""
        rows, numbers = zip(*tallies, strict=True)
        return cls(sum(rows), sum(numbers) & _MASK)


class Piece(NamedTuple):
    """Sorted rows in the work folder: bytes ``start`` to ``stop`` of the object at ``url``."""

    url: str
    start: int
    stop: int
    first: Place
    last: Place


class SortedPieces(NamedTuple):
    """The result of a :class:`SortTask`: counts of its rows, and the sorted pieces that it wrote."""

    tally: Tally
    pieces: tuple[Piece, ...]


class RewrittenRows(NamedTuple):
    """What a :class:`RewriteTask` gives back: its files, whose rows were verified."""

    tally: Tally
    part: WrittenPart


@dataclass(frozen=True, kw_only=True)
class RowSorting:
    """What all tasks of a rewrite share: the order of the rows, and the limits of sorting. Picklable."""

    order: RowOrder
    z_order: ZOrder | None
    building: BuildOptions

    @property
    def schema(self) -> pa.Schema:
        """The sorted columns: key, number, then the rows' own. These are numbered, since their names may be "key"."""
        own = [pa.field(f"c{at}", column.type) for at, column in enumerate(self.order.schema)]
        return pa.schema([("key", pa.binary()), ("row", pa.int64()), *own])

    def add(self, batch: pa.RecordBatch, numbers: pa.Array, sort: ExternalSort) -> None:
        """Add rows of the source, which have these numbers, to the sort."""
        plain = batch.cast(self.order.schema)
        columns = [self.order.row_keys(plain, self.z_order), numbers, *plain.columns]
        sort.add(pa.Table.from_arrays(columns, schema=self.schema))

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a sorted batch without the two columns that the sort adds before those of the files."""
        return pa.RecordBatch.from_arrays(batch.columns[2:], schema=self.order.schema)

    @contextmanager
    def sort(self) -> Iterator[ExternalSort]:
        """Yield a sort of such rows. Its local files are removed at the end of the ``async with`` block."""
        folder = self.building.folder or tempfile.gettempdir()
        with ExternalSort(self.schema, self.building.memory_bytes, Path(folder)) as sort:
            yield sort

    async def add_scanned(
        self, runtime: Runtime, scans: Sequence[ScanTask], sort: ExternalSort, watch: Watcher
    ) -> Tally:
        """Add the rows of scan tasks to the sort, which are read with ``runtime``."""
        tally = Tally()
        for scan in scans:
            first = scan.number << _NUMBER_BITS
            with plan_again_hint("call optimize() or plan_optimize() again.", scan.scan.view == View.SNAPSHOT):
                async with await open_task(scan.scan, scan.data, runtime) as batches:
                    async for batch in batches:
                        numbers = pa.array(range(first, first + len(batch)), pa.int64())
                        first += len(batch)
                        await runtime.in_thread(partial(self.add, batch, numbers, sort))
                        tally = tally.plus(numbers)
                        watch("read and sort", tally.rows, None)
        return tally


@dataclass(frozen=True, kw_only=True)
class SortTask:
    """Reads and sorts rows of the source; leaves them in the work folder. Small, picklable, without a session.

    Attributes:
        number: its place among the tasks.
        num_bytes: approximate compressed bytes to read.
    """

    number: int
    num_bytes: int
    scan: ScanTask = field(repr=False)
    sorting: RowSorting = field(repr=False)
    folder: str  # url of the work folder, with a slash at its end

    def run(self) -> SortedPieces:
        """Sort the rows. Returns descriptions of the pieces, for the planner. It may run again, or twice at once."""
        return run_on_worker(self.scan.scan.settings, self.run_in)

    async def run_in(self, session: Session) -> SortedPieces:
        """Run in a session of this process."""
        url = f"{self.folder}{self.number}-{uuid.uuid4().hex}.pieces"
        runtime, pieces, stop = runtime_of(session), list[Piece](), 0
        with self.sorting.sort() as sort:
            tally = await self.sorting.add_scanned(runtime, [self.scan], sort, _unwatched)
            if not tally.rows:
                return SortedPieces(tally, ())

            async def encoded() -> AsyncGenerator[bytes]:
                nonlocal stop
                async for rows in from_thread(runtime, _in_pieces(await runtime.in_thread(sort.batches))):
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, rows.schema, options=_IPC) as writer:
                        writer.write(rows)
                    data = sink.getvalue().to_pybytes()
                    pieces.append(Piece(url, stop, stop + len(data), _place(rows, 0), _place(rows, len(rows) - 1)))
                    stop += len(data)
                    yield data

            store = writable((await runtime.store(url))[0], safe_url(url))
            async with aclosing(encoded()) as data:
                await store.create_stream(url, data, context=RequestContext(ReadMetrics(), purpose="write"))
        return SortedPieces(tally, tuple(pieces))


def _in_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PIECE_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _place(rows: pa.RecordBatch, at: int) -> Place:
    return rows.column("key")[at].as_py(), rows.column("row")[at].as_py()


@dataclass(frozen=True, kw_only=True)
class RewriteTask:
    """Writes a range of the sorted rows as files, and verifies them. Small, picklable, without a session.

    Attributes:
        number: its place among the tasks, in the order of the rows.
        num_bytes: approximate bytes to read.
        write: the write of all tasks.
    """

    number: int
    num_bytes: int
    write: LakeWrite = field(repr=False)
    sorting: RowSorting = field(repr=False)
    scans: tuple[ScanTask, ...] = field(default=(), repr=False)  # all rows of these, or those of the pieces
    pieces: tuple[Piece, ...] = field(default=(), repr=False)
    begin: Place | None = None  # of the range in the pieces; None: no bound
    end: Place | None = None

    def run(self) -> RewrittenRows:
        """Write the files, and return their descriptions. It may run again: the commit takes the files of one attempt.

        Raises:
            CorruptFileError: the files differ from the sorted rows.
        """
        rows = run_on_worker(self.write.settings, self.run_in)
        return rows._replace(part=sent_part(rows.part))

    async def run_in(
        self, session: Session, watch: Watcher = _unwatched, source: Runtime | None = None
    ) -> RewrittenRows:
        """Run in a session of this process. The files have their footers, which :meth:`run` only has of few.

        ``source``: what reads the scans; None: the session's.
        """
        digest = RowDigest(self.sorting.order.schema)
        with self.sorting.sort() as sort:
            tally = await (
                self.sorting.add_scanned(source or runtime_of(session), self.scans, sort, watch)
                if self.scans
                else self._add_pieces(session, sort)
            )
            written = Tally()

            def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
                nonlocal written
                written = written.plus(batch.column("row"))
                rows = self.sorting.plain(batch)
                digest.update(rows)
                return rows

            async def batches() -> AsyncIterator[pa.RecordBatch]:
                rows = await runtime_of(session).in_thread(sort.batches)
                async for batch in from_thread(runtime_of(session), map(plain, rows)):
                    yield batch
                    watch("write", written.rows, tally.rows)

            part = await write_in(self.write, session, batches(), self.number)
        if written != tally:
            raise differs("the sorted rows", self.write.folder)
        await self._verify(session, part, digest, watch)
        return RewrittenRows(tally, part)

    async def _add_pieces(self, session: Session, sort: ExternalSort) -> Tally:
        runtime, tally = runtime_of(session), Tally()
        operation = runtime.operation("optimize", safe_url(self.write.folder))
        with operation:
            reader = RuntimeReader(runtime, operation)
            for at in range(0, len(self.pieces), _READS):
                some = self.pieces[at : at + _READS]
                for data in await call_each(lambda piece: reader.read_bytes(*piece[:3]), some):
                    rows = await runtime.in_thread(partial(self._within, data))
                    await runtime.in_thread(partial(sort.add, rows))
                    tally = tally.plus(rows.column("row"))
        return tally

    def _within(self, data: bytes) -> pa.Table:
        """Return the rows of a piece that are in the range."""
        (batch,) = pa.ipc.open_stream(data)
        place = partial(_place, batch)
        begin, end = (
            default if bound is None else bisect_left(range(len(batch)), bound, key=place)
            for bound, default in ((self.begin, 0), (self.end, len(batch)))
        )
        return pa.Table.from_batches([batch.slice(begin, end - begin)])

    async def _verify(self, session: Session, part: WrittenPart, written: RowDigest, watch: Watcher) -> None:
        """Read the files back. Raises CorruptFileError if their rows differ from ``written``."""
        found = RowDigest(self.sorting.order.schema)
        if part.files:
            urls = [self.write.folder + file.path for file in part.files]
            dataset = await open_target(runtime_of(session), urls, DatasetOptions(partitioning=None), None, None)
            async with dataset.scan(batch_size=_BATCH_ROWS) as scan:
                async for batch in scan:
                    await runtime_of(session).in_thread(partial(found.update, batch))
                    watch("verify", found.rows, written.rows)
        if found.rows != written.rows or found.hexdigest() != written.hexdigest():
            raise differs("the written files", self.write.folder)


#: Runs one task on a worker, and returns what its ``run()`` returns. A runner that is cancelled should end the task, or
#: wait for its end, before it raises: what a task writes later is left for a vacuum.
RewriteRunner: TypeAlias = Callable[[Any], Awaitable[Any]]


def differs(what: str, folder: str) -> CorruptFileError:
    """Return the error of a rewrite whose rows (``what``) are not those of the source."""
    hint = "Nothing was committed. Report this with the types of the columns."
    return CorruptFileError(f"{what} differ from the source", url=safe_url(folder), hint=hint)


@dataclass(frozen=True, kw_only=True)
class LakeRewrite:
    """The plan of one rewrite, made by :func:`plan_optimize`: the scan of its source, the order of its rows, and the
    write of its files.

    Attributes:
        source: what reads the source in this process.
        write: the write of all tasks.
        sorting: the order of the rows, and how tasks sort them.
        scans: the tasks of the scan of the source.
        parallelism: number of tasks that run at once.
        work_folder: url of the folder for rows on their way.
        bytes_before: size of the source's files; None if the store does not tell it.
        seconds: duration of each step in seconds, by its name.
    """

    source: Runtime = field(repr=False)
    write: LakeWrite
    sorting: RowSorting = field(repr=False)
    scans: tuple[ScanTask, ...] = field(repr=False)
    parallelism: int
    work_folder: str
    bytes_before: int | None
    seconds: dict[str, float] = field(default_factory=dict, repr=False)

    def tasks(self) -> list[SortTask] | list[RewriteTask]:
        """Return the first tasks: those that sort, or one that does all, if no others would run beside it."""
        if self.parallelism == 1 or len(self.scans) <= 1:
            size = sum(scan.num_bytes for scan in self.scans)
            return [RewriteTask(number=0, num_bytes=size, write=self.write, sorting=self.sorting, scans=self.scans)]
        return [
            SortTask(
                number=scan.number, num_bytes=scan.num_bytes, scan=scan, sorting=self.sorting, folder=self.work_folder
            )
            for scan in self.scans
        ]

    def write_tasks(self, results: Sequence[SortedPieces]) -> list[RewriteTask]:
        """Return the tasks that write what the tasks that sort have left, in ranges of about equal size."""
        pieces = [piece for rows in results for piece in rows.pieces]
        size = sum(piece.stop - piece.start for piece in pieces)
        most = max(1, min(self.parallelism, size // _LEAST_RANGE_BYTES))
        count = max(most, self.write.num_tasks(size, self.parallelism))
        bounds = [None, *_cuts(pieces, count), None]
        return [self._write_task(number, pieces, begin, end) for number, (begin, end) in enumerate(pairwise(bounds))]

    def _write_task(self, number: int, pieces: Sequence[Piece], begin: Place | None, end: Place | None) -> RewriteTask:
        own = [
            piece for piece in pieces if (begin is None or piece.last >= begin) and (end is None or piece.first < end)
        ]
        return RewriteTask(
            number=number,
            num_bytes=sum(piece.stop - piece.start for piece in own),
            write=self.write,
            sorting=self.sorting,
            pieces=tuple(own),
            begin=begin,
            end=end,
        )

    async def run(self, session: Session, run: RewriteRunner) -> RewriteResult:
        """Let tasks do the rewrite, and commit it.

        Args:
            run: awaits the result of ``task.run()`` on a worker. It is called for all tasks of a step at once. The
                first error cancels the others; what these write after their ``run`` has raised is left for a vacuum.

        Raises:
            CorruptFileError: the files differ from the source.
            InvalidOptionError: others write into the target.
            AsyncpqError: of the source or the target. Whatever is raised, the files are deleted if possible, unless
                they may be committed. Errors of ``run`` pass unchanged.
        """
        operation = runtime_of(session).operation("optimize", safe_url(self.write.folder))
        with operation:
            return await self.run_watched(session, run, operation)

    async def run_watched(self, session: Session, run: RewriteRunner, operation: Operation) -> RewriteResult:
        """Run as :meth:`run` does, as a part of ``operation``."""
        try:
            results = await self._results(session, run, operation)
        except BaseException:
            await self.write.discard(session)
            raise
        return await self.write.commit_rewrite(
            session,
            [rows.part for rows in results],
            rows=sum(rows.tally.rows for rows in results),
            bytes_before=self.bytes_before,
            seconds=self.seconds,
            building=self.sorting.building,
        )

    async def _results(self, session: Session, run: RewriteRunner, operation: Operation) -> list[RewrittenRows]:
        first = self.tasks()
        if len(first) == 1 and isinstance(first[0], RewriteTask):
            return [await run(first[0])]
        try:
            with timed(self.seconds, "read and sort"):
                results = await self._counted(run, first, operation, "read and sort", None)
            tally = Tally.total([rows.tally for rows in results])
            with timed(self.seconds, "write and verify"):
                tasks = self.write_tasks(results)
                parts = await self._counted(run, tasks, operation, "write and verify", tally.rows)
        finally:
            await remove_folder(runtime_of(session), self.work_folder)
        if tally != Tally.total([rows.tally for rows in parts]):
            raise differs("the sorted rows", self.write.folder)
        return parts

    async def _counted(
        self, run: RewriteRunner, tasks: Sequence[Any], operation: Operation, step: str, total: int | None
    ) -> list[Any]:
        """Run the tasks; the first error ends the others."""
        done = 0

        async def one(task: Any) -> Any:
            nonlocal done
            result = await run(task)
            done += result.tally.rows
            operation.progress(step, done, total, "rows")
            return result

        return await call_each(one, tasks, at_once=len(tasks))


def _cuts(pieces: Sequence[Piece], count: int) -> list[Place]:
    """Return at most ``count - 1`` places that divide the rows of the pieces into ranges of about equal size."""
    ordered = sorted(pieces, key=lambda piece: piece.first)
    total, seen, cuts = sum(piece.stop - piece.start for piece in pieces), 0, list[Place]()
    for piece in ordered:
        is_due = seen * count >= total * (len(cuts) + 1) and len(cuts) < count - 1
        if is_due and piece.first > (cuts[-1] if cuts else ordered[0].first):
            cuts.append(piece.first)
        seen += piece.stop - piece.start
    return cuts


# -- verifying ------------------------------------------------------------------------------------


_BLOCK_ROWS: Final = 1 << 16


class RowDigest:
    """Hashes rows as they come; :meth:`hexdigest` is the same for the same rows in the same order.

    Rows are hashed in blocks of equal length, so how they are divided into batches does not matter. Values are hashed
    as Arrow stores them; for nulls, the bytes in their slots are ignored.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._hash = hashlib.blake2b(digest_size=16)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.rows: int = 0  # number of all rows

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next rows, whose columns must be those of the schema."""
        batch = batch.cast(self._schema)
        self.rows += batch.num_rows
        while batch.num_rows:
            taken = batch.slice(0, _BLOCK_ROWS - self._held_rows)
            batch = batch.slice(taken.num_rows)
            self._held.append(taken)
            self._held_rows += taken.num_rows
            if self._held_rows == _BLOCK_ROWS:
                self._end_block()

    def hexdigest(self) -> str:
        """Return the digest of all rows added so far, in hexadecimal digits."""
        if self._held:
            self._end_block()
        return self._hash.hexdigest()

    def _end_block(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        for column in table.columns:
            for chunk in column.chunks:  # more than one where text exceeds 2 GiB
                for data in _canonical(chunk):
                    self._hash.update(len(data).to_bytes(8, "little"))
                    self._hash.update(data)
        self._held, self._held_rows = [], 0


def _canonical(array: pa.Array) -> Iterator[Any]:
    """Yield buffers with the content of ``array`` that are the same for equal arrays, whatever their offsets and
    null slots."""
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from _canonical(array.storage)
        return
    if pa.types.is_dictionary(dtype):
        yield from _canonical(array.dictionary_decode())
        return
    if pa.types.is_map(dtype):
        array = array.cast(pa.list_(pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])))
        dtype = array.type
    yield _bytes(array.is_valid().cast(pa.uint8()))
    if pa.types.is_null(dtype):
        return
    if pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from _canonical(child)
    elif pa.types.is_nested(dtype):
        yield _bytes(pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0))
        yield from _canonical(array.flatten())
    elif pa.types.is_boolean(dtype):
        yield _bytes(pc.fill_null(array, False).cast(pa.uint8()))
    elif _is_bytes(dtype):
        values = pc.fill_null(array.cast(pa.large_binary()), b"")
        yield _bytes(pc.binary_length(values))
        start, stop = values.buffers()[1][values.offset * 8 :], len(values)
        ends = memoryview(start).cast("q")
        data = values.buffers()[2]
        yield b"" if data is None else memoryview(data)[ends[0] : ends[stop]]
    else:
        yield _bytes(array if not array.null_count else pc.if_else(array.is_valid(), array, _zero(dtype)))


def _is_bytes(dtype: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(dtype) for test in (*tests, *more)) and not pa.types.is_decimal(dtype)


def _zero(dtype: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(dtype, 1, [None, pa.py_buffer(bytes(dtype.bit_width // 8))])[0]


def _bytes(array: pa.Array) -> memoryview:
    """Return the bytes of an array of fixed width."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    return memoryview(b"" if data is None else data)[array.offset * width : (array.offset + len(array)) * width]


# -- planning -------------------------------------------------------------------------------------


async def plan_optimize(
    session: Session,
    source: DatasetTarget,
    target: str,
    sort_by: Sequence[str] | str = (),
    *,
    parallelism: int = 1,
    work_folder: str | None = None,
    worker: WorkerSettings | None = None,
    **options: Unpack[RewriteKeywords],
) -> LakeRewrite:
    """Plan :meth:`asyncpq.Session.optimize` in tasks: rows, sorted, become files of which lookups read little.

    ``await plan.run(session, run)`` runs the plan's tasks on workers, with ``run`` as in :func:`build_index`, commits
    all files at once, and returns a :class:`asyncpq.RewriteResult`.

    Args:
        source, target, sort_by, options: as in :meth:`asyncpq.Session.optimize`. ``building`` limits each task's
            memory.
        parallelism: number of tasks that run at once; 1: one task does all.
        work_folder: url of a folder that workers can write, for rows between tasks. None: a folder in ``target``.
        worker: how workers open their session. None: with the options of ``session``, storage options included.

    Raises:
        InvalidOptionError: ``target`` is not empty or overlaps the source, or an option is invalid.
        ColumnNotFoundError: a column of ``sort_by``, ``zorder_by`` or ``columns`` does not exist.
        SchemaMismatchError: a column cannot be sorted by, or Parquet cannot hold it.
    """
    others = ("sort_by", "parallelism", "work_folder", "worker")
    check_keywords("plan_optimize()", options, RewriteKeywords, others=others)
    require_whole("parallelism", parallelism, 1)
    given: Any = dict(options)
    publish: Literal["plain", "index"] = given.pop("publish", "plain")
    kinds, layout = given.pop("kinds", None), given.pop("layout", None) or WriteOptions()
    columns, where = given.pop("columns", None), given.pop("where", None)
    zorder_by, building = given.pop("zorder_by", ()), given.pop("building", BuildOptions())
    one_of("publish", publish, ("index", "plain"))
    require_class("building", building, BuildOptions)
    require_class("layout", layout, WriteOptions)
    columns = column_names(columns)
    names = (sort_by,) if isinstance(sort_by, str) else names_alone(sort_by, "sort_by")
    z_names = names_alone(zorder_by, "zorder_by")
    if kinds is not None:
        check_kinds(kinds, "kinds")
    if work_folder is not None:
        require_class("work_folder", work_folder, str)
    runtime, folder, seconds = runtime_of(session), _folder(target), dict[str, float]()
    dataset = await open_target(runtime, source, DatasetOptions(**given), None, None)
    files = await SourceFiles.of(dataset)
    await LakeWrite.check_folder(session, folder, files.places)
    schema = writable_schema(output_schema(dataset.schema, columns, (), ()))
    order = RowOrder(schema, names, z_names)
    settings = worker_options(state_of(dataset).runtime) if worker is None else worker
    write = LakeWrite(
        folder=folder,
        schema=schema,
        options=replace(layout, sorted_by=order.sorted_by()),
        settings=settings,
        kinds=None if kinds is None else tuple(kinds),
        publish=publish,
    )
    write.check()
    with timed(seconds, "sample"):
        z_order = await sampled_z_order(dataset, order, where)
    work = f"{(work_folder or folder + job_folder(write.job)).rstrip('/')}/pieces-{uuid.uuid4().hex}/"
    task_bytes = _TASK_BYTES if parallelism > 1 else _ALL_BYTES
    try:
        scans = await plan_scan(
            dataset,
            columns,
            where,
            batch_size=_BATCH_ROWS,
            task_bytes=task_bytes,
            parallelism=parallelism,
            work_folder=work,
            worker=settings,
        )
    except BaseException:
        await discard_job(runtime, folder, write.job)
        raise
    return LakeRewrite(
        source=state_of(dataset).runtime,
        write=write,
        sorting=RowSorting(order=order, z_order=z_order, building=building),
        scans=tuple(scans),
        parallelism=parallelism,
        work_folder=work,
        bytes_before=files.num_bytes,
        seconds=seconds,
    )


def _folder(target: object) -> str:
    """Return the url of the folder to write, with a slash at its end."""
    if not isinstance(target, str) or not target or any(character in target for character in "*?["):
        raise InvalidOptionError(f"target={target!r}: must be the url of one folder", option="target")
    return folder_url(target)


# -- on one host ----------------------------------------------------------------------------------


async def optimize_here(
    session: Session,
    source: DatasetTarget,
    target: str,
    sort_by: Sequence[str] | str,
    workers: int,
    options: Mapping[str, Any],
) -> RewriteResult:
    """Rewrite a dataset in this process, or in ``workers`` processes of this host: :meth:`asyncpq.Session.optimize`
    has the arguments."""
    runtime_of(session).check()
    require_whole("workers", workers)
    operation = runtime_of(session).operation("optimize", safe_url(_folder(target)))
    async with own_folder(options.get("building", BuildOptions())) as (folder, building):
        options = {**options, "building": building}
        with operation:
            plan = await plan_optimize(
                session, source, target, sort_by, parallelism=workers, work_folder=folder, **options
            )
            if len(tasks := plan.tasks()) == 1 and isinstance(tasks[0], RewriteTask):
                steps = _Steps(operation, plan.seconds)
                return await plan.run_watched(session, lambda task: task.run_in(session, steps, plan.source), operation)
            async with worker_processes(workers) as run:
                return await plan.run_watched(session, run, operation)


class _Steps:
    """Tells the steps of a task in this process as those of the operation, and how long they take."""

    def __init__(self, operation: Operation, seconds: dict[str, float]) -> None:
        self._operation = operation
        self._seconds = seconds
        self._last = time.monotonic()

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._last
        self._last = now
        self._operation.progress(step, done, total, "rows")
