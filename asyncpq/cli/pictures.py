"""The page map on the command line: ``--html``, ``--svg`` and ``--png`` of the commands that have a document."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Option
from asyncpq.page_map import render, render_png, render_svg

if TYPE_CHECKING:
    from asyncpq.page_map.picture_data import Document

_PANEL = "Page map"
Html = Annotated[
    Path | None,
    Option(
        "--html", metavar="FILE", help="Write the page map: one page, for any browser.", show_default=False,
        dir_okay=False, rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Svg = Annotated[
    Path | None,
    Option(
        "--svg", metavar="FILE", help="Write the page map as a picture.", show_default=False,
        dir_okay=False, rich_help_panel=_PANEL,
    ),
]  # fmt: skip
Png = Annotated[
    Path | None,
    Option(
        "--png", metavar="FILE", help="Write that picture as a PNG (extra 'png').", show_default=False,
        dir_okay=False, rich_help_panel=_PANEL,
    ),
]  # fmt: skip


def check_folders(*paths: Path | None) -> None:
    """Raise OSError if the folder of a picture to write does not exist. Called before a read, which may take long."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def write_pictures(document: Document, html: Path | None, svg: Path | None, png: Path | None) -> None:
    """Write the page map of ``document`` to each of the paths that is not None, atomically, and print the path to
    stderr.

    Raises:
        InvalidOptionError: a PNG is wanted and its package is not installed.
        OSError: a file cannot be written.
    """
    contents: list[tuple[Path | None, Callable[[], bytes]]] = [
        (png, lambda: render_png(document)),  # first, since its package may not be there
        (html, lambda: render(document).encode()),
        (svg, lambda: render_svg(document).encode()),
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
