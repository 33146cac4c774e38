"""Decode simple pages in Python: those without nulls whose decompressed bytes are nearly those of an Arrow array.

A PLAIN page of fixed-width values holds just these bytes (Encodings.md, Plain); one of byte arrays has a length in
front of each, which is cut off if all are the same. pyarrow decodes all other pages (``leaf.py``, ``nested.py``).
Reading PLAIN pages this way halves the CPU of a point lookup, and takes a seventh off that of a scan of one column. It
is done only if the page is not compressed or its compressed bytes claim their size (zstd frames with a content size,
snappy's preamble): pyarrow's one-shot decompression does not report output that is shorter than asked for. A dictionary
of a few strings is decoded here too, since reading it out of a small file takes longer than the rest of a lookup.

Frames of zstd are decompressed several at once: Arrow makes a new context of 160 kB for each call.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import claimed_size, decompress
from asyncpq.decoding.page import LENGTH_BYTES, DataPage
from asyncpq.errors import CorruptFileError
from asyncpq.parquet.chunk_pages import PageHeader
from asyncpq.parquet.column_chunk import Codec, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.records import NamedTuple

# The levels that V1 pages of a leaf column begin with, by their encoding and the number of values.
KnownLevels: TypeAlias = dict[tuple[int | None, int], bytes]

_MAX_PREFIXES = 64
_WIDTHS = {PhysicalType.INT32: 4, PhysicalType.INT64: 8, PhysicalType.FLOAT: 4, PhysicalType.DOUBLE: 8}
_MAX_TEXT_BYTES = (1 << 31) - 1  # of one array with offsets of 32 bits
_FEW_VALUES = 256  # byte arrays of a dictionary; pyarrow decodes more of them faster
# Decompressed at once of many pages. Two threads that decompress less wait for Python's lock after each piece: a
# thousand keys took a fifth less time than with 256 KiB.
AT_ONCE_BYTES = 1 << 20


def plain_width(leaf: Leaf, arrow_type: pa.DataType) -> int:
    """Return the size in bytes of one value, if a leaf column's PLAIN values have the same bytes as an Arrow buffer of
    ``arrow_type``; else 0."""
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
    page: bytes | memoryview,
    header: PageHeader,
    leaf: Leaf,
    codec: int,
    arrow_type: pa.DataType,
    width: int,
    *,
    verify_crc: bool,
) -> pa.Array | None:
    """Return a PLAIN data page's values as an array over its decompressed bytes; None if pyarrow has to decode the
    page.

    The leaf column is not repeated; ``width`` is from :func:`plain_width`, not 0. Raises CorruptFileError if the CRC
    does not match, or the payload cannot be decompressed.
    """
    count = header.num_values
    if header.encoding != Encoding.PLAIN or count == 0:
        return None
    content = present_values(page, header, leaf, codec, verify_crc=verify_crc)
    if content is None or len(content.data) != content.start + count * width:
        return None
    # Arrow wants values aligned, as the start of a bytes object is. Levels of 8192 to a million rows take 8 bytes.
    if content.start % width:
        buffer = pa.py_buffer(content.data[content.start :])
    else:
        buffer = pa.py_buffer(content.data).slice(content.start)
    return pa.Array.from_buffers(arrow_type, count, [None, buffer], 0)


def decode_plain_run(
    pages: Sequence[DataPage],
    headers: Sequence[PageHeader],
    leaf: Leaf,
    codec: int,
    arrow_type: pa.DataType,
    width: int,
    *,
    verify_crc: bool,
    prefixes: KnownLevels,
) -> pa.Array | None:
    """Return the values of ``pages`` as one array; None if pyarrow has to decode them.

    The leaf column is not repeated. ``width`` is from :func:`plain_width`; if it is 0, the values are byte arrays, of
    which those are decoded that all have the same length. ``prefixes``, which is updated, has the levels that other
    pages of the leaf column began with. Raises CorruptFileError if a CRC does not match, or a page cannot be
    decompressed.
    """
    if any(header.encoding != Encoding.PLAIN for header in headers):
        return None
    if any(header.num_nulls or header.rep_levels_bytes for header in headers):  # of V2 pages
        return None
    gathered = _Gathered(sum([header.num_values for header in headers]), width)
    room = sum([header.uncompressed_size for header in headers])
    for some in _batches(pages, headers):
        parts: list[PageParts] = []
        for page, header in some:
            part = _parts(page.data, header, leaf, codec, verify_crc=verify_crc)
            if part is None:
                return None
            parts.append(part)
        content = _contents(parts, codec, leaf)
        start = 0
        for (_, header), part in zip(some, parts, strict=True):
            stop = start + part.size
            levels = _known_levels(prefixes, part, content, start, header, leaf)
            if levels is None or not gathered.add(content, start + levels, stop, header.num_values, room):
                return None
            start = stop
    if width:
        return pa.Array.from_buffers(arrow_type, gathered.count, [None, gathered.buffer], 0)
    return gathered.texts(arrow_type)


class _Gathered:
    """The values of several pages, next to each other in memory."""

    __slots__ = ("_filled", "_prefix", "_view", "_width", "buffer", "count")

    def __init__(self, count: int, width: int) -> None:
        self.count = count
        self.buffer: pa.Buffer | None = None
        self._width = width  # of a value; 0 until the first byte array has come
        self._prefix = b""  # the length in front of each byte array
        self._filled = 0

    def add(self, content: bytes, start: int, stop: int, num_values: int, room: int) -> bool:
        """Add the values of a page, ``content[start:stop]``; return False if they do not have the width of the others.
        All values together have at most ``room`` bytes."""
        if not self._width:
            self._prefix = content[start : start + LENGTH_BYTES]
            self._width = LENGTH_BYTES + int.from_bytes(self._prefix, "little")
        width = self._width
        if stop - start != num_values * width or self.count * width > room:
            return False
        for number, byte in enumerate(self._prefix):
            if content[start + number : stop : width] != bytes((byte,)) * num_values:
                return False
        if self.buffer is None:
            self.buffer = pa.allocate_buffer(self.count * width)
            self._view = memoryview(self.buffer).cast("B")
        following = self._filled + stop - start
        self._view[self._filled : following] = memoryview(content)[start:stop]
        self._filled = following
        return True

    def texts(self, arrow_type: pa.DataType) -> pa.Array | None:
        """Return the byte arrays, which have one length, as an array; None if they are empty or too many for it."""
        width, count = self._width, self.count
        if self.buffer is None or width == LENGTH_BYTES or count * width > _MAX_TEXT_BYTES:
            return None
        packed = pa.Array.from_buffers(pa.binary(width), count, [None, self.buffer], 0)
        values = pc.binary_slice(packed, start=LENGTH_BYTES, stop=width)
        large = arrow_type in (pa.large_string(), pa.large_binary())
        buffers = pc.cast(values, pa.large_binary() if large else pa.binary()).buffers()
        return pa.Array.from_buffers(arrow_type, count, buffers, 0)


def _known_levels(
    prefixes: KnownLevels, part: PageParts, content: bytes, start: int, header: PageHeader, leaf: Leaf
) -> int | None:
    """Return what :func:`_levels_bytes` does for the page whose bytes begin at ``content[start]``. ``prefixes`` has the
    levels of V1 pages that were seen, by their encoding and the number of values."""
    key = (header.def_encoding, header.num_values)
    is_v1 = header.type is PageType.DATA_PAGE
    known = prefixes.get(key) if is_v1 else None  # other threads change them
    if known is not None and content.startswith(known, start):
        return len(known)
    length = _levels_bytes(part, content[start : start + 20], header, leaf)
    if is_v1 and length is not None:
        if len(prefixes) >= _MAX_PREFIXES:
            prefixes.clear()
        prefixes[key] = content[start : start + length]
    return length


def _batches(pages: Sequence[DataPage], headers: Sequence[PageHeader]) -> Iterator[list[tuple[DataPage, PageHeader]]]:
    """Divide the pages into runs of about :data:`AT_ONCE_BYTES` decompressed bytes."""
    batch: list[tuple[DataPage, PageHeader]] = []
    size = 0
    for page, header in zip(pages, headers, strict=True):
        if batch and size + header.uncompressed_size > AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((page, header))
        size += header.uncompressed_size
    if batch:
        yield batch


class PresentValues(NamedTuple):
    """The decompressed bytes of a page without nulls, and the offset ``start`` of its encoded values in them."""

    data: bytes
    start: int


class PageParts(NamedTuple):
    """What follows the header of a data page: its levels and its values."""

    levels: memoryview  # of a V2 page
    values: memoryview  # as stored; in a V1 page, levels come first
    size: int  # of ``values``, decompressed
    compressed: bool
    is_certain: bool  # whether the values decompress to ``size`` bytes, unless they are malformed

    def content(self, codec: int, leaf: Leaf) -> bytes:
        """Return the page's encoded values, decompressed."""
        return _decompressed(self.values, codec, self.size, leaf) if self.compressed else bytes(self.values)


def page_parts(page: bytes | memoryview, header: PageHeader, codec: int) -> PageParts:
    """Divide a data page into levels and values."""
    payload = memoryview(page)[header.header_size :]
    compressed, num_levels = codec != Codec.UNCOMPRESSED, 0
    if header.type is PageType.DATA_PAGE_V2:
        num_levels = (header.rep_levels_bytes or 0) + (header.def_levels_bytes or 0)
        compressed = compressed and header.is_compressed
    values = payload[num_levels:] if num_levels else payload
    size = header.uncompressed_size - num_levels
    certain = not compressed or claimed_size(values, codec) == size
    return PageParts(payload[:num_levels], values, size if compressed else len(values), compressed, certain)


def check_crc(page: bytes | memoryview, header: PageHeader, leaf: Leaf) -> None:
    """Raise CorruptFileError if the page does not match the CRC in its header."""
    if header.crc is not None and zlib.crc32(memoryview(page)[header.header_size :]) != header.crc:
        raise CorruptFileError("a page does not match its CRC", column=leaf.dotted)


def _parts(
    page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool
) -> PageParts | None:
    """Divide a data page into levels and values; None if its decompressed size is not certain. Raises CorruptFileError
    if the CRC does not match."""
    parts = page_parts(page, header, codec)
    if not parts.is_certain:
        return None
    if verify_crc:
        check_crc(page, header, leaf)
    return parts


def pages_without(
    pages: Sequence[tuple[bytes | memoryview, PageHeader]],
    leaf: Leaf,
    codec: int,
    texts: Sequence[bytes],
    *,
    verify_crc: bool,
) -> set[int]:
    """Return the positions, in ``pages``, of the PLAIN pages that contain none of ``texts``; no value on them contains
    one.

    Pages whose decompressed size is not certain are left out. The bytes of all pages are searched at once, those of
    zstd decompressed at once too: a text column of 10 million values takes half of the CPU that its decoding takes.
    Raises CorruptFileError if a page's CRC does not match, or a page cannot be decompressed.
    """
    searched: list[int] = []
    parts: list[PageParts] = []
    for position, (page, header) in enumerate(pages):
        part = _parts(page, header, leaf, codec, verify_crc=verify_crc) if header.encoding == Encoding.PLAIN else None
        if part is not None:
            searched.append(position)
            parts.append(part)
    stops = list(accumulate([part.size for part in parts]))
    content = _contents(parts, codec, leaf)
    without = set(searched)
    for text in texts:
        start = content.find(text)
        while start >= 0:
            number = bisect_right(stops, start)
            without.discard(searched[number])
            start = content.find(text, stops[number])
    return without


def _contents(parts: Sequence[PageParts], codec: int, leaf: Leaf) -> bytes:
    """Return the decompressed bytes of pages, one after the other. Those of zstd are decompressed at once."""
    if len(parts) > 1 and codec == Codec.ZSTD and all(part.compressed for part in parts):
        frames = b"".join([part.values for part in parts])  # decompress to one content
        return _decompressed(memoryview(frames), codec, sum([part.size for part in parts]), leaf)
    return b"".join([part.content(codec, leaf) for part in parts])


def present_values(
    page: bytes | memoryview,
    header: PageHeader,
    leaf: Leaf,
    codec: int,
    *,
    verify_crc: bool,
    prefixes: KnownLevels | None = None,
) -> PresentValues | None:
    """Return the encoded values of a page; None if the page has nulls or its decompressed size is not certain.

    ``prefixes``, which is updated, has the levels that other pages of the leaf column began with. Raises
    CorruptFileError if the CRC does not match, or the payload cannot be decompressed.
    """
    is_v2 = header.type is PageType.DATA_PAGE_V2
    if is_v2 and (header.num_nulls or header.rep_levels_bytes):
        return None
    parts = _parts(page, header, leaf, codec, verify_crc=verify_crc)
    if parts is None:
        return None
    content = parts.content(codec, leaf)
    start = _known_levels({} if prefixes is None else prefixes, parts, content, 0, header, leaf)
    return None if start is None else PresentValues(content, start)


def present_run(
    pages: Sequence[tuple[DataPage, PageHeader]], leaf: Leaf, codec: int, *, verify_crc: bool, prefixes: KnownLevels
) -> Iterator[tuple[bytes, int, int] | None]:
    """Yield for each page what :func:`present_values` returns for it, and where its values end, since pages share their
    decompressed bytes. Pages of zstd are decompressed at once: threads then wait for Python's lock less often."""
    parts: list[PageParts | None] = []
    for page, header in pages:
        has_others = header.type is PageType.DATA_PAGE_V2 and (header.num_nulls or header.rep_levels_bytes)
        parts.append(None if has_others else _parts(page.data, header, leaf, codec, verify_crc=verify_crc))
    content = _contents([part for part in parts if part is not None], codec, leaf)
    start = 0
    for (_, header), part in zip(pages, parts, strict=True):
        if part is None:
            yield None
            continue
        stop = start + part.size
        levels = _known_levels(prefixes, part, content, start, header, leaf)
        yield None if levels is None else (content, start + levels, stop)
        start = stop


def _levels_bytes(parts: PageParts, content: bytes, header: PageHeader, leaf: Leaf) -> int | None:
    """Return the number of bytes that the levels take in front of a page's values in its decompressed ``content``, of
    which the first 20 bytes are enough. None if the page has nulls."""
    level = leaf.max_definition_level
    if level == 0:
        return 0
    if header.type is PageType.DATA_PAGE_V2:
        return 0 if _all_present(bytes(parts.levels), header.num_values, level) else None
    if header.def_encoding != Encoding.RLE or len(content) < LENGTH_BYTES:
        return None
    usual = _levels_of_one_run(header.num_values, level)
    if content.startswith(usual):
        return len(usual)
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    return start if _all_present(content[LENGTH_BYTES : min(start, 20)], header.num_values, level) else None


def decode_dictionary(
    payload: memoryview, header: PageHeader, leaf: Leaf, codec: int, arrow_type: pa.DataType, width: int
) -> tuple[pa.Array, int] | None:
    """Return a dictionary page's values, and the size in bytes of the largest one (0 if all values have the same size).

    None if pyarrow has to decode the page. The caller has checked the CRC. ``width`` is from :func:`plain_width`; if it
    is 0, ``arrow_type`` has offsets of 32 bits.
    """
    count, expected = header.num_values, header.uncompressed_size
    if not width and (count > _FEW_VALUES or expected > _FEW_VALUES * 64):
        return None
    if codec == Codec.UNCOMPRESSED:
        content = bytes(payload)
    elif claimed_size(payload, codec) == expected:
        content = _decompressed(payload, codec, expected, leaf)
    else:
        return None
    if width:
        if count == 0 or len(content) != count * width:
            return None
        return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(content)], 0), 0
    values: list[bytes] = []
    stop = 0
    for _ in range(count):
        start = stop + LENGTH_BYTES
        stop = start + int.from_bytes(content[stop:start], "little")
        values.append(content[start:stop])
    if stop != len(content):
        return None
    sizes = [len(value) for value in values]
    offsets = struct.pack(f"<{count + 1}i", 0, *accumulate(sizes))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(arrow_type, count, buffers, 0), max(sizes, default=0)


def _decompressed(values: memoryview, codec: int, size: int, leaf: Leaf) -> bytes:
    return decompress("zstd" if codec == Codec.ZSTD else "snappy", values, size, column=leaf.dotted)


@lru_cache(256)
def _levels_of_one_run(count: int, level: int) -> bytes:
    """Return the definition levels of a V1 page without nulls as nearly all writers write them: their length, and one
    run of ``count`` times ``level``."""
    run = bytearray()
    left = count << 1
    while left >= 0x80:
        run.append(left & 0x7F | 0x80)
        left >>= 7
    run += bytes((left, level))
    return len(run).to_bytes(LENGTH_BYTES, "little") + run


def _all_present(levels: bytes, count: int, level: int) -> bool:
    """Return whether no value of a page is null: its ``count`` encoded definition levels are one run of ``level``."""
    if not 2 <= len(levels) <= 6:
        return False
    reader = CompactReader(levels)
    run = reader.varint()
    return run & 1 == 0 and run >> 1 >= count and levels[reader.pos :] == bytes((level,))
