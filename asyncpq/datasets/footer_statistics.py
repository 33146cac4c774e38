"""Statistics of one column in a whole file, from its footer: :class:`Learnt`.

Predicates also test parts of variants and bounding boxes of geometries, which are not columns. :func:`with_parts` gives
each of these parts a name and conditions like a column's, so that its statistics rule out files in the same way. A file
has statistics of a variant's part if it shreds that part. Statistics of bounding boxes are those of GeoParquet's
covering columns, or of GEOMETRY and GEOGRAPHY columns. Different files may have them in different columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncpq.errors import AsyncpqError, QueryError
from asyncpq.expressions import Atom, Comparison, Expression, IntersectsBox, VariantTest, atoms
from asyncpq.expressions.analysis import successor
from asyncpq.expressions.simplify import with_conditions
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import chunk_bounds, order_of
from asyncpq.pruning.geometries import CORNERS, box_condition, coverings, is_inside_sphere, shows_wrapping, sphere_box
from asyncpq.pruning.literals import ValueKind, kind_of_leaf
from asyncpq.pruning.shredded import shredded_condition
from asyncpq.scan.page_planner import row_group_zone
from asyncpq.storage.base import Validator


class Learnt(NamedTuple):
    """Statistics of one column in one version of a file, over all row groups."""

    validator: Validator  # identifies the version
    low: Any  # lower bound over all row groups, in the form that pruning compares; None if unknown
    high: Any  # upper bound; None if unknown
    null_count: int | None  # None if unknown
    nan_count: int | None  # None if unknown
    all_null: bool  # all values are null


class TestedPart(NamedTuple):
    """What a predicate tests other than a column: a value inside a variant, or one side of the bounding boxes of
    geometries."""

    column: str
    type: pa.DataType  # of the values that are tested
    # returns its statistics in a file, of the column's name there and the kind of ``type``
    learn: Callable[[FileVersion, str, ValueKind], Learnt]


_NO_PARTS: Final[Mapping[str, TestedPart]] = {}


def with_parts(where: Expression, has_column: Callable[[str], bool]) -> tuple[Expression, Mapping[str, TestedPart]]:
    """Return a weaker predicate, true wherever ``where`` is, in which tests of variants and geometries are conditions
    on named parts; and these parts, keyed by their names in it.

    ``has_column`` returns whether a column has the given name, which then cannot name a part.
    """
    if type(where) is Comparison or not any(isinstance(atom, (IntersectsBox, VariantTest)) for atom in atoms(where)):
        return where, _NO_PARTS
    parts: dict[str, TestedPart] = {}

    def condition(atom: Atom) -> Expression | None:
        found: dict[str, TestedPart] = {}
        result: Expression | None = None
        if isinstance(atom, VariantTest):
            from asyncpq.decoding.variants import part_type  # few predicates are about variants

            found[str(atom.test.column)] = TestedPart(atom.column, part_type(atom.type), partial(_variant_part, atom))
            result = atom.test
        elif isinstance(atom, IntersectsBox):
            # x of GEOGRAPHY is unknown to a box at the meridian 180: its statistics have other names
            inside = is_inside_sphere(atom)
            kind = "box" if inside else "plane"
            names = [f"{kind}({atom.column}).{corner}" for corner in CORNERS]
            for corner, name in enumerate(names):
                found[name] = TestedPart(atom.column, pa.float64(), partial(_box_side, corner, inside))
            result = box_condition(atom, [(name, True) for name in names], by_x=True)
        if any(map(has_column, found)):
            return None
        parts.update(found)
        return result

    return with_conditions(where, condition), parts


def column_statistics(version: FileVersion, leaf: Leaf, kind: ValueKind) -> Learnt:
    """Return a leaf's statistics over all row groups; unknown ones if its values do not compare as values of
    ``kind`` do."""
    orders = version.metadata.column_orders
    own = kind_of_leaf(leaf, order_of(leaf, None if orders is None else orders[leaf.index]))
    if leaf.max_repetition_level or (own.domain, own.scale, own.unit) != (kind.domain, kind.scale, kind.unit):
        return _unknown(version)
    return _over_row_groups(version, leaf, is_bytes=kind.is_bytes)


def leaf_at(version: FileVersion, name: str) -> Leaf | None:
    """Return the leaf with exactly the dotted path ``name``; None if the file has no such leaf."""
    schema = version.metadata.schema
    try:
        (index,) = schema.projection(name).leaves
    except (QueryError, ValueError):
        return None
    leaf = schema.leaves[index]
    return leaf if leaf.dotted == name else None


def _unknown(version: FileVersion) -> Learnt:
    return Learnt(version.validator, None, None, None, None, False)


def _over_row_groups(version: FileVersion, leaf: Leaf, *, is_bytes: bool) -> Learnt:
    metadata, validator = version.metadata, version.validator
    orders = metadata.column_orders
    order = order_of(leaf, None if orders is None else orders[leaf.index])
    calendar = metadata.calendars.get(leaf.index)
    low: Any = None
    high: Any = None
    nulls: int | None = 0
    nans: int | None = 0
    all_null = True
    for group in metadata.row_groups:
        if not group.num_rows:
            continue
        try:
            chunk = group.chunk(leaf.index)
            found, _ = chunk_bounds(
                chunk, leaf, order, metadata.writer_faults, orders is not None, group.num_rows, calendar
            )
        except AsyncpqError:
            return _unknown(version)  # a read of the column raises the error
        nulls = None if nulls is None or found.null_count is None else nulls + found.null_count
        nans = None if nans is None or found.nan_count is None else nans + found.nan_count
        if found.all_null:
            continue
        all_null = False
        least: Any = found.min
        most: Any = found.max
        if most is not None and is_bytes and not found.max_exact:
            most = successor(most) if most else most
        if least is None or most is None:
            return _unknown(version)
        low = least if low is None or least < low else low
        high = most if high is None or most > high else high
    return Learnt(validator, low, high, nulls, nans, all_null and low is None)


def _variant_part(test: VariantTest, version: FileVersion, column: str, kind: ValueKind) -> Learnt:
    """Return the statistics of a value inside a variant, from its shredded column; unknown ones if some of its
    values may be stored elsewhere."""
    schema = version.metadata.schema
    try:
        found = shredded_condition(test, column, schema, lambda leaf: row_group_zone(version, leaf).zones)
    except AsyncpqError:
        return _unknown(version)  # a read of the column raises the error
    return _unknown(version) if found is None else _of_part(column_statistics(version, found[1], kind))


def _box_side(corner: int, inside: bool, version: FileVersion, column: str, _: ValueKind) -> Learnt:
    """Return the statistics of one side of the bounding boxes of geometries, such as "xmin"; ``corner`` is the
    position of its name in ``CORNERS``. ``inside``: the box that is asked for lies between the meridians -180 and 180
    (:func:`is_inside_sphere`)."""
    leaf = leaf_at(version, column)
    if leaf is None:
        return _unknown(version)
    is_x = CORNERS[corner].startswith("x")
    try:
        covering = version.derived(("coverings",), lambda: coverings(version.metadata), 1000).get(leaf.dotted)
        if covering is None:
            boxes = row_group_zone(version, leaf).boxes
            logical = leaf.element.logical_type
            if logical is not None and logical.kind is LogicalKind.GEOGRAPHY:
                if is_x and not inside:
                    return _unknown(version)
                boxes = [None if box is None else sphere_box(box) for box in boxes]
            return _native_side(version, boxes, is_x=is_x)
        xmin, xmax = (row_group_zone(version, side).zones for side in (covering.xmin, covering.xmax))
    except AsyncpqError:
        return _unknown(version)  # a read of the column raises the error
    if is_x and (not covering.is_planar or shows_wrapping(xmin, xmax)):
        return _unknown(version)
    return _of_part(_over_row_groups(version, covering.leaves[corner], is_bytes=False))


def _of_part(leaf: Learnt) -> Learnt:
    """Return the statistics of a shredded leaf as those of the variant's part, without null counts: these may not
    count the rows in which an outer group is null."""
    return leaf._replace(null_count=None)


def _native_side(version: FileVersion, boxes: list[Any], *, is_x: bool) -> Learnt:
    """Return the range of x (or y) in ``boxes``, the bounding boxes that the statistics of GEOMETRY or GEOGRAPHY
    give."""
    groups = version.metadata.row_groups
    known = [box for box, group in zip(boxes, groups, strict=False) if group.num_rows]
    if not known or None in known or (is_x and any(box.xmin > box.xmax for box in known)):
        return _unknown(version)
    lows, highs = zip(*[(box.xmin, box.xmax) if is_x else (box.ymin, box.ymax) for box in known], strict=True)
    if not all(map(math.isfinite, (*lows, *highs))):
        return _unknown(version)
    return Learnt(version.validator, min(lows), max(highs), None, None, False)
