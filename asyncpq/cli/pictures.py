"""The page map on the command line: ``--html``, ``--svg`` and ``--png`` of the commands that have a document."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Option
from asyncpq.page_map import render, render_png, render_svg

if TYPE_CHECKING:
    from asyncpq.page_map.picture_data import Document

_PANEL = "Page map"


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

    def check_folders(self) -> None:
        """Raise OSError if the folder of a picture does not exist. Called before a read, which may take long."""
        for path in (self.html, self.svg, self.png):
            if path is not None and not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def write(self, document: Document) -> None:
        """Write the page map of ``document`` to each of the files, atomically, and print its path to stderr.

        Raises:
            InvalidOptionError: a PNG is wanted and its package is not installed.
            OSError: a file cannot be written.
        """
        contents: list[tuple[Path | None, Callable[[], bytes]]] = [
            (self.png, lambda: render_png(document)),  # first, since its package may not be there
            (self.html, lambda: render(document).encode()),
            (self.svg, lambda: render_svg(document).encode()),
        ]
        for path, content in contents:
            if path is not None:
                _write(path, content())
                write_line(f"page map: {path}", err=True)


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # no one asked for the unfinished one
    finally:
        unfinished.unlink(missing_ok=True)
