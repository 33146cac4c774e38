"""The plan of a read of many files: :meth:`asyncpq.Dataset.plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from asyncpq.datasets.model import View
from asyncpq.errors import plural, printable
from asyncpq.metrics import MAX_LOGGED
from asyncpq.records import dataclass
from asyncpq.scan.plan import Plan, add_funnels, file_fate, funnel_step

if TYPE_CHECKING:
    from asyncpq.reports.documents import FunnelStep, PlanDocument

_SHOWN = 5  # files whose plans explain() shows
_DOCUMENTED = 100  # files whose fates to_dict() has
_DRAWN = 20  # files whose layouts it has on demand

_VIEWS = {
    View.SNAPSHOT: "snapshot: the files as the index lists them; files written since are not seen, nor are rows of "
    "files replaced since, where it ruled these out",
    View.LISTED: "listed: the files that are there when the read begins",
    View.TABLE: "table: the files of one snapshot, whatever is written meanwhile",
}


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """The plan of a read of many files, made by :meth:`asyncpq.Dataset.plan`. No data has been fetched.

    Attributes:
        url: url of the dataset.
        view: which files the read sees: "listed", "snapshot" (of an index) or "table".
        description: one line of text: where the files come from, and the version of a table.
        where: the predicate as text, relative times resolved; None if all rows match.
        limit: maximum of rows, None for all; a read may stop before the last of ``files``.
        files_total: number of files of the dataset.
        files_ruled_out: number of files not opened, since partition values, a table's metadata, an index or earlier
            reads show that no row matches.
        index: lines of text, one for each table of the index: how many files it ruled out; empty without an index.
        listing: the cost of the listing, as text; None if nothing was listed.
        files_by_footer: number of files ruled out by their footers and page indexes.
        files: plans of the files that would be read, in order.
        skipped: urls of bad files that are left out.
        metadata_requests: number of requests that planning itself sent.
        columns: names of the columns that would be returned.
        files_by: a dict: number of files that were not opened, by what ruled them out, such as "index" or "partition".
        files_empty: plans of files that were opened and planned, and of which nothing would be read.
    """

    url: str
    view: View
    description: str
    where: str | None
    limit: int | None
    files_total: int
    files_ruled_out: int
    files_by_footer: int
    files: tuple[Plan, ...]
    skipped: tuple[str, ...]
    metadata_requests: int
    index: tuple[str, ...] = ()
    listing: str | None = None
    columns: tuple[str, ...] = ()
    files_by: Mapping[str, int] = field(default_factory=dict)
    files_empty: tuple[Plan, ...] = ()

    @property
    def num_requests(self) -> int:
        """Number of range GETs in the first rounds of all files."""
        return sum(plan.num_requests for plan in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes that the range GETs in the first rounds of all files fetch."""
        return sum(plan.num_bytes for plan in self.files)

    @property
    def funnel(self) -> tuple[FunnelStep, ...]:
        """The steps from all files to the rows that would be read: at each step, how many files, row groups, pages
        and rows are left, and what ruled out the others: dicts with the keys "level", "total", "ruled_out" and "kept"
        of :class:`asyncpq.reports.documents.FunnelStep`."""
        ruled_out = Counter(self.files_by)
        ruled_out["statistics"] += self.files_by_footer - len(self.files_empty)
        ruled_out.update(file_fate(plan.fates) for plan in self.files_empty)
        details = {"index": "; ".join(self.index)}
        files = funnel_step("files", self.files_total - len(self.skipped), ruled_out, details)
        return files, *add_funnels([plan.funnel for plan in (*self.files, *self.files_empty)])

    def to_dict(self, *, layouts: bool = False) -> PlanDocument:
        """Return the plan as a dict of JSON values (:class:`asyncpq.reports.documents.PlanDocument`). For each of the
        first 100 files it says which row groups and pages would be read, and what ruled out the others.

        Args:
            layouts: include the layouts (row groups and pages with their places) of the first 20 files that would be
                read, as far as they are in memory, so that the plan can be drawn.
        """
        requests = [request for plan in self.files for request in plan.request_documents()]
        guarantees = {plan.guarantee for plan in self.files}
        document: PlanDocument = {
            "document": "plan",
            "url": printable(self.url),
            "view": str(self.view),
            "version": None,
            "guarantee": guarantees.pop() if len(guarantees) == 1 else None,
            "columns": list(self.columns),
            "where": self.where,
            "limit": self.limit,
            "funnel": list(self.funnel),
            "files": [plan.fates for plan in self.files[:_DOCUMENTED]],
            "files_to_read": len(self.files),
            "skipped": [printable(url) for url in self.skipped],
            "requests": requests[:MAX_LOGGED],
            "num_requests": self.num_requests,
            "num_bytes": self.num_bytes,
            "cached_bytes": sum(plan.cached_bytes for plan in self.files),
            "rounds": max((plan.rounds for plan in self.files), default=0),
            "late_columns": list(dict.fromkeys(name for plan in self.files for name in plan.late_columns)),
            "estimates": self._estimates(),
            "prices": self.files[0].prices if self.files else "",
            "index": list(self.index),
            "listing": self.listing,
            "fallbacks": list(dict.fromkeys(reason for plan in self.files for reason in plan.fallbacks)),
            "metadata_requests": self.metadata_requests,
            "explain": self.explain(),
        }
        if layouts:
            document["layouts"] = [plan.layout() for plan in self.files[:_DRAWN] if plan.layout is not None]
        return document

    def _repr_html_(self) -> str | None:
        """Return a frame for notebooks with the page map of the plan."""
        from asyncpq.page_map import framed

        return framed(self.to_dict(layouts=True))

    def _estimates(self) -> list[dict[str, Any]]:
        """Return the estimated seconds of each read strategy (such as predicate columns first), in all files."""
        seconds: dict[str, float] = {}
        for plan in self.files:
            for name, estimate in plan.estimates:
                seconds[name] = seconds.get(name, 0.0) + estimate
        return [{"strategy": name, "seconds": round(value, 6)} for name, value in seconds.items()]

    def explain(self) -> str:
        """Return the plan as text of several lines, with the plans of the first five files that would be read."""
        lines = [
            f"dataset {printable(self.url)}",
            f"  view {_VIEWS[self.view]}",
            f"  {printable(self.description)}",
            *([f"  listing: {self.listing}"] if self.listing is not None else []),
            f"  where: {printable(self.where) if self.where is not None else '(all rows)'}",
            *([f"  limit: {plural(self.limit, 'row')}"] if self.limit is not None else []),
            *[f"  index {printable(line)}" for line in self.index],
            f"  files: {len(self.files):,} of {self.files_total:,} to read; "
            f"{self.files_ruled_out:,} ruled out unopened, {self.files_by_footer:,} by their footers",
            f"  {plural(self.num_requests, 'request')}, {self.num_bytes:,} bytes for data",
            *[f"  skipped: {printable(url)}" for url in self.skipped[:_SHOWN]],
        ]
        for plan in self.files[:_SHOWN]:
            lines.extend(f"  {line}" for line in plan.explain().splitlines())
        if len(self.files) > _SHOWN:
            lines.append(f"  ... and {len(self.files) - _SHOWN:,} more files")
        lines.append(f"  planning took {plural(self.metadata_requests, 'request')}")
        return "\n".join(lines)

    __str__ = explain
