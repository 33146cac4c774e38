"""Single rows out of a page, without decoding the others.

A lookup wants one value of a page of thousands. Two kinds of pages without nulls give it away: indices
into a dictionary, whose runs are walked to the row (Encodings.md, RLE / bit-packing hybrid), and PLAIN
byte arrays of one common length, where every value has its place. Whatever is not plainly one of these
goes the usual way, through pyarrow's Parquet reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.page import Page
from asyncpq.format.schema import Leaf, PhysicalType

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

    page: Page
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
