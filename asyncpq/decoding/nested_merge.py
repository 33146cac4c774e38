"""Parts of a nested column put together: the same rows of the same field, read leaf by leaf.

Every part has the lists, structs and nulls above its leaves, as pyarrow gives them for these leaves alone.
Where two parts share a list or a struct, both must say the same of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.decoded_size import leaf_types, storage_type
from asyncpq.decoding.selection import join
from asyncpq.errors import CorruptFileError


class Part(NamedTuple):
    """Some leaves of a field.

    Attributes:
        leaves: their ordinals in the file's schema, ascending.
        array: the rows, as pyarrow gives the field cut to these leaves.
    """

    leaves: tuple[int, ...]
    array: pa.Array


def merge(
    parts: Sequence[Part],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None = None,
) -> pa.Array:
    """One array of all parts' leaves.

    Args:
        parts: the same rows of one field; no leaf is in two of them.
        whole: type of the field with all its leaves.
        first_leaf: ordinal of the first of them.
        target: type of the field cut to the leaves of all parts.
        seen: false where something above the field is null; None for nowhere. What is there means nothing,
            and pyarrow fills it in one way or another.

    Raises:
        CorruptFileError: the parts have other lists or other nulls where they share some.
    """
    array = parts[0].array
    if len(parts) == 1 and array.type == target:
        return array
    whole = storage_type(whole)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, merge(parts, whole, first_leaf, target.storage_type, seen))
    if pa.types.is_struct(whole):
        return _merge_structs(parts, whole, first_leaf, target, seen)
    if pa.types.is_fixed_size_list(whole):
        return _merge_fixed_size_lists(parts, whole, first_leaf, target, seen)
    if is_view(whole):
        return _merge_lists(
            [Part(leaves, without_view(array)) for leaves, array in parts], whole, first_leaf, target, seen
        )
    if pa.types.is_nested(whole):
        return _merge_lists(parts, whole, first_leaf, target, seen)
    return array


def _merge_structs(
    parts: Sequence[Part], whole: pa.DataType, first_leaf: int, target: pa.DataType, seen: pa.BooleanArray | None
) -> pa.Array:
    inner = _check_nulls(parts, seen)
    children: list[pa.Array] = []
    taken = [0] * len(parts)  # children of each part that were used
    for at in range(whole.num_fields):
        kind = whole.field(at).type
        stop = first_leaf + len(leaf_types(kind))
        inside: list[Part] = []
        for number, (leaves, array) in enumerate(parts):
            some = tuple([leaf for leaf in leaves if first_leaf <= leaf < stop])
            if some:
                inside.append(Part(some, array.field(taken[number])))
                taken[number] += 1
        if inside:
            children.append(merge(inside, kind, first_leaf, target.field(len(children)).type, inner))
        first_leaf = stop
    return _rebuilt(target, parts[0].array, [], children)


def _merge_lists(
    parts: Sequence[Part], whole: pa.DataType, first_leaf: int, target: pa.DataType, seen: pa.BooleanArray | None
) -> pa.Array:
    """Lists and maps; a map without its keys or values is a list."""
    _check_nulls(parts, seen)
    offsets = _offsets(parts[0].array)
    inside = [Part(leaves, elements(array)) for leaves, array in parts]
    for _, array in parts[1:]:
        if not _offsets(array).equals(offsets):
            raise CorruptFileError("leaves of one list have lists of other lengths")
    kind, wanted = (_element_type(each) for each in (whole, target))
    buffers = [offsets.buffers()[1]]
    if is_view(target):  # the same offsets, and sizes beside them
        buffers.append(pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1)).buffers()[1])
    return _rebuilt(target, parts[0].array, buffers, [merge(inside, kind, first_leaf, wanted)])


def _merge_fixed_size_lists(
    parts: Sequence[Part], whole: pa.DataType, first_leaf: int, target: pa.DataType, seen: pa.BooleanArray | None
) -> pa.Array:
    inner = _check_nulls(parts, seen)
    if inner is not None:  # a null takes as much room as a list
        inner = inner.take(pa.array([at for at in range(len(inner)) for _ in range(whole.list_size)], pa.int64()))
    inside = [Part(leaves, elements(array)) for leaves, array in parts]
    child = merge(inside, whole.value_type, first_leaf, target.value_type, inner)
    return _rebuilt(target, parts[0].array, [], [child])


def _rebuilt(
    target: pa.DataType, like: pa.Array, buffers: Sequence[pa.Buffer], children: Sequence[pa.Array]
) -> pa.Array:
    """An array of ``target`` with the nulls of ``like``."""
    validity = pc.is_valid(like).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(target, len(like), [validity, *buffers], children=list(children))


def _check_nulls(parts: Sequence[Part], seen: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Where neither the group that all parts share nor anything above it is null; None for everywhere."""
    found: list[pa.BooleanArray | None] = []
    for _, array in parts:
        if len(array) != len(parts[0].array):
            raise CorruptFileError(f"leaves of one group have {len(parts[0].array)} and {len(array)} values")
        valid = pc.is_valid(array) if array.null_count else None
        if valid is None or seen is None:
            valid = seen if valid is None else valid
        else:
            valid = pc.and_(valid, seen)
        found.append(None if valid is None or valid.true_count == len(valid) else valid)
    first = found[0]
    if any((valid is None) != (first is None) or not (valid is None or valid.equals(first)) for valid in found):
        raise CorruptFileError("leaves of one group disagree about where it is null")
    return first


def _element_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type


def _offsets(array: pa.Array) -> pa.Array:
    """Where each list of ``array`` begins among :func:`elements`, and where the last one ends."""
    offsets = array.offsets
    return pc.subtract(offsets, offsets[0])


def elements(array: pa.Array) -> pa.Array:
    """The elements of an array of lists or maps of any kind, those of its slots only."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(first, last - first)


def is_view(kind: pa.DataType) -> bool:
    """Whether lists of ``kind`` say where they begin and how long they are, in any order."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def without_view(array: pa.Array) -> pa.Array:
    """An array of list views as one of lists."""
    kind = array.type
    plain = pa.list_(kind.value_field) if pa.types.is_list_view(kind) else pa.large_list(kind.value_field)
    none = pa.scalar(0, array.sizes.type)
    sizes = pc.if_else(pc.is_valid(array), array.sizes, none) if array.null_count else array.sizes
    ends = pc.cumulative_sum(sizes)
    offsets = pa.concat_arrays([pa.array([0], sizes.type), ends])
    first = array.offsets[0].as_py() if len(array) else 0
    total = ends[-1].as_py() if len(array) else 0
    starts = pc.add(offsets.slice(0, len(array)), pa.scalar(first, sizes.type))
    in_order = pc.or_(pc.equal(sizes, none), pc.equal(array.offsets, starts))
    if pc.all(in_order).as_py():
        values = array.values.slice(first, total)
    else:
        spans = zip(array.offsets.to_pylist(), sizes.to_pylist(), strict=True)
        values = join([array.values.slice(start, size) for start, size in spans], kind.value_type)
    return _rebuilt(plain, array, [offsets.buffers()[1]], [values])


# -- levels -----------------------------------------------------------------------------------------


def num_levels(array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int) -> pa.Array:
    """How many values, nulls and empty lists included, a leaf has in each row (int64).

    Args:
        array: the field cut to ``leaves``, of which ``leaf`` is one.
        whole, first_leaf: as for :func:`merge`.
    """
    counts = _num_levels(array, whole, first_leaf, leaves, leaf)
    return pa.repeat(pa.scalar(1, pa.int64()), len(array)) if counts is None else counts


def _num_levels(
    array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int
) -> pa.Array | None:
    """The same; None for one in every row."""
    whole = storage_type(whole)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(whole):
        present = 0
        for at in range(whole.num_fields):
            kind = whole.field(at).type
            stop = first_leaf + len(leaf_types(kind))
            if leaf < stop:
                return _num_levels(array.field(present), kind, first_leaf, leaves, leaf)
            present += any(first_leaf <= each < stop for each in leaves)
            first_leaf = stop
    if not pa.types.is_nested(whole):
        return None
    if is_view(whole):
        array = without_view(array)
    inside = _num_levels(elements(array), _element_type(whole), first_leaf, leaves, leaf)
    if pa.types.is_fixed_size_list(whole):
        size = whole.list_size
        ends = pa.array(range(0, (len(array) + 1) * size, size) if size else [0] * (len(array) + 1), pa.int64())
    else:
        ends = _offsets(array).cast(pa.int64())
    if inside is not None:
        sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(inside)])
        ends = sums.take(ends)
    counts = pc.max_element_wise(pc.subtract(ends.slice(1), ends.slice(0, len(array))), 1)
    return pc.if_else(pc.is_valid(array), counts, 1) if array.null_count else counts
