"""The pages of a column chunk: headers decoded (parquet.thrift, PageHeader), checked, and bytes cut into pages.

``decode_page_header`` reads one header from bytes that may end anywhere. ``check_page_header`` compares it with the
footer and the OffsetIndex. ``PageWalker`` cuts a chunk's bytes into pages as they come.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from asyncpq.errors import CorruptFileError, ResourceLimitError, UnsupportedFeatureError, limit_hint
from asyncpq.parquet.column_chunk import (
    DICTIONARY_ENCODINGS,
    KNOWN_ENCODINGS,
    READ_CODECS,
    ColumnChunk,
    Encoding,
    PageType,
    unsupported,
    zigzag_number,
)
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import BINARY, FALSE, I32, I64, TRUE, CompactReader, EndOfDataError, Fields
from asyncpq.records import NamedTuple, dataclass

MAX_HEADER_BYTES: Final = 16 << 20  # headers hold statistics, and those may hold long values

_PAGE_TYPES: Final = tuple(PageType)
_UNCOMPRESSED: Final = 3  # position of PageHeader.uncompressed_size: of pages without CRC, mostly what precedes differs
PAGE_HEADER_FIELDS: Final = {PageType.DATA_PAGE: 5, PageType.DICTIONARY_PAGE: 7, PageType.DATA_PAGE_V2: 8}
_MAX_ELEMENTS: Final = 1 << 16
_WINDOW: Final = 4096

# Headers as most writers write them: integers, of which a fourth is the CRC, and a struct that begins with integers,
# all in the order of their ids. An i32 field whose id follows that of the field before it begins with the byte 0x15.
_NEXT_I32: Final = 0x15
#: How many integers the struct begins with, by type of the page, number of the header's integers, and first byte of the
#: struct.
_STRUCTS: Final = {(0, 3, 0x2C): 4, (0, 4, 0x1C): 4, (2, 3, 0x4C): 2, (2, 4, 0x3C): 2, (3, 3, 0x5C): 6, (3, 4, 0x4C): 6}
_TRUE_FIELD: Final = 0x11  # _TRUE_FIELD, _FALSE_FIELD: a bool field after the integers
_FALSE_FIELD: Final = 0x12
_STATISTICS: Final = (0x1C, 0x2C)  # begin the statistics, after the bool or without it
WRONG_NUM_ROWS: Final = "its V2 pages claim other rows than they hold"
WRONG_UNCOMPRESSED_SIZE: Final = "its total_uncompressed_size is not that of its pages"


class NeedMore(enum.Enum):
    """Returned when the bytes end inside a page header, so that it cannot be decoded yet."""

    NEED_MORE = "need more"


class PageHeader(NamedTuple):
    """One page's header. Fields of other page types are None.

    Attributes:
        type: INDEX_PAGE also for unknown types.
        header_size: bytes of the header itself.
        compressed_size: bytes of the page without its header.
        crc: CRC-32 of the compressed bytes, unsigned.
        num_values: of the leaf, nulls included; a dictionary's entries; 0 for an index page.
        encoding: code of Encoding, of the values.
        num_rows: of a V2 data page; advisory, as some writers count otherwise; None if impossible.
        num_nulls: as ``num_rows``.
        def_encoding, rep_encoding: codes of Encoding, of a V1 data page's levels.
        def_levels_bytes, rep_levels_bytes: of a V2 data page's levels, which are not compressed.
        is_compressed: False only in V2 data pages that say so.
    """

    type: PageType
    header_size: int
    compressed_size: int
    uncompressed_size: int
    crc: int | None
    num_values: int
    encoding: int
    num_rows: int | None = None
    num_nulls: int | None = None
    def_encoding: int | None = None
    rep_encoding: int | None = None
    def_levels_bytes: int | None = None
    rep_levels_bytes: int | None = None
    is_compressed: bool = True

    @property
    def page_size(self) -> int:
        """Bytes of the page with its header, as an OffsetIndex gives them."""
        return self.header_size + self.compressed_size

    @property
    def is_data(self) -> bool:
        """Whether the page is a data page, of V1 or V2."""
        return self.type is PageType.DATA_PAGE or self.type is PageType.DATA_PAGE_V2


def decode_page_header(
    data: bytes | memoryview, offset: int = 0, *, max_bytes: int = MAX_HEADER_BYTES, complete: bool = False
) -> PageHeader | NeedMore:
    """Decode the page header at ``data[offset:]``; return NEED_MORE if ``data`` ends inside the header.

    ``complete`` means that no more bytes will come, so a header that is cut off is corrupt. Raises CorruptFileError if
    the bytes are not a page header, or a size or count is negative or missing; ResourceLimitError if the header is
    longer than ``max_bytes``.
    """
    try:
        header = _usual_header(data, offset)
    except IndexError:  # the bytes end
        header = None
    if header is None:
        return _unusual_header(data, offset, max_bytes, complete)
    if header.header_size > max_bytes:
        raise _too_long(max_bytes)
    return header


def _usual_header(data: bytes | memoryview, offset: int) -> PageHeader | None:
    """Decode a header as most writers write it, faster than :func:`_unusual_header`; None for any other, also a damaged
    one, and for statistics longer than 127 bytes. Raises IndexError if the bytes end.

    A regular expression takes two thirds of this time once it is compiled, for 3 ms: that is as long as 2,000 headers.
    """
    outer, pos = _integers(data, offset)
    inner, end = _integers(data, pos + 1)
    if len(outer) < 3 or len(inner) != _STRUCTS.get((outer[0], len(outer), data[pos])):
        return None
    flag = data[end]
    if flag == _TRUE_FIELD or flag == _FALSE_FIELD:
        end += 1
    if data[end] in _STATISTICS:
        end = _after_statistics(data, end + 1)
    if data[end] or data[end + 1]:  # the structs do not end here
        return None
    if outer[1] < 0 or outer[2] < 0 or min(inner) < 0:
        return None
    size, crc = end + 2 - offset, outer[3] & 0xFFFFFFFF if len(outer) == 4 else None
    if len(inner) == 4:
        values, encoding, definition, repetition = inner
        return PageHeader(
            PageType.DATA_PAGE, size, outer[2], outer[1], crc, values, encoding, None, None, definition, repetition
        )
    if len(inner) == 2:
        return PageHeader(PageType.DICTIONARY_PAGE, size, outer[2], outer[1], crc, inner[0], inner[1])
    common = PageType.DATA_PAGE_V2, size, outer[2], outer[1], crc
    values, nulls, rows, encoding, def_bytes, rep_bytes = inner
    is_compressed = flag != _FALSE_FIELD
    return _checked_v2(
        PageHeader(*common, values, encoding, rows, nulls, None, None, def_bytes, rep_bytes, is_compressed)
    )


def _integers(data: bytes | memoryview, pos: int) -> tuple[list[int], int]:
    """Decode the i32 fields at ``pos`` whose ids follow one another; return them and where they end."""
    values: list[int] = []
    while data[pos] == _NEXT_I32:
        n = data[pos + 1]  # most integers have one to three bytes
        if n < 0x80:
            pos += 2
        elif (high := data[pos + 2]) < 0x80:
            n += (high << 7) - 0x80
            pos += 3
        elif (top := data[pos + 3]) < 0x80:
            n += (high << 7) + (top << 14) - 0x4080
            pos += 4
        else:
            stop = pos + 5 if data[pos + 4] < 0x80 else pos + 6
            if data[stop - 1] > (0x7F if stop == pos + 5 else 0x0F):  # more than 32 bits
                break
            values.append(zigzag_number(bytes(data[pos + 1 : stop])))
            pos = stop
            continue
        values.append((n >> 1) ^ -(n & 1))
    return values, pos


def _after_statistics(data: bytes | memoryview, pos: int) -> int:
    """Return where the struct ends whose fields begin at ``pos``; where a field is that no statistics have, if there is
    one."""
    while (header := data[pos]) > 0x0F:
        type_ = header & 0x0F
        if type_ == BINARY and data[pos + 1] < 0x80:
            pos += 2 + data[pos + 1]
        elif type_ == TRUE or type_ == FALSE:
            pos += 1
        elif type_ == I64 or type_ == I32:
            stop = pos + 1
            while data[stop] > 0x7F:
                stop += 1
            if stop - pos > 9:
                return pos
            pos = stop + 1
        else:
            return pos
    return pos if header else pos + 1


def _too_long(max_bytes: int) -> ResourceLimitError:
    return ResourceLimitError(f"a page header is longer than {max_bytes} bytes")


def _unusual_header(data: bytes | memoryview, offset: int, max_bytes: int, complete: bool) -> PageHeader | NeedMore:
    window = _WINDOW  # of a copy, since the data may be a whole column chunk
    while True:
        reader = CompactReader(bytes(data[offset : offset + window]), max_elements=_MAX_ELEMENTS)
        try:
            fields = reader.struct()
        except EndOfDataError as error:
            if offset + window < len(data):
                window *= 16
                continue
            if len(data) - offset >= max_bytes:
                raise _too_long(max_bytes) from error
            if complete:
                raise CorruptFileError("the bytes end inside a page header") from error
            return NeedMore.NEED_MORE
        if reader.pos > max_bytes:
            raise _too_long(max_bytes)
        return _page_header(fields, reader.pos)


def _page_header(fields: Fields, size: int) -> PageHeader:
    code, uncompressed, compressed = _numbers(fields, _SIZES)
    # Unknown page types are skipped like index pages. The chunk's number of values shows if any are missing.
    page_type = _PAGE_TYPES[code] if code < len(_PAGE_TYPES) else PageType.INDEX_PAGE
    crc = fields.get(4)
    crc = crc & 0xFFFFFFFF if type(crc) is int else None
    common = page_type, size, compressed, uncompressed, crc
    if page_type is PageType.INDEX_PAGE:
        return PageHeader(*common, 0, 0)
    content = fields.get(PAGE_HEADER_FIELDS[page_type])
    if not isinstance(content, dict):
        raise CorruptFileError(f"a page header of type {page_type.name} lacks the struct that this type requires")
    if page_type is PageType.DATA_PAGE:
        values, encoding, definition, repetition = _numbers(content, _V1_FIELDS)
        return PageHeader(*common, values, encoding, def_encoding=definition, rep_encoding=repetition)
    if page_type is PageType.DICTIONARY_PAGE:
        values, encoding = _numbers(content, _DICTIONARY_FIELDS)
        return PageHeader(*common, values, encoding)
    values, encoding, def_bytes, rep_bytes = _numbers(content, _V2_FIELDS)
    return _checked_v2(
        PageHeader(
            *common,
            values,
            encoding,
            num_rows=_advisory(content, 3),
            num_nulls=_advisory(content, 2),
            def_levels_bytes=def_bytes,
            rep_levels_bytes=rep_bytes,
            is_compressed=content.get(7) is not False,
        )
    )


def _checked_v2(header: PageHeader) -> PageHeader:
    levels = (header.def_levels_bytes or 0) + (header.rep_levels_bytes or 0)
    if levels > header.compressed_size or levels > header.uncompressed_size:
        raise CorruptFileError(
            f"a page's levels take {levels} bytes, but the page has "
            f"{header.compressed_size} bytes ({header.uncompressed_size} uncompressed)"
        )
    return header


def _advisory(fields: Fields, field_id: int) -> int | None:
    value = fields.get(field_id)
    return value if type(value) is int and 0 <= value < 1 << 31 else None


_SIZES: Final = {1: "type", 2: "uncompressed size", 3: "compressed size"}
_DICTIONARY_FIELDS: Final = {1: "number of values", 2: "encoding"}
_V1_FIELDS: Final = {**_DICTIONARY_FIELDS, 3: "encoding of definition levels", 4: "encoding of repetition levels"}
_V2_FIELDS: Final = {
    1: "number of values",
    4: "encoding",
    5: "length of definition levels",
    6: "length of repetition levels",
}


def _numbers(fields: Fields, names: Mapping[int, str]) -> list[int]:
    """Return the fields with the ids that ``names`` has, which are not negative."""
    numbers: list[int] = []
    for field_id, name in names.items():
        value = fields.get(field_id)
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise CorruptFileError(f"a page header's {name} is missing or out of range: {value!r}")
        numbers.append(value)
    return numbers


# -- checks -----------------------------------------------------------------------------------------


def check_page_header(
    header: PageHeader, *, chunk: ColumnChunk, leaf: Leaf | None = None, expected_size: int | None = None
) -> None:
    """Check the header of a data or dictionary page against its chunk; this check finds most flipped bits in headers.

    ``leaf`` is the chunk's column; if None, the encodings of levels are not checked. ``expected_size`` is the page's
    size in the OffsetIndex; if None, the size is not checked. Raises CorruptFileError if header and chunk contradict
    each other. Fields of the chunk that reads can do without are checked by :func:`header_contradiction` instead.
    """
    page_size = header.header_size + header.compressed_size
    is_data = header.type is PageType.DATA_PAGE or header.type is PageType.DATA_PAGE_V2
    if expected_size is not None and page_size != expected_size:
        raise CorruptFileError(f"a page has {page_size} bytes, but the OffsetIndex says {expected_size} bytes")
    if is_data and header.encoding not in chunk.encodings and not _may_have_encoding(header.encoding, chunk):
        raise CorruptFileError(
            f"a page has the encoding {header.encoding}, which the footer does not list for its column chunk"
        )
    if (is_data and header.encoding not in KNOWN_ENCODINGS) or chunk.codec not in READ_CODECS:
        reason = unsupported((header.encoding,) if is_data else (), chunk.codec)
        raise UnsupportedFeatureError(f"the column has {reason}")
    if header.type is PageType.INDEX_PAGE:
        raise CorruptFileError("the file has an index page where a data or dictionary page is expected")
    if leaf is not None and header.type is PageType.DATA_PAGE:
        for level, code in (
            (leaf.max_definition_level, header.def_encoding),
            (leaf.max_repetition_level, header.rep_encoding),
        ):
            # CRCs do not cover headers, and a wrong encoding gives wrong levels.
            if level and code != Encoding.RLE and (code != Encoding.BIT_PACKED or not _lists(chunk, code)):
                raise CorruptFileError(
                    f"a page's levels have the encoding {code}, which the footer does not list for its column chunk"
                )
    if page_size > chunk.total_compressed_size:
        raise CorruptFileError(
            f"a page has {page_size} bytes, more than its column chunk, which has {chunk.total_compressed_size}"
        )
    if is_data and header.num_values > chunk.num_values:
        raise CorruptFileError(
            f"a page has {header.num_values} values, more than its column chunk, which has {chunk.num_values}"
        )


def header_contradiction(header: PageHeader, chunk: ColumnChunk, *, repeated: bool) -> str | None:
    """Return a message if a page's header contradicts a field of its chunk's metadata that reads can do without;
    otherwise None.

    The caller then ignores that field. If the leaf column is not ``repeated``, a V2 page must have as many rows as
    values.
    """
    # DuckDB does not list the dictionary page's own encoding.
    if header.encoding not in chunk.encodings and header.is_data and not _lists(chunk, header.encoding):
        return "its encodings are not those that the footer lists"
    rows, values = header.num_rows, header.num_values
    if rows is not None and (rows > values if repeated else rows != values):
        return WRONG_NUM_ROWS
    if header.header_size + header.uncompressed_size > chunk.total_uncompressed_size:
        return WRONG_UNCOMPRESSED_SIZE
    return None


def _may_have_encoding(encoding: int, chunk: ColumnChunk) -> bool:
    """Return whether the chunk's metadata allow pages with an encoding: its encodings or encoding_stats list it, or it
    has no encoding_stats.

    fastparquet up to 0.6 lists only PLAIN for pages of categories: indices are also allowed if there is a dictionary.
    """
    stats = chunk.encoding_stats
    if _lists(chunk, encoding) or not stats or _is_in(encoding, [entry.encoding for entry in stats]):
        return True
    has_dictionary = chunk.dictionary_page_offset is not None or any(
        entry.page_type == PageType.DICTIONARY_PAGE for entry in stats
    )
    return encoding in DICTIONARY_ENCODINGS and has_dictionary


def _lists(chunk: ColumnChunk, encoding: int) -> bool:
    """Return whether the chunk's ``encodings`` list an encoding; True if the list is empty, as old writers leave it."""
    return not chunk.encodings or _is_in(encoding, chunk.encodings)


def _is_in(encoding: int, encodings: Sequence[int]) -> bool:
    """Return whether ``encodings`` contain an encoding; both codes of dictionary encoding count as the same."""
    return encoding in encodings or (
        encoding in DICTIONARY_ENCODINGS and not DICTIONARY_ENCODINGS.isdisjoint(encodings)
    )


@dataclass(frozen=True, slots=True)
class RawPage:
    """One page of a column chunk: its decoded header, and its bytes as they are in the file.

    Attributes:
        offset: of the header in the file.
        data: header and content as in the file.
    """

    header: PageHeader
    offset: int
    data: bytes | memoryview


class PageWalker:
    """Cuts the bytes of one column chunk into pages while the bytes arrive.

    Feed the chunk's bytes in order from ``chunk.start``, in pieces of any size, then call :meth:`finish`. Pages are
    views of these bytes; only a page that arrives in several pieces is copied.

    Args:
        chunk: the column chunk.
        max_page_bytes: the largest accepted size of a page in bytes, compressed or not.
        leaf: the chunk's column; if None, the encodings of levels are not checked.
        padded: the chunk's span was widened because its writer understated it (PARQUET-816); bytes after the chunk's
            last value are ignored.
        verify_crc: check that all data pages have a CRC, or that none has: a missing CRC would let a changed page pass.
        drop: called with a message for each statement of the footer that is ignored because the pages contradict it.
    """

    def __init__(
        self,
        chunk: ColumnChunk,
        *,
        max_page_bytes: int,
        leaf: Leaf | None = None,
        padded: bool = False,
        verify_crc: bool = True,
        drop: Callable[[str], None] | None = None,
    ) -> None:
        self._padded = padded
        self._verify_crc = verify_crc
        self._drop = drop
        self._is_repeated = leaf is not None and leaf.max_repetition_level > 0
        self._chunk = chunk
        self._leaf = leaf
        self._max_page_bytes = max_page_bytes
        self._buffer = bytearray()
        self._needed = 1  # bytes in the buffer before decoding can make progress
        self._offset = chunk.start
        self._pages = 0
        self._values = 0
        self._uncompressed = 0
        self._has_crc: bool | None = None
        self._alike: tuple[object, ...] = ()  # header of the last checked data page, from _UNCOMPRESSED on

    def feed(self, data: bytes | memoryview) -> list[RawPage]:
        """Take the chunk's next bytes; return the pages that these bytes complete, in file order.

        Raises CorruptFileError if the bytes are not pages of this chunk, ResourceLimitError if a page is too large.
        """
        pages: list[RawPage] = []
        view = memoryview(data)
        while self._buffer and not self._is_complete:  # the first bytes of a page, or of its header
            missing = self._needed - len(self._buffer)
            self._buffer += view[:missing]
            view = view[missing:]
            if len(self._buffer) < self._needed:
                return pages
            begun = memoryview(bytes(self._buffer))
            self._buffer.clear()
            self._buffer += self._take_pages(begun, pages)
        self._buffer += self._take_pages(view, pages)
        return pages

    @property
    def _is_complete(self) -> bool:
        return self._padded and self._values == self._chunk.num_values

    def _take_pages(self, data: memoryview, pages: list[RawPage]) -> memoryview:
        """Cut the whole pages off ``data`` and append them to ``pages``; return the bytes that are left."""
        pos, length, num_values, stop = 0, len(data), self._chunk.num_values, self._chunk.stop
        max_header = min(MAX_HEADER_BYTES, self._max_page_bytes)
        max_page = min(self._max_page_bytes, self._chunk.total_compressed_size)
        while pos < length and not (self._padded and self._values == num_values):
            header = decode_page_header(data, pos, max_bytes=max_header)
            if isinstance(header, NeedMore):
                remaining = length - pos
                # Doubling keeps the number of attempts low; a header at the chunk's end does not wait for more.
                self._needed = max(remaining + 1, min(2 * remaining, stop - self._offset))
                break
            size = header.header_size + header.compressed_size
            is_alike = header[_UNCOMPRESSED:] == self._alike  # then only its place and sizes are checked
            is_inside = size <= max_page and self._offset + size <= stop
            if not (is_alike and is_inside and self._values + header.num_values <= num_values):
                self._check(header)
            if length - pos < size:
                self._needed = size
                break
            pages.append(RawPage(header, self._offset, data[pos : pos + size]))
            pos += size
            self._offset += size
            self._pages += 1
            self._uncompressed += header.header_size + header.uncompressed_size
            if not is_alike:
                self._compare(header)
            if header.is_data:
                self._values += header.num_values
        return data[pos:]

    def _compare(self, header: PageHeader) -> None:
        """Compare a page with the footer and with the pages before it."""
        if self._drop is not None and (what := header_contradiction(header, self._chunk, repeated=self._is_repeated)):
            self._drop(what)
        if header.is_data:
            has_crc = header.crc is not None
            if self._verify_crc and self._has_crc not in (None, has_crc):
                raise CorruptFileError("some data pages of a column chunk have a CRC and others do not")
            self._has_crc = has_crc
            self._alike = header[_UNCOMPRESSED:]

    def _check(self, header: PageHeader) -> None:
        if max(header.page_size, header.uncompressed_size) > self._max_page_bytes:
            raise ResourceLimitError(
                f"a page's header says that it has {max(header.page_size, header.uncompressed_size)} bytes, "
                f"the limit is {self._max_page_bytes}",
                hint=limit_hint("max_page_bytes"),
            )
        chunk = self._chunk
        if header.type is not PageType.INDEX_PAGE:
            check_page_header(header, chunk=chunk, leaf=self._leaf)
        if header.type is PageType.DICTIONARY_PAGE and self._pages:
            raise CorruptFileError("a dictionary page is not the first page of its column chunk")
        if self._offset + header.page_size > chunk.stop:
            raise CorruptFileError(
                f"a page ends at byte {self._offset + header.page_size}, "
                f"after the end of its column chunk at {chunk.stop}"
            )
        if header.is_data and self._values + header.num_values > chunk.num_values:
            raise CorruptFileError(
                f"a column chunk's pages have {self._values + header.num_values} or more values, "
                f"but its metadata say {chunk.num_values}"
            )

    def finish(self) -> None:
        """Raise CorruptFileError if the chunk ended inside a page, or its pages lack some of its values or bytes."""
        if self._buffer and not self._padded:
            raise CorruptFileError(
                f"a column chunk ends inside a page, {len(self._buffer)} bytes after its last whole page"
            )
        if self._offset != self._chunk.stop and not self._padded:
            raise CorruptFileError(
                f"a column chunk's pages end at byte {self._offset}, but the chunk ends at byte {self._chunk.stop}"
            )
        if self._values != self._chunk.num_values:
            raise CorruptFileError(
                f"a column chunk's pages have {self._values} values, but its metadata say {self._chunk.num_values}"
            )
        if self._drop and self._uncompressed != self._chunk.total_uncompressed_size and not self._padded:
            self._drop(WRONG_UNCOMPRESSED_SIZE)
