"""The plan of a read of one file, as :meth:`asyncpq.File.plan` returns it: what the read would fetch, and why.

``explain()`` and the metrics list all fallbacks, such as: a whole chunk is read for lack of an OffsetIndex, a corrupt
index is not used, a column of unknown order prunes nothing.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from asyncpq.decoding.filter import Filter
from asyncpq.decoding.row_group_reader import QueryShape
from asyncpq.errors import plural, printable
from asyncpq.expressions import is_unsatisfiable
from asyncpq.expressions.simplify import relative_columns
from asyncpq.metrics import MAX_LOGGED, ReadMetrics
from asyncpq.objects.coalesce import ByteRange
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import BloomReport, ColumnPlan, FetchPlan, Item, PruningReport, RowGroupPlan
from asyncpq.parquet.schema import ParquetSchema, Projection
from asyncpq.pruning.access_plan import AccessPlan, ResolvedAccess
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner
from asyncpq.scan.request import ScanRequest

if TYPE_CHECKING:
    from asyncpq.objects.version import FileVersion
    from asyncpq.reports.documents import (
        ChunkFates,
        Fate,
        FileFates,
        FunnelStep,
        Inspection,
        PlanDocument,
        Request,
        RuledOut,
    )

_SHOWN = 40  # ranges, and names in a list, that explain() lists before it sums up


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One range GET.

    Attributes:
        start, stop: bytes of the object.
        useful_bytes: how many of them the read needs; the rest fill gaps between needed ranges.
        columns: the columns that it serves: their names, or dotted paths of leaves where only parts of one are read.
    """

    start: int
    stop: int
    useful_bytes: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a read of one file, made by :meth:`asyncpq.File.plan`. No data has been fetched.

    Attributes:
        url, version: url of the object, and its version as text: ETag, version id or size.
        guarantee: how the store ensures that all bytes are of one version: "pinned", "compared", "bracketed" or "none".
        columns: names that would be returned, or dotted paths of the leaves where parts of a column would be.
        where: the predicate, as text; None without one.
        limit: maximum number of rows to return; None for all.
        access: the rows of the file that may be read; None for all.
        pruning: the numbers of row groups and pages that pruning left.
        by_statistics: for each condition, how many row groups its statistics alone rule out.
        bloom: text on the Bloom filters that were probed, and what they ruled out; None if none was probed.
        requests: range GETs of the first round, after caches and coalescing.
        num_requests, num_bytes: the number of these GETs and of their bytes.
        cached_bytes: needed bytes that are already in caches.
        late: whether a second round would fetch the columns that the filter does not need, for matching rows only.
        late_columns: names of these columns; empty without a second round.
        estimates: for each strategy, the estimated seconds of its requests; the chosen strategy first.
        prices: the server's latency and bandwidth that the estimates assume, as text.
        learnt: names of columns without an OffsetIndex that are read page by page, because an earlier read located
            their pages.
        fallbacks: slower paths that the read would take, and metadata that are ignored since they contradict the file.
        metadata_requests: the number of requests that planning sent.
        fates: for each row group, and each page of row groups that would be read, whether it is read, cached or ruled
            out, and by what: a dict with the keys of :class:`asyncpq.reports.documents.FileFates`.
        funnel: the steps from row groups to pages and rows, and how many each mechanism rules out: dicts with the keys
            "level", "total", "ruled_out" and "kept" of :class:`asyncpq.reports.documents.FunnelStep`.
        layout: returns the layout of the file from metadata in memory; None if memory has none, and in a pickled plan.
    """

    url: str
    version: str
    guarantee: str
    columns: tuple[str, ...]
    where: str | None
    limit: int | None
    access: AccessPlan | None
    pruning: PruningReport
    by_statistics: tuple[tuple[str, int], ...]
    bloom: str | None
    requests: tuple[PlannedRequest, ...]
    cached_bytes: int
    late: bool
    late_columns: tuple[str, ...]
    estimates: tuple[tuple[str, float], ...]
    prices: str
    learnt: tuple[str, ...]
    fallbacks: tuple[str, ...]
    metadata_requests: int
    fates: FileFates
    funnel: tuple[FunnelStep, ...]
    layout: Callable[[], Inspection] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __getstate__(self) -> list[object]:
        """Return the fields for pickling and copying; without ``layout``, which reads the session's memory."""
        names = [field.name for field in dataclasses.fields(self)]
        return [None if name == "layout" else getattr(self, name) for name in names]

    @property
    def num_requests(self) -> int:
        """Number of range GETs in the first round."""
        return len(self.requests)

    @property
    def num_bytes(self) -> int:
        """Bytes that these GETs fetch."""
        return sum(request.stop - request.start for request in self.requests)

    @property
    def rounds(self) -> int:
        """The number of rounds of requests, each of which waits for the one before; 0 if memory has everything."""
        return (bool(self.requests) or self.late) + self.late

    def to_dict(self, *, layouts: bool = False) -> PlanDocument:
        """Return the plan as a dict of JSON values (:class:`asyncpq.reports.documents.PlanDocument`).

        Args:
            layouts: add the layout of the file (row groups and pages with their places), as far as it is in memory.
        """
        document: PlanDocument = {
            "document": "plan",
            "url": printable(self.url),
            "view": None,
            "version": self.version,
            "guarantee": self.guarantee,
            "columns": list(self.columns),
            "where": self.where,
            "limit": self.limit,
            "funnel": list(self.funnel),
            "files": [self.fates],
            "files_to_read": 1,
            "skipped": [],
            "requests": self.request_documents(),
            "num_requests": self.num_requests,
            "num_bytes": self.num_bytes,
            "cached_bytes": self.cached_bytes,
            "rounds": self.rounds,
            "late_columns": list(self.late_columns),
            "estimates": [{"strategy": name, "seconds": round(seconds, 6)} for name, seconds in self.estimates],
            "prices": self.prices,
            "index": [],
            "listing": None,
            "fallbacks": list(self.fallbacks),
            "metadata_requests": self.metadata_requests,
            "explain": self.explain(),
        }
        if layouts and self.layout is not None:
            document["layouts"] = [self.layout()]
        return document

    def _repr_html_(self) -> str | None:
        """Return the plan as a drawing of the file's pages (a page map) in an HTML frame, for notebooks."""
        from asyncpq.page_map import framed

        return framed(self.to_dict(layouts=True))

    def request_documents(self) -> list[Request]:
        """Return the first 10,000 requests of the first round as dicts, as ``to_dict()["requests"]`` has them.

        Each has ``url``, ``method`` ("GET"), ``purpose`` ("data"), ``round`` (1), ``bytes`` ([start, stop], stop
        exclusive), ``useful_bytes`` (how many of these were planned; the rest are gaps between merged ranges) and
        ``columns`` (the columns that it serves).
        """
        return [
            {
                "url": printable(self.url),
                "method": "GET",
                "purpose": "data",
                "bytes": [request.start, request.stop],
                "useful_bytes": request.useful_bytes,
                "columns": list(request.columns),
                "round": 1,
            }
            for request in self.requests[:MAX_LOGGED]
        ]

    def explain(self) -> str:
        """Return the plan as text of several lines."""
        pruning = self.pruning
        lines = [
            f"read {printable(self.url)}",
            f"  version {printable(self.version)} ({self.guarantee})",
            f"  columns: {_listed(self.columns) or '(none: rows are counted)'}",
            f"  where: {printable(self.where) if self.where is not None else '(all rows)'}",
            *([f"  access plan: {_accessed(pruning)}"] if self.access is not None else []),
            f"  row groups: {pruning.row_groups_kept:,} of {pruning.row_groups:,} "
            + (
                "(the first rows are enough)"
                if self.where is None and self.limit is not None
                else f"({pruning.row_groups_accessed - pruning.row_groups_after_statistics:,} ruled out by statistics, "
                f"{pruning.row_groups_after_statistics - pruning.row_groups_by_bloom - pruning.row_groups_kept:,} "
                "by page indexes"
                f"{f', {pruning.row_groups_by_bloom:,} by bloom filters' if self.bloom is not None else ''})"
            ),
            *([f"  limit: {plural(self.limit, 'row')}"] if self.limit is not None else []),
            f"  rows that may match: {pruning.rows_kept:,} of {pruning.rows:,}",
        ]
        if pruning.row_groups_proven:
            lines.append(
                f"  row groups of which all rows match, by statistics: {pruning.row_groups_proven:,}, not filtered"
            )
        lines.extend(f"    {printable(text)}: {count:,} ruled out by statistics" for text, count in self.by_statistics)
        if self.bloom is not None:
            lines.append(f"  {self.bloom}")
        if pruning.pages:
            pages_by = "by page locations" if self.learnt else "by page indexes"
            lines.append(f"  pages in those row groups: {pruning.pages_kept:,} of {pruning.pages:,} {pages_by}")
        if self.requests or self.late:
            asked = f"{plural(self.num_requests, 'request')}, {self.num_bytes:,} bytes"
            lines.append(f"  round 1 of {1 + self.late}: {asked}; {self.cached_bytes:,} bytes from memory")
        else:
            lines.append(f"  no requests: {self.cached_bytes:,} bytes from memory")
        for request in self.requests[:_SHOWN]:
            gap = request.stop - request.start - request.useful_bytes
            lines.append(
                f"    GET {request.start}-{request.stop - 1} ({request.stop - request.start:,} bytes"
                f"{f', {gap:,} of them gaps' if gap else ''}): {_listed(request.columns)}"
            )
        if len(self.requests) > _SHOWN:
            lines.append(f"    ... and {len(self.requests) - _SHOWN:,} more")
        if self.late:
            lines.append(f"  round 2 of 2: pages of {_listed(self.late_columns)} with matching rows")
        if self.estimates and self.requests:
            (chosen, seconds), *others = self.estimates
            beside = ", ".join([f"{name} {_milliseconds(seconds)}" for name, seconds in others])
            lines.append(f"  estimate: {chosen} {_milliseconds(seconds)}; {beside}, before caches")
            lines.append(f"    at {self.prices}")
        if self.learnt:
            lines.append(f"  page locations learnt: {_listed(self.learnt)}")
        lines.extend(f"  fallback: {printable(reason)}" for reason in self.fallbacks)
        lines.append(f"  planning took {plural(self.metadata_requests, 'request')}")
        return "\n".join(lines)

    __str__ = explain


def describe(
    planner: ScanPlanner,
    scan_plan: ScanPlan,
    *,
    scan: bool,
    held: Collection[int] | None = None,
    metadata_requests: int | None = None,
) -> Plan:
    """Describe what ``scan_plan`` of ``planner`` would fetch now, or has fetched.

    Parts in memory count as cached; other cache tiers are not searched.

    Args:
        scan: the read is a scan, which fetches unit by unit; other reads of small files take one round.
        held: for a read that has ended, offsets of the parts that were in memory when it began. None: the parts that
            are in memory now count.
        metadata_requests: the number of requests that planning sent; None: all requests so far.
    """
    source, metrics, request = planner.source, planner.metrics, planner.request
    version, plan = scan_plan.version, scan_plan.fetch_plan
    schema = version.metadata.schema
    planned = [column for group in plan.row_groups for column in group.columns]
    labels = _labels(schema, [column.chunk.leaf for column in planned])
    # An OffsetIndex that was fetched may serve other leaves of the same field
    by_page = [column.chunk.leaf for column in planned if column.offsets is not None and column.field in plan.learnt]
    options = source.runtime.options
    memory = source.runtime.memory
    tail: bytes | None = memory.get(version.tail_key, scan=True)
    whole = not scan and plan.num_bytes() <= options.limits.round_bytes

    def is_held(item: Item) -> bool:
        keys = (version.key(item.kind, item.start, item.stop), version.kept_chunks.holder(item.start, item.stop))
        if any(value is not None for value in memory.get_many(keys, scan=True)):
            return True
        return tail is not None and item.start >= version.tail_start(tail)

    requests: list[PlannedRequest] = []
    cached = 0
    missed: list[int] = []  # first bytes of parts that are fetched
    for unit in plan.units(None if whole else options.limits.unit_bytes):
        missing: list[tuple[Item, str]] = []
        for piece in unit.pieces:
            for item in piece.items:
                if item.start in held if held is not None else is_held(item):
                    cached += item.stop - item.start
                else:
                    missing.append((item, labels[item.leaf]))
                    missed.append(item.start)
        ranges = plan.prices.requests([(item.start, item.stop) for item, _ in missing])
        requests.extend(_request(span, missing) for span in ranges)
    late_columns = {
        labels[column.chunk.leaf]: None for group in plan.row_groups for column in group.columns if not column.predicate
    }
    validator = version.validator
    fetched = sorted(missed)

    def fate_of(column: ColumnPlan, start: int, stop: int) -> Fate:
        if plan.late and not column.predicate:
            return "read"  # of those that come later, memory is not searched
        at = bisect_left(fetched, start)
        return "read" if at < len(fetched) and fetched[at] < stop else "memory"

    file = PlannedVersion(version, plan, request, planner.indexed)
    fates = file_fates(file, fate_of)
    return Plan(
        url=version.url,
        version=validator.etag or validator.version or f"{validator.size} bytes",
        guarantee=str(source.handle.guarantee),
        columns=_columns(scan_plan.shape, schema),
        where=_where(request, scan_plan.shape.filter),
        limit=request.limit,
        access=request.access,
        pruning=plan.report,
        by_statistics=tuple(plan.statistics.dropped_by.items()) if plan.statistics is not None else (),
        bloom=None if plan.bloom is None or not plan.bloom.asked else _bloom(plan.bloom, metrics),
        requests=tuple(requests),
        cached_bytes=cached,
        late=plan.late,
        late_columns=tuple(late_columns) if plan.late else (),
        estimates=_estimates(plan) if plan.row_groups else (),
        prices=_prices(plan.prices, len(requests)),
        learnt=tuple(dict.fromkeys(_labels(schema, by_page).values())),
        fallbacks=tuple(metrics.fallbacks),
        metadata_requests=metrics.requests if metadata_requests is None else metadata_requests,
        fates=fates,
        funnel=tuple(funnel(file, fates)),
    )


def _estimates(plan: FetchPlan) -> tuple[tuple[str, float], ...]:
    """Return the name and estimated seconds of each strategy: those that the planner may choose from, and whole chunks
    for comparison. The chosen one comes first."""
    one_round, two_rounds, chunks = plan.estimates()
    pages = ("one round", one_round)
    if len({column.predicate for group in plan.row_groups for column in group.columns}) == 1:
        return pages, ("whole column chunks", chunks)
    late = ("two rounds", two_rounds)
    return (*((late, pages) if plan.late else (pages, late)), ("whole column chunks", chunks))


def _prices(prices: Prices, num_requests: int) -> str:
    crowded = prices.for_round(num_requests)
    many = (
        ""
        if crowded is prices
        else f" ({crowded.bandwidth_bytes_s / 1e6:.0f} MB/s and {crowded.request_s * 1e6:.0f} us for more)"
    )
    return (
        f"{_milliseconds(prices.latency_s)} to the first byte, {prices.bandwidth_bytes_s / 1e6:.0f} MB/s, "
        f"{prices.request_s * 1e6:.0f} us a request, {prices.connections} at once{many}; "
        f"gaps of up to {prices.gap_bytes:,} bytes are read"
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _columns(shape: QueryShape, schema: ParquetSchema) -> tuple[str, ...]:
    """Return the names of the returned columns; for a file of a dataset, the dataset's names."""
    if shape.view is not None:
        return tuple(shape.schema.names)
    return tuple(path for projection in shape.output for path in _paths(schema, projection))


def _paths(schema: ParquetSchema, projection: Projection) -> tuple[str, ...]:
    """Return the name of a field that is read whole, otherwise the dotted paths of its leaves that are read."""
    field = schema.fields[projection.field]
    if len(projection.leaves) == field.leaf_stop - field.first_leaf:
        return (field.name,)
    return tuple(schema.leaves[leaf].dotted for leaf in projection.leaves)


def _labels(schema: ParquetSchema, leaves: Iterable[int]) -> dict[int, str]:
    """Return a label for each leaf that is read: the name of a field that is read whole, otherwise the leaf's path."""
    read: dict[int, set[int]] = {}
    for leaf in leaves:
        read.setdefault(schema.leaves[leaf].field_index, set()).add(leaf)
    labels: dict[int, str] = {}
    for field, some in read.items():
        found = sorted(some)
        names = _paths(schema, Projection(field, tuple(found)))
        labels.update(zip(found, names if len(names) == len(found) else names * len(found), strict=True))
    return labels


def _where(request: ScanRequest, compiled: Filter | None) -> str | None:
    if request.where is None:
        return None
    text = str(request.where)
    if request.unresolved is not None and relative_columns(request.unresolved):
        text += f" (that is {request.unresolved})"
    if compiled is not None and is_unsatisfiable(request.where, compiled.engine_atoms):
        text += " (no row can meet it)"
    return text


def _accessed(pruning: PruningReport) -> str:
    row_groups = plural(pruning.row_groups, "row group")
    return f"{pruning.row_groups_accessed:,} of {row_groups}, {plural(pruning.rows_accessed, 'row')}"


def _listed(names: Sequence[str]) -> str:
    more = f", ... ({len(names):,} in all)" if len(names) > _SHOWN else ""
    return f"{', '.join(map(printable, names[:_SHOWN]))}{more}"


def _bloom(bloom: BloomReport, metrics: ReadMetrics) -> str:
    sent = [request for request in metrics.log if request.purpose == "bloom"]
    return (
        f"bloom filters of {', '.join(map(printable, bloom.columns))}: "
        f"asked for {_ordinals(bloom.asked)}, ruled out {_ordinals(bloom.dropped)}; "
        f"{plural(len(sent), 'request')}, {sum(request.bytes for request in sent):,} bytes"
    )


def _ordinals(row_groups: RowRanges) -> str:
    spans = [f"{start}-{stop - 1}" if stop - start > 1 else f"{start}" for start, stop in row_groups]
    more = f", ... ({row_groups.num_rows:,} in all)" if len(spans) > _SHOWN else ""
    return f"row groups {', '.join(spans[:_SHOWN])}{more}" if spans else "none"


def _request(span: ByteRange, items: list[tuple[Item, str]]) -> PlannedRequest:
    inside = [(item, name) for item, name in items if item.start < span.stop and item.stop > span.start]
    useful = sum(min(item.stop, span.stop) - max(item.start, span.start) for item, _ in inside)
    return PlannedRequest(span.start, span.stop, useful, tuple(dict.fromkeys(name for _, name in inside)))


# -- fates ----------------------------------------------------------------------------------------
# What became of each row group, page and row of a planned file: where it was read from, or what ruled it out. They are
# computed from a finished plan on demand, so other reads do not pay for them.


Level = Literal["files", "row groups", "pages", "rows"]

#: Fates of what a read decodes; all others are not fetched.
KEPT = frozenset({"read", "memory", "disk", "shared"})
_TIERS: tuple[Fate, ...] = ("read", "shared", "disk", "memory")  # the farthest counts for a whole

#: Fates of row groups: those that come last, or farthest, first.
_ORDER: tuple[Fate, ...] = (*_TIERS, "late", "limit", "page index", "bloom", "statistics", "index", "access")

FateOf = Callable[[ColumnPlan, int, int], "Fate"]
"""Returns the fate of the bytes ``[start, stop)`` of a column: a page, or a whole chunk."""


class PlannedVersion(NamedTuple):
    """One planned file: its version, request and plan, from which the fates are computed.

    Attributes:
        indexed: the rows that an index beside the object leaves; None for all.
    """

    version: FileVersion
    plan: FetchPlan
    request: ScanRequest
    indexed: AccessPlan | None = None


def file_fates(file: PlannedVersion, fate_of: FateOf) -> FileFates:
    """Return the fates of all row groups of ``file``, and of the pages of those that may have matching rows.

    ``fate_of`` returns where the bytes of a page or chunk are read from, such as "memory".
    """
    chunks: list[ChunkFates] = []
    kept: dict[int, Fate] = {}
    for group in file.plan.row_groups:
        fates = [_chunk_fates(group, column, fate_of) for column in group.columns]
        chunks += fates
        kept[group.ordinal] = _farthest(fate for chunk in fates for fate in (chunk["fate"], *chunk.get("fates", ())))
    access = _Access.of(file)
    numbers = range(len(file.version.metadata.row_groups))
    row_groups = [kept[ordinal] if ordinal in kept else _ruled_out(file, access, ordinal) for ordinal in numbers]
    return {"url": file.version.url, "row_groups": row_groups, "chunks": chunks}


def _chunk_fates(group: RowGroupPlan, column: ColumnPlan, fate_of: FateOf) -> ChunkFates:
    fates = [fate_of(column, start, stop) for start, stop in column.spans()]
    first: Fate = fates[0] if fates else "read"
    chunk: ChunkFates = {
        "row_group": group.ordinal,
        "column": column.chunk.leaf,
        "whole": column.offsets is None,
        "predicate": column.predicate,
        "pages": list(column.pages),
        "fate": first,
    }
    if len(set(fates)) > 1:
        chunk["fates"] = fates
    return chunk


def _farthest(fates: Iterable[Fate]) -> Fate:
    """Return the fate of a row group whose pages have ``fates``: of the places that pages were read from, the slowest
    one."""
    seen = set(fates)
    for tier in _TIERS:
        if tier in seen:
            return tier
    return "limit" if "limit" in seen else "late" if seen else "read"


def file_fate(fates: FileFates) -> Fate:
    """Return the fate of a file: of the places that its row groups were read from, the slowest one; if none was read,
    the last step of pruning that ruled one out."""
    return min(fates["row_groups"], key=_ORDER.index, default="statistics")


class _Access(NamedTuple):
    """Which rows of each row group may be read at all: by the caller's access plan, and by an index."""

    asked: ResolvedAccess
    indexed: ResolvedAccess | None

    @classmethod
    def of(cls, file: PlannedVersion) -> _Access:
        layout = file.version.row_group_layout
        access = file.request.access
        asked = (AccessPlan.all() if access is None else access).resolve(layout)
        return cls(asked, None if file.indexed is None else file.indexed.resolve(layout))

    def excluder(self, ordinal: int) -> Fate:
        """Return what excludes rows of a row group: "index", or "access" for the caller's access plan."""
        indexed = self.indexed
        return "index" if indexed is not None and (ordinal not in indexed or ordinal in indexed.selected) else "access"


def _ruled_out(file: PlannedVersion, access: _Access, ordinal: int) -> Fate:
    plan = file.plan
    if not access.asked.layout.counts[ordinal]:
        return "statistics"
    if ordinal not in access.asked:
        return access.excluder(ordinal)
    statistics, bloom = plan.statistics, plan.bloom
    if not plan.report.row_groups_after_statistics or (statistics is not None and ordinal not in statistics.kept):
        return "statistics"
    if file.request.where is None:
        return "limit"
    if bloom is not None and ordinal in bloom.dropped:
        return "bloom"
    if file.request.rows_only and statistics is not None and ordinal in statistics.all_match:
        return "statistics"
    return "page index"


def funnel(file: PlannedVersion, fates: FileFates) -> list[FunnelStep]:
    """Return how many row groups, pages and rows of ``file`` are left after each step of pruning, and what ruled out
    the others."""
    access = _Access.of(file)
    counts, report = access.asked.layout.counts, file.plan.report
    ruled_out: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for ordinal, fate in enumerate(fates["row_groups"]):
        if fate not in KEPT and fate != "late":
            ruled_out[fate] += 1
            rows[fate] += counts[ordinal]
    pages: Counter[str] = Counter()
    last: Fate = "limit" if file.request.where is None else "page index"
    for group in file.plan.row_groups:
        accessed = access.asked.selected.get(group.ordinal)
        excluder = access.excluder(group.ordinal)
        readable = group.num_rows if accessed is None else accessed.num_rows
        rows[excluder] += group.num_rows - readable
        rows[last] += readable - group.rows.num_rows
        for column in group.columns:
            _count_pages(pages, column, accessed, excluder, last)
    steps = [
        funnel_step("row groups", len(counts), ruled_out, _conditions(file.plan)),
        funnel_step("pages", report.pages, pages),
        funnel_step("rows", sum(counts), rows),
    ]
    return [step for step in steps if step["total"]]


def _count_pages(
    pages: Counter[str], column: ColumnPlan, accessed: RowRanges | None, excluder: Fate, last: Fate
) -> None:
    if column.offsets is None:
        return
    total = len(column.offsets.offsets)
    readable = total if accessed is None else len(column.pages_of(accessed))
    pages[excluder] += total - readable
    pages[last] += readable - len(column.pages)


def _conditions(plan: FetchPlan) -> dict[str, str]:
    """Return the details of the row groups' step, by mechanism: for statistics how many row groups each condition ruled
    out, for Bloom filters the probed columns."""
    details: dict[str, str] = {}
    if plan.statistics is not None:
        details["statistics"] = ", ".join(f"{text}: {count}" for text, count in plan.statistics.dropped_by.items())
    if plan.bloom is not None:
        details["bloom"] = ", ".join(plan.bloom.columns)
    return details


def funnel_step(
    level: Level, total: int, ruled_out: Mapping[str, int], details: Mapping[str, str] | None = None
) -> FunnelStep:
    """Return one step of a funnel: of ``total`` row groups, pages or rows (``level``), how many each mechanism ruled
    out. Counts of zero are left out."""
    found: list[RuledOut] = [
        {"by": fate, "count": count, "detail": (details or {}).get(fate, "")}
        for fate, count in ruled_out.items()
        if count
    ]
    kept = total - sum([item["count"] for item in found])
    return {"level": level, "total": total, "ruled_out": found, "kept": kept}


def add_funnels(funnels: Sequence[Sequence[FunnelStep]]) -> Iterator[FunnelStep]:
    """Add up the funnels of several files, and yield the steps of the sum."""
    levels: tuple[Level, ...] = ("row groups", "pages", "rows")
    for level in levels:
        steps = [step for steps in funnels for step in steps if step["level"] == level]
        counts: Counter[str] = Counter()
        details: dict[str, str] = {}
        for step in steps:
            for item in step["ruled_out"]:
                counts[item["by"]] += item["count"]
                details.setdefault(item["by"], item["detail"])
        if steps:
            yield funnel_step(level, sum([step["total"] for step in steps]), counts, details)
