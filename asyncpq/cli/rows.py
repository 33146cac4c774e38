"""Write rows as a table, JSON, NDJSON, CSV, Arrow or Parquet, to stdout or a file, batch by batch.

A file is written under a temporary name, and renamed when it is complete. Only the table format keeps rows in memory:
the rows that it shows.
"""

from __future__ import annotations

import enum
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Annotated, Any, Final

import pyarrow as pa

from asyncpq.cli.output import UNCUT, console, is_parquet, print_table
from asyncpq.cli.parameters import Option
from asyncpq.engine.target_facts import url_facts
from asyncpq.errors import InvalidOptionError, plural
from asyncpq.reports.row_writers import (
    ArrowFileWriter,
    ArrowWriter,
    CountingSink,
    CsvWriter,
    JsonWriter,
    NdjsonWriter,
    ParquetWriter,
    RowWriter,
    is_number,
    json_text,
    json_values,
)

SHOWN_ROWS: Final = 40  # of a table without --limit
_CELL: Final = 200  # characters of a cell on a terminal; the table cuts more, to its width
_LEAST: Final = 8  # characters of the narrowest column of a table, its gap included


class RowFormat(enum.StrEnum):
    """The output formats of rows."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Output:
    """How and where a command writes rows."""

    format_: Annotated[
        RowFormat | None,
        Option(
            "--format",
            help="How rows are written. Without it: by the name of --output, else a table on a terminal, ndjson in a "
            "pipe.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        str | None, Option("--output", "-o", metavar="FILE", help="Write to a file, which appears when it is complete.")
    ] = None


_BINARY: Final = (RowFormat.ARROW, RowFormat.PARQUET)
_BY_ENDING: Final = {
    ".json": RowFormat.JSON,
    ".ndjson": RowFormat.NDJSON,
    ".jsonl": RowFormat.NDJSON,
    ".csv": RowFormat.CSV,
    ".arrow": RowFormat.ARROW,
    ".feather": RowFormat.ARROW,
    ".parquet": RowFormat.PARQUET,
}


def chosen_format(out: Output) -> RowFormat:
    """Return the format in which rows are written: the chosen one; else the one that the file's name implies; else, on
    stdout, a table for a terminal and NDJSON for a pipe.

    Raises:
        InvalidOptionError: the format is binary and would be written to a terminal; or the user chose no format, and
            the file's name does not imply one.
    """
    chosen, output = out.format_, out.output
    if output is not None:
        if chosen is RowFormat.TABLE:
            raise InvalidOptionError(
                "--format table cannot be written to a file",
                hint="Choose --format csv, ndjson or another format for files.",
            )
        row_format = chosen or _BY_ENDING.get(os.path.splitext(output)[1].lower())
        if row_format is None:
            raise InvalidOptionError(
                f"--output {output}: the file's name does not imply a format",
                hint="Add --format csv, json, ndjson, arrow or parquet.",
            )
        return row_format
    terminal = sys.stdout.isatty()
    if chosen in _BINARY and terminal:
        raise InvalidOptionError(
            f"--format {chosen} is binary, so it is not written to a terminal",
            hint="Name a file with -o FILE, or pipe the output to a program.",
        )
    return chosen or (RowFormat.TABLE if terminal else RowFormat.NDJSON)


@contextmanager
def row_writer(
    format_: RowFormat,
    output: str | None,
    url: str,
    schema: pa.Schema,
    *,
    shown: int = SHOWN_ROWS,
    total: int | None = None,
) -> Iterator[RowWriter]:
    """Open a writer of rows to the file ``output``, or to stdout if that is None; leaving the ``with`` block without an
    error finishes the output.

    ``shown``: how many rows a table shows. ``total``: the number of all rows, if it is known. Raises InvalidOptionError
    if the format cannot hold the columns or ``output`` is a file that is read, OSError if it cannot be written.
    """
    if output is not None and _is_read(output, url):
        raise InvalidOptionError(
            f"--output {output}: is one of the files that are read, which the rows would replace",
            hint="Write to another file.",
        )
    with _file(output) if output is not None else _stdout() as sink:
        try:
            if format_ is RowFormat.TABLE:
                writer: RowWriter = _Table(schema, shown, total)
            else:
                writer = _writer(format_, sink, url, schema, to_file=output is not None)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidOptionError(
                f"{format_} cannot hold these columns: {error}", hint="Choose other columns with --columns."
            ) from error
        try:
            yield writer
        except BaseException:
            writer.abandon()
            raise
        writer.finish()


class _Pipe(CountingSink):
    """A file object over stdout, or over a device or pipe."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(raw.write)
        self._raw = raw

    def flush(self) -> None:
        self._raw.flush()

    def close(self) -> None:
        """Do nothing: stdout stays open for the process."""


@contextmanager
def _stdout() -> Iterator[Any]:
    sys.stdout.flush()
    pipe = _Pipe(sys.stdout.buffer)
    yield pipe
    pipe.flush()


@contextmanager
def _file(output: str) -> Iterator[Any]:
    path = os.path.realpath(output)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        if _is_special(path):
            with open(path, "wb") as sink:
                yield _Pipe(sink)
            return
        with open(part, "xb") as sink:
            yield sink
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            error.filename = output  # no one asked for a file of the other name
        raise


def _is_read(output: str, url: str) -> bool:
    """Return whether ``output`` is a Parquet file that ``url``, a local file, folder or pattern, names."""
    facts = url_facts(url)
    if facts.protocol != "file":
        return False
    place = facts.key
    fixed = re.split(r"[*?\[]", place)[0]
    place = os.path.realpath(place if fixed == place else os.path.dirname(fixed))
    path = os.path.realpath(output)
    return (path == place or path.startswith(os.path.join(place, ""))) and is_parquet(path)


def _is_special(path: str) -> bool:
    """Return whether a path names a device or a pipe, which stays what it is."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _writer(format_: RowFormat, sink: Any, url: str, schema: pa.Schema, *, to_file: bool) -> RowWriter:
    if format_ is RowFormat.JSON:
        return JsonWriter(sink, {"document": "rows", "url": url}, schema)
    if format_ is RowFormat.NDJSON:
        return NdjsonWriter(sink)
    if format_ is RowFormat.CSV:
        return CsvWriter(sink, schema)
    if format_ is RowFormat.ARROW:
        return ArrowFileWriter(sink, schema) if to_file else ArrowWriter(sink, schema)
    return ParquetWriter(sink, schema)


class _Table:
    """A writer of the table format: it shows the first rows and the columns that fit, and a line about the others."""

    def __init__(self, schema: pa.Schema, shown: int, total: int | None) -> None:
        self._schema = schema
        self._shown = shown
        self._total = total
        self._rows: list[list[str]] = []
        self._more = False  # whether rows came that are not shown
        self._out = console()
        self._most = _CELL if self._out.width < UNCUT else None

    def write(self, batch: pa.RecordBatch) -> None:
        room = self._shown - len(self._rows)
        self._more = self._more or batch.num_rows > room
        shown = batch.slice(0, room)
        most = self._most
        columns = [[_cell(value, most) for value in json_values(column)] for column in shown.columns]
        self._rows.extend(map(list, zip(*columns, strict=True)) if columns else [[] for _ in range(shown.num_rows)])

    def abandon(self) -> None:
        """End after an error, without showing the table."""

    def finish(self) -> None:
        out = self._out
        fit = max(1, out.width // _LEAST)
        numbers = [is_number(field.type) for field in self._schema]
        kinds = ["right" if number else "text" for number in numbers]
        headings = list(zip(self._schema.names, kinds, strict=True))
        print_table(out, "", headings[:fit], [row[:fit] for row in self._rows], caption=self._caption(fit))

    def _caption(self, fit: int) -> str:
        notes = [plural(len(self._rows), "row")]
        if self._total is not None and self._total > len(self._rows):
            notes[0] += f"; {plural(self._total - len(self._rows), 'more row')}: --limit or --format ndjson for them"
        elif self._more:
            notes[0] += "; more follow: --limit or --format ndjson for them, count for their number"
        hidden = len(self._schema) - fit
        if hidden > 0:
            notes.append(f"{plural(hidden, 'more column')}: name them with --columns")
        return "\n".join(notes)


def _cell(value: Any, most: int | None) -> str:
    if value is None:
        return "null"
    text = value if isinstance(value, str) else json_text(value)
    return text if most is None or len(text) <= most else f"{text[:most]}…"
