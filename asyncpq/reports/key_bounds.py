"""Why the bounds of a column rule out little: one answer for ``lint`` and ``why``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from asyncpq.parquet.schema import Leaf
from asyncpq.reports.file_shapes import has_chunk_bounds, shape_of, zones_of
from asyncpq.reports.inspection import FileLayout, sorted_as
from asyncpq.reports.lookup_cost import Shape, Zone

Weakness = Literal[
    "statistics-not-believed",
    "no-statistics",
    "missing-bounds",
    "truncated-bounds",
    "chunk-bounds",
    "no-bloom-filter",
    "random-order",
]
MANY_GROUPS: Final = 4  # row groups of which Bloom filters rule out most
MOST_LEAVES: Final = 200  # of which the order is examined


def weakness(layout: FileLayout, leaf: Leaf, *, equality: bool) -> Weakness:
    """Return why the bounds of a leaf leave rows in many pages to a condition that few rows match. ``equality``: the
    condition asks for values, not for a range."""
    shape, zones = shape_of(layout, leaf), zones_of(layout, leaf)
    if without_statistics(shape):
        return "no-statistics" if disbelieved(layout, leaf) is None else "statistics-not-believed"
    if any(not zone.known for zone in zones.zones):
        return "missing-bounds"
    if truncated(zones.zones):
        return "truncated-bounds"
    if has_chunk_bounds(zones):
        return "chunk-bounds"
    if equality and is_clustered_by_another(layout, leaf, shape):
        return "no-bloom-filter"
    return "random-order"


def without_statistics(shape: Shape) -> int:
    """Return the number of row groups without usable statistics of the key."""
    return sum(1 for group in shape.groups if group.rows and not group.bounded)


def disbelieved(layout: FileLayout, leaf: Leaf) -> str | None:
    """Return why reads do not use the leaf's statistics although the file has them; None if reads use them."""
    start = f"{leaf.dotted}: statistics not used, "
    return next((text.removeprefix(start) for text in layout.metrics.fallbacks if text.startswith(start)), None)


def truncated(zones: Sequence[Zone]) -> bool:
    """Return whether the bounds are probably truncated: in most zones, min and max are equal or differ only in the
    last byte."""
    known = [zone for zone in zones if isinstance(zone.low, bytes) and len(zone.low) >= 16]
    same = sum(zone.low[:-1] == zone.high[: len(zone.low) - 1] for zone in known)
    return len(known) > 1 and same * 2 > len(known)


def is_clustered_by_another(layout: FileLayout, leaf: Leaf, shape: Shape) -> bool:
    """Return whether row groups follow one another in the order of another leaf, such as a time, and have no Bloom
    filter of this one: rows need not lose their order if Bloom filters rule out row groups."""
    groups = [group for group in shape.groups if group.rows]
    if len(groups) < MANY_GROUPS or any(group.chunks[leaf.index].bloom_filter for group in groups):
        return False
    leaves = layout.version.metadata.schema.leaves[:MOST_LEAVES]
    return any(sorted_as(layout.leaf_zones(other)) is not None for other in leaves if other.index != leaf.index)
