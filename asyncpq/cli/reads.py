"""``asyncpq query``, ``head``, ``lookup``, ``take`` and ``count``: rows of files, prefixes and tables."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

from asyncpq import File, Session
from asyncpq.cli.arguments import Columns, Keys, RowSelection, Where, parse_columns, parse_keys, with_session
from asyncpq.cli.output import TextFormat, write_line, write_report
from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.rows import SHOWN_ROWS, Output, RowFormat, chosen_format, row_writer
from asyncpq.cli.url_targets import IndexedSource, ReadSource, only_file, opened
from asyncpq.engine.work import watched
from asyncpq.reports.progress import ProgressBars

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncpq import Dataset
    from asyncpq.reports.documents import Count

_HEAD_ROWS: Final = 10
_MOST_SHOWN: Final = 1000  # rows of a table, which is kept in memory


@with_session
async def query(session: Session, asked: RowSelection, source: IndexedSource, out: Output) -> None:
    """Read the rows that match a condition.

    A table shows the first rows; all other formats stream all rows in constant memory.
    """
    await _write_scan(session, source, asked, out)


@with_session
async def head(
    session: Session,
    *,
    rows: Annotated[int, Option("-n", "--rows", metavar="N", help="How many rows.", min=0)] = _HEAD_ROWS,
    columns: Columns = None,
    where: Where = None,
    source: ReadSource,
    out: Output,
) -> None:
    """Show the first rows; no more is read than these need."""
    await _write_scan(session, source, RowSelection(columns, where, rows), out)


async def _write_scan(session: Session, source: ReadSource | IndexedSource, asked: RowSelection, out: Output) -> None:
    """Read the rows that are asked for, and write them."""
    limit, form = asked.limit, chosen_format(out)
    shown = min(SHOWN_ROWS if limit is None else limit, _MOST_SHOWN)
    with _progress(session, form, out.output) as bars:
        async with opened(session, source) as target:
            # A table reads one row more than it shows, to know that there is one.
            most = shown + 1 if form is RowFormat.TABLE and (limit is None or limit > shown) else limit
            total = target.num_rows if isinstance(target, File) and asked.where is None else None
            total = total if limit is None or total is None else min(limit, total)
            async with target.scan(parse_columns(asked.columns, target.schema), asked.where, limit=most) as scan:
                with row_writer(form, out.output, target.url, scan.schema, shown=shown, total=total) as writer:
                    async for batch in scan:
                        # In a thread: a pipe may be slow, and requests go on meanwhile.
                        await asyncio.to_thread(writer.write, batch)
                    if form is RowFormat.TABLE:
                        bars.close()


@with_session
async def lookup(session: Session, *, key: Keys, columns: Columns = None, source: IndexedSource, out: Output) -> None:
    """Read the rows with the given keys."""
    form = chosen_format(out)
    with _progress(session, form, out.output) as bars:
        async with opened(session, source) as target:
            table = await target.lookup(parse_keys(key, target.schema), parse_columns(columns, target.schema))
            bars.close()
            await _write(table, form, out.output, target)


@with_session
async def take(
    session: Session,
    *,
    columns: Columns = None,
    source: ReadSource,
    rows: Annotated[list[int], Argument(metavar="ROW...", help="Row numbers, from 0.", show_default=False)],
    out: Output,
) -> None:
    """Read rows of one file by their numbers, in the order given."""
    form = chosen_format(out)
    async with opened(session, source) as target:
        if isinstance(target, File):
            table = await target.take(rows, parse_columns(columns, target.schema))
        else:
            name = await only_file(target, "row numbers count the rows of one file")
            table = await target.take([(name, row) for row in rows], parse_columns(columns, target.schema))
        await _write(table, form, out.output, target)


@with_session
async def count(
    session: Session,
    *,
    where: Where = None,
    source: IndexedSource,
    format_: Annotated[TextFormat, Option("--format", help="The number, or a JSON document.")] = TextFormat.TEXT,
) -> None:
    """Count the rows that match a condition; without one, from metadata alone."""
    with _progress(session) as bars:
        async with opened(session, source) as target:
            rows = await target.count(where)
            bars.close()
            document: Count = {"document": "count", "url": target.url, "where": where, "rows": rows}
            write_report(document, format_, lambda _: write_line(rows))


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
