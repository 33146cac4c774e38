"""Predict the requests, bytes and seconds of one lookup in one file from the file's layout alone.

A :class:`Shape` has the locations of a file's chunks, pages and indexes. :class:`KeyZones` say which rows may have
which keys. The prediction is for a session with empty caches. It counts the first GET, the rest of the footer and of
the page indexes, Bloom filters, and the data. The planner's own code (``objects.read_plan``, ``objects.prices``)
chooses pages and merges requests, so predictions for a layout that does not exist yet agree with later reads of it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from asyncpq.objects.bloom_filters import ChunkFilter
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import DECODED_AHEAD, ColumnPlan, FetchPlan, RowGroupPlan, estimate
from asyncpq.objects.runtime import TailSizes
from asyncpq.options import LimitOptions
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges

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
        """Return the size of the first GET of a file, at its end (see ``objects.runtime.TailSizes``)."""
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
        for unit in plan.units(1 << 62 if whole else self.limits.unit_bytes):
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
