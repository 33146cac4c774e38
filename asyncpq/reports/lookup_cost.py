"""Predict for ``lint`` the requests, bytes and seconds of one lookup in one file from the file's layout alone.

What ``why`` says of a read that has ended is computed in ``reports.story``.

A :class:`Shape` has the locations of a file's chunks, pages and indexes. :class:`KeyZones` say which rows may have
which keys. The prediction is for a session with empty caches. It counts the first GET, the rest of the footer and of
the page indexes, Bloom filters, and the data. The planner's own code (``objects.read_plan``, ``objects.prices``)
chooses pages and merges requests, so predictions for a layout that does not exist yet agree with later reads of it.

Other functions return the shapes of files that are rewritten in some way; ``lint`` compares both. Everything that a
change does not concern keeps its bytes: with smaller pages, chunks keep their sizes. Page indexes that a file lacks are
placed in front of its footer, as writers do; their sizes follow from the format.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from asyncpq.objects.bloom_filters import ChunkFilter
from asyncpq.objects.page_indexes import IndexedChunk
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import DECODED_AHEAD, ColumnPlan, FetchPlan, RowGroupPlan, estimate
from asyncpq.objects.tail_sizes import TailSizes
from asyncpq.objects.version import FileVersion
from asyncpq.options import KIB, MIB, LimitOptions
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.inspection import FileLayout, sorted_as

KEYS: Final = 15  # lookups whose mean is the cost;
_FEW_KEYS: Final = 3  # of files of very many columns, where each takes long
_MANY_COLUMNS: Final = 1000
_A_HASH: Final = 0x9E3779B185EBCA87  # of some value: its block is inside the filter


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The byte ranges of one column chunk, its pages and its indexes, as far as the file has them."""

    start: int
    stop: int
    offsets: OffsetIndex | None = None  # its pages, where reads know them
    offset_index: tuple[int, int] | None = None
    column_index: tuple[int, int] | None = None
    bloom_filter: tuple[int, int] | None = None
    dictionary_bytes: int = 0  # in front of its data pages
    plain_bytes: int = 0  # uncompressed


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The number of rows of one row group, and the locations of its column chunks."""

    rows: int
    chunks: tuple[ChunkShape, ...]  # of all leaves
    bounded: bool = True  # statistics of the key's chunk may rule it out


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a file, and the locations of its footer and its row groups."""

    size: int
    footer_start: int
    groups: tuple[GroupShape, ...]


class Zone(NamedTuple):
    """A range of rows of the file, and the bounds of their keys."""

    start: int
    stop: int
    low: Any  # None: there are nulls alone
    high: Any
    known: bool = True  # False: they may have any key
    key: Any = None  # that occurs in it, or would


@dataclass(slots=True)
class KeyZones:
    """The zones (ranges of rows with bounds of their keys) of all rows of a file, in order.

    ``is_sorted``: the rows count as sorted by the key. ``groups``: zones from the statistics of row groups, which may
    have tighter bounds than those of pages; None if the two are the same.
    """

    zones: Sequence[Zone]
    is_sorted: bool = False
    groups: KeyZones | None = None
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [zone.start for zone in self.zones]

    def may_hold(self, key: Any, start: int, stop: int) -> bool:
        """Return whether any of the rows ``[start, stop)`` may have ``key`` according to the bounds; always True for
        the key None."""
        if key is None:
            return True
        first = max(bisect_right(self._starts, start) - 1, 0)
        zones = [zone for zone in self.zones[first : bisect_left(self._starts, stop, first)] if zone.stop > start]
        if not all(zone.known for zone in zones):
            return True
        bounds = [zone for zone in zones if zone.low is not None]
        return bool(bounds) and min(zone.low for zone in bounds) <= key <= max(zone.high for zone in bounds)

    def samples(self, most: int = KEYS) -> list[tuple[Any, int]]:
        """Return at most ``most`` pairs of a key and a row that has this key, evenly distributed over the rows."""
        zones = [zone for zone in self.zones if zone.key is not None] or list(self.zones)
        ends = list(itertools.accumulate(zone.stop - zone.start for zone in zones))
        total = ends[-1] if ends else 0
        count = min(most, total)
        rows = [(2 * number + 1) * total // (2 * count) for number in range(count)]
        return [(zones[at].key, zones[at].stop - (ends[at] - row)) for row in rows for at in [bisect_right(ends, row)]]


class LookupCost(NamedTuple):
    """The requests, bytes and seconds of a lookup, averaged over several keys."""

    requests: float
    num_bytes: float
    seconds: float
    groups: float = 0.0  # row groups of which data are read
    row_groups: float = 0.0  # that statistics leave

    def __sub__(self, other: object) -> LookupCost:
        if not isinstance(other, LookupCost):
            return NotImplemented
        return LookupCost(*[mine - theirs for mine, theirs in zip(self, other, strict=True)])


class _Span(NamedTuple):
    """The byte range of one leaf's column chunk, as :class:`asyncpq.objects.read_plan.ChunkSpan` has it."""

    leaf: int
    start: int
    stop: int


class _Hit(NamedTuple):
    """A row group that statistics do not rule out: the rows that may have the key, and one row that has it."""

    ordinal: int
    rows: RowRanges
    row: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupModel:
    """A model of lookups by one key column that return some columns.

    Attributes:
        key: the key's leaf ordinal.
        others: ordinals of the other leaves that are returned.
        tail_bytes: size of the first GET if no file of the folder was opened before.
        learns: whether other files of the folder were opened before: the first GET is then as large as theirs needed.
        files: how many similar files the lookup reads, of which one holds the key.
        blooms: whether Bloom filters may be used.
    """

    key: int
    others: Sequence[int]
    prices: Prices
    limits: LimitOptions
    tail_bytes: int
    blooms: bool = True
    learns: bool = False
    files: int = 1

    def mean_cost(self, shape: Shape, keys: KeyZones, *, found: bool = True) -> LookupCost:
        """Return the mean cost of lookups by keys that occur in the file. Without ``found``: of lookups by these
        keys in another file of this layout, which does not have them."""
        most = KEYS if len(self.others) < _MANY_COLUMNS else _FEW_KEYS
        costs = [self._cost(shape, keys, key, row if found else -1) for key, row in keys.samples(most)]
        if not costs:
            return LookupCost(1, min(shape.size, self.tail_bytes), self.prices.latency_s)
        return LookupCost(*[sum(values) / len(costs) for values in zip(*costs, strict=True)])

    def first_bytes(self, shape: Shape) -> int:
        """Return the size of the first GET of a file, at its end (see ``objects.tail_sizes``)."""
        if not self.learns:
            return self.tail_bytes
        first = [group.chunks[0] for group in shape.groups[:1]]
        spans = [span for chunk in first for span in (chunk.offset_index, chunk.column_index) if span is not None]
        start = min([shape.footer_start, *[start for start, _ in spans]])
        most = max(self.tail_bytes, TailSizes.MAX_LEARNT_BYTES)
        return min(-(-(shape.size - start) * 5 // 4 // 4096) * 4096, most)

    def _cost(self, shape: Shape, keys: KeyZones, key: Any, row: int) -> LookupCost:
        tally = _Tally(self.prices)
        tail_start = max(0, shape.size - self.first_bytes(shape))
        tally.round([(tail_start, shape.size)])
        if shape.footer_start < tail_start:
            tally.round([(shape.footer_start, tail_start)])
            tail_start = shape.footer_start
        hits = list(self._hits(shape, keys, key, row))
        left = len(hits)
        filters = [shape.groups[hit.ordinal].chunks[self.key].bloom_filter for hit in hits] if self.blooms else []
        if filters and all(span is not None and span[0] >= tail_start for span in filters):
            hits = [hit for hit in hits if hit.row is not None]
        spans = [span for span in self._index_spans(shape, hits) if span[0] < tail_start]
        tally.round(self.prices.requests(spans))
        groups = [(hit, self._plan(shape, hit)) for hit in hits if hit.rows]
        if filters and len(groups) > 0:
            groups = self._after_blooms(shape, groups, tail_start, tally)
        self._fetch([plan for _, plan in groups], [hit for hit, _ in groups], tail_start, tally)
        return LookupCost(tally.requests, tally.num_bytes, tally.seconds, len(groups), left)

    def _hits(self, shape: Shape, keys: KeyZones, key: Any, row: int) -> Iterable[_Hit]:
        first = 0
        for ordinal, group in enumerate(shape.groups):
            stop = first + group.rows
            inside = row - first if first <= row < stop else None
            candidate = (
                inside is not None
                if keys.is_sorted
                else inside is not None or not group.bounded or (keys.groups or keys).may_hold(key, first, stop)
            )
            if candidate and group.rows:
                yield _Hit(ordinal, self._rows(group, keys, key, first, inside), inside)
            first = stop

    def _rows(self, group: GroupShape, keys: KeyZones, key: Any, first: int, row: int | None) -> RowRanges:
        chunk = group.chunks[self.key]
        if chunk.offsets is None or chunk.column_index is None:
            return RowRanges.all(group.rows)
        firsts = [*chunk.offsets.first_rows, group.rows]
        spans = [
            (start, stop)
            for start, stop in itertools.pairwise(firsts)
            if (row is not None and start <= row < stop)
            or (not keys.is_sorted and keys.may_hold(key, first + start, first + stop))
        ]
        return RowRanges.from_sorted(spans)

    def _index_spans(self, shape: Shape, hits: Sequence[_Hit]) -> Iterable[tuple[int, int]]:
        for hit in hits:
            chunks = shape.groups[hit.ordinal].chunks
            for leaf in (self.key, *self.others):
                span = chunks[leaf].offset_index
                if span is not None:
                    yield span
            bounds = chunks[self.key].column_index
            if bounds is not None and chunks[self.key].offset_index is not None:
                yield bounds

    def _plan(self, shape: Shape, hit: _Hit) -> RowGroupPlan:
        group = shape.groups[hit.ordinal]
        columns = []
        for leaf in (self.key, *self.others):
            chunk = group.chunks[leaf]
            span = _Span(leaf, chunk.start, chunk.stop)
            columns.append(ColumnPlan(leaf, span, chunk.offsets, leaf == self.key, group.rows, hit.rows))
        return RowGroupPlan(hit.ordinal, group.rows, hit.rows, tuple(columns), True)

    def _after_blooms(
        self, shape: Shape, groups: list[tuple[_Hit, RowGroupPlan]], tail_start: int, tally: _Tally
    ) -> list[tuple[_Hit, RowGroupPlan]]:
        """Return the row groups that Bloom filters do not rule out. Filters are fetched only if they may save more than
        they cost."""
        ranges: list[tuple[int, int]] = []
        for hit, _ in groups:
            span = shape.groups[hit.ordinal].chunks[self.key].bloom_filter
            if span is not None and span[0] < tail_start:
                ranges += ChunkFilter(*span, shape.footer_start).ranges([_A_HASH], self.prices.gap_bytes)
        requests = self.prices.requests(ranges)
        size = sum(column.num_bytes for _, plan in groups for column in plan.columns)
        saved = (1 - 1 / (len(groups) + 1)) * size
        if not ranges or saved / self.prices.bandwidth_bytes_s <= self.prices.round_s(requests):
            return groups
        tally.round(requests)
        return [item for item in groups if item[0].row is not None]

    def _fetch(self, groups: list[RowGroupPlan], hits: list[_Hit], tail_start: int, tally: _Tally) -> None:
        size = sum(column.num_bytes for group in groups for column in group.columns)
        whole = size <= self.limits.round_bytes
        units = 1 if whole else -(-size // self.limits.unit_bytes)
        prices, matches = self.prices.shared(self.files), 1 / self.files
        known = estimate(groups, prices, matches, max(-(-min(units, 1) // DECODED_AHEAD), 1))
        late = bool(self.others) and known.two_rounds_s < known.one_round_s
        plan = FetchPlan(tuple(groups), late, self.prices, lambda: known)
        for unit in plan.units(None if whole else self.limits.unit_bytes):
            spans = [(item.start, item.stop) for piece in unit.pieces for item in piece.items]
            tally.round(self.prices.requests([span for span in spans if span[0] < tail_start]))
        if not late:
            return
        spans = []
        for group, hit in zip(groups, hits, strict=True):
            if hit.row is None:
                continue
            for column in group.columns[1:]:
                if column.offsets is None:
                    spans.append((column.chunk.start, column.chunk.stop))
                else:
                    items = column.items(0, [column.offsets.page_of_row(hit.row)], dictionary=True)
                    spans += [(item.start, item.stop) for item in items]
        tally.round(self.prices.requests([span for span in spans if span[0] < tail_start]))


@dataclass(slots=True)
class _Tally:
    """Adds up the requests, bytes and seconds of a lookup, round by round."""

    prices: Prices
    requests: int = 0
    num_bytes: int = 0
    seconds: float = 0.0

    def round(self, spans: Sequence[tuple[int, int]]) -> None:
        """Add one round of concurrent GETs of the byte ranges ``spans``, pairs of start and stop."""
        self.requests += len(spans)
        self.num_bytes += sum([stop - start for start, stop in spans])
        self.seconds += self.prices.round_s(spans)


#: The pages and row groups that asyncpq's own writer makes (``writing.WriteOptions``).
PAGE_ROWS: Final = 8192
PAGE_BYTES: Final = 256 * KIB
GROUP_ROWS: Final = 1 << 20
GROUP_BYTES: Final = 64 * MIB
_LOCATION_BYTES: Final = 11  # of a page in an OffsetIndex, about
_BOUNDS_BYTES: Final = 20  # of a page in a ColumnIndex of numbers
_BLOOM_BITS: Final = 10  # of a value in a Bloom filter, for one false positive in a hundred
_ZONE_ROWS: Final = 1024  # of the zones made of values


def shape_of(layout: FileLayout, key: Leaf) -> Shape:
    """Return the shape of an existing file. Its bounds are those of the column ``key``, by which lookups find rows."""
    version = layout.version
    groups = []
    for group in version.metadata.row_groups:
        chunks = tuple(_chunk(layout, group.ordinal, leaf) for leaf in version.metadata.schema.leaves)
        bounds = layout.bounds.get((group.ordinal, key.index))
        bounded = bounds is not None and (bounds.min is not None or bounds.all_null)
        groups.append(GroupShape(group.num_rows, chunks, bounded))
    return Shape(version.size, version.footer_start, tuple(groups))


def _chunk(layout: FileLayout, ordinal: int, leaf: Leaf) -> ChunkShape:
    place = (ordinal, leaf.index)
    known = layout.chunks.get(place)
    if known is None or not known.chunk.num_values:
        return ChunkShape(4, 4)
    chunk, offsets = known.chunk, layout.indexes.offsets.get(place)
    return ChunkShape(
        chunk.start,
        chunk.stop,
        offsets,
        None if offsets is None else chunk.offset_index_range,
        chunk.column_index_range if place in layout.indexes.zones else None,
        _bloom(layout.version, known),
        (offsets.offsets[0] if offsets is not None and offsets.offsets else chunk.data_page_offset) - chunk.start,
        chunk.total_uncompressed_size,
    )


def _bloom(version: FileVersion, known: IndexedChunk) -> tuple[int, int] | None:
    start, length = known.chunk.bloom_filter_offset, known.chunk.bloom_filter_length
    if start is None or length is None or start + length > version.footer_start:
        return None
    return start, start + length


# -- keys ---------------------------------------------------------------------------------------------


def zones_of(layout: FileLayout, leaf: Leaf) -> KeyZones:
    """Return the zones of a leaf's values: ranges of rows with the min and max of their pages, or of their row
    groups if pages have no bounds."""
    zones: list[Zone] = []
    groups: list[Zone] = []
    for group in layout.version.metadata.row_groups:
        place = (group.ordinal, leaf.index)
        first, stop = group.first_row, group.first_row + group.num_rows
        pages, bounds = layout.indexes.zones.get(place), layout.bounds.get(place)
        if first == stop:
            continue
        if bounds is None or (bounds.min is None and not bounds.all_null):
            groups.append(Zone(first, stop, None, None, known=False))
        else:
            groups.append(_zone(first, stop, bounds.min, bounds.max, known=True))
        if pages is not None:
            firsts = [*layout.indexes.offsets[place].first_rows, group.num_rows]
            known = {page: (low, high) for page, low, high in pages.zones.bounds()}
            for page, (low_row, high_row) in enumerate(itertools.pairwise(firsts)):
                ends = known.get(page, (None, None))
                zones.append(_zone(first + low_row, first + high_row, *ends, known=page not in pages.zones.unknown))
        else:
            zones.append(groups[-1])
    return KeyZones(zones, groups=KeyZones(groups))


def has_chunk_bounds(keys: KeyZones) -> bool:
    """Return whether in most row groups with several pages all pages have the same bounds. Polars 2.1 gives the
    pages of a column with a dictionary the min and max of the whole chunk. So have columns of few values in random
    order."""
    same = several = 0
    pages = [zone for zone in keys.zones if zone.known and zone.low is not None]
    starts = [zone.start for zone in pages]
    for group in () if keys.groups is None else keys.groups.zones:
        inside = pages[bisect_left(starts, group.start) : bisect_left(starts, group.stop)]
        if len(inside) > 1:
            several += 1
            same += inside[0].low != inside[0].high and len({(zone.low, zone.high) for zone in inside}) == 1
    return same * 2 > several


def zones_of_values(values: pa.ChunkedArray, group_rows: Sequence[int]) -> KeyZones:
    """Return zones with the exact bounds of a column's values. Ranks replace the values, so that all types compare
    alike. ``group_rows``: the rows of each row group; no zone spans two row groups."""
    import pyarrow.compute as pc  # takes long to load, and few reports need it

    ranks = pc.rank(values.combine_chunks(), tiebreaker="dense")
    valid = pc.is_valid(values).combine_chunks()
    zones: list[Zone] = []
    edges = itertools.pairwise(itertools.accumulate(group_rows, initial=0))
    starts = [start for low, high in edges for start in range(low, high, _ZONE_ROWS)]
    for start, stop in itertools.pairwise((*starts, len(ranks))):
        some = ranks.slice(start, stop - start).filter(valid.slice(start, stop - start))
        if not len(some):
            zones.append(Zone(start, stop, None, None))
            continue
        ends = pc.min_max(some)
        zones.append(Zone(start, stop, ends["min"].as_py(), ends["max"].as_py(), True, some[len(some) // 2].as_py()))
    return KeyZones(zones)


def _zone(start: int, stop: int, low: Any, high: Any, *, known: bool) -> Zone:
    return Zone(start, stop, low, high, known, None if low is None else middle(low, high))


def middle(low: Any, high: Any) -> Any:
    """Return a value halfway between two bounds, as a typical key of evenly distributed values."""
    if isinstance(low, bool) or low == high:
        return low
    if isinstance(low, bytes):
        length = max(len(low), len(high)) + 1
        ends = [int.from_bytes(value.ljust(length, b"\0"), "big") for value in (low, high)]
        return (sum(ends) // 2).to_bytes(length, "big")
    return (low + high) // 2 if isinstance(low, int) else (low + high) / 2


# -- changes ------------------------------------------------------------------------------------------


def page_count(rows: int, uncompressed: int) -> int:
    """Return the number of pages into which asyncpq's own writer would divide a chunk of ``rows`` rows and
    ``uncompressed`` bytes."""
    return max(-(-rows // PAGE_ROWS), -(-uncompressed // PAGE_BYTES), 1) if rows else 0


def has_large_pages(rows: int, uncompressed: int, pages: int) -> bool:
    """Return whether a chunk has at most half as many pages as asyncpq's own writer would write."""
    return pages * 2 <= page_count(rows, uncompressed)


def with_bloom_filters(shape: Shape, key: int) -> Shape:
    """Return the shape with a Bloom filter of the leaf ``key`` in each row group, in front of the footer."""
    at = shape.footer_start
    groups: list[GroupShape] = []
    for group in shape.groups:
        size = 32 << max(0, (group.rows * _BLOOM_BITS // 256 - 1).bit_length())
        chunk = replace(group.chunks[key], bloom_filter=(at, at + size))
        at += size
        groups.append(replace(group, chunks=_replaced(group.chunks, key, chunk)))
    return Shape(shape.size + at - shape.footer_start, at, tuple(groups))


def with_pages(shape: Shape, counts: Callable[[int, int], int | None], key: int, bound_bytes: int) -> Shape:
    """Return the shape with other numbers of pages in its chunks.

    Args:
        counts: returns the new number of pages for (row group, leaf); None leaves the chunk's pages unchanged.
        key: ordinal of the key column's leaf, whose new pages get bounds.
        bound_bytes: bytes of one bound of the key, in its ColumnIndex.
    """
    groups: list[GroupShape] = []
    sizes: list[int] = []  # of the new indexes
    for ordinal, group in enumerate(shape.groups):
        chunks = list(group.chunks)
        for leaf, chunk in enumerate(chunks):
            count = counts(ordinal, leaf)
            if count is not None and group.rows and chunk.stop > chunk.start:
                chunks[leaf] = replace(chunk, offsets=_even_pages(chunk, group.rows, count), offset_index=(0, 0))
                sizes.append(count * _LOCATION_BYTES + 5)
                if leaf == key:
                    chunks[leaf] = replace(chunks[leaf], column_index=(0, 0))
                    sizes.append(count * (2 * bound_bytes + 4) + 10)
                else:
                    sizes.append(count * _BOUNDS_BYTES + 10)
        groups.append(replace(group, chunks=tuple(chunks)))
    return _placed(replace(shape, groups=tuple(groups)), sizes)


def _even_pages(chunk: ChunkShape, rows: int, count: int) -> OffsetIndex:
    """Return the OffsetIndex of a chunk that is divided into ``count`` pages with equal numbers of rows."""
    if chunk.offsets is not None and chunk.offsets.num_pages == count:
        return chunk.offsets
    per_page = PAGE_ROWS if count == -(-rows // PAGE_ROWS) else -(-rows // count)
    firsts = tuple(range(0, rows, per_page))
    start = chunk.start + chunk.dictionary_bytes
    edges = [start + (chunk.stop - start) * min(row, rows) // rows for row in (*firsts, rows)]
    return OffsetIndex(tuple(edges[:-1]), tuple(high - low for low, high in itertools.pairwise(edges)), firsts)


def _placed(shape: Shape, sizes: Sequence[int]) -> Shape:
    """Return the shape with its new page indexes, marked by the span (0, 0), placed in front of the footer. ``sizes``:
    bytes of each of them."""
    at, added = shape.footer_start, iter(sizes)

    def place(span: tuple[int, int] | None) -> tuple[int, int] | None:
        nonlocal at
        if span != (0, 0):
            return span
        size = next(added, 0)
        at += size
        return at - size, at

    groups = []
    for group in shape.groups:
        chunks = tuple(
            replace(chunk, offset_index=place(chunk.offset_index), column_index=place(chunk.column_index))
            for chunk in group.chunks
        )
        groups.append(replace(group, chunks=chunks))
    total = sum(sizes)
    return Shape(shape.size + total, shape.footer_start + total, tuple(groups))


def with_plain_pages(shape: Shape, leaf: int, page_bytes: Callable[[int], int]) -> Shape:
    """Return the shape with a leaf written without a dictionary.

    ``page_bytes`` returns the bytes of a page, given its number of rows.
    """
    groups = []
    for group in shape.groups:
        chunk = group.chunks[leaf]
        if chunk.offsets is not None and chunk.dictionary_bytes:
            sizes = tuple(page_bytes(count) for count in chunk.offsets.row_counts(group.rows))
            offsets = OffsetIndex(chunk.offsets.offsets, sizes, chunk.offsets.first_rows)
            chunk = replace(chunk, offsets=offsets, dictionary_bytes=0)
        groups.append(replace(group, chunks=_replaced(group.chunks, leaf, chunk)))
    return _packed(replace(shape, groups=tuple(groups)))


def with_smaller_pages(shape: Shape, leaf: int, ratio: float) -> Shape:
    """Return the shape with the bytes of a leaf's pages multiplied by ``ratio``."""
    groups = []
    for group in shape.groups:
        chunk = group.chunks[leaf]
        if chunk.offsets is None:
            chunk = replace(chunk, stop=chunk.start + int((chunk.stop - chunk.start) * ratio))
        else:
            sizes = [max(1, int(size * ratio)) for size in chunk.offsets.sizes]
            chunk = replace(chunk, offsets=OffsetIndex(chunk.offsets.offsets, tuple(sizes), chunk.offsets.first_rows))
        groups.append(replace(group, chunks=_replaced(group.chunks, leaf, chunk)))
    return _packed(replace(shape, groups=tuple(groups)))


def _packed(shape: Shape) -> Shape:
    """Return the shape with chunks, pages and indexes moved together, so that there are no gaps between them."""
    groups: list[GroupShape] = []
    at = old_stop = 4
    for group in shape.groups:
        chunks = list(group.chunks)
        for leaf in sorted(range(len(chunks)), key=lambda leaf: chunks[leaf].start):
            chunk = chunks[leaf]
            old_stop = max(old_stop, chunk.stop)
            if chunk.offsets is None:
                chunks[leaf] = replace(chunk, start=at, stop=at + chunk.stop - chunk.start)
            else:
                *starts, stop = itertools.accumulate(chunk.offsets.sizes, initial=at + chunk.dictionary_bytes)
                offsets = OffsetIndex(tuple(starts), chunk.offsets.sizes, chunk.offsets.first_rows)
                chunks[leaf] = replace(chunk, start=at, stop=stop, offsets=offsets)
            at = chunks[leaf].stop
        groups.append(replace(group, chunks=tuple(chunks)))
    moved = old_stop - at

    def back(span: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if span is None else (span[0] - moved, span[1] - moved)

    return Shape(
        shape.size - moved,
        shape.footer_start - moved,
        tuple(
            replace(
                group,
                chunks=tuple(
                    replace(
                        chunk,
                        offset_index=back(chunk.offset_index),
                        column_index=back(chunk.column_index),
                        bloom_filter=back(chunk.bloom_filter),
                    )
                    for chunk in group.chunks
                ),
            )
            for group in groups
        ),
    )


def _replaced(chunks: Iterable[ChunkShape], leaf: int, chunk: ChunkShape) -> tuple[ChunkShape, ...]:
    return tuple(chunk if at == leaf else other for at, other in enumerate(chunks))


def put_together(shape: Shape, keys: KeyZones, times: int) -> tuple[Shape, KeyZones]:
    """Return the shape and the key zones of one file that has the rows of ``times`` files of this shape, in row
    groups of the size that ``lint`` advises."""
    groups = [group for group in shape.groups if group.rows]
    rows = sum(group.rows for group in groups)
    zones = [
        zone._replace(start=zone.start + number * rows, stop=zone.stop + number * rows)
        for number in range(times)
        for zone in keys.zones
    ]
    size = sum(chunk.stop - chunk.start for group in groups for chunk in group.chunks)
    advised = max(1, min(GROUP_ROWS, int(rows * GROUP_BYTES / max(size, 1)))) if rows else 1
    whole = replace(shape, groups=tuple(groups * times))
    return with_row_groups(whole, advised, 0), KeyZones(zones, keys.is_sorted)


def with_row_groups(shape: Shape, rows: int, per_group: int) -> Shape:
    """Return the shape with row groups of ``rows`` rows. The chunks of each leaf are joined and divided again, with
    the same bytes in all. ``per_group``: bytes that the footer takes for one row group."""
    total = sum(group.rows for group in shape.groups)
    old = [group for group in shape.groups if group.rows]
    if not old:
        return shape
    count = -(-total // rows)
    groups: list[GroupShape] = []
    at = 4
    for number in range(count):
        stop = min((number + 1) * rows, total)
        chunks = []
        for leaf in range(len(old[0].chunks)):
            chunk = _cut_chunk([group.chunks[leaf] for group in old], at, stop - number * rows, total)
            chunks.append(chunk)
            at = chunk.stop
        groups.append(GroupShape(stop - number * rows, tuple(chunks), all(group.bounded for group in old)))
    footer = shape.size - shape.footer_start - per_group * (len(shape.groups) - count)
    sizes = [
        chunk.offsets.num_pages * width + 10
        for group in groups
        for chunk in group.chunks
        if chunk.offsets is not None
        for width in ((_LOCATION_BYTES, _BOUNDS_BYTES) if chunk.column_index else (_LOCATION_BYTES,))
    ]
    return _placed(Shape(at + max(footer, 100), at, tuple(groups)), sizes)


def _cut_chunk(old: Sequence[ChunkShape], at: int, rows: int, total: int) -> ChunkShape:
    """Return a chunk that begins at the byte ``at`` and has ``rows`` of the ``total`` rows in ``old``, a leaf's
    chunks."""
    share = rows / total
    size = round(sum(chunk.stop - chunk.start for chunk in old) * share)
    plain = round(sum(chunk.plain_bytes for chunk in old) * share)
    dictionary = min(max(chunk.dictionary_bytes for chunk in old), size // 2)
    chunk = ChunkShape(at, at + size, dictionary_bytes=dictionary, plain_bytes=plain)
    located = [known.offsets for known in old]
    if None in located:
        return chunk
    pages = sum(offsets.num_pages for offsets in located if offsets is not None) * share
    return replace(
        chunk,
        offsets=_even_pages(chunk, rows, max(1, min(round(pages), page_count(rows, plain)))),
        offset_index=(0, 0),
        column_index=(0, 0) if all(known.column_index for known in old) else None,
    )


Weakness = Literal[
    "statistics-not-believed",
    "no-statistics",
    "missing-bounds",
    "truncated-bounds",
    "chunk-bounds",
    "no-bloom-filter",
    "random-order",
]
MANY_GROUPS: Final = 4  # row groups of which Bloom filters rule out most
MOST_LEAVES: Final = 200  # of which the order is examined


def weakness(layout: FileLayout, leaf: Leaf, *, equality: bool) -> Weakness:
    """Return why the bounds of a leaf leave rows in many pages to a condition that few rows match. ``equality``: the
    condition asks for values, not for a range."""
    shape, zones = shape_of(layout, leaf), zones_of(layout, leaf)
    if without_statistics(shape):
        return "no-statistics" if disbelieved(layout, leaf) is None else "statistics-not-believed"
    if any(not zone.known for zone in zones.zones):
        return "missing-bounds"
    if truncated(zones.zones):
        return "truncated-bounds"
    if has_chunk_bounds(zones):
        return "chunk-bounds"
    if equality and is_clustered_by_another(layout, leaf, shape):
        return "no-bloom-filter"
    return "random-order"


def without_statistics(shape: Shape) -> int:
    """Return the number of row groups without usable statistics of the key."""
    return sum(1 for group in shape.groups if group.rows and not group.bounded)


def disbelieved(layout: FileLayout, leaf: Leaf) -> str | None:
    """Return why reads do not use the leaf's statistics although the file has them; None if reads use them."""
    start = f"{leaf.dotted}: statistics not used, "
    return next((text.removeprefix(start) for text in layout.metrics.fallbacks if text.startswith(start)), None)


def truncated(zones: Sequence[Zone]) -> bool:
    """Return whether the bounds are probably truncated: in most zones, min and max are equal or differ only in the
    last byte."""
    known = [zone for zone in zones if isinstance(zone.low, bytes) and len(zone.low) >= 16]
    same = sum(zone.low[:-1] == zone.high[: len(zone.low) - 1] for zone in known)
    return len(known) > 1 and same * 2 > len(known)


def is_clustered_by_another(layout: FileLayout, leaf: Leaf, shape: Shape) -> bool:
    """Return whether row groups follow one another in the order of another leaf, such as a time, and have no Bloom
    filter of this one: rows need not lose their order if Bloom filters rule out row groups."""
    groups = [group for group in shape.groups if group.rows]
    if len(groups) < MANY_GROUPS or any(group.chunks[leaf.index].bloom_filter for group in groups):
        return False
    leaves = layout.version.metadata.schema.leaves[:MOST_LEAVES]
    return any(sorted_as(layout.leaf_zones(other)) is not None for other in leaves if other.index != leaf.index)
