"""GeoParquet's covering columns: turn conditions on geometries into conditions on plain columns, whose statistics
prune.

A file's "geo" metadata name four columns with the bounding box of each row's geometry. If a geometry's box meets
another box, the box in these columns does too; the reverse need not hold. A box with xmin above xmax crosses the
antimeridian, which the coordinates do not show: files with signs of such boxes are pruned by y alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from asyncpq.expressions import And, Comparison, Expression, IntersectsBox, Or
from asyncpq.parquet.column_chunk import Box
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.zone_maps import Zones

GEO: Final = "geo"
"""Key-value metadata of GeoParquet: a JSON object."""

CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")  # in the order of all sides here
_FLOATS: Final = (PhysicalType.FLOAT, PhysicalType.DOUBLE)
_ROUNDED: Final = 2.0**-23  # of floats of 32 bits, the greatest relative distance between neighbours
_SPHERE_PAD: Final = 2.0**-40  # relative: libraries compute boxes on a sphere from sines and cosines
_LEAST: Final = 2.0**-149  # the distance between those next to zero


class Covering(NamedTuple):
    """The four leaf columns that have the bounding box of each geometry of one column."""

    xmin: Leaf
    ymin: Leaf
    xmax: Leaf
    ymax: Leaf
    is_planar: bool  # no box crosses the antimeridian, as far as the metadata say

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self[:4]


def coverings(metadata: FileMetadata) -> Mapping[str, Covering]:
    """Return the covering columns of a file, keyed by the dotted path of the geometry's column. The result is empty if
    the "geo" metadata are missing or malformed."""
    text = metadata.key_value_metadata.get(GEO)
    if not text:
        return {}
    import json

    try:
        columns = json.loads(text)["columns"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    by_path = {leaf.path: leaf for leaf in metadata.schema.leaves if leaf.max_repetition_level == 0}
    by_name = {name: _covering(column, by_path) for name, column in columns}
    return {name: covering for name, covering in by_name.items() if covering is not None}


def _covering(column: Any, leaves: Mapping[tuple[str, ...], Leaf]) -> Covering | None:
    try:
        paths = [tuple(column["covering"]["bbox"][corner]) for corner in CORNERS]
        box = column.get("bbox")
        wraps = box is not None and box[0] > box[len(box) // 2]
        is_planar = column.get("edges", "planar") == "planar" and not wraps
        xmin, ymin, xmax, ymax = corners = [leaves[path] for path in paths]
    except (KeyError, TypeError, AttributeError, IndexError):
        return None
    if column.get("encoding") != "WKB" or any(leaf.physical_type not in _FLOATS for leaf in corners):
        return None
    return Covering(xmin, ymin, xmax, ymax, is_planar)


def shows_wrapping(xmin: Zones, xmax: Zones) -> bool:
    """Return whether the bounds of covering columns prove that a box has its xmin above its xmax."""
    lows, highs = ({zone: (low, high) for zone, low, high in zones.bounds()} for zones in (xmin, xmax))
    return any(
        least > highs[zone][0] or greatest > highs[zone][1] for zone, (least, greatest) in lows.items() if zone in highs
    )


def covering_condition(atom: IntersectsBox, covering: Covering, *, by_x: bool) -> Expression:
    """Return a condition on covering columns, by their dotted names, that is true wherever ``atom`` is. ``by_x``: also
    compare xmin and xmax, not only ymin and ymax."""
    sides = [(leaf.dotted, leaf.physical_type is PhysicalType.FLOAT) for leaf in covering.leaves]
    return box_condition(atom, sides, by_x=by_x)


def box_condition(atom: IntersectsBox, sides: Sequence[tuple[str, bool]], *, by_x: bool) -> Expression:
    """Return a condition on columns with the sides of boxes that is true wherever ``atom`` is.

    ``sides``: for each of :data:`CORNERS` the name of its column, and whether its values may be rounded to 32 bits.
    ``by_x``: also compare xmin and xmax, not only ymin and ymax.
    """
    (xmin, x_rounded), (ymin, y_rounded), (xmax, right_rounded), (ymax, top_rounded) = sides
    conditions: list[Expression] = [
        Comparison(ymin, "<=", _above(atom.ymax, y_rounded)),
        Comparison(ymax, ">=", -_above(-atom.ymin, top_rounded)),
    ]
    if by_x:
        left = Comparison(xmin, "<=", _above(atom.xmax, x_rounded))
        right = Comparison(xmax, ">=", -_above(-atom.xmin, right_rounded))
        conditions += [Or((left, right))] if atom.xmin > atom.xmax else [left, right]
    return And(tuple(conditions))


def sphere_box(box: Box) -> Box:
    """Return a box that has the coordinates of a GEOGRAPHY's values, whose statistics have the box ``box``.

    Statistics of a sphere are not bounds of coordinates: latitudes may lie a rounding error inside, the meridians -180
    and 180 are one, and a longitude of 190 counts as -170. So the box is padded, and spans all x unless it lies
    strictly between -180 and 180. Only boxes that do so as well compare with it by x (:func:`is_inside_sphere`).
    """
    xmin, ymin, xmax, ymax = box
    x_pad, y_pad = (_SPHERE_PAD * max(1.0, abs(low), abs(high)) for low, high in ((xmin, xmax), (ymin, ymax)))
    left, right = xmin - x_pad, xmax + x_pad
    if not -180.0 < left <= right < 180.0:
        left, right = -math.inf, math.inf
    return Box(left, ymin - y_pad, right, ymax + y_pad)


def is_inside_sphere(asked: IntersectsBox) -> bool:
    """Return whether the box lies strictly between the meridians -180 and 180, where x of GEOGRAPHY statistics are
    those of the coordinates."""
    return -180.0 + 180.0 * _SPHERE_PAD < asked.xmin <= asked.xmax < 180.0 - 180.0 * _SPHERE_PAD


def may_meet_on_sphere(asked: IntersectsBox, box: Box | None) -> bool:
    """Return whether a GEOGRAPHY value may meet ``asked``, if the statistics of its row group have the box ``box``."""
    if box is None:
        return True
    xmin, ymin, xmax, ymax = sphere_box(box)
    return asked.meets(*((xmin, ymin, xmax, ymax) if is_inside_sphere(asked) else (-math.inf, ymin, math.inf, ymax)))


def _above(value: float, is_rounded: bool) -> float:
    """Return ``value``; if ``is_rounded``, an upper bound of what it may be as a 32-bit float, since some writers round
    boxes inwards."""
    return value + abs(value) * _ROUNDED + _LEAST if is_rounded else value
