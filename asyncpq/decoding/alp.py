"""ALP pages (adaptive lossless floating point, parquet-format AlpEncoding.md), which pyarrow's reader refuses.

``decode_run`` decodes pages without nulls to one array. All other pages, and those of nested columns, become PLAIN
pages (``as_plain``), which pyarrow decodes. ``open_page`` and ``pick`` give single rows: a value at a time, or the
vectors that hold them.

The values of a page are divided into vectors of 8 to 32,768, mostly 1,024 (``AlpPage``). Each has a frame of reference
and packed integers, which two multiplications turn into the values; exceptions are stored as they are. The page's
offsets find each vector, so that one value is read without the others. numpy decodes all vectors of one bit width at
once, about a hundred million values in a second. Without it, Python decodes value by value, 200 times slower.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import plain_array, read_column, take
from asyncpq.decoding.page import DataPage, PackedPage, check_crc, page_parts
from asyncpq.decoding.splice import page_bytes, plain_page, required_template
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.chunk_pages import PageHeader
from asyncpq.parquet.column_chunk import Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader

if TYPE_CHECKING:
    import numpy as np


PRESENT = b"1"
ABSENT = b"0"


def present_flags(levels: bytes, count: int, level: int) -> bytes:
    """Return one byte for each of ``count`` values: :data:`PRESENT` if its level is ``level``, the leaf column's
    largest, else :data:`ABSENT`.

    Raises CorruptFileError if there are too few levels.
    """
    if level == 0:
        return PRESENT * count
    width = level.bit_length()
    reader = CompactReader(levels)
    runs: list[bytes] = []
    left = count
    while left:
        header = reader.varint()
        num_bytes = (header >> 1) * width if header & 1 else width + 7 >> 3
        body = levels[reader.pos : reader.pos + num_bytes]
        number = min(left, (header >> 1) * 8 if header & 1 else header >> 1)
        if len(body) * 8 < (number * width if header & 1 else width):
            raise CorruptFileError("a page ends inside its definition levels")
        if header & 1:
            runs.append(_packed_flags(int.from_bytes(body, "little"), number, width, level))
        else:
            runs.append((PRESENT if int.from_bytes(body, "little") == level else ABSENT) * number)
        reader.pos += num_bytes
        left -= number
    return b"".join(runs)


def _packed_flags(bits: int, count: int, width: int, level: int) -> bytes:
    bits &= (1 << count * width) - 1
    if width > 1:  # the lowest bit of each level becomes 1 where all its bits are those of ``level``
        lanes = ((1 << count * width) - 1) // ((1 << width) - 1)
        differs = bits ^ lanes * level
        folded = differs
        for shift in range(1, width):
            folded |= differs >> shift
        bits = lanes & ~folded
    return f"{bits:0{count * width}b}".encode()[::-1][::width] if count else b""


_HEADER: Final = struct.Struct("<BBBi")  # mode, integer encoding, log2 of the vector size, number of values
_OFFSET: Final = struct.Struct("<I")
_MODES: Final = {1: "ALP-RD"}
_MIN_LOG, _MAX_LOG = 3, 15
_POSITION_BYTES: Final = 2  # of an exception

# The factors are rounded to the column's own precision, as are both products.
POWERS: Final = tuple([float(f"1e{number}") for number in range(19)])
INVERSE_POWERS: Final = tuple([float(f"1e-{number}") for number in range(19)])


class _Format(NamedTuple):
    """How vectors of one physical type are stored."""

    bits: int  # of a value
    max_exponent: int
    head: struct.Struct  # exponent, factor, number of exceptions, frame of reference, bit width
    value: struct.Struct


_FORMATS: Final = {
    PhysicalType.FLOAT: _Format(32, 10, struct.Struct("<BBHiB"), struct.Struct("<f")),
    PhysicalType.DOUBLE: _Format(64, 18, struct.Struct("<BBHqB"), struct.Struct("<d")),
}


class Vector(NamedTuple):
    """Where the parts of one vector are in the page's bytes."""

    num_values: int
    exponent: int
    factor: int
    reference: int  # added to each packed integer
    width: int  # bits of a packed integer
    packed: int  # offset of the packed integers of all values, exceptions included
    positions: int  # offset of the exceptions' positions, 2 bytes each
    exceptions: int  # offset of their values
    stop: int


class AlpPage:
    """The encoded values of an ALP page, which begin at ``data[start]`` and end with ``data``.

    ``limit`` is the number of values in the page's header, nulls included. Raises CorruptFileError if the bytes are
    malformed, UnsupportedFeatureError for a mode, an integer encoding or a type that is not defined; both name
    ``column``.
    """

    __slots__ = ("_column", "_format", "_log", "_table", "count", "data", "num_vectors", "vector_size")

    def __init__(self, data: bytes, start: int, physical_type: PhysicalType, limit: int, column: str) -> None:
        self.data: bytes = data
        self.count: int
        self._column = column
        self._table = start + _HEADER.size
        if physical_type not in _FORMATS:
            raise self._unsupported(f"of a column of {physical_type.name}")
        self._format = _FORMATS[physical_type]
        if len(data) < self._table:
            raise self._corrupt("ends inside its header")
        mode, integers, self._log, self.count = _HEADER.unpack_from(data, start)
        if mode:
            raise self._unsupported(f"in mode {mode}" + (f" ({_MODES[mode]})" if mode in _MODES else ""))
        if integers:
            raise self._unsupported(f"with the integer encoding {integers}")
        if not _MIN_LOG <= self._log <= _MAX_LOG:
            raise self._corrupt(f"has vectors of 2^{self._log} values")
        if not 0 <= self.count <= limit:
            raise self._corrupt(f"has {self.count} values, but its header says {limit}")
        self.vector_size: int = 1 << self._log
        self.num_vectors: int = self.count + self.vector_size - 1 >> self._log
        if self._table + _OFFSET.size * self.num_vectors > len(data):
            raise self._corrupt(f"ends inside the offsets of {self.num_vectors} vectors")
        if not self.num_vectors and self._table != len(data):
            raise self._corrupt("has bytes, but no values")

    def _corrupt(self, what: str) -> AsyncpqError:
        return CorruptFileError(f"a page with the encoding ALP {what}", column=self._column)

    def _unsupported(self, what: str) -> AsyncpqError:
        return UnsupportedFeatureError(f"asyncpq does not read the encoding ALP {what}", column=self._column)

    @property
    def value_bytes(self) -> int:
        """Bytes of one value: 4 or 8."""
        return self._format.bits >> 3

    def vector(self, number: int) -> Vector:
        """Return the parts of a vector. Raises CorruptFileError if they do not fill the bytes up to the next vector."""
        data, table, form = self.data, self._table, self._format
        entry = table + number * _OFFSET.size
        is_last = number + 1 == self.num_vectors
        start = table + int.from_bytes(data[entry : entry + 4], "little")
        stop = len(data) if is_last else table + int.from_bytes(data[entry + 4 : entry + 8], "little")
        packed = start + form.head.size
        first = table + _OFFSET.size * self.num_vectors
        if (start != first if number == 0 else start < first) or not packed <= stop <= len(data):
            raise self._corrupt(f"has a vector of the bytes {start} to {stop}, of {len(data)}")
        exponent, factor, num_exceptions, reference, width = form.head.unpack_from(data, start)
        num_values = self.count - (number << self._log) if is_last else self.vector_size
        if exponent > form.max_exponent or factor > exponent:
            raise self._corrupt(f"has a vector with the exponent {exponent} and the factor {factor}")
        if width > form.bits or num_exceptions > num_values:
            raise self._corrupt(
                f"has a vector of {num_values} values with {width} bits and {num_exceptions} exceptions"
            )
        positions = packed + (num_values * width + 7 >> 3)
        exceptions = positions + _POSITION_BYTES * num_exceptions
        if exceptions + num_exceptions * (form.bits >> 3) != stop:
            raise self._corrupt(f"has a vector of {stop - start} bytes, which its parts do not fill")
        return Vector(num_values, exponent, factor, reference, width, packed, positions, exceptions, stop)

    def value(self, index: int) -> bytes:
        """Return one value, little-endian, without decoding the others of its vector. Raises CorruptFileError."""
        number, position = index >> self._log, index & self.vector_size - 1
        return self.pick(self.vector(number), position)

    def pick(self, vector: Vector, position: int) -> bytes:
        """Return the value at a ``position`` of a vector, little-endian."""
        data, form = self.data, self._format
        exception = self._exception(vector, position)
        if exception is not None:
            start = vector.exceptions + exception * (form.bits >> 3)
            return data[start : start + (form.bits >> 3)]
        bit = position * vector.width
        start, stop = vector.packed + (bit >> 3), vector.packed + (bit + vector.width + 7 >> 3)
        packed = int.from_bytes(data[start:stop], "little") >> (bit & 7) & (1 << vector.width) - 1
        half = 1 << form.bits - 1
        integer = (packed + vector.reference + half & 2 * half - 1) - half  # wraps
        value, rounded = form.value, _rounded if form.bits == 32 else float
        product = rounded(rounded(integer) * rounded(POWERS[vector.factor]))
        return value.pack(product * rounded(INVERSE_POWERS[vector.exponent]))

    def _exception(self, vector: Vector, position: int) -> int | None:
        """Return which exception the value at a position of a vector is; None if it is none. As in a whole decode, the
        last counts."""
        count = (vector.exceptions - vector.positions) // _POSITION_BYTES
        if not count:
            return None
        places = struct.unpack_from(f"<{count}H", self.data, vector.positions)
        if max(places) >= vector.num_values:
            raise self.position_error(vector.num_values)
        return len(places) - 1 - places[::-1].index(position) if position in places else None

    def position_error(self, count: int) -> AsyncpqError:
        """Return the error to raise for an exception whose position is not below the ``count`` of its vector."""
        return self._corrupt(f"has an exception outside its vector of {count} values")


def _rounded(value: float) -> float:
    """Round to binary32."""
    result: float = _FORMATS[PhysicalType.FLOAT].value.unpack(_FORMATS[PhysicalType.FLOAT].value.pack(value))[0]
    return result


_SPARE = bytes(16)  # behind packed integers, since they are read 8 bytes at a time, and one more
_BATCH_VALUES: Final = 1 << 15  # unpacked at once; more leave the cache of the CPU
_SINGLE_VALUES = 8  # so few of a vector are picked one by one, in the time of decoding it


class _Content(NamedTuple):
    """A data page, decompressed and divided."""

    rep_levels: bytes  # RLE, without the length in front
    def_levels: bytes
    data: bytes
    start: int  # of the encoded values in ``data``


def _content(page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool) -> _Content:
    """Decompress a data page, and divide it. Raises CorruptFileError if that is not possible."""
    if verify_crc:
        check_crc(page, header, leaf)
    parts = page_parts(page, header, codec)
    if parts.is_certain:
        data = parts.content(codec, leaf)
    else:
        data = _exact_content(parts.values, codec, parts.size, leaf)
    if header.type is PageType.DATA_PAGE_V2:
        num_rep = header.rep_levels_bytes or 0
        return _Content(bytes(parts.levels[:num_rep]), bytes(parts.levels[num_rep:]), data, 0)
    levels = [b"", b""]
    start = 0
    for number, (level, encoding) in enumerate(
        ((leaf.max_repetition_level, header.rep_encoding), (leaf.max_definition_level, header.def_encoding))
    ):
        if not level:
            continue
        if encoding != Encoding.RLE:
            raise UnsupportedFeatureError(
                f"asyncpq does not read pages of the encoding ALP with levels of the encoding {encoding}",
                column=leaf.dotted,
            )
        begin = start + 4
        start = begin + int.from_bytes(data[start:begin], "little")
        if start > len(data):
            raise CorruptFileError("a page ends inside its levels", column=leaf.dotted)
        levels[number] = data[begin:start]
    return _Content(levels[0], levels[1], data, start)


def _exact_content(values: memoryview, codec: int, size: int, leaf: Leaf) -> bytes:
    """Decompress bytes that do not state their size, which pyarrow's Parquet reader would compare."""
    page = page_bytes(PageType.DATA_PAGE, size, values, (1, Encoding.PLAIN, Encoding.RLE, Encoding.RLE))
    template = required_template(PhysicalType.FIXED_LEN_BYTE_ARRAY, codec, Encoding.PLAIN, type_length=size)
    file = template.splice(b"", [page], num_values=1, num_rows=1)
    try:
        array = read_column(file, verify_crc=False).chunk(0)
    except AsyncpqError as error:
        raise error.locate(column=leaf.dotted) from error.__cause__
    content: bytes = array.buffers()[1].slice(array.offset * size, size).to_pybytes()
    return content


def _opened(content: _Content, header: PageHeader, leaf: Leaf) -> tuple[AlpPage, bytes]:
    """Return the page's values, and one flag for each value of the header (:func:`present_flags`). Raises
    CorruptFileError if they disagree about the number of values."""
    column = leaf.dotted
    values = AlpPage(content.data, content.start, leaf.physical_type, header.num_values, column)
    try:
        flags = present_flags(content.def_levels, header.num_values, leaf.max_definition_level)
    except CorruptFileError as error:
        raise error.locate(column=column) from error.__cause__
    present = flags.count(PRESENT)
    if present != values.count:
        raise CorruptFileError(
            f"a page with the encoding ALP has {values.count} values, but levels for {present}", column=column
        )
    return values, flags


# -- whole pages ------------------------------------------------------------------------------------


def decode_run(
    pages: Sequence[DataPage], headers: Sequence[PageHeader], leaf: Leaf, codec: int, *, verify_crc: bool
) -> pa.Array | None:
    """Return the values of ALP pages of an unrepeated leaf column as one array of floats; None if any is null.

    Raises CorruptFileError or UnsupportedFeatureError for pages that are malformed or of an unknown mode.
    """
    opened: list[AlpPage] = []
    for page, header in zip(pages, headers, strict=True):
        if header.num_nulls:
            return None
        content = _content(page.data, header, leaf, codec, verify_crc=verify_crc)
        values, _ = _opened(content, header, leaf)
        if values.count != header.num_values:
            return None
        opened.append(values)
    return _array(decoded([(values, range(values.num_vectors)) for values in opened]), leaf)


def as_plain(page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool) -> bytes:
    """Return an ALP page as a PLAIN V2 page of the same levels, which is not compressed. Raises the errors of
    :func:`decode_run`."""
    content = _content(page, header, leaf, codec, verify_crc=verify_crc)
    values, _ = _opened(content, header, leaf)
    plain = memoryview(decoded([(values, range(values.num_vectors))])).cast("B")
    nulls, rows = header.num_values - values.count, header.num_values if header.num_rows is None else header.num_rows
    return plain_page(content.rep_levels, content.def_levels, plain, (header.num_values, nulls, rows))


def _array(values: Any, leaf: Leaf) -> pa.Array:
    arrow_type = pa.float32() if leaf.physical_type is PhysicalType.FLOAT else pa.float64()
    buffer = pa.py_buffer(values)
    return pa.Array.from_buffers(arrow_type, buffer.size * 8 // arrow_type.bit_width, [None, buffer], 0)


def decoded(chosen: Sequence[tuple[AlpPage, Iterable[int]]]) -> Any:
    """Return the values of the chosen vectors of pages of one column, in order, as an object with a buffer."""
    parsed = [(page, page.vector(number)) for page, numbers in chosen for number in numbers]
    try:
        import numpy as np
    except ModuleNotFoundError:
        return b"".join(
            [page.pick(vector, position) for page, vector in parsed for position in range(vector.num_values)]
        )
    if not parsed:
        return b""
    bits = parsed[0][0].value_bytes * 8
    out = np.empty(sum([vector.num_values for _, vector in parsed]), f"<f{bits >> 3}")
    groups: dict[tuple[int, int], list[tuple[AlpPage, Vector, int]]] = {}
    excepted: list[tuple[AlpPage, Vector, int]] = []
    start = 0
    for page, vector in parsed:
        groups.setdefault((vector.width, page.vector_size), []).append((page, vector, start))
        if vector.exceptions != vector.positions:
            excepted.append((page, vector, start))
        start += vector.num_values
    for (width, size), vectors in groups.items():
        step = max(1, _BATCH_VALUES // size)
        for first in range(0, len(vectors), step):
            _unpack(vectors[first : first + step], width, size, bits, out)
    if excepted:
        _put_exceptions(excepted, out)
    return out


def _unpack(vectors: Sequence[tuple[AlpPage, Vector, int]], width: int, size: int, bits: int, out: Any) -> None:
    """Decode vectors of one bit width and at most ``size`` values; store each in ``out`` from its start on."""
    import numpy as np

    unsigned, signed, floating = (np.dtype(f"<{kind}{bits >> 3}") for kind in "uif")
    count = len(vectors) * size
    integers: np.ndarray[Any, Any]
    if width:
        num_bytes = size * width >> 3  # of a full vector; 8 integers take ``width`` bytes
        parts = [page.data[vector.packed : vector.positions].ljust(num_bytes, b"\0") for page, vector, _ in vectors]
        packed = b"".join((*parts, _SPARE))
        lanes = np.empty((count >> 3, 8), "<u8")
        for lane in range(8):
            start, shift = lane * width >> 3, lane * width & 7
            words = np.ndarray((count >> 3,), "<u8", packed, start, (width,))
            np.right_shift(words, np.uint64(shift), out=lanes[:, lane])
            if shift + width > 64:  # the integer reaches a ninth byte
                ninth = np.ndarray((count >> 3,), "u1", packed, start + 8, (width,)).astype("<u8")
                lanes[:, lane] |= ninth << np.uint64(64 - shift)
        lanes &= np.uint64((1 << width) - 1)
        integers = lanes.reshape(len(vectors), size).astype(unsigned, copy=False)
    else:
        integers = np.zeros((len(vectors), size), unsigned)
    references = np.array([vector.reference for _, vector, _ in vectors], signed)
    integers += references.view(unsigned)[:, None]  # wraps
    power = _factors([POWERS[vector.factor] for _, vector, _ in vectors], floating)
    inverse = _factors([INVERSE_POWERS[vector.exponent] for _, vector, _ in vectors], floating)
    start = vectors[0][2]
    if all(vector.num_values == size for _, vector, _ in vectors) and vectors[-1][2] == start + count - size:
        values = out[start : start + count].reshape(len(vectors), size)  # they stand next to each other
        np.multiply(integers.view(signed), power, out=values, dtype=floating)
        values *= inverse
        return
    values = np.multiply(integers.view(signed), power, dtype=floating)
    values *= inverse
    for row, (_, vector, start) in enumerate(vectors):
        out[start : start + vector.num_values] = values[row, : vector.num_values]


def _factors(factors: Sequence[float], floating: np.dtype[Any]) -> Any:
    """Return the factors of vectors as a column; as one number if all are the same, which is faster and usual."""
    import numpy as np

    return floating.type(factors[0]) if len(set(factors)) == 1 else np.array(factors, floating)[:, None]


def _put_exceptions(vectors: Sequence[tuple[AlpPage, Vector, int]], out: Any) -> None:
    import numpy as np

    places = np.frombuffer(b"".join([page.data[v.positions : v.exceptions] for page, v, _ in vectors]), "<u2")
    counts = [(vector.exceptions - vector.positions) // 2 for _, vector, _ in vectors]
    limits = np.repeat(np.array([vector.num_values for _, vector, _ in vectors]), counts)
    outside = places >= limits
    if outside.any():
        number = int(np.repeat(np.arange(len(vectors)), counts)[outside][0])
        page, vector, _ = vectors[number]
        raise page.position_error(vector.num_values)
    # as integers, since a conversion of floats may change the bits of a NaN
    unsigned = f"<u{out.itemsize}"
    exceptions = np.frombuffer(b"".join([page.data[v.exceptions : v.stop] for page, v, _ in vectors]), unsigned)
    starts = np.repeat(np.array([start for _, _, start in vectors]), counts)
    out.view(unsigned)[places + starts] = exceptions


# -- single rows ------------------------------------------------------------------------------------


def open_page(page: DataPage, header: PageHeader, leaf: Leaf, codec: int, *, verify_crc: bool) -> PackedPage | None:
    """Decompress an ALP page, so that :func:`pick` reads rows of it; None if a struct around the leaf may be null.

    The leaf column is not repeated. Raises the errors of :func:`decode_run`.
    """
    content = _content(page.data, header, leaf, codec, verify_crc=verify_crc)
    _, flags = _opened(content, header, leaf)
    if ABSENT not in flags:
        flags = b""
    elif leaf.max_definition_level > 1:
        return None
    return PackedPage(
        page.data, page.first_row, page.stop_row, content.data, content.start, 0, is_alp=True, flags=flags
    )


def pick(packed: PackedPage, positions: Sequence[int], leaf: Leaf) -> pa.Array:
    """Return the values at ascending ``positions`` (rows of the page) as an array of floats. Only the vectors that hold
    them are decoded. Raises CorruptFileError if one is malformed."""
    flags, limit = packed.flags, packed.stop_row - packed.first_row
    page = AlpPage(packed.content, packed.start, leaf.physical_type, limit, leaf.dotted)
    places: Sequence[int | None] = positions
    if flags:
        places = []
        seen = last = 0
        for position in positions:
            seen += flags.count(PRESENT, last, position)
            last = position
            places.append(seen if flags.startswith(PRESENT, position) else None)
    present = [place for place in places if place is not None]
    grouped = [(number, list(some)) for number, some in groupby(present, page.vector_size.__rfloordiv__)]
    if len(present) <= _SINGLE_VALUES * len(grouped):
        values = _array(b"".join(map(page.value, present)), leaf)
    else:
        whole = _array(decoded([(page, [number for number, _ in grouped])]), leaf)
        size = page.vector_size
        held = [place - (number - rank) * size for rank, (number, some) in enumerate(grouped) for place in some]
        values = take(whole, plain_array(held, pa.int64()))
    if len(present) == len(places):
        return values
    ranks: list[int] = []  # in ``values``, behind which stands a null
    rank = 0
    for place in places:
        ranks.append(len(present) if place is None else rank)
        rank += place is not None
    return take(pa.concat_arrays([values, pa.nulls(1, values.type)]), plain_array(ranks, pa.int64()))
