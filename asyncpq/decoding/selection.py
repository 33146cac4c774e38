"""Choosing elements of Arrow arrays, for every type that a column can have."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.pruning.row_ranges import RowRanges

FEW_ROWS = 8  # are picked from their pages one by one, and copied
_TAKE_RANGES = 8  # with more ranges than this, one take is cheaper than slices


def take(values: pa.Array, indices: pa.Array) -> pa.Array:
    """``values.take(indices)``; null where an index is null. Also for view types, which have no kernel of
    their own in pyarrow."""
    kind = values.type
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string()).take(indices).cast(kind)
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary()).take(indices).cast(kind)
    try:
        return values.take(indices)
    except pa.ArrowNotImplementedError:  # a view type inside a nested one
        none = pa.nulls(1, kind)
        return join([none if at is None else values.slice(at, 1) for at in indices.to_pylist()], kind)


def take_table(table: pa.Table, indices: pa.Array) -> pa.Table:
    """Rows of a table that has columns."""
    columns = [take(join(column.chunks, column.type), indices) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def keep(values: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    """The elements where ``mask`` is true."""
    try:
        return values.filter(mask)
    except pa.ArrowNotImplementedError:
        return take(values, pc.indices_nonzero(mask))


def take_rows(values: pa.Array, rows: RowRanges, first_row: int) -> pa.Array:
    """The elements of ``values`` (whose first is row ``first_row``) at ``rows``."""
    if rows.num_ranges == 1:
        start, stop = rows.start, rows.stop
        if start == first_row and stop - start == len(values):
            return values
        return values.slice(start - first_row, stop - start)
    if rows.num_ranges <= _TAKE_RANGES:
        return join([values.slice(start - first_row, stop - start) for start, stop in rows], values.type)
    if rows.num_rows * 4 > len(values):
        return keep(values, _mask(rows, first_row, len(values)))
    return take(values, pa.array([row - first_row for row in rows.rows()], pa.int64()))


def _mask(rows: RowRanges, first_row: int, length: int) -> pa.BooleanArray:
    """Which of ``length`` rows from ``first_row`` on are in ``rows``."""
    chosen = bytearray(length)
    for start, stop in rows:
        chosen[start - first_row : stop - first_row] = b"\1" * (stop - start)
    return pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(chosen)]).cast(pa.bool_())


def few_copied(values: pa.Array) -> pa.Array:
    """``values``; a few of them copied, as their slice would hold on to all of its page."""
    return pa.concat_arrays([values]) if len(values) <= FEW_ROWS else values


def counted(num_rows: int) -> pa.Table:
    """Rows without columns: a table that has nothing but their number."""
    rows = pa.StructArray.from_buffers(pa.struct([]), num_rows, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])


def join(pieces: Sequence[pa.Array], arrow_type: pa.DataType) -> pa.Array:
    """One array of all pieces, of ``arrow_type``."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return pa.nulls(0, arrow_type)
    return pa.concat_arrays(pieces)


def validity(array: pa.Array) -> pa.Buffer | None:
    """Its bitmap, without an offset; None where nothing is null."""
    return array.is_valid().buffers()[1] if array.null_count else None


def flattened(array: pa.Array, offset_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """The elements of lists, none of null lists, and where those of each list begin, and the last one's end."""
    lengths = pc.list_value_length(array).fill_null(0).cast(offset_type)
    ends = pc.cumulative_sum_checked(lengths)
    return array.flatten(), pa.concat_arrays([pa.array([0], offset_type), ends])
