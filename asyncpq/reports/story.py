"""The record of one read for ``why()``: its trace, the plans of its files, and its requests.

A :class:`Story` is attached to the metrics of a read before the read begins. It receives each file's plan before data
is fetched, and each part (such as a page) when it arrives.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from asyncpq.metrics import ReadTrace
from asyncpq.objects.page_indexes import indexed_chunk
from asyncpq.objects.read_plan import ColumnPlan, RowGroupPlan
from asyncpq.parquet.column_chunk import Codec
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.inspection import gave_up_dictionary
from asyncpq.scan.fates import PlannedVersion, file_fates
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner
from asyncpq.scan.plan import Plan, describe

if TYPE_CHECKING:
    from asyncpq.reports.documents import Fate, FileFates, TimeSplit

PAGE_BYTES = 1 << 20  # of values before compression: the usual size of a page, assumed if page locations are unknown
_TIERS: tuple[Fate, ...] = ("memory", "disk", "shared", "read")  # the farthest last


@dataclass(slots=True)
class TracedFile:
    """A file that the read planned: its plan and the requests that planning sent."""

    planner: ScanPlanner
    scan_plan: ScanPlan
    metadata_requests: int  # that planning it took


class ColumnRead(NamedTuple):
    """The pages of one column chunk that were read, and which of them hold matching rows."""

    url: str
    row_group: int
    leaf: int
    name: str  # dotted path
    predicate: bool  # the filter needs it
    num_rows: int  # rows of the row group
    bytes: int  # of the chunk
    dictionary: int  # bytes before the first data page; 0 if there is no dictionary, or its size is not known
    sizes: Sequence[int]  # of each data page
    first_rows: Sequence[int]  # first row of each
    fetched: Sequence[int]  # ordinals of the pages that were read, from the store or a cache
    wanted: Sequence[int]  # ordinals of those that hold matching rows
    matches: int  # matching rows of the row group
    whole: bool  # read as one piece
    has_index: bool  # the file has an OffsetIndex of the chunk
    has_bounds: bool  # and a ColumnIndex
    is_estimated: bool  # its page locations are unknown: ``sizes`` assume PAGE_BYTES
    plain: int = 0  # bytes of the chunk when it is not compressed
    codec: int = Codec.UNCOMPRESSED
    has_texts: bool = False  # its values have different lengths
    gave_up: bool = False  # its dictionary was given up half-way
    has_filter: bool = False  # a Bloom filter of it is in the file

    def rows_of(self, pages: Iterable[int]) -> RowRanges:
        """Return the rows that the pages with these ordinals hold, counted from the beginning of the row group."""
        stops = [*self.first_rows[1:], self.num_rows]
        return RowRanges([(self.first_rows[page], stops[page]) for page in pages])

    def pages_of(self, rows: RowRanges) -> list[int]:
        """Return the ordinals of the pages that hold any of ``rows``, which are counted from the beginning of the
        row group."""
        spans = zip(self.first_rows, [*self.first_rows[1:], self.num_rows], strict=True)
        return [page for page, (first, stop) in enumerate(spans) if rows.overlaps(first, stop)]

    @property
    def wanted_bytes(self) -> int:
        """The least number of bytes that contain the matching rows: their pages and the dictionary."""
        return self.dictionary + sum([self.sizes[page] for page in self.wanted]) if self.wanted else 0


@dataclass(slots=True)
class Story:
    """The trace of one read, and the plans of its files. ``scan``: the rows are chosen by a predicate, not by keys."""

    scan: bool
    trace: ReadTrace = field(init=False)
    files: dict[str, TracedFile] = field(default_factory=dict)  # by url, in the order they were planned

    def __post_init__(self) -> None:
        self.trace = ReadTrace(on_plan=self._planned)

    def _planned(self, planner: ScanPlanner, scan_plan: ScanPlan) -> None:
        # Described when the read has ended: that takes time, which would be part of the story.
        self.files[scan_plan.version.url] = TracedFile(planner, scan_plan, planner.metrics.requests)

    def plans(self) -> dict[str, Plan]:
        """Return the plans of the files as they were before data was fetched, by url, after the read has ended."""
        held: dict[str, set[int]] = {url: set() for url in self.files}
        for part in self.trace.parts:
            if part.tier == "memory" and part.url in held:
                held[part.url].add(part.start)
        return {
            url: describe(
                file.planner, file.scan_plan, scan=self.scan, held=held[url], metadata_requests=file.metadata_requests
            )
            for url, file in self.files.items()
        }

    def fates(self) -> dict[str, FileFates]:
        """Return what became of each planned file's row groups and pages (fetched, cached or ruled out), by url."""
        parts: dict[str, dict[int, Fate]] = {url: {} for url in self.files}
        for part in self.trace.parts:
            if part.kind in ("page", "part", "dictionary") and part.url in parts:
                parts[part.url][part.start] = "read" if part.tier == "store" else part.tier
        return {url: _fates(file, parts[url]) for url, file in self.files.items()}

    def columns(self, fates: dict[str, FileFates]) -> list[ColumnRead]:
        """Return a :class:`ColumnRead` for each chunk that was read. ``fates`` is the result of :meth:`fates`."""
        rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for url, ordinal, ranges in self.trace.matched:
            rows.setdefault((url, ordinal), []).extend(ranges)
        reads: list[ColumnRead] = []
        for url, file in self.files.items():
            read: dict[tuple[int, int], list[int]] = {}
            for chunk in fates[url]["chunks"]:
                each = chunk.get("fates") or [chunk["fate"]] * max(len(chunk["pages"]), 1)
                pages = chunk["pages"] if not chunk["whole"] else [0]
                read[chunk["row_group"], chunk["column"]] = [
                    page for page, fate in zip(pages, each, strict=False) if fate in _TIERS
                ]
            for group in file.scan_plan.fetch_plan.row_groups:
                matched = RowRanges(sorted(rows.get((url, group.ordinal), ())))
                for column in group.columns:
                    pages = read.get((group.ordinal, column.chunk.leaf), [])
                    reads.append(_column_read(file, group, column, pages, matched))
        return reads

    def time_split(self, total_s: float, log: Iterable[tuple[float, float]]) -> TimeSplit:
        """Divide the ``total_s`` seconds of the read among activities. ``log`` has the times at which each request
        began and ended, on the trace's clock.

        Each moment counts once: as network, else as waiting for a cache tier, else as filtering, else as decoding,
        else as other.
        """
        left_s = total_s
        spent: list[float] = []
        covered: list[tuple[float, float]] = []
        for spans in (log, self.trace.waited, self.trace.filtered, self.trace.decoded):
            union = _union([*spans, *covered])
            spent.append(min(_length(union) - _length(covered), left_s))
            left_s -= spent[-1]
            covered = union
        network_s, caches_s, filter_s, decode_s = spent
        return {
            "total_s": round(total_s, 6),
            "network_s": round(network_s, 6),
            "caches_s": round(caches_s, 6),
            "decode_s": round(decode_s, 6),
            "filter_s": round(filter_s, 6),
            "other_s": round(left_s, 6),
        }


def _fates(file: TracedFile, parts: dict[int, Fate]) -> FileFates:
    plan, request = file.scan_plan.fetch_plan, file.planner.request
    starts = sorted(parts)

    def fate_of(column: ColumnPlan, start: int, stop: int) -> Fate:
        fate = parts.get(start) if column.offsets is not None else _farthest(parts, starts, start, stop)
        if fate is not None:
            return fate
        return "late" if plan.late and not column.predicate else "limit"

    return file_fates(PlannedVersion(file.scan_plan.version, plan, request, file.planner.indexed), fate_of)


def _farthest(parts: dict[int, Fate], starts: Sequence[int], start: int, stop: int) -> Fate | None:
    """Return the slowest tier (memory, disk, shared or store) that any of the bytes ``[start, stop)`` came from;
    None if none of these bytes was read. ``parts`` has the tiers by the ascending ``starts`` of their byte ranges."""
    tiers = [parts[at] for at in starts[bisect_left(starts, start) : bisect_left(starts, stop)]]
    return max(tiers, key=_TIERS.index, default=None)


def _column_read(
    file: TracedFile, group: RowGroupPlan, column: ColumnPlan, pages: list[int], matched: RowRanges
) -> ColumnRead:
    version, leaf = file.scan_plan.version, column.chunk.leaf
    known = indexed_chunk(version, group.ordinal, leaf)
    length = column.chunk.stop - column.chunk.start
    offsets = column.offsets or _known_offsets(file, group.ordinal, leaf)
    if offsets is not None:
        sizes: Sequence[int] = offsets.sizes
        first_rows: Sequence[int] = offsets.first_rows
        dictionary = offsets.offsets[0] - column.chunk.start
    else:
        count = max(1, math.ceil(known.chunk.total_uncompressed_size / PAGE_BYTES))
        sizes, dictionary = [length // count] * count, 0
        first_rows = [group.num_rows * page // count for page in range(count)]
    whole = column.offsets is None
    read = ColumnRead(
        url=version.url,
        row_group=group.ordinal,
        leaf=leaf,
        name=version.metadata.schema.leaves[leaf].dotted,
        predicate=column.predicate,
        num_rows=group.num_rows,
        bytes=length,
        dictionary=dictionary,
        sizes=sizes,
        first_rows=first_rows,
        fetched=range(len(sizes) if pages else 0) if whole else pages,
        wanted=[],
        matches=matched.num_rows,
        whole=whole,
        has_index=known.has_index,
        has_bounds=known.bounds is not None,
        is_estimated=offsets is None,
        plain=known.chunk.total_uncompressed_size,
        codec=known.chunk.codec,
        has_texts=known.chunk.physical_type is PhysicalType.BYTE_ARRAY,
        gave_up=gave_up_dictionary(known.chunk),
        has_filter=known.chunk.bloom_filter_offset is not None,
    )
    return read._replace(wanted=read.pages_of(matched))


def _known_offsets(file: TracedFile, row_group: int, leaf: int) -> OffsetIndex | None:
    """Return the OffsetIndex of a chunk that was read whole, from memory; None if memory lacks it."""
    known = indexed_chunk(file.scan_plan.version, row_group, leaf)
    held = file.planner.source.runtime.memory.get(known.locations)
    return held if isinstance(held, OffsetIndex) else None


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the moments that are in any of ``spans``, as sorted spans that do not overlap."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum([stop - start for start, stop in spans])


def runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each run of consecutive ordinals in the sorted ``pages``, as a half-open range (start, stop)."""
    start = 0
    for at in range(1, len(pages) + 1):
        if at == len(pages) or pages[at] != pages[at - 1] + 1:
            yield pages[start], pages[at - 1] + 1
            start = at
