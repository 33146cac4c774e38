"""The page planner: prune row groups, fetch the page indexes that help, prune pages, probe Bloom filters.

A warm lookup sends all its range GETs at once. Fetching the predicate's columns first costs a second round; it is
chosen only if the bytes that it may save outweigh that round.

Two column chunks that claim the same bytes are refused if one read asks for both: nothing shows which of them is
wrong. A read that asks for one of them is unaffected.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from asyncpq.errors import CorruptFileError
from asyncpq.expressions import Constant, Expression
from asyncpq.expressions.analysis import Truth
from asyncpq.objects.bloom_filters import RowGroupFilters, may_have_filters, row_group_filters
from asyncpq.objects.page_indexes import IndexRequest, PageIndexes, fetch_page_indexes, indexed_chunk
from asyncpq.objects.read_plan import BloomReport, ColumnPlan, FetchPlan, PruningReport, RowGroupPlan, skips_pages
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.access_plan import ResolvedAccess
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import PageZones, RowGroupPruning, RowGroupZones, prune_row_groups
from asyncpq.pruning.zones import rows_where
from asyncpq.scan.column_resolution import ReadColumns
from asyncpq.storage.base import RequestContext


def refuse_overlaps(row_groups: Iterable[RowGroupPlan], leaves: Sequence[Leaf]) -> None:
    """Hold that no two chunks that are read share bytes; chunks that are not read do not matter. Raises
    CorruptFileError: two do."""
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


class ResolvedRequest(NamedTuple):
    """A request whose names are resolved against one version."""

    columns: ReadColumns  # those to return, and those of ``where``
    rows: ResolvedAccess  # those that may be read, by row group
    where: Expression | None = None  # the predicate that rows must satisfy, simplified; or None
    prune: Expression | None = None  # what to prune by instead, implied by ``where`` and simplified; or None
    limit: int | None = None  # rows wanted, or None
    rows_only: bool = False  # matching rows are counted, those that are proven to match from statistics alone


async def plan_read(
    source: ObjectSource, version: FileVersion, query: ResolvedRequest, context: RequestContext
) -> FetchPlan:
    """Decide what to fetch for ``query``; fetches page indexes and bloom filters where they may help. Raises
    StoreError, ObjectChangedError, FormatError: indexes or filters could not be had."""
    if version.decryption is not None:
        context.metrics.fall_back("encrypted, whole column chunks are read through pyarrow")
    where = query.where
    if isinstance(where, Constant) and where.value is True:
        where = None
    prune = where if query.prune is None or where is None else query.prune
    trust = source.runtime.options.read.trust_statistics
    left, statistics = _row_groups(version, query, where, prune, context, trust=trust)
    candidates = _candidates(query.rows, left, query.limit if where is None else None)
    proven = _NONE
    # The keys of a lookup hardly ever fill a row group: it is spared the search.
    if statistics is not None and prune is where and (context.scan or query.rows_only):
        proven = statistics.all_match
    rows_known = 0
    if proven is not _NONE and proven:
        candidates, rows_known = _without_proven(query, candidates, proven, context)
    filters = None
    if query.columns.with_filters is not False and candidates:
        filters = _filters(source, version, prune, query.columns, context)
    if filters is not None:
        await filters.rule_out([ordinal for ordinal, _ in candidates if ordinal not in proven])
        candidates = [item for item in candidates if item[0] not in filters.dropped]
    indexes = await _fetch_indexes(source, version, query, where, candidates, proven, context)
    groups = _row_group_plans(version, query, where, prune, candidates, proven, indexes)
    late = _late(source, groups, query)
    bloom: BloomReport | None = None
    if filters is not None:
        await filters.rule_out([group.ordinal for group in groups if group.filtered], _stakes(groups, late))
        bloom = filters.report()
        if bloom.dropped:
            groups = [group for group in groups if group.ordinal not in bloom.dropped]
            late = _late(source, groups, query)
    if not version.padded_chunks:
        refuse_overlaps(groups, version.metadata.schema.leaves)
    if version.has_grown:
        source.keep(version)
    if version.drops or version.metadata.dropped:
        context.metrics.fall_back_all(version.dropped([item.leaf for item in query.columns.leaves]))
    report = _report(version, query.rows, groups, left.num_rows, bloom, context)
    learnt = _learnt(groups, indexes) if indexes.learnt else ()
    return FetchPlan(tuple(groups), late, report, statistics, bloom, learnt, rows_known)


def _without_proven(
    query: ResolvedRequest, candidates: list[tuple[int, RowRanges]], proven: RowRanges, context: RequestContext
) -> tuple[list[tuple[int, RowRanges]], int]:
    """The row groups to read, and how many rows of others match: rows that are only counted need not be read."""
    context.metrics.row_groups_proven = sum([ordinal in proven for ordinal, _ in candidates])
    if not query.rows_only:
        return candidates, 0
    rows_known = sum([rows.num_rows for ordinal, rows in candidates if ordinal in proven])
    return [item for item in candidates if item[0] not in proven], rows_known


def _filters(
    source: ObjectSource,
    version: FileVersion,
    prune: Expression | None,
    columns: ReadColumns,
    context: RequestContext,
) -> RowGroupFilters | None:
    """The Bloom filters that may rule out row groups; None without any."""
    if columns.with_filters is None:
        columns.with_filters = may_have_filters(version, columns.bounded.values())
    return row_group_filters(source, version, prune, columns.bounded, context) if columns.with_filters else None


def _row_group_plans(
    version: FileVersion,
    query: ResolvedRequest,
    where: Expression | None,
    prune: Expression | None,
    candidates: Sequence[tuple[int, RowRanges]],
    proven: RowRanges,
    indexes: PageIndexes,
) -> list[RowGroupPlan]:
    """The row groups and pages that may match by the page indexes."""
    groups: list[RowGroupPlan] = []
    for ordinal, rows in candidates:
        if prune is not None and indexes.zones:
            zones: dict[str, PageZones] = {}
            for name, leaf in query.columns.bounded.items():
                known = indexes.zones.get((ordinal, leaf.index))
                if known is not None:
                    zones[name] = known
            rows &= rows_where(prune, Truth.TRUE, version.metadata.row_groups[ordinal].num_rows, zones)
        if rows:
            filtered = where is not None and (proven is _NONE or ordinal not in proven)
            groups.append(_plan_row_group(version, query, ordinal, rows, indexes, filtered))
    return groups


async def _fetch_indexes(
    source: ObjectSource,
    version: FileVersion,
    query: ResolvedRequest,
    where: Expression | None,
    candidates: Sequence[tuple[int, RowRanges]],
    proven: RowRanges,
    context: RequestContext,
) -> PageIndexes:
    """Those that rule out pages: for the filter, or since of a row group not all rows are wanted."""
    if where is None and query.limit is None and not query.rows.selected:
        return PageIndexes()
    wanted: list[IndexRequest] = []
    bounded: set[int] = set()
    prunes = not isinstance(query.prune, Constant)  # else whoever asks has done that
    if where is not None and prunes and source.runtime.options.read.trust_statistics:
        bounded = {leaf.index for leaf in query.columns.bounded.values()}
    for ordinal, rows in candidates:
        if where is not None and (proven is _NONE or ordinal not in proven):
            wanted += [IndexRequest(ordinal, item.leaf, item.leaf in bounded) for item in query.columns.leaves]
        elif (where is not None and query.limit is not None) or _skips_pages(source, version, query, ordinal, rows):
            wanted += [IndexRequest(ordinal, item.leaf, False) for item in query.columns.unfiltered]
    return await fetch_page_indexes(source, version, wanted, context)


def _skips_pages(
    source: ObjectSource, version: FileVersion, query: ResolvedRequest, ordinal: int, rows: RowRanges
) -> bool:
    """Whether to look for pages of a row group without any of ``rows``, which are not to be filtered."""
    chunks = (indexed_chunk(version, ordinal, item.leaf).span for item in query.columns.unfiltered)
    num_rows = version.metadata.row_groups[ordinal].num_rows
    return skips_pages(rows, num_rows, chunks, source.runtime.options.requests.gap_bytes)


def _row_groups(
    version: FileVersion,
    query: ResolvedRequest,
    where: Expression | None,
    prune: Expression | None,
    context: RequestContext,
    *,
    trust: bool,
) -> tuple[RowRanges, RowGroupPruning | None]:
    """Ordinals of the row groups that may hold wanted rows; and what statistics said."""
    groups = version.metadata.row_groups
    context.metrics.row_groups_total = len(groups)
    if isinstance(where, Constant):  # false or null: no row matches
        return RowRanges.empty(), None
    asked = query.rows.ordinals if query.rows.selected else query.rows.scanned
    if prune is None:
        return asked, None
    zones = row_group_zones(version, query.columns) if trust else {}
    verdict = prune_row_groups(prune, zones, len(groups))
    if verdict.kept.num_rows == len(groups):
        for reason in verdict.reasons:
            context.metrics.fall_back(reason)
    return asked & verdict.kept, verdict


def row_group_zones(version: FileVersion, columns: ReadColumns) -> dict[str, RowGroupZones]:
    """Statistics of the row groups for the columns with bounds, by name; made once."""
    if columns.zones is None:
        columns.zones = {
            name: version.derived(
                ("row group zones", leaf.index), partial(RowGroupZones, version.metadata, leaf), _WEIGHT
            )
            for name, leaf in columns.bounded.items()
        }
    return columns.zones


def _candidates(rows: ResolvedAccess, left: RowRanges, limit: int | None) -> list[tuple[int, RowRanges]]:
    """Rows of interest in the row groups ``left``, no more than ``limit``.

    Row groups behind the limit, or between the selected rows, are skipped: a file may have thousands.
    """
    found: list[tuple[int, RowRanges]] = []
    layout = rows.layout
    for start, stop in zip(left.starts, left.stops, strict=True):
        for ordinal in range(start, stop):
            wanted = rows.selected.get(ordinal) if rows.selected else layout.wholes.get(ordinal)
            if wanted is None:
                wanted = layout.whole(ordinal)
            if limit is not None:
                if limit <= 0:
                    return found
                wanted = wanted.slice(0, limit)
                limit -= wanted.num_rows
            found.append((ordinal, wanted))
    return found


def _plan_row_group(
    version: FileVersion, query: ResolvedRequest, ordinal: int, rows: RowRanges, indexes: PageIndexes, filtered: bool
) -> RowGroupPlan:
    num_rows = version.metadata.row_groups[ordinal].num_rows
    leaves = query.columns.leaves if filtered else query.columns.unfiltered
    plans = [
        ColumnPlan(
            item.field,
            indexes.spans.get((ordinal, item.leaf)) or indexed_chunk(version, ordinal, item.leaf).span,
            indexes.offsets.get((ordinal, item.leaf)),
            item.predicate,
            num_rows,
            rows,
        )
        for item in leaves
    ]
    return RowGroupPlan(ordinal, num_rows, rows, tuple(plans), filtered)


def _late(source: ObjectSource, groups: list[RowGroupPlan], query: ResolvedRequest) -> bool:
    """Whether to fetch the filter's columns first: it costs one more round, and saves what the other
    columns' pages without a matching row would have cost."""
    requests = source.runtime.options.requests
    leaves = query.columns.leaves
    if not leaves or not leaves[0].predicate or leaves[-1].predicate:
        return False  # the filter's stand first
    if requests.late_materialization != "auto":
        return requests.late_materialization == "always"
    budget = requests.latency_s * requests.bandwidth_bytes_s
    size = 0
    for group in groups:
        if group.filtered:
            size += sum([column.num_bytes for column in group.columns if not column.predicate])
            if size > budget:
                return True
    return False


def _stakes(groups: list[RowGroupPlan], late: bool) -> dict[int, int]:
    """Bytes that the first step takes of each row group."""
    return {
        group.ordinal: sum([column.num_bytes for column in group.columns if column.predicate or not late])
        for group in groups
    }


def _learnt(groups: list[RowGroupPlan], indexes: PageIndexes) -> tuple[int, ...]:
    """Fields that are read page by page by locations that no index gave."""
    found = [
        column.field
        for group in groups
        for column in group.columns
        if column.offsets is not None and (group.ordinal, column.chunk.leaf) in indexes.learnt
    ]
    return tuple(dict.fromkeys(found))


def _report(
    version: FileVersion,
    rows: ResolvedAccess,
    groups: list[RowGroupPlan],
    num_left: int,
    bloom: BloomReport | None,
    context: RequestContext,
) -> PruningReport:
    """Count the row groups, pages and rows that pruning kept."""
    pages = pages_kept = rows_kept = 0
    for group in groups:
        rows_kept += group.rows.num_rows
        for column in group.columns:
            if column.offsets is not None:
                pages += len(column.offsets.offsets)
                pages_kept += len(column.pages)
    metrics = context.metrics
    metrics.row_groups_by_bloom = 0 if bloom is None else bloom.dropped.num_rows
    metrics.row_groups_read = len(groups)
    metrics.pages_total = pages
    return PruningReport(
        row_groups=len(version.metadata.row_groups),
        row_groups_accessed=rows.scanned.num_rows + len(rows.selected),
        row_groups_after_statistics=num_left,
        row_groups_by_bloom=metrics.row_groups_by_bloom,
        row_groups_kept=len(groups),
        row_groups_proven=metrics.row_groups_proven,
        pages=pages,
        pages_kept=pages_kept,
        rows=version.metadata.num_rows,
        rows_accessed=rows.layout.num_rows if rows is version.all_rows else rows.num_rows,
        rows_kept=rows_kept,
    )
