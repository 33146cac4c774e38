"""The pages of one leaf column of one row group that have arrived.

``PageQueue`` holds the pages that have arrived and knows which are still to come. From a ``PackedPage`` of dictionary
indices (RLE / bit-packing hybrid), or of PLAIN byte arrays of one common length, single values are picked without
decoding the others; from one of ALP, too (``alp``).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.decoding.splice import SHARED_VALUES
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError, limit_hint
from asyncpq.parquet.chunk_pages import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import NamedTuple

LENGTH_BYTES = 4  # of a PLAIN byte array
_ARRAY_WEIGHT = 800  # bytes of a small array's objects
_MAX_RUNS = 512  # of indices; a page with more is cheaper to decode
_MAX_INDEX = 0x7FFF_FFFF
_ARRAY_BYTES = 1 << 24  # an array of picked values ends with the page whose values reach so many bytes


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
    num_bytes: int  # of ``values``

    @property
    def weight(self) -> int:
        shared = len(self.values) <= SHARED_VALUES  # the identity page of a small one is no more of its own
        return self.num_bytes + (_ARRAY_WEIGHT if shared else len(self.identity_page))


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
    """A page that is decompressed but not decoded, so that single values can be picked from it. Only an ALP page may
    have nulls."""

    data: bytes | memoryview  # of the page as fetched
    first_row: int  # first_row, stop_row: of the page
    stop_row: int
    content: bytes  # its bytes
    start: int  # of the encoded values in ``content``
    value_bytes: int  # the length that all PLAIN values have; -1 for dictionary indices
    prefix_bytes: int = 0  # before each PLAIN value: 4 of length, or none
    is_alp: bool = False
    flags: bytes = b""  # of an ALP page with nulls: which values are null, see ``levels.present_flags``

    @property
    def weight(self) -> int:
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
    """Return the length that all of the ``count`` PLAIN byte arrays in ``data[begin:end]`` have; None if lengths
    differ."""
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
