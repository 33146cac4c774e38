"""``asyncpq explain`` and ``asyncpq why``: show the plan of a read, or run a read and show what it cost and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Final

from rich.console import Console
from rich.text import Text

from asyncpq import Dataset, File, Session
from asyncpq.cli.arguments import Columns, Limit, OptionalKeys, Where, parse_columns, parse_keys
from asyncpq.cli.figures import console
from asyncpq.cli.output import write_document, write_line
from asyncpq.cli.parameters import Option
from asyncpq.cli.pictures import Pictures
from asyncpq.cli.session_arguments import with_session
from asyncpq.cli.url_targets import IndexedSource, opened
from asyncpq.engine.work import watched
from asyncpq.errors import InvalidOptionError
from asyncpq.reports.documents import Inspection
from asyncpq.reports.progress import ProgressBars
from asyncpq.reports.why import MAX_LAYOUTS
from asyncpq.reports.why_text import WIDTH, why_text

_SEVERITIES: Final = {"high": "red", "medium": "yellow", "low": "green"}


class StoryFormat(enum.StrEnum):
    """The output formats of ``explain`` and ``why``."""

    TEXT = "text"
    JSON = "json"


StoryFormatOption = Annotated[StoryFormat, Option("--format", help="Text for people, or one JSON document.")]


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
        if self.key:
            return {"columns": parse_columns(self.columns), "lookup": parse_keys(self.key, target.schema)}
        return {"columns": parse_columns(self.columns), "where": self.where, "limit": self.limit}

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
    session: Session,
    *,
    read: _Read,
    source: IndexedSource,
    format_: StoryFormatOption = StoryFormat.TEXT,
    pictures: Pictures,
) -> None:
    """Show what a read would fetch, and why: footers and indexes are read, data is not."""
    pictures.check_folders()
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, source) as target:
            plan = await target.plan(**read.arguments(target))
            document = plan.to_dict()
            if pictures:
                names = [file["url"] for file in document["files"][:MAX_LAYOUTS]]
                document["layouts"] = [await _layout(session, target, name) for name in names]
    pictures.write(document)
    if format_ is StoryFormat.JSON:
        write_document(document)
    else:
        write_line(plan.explain())


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
    format_: StoryFormatOption = StoryFormat.TEXT,
    pictures: Pictures,
) -> None:
    """Run a read and report what was pruned and why, its requests, bytes and time, and what would make it faster."""
    drawn = format_ is StoryFormat.JSON or bool(pictures)
    pictures.check_folders()
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, source) as target:
            arguments = read.count_arguments() if count else read.arguments(target)
            if warm:
                await target.why(**arguments, layouts=False)
            document = (await target.why(**arguments, layouts=drawn)).to_dict()
    pictures.write(document)
    if format_ is StoryFormat.JSON:
        write_document(document)
    else:
        out = console()
        _print(out, why_text(document, min(out.width, WIDTH)))


async def _layout(session: Session, target: File | Dataset, url: str) -> Inspection:
    if isinstance(target, File):
        return (await target.inspect()).to_dict()
    async with await session.open_file(url) as file:
        return (await file.inspect()).to_dict()


def _print(out: Console, text: str) -> None:
    """Print a report of ``why`` or ``explain`` with its titles in bold, its bars dim, and the severity of causes in
    color."""
    for line in text.splitlines():
        shown = Text(line, "bold" if line and not line.startswith(" ") else "")
        shown.highlight_regex("█+", "cyan")
        for severity, color in _SEVERITIES.items():
            shown.highlight_regex(rf"(?<=, ){severity}(?=\)$)", color)
        out.print(shown, overflow="ignore", no_wrap=True, crop=False)
