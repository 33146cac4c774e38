"""Shredded VARIANT columns: turn conditions on parts of a variant into conditions on plain columns, whose statistics
prune.

A part that a file shreds has a typed column, and beside it a column ``value`` for values of other types. If ``value``
is null in all rows, the typed column has all values of the part, and null where an object lacks the part. Readers may
rely on the specification (VariantShredding.md): a shredded field of an object is not in the object's ``value``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Final

from asyncpq.expressions import Comparison, Expression, In, IsNull, KeyIn, Like, StartsWith, VariantTest
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf, ParquetSchema
from asyncpq.pruning.zone_maps import Zones

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
