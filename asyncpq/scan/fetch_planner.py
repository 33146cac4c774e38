"""What a read fetches: prune row groups, fetch the page indexes that help, prune pages, probe Bloom filters.

This module decides whether the data of a read are fetched in one round or in two (``FetchPlanner._late``). One round
sends all range GETs at once. Two rounds fetch the filter's columns first, then only those pages of the other columns
that hold matching rows; they are chosen if the bytes that this may save outweigh the second round.

Two column chunks that claim the same bytes are refused if one read asks for both: nothing shows which of them is
wrong. A read that asks for one of them is unaffected.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from math import ceil
from operator import attrgetter
from typing import Final

from asyncpq.errors import CorruptFileError
from asyncpq.expressions import And, Comparison, Constant, Expression, In, KeyIn, Or
from asyncpq.expressions.analysis import Truth, texts_needed
from asyncpq.objects.bloom_filters import RowGroupFilters, may_have_filters, row_group_filters
from asyncpq.objects.object_read import FileRead
from asyncpq.objects.page_indexes import IndexRequest, PageIndexes, indexed_chunk
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import (
    DECODED_AHEAD,
    MANY_ROWS,
    BloomReport,
    ColumnPlan,
    Estimates,
    FetchPlan,
    PruningReport,
    RowGroupPlan,
    estimate,
    skips_pages,
)
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.access_plan import ResolvedAccess
from asyncpq.pruning.literals import TEXTS
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import KnownValues, PageZones, RowGroupPruning, RowGroupZones, rows_where
from asyncpq.records import dataclass
from asyncpq.scan.column_resolution import ReadColumns
from asyncpq.scan.request import predicate_steps


def refuse_overlaps(row_groups: Iterable[RowGroupPlan], leaves: Sequence[Leaf]) -> None:
    """Raise CorruptFileError if two column chunks that the read fetches share bytes. Other chunks are not checked."""
    chunks = [column.chunk for group in row_groups for column in group.columns]
    spans = sorted([(chunk.start, chunk.stop, chunk.leaf) for chunk in chunks if chunk.start < chunk.stop])
    for (_, stop, leaf), (following, end, other) in itertools.pairwise(spans):
        if following < stop:
            raise CorruptFileError(
                f"column chunks of {leaves[leaf].dotted!r} and {leaves[other].dotted!r} claim the same bytes",
                byte_range=(following, min(stop, end)),
            )


_WEIGHT: Final = attrgetter("weight")
_NONE: Final = RowRanges.empty()
_KEPT_GROUPS: Final = 32  # row groups whose index requests are kept for each combination of columns
_GROUP_STEPS: Final = 0.1  # that a row group takes without its columns
_PAGES_A_STEP: Final = 64  # are searched and checked in the time of a step of Runtime.off_loop
_MOST_TEXTS: Final = 2  # that pages are searched for: each takes half of the time that is saved


@dataclass(slots=True, eq=False)
class FetchPlanner:
    """Plans what a request fetches from one version of a file. The request's names are resolved to columns.

    ``where`` is the filter; statistics are compared with ``prune``. Both are simplified. Every row that satisfies
    ``where`` also satisfies ``prune``, whose form may let statistics exclude more rows.
    """

    read: FileRead
    columns: ReadColumns  # those to return, and those of ``where``
    rows: ResolvedAccess  # those that may be read, by row group
    where: Expression | None
    prune: Expression | None
    limit: int | None
    rows_only: bool  # matching rows are counted, those that are proven to match from statistics alone
    files: int = 1  # similar ones that the same call reads, this one included

    async def plan(self) -> FetchPlan:
        """Return the plan of what to fetch. Fetches the page indexes and Bloom filters that may help."""
        read, version, metrics = self.read, self.read.version, self.read.metrics
        if version.decryption is not None:
            metrics.fall_back("encrypted, whole column chunks are read through pyarrow")
        if isinstance(self.where, Constant) and self.where.value is True:
            self.where = None
        pruned_before = isinstance(self.prune, Constant)
        if self.prune is None or self.where is None:
            self.prune = self.where
        in_thread = read.source.runtime.in_thread
        steps = 0 if type(self.prune) is Comparison else predicate_steps(self.prune)
        num_chunks = len(version.metadata.row_groups) * (len(self.columns.bounded) or _GROUP_STEPS) + steps
        few = num_chunks <= INLINE_STEPS
        kept, statistics, candidates = self._row_groups() if few else await in_thread(self._row_groups)
        proven, rows_known = _NONE, 0
        # The keys of a lookup hardly ever match all rows of a row group, so lookups skip this search.
        if read.scan or self.rows_only:
            prove = partial(self._proven, candidates, statistics)
            proven, rows_known, candidates = prove() if few else await in_thread(prove)
        filters = None
        if self.columns.with_filters is not False and candidates:
            filters = self._filters() if few else await in_thread(self._filters)
        if filters is not None:
            await filters.rule_out([ordinal for ordinal, _ in candidates if ordinal not in proven])
            candidates = [item for item in candidates if item[0] not in filters.dropped]
        filtered = self.where is not None
        to_filter: list[tuple[int, RowRanges, bool]] = []
        for ordinal, rows in candidates:
            to_filter.append((ordinal, rows, filtered and (proven is _NONE or ordinal not in proven)))
        num_chunks = len(to_filter) * ((len(self.columns.leaves) or _GROUP_STEPS) + steps)
        list_indexes = partial(self._index_requests, to_filter, pruned_before=pruned_before)
        wanted = list_indexes() if num_chunks <= INLINE_STEPS else await in_thread(list_indexes)
        indexes = PageIndexes(read)
        if wanted:
            await indexes.fetch(wanted)
        for locations in indexes.offsets.values():
            num_chunks += len(locations.first_rows) // _PAGES_A_STEP
        values = None if statistics is None else statistics.values
        make_plans = partial(self._row_group_plans, to_filter, indexes, values)
        groups, late = make_plans() if num_chunks <= INLINE_STEPS else await in_thread(make_plans)
        bloom: BloomReport | None = None
        if filters is not None:
            await filters.rule_out([group.ordinal for group in groups if group.filtered], _stakes(groups, late))
            bloom = filters.report()
            groups = [group for group in groups if group.ordinal not in bloom.dropped]
            late = self._late(groups)
        make_report = partial(self._report, groups, kept.num_rows, bloom)
        report = make_report() if num_chunks <= INLINE_STEPS else await in_thread(make_report)
        if version.has_grown:
            read.source.keep(version)
        learnt = _learnt(groups, indexes) if indexes.learnt else ()
        estimates = partial(self._estimates, groups)
        return FetchPlan(tuple(groups), late, read.prices, estimates, report, statistics, bloom, learnt, rows_known)

    def _refuse_overlaps(self, groups: list[RowGroupPlan]) -> None:
        """Do what :func:`refuse_overlaps` does. For a single row group the check is made once, and then remembered."""
        place = (groups[0].ordinal, groups[0].filtered) if len(groups) == 1 else None
        if place not in self.columns.apart:
            refuse_overlaps(groups, self.read.version.metadata.schema.leaves)
            if place is not None:
                self.columns.apart.add(place)

    def _row_groups(self) -> tuple[RowRanges, RowGroupPruning | None, list[tuple[int, RowRanges]]]:
        """Return the ordinals of the row groups that may have matching rows; how statistics pruned, None if they were
        not used; and the row groups to read, with their rows."""
        metrics, num_groups = self.read.metrics, len(self.read.version.metadata.row_groups)
        metrics.row_groups_total = num_groups
        if isinstance(self.where, Constant):  # false or null: no row matches
            return _NONE, None, []
        accessed = self.rows.ordinals if self.rows.selected else self.rows.scanned
        if self.prune is None:
            return accessed, None, _candidates(self.rows, accessed, self.limit if self.where is None else None)
        trust = self.read.source.runtime.options.read.trust_statistics
        zones = (self.columns.zones or row_group_zones(self.read.version, self.columns)) if trust else {}
        verdict = RowGroupPruning(self.prune, zones, num_groups)
        if verdict.kept.num_rows == num_groups:
            for reason in verdict.reasons:
                metrics.fall_back(reason)
        kept = verdict.kept if accessed.num_rows == num_groups else accessed & verdict.kept
        return kept, verdict, _candidates(self.rows, kept, None)

    def _proven(
        self, candidates: list[tuple[int, RowRanges]], statistics: RowGroupPruning | None
    ) -> tuple[RowRanges, int, list[tuple[int, RowRanges]]]:
        """Return the ordinals of the row groups all of whose rows are proven to match; how many rows need not be read,
        since they are only counted; and the row groups that are left to read."""
        if statistics is None or self.prune is not self.where:
            return _NONE, 0, candidates
        proven = statistics.all_match
        if not proven:
            return _NONE, 0, candidates
        self.read.metrics.row_groups_proven = sum([ordinal in proven for ordinal, _ in candidates])
        if not self.rows_only:
            return proven, 0, candidates
        left = [item for item in candidates if item[0] not in proven]
        return proven, sum([rows.num_rows for ordinal, rows in candidates if ordinal in proven]), left

    def _filters(self) -> RowGroupFilters | None:
        """Return the Bloom filters that may rule out row groups; None if no such filter exists."""
        columns = self.columns
        if columns.with_filters is None:
            columns.with_filters = may_have_filters(self.read.version, columns.bounded.values())
        if not columns.with_filters:
            return None
        return row_group_filters(self.read, self.prune, columns.bounded)

    def _index_requests(
        self, candidates: Sequence[tuple[int, RowRanges, bool]], *, pruned_before: bool
    ) -> list[IndexRequest]:
        """Return requests for page indexes that may rule out pages: by the filter, or because only some rows are read.

        ``candidates`` are the row groups to read: ordinal, rows, and whether the filter applies to them.
        ``pruned_before``: an index of the dataset has applied the filter to pages, so the bounds of pages are not
        needed.
        """
        wanted: list[IndexRequest] = []
        where, columns = self.where, self.columns
        if where is None and self.limit is None and not self.rows.selected:
            return wanted
        bounded: set[int] = set()
        if where is not None and not pruned_before and self.read.source.runtime.options.read.trust_statistics:
            bounded = columns.bounded_leaves
        for ordinal, rows, filtered in candidates:
            if filtered:
                wanted += columns.requests.get((ordinal, bool(bounded))) or self._requests_of(ordinal, bounded)
            elif (where is not None and self.limit is not None) or self._skips_pages(ordinal, rows):
                wanted += [IndexRequest(ordinal, item.leaf, False) for item in columns.unfiltered]
        return wanted

    def _requests_of(self, ordinal: int, bounded: Collection[int]) -> list[IndexRequest]:
        """Return the requests for the page indexes of a row group to which the filter applies; for the leaf columns
        ``bounded`` with their bounds. Lookups that differ only in their keys share them."""
        columns = self.columns
        requests = [IndexRequest(ordinal, item.leaf, item.leaf in bounded) for item in columns.leaves]
        if bounded:
            requests += [IndexRequest(ordinal, leaf.index, True) for leaf in columns.covering]
        if len(columns.requests) >= _KEPT_GROUPS:
            columns.requests.clear()
        columns.requests[ordinal, bool(bounded)] = requests
        return requests

    def _skips_pages(self, ordinal: int, rows: RowRanges) -> bool:
        """Return whether it is worth reading a row group page by page to get only ``rows``; the filter does not apply
        to them."""
        chunks = (indexed_chunk(self.read.version, ordinal, item.leaf) for item in self.columns.unfiltered)
        num_rows = self.read.version.metadata.row_groups[ordinal].num_rows
        return skips_pages(rows, num_rows, chunks, self.read.prices.gap_bytes)

    def _row_group_plans(
        self, candidates: Sequence[tuple[int, RowRanges, bool]], indexes: PageIndexes, values: KnownValues | None
    ) -> tuple[list[RowGroupPlan], bool]:
        """Return two things: the plans of the row groups that have rows to read, with the pages that may match
        according to the page indexes; and whether to fetch the filter's columns first."""
        groups: list[RowGroupPlan] = []
        texts: dict[int, tuple[bytes, ...]] | None = None
        for ordinal, rows, filtered in candidates:
            num_rows = self.read.version.metadata.row_groups[ordinal].num_rows
            if self.prune is not None and indexes.zones:
                zones: dict[str, PageZones] = {}
                for name, bounded in self.columns.bounded.items():
                    known = indexes.zones.get((ordinal, bounded.index))
                    if known is not None:
                        zones[name] = known
                matching = rows_where(self.prune, Truth.TRUE, num_rows, zones, values)
                rows = matching if rows.num_rows == num_rows else rows & matching
            if not rows.starts:
                continue
            if texts is None and filtered and rows.num_rows >= MANY_ROWS:
                texts = self._texts()
            plans: list[ColumnPlan] = []
            for leaf, field, predicate, repeated in self.columns.leaves if filtered else self.columns.unfiltered:
                span = indexes.spans.get((ordinal, leaf)) or indexed_chunk(self.read.version, ordinal, leaf)
                offsets = indexes.offsets.get((ordinal, leaf))
                needed = texts.get(leaf, ()) if texts and predicate else ()
                plans.append(ColumnPlan(field, span, offsets, predicate, num_rows, rows, repeated, needed))
            groups.append(RowGroupPlan(ordinal, num_rows, rows, tuple(plans), filtered))
        return groups, self._late(groups)

    def _texts(self) -> dict[int, tuple[bytes, ...]]:
        """Return, by leaf column, the texts that matching values must contain (:func:`texts_needed`)."""
        if self.prune is None:
            return {}
        leaves = {
            name: leaf.index
            for name, leaf in self.columns.bounded.items()
            if leaf.physical_type is PhysicalType.BYTE_ARRAY
        }
        needed = texts_needed(self.prune, leaves, TEXTS, most=_MOST_TEXTS)
        return {leaves[name]: tuple(sorted(texts)) for name, texts in needed.items()}

    def _late(self, groups: list[RowGroupPlan]) -> bool:
        """Return whether to fetch the filter's columns first and the others late. This costs one more round, and saves
        the pages of other columns that have no matching row."""
        options, leaves, prices = self.read.source.runtime.options, self.columns.leaves, self.read.prices
        if not leaves or not leaves[0].predicate or leaves[-1].predicate:
            return False  # the filter's stand first
        if options.requests.late_materialization != "auto":
            return options.requests.late_materialization == "always"
        # A second round saves at most the cost of the other columns' own round, so most lookups need no estimate.
        num_bytes = num_ranges = 0
        for group in groups:
            if group.filtered:
                count = 0
                for column in group.columns:
                    if not column.predicate:
                        num_bytes += column.num_bytes
                        count += 1
                num_ranges += count * (len(group.rows.starts) + 1)  # a dictionary, and the pages of each run
        if self.files > 1:
            prices, _ = self._share()
        request_s = prices.request_s + prices.latency_s / prices.connections
        if num_bytes / prices.bandwidth_bytes_s + num_ranges * request_s <= prices.latency_s:
            return False
        known = self._estimates(groups)
        return known.two_rounds_s < known.one_round_s

    def _estimates(self, groups: Sequence[RowGroupPlan]) -> Estimates:
        """Estimate how long reading ``groups`` takes with each strategy: one round, two rounds, whole chunks."""
        limits = self.read.source.runtime.options.limits
        size = sum([column.num_bytes for group in groups for column in group.columns])
        units = -(-size // limits.unit_bytes) if self.read.scan or size > limits.round_bytes else 1
        prices, matches = self._share()
        # A unit without a matching row fetches no late columns, and some units wait for theirs at the same time.
        waiting = units if matches is None else min(units, ceil(matches))
        return estimate(groups, prices, matches, max(-(-waiting // DECODED_AHEAD), 1))

    def _share(self) -> tuple[Prices, float | None]:
        """Return the prices for this file beside the call's other files, and how many rows are expected to match in it
        (None if unknown). Looked-up values may be in any of the files."""
        matches = _expected_matches(self.where)
        return (
            (self.read.prices, None) if matches is None else (self.read.prices.shared(self.files), matches / self.files)
        )

    def _report(self, groups: list[RowGroupPlan], kept: int, bloom: BloomReport | None) -> PruningReport:
        """Return how many row groups, pages and rows pruning kept. ``kept``: the number of row groups after statistics.
        Raises CorruptFileError if chunks of the read share bytes."""
        if not self.read.version.padded_chunks:
            self._refuse_overlaps(groups)
        pages = pages_kept = rows_kept = 0
        for group in groups:
            rows_kept += group.rows.num_rows
            for column in group.columns:
                if column.offsets is not None:
                    pages += len(column.offsets.offsets)
                    pages_kept += len(column.pages)
        version, rows, metrics = self.read.version, self.rows, self.read.metrics
        if version.drops or version.metadata.dropped:
            metrics.fall_back_all(version.dropped([item.leaf for item in self.columns.leaves]))
        metrics.row_groups_by_bloom = 0 if bloom is None else bloom.dropped.num_rows
        metrics.row_groups_read = len(groups)
        metrics.pages_total = pages
        return PruningReport(
            row_groups=len(version.metadata.row_groups),
            row_groups_accessed=rows.scanned.num_rows + len(rows.selected),
            row_groups_after_statistics=kept,
            row_groups_by_bloom=metrics.row_groups_by_bloom,
            row_groups_kept=len(groups),
            row_groups_proven=metrics.row_groups_proven,
            pages=pages,
            pages_kept=pages_kept,
            rows=version.metadata.num_rows,
            rows_accessed=rows.layout.num_rows if rows is version.all_rows else rows.num_rows,
            rows_kept=rows_kept,
        )


def row_group_zones(version: FileVersion, columns: ReadColumns) -> dict[str, RowGroupZones]:
    """Return, by column name, the bounds in all row groups of the columns that can prune. They are computed once for
    ``columns``."""
    if columns.zones is None:
        columns.zones = {name: row_group_zone(version, leaf) for name, leaf in columns.bounded.items()}
    return columns.zones


def row_group_zone(version: FileVersion, leaf: Leaf) -> RowGroupZones:
    """Return the bounds of one leaf column in all row groups. They are computed once for each version."""
    zones: RowGroupZones = version.derived(
        ("row group zones", leaf.index), partial(RowGroupZones, version.metadata, leaf), _WEIGHT
    )
    return zones


def _candidates(rows: ResolvedAccess, kept: RowRanges, limit: int | None) -> list[tuple[int, RowRanges]]:
    """Return (ordinal, rows to read) for the row groups ``kept``. With ``limit``, at most that many rows in all.

    Row groups after the limit, or between the selected rows, are skipped: a file may have thousands.
    """
    candidates: list[tuple[int, RowRanges]] = []
    layout = rows.layout
    for start, stop in zip(kept.starts, kept.stops, strict=True):
        for ordinal in range(start, stop):
            wanted = rows.selected.get(ordinal) if rows.selected else layout.wholes.get(ordinal)
            if wanted is None:
                wanted = layout.whole(ordinal)
            if limit is not None:
                if limit <= 0:
                    return candidates
                wanted = wanted.slice(0, limit)
                limit -= wanted.num_rows
            candidates.append((ordinal, wanted))
    return candidates


def _expected_matches(expr: Expression | None) -> int | None:
    """Return how many rows ``expr`` is expected to match: one for each value that it looks up. None if it has other
    conditions that decide."""
    if isinstance(expr, Comparison):
        return 1 if expr.op == "==" else None
    if isinstance(expr, (In, KeyIn)):
        return len(expr.values)
    if not isinstance(expr, (And, Or)):
        return None
    counts = [_expected_matches(part) for part in expr.args]
    known = [count for count in counts if count is not None]
    if isinstance(expr, And):
        return min(known, default=None)
    return sum(known) if len(known) == len(counts) else None


def _stakes(groups: list[RowGroupPlan], late: bool) -> dict[int, int]:
    """Return, by ordinal of the row group, the bytes that are fetched first, which ruling out the row group
    would save."""
    return {
        group.ordinal: sum([column.num_bytes for column in group.columns if column.predicate or not late])
        for group in groups
    }


def _learnt(groups: list[RowGroupPlan], indexes: PageIndexes) -> tuple[int, ...]:
    """Return the ordinals of the fields whose page locations were learnt from earlier reads of their chunks, not read
    from an index."""
    fields = [
        column.field
        for group in groups
        for column in group.columns
        if column.offsets is not None and (group.ordinal, column.chunk.leaf) in indexes.learnt
    ]
    return tuple(dict.fromkeys(fields))
