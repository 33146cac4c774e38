"""From a query to a read plan: prune row groups, fetch the page indexes that help, prune pages, ask bloom filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from asyncpq.errors import ColumnNotFoundError
from asyncpq.expressions import Constant, Expression, columns
from asyncpq.fetching.bloom_filters import row_group_filters
from asyncpq.fetching.indexes import IndexRequest, PageIndexes, fetch_page_indexes
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import Field, Leaf, ParquetSchema
from asyncpq.planning.read_plan import BloomReport, ChunkSpan, ColumnPlan, PruningReport, ReadPlan, RowGroupPlan
from asyncpq.pruning.pages import PageZones, prune_pages, rows_proven
from asyncpq.pruning.row_groups import RowGroupPruning, RowGroupZones, prune_row_groups
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import RequestContext


class Query(NamedTuple):
    """What is asked of one file.

    Attributes:
        output: ordinals of the top-level fields to return.
        where: the predicate that rows must satisfy, simplified; or None.
        prune: what to prune by instead, implied by ``where`` and simplified; or None.
        rows: the only rows of interest, by row group ordinal and row in the row group; None for all.
        limit: rows wanted, or None.
        rows_only: matching rows are counted, those that are proven to match from statistics alone.
    """

    output: tuple[int, ...]
    where: Expression | None = None
    prune: Expression | None = None
    rows: Mapping[int, RowRanges] | None = None
    limit: int | None = None
    rows_only: bool = False


def resolve_field(schema: ParquetSchema, name: str) -> tuple[Field, Leaf | None]:
    """The top-level field that holds column ``name``, and the leaf itself if ``name`` is one.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, or several.
    """
    try:
        field = schema.field(name)
    except ColumnNotFoundError:
        leaf = schema.leaf(name)
        return schema.fields[leaf.field_index], leaf
    leaf = schema.leaves[field.first_leaf]
    return field, leaf if len(leaf.path) == 1 else None


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
    predicate = _predicate_columns(metadata.schema, where)
    trust = source.resources.options.read.trust_statistics
    candidates, statistics = _row_groups(version, query, where, prune, predicate, context, trust=trust)
    num_candidates = len(candidates)
    proven = RowRanges.empty()
    # The keys of a lookup hardly ever fill a row group: it is spared the search.
    if statistics is not None and prune is where and (context.scan or query.rows_only):
        proven = statistics.all_match
    context.metrics.row_groups_proven = sum([ordinal in proven for ordinal, _ in candidates])
    rows_known = 0
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
            candidates = _first_rows(candidates, query.limit)
            kept = [ordinal for ordinal, rows in candidates if rows.num_rows < metadata.row_groups[ordinal].num_rows]
        elif query.rows is None and query.limit is None:
            kept = [ordinal for ordinal in kept if ordinal not in proven]
        wanted = _requests(version, query, predicate, kept, bounds=trust)
        indexes = await fetch_page_indexes(source, version, wanted, context)
    report = _Report(version, context)
    groups: list[RowGroupPlan] = []
    for ordinal, rows in candidates:
        if prune is not None and not isinstance(prune, Constant) and trust:
            zones = _page_zones(predicate, ordinal, indexes)
            num_rows = metadata.row_groups[ordinal].num_rows
            rows &= prune_pages(prune, num_rows, zones) if zones else RowRanges.all(num_rows)
            if query.rows_only and zones:
                known = rows & rows_proven(prune, num_rows, zones)
                rows_known += known.num_rows
                rows -= known
        if rows:
            filtered = where is not None and ordinal not in proven
            plan = _plan_row_group(version, query, predicate if filtered else {}, ordinal, rows, indexes, filtered)
            groups.append(plan)
    late = _late(source, groups, query, predicate)
    bloom: BloomReport | None = None
    if filters is not None:
        await filters.rule_out([group.ordinal for group in groups if group.filtered], _stakes(groups, late))
        bloom = filters.report()
        if bloom.dropped:
            groups = [group for group in groups if group.ordinal not in bloom.dropped]
            late = _late(source, groups, query, predicate)
    source.keep(version)
    pruned = report.result(groups, num_candidates, bloom)
    return ReadPlan(tuple(groups), late, pruned, statistics, bloom, _learnt(groups, indexes), rows_known)


def _predicate_columns(schema: ParquetSchema, where: Expression | None) -> dict[str, tuple[Field, Leaf | None]]:
    return {name: resolve_field(schema, name) for name in columns(where)} if where is not None else {}


def _row_groups(
    version: FileVersion,
    query: Query,
    where: Expression | None,
    prune: Expression | None,
    predicate: Mapping[str, tuple[Field, Leaf | None]],
    context: RequestContext,
    *,
    trust: bool,
) -> tuple[list[tuple[int, RowRanges]], RowGroupPruning | None]:
    """Row groups that may hold wanted rows, with their candidate rows; and what statistics said."""
    groups = version.metadata.row_groups
    context.metrics.row_groups_total = len(groups)
    if isinstance(where, Constant):  # false or null: no row matches
        return [], None
    if prune is None:
        return _candidates(version, query, range(len(groups))), None
    zones: dict[str, RowGroupZones] = {}
    if trust:
        for name, (_, leaf) in predicate.items():
            if leaf is not None:
                zones[name] = version.derived(
                    ("row group zones", leaf.index), partial(RowGroupZones, version.metadata, leaf), 300 * len(groups)
                )
    verdict = prune_row_groups(prune, zones, len(groups))
    if verdict.kept.num_rows == len(groups):
        for reason in verdict.reasons:
            context.metrics.fall_back(reason)
    return _candidates(version, query, verdict.kept.rows()), verdict


def _candidates(version: FileVersion, query: Query, kept: Iterable[int]) -> list[tuple[int, RowRanges]]:
    """Rows of interest in the row groups ``kept``."""
    groups = version.metadata.row_groups
    if query.rows is None:
        return [(ordinal, RowRanges.all(groups[ordinal].num_rows)) for ordinal in kept if groups[ordinal].num_rows]
    return [(ordinal, query.rows[ordinal]) for ordinal in kept if ordinal in query.rows]


def _first_rows(candidates: list[tuple[int, RowRanges]], limit: int | None) -> list[tuple[int, RowRanges]]:
    if limit is None:
        return candidates
    taken: list[tuple[int, RowRanges]] = []
    for ordinal, rows in candidates:
        if limit <= 0:
            break
        first = rows.slice(0, limit)
        taken.append((ordinal, first))
        limit -= first.num_rows
    return taken


def _requests(
    version: FileVersion,
    query: Query,
    predicate: Mapping[str, tuple[Field, Leaf | None]],
    kept: list[int],
    *,
    bounds: bool,
) -> list[IndexRequest]:
    schema = version.metadata.schema
    leaves: dict[int, bool] = {
        leaf.index: bounds for _, leaf in predicate.values() if leaf is not None and leaf.max_repetition_level == 0
    }
    for ordinal in (*(field.index for field, _ in predicate.values()), *query.output):
        leaf = schema.leaves[schema.fields[ordinal].first_leaf] if _has_leaf(schema.fields[ordinal]) else None
        if leaf is not None and leaf.is_flat:
            leaves.setdefault(leaf.index, False)
    return [IndexRequest(group, leaf, wanted) for group in kept for leaf, wanted in leaves.items()]


def _has_leaf(field: Field) -> bool:
    return field.leaf_stop > field.first_leaf


def _page_zones(
    predicate: Mapping[str, tuple[Field, Leaf | None]], ordinal: int, indexes: PageIndexes
) -> dict[str, PageZones]:
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
    predicate: Mapping[str, tuple[Field, Leaf | None]],
    ordinal: int,
    rows: RowRanges,
    indexes: PageIndexes,
    filtered: bool,
) -> RowGroupPlan:
    first = dict.fromkeys(field.index for field, _ in predicate.values())
    order = (*first, *(field for field in query.output if field not in first))
    plans: list[ColumnPlan] = []
    num_rows = version.metadata.row_groups[ordinal].num_rows
    for field_index in dict.fromkeys(order):
        chunks = version.derived(("chunks", ordinal, field_index), partial(_chunks, version, ordinal, field_index), 300)
        nested = len(chunks) != 1 or not version.metadata.schema.leaves[chunks[0].leaf].is_flat
        offsets = None if nested else indexes.offsets.get((ordinal, chunks[0].leaf))
        plans.append(ColumnPlan(field_index, chunks, offsets, field_index in first, nested, num_rows, rows))
    return RowGroupPlan(ordinal, num_rows, rows, tuple(plans), filtered)


def _chunks(version: FileVersion, ordinal: int, field_index: int) -> tuple[ChunkSpan, ...]:
    """Where the chunks of a field's leaves are."""
    field = version.metadata.schema.fields[field_index]
    chunks = ((leaf, version.chunk(ordinal, leaf)) for leaf in range(field.first_leaf, field.leaf_stop))
    return tuple(ChunkSpan(leaf, chunk.start, chunk.stop) for leaf, chunk in chunks)


def _late(
    source: ObjectSource,
    groups: list[RowGroupPlan],
    query: Query,
    predicate: Mapping[str, tuple[Field, Leaf | None]],
) -> bool:
    """Whether to fetch the filter's columns first: it costs one more round, and saves what the other
    columns' pages without a matching row would have cost."""
    requests = source.resources.options.requests
    first = {field.index for field, _ in predicate.values()}
    if not predicate or not any(field not in first for field in query.output):
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
        if column.offsets is not None and (group.ordinal, column.chunks[0].leaf) in indexes.learnt
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
            if column.nested:
                name = self._version.metadata.schema.fields[column.field].name
                self._metrics.fall_back(f"{name}: nested, whole column chunks are read")
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
