"""RawPage headers (parquet.thrift, PageHeader), decoded from bytes that may end anywhere.

RawPage headers against what the metadata say, and a chunk's bytes cut into pages, without I/O.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, ColumnChunk, Encoding, PageType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader, EndOfDataError, Fields
from asyncpq.parquet.thrift_patterns import COUNT32, STATISTICS, STOP_BYTE, VARINT32, any_of, optional

MAX_HEADER_BYTES: Final = 16 << 20  # headers hold statistics, and those may hold long values

_PAGE_TYPES: Final = tuple(PageType)
_UNIONS: Final = {PageType.DATA_PAGE: 5, PageType.DICTIONARY_PAGE: 7, PageType.DATA_PAGE_V2: 8}
_MAX_ELEMENTS: Final = 1 << 16
_IS_COMPRESSED_FALSE: Final = b"\x12"

# Headers of data pages as writers write them, all fields in the order of their ids. Groups: uncompressed
# and compressed size, CRC, and the numbers of the inner struct. Whatever is unusual, down to a negative
# number, does not match and is left to the plain reader.
_COUNT: Final = rb"\x15(" + COUNT32 + b")"
_CRC: Final = rb"\x15(" + VARINT32 + b")"
_DATA_PAGE: Final = re.compile(
    rb"\x15\x00" + _COUNT * 2 + any_of(_CRC + rb"\x1c", rb"\x2c") + _COUNT * 4
    + optional(rb"\x1c" + STATISTICS) + STOP_BYTE * 2,
    re.DOTALL,
)  # fmt: skip
_DATA_PAGE_V2: Final = re.compile(
    rb"\x15\x06" + _COUNT * 2 + any_of(_CRC + rb"\x4c", rb"\x5c") + _COUNT * 6
    + any_of(rb"([\x11\x12])" + optional(rb"\x1c" + STATISTICS), optional(rb"\x2c" + STATISTICS))
    + STOP_BYTE * 2,
    re.DOTALL,
)  # fmt: skip


class NeedMore(enum.Enum):
    """The bytes shown end inside the header."""

    NEED_MORE = "need more"


class PageHeader(NamedTuple):
    """One page's header. What does not belong to its type is None.

    Attributes:
        type: which of the fields below are there; INDEX_PAGE also for types that are not known.
        header_size: bytes of the header itself.
        compressed_size, uncompressed_size: bytes of the page without its header.
        crc: CRC-32 of those compressed bytes, unsigned; None when not written.
        num_values: of the leaf, nulls included; of a dictionary page its entries; 0 of an index page.
        num_rows, num_nulls: of a V2 data page; advisory, as some writers count them otherwise. None also where they
            cannot be.
        encoding: code of Encoding, of the values.
        def_encoding, rep_encoding: codes, of a V1 data page's levels.
        def_levels_bytes, rep_levels_bytes: of a V2 data page's levels, which are not compressed.
        is_compressed: False only in V2 data pages that say so.
    """

    type: PageType
    header_size: int
    compressed_size: int
    uncompressed_size: int
    crc: int | None
    num_values: int
    num_rows: int | None
    num_nulls: int | None
    encoding: int
    def_encoding: int | None
    rep_encoding: int | None
    def_levels_bytes: int | None
    rep_levels_bytes: int | None
    is_compressed: bool

    @property
    def page_size(self) -> int:
        """Bytes of the page with its header, as in an OffsetIndex."""
        return self.header_size + self.compressed_size

    @property
    def is_data(self) -> bool:
        return self.type is PageType.DATA_PAGE or self.type is PageType.DATA_PAGE_V2


_new_header = PageHeader._make


def decode_page_header(
    data: bytes, offset: int = 0, *, max_bytes: int = MAX_HEADER_BYTES, complete: bool = False
) -> PageHeader | NeedMore:
    """Read the page header at ``data[offset:]``.

    Args:
        data: bytes that may end anywhere.
        offset: where the header begins.
        max_bytes: a header longer than this is a ResourceLimitError.
        complete: no more bytes will come; a header that is cut off is then a CorruptFileError.

    Returns:
        The header, or NEED_MORE when ``data`` ends inside it.

    Raises:
        CorruptFileError: not a page header, sizes or counts that are negative or missing.
        ResourceLimitError: ``max_bytes`` are not enough for it.
    """
    if (found := _DATA_PAGE.match(data, offset)) is not None:
        header = _data_page(found)
    elif (found := _DATA_PAGE_V2.match(data, offset)) is not None:
        header = _data_page_v2(found)
    else:
        return _plain_header(data, offset, max_bytes, complete)
    if header.header_size > max_bytes:
        raise _too_long(max_bytes)
    return header


def _plain_header(data: bytes, offset: int, max_bytes: int, complete: bool) -> PageHeader | NeedMore:
    reader = CompactReader(data, offset, max_elements=_MAX_ELEMENTS)
    try:
        fields = reader.struct()
    except EndOfDataError as error:
        if len(data) - offset >= max_bytes:
            raise _too_long(max_bytes) from error
        if complete:
            raise CorruptFileError("the bytes end inside a page header") from error
        return NeedMore.NEED_MORE
    size = reader.pos - offset
    if size > max_bytes:
        raise _too_long(max_bytes)
    return _page_header(fields, size)


def _data_page(found: re.Match[bytes]) -> PageHeader:
    uncompressed, compressed, crc, num_values, encoding, def_encoding, rep_encoding = found.groups()
    start, stop = found.span()
    return _new_header(
        (
            PageType.DATA_PAGE,
            stop - start,
            _count(compressed),
            _count(uncompressed),
            None if crc is None else _crc(crc),
            _count(num_values),
            None,
            None,
            encoding[0] >> 1 if len(encoding) == 1 else _count(encoding),
            def_encoding[0] >> 1 if len(def_encoding) == 1 else _count(def_encoding),
            rep_encoding[0] >> 1 if len(rep_encoding) == 1 else _count(rep_encoding),
            None,
            None,
            True,
        )
    )


def _data_page_v2(found: re.Match[bytes]) -> PageHeader:
    (uncompressed, compressed, crc, num_values, num_nulls, num_rows) = found.groups()[:6]
    (encoding, def_levels, rep_levels, is_compressed) = found.groups()[6:]
    start, stop = found.span()
    header = _new_header(
        (
            PageType.DATA_PAGE_V2,
            stop - start,
            _count(compressed),
            _count(uncompressed),
            None if crc is None else _crc(crc),
            _count(num_values),
            _count(num_rows),
            _count(num_nulls),
            _count(encoding),
            None,
            None,
            _count(def_levels),
            _count(rep_levels),
            is_compressed != _IS_COMPRESSED_FALSE,
        )
    )
    _check_v2(header)
    return header


def _count(raw: bytes) -> int:
    """A COUNT32: the bytes' continuation bits are taken off in one subtraction, the sign bit is 0."""
    length = len(raw)
    if length == 1:
        return raw[0] >> 1
    if length == 2:
        return (raw[0] + (raw[1] << 7) - 0x80) >> 1
    if length == 3:
        return (raw[0] + (raw[1] << 7) + (raw[2] << 14) - 0x4080) >> 1
    if length == 4:
        return (raw[0] + (raw[1] << 7) + (raw[2] << 14) + (raw[3] << 21) - 0x204080) >> 1
    return (raw[0] + (raw[1] << 7) + (raw[2] << 14) + (raw[3] << 21) + (raw[4] << 28) - 0x10204080) >> 1


def _crc(raw: bytes) -> int:
    # Written as a signed number; the mask makes it the unsigned one that zlib.crc32 gives.
    return CompactReader(raw).integer() & 0xFFFFFFFF


def _too_long(max_bytes: int) -> ResourceLimitError:
    return ResourceLimitError(f"a page header is longer than {max_bytes} bytes")


def _page_header(fields: Fields, size: int) -> PageHeader:
    code = _number(fields, 1, "type")
    # pages of types to come are passed by, like index pages: the chunk's values are counted without them
    kind = _PAGE_TYPES[code] if code < len(_PAGE_TYPES) else PageType.INDEX_PAGE
    uncompressed, compressed = _number(fields, 2, "uncompressed size"), _number(fields, 3, "compressed size")
    crc = fields.get(4)
    crc = crc & 0xFFFFFFFF if type(crc) is int else None
    content = {} if kind is PageType.INDEX_PAGE else fields.get(_UNIONS[kind])
    if not isinstance(content, dict):
        raise CorruptFileError(f"a page of type {kind.name} lacks that type's header")
    if kind is PageType.DATA_PAGE:
        return PageHeader(
            kind,
            size,
            compressed,
            uncompressed,
            crc,
            _number(content, 1, "number of values"),
            None,
            None,
            _number(content, 2, "encoding"),
            _number(content, 3, "encoding of definition levels"),
            _number(content, 4, "encoding of repetition levels"),
            None,
            None,
            True,
        )
    if kind is PageType.DATA_PAGE_V2:
        header = PageHeader(
            kind,
            size,
            compressed,
            uncompressed,
            crc,
            _number(content, 1, "number of values"),
            _advisory(content, 3),
            _advisory(content, 2),
            _number(content, 4, "encoding"),
            None,
            None,
            _number(content, 5, "length of definition levels"),
            _number(content, 6, "length of repetition levels"),
            content.get(7) is not False,
        )
        _check_v2(header)
        return header
    is_dictionary = kind is PageType.DICTIONARY_PAGE
    return PageHeader(
        kind,
        size,
        compressed,
        uncompressed,
        crc,
        _number(content, 1, "number of values") if is_dictionary else 0,
        None,
        None,
        _number(content, 2, "encoding") if is_dictionary else 0,
        None,
        None,
        None,
        None,
        True,
    )


def _check_v2(header: PageHeader) -> None:
    levels = (header.def_levels_bytes or 0) + (header.rep_levels_bytes or 0)
    if levels > header.compressed_size or levels > header.uncompressed_size:
        raise CorruptFileError(f"a page's levels take {levels} bytes, the page has {header.compressed_size}")


def _advisory(fields: Fields, field_id: int) -> int | None:
    value = fields.get(field_id)
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _number(fields: Fields, field_id: int, name: str) -> int:
    value = fields.get(field_id)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise CorruptFileError(f"a page header's {name} is missing or out of range: {value!r}")
    return value


WRONG_NUM_ROWS: Final = "its V2 pages claim other rows than they hold"
WRONG_UNCOMPRESSED_SIZE: Final = "its total_uncompressed_size is not that of its pages"


def check_page_header(
    header: PageHeader, *, chunk: ColumnChunk, leaf: Leaf | None = None, expected_size: int | None = None
) -> None:
    """Check a header against what the metadata say of its chunk; finds most flipped bits in headers.

    The chunk's uncompressed size and either of its lists of encodings are advisory: see :func:`header_contradiction`.

    Args:
        header: of a data or dictionary page.
        chunk: the chunk it belongs to.
        leaf: the chunk's, if the encodings of levels are to be checked, too.
        expected_size: the page's size with header in the OffsetIndex, if there is one.

    Raises:
        CorruptFileError: they contradict each other.
    """
    if expected_size is not None and header.page_size != expected_size:
        raise CorruptFileError(f"a page has {header.page_size} bytes, the OffsetIndex says {expected_size}")
    if header.is_data and not _may_have_encoding(header.encoding, chunk):
        # one header against two other places: whose word it is cannot be told
        raise CorruptFileError(
            f"a page has the encoding {header.encoding}, which neither its chunk's encodings nor encoding_stats have"
        )
    if header.type is PageType.INDEX_PAGE:
        raise CorruptFileError("an index page stands where a data or dictionary page should")
    if leaf is not None and header.type is PageType.DATA_PAGE:
        for level, code in (
            (leaf.max_definition_level, header.def_encoding),
            (leaf.max_repetition_level, header.rep_encoding),
        ):
            # CRCs do not cover headers, and levels read by another encoding are other levels.
            if level and code != Encoding.RLE and (code != Encoding.BIT_PACKED or not _lists(chunk, code)):
                raise CorruptFileError(f"a page has levels of encoding {code}, which its chunk does not list")
    if header.page_size > chunk.total_compressed_size:
        raise CorruptFileError(
            f"a page of {header.page_size} bytes is larger than its chunk of {chunk.total_compressed_size}"
        )
    if header.is_data and header.num_values > chunk.num_values:
        raise CorruptFileError(f"a page has {header.num_values} values, its chunk {chunk.num_values}")


def header_contradiction(header: PageHeader, chunk: ColumnChunk, *, repeated: bool) -> str | None:
    """What chunk or header say that the page contradicts, and that is not used; None for nothing.

    Args:
        repeated: the chunk's leaf is; of others, V2 pages have as many rows as values.
    """
    # DuckDB does not list the dictionary page's own encoding.
    if header.is_data and not _lists(chunk, header.encoding):
        return "its encodings are not those that the footer lists"
    if header.num_rows is not None and not _may_have_rows(header, header.num_rows, repeated=repeated):
        return WRONG_NUM_ROWS
    if header.header_size + header.uncompressed_size > chunk.total_uncompressed_size:
        return WRONG_UNCOMPRESSED_SIZE
    return None


def _may_have_rows(header: PageHeader, num_rows: int, *, repeated: bool) -> bool:
    return num_rows <= header.num_values if repeated else num_rows == header.num_values


def _may_have_encoding(encoding: int, chunk: ColumnChunk) -> bool:
    return (
        _lists(chunk, encoding)
        or _counts(chunk, encoding)
        or (encoding in DICTIONARY_ENCODINGS and _has_dictionary(chunk))
    )


def _has_dictionary(chunk: ColumnChunk) -> bool:
    """Whether the chunk names a dictionary page. fastparquet up to 0.6 lists only PLAIN for its pages of categories."""
    stats = chunk.encoding_stats or ()
    return chunk.dictionary_page_offset is not None or any(
        entry.page_type == PageType.DICTIONARY_PAGE for entry in stats
    )


def _lists(chunk: ColumnChunk, encoding: int) -> bool:
    """Whether the chunk lists an encoding; some old writers list none at all."""
    return not chunk.encodings or _is_in(encoding, chunk.encodings)


def _counts(chunk: ColumnChunk, encoding: int) -> bool:
    """Whether the chunk's encoding_stats count pages of an encoding; most writers that forget one write none."""
    stats = chunk.encoding_stats
    return not stats or _is_in(encoding, [entry.encoding for entry in stats])


def _is_in(encoding: int, encodings: Sequence[int]) -> bool:
    """Whether an encoding is among others; the two names of the encoding by dictionary are one."""
    return encoding in encodings or (
        encoding in DICTIONARY_ENCODINGS and not DICTIONARY_ENCODINGS.isdisjoint(encodings)
    )


@dataclass(frozen=True, slots=True)
class RawPage:
    """A whole page of a chunk.

    Attributes:
        header: its header.
        offset: its file offset, that of its header.
        data: header and content as they are in the file.
    """

    header: PageHeader
    offset: int
    data: bytes

    @property
    def body(self) -> memoryview:
        """The page without its header."""
        return memoryview(self.data)[self.header.header_size :]


class PageWalker:
    """Cuts a chunk's bytes into pages as they come.

    It keeps at most one page that is not whole yet. Use one walker for one chunk, feed the bytes from
    ``chunk.start`` on in order, in pieces of any size, then call :meth:`finish`.

    Args:
        chunk: whose pages they are.
        leaf: see :func:`check_page_header`.
        max_page_bytes: a page that claims more, compressed or not, is a ResourceLimitError.
        padded: the chunk's span was widened because its writer understated it (PARQUET-816); what comes
            behind its last value is not looked at.
        verify_crc: hold that all data pages have a CRC or none: one without would let a changed page pass.
        drop: called with what the metadata say that the pages contradict, and that is not used.
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
        self._needed = 1  # bytes in the buffer before another look is worth it
        self._offset = chunk.start
        self._pages = 0
        self._values = 0
        self._uncompressed = 0
        self._has_crc: bool | None = None

    @property
    def num_values(self) -> int:
        """Values in the data pages cut so far."""
        return self._values

    @property
    def stop(self) -> int:
        """File offset behind the last page cut so far."""
        return self._offset

    def feed(self, data: bytes | memoryview) -> list[RawPage]:
        """Take the next bytes; returns the pages that they complete, in file order.

        Raises:
            CorruptFileError: bytes that are no pages of this chunk (check_page_header, a dictionary
                page that is not the first, more values than the chunk has).
            ResourceLimitError: a page larger than ``max_page_bytes``.
        """
        if self._buffer or len(data) < self._needed:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            whole = bytes(self._buffer)
            self._buffer.clear()
        else:
            whole = bytes(data)  # no copy of what is bytes already
        pages: list[RawPage] = []
        pos = 0
        while pos < len(whole) and not (self._padded and self._values == self._chunk.num_values):
            header = decode_page_header(whole, pos, max_bytes=min(MAX_HEADER_BYTES, self._max_page_bytes))
            left = len(whole) - pos
            if isinstance(header, NeedMore):
                # A header that comes in drops is looked at few times; one at the chunk's end not too late.
                self._needed = max(left + 1, min(2 * left, self._chunk.stop - self._offset))
                break
            self._check(header)
            if left < header.page_size:
                self._needed = header.page_size
                break
            pages.append(RawPage(header, self._offset, whole[pos : pos + header.page_size]))
            pos += header.page_size
            self._offset += header.page_size
            self._count(header)
            self._needed = 1
        self._buffer += whole[pos:]
        return pages

    def _count(self, header: PageHeader) -> None:
        self._pages += 1
        self._uncompressed += header.header_size + header.uncompressed_size
        if self._drop is not None and (what := header_contradiction(header, self._chunk, repeated=self._is_repeated)):
            self._drop(what)
        if header.is_data:
            self._values += header.num_values
            has_crc = header.crc is not None
            if self._verify_crc and self._has_crc not in (None, has_crc):
                raise CorruptFileError("some data pages of a chunk have a CRC and some have none")
            self._has_crc = has_crc

    def _check(self, header: PageHeader) -> None:
        if max(header.page_size, header.uncompressed_size) > self._max_page_bytes:
            raise ResourceLimitError(
                f"a page claims {max(header.page_size, header.uncompressed_size)} bytes, "
                f"allowed are {self._max_page_bytes}",
                hint="Raise LimitOptions.max_page_bytes if the file is trusted.",
            )
        chunk = self._chunk
        if header.type is not PageType.INDEX_PAGE:
            check_page_header(header, chunk=chunk, leaf=self._leaf)
        if header.type is PageType.DICTIONARY_PAGE and self._pages:
            raise CorruptFileError("a dictionary page that is not the first page of its chunk")
        if self._offset + header.page_size > chunk.stop:
            raise CorruptFileError(f"a page ends at {self._offset + header.page_size}, its chunk at {chunk.stop}")
        if header.is_data and self._values + header.num_values > chunk.num_values:
            raise CorruptFileError(f"a chunk of {chunk.num_values} values has more in its pages")

    def finish(self) -> None:
        """Check that the chunk ended with a whole page and has all of its values and bytes.

        Raises:
            CorruptFileError: it did not.
        """
        if self._buffer and not self._padded:
            raise CorruptFileError(f"a chunk ends inside a page, {len(self._buffer)} bytes after its last whole one")
        if self._offset != self._chunk.stop and not self._padded:
            raise CorruptFileError(f"a chunk's pages end at {self._offset}, the chunk at {self._chunk.stop}")
        if self._values != self._chunk.num_values:
            raise CorruptFileError(
                f"a chunk's pages have {self._values} values, its metadata say {self._chunk.num_values}"
            )
        if self._uncompressed != self._chunk.total_uncompressed_size and not self._padded and self._drop:
            self._drop(WRONG_UNCOMPRESSED_SIZE)
