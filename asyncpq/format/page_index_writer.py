"""Page indexes as Thrift, for those that are made of files without (parquet.thrift, OffsetIndex and ColumnIndex)."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from asyncpq.format.column_order import Order, decode_values
from asyncpq.format.page_index import BoundaryOrder, ColumnIndex, OffsetIndex
from asyncpq.format.schema import Leaf
from asyncpq.format.thrift_types import BINARY, FALSE, I64, STRUCT, TRUE
from asyncpq.format.thrift_writer import CompactWriter

_BOOLEANS: Final = (bytes([FALSE]), bytes([TRUE]))


def encode_offset_index(index: OffsetIndex) -> bytes:
    """The inverse of :func:`asyncpq.format.page_index.decode_offset_index`."""
    writer = CompactWriter()
    writer.field_list(1, STRUCT, index.num_pages)
    for offset, size, first_row in zip(index.offsets, index.sizes, index.first_rows, strict=True):
        writer.begin_element()
        writer.field_i64(1, offset)
        writer.field_i32(2, size)
        writer.field_i64(3, first_row)
        writer.end_struct()
    return writer.getvalue()


def encode_column_index(index: ColumnIndex) -> bytes:
    """The inverse of :func:`asyncpq.format.page_index.decode_column_index`."""
    writer = CompactWriter()
    writer.field_list(1, TRUE, index.num_pages)
    for is_null in index.null_pages:
        writer.raw(_BOOLEANS[is_null])
    for field_id, values in ((2, index.min_values), (3, index.max_values)):
        writer.field_list(field_id, BINARY, len(values))
        for value in values:
            writer.element_binary(value)
    writer.field_i32(4, index.boundary_order)
    for field_id, counts in ((5, index.null_counts), (8, index.nan_counts)):
        if counts is not None:
            writer.field_list(field_id, I64, len(counts))
            for count in counts:
                writer.element_i32(count)
    return writer.getvalue()


def boundary_order(index: ColumnIndex, leaf: Leaf, order: Order) -> BoundaryOrder:
    """How the bounds of the pages follow one another; a NaN among them follows nothing."""
    if order is Order.UNDEFINED:
        return BoundaryOrder.UNORDERED
    present = [page for page, is_null in enumerate(index.null_pages) if not is_null]
    lows, highs = (
        decode_values([values[page] for page in present], leaf, order)
        for values in (index.min_values, index.max_values)
    )
    if all(a <= b for values in (lows, highs) for a, b in pairwise([*values, *values[-1:]])):
        return BoundaryOrder.ASCENDING
    if all(a >= b for values in (lows, highs) for a, b in pairwise([*values, *values[-1:]])):
        return BoundaryOrder.DESCENDING
    return BoundaryOrder.UNORDERED
