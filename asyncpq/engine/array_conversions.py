"""Conversions of Arrow arrays for engines with types of their own: of nested arrays, of dates and timestamps in the
calendar of old versions of Spark and Hive, and of batches that leave the process.

A conversion is a function from array to array, made once for a type and applied to each batch. None stands for the
conversion that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from asyncpq.decoding import calendars
from asyncpq.decoding.arrow import children_of, flattened, validity, with_children
from asyncpq.decoding.compact import compact_batch, without_metadata
from asyncpq.decoding.shredded_variant import restoring
from asyncpq.errors import UnsupportedFeatureError

__all__ = [
    "compact_batch",
    "nested_conversion",
    "rebased",
    "variant_conversion",
    "with_inner_types",
    "without_metadata",
]

_Convert: TypeAlias = Callable[[pa.Array], pa.Array]


def nested_conversion(
    source: pa.DataType, target: pa.DataType, parts: Sequence[tuple[int | None, _Convert | None]]
) -> _Convert | None:
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
    if isinstance(target, pa.StructType):
        return _of_structs(target, parts)
    (_, first), *rest = parts
    return _of_maps(source, target, first, rest[0][1]) if isinstance(target, pa.MapType) else _of_lists(target, first)


def _of_structs(target: pa.StructType, parts: Sequence[tuple[int | None, _Convert | None]]) -> _Convert:
    def convert(array: pa.Array) -> pa.Array:
        fields = array.flatten() if array.null_count else [array.field(at) for at in range(array.type.num_fields)]
        children = [
            pa.nulls(len(array), child.type) if at is None else _applied(part, fields[at])
            for child, (at, part) in zip(target, parts, strict=True)
        ]
        return _from_children(target, array, children)

    return convert


def _of_lists(target: pa.DataType, part: _Convert | None) -> _Convert:
    def convert(array: pa.Array) -> pa.Array:
        values, offsets = flattened(array, pa.int32())
        return _from_children(target, array, [_applied(part, values)], offsets)

    return convert


def _of_maps(source: pa.DataType, target: pa.MapType, key: _Convert | None, item: _Convert | None) -> _Convert:
    entries = pa.struct([target.key_field, target.item_field])
    as_list = pa.list_(pa.field("entries", pa.struct([*children_of(source)]), nullable=False))

    def convert(array: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        begin = pc.add(array.offsets, pa.scalar(0, pa.int32()))  # copies the offsets of a slice only
        values, offsets = flattened(_from_children(as_list, array, [array.values], begin), pa.int32())
        children = [_applied(key, values.field(0)), _applied(item, values.field(1))]
        struct = pa.Array.from_buffers(entries, len(values), [None], 0, 0, children)
        return _from_children(target, array, [struct], offsets)

    return convert


def variant_conversion(source: pa.StructType, target: pa.StructType) -> _Convert:
    """Return a function that converts a VARIANT column as a file stores it, shredded or not, from arrays of the type
    ``source`` to arrays of ``target``: a struct of binary ``value`` and ``metadata`` in any order. Both are empty, not
    null, where the variant is null."""
    if {field.name for field in source} != {"value", "metadata"}:
        restore = restoring(source)
        return lambda array: _from_children(target, array, list(restore(array)))
    places = [source.get_field_index(field.name) for field in target]

    def convert(array: pa.Array) -> pa.Array:
        parts = [array.field(at).cast(pa.binary()) for at in places]
        return _from_children(target, array, [part.fill_null(b"") if array.null_count else part for part in parts])

    return convert


def with_inner_types(dtype: pa.DataType, types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the list or map type ``dtype`` with other inner types: ``types`` is the element type of a list, or the key
    and value types of a map. Names, nullability and the kind of list stay."""
    fields = [child.with_type(inner) for child, inner in zip(children_of(dtype), types, strict=True)]
    return with_children(dtype, fields)


def _applied(convert: _Convert | None, array: pa.Array) -> pa.Array:
    return array if convert is None else convert(array)


def _from_children(
    dtype: pa.DataType, array: pa.Array, children: Sequence[pa.Array], offsets: pa.Array | None = None
) -> pa.Array:
    """Return a nested array of the type ``dtype`` with these children, and with the length and nulls of ``array``.
    ``offsets``: where the elements of each list or map begin; None for structs."""
    buffers = [validity(array)] if offsets is None else [validity(array), offsets.buffers()[1]]
    return pa.Array.from_buffers(dtype, len(array), buffers, array.null_count, 0, children)


def rebased(array: pa.Array, zone: str | None = None, *, refusal: UnsupportedFeatureError | None = None) -> pa.Array:
    """Return dates or timestamps of the hybrid calendar (Julian before 1582-10-15), as old versions of Spark and Hive
    wrote them, converted to the Gregorian calendar.

    Args:
        array: dates or timestamps. Timestamps before 1900 are taken to be in the local time of ``zone``.
        zone: the writer's time zone; only timestamps before 1900 need it.
        refusal: the error to raise if a value needs conversion; None converts it.

    Raises:
        UnsupportedFeatureError: ``refusal``, or the zone of timestamps before 1900 is not known.
        ArrowInvalid: a value does not fit its type once it is converted.
    """
    return calendars.rebased(array, zone, refusal)
