"""Read key ranges of one index table out of its segments, and put the rows of the segments together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.index_model import UNKNOWN_KEY, IndexBackend, IndexTable, KeyRange, Segment
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.concurrency import results_of

T = TypeVar("T")

_FEW_ROWS = 1000  # take at most a few milliseconds in the event loop

#: Reads rows of one segment; the operation counts the cost. None: the rows are not known.
Read: TypeAlias = Callable[[Operation], Coroutine[Any, Any, pa.Table | None]]
Reads: TypeAlias = list[Read]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of an index table.

    Attributes:
        rows: rows of live files in the requested key ranges, sorted by key within each segment.
        unknown: ids of live files that the table knows nothing of.
    """

    rows: pa.Table
    unknown: RowRanges


async def together(operation: Operation, reads: Iterable[Callable[[Operation], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run ``reads`` concurrently; return their results in order. No task outlives the call.

    Each read counts in a part of ``operation``. All of them together count as one round after the last one.
    """
    loop, rounds = asyncio.get_running_loop(), operation.metrics.rounds
    parts: list[Operation] = []
    tasks: list[asyncio.Task[T]] = []
    try:
        for read in reads:
            part = operation.part(operation.url, rounds)
            parts.append(part)
            tasks.append(loop.create_task(read(part)))
        return await results_of(tasks)
    finally:
        for part in parts:
            operation.metrics.add_part(part.metrics)


async def worked(runtime: Runtime, rows: int, work: Callable[[], T]) -> T:
    """Run ``work`` on so many rows; in a thread if they would hold up the event loop."""
    return work() if rows <= _FEW_ROWS else await runtime.in_thread(work)


def segment_reads(
    manifest: Manifest,
    backend: IndexBackend,
    table: IndexTable,
    ranges: Sequence[KeyRange] | None,
    *,
    at_least: tuple[str, bytes] | None = None,
    limit: int | None = None,
    tolerant: bool = False,
) -> Reads:
    """Return one read for each segment that may hold keys in ``ranges`` (see :meth:`IndexBackend.read_segment`).

    Args:
        ranges: ascending and apart; None for all rows.
        tolerant: a damaged segment gives None instead of an error: pruning then does without it.
    """
    reads: Reads = []
    for segment in manifest.segments_of(table):
        within = None if ranges is None else _ranges_in(segment, ranges)
        if within is None or within:
            reads.append(_segment_read(backend, segment, within, at_least, limit, tolerant))
    return reads


def _segment_read(
    backend: IndexBackend,
    segment: Segment,
    ranges: Sequence[KeyRange] | None,
    at_least: tuple[str, bytes] | None,
    limit: int | None,
    tolerant: bool,
) -> Read:
    async def read(operation: Operation) -> pa.Table | None:
        try:
            return await backend.read_segment(segment, ranges, at_least=at_least, limit=limit, operation=operation)
        except CorruptIndexError as error:
            if not tolerant:
                raise
            operation.metrics.fall_back(f"{segment.table} of the index is damaged, and not used: {error.message}")
            return None

    return read


def _ranges_in(segment: Segment, ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Return the ranges that reach into the segment; and the key of unknown files, if the segment has it."""
    within: list[KeyRange] = []
    low, high = segment.low, segment.high
    if high and low <= high:
        within = [wanted for wanted in ranges if wanted[0] <= high and (wanted[1] is None or wanted[1] > low)]
    if segment.has_unknown and not (within and UNKNOWN_KEY in within[0]):
        within.insert(0, KeyRange.point(UNKNOWN_KEY))
    return within


def table_rows(manifest: Manifest, table: IndexTable, pieces: Sequence[pa.Table | None]) -> TableRows | None:
    """Put the rows of the segments together; return None if some segment has no answer.

    Raises:
        CorruptIndexError: a row has no file.
    """
    filled: list[pa.Table] = []
    has_unknown = False
    for piece in pieces:
        if piece is None:
            return None
        if piece.num_rows:
            filled.append(piece)
            has_unknown = has_unknown or piece.column("key")[0].as_py() == UNKNOWN_KEY  # the least of all keys
    unknown = manifest.unknown(table)
    if not filled:
        return TableRows(table.schema.empty_table(), unknown)
    rows = filled[0] if len(filled) == 1 else pa.concat_tables(filled)
    live, files = manifest.live, rows.column("file")
    least, greatest = pc.min_max(files).values()
    if (least.as_py() or 0) < 0:
        raise CorruptIndexError(f"a row of {table} is of no file")
    if len(live.starts) != 1 or live.starts[0] or (greatest.as_py() or 0) >= live.stops[0]:
        rows = rows.filter(_are_in(files, live))
    if has_unknown:
        is_unknown = pc.equal(rows.column("key"), pa.scalar(UNKNOWN_KEY, pa.binary()))
        unknown |= _ids(rows.filter(is_unknown).column("file"))
        rows = rows.filter(pc.invert(is_unknown))
    if unknown.num_rows and rows.num_rows:
        rows = rows.filter(pc.invert(_are_in(rows.column("file"), unknown)))
    return TableRows(rows, unknown)


def _are_in(files: pa.ChunkedArray, ids: RowRanges) -> pa.ChunkedArray:
    if ids.num_ranges == 1:
        return pc.and_(pc.greater_equal(files, ids.start), pc.less(files, ids.stop))
    kept = [file for file in pc.unique(files).to_pylist() if file in ids]
    return pc.is_in(files, pa.array(kept, pa.int64()))


def _ids(files: pa.ChunkedArray) -> RowRanges:
    return RowRanges.from_rows(sorted(pc.unique(files).to_pylist()))
