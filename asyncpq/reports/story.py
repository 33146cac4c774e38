"""The story of one read for ``why()``: its trace, the plans of its files and its requests, and a model of its cost.

A :class:`Story` is attached to the metrics of a read before the read begins. It receives each file's plan before data
is fetched, and each part (such as a page) when it arrives.

A :class:`ReadModel` predicts how much faster the read would be without a cause of slowness. It sees a read as rounds of
concurrent requests. The plan's prices (:mod:`asyncpq.objects.prices`) give the seconds of each round; where they were
measured, these are scaled to the time that they took. Decoding, filter and planning take the seconds that were
measured, in proportion to the work that is left. The unit of work is the second of a common processor; only shares
matter.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from asyncpq.metrics import ReadTrace, RequestRecord
from asyncpq.objects.page_indexes import indexed_chunk
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import ColumnPlan, RowGroupPlan
from asyncpq.parquet.column_chunk import Codec
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.inspection import gave_up_dictionary
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner
from asyncpq.scan.plan import Plan, PlannedVersion, describe, file_fates

if TYPE_CHECKING:
    from asyncpq.expressions import Expression
    from asyncpq.reports.documents import Cause, Fate, FileFates, TimeSplit
    from asyncpq.reports.lookup_cost import Weakness


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
    modules_before: int = field(default_factory=lambda: len(sys.modules))  # of Python, that were loaded

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


# -- the model of its cost ------------------------------------------------------------------------


#: Purposes of requests that come before data.
METADATA: Final = frozenset({"tail", "footer", "index", "bloom", "list", "table", "stat", "session", "validate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a read that has ended, from which the causes of its cost are found."""

    log: Sequence[RequestRecord]  # all requests, those that opened the file or dataset included
    prices: Prices
    columns: Sequence[ColumnRead]
    filters: Sequence[str]  # names of the columns that the predicate names
    matches: int  # matching rows
    footers: Sequence[int]  # bytes of the footer of each file that was planned
    sizes: Sequence[int]  # bytes of these files
    files_opened: int = 1
    files_total: int = 0  # of a dataset; 0 for one file
    index: Sequence[str] = ()  # the plan's lines about the index; empty without one
    fallbacks: Sequence[str] = ()
    unindexed: frozenset[str] = field(default_factory=frozenset)  # urls of files that were planned without the index
    where: Expression | None = None
    time: TimeSplit | None = None  # None: requests are all that takes time
    modules_loaded: int = 0  # of Python, by this process during the read
    is_priced: bool = False  # options say what requests cost, and no server has shown it
    #: Returns why the bounds of a column ruled out little; it asks only memory.
    weakness_of: Callable[[ColumnRead], Weakness] = lambda column: "random-order"


Rounds = dict[int, list[int]]  # bytes of each request, by round


@dataclass(frozen=True, slots=True)
class Without:
    """The read without a cause.

    Attributes:
        data, metadata: bytes of the requests, by round, that the read would need; None if the cause does not change
            them.
        saves: the saved seconds (as :meth:`ReadModel.seconds` has them), requests and bytes, instead of ``data`` and
            ``metadata``.
        more_s: the saved seconds that are not those of requests.
    """

    data: Sequence[Sequence[int]] | None = None
    metadata: Rounds | None = None
    saves: tuple[float, int, int] | None = None
    more_s: float = 0.0


TAIL_BYTES: Final = 64 * 1024  # they hold the footer of a file with few columns
# The most that planning, or decoding, explains of its seconds: some milliseconds, and so many times its work.
_EXPLAINED_S: Final = 0.005
_EXPLAINED_TIMES: Final = 10


class ReadModel:
    """Predicts the seconds of a read from its rounds of requests, and how they change if rounds change."""

    def __init__(self, facts: Facts) -> None:
        self._prices = facts.prices
        self.now: Rounds = rounds_of(facts.log)
        self.metadata: Rounds = rounds_of(record for record in facts.log if record.purpose in METADATA)
        self.data: Rounds = rounds_of(record for record in facts.log if record.purpose not in METADATA)
        self.residual: Rounds = self.metadata  # after the cure that saves most of the metadata requests
        requests_s = self.seconds(self.now)
        time = facts.time
        self.network_s: float = requests_s if time is None or facts.is_priced else time["network_s"]
        self._scale = self.network_s / requests_s if requests_s else 0.0
        self.caches_s: float = 0.0 if time is None else time["caches_s"]
        self.filter_s: float = 0.0 if time is None else time["filter_s"]
        self.decode_s: float = 0.0 if time is None else time["decode_s"]
        self.planning_s: float = 0.0 if time is None else time["other_s"]
        self._facts = facts
        self.unexplained_s: float = self._take_unexplained()
        self.now_s: float = (
            self.network_s + self.caches_s + self.filter_s + self.decode_s + self.planning_s + self.unexplained_s
        )
        self._bytes = size_of(self.now)
        self._requests = sum(map(len, self.now.values()))

    def _take_unexplained(self) -> float:
        """Return the seconds of planning and decoding that their work does not explain, such as those of loading
        modules, and subtract them from the seconds of both."""
        decode_s = min(self.decode_s, _EXPLAINED_S + _EXPLAINED_TIMES * self.decode_work)
        planning_s = min(self.planning_s, _EXPLAINED_S + _EXPLAINED_TIMES * self.planning_work)
        unexplained_s = self.decode_s + self.planning_s - decode_s - planning_s
        self.decode_s, self.planning_s = decode_s, planning_s
        return unexplained_s

    @cached_property
    def decode_work(self) -> float:
        """The work of decoding the pages that were read."""
        return sum([decode_work(column, column.fetched) for column in self._facts.columns])

    @cached_property
    def planning_work(self) -> float:
        """The work of planning the files that were opened."""
        return planning_work(self._facts.files_opened, sum(self._facts.footers))

    def unplanned(self, files: int, footer_bytes: int) -> float:
        """Return the seconds that are saved if only so many files, with footers of so many bytes, are planned."""
        left = planning_work(files, footer_bytes) / max(self.planning_work, 1e-9)
        return self.planning_s * max(0.0, 1 - left)

    def undecoded(self, pages_of: Callable[[ColumnRead], Sequence[int]]) -> float:
        """Return the seconds of decoding and filtering that are saved if only these pages of each column are read."""
        columns = self._facts.columns
        return self.less_work(
            sum([decode_work(column, pages_of(column)) for column in columns]), filter_work(columns, pages_of)
        )

    def less_work(self, work: float, rows: float | None = None) -> float:
        """Return the seconds that are saved if decoding takes ``work``, and if so many rows are filtered; None: as many
        as now."""
        seconds = self.decode_s * max(0.0, 1 - work / max(self.decode_work, 1e-9))
        if rows is not None:
            seconds += self.filter_s * max(0.0, 1 - rows / max(filter_work(self._facts.columns, fetched), 1.0))
        return seconds

    def seconds(self, rounds: Rounds, prices: Prices | None = None) -> float:
        """Return the seconds that the requests take by the prices, not scaled to what was measured."""
        prices = prices or self._prices
        return sum(prices.round_s([(0, size) for size in sizes]) for sizes in rounds.values())

    def cause(
        self,
        id_: str,
        title: str,
        detail: str,
        cure: str,
        without: Without,
        *,
        column: str | None = None,
        snippets: dict[str, str] | None = None,
    ) -> Iterator[Cause]:
        """Yield the cause if the read would cost less without it.

        Args:
            id_, title, detail, cure, column, snippets: fields of :class:`asyncpq.reports.documents.Cause`.
        """
        data, metadata, saves = without.data, without.metadata, without.saves
        seconds, requests, num_bytes = saves or (0.0, 0, 0)
        if saves is None:
            kept = self.metadata if metadata is None else metadata
            instead = {number: sizes for number, sizes in kept.items() if sizes}
            if data is None:
                for number, sizes in self.data.items():
                    instead[number] = [*instead.get(number, ()), *sizes]
            else:
                last = max(instead, default=0)
                instead |= {last + number: list(sizes) for number, sizes in enumerate(data, 1) if sizes}
            seconds = self.seconds(self.now) - self.seconds(instead)
            if metadata is not None and size_of(metadata) < size_of(self.residual):
                self.residual = metadata
            requests = self._requests - sum(map(len, instead.values()))
            num_bytes = self._bytes - size_of(instead)
        seconds = min(seconds * self._scale + without.more_s, self.now_s)
        if seconds <= 0:
            return
        share = seconds / max(self.now_s, 1e-9)
        severity: Literal["high", "medium", "low"] = "high" if share >= 0.5 else "medium" if share >= 0.15 else "low"
        yield {
            "id": id_,
            "severity": severity,
            "title": title,
            "detail": detail,
            "saves_requests": max(requests, 0),
            "saves_bytes": max(num_bytes, 0),
            "saves_seconds": round(seconds, 6),
            "column": column,
            "cure": cure,
            "snippets": snippets or {},
        }


def rounds_of(log: Iterable[RequestRecord]) -> Rounds:
    """Return the bytes of each request in ``log``, by round."""
    rounds: Rounds = {}
    for record in log:
        rounds.setdefault(record.round, []).append(record.bytes or abs(record.stop - record.start))
    return rounds


def size_of(rounds: Rounds) -> int:
    """Return the sum of the bytes of all requests."""
    return sum(map(sum, rounds.values()))


def pieces_of(
    columns: Iterable[ColumnRead], pages_of: Callable[[ColumnRead], Sequence[int]], *, dictionaries: bool = True
) -> list[int]:
    """Return the bytes of each request that a read of some pages of ``columns`` needs.

    Args:
        pages_of: returns the ordinals of the pages of a column to read.
        dictionaries: whether the columns' dictionaries are read too.
    """
    pieces: list[int] = []
    for column in columns:
        pages = pages_of(column)
        if not pages:
            continue
        if len(pages) == len(column.sizes) and dictionaries:
            pieces.append(column.bytes)
            continue
        if dictionaries and column.dictionary:
            pieces.append(column.dictionary)
        pieces += [sum(column.sizes[start:stop]) for start, stop in runs(pages)]
    return pieces


def paged(
    columns: Sequence[ColumnRead], model: ReadModel, filter_pages: Callable[[ColumnRead], Sequence[int]]
) -> list[list[int]]:
    """Return the bytes of each request, by round, of a read whose filter needs only the pages that ``filter_pages``
    returns.

    The pages of the other columns are read for the same rows in the same round, or for the matching rows in a second
    round, whichever costs less.
    """
    rows: dict[tuple[str, int], RowRanges] = {}
    for column in columns:
        if column.predicate:
            place, needed = (column.url, column.row_group), column.rows_of(filter_pages(column))
            rows[place] = rows[place] & needed if place in rows else needed

    def overlapping(column: ColumnRead) -> Sequence[int]:
        known = rows.get((column.url, column.row_group))
        return filter_pages(column) if column.predicate or known is None else column.pages_of(known)

    filters = [column for column in columns if column.predicate]
    others = [column for column in columns if not column.predicate]
    ways = [[pieces_of(columns, overlapping)], [pieces_of(filters, filter_pages), pieces_of(others, wanted)]]
    return min(ways, key=lambda way: model.seconds(dict(enumerate(way))))


def fetched(column: ColumnRead) -> Sequence[int]:
    """Return the ordinals of the column's pages that were read."""
    return column.fetched


def wanted(column: ColumnRead) -> Sequence[int]:
    """Return the ordinals of the column's pages that hold matching rows."""
    return column.wanted


SLOW_CODECS: Final = (Codec.GZIP, Codec.BROTLI)
CODEC_BYTES_S: Final[dict[int, float]] = {  # decompressed
    Codec.SNAPPY: 1.2e9, Codec.GZIP: 0.25e9, Codec.BROTLI: 0.3e9, Codec.ZSTD: 0.8e9, Codec.LZ4: 2e9, Codec.LZ4_RAW: 2e9,
}  # fmt: skip
_DECODED_BYTES_S: Final = 1.5e9
_TEXT_S: Final = 8e-9  # of each value whose length differs
_PAGE_S: Final = 100e-6
_FILE_S: Final = 1e-3
_FOOTER_BYTE_S: Final = 10e-9


def decompression_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing the pages with these ordinals."""
    rate = CODEC_BYTES_S.get(column.codec)
    return 0.0 if rate is None else column.plain * share_of(column, pages) / rate


def decode_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing and decoding the pages with these ordinals, and the dictionary."""
    if not pages:
        return 0.0
    share = share_of(column, pages)
    values = column.num_rows * share * _TEXT_S if column.has_texts else 0.0
    return (
        decompression_work(column, pages)
        + dictionary_work(column)
        + column.plain * share / _DECODED_BYTES_S
        + values
        + len(pages) * _PAGE_S
    )


def dictionary_work(column: ColumnRead) -> float:
    """Return the work of decoding the column's dictionary."""
    return column.dictionary * (column.plain / max(column.bytes, 1)) / (_DECODED_BYTES_S / 10)


def planning_work(files: int, footer_bytes: int) -> float:
    """Return the work of opening and planning so many files whose footers have so many bytes together."""
    return files * _FILE_S + footer_bytes * _FOOTER_BYTE_S


def filter_work(columns: Iterable[ColumnRead], pages_of: Callable[[ColumnRead], Sequence[int]]) -> float:
    """Return the number of rows in the pages of the filter's columns."""
    return sum([column.num_rows * share_of(column, pages_of(column)) for column in columns if column.predicate])


def share_of(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the share of the chunk's data that the pages with these ordinals have."""
    if len(pages) == len(column.sizes):
        return 1.0
    return sum([column.sizes[page] for page in pages]) / max(sum(column.sizes), 1)
