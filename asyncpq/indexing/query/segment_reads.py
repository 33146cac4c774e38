"""One question to one part of an index: which of its rows have keys in some ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.model import UNKNOWN_KEY, IndexBackend, IndexTable, KeyRange, Segment
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.concurrency import results_of

T = TypeVar("T")

_FEW_ROWS = 1000  # that a few milliseconds are enough for

#: Reads a table; what it costs is counted in the operation.
Read: TypeAlias = Callable[[Operation], Coroutine[Any, Any, pa.Table | None]]
Reads: TypeAlias = list[Read]


class Listed(Protocol):
    """What of a manifest it takes to ask its parts (:class:`asyncpq.indexing.manifest.manifest.Manifest`)."""

    @property
    def live(self) -> RowRanges: ...

    def segments_of(self, index_table: IndexTable) -> tuple[Segment, ...]: ...

    def unknown(self, index_table: IndexTable) -> RowRanges: ...


@dataclass(frozen=True, slots=True)
class PartRows:
    """
    Attributes:
        table: rows with keys that were asked for, of files in use; by key within each segment.
        unknown: ids of files of which the part knows nothing.
    """

    table: pa.Table
    unknown: RowRanges


async def together(operation: Operation, reads: Iterable[Callable[[Operation], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run ``reads`` at once; return their results in order. No task outlives the call.

    Each read has a part of ``operation``, which is one round older than the last request of any of them afterwards.
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
    """What ``work`` gives of so many rows: in a thread where they would hold up the event loop."""
    return work() if rows <= _FEW_ROWS else await runtime.in_thread(work)


def segment_reads(
    manifest: Listed,
    backend: IndexBackend,
    index_table: IndexTable,
    ranges: Sequence[KeyRange] | None,
    columns: Sequence[str] | None = None,
    *,
    at_least: tuple[str, bytes] | None = None,
    limit: int | None = None,
) -> Reads:
    """The reads of the segments that may hold such keys (see :meth:`IndexBackend.read_segment`)."""
    reads: Reads = []
    for segment in manifest.segments_of(index_table):
        asked = None if ranges is None else _ranges_of(segment, ranges)
        if asked is None or asked:
            reads.append(_reader(backend, segment, asked, columns, at_least, limit))
    return reads


def _reader(
    backend: IndexBackend,
    segment: Segment,
    ranges: Sequence[KeyRange] | None,
    columns: Sequence[str] | None,
    at_least: tuple[str, bytes] | None,
    limit: int | None,
) -> Read:
    async def read(operation: Operation) -> pa.Table | None:
        if ranges is None and limit is not None and segment.num_rows > limit:
            return None
        return await backend.read_segment(segment, ranges, columns, at_least=at_least, limit=limit, operation=operation)

    return read


def _ranges_of(segment: Segment, ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Those that reach into the segment, and the key of files of which nothing is known, if it has some."""
    found: list[KeyRange] = []
    if segment.low <= segment.high and segment.high:
        found = [one for one in ranges if one.low <= segment.high and (one.high is None or one.high > segment.low)]
    if segment.has_unknown and not (found and UNKNOWN_KEY in found[0]):
        found.insert(0, KeyRange.point(UNKNOWN_KEY))
    return found


def tolerant(index_table: IndexTable, reads: Reads) -> Reads:
    """The same reads, which give None where a segment is damaged: what is not known does no harm."""

    def make(read: Read) -> Read:
        async def attempt(operation: Operation) -> pa.Table | None:
            try:
                return await read(operation)
            except CorruptIndexError as error:
                operation.metrics.fall_back(f"{index_table} of the index is damaged, and not used: {error.message}")
                return None

        return attempt

    return [make(read) for read in reads]


def table_rows(manifest: Listed, index_table: IndexTable, tables: Sequence[pa.Table | None]) -> PartRows | None:
    """What the segments gave, put together; None where one of them has more than was to be read.

    Raises:
        CorruptIndexError: a row is of no file.
    """
    live = manifest.live
    if any(table is None for table in tables):
        return None
    some = [table for table in tables if table is not None and table.num_rows]
    unknown = manifest.unknown(index_table)
    if not some:
        return PartRows(index_table.schema.empty_table(), unknown)
    table = some[0] if len(some) == 1 else pa.concat_tables(some)
    files = table.column("file")
    least, greatest = (bound.as_py() or 0 for bound in pc.min_max(files).values())
    if least < 0:
        raise CorruptIndexError(f"a row of {index_table} is of no file")
    has_blank = any(one.column("key")[0].as_py() == UNKNOWN_KEY for one in some)  # the least of all keys
    if live.num_ranges != 1 or live.start or greatest >= live.stop:
        table = table.filter(_among(files, live))
    if has_blank:
        blank = pc.equal(table.column("key"), pa.scalar(UNKNOWN_KEY, pa.binary()))
        unknown |= _ids(table.filter(blank).column("file"))
        table = table.filter(pc.invert(blank))
    if unknown and table.num_rows:
        table = table.filter(pc.invert(_among(table.column("file"), unknown)))
    return PartRows(table, unknown)


def _among(files: pa.ChunkedArray, ids: RowRanges) -> pa.ChunkedArray:
    """Which of ``files`` are among ``ids``."""
    if ids.num_ranges == 1:
        return pc.and_(pc.greater_equal(files, ids.start), pc.less(files, ids.stop))
    kept = [one for one in pc.unique(files).to_pylist() if one in ids]
    return pc.is_in(files, pa.array(kept, pa.int64()))


def _ids(files: pa.ChunkedArray) -> RowRanges:
    return RowRanges.from_rows(sorted(pc.unique(files).to_pylist()))
