"""From a query to a read plan: prune row groups, fetch the page indexes that help, prune pages, ask bloom filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from asyncpq.expressions import Constant, Expression, columns
from asyncpq.fetching.bloom_filters import row_group_filters
from asyncpq.fetching.indexes import IndexRequest, PageIndexes, fetch_page_indexes
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import Leaf, ParquetSchema, Projection
from asyncpq.planning.overlaps import refuse_overlaps
from asyncpq.planning.read_plan import BloomReport, ChunkSpan, ColumnPlan, PruningReport, ReadPlan, RowGroupPlan
from asyncpq.pruning.pages import PageZones, prune_pages
from asyncpq.pruning.row_groups import RowGroupPruning, RowGroupZones, prune_row_groups
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import RequestContext


class Query(NamedTuple):
    """What is asked of one file.

    Attributes:
        output: the top-level fields to return, or the parts of them.
        where: the predicate that rows must satisfy, simplified; or None.
        prune: what to prune by instead, implied by ``where`` and simplified; or None.
        rows: the only rows of interest, by row group ordinal and row in the row group; None for all.
        limit: rows wanted, or None.
        rows_only: matching rows are counted, those that are proven to match from statistics alone.
    """

    output: tuple[Projection, ...]
    where: Expression | None = None
    prune: Expression | None = None
    rows: Mapping[int, RowRanges] | None = None
    limit: int | None = None
    rows_only: bool = False


class PredicateColumn(NamedTuple):
    """A column that a predicate names.

    Attributes:
        projection: what is read of its top-level field.
        leaf: the leaf that it is, with a value or null in each row; else None. Statistics of other leaves
            count values or nulls that are no rows.
    """

    projection: Projection
    leaf: Leaf | None


def predicate_columns(schema: ParquetSchema, where: Expression | None) -> dict[str, PredicateColumn]:
    """The columns that ``where`` names, by name.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, or several.
    """
    found: dict[str, PredicateColumn] = {}
    for name in columns(where) if where is not None else ():
        projection = schema.projection(name)
        leaf = schema.leaves[projection.leaves[0]] if len(projection.leaves) == 1 else None
        is_value = leaf is not None and leaf.dotted == name and leaf.max_repetition_level == 0
        found[name] = PredicateColumn(projection, leaf if is_value else None)
    return found


async def plan_read(source: ObjectSource, version: FileVersion, query: Query, context: RequestContext) -> ReadPlan:
    """Decide what to fetch for ``query``; fetches page indexes and bloom filters where they may help.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: the predicate names no column, or several.
        StoreError, ObjectChangedError, FormatError: indexes or filters could not be had.
    """
    metadata = version.metadata
    if version.decryption is not None:
        context.metrics.fall_back("encrypted, whole column chunks are read through pyarrow")
    where = query.where
    if isinstance(where, Constant) and where.value is True:
        where = None
    prune = where if query.prune is None or where is None else query.prune
    predicate = predicate_columns(metadata.schema, where)
    trust = source.resources.options.read.trust_statistics
    left, statistics = _row_groups(version, query, where, prune, predicate, context, trust=trust)
    candidates = _candidates(version, query, left, query.limit if where is None else None)
    proven = RowRanges.empty()
    # The keys of a lookup hardly ever fill a row group: it is spared the search.
    if statistics is not None and prune is where and (context.scan or query.rows_only):
        proven = statistics.all_match
    rows_known = 0
    if proven:
        context.metrics.row_groups_proven = sum([ordinal in proven for ordinal, _ in candidates])
    if query.rows_only and proven:
        rows_known = sum([rows.num_rows for ordinal, rows in candidates if ordinal in proven])
        candidates = [item for item in candidates if item[0] not in proven]
    leaves = {name: leaf for name, (_, leaf) in predicate.items() if leaf is not None}
    filters = row_group_filters(source, version, prune, leaves, context) if candidates else None
    if filters is not None:
        await filters.rule_out([ordinal for ordinal, _ in candidates if ordinal not in proven])
        candidates = [item for item in candidates if item[0] not in filters.dropped]
    kept = [ordinal for ordinal, _ in candidates]
    indexes = PageIndexes()
    if kept and (where is not None or query.rows is not None or query.limit is not None):
        if where is None and query.rows is None:
            kept = [ordinal for ordinal, rows in candidates if rows.num_rows < metadata.row_groups[ordinal].num_rows]
        elif query.rows is None and query.limit is None:
            kept = [ordinal for ordinal in kept if ordinal not in proven]
        wanted = _requests(query, predicate, kept, bounds=trust)
        indexes = await fetch_page_indexes(source, version, wanted, context)
    report = _Report(version, context)
    groups: list[RowGroupPlan] = []
    for ordinal, rows in candidates:
        if prune is not None and not isinstance(prune, Constant) and trust:
            zones = _page_zones(predicate, ordinal, indexes)
            num_rows = metadata.row_groups[ordinal].num_rows
            rows &= prune_pages(prune, num_rows, zones) if zones else RowRanges.all(num_rows)
        if rows:
            filtered = where is not None and ordinal not in proven
            asked = predicate if filtered else {}
            groups.append(_plan_row_group(version, query, asked, ordinal, rows, indexes, filtered))
    late = _late(source, groups, query, predicate)
    bloom: BloomReport | None = None
    if filters is not None:
        await filters.rule_out([group.ordinal for group in groups if group.filtered], _stakes(groups, late))
        bloom = filters.report()
        if bloom.dropped:
            groups = [group for group in groups if group.ordinal not in bloom.dropped]
            late = _late(source, groups, query, predicate)
    if not version.padded_chunks:
        refuse_overlaps(groups, metadata.schema.leaves)
    source.keep(version)
    pruned = report.result(groups, left.num_rows, bloom)
    return ReadPlan(tuple(groups), late, pruned, statistics, bloom, _learnt(groups, indexes), rows_known)


def _row_groups(
    version: FileVersion,
    query: Query,
    where: Expression | None,
    prune: Expression | None,
    predicate: Mapping[str, PredicateColumn],
    context: RequestContext,
    *,
    trust: bool,
) -> tuple[RowRanges, RowGroupPruning | None]:
    """Ordinals of the row groups that may hold wanted rows; and what statistics said."""
    groups = version.metadata.row_groups
    context.metrics.row_groups_total = len(groups)
    if isinstance(where, Constant):  # false or null: no row matches
        return RowRanges.empty(), None
    if query.rows is None:
        asked = version.derived(("row groups with rows",), partial(_with_rows, version))
    else:
        asked = RowRanges.from_rows(query.rows)
    if prune is None:
        return asked, None
    zones: dict[str, RowGroupZones] = {}
    if trust:
        for name, (_, leaf) in predicate.items():
            if leaf is not None:
                zones[name] = version.derived(
                    ("row group zones", leaf.index), partial(RowGroupZones, version.metadata, leaf), _weight
                )
    verdict = prune_row_groups(prune, zones, len(groups))
    if verdict.kept.num_rows == len(groups):
        for reason in verdict.reasons:
            context.metrics.fall_back(reason)
    return asked & verdict.kept, verdict


def _with_rows(version: FileVersion) -> RowRanges:
    """Ordinals of the row groups that are not empty."""
    return RowRanges.from_rows([group.ordinal for group in version.metadata.row_groups if group.num_rows])


def _weight(zones: RowGroupZones) -> int:
    return zones.weight


def _candidates(version: FileVersion, query: Query, left: RowRanges, limit: int | None) -> list[tuple[int, RowRanges]]:
    """Rows of interest in the row groups ``left``; of whole row groups no more than ``limit`` rows.

    What lies behind the limit, or between the rows asked for, is not looked at: a file may have thousands of
    row groups.
    """
    if query.rows is not None:
        return [(ordinal, rows) for ordinal, rows in query.rows.items() if ordinal in left]
    groups = version.metadata.row_groups
    found: list[tuple[int, RowRanges]] = []
    for ordinal in left.rows():
        if limit is None:
            found.append((ordinal, RowRanges.all(groups[ordinal].num_rows)))
        elif limit > 0:
            found.append((ordinal, RowRanges.all(min(limit, groups[ordinal].num_rows))))
            limit -= groups[ordinal].num_rows
        else:
            break
    return found


def _requests(
    query: Query,
    predicate: Mapping[str, PredicateColumn],
    kept: list[int],
    *,
    bounds: bool,
) -> list[IndexRequest]:
    leaves: dict[int, bool] = {leaf.index: bounds for _, leaf in predicate.values() if leaf is not None}
    for index in _leaves(predicate, query.output):
        leaves.setdefault(index, False)
    return [IndexRequest(group, leaf, wanted) for group in kept for leaf, wanted in leaves.items()]


def _leaves(predicate: Mapping[str, PredicateColumn], output: Iterable[Projection]) -> dict[int, int]:
    """The leaves to read, with the fields that they are in; those of the predicate first."""
    projections = (*(column.projection for column in predicate.values()), *output)
    return {leaf: projection.field for projection in projections for leaf in projection.leaves}


def _page_zones(predicate: Mapping[str, PredicateColumn], ordinal: int, indexes: PageIndexes) -> dict[str, PageZones]:
    zones: dict[str, PageZones] = {}
    for name, (_, leaf) in predicate.items():
        if leaf is None:
            continue
        known = indexes.zones.get((ordinal, leaf.index))
        if known is not None:
            zones[name] = known
    return zones


def _plan_row_group(
    version: FileVersion,
    query: Query,
    predicate: Mapping[str, PredicateColumn],
    ordinal: int,
    rows: RowRanges,
    indexes: PageIndexes,
    filtered: bool,
) -> RowGroupPlan:
    first = _leaves(predicate, ())
    plans: list[ColumnPlan] = []
    num_rows = version.metadata.row_groups[ordinal].num_rows
    for leaf, field in _leaves(predicate, query.output).items():
        span = version.derived(("chunk", ordinal, leaf), partial(_chunk, version, ordinal, leaf), 200)
        nested = not version.metadata.schema.leaves[leaf].is_flat
        offsets = indexes.offsets.get((ordinal, leaf))
        plans.append(ColumnPlan(field, span, offsets, leaf in first, nested, num_rows, rows))
    return RowGroupPlan(ordinal, num_rows, rows, tuple(plans), filtered)


def _chunk(version: FileVersion, ordinal: int, leaf: int) -> ChunkSpan:
    chunk = version.chunk(ordinal, leaf)
    return ChunkSpan(leaf, chunk.start, chunk.stop)


def _late(
    source: ObjectSource,
    groups: list[RowGroupPlan],
    query: Query,
    predicate: Mapping[str, PredicateColumn],
) -> bool:
    """Whether to fetch the filter's columns first: it costs one more round, and saves what the other
    columns' pages without a matching row would have cost."""
    requests = source.resources.options.requests
    if not predicate or len(_leaves(predicate, query.output)) == len(_leaves(predicate, ())):
        return False
    if requests.late_materialization != "auto":
        return requests.late_materialization == "always"
    budget = requests.latency_s * requests.bandwidth_bytes_s
    size = 0
    for group in groups:
        for column in group.columns:
            if group.filtered and not column.predicate:
                size += column.num_bytes
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
    if not indexes.learnt:
        return ()
    found = [
        column.field
        for group in groups
        for column in group.columns
        if column.offsets is not None and (group.ordinal, column.chunk.leaf) in indexes.learnt
    ]
    return tuple(dict.fromkeys(found))


class _Report:
    """Counts what pruning left."""

    def __init__(self, version: FileVersion, context: RequestContext) -> None:
        self._version = version
        self._metrics = context.metrics
        self._pages = self._pages_kept = self._rows_kept = self._groups = 0

    def count(self, plan: RowGroupPlan) -> None:
        self._groups += 1
        self._rows_kept += plan.rows.num_rows
        for column in plan.columns:
            if column.offsets is not None:
                self._pages += column.offsets.num_pages
                self._pages_kept += len(column.pages)

    def result(self, groups: list[RowGroupPlan], num_candidates: int, bloom: BloomReport | None) -> PruningReport:
        for group in groups:
            self.count(group)
        metadata = self._version.metadata
        by_bloom = 0 if bloom is None else bloom.dropped.num_rows
        self._metrics.row_groups_by_bloom = by_bloom
        self._metrics.row_groups_read = self._groups
        self._metrics.pages_total = self._pages
        return PruningReport(
            row_groups=len(metadata.row_groups),
            row_groups_after_statistics=num_candidates,
            row_groups_by_bloom=by_bloom,
            row_groups_kept=self._groups,
            row_groups_proven=self._metrics.row_groups_proven,
            pages=self._pages,
            pages_kept=self._pages_kept,
            rows=metadata.num_rows,
            rows_kept=self._rows_kept,
        )
