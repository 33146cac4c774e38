"""The steps of an index build in tasks: read files into sorted pieces, cut the pieces by key range, write segments.

A piece is a sorted run of index rows of one index table, encoded as a single value of one row, so that engines move
few, large values. Files are spread over tasks by cost, since one large file takes as long as thousands of small ones.
The sort keys in the pieces show the distribution of keys before any piece is moved, so the ranges have similar sizes. A
key with many rows is divided at file and row numbers. Only descriptions of the segments return to the planner. The
steps are functions of an iterator of record batches: Spark runs them by ``mapInArrow``, ``build_tasks`` for engines
that move no rows themselves.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import pickle
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa

from asyncpq.distributed.worker_sessions import WorkerSettings, batches_on_worker, run_on_worker
from asyncpq.errors import ObjectChangedError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.build.build_executor import SortedTables, collect_files, from_thread, write_segments
from asyncpq.indexing.build.file_rows import IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.indexing.manifest import FILES
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.options import KIB, MIB, BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.storage.threads import call_each

_PIECE_BYTES: Final = 512 * KIB
_WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4")

#: Sort key of a row of an index table: key, file, and position in it.
RowKey: TypeAlias = tuple[bytes, int, int]

#: Rows to write as segments, and the files that they come from (:func:`write_segments`).
SortedRows: TypeAlias = tuple[IndexTable, ExternalSort, RowRanges]

_ORDER: Final = pa.struct([("key", pa.binary()), ("file", pa.int64()), ("at", pa.int64())])

#: A piece: ``num_rows`` rows of ``part`` with ``num_bytes`` in memory, and the sort keys of three of them; ``digest``
#: identifies the versions of all files of ``task``.
PIECES: Final = pa.schema(
    [
        pa.field("task", pa.int32()),
        pa.field("part", pa.int32()),
        pa.field("digest", pa.binary()),
        pa.field("num_rows", pa.int64()),
        pa.field("num_bytes", pa.int64()),
        pa.field("first", _ORDER),
        pa.field("middle", _ORDER),
        pa.field("last", _ORDER),
        pa.field("payload", pa.binary()),
    ]
)


class BuildStep:
    """A step of an index build, for an engine that moves rows between its tasks. Picklable.

    :func:`asyncpq.distributed.build_in_steps` makes the steps, and passes them to the engine's
    :class:`asyncpq.distributed.BuildSteps`. The engine calls ``step(batches)`` in its tasks, as Spark's ``mapInArrow``
    does: with an iterator of the record batches that the task has. The step yields batches. Rows may come in any order,
    and may be spread over tasks in any way, unless they have the column "bin": then rows of one bin go to one task.

    Attributes:
        FILES_NUMBER: the value of the column "part" (number of an index table) in pieces of the index table "files".
        input: names of the columns that the step needs; empty: all.
        output: schema of the batches that the step yields.
    """

    FILES_NUMBER: ClassVar[int] = 0
    input: ClassVar[Sequence[str]] = ()
    output: ClassVar[pa.Schema]

    @property
    def num_bins(self) -> int:
        """Number of bins: the values of the input column "bin" are 0 to ``num_bins - 1``. 1 without that column."""
        return 1

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the step's result."""
        raise NotImplementedError


@dataclass(frozen=True)
class CollectFiles(BuildStep):
    """A step that reads the files of tasks and yields their index rows as pieces."""

    input: ClassVar[Sequence[str]] = ("id", "payload")  # number of a task, and its files, encoded
    output: ClassVar[pa.Schema] = PIECES

    settings: WorkerSettings
    wanted: IndexSpec
    tables: tuple[IndexTable, ...]  # "files" first

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task, data in zip(*(batch.column(name).to_pylist() for name in self.input), strict=True):
                yield from batches_on_worker(self.settings, partial(self._opened, task, pickle.loads(data)))

    async def _opened(self, task: int, works: Sequence[FileTask], session: Session) -> Any:
        wanted = replace(self.wanted, options=local_options(self.wanted.options, self.settings))
        return _collected_pieces(session, task, works, wanted, self.tables)


def shipped(works: Sequence[FileTask]) -> bytes:
    """Pickle the files of a task, without those attributes of the files that a task does not need."""
    return pickle.dumps([replace(work, file=replace(work.file, deletes=None, bounds={}, entry=None)) for work in works])


def local_options(options: BuildOptions, settings: WorkerSettings) -> BuildOptions:
    """Return the options, with the worker's folder for temporary files if they name no folder."""
    return options if options.folder is not None else replace(options, folder=settings.local_folder())


@asynccontextmanager
async def _collected_pieces(
    session: Session, task: int, works: Sequence[FileTask], wanted: IndexSpec, index_tables: Sequence[IndexTable]
) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
    runtime = runtime_of(session)
    operation = runtime.operation("build", wanted.tail_hint)
    operation.begin()  # not a context manager, since each step of the iteration is a task of its own
    error: BaseException | None = None
    rows_of_parts = SortedTables(runtime, index_tables, wanted.options)
    try:
        async with aclosing(collect_files(runtime, works, wanted, operation)) as collected:
            async for rows, index_table in collected:
                await rows_of_parts.add(rows)
                operation.part_ended(index_table, rows.problem, 0)
        async with aclosing(_pieces(task, rows_of_parts, index_tables)) as pieces:
            yield pieces
    except BaseException as raised:
        error = raised
        raise
    finally:
        operation.end(error)
        await rows_of_parts.close()


async def _pieces(
    task: int, rows_of_parts: SortedTables, index_tables: Sequence[IndexTable]
) -> AsyncGenerator[pa.RecordBatch]:
    files = [batch async for batch in await rows_of_parts.batches(FILES)]
    digest = hashlib.sha256(repr([batch.to_pylist() for batch in files]).encode()).digest()[:16]
    for batch in files:
        yield _piece(task, BuildStep.FILES_NUMBER, digest, pa.Table.from_batches([batch]))
    for number, index_table in enumerate(index_tables[BuildStep.FILES_NUMBER + 1 :], BuildStep.FILES_NUMBER + 1):
        pending: list[pa.RecordBatch] = []
        num_bytes = 0
        async for batch in await rows_of_parts.batches(index_table):
            step = max(1, _PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                pending.append(batch.slice(start, step))
                num_bytes += pending[-1].nbytes
                if num_bytes >= _PIECE_BYTES:
                    yield _piece(task, number, digest, pa.Table.from_batches(pending))
                    pending, num_bytes = [], 0
        if pending:
            yield _piece(task, number, digest, pa.Table.from_batches(pending))


def _piece(task: int, index_table: int, digest: bytes, rows: pa.Table) -> pa.RecordBatch:
    places = (0, rows.num_rows // 2, rows.num_rows - 1)
    orders = [dict(zip(("key", "file", "at"), order_of(rows, place), strict=True)) for place in places]
    return one_row([task, index_table, digest, rows.num_rows, rows.nbytes, *orders, encoded(rows)], PIECES)


def order_in(piece: Mapping[str, Any]) -> RowKey:
    """Return the sort key (key, file and row) in ``piece``, the field ``first``, ``middle`` or ``last`` of a piece."""
    return piece["key"], piece["file"], piece["at"]


def order_of(rows: pa.Table | pa.RecordBatch, number: int) -> RowKey:
    """Return the sort key (key, file and row) of the row at position ``number``, 0 for columns that its table lacks."""
    names = rows.schema.names
    at = next((name for name in ("group", "row") if name in names), None)
    return (
        rows.column("key")[number].as_py(),
        rows.column("file")[number].as_py() if "file" in names else 0,
        0 if at is None else rows.column(at)[number].as_py(),
    )


def one_row(values: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of one row with these values, in the order of the schema's fields."""
    return pa.record_batch([pa.array([value], field.type) for value, field in zip(values, schema, strict=True)], schema)


def encoded(rows: pa.Table) -> bytes:
    """Encode rows of an index table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_WRITE) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())


def decoded(data: bytes | pa.Buffer) -> pa.Table:
    """Decode rows that :func:`encoded` has encoded."""
    return pa.ipc.open_stream(data).read_all()


#: Target cost of a task: about a second.
TASK_BYTES: Final = 32 * MIB
_OPENING_BYTES: Final = 128 * KIB  # cost of opening a file, in bytes read
_FOOTER_SHARE: Final = 64  # a footer has at most this fraction of its file
_EVEN: Final = 4  # the number of tasks is a multiple, as that of cores
_UNKNOWN_BYTES: Final = 4 * MIB  # assumed size of a file that no listing names


def cost_of(work: FileTask, *, reads_values: bool) -> int:
    """Estimate the cost of reading a file, as a number of bytes. ``reads_values``: the column values are read too,
    not only the footer."""
    size = work.file.size if work.file.validator is None else work.file.validator.size
    size = _UNKNOWN_BYTES if size is None else size
    return _OPENING_BYTES + (size if reads_values else size // _FOOTER_SHARE)


def count_of(cost: int, target: int) -> int:
    """Return into how many tasks to divide work of total ``cost``, so that each costs ``target`` or somewhat less."""
    count = max(1, -(-cost // max(1, target)))
    return count if count <= _EVEN else -(-count // _EVEN) * _EVEN


def packed(costs: Sequence[int], target: int) -> list[list[int]]:
    """Distribute items with these costs over bins that each cost ``target`` or somewhat less; return the ascending
    positions of the items in each bin.

    No bin costs more than a third above the optimum for that number of bins. The heaviest bin comes first, since it
    should not start last.
    """
    count = min(len(costs), count_of(sum(costs), target))
    bins: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(count)]
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        load, number, places = bins[0]
        places.append(place)
        heapq.heapreplace(bins, (load + costs[place], number, places))
    return [sorted(places) for _, _, places in sorted(bins, key=lambda bin_: (-bin_[0], bin_[1])) if places]


_LEAST_RANGE_BYTES: Final = 8 * MIB  # minimum size of a range
_FILLED: Final = 0.75  # of a segment: ranges are estimates, and a full segment starts another
_WRITES: Final = 4  # concurrent writes of a task

#: Columns of pieces that cutting needs.
CUT: Final = ("task", "part", "digest", "first", "last", "payload")

#: Rows that move to the task that writes them.
MOVED: Final = pa.schema([pa.field("bin", pa.int32()), pa.field("range", pa.int32()), pa.field("payload", pa.binary())])

WRITTEN: Final = pa.schema([pa.field("part", pa.int32()), pa.field("segment", pa.string())])


@dataclass(frozen=True)
class SegmentRanges:
    """Ranges of sort keys into which index rows are divided. One task writes all rows of a range as segments."""

    tables: tuple[int, ...]  # index table of each range
    cuts: Mapping[int, tuple[RowKey, ...]]  # by index table, the last sort key of each range but the final one
    first: Mapping[int, int]  # by index table, the number of its first range; others follow
    bins: tuple[int, ...]  # the task that writes each range
    num_bins: int  # number of these tasks
    digests: Mapping[int, bytes]  # by task of the map step, the digest of its files' versions


def planned(pieces: Sequence[Mapping[str, Any]], options: BuildOptions, *, builds: int) -> SegmentRanges:
    """Divide the rows of ``pieces`` into ranges of sort keys of similar sizes. The pieces need no payloads.
    ``builds``: number of commits of the build."""
    by_part: dict[int, list[tuple[RowKey, int, int]]] = {}
    for piece in pieces:
        counted = (order_in(piece["middle"]), piece["num_bytes"], piece["num_rows"])
        by_part.setdefault(piece["part"], []).append(counted)
    cuts: dict[int, tuple[RowKey, ...]] = {}
    first: dict[int, int] = {}
    index_tables: list[int] = []
    sizes: list[int] = []
    for index_table, counted_pieces in sorted(by_part.items()):
        first[index_table] = len(index_tables)
        cuts[index_table] = _cuts(sorted(counted_pieces), options, max(1, options.max_segments // builds))
        number = len(cuts[index_table]) + 1
        index_tables += [index_table] * number
        sizes += [max(1, sum(size for _, size, _ in counted_pieces) // number)] * number
    bins = packed(sizes, _LEAST_RANGE_BYTES)
    bin_of = {number: task for task, numbers in enumerate(bins) for number in numbers}
    digests = {piece["task"]: piece["digest"] for piece in pieces}
    bins_of_ranges = tuple(bin_of[number] for number in range(len(sizes)))
    return SegmentRanges(tuple(index_tables), cuts, first, bins_of_ranges, len(bins), digests)


def _cuts(pieces: Sequence[tuple[RowKey, int, int]], options: BuildOptions, most: int) -> tuple[RowKey, ...]:
    """Return where to divide one index table: the last sort key of each range but the final one.

    ``pieces`` are the middle sort key, the bytes and the rows of each piece. ``most`` is the maximum number of ranges,
    exceeded only if segments would be too large.
    """
    num_bytes, num_rows = sum(size for _, size, _ in pieces), sum(rows for _, _, rows in pieces)
    full = max(num_bytes / options.segment_bytes, num_rows / options.segment_rows) / _FILLED
    number = max(1, ceil(full), min(most, num_bytes // _LEAST_RANGE_BYTES))
    cuts: list[RowKey] = []
    taken, step = 0.0, num_bytes / number
    for middle, size, _ in pieces:
        if taken + size / 2 >= step * (len(cuts) + 1) and len(cuts) + 1 < number and (not cuts or cuts[-1] < middle):
            cuts.append(middle)
        taken += size
    return tuple(cuts)


@dataclass(frozen=True)
class CutPieces(BuildStep):
    """A step that cuts pieces at the ends of ranges and yields the resulting smaller pieces
    (schema ``MOVED``)."""

    input: ClassVar[Sequence[str]] = CUT  # columns of pieces
    output: ClassVar[pa.Schema] = MOVED

    ranges: SegmentRanges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task, index_table, digest, first, last, payload in zip(
                *(batch.column(name) for name in CUT), strict=True
            ):
                if self.ranges.digests.get(task.as_py()) != digest.as_py():
                    raise ObjectChangedError(
                        "a task that ran twice read files that have changed since the first run",
                        hint="Build again when no files change: the build goes on where it stopped.",
                    )
                ends = order_in(first.as_py()), order_in(last.as_py())
                yield from self._cut(index_table.as_py(), *ends, payload.as_buffer())

    def _cut(self, index_table: int, low: RowKey, high: RowKey, payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
        cuts, first = self.ranges.cuts[index_table], self.ranges.first[index_table]
        start, number = 0, bisect_left(cuts, low)
        if bisect_left(cuts, high) == number:  # the whole piece is in one range
            yield self._moved(first + number, payload.to_pybytes())
            return
        rows = decoded(payload).combine_chunks()
        while start < rows.num_rows:
            stop = rows.num_rows
            if number < len(cuts):
                stop = bisect_right(range(rows.num_rows), cuts[number], lo=start, key=lambda at: order_of(rows, at))
            if stop > start:
                yield self._moved(first + number, encoded(rows.slice(start, stop - start)))
            start, number = stop, number + 1

    def _moved(self, number: int, payload: bytes) -> pa.RecordBatch:
        return one_row([self.ranges.bins[number], number, payload], MOVED)


@dataclass(frozen=True)
class WriteSegments(BuildStep):
    """A step that writes ranges (``MOVED``) as segments and describes them (``WRITTEN``).

    Each attempt of a task uses other names for its segments. Readers see only segments that a commit lists.
    """

    output: ClassVar[pa.Schema] = WRITTEN

    settings: WorkerSettings
    at: str
    build: str
    tables: tuple[IndexTable, ...]
    ranges: SegmentRanges
    options: BuildOptions

    @property
    def num_bins(self) -> int:
        return self.ranges.num_bins

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = local_options(self.options, self.settings)
        memory = max(MIB, options.memory_bytes // max(Counter(self.ranges.bins).values()))
        with ExitStack() as open_sorts:
            sorts: dict[int, ExternalSort] = {}
            for batch in batches:
                for number, payload in zip(batch.column("range").to_pylist(), batch.column("payload"), strict=True):
                    if number not in sorts:
                        schema = self.tables[self.ranges.tables[number]].schema
                        sort = ExternalSort(schema, memory, folder_of(options))
                        sorts[number] = open_sorts.enter_context(sort)
                    sorts[number].add(decoded(payload.as_buffer()))
            rows = [(self.tables[self.ranges.tables[number]], sorts[number], RowRanges()) for number in sorted(sorts)]
            segments = self._written(rows, options) if rows else []
        tables = [self.tables.index(segment.table) for segment in segments]
        yield pa.record_batch([pa.array(tables, pa.int32()), pa.array(map(_described, segments), pa.string())], WRITTEN)

    def _written(self, rows: Sequence[SortedRows], options: BuildOptions) -> list[Segment]:
        begun = False

        async def write(session: Session) -> list[Segment]:
            nonlocal begun
            begun = True
            backend = await open_backend(runtime_of(session), self.at, create=False)
            try:
                return await write_sorted(runtime_of(session), backend, self.build, rows, options)
            finally:
                runtime_of(session).unregister(backend)
                await backend.close()

        # sorted rows can be read once: only another attempt of the task can repeat it
        return run_on_worker(self.settings, write, repeatable=lambda: not begun)


async def write_sorted(
    runtime: Runtime,
    backend: IndexBackend,
    build: str,
    rows: Sequence[SortedRows],
    options: BuildOptions,
    operation: Operation | None = None,
) -> list[Segment]:
    """Write sorted index rows as segments, several items of ``rows`` concurrently; return the segments in order.

    Args:
        build: the build's id, with which the names of the segments begin.
        options: their sizes, in rows and bytes.
        operation: the operation that the requests to the store count for; None counts them for none.

    Raises:
        StoreError: the backend cannot be written to.
    """
    segments: dict[int, list[Segment]] = {}

    async def write(number: int) -> None:
        index_table, sort, files = rows[number]
        batches = from_thread(runtime, await runtime.in_thread(sort.batches))
        segments[number] = await write_segments(backend, build, index_table, batches, files, options, operation)

    await call_each(write, range(len(rows)), at_once=_WRITES)
    return [segment for number in sorted(segments) for segment in segments[number]]


def folder_of(options: BuildOptions) -> Path:
    """Return the local folder for temporary files: that of the options, or the system's."""
    return Path(options.folder or tempfile.gettempdir())


_DESCRIBED: Final = ("name", "num_rows", "size", "has_unknown", "data_bytes", "extra")


def _described(segment: Segment) -> str:
    record = {name: getattr(segment, name) for name in _DESCRIBED}
    return json.dumps({**record, "low": segment.low.hex(), "high": segment.high.hex()})


def segment_of(index_table: IndexTable, described: str, files: tuple[tuple[int, int], ...]) -> Segment:
    """Return the segment of ``index_table`` that ``described``, JSON from a task, describes. ``files``: half-open
    ranges of the ids of its files."""
    record = json.loads(described)
    low, high = (bytes.fromhex(record.pop(name)) for name in ("low", "high"))
    return Segment(table=index_table, low=low, high=high, files=files, **record)
