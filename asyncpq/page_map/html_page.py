"""One self-contained HTML page that draws a picture. It uses no network, and data never become markup or code.

The picture is embedded as JSON whose ``<``, ``>`` and ``&`` are escaped, and drawn by scripts that set text, never
markup. The page's Content-Security-Policy allows exactly its own style and script, by their SHA-256.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from asyncpq.page_map import palette
from asyncpq.page_map.picture_data import picture, transposed

if TYPE_CHECKING:
    from asyncpq.page_map.picture_data import Document

#: Parts of the drawing code, in the order of their use.
SCRIPTS: Final = ("format", "paint", "model", "tiles", "ribbon", "grid", "details", "map", "waterfall", "story", "page")
_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(document: Document) -> str:
    """Return a page of HTML that draws ``document``."""
    drawn = picture(document)
    layouts = [
        {**layout, "number": len(layout["chunks"]), "chunks": transposed(layout["chunks"], layout["groups"])}
        for layout in drawn["layouts"]
    ]
    parts = {
        "title": html.escape(f"{drawn['title']} - asyncpq"),
        "policy": _policy(),
        "style": _style(),
        "script": _script(),
        "picture": _json({**drawn, "layouts": layouts}),
        "palette": _json(palette.legend()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], _file("page.html"))


def _json(value: object) -> str:
    """Return JSON that is safe inside a script element: it can neither end the element nor begin a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)


@functools.cache
def _policy() -> str:
    """Return the page's Content-Security-Policy, which allows only the page's own style and script."""
    return (
        f"default-src 'none'; style-src '{_digest(_style())}'; script-src '{_digest(_script())}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _style() -> str:
    return f"\n{palette.css()}{_file('page.css')}"


@functools.cache
def _script() -> str:
    return '\n"use strict";\n' + "\n".join([_file(f"js/{name}.js") for name in SCRIPTS])


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
