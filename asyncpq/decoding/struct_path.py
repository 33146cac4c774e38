"""A leaf in structs that are not repeated: a flat column in as many groups, each of one child.

Every page of such a leaf says its rows, so it is read page by page like a flat one. What is decoded of it
are struct arrays down to the leaf; for a flat column there are none, and all here changes nothing.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.decoded_size import leaf_types
from asyncpq.format.schema import Leaf, Repetition


def path_type(kind: pa.DataType, first_leaf: int, leaf: Leaf) -> pa.DataType | None:
    """``kind``, the type of a top-level field, cut to a leaf; None if there are not just structs above it.

    None also for a leaf that may not be null in a struct that may: pyarrow makes up values where the struct
    is null, which mean nothing as indices into a dictionary.

    Args:
        first_leaf: ordinal of the field's first leaf.
    """
    required = leaf.element.repetition is not Repetition.OPTIONAL
    if leaf.max_repetition_level or (required and leaf.max_definition_level):
        return None
    return _cut(kind, first_leaf, leaf.index, list(leaf.path[1:]))


def _cut(kind: pa.DataType, first_leaf: int, leaf: int, names: list[str]) -> pa.DataType | None:
    if not names:
        whole = pa.types.is_nested(kind) or isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType))
        return None if whole else kind
    if not isinstance(kind, pa.StructType):
        return None
    for at in range(kind.num_fields):
        child = kind.field(at)
        stop = first_leaf + len(leaf_types(child.type))
        if leaf < stop:
            inner = _cut(child.type, first_leaf, leaf, names[1:]) if child.name == names[0] else None
            return None if inner is None else pa.struct([pa.field(child.name, inner, child.nullable)])
        first_leaf = stop
    return None


def leaf_type(kind: pa.DataType, depth: int) -> pa.DataType:
    """The leaf's type under ``depth`` structs."""
    for _ in range(depth):
        kind = kind.field(0).type
    return kind


def leaf_values(array: pa.Array, depth: int) -> pa.Array:
    """The leaf's values under ``depth`` structs; null also where one of these is."""
    for _ in range(depth):
        array = array.field(0)
    return array


def in_structs(values: pa.Array, kind: pa.DataType, depth: int, like: pa.Array | None = None) -> pa.Array:
    """``values`` under the ``depth`` structs of ``kind``, null where those of ``like`` are; None for nowhere."""
    if depth == 0:
        return values
    field = kind.field(0)
    child = in_structs(values, field.type, depth - 1, None if like is None else like.field(0))
    mask = pc.is_null(like) if like is not None and like.null_count else None
    return pa.StructArray.from_arrays([child], fields=[field], mask=mask)
