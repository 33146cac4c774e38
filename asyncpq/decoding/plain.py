"""Pages that are Arrow buffers already.

A PLAIN page of fixed-width values without nulls holds, once decompressed, exactly the bytes of an
Arrow array: little-endian values one after another (Encodings.md, Plain). Such a page needs no
decoder, which halves what a point lookup costs. Whatever is not plainly of this kind goes the usual
way, through pyarrow's Parquet reader.
"""

from __future__ import annotations

import struct
import zlib
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import decompress
from asyncpq.decoding.row_access import LENGTH_BYTES
from asyncpq.errors import CorruptFileError
from asyncpq.format.metadata import Codec
from asyncpq.format.page_header import PageHeader, PageType
from asyncpq.format.schema import Leaf, PhysicalType
from asyncpq.format.thrift import CompactReader

ENCODING_PLAIN = 0
_RLE = 3
_WIDTHS = {PhysicalType.INT32: 4, PhysicalType.INT64: 8, PhysicalType.FLOAT: 4, PhysicalType.DOUBLE: 8}
_FEW_VALUES = 256  # byte arrays of a dictionary: more of them are decoded faster by pyarrow
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def plain_width(leaf: Leaf, arrow_type: pa.DataType) -> int:
    """Bytes of one value if a leaf's PLAIN values are ``arrow_type``'s buffer bit by bit; else 0."""
    physical = leaf.physical_type
    if physical == PhysicalType.INT32:
        same = arrow_type in (pa.int32(), pa.uint32(), pa.date32(), pa.time32("ms"))
    elif physical == PhysicalType.INT64:
        logical = leaf.logical_type
        unit = logical.unit if logical is not None else None
        same = arrow_type in (pa.int64(), pa.uint64()) or (
            unit is not None
            and (pa.types.is_timestamp(arrow_type) or pa.types.is_time64(arrow_type))
            and arrow_type.unit == unit
        )
    elif physical == PhysicalType.FLOAT:
        same = arrow_type == pa.float32()
    elif physical == PhysicalType.DOUBLE:
        same = arrow_type == pa.float64()
    else:
        same = False
    return _WIDTHS[physical] if same else 0


def decode_plain(
    page: bytes, header: PageHeader, leaf: Leaf, codec: int, arrow_type: pa.DataType, width: int, *, verify_crc: bool
) -> pa.Array | None:
    """The page as an array over its decompressed bytes; None where it must go the usual way.

    Args:
        page: header and payload, of ``header.num_values`` rows.
        header: of a data page of a leaf that is not repeated.
        codec: of the chunk.
        width: from :func:`plain_width`, not 0.
        verify_crc: check the CRC if the page has one.

    Raises:
        CorruptFileError: the CRC does not match, or the payload cannot be decompressed.
    """
    count = header.num_values
    if header.encoding != ENCODING_PLAIN or count == 0:
        return None
    content = present_values(page, header, leaf, codec, verify_crc=verify_crc)
    if content is None or len(content.data) != content.start + count * width:
        return None
    values = content.data[content.start :] if content.start else content.data  # a bytes object is aligned
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(values)], 0)


class PresentValues(NamedTuple):
    """The decompressed bytes of a page without nulls; its encoded values begin at ``start``."""

    data: bytes
    start: int


def present_values(
    page: bytes, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool
) -> PresentValues | None:
    """The encoded values of a page without nulls.

    None if there are nulls, or if it is not certain that all of the page comes out.

    Args, raises: as :func:`decode_plain`.
    """
    payload = memoryview(page)[header.header_size :]
    levels = b""
    values = payload
    compressed = codec != Codec.UNCOMPRESSED
    expected = header.uncompressed_size
    is_v2 = header.type is PageType.DATA_PAGE_V2
    if is_v2:
        if header.num_nulls or header.rep_levels_bytes:
            return None
        levels = bytes(payload[: header.def_levels_bytes])
        values = payload[len(levels) :]
        compressed = compressed and header.is_compressed
        expected -= len(levels)
    if compressed and _decompressed_size(values, codec) != expected:
        return None
    if verify_crc and header.crc is not None and zlib.crc32(payload) != header.crc:
        raise CorruptFileError("a page does not match its CRC", column=leaf.dotted)
    content = _decompressed(values, codec, expected, leaf) if compressed else bytes(values)
    level = leaf.max_definition_level
    start = 0
    if level == 0:
        return PresentValues(content, start)
    if not is_v2:
        if header.def_encoding != _RLE or len(content) < 4:
            return None
        start = 4 + int.from_bytes(content[:4], "little")
        levels = content[4 : min(start, 20)]
    return PresentValues(content, start) if _all_present(levels, header.num_values, level) else None


def decode_dictionary(
    payload: memoryview, header: PageHeader, leaf: Leaf, codec: int, arrow_type: pa.DataType, width: int
) -> tuple[pa.Array, int] | None:
    """The values of a dictionary page, and bytes of the largest if their sizes differ, else 0; None where it must go
    the usual way.

    Args:
        payload: of the page, its CRC checked.
        arrow_type: of the values; where ``width`` is 0, of byte arrays with offsets of 32 bits.
        width: from :func:`plain_width`.

    Raises:
        CorruptFileError: the payload cannot be decompressed.
    """
    count, expected = header.num_values, header.uncompressed_size
    if not width and (count > _FEW_VALUES or expected > _FEW_VALUES * 64):
        return None
    if codec == Codec.UNCOMPRESSED:
        content = bytes(payload)
    elif _decompressed_size(payload, codec) == expected:
        content = _decompressed(payload, codec, expected, leaf)
    else:
        return None
    if width:
        if count == 0 or len(content) != count * width:
            return None
        return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(content)], 0), 0
    values: list[bytes] = []
    at = 0
    for _ in range(count):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(content[at:start], "little")
        values.append(content[start:at])
    if at != len(content):
        return None
    sizes = [len(value) for value in values]
    offsets = struct.pack(f"<{count + 1}i", 0, *accumulate(sizes))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(arrow_type, count, buffers, 0), max(sizes, default=0)


def _decompressed(values: memoryview, codec: int, size: int, leaf: Leaf) -> bytes:
    return decompress("zstd" if codec == Codec.ZSTD else "snappy", values, size, column=leaf.dotted)


def _all_present(levels: bytes, count: int, level: int) -> bool:
    """Whether definition levels are one run of ``level`` (Encodings.md, RLE / bit-packing hybrid)."""
    if not 2 <= len(levels) <= 6:
        return False
    reader = CompactReader(levels)
    run = reader.varint()
    return run & 1 == 0 and run >> 1 >= count and levels[reader.pos :] == bytes((level,))


def _decompressed_size(data: memoryview, codec: int) -> int | None:
    """The size that the compressed bytes themselves claim, which their decoder enforces; None if unknown.

    pyarrow's one-shot decompression does not say when less came out than was asked for.
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
