"""What a read of a dataset would fetch, and why: :meth:`asyncpq.Dataset.plan`."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpq.datasets.model import View
from asyncpq.errors import printable
from asyncpq.scan.plan import Plan

_SHOWN = 5  # files whose plans explain() shows before it sums up

_VIEWS = {
    View.SNAPSHOT: "snapshot: the files as the index lists them; files written since are not seen, nor are rows of "
    "files replaced since, where it ruled these out",
    View.LISTED: "listed: the files that are there when the read begins",
    View.TABLE: "table: the files of one snapshot, whatever is written meanwhile",
}


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """A read of many files that has not begun.

    Attributes:
        url: of the dataset.
        view: which files the read sees. description: of the dataset; of a table, which version.
        where: the predicate as text, relative times resolved; None without one.
        limit: rows wanted, or None; a read may stop before the last of ``files``.
        files_total: files of the dataset.
        files_ruled_out: by partition values, a table's metadata, an index, or what was learnt by earlier reads:
            not opened.
        index: what the parts of an index left, where there is one.
        listing: what the listing cost; None where nothing is listed.
        files_by_footer: ruled out by their footers and page indexes.
        files: plans of those that would be read, in order.
        skipped: urls of bad files that are left out.
        metadata_requests: requests that planning itself took.
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

    @property
    def num_requests(self) -> int:
        """Range GETs of the first rounds of all files."""
        return sum(plan.num_requests for plan in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of those."""
        return sum(plan.num_bytes for plan in self.files)

    def explain(self) -> str:
        """The plan as text, several lines; of many files, the first that would be read are shown."""
        lines = [
            f"dataset {printable(self.url)}",
            f"  view {_VIEWS[self.view]}",
            f"  {printable(self.description)}",
            *([f"  listing: {self.listing}"] if self.listing is not None else []),
            f"  where: {printable(self.where) if self.where is not None else '(all rows)'}",
            *([f"  limit: {self.limit} rows"] if self.limit is not None else []),
            *[f"  index {printable(line)}" for line in self.index],
            f"  files: {len(self.files)} of {self.files_total} to read; {self.files_ruled_out} ruled out unopened, "
            f"{self.files_by_footer} by their footers",
            f"  {self.num_requests} requests, {self.num_bytes} bytes for data",
            *[f"  skipped: {printable(url)}" for url in self.skipped[:_SHOWN]],
        ]
        for plan in self.files[:_SHOWN]:
            lines.extend(f"  {line}" for line in plan.explain().splitlines())
        if len(self.files) > _SHOWN:
            lines.append(f"  ... and {len(self.files) - _SHOWN} more files")
        lines.append(f"  planning took {self.metadata_requests} requests")
        return "\n".join(lines)

    __str__ = explain
