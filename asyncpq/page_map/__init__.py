"""The page map: what a read took from a file or lake, and why, drawn on one page.

A document of ``reports/documents.py`` comes in; a page, an SVG or a PNG comes out. The way through: ``picture.py`` and
``layouts.py`` bring every document into one compact shape, ``palette.py`` has the colours; ``html_page.py`` puts the
picture and its drawing code (``page.html``, ``page.css``, ``js/``) into one self-contained page, ``svg.py`` draws it
for reports.
"""

from __future__ import annotations

from asyncpq.page_map.html_page import framed, render
from asyncpq.page_map.svg import render_png, render_svg

__all__ = ["framed", "render", "render_png", "render_svg"]
