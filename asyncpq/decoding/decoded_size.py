"""How large pages become once decoded, known before they are.

The sizes that a file claims do not bound what comes out of it: a dictionary index of a few bits
stands for a whole value, DELTA_BYTE_ARRAY repeats the front of the value before, a run of levels
stands for any number of nulls, and a null in a fixed-size list takes as much room as a list. What is
bounded by the claims is bounded by them; for the rest indices, prefix lengths or offsets are decoded
alone, and summed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import decompress, read_column
from asyncpq.decoding.splice import (
    CODEC_NAMES,
    ENCODING_PLAIN,
    ENCODING_RLE,
    FooterTemplate,
    dictionary_as_data_page,
    root_element,
    schema_element,
)
from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS
from asyncpq.parquet.metadata import Codec, ColumnChunk
from asyncpq.parquet.page_walker import Page, PageHeader, PageType
from asyncpq.parquet.schema import Leaf, PhysicalType, Repetition
from asyncpq.parquet.thrift import CompactReader, CompactWriter

ENCODING_DELTA_BINARY_PACKED = 5
ENCODING_DELTA_BYTE_ARRAY = 7
LEVEL_BITS = 16  # pyarrow holds levels as int16 while it decodes
_SMALL_BYTES = 4096  # whole buffers are counted up to here: which part of them is used takes longer to tell
OFFSET_BITS = 33  # of a list: its offset and its validity


def refuse(what: str, size: int, limit: int, column: str) -> ResourceLimitError:
    """The error for ``what``, which would decode to ``size`` bytes."""
    return ResourceLimitError(
        f"{what} decode to {size} bytes, the unit may hold {limit} more",
        column=column,
        hint="Raise LimitOptions.max_decoded_bytes if the file is to be trusted.",
    )


def held_bytes(array: pa.Array) -> int:
    """Bytes that ``array`` holds for itself: indices, but not a dictionary that others share."""
    if isinstance(array, pa.DictionaryArray):
        array = array.indices
    buffers: int = array.get_total_buffer_size()
    return buffers if buffers <= _SMALL_BYTES else int(array.nbytes)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """What an extension type is stored as; other types as they are."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def value_bits(kind: pa.DataType) -> int:
    """Bits that one slot of an array of ``kind`` takes, null or not; not what offsets or views point to."""
    kind = storage_type(kind)
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
    kind = storage_type(kind)
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
    )


def taken_bytes(dictionary: pa.Array, indices: pa.Array, kind: pa.DataType) -> int:
    """Bytes of ``dictionary.take(indices)`` as an array of ``kind``.

    Raises:
        pa.ArrowIndexError: an index points outside the dictionary.
    """
    size = len(indices) * value_bits(kind) // 8
    if has_lengths(kind) and len(dictionary):
        values = dictionary.storage if isinstance(dictionary, pa.ExtensionArray) else dictionary
        if pa.types.is_binary_view(values.type) or pa.types.is_string_view(values.type):
            values = values.cast(pa.large_binary())
        size += pc.sum(pc.binary_length(values).take(indices)).as_py() or 0
    return size


def largest_value(values: pa.Array) -> int:
    """Bytes of the largest of ``values`` that differ in size; 0 for values of other types."""
    if not has_lengths(values.type) or len(values) == 0:
        return 0
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_binary_view(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.large_binary())
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


# -- DELTA_BYTE_ARRAY -------------------------------------------------------------------------------


def prefix_bytes(page: bytes, header: PageHeader, leaf: Leaf, codec: int) -> int:
    """Bytes that a DELTA_BYTE_ARRAY page repeats of values before: the sum of its prefix lengths.

    They stand in front, DELTA_BINARY_PACKED (Encodings.md, Delta Strings), so they can be decoded
    alone, as a column of integers. Where the codec is not one that is decompressed here, as much as
    the page could repeat at most.

    Raises:
        CorruptFileError: they cannot be decoded.
    """
    if codec != Codec.UNCOMPRESSED and (codec == Codec.LZ4 or codec not in CODEC_NAMES):
        return header.num_values * header.uncompressed_size
    values = _encoded_values(page, header, leaf, codec)
    reader = CompactReader(values[:32])
    reader.varint()  # block size
    reader.varint()  # miniblocks in a block
    count = reader.varint()
    if count > header.num_values:
        raise CorruptFileError(f"a page of {header.num_values} values has {count} prefix lengths", column=leaf.dotted)
    if count == 0:
        return 0
    writer = CompactWriter()
    writer.field_i32(1, PageType.DATA_PAGE)
    writer.field_i32(2, len(values))
    writer.field_i32(3, len(values))
    writer.begin_struct(5)
    writer.field_i32(1, count)
    writer.field_i32(2, ENCODING_DELTA_BINARY_PACKED)
    writer.field_i32(3, ENCODING_RLE)
    writer.field_i32(4, ENCODING_RLE)
    writer.end_struct()
    file = _PREFIX_LENGTHS.splice(b"", [writer.getvalue(), values], num_values=count, num_rows=count)
    lengths = read_column(file, verify_crc=False)
    if pc.min(lengths).as_py() < 0:
        raise CorruptFileError("a prefix length is negative", column=leaf.dotted)
    return int(pc.sum(lengths).as_py())


def _encoded_values(page: bytes, header: PageHeader, leaf: Leaf, codec: int) -> bytes:
    """The part of a data page behind its levels, decompressed."""
    payload = memoryview(page)[header.header_size :]
    size = header.uncompressed_size
    compressed = header.is_compressed and codec != Codec.UNCOMPRESSED
    start = 0
    if header.type is PageType.DATA_PAGE_V2:
        levels = (header.rep_levels_bytes or 0) + (header.def_levels_bytes or 0)
        if not 0 <= levels <= min(size, len(payload)):
            raise CorruptFileError(f"a page of {size} bytes has {levels} bytes of levels", column=leaf.dotted)
        payload, size = payload[levels:], size - levels
    values = decompress(CODEC_NAMES[codec], payload, size, column=leaf.dotted) if compressed else bytes(payload)
    if header.type is PageType.DATA_PAGE:
        for encoding, level in (
            (header.rep_encoding, leaf.max_repetition_level),
            (header.def_encoding, leaf.max_definition_level),
        ):
            if level and encoding == ENCODING_RLE:
                start += 4 + int.from_bytes(values[start : start + 4], "little")
            elif level:  # BIT_PACKED, deprecated
                start += (header.num_values * level.bit_length() + 7) // 8
            if start > len(values):
                raise CorruptFileError("a page ends inside its levels", column=leaf.dotted)
    return values[start:]


# -- nested fields ----------------------------------------------------------------------------------


def leaf_types(kind: pa.DataType) -> list[tuple[pa.DataType, int]]:
    """Types of the leaves of ``kind``, in schema order, and how many slots a null above may take there."""
    kind = storage_type(kind)
    if pa.types.is_fixed_size_list(kind):
        return [(leaf, slots * max(1, kind.list_size)) for leaf, slots in leaf_types(kind.value_type)]
    if not pa.types.is_nested(kind):
        return [(kind, 1)]
    return [leaf for at in range(kind.num_fields) for leaf in leaf_types(kind.field(at).type)]


def leaf_bounds(
    leaf: Leaf, chunk: ColumnChunk, pages: Sequence[Page], kind: pa.DataType, slots: int, limit: int
) -> tuple[int, int]:
    """What a chunk of a nested leaf decodes to: bytes that its pages prove, and bytes that may come on top.

    Args:
        pages: all of the chunk.
        kind, slots: from :func:`leaf_types`.
        limit: where a coarse bound is below it, no exact one is sought.
    """
    bits = value_bits(kind) + 1 + 2 * LEVEL_BITS + OFFSET_BITS * leaf.max_repetition_level
    proven = chunk.num_values * bits // 8
    indexed = repeated = 0
    dictionary: Page | None = None
    for page in pages:
        header = page.header
        if header.type is PageType.DICTIONARY_PAGE:
            dictionary = page
        elif header.encoding in DICTIONARY_ENCODINGS:
            indexed += header.num_values
        elif chunk.physical_type == PhysicalType.BYTE_ARRAY:
            proven += header.uncompressed_size
        if header.is_data and header.encoding == ENCODING_DELTA_BYTE_ARRAY:
            repeated += prefix_bytes(page.data, header, leaf, chunk.codec)
    # values of fixed size are counted already, but only what was decoded is held to that size
    proven = proven + repeated if chunk.physical_type == PhysicalType.BYTE_ARRAY else max(proven, repeated)
    possible = chunk.num_values * slots * bits // 8 if slots > 1 else 0
    if indexed and dictionary is not None and chunk.physical_type == PhysicalType.BYTE_ARRAY:
        largest = dictionary.header.uncompressed_size
        proven += largest
        if indexed * largest > limit:
            largest = _largest_value(dictionary, leaf, chunk)
        possible += indexed * largest
    return proven, possible


def _largest_value(dictionary: Page, leaf: Leaf, chunk: ColumnChunk) -> int:
    """Bytes of the largest value of a dictionary page of byte arrays."""
    header = dictionary.header
    if header.num_values * 4 > header.uncompressed_size:  # each value has a length in front
        raise CorruptFileError(
            f"a dictionary page of {header.uncompressed_size} bytes claims {header.num_values} values",
            column=leaf.dotted,
        )
    page = dictionary_as_data_page(
        dictionary.data[header.header_size :],
        num_values=header.num_values,
        uncompressed_size=header.uncompressed_size,
        level=0,
    )
    template = _required_template(PhysicalType.BYTE_ARRAY, chunk.codec, ENCODING_PLAIN)
    count = header.num_values
    values = read_column(template.splice(b"", [page], num_values=count, num_rows=count), verify_crc=False)
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


def nested_bytes(array: pa.Array, kind: pa.DataType) -> int:
    """Bytes of ``array`` once it is of type ``kind``.

    Args:
        array: the same values with byte arrays still as dictionaries, and lists of any flavour.
        kind: the field's type.
    """
    kind = storage_type(kind)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    size = len(array) * value_bits(kind) // 8
    if pa.types.is_struct(kind):
        return len(array) // 8 + sum(nested_bytes(array.field(at), child.type) for at, child in enumerate(kind))
    if pa.types.is_fixed_size_list(kind):
        missing = max(0, len(array) * int(kind.list_size) - len(array.values))
        return nested_bytes(array.values, kind.value_type) + missing * value_bits(kind.value_type) // 8
    if pa.types.is_nested(kind):
        return size + nested_bytes(array.values, kind.field(0).type)
    if isinstance(array, pa.DictionaryArray):
        return size if pa.types.is_dictionary(kind) else taken_bytes(array.dictionary, array.indices, kind)
    nbytes: int = array.nbytes
    return max(size, nbytes)


def _required_template(physical_type: PhysicalType, codec: int, encoding: int) -> FooterTemplate:
    return FooterTemplate(
        schema_elements=root_element(1) + schema_element(b"x", Repetition.REQUIRED, physical_type),
        num_elements=2,
        physical_type=physical_type,
        path=(b"x",),
        codec=codec,
        encodings=(encoding, ENCODING_RLE),
        arrow_schema=None,
        created_by=None,
    )


_PREFIX_LENGTHS = _required_template(PhysicalType.INT32, Codec.UNCOMPRESSED, ENCODING_DELTA_BINARY_PACKED)
