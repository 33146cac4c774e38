"""``asyncpq query``, ``lookup``, ``take`` and ``count``: rows of files, prefixes and tables."""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

from asyncpq import File, Session
from asyncpq.cli.arguments import Columns, Keys, parse_columns, parse_keys
from asyncpq.cli.output import write_document, write_line
from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.rows import SHOWN_ROWS, Output, RowFormat, RowFormatOption, chosen_format, row_writer
from asyncpq.cli.session_arguments import IndexUrl, Url, only_file, opened, with_session
from asyncpq.cli.table_versions import AtTime, VersionName, version_of
from asyncpq.engine.work import watched
from asyncpq.reports.progress import ProgressBars

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncpq import Dataset
    from asyncpq.reports.documents import Count
    from asyncpq.typing import TableVersion

_MOST_SHOWN: Final = 1000  # rows of a table, which is kept in memory

Where = Annotated[
    str | None,
    Option(
        "--where", metavar="SQL", help="The condition after WHERE in SQL, such as: \"id = 42 AND day >= '2024-05-01'\"."
    ),
]


class CountFormat(enum.StrEnum):
    """The output formats of a count."""

    TEXT = "text"
    JSON = "json"


@with_session
async def query(
    session: Session,
    url: Url,
    columns: Columns = None,
    where: Where = None,
    limit: Annotated[int | None, Option("-n", "--limit", metavar="N", help="At most this many rows.", min=0)] = None,
    index: IndexUrl = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: RowFormatOption = None,
    output: Output = None,
) -> None:
    """Read the rows that match a condition.

    A table shows the first rows; all other formats stream all rows in constant memory.
    """
    await write_scan(session, url, columns, where, limit, format_, output, index=index, version=version_of(version, at))


async def write_scan(
    session: Session,
    url: str,
    columns: str | None,
    where: str | None,
    limit: int | None,
    format_: RowFormat | None,
    output: str | None,
    *,
    index: str | None = None,
    version: TableVersion | None = None,
) -> None:
    """Read the rows that match ``where``, at most ``limit`` of them, and write them. The arguments are those of
    ``asyncpq query``, as the command line has them."""
    form = chosen_format(format_, output)
    shown = min(SHOWN_ROWS if limit is None else limit, _MOST_SHOWN)
    with _progress(session, form, output) as bars:
        async with opened(session, url, index, version) as target:
            # A table reads one row more than it shows, to know that there is one.
            most = shown + 1 if form is RowFormat.TABLE and (limit is None or limit > shown) else limit
            total = target.num_rows if isinstance(target, File) and where is None else None
            total = total if limit is None or total is None else min(limit, total)
            async with target.scan(parse_columns(columns), where, limit=most) as scan:
                with row_writer(form, output, target.url, scan.schema, shown=shown, total=total) as writer:
                    async for batch in scan:
                        # In a thread: a pipe may be slow, and requests go on meanwhile.
                        await asyncio.to_thread(writer.write, batch)
                    if form is RowFormat.TABLE:
                        bars.close()


@with_session
async def lookup(
    session: Session,
    url: Url,
    key: Keys,
    columns: Columns = None,
    index: IndexUrl = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: RowFormatOption = None,
    output: Output = None,
) -> None:
    """Read the rows with the given keys."""
    form = chosen_format(format_, output)
    with _progress(session, form, output) as bars:
        async with opened(session, url, index, version_of(version, at)) as target:
            table = await target.lookup(parse_keys(key, target.schema), parse_columns(columns))
            bars.close()
            await _write(table, form, output, target)


@with_session
async def take(
    session: Session,
    url: Url,
    rows: Annotated[list[int], Argument(metavar="ROW...", help="Row numbers, from 0.", show_default=False)],
    columns: Columns = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: RowFormatOption = None,
    output: Output = None,
) -> None:
    """Read rows of one file by their numbers, in the order given."""
    form = chosen_format(format_, output)
    async with opened(session, url, version=version_of(version, at)) as target:
        if isinstance(target, File):
            table = await target.take(rows, parse_columns(columns))
        else:
            name = await only_file(target, "row numbers count the rows of one file")
            table = await target.take([(name, row) for row in rows], parse_columns(columns))
        await _write(table, form, output, target)


@with_session
async def count(
    session: Session,
    url: Url,
    where: Where = None,
    index: IndexUrl = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: Annotated[CountFormat, Option("--format", help="The number, or a JSON document.")] = CountFormat.TEXT,
) -> None:
    """Count the rows that match a condition; without one, from metadata alone."""
    with _progress(session) as bars:
        async with opened(session, url, index, version_of(version, at)) as target:
            rows = await target.count(where)
            bars.close()
            if format_ is CountFormat.JSON:
                document: Count = {"document": "count", "url": target.url, "where": where, "rows": rows}
                write_document(document)
            else:
                write_line(rows)


@contextmanager
def _progress(session: Session, form: RowFormat = RowFormat.TABLE, output: str | None = None) -> Iterator[ProgressBars]:
    """Show the progress of the reads in the block, unless rows are written to the same terminal at the same time."""
    with ProgressBars() as bars, watched(session, bars):
        if output is None and form is not RowFormat.TABLE and sys.stdout.isatty():
            bars.close()
        yield bars


async def _write(table: pa.Table, form: RowFormat, output: str | None, target: File | Dataset) -> None:
    with row_writer(form, output, target.url, table.schema, total=table.num_rows) as writer:
        for batch in table.to_batches():
            await asyncio.to_thread(writer.write, batch)
