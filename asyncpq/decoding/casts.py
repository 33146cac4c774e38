"""Exact casts from a file's types to its dataset's types.

A cast keeps every value and the order of values, or fails: it never wraps, rounds or truncates. So a predicate on the
dataset's type can be compared with the file's statistics as with its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import (
    BINARIES,
    child_leaves,
    children_of,
    constant_array,
    flattened,
    has_lengths,
    null_scalar,
    plain_scalar,
    take,
    validity,
)
from asyncpq.errors import AsyncpqError, ResourceLimitError, SchemaMismatchError
from asyncpq.expressions.scalars import NANOSECONDS
from asyncpq.records import NamedTuple, dataclass

Cast: TypeAlias = Callable[[pa.Array], pa.Array]

_types = pa.types
_WIDE_OFFSETS = frozenset({pa.lib.Type_LARGE_LIST, pa.lib.Type_LARGE_LIST_VIEW})
_VIEWS = frozenset({pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW})
_DECIMAL_DIGITS = 76  # of the widest decimal


class SourcePart(NamedTuple):
    """A column of a file, or a part of a nested one, and its type: what a cast converts.

    Attributes:
        ordinal: of the top-level field, or of the part among its siblings.
        first_leaf: the file's leaves in it: [first_leaf, leaf_stop).
        instant: a timestamp in UTC without time zone: of INT96, or of a table that says so.
        resolution: the coarser unit that its timestamps are rounded to.
    """

    type: pa.DataType  # its whole type in the file
    ordinal: int
    first_leaf: int
    leaf_stop: int
    instant: bool = False
    resolution: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A column of a dataset, or a part of one, together with the file's column or part that it is read from.

    Attributes:
        field: the dataset's.
        source: None if the file lacks it.
        default: the value if the file lacks it; None for null.
        children: of a nested type's fields, element, or key and value.
        is_shredded: a variant whose ``value`` is restored from all leaves of the file's column.
        unreadable: the error to raise if the column or part is read.
    """

    field: pa.Field
    source: SourcePart | None
    default: pa.Scalar | None
    children: tuple[Match, ...]
    is_shredded: bool = False
    unreadable: AsyncpqError | None = None


#: A part of the target: its ordinal in the source (None if the file lacks it), its cast and its match.
Part: TypeAlias = tuple[int | None, Cast | None, Match]


def lacking(field: pa.Field, default: pa.Scalar | None = None) -> Match:
    """Return the match for a dataset's column that the file lacks: ``default`` in all rows (None: null)."""
    return Match(field, None, default, tuple([lacking(child) for child in children_of(field.type)]))


def mismatch(source: pa.DataType, target: pa.DataType) -> SchemaMismatchError:
    """Return the error for a file's type that has no exact cast to the dataset's type."""
    return SchemaMismatchError(
        f"the column has the type {source} in the file and {target} in the dataset, and there is no exact cast",
        hint="Give the dataset's column a type that keeps every value, such as a wider number or a finer unit.",
    )


def inside(error: AsyncpqError, name: str) -> AsyncpqError:
    """Return ``error``, raised for a part of the column ``name``, with that part's dotted path as ``column``."""
    error.column = name if error.column is None else f"{name}.{error.column}"
    return error


def cast_to(match: Match, type_: pa.DataType, leaves: frozenset[int]) -> Cast | None:
    """Return the function that casts arrays of the file's column to the dataset's; None if the types are equal.

    ``type_`` is the type of the arrays: the file's column, cut to the leaf columns that are read (``leaves``,
    ordinals). Raises SchemaMismatchError if there is no exact cast.
    """
    source = match.source
    if source is None:
        raise ValueError("the file lacks the column, so there is no type to cast from")
    cast_array: Cast | None
    if match.is_shredded:
        from asyncpq.decoding.shredded_variant import restoring

        cast_array = partial(restored, restoring(type_), match.field.type)
    elif match.children:
        cast_array = _nested(match, source, type_, leaves)
    elif source.resolution is not None:
        cast_array = partial(_coarser, type_, match.field.type, source.resolution)
    else:
        cast_array = cast(type_, match.field.type, source.instant)
    return None if cast_array is None else partial(_checked, cast_array, type_, match.field.type)


def _checked(cast_array: Cast, type_: pa.DataType, target: pa.DataType, array: pa.Array) -> pa.Array:
    try:
        return cast_array(array)
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        if isinstance(error, (pa.ArrowCapacityError, MemoryError)) or "offset overflow" in str(error):
            raise ResourceLimitError(
                f"the column's values take too many bytes as {target}: {error}",
                hint="Read fewer rows at once, or give the dataset's column a type such as large_string.",
            ) from error
        raise SchemaMismatchError(
            f"a value of type {type_} in the file cannot be converted to the dataset's type {target} exactly: {error}",
            hint="Read the file alone, or give the dataset's column a wider type.",
        ) from error


# -- nested ---------------------------------------------------------------------------------------


def _nested(match: Match, source: SourcePart, type_: pa.DataType, leaves: frozenset[int]) -> Cast | None:
    target = match.field.type
    inner = children_of(type_)
    read = [span for span in child_leaves(source.type, source.first_leaf) if not leaves.isdisjoint(span)]
    if len(read) != len(inner):
        raise mismatch(type_, target)
    parts: list[Part] = []
    for child in match.children:
        index = None
        cast_array: Cast | None = None
        if child.source is not None:
            index = read.index(range(child.source.first_leaf, child.source.leaf_stop))
            try:
                cast_array = cast_to(child, inner[index].type, leaves)
            except AsyncpqError as error:
                raise inside(error, child.field.name) from error.__cause__
        parts.append((index, cast_array, child))
    same = [index for index, _, _ in parts] == list(range(len(inner))) and not any(
        cast_array for _, cast_array, _ in parts
    )
    if same and type_.equals(target):
        return None
    return cast_parts(target, parts)


def cast_parts(target: pa.DataType, parts: Sequence[Part]) -> Cast:
    """Return a function that makes arrays of the nested type ``target`` of the ``parts`` of others of the same
    kind."""
    if isinstance(target, pa.StructType):
        return partial(_struct, target, parts)
    if isinstance(target, pa.MapType):
        return partial(_map, target, parts)
    return partial(_list, target, parts)


def cast_children(type_: pa.DataType, casts: Sequence[Cast | None]) -> Cast:
    """Return a function that applies ``casts``, which keep the types, to the children of arrays of the nested
    ``type_``; None leaves a child as it is."""
    children = zip(casts, children_of(type_), strict=True)
    return cast_parts(type_, [(index, change, lacking(child)) for index, (change, child) in enumerate(children)])


def _child_array(part: Part, arrays: Sequence[pa.Array], length: int) -> pa.Array:
    index, cast_array, child = part
    if index is None:
        return constant_array(null_scalar(child.field.type) if child.default is None else child.default, length)
    return arrays[index] if cast_array is None else cast_array(arrays[index])


def _struct(target: pa.StructType, parts: Sequence[Part], array: pa.Array) -> pa.Array:
    # Values under a null struct are undefined and must not fail the cast.
    arrays = array.flatten() if array.null_count else [array.field(index) for index in range(array.type.num_fields)]
    children = [_child_array(part, arrays, len(array)) for part in parts]
    return pa.Array.from_buffers(target, len(array), [validity(array)], array.null_count, 0, children)


def _map(target: pa.MapType, parts: Sequence[Part], array: pa.Array) -> pa.Array:
    entries = pa.struct([target.key_field, target.item_field])
    inside = array.values
    starts = pc.add(array.offsets, plain_scalar(0, pa.int32()))  # a copy without the slice's offset
    type_ = pa.list_(pa.field("entries", inside.type, nullable=False))
    buffers = [validity(array), starts.buffers()[1]]
    lists = pa.Array.from_buffers(type_, len(array), buffers, array.null_count, 0, [inside])
    values, offsets = flattened(lists, pa.int32())
    arrays = [values.field(0), values.field(1)]
    children = [_child_array(part, arrays, len(values)) for part in parts]
    struct = pa.Array.from_buffers(entries, len(values), [None], 0, 0, children)
    return pa.Array.from_buffers(
        target, len(array), [validity(array), offsets.buffers()[1]], array.null_count, 0, [struct]
    )


def restored(
    restore: Callable[[pa.StructArray], tuple[pa.Array, pa.Array]], target: pa.StructType, array: pa.Array
) -> pa.Array:
    """Restore a shredded VARIANT array to values and metadata, cut to the fields of ``target``."""
    value, metadata = restore(array)
    made = {"metadata": metadata, "value": value}
    children = [made[field.name].cast(field.type) for field in target]
    return pa.Array.from_buffers(target, len(array), [validity(array)], array.null_count, 0, children)


def _list(target: pa.DataType, parts: Sequence[Part], array: pa.Array) -> pa.Array:
    (part,) = parts
    offset_type = pa.int64() if target.id in _WIDE_OFFSETS else pa.int32()
    values, offsets = flattened(array, offset_type)
    values = _child_array(part, [values], len(values))
    bitmap = validity(array)
    if isinstance(target, pa.FixedSizeListType):
        values = _fixed(array, values, offsets, target.list_size)
        return pa.Array.from_buffers(target, len(array), [bitmap], array.null_count, 0, [values])
    buffers = [bitmap, offsets.buffers()[1]]
    if target.id in _VIEWS:
        buffers.append(pc.subtract(offsets.slice(1), offsets.slice(0, len(array))).buffers()[1])
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, 0, [values])


def _fixed(lists: pa.Array, values: pa.Array, offsets: pa.Array, size: int) -> pa.Array:
    """Return the elements of ``lists`` as fixed-size lists of ``size`` elements need them: ``values``, with ``size``
    nulls for each null list. ``offsets`` are those of the lists in ``values``."""
    if not pc.all(pc.equal(pc.list_value_length(lists), size), min_count=0).as_py():
        raise pa.ArrowInvalid(f"a list does not have {size} elements, as the fixed-size list type requires")
    if not lists.null_count:
        return values
    one, width = plain_scalar(1, pa.int64()), plain_scalar(max(1, size), pa.int64())
    slots = pc.subtract(pc.cumulative_sum(pa.repeat(one, len(lists) * size)), one)
    rows = pc.divide(slots, width)
    inside = pc.subtract(slots, pc.multiply(rows, width))
    indices = pc.add(offsets.take(rows).cast(pa.int64()), inside)
    return take(values, pc.if_else(lists.is_valid().take(rows), indices, null_scalar(pa.int64())))


# -- leaves ---------------------------------------------------------------------------------------


def cast(source: pa.DataType, target: pa.DataType, instant: bool = False) -> Cast | None:
    """Return the function that casts arrays exactly between two types that are not nested; None if the types are equal.

    ``instant`` is explained in :class:`SourcePart`. Raises SchemaMismatchError if there is no exact cast.
    """
    if source.equals(target):
        return None
    if _types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if isinstance(source, pa.DictionaryType):
        if isinstance(target, pa.DictionaryType):
            return partial(_convert_dictionary, target, cast(source.value_type, target.value_type))
        plain = cast(source.value_type, target)
        return lambda array: array.dictionary_decode() if plain is None else plain(array.dictionary_decode())
    if isinstance(target, pa.DictionaryType):
        return partial(_to_dictionary, target, cast(source, target.value_type))
    if isinstance(source, pa.BaseExtensionType):
        inner = cast(source.storage_type, target)
        return lambda array: array.storage if inner is None else inner(array.storage)
    if isinstance(target, pa.BaseExtensionType):
        store = cast(source, target.storage_type)
        return lambda array: pa.ExtensionArray.from_storage(target, array if store is None else store(array))
    if _types.is_float64(source) and _types.is_decimal(target) and target.scale == 0:
        return partial(_whole, target)
    if not _is_exact(source, target, instant):
        raise mismatch(source, target)
    between = _between(source, target)
    if between is None:
        return lambda array: array.cast(target)
    return lambda array: array.cast(between).cast(target)


def is_finer(type_: pa.DataType, unit: str) -> bool:
    """Return whether ``type_`` is a timestamp type in a smaller unit than ``unit``, such as "ns" for "us"."""
    return bool(_types.is_timestamp(type_)) and NANOSECONDS[type_.unit] < NANOSECONDS[unit]


def _coarser(source: pa.TimestampType, target: pa.TimestampType, unit: str, array: pa.Array) -> pa.Array:
    """Convert timestamps to the coarser ``unit`` as DuckDB does, then to ``target``.

    To microseconds they are truncated. To seconds and milliseconds they are rounded, halves away from 1970.
    """
    ticks = NANOSECONDS[unit] // NANOSECONDS[source.unit]
    half = 0 if unit == "us" else ticks // 2
    values = array.cast(pa.int64())
    nearest = pc.add_checked(values, pc.if_else(pc.less(values, 0), -half, half))
    return pc.divide(nearest, ticks).cast(pa.timestamp(unit, source.tz)).cast(target)


def _whole(target: pa.DataType, array: pa.Array) -> pa.Array:
    """Convert doubles to decimals without fraction digits."""
    if not pc.all(pc.equal(pc.floor(array), array), min_count=0).as_py():
        raise pa.ArrowInvalid("a value has a fraction")
    return array.cast(target)


def _is_exact(source: pa.DataType, target: pa.DataType, instant: bool) -> bool:
    """Return whether pyarrow's safe cast from ``source`` to ``target`` keeps every value or raises an error."""
    if _types.is_integer(source):
        numbers = (_types.is_integer, _types.is_float32, _types.is_float64, _types.is_decimal)
        return any(bool(is_kind(target)) for is_kind in numbers)
    if _types.is_floating(source):
        return bool(_types.is_floating(target) and target.bit_width > source.bit_width)
    if _types.is_decimal(source):
        return bool(_types.is_decimal(target))
    if _types.is_date32(source):
        return _types.is_date64(target) or (_types.is_timestamp(target) and target.tz is None)
    if _types.is_timestamp(source):
        return _types.is_timestamp(target) and ((source.tz is None) is (target.tz is None) or instant)
    if _types.is_time(source):
        return bool(_types.is_time(target))
    if _types.is_duration(source):
        return bool(_types.is_duration(target))
    if has_lengths(source):
        return has_lengths(target) or (source in BINARIES and _types.is_fixed_size_binary(target))
    return _types.is_fixed_size_binary(source) and target in BINARIES


def _between(source: pa.DataType, target: pa.DataType) -> pa.DataType | None:
    """Return a type to cast to first if pyarrow has no usable cast from ``source`` to ``target``; else None."""
    if _types.is_integer(source) and _types.is_decimal(target):
        # pyarrow asks for room for every integer of the type, not just for the present values
        return pa.decimal256(min(_DECIMAL_DIGITS, 20 + max(0, target.scale)), max(0, target.scale))
    if _types.is_time(source) or has_lengths(source) or _types.is_fixed_size_binary(source):
        try:
            pa.nulls(0, source).cast(target)
        except pa.ArrowNotImplementedError:
            return pa.large_binary() if target in BINARIES else pa.large_string()
    return None


def _convert_dictionary(target: pa.DictionaryType, convert: Cast | None, array: Any) -> pa.Array:
    """Convert a dictionary array to another dictionary type. ``convert`` casts its values; None for no cast."""
    values = array.dictionary if convert is None else convert(array.dictionary)
    return pa.DictionaryArray.from_arrays(
        array.indices.cast(target.index_type), values, ordered=target.ordered, safe=False
    )


def _to_dictionary(target: pa.DictionaryType, convert: Cast | None, array: pa.Array) -> pa.Array:
    encoded = (array if convert is None else convert(array)).dictionary_encode()
    return _convert_dictionary(target, None, encoded)
