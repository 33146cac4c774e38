"""Turn conditions on geometries, and on parts of VARIANT columns, into conditions on plain columns, whose statistics
prune: GeoParquet's covering columns, and the columns that parts of a variant are shredded to.

A file's "geo" metadata name four columns with the bounding box of each row's geometry. If a geometry's box meets
another box, the box in these columns does too; the reverse need not hold. A box with xmin above xmax crosses the
antimeridian, which the coordinates do not show: files with signs of such boxes are pruned by y alone.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from asyncpq.expressions import (
    And,
    Comparison,
    Expression,
    In,
    IntersectsBox,
    IsNull,
    KeyIn,
    Like,
    Or,
    StartsWith,
    VariantTest,
)
from asyncpq.parquet.column_chunk import Box
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.schema import Leaf, ParquetSchema
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
        """The four leaf columns: the first four fields."""
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


# -- shredded VARIANT columns ----------------------------------------------------------------------
# A part that a file shreds has a typed column, and beside it a column ``value`` for values of other types. If ``value``
# is null in all rows, the typed column has all values of the part, and null where an object lacks the part. Readers may
# rely on the specification (VariantShredding.md): a shredded field of an object is not in the object's ``value``.


_TESTS: Final = (Comparison, In, IsNull, KeyIn, Like, StartsWith)
_INTEGERS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_PLAIN: Final = {
    "float": PhysicalType.FLOAT,
    "double": PhysicalType.DOUBLE,
    "bool": PhysicalType.BOOLEAN,
    "binary": PhysicalType.BYTE_ARRAY,
}
_LOGICAL: Final = {"string": LogicalKind.STRING, "date": LogicalKind.DATE}
_TIMESTAMPS: Final = {"timestamp": True, "timestamp_ntz": False}


def shredded_condition(
    test: VariantTest, top: str, schema: ParquetSchema, zones: Callable[[Leaf], Zones]
) -> tuple[Expression, Leaf] | None:
    """Return a leaf column and a condition on it, by its dotted name, that is true wherever ``test`` is. None if the
    file does not shred the part to a column of the same type.

    ``top``: the file's name of the VARIANT column, which is a top-level column. ``zones``: returns a leaf column's
    bounds in the file's row groups.
    """
    if not isinstance(test.test, _TESTS) or not all(isinstance(step, str) for step in test.path):
        return None
    group = (top, *[name for step in test.path for name in ("typed_value", str(step))])
    leaves = {leaf.path: leaf for leaf in schema.leaves if leaf.path[:-1] == group}
    typed, value = leaves.get((*group, "typed_value")), leaves.get((*group, "value"))
    if typed is None or typed.max_repetition_level or not _is_of(typed, test.type):
        return None
    if value is not None:
        known = zones(value)
        if known.present or known.unknown:
            return None
    return dataclasses.replace(test.test, column=typed.dotted), typed


def _is_of(leaf: Leaf, type_: str) -> bool:
    """Return whether the leaf column has values of the type ``type_``, and compares them in the same way."""
    logical, physical = leaf.element.logical_type, leaf.physical_type
    if type_ in _INTEGERS:
        if logical is None:
            width = {PhysicalType.INT32: 32, PhysicalType.INT64: 64}.get(physical)
        else:
            width = logical.bit_width if logical.kind is LogicalKind.INTEGER and logical.is_signed else None
        return width is not None and width <= _INTEGERS[type_]
    if type_ in _PLAIN:
        return logical is None and physical is _PLAIN[type_]
    if logical is None:
        return False
    if type_ in _LOGICAL:
        return logical.kind is _LOGICAL[type_]
    if type_ in _TIMESTAMPS:
        is_utc = logical.is_adjusted_to_utc is _TIMESTAMPS[type_]
        return logical.kind is LogicalKind.TIMESTAMP and logical.unit == "us" and is_utc
    precision, scale = map(int, re.findall(r"\d+", type_))
    return logical.kind is LogicalKind.DECIMAL and logical.scale == scale and (logical.precision or 99) <= precision
