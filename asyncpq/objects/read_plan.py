"""The plan of what a read fetches, by row group. No I/O.

A *column plan* says how one leaf column of one row group is fetched: page by page if an OffsetIndex locates the pages,
else as a whole column chunk. A *unit* is the amount of data that is fetched at once and delivered in row order: a group
of whole pages, or slices of chunks, of one row group or several small ones. Read-ahead counts units. *Late columns* are
those that the filter does not need, if they are fetched after it, for matching rows only.

A row group is read page by page, and its OffsetIndex fetched, if most of its rows are unwanted, or if a run of unwanted
rows has more bytes than one more request is worth. Smaller runs are fetched, decoded and then cut away.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field as dataclass_field
from dataclasses import replace
from functools import partial
from typing import Final, Literal, Protocol

from asyncpq.objects.coalesce import ByteRange, cut
from asyncpq.objects.prices import Prices
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import RowGroupPruning
from asyncpq.records import NamedTuple, dataclass


class PruningReport(NamedTuple):
    """How many row groups, pages and rows of a file remain after each step of pruning.

    Attributes:
        row_groups: row groups of the file.
        row_groups_accessed: those that have rows and that the access plan lets be read.
        row_groups_after_statistics: of those, the ones that the footer's statistics do not rule out.
        row_groups_by_bloom: of those, the ones that Bloom filters rule out.
        row_groups_kept: the row groups that page indexes do not rule out either.
        row_groups_proven: row groups of which statistics prove that all their rows match.
        pages: data pages, known by OffsetIndex, of the columns read in the row groups kept.
        pages_kept: those that hold rows which may match.
        rows, rows_accessed, rows_kept: rows of the file; rows that the access plan lets be read; rows that may match.
    """

    row_groups: int = 0
    row_groups_accessed: int = 0
    row_groups_after_statistics: int = 0
    row_groups_by_bloom: int = 0
    row_groups_kept: int = 0
    row_groups_proven: int = 0
    pages: int = 0
    pages_kept: int = 0
    rows: int = 0
    rows_accessed: int = 0
    rows_kept: int = 0


class BloomReport(NamedTuple):
    """The columns whose Bloom filters were probed, in which row groups, and the row groups that they ruled out.

    Attributes:
        asked: ordinals of the row groups whose filters were probed.
        dropped: ordinals of those that hold no matching row.
    """

    columns: tuple[str, ...]  # columns whose filters were probed
    asked: RowRanges
    dropped: RowRanges


PART_BYTES = 1 << 20  # chunks are not cut finer than this
# Units that may be decoded before their consumer comes, with the one it has. With 2, units of one column were mostly
# decoded by one thread, since a row group's units follow one another.
DECODED_AHEAD = 4
# Of so many rows, the filter compares dictionaries before indices are expanded, and pages of texts are searched for its
# literals before they are decoded.
MANY_ROWS = 32_768
# Row groups that share a unit, since each takes the event loop some 20 microseconds.
_MOST_PIECES: Final = 512


class Item(NamedTuple):
    """The unit of fetching for one column: a page, a dictionary, or a slice of a column chunk with unknown pages.

    Attributes:
        leaf: leaf index in the schema.
        kind: "page", "dictionary", or "part" of a chunk whose pages are not known.
        start, stop: bytes in the object.
        first_row, num_rows: of a page, in the row group.
    """

    column: int  # position in the row group plan's ``columns``
    leaf: int
    kind: Literal["page", "dictionary", "part"]
    start: int
    stop: int
    first_row: int = 0
    num_rows: int = 0


# Item of a tuple of its fields, without a Python call
_ITEM: Final = partial(tuple.__new__, Item)


class ChunkSpan(Protocol):
    """The position of one leaf column's chunk in the object, in bytes."""

    @property
    def leaf(self) -> int:
        """The leaf's index in the schema."""

    @property
    def start(self) -> int:
        """The offset of the chunk's first byte in the object."""

    @property
    def stop(self) -> int:
        """The offset of the byte after the chunk."""


@dataclass(slots=True)
class ColumnPlan:
    """The plan for one leaf column in one row group: to fetch some of its pages, or the whole column chunk.

    Attributes:
        field: ordinal of its top-level field.
        offsets: page locations where it is read page by page; else None.
        predicate: the filter needs it.
        num_rows: rows of the row group.
        rows: candidates, some of which may match.
        repeated: it has lists: without ``offsets``, its rows are known once its whole chunk has come, and so it comes
            first.
        texts: each value of a matching row contains one of these bytes; none if that is not known.
        num_bytes: compressed bytes of those pages and the dictionary, or of the chunk.
        streamed: fetched as one chunk, in which its pages are found as they come.
    """

    field: int
    chunk: ChunkSpan  # its column chunk
    offsets: OffsetIndex | None
    predicate: bool
    num_rows: int
    rows: RowRanges
    repeated: bool = False
    texts: tuple[bytes, ...] = ()
    # ordinals of the pages that hold candidate rows; none without ``offsets``
    pages: Sequence[int] = dataclass_field(init=False)
    num_bytes: int = dataclass_field(init=False)
    streamed: bool = dataclass_field(init=False)

    def __post_init__(self) -> None:
        rows, offsets = self.rows, self.offsets
        self.streamed = offsets is None
        if offsets is None:
            self.pages = ()
            self.num_bytes = self.chunk.stop - self.chunk.start
            return
        if len(rows.starts) == 1:  # a lookup's
            low = max(bisect_right(offsets.first_rows, rows.starts[0]) - 1, 0)
            self.pages = range(low, bisect_left(offsets.first_rows, rows.stops[0], low))
        else:
            self.pages = self.pages_of(rows)
        self.num_bytes = sum(map(offsets.sizes.__getitem__, self.pages), offsets.offsets[0] - self.chunk.start)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the chunk are to be read: it has none but the planned pages and their dictionary."""
        return self.num_bytes == self.chunk.stop - self.chunk.start

    def pages_of(self, rows: RowRanges) -> list[int]:
        """Return the ordinals of the pages that hold any of ``rows``; an empty list without ``offsets`` (page
        locations)."""
        if self.offsets is None:
            return []
        first_rows = self.offsets.first_rows
        if len(rows.starts) > len(first_rows):
            spans = itertools.pairwise((*first_rows, self.num_rows))
            return [page for page, span in enumerate(spans) if rows.overlaps(*span)]
        found: list[int] = []
        following = 0
        behind = map(bisect_right, itertools.repeat(first_rows), rows.starts)
        ends = map(bisect_left, itertools.repeat(first_rows), rows.stops)
        for low, end in zip(behind, ends, strict=True):
            if end > following:
                found.extend(range(max(low - 1, following), end))
                following = end
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return the byte ranges of the planned pages; that of the whole chunk if page locations are unknown."""
        if self.offsets is None:
            return [(self.chunk.start, self.chunk.stop)]
        starts, sizes = self.offsets.offsets, self.offsets.sizes
        return [(starts[page], starts[page] + sizes[page]) for page in self.pages]

    @property
    def dictionary(self) -> tuple[int, int]:
        """The byte range before the first data page, where the dictionary is; empty if there is none."""
        return self.chunk.start, self.chunk.start if self.offsets is None else self.offsets.offsets[0]

    def items(self, column: int, pages: Iterable[int], *, dictionary: bool) -> list[Item]:
        """Return what to fetch for the pages with the ordinals ``pages``, preceded by the dictionary page if
        ``dictionary`` is true. ``column`` is this plan's position in its row group plan. An empty list if page
        locations are unknown."""
        offsets = self.offsets
        if offsets is None:
            return []
        leaf, starts, sizes, firsts = self.chunk.leaf, offsets.offsets, offsets.sizes, offsets.first_rows
        last = len(firsts) - 1
        items = []
        for page in pages:
            start, first = starts[page], firsts[page]
            count = (firsts[page + 1] if page < last else self.num_rows) - first
            items.append(_ITEM((column, leaf, "page", start, start + sizes[page], first, count)))
        start, stop = self.chunk.start, starts[0]
        if dictionary and items and stop > start:
            items.insert(0, Item(column, leaf, "dictionary", start, stop))
        return items


class RowGroupPlan(NamedTuple):
    """The plan for one row group: its rows that may match, and its columns.

    Attributes:
        ordinal: of the row group.
        num_rows: rows it has.
        filtered: whether the filter must see the rows.
    """

    ordinal: int
    num_rows: int
    rows: RowRanges  # rows that may match; never empty
    columns: tuple[ColumnPlan, ...]  # the leaves to read, those of the filter first
    filtered: bool


class RowGroupPiece(NamedTuple):
    """The rows and pages of one row group that belong to one unit (see the module).

    Attributes:
        row_group: its plan.
        items: pieces that are fetched first, in row order within each column.
        late_bytes: the most bytes that the late columns may take for the same rows.
        last: no further piece of this row group follows.
    """

    row_group: RowGroupPlan
    items: tuple[Item, ...]
    late_bytes: int
    last: bool


class Unit(NamedTuple):
    """Parts of row groups that are fetched together and share a part of the budget. Units are delivered in order."""

    pieces: tuple[RowGroupPiece, ...]
    num_bytes: int

    @property
    def first_bytes(self) -> int:
        """The bytes without those that late columns may take."""
        return self.num_bytes - sum([piece.late_bytes for piece in self.pieces])


class Estimates(NamedTuple):
    """The estimated seconds that one read takes to fetch its data, by strategy. Decoding is not counted.

    Attributes:
        one_round_s: all pages that may hold matching rows, at once.
        two_rounds_s: the filter's columns first, then the pages of the others that hold matching rows.
        chunks_s: all column chunks at once, whole.
    """

    one_round_s: float
    two_rounds_s: float
    chunks_s: float


@dataclass(slots=True)
class FetchPlan:
    """The row groups, columns and pages that a read will fetch.

    Attributes:
        row_groups: the row groups to read, in file order.
        late: the filter's columns are fetched first, the others for matching rows only.
        prices: the prices for which the plan was made; its requests are merged with the same ones.
        estimates: of its strategies, with these prices.
        report: results of pruning.
        statistics: pruning by the row groups' statistics; None if they were not used.
        bloom: pruning by Bloom filters; None if none were probed.
        learnt: fields whose page locations are known since their chunks were read, not from an index.
        rows_known: rows that match and need not be read, where rows are only counted; not in ``row_groups``.
    """

    row_groups: tuple[RowGroupPlan, ...]
    late: bool
    prices: Prices
    estimates: Callable[[], Estimates]
    report: PruningReport = dataclass_field(default_factory=PruningReport)
    statistics: RowGroupPruning | None = None
    bloom: BloomReport | None = None
    learnt: tuple[int, ...] = ()
    rows_known: int = 0

    def first_columns(self, row_group: RowGroupPlan) -> range:
        """Return the positions, in ``row_group.columns``, of the columns to fetch first: those of the filter if the
        others come late, else all."""
        if not self.late or not row_group.filtered:
            return range(len(row_group.columns))
        return range(sum(column.predicate for column in row_group.columns))

    def num_bytes(self) -> int:
        """Return the compressed bytes of the columns that are fetched first, before coalescing and caches."""
        size = 0
        for group in self.row_groups:
            for column in group.columns:
                if column.predicate or not (self.late and group.filtered):
                    size += column.num_bytes
        return size

    def units(self, unit_bytes: int | None) -> list[Unit]:
        """Divide the plan into units of about ``unit_bytes`` compressed bytes, late columns included; small row groups
        share a unit, up to :data:`_MOST_PIECES`. With None, all of the plan is one unit."""
        units: list[Unit] = []
        most = len(self.row_groups) if unit_bytes is None else _MOST_PIECES
        if unit_bytes is None:
            unit_bytes = 1 << 62
        pieces: list[RowGroupPiece] = []
        size = 0
        for group in self.row_groups:
            first = range(len(group.columns)) if not self.late else self.first_columns(group)
            for piece in _split(group, first, unit_bytes):
                num_bytes = piece.late_bytes
                for _, _, _, start, stop, _, _ in piece.items:
                    num_bytes += stop - start
                if pieces and (size + num_bytes > unit_bytes or len(pieces) >= most):
                    units.append(Unit(tuple(pieces), size))
                    pieces, size = [], 0
                if pieces and pieces[-1].row_group is group:  # threads decode the pieces of a unit concurrently
                    before = pieces.pop()
                    piece = RowGroupPiece(
                        group, before.items + piece.items, before.late_bytes + piece.late_bytes, piece.last
                    )
                pieces.append(piece)
                size += num_bytes
        if pieces:
            units.append(Unit(tuple(pieces), size))
        return units


class _Round:
    """The byte ranges of a round of requests, as parallel lists."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, span: tuple[int, int]) -> None:
        if span[0] < span[1]:
            self.starts.append(span[0])
            self.stops.append(span[1])

    def add_column(self, column: ColumnPlan) -> None:
        """Add what is to be fetched of ``column``, as one range if there are no other bytes in between."""
        self.add(column.dictionary)
        offsets, pages = column.offsets, column.pages
        if offsets is not None and pages:
            start, stop = offsets.offsets[pages[0]], offsets.offsets[pages[-1]] + offsets.sizes[pages[-1]]
            if stop - start == column.num_bytes - (offsets.offsets[0] - column.chunk.start):
                self.add((start, stop))
                return
        self.add_pages(column, pages)

    def add_pages(self, column: ColumnPlan, pages: Sequence[int]) -> None:
        """Add pages of ``column``; if page locations are unknown, its chunk."""
        if column.offsets is None:
            self.add((column.chunk.start, column.chunk.stop))
            return
        starts, sizes = column.offsets.offsets, column.offsets.sizes
        self.starts += [starts[page] for page in pages]
        self.stops += [starts[page] + sizes[page] for page in pages]

    def add_expected(self, columns: Sequence[ColumnPlan], matches: float | None) -> None:
        """Add a sample of the planned pages of one leaf in all its row groups: as many, evenly distributed, as
        ``matches`` matching rows are expected to hit; if ``matches`` is None, the first half of the pages. A chunk
        whose pages are unknown counts as a page."""
        counts = [1 if column.offsets is None else len(column.pages) for column in columns]
        total = sum(counts)
        if matches is None or not total:
            sample: Sequence[int] = range(total // 2)
        else:
            count = round(matches if matches < 1 else total * (1 - (1 - 1 / total) ** matches))
            sample = [number * total // count for number in range(count)]
        begin = low = 0
        for column, num_pages in zip(columns, counts, strict=True):
            high = bisect_left(sample, begin + num_pages, low)
            if low < high:
                pages = column.pages
                self.add_pages(column, [pages[number - begin] for number in sample[low:high]] if pages else ())
            begin, low = begin + num_pages, high

    def seconds(self, prices: Prices) -> float:
        """Return the expected seconds of the round."""
        return prices.round_s(prices.in_parts(prices.merge(self.starts, self.stops)))


def estimate(groups: Sequence[RowGroupPlan], prices: Prices, matches: float | None, late_rounds: int) -> Estimates:
    """Estimate how long fetching ``groups`` takes, for each strategy.

    Args:
        matches: how many rows are expected to match; less than 1 if the matching rows may be in another file. If
            None, the estimate assumes that half of the pages of late columns have matching rows.
        late_rounds: how many rounds of late columns (those fetched for matching rows only) follow one another.
    """
    one_round, first, second, chunks = _Round(), _Round(), _Round(), _Round()
    late: dict[int, list[ColumnPlan]] = {}  # the columns that can come later, by leaf
    for group in groups:
        for column in group.columns:
            chunks.add((column.chunk.start, column.chunk.stop))
            one_round.add_column(column)
            if column.predicate or not group.filtered:
                first.add_column(column)
            else:
                late.setdefault(column.chunk.leaf, []).append(column)
    for columns in late.values():
        second.add_expected(columns, matches)
    # If less than a page is expected to match, there is a match in another file, whose second round all wait for.
    elsewhere = bool(late and matches and not second.starts)
    if second.starts:
        for column in itertools.chain.from_iterable(late.values()):
            second.add(column.dictionary)
    waits_s = (late_rounds - 1 + elsewhere) * prices.latency_s
    return Estimates(
        one_round.seconds(prices), first.seconds(prices) + second.seconds(prices) + waits_s, chunks.seconds(prices)
    )


def skips_pages(rows: RowRanges, num_rows: int, chunks: Iterable[ChunkSpan], gap_bytes: int) -> bool:
    """Return whether to read a row group page by page if only ``rows`` of its ``num_rows`` rows are wanted.

    True if at least half of the rows are unwanted, or if a run of unwanted rows has more than ``gap_bytes`` bytes in
    one of the ``chunks``. Fetching fewer bytes than that costs less than one more request.
    """
    if rows.num_rows * 2 <= num_rows:
        return True
    if rows.num_rows == num_rows:
        return False
    longest = max(map(operator.sub, (*rows.starts, num_rows), (0, *rows.stops)))
    return any(longest * (chunk.stop - chunk.start) > gap_bytes * num_rows for chunk in chunks)


def located(group: RowGroupPlan, offsets: Mapping[int, OffsetIndex]) -> RowGroupPlan:
    """Return the plan with page locations for columns that had none. ``offsets``: by position of the column."""
    columns = [
        replace(column, offsets=offsets[position]) if position in offsets else column
        for position, column in enumerate(group.columns)
    ]
    return group._replace(columns=tuple(columns))


def whole_piece(group: RowGroupPlan, first: range) -> RowGroupPiece:
    """Return the whole plan of one row group as one piece. ``first``: positions of columns to fetch first."""
    (piece,) = _split(group, first, 1 << 62)
    return piece


def _split(group: RowGroupPlan, first: range, unit_bytes: int) -> list[RowGroupPiece]:
    """Divide the plan of one row group into pieces of about ``unit_bytes`` bytes. ``first``: positions of the columns
    that are fetched first; the others come late."""
    num_bytes = 0
    for column in group.columns:
        num_bytes += column.num_bytes
    count = max(1, round(num_bytes / unit_bytes))
    paged: list[list[Item]] = []
    parts: list[Item] = []
    late: list[list[Item]] = []
    late_sizes = [0] * count
    for position, column in enumerate(group.columns):
        if position not in first and (count == 1 or column.streamed):
            late_sizes[0] += column.num_bytes
        elif not column.streamed:
            items = column.items(position, column.pages, dictionary=True)
            (paged if position in first else late).append(items)
        else:
            parts.append(Item(position, column.chunk.leaf, "part", column.chunk.start, column.chunk.stop))
    if count == 1:
        slices = [list(itertools.chain.from_iterable(paged))]
    else:
        slices = [[] for _ in range(count)]
        edges = _row_edges(group, [*paged, *late], count)
        for item in itertools.chain.from_iterable(paged):
            slices[_slice_of(item, edges)].append(item)
        for item in itertools.chain.from_iterable(late):
            late_sizes[_slice_of(item, edges)] += item.stop - item.start
    for whole in parts:
        length = whole.stop - whole.start
        pieces = cut(ByteRange(whole.start, whole.stop), max(PART_BYTES, -(-length // count)))
        for number, piece in enumerate(pieces):
            slices[0 if group.columns[whole.column].repeated else number * count // len(pieces)].append(
                whole._replace(start=piece.start, stop=piece.stop)
            )
    if count == 1:
        return [RowGroupPiece(group, tuple(slices[0]), late_sizes[0], True)]
    # one without anything to fetch first still has rows
    filled = [number for number, items in enumerate(slices) if items] or [0]
    return [RowGroupPiece(group, tuple(slices[number]), late_sizes[number], number == filled[-1]) for number in filled]


def _slice_of(item: Item, edges: Sequence[int]) -> int:
    """Return the ordinal of the slice that a page belongs to; ``edges`` are the first rows of the slices. A dictionary
    belongs to the first slice."""
    return bisect_right(edges, item.first_row) - 1


def _size(items: Sequence[Item]) -> int:
    return sum([stop - start for _, _, _, start, stop, _, _ in items])


def _row_edges(group: RowGroupPlan, paged: Sequence[Sequence[Item]], count: int) -> list[int]:
    """Return the first row of each of ``count`` slices of a row group, which have about equal bytes. Slices begin where
    pages begin of the column with the most bytes."""
    if not paged:
        return [group.num_rows * number // count for number in range(count)]
    pages = [item for item in max(paged, key=_size) if item.num_rows]
    total = _size(pages)
    edges = [0]
    size = 0
    for item in pages:
        if size >= total * len(edges) / count and item.first_row > edges[-1]:
            edges.append(item.first_row)
        size += item.stop - item.start
    return edges
