"""Arrays that hold their own rows and nothing else.

An Arrow array may hold more than its rows: a slice the whole array, a dictionary the values of a whole column chunk,
views every text of their buffers, a null slot whatever stood there before, a null struct the values below it. The
receiver of the buffers gets all of that. :func:`compact` takes it away, so that an array says no more than its rows. It
knows the types that a Parquet file can have, thus no unions and no run-end encoding.
"""

from __future__ import annotations

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import (
    OF_VIEWS,
    children_of,
    flattened,
    null_scalar,
    plain_scalar,
    positions,
    stored_as,
    take,
    validity,
    with_children,
)

_LARGE_BYTES = 64 << 10  # exact arrays from here on are not copied; for smaller ones, to tell costs as much as to copy


def compact_batch(batch: pa.RecordBatch, *, hidden_rows: bool) -> pa.RecordBatch:
    """Return a batch of the same rows whose buffers hold only these rows' values: null slots and their children are
    zero or empty, and dictionaries hold only values that occur. For batches that leave the process.

    Args:
        hidden_rows: True if the receiver must not see values of other rows of the file. If False, some dictionaries
            stay whole, since a stream sends each of them once.
    """
    return pa.RecordBatch.from_struct_array(compact(batch.to_struct_array(), hidden_rows=hidden_rows))


def compact(array: pa.Array, *, hidden_rows: bool, filled: bool = False) -> pa.Array:
    """Return an array of the same values whose buffers hold them alone: null slots and what is below them is zero or
    empty, dictionaries have the values of the rows alone.

    Args:
        hidden_rows: whether the receiver may not see other rows of the file. The values of dictionaries are then in the
            order of their first rows, unless they are ordered. If it may, two kinds of dictionary stay
            whole. One with no more values than the array: a stream of many batches has it once. An ordered one:
            clients unite the dictionaries of batches in the order in which these come, and would lose the values'.
        filled: whether the result has no nulls, but zeros and empty values in their place.
    """
    type_, length = array.type, len(array)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, compact(array.storage, hidden_rows=hidden_rows, filled=filled))
    if pa.types.is_dictionary(type_):
        return _compact_dictionary(array, hidden_rows, filled=filled)
    if type_ in OF_VIEWS:
        plain = compact(pc.cast(array, OF_VIEWS[type_]), hidden_rows=hidden_rows, filled=filled)
        return pc.cast(plain, type_)
    if not pa.types.is_nested(type_):
        return _compact_flat(array, filled=filled)
    bits = None if filled else validity(array)
    if pa.types.is_struct(type_):
        fields = [array.field(number) for number in range(type_.num_fields)]
        children = [
            compact(below, hidden_rows=hidden_rows, filled=_has_no_nulls(field))
            for field, below in zip(fields, array.flatten(), strict=True)  # flattened: null where the struct is null
        ]
        return pa.Array.from_buffers(type_, length, [bits], children=children)
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        values = array.values.slice(array.offset * size, length * size)
        below = take(values, _live_slots(array, size)) if array.null_count else values
        child = compact(below, hidden_rows=hidden_rows, filled=_has_no_nulls(values))
        return pa.Array.from_buffers(type_, length, [bits], children=[child])
    return _compact_list(array, bits, hidden_rows)


def _compact_flat(array: pa.Array, *, filled: bool) -> pa.Array:
    if array.null_count == 0:
        return array if _is_exact(array) else pa.concat_arrays([array])
    if pa.types.is_null(array.type):
        return array
    copy = take(array, positions(len(array)))  # writes zeros, or empty values, where the array has nulls
    return pa.Array.from_buffers(copy.type, len(copy), [None, *copy.buffers()[1:]]) if filled else copy


def _is_exact(array: pa.Array) -> bool:
    """Return whether a large array without nulls has no bytes but those of its values."""
    if array.get_total_buffer_size() < _LARGE_BYTES or pa.types.is_boolean(array.type):
        return False
    return array.buffers()[0] is None and bool(array.get_total_buffer_size() == array.nbytes)


def _compact_dictionary(array: pa.DictionaryArray, hidden_rows: bool, *, filled: bool) -> pa.DictionaryArray:
    type_, indices, values = array.type, array.indices, array.dictionary
    if filled and len(indices) and indices.null_count == len(indices):
        values = pa.nulls(1, values.type)  # that the slots can point to
    elif hidden_rows or not (type_.ordered or len(values) <= len(array)):
        used = pc.drop_null(pc.unique(indices))
        in_order_of_rows = hidden_rows and not type_.ordered
        if in_order_of_rows or len(used) < len(values):
            if not in_order_of_rows:
                used = pc.take(used, pc.array_sort_indices(used))
            indices = pc.cast(pc.index_in(indices, value_set=used), type_.index_type)
            values = take(values, used)
    indices = _compact_flat(indices, filled=filled)
    values = compact(values, hidden_rows=hidden_rows)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=type_.ordered)


def _compact_list(array: pa.Array, bits: pa.Buffer | None, hidden_rows: bool) -> pa.Array:
    """Compact a map or a list of varying length."""
    type_, length = array.type, len(array)
    if isinstance(array, pa.MapArray):  # as a list, which has the kernels that maps lack
        as_list = pa.list_(pa.field("entries", array.values.type, nullable=False))
        layout = array.buffers()[:2]
        array = pa.Array.from_buffers(as_list, length, layout, offset=array.offset, children=[array.values])
    wide = pa.types.is_large_list(type_) or pa.types.is_large_list_view(type_)
    values, offsets = flattened(array, pa.int64() if wide else pa.int32())
    layout = [bits, offsets.buffers()[1]]
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):
        starts, stops = offsets.slice(0, length), offsets.slice(1)
        layout = [bits, pa.concat_arrays([starts]).buffers()[1], pc.subtract(stops, starts).buffers()[1]]
    child = compact(values, hidden_rows=hidden_rows)
    return pa.Array.from_buffers(type_, length, layout, children=[child])


def _has_no_nulls(array: pa.Array) -> bool:
    return bool(array.null_count == 0)


def _live_slots(lists: pa.FixedSizeListArray, size: int) -> pa.Array:
    """Return the positions of all values of fixed-size lists, null for those in null lists."""
    slots = positions(len(lists) * size)
    parents = pc.divide(slots, plain_scalar(max(size, 1), slots.type))
    return pc.if_else(pc.take(lists.is_valid(), parents), slots, null_scalar(slots.type))


def has_dictionary(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is a dictionary, or has one at any depth."""
    type_ = stored_as(type_)
    return bool(pa.types.is_dictionary(type_)) or any(has_dictionary(child.type) for child in children_of(type_))


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the metadata of its fields, at any depth, and its own. Extension types remain."""
    return pa.schema(list(map(_without_metadata, schema)))


def _without_metadata(field: pa.Field) -> pa.Field:
    type_ = field.type
    children = children_of(type_)
    if children:
        type_ = with_children(type_, list(map(_without_metadata, children)))
    return pa.field(field.name, type_, field.nullable)
