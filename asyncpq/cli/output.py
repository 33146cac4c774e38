"""What commands print and draw: lines, JSON documents, tables and facts, and page maps in files.

rich draws the tables; the first of them loads it. Sizes and durations: :mod:`asyncpq.errors`.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from asyncpq.cli.parameters import Option
from asyncpq.errors import InvalidOptionError, printable, size_text
from asyncpq.metrics import ReadMetrics

if TYPE_CHECKING:
    from rich.console import Console

    from asyncpq.page_map.picture_data import Document

D = TypeVar("D")

WIDE: Final = 110  # characters from which tables show all their columns
_GAP: Final = 2  # characters between columns
_LEAST: Final = 6  # characters of a column of text
_MOST: Final = 48
UNCUT: Final = 1 << 20  # characters of a console that cuts nothing
_PANEL: Final = "Page map"  # of the help


class Format(enum.StrEnum):
    """The output formats of a report."""

    TABLE = "table"
    JSON = "json"


class TextFormat(enum.StrEnum):
    """The output formats of a command that shows no table."""

    TEXT = "text"
    JSON = "json"


ReportFormat = Annotated[Format, Option("--format", help="A table for people, or one JSON document.")]


def write_line(text: object, *, err: bool = False) -> None:
    """Write a line to stdout, or with ``err`` to stderr, at once."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def write_document(document: Any) -> None:
    """Write a JSON document to stdout."""
    write_line(json.dumps(document, indent=2, ensure_ascii=False))


def write_report(document: D, format_: Format | TextFormat, show: Callable[[D], None]) -> None:
    """Write a JSON document to stdout, or call ``show`` with it, which shows it to people."""
    if format_ in (Format.JSON, TextFormat.JSON):
        write_document(document)
    else:
        show(document)


# -- tables and facts -----------------------------------------------------------------------------


def count_text(number: int | None) -> str:
    """Return a whole number with commas; "?" for None."""
    return "?" if number is None else f"{number:,}"


def share_text(part: float, whole: float) -> str:
    """Return how many percent of ``whole`` ``part`` is, as text."""
    return f"{100 * part / whole:.1f}%" if whole else ""


def print_table(
    out: Console,
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    caption: str | None = None,
) -> None:
    """Print a table that fits the width of ``out``.

    ``columns`` are pairs of a heading and "left", "right" or "text". Columns of "text" share the width that the other
    columns leave, and longer cells are cut, but not in a pipe (see :func:`console`). Cells are plain text: control
    characters are escaped.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in row] for row in rows]
    natural = [max([cell_len(text), *(cell_len(row[at]) for row in cells)]) for at, (text, _) in enumerate(columns)]
    texts = [at for at, (_, kind) in enumerate(columns) if kind == "text"]
    left = out.width - _GAP * (len(columns) - 1) - sum(natural) + sum(natural[at] for at in texts)
    wanted = [natural[at] for at in texts]
    widths = dict(zip(texts, _shared(wanted, left) if out.width < UNCUT else wanted, strict=True))
    if title:
        out.print(Text(printable(title), "bold"))
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),  # with a space that the box adds
        show_edge=False,
        header_style="dim",
    )
    for at, (heading, kind) in enumerate(columns):
        table.add_column(
            Text(heading),
            width=widths.get(at, natural[at]),
            justify="right" if kind == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells:
        table.add_row(*map(Text, row))
    out.print(table)
    if caption:
        out.print(Text(caption, "dim"), overflow="ellipsis", no_wrap=True)
    out.print()


def _shared(wanted: Sequence[int], width: int) -> list[int]:
    """Divide ``width`` characters among columns, which want the widths ``wanted``; return the width of each. It is at
    most the wanted one, but always between ``_LEAST`` and ``_MOST``.

    Columns that want more than an equal share get equal parts of what the others leave.
    """
    given: dict[int, int] = {}
    for number, (want, at) in enumerate(sorted((want, at) for at, want in enumerate(wanted))):
        given[at] = max(_LEAST, min(want, _MOST, width // (len(wanted) - number)))
        width -= given[at]
    return [given[at] for at in range(len(wanted))]


def print_facts(out: Console, facts: Iterable[tuple[str, str]], *, cut: bool = True, width: int = 16) -> None:
    """Print one line for each (name, value) pair whose value is not empty, names padded to ``width`` characters. Longer
    lines are cut to the terminal's width; without ``cut``, they are whole."""
    from rich.text import Text

    for name, value in facts:
        if value:
            line = Text.assemble((f"{printable(name):{width}} ", "dim"), printable(value))
            out.print(line, overflow="ellipsis" if cut else "ignore", no_wrap=True, crop=cut)


def cost_text(metrics: ReadMetrics) -> str:
    """Return the counts of a command as one line, without those of rows and row groups if none was read."""
    text = str(metrics).replace(f", {metrics.bytes_fetched} bytes;", f", {size_text(metrics.bytes_fetched)};", 1)
    if not metrics.pages_read:
        text = text.replace(f", rows {metrics.rows_scanned} seen and {metrics.rows_returned} returned; ", "; ", 1)
        text = text.replace("row groups 0 of 0, pages 0; ", "", 1)
    return text


def console() -> Console:
    """Return a console on stdout. It is as wide as the terminal, or as the environment variable COLUMNS says. What goes
    into a pipe or a file without COLUMNS is never cut."""
    from rich.console import Console

    class OwnConsole(Console):
        def on_broken_pipe(self) -> None:
            """Re-raise the error for :func:`asyncpq.cli.running.run`: rich would end the process with code 1."""
            raise BrokenPipeError

    out = OwnConsole(highlight=False, soft_wrap=False)
    if not out.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        out.width = UNCUT
    return out


# -- page maps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pictures:
    """The files that a command draws its document into."""

    html: Annotated[
        Path | None,
        Option(
            "--html", metavar="FILE", help="Write the page map: one page, for any browser.", show_default=False,
            dir_okay=False, rich_help_panel=_PANEL,
        ),
    ] = None  # fmt: skip
    svg: Annotated[
        Path | None,
        Option(
            "--svg", metavar="FILE", help="Write the page map as a picture.", show_default=False,
            dir_okay=False, rich_help_panel=_PANEL,
        ),
    ] = None  # fmt: skip
    png: Annotated[
        Path | None,
        Option(
            "--png", metavar="FILE", help="Write that picture as a PNG (extra 'png').", show_default=False,
            dir_okay=False, rich_help_panel=_PANEL,
        ),
    ] = None  # fmt: skip

    def __bool__(self) -> bool:
        """Return whether there is a picture to draw."""
        return any((self.html, self.svg, self.png))

    def check(self) -> None:
        """Check where the pictures go, before a read, which may take long.

        Raises:
            InvalidOptionError: a picture would replace a Parquet file.
            OSError: the folder of a picture does not exist.
        """
        for option, path in (("--html", self.html), ("--svg", self.svg), ("--png", self.png)):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if is_parquet(path):
                raise InvalidOptionError(
                    f"{option} {path}: a Parquet file of this name is there, which the page map would replace",
                    hint="Name another file.",
                )

    def write(self, document: Document) -> None:
        """Write the page map of ``document`` to each of the files, atomically, and print its path to stderr.

        Raises:
            InvalidOptionError: a PNG is wanted and its package is not installed.
            OSError: a file cannot be written.
        """
        from asyncpq.page_map import render, render_png, render_svg  # most commands draw nothing

        contents: list[tuple[Path | None, Callable[[], bytes]]] = [
            (self.png, lambda: render_png(document)),  # first, since its package may not be there
            (self.html, lambda: render(document).encode()),
            (self.svg, lambda: render_svg(document).encode()),
        ]
        for path, content in contents:
            if path is not None:
                _write(path, content())
                write_line(f"page map: {path}", err=True)


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a regular file that begins as Parquet files do."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to read a pipe would wait
            return False
        with open(path, "rb") as file:
            return file.read(4) in {b"PAR1", b"PARE"}
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # no one asked for the unfinished one
    finally:
        unfinished.unlink(missing_ok=True)
