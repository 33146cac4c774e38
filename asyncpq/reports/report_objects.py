"""What :meth:`asyncpq.File.lint` and ``inspect`` return: documents that also are text and a picture."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from asyncpq.errors import plural, printable
from asyncpq.reports.units import seconds_text, size_text

if TYPE_CHECKING:
    from asyncpq.reports.documents import Cause, DatasetInspection, Inspection, Lint

D_co = TypeVar("D_co", covariant=True)

_FEW = 40  # columns of a text


class LintReport(dict[str, Any]):
    """The findings of a ``lint``: a dict of JSON values (docs/cli.md)."""

    def to_dict(self) -> Lint:
        """Return the report as a JSON document."""
        return cast("Lint", self)

    def explain(self) -> str:
        """Return the report as text of several lines."""
        document = self.to_dict()
        by = f" for lookups by {', '.join(document['columns'])}" if document["columns"] else ""
        lines = [printable(f"{document['url']}: {plural(len(document['findings']), 'finding')}{by}")]
        for number, cause in enumerate(document["findings"], 1):
            lines.append(printable(f"{number}. {cause['severity']}: {cause['title']} [{cause['id']}]"))
            saves = saving_text(cause)
            lines += [printable(f"   {line}") for line in (cause["detail"], *([saves] if saves else []))]
            lines.append(printable(f"   Cure: {cause['cure']}"))
        return "\n".join(lines)

    __str__ = explain

    def _repr_html_(self) -> str:
        """Return the findings for notebooks."""
        document = self.to_dict()
        parts = [f"<b>{html.escape(document['url'])}</b>: {plural(len(document['findings']), 'finding')}<ol>"]
        for cause in document["findings"]:
            texts = [
                html.escape(text) for text in (cause["detail"], saving_text(cause), f"Cure: {cause['cure']}") if text
            ]
            code = "".join(
                f"<br>{html.escape(writer)}: <code>{html.escape(snippet)}</code>"
                for writer, snippet in cause["snippets"].items()
            )
            title = f"{html.escape(cause['severity'])}: <b>{html.escape(cause['title'])}</b>"
            parts.append(f"<li>{title}<br>{'<br>'.join(texts)}{code}</li>")
        return "".join([*parts, "</ol>"])


class InspectionReport(dict[str, Any], Generic[D_co]):
    """The layout of a file, or of a dataset's files: a dict of JSON values (docs/cli.md)."""

    def to_dict(self) -> D_co:
        """Return the report as a JSON document."""
        return cast("D_co", self)

    def explain(self) -> str:
        """Return the report as text of several lines."""
        document = cast("Inspection | DatasetInspection", self)
        if document["document"] == "inspection":
            return "\n".join(_file_lines(document))
        size = "" if document["total_bytes"] is None else f", {size_text(document['total_bytes'])}"
        lines = [f"{document['url']}: {plural(len(document['files']), 'file')}{size}, view {document['view']}"]
        lines += [f"  {field['name']}: {field['arrow_type']}" for field in document["schema"][:_FEW]]
        sample = document["sample"]
        if sample is not None:
            lines += ["  the first file:", *[f"  {line}" for line in _file_lines(sample)]]
        return "\n".join(map(printable, lines))

    __str__ = explain

    def _repr_html_(self) -> str | None:
        """Return the page map for notebooks."""
        from asyncpq.page_map import framed

        return framed(cast("Inspection | DatasetInspection", self))


def saving_text(cause: Cause) -> str:
    """Return, as text, what the cure of a finding is predicted to save: requests, bytes and time."""
    parts: list[str] = []
    more: list[str] = []
    for saved, text in ((cause["saves_requests"], plural), (cause["saves_bytes"], None)):
        if saved:
            words = size_text(abs(saved)) if text is None else text(abs(saved), "request")
            (parts if saved > 0 else more).append(words)
    if cause["saves_seconds"]:
        parts.append(seconds_text(cause["saves_seconds"]))
    if not parts:
        return ""
    costs = f", for {' and '.join(more)} more" if more else ""
    return f"Saves {', '.join(parts)}{costs}: a lookup by {cause['column']}." if cause["column"] else ""


def _file_lines(document: Inspection) -> list[str]:
    groups, columns = document["row_groups"], document["columns"]
    lines = [
        f"{document['url']}: {plural(document['rows'], 'row')} in {plural(len(groups), 'row group')}, "
        f"{size_text(document['size'])}, written by {document['writer'] or 'an unnamed writer'}",
        f"  sorted by {', '.join(document['sorted_by'])}" if document["sorted_by"] else "  sorted by no column",
    ]
    for number, column in enumerate(columns[:_FEW]):
        chunks = [group["chunks"][number] for group in groups]
        size = sum(chunk["bytes"][1] - chunk["bytes"][0] for chunk in chunks)
        codecs = ", ".join(sorted({chunk["codec"].lower() for chunk in chunks}))
        lines.append(f"  {column['name']}: {column['physical_type']}, {size_text(size)}, {codecs}")
    if len(columns) > _FEW:
        lines.append(f"  ... and {plural(len(columns) - _FEW, 'column')} more")
    return [printable(line) for line in lines]
