"""``asyncpq inspect``, ``schema`` and ``meta``: the contents and the layout of a file, prefix, pattern or table."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Final, Literal

from rich.console import Console
from rich.text import Text

from asyncpq import File, Session
from asyncpq.cli.arguments import with_session
from asyncpq.cli.output import (
    WIDE,
    Format,
    Pictures,
    ReportFormat,
    console,
    count_text,
    print_facts,
    print_table,
    share_text,
    write_report,
)
from asyncpq.cli.parameters import Option
from asyncpq.cli.url_targets import IndexedSource, ReadSource, only_file, opened
from asyncpq.errors import InvalidOptionError, plural, printable, size_text
from asyncpq.reports.documents import Chunk, ColumnReport, DatasetInspection, Inspection, RowGroupReport, SchemaDocument

_FEW = 20  # row groups, files and pages of a table; --all shows the others
_MANY_COLUMNS = 100
_KEY_WIDTH = 40  # of key-value metadata; longer keys stand out
_ARROWS: Final = {"ascending": "↑", "descending": "↓"}
_Index = Literal["offset_indexes", "column_indexes", "bloom_filters"]
_INDEXES: Final[tuple[tuple[str, _Index], ...]] = (
    ("O", "offset_indexes"),
    ("C", "column_indexes"),
    ("B", "bloom_filters"),
)
_ENCODINGS: Final = {
    "RLE_DICTIONARY": "dict",
    "PLAIN_DICTIONARY": "dict",
    "DELTA_BINARY_PACKED": "delta",
    "DELTA_LENGTH_BYTE_ARRAY": "delta-length",
    "DELTA_BYTE_ARRAY": "delta-bytes",
    "BYTE_STREAM_SPLIT": "split",
}


class Order(enum.StrEnum):
    """The orders in which ``inspect`` lists columns."""

    FILE = "file"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The parts of a layout that ``inspect`` lists."""

    pages: Annotated[
        str | None,
        Option("--pages", metavar="COLUMN", help="List the pages of a column, with their bounds.", show_default=False),
    ] = None
    no_pages: Annotated[bool, Option("--no-pages", help="Read the footer alone: no page indexes. For huge files.")] = (
        False
    )
    sort: Annotated[Order, Option("--sort", help="Order of columns: as in the file, or the largest first.")] = (
        Order.FILE
    )
    all_rows: Annotated[
        bool, Option("--all", help=f"List everything, not only the first {_FEW} row groups, files or pages.")
    ] = False


@with_session
async def inspect(
    session: Session,
    *,
    listed: _Layout,
    source: IndexedSource,
    format_: ReportFormat = Format.TABLE,
    pictures: Pictures,
) -> None:
    """Show schema, row groups, pages, indexes, Bloom filters, encodings, codecs, sizes, writer and order.

    Of a prefix, pattern or table: files, schema, partitions and indexes, and the layout of the first file.
    """
    pictures.check()
    async with opened(session, source) as target:
        if isinstance(target, File):
            bounds = () if listed.pages is None else [listed.pages]
            document = (await target.inspect(pages=not listed.no_pages, page_bounds=bounds)).to_dict()
            pictures.write(document)
            write_report(document, format_, partial(_show_file, listed))
            return
        if listed.pages is not None:
            raise InvalidOptionError(
                "--pages lists the pages of one file, but the url names several",
                url=source.url,
                hint="Pass the url of one file; without --pages, inspect lists the files.",
            )
        lake = (await target.inspect(pages=not listed.no_pages)).to_dict()
    pictures.write(lake)
    write_report(lake, format_, partial(_show_dataset, listed))


@with_session
async def schema(session: Session, source: ReadSource, format_: ReportFormat = Format.TABLE) -> None:
    """Show the columns and their types."""
    async with opened(session, source) as target:
        fields = [
            {"name": field.name, "arrow_type": str(field.type), "nullable": field.nullable} for field in target.schema
        ]
        document: SchemaDocument = {"document": "schema", "url": target.url, "columns": fields}
    write_report(document, format_, _show_schema)


def _show_schema(document: SchemaDocument) -> None:
    fields = document["columns"]
    rows = [[field["name"], field["arrow_type"], "" if field["nullable"] else "!"] for field in fields]
    caption = "! without nulls" if any(row[2] for row in rows) else None
    print_table(console(), "", [("column", "text"), ("type", "text"), ("", "left")], rows, caption=caption)


@with_session
async def meta(session: Session, source: ReadSource, format_: ReportFormat = Format.TABLE) -> None:
    """Show a file's footer: writer, key-value metadata, row groups, column chunks."""
    async with opened(session, source) as target:
        if isinstance(target, File):
            document = (await target.inspect(pages=False)).to_dict()
        else:
            async with await session.open_file(await only_file(target, "meta shows the footer of one file")) as file:
                document = (await file.inspect(pages=False)).to_dict()
    write_report(document, format_, _show_meta)


# -- files --------------------------------------------------------------------------------------------


def _show_file(listed: _Layout, document: Inspection) -> None:
    out = console()
    _print_file_facts(out, document)
    pages = listed.pages
    if pages is None:
        _print_columns(out, document["columns"], listed)
        _print_row_groups(out, document, all_rows=listed.all_rows)
    else:
        for ordinal, column in enumerate(document["columns"]):
            if column["name"] == pages or column["name"].startswith(f"{pages}."):
                _print_pages(out, document, ordinal, all_rows=listed.all_rows)
    print_facts(out, [("cannot be read", f"{name}: {reason}") for name, reason in document["unreadable"].items()])
    print_facts(out, [("not used", reason) for reason in document["fallbacks"]])


def _print_file_facts(out: Console, document: Inspection, *, pages: bool = True) -> None:
    """Print what a file is as a whole: size, rows, writer, footer, indexes. Without ``pages``, the document has no
    pages, and the order, which only their bounds show, is left out if it is unknown."""
    columns, groups = document["columns"], document["row_groups"]
    out.print(Text(printable(document["url"]), "bold"), soft_wrap=True)
    facts = [size_text(document["size"]), plural(document["rows"], "row")]
    out.print(", ".join([*facts, plural(len(groups), "row group"), plural(len(columns), "column")]))
    footer = document["footer"][1] - document["footer"][0]
    print_facts(
        out,
        [
            ("written by", document["writer"] or "unknown"),
            ("footer", size_text(footer) + (", encrypted" if document["footer_encrypted"] else "")),
            ("sorted by", ", ".join(document["sorted_by"]) or ("nothing that statistics show" if pages else "")),
            ("page indexes", _having(columns, "offset_indexes", len(groups))),
            ("Bloom filters", _having(columns, "bloom_filters", len(groups)) + _filter_size(document)),
            ("legacy calendar", ", ".join(document["legacy_calendar"])),
            ("embedded indexes", ", ".join(document["embedded_indexes"])),
            ("metadata", ", ".join(document["key_value_metadata"])),
            ("version", f"{document['version']} ({document['guarantee']})"),
        ],
    )
    out.print()


def _having(columns: Sequence[ColumnReport], what: _Index, row_groups: int) -> str:
    """Return which columns have the index ``what`` (such as a Bloom filter), as text: "all", or their names."""
    having = [column["name"] for column in columns if column[what]]
    if not having:
        return "none"
    some = " (not in all row groups)" if any(0 < column[what] < row_groups for column in columns) else ""
    return f"all columns{some}" if len(having) == len(columns) else f"{', '.join(having)}{some}"


def _filter_size(document: Inspection) -> str:
    spans = [chunk["bloom_filter"] for group in document["row_groups"] for chunk in group["chunks"]]
    num_bytes = sum(span[1] - span[0] for span in spans if span is not None)
    return f", {size_text(num_bytes)}, {share_text(num_bytes, document['size'])} of the file" if num_bytes else ""


def _print_columns(out: Console, columns: Sequence[ColumnReport], listed: _Layout) -> None:
    by_size = listed.sort is Order.SIZE
    total = sum(column["compressed_bytes"] for column in columns)
    shown = sorted(columns, key=lambda column: -column["compressed_bytes"]) if by_size else list(columns)
    more = 0 if listed.all_rows else max(0, len(shown) - _MANY_COLUMNS)
    wide = out.width >= WIDE
    headings = [("column", "text"), ("type", "text"), ("size", "right"), ("share", "right")]
    headings += [("ratio", "right"), ("codec", "left")] if wide else []
    headings += [("encoding", "text"), ("pages", "right"), ("", "left")]
    headings += [("nulls", "right"), ("min", "text"), ("max", "text")] if wide else []
    rows = [_column_row(column, total, wide=wide) for column in shown[: len(shown) - more]]
    title = "Columns, the largest first" if by_size else "Columns"
    print_table(out, title, [*headings, ("has", "left")], rows, caption=_legend(shown, more))


def _column_row(column: ColumnReport, total: int, *, wide: bool) -> list[str]:
    size, plain = column["compressed_bytes"], column["uncompressed_bytes"]
    ratio = [f"{plain / size:.1f}" if size else "", " ".join(map(str.lower, column["codecs"]))]
    bounds = [count_text(column["nulls"]), column["min"] or "", column["max"] or ""]
    return [
        column["name"],
        column["arrow_type"].removeprefix("extension<").rstrip(">") + ("" if column["nullable"] else "!"),
        size_text(size),
        share_text(size, total),
        *(ratio if wide else []),
        " ".join(dict.fromkeys(map(_encoding, column["encodings"]))),
        "" if column["pages"] is None else count_text(column["pages"]),
        _ARROWS.get(column["sorted"] or "", ""),
        *(bounds if wide else []),
        "".join([letter for letter, what in _INDEXES if column[what]]),
    ]


def _legend(columns: Iterable[ColumnReport], more: int) -> str:
    notes = ["has: O OffsetIndex, C ColumnIndex, B Bloom filter"]
    if any(column["sorted"] for column in columns):
        notes.append("↑↓ sorted")
    if any(not column["nullable"] for column in columns):
        notes.append("! without nulls")
    if more:
        notes.append(f"{plural(more, 'more column')}: --all")
    return "; ".join(notes)


def _encoding(name: str) -> str:
    return _ENCODINGS.get(name, name.lower())


def _print_row_groups(out: Console, document: Inspection, *, all_rows: bool) -> None:
    groups, wide = document["row_groups"], out.width >= WIDE
    more = 0 if all_rows else max(0, len(groups) - _FEW)
    key = document["sorted_by"][0] if document["sorted_by"] else None
    ordinal = next((at for at, column in enumerate(document["columns"]) if column["name"] == key), None)
    headings = [("#", "right"), ("rows", "right"), ("first row", "right"), ("size", "right")]
    headings += [("ratio", "right"), ("first byte", "right")] if wide else []
    headings += [("pages", "right"), *([(f"{key} from", "text"), ("to", "text")] if ordinal is not None else [])]
    rows = [_row_group_row(group, ordinal, wide=wide) for group in groups[: len(groups) - more]]
    caption = f"{plural(more, 'more row group')}: --all" if more else None
    print_table(out, "Row groups", headings, rows, caption=caption)


def _row_group_row(group: RowGroupReport, ordinal: int | None, *, wide: bool) -> list[str]:
    chunks = group["chunks"]
    size = sum(chunk["bytes"][1] - chunk["bytes"][0] for chunk in chunks)
    ratio = [f"{group['uncompressed_bytes'] / size:.1f}" if size else "", count_text(group["bytes"][0])]
    pages = [len(chunk["pages"]["starts"]) for chunk in chunks if chunk["pages"] is not None]
    return [
        str(group["ordinal"]),
        count_text(group["rows"]),
        count_text(group["first_row"]),
        size_text(size),
        *(ratio if wide else []),
        count_text(sum(pages)) if pages else "",
        *([] if ordinal is None else [chunks[ordinal]["min"] or "", chunks[ordinal]["max"] or ""]),
    ]


def _print_pages(out: Console, document: Inspection, ordinal: int, *, all_rows: bool) -> None:
    rows = [row for group in document["row_groups"] for row in _page_rows(group, group["chunks"][ordinal])]
    more = 0 if all_rows else max(0, len(rows) - _FEW)
    headings = [("row group", "right"), ("page", "right"), ("first row", "right"), ("rows", "right")]
    headings += [("first byte", "right"), ("size", "right"), ("min", "text"), ("max", "text")]
    caption = f"{plural(more, 'more page')}: --all" if more else None
    title = f"Pages of {document['columns'][ordinal]['name']}"
    print_table(out, title, headings, rows[: len(rows) - more], caption=caption)


def _page_rows(group: RowGroupReport, chunk: Chunk) -> Iterable[Sequence[str]]:
    ordinal, pages = str(group["ordinal"]), chunk["pages"]
    if pages is None:
        start, stop = chunk["bytes"]
        where = [count_text(group["rows"]), count_text(start), size_text(stop - start)]
        yield ordinal, "whole", "0", *where, chunk["min"] or "", chunk["max"] or ""
        return
    if chunk["dictionary"] is not None:
        start, stop = chunk["dictionary"]
        yield ordinal, "dictionary", "", "", count_text(start), size_text(stop - start), "", ""
    firsts = [*pages["first_rows"], group["rows"]]
    unknown: list[str | None] = [None] * len(pages["starts"])
    mins, maxs = pages.get("mins", unknown), pages.get("maxs", unknown)
    for page, (start, size) in enumerate(zip(pages["starts"], pages["sizes"], strict=True)):
        rows = [count_text(firsts[page]), count_text(firsts[page + 1] - firsts[page])]
        yield ordinal, str(page), *rows, count_text(start), size_text(size), mins[page] or "", maxs[page] or ""


# -- datasets -----------------------------------------------------------------------------------------


def _show_dataset(listed: _Layout, document: DatasetInspection) -> None:
    out, files = console(), document["files"]
    _print_dataset_facts(out, document)
    more = 0 if listed.all_rows else max(0, len(files) - _FEW)
    prefix = document["url"].rstrip("/") + "/"
    rows = [
        [file["url"].removeprefix(prefix), size_text(file["size"]), "" if file["rows"] is None else f"{file['rows']:,}"]
        for file in files[: len(files) - more]
    ]
    caption = f"{plural(more, 'more file')}: --all" if more else None
    print_table(out, "Files", [("file", "text"), ("size", "right"), ("rows", "right")], rows, caption=caption)
    print_facts(out, [("no sample", reason) for reason in document["fallbacks"]])
    sample = document["sample"]
    if sample is None:
        names = [[column["name"], column["arrow_type"]] for column in document["schema"]]
        print_table(out, "Schema", [("column", "text"), ("type", "text")], names)
        return
    out.print("The first file:")
    _print_file_facts(out, sample)
    _print_columns(out, sample["columns"], listed)
    _print_row_groups(out, sample, all_rows=listed.all_rows)


def _print_dataset_facts(out: Console, document: DatasetInspection) -> None:
    files = document["files"]
    out.print(Text(printable(document["url"]), "bold"), soft_wrap=True)
    facts = [plural(len(files), "file")]
    if document["total_bytes"] is not None:
        facts.append(size_text(document["total_bytes"]))
    rows = [file["rows"] for file in files if file["rows"] is not None]
    if files and len(rows) == len(files):
        facts.append(plural(sum(rows), "row"))
    out.print(", ".join([*facts, plural(len(document["schema"]), "column")]))
    sizes = [file["size"] for file in files if file["size"] is not None]
    print_facts(
        out,
        [
            ("view", f"{document['view']}: {document['description']}"),
            ("partitioned by", ", ".join(document["partitions"])),
            ("file sizes", _spread(sizes) if sizes else ""),
            *[("index tables", ", ".join(index["tables"])) for index in document["indexes"]],
        ],
    )
    out.print()


def _spread(sizes: Sequence[int]) -> str:
    return f"{size_text(min(sizes))} to {size_text(max(sizes))}, median {size_text(median(sizes))}"


# -- footers ------------------------------------------------------------------------------------------


def _show_meta(document: Inspection) -> None:
    out = console()
    _print_file_facts(out, document, pages=False)
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
        title = f"Row group {group['ordinal']}: {plural(group['rows'], 'row')} from row {group['first_row']:,}"
        print_table(out, printable(title), headings, lines)
