"""The page map: a drawing that shows which pages of a file or lake a read fetched, and why.

A document of ``reports/documents.py`` comes in; an HTML page, an SVG or a PNG comes out. ``picture_data.py``
converts every document to one compact form, ``palette.py`` has the colours. ``html_page.py`` puts the
data and the drawing code (``page.html``, ``page.css``, ``js/``) into one self-contained page. ``svg.py`` draws the same
data for reports.
"""

from __future__ import annotations

from asyncpq.page_map.html_page import render
from asyncpq.page_map.svg import framed, render_png, render_svg

__all__ = ["framed", "render", "render_png", "render_svg"]
