"""The pages of one leaf column of one row group that have arrived, and the decoding of simple pages in Python.

``PageQueue`` holds the pages that have arrived and knows which are still to come. Two kinds of pages without nulls need
no Parquet reader. A PLAIN page of fixed-width values holds, once decompressed, the bytes of an Arrow array
(Encodings.md, Plain). From dictionary indices (RLE / bit-packing hybrid) and from PLAIN byte arrays of one common
length, single values are picked without decoding the others. pyarrow decodes all other pages (``leaf.py``,
``nested.py``).

Reading PLAIN pages this way halves the CPU of a point lookup. It is done only if the page is not compressed or its
compressed bytes claim their size (zstd frames with a content size, snappy's preamble): pyarrow's one-shot decompression
does not report output that is shorter than asked for. A dictionary of a few strings is decoded here too, since reading
it out of a small file takes longer than the rest of a lookup.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from asyncpq.decoding.arrow import claimed_size, decompress
from asyncpq.errors import CorruptFileError
from asyncpq.parquet.chunk_pages import PageHeader
from asyncpq.parquet.column_chunk import Codec, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.pruning.row_ranges import RowRanges

LENGTH_BYTES = 4  # of a PLAIN byte array
_MAX_RUNS = 512  # of indices; a page with more is cheaper to decode
_MAX_INDEX = 0x7FFF_FFFF
_WIDTHS = {PhysicalType.INT32: 4, PhysicalType.INT64: 8, PhysicalType.FLOAT: 4, PhysicalType.DOUBLE: 8}
_FEW_VALUES = 256  # byte arrays of a dictionary; pyarrow decodes more of them faster


class DataPage(NamedTuple):
    """A data page as it was fetched: still encoded and compressed."""

    data: bytes | memoryview  # header and payload
    first_row: int  # counted in the row group
    num_rows: int  # that it must hold, planned from the OffsetIndex or from its own header
    header: PageHeader | None = None  # if it is decoded already
    checked: bool = False  # the header was checked

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """The dictionary of a column chunk, decoded."""

    values: pa.Array  # in the leaf's Arrow type
    identity_page: bytes  # replaces the file's own dictionary page when indices are decoded
    largest: int  # bytes of the largest value if values differ in size, else 0

    @property
    def weight(self) -> int:
        return len(self.identity_page) + int(self.values.nbytes)


class LeafArray(NamedTuple):
    """Decoded rows of a leaf column: values, or indices into a dictionary."""

    first_row: int  # in the row group
    values: pa.Array  # the values, or int32 indices into ``dictionary``
    dictionary: pa.Array | None
    lacks_dictionary: bool = False  # ``values`` are indices and the dictionary is elsewhere

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """The bytes of ``values`` in memory, without the dictionary."""
        return int(self.values.nbytes)

    def detached(self) -> LeafArray:
        """Return the array without its dictionary, for a cache; the dictionary has a cache entry of its own."""
        return self if self.dictionary is None else self._replace(dictionary=None, lacks_dictionary=True)

    def attached(self, dictionary: Dictionary | None, column: str) -> LeafArray:
        """Undo :meth:`detached`: join the indices with the column chunk's dictionary. Raises CorruptFileError if there
        is none."""
        if not self.lacks_dictionary:
            return self
        if dictionary is None:
            raise CorruptFileError(
                "the column chunk has dictionary-encoded pages, but no dictionary page", column=column
            )
        return LeafArray(self.first_row, self.values, dictionary.values)


class ChunkPage(NamedTuple):
    """A page that was fetched with its whole column chunk."""

    start: int  # its offset in the object
    data: bytes | memoryview
    stop_row: int  # the page is good once the row group's rows before this one are decoded
    dictionary: Dictionary | None  # the decoded values of a dictionary page

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


class PackedPage(NamedTuple):
    """A page without nulls that is decompressed but not decoded, so that single values can be picked from it."""

    data: bytes | memoryview  # of the page as fetched
    first_row: int  # first_row, stop_row: of the page
    stop_row: int
    content: bytes  # its bytes
    start: int  # of the encoded values in ``content``
    value_bytes: int  # the length that all PLAIN values have; -1 for dictionary indices
    prefix_bytes: int = 0  # before each PLAIN value: 4 of length, or none

    @property
    def weight(self) -> int:
        return len(self.data) + len(self.content)

    @property
    def page(self) -> DataPage:
        """The page as it was fetched: still encoded and compressed."""
        return DataPage(self.data, self.first_row, self.stop_row - self.first_row)

    def indices(self, positions: Sequence[int]) -> list[int] | None:
        """Return the dictionary indices at a few ascending ``positions`` (rows of the page); None if the page has to be
        decoded whole.

        The values are hybrid-encoded, with the bit width in front (Encodings.md, RLE / bit-packing hybrid).
        """
        data, begin = self.content, self.start
        if len(data) <= begin or data[begin] > 32:
            return None
        width = data[begin]
        indices: list[int] = []
        first = count = runs = 0  # of the current run: position of its first value, values in it; runs seen
        body, size, packed = begin + 1, 0, False  # of the current run: start of its bytes, length, whether bit-packed
        for position in positions:
            while position >= first + count:
                first += count
                start = body + size
                run = _run_at(data, start, width)
                runs += 1
                if run is None or runs > _MAX_RUNS:
                    return None
                body, count, packed = run
                size = count * width >> 3 if packed else width + 7 >> 3
                if packed and body - start == 1 and position - first >= 2 * count > 0:
                    # Writers make many bit-packed runs of one length: those before the position are passed at once.
                    headers = data[start : start + (position - first) // count * (size + 1) : size + 1]
                    passed = len(headers) - len(headers.lstrip(headers[:1])) - 1
                    first += passed * count
                    body += passed * (size + 1)
            bit = (position - first) * width if packed else 0
            start, stop = body + (bit >> 3), body + (bit + width + 7 >> 3)
            if stop > len(data):
                return None
            index = int.from_bytes(data[start:stop], "little")
            if packed:
                index = index >> (bit & 7) & (1 << width) - 1
            if index > _MAX_INDEX:
                return None
            indices.append(index)
        return indices

    def plain(self, positions: Sequence[int], arrow_type: pa.DataType) -> pa.Array:
        """Return the PLAIN values at ``positions`` (rows of the page) as an array of ``arrow_type``."""
        length = self.value_bytes
        stride = length + self.prefix_bytes
        first, count, data = self.start + self.prefix_bytes, len(positions), b""
        for position in positions:
            start = first + position * stride
            data += self.content[start : start + length]
        if not self.prefix_bytes:
            return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(data)])
        code = "q" if arrow_type in (pa.large_string(), pa.large_binary()) else "i"
        # (count + 1) * length, since a range of step 0 is none
        offsets = range(0, (count + 1) * length, length) if length else (0,) * (count + 1)
        buffers = [None, pa.py_buffer(struct.pack(f"<{count + 1}{code}", *offsets)), pa.py_buffer(data)]
        return pa.Array.from_buffers(arrow_type, count, buffers)


def _run_at(data: bytes, position: int, width: int) -> tuple[int, int, bool] | None:
    """Read the header of the RLE or bit-packed run at ``position``. Return where its body begins, its number of values,
    and whether it is bit-packed; None if the run is cut off."""
    header = shift = 0
    while True:
        if position >= len(data) or shift > 28:
            return None
        byte = data[position]
        position += 1
        header |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    packed = bool(header & 1)
    count = (header >> 1) * 8 if packed else header >> 1
    size = count * width >> 3 if packed else width + 7 >> 3
    return None if position + size > len(data) else (position, count, packed)


P = TypeVar("P", bound="DataPage | LeafArray | PackedPage")


class PageQueue(Generic[P]):
    """Pages of one leaf column of a row group, in row order. Each is announced before it arrives, added when it has
    arrived, and released once it was used."""

    __slots__ = ("_expected", "_first_rows", "_num_rows", "_pages")

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._pages: list[P] = []
        self._first_rows: list[int] = []
        self._expected: deque[int] | None = None  # first rows of pages that will come, ascending

    @property
    def rows_available(self) -> int:
        """The number of rows at the row group's start that have arrived: those before the first page that is announced
        but not added."""
        return self._expected[0] if self._expected else self._num_rows

    def expect(self, first_row: int) -> None:
        """Announce the page that begins at ``first_row``. Pages are announced in row order, before they are added."""
        if self._expected is None:
            self._expected = deque()
        self._expected.append(first_row)

    def add(self, page: P) -> None:
        """Add a page. Pages are added in row order."""
        first_row = page.first_row
        self._pages.append(page)
        self._first_rows.append(first_row)
        if self._expected and self._expected[0] == first_row:
            self._expected.popleft()

    def has(self, first_row: int) -> bool:
        """Return whether the page that begins at ``first_row`` has been added."""
        index = bisect_left(self._first_rows, first_row)
        return index < len(self._first_rows) and self._first_rows[index] == first_row

    def holding(self, rows: RowRanges) -> list[P]:
        """Return the pages that contain at least one of ``rows``, in row order."""
        pages, first_rows = self._pages, self._first_rows
        if len(rows.starts) > len(pages):
            return [page for page in pages if rows.overlaps(page.first_row, page.stop_row)]
        holding: list[P] = []
        following = 0
        for start, stop in zip(rows.starts, rows.stops, strict=True):
            low = max(bisect_right(first_rows, start) - 1, following)
            following = max(bisect_left(first_rows, stop), low)
            if low < following:  # only the first of them may end before the row
                holding += pages[low:following] if pages[low].stop_row > start else pages[low + 1 : following]
        return holding

    def discard_before(self, row: int) -> None:
        """Release the pages that end before ``row``."""
        position = bisect_right(self._first_rows, row)
        while position and self._pages[position - 1].stop_row > row:
            position -= 1
        if position:
            del self._pages[:position], self._first_rows[:position]


def packs_plain(leaf: Leaf, arrow_type: pa.DataType) -> bool:
    """Return whether :class:`PackedPage` can pick single PLAIN byte arrays of a leaf column with the type
    ``arrow_type``."""
    types = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    return leaf.physical_type == PhysicalType.BYTE_ARRAY and arrow_type in types


def common_length(data: bytes, begin: int, count: int) -> int | None:
    """Return the length that all of the ``count`` PLAIN byte arrays from the offset ``begin`` on have; None if lengths
    differ."""
    if count == 0 or len(data) < begin + LENGTH_BYTES:
        return None
    length = int.from_bytes(data[begin : begin + LENGTH_BYTES], "little")
    stride = length + LENGTH_BYTES
    if begin + stride * count != len(data):
        return None
    firsts = range(begin, begin + LENGTH_BYTES)
    prefixes_agree = all(data[first::stride] == data[first : first + 1] * count for first in firsts)
    return length if prefixes_agree else None


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
    values = content.data[content.start :] if content.start else content.data  # a bytes object is aligned
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(values)], 0)


class PresentValues(NamedTuple):
    """The decompressed bytes of a page without nulls, and the offset ``start`` of its encoded values in them."""

    data: bytes
    start: int


class _Parts(NamedTuple):
    """What follows the header of a data page: its levels and its values."""

    levels: memoryview  # of a V2 page
    values: memoryview  # as stored; in a V1 page, levels come first
    size: int  # of ``values``, decompressed
    compressed: bool

    def content(self, codec: int, leaf: Leaf) -> bytes:
        """Return the page's encoded values, decompressed."""
        return _decompressed(self.values, codec, self.size, leaf) if self.compressed else bytes(self.values)


def _parts(page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool) -> _Parts | None:
    """Divide a data page into levels and values; None if its decompressed size is not certain. Raises CorruptFileError
    if the CRC does not match."""
    payload = memoryview(page)[header.header_size :]
    compressed, num_levels = codec != Codec.UNCOMPRESSED, 0
    if header.type is PageType.DATA_PAGE_V2:
        num_levels = (header.rep_levels_bytes or 0) + (header.def_levels_bytes or 0)
        compressed = compressed and header.is_compressed
    values, size = payload[num_levels:], header.uncompressed_size - num_levels
    if compressed and claimed_size(values, codec) != size:
        return None
    if verify_crc and header.crc is not None and zlib.crc32(payload) != header.crc:
        raise CorruptFileError("a page does not match its CRC", column=leaf.dotted)
    return _Parts(payload[:num_levels], values, size if compressed else len(values), compressed)


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
    parts: list[_Parts] = []
    for position, (page, header) in enumerate(pages):
        part = _parts(page, header, leaf, codec, verify_crc=verify_crc) if header.encoding == Encoding.PLAIN else None
        if part is not None:
            searched.append(position)
            parts.append(part)
    stops = list(accumulate([part.size for part in parts]))
    if parts and codec == Codec.ZSTD and all(part.compressed for part in parts):
        frames = b"".join([part.values for part in parts])  # decompress to one content
        content = _decompressed(memoryview(frames), codec, stops[-1], leaf)
    else:
        content = b"".join([part.content(codec, leaf) for part in parts])
    without = set(searched)
    for text in texts:
        start = content.find(text)
        while start >= 0:
            number = bisect_right(stops, start)
            without.discard(searched[number])
            start = content.find(text, stops[number])
    return without


def present_values(
    page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool
) -> PresentValues | None:
    """Return the encoded values of a page; None if the page has nulls or its decompressed size is not certain.

    Raises CorruptFileError if the CRC does not match, or the payload cannot be decompressed.
    """
    is_v2 = header.type is PageType.DATA_PAGE_V2
    if is_v2 and (header.num_nulls or header.rep_levels_bytes):
        return None
    parts = _parts(page, header, leaf, codec, verify_crc=verify_crc)
    if parts is None:
        return None
    content = parts.content(codec, leaf)
    level = leaf.max_definition_level
    start = 0
    if level == 0:
        return PresentValues(content, start)
    levels = bytes(parts.levels)
    if not is_v2:
        if header.def_encoding != Encoding.RLE or len(content) < 4:
            return None
        start = 4 + int.from_bytes(content[:4], "little")
        levels = content[4 : min(start, 20)]
    return PresentValues(content, start) if _all_present(levels, header.num_values, level) else None


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


def _all_present(levels: bytes, count: int, level: int) -> bool:
    """Return whether no value of a page is null: its ``count`` encoded definition levels are one run of ``level``."""
    if not 2 <= len(levels) <= 6:
        return False
    reader = CompactReader(levels)
    run = reader.varint()
    return run & 1 == 0 and run >> 1 >= count and levels[reader.pos :] == bytes((level,))
