"""``asyncpq explain`` and ``asyncpq why``: show the plan of a read, or run a read and show what it cost and why."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

from rich.console import Console
from rich.text import Text

from asyncpq import Dataset, File, Session
from asyncpq.cli.arguments import Columns, OptionalKeys, parse_columns, parse_keys
from asyncpq.cli.figures import console
from asyncpq.cli.output import write_document, write_line
from asyncpq.cli.parameters import Option
from asyncpq.cli.pictures import Html, Png, Svg, check_folders, write_pictures
from asyncpq.cli.reads import Where
from asyncpq.cli.session_arguments import IndexUrl, Url, opened, with_session
from asyncpq.cli.table_versions import AtTime, VersionName, version_of
from asyncpq.engine.work import watched
from asyncpq.errors import InvalidOptionError
from asyncpq.reports.documents import Inspection
from asyncpq.reports.progress import ProgressBars
from asyncpq.reports.why_text import WIDTH, why_text

_MAX_LAYOUTS: Final = 20  # files of a plan that are drawn
_SEVERITIES: Final = {"high": "red", "medium": "yellow", "low": "green"}


class StoryFormat(enum.StrEnum):
    """The output formats of ``explain`` and ``why``."""

    TEXT = "text"
    JSON = "json"


Limit = Annotated[int | None, Option("-n", "--limit", metavar="N", help="At most this many rows.", min=0)]
StoryFormatOption = Annotated[StoryFormat, Option("--format", help="Text for people, or one JSON document.")]


@with_session
async def explain(
    session: Session,
    url: Url,
    key: OptionalKeys = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    index: IndexUrl = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: StoryFormatOption = StoryFormat.TEXT,
    html: Html = None,
    svg: Svg = None,
    png: Png = None,
) -> None:
    """Show what a read would fetch, and why: footers and indexes are read, data is not."""
    check_folders(html, svg, png)
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, url, index, version_of(version, at)) as target:
            plan = await target.plan(**_read(target, key, columns, where, limit))
            document = plan.to_dict()
            if html or svg or png:
                names = [file["url"] for file in document["files"][:_MAX_LAYOUTS]]
                document["layouts"] = [await _layout(session, target, name) for name in names]
    write_pictures(document, html, svg, png)
    if format_ is StoryFormat.JSON:
        write_document(document)
    else:
        write_line(plan.explain())


@with_session
async def why(
    session: Session,
    url: Url,
    key: OptionalKeys = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    count: Annotated[bool, Option("--count", help="Count the rows that match, instead of reading them.")] = False,
    index: IndexUrl = None,
    version: VersionName = None,
    at: AtTime = None,
    warm: Annotated[
        bool, Option("--warm", help="Read once before, and tell the story of the second time, with caches.")
    ] = False,
    format_: StoryFormatOption = StoryFormat.TEXT,
    html: Html = None,
    svg: Svg = None,
    png: Png = None,
) -> None:
    """Run a read and report what was pruned and why, its requests, bytes and time, and what would make it faster."""
    drawn = format_ is StoryFormat.JSON or bool(html or svg or png)
    check_folders(html, svg, png)
    with ProgressBars() as bars, watched(session, bars):
        async with opened(session, url, index, version_of(version, at)) as target:
            if count and (key or columns is not None or limit is not None):
                raise InvalidOptionError(
                    "--count cannot be combined with --key, --columns or --limit",
                    hint="Pass --count alone or with --where; leave the other options out.",
                )
            read = {"where": where, "count": True} if count else _read(target, key, columns, where, limit)
            if warm:
                await target.why(**read, layouts=False)
            document = (await target.why(**read, layouts=drawn)).to_dict()
    write_pictures(document, html, svg, png)
    if format_ is StoryFormat.JSON:
        write_document(document)
    else:
        out = console()
        _print(out, why_text(document, min(out.width, WIDTH)))


def _read(
    target: File | Dataset, key: list[str] | None, columns: str | None, where: str | None, limit: int | None
) -> dict[str, Any]:
    """Convert the command's options to keyword arguments for ``plan()`` and ``why()``."""
    if key and (where is not None or limit is not None):
        raise InvalidOptionError(
            "--key cannot be combined with --where or --limit",
            hint="Look up rows with --key, or filter them with --where and --limit.",
        )
    if key:
        return {"columns": parse_columns(columns), "lookup": parse_keys(key, target.schema)}
    return {"columns": parse_columns(columns), "where": where, "limit": limit}


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
