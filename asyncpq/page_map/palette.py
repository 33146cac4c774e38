"""Colours of the page map, for light and dark pages.

Pages that were fetched or cached have a saturated colour of Okabe and Ito's palette, which people with any colour
vision can distinguish. Pages that were ruled out have a pale colour and a pattern, so that no meaning depends on hue
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Swatch:
    """The fill colour, pattern and pattern colour of one meaning (such as "read" or "cached"), for light and for
    dark pages."""

    label: str
    pattern: str  # "solid", "rise", "fall", "rows", "columns", "dots", "cross", "empty"
    light: tuple[str, str]
    dark: tuple[str, str]
    rank: int  # where things share a pixel, the highest is seen


#: From this rank on, a fate means that the page was fetched, or came from a cache.
FETCHED: Final = 8

#: By fate. The order is the legend's.
FATES: Final = {
    "read": Swatch("fetched from the store", "solid", ("#d55e00", "#a84a00"), ("#f0822f", "#ffb27a"), 9),
    "shared": Swatch("from the shared cache", "rise", ("#0072b2", "#5fa9d6"), ("#3f9fe0", "#a8d4f5"), 8),
    "disk": Swatch("from the disk cache", "rows", ("#56b4e9", "#2a86bb"), ("#7cc8f4", "#2f86b8"), 8),
    "memory": Swatch("from memory", "dots", ("#009e73", "#a6ead5"), ("#2cc195", "#0c4c3a"), 8),
    "partition": Swatch("ruled out by partition", "cross", ("#e2def3", "#a398cf"), ("#343048", "#7a70ac"), 2),
    "table": Swatch("ruled out by table metadata", "columns", ("#d9e5f0", "#93b1cd"), ("#26384a", "#5f83a6"), 2),
    "index": Swatch("ruled out by an index", "fall", ("#d3ecdf", "#7fb89d"), ("#203a2f", "#559273"), 3),
    "statistics": Swatch("ruled out by statistics", "rise", ("#e0e5ec", "#9dabbe"), ("#2f353e", "#67778d"), 2),
    "bloom": Swatch("ruled out by a Bloom filter", "dots", ("#f4dbe9", "#c17ba6"), ("#43283a", "#ae6c94"), 3),
    "page index": Swatch("ruled out by the page index", "rows", ("#f6ebbf", "#c9ac48"), ("#3d371f", "#96843c"), 3),
    "dictionary": Swatch("ruled out by a dictionary", "columns", ("#ecdcce", "#b9946e"), ("#40332a", "#97785a"), 3),
    "access": Swatch("outside the rows asked for", "dots", ("#efefed", "#c4c3bd"), ("#2d2d2b", "#6a6863"), 1),
    "limit": Swatch("not needed: the limit was met", "dots", ("#efefed", "#c4c3bd"), ("#2d2d2b", "#6a6863"), 1),
    "late": Swatch("not needed: no row matched", "cross", ("#f1e9dd", "#c9b593"), ("#38322a", "#7d6f5a"), 2),
    "unread": Swatch("not asked for", "empty", ("#f2f1ee", "#d5d3cd"), ("#232322", "#3a3937"), 0),
    "unlocated": Swatch(
        "column chunk without a page index", "rise", ("#cfd3d8", "#9aa1aa"), ("#43474c", "#6b7178"), 1
    ),
    "file": Swatch("file", "solid", ("#a9bfd3", "#6f8faf"), ("#4a6076", "#7f9cb8"), 1),
    "plain": Swatch("data page", "solid", ("#a9bfd3", "#6f8faf"), ("#4a6076", "#7f9cb8"), 1),
}  # fmt: skip

#: What else a file holds.
STRUCTURES: Final = {
    "fetched dictionary": Swatch("fetched dictionary", "columns", ("#d55e00", "#ffb27a"), ("#f0822f", "#8a3d00"), 9),
    "dictionary page": Swatch("dictionary", "columns", ("#d9b382", "#a37a42"), ("#8a6a3f", "#c79f68"), 4),
    "bloom filter": Swatch("Bloom filter", "dots", ("#d9a6c4", "#a85f8b"), ("#80506b", "#c98bb0"), 4),
    "column index": Swatch("column index", "rows", ("#dcc65a", "#a18a1c"), ("#7d6d25", "#cdb54f"), 4),
    "offset index": Swatch("offset index", "columns", ("#a9a49a", "#777166"), ("#5f5b53", "#9a9488"), 4),
    "footer": Swatch("footer", "solid", ("#55524c", "#33312d"), ("#a8a49b", "#d8d4ca"), 8),
}

#: Parts of the time of a read, and purposes of requests.
PARTS: Final = {
    "network": Swatch("network", "solid", ("#d55e00", "#a84a00"), ("#f0822f", "#ffb27a"), 0),
    "caches": Swatch("disk and shared cache", "rows", ("#56b4e9", "#2a86bb"), ("#7cc8f4", "#2f86b8"), 0),
    "decode": Swatch("decoding", "rise", ("#7a68b3", "#a99bd6"), ("#9c8bd6", "#6f5fb0"), 0),
    "filter": Swatch("filter", "columns", ("#6f9a5b", "#a9cc96"), ("#93c07d", "#587a48"), 0),
    "other": Swatch("planning and the rest", "solid", ("#b3b0a8", "#8a877f"), ("#5b5954", "#858279"), 0),
    "metadata": Swatch("footer, indexes, listings", "solid", ("#5b6b7c", "#3d4a57"), ("#8fa3b8", "#c3d0dd"), 0),
}


def css() -> str:
    """Return CSS rules that define two colour variables for each meaning, such as ``--read`` and ``--read-ink``."""
    light, dark = _variables("light"), _variables("dark")
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
    )


def legend() -> dict[str, list[object]]:
    """Return the label, the pattern and the rank of each meaning, keyed by the meaning's name. Where things share a
    pixel, the one with the highest rank is drawn."""
    swatches = {**FATES, **STRUCTURES, **PARTS}
    return {name: [swatch.label, swatch.pattern, swatch.rank] for name, swatch in swatches.items()}


def variable(name: str) -> str:
    """Return the name of the CSS variable of a meaning."""
    return "--" + name.replace(" ", "-")


def _variables(theme: str) -> str:
    pairs = []
    for name, swatch in {**FATES, **STRUCTURES, **PARTS}.items():
        fill, ink = swatch.light if theme == "light" else swatch.dark
        pairs.append(f"{variable(name)}:{fill};{variable(name)}-ink:{ink}")
    return ";".join(pairs)
