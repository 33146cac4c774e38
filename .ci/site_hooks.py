"""A hook of MkDocs: docstrings name functions by the roles of Sphinx, :meth:`asyncpq.File.read`; make them links."""

from __future__ import annotations

import re

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>([^<]*)</code>")


def on_page_content(html: str, **_: object) -> str:
    """Return the page with its roles as links, or as code alone where the site has no such name."""
    return ROLE.sub(r'<autoref identifier="\1" optional><code>\1</code></autoref>', html)
