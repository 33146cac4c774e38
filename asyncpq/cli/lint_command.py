"""``asyncpq lint``: report the reasons why lookups in a file or lake are slow, with cures."""

from __future__ import annotations

from typing import Annotated, Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from asyncpq import Session
from asyncpq.cli.figures import console
from asyncpq.cli.output import Format, ReportFormat, write_document
from asyncpq.cli.parameters import Option
from asyncpq.cli.running import FINDINGS, CommandExit, to_any_reader
from asyncpq.cli.session_arguments import with_session
from asyncpq.cli.url_targets import IndexedSource, opened
from asyncpq.errors import InvalidOptionError, nearest, plural, printable
from asyncpq.reports.cures import WRITER_SETTINGS
from asyncpq.reports.documents import Cause, Lint
from asyncpq.reports.report_objects import saving_text

_WRITERS: Final = (*(each.name for each in WRITER_SETTINGS if each.created_by), "asyncpq")
_STYLES: Final = {"high": "bold red", "medium": "yellow", "low": "cyan", "note": "dim"}


@with_session
async def lint(
    session: Session,
    *,
    column: Annotated[
        list[str] | None,
        Option(
            "--column",
            metavar="NAME",
            help="A column that lookups are by; may be given again. Without it, columns that the file is sorted by or "
            "has Bloom filters of, and those whose names end in id or key.",
            show_default=False,
        ),
    ] = None,
    writer: Annotated[
        list[str] | None,
        Option(
            "--writer",
            metavar="NAME",
            help="Show the cures of this writer alone: pyarrow, spark, duckdb, polars, delta-rs, asyncpq, or the one "
            "that wrote the file.",
            show_default=False,
        ),
    ] = None,
    source: IndexedSource,
    strict: Annotated[
        bool, Option("--strict", help="End with exit code 5 if there are findings other than notes.")
    ] = False,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Find what makes lookups in a file or lake slow, and show what each cure saves and how to apply it."""
    for name in writer or ():
        if name not in _WRITERS:
            hint = nearest(name, _WRITERS, f"Writers are {', '.join(_WRITERS)}.")
            raise InvalidOptionError(f"--writer {name!r}: there is no cure for this writer", hint=hint)
    async with opened(session, source) as target:
        document = (await target.lint(column or None)).to_dict()
    with to_any_reader():
        if format_ is Format.JSON:
            write_document(document)
        else:
            _show(console(), document, writer)
    if strict and any(cause["severity"] != "note" for cause in document["findings"]):
        raise CommandExit(FINDINGS)


def _show(out: Console, document: Lint, writers: list[str] | None) -> None:
    findings = document["findings"]
    out.print(Text(printable(document["url"]), "bold"), soft_wrap=True)
    checked = f" ({plural(document['files_checked'], 'file')} looked at)" if document["files_checked"] != 1 else ""
    by = f" for lookups by {', '.join(document['columns'])}" if document["columns"] else ""
    out.print(Text(printable(f"{plural(len(findings), 'finding')}{by}{checked}")))
    out.print(Text(f"Predicted at {document['prices']}", "dim"))
    for number, cause in enumerate(findings, 1):
        out.print()
        _show_finding(out, number, cause, writers)


def _show_finding(out: Console, number: int, cause: Cause, writers: list[str] | None) -> None:
    severity = cause["severity"]
    title = Text.assemble(f"{number}. ", (severity, _STYLES[severity]), " ", (printable(cause["title"]), "bold"))
    out.print(title.append(f" [{cause['id']}]", "dim"))
    saves = saving_text(cause)
    lines = [cause["detail"], *([saves] if saves else []), f"Cure: {cause['cure']}"]
    for line in lines:
        out.print(Padding(Text(printable(line)), (0, 0, 0, 3), expand=False))
    snippets = cause["snippets"]
    for writer, code in snippets.items():
        if writers is None or writer in writers or len(snippets) == 1:  # which depends on no writer
            out.print(Text.assemble(f"     {writer:9}", (printable(code), "dim")), soft_wrap=True)
