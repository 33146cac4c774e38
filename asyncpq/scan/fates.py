"""What became of each row group, page and row of a planned file: where it was read from, or what ruled it out (its
"fate").

``explain()`` and ``to_dict()`` show the fates. They are computed from a finished plan on demand, so other reads do not
pay for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from asyncpq.objects.read_plan import ColumnPlan, FetchPlan, RowGroupPlan
from asyncpq.pruning.access_plan import AccessPlan, ResolvedAccess
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest

if TYPE_CHECKING:
    from asyncpq.objects.version import FileVersion
    from asyncpq.reports.documents import ChunkFates, Fate, FileFates, FunnelStep, RuledOut

Level = Literal["files", "row groups", "pages", "rows"]

#: Fates of what a read decodes; all others are not fetched.
KEPT = frozenset({"read", "memory", "disk", "shared"})
_TIERS: tuple[Fate, ...] = ("read", "shared", "disk", "memory")  # the farthest counts for a whole

#: Fates of row groups: those that come last, or farthest, first.
_ORDER: tuple[Fate, ...] = (*_TIERS, "late", "limit", "page index", "bloom", "statistics", "index", "access")

FateOf = Callable[[ColumnPlan, int, int], "Fate"]
"""Returns the fate of the bytes ``[start, stop)`` of a column: a page, or a whole chunk."""


class PlannedVersion(NamedTuple):
    """One planned file: its version, request and plan, from which the fates are computed."""

    version: FileVersion
    plan: FetchPlan
    request: ScanRequest
    indexed: AccessPlan | None = None  # the rows that an index beside the object leaves; None for all


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
