"""``asyncpq explain``, ``why`` and ``lint``: the plan of a read, its cost and why, and what makes lookups slow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from asyncpq import Dataset, File, Session
from asyncpq.cli.arguments import Columns, Limit, OptionalKeys, Where, parse_columns, parse_keys, with_session
from asyncpq.cli.output import Format, Pictures, ReportFormat, TextFormat, console, write_line, write_report
from asyncpq.cli.parameters import Option
from asyncpq.cli.running import FINDINGS, CommandExit, to_any_reader
from asyncpq.cli.url_targets import IndexedSource, opened
from asyncpq.engine.work import watched
from asyncpq.errors import InvalidOptionError, nearest, plural, printable
from asyncpq.reports.cures import WRITER_SETTINGS
from asyncpq.reports.documents import Cause, Inspection, Lint, Why
from asyncpq.reports.lint import saving_text
from asyncpq.reports.progress import ProgressBars
from asyncpq.reports.why import MAX_LAYOUTS, WIDTH, why_text

_SEVERITIES: Final = {"high": "red", "medium": "yellow", "low": "green"}


StoryFormat = Annotated[TextFormat, Option("--format", help="Text for people, or one JSON document.")]


@dataclass(frozen=True, slots=True)
class _Read:
    """The read that is explained: a lookup or a scan."""

    key: OptionalKeys = None
    columns: Columns = None
    where: Where = None
    limit: Limit = None

    def arguments(self, target: File | Dataset) -> dict[str, Any]:
        """Return the keyword arguments for ``plan()`` and ``why()``."""
        if self.key and (self.where is not None or self.limit is not None):
            raise InvalidOptionError(
                "--key cannot be combined with --where or --limit",
                hint="Look up rows with --key, or filter them with --where and --limit.",
            )
        columns = parse_columns(self.columns, target.schema)
        if self.key:
            return {"columns": columns, "lookup": parse_keys(self.key, target.schema)}
        return {"columns": columns, "where": self.where, "limit": self.limit}

    def count_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the ``why()`` of a count."""
        if self.key or self.columns is not None or self.limit is not None:
            raise InvalidOptionError(
                "--count cannot be combined with --key, --columns or --limit",
                hint="Pass --count alone or with --where; leave the other options out.",
            )
        return {"where": self.where, "count": True}


@with_session
async def explain(
    session: Session, *, read: _Read, source: IndexedSource, format_: StoryFormat = TextFormat.TEXT, pictures: Pictures
) -> None:
    """Show what a read would fetch, and why: footers and indexes are read, data is not."""
    pictures.check()
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, source) as target:
            plan = await target.plan(**read.arguments(target))
            document = plan.to_dict()
            if pictures:
                names = [file["url"] for file in document["files"][:MAX_LAYOUTS]]
                document["layouts"] = [await _layout(session, target, name) for name in names]
    pictures.write(document)
    write_report(document, format_, lambda _: write_line(plan.explain()))


@with_session
async def why(
    session: Session,
    *,
    read: _Read,
    count: Annotated[bool, Option("--count", help="Count the rows that match, instead of reading them.")] = False,
    source: IndexedSource,
    warm: Annotated[
        bool, Option("--warm", help="Read once before, and tell the story of the second time, with caches.")
    ] = False,
    format_: StoryFormat = TextFormat.TEXT,
    pictures: Pictures,
) -> None:
    """Run a read and report what was pruned and why, its requests, bytes and time, and what would make it faster."""
    drawn = format_ is TextFormat.JSON or bool(pictures)
    pictures.check()
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, source) as target:
            arguments = read.count_arguments() if count else read.arguments(target)
            if warm:
                await target.why(**arguments, layouts=False)
            document = (await target.why(**arguments, layouts=drawn)).to_dict()
    pictures.write(document)
    write_report(document, format_, _show_why)


async def _layout(session: Session, target: File | Dataset, url: str) -> Inspection:
    if isinstance(target, File):
        return (await target.inspect()).to_dict()
    async with await session.open_file(url) as file:
        return (await file.inspect()).to_dict()


def _show_why(document: Why) -> None:
    """Print a report of ``why`` with titles in bold, bars dim, and the severity of causes in color."""
    out = console()
    for line in why_text(document, min(out.width, WIDTH)).splitlines():
        shown = Text(line, "bold" if line and not line.startswith(" ") else "")
        shown.highlight_regex("█+", "cyan")
        for severity, color in _SEVERITIES.items():
            shown.highlight_regex(rf"(?<=, ){severity}(?=\)$)", color)
        out.print(shown, overflow="ignore", no_wrap=True, crop=False)


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
        write_report(document, format_, partial(_show_lint, writer))
    if strict and any(cause["severity"] != "note" for cause in document["findings"]):
        raise CommandExit(FINDINGS)


def _show_lint(writers: list[str] | None, document: Lint) -> None:
    out = console()
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
