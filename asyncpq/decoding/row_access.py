"""Single rows out of a page, without decoding the others.

A lookup wants one value of a page of thousands. Two kinds of pages without nulls give it away: indices
into a dictionary, whose runs are walked to the row (Encodings.md, RLE / bit-packing hybrid), and PLAIN
byte arrays of one common length, where every value has its place. Whatever is not plainly one of these
goes the usual way, through pyarrow's Parquet reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.page import Page
from asyncpq.format.schema import Leaf, PhysicalType

_MAX_RUNS = 512  # to walk over; a page with more is cheaper to decode
_LENGTH_BYTES = 4  # of a PLAIN byte array
_MAX_INDEX = 0x7FFF_FFFF


class PackedPage(NamedTuple):
    """A page that was decompressed, but not decoded.

    Attributes:
        page: as it was fetched.
        values: encoded values without levels.
        value_bytes: length that all values have, of PLAIN byte arrays; -1 where ``values`` are indices.
    """

    page: Page
    values: bytes
    value_bytes: int

    @property
    def first_row(self) -> int:
        return self.page.first_row

    @property
    def stop_row(self) -> int:
        return self.page.stop_row

    @property
    def weight(self) -> int:
        """Bytes it holds in memory."""
        return len(self.page.data) + len(self.values)

    @property
    def is_indices(self) -> bool:
        return self.value_bytes < 0

    def indices(self, rows: Iterable[int]) -> pa.Array | None:
        """Dictionary indices (int32) of a few ``rows``, ascending; None if it takes a decoder to tell."""
        found = _indices_at(self.values, [row - self.first_row for row in rows])
        return None if found is None or max(found) > _MAX_INDEX else pa.array(found, pa.int32())

    def byte_arrays(self, rows: Iterable[int], arrow_type: pa.DataType) -> pa.Array:
        """Values of ``rows``, where :attr:`is_indices` is false."""
        length = self.value_bytes
        stride = length + _LENGTH_BYTES
        starts = [(row - self.first_row) * stride + _LENGTH_BYTES for row in rows]
        data = b"".join([self.values[start : start + length] for start in starts])
        kind = pa.int64() if arrow_type in (pa.large_string(), pa.large_binary()) else pa.int32()
        offsets = pa.array(range(0, len(data) + 1, length) if length else [0] * (len(starts) + 1), kind)
        return pa.Array.from_buffers(arrow_type, len(starts), [None, offsets.buffers()[1], pa.py_buffer(data)])


def packs_plain(leaf: Leaf, arrow_type: pa.DataType) -> bool:
    """Whether PLAIN pages of a leaf are byte arrays that :class:`PackedPage` can give as ``arrow_type``."""
    types = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    return leaf.physical_type == PhysicalType.BYTE_ARRAY and arrow_type in types


def common_length(values: bytes, count: int) -> int | None:
    """The length of each of ``count`` PLAIN byte arrays, if they all have the same; else None."""
    if count == 0 or len(values) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(values[:_LENGTH_BYTES], "little")
    stride = length + _LENGTH_BYTES
    if stride * count != len(values):
        return None
    prefixes_agree = all(values[at::stride] == values[at : at + 1] * count for at in range(_LENGTH_BYTES))
    return length if prefixes_agree else None


def _indices_at(data: bytes, positions: list[int]) -> list[int] | None:
    """Values at ascending ``positions`` of a hybrid-encoded page body, bit width first."""
    if not data or data[0] > 32:
        return None
    width = data[0]
    found: list[int] = []
    first = 0  # position of the present run's first value
    at = 1
    runs = 0
    body, count, packed = 1, 0, False  # the present run: where its bytes are, values in it, its kind
    for position in positions:
        while position >= first + count:
            first += count
            at = body + (count * width >> 3 if packed else width + 7 >> 3) if runs else 1
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
