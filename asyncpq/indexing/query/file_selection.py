"""Read the rows of index tables from their segments, and select the files, row groups and rows that they name.

:class:`FileIndex` is the interface of indexes that callers implement themselves.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa

from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array, plain_scalar
from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.indexing.index_model import UNKNOWN_KEY, IndexBackend, IndexTable, KeyRange, Segment, SegmentQuery
from asyncpq.indexing.manifest import Manifest
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.threads import results_of

T = TypeVar("T")

_FEW_ROWS = 1000  # take at most a few milliseconds in the event loop

#: Reads rows of one segment; the operation counts the cost. Returns None if the segment could not give its rows.
Read: TypeAlias = Callable[[Operation], Coroutine[Any, Any, pa.Table | None]]
Reads: TypeAlias = list[Read]


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of an index table that a lookup found, and the files of which the table has no rows."""

    rows: pa.Table  # rows of live files in the requested key ranges, sorted by key within each segment
    unknown: RowRanges  # ids of live files that the table does not cover


def counts_rows(runtime: Runtime, ask: ScanRequest) -> bool:
    """Return whether a read needs no more than the number of all rows, which the index knows."""
    return ask.rows_only and ask.where is None and ask.by_file is None and runtime.options.read.trust_statistics


async def together(operation: Operation, reads: Sequence[Callable[[Operation], Coroutine[Any, Any, T]]]) -> list[T]:
    """Run ``reads`` concurrently; return their results in order. No task outlives the call.

    Each read counts its cost in an operation of its own, which is then added to ``operation``. Together the reads count
    as one round of requests.
    """
    if len(reads) == 1:
        return [await reads[0](operation)]
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
    """Return the result of ``work()``, a computation on ``rows`` rows: called at once if there are few rows, in a
    thread if there are so many that the event loop would block."""
    return work() if rows <= _FEW_ROWS else await runtime.in_thread(work)


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """One read through one snapshot of an index: the session's runtime, the backend, the snapshot, the request, and
    the operation that counts the cost."""

    runtime: Runtime
    backend: IndexBackend
    manifest: Manifest
    ask: ScanRequest
    operation: Operation

    def segments(self, table: IndexTable, query: SegmentQuery, *, tolerant: bool = False) -> Reads:
        """Return one read for each segment of ``table`` that may have rows that ``query`` selects.

        With ``tolerant``, a read of a damaged segment returns None instead of raising an error: pruning then does
        without this segment.
        """
        reads: Reads = []
        for segment in self.manifest.segments_of(table):
            if query.ranges is None:
                reads.append(self.segment(segment, query, tolerant=tolerant))
            elif within := _ranges_in(segment, query.ranges):
                reads.append(self.segment(segment, query._replace(ranges=within), tolerant=tolerant))
        return reads

    def segment(self, segment: Segment, query: SegmentQuery, *, tolerant: bool = False) -> Read:
        """Return the read of one segment; the arguments are those of :meth:`segments`."""

        async def read(operation: Operation) -> pa.Table | None:
            try:
                return await self.backend.read_segment(segment, query, operation=operation)
            except CorruptIndexError as error:
                if not tolerant:
                    raise
                operation.metrics.fall_back(f"{segment.table} of the index is damaged, and not used: {error.message}")
                return None

        return read


def _ranges_in(segment: Segment, ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Return those of ``ranges`` in which the segment may have keys; and ``UNKNOWN_KEY``, if the segment has it."""
    within: list[KeyRange] = []
    low, high = segment.low, segment.high
    if high and low <= high:
        within = [wanted for wanted in ranges if wanted[0] <= high and (wanted[1] is None or wanted[1] > low)]
    if segment.has_unknown and not (within and UNKNOWN_KEY in within[0]):
        within.insert(0, KeyRange.point(UNKNOWN_KEY))
    return within


def table_rows(manifest: Manifest, table: IndexTable, pieces: Sequence[pa.Table | None]) -> TableRows | None:
    """Join ``pieces``, the rows of an index table that were read from each segment; None if one of them is None.
    Rows of removed or unknown files are left out. Raises CorruptIndexError if a row's file id is negative."""
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
    if rows.num_rows <= _SMALL_TABLE and not files.null_count:
        ids = files.to_pylist()
        least, greatest = min(ids), max(ids)
    else:
        least, greatest = (end.as_py() or 0 for end in pc.min_max(files).values())
    if least < 0:
        raise CorruptIndexError(f"a row of the index's table {table} has the file id {least}, expected at least 0")
    if len(live.starts) != 1 or live.starts[0] or greatest >= live.stops[0]:
        rows = rows.filter(_are_in(files, live))
    if has_unknown:
        is_unknown = pc.equal(rows.column("key"), plain_scalar(UNKNOWN_KEY, pa.binary()))
        ids = pc.unique(rows.filter(is_unknown).column("file")).to_pylist()
        unknown |= RowRanges.from_rows(sorted(ids))
        rows = rows.filter(pc.invert(is_unknown))
    if unknown.num_rows and rows.num_rows:
        rows = rows.filter(pc.invert(_are_in(rows.column("file"), unknown)))
    return TableRows(rows, unknown)


def _are_in(files: pa.ChunkedArray, ids: RowRanges) -> pa.ChunkedArray:
    if ids.num_ranges == 1:
        return pc.and_(pc.greater_equal(files, ids.start), pc.less(files, ids.stop))
    kept = [file for file in pc.unique(files).to_pylist() if file in ids]
    return pc.is_in(files, plain_array(kept, pa.int64()))


_ALL = AccessPlan.all()
_FIRST = itemgetter(0)


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The rows of files that may match a predicate: a superset of those that match."""

    files: RowRanges  # ids of the files that may match
    # rows of some of these files; of the others, all rows may match. No plan is empty
    plans: Mapping[int, AccessPlan] = field(default_factory=dict)

    @classmethod
    def none(cls) -> FileSelection:
        """Return the empty selection."""
        return _NONE

    @classmethod
    def of_plans(cls, plans: Mapping[int, AccessPlan]) -> FileSelection:
        """Return the selection of exactly the rows in ``plans``, which are keyed by file id."""
        files: list[int] = []
        narrow: dict[int, AccessPlan] = {}
        for file, plan in sorted(plans.items(), key=_FIRST):
            if not plan.is_none:
                files.append(file)
                if not plan.is_all:
                    narrow[file] = plan
        return cls(RowRanges.from_rows(files), narrow)

    def plan(self, file: int) -> AccessPlan:
        """Return which rows of the file with the id ``file`` may match."""
        if file not in self.files:
            return AccessPlan.none()
        return self.plans.get(file, _ALL)

    def __and__(self, other: FileSelection) -> FileSelection:
        files = self.files & other.files
        plans: dict[int, AccessPlan] = {}
        dropped: list[int] = []
        for file in {**self.plans, **other.plans}:
            if file in files:
                plan = self.plans.get(file, _ALL) & other.plans.get(file, _ALL)
                if plan.is_none:
                    dropped.append(file)
                elif not plan.is_all:
                    plans[file] = plan
        if dropped:
            files -= RowRanges.from_rows(sorted(dropped))
        return FileSelection(files, plans)

    def __or__(self, other: FileSelection) -> FileSelection:
        if not other.files.num_rows:
            return self
        plans: dict[int, AccessPlan] = {}
        for mine, its in ((self, other), (other, self)):
            for file, plan in mine.plans.items():
                if file in its.plans:
                    either = plan | its.plans[file]
                    if not either.is_all:
                        plans[file] = either
                elif file not in its.files:
                    plans[file] = plan
        return FileSelection(self.files | other.files, plans)


_NONE = FileSelection(RowRanges.empty())


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The rows of one file that may match a predicate, according to an index: a value of :attr:`FileSlices.files`.

    Attributes:
        access: the rows that may match: ``AccessPlan.all()`` by default, ``AccessPlan.none()`` if no row matches.
        size, etag: size in bytes and verbatim ETag of the indexed version; None if unknown. If the file turns out to
            have another size or ETag, the slice is not used.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    size: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlices:
    """A superset of the rows that match, according to an index: what :meth:`FileIndex.prune` returns.

    Attributes:
        files: slices by the url that :meth:`asyncpq.Dataset.files` returns, or by path below the dataset's url.
        others: "none" if no row matches in files without a slice; "unknown" if these files must be read.
        exact: whether all rows in ``files`` match. ``explain()`` shows it; the filter runs all the same.
    """

    files: Mapping[str, FileSlice]
    others: Literal["none", "unknown"] = "unknown"
    exact: bool = False


@runtime_checkable
class FileIndex(Protocol):
    """An index of your own. Implement it to rule out files and rows by what you know of them, and pass it as ``index``
    to :meth:`asyncpq.Session.open_dataset`."""

    async def prune(self, where: Expression) -> FileSlices:
        """Return a superset of the rows for which ``where`` is true: more rows are allowed, fewer are not.

        Args:
            where: predicate on the dataset's columns, with relative times resolved.
                :func:`asyncpq.expressions.column_ranges` returns the values that each column may have where it is true.
        """


def with_own(file: DataFile, own: Sequence[FileSlices], folder: str) -> DataFile | None:
    """Return the file, restricted to the rows that the caller's own indexes allow; None if they allow no rows.
    ``folder`` is the url that paths in ``own`` are relative to."""
    if not own:
        return file
    access = _own_access(own, file, folder)
    if access.is_all:
        return file
    if access.is_none:
        return None
    entry = file.entry or IndexEntry(validator=file.validator)
    return replace(file, entry=replace(entry, access=entry.access & access))


def _own_access(own: Iterable[FileSlices], file: DataFile, folder: str) -> AccessPlan:
    """Return which rows of ``file`` the caller's own indexes allow; see :func:`with_own`."""
    access = AccessPlan.all()
    path = file.url[len(folder) :] if folder and file.url.startswith(folder) else file.url
    validator = file.validator
    for slices in own:
        named = slices.files.get(file.url) or slices.files.get(path)
        if named is None:
            access &= AccessPlan.none() if slices.others == "none" else AccessPlan.all()
            continue
        size = file.size if validator is None else validator.size
        etag = None if validator is None else validator.etag
        if named.size in (None, size) and named.etag in (None, etag):
            access &= named.access
    return access


#: Kinds of tables whose entries name rows of files; the others name files or row groups.
BY_ROW = frozenset({"keys", "text"})
_FEW_RANGES: Final = 8  # compared one after the other, each with all rows at once
_SMALL_TABLE: Final = 32  # rows, which are compared faster than kernels are called


class SelectedRows(NamedTuple):
    """The rows of files that one index table selects for one lookup."""

    selection: FileSelection  # rows that may match; all rows of files that the table does not cover
    num_rows: int | None  # number of rows that the table found; None if it cannot find rows in all files


def select_rows(table: IndexTable, rows: TableRows, ranges: Sequence[KeyRange], *, every: bool) -> SelectedRows:
    """Return the files and rows that the table names for keys in ``ranges``. ``rows`` are its rows of these ranges,
    and perhaps others. With ``every``, only files and rows that have a key in each of the ranges are returned."""
    if table.kind == "bounds":
        return SelectedRows(_zones(_overlapping(rows.rows, ranges)) | FileSelection(rows.unknown), None)
    if not every:
        return _selected(table, _within(rows.rows, ranges), rows.unknown)
    common: SelectedRows | None = None
    for wanted in ranges:
        selected = _selected(table, _within(rows.rows, [wanted]), rows.unknown)
        if common is not None:
            is_counted = common.num_rows is not None and selected.num_rows is not None
            num_rows = min(common.num_rows or 0, selected.num_rows or 0) if is_counted else None
            selected = SelectedRows(common.selection & selected.selection, num_rows)
        common = selected
    return common or SelectedRows(FileSelection(rows.unknown), None)


def _within(table: pa.Table, ranges: Sequence[KeyRange]) -> pa.Table:
    """Return the rows of ``table`` whose key is in one of ``ranges``. The rows need not be sorted by key."""
    keys = table.column("key")
    if not table.num_rows:
        return table
    if len(ranges) == 1:
        least, greatest = pc.min_max(keys).values()
        if least.as_py() in ranges[0] and greatest.as_py() in ranges[0]:
            return table
    points = [low for low, high in ranges if high == low + b"\x00"]
    mask = pc.is_in(keys, plain_array(points, pa.binary()))
    for low, high in ranges:
        if high != low + b"\x00":
            inside = pc.greater_equal(keys, plain_scalar(low, pa.binary()))
            if high is not None:
                inside = pc.and_(inside, pc.less(keys, plain_scalar(high, pa.binary())))
            mask = pc.or_(mask, inside)
    return table.filter(mask)


def _overlapping(table: pa.Table, ranges: Sequence[KeyRange]) -> pa.Table:
    """Return the rows of ``table``, an index table of "bounds", whose interval from ``key`` to ``max``, both
    included, overlaps one of ``ranges``."""
    if not table.num_rows:
        return table
    lows, highs = table.column("key"), table.column("max")
    is_small = table.num_rows <= _SMALL_TABLE and not lows.null_count and not highs.null_count
    if is_small or len(ranges) > _FEW_RANGES:
        meets = _meet(lows.to_pylist(), highs.to_pylist(), ranges)
        return table if all(meets) else table.filter(plain_array(meets, pa.bool_()))
    mask: pa.ChunkedArray | None = None
    for low, high in ranges:
        meets = pc.greater_equal(highs, plain_scalar(low, pa.binary()))
        if high is not None:
            meets = pc.and_(meets, pc.less(lows, plain_scalar(high, pa.binary())))
        mask = meets if mask is None else pc.or_(mask, meets)
    return table.slice(0, 0) if mask is None else table.filter(mask)


def _meet(lows: Sequence[bytes], highs: Sequence[bytes], ranges: Sequence[KeyRange]) -> list[bool]:
    """Return for each interval from ``lows`` to ``highs``, both ends included, whether it overlaps one of
    ``ranges``."""
    ordered = sorted(ranges, key=itemgetter(0))
    begins = [begin for begin, _ in ordered]
    ends: list[bytes | None] = []  # the greatest end so far; None: no end
    for _, end in ordered:
        last = ends[-1] if ends else b""
        ends.append(None if last is None or end is None else max(last, end))
    meets: list[bool] = []
    for low, high in zip(lows, highs, strict=True):
        position = bisect_right(begins, high) - 1  # the last range that begins early enough
        meets.append(position >= 0 and ((end := ends[position]) is None or end > low))
    return meets


def _zones(table: pa.Table) -> FileSelection:
    """Return the selection of the row groups that ``table``, rows of an index table of "bounds", names. Rows about
    whole files (group -1) are ignored, because each row group has rows of its own."""
    groups: dict[int, set[int]] = {}
    for file, group in zip(table.column("file").to_pylist(), table.column("group").to_pylist(), strict=True):
        if group >= 0:
            groups.setdefault(file, set()).add(group)
    return FileSelection.of_plans({file: _group_plan(frozenset(of_file)) for file, of_file in groups.items()})


@lru_cache(maxsize=1024)
def _group_plan(groups: frozenset[int]) -> AccessPlan:
    """Return the plan that reads the row groups with these ordinals. Plans are cached, because most files of a dataset
    have the same ones."""
    return AccessPlan.row_groups(sorted(groups))


def _selected(index_table: IndexTable, table: pa.Table, unknown: RowRanges) -> SelectedRows:
    if index_table.kind not in BY_ROW:
        files = RowRanges.from_rows(sorted(pc.unique(table.column("file")).to_pylist()))
        return SelectedRows(FileSelection(files | unknown), None)
    table = table.select(["file", "row", "rows"]).sort_by([("file", "ascending"), ("row", "ascending")])
    spans: dict[int, list[tuple[int, int]]] = {}
    for file, start, count in zip(*(column.to_pylist() for column in table.columns), strict=True):
        spans.setdefault(file, []).append((start, start + count))
    rows = {file: RowRanges.from_sorted(of_file) for file, of_file in spans.items()}
    plans = {file: AccessPlan.row_ranges(ranges) for file, ranges in rows.items()}
    num_rows = None if unknown else sum([ranges.num_rows for ranges in rows.values()])
    return SelectedRows(FileSelection.of_plans(plans) | FileSelection(unknown), num_rows)
