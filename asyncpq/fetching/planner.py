"""From a query to a read plan: prune row groups, fetch the page indexes that help, prune pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from asyncpq.errors import ColumnNotFoundError
from asyncpq.expressions import Constant, Expression, columns
from asyncpq.fetching.indexes import IndexRequest, PageIndexes, fetch_page_indexes
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import Field, Leaf, ParquetSchema
from asyncpq.planning.read_plan import ChunkSpan, ColumnPlan, PruningReport, ReadPlan, RowGroupPlan
from asyncpq.pruning.pages import PageZones, prune_pages
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
    """

    output: tuple[int, ...]
    where: Expression | None = None
    prune: Expression | None = None
    rows: Mapping[int, RowRanges] | None = None
    limit: int | None = None


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
    """Decide what to fetch for ``query``; fetches page indexes where they may help, and nothing else.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: the predicate names no column, or several.
        StoreError, ObjectChangedError, FormatError: the indexes could not be had.
    """
    metadata = version.metadata
    where = query.where
    if isinstance(where, Constant) and where.value is True:
        where = None
    prune = where if query.prune is None or where is None else query.prune
    predicate = _predicate_columns(metadata.schema, where)
    trust = source.resources.options.read.trust_statistics
    candidates, statistics = _row_groups(version, query, where, prune, predicate, context, trust=trust)
    kept = [ordinal for ordinal, _ in candidates]
    indexes = PageIndexes()
    if kept and (where is not None or query.rows is not None or query.limit is not None):
        if where is None and query.rows is None:
            candidates = _first_rows(candidates, query.limit)
            kept = [ordinal for ordinal, rows in candidates if rows.num_rows < metadata.row_groups[ordinal].num_rows]
        wanted = _requests(version, query, predicate, kept, bounds=trust)
        indexes = await fetch_page_indexes(source, version, wanted, context)
    report = _Report(version, context)
    groups: list[RowGroupPlan] = []
    for ordinal, rows in candidates:
        if prune is not None and not isinstance(prune, Constant) and trust:
            rows &= _prune_pages(version, prune, predicate, ordinal, indexes)
        if rows:
            plan = _plan_row_group(version, query, predicate, ordinal, rows, indexes, where is not None)
            groups.append(plan)
            report.count(plan)
    source.keep(version)
    return ReadPlan(tuple(groups), _late(source, groups, query, predicate), report.result(candidates), statistics)


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


def _prune_pages(
    version: FileVersion,
    prune: Expression,
    predicate: Mapping[str, tuple[Field, Leaf | None]],
    ordinal: int,
    indexes: PageIndexes,
) -> RowRanges:
    zones: dict[str, PageZones] = {}
    num_rows = version.metadata.row_groups[ordinal].num_rows
    for name, (_, leaf) in predicate.items():
        if leaf is None:
            continue
        known = indexes.zones.get((ordinal, leaf.index))
        if known is not None:
            zones[name] = known
    return prune_pages(prune, num_rows, zones) if zones else RowRanges.all(num_rows)


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
            if not column.predicate:
                size += column.num_bytes
        if size > budget:
            return True
    return False


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

    def result(self, candidates: list[tuple[int, RowRanges]]) -> PruningReport:
        metadata = self._version.metadata
        self._metrics.row_groups_read = self._groups
        self._metrics.pages_total = self._pages
        return PruningReport(
            row_groups=len(metadata.row_groups),
            row_groups_after_statistics=len(candidates),
            row_groups_kept=self._groups,
            pages=self._pages,
            pages_kept=self._pages_kept,
            rows=metadata.num_rows,
            rows_kept=self._rows_kept,
        )
