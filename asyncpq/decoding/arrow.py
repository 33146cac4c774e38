"""The one door to pyarrow's Parquet reader.

pyarrow decodes pages and says which Arrow types a footer means. It is handed only small files in
memory that this project wrote (see :mod:`asyncpq.decoding.splice`), never a path, a url or a footer
from outside, but for encrypted files, whose footers only pyarrow can read.

Choosing elements of Arrow arrays, for every type that a column can have.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncpq.errors import (
    AsyncpqError,
    CorruptFileError,
    ResourceLimitError,
    UnsupportedFeatureError,
)
from asyncpq.parquet.column_chunk import Codec
from asyncpq.parquet.thrift import CompactReader
from asyncpq.pruning.row_ranges import RowRanges


def typed_error(error: Exception, what: str) -> AsyncpqError:
    """What ``error``, raised by pyarrow over a file's bytes, means; ``what`` says what was tried."""
    if isinstance(error, pa.ArrowNotImplementedError) or "Not yet implemented" in str(error):
        return UnsupportedFeatureError(f"{what}; pyarrow does not implement it: {error}")
    if isinstance(error, (MemoryError, pa.ArrowCapacityError)) or "offset overflow" in str(error):
        return ResourceLimitError(f"{what}, it is too large: {error}")
    return CorruptFileError(f"{what}: {error}")


def parquet_bytes(table: pa.Table) -> bytes:
    """``table`` as a Parquet file in memory, for rows that come from elsewhere and are few."""
    content = io.BytesIO()
    pq.write_table(table, content, compression="none")
    return content.getvalue()


def plain_pages(array: pa.Array, *, nullable: bool) -> bytes:
    """Data pages of an array that has one leaf, PLAIN and not compressed, with their headers."""
    content = io.BytesIO()
    table = pa.table([array], schema=pa.schema([pa.field("x", array.type, nullable)]))
    pq.write_table(table, content, row_group_size=max(1, len(array)), compression="none", use_dictionary=False)
    chunk = pq.read_metadata(content).row_group(0).column(0)
    start = chunk.data_page_offset
    return content.getvalue()[start : start + chunk.total_compressed_size]


def read_column(file: bytes, *, verify_crc: bool, int96_unit: str = "ns") -> pa.ChunkedArray:
    """Decode a Parquet file in memory that has one leaf, as :func:`read_leaves` does."""
    return read_leaves(file, [(0,)], verify_crc=verify_crc, int96_unit=int96_unit)[0]


def read_leaves(
    file: bytes,
    groups: Sequence[Sequence[int]],
    *,
    verify_crc: bool,
    as_dictionary: Sequence[str] = (),
    int96_unit: str = "ns",
) -> list[pa.ChunkedArray]:
    """Decode leaves of a Parquet file in memory whose schema is one top-level field.

    Args:
        file: the whole file.
        groups: ordinals of the leaves that make one array, for each array.
        verify_crc: check the pages' CRCs where they have them.
        as_dictionary: dotted paths of byte array leaves that are to come as dictionary arrays.
        int96_unit: of timestamps stored as INT96.

    Returns:
        For each group the field cut to its leaves.

    Raises:
        CorruptFileError: pyarrow cannot decode the pages.
        UnsupportedFeatureError: pyarrow does not implement an encoding, codec or type in them.
    """
    try:
        reader = pq.ParquetFile(
            pa.BufferReader(file),
            pre_buffer=False,
            page_checksum_verification=verify_crc,
            read_dictionary=as_dictionary or None,
            coerce_int96_timestamp_unit=int96_unit,
        ).reader
        tables = [reader.read_all(column_indices=list(leaves), use_threads=False) for leaves in groups]
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "pages cannot be decoded") from error
    if any(table.num_columns != 1 for table in tables):  # pyarrow skips schema fields of an unexpected Thrift type
        raise CorruptFileError("the column's schema elements are malformed")
    return [table.column(0) for table in tables]


def read_schema(footer_file: bytes, int96_unit: str = "ns") -> pa.Schema:
    """The Arrow schema that pyarrow gives a file in memory that has no rows."""
    try:
        return pq.ParquetFile(pa.BufferReader(footer_file), coerce_int96_timestamp_unit=int96_unit).schema_arrow
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "the schema cannot be understood") from error


def read_schema_of(footer_file: bytes, leaves: Sequence[int], int96_unit: str = "ns") -> pa.Schema:
    """The same, cut to some leaf columns."""
    try:
        reader = pq.ParquetFile(pa.BufferReader(footer_file), coerce_int96_timestamp_unit=int96_unit).reader
        return reader.read_all(column_indices=list(leaves), use_threads=False).schema
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "the schema cannot be understood") from error


def compress(codec: str, data: bytes | pa.Buffer) -> bytes:
    """``data`` compressed by one of Arrow's codecs, quickly."""
    level = 1 if codec in ("brotli", "gzip", "zstd") else None
    return bytes(pa.Codec(codec, compression_level=level).compress(data, asbytes=True))


def decompress(codec: str, data: memoryview | bytes, size: int, *, column: str) -> bytes:
    """``data`` decompressed by one of Arrow's codecs to ``size`` bytes.

    Where less comes out, the rest is not filled, and nothing says so.

    Raises:
        CorruptFileError: it cannot be decompressed.
    """
    try:
        return cast("bytes", pa.Codec(codec).decompress(data, decompressed_size=size, asbytes=True))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptFileError(f"a page cannot be decompressed: {error}", column=column) from error


def claimed_size(data: memoryview, codec: int) -> int | None:
    """The size that the compressed bytes claim, which their decoder enforces; None if unknown.

    pyarrow's one-shot decompression does not report output that is shorter than asked for.
    """
    if codec == Codec.ZSTD:
        return _zstd_content_size(data)
    if codec == Codec.SNAPPY and len(data):
        return CompactReader(bytes(data[:10])).varint()
    return None


def _zstd_content_size(data: memoryview) -> int | None:
    """Frame_Content_Size of the first frame (RFC 8878, 3.1.1.1)."""
    if len(data) < 18 or data[:4] != _ZSTD_MAGIC:
        return None
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    length = (single_segment, 2, 4, 8)[descriptor >> 6]
    if length == 0:
        return None
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(data[start : start + length], "little")
    return size + 256 if length == 2 else size


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
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


_SMALL_BYTES = 4096  # whole buffers are counted up to here: which part of them is used takes longer to tell


def held_bytes(array: pa.Array) -> int:
    """Bytes that ``array`` holds for itself: indices, but not a dictionary that others share."""
    if isinstance(array, pa.DictionaryArray):
        array = array.indices
    buffers: int = array.get_total_buffer_size()
    return buffers if buffers <= _SMALL_BYTES else int(array.nbytes)


def stored_as(kind: pa.DataType) -> pa.DataType:
    """What an extension type is stored as; other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def value_bits(kind: pa.DataType) -> int:
    """Bits that one slot of an array of ``kind`` takes, null or not; not what offsets or views point to."""
    kind = stored_as(kind)
    if pa.types.is_struct(kind):
        return 1 + sum(value_bits(child.type) for child in kind)
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * value_bits(kind.value_type)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return 128
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind):
        return 64
    if pa.types.is_string(kind) or pa.types.is_binary(kind):  # which ask for their offsets at a high price
        return 32
    try:
        return int(kind.bit_width)
    except ValueError:
        return 32


def has_lengths(kind: pa.DataType) -> bool:
    """Whether the values of ``kind`` differ in size: strings and bytes."""
    kind = stored_as(kind)
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
    )


def leaf_types(kind: pa.DataType) -> list[tuple[pa.DataType, int]]:
    """Types of the leaves of ``kind``, in schema order, and how many slots a null above may take there."""
    kind = stored_as(kind)
    if pa.types.is_fixed_size_list(kind):
        return [(leaf, slots * max(1, kind.list_size)) for leaf, slots in leaf_types(kind.value_type)]
    if not pa.types.is_nested(kind):
        return [(kind, 1)]
    return [leaf for at in range(kind.num_fields) for leaf in leaf_types(kind.field(at).type)]


_LISTS = {
    pa.lib.Type_LIST: pa.list_,
    pa.lib.Type_LARGE_LIST: pa.large_list,
    pa.lib.Type_LIST_VIEW: pa.list_view,
    pa.lib.Type_LARGE_LIST_VIEW: pa.large_list_view,
}


def is_list(kind: pa.DataType) -> bool:
    """Whether it is a list of whatever layout."""
    return kind.id in _LISTS or pa.types.is_fixed_size_list(kind)


def children_of(kind: pa.DataType) -> tuple[pa.Field, ...]:
    """The fields of a struct, the element of a list, key and value of a map; none for other types."""
    if isinstance(kind, pa.StructType):
        return tuple(kind)
    if isinstance(kind, pa.MapType):
        return (kind.key_field, kind.item_field)
    return (kind.value_field,) if is_list(kind) else ()


def with_children(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """``kind`` with other children (see :func:`children_of`)."""
    if isinstance(kind, pa.StructType):
        return pa.struct(list(fields))
    if isinstance(kind, pa.MapType):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if isinstance(kind, pa.FixedSizeListType):
        return pa.list_(fields[0], kind.list_size)
    return _LISTS[kind.id](fields[0])


_ALL_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})


def has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, at whatever depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_text(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return has_text(kind.value_type)
    return kind in _ALL_TEXTS or any(has_text(child.type) for child in children_of(kind))


def first_invalid(values: pa.Array) -> int | None:
    """The position of the first value with text that is no UTF-8; None if there is none.

    Text outside of the array's slice, under nulls, and in entries of a dictionary that no value uses does not count.
    """
    if _is_whole(values) or _is_valid(values):
        return None
    low, high = 0, len(values)  # the first one is in between
    while high - low > 1:
        middle = (low + high) // 2
        if _is_valid(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _is_whole(values: pa.Array) -> bool:
    """Whether all is valid that the array holds, asked for or not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_valid(values: pa.Array) -> bool:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _is_valid(values.storage)
    if isinstance(kind, pa.DictionaryType):  # each entry once: decoded, they may be as many times larger
        return _is_valid(take(values.dictionary, pc.unique(values.indices).drop_null()))
    if isinstance(kind, pa.StructType):
        return all(map(_is_valid, values.flatten()))
    if isinstance(kind, pa.MapType):
        copy = pa.concat_arrays([values])
        return _is_valid(copy.keys) and _is_valid(copy.items)
    if children_of(kind):
        return _is_valid(values.flatten())
    return kind not in _ALL_TEXTS or _is_whole(pa.concat_arrays([values]))


def null_scalar(kind: pa.DataType) -> pa.Scalar:
    """The null of any type; ``pa.scalar(None, kind)`` has none where an extension type is inside a nested one."""
    return pa.nulls(1, kind)[0]


def constant_array(value: pa.Scalar | None, num_rows: int) -> pa.Array:
    """``value`` in every row."""
    if value is None or not value.is_valid:
        return pa.nulls(num_rows, pa.null() if value is None else value.type)
    return pa.repeat(value, num_rows)


def constant_bytes(value: pa.Scalar | None) -> int:
    """Bytes that a row of :func:`constant_array` takes, roughly."""
    return 1 if value is None else max(1, int(constant_array(value, 1).nbytes))
