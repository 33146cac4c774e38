"""One column of one row group: parquet.thrift's ColumnChunk with its ColumnMetaData, decoded and validated.

Offsets are bytes from the start of the file, sizes are bytes.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable
from typing import Final

from asyncpq.errors import CorruptFileError, Hint, UnsupportedFeatureError
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import PHYSICAL_TYPES, Leaf
from asyncpq.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    INTEGER_FIELD,
    INTEGER_STRUCT,
    LIST,
    STOP_BYTE,
    STRUCT,
    TRUE,
    VARINT,
    CompactReader,
    Fields,
    Value,
    any_of,
    binary_value,
    headers,
    list_of,
    optional,
    repeated,
    varint,
)
from asyncpq.records import NamedTuple, dataclass

# A chunk's lists are short, except for size statistics, which have one histogram for each level.
_MAX_ELEMENTS_OF_A_CHUNK: Final = 1 << 16
# Numeric fields of ColumnMetaData that a chunk cannot be read without, in the order of _required().
_REQUIRED: Final = ((1, "type"), (4, "codec"), (5, "num_values"), (7, "total_compressed_size"), (9, "data_page_offset"))

# Decoding so many chunks field by field takes as long as compiling the pattern of a usual one.
_FEW_CHUNKS: Final = 128
_num_decoded = 0  # chunks of all footers of the process
_LONGEST_BOUND: Final = 32  # bytes of a bound that the pattern of a usual chunk follows

KEYS_NEEDED: Final = Hint(
    "Give open_file the file's decryption_properties=.",
    "In Python, open_file takes decryption_properties=; the command line has no keys.",
)


class Codec(enum.IntEnum):
    """The compression of a chunk's pages (parquet.thrift, CompressionCodec)."""

    UNCOMPRESSED = 0
    SNAPPY = 1
    GZIP = 2
    LZO = 3
    BROTLI = 4
    LZ4 = 5
    ZSTD = 6
    LZ4_RAW = 7


class Encoding(enum.IntEnum):
    """The encoding of a page's values or levels (parquet.thrift, Encoding)."""

    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    BIT_PACKED = 4
    DELTA_BINARY_PACKED = 5
    DELTA_LENGTH_BYTE_ARRAY = 6
    DELTA_BYTE_ARRAY = 7
    RLE_DICTIONARY = 8
    BYTE_STREAM_SPLIT = 9
    ALP = 10


DICTIONARY_ENCODINGS: Final = frozenset({Encoding.PLAIN_DICTIONARY, Encoding.RLE_DICTIONARY})
"""Both names of the dictionary encoding of data pages: indices into the chunk's dictionary."""


def unsupported(encodings: Iterable[int], codec: int) -> str | None:
    """Return why pages of these encodings, compressed with this codec, are not read: what "a column has"; None if they
    are."""
    unknown = sorted(set(encodings) - KNOWN_ENCODINGS)
    if unknown:
        return f"pages of the encoding {unknown[0]}, which asyncpq does not know"
    if codec not in READ_CODECS:
        name = Codec(codec).name if codec == Codec.LZO else str(codec)
        return f"pages compressed with the codec {name}, which asyncpq does not read"
    return None


KNOWN_ENCODINGS: Final = frozenset(map(int, Encoding))
READ_CODECS: Final = frozenset(map(int, Codec)) - {Codec.LZO}


class PageType(enum.IntEnum):
    """The kind of a page (parquet.thrift, PageType)."""

    DATA_PAGE = 0
    INDEX_PAGE = 1
    DICTIONARY_PAGE = 2
    DATA_PAGE_V2 = 3


class ChunkStatistics(NamedTuple):
    """Raw statistics of a column chunk (parquet.thrift, Statistics). A field that the writer left out is None.

    Bounds are encoded values in the column's order. Writers compared the deprecated bounds (``min``, ``max``) as signed
    values, whatever the column's order. ``statistics.chunk_bounds`` returns the bounds that these statistics prove.
    """

    deprecated_max: bytes | None
    deprecated_min: bytes | None
    null_count: int | None
    distinct_count: int | None
    max_value: bytes | None
    min_value: bytes | None
    is_max_value_exact: bool | None
    is_min_value_exact: bool | None
    nan_count: int | None


@dataclass(frozen=True, slots=True)
class PageEncodingStats:
    """How many pages of the chunk have this page type and encoding. Both are Thrift codes (see PageType and Encoding),
    perhaps unknown ones."""

    page_type: int
    encoding: int
    count: int


def index_range(offset: int | None, length: int | None) -> tuple[int, int] | None:
    """Convert offset and length of an index to its file range ``(start, stop)``; None if either is missing or
    invalid."""
    if offset is None or length is None or offset < 4 or length <= 0:
        return None
    return offset, offset + length


class IndexPlaces(NamedTuple):
    """The file ranges ``(start, stop)`` of a chunk's page indexes in bytes; None for an index without a valid range."""

    offset_index_range: tuple[int, int] | None
    column_index_range: tuple[int, int] | None


class Box(NamedTuple):
    """Bounds of coordinates (parquet.thrift, BoundingBox). With ``xmin`` above ``xmax`` it crosses the antimeridian."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


class ColumnChunk(NamedTuple):
    """One column chunk: where its pages and indexes are, and what the writer states about its values.

    Attributes:
        file_path: set only in summary files: the data are in another file, which is never read.
        file_offset: deprecated, often wrong, not used.
        has_crypto: the chunk is encrypted, so its indexes must not be decoded.
        physical_type: equals the leaf's.
        encodings: codes of all, levels included; advisory, page headers decide.
        path: as written; advisory, since the position in the row group decides the column.
        codec: a code of Codec, perhaps an unknown one.
        num_values: nulls and empty lists included; the row group's rows if the leaf is not repeated.
        total_uncompressed_size: of all pages with their headers; advisory; 0 if missing or negative.
        total_compressed_size: of all pages with their headers.
        dictionary_page_offset: None or 0 if absent; see ``start``.
        raw_statistics: bytes are those of the Thrift struct; see ``statistics``.
        raw_start: position of the struct in the metadata bytes.
        dropped: statements that contradict schema or row group and are ignored.
        box: of the coordinates of its geometries.
    """

    file_path: str | None
    file_offset: int
    has_crypto: bool
    physical_type: PhysicalType
    encodings: tuple[int, ...]
    path: tuple[str, ...]
    codec: int
    num_values: int
    total_uncompressed_size: int
    total_compressed_size: int
    data_page_offset: int
    index_page_offset: int | None
    dictionary_page_offset: int | None
    raw_statistics: ChunkStatistics | bytes | None
    encoding_stats: tuple[PageEncodingStats, ...] | None
    bloom_filter_offset: int | None
    bloom_filter_length: int | None
    offset_index_offset: int | None
    offset_index_length: int | None
    column_index_offset: int | None
    column_index_length: int | None
    raw_start: int
    raw_stop: int
    dropped: tuple[str, ...] = ()
    box: Box | None = None

    @property
    def statistics(self) -> ChunkStatistics | None:
        """The writer's statistics; None if there are none. Decoded at first use, since most columns of a wide file are
        read without them."""
        raw = self.raw_statistics
        return _statistics(CompactReader(raw).struct()) if isinstance(raw, bytes) else raw

    @property
    def start(self) -> int:
        """The file offset of the chunk's first page, which is the dictionary page if the chunk has one."""
        dictionary = self.dictionary_page_offset
        if dictionary is not None and 0 < dictionary < self.data_page_offset:
            return dictionary
        return self.data_page_offset

    @property
    def stop(self) -> int:
        """The file offset after the chunk's last page."""
        return self.start + self.total_compressed_size

    @property
    def offset_index_range(self) -> tuple[int, int] | None:
        """Byte range ``(start, stop)`` of the OffsetIndex in the file; None without one."""
        return index_range(self.offset_index_offset, self.offset_index_length)

    @property
    def column_index_range(self) -> tuple[int, int] | None:
        """Byte range ``(start, stop)`` of the ColumnIndex in the file; None without one."""
        return index_range(self.column_index_offset, self.column_index_length)


def decode_column_chunk(data: bytes, start: int, stop: int, leaf: Leaf) -> ColumnChunk:
    """Decode the ColumnChunk struct at ``data[start:stop]``, where ``data`` are the file's metadata.

    As in Thrift, an optional field of an unexpected type counts as absent. Raises CorruptFileError if a required field
    is missing, a size is negative, or the chunk's physical type is not the ``leaf``'s; UnsupportedFeatureError if the
    chunk's metadata are encrypted.
    """
    usual = _decode_usual_chunk(data, start, stop, leaf)
    if usual is not None:
        return usual
    reader = CompactReader(data, start, max_elements=_MAX_ELEMENTS_OF_A_CHUNK)
    chunk = reader.struct()
    if reader.pos != stop:
        raise CorruptFileError(
            f"a column chunk's metadata end at byte {reader.pos} of the footer, expected {stop}", column=leaf.dotted
        )
    meta = chunk.get(3)
    if not isinstance(meta, dict):
        if 8 in chunk or 9 in chunk:
            # A plaintext footer has them in clear, so this is a footer that was decrypted.
            raise UnsupportedFeatureError(
                "asyncpq does not support a column with a key of its own in a file with an encrypted footer",
                column=leaf.dotted,
                hint="Read the file with pyarrow, or leave the column out.",
            )
        raise CorruptFileError("a column chunk has no metadata", column=leaf.dotted)
    physical_type, codec, num_values, compressed, data_page = _required(meta, leaf)
    uncompressed, path = meta.get(6), _path(meta, leaf)
    if physical_type != leaf.element.physical_type:
        raise CorruptFileError(
            f"a column chunk has the physical type {physical_type}, but the schema says {leaf.element.physical_type!r}",
            column=leaf.dotted,
        )
    file_path = chunk.get(1)
    places = [value if type(value) is int else None for value in map(chunk.get, (2, 4, 5, 6, 7))]
    offsets = [value if type(value) is int else None for value in map(meta.get, (10, 11, 14, 15))]
    encodings = meta.get(2)
    return ColumnChunk(
        # older writers (cuDF) set an empty path, which means this file
        file_path.decode("utf-8", "backslashreplace") if isinstance(file_path, bytes) and file_path else None,
        places[0] or 0,
        8 in chunk,
        PHYSICAL_TYPES[physical_type],
        tuple([code for code in encodings if type(code) is int]) if isinstance(encodings, list) else (),
        path,
        codec,
        num_values,
        uncompressed if type(uncompressed) is int and uncompressed > 0 else 0,
        compressed,
        data_page,
        offsets[0],
        offsets[1],
        _statistics(meta.get(12)),
        _encoding_stats(meta.get(13)),
        offsets[2],
        offsets[3],
        places[1],
        places[2],
        places[3],
        places[4],
        start,
        stop,
        () if path == leaf.path else (f"a column chunk in its place names the column {'.'.join(path)!r}",),
        _box(meta.get(17)),
    )


def _decode_usual_chunk(data: bytes, start: int, stop: int, leaf: Leaf) -> ColumnChunk | None:
    """Decode a ColumnChunk in the form that most writers use, in a fourth of the time; return None for any
    other form."""
    global _num_decoded
    _num_decoded += 1
    if _num_decoded <= _FEW_CHUNKS:
        return None
    front_pattern, rest_pattern = _usual_patterns()
    front = front_pattern.match(data, start, stop)
    if front is None:
        return None
    path = _encoded_path(leaf.path)
    if path is None:
        return None
    rest = rest_pattern.fullmatch(data, front.end() + len(path), stop)
    if rest is None or not data.startswith(path, front.end()):
        return None
    file_offset, type_, encodings = front.groups()
    *sizes, dictionary, statistics, stats, bloom_offset, bloom_length, offset, length, bounds_offset, bounds_length = (
        rest.groups()
    )
    codec, num_values, uncompressed, compressed, data_page = required = list(map(zigzag_number, sizes))
    physical_type = leaf.element.physical_type
    if physical_type is None or type_[0] != physical_type << 1 or min(required) < 0:
        return None  # with an error, or a statement that is not believed
    return ColumnChunk(
        None,
        zigzag_number(file_offset),
        False,
        physical_type,
        _shared_codes(encodings),
        leaf.path,
        codec,
        num_values,
        uncompressed,
        compressed,
        data_page,
        None,
        None if dictionary is None else zigzag_number(dictionary),
        statistics,
        _decoded_stats(stats),
        None if bloom_offset is None else zigzag_number(bloom_offset),
        None if bloom_length is None else zigzag_number(bloom_length),
        None if offset is None else zigzag_number(offset),
        None if length is None else zigzag_number(length),
        None if bounds_offset is None else zigzag_number(bounds_offset),
        None if bounds_length is None else zigzag_number(bounds_length),
        start,
        stop,
    )


@functools.lru_cache(1024)
def _encoded_path(path: tuple[str, ...]) -> bytes | None:
    """Encode the list of the names in a column's path, header included; None if the header of so long a list has
    another form."""
    if len(path) > 14:
        return None
    names = [part.encode() for part in path]
    return bytes([len(names) << 4 | BINARY]) + b"".join([varint(len(name)) + name for name in names])


@functools.cache
def _usual_patterns() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return two patterns of the usual form of a ColumnChunk: its bytes before and after the elements of its path.
    Field headers are literal bytes, in the order of the field ids; the patterns' groups are the values."""
    number, small = b"(" + VARINT + b")", rb"([\x00-\x7f])"
    front = [rb"\x26", number, rb"\x1c\x15", small, rb"\x19(", list_of((I32,), rb"[\x00-\x7f]", longest=6), rb")\x19"]
    statistics = (
        repeated(any_of(INTEGER_FIELD, headers(BINARY) + binary_value(_LONGEST_BOUND), headers(TRUE, FALSE)))
        + STOP_BYTE
    )
    encoding_stats = list_of((STRUCT,), rb"\x15[\x00-\x7f]\x15[\x00-\x7f]\x15" + VARINT + STOP_BYTE, longest=6)
    place = rb"\x16" + number + rb"\x15" + number
    rest = [
        rb"\x15" + small,  # codec
        (rb"\x16" + number) * 3,  # values and sizes
        rb"\x26" + number + rb"(?:\x26" + number + rb"\x1c|\x3c)(" + statistics + b")",  # offsets of pages
        rb"\x19(" + encoding_stats + b")",
        optional(any_of(place + optional(rb"\x1c" + INTEGER_STRUCT), rb"\x3c" + INTEGER_STRUCT)),  # Bloom filter, sizes
        STOP_BYTE,
        optional(place + optional(place)),  # of the OffsetIndex, of the ColumnIndex
        STOP_BYTE,
    ]
    return re.compile(b"".join(front), re.DOTALL), re.compile(b"".join(rest), re.DOTALL)


def zigzag_number(raw: bytes) -> int:
    """Decode the bytes of one zigzag varint. One subtraction removes the continuation bits of all bytes."""
    length = len(raw)
    if length == 1:
        n = raw[0]
    elif length == 2:
        n = raw[0] + (raw[1] << 7) - 0x80
    elif length == 3:
        n = raw[0] + (raw[1] << 7) + (raw[2] << 14) - 0x4080
    elif length == 4:
        n = raw[0] + (raw[1] << 7) + (raw[2] << 14) + (raw[3] << 21) - 0x204080
    else:
        n = sum([(part & 0x7F) << 7 * place for place, part in enumerate(raw)])
    return (n >> 1) ^ -(n & 1)


@functools.lru_cache(1024)
def _shared_codes(encodings: bytes) -> tuple[int, ...]:
    """Decode the bytes of a list of small integers. Equal bytes give the same object, so that columns share it."""
    return tuple([(code >> 1) ^ -(code & 1) for code in encodings[1:]])


@functools.lru_cache(1024)
def _decoded_stats(values: bytes) -> tuple[PageEncodingStats, ...] | None:
    """Decode the bytes of a list of PageEncodingStats. Equal bytes give the same object, so that columns share it. None
    if they are not in the usual form."""
    return _encoding_stats(CompactReader(values).value(LIST))


def _required(meta: Fields, leaf: Leaf) -> list[int]:
    numbers = []
    for field_id, name in _REQUIRED:
        value = meta.get(field_id)
        if type(value) is not int or value < 0:
            raise CorruptFileError(f"a column chunk's {name} is missing or negative: {value!r}", column=leaf.dotted)
        numbers.append(value)
    return numbers


def _path(meta: Fields, leaf: Leaf) -> tuple[str, ...]:
    """Return the column path in the chunk's metadata; the leaf's path if the metadata have no path."""
    parts = meta.get(3)
    if not isinstance(parts, list):
        return leaf.path
    return tuple([part.decode("utf-8", "backslashreplace") for part in parts if isinstance(part, bytes)])


def _statistics(fields: Value) -> ChunkStatistics | None:
    if not isinstance(fields, dict):
        return None
    get = fields.get
    # A negative count is a writer's "unknown".
    binary = [value if isinstance(value, bytes) else None for value in map(get, (1, 2, 5, 6))]
    count = [value if type(value) is int and value >= 0 else None for value in map(get, (3, 4, 9))]
    flag = [value if type(value) is bool else None for value in map(get, (7, 8))]
    return ChunkStatistics(binary[0], binary[1], count[0], count[1], binary[2], binary[3], flag[0], flag[1], count[2])


def _box(statistics: Value) -> Box | None:
    """Return the bounding box in GeospatialStatistics; None if there is none, or it contradicts itself."""
    fields = statistics.get(1) if isinstance(statistics, dict) else None
    if not isinstance(fields, dict):
        return None
    corners = [value for number in (1, 3, 2, 4) if isinstance(value := fields.get(number), float) and value == value]
    if len(corners) < 4 or corners[1] > corners[3]:
        return None
    return Box(*corners)


def _encoding_stats(values: Value) -> tuple[PageEncodingStats, ...] | None:
    if not isinstance(values, list):
        return None
    stats: list[tuple[int, int, int]] = []
    for value in values:
        if not isinstance(value, dict):
            return None
        page_type, encoding, count = map(value.get, (1, 2, 3))
        if type(page_type) is not int or type(encoding) is not int or type(count) is not int:
            return None
        stats.append((page_type, encoding, count))
    return _shared_stats(tuple(stats))


@functools.lru_cache(1024)
def _shared_stats(values: tuple[tuple[int, int, int], ...]) -> tuple[PageEncodingStats, ...]:
    """Return PageEncodingStats of these codes. Equal values give the same object: thousands of columns have the same
    ones, and Python's garbage collector, which stops the event loop, visits each object."""
    return tuple([PageEncodingStats(*value) for value in values])


def validate_chunk(chunk: ColumnChunk, leaf: Leaf, file_size: int, footer_start: int) -> None:
    """Check before a fetch that the chunk's bytes lie in ``[4, footer_start)`` of a file of ``file_size`` bytes.

    Raises CorruptFileError if they do not, UnsupportedFeatureError if the chunk is in another file or encrypted.
    """
    if chunk.file_path is not None:
        raise UnsupportedFeatureError(
            "the footer places the column's data in another file, which asyncpq does not support",
            column=leaf.dotted,
            hint="This may be a summary file (_metadata); open the data files.",
        )
    if chunk.has_crypto:
        raise UnsupportedFeatureError("the column is encrypted", column=leaf.dotted, hint=KEYS_NEEDED)
    if chunk.num_values == 0:
        return  # it is not read, and its offsets are meaningless
    start, stop = chunk.start, chunk.stop
    limit = min(footer_start, file_size)
    if start < 4 or stop > limit or stop == start:
        raise CorruptFileError(
            f"the footer locates a column chunk at the bytes {start} to {stop}, outside the file's data (4 to {limit})",
            column=leaf.dotted,
        )
    if chunk.data_page_offset >= stop:
        raise CorruptFileError(
            f"a column chunk's first data page is at byte {chunk.data_page_offset}, after the chunk's end at {stop}",
            column=leaf.dotted,
        )
