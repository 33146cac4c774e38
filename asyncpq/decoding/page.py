"""The pages of one leaf column of one row group: those that have arrived, and what Python itself decodes of them.

``PageQueue`` holds the pages that have arrived and knows which are still to come. From a ``PackedPage`` of dictionary
indices (RLE / bit-packing hybrid), or of PLAIN byte arrays of one common length, single values are picked without
decoding the others; from one of ALP, too (``alp``).

Python decodes simple pages: those without nulls whose decompressed bytes are nearly those of an Arrow array. A PLAIN
page of fixed-width values holds just these bytes (Encodings.md, Plain); one of byte arrays has a length in front of
each, which is cut off if all are the same. pyarrow decodes all other pages (``leaf.py``, ``nested.py``). Reading PLAIN
pages this way halves the CPU of a point lookup, and takes a seventh off that of a scan of one column. It is done only
if the page is not compressed or its compressed bytes claim their size (zstd frames with a content size, snappy's
preamble): pyarrow's one-shot decompression does not report output that is shorter than asked for. A dictionary of a few
strings is decoded here too, since reading it out of a small file takes longer than the rest of a lookup.

Frames of zstd are decompressed several at once: Arrow makes a new context of 160 kB for each call.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import claimed_size, decompress, decompress_buffer
from asyncpq.decoding.splice import SHARED_VALUES
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError, limit_hint
from asyncpq.parquet.chunk_pages import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.parquet.column_chunk import Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import NamedTuple

LENGTH_BYTES = 4  # of a PLAIN byte array
_ARRAY_WEIGHT = 800  # bytes of a small array's objects
_MAX_RUNS = 512  # of indices; a page with more is cheaper to decode
_MAX_INDEX = 0x7FFF_FFFF
_ARRAY_BYTES = 1 << 24  # an array of picked values ends with the page whose values reach so many bytes
_MAX_PREFIXES = 64
_MOST_LEVELS = 20  # bytes of the levels of a page without nulls, or more
_WIDTHS = {PhysicalType.INT32: 4, PhysicalType.INT64: 8, PhysicalType.FLOAT: 4, PhysicalType.DOUBLE: 8}
_MAX_TEXT_BYTES = (1 << 31) - 1  # of one array with offsets of 32 bits
_FEW_VALUES = 256  # byte arrays of a dictionary; pyarrow decodes more of them faster
# Decompressed at once of many pages. Two threads that decompress less wait for Python's lock after each piece: a
# thousand keys took a fifth less time than with 256 KiB.
AT_ONCE_BYTES = 1 << 20

# The levels that V1 pages of a leaf column begin with, by their encoding and the number of values.
KnownLevels: TypeAlias = dict[tuple[int | None, int], bytes]


class DataPage(NamedTuple):
    """A data page as it was fetched: still encoded and compressed."""

    data: bytes | memoryview  # header and payload
    first_row: int  # counted in the row group
    num_rows: int  # that it must hold, planned from the OffsetIndex or from its own header
    header: PageHeader | None = None  # if it is decoded already
    checked: bool = False  # the header was checked

    @property
    def stop_row(self) -> int:
        """The row group's row after the page's last one."""
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """The dictionary of a column chunk, decoded.

    Attributes:
        values: in the leaf's Arrow type.
        identity_page: replaces the file's own dictionary page when indices are decoded.
        largest: bytes of the largest value if values differ in size, else 0.
        num_bytes: of ``values``.
    """

    values: pa.Array
    identity_page: bytes
    largest: int
    num_bytes: int

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""
        shared = len(self.values) <= SHARED_VALUES  # the identity page of a small one is no more of its own
        return self.num_bytes + (_ARRAY_WEIGHT if shared else len(self.identity_page))


class LeafArray(NamedTuple):
    """Decoded rows of a leaf column: values, or indices into a dictionary.

    Attributes:
        first_row: in the row group.
        lacks_dictionary: ``values`` are indices and the dictionary is elsewhere.
    """

    first_row: int
    values: pa.Array  # the values, or int32 indices into ``dictionary``
    dictionary: pa.Array | None
    lacks_dictionary: bool = False

    @property
    def stop_row(self) -> int:
        """The row group's row after the last one."""
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """The bytes of ``values`` in memory, without the dictionary."""
        return int(self.values.nbytes)

    def detached(self) -> LeafArray:
        """Return the array without its dictionary, for a cache; the dictionary has a cache entry of its own."""
        return self if self.dictionary is None else self._replace(dictionary=None, lacks_dictionary=True)

    def attached(self, dictionary: Dictionary | None, column: str) -> LeafArray:
        """Undo :meth:`detached`: join the indices with the column chunk's dictionary. Raises CorruptFileError without
        one."""
        if not self.lacks_dictionary:
            return self
        if dictionary is None:
            raise CorruptFileError(
                "the column chunk has dictionary-encoded pages, but no dictionary page", column=column
            )
        return LeafArray(self.first_row, self.values, dictionary.values)


class ChunkPage(NamedTuple):
    """A page that was fetched with its whole column chunk.

    Attributes:
        start: its offset in the object.
        stop_row: the page is good once the row group's rows before this one are decoded.
        dictionary: the decoded values of a dictionary page.
    """

    start: int
    data: bytes | memoryview
    stop_row: int
    dictionary: Dictionary | None

    @property
    def stop(self) -> int:
        """The offset in the object after the page's last byte."""
        return self.start + len(self.data)


class PackedPage(NamedTuple):
    """A page that is decompressed but not decoded, for picking single values. Only an ALP page may have nulls.

    Attributes:
        data: of the page as fetched.
        first_row, stop_row: of the page.
        content: its bytes.
        start: of the encoded values in ``content``.
        value_bytes: the length that all PLAIN values have; -1 for dictionary indices.
        prefix_bytes: before each PLAIN value: 4 of length, or none.
        flags: of an ALP page with nulls: which values are null, see ``levels.present_flags``.
    """

    data: bytes | memoryview
    first_row: int
    stop_row: int
    content: bytes
    start: int
    value_bytes: int
    prefix_bytes: int = 0
    is_alp: bool = False
    flags: bytes = b""

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""
        return len(self.data) + len(self.content) + len(self.flags)

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


# Values picked from one page: their indices into the dictionary, or None; the bytes of PLAIN values; the number of
# values; the length of each PLAIN value, -1 if it is that of the type.
Picked: TypeAlias = "tuple[list[int] | None, bytes, int, int]"


def stop_of_group(pieces: Sequence[pa.Array | Picked], start: int, dictionary: Dictionary | None) -> int:
    """Return where the pieces end that become one array with ``pieces[start]``, which was picked: those picked from
    pages of the same encoding, until they have :data:`_ARRAY_BYTES`."""
    largest = 0 if dictionary is None else dictionary.largest
    is_plain = pieces[start][0] is None
    num_bytes, stop = 0, start
    while stop < len(pieces) and num_bytes < _ARRAY_BYTES:
        piece = pieces[stop]
        if not isinstance(piece, tuple) or (piece[0] is None) != is_plain:
            break
        num_bytes += len(piece[1]) if is_plain else piece[2] * largest
        stop += 1
    return stop


def array_of_plain(picked: Sequence[Picked], arrow_type: pa.DataType) -> pa.Array:
    """Return PLAIN values that were picked as an array of ``arrow_type``."""
    values = picked[0][1] if len(picked) == 1 else b"".join([data for _, data, _, _ in picked])
    buffers: list[pa.Buffer | None] = [None, pa.py_buffer(values)]
    num_values = 0
    offsets = [0]
    for _, _, count, length in picked:
        num_values += count
        if length >= 0:
            stop = offsets[-1]
            # a range of step 0 is none
            offsets += range(stop + length, stop + (count + 1) * length, length) if length else (stop,) * count
    if picked[0][3] >= 0:
        code = "q" if arrow_type in (pa.large_string(), pa.large_binary()) else "i"
        buffers.insert(1, pa.py_buffer(struct.pack(f"<{num_values + 1}{code}", *offsets)))
    return pa.Array.from_buffers(arrow_type, num_values, buffers)


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


def common_length(data: bytes, begin: int, count: int, end: int) -> int | None:
    """Return the length of each of the ``count`` PLAIN byte arrays in ``data[begin:end]``; None if lengths differ."""
    if count == 0 or end < begin + LENGTH_BYTES:
        return None
    length = int.from_bytes(data[begin : begin + LENGTH_BYTES], "little")
    stride = length + LENGTH_BYTES
    if begin + stride * count != end:
        return None
    for first in range(begin, begin + LENGTH_BYTES):
        if data[first:end:stride] != data[first : first + 1] * count:
            return None
    return length


def page_header(
    page: bytes | memoryview, chunk: ColumnChunk, leaf: Leaf, max_page_bytes: int, known: PageHeader | None = None
) -> PageHeader:
    """Decode the header of one page of ``chunk``, and check it against the footer and the OffsetIndex.

    ``known`` is the header if it is decoded already. Raises PageLocationError if the page has no valid header or the
    header contradicts footer or index; ResourceLimitError if the page is larger than ``max_page_bytes``.
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
            f"a page's header says that it has {header.uncompressed_size} bytes, the limit is {max_page_bytes}",
            column=leaf.dotted,
            hint=limit_hint("max_page_bytes"),
        )
    return header


def check_crc_alike(seen: dict[int, bool], header: PageHeader, chunk: ColumnChunk, leaf: Leaf) -> None:
    """Raise CorruptFileError if only some data pages of a chunk have a CRC, since a changed page might then pass.

    ``seen``, which is updated, maps ``chunk.data_page_offset`` to whether the chunk's earlier pages have a CRC.
    """
    has_crc = header.crc is not None
    if seen.setdefault(chunk.data_page_offset, has_crc) != has_crc:
        raise CorruptFileError("some data pages of a column chunk have a CRC and others do not", column=leaf.dotted)


# -- simple pages, decoded without pyarrow's reader -----------------------------------------------


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
    """Return a PLAIN data page's values as an array over its decompressed bytes; None if pyarrow must decode it.

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
    parts: list[PageParts] = []
    for page, header in zip(pages, headers, strict=True):
        part = _parts(page.data, header, leaf, codec, verify_crc=verify_crc)
        if part is None:
            return None
        parts.append(part)
    count = sum([header.num_values for header in headers])
    if width and codec == Codec.ZSTD and all(part.compressed for part in parts):
        buffer = _decompressed_values(parts, headers, leaf, width, prefixes)
        return None if buffer is None else pa.Array.from_buffers(arrow_type, count, [None, buffer], 0)
    gathered = _Gathered(count, width)
    room = sum([header.uncompressed_size for header in headers])
    for some in _batches(parts, headers):
        content = _contents([part for part, _ in some], codec, leaf)
        start = 0
        for part, header in some:
            stop = start + part.size
            levels = _known_levels(prefixes, part, content, start, header, leaf)
            if levels is None or not gathered.add(content, start + levels, stop, header.num_values, room):
                return None
            start = stop
    if width:
        return pa.Array.from_buffers(arrow_type, gathered.count, [None, gathered.buffer], 0)
    return gathered.texts(arrow_type)


def _decompressed_values(
    parts: Sequence[PageParts], headers: Sequence[PageHeader], leaf: Leaf, width: int, prefixes: KnownLevels
) -> pa.Buffer | None:
    """Return the values of zstd pages, of ``width`` bytes each, next to each other; None if a page has nulls.

    All pages are decompressed at once into the memory of the result, in which values then move over the levels in front
    of them. So new memory is touched first in the decompression, without Python's lock: the scan of a column of ten
    million takes a tenth less CPU than if each megabyte was decompressed and copied.
    """
    if not prefixes and headers[0].type is PageType.DATA_PAGE:  # the first pages: are there nulls?
        content = _decompressed(parts[0].values, Codec.ZSTD, parts[0].size, leaf)
        if _known_levels(prefixes, parts[0], content, 0, headers[0], leaf) is None:
            return None
    frames = b"".join([part.values for part in parts])
    buffer = decompress_buffer("zstd", frames, sum([part.size for part in parts]), column=leaf.dotted)
    view = memoryview(buffer).cast("B")
    filled = start = 0
    for header, part in zip(headers, parts, strict=True):
        stop = start + part.size
        levels = _known_levels(prefixes, part, bytes(view[start : start + _MOST_LEVELS]), 0, header, leaf)
        if levels is None or stop - start - levels != header.num_values * width:
            return None
        following = filled + stop - start - levels
        if filled < start + levels:
            view[filled:following] = view[start + levels : stop]
        filled, start = following, stop
    return buffer


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
    length = _levels_bytes(part, content[start : start + _MOST_LEVELS], header, leaf)
    if is_v1 and length is not None:
        if len(prefixes) >= _MAX_PREFIXES:
            prefixes.clear()
        prefixes[key] = content[start : start + length]
    return length


def _batches(parts: Sequence[PageParts], headers: Sequence[PageHeader]) -> Iterator[list[tuple[PageParts, PageHeader]]]:
    """Divide pages into runs of about :data:`AT_ONCE_BYTES` decompressed bytes."""
    batch: list[tuple[PageParts, PageHeader]] = []
    size = 0
    for part, header in zip(parts, headers, strict=True):
        if batch and size + header.uncompressed_size > AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((part, header))
        size += header.uncompressed_size
    if batch:
        yield batch


class PresentValues(NamedTuple):
    """The decompressed bytes of a page without nulls, and the offset ``start`` of its encoded values in them."""

    data: bytes
    start: int


class PageParts(NamedTuple):
    """The content of a data page after its header: levels and values."""

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
    """Return the positions, in ``pages``, of PLAIN pages on which no value contains one of ``texts``.

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
    search = _memmem()
    for text in texts:
        is_absent = search is not None and search(content, len(content), text, len(text)) is None
        start = -1 if is_absent else content.find(text)
        while start >= 0:
            number = bisect_right(stops, start)
            without.discard(searched[number])
            start = content.find(text, stops[number])
    return without


@lru_cache(1)
def _memmem() -> Callable[[bytes, int, bytes, int], int | None] | None:
    """Return the C library's search for bytes in other bytes; None if there is none, as on Windows.

    It takes a quarter of the time of ``bytes.find``, and does not hold Python's lock: that search took a fifth of a
    filtered scan, in which no other thread ran Python.
    """
    try:
        from ctypes import CDLL, c_char_p, c_size_t, c_void_p

        search = CDLL(None).memmem
    except (AttributeError, ImportError, OSError, TypeError):  # a Python that was built without libffi has no ctypes
        return None
    search.restype, search.argtypes = c_void_p, (c_char_p, c_size_t, c_char_p, c_size_t)
    return search


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
    which the first ``_MOST_LEVELS`` bytes are enough. None if the page has nulls."""
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
    return start if _all_present(content[LENGTH_BYTES : min(start, _MOST_LEVELS)], header.num_values, level) else None


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
