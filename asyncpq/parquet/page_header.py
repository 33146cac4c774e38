"""Page headers (parquet.thrift, PageHeader), decoded from bytes that may end anywhere."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.parquet.column_chunk import PageType
from asyncpq.parquet.thrift import CompactReader, EndOfDataError, Fields
from asyncpq.parquet.thrift_types import COUNT32, STATISTICS, STOP_BYTE, VARINT32, any_of, optional

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
