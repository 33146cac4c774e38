"""Parts of a column: pages as fetched and their headers, dictionaries and rows once decoded.

The pages of one leaf of one row group: which have come, which will, and which hold some rows.

Pages that are Arrow buffers already.

A PLAIN page of fixed-width values without nulls holds, once decompressed, exactly the bytes of an
Arrow array: little-endian values one after another (Encodings.md, Plain). Such a page needs no
decoder, which halves what a point lookup costs. Whatever is not plainly of this kind goes the usual
way, through pyarrow's Parquet reader.

Single rows out of a page, without decoding the others.

A lookup wants one value of a page of thousands. Two kinds of pages without nulls give it away: indices
into a dictionary, whose runs are walked to the row (Encodings.md, RLE / bit-packing hybrid), and PLAIN
byte arrays of one common length, where every value has its place. Whatever is not plainly one of these
goes the usual way, through pyarrow's Parquet reader.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from asyncpq.decoding.arrow import decompress
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError
from asyncpq.parquet.chunk_pages import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.parquet.column_chunk import Codec, ColumnChunk, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.pruning.row_ranges import RowRanges


class DataPage(NamedTuple):
    """A data page as fetched.

    Attributes:
        data: header and payload.
        first_row: its first row, counted in the row group.
        num_rows: how many rows it must hold: planned from the OffsetIndex, or from its own header.
        header: its header, where that was decoded already; not checked.
    """

    data: bytes
    first_row: int
    num_rows: int
    header: PageHeader | None = None

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """A column chunk's dictionary, decoded once.

    Attributes:
        values: Arrow array of the dictionary's values, in the leaf's Arrow type.
        identity_page: a dictionary page that stands for the file's own where indices are decoded.
        largest: bytes of its largest value, where they differ in size; else 0.
    """

    values: pa.Array
    identity_page: bytes
    largest: int

    @property
    def weight(self) -> int:
        return len(self.identity_page) + int(self.values.nbytes)


class LeafArray(NamedTuple):
    """Decoded rows of a leaf, still as dictionary indices where the pages were.

    Attributes:
        first_row: in the row group.
        values: the values, or int32 indices into ``dictionary``.
        dictionary: values of the dictionary, or None.
        lacks_dictionary: ``values`` are indices, but the dictionary is not here (:meth:`detached`).
    """

    first_row: int
    values: pa.Array
    dictionary: pa.Array | None
    lacks_dictionary: bool = False

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """Bytes that ``values`` hold in memory, which is all that a :meth:`detached` array holds."""
        return int(self.values.nbytes)

    def detached(self) -> LeafArray:
        """The same for a cache: without the dictionary, which is kept, weighed and evicted by itself."""
        return self if self.dictionary is None else self._replace(dictionary=None, lacks_dictionary=True)

    def attached(self, dictionary: Dictionary | None, column: str) -> LeafArray:
        """Undo :meth:`detached` with the dictionary of the same column chunk.

        Raises:
            CorruptFileError: there is none.
        """
        if not self.lacks_dictionary:
            return self
        if dictionary is None:
            raise CorruptFileError("dictionary-encoded pages without a dictionary page", column=column)
        return self._replace(dictionary=dictionary.values, lacks_dictionary=False)


class ChunkPage(NamedTuple):
    """A page that came with its whole column chunk.

    Attributes:
        start: where it begins in the object.
        data: its bytes.
        stop_row: once the row group's rows before this one were decoded, the page is known to be good.
        dictionary: what is in it, if it is the dictionary page.
    """

    start: int
    data: bytes
    stop_row: int
    dictionary: Dictionary | None

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


def page_header(
    page: bytes, chunk: ColumnChunk, leaf: Leaf, max_page_bytes: int, known: PageHeader | None = None
) -> PageHeader:
    """The header of one page of ``chunk``, held to what footer and OffsetIndex say of it.

    Args:
        page: header and payload, as long as the OffsetIndex says.
        known: the header, if it was decoded already.

    Raises:
        PageLocationError: it is none, or contradicts them.
        ResourceLimitError: the page claims more than ``max_page_bytes``.
    """
    try:
        header = decode_page_header(page, 0, max_bytes=max_page_bytes) if known is None else known
        if isinstance(header, NeedMore):
            raise PageLocationError("a page ends inside its header")
        check_page_header(header, expected_size=len(page), chunk=chunk, leaf=leaf)
    except CorruptFileError as error:
        if isinstance(error, PageLocationError):
            raise error.locate(column=leaf.dotted) from None
        raise PageLocationError(error.message, column=leaf.dotted) from error
    except AsyncpqError as error:
        raise error.locate(column=leaf.dotted) from error.__cause__
    if header.uncompressed_size > max_page_bytes:
        raise ResourceLimitError(
            f"a page claims {header.uncompressed_size} bytes, allowed are {max_page_bytes}",
            column=leaf.dotted,
            hint="Raise LimitOptions.max_page_bytes if the file is to be trusted.",
        )
    return header


def check_crc_alike(seen: dict[int, bool], header: PageHeader, chunk: ColumnChunk, leaf: Leaf) -> None:
    """Data pages of a chunk have a CRC all or none: a CRC that is missing would let a changed page pass.

    Args:
        seen: whether the pages looked at before have one, by ``chunk.start``; kept up to date.

    Raises:
        CorruptFileError: this page is not like them.
    """
    has_crc = header.crc is not None
    if seen.setdefault(chunk.start, has_crc) != has_crc:
        raise CorruptFileError("some data pages of a chunk have a CRC and some have none", column=leaf.dotted)


class RowSpan(Protocol):
    """A page in any state: rows of the row group."""

    @property
    def first_row(self) -> int: ...

    @property
    def stop_row(self) -> int: ...


P = TypeVar("P", bound=RowSpan)


class PageQueue(Generic[P]):
    """Pages in row order: they are told to come, come, and are let go of.

    Args:
        num_rows: of the row group.
    """

    __slots__ = ("_expected", "_first_rows", "_num_rows", "_pages")

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._pages: list[P] = []
        self._first_rows: list[int] = []
        self._expected: deque[int] = deque()  # first rows of pages that will come, ascending

    @property
    def rows_available(self) -> int:
        """Rows from the row group's start that no page is still to come for."""
        return self._expected[0] if self._expected else self._num_rows

    def expect(self, first_row: int) -> None:
        """The page that begins at ``first_row`` will come; told in row order, before it does."""
        self._expected.append(first_row)

    def add(self, page: P) -> None:
        """A page has come, in row order."""
        first_row = page.first_row
        self._pages.append(page)
        self._first_rows.append(first_row)
        if self._expected and self._expected[0] == first_row:
            self._expected.popleft()

    def has(self, first_row: int) -> bool:
        """Whether the page that begins at ``first_row`` has come."""
        at = bisect_left(self._first_rows, first_row)
        return at < len(self._first_rows) and self._first_rows[at] == first_row

    def holding(self, rows: RowRanges) -> list[P]:
        """The pages that hold any of ``rows``."""
        pages, first_rows = self._pages, self._first_rows
        if rows.num_ranges > len(pages):
            return [page for page in pages if rows.overlaps(page.first_row, page.stop_row)]
        found: list[P] = []
        following = 0
        for start, stop in rows:
            low = max(bisect_right(first_rows, start) - 1, following)
            following = max(bisect_left(first_rows, stop), low)
            found += [page for page in pages[low:following] if page.stop_row > start]
        return found

    def discard_before(self, row: int) -> None:
        """Rows before ``row`` will not be asked for again."""
        position = bisect_right(self._first_rows, row)
        while position and self._pages[position - 1].stop_row > row:
            position -= 1
        if position:
            del self._pages[:position], self._first_rows[:position]


_MAX_RUNS = 512  # to walk over; a page with more is cheaper to decode
LENGTH_BYTES = 4  # of a PLAIN byte array
_MAX_INDEX = 0x7FFF_FFFF


class PackedPage(NamedTuple):
    """A page without nulls that was decompressed, but not decoded.

    Attributes:
        page: as it was fetched.
        content: its bytes, whose encoded values begin at ``start``.
        value_bytes: length that all PLAIN values have; -1 where they are dictionary indices.
        prefix_bytes: what stands before each PLAIN value: 4 bytes of length, or nothing.
    """

    page: DataPage
    content: bytes
    start: int
    value_bytes: int
    prefix_bytes: int = 0

    @property
    def first_row(self) -> int:
        return self.page.first_row

    @property
    def stop_row(self) -> int:
        return self.page.stop_row

    @property
    def weight(self) -> int:
        """Bytes it holds in memory."""
        return len(self.page.data) + len(self.content)

    @property
    def is_indices(self) -> bool:
        return self.value_bytes < 0

    def indices(self, rows: Iterable[int]) -> list[int] | None:
        """Dictionary indices of a few ``rows``, ascending; None if it takes a decoder to tell."""
        found = _indices_at(self.content, self.start, [row - self.first_row for row in rows])
        return None if found is None or max(found) > _MAX_INDEX else found

    def plain(self, rows: Iterable[int], arrow_type: pa.DataType) -> pa.Array:
        """Values of ``rows``, where :attr:`is_indices` is false."""
        length = self.value_bytes
        stride = length + self.prefix_bytes
        first = self.start + self.prefix_bytes - self.first_row * stride
        starts = [first + row * stride for row in rows]
        data = pa.py_buffer(b"".join([self.content[start : start + length] for start in starts]))
        if not self.prefix_bytes:
            return pa.Array.from_buffers(arrow_type, len(starts), [None, data])
        code = "q" if arrow_type in (pa.large_string(), pa.large_binary()) else "i"
        offsets = [at * length for at in range(len(starts) + 1)]
        buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}{code}", *offsets)), data]
        return pa.Array.from_buffers(arrow_type, len(starts), buffers)


def packs_plain(leaf: Leaf, arrow_type: pa.DataType) -> bool:
    """Whether PLAIN pages of a leaf are byte arrays that :class:`PackedPage` can give as ``arrow_type``."""
    types = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    return leaf.physical_type == PhysicalType.BYTE_ARRAY and arrow_type in types


def common_length(data: bytes, begin: int, count: int) -> int | None:
    """The length of each of the ``count`` PLAIN byte arrays from ``begin`` on, if they all have the same; else None."""
    if count == 0 or len(data) < begin + LENGTH_BYTES:
        return None
    length = int.from_bytes(data[begin : begin + LENGTH_BYTES], "little")
    stride = length + LENGTH_BYTES
    if begin + stride * count != len(data):
        return None
    prefixes_agree = all(data[begin + at :: stride] == data[begin + at : begin + at + 1] * count for at in range(4))
    return length if prefixes_agree else None


def _indices_at(data: bytes, begin: int, positions: list[int]) -> list[int] | None:
    """Values at ascending ``positions`` of the hybrid-encoded page body from ``begin`` on, bit width first."""
    if len(data) <= begin or data[begin] > 32:
        return None
    width = data[begin]
    found: list[int] = []
    first = 0  # position of the present run's first value
    at = begin + 1
    runs = 0
    body, count, packed = at, 0, False  # the present run: where its bytes are, values in it, its kind
    for position in positions:
        while position >= first + count:
            first += count
            at = body + (count * width >> 3 if packed else width + 7 >> 3) if runs else begin + 1
            header = shift = 0
            while True:
                if at >= len(data) or shift > 28:
                    return None
                byte = data[at]
                at += 1
                header |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            runs += 1
            if runs > _MAX_RUNS:
                return None
            body, packed = at, bool(header & 1)
            count = (header >> 1) * 8 if packed else header >> 1
            if body + (count * width >> 3 if packed else width + 7 >> 3) > len(data):
                return None  # cut off, which a decoder reports
        bit = (position - first) * width if packed else 0
        start, stop = body + (bit >> 3), body + (bit + width + 7 >> 3)
        if stop > len(data):
            return None
        value = int.from_bytes(data[start:stop], "little")
        found.append(value >> (bit & 7) & (1 << width) - 1 if packed else value)
    return found


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
