"""Decode ALP pages, which pyarrow's reader refuses: whole pages, or the vectors of a few rows.

``decode_run`` decodes pages without nulls to one array. All other pages, and those of nested columns, become PLAIN
pages (``as_plain``), which pyarrow decodes. ``open_page`` and ``pick`` give single rows: a value at a time, or the
vectors that hold them. The layout is in :mod:`asyncpq.parquet.alp`.

numpy decodes all vectors of one bit width at once, about a hundred million values in a second. Where it is not
installed, Python decodes value by value, 200 times slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import plain_array, read_column, take
from asyncpq.decoding.page import DataPage, PackedPage
from asyncpq.decoding.plain import check_crc, page_parts
from asyncpq.decoding.splice import exact_template, page_bytes, plain_page
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.alp import INVERSE_POWERS, POWERS, AlpPage, Vector
from asyncpq.parquet.chunk_pages import PageHeader
from asyncpq.parquet.column_chunk import Encoding, PageType
from asyncpq.parquet.levels import ABSENT, PRESENT, present_flags
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf

if TYPE_CHECKING:
    import numpy as np

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
    """Decompress bytes that do not state their size. pyarrow's Parquet reader compares it, so it reads them as one
    value."""
    page = page_bytes(PageType.DATA_PAGE, size, values, (1, Encoding.PLAIN, Encoding.RLE, Encoding.RLE))
    file = exact_template(codec, size).splice(b"", [page], num_values=1, num_rows=1)
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
    """Return the values of ALP pages of a leaf column, which is not repeated, as one array of floats; None if any is
    null.

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
