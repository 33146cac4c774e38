"""Remove the bounds of float columns that contain NaN.

Parquet's min and max do not count NaN. For some readers, such as Spark, NaN is greater than all numbers. From the max
of a page or row group they conclude that it has no greater values, and skip its NaN. Spark's own files therefore have
no bounds for such columns: neither statistics nor a column index.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.parquet.thrift import FALSE, STOP, TRUE, CompactReader, CompactWriter

# Ids of fields in Parquet's Thrift structs.
_ROW_GROUPS: Final = 4  # FileMetaData
_COLUMNS: Final = 1  # RowGroup
_META_DATA: Final = 3  # ColumnChunk
_COLUMN_INDEX: Final = (6, 7)  # ColumnChunk: offset and length
_STATISTICS: Final = 12  # ColumnMetaData
_BOUNDS: Final = frozenset({1, 2, 5, 6, 7, 8})  # Statistics: least and greatest values, and whether they are exact


def leaves_with_nan(table: pa.Table) -> frozenset[int]:
    """Return the ordinals of the leaves, in Parquet's order, that hold NaN in at least one row."""
    found: set[int] = set()
    for chunk in table.combine_chunks().to_batches():
        ordinal = 0
        for column in chunk.columns:
            for leaf in leaf_arrays(column):
                if pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(_wide(leaf))).as_py():
                    found.add(ordinal)
                ordinal += 1
    return frozenset(found)


def _wide(leaf: pa.Array) -> pa.Array:
    return leaf.cast(pa.float32()) if pa.types.is_float16(leaf.type) else leaf


def leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of each leaf of ``array``, in Parquet's order; of a dictionary its distinct values."""
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from leaf_arrays(array.storage)
    elif pa.types.is_dictionary(dtype):
        yield array.dictionary
    elif pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from leaf_arrays(child)
    elif pa.types.is_map(dtype):
        yield from leaf_arrays(array.keys)
        yield from leaf_arrays(array.items)
    elif pa.types.is_nested(dtype):
        yield from leaf_arrays(array.flatten())
    else:
        yield array


def without_bounds(footer: bytes, chunks: Set[tuple[int, int]]) -> bytes:
    """Return ``footer``, a serialized ``FileMetaData``, without the bounds and column indexes of ``chunks``: pairs
    of a row group's and a leaf's ordinal. Everything else stays the same, byte by byte where Thrift has only one
    encoding."""

    def chunk(reader: CompactReader, writer: CompactWriter) -> None:
        for field, type_ in _fields(reader):
            if field in _COLUMN_INDEX:
                _skip(reader, type_)
            elif field == _META_DATA:
                writer.begin_struct(field)
                _copy(reader, writer, _STATISTICS)
                writer.end_struct()
            else:
                _copy_field(reader, writer, field, type_)

    changed = {group for group, _ in chunks}
    reader, writer = CompactReader(footer), CompactWriter()
    for field, type_ in _fields(reader):
        if field != _ROW_GROUPS:
            _copy_field(reader, writer, field, type_)
            continue
        element, groups = reader.list_header()
        writer.field_list(field, element, groups)
        for group in range(groups):
            writer.begin_element()
            for inner, inner_type in _fields(reader):
                if inner != _COLUMNS or group not in changed:
                    _copy_field(reader, writer, inner, inner_type)
                    continue
                element, leaves = reader.list_header()
                writer.field_list(inner, element, leaves)
                for leaf in range(leaves):
                    if (group, leaf) in chunks:
                        writer.begin_element()
                        chunk(reader, writer)
                        writer.end_struct()
                    else:
                        start = reader.pos
                        reader.skip_struct()
                        writer.raw(footer[start : reader.pos])
            writer.end_struct()
    return writer.getvalue()


def _fields(reader: CompactReader) -> Iterator[tuple[int, int]]:
    """Yield the id and Thrift type of each field of a struct; the caller must read or skip the field's value."""
    last = 0
    while True:
        type_, last = reader.field(last)
        if type_ == STOP:
            return
        yield last, type_


def _skip(reader: CompactReader, type_: int) -> None:
    """Move past a field's value; a bool's is in the field's header."""
    if type_ not in (TRUE, FALSE):
        reader.skip(type_)


def _copy_field(reader: CompactReader, writer: CompactWriter, field: int, type_: int) -> None:
    start = reader.pos
    _skip(reader, type_)
    writer.field_raw(field, type_, reader.data[start : reader.pos])


def _copy(reader: CompactReader, writer: CompactWriter, statistics: int) -> None:
    """Copy the fields of a struct; the struct in its field ``statistics`` is copied without bounds."""
    for field, type_ in _fields(reader):
        if field != statistics:
            _copy_field(reader, writer, field, type_)
            continue
        writer.begin_struct(field)
        for inner, inner_type in _fields(reader):
            if inner in _BOUNDS:
                _skip(reader, inner_type)
            else:
                _copy_field(reader, writer, inner, inner_type)
        writer.end_struct()
