"""The format decoders, each with what must hold for any bytes: a typed error, or a model that makes sense."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator

from asyncpq.decoding.alp import AlpPage, decoded
from asyncpq.errors import FormatError
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, decode_bloom_filter_header
from asyncpq.parquet.chunk_pages import NeedMore, decode_page_header
from asyncpq.parquet.column_chunk import validate_chunk
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.metadata import FileMetadata, FooterDecoder, FooterFound, decode_file_metadata
from asyncpq.parquet.page_index import decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.parquet.statistics import chunk_bounds, order_of, page_bounds
from asyncpq.parquet.thrift import CompactReader
from tests.alp_pages import encoded
from tests.fuzz import bases
from tests.fuzz.parquet_parts import ParquetParts
from tests.fuzz.thrift_trees import parse, write

_MAX_ELEMENTS = 1 << 16
_MAX_VALUES = 1 << 12


def footer(data: bytes) -> None:
    """The end of a file, its metadata, all chunks, their bounds."""
    found = FooterDecoder(max_footer_bytes=1 << 20).next(data, 0, len(data))
    if isinstance(found, FooterFound):
        metadata(found.metadata_bytes)


def metadata(data: bytes) -> None:
    """FileMetaData."""
    model = decode_file_metadata(data, max_elements=_MAX_ELEMENTS)
    assert model.num_rows == sum(group.num_rows for group in model.row_groups)
    assert model.weight >= len(data)
    dict(model.key_value_metadata)
    for group in model.row_groups:
        for leaf in model.schema.leaves:
            try:
                chunk = group.chunk(leaf.index)
                validate_chunk(chunk, leaf, 1 << 20, 1 << 19)
            except FormatError:
                continue
            order = order_of(leaf, model.column_orders[leaf.index] if model.column_orders else None)
            chunk_bounds(chunk, leaf, order, model.writer_faults, model.column_orders is not None, group.num_rows)


def page_header(data: bytes) -> None:
    """PageHeader, and that more bytes do not change what fewer said."""
    header = decode_page_header(data, complete=False)
    if isinstance(header, NeedMore):
        return
    assert 0 < header.header_size <= len(data)
    assert min(header.compressed_size, header.uncompressed_size, header.num_values) >= 0
    assert decode_page_header(data[: header.header_size], complete=True) == header
    short = decode_page_header(data[: header.header_size - 1], complete=False)
    assert isinstance(short, NeedMore)


def column_index(data: bytes) -> None:
    """ColumnIndex, and its bounds for every order."""
    index = decode_column_index(data)
    pages = index.num_pages
    assert len(index.min_values) == len(index.max_values) == pages
    for model in _models():
        for leaf in model.schema.leaves:
            try:
                bounds = page_bounds(index, leaf, order_of(leaf, None), [10] * pages, has_column_orders=True)
            except FormatError:  # another column's
                continue
            known = [(low, high) for low, high in zip(bounds.mins, bounds.maxs, strict=True) if low is not None]
            assert all(low <= high for low, high in known)


def offset_index(data: bytes) -> None:
    """OffsetIndex, validated."""
    index = decode_offset_index(data)
    rows = index.first_rows[-1] + 1 if index.num_pages else 0
    validate_offset_index(index, chunk_start=4, chunk_stop=1 << 40, num_rows=rows)
    assert sum(index.row_counts(rows)) == rows


def bloom_filter(data: bytes) -> None:
    """BloomFilterHeader."""
    header = decode_bloom_filter_header(data)
    assert 0 < header.header_size <= len(data)
    assert header.num_blocks * BLOCK_BYTES == header.num_bytes


def alp(data: bytes) -> None:
    """The values of an ALP page, as floats and as doubles."""
    with contextlib.suppress(FormatError):
        _alp_values(data, PhysicalType.FLOAT)
    _alp_values(data, PhysicalType.DOUBLE)


def _alp_values(data: bytes, kind: PhysicalType) -> None:
    """All at once and one by one agree."""
    values = AlpPage(data, 0, kind, _MAX_VALUES, "x")
    whole = memoryview(decoded([(values, range(values.num_vectors))])).cast("B")
    size = values.value_bytes
    assert len(whole) == values.count * size
    for index in {0, values.count // 2, values.count - 1} if values.count else ():
        assert values.value(index) == whole[index * size : (index + 1) * size]


def thrift(data: bytes) -> None:
    """Any struct: reading and skipping agree, and what is written is read again."""
    reader, skipper = (CompactReader(data, max_elements=_MAX_ELEMENTS) for _ in range(2))
    fields = reader.struct()
    skipper.skip_struct()
    assert reader.pos == skipper.pos
    tree, stop = parse(data)
    assert stop == reader.pos
    again = write(tree)
    assert repr(CompactReader(again).struct()) == repr(fields)
    assert write(parse(again)[0]) == again


DECODERS: dict[str, Callable[[bytes], None]] = {
    "footer": footer,
    "metadata": metadata,
    "page_header": page_header,
    "column_index": column_index,
    "offset_index": offset_index,
    "bloom_filter": bloom_filter,
    "alp": alp,
    "thrift": thrift,
}


def _models() -> Iterator[FileMetadata]:
    yield decode_file_metadata(write(ParquetParts(bases.data("plain")).footer))


def examples(name: str) -> Iterator[bytes]:
    """Good bytes to begin with."""
    if name == "alp":
        for count in (0, 1, 30, 500):
            raw = struct.pack(f"<{count}d", *[at / 4 if at % 9 else 1 / 3 for at in range(count)])
            yield encoded(raw, 64, log=4, pairs=[(2, 0), (1, 1)])
        return
    for base in bases.names():
        data = bases.data(base)
        parts = ParquetParts(data)
        if name == "footer":
            yield data
        elif name in ("metadata", "thrift"):
            yield write(parts.footer)
        for chunk in parts.chunks:
            if name in ("page_header", "thrift"):
                yield from (write(page.header) for page in chunk.pages)
            if name in ("column_index", "thrift") and chunk.column_index is not None:
                yield write(chunk.column_index)
            if name == "bloom_filter" and chunk.bloom_filter is not None:
                yield chunk.bloom_filter[:40]
            if name in ("offset_index", "thrift") and chunk.offset_index is not None:
                yield write(chunk.offset_index)


def check(name: str, data: bytes) -> None:
    """One run of a decoder; raises unless all is as it must be."""
    try:
        DECODERS[name](data)
    except FormatError:
        pass
