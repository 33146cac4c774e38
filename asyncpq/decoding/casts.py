"""From the type that a file has to the one that its dataset has: exactly, or not at all.

A cast keeps every value and its place in the order, or is an error: it never wraps, rounds or cuts. So a
predicate on the dataset's type says of a file's statistics what it says of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import children_of, constant_array, flattened, leaf_types, null_scalar, take, validity
from asyncpq.decoding.shredded_variant import restoring
from asyncpq.errors import AsyncpqError, ResourceLimitError, SchemaMismatchError
from asyncpq.expressions.scalars import NANOSECONDS

Cast: TypeAlias = Callable[[pa.Array], pa.Array]

_types = pa.types
_TEXT = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BYTES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_WIDE_OFFSETS = frozenset({pa.lib.Type_LARGE_LIST, pa.lib.Type_LARGE_LIST_VIEW})
_VIEWS = frozenset({pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW})
_DECIMAL_DIGITS = 76  # of the widest decimal


class SourcePart(NamedTuple):
    """A part of a file's column.

    Attributes:
        type: as the file has it, whole.
        at: ordinal of the top-level field, or position among the parts beside it.
        first_leaf, leaf_stop: the file's leaves in it.
        instant: a timestamp that is UTC's, whether or not its type has a time zone: of INT96, or of a table that
            says so.
        resolution: unit that its timestamps, which are finer, are brought to; None: to none.
    """

    type: pa.DataType
    at: int
    first_leaf: int
    leaf_stop: int
    instant: bool = False
    resolution: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A column of a dataset, or a part of one, and what a file has of it.

    Attributes:
        field: the dataset's.
        source: the file's; None where the file lacks it.
        default: the value where the file lacks it; None for null.
        children: of a nested type, matched: fields of a struct, the element of a list, key and value of a map.
        is_shredded: a variant whose ``value`` is put together from all leaves of the file's column.
    """

    field: pa.Field
    source: SourcePart | None
    default: pa.Scalar | None
    children: tuple[Match, ...]
    is_shredded: bool = False


def child_leaves(kind: pa.DataType, first_leaf: int) -> list[tuple[int, int]]:
    """For each of the children of ``kind``, whose leaves begin at ``first_leaf``, its first leaf and leaf stop."""
    spans: list[tuple[int, int]] = []
    for child in children_of(kind):
        stop = first_leaf + len(leaf_types(child.type))
        spans.append((first_leaf, stop))
        first_leaf = stop
    return spans


def lacking(field: pa.Field, default: pa.Scalar | None = None) -> Match:
    """The match of a column that a file lacks."""
    return Match(field, None, default, tuple([lacking(child) for child in children_of(field.type)]))


def mismatch(source: pa.DataType, target: pa.DataType) -> SchemaMismatchError:
    """The file's type is another one than the dataset's, and no exact cast leads there."""
    return SchemaMismatchError(
        f"the file has {source}, the dataset {target}",
        hint="Only casts that keep every value are made: to wider numbers, finer units and the like.",
    )


def inside(error: AsyncpqError, name: str) -> AsyncpqError:
    """``error``, which concerns a part of the column or part ``name``; its column becomes the dotted path."""
    error.column = name if error.column is None else f"{name}.{error.column}"
    return error


def cast_to(match: Match, kind: pa.DataType, leaves: frozenset[int]) -> Cast | None:
    """What brings arrays of a file's column to the dataset's type; None where they have it already.

    Args:
        match: the column, perhaps cut to parts.
        kind: type of the arrays: that of the file's column, cut to ``leaves``.
        leaves: ordinals of the leaves that are read.

    Raises:
        SchemaMismatchError: the types are of different kinds.
    """
    source = match.source
    if source is None:
        raise ValueError("what a file lacks has no cast_to")
    conform: Cast | None
    if match.is_shredded:
        conform = _restored(kind, match.field.type)
    elif match.children:
        conform = _nested(match, source, kind, leaves)
    elif source.resolution is not None:
        conform = _coarser(kind, match.field.type, source.resolution)
    else:
        conform = cast(kind, match.field.type, source.instant)
    return None if conform is None else _checked(conform, kind, match.field.type)


def _checked(conform: Cast, kind: pa.DataType, target: pa.DataType) -> Cast:
    def checked(array: pa.Array) -> pa.Array:
        try:
            return conform(array)
        except (pa.ArrowCapacityError, MemoryError) as error:
            raise ResourceLimitError(f"values become too large as {target}: {error}") from error
        except (pa.ArrowException, OverflowError) as error:
            if "offset overflow" in str(error):
                raise ResourceLimitError(f"values become too large as {target}: {error}") from error
            raise SchemaMismatchError(
                f"a value of the file's {kind} is no value of the dataset's {target}: {error}",
                hint="Read the file alone, or give the dataset's column a wider type.",
            ) from error

    return checked


# -- nested ---------------------------------------------------------------------------------------


def _nested(match: Match, source: SourcePart, kind: pa.DataType, leaves: frozenset[int]) -> Cast | None:
    target = match.field.type
    inner = children_of(kind)
    read = [span for span in child_leaves(source.type, source.first_leaf) if not leaves.isdisjoint(range(*span))]
    if len(read) != len(inner):
        raise mismatch(kind, target)
    parts: list[tuple[int | None, Cast | None, Match]] = []
    for child in match.children:
        at = None
        conform: Cast | None = None
        if child.source is not None:
            at = read.index((child.source.first_leaf, child.source.leaf_stop))
            try:
                conform = cast_to(child, inner[at].type, leaves)
            except AsyncpqError as error:
                raise inside(error, child.field.name) from error.__cause__
        parts.append((at, conform, child))
    same = [at for at, _, _ in parts] == list(range(len(inner))) and not any(conform for _, conform, _ in parts)
    if same and kind.equals(target):
        return None
    if isinstance(target, pa.StructType):
        return _struct(target, parts)
    if isinstance(target, pa.MapType):
        return _map(target, parts)
    return _list(target, parts)


def _child_array(part: tuple[int | None, Cast | None, Match], arrays: Sequence[pa.Array], length: int) -> pa.Array:
    at, conform, child = part
    if at is None:
        return constant_array(child.default or null_scalar(child.field.type), length)
    return arrays[at] if conform is None else conform(arrays[at])


def _struct(target: pa.StructType, parts: Sequence[tuple[int | None, Cast | None, Match]]) -> Cast:
    def conform(array: pa.Array) -> pa.Array:
        # what stands under a null struct means nothing, and must not fail
        arrays = array.flatten() if array.null_count else [array.field(at) for at in range(array.type.num_fields)]
        children = [_child_array(part, arrays, len(array)) for part in parts]
        return pa.Array.from_buffers(target, len(array), [validity(array)], array.null_count, 0, children)

    return conform


def _map(target: pa.MapType, parts: Sequence[tuple[int | None, Cast | None, Match]]) -> Cast:
    entries = pa.struct([target.key_field, target.item_field])

    def conform(array: pa.Array) -> pa.Array:
        inside = array.values
        starts = pc.add(array.offsets, pa.scalar(0, pa.int32()))  # of a slice, without what is before it
        kind = pa.list_(pa.field("entries", inside.type, nullable=False))
        buffers = [validity(array), starts.buffers()[1]]
        lists = pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, [inside])
        values, offsets = flattened(lists, pa.int32())
        arrays = [values.field(0), values.field(1)]
        children = [_child_array(part, arrays, len(values)) for part in parts]
        struct = pa.Array.from_buffers(entries, len(values), [None], 0, 0, children)
        return pa.Array.from_buffers(
            target, len(array), [validity(array), offsets.buffers()[1]], array.null_count, 0, [struct]
        )

    return conform


def _restored(source: pa.StructType, target: pa.StructType) -> Cast:
    """A variant, or parts of it, of a file that shreds it."""
    restore = restoring(source)

    def conform(array: pa.Array) -> pa.Array:
        value, metadata = restore(array)
        made = {"metadata": metadata, "value": value}
        children = [made[field.name].cast(field.type) for field in target]
        return pa.Array.from_buffers(target, len(array), [validity(array)], array.null_count, 0, children)

    return conform


def _list(target: pa.DataType, parts: Sequence[tuple[int | None, Cast | None, Match]]) -> Cast:
    (part,) = parts
    offset_type = pa.int64() if target.id in _WIDE_OFFSETS else pa.int32()

    def conform(array: pa.Array) -> pa.Array:
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

    return conform


def _fixed(lists: pa.Array, values: pa.Array, offsets: pa.Array, size: int) -> pa.Array:
    """The elements of lists of ``size``, with as many nulls where a list is null."""
    if not pc.all(pc.equal(pc.list_value_length(lists), size), min_count=0).as_py():
        raise pa.ArrowInvalid(f"a list has not {size} elements")
    if not lists.null_count:
        return values
    slots = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(lists) * size)), 1)
    rows = pc.divide(slots, max(1, size))
    inside = pc.subtract(slots, pc.multiply(rows, size))
    indices = pc.add(offsets.take(rows).cast(pa.int64()), inside)
    return take(values, pc.if_else(lists.is_valid().take(rows), indices, pa.scalar(None, pa.int64())))


# -- leaves ---------------------------------------------------------------------------------------


def cast(source: pa.DataType, target: pa.DataType, instant: bool = False) -> Cast | None:
    """The exact cast between two types that are not nested; None if they are the same.

    Args:
        instant: see :class:`SourcePart`.

    Raises:
        SchemaMismatchError: there is none.
    """
    if source.equals(target):
        return None
    if _types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if isinstance(source, pa.DictionaryType):
        return _from_dictionary(source, target)
    if isinstance(target, pa.DictionaryType):
        return _to_dictionary(source, target)
    if isinstance(source, pa.BaseExtensionType):
        inner = cast(source.storage_type, target)
        return lambda array: array.storage if inner is None else inner(array.storage)
    if isinstance(target, pa.BaseExtensionType):
        store = cast(source, target.storage_type)
        return lambda array: pa.ExtensionArray.from_storage(target, array if store is None else store(array))
    if not _is_exact(source, target, instant):
        raise mismatch(source, target)
    between = _between(source, target)
    if between is None:
        return lambda array: array.cast(target)
    return lambda array: array.cast(between).cast(target)


def is_finer(kind: pa.DataType, unit: str) -> bool:
    """Whether it is a timestamp of a finer unit."""
    return bool(_types.is_timestamp(kind)) and NANOSECONDS[kind.unit] < NANOSECONDS[unit]


def _coarser(source: pa.TimestampType, target: pa.TimestampType, unit: str) -> Cast:
    """Timestamps brought to ``unit`` as DuckDB's casts do: to the nearest one, halves away from 1970; or cut to
    microseconds."""
    ticks = NANOSECONDS[unit] // NANOSECONDS[source.unit]
    half = 0 if unit == "us" else ticks // 2

    def conform(array: pa.Array) -> pa.Array:
        values = array.cast(pa.int64())
        nearest = pc.add_checked(values, pc.if_else(pc.less(values, 0), -half, half))
        return pc.divide(nearest, ticks).cast(pa.timestamp(unit, source.tz)).cast(target)

    return conform


def _is_exact(source: pa.DataType, target: pa.DataType, instant: bool) -> bool:
    """Whether pyarrow's safe cast gives the same values, or an error."""
    if _types.is_integer(source):
        numbers = (_types.is_integer, _types.is_float32, _types.is_float64, _types.is_decimal)
        return any(bool(is_kind(target)) for is_kind in numbers)
    if _types.is_floating(source):
        return bool(_types.is_floating(target) and target.bit_width > source.bit_width)
    if _decimal(source):
        return _decimal(target)
    if _types.is_date32(source):
        return _types.is_date64(target) or (_types.is_timestamp(target) and target.tz is None)
    if _types.is_timestamp(source):
        return _types.is_timestamp(target) and ((source.tz is None) is (target.tz is None) or instant)
    if _types.is_time(source):
        return bool(_types.is_time(target))
    if _types.is_duration(source):
        return bool(_types.is_duration(target))
    if source in _TEXT or source in _BYTES:
        return target in _TEXT or target in _BYTES or (source in _BYTES and _types.is_fixed_size_binary(target))
    return _types.is_fixed_size_binary(source) and target in _BYTES


def _decimal(kind: pa.DataType) -> bool:
    return bool(_types.is_decimal(kind))


def _between(source: pa.DataType, target: pa.DataType) -> pa.DataType | None:
    """A type to cast to first, where pyarrow has no direct way."""
    if _types.is_integer(source) and _decimal(target):
        # it wants room for every integer of the type, not just for those that there are
        return pa.decimal256(min(_DECIMAL_DIGITS, 20 + max(0, target.scale)), max(0, target.scale))
    if _types.is_time(source) or source in _TEXT or source in _BYTES or _types.is_fixed_size_binary(source):
        try:
            pa.nulls(0, source).cast(target)
        except pa.ArrowNotImplementedError:
            return pa.large_binary() if target in _BYTES else pa.large_string()
    return None


def _from_dictionary(source: pa.DictionaryType, target: pa.DataType) -> Cast:
    if not isinstance(target, pa.DictionaryType):
        inner = cast(source.value_type, target)
        return lambda array: array.dictionary_decode() if inner is None else inner(array.dictionary_decode())
    convert = cast(source.value_type, target.value_type)

    def conform(array: Any) -> pa.Array:
        values = array.dictionary if convert is None else convert(array.dictionary)
        return pa.DictionaryArray.from_arrays(
            array.indices.cast(target.index_type), values, ordered=target.ordered, safe=False
        )

    return conform


def _to_dictionary(source: pa.DataType, target: pa.DictionaryType) -> Cast:
    convert = cast(source, target.value_type)

    def conform(array: pa.Array) -> pa.Array:
        encoded = (array if convert is None else convert(array)).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(target.index_type), encoded.dictionary, ordered=target.ordered, safe=False
        )

    return conform
