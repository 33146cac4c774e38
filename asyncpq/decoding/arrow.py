"""The interface to pyarrow's Parquet reader, and operations on Arrow arrays that pyarrow lacks for some types.

pyarrow decodes pages and maps footers to Arrow types. It gets only small files in memory that this project wrote (see
:mod:`asyncpq.decoding.splice`), never a path, a url or a footer from outside. ``encrypted`` is the exception, since
only pyarrow can decrypt.
"""

from __future__ import annotations

import io
import sys
from array import array as packed
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, cast

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.parquet.column_chunk import Codec
from asyncpq.parquet.logical_types import Repetition
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.pruning.row_ranges import RowRanges

try:
    from pyarrow._parquet import ParquetReader
except ImportError:  # pragma: no cover  # its public place, which loads pyarrow.fs
    from pyarrow.parquet.core import ParquetReader

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
FEW_ROWS = 8  # are picked from their pages one by one, and copied
_TAKE_RANGES = 8  # with more ranges than this, one take is cheaper than slices
OF_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}  # kernels that views lack
# How pyarrow refuses what Parquet allows: decimals of more than 76 digits, values of no bytes.
_WITHOUT_ARROW_TYPE = ("Decimal precision out of range", "Invalid FIXED_LEN_BYTE_ARRAY length: 0")
_SMALL_BYTES = 4096  # whole buffers are counted up to here: which part of them is used takes longer to tell
_LISTS = {
    pa.lib.Type_LIST: pa.list_,
    pa.lib.Type_LARGE_LIST: pa.large_list,
    pa.lib.Type_LIST_VIEW: pa.list_view,
    pa.lib.Type_LARGE_LIST_VIEW: pa.large_list_view,
}
TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_CODES = {  # of the array module, by the type's id
    pa.lib.Type_INT8: "b",
    pa.lib.Type_INT16: "h",
    pa.lib.Type_INT32: "i",
    pa.lib.Type_INT64: "q",
    pa.lib.Type_UINT8: "B",
    pa.lib.Type_UINT16: "H",
    pa.lib.Type_UINT32: "I",
    pa.lib.Type_UINT64: "Q",
    pa.lib.Type_FLOAT: "f",
    pa.lib.Type_DOUBLE: "d",
    pa.lib.Type_DATE32: "i",
    pa.lib.Type_DATE64: "q",
    pa.lib.Type_TIME32: "i",
    pa.lib.Type_TIME64: "q",
    pa.lib.Type_TIMESTAMP: "q",
    pa.lib.Type_DURATION: "q",
}

_TAKE = pc.kernel("take")


def typed_error(error: Exception, what: str) -> AsyncpqError:
    """Convert a pyarrow ``error`` about a file's bytes to an asyncpq error, whose message begins with ``what``."""
    if isinstance(error, pa.ArrowNotImplementedError) or "Not yet implemented" in str(error):
        return UnsupportedFeatureError(f"{what}; pyarrow does not implement it: {error}")
    if isinstance(error, (MemoryError, pa.ArrowCapacityError)) or "offset overflow" in str(error):
        return ResourceLimitError(
            f"{what}; it is too large: {error}",
            hint="Read fewer columns or rows at once, or give the process more memory.",
        )
    if "Map keys must be annotated as required" in str(error):
        return UnsupportedFeatureError(
            f"{what}: a map in an encrypted file has optional keys",
            hint="pyarrow, which decrypts files, reads none with such a map: write it with required keys.",
        )
    if any(text in str(error) for text in _WITHOUT_ARROW_TYPE):
        return UnsupportedFeatureError(f"{what}: Arrow has no such type: {error}", hint="Leave the column out.")
    return CorruptFileError(f"{what}: {error}")


def plain_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return non-null ``values`` as an array of booleans, numbers, strings or binary.

    Values of decimal and temporal types are passed as their unscaled integers. The array is made from buffers:
    ``pa.array`` and ``pa.scalar`` import pandas if it is installed, which takes 0.2 s, half the time of the first read
    of a new process.
    """
    buffers: list[Any]
    if (code := _CODES.get(type_.id)) is not None:
        buffers = [packed(code, values)]
    elif pa.types.is_boolean(type_):
        return pc.cast(plain_array(values, pa.int8()), type_)
    elif type_ in TEXTS or type_ in BINARIES:
        pieces = [value.encode() for value in values] if type_ in TEXTS else values
        wide = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
        buffers = [packed("q" if wide else "i", accumulate(map(len, pieces), initial=0)), b"".join(pieces)]
    elif pa.types.is_fixed_size_binary(type_):
        buffers = [b"".join(values)]
    else:  # decimals
        buffers = [b"".join([value.to_bytes(type_.byte_width, sys.byteorder, signed=True) for value in values])]
    return pa.Array.from_buffers(type_, len(values), [None, *map(pa.py_buffer, buffers)])


def plain_scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """Return ``value`` as a scalar of ``type_`` (values as in :func:`plain_array`); the null scalar for None."""
    return null_scalar(type_) if value is None else plain_array([value], type_)[0]


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a small ``table`` as the bytes of a Parquet file."""
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(table, content, compression="none")
    return content.getvalue()


def plain_pages(array: pa.Array, *, nullable: bool) -> bytes:
    """Encode an array, which has one leaf column, as PLAIN, uncompressed Parquet data pages with their headers."""
    import pyarrow.parquet as pq

    content = io.BytesIO()
    table = pa.table([array], schema=pa.schema([pa.field("x", array.type, nullable)]))
    pq.write_table(table, content, row_group_size=max(1, len(array)), compression="none", use_dictionary=False)
    chunk = pq.read_metadata(content).row_group(0).column(0)
    start = chunk.data_page_offset
    return content.getvalue()[start : start + chunk.total_compressed_size]


def read_column(file: bytes | pa.Buffer, *, verify_crc: bool, int96_unit: str = "ns") -> pa.ChunkedArray:
    """Decode a Parquet file in memory that has one leaf column. Raises the errors of :func:`read_leaves`."""
    return read_leaves(file, [(0,)], verify_crc=verify_crc, int96_unit=int96_unit)[0]


def read_leaves(
    file: bytes | pa.Buffer,
    groups: Sequence[Sequence[int]],
    *,
    verify_crc: bool,
    as_dictionary: Sequence[str] = (),
    int96_unit: str = "ns",
) -> list[pa.ChunkedArray]:
    """Decode leaf columns of a Parquet file in memory whose schema is one top-level field.

    Args:
        file: the bytes of the whole file.
        groups: for each output array the ordinals of its leaf columns; the array is the field cut to these.
        verify_crc: check the CRC of each page that has a CRC.
        as_dictionary: dotted paths of byte array columns to decode to dictionary arrays.
        int96_unit: the unit in which timestamps stored as INT96 are decoded.

    Raises CorruptFileError, UnsupportedFeatureError or ResourceLimitError (:func:`typed_error`).
    """
    try:
        reader = _open(
            file,
            pre_buffer=False,
            page_checksum_verification=verify_crc,
            read_dictionary=as_dictionary or None,
            coerce_int96_timestamp_unit=int96_unit,
        )
        tables = [reader.read_all(column_indices=list(leaves), use_threads=False) for leaves in groups]
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "pages cannot be decoded") from error
    if any(table.num_columns != 1 for table in tables):  # pyarrow skips schema fields of an unexpected Thrift type
        raise CorruptFileError("the column's schema elements are malformed, so pyarrow does not decode the column")
    return [table.column(0) for table in tables]


def read_schema(footer_file: bytes, int96_unit: str = "ns", leaves: Sequence[int] | None = None) -> pa.Schema:
    """Return pyarrow's Arrow schema of ``footer_file``, a file in memory without rows, cut to the leaf columns with
    these ordinals (None: all)."""
    try:
        reader = _open(footer_file, coerce_int96_timestamp_unit=int96_unit)
        if leaves is None:
            return reader.schema_arrow
        return reader.read_all(column_indices=list(leaves), use_threads=False).schema
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "pyarrow cannot read the file's schema") from error


def _open(file: bytes | pa.Buffer, **options: Any) -> ParquetReader:
    """Open a Parquet file in memory as ``pyarrow.parquet.ParquetFile`` does. That class would load pyarrow.fs and look
    at every column for each file."""
    reader = ParquetReader()
    reader.open(pa.BufferReader(file), arrow_extensions_enabled=True, **options)
    return reader


def compress(codec: str, data: bytes | pa.Buffer) -> bytes:
    """Compress ``data`` with one of Arrow's codecs, at a fast level."""
    level = 1 if codec in ("brotli", "gzip", "zstd") else None
    return bytes(pa.Codec(codec, compression_level=level).compress(data, asbytes=True))


def decompress(codec: str, data: memoryview | bytes, size: int, *, column: str) -> bytes:
    """Decompress ``data`` to ``size`` bytes with one of Arrow's codecs. Raises CorruptFileError, which names
    ``column``, if that fails.

    If fewer bytes come out, the rest is undefined, and pyarrow does not report it (see :func:`claimed_size`).
    """
    return cast("bytes", _decompressed(codec, data, size, column, asbytes=True))


def decompress_buffer(codec: str, data: memoryview | bytes, size: int, *, column: str) -> pa.Buffer:
    """Do what :func:`decompress` does, into memory of Arrow's pool, which may be written to."""
    return _decompressed(codec, data, size, column, asbytes=False)


def _decompressed(codec: str, data: memoryview | bytes, size: int, column: str, *, asbytes: bool) -> bytes | pa.Buffer:
    try:
        return pa.Codec(codec).decompress(data, decompressed_size=size, asbytes=asbytes)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptFileError(f"a page cannot be decompressed: {error}", column=column) from error


def claimed_size(data: memoryview, codec: int) -> int | None:
    """Return the decompressed size that the compressed bytes themselves state, and the codec enforces; None if they
    state none.

    It is needed since pyarrow's one-shot decompression does not report output that is shorter than the requested size.
    """
    if codec == Codec.ZSTD:
        return _zstd_content_size(data)
    if codec == Codec.SNAPPY and len(data):
        size = shift = 0
        for byte in data[:4]:
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return size
            shift += 7
        return CompactReader(bytes(data[:10])).varint()
    return None


def _zstd_content_size(data: memoryview) -> int | None:
    """Return the Frame_Content_Size of the first zstd frame (RFC 8878, 3.1.1.1); None if the frame has none."""
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


def take(values: pa.Array, indices: pa.Array) -> pa.Array:
    """Return ``values.take(indices)``, null where an index is null; also for view types, which pyarrow cannot take."""
    type_ = values.type
    plain = None if isinstance(type_, pa.BaseExtensionType) else OF_VIEWS.get(type_)
    if plain is not None:
        return pc.cast(pc.take(pc.cast(values, plain), indices), type_)
    try:
        return _TAKE([values, indices])
    except pa.ArrowNotImplementedError:  # a view type inside a nested one
        none = pa.nulls(1, type_)
        return join([none if index is None else values.slice(index, 1) for index in indices.to_pylist()], type_)


def take_table(table: pa.Table, indices: pa.Array) -> pa.Table:
    """Return the rows of a table at ``indices``. The table must have columns."""
    columns = [take(join(column.chunks, column.type), indices) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def keep(values: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    """Return the elements of ``values`` where ``mask`` is true, for all types."""
    try:
        return pc.filter(values, mask)
    except pa.ArrowNotImplementedError:
        return take(values, pc.indices_nonzero(mask))


def take_rows(values: pa.Array, rows: RowRanges, first_row: int) -> pa.Array:
    """Return the elements of ``values`` for the row numbers ``rows``; the first element belongs to row
    ``first_row``."""
    if len(rows.starts) == 1:
        start, stop = rows.starts[0], rows.stops[0]
        if start == first_row and stop - start == len(values):
            return values
        return values.slice(start - first_row, stop - start)
    if len(rows.starts) <= _TAKE_RANGES:
        return join([values.slice(start - first_row, stop - start) for start, stop in rows], values.type)
    if rows.num_rows * 4 > len(values):
        return keep(values, _mask(rows, first_row, len(values)))
    return take(values, plain_array([row - first_row for row in rows.rows()], pa.int64()))


def _mask(rows: RowRanges, first_row: int, length: int) -> pa.BooleanArray:
    """Return a mask of the ``length`` rows from ``first_row`` on: true for each row in ``rows``."""
    chosen = bytearray(length)
    for start, stop in rows:
        chosen[start - first_row : stop - first_row] = b"\1" * (stop - start)
    return pc.cast(pa.Array.from_buffers(pa.uint8(), length, [None, pa.py_buffer(chosen)]), pa.bool_())


def few_copied(values: pa.Array) -> pa.Array:
    """Return ``values``, but a copy if they are few: a slice of few values would keep the memory of a whole
    page alive."""
    return pa.concat_arrays([values]) if len(values) <= FEW_ROWS else values


def counted(num_rows: int) -> pa.Table:
    """Return a table of ``num_rows`` rows without columns."""
    rows = pa.StructArray.from_buffers(pa.struct([]), num_rows, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])


def join(pieces: Sequence[pa.Array], arrow_type: pa.DataType) -> pa.Array:
    """Concatenate arrays to one array. ``arrow_type`` is its type if there are no arrays."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return pa.nulls(0, arrow_type)
    return pa.concat_arrays(pieces)


def validity(array: pa.Array) -> pa.Buffer | None:
    """Return the array's validity bitmap, moved to begin at bit 0; None if the array has no nulls."""
    return array.is_valid().buffers()[1] if array.null_count else None


def positions(length: int) -> pa.Array:
    """Return the numbers from 0 to ``length``, without the latter, as uint64."""
    first = _first_positions()
    if length <= len(first):
        return first.slice(0, length)
    return pc.indices_nonzero(pa.repeat(plain_scalar(True, pa.bool_()), length))


@cache
def _first_positions() -> pa.Array:
    return pc.indices_nonzero(pa.repeat(plain_scalar(True, pa.bool_()), 1 << 16))  # half a megabyte, for any batch


def flattened(array: pa.Array, offset_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return the elements of all non-null lists of a list array, and the offsets of the lists in them (type
    ``offset_type``)."""
    lengths = pc.list_value_length(array)
    lengths = lengths.fill_null(plain_scalar(0, lengths.type)).cast(offset_type)
    ends = pc.cumulative_sum_checked(lengths)
    # pyarrow 26 cannot flatten null lists of extension types
    values = array.flatten() if array.null_count < len(array) else array.values.slice(0, 0)
    return values, pa.concat_arrays([plain_array([0], offset_type), ends])


def held_bytes(array: pa.Array) -> int:
    """Return the bytes of ``array`` in memory, without its dictionary, which other arrays share."""
    if isinstance(array, pa.DictionaryArray):
        array = array.indices
    buffers: int = array.get_total_buffer_size()
    return buffers if buffers <= _SMALL_BYTES else int(array.nbytes)


def stored_as(type_: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type; any other type unchanged."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def value_bits(type_: pa.DataType) -> int:
    """Return the bits of one array element of ``type_``; of variable-size values only the offset, or the view."""
    type_ = stored_as(type_)
    if pa.types.is_struct(type_):
        return 1 + sum(value_bits(child.type) for child in type_)
    if pa.types.is_fixed_size_list(type_):
        return 1 + int(type_.list_size) * value_bits(type_.value_type)
    if pa.types.is_binary_view(type_) or pa.types.is_string_view(type_):
        return 128
    if pa.types.is_large_binary(type_) or pa.types.is_large_string(type_) or pa.types.is_large_list(type_):
        return 64
    if pa.types.is_string(type_) or pa.types.is_binary(type_):  # as below, without the cost of an error
        return 32
    try:
        return int(type_.bit_width)
    except ValueError:
        return 32


def has_lengths(type_: pa.DataType) -> bool:
    """Return whether values of ``type_`` differ in size, as strings and binary do."""
    type_ = stored_as(type_)
    return type_ in TEXTS or type_ in BINARIES


def leaf_types(type_: pa.DataType) -> list[tuple[pa.DataType, int]]:
    """Return (type, slots) of each leaf column of ``type_``, in schema order. ``slots`` is how many values of the leaf
    one value of ``type_`` takes even if it is null: more than 1 in fixed-size lists."""
    type_ = stored_as(type_)
    if pa.types.is_fixed_size_list(type_):
        return [(leaf, slots * max(1, type_.list_size)) for leaf, slots in leaf_types(type_.value_type)]
    if not pa.types.is_nested(type_):
        return [(type_, 1)]
    return [leaf for index in range(type_.num_fields) for leaf in leaf_types(type_.field(index).type)]


def is_list(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is a list of any layout."""
    return type_.id in _LISTS or pa.types.is_fixed_size_list(type_)


def children_of(type_: pa.DataType) -> tuple[pa.Field, ...]:
    """Return the fields of a struct, the element field of a list, the key and value fields of a map; else ()."""
    if isinstance(type_, pa.StructType):
        return tuple(type_)
    if isinstance(type_, pa.MapType):
        return (type_.key_field, type_.item_field)
    return (type_.value_field,) if is_list(type_) else ()


def child_leaves(type_: pa.DataType, first_leaf: int) -> list[range]:
    """Return, for each child of ``type_``, the ordinals of its leaf columns; those of ``type_`` begin at
    ``first_leaf``."""
    spans: list[range] = []
    for child in children_of(type_):
        spans.append(range(first_leaf, first_leaf + len(leaf_types(child.type))))
        first_leaf = spans[-1].stop
    return spans


def with_children(type_: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return ``type_`` with its children (see :func:`children_of`) replaced by ``fields``."""
    if isinstance(type_, pa.StructType):
        return pa.struct(list(fields))
    if isinstance(type_, pa.MapType):
        return pa.map_(*fields, keys_sorted=type_.keys_sorted)
    if isinstance(type_, pa.FixedSizeListType):
        return pa.list_(fields[0], type_.list_size)
    return _LISTS[type_.id](fields[0])


def maps_as_lists(field: pa.Field) -> pa.Field:
    """Return ``field`` with lists of structs in place of maps, at any depth. An extension type of maps becomes its
    storage type."""
    type_ = field.type
    if isinstance(type_, pa.BaseExtensionType):
        storage = maps_as_lists(field.with_type(type_.storage_type))
        return field if storage.type == type_.storage_type else storage
    children = [maps_as_lists(child) for child in children_of(type_)]
    if not children:
        return field
    if isinstance(type_, pa.MapType):
        return field.with_type(pa.list_(pa.field("key_value", pa.struct(children), nullable=False)))
    return field.with_type(with_children(type_, children))


def has_text(type_: pa.DataType) -> bool:
    """Return whether a column of this type contains text at any depth."""
    if isinstance(type_, pa.BaseExtensionType):
        return has_text(type_.storage_type)
    if isinstance(type_, pa.DictionaryType):
        return has_text(type_.value_type)
    return type_ in TEXTS or any(has_text(child.type) for child in children_of(type_))


def first_invalid(values: pa.Array) -> int | None:
    """Return the position of the first value with text that is not UTF-8, at any depth; None if all text is valid.

    Text outside the array's slice, under nulls, and in unused dictionary entries does not count.
    """
    return None if _is_whole(values) else _first_where_not(_is_valid, values)


def first_with_forbidden_null(values: pa.Array) -> int | None:
    """Return the position of the first value with a null in a struct's field that is not nullable, at any depth; None
    if there is none. ``values`` must have no maps: Arrow ends the process when a map with a null key is made.
    """
    return _first_where_not(_has_required, values)


def _first_where_not(test: Callable[[pa.Array], bool], values: pa.Array) -> int | None:
    """Return the position of the first value for which ``test`` of an array fails; None if it is true of all."""
    if test(values):
        return None
    low, high = 0, len(values)  # the first one is in between
    while high - low > 1:
        middle = (low + high) // 2
        if test(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _has_required(values: pa.Array) -> bool:
    """Return whether no visible value is null where the type of ``values`` allows no null."""
    type_ = values.type
    if isinstance(type_, pa.BaseExtensionType):
        return _has_required(values.storage)
    if isinstance(type_, pa.StructType):
        if values.null_count:
            values = keep(values, values.is_valid())
        fields = [(child, values.field(index)) for index, child in enumerate(type_)]
        return all((child.nullable or not array.null_count) and _has_required(array) for child, array in fields)
    return not children_of(type_) or _has_required(values.flatten())


def _is_whole(values: pa.Array) -> bool:
    """Return whether all text in the array's buffers is valid UTF-8, including bytes that no value uses."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_valid(values: pa.Array) -> bool:
    type_ = values.type
    if isinstance(type_, pa.BaseExtensionType):
        return _is_valid(values.storage)
    if isinstance(type_, pa.DictionaryType):  # each entry once: decoded, they may be as many times larger
        return _is_valid(take(values.dictionary, pc.unique(values.indices).drop_null()))
    if isinstance(type_, pa.StructType):
        return all(map(_is_valid, values.flatten()))
    if isinstance(type_, pa.MapType):
        copy = pa.concat_arrays([values])
        return _is_valid(copy.keys) and _is_valid(copy.items)
    if children_of(type_):
        return _is_valid(values.flatten())
    return type_ not in TEXTS or _is_whole(pa.concat_arrays([values]))


def null_scalar(type_: pa.DataType) -> pa.Scalar:
    """Return the null scalar of any type; ``pa.scalar(None, type_)`` fails for extension types inside nested types."""
    return pa.nulls(1, type_)[0]


def constant_array(value: pa.Scalar | None, num_rows: int) -> pa.Array:
    """Return an array of ``num_rows`` rows that all have ``value``."""
    if value is None or not value.is_valid:
        return pa.nulls(num_rows, pa.null() if value is None else value.type)
    return pa.repeat(value, num_rows)


def constant_bytes(value: pa.Scalar | None) -> int:
    """Return the approximate bytes that each row of the array of :func:`constant_array` takes."""
    return 1 if value is None else max(1, int(constant_array(value, 1).nbytes))


def path_type(field_type: pa.DataType, first_leaf: int, leaf: Leaf) -> pa.DataType | None:
    """Return the type of a top-level field cut to one leaf column: only the structs above the leaf, and the leaf.

    None if a list or map is above the leaf. Also None for a required leaf in an optional struct: pyarrow fills in
    values where the struct is null, which would be random indices into a dictionary.
    """
    required = leaf.element.repetition is not Repetition.OPTIONAL
    if leaf.max_repetition_level or (required and leaf.max_definition_level):
        return None
    return _cut(field_type, first_leaf, leaf.index, list(leaf.path[1:]))


def _cut(type_: pa.DataType, first_leaf: int, leaf: int, names: list[str]) -> pa.DataType | None:
    if not names:
        whole = pa.types.is_nested(type_) or isinstance(type_, (pa.BaseExtensionType, pa.DictionaryType))
        return None if whole else type_
    if not isinstance(type_, pa.StructType):
        return None
    for child, leaves in zip(type_, child_leaves(type_, first_leaf), strict=True):
        if leaf in leaves:
            inner = _cut(child.type, leaves.start, leaf, names[1:]) if child.name == names[0] else None
            return None if inner is None else pa.struct([pa.field(child.name, inner, child.nullable)])
    return None


def leaf_type(type_: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of the leaf column of ``type_``, which has ``depth`` structs with one child each around it."""
    for _ in range(depth):
        type_ = type_.field(0).type
    return type_


def leaf_values(array: pa.Array, depth: int) -> pa.Array:
    """Return the values of the leaf column of ``array``, which has ``depth`` structs with one child each around it;
    null also where a struct is null."""
    for _ in range(depth):
        array = array.field(0)
    return array


def in_structs(values: pa.Array, type_: pa.DataType, depth: int, like: pa.Array | None = None) -> pa.Array:
    """Wrap ``values`` of a leaf column in the ``depth`` structs of ``type_``, with one child each. Structs are null
    where those of ``like`` are; None: nowhere."""
    if depth == 0:
        return values
    field = type_.field(0)
    child = in_structs(values, field.type, depth - 1, None if like is None else like.field(0))
    mask = pc.is_null(like) if like is not None and like.null_count else None
    return pa.StructArray.from_arrays([child], fields=[field], mask=mask)
