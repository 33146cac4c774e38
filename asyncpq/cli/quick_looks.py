"""``asyncpq schema``, ``head`` and ``meta``: a first look at a file, as parquet-tools and pqrs have them."""

from __future__ import annotations

from typing import Annotated

from asyncpq import File, Session
from asyncpq.cli.arguments import Columns
from asyncpq.cli.figures import console, count_text, print_facts, print_table
from asyncpq.cli.inspect import Format, ReportFormat, print_file_facts
from asyncpq.cli.output import write_document
from asyncpq.cli.parameters import Option
from asyncpq.cli.reads import Where, write_scan
from asyncpq.cli.rows import Output, RowFormatOption
from asyncpq.cli.session_arguments import Url, only_file, opened, with_session
from asyncpq.cli.table_versions import AtTime, VersionName, version_of
from asyncpq.errors import printable
from asyncpq.reports.documents import Inspection, SchemaDocument
from asyncpq.reports.units import size_text

_HEAD_ROWS = 10
_KEY_WIDTH = 40  # of key-value metadata; longer keys stand out


@with_session
async def schema(
    session: Session, url: Url, version: VersionName = None, at: AtTime = None, format_: ReportFormat = Format.TABLE
) -> None:
    """Show the columns and their types."""
    async with opened(session, url, version=version_of(version, at)) as target:
        fields = [
            {"name": field.name, "arrow_type": str(field.type), "nullable": field.nullable} for field in target.schema
        ]
        document: SchemaDocument = {"document": "schema", "url": target.url, "columns": fields}
    if format_ is Format.JSON:
        write_document(document)
        return
    rows = [[field["name"], field["arrow_type"], "" if field["nullable"] else "!"] for field in fields]
    caption = "! without nulls" if any(row[2] for row in rows) else None
    print_table(console(), "", [("column", "text"), ("type", "text"), ("", "left")], rows, caption=caption)


@with_session
async def head(
    session: Session,
    url: Url,
    rows: Annotated[int, Option("-n", "--rows", metavar="N", help="How many rows.", min=0)] = _HEAD_ROWS,
    columns: Columns = None,
    where: Where = None,
    version: VersionName = None,
    at: AtTime = None,
    format_: RowFormatOption = None,
    output: Output = None,
) -> None:
    """Show the first rows; no more is read than these need."""
    await write_scan(session, url, columns, where, rows, format_, output, version=version_of(version, at))


@with_session
async def meta(
    session: Session, url: Url, version: VersionName = None, at: AtTime = None, format_: ReportFormat = Format.TABLE
) -> None:
    """Show a file's footer: writer, key-value metadata, row groups, column chunks."""
    async with opened(session, url, version=version_of(version, at)) as target:
        if isinstance(target, File):
            document = (await target.inspect(pages=False)).to_dict()
        else:
            async with await session.open_file(await only_file(target, "meta shows the footer of one file")) as file:
                document = (await file.inspect(pages=False)).to_dict()
    if format_ is Format.JSON:
        write_document(document)
    else:
        _show(document)


def _show(document: Inspection) -> None:
    out = console()
    print_file_facts(out, document, pages=False)
    metadata = document["key_value_metadata"]
    if metadata:  # a value may be empty, and its key say something, such as org.apache.spark.legacyDateTime
        width = min(max(16, *(len(name) for name in metadata)), _KEY_WIDTH)
        print_facts(out, [(name, value or '""') for name, value in metadata.items()], cut=False, width=width)
        out.print()
    headings = [("column", "text"), ("type", "left"), ("codec", "left"), ("encodings", "text"), ("values", "right")]
    headings += [("size", "right"), ("plain", "right"), ("nulls", "right"), ("min", "text"), ("max", "text")]
    columns = document["columns"]
    for group in document["row_groups"]:
        lines = [
            [
                column["name"],
                column["physical_type"],
                chunk["codec"].lower(),
                " ".join(chunk["encodings"]).lower(),
                count_text(chunk["values"]),
                size_text(chunk["bytes"][1] - chunk["bytes"][0]),
                size_text(chunk["uncompressed_bytes"]),
                count_text(chunk["nulls"]),
                chunk["min"] or "",
                chunk["max"] or "",
            ]
            for column, chunk in zip(columns, group["chunks"], strict=True)
        ]
        title = f"Row group {group['ordinal']}: {count_text(group['rows'])} rows from row {group['first_row']:,}"
        print_table(out, printable(title), headings, lines)
