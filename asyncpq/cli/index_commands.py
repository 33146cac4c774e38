"""``asyncpq index``: build, refresh, show, verify, compact, vacuum and drop an index beside the files."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

from asyncpq import Session
from asyncpq.cli.arguments import with_session
from asyncpq.cli.output import (
    Format,
    ReportFormat,
    console,
    count_text,
    print_facts,
    print_table,
    write_line,
    write_report,
)
from asyncpq.cli.parameters import Argument, Group, Option
from asyncpq.cli.running import FAILED, CommandExit, fail, interruptible, to_any_reader
from asyncpq.cli.url_targets import open_existing_index, target_of
from asyncpq.engine.work import watched
from asyncpq.errors import AsyncpqError, InvalidOptionError, nearest, plural, size_text
from asyncpq.indexing import Bloom, Bounds, Footers, Index, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.reports.documents import IndexBuild, IndexDocument, IndexUpkeep, IndexVerification
from asyncpq.reports.progress import ProgressBars

GROUP = Group("index", "Build and keep an index beside the files.")

_KINDS: Final[dict[str, Any]] = {
    "bounds": Bounds,
    "set": ValueSet,
    "bloom": Bloom,
    "ngrams": NGrams,
    "keys": Keys,
    "text": Text,
    "footers": Footers,
    "pages": Pages,
}
_DURATION: Final = re.compile(r"(\d+)([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_Lake = Annotated[
    str, Argument(metavar="URL", help="A prefix, pattern or table, whose index it is.", show_default=False)
]
_At = Annotated[
    str | None,
    Option("--at", metavar="URL", help="Url of the index. Default: _asyncpq/ below the prefix.", show_default=False),
]
#: Processes of a build or a rewrite.
Workers = Annotated[int, Option("--workers", help="Processes of this machine that do the work.", min=1)]


def _misfit(name: str, columns: list[str], options: dict[str, Any]) -> str:
    """Return why a kind does not accept its columns and options."""
    parameters = inspect.signature(_KINDS[name]).parameters.values()
    if columns and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return f"an index of this kind has no columns, such as {columns[0]!r}"
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    unknown = next((key for key in options if key not in known), None)
    if unknown is None:
        return f"these columns or options do not fit {name!r}"
    return f"there is no option {unknown!r} of {name!r}, whose options are: {', '.join(known) or 'none'}"


def parse_kind(text: str) -> IndexKind:
    """Return the kind that ``text`` names: ``footers``, ``keys:user`` or ``bloom:user,false_positives=0.001``.

    Raises InvalidOptionError if there is no such kind, or the kind does not accept the arguments.
    """
    name, _, rest = text.partition(":")
    if name not in _KINDS:
        hint = nearest(name, _KINDS, f"Kinds are {', '.join(_KINDS)}.")
        raise InvalidOptionError(f"--kind {text!r}: there is no kind of index {name!r}", hint=hint)
    columns: list[str] = []
    options: dict[str, Any] = {}
    try:
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if equals:
                options[key] = float(value) if "." in value else int(value) if value.isdigit() else value
            else:
                columns.append(item)
        kind: IndexKind = _KINDS[name](*columns, **options)
    except (TypeError, ValueError) as error:
        what = error.message if isinstance(error, AsyncpqError) else _misfit(name, columns, options)
        raise InvalidOptionError(
            f"--kind {text!r}: {what}", hint="Write for example keys:user, bloom:user,false_positives=0.001, footers."
        ) from error
    return kind


@GROUP.command
@with_session
async def build(
    session: Session,
    url: _Lake,
    kind: Annotated[
        list[str] | None,
        Option(
            "--kind",
            "-k",
            metavar="KIND",
            help="A kind with its columns: bounds, bounds:day, keys:user, bloom:user, set:country, ngrams:title, "
            "text:body, footers, pages. Repeat it for more. Default: footers and bounds.",
            show_default=False,
        ),
    ] = None,
    at: _At = None,
    workers: Workers = 1,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Read the files once, and write an index of them. Interrupted builds continue where they stopped."""
    kinds = [parse_kind(text) for text in kind or ["footers", "bounds"]]
    with interruptible("The same command continues the build where it stopped."):
        named = await target_of(session, url)
        index = await session.build_index(
            named.target, kinds, at=at, progress=True, workers=workers, format=named.format
        )
    write_report(_build_document(index), format_, _show_build)


@GROUP.command
@with_session
async def refresh(session: Session, url: _Lake, at: _At = None, format_: ReportFormat = Format.TABLE) -> None:
    """Read files that are new or were replaced since the index was built, and commit the changes."""
    index = await open_existing_index(session, url, at, refreshes=True)
    with ProgressBars() as bars, watched(session, bars):
        await index.refresh()
    write_report(_build_document(index), format_, _show_build)


@GROUP.command
@with_session
async def show(
    session: Session,
    url: _Lake,
    at: _At = None,
    stale: Annotated[
        bool, Option("--stale", help="List the files too, and say how they differ from the index.")
    ] = False,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Show what the index holds: its kinds, files, rows and bytes."""
    index = await open_existing_index(session, url, at, refreshes=stale)
    report = await index.show(staleness=stale)
    document: IndexDocument = {
        "document": "index",
        "url": report.backend,
        "snapshot": report.snapshot,
        "created": report.created.isoformat(),
        "as_of": None if report.as_of is None else report.as_of.isoformat(),
        "files": report.files,
        "rows": report.rows,
        "bytes": report.size,
        "tables": [
            {
                "kind": table.kind,
                "columns": list(table.columns),
                "options": table.options,
                "files": table.files,
                "rows": table.rows,
                "bytes": table.size,
                "segments": table.segments,
            }
            for table in report.tables
        ],
        "builds": report.builds,
        "stale": None if report.staleness is None else asdict(report.staleness),
    }
    write_report(document, format_, _show)


@GROUP.command
@with_session
async def verify(
    session: Session,
    url: _Lake,
    at: _At = None,
    sample: Annotated[int, Option("--sample", help="Files to compare.")] = 10,
    rows: Annotated[int, Option("--rows", help="Rows to look up, for each file and kind.")] = 100,
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Compare the index with a random sample of the files. The exit code is 1 if it is wrong."""
    index = await open_existing_index(session, url, at, refreshes=True)
    verified = await index.verify(sample=sample, rows=rows)
    document: IndexVerification = {"document": "index verification", "url": index.url, **asdict(verified)}  # type: ignore[typeddict-item]
    with to_any_reader():
        write_report(document, format_, _show_verification)
    if verified.problems:
        raise CommandExit(FAILED)


@GROUP.command
@with_session
async def compact(session: Session, url: _Lake, at: _At = None, format_: ReportFormat = Format.TABLE) -> None:
    """Merge the segments of many refreshes. The old ones stay until a vacuum."""
    index = await open_existing_index(session, url, at)
    done = await index.compact()
    document: IndexUpkeep = {
        **_NOTHING,
        "url": index.url,
        "segments_written": done.written,
        "segments_replaced": done.merged,
    }
    write_report(document, format_, _show_upkeep)


@GROUP.command
@with_session
async def vacuum(
    session: Session,
    url: _Lake,
    at: _At = None,
    keep: Annotated[int, Option("--keep", help="Newest snapshots that stay.")] = 10,
    older_than: Annotated[
        str,
        Option("--older-than", metavar="TIME", help="Snapshots that readers may use stay for this time: 90m, 12h, 7d."),
    ] = "7d",
    format_: ReportFormat = Format.TABLE,
) -> None:
    """Remove old snapshots, and the segments and files that only these use."""
    match = _DURATION.fullmatch(older_than)
    if match is None:
        raise InvalidOptionError(
            f"--older-than {older_than!r}: must be a number and a unit", hint="Write 90m, 12h or 7d."
        )
    index = await open_existing_index(session, url, at)
    age = timedelta(**{_UNITS[match[2]]: int(match[1])})
    done = await index.vacuum(keep=keep, older_than=age)
    document: IndexUpkeep = {
        **_NOTHING,
        "url": index.url,
        "segments_removed": len(done.segments),
        "snapshots_removed": len(done.snapshots),
        "files_removed": len(done.files),
    }
    write_report(document, format_, _show_upkeep)


@GROUP.command
@with_session
async def drop(
    session: Session,
    url: _Lake,
    at: _At = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove the index. The files stay."""
    index = await open_existing_index(session, url, at)
    if not yes and not _agrees(f"Remove the index at {index.url}?"):
        fail("the index stays", FAILED)
    await index.drop()
    write_line(f"removed the index at {index.url}", err=True)


def _agrees(question: str) -> bool:
    while True:
        sys.stderr.write(f"{question} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # the input has ended
            write_line("", err=True)
            fail("the index stays, since there is no answer. Add --yes, which removes it without asking.", FAILED)
        if (word := answer.strip().lower()) in ("y", "yes", "n", "no", ""):
            return word in ("y", "yes")


# -- what is printed ----------------------------------------------------------------------------------

_NOTHING: Final[IndexUpkeep] = {
    "document": "index upkeep",
    "url": "",
    "segments_written": 0,
    "segments_replaced": 0,
    "segments_removed": 0,
    "snapshots_removed": 0,
    "files_removed": 0,
}


def _build_document(index: Index) -> IndexBuild:
    done = index.refreshed
    return {
        "document": "index build",
        "url": index.url,
        "snapshot": index.snapshot,
        "added": 0 if done is None else done.added,
        "removed": 0 if done is None else done.removed,
        "resumed": 0 if done is None else done.resumed,
        "problems": [] if done is None else [{"url": path, "error": str(error)} for path, error in done.problems],
    }


def _show_build(document: IndexBuild) -> None:
    out = console()
    out.print(f"index at {document['url']}, snapshot {document['snapshot']}", soft_wrap=True)
    resumed = f", {count_text(document['resumed'])} of them read before" if document["resumed"] else ""
    out.print(f"{plural(document['added'], 'file')} added{resumed}, {count_text(document['removed'])} removed")
    print_facts(out, [("not indexed", f"{item['url']}: {item['error']}") for item in document["problems"]])


def _show(document: IndexDocument) -> None:
    out = console()
    out.print(f"index at {document['url']}, snapshot {document['snapshot']}", soft_wrap=True)
    stale = document["stale"]
    print_facts(
        out,
        [
            ("files", count_text(document["files"])),
            ("rows", count_text(document["rows"])),
            ("size", size_text(document["bytes"])),
            ("listed at", document["as_of"] or "the first build has not ended"),
            ("builds", f"{document['builds']} running or interrupted" if document["builds"] else ""),
            ("since then", "" if stale is None else ", ".join(f"{count:,} {name}" for name, count in stale.items())),
        ],
    )
    out.print()
    print_table(
        out,
        "Kinds",
        [
            ("kind", "left"),
            ("columns", "text"),
            ("files", "right"),
            ("rows", "right"),
            ("size", "right"),
            ("segments", "right"),
        ],
        [
            [
                table["kind"],
                ", ".join(table["columns"]),
                count_text(table["files"]),
                count_text(table["rows"]),
                size_text(table["bytes"]),
                count_text(table["segments"]),
            ]
            for table in document["tables"]
        ],
    )


def _show_verification(document: IndexVerification) -> None:
    out = console()
    out.print(f"{plural(document['files'], 'file')} and {plural(document['rows'], 'row')} of the index compared")
    print_facts(out, [("changed since", plural(document["changed"], "file"))] if document["changed"] else [])
    print_facts(out, [("wrong", problem) for problem in document["problems"]])
    out.print("the index is wrong: drop it and build it again" if document["problems"] else "the index is right")


def _show_upkeep(document: IndexUpkeep) -> None:
    out = console()
    out.print(f"index at {document['url']}", soft_wrap=True)
    numbers = [(name, number) for name, number in document.items() if isinstance(number, int) and number]
    facts = [(name.replace("_", " "), count_text(number)) for name, number in numbers]
    print_facts(out, facts or [("done", "nothing was to be done")])
