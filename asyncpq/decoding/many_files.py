"""Decode flat leaf columns of many small files at once.

The column chunks of one leaf, one for each row group of each file, become one spliced file (:mod:`asyncpq.decoding
.splice`), which pyarrow decodes to one array. A chunk that is unusual is not decoded here: its file is read by itself,
which also raises the error of a damaged one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding.arrow import join, read_column, value_bits
from asyncpq.decoding.leaf import LeafDecoder
from asyncpq.decoding.splice import WholeChunk
from asyncpq.errors import CorruptFileError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import NeedMore, check_page_header, decode_page_header, header_contradiction
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf

_MOST_CHUNK_BYTES: Final = 1 << 20  # decoded
_LEVEL_BYTES: Final = 8  # of a value, while it is decoded
_CODECS: Final = frozenset(map(int, Codec)) - {Codec.LZO, Codec.LZ4}


class SmallFile(NamedTuple):
    """A version of a small file, and its bytes from ``start`` on."""

    version: FileVersion
    start: int
    data: memoryview


def is_usual(leaf: Leaf) -> bool:
    """Return whether the chunks of a leaf column can be decoded here."""
    return leaf.is_flat and leaf.physical_type is not PhysicalType.INT96


def decode_small_files(
    files: Sequence[SmallFile], decoder: LeafDecoder, *, verify_crc: bool, most_bytes: int
) -> tuple[pa.Array, list[int]] | None:
    """Return the values of a flat leaf column in all rows of ``files``, in order, and the number of data pages of each
    file; None if a chunk is unusual.

    Args:
        files: have equal schemas, and the same writer.
        decoder: of the leaf in one of them.
        most_bytes: that they may decode to; for more, the result is None.

    Raises:
        AsyncpqError: a file is damaged.
    """
    leaf, template = decoder.leaf, decoder.chunks_template
    value_bytes = value_bits(decoder.arrow_type) // 8 + _LEVEL_BYTES
    chunks: list[WholeChunk] = []
    num_pages: list[int] = []
    for version, start, data in files:
        checkpoint()
        pages_of_file = 0
        for group in version.metadata.row_groups:
            if not group.num_rows:
                continue
            chunk = version.chunk(group.ordinal, leaf.index)
            if chunk.start < start:
                return None
            content = data[chunk.start - start : chunk.stop - start]
            sizes = _pages(content, chunk, leaf, group.num_rows, value_bytes)
            if sizes is None:
                return None
            dictionary_bytes, pages, size = sizes
            most_bytes -= size
            if most_bytes < 0:
                return None
            chunks.append(WholeChunk(chunk, content, dictionary_bytes, group.num_rows))
            pages_of_file += pages
        num_pages.append(pages_of_file)
    column = read_column(template.splice(chunks), verify_crc=verify_crc)
    values = join(column.chunks, column.type)
    num_rows = sum([chunk.num_rows for chunk in chunks])
    if len(values) != num_rows or values.type != decoder.arrow_type:
        raise CorruptFileError(f"pages have {len(values)} rows, expected {num_rows}", column=leaf.dotted)
    return values, num_pages


def _pages(
    data: memoryview, chunk: ColumnChunk, leaf: Leaf, num_rows: int, value_bytes: int
) -> tuple[int, int, int] | None:
    """Check the page headers of a chunk; return the size of its dictionary page, the number of its data pages, and the
    most bytes that they decode to. None if the chunk is unusual, or may decode to many bytes. Raises CorruptFileError
    if headers contradict the footer.

    ``value_bytes``: of a value, decoded, without the bytes of a text.
    """
    if chunk.codec not in _CODECS or chunk.num_values != num_rows:
        return None
    position = values = pages = dictionary_bytes = entries_bytes = 0
    size = num_rows * value_bytes
    has_lengths = chunk.physical_type is PhysicalType.BYTE_ARRAY
    while position < len(data):
        header = decode_page_header(data, position, max_bytes=_MOST_CHUNK_BYTES, complete=True)
        if isinstance(header, NeedMore):
            return None
        check_page_header(header, chunk=chunk, leaf=leaf)
        if header_contradiction(header, chunk, repeated=False) is not None:
            return None
        if header.type is PageType.DICTIONARY_PAGE:
            if position or header.num_values > header.uncompressed_size:
                return None
            dictionary_bytes, entries_bytes = header.page_size, header.uncompressed_size
        else:
            if header.encoding in DICTIONARY_ENCODINGS:
                if not dictionary_bytes:
                    return None
                size += header.num_values * entries_bytes * has_lengths
            elif header.encoding in (Encoding.ALP, Encoding.DELTA_BYTE_ARRAY):
                return None
            values += header.num_values
            pages += 1
        size += header.uncompressed_size
        if size > _MOST_CHUNK_BYTES:
            return None
        position += header.page_size
    return (dictionary_bytes, pages, size) if position == len(data) and values == num_rows else None
