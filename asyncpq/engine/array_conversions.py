"""Conversions of Arrow arrays for engines with types of their own: of nested arrays, of dates and timestamps in the
calendar of old versions of Spark and Hive, and of batches that leave the process.

A conversion is a function from array to array, made once for a type and applied to each batch. None stands for the
conversion that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from asyncpq.decoding.arrow import children_of, validity, with_children
from asyncpq.decoding.calendars import rebased
from asyncpq.decoding.casts import Cast, cast_parts, lacking, restored
from asyncpq.decoding.compact import compact_batch, without_metadata
from asyncpq.decoding.shredded_variant import restoring

__all__ = [
    "compact_batch",
    "nested_conversion",
    "rebased",
    "variant_conversion",
    "with_inner_types",
    "without_metadata",
]


def nested_conversion(
    source: pa.DataType, target: pa.DataType, parts: Sequence[tuple[int | None, Cast | None]]
) -> Cast | None:
    """Return the conversion of structs, lists or maps of the type ``source`` to ``target``, of the same kind.

    Args:
        parts: one pair for each field of a struct ``target``, for the elements of a list, or for keys and values of a
            map: the position of the field in ``source`` (None: it is missing there; the result is null), and the
            conversion of its values (None: the types are equal).

    Returns:
        A function from an array of the type ``source`` to one of ``target``; None if nothing changes.
    """
    if source.equals(target) and all(part == (at, None) for at, part in enumerate(parts)):
        return None
    return cast_parts(
        target, [(at, part, lacking(child)) for child, (at, part) in zip(children_of(target), parts, strict=True)]
    )


def variant_conversion(source: pa.StructType, target: pa.StructType) -> Cast:
    """Return a function that converts a VARIANT column as a file stores it, shredded or not, from arrays of the type
    ``source`` to arrays of ``target``: a struct of binary ``value`` and ``metadata`` in any order. Both are empty, not
    null, where the variant is null."""
    if {field.name for field in source} != {"value", "metadata"}:
        return partial(restored, restoring(source), target)
    places = [source.get_field_index(field.name) for field in target]

    def convert(array: pa.Array) -> pa.Array:
        parts = [array.field(at).cast(pa.binary()) for at in places]
        children = [part.fill_null(b"") if array.null_count else part for part in parts]
        return pa.Array.from_buffers(target, len(array), [validity(array)], array.null_count, 0, children)

    return convert


def with_inner_types(dtype: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the list or map type ``dtype`` with other inner types: ``types`` is the element type of a list, or the key
    and value types of a map. Names, nullability and the kind of list stay."""
    fields = [child.with_type(inner) for child, inner in zip(children_of(dtype), types, strict=True)]
    return with_children(dtype, fields)
