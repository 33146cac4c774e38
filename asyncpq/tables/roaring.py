"""Decode 64-bit Roaring bitmaps, the form in which Delta and Iceberg keep the deleted rows of a file.

The portable format of the RoaringFormatSpec, "extension for 64-bit implementations": a count, then for each
high half its 32-bit bitmap, of containers of 65,536 values: sorted arrays, bitmaps, or runs. Little-endian.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from asyncpq.errors import CorruptFileError
from asyncpq.pruning.row_ranges import RowRanges

_COOKIE_WITH_RUNS = 12347  # in the low 16 bits; the number of containers - 1 stands above
_COOKIE = 12346  # the number of containers follows
_OFFSETS_FROM = 4  # a bitmap with runs has offsets from this number of containers on
_ARRAY_MAX = 4096  # values; a container with more is a bitmap, unless it is of runs
_BITMAP_BYTES = 8192
_ONE = re.compile("1")


def unframed(stored: bytes) -> bytes:
    """What files keep of a deletion vector: its length, the vector, its CRC-32; both numbers big-endian.

    Raises:
        CorruptFileError: it has another length, or another checksum.
    """
    if len(stored) < 12 or int.from_bytes(stored[:4], "big") != len(stored) - 8:
        raise CorruptFileError(f"deletion vector of {len(stored)} bytes gives another length")
    vector = stored[4:-4]
    if zlib.crc32(vector) != int.from_bytes(stored[-4:], "big"):
        raise CorruptFileError("deletion vector with another checksum")
    return vector


def decode_roaring(data: bytes) -> RowRanges:
    """The values of a serialized 64-bit bitmap.

    Raises:
        CorruptFileError: the bytes are not exactly one such bitmap.
    """
    try:
        (count,) = struct.unpack_from("<Q", data, 0)
        ranges: list[tuple[int, int]] = []
        at, previous = 8, -1
        for _ in range(count):
            (high,) = struct.unpack_from("<I", data, at)
            if high <= previous:
                raise CorruptFileError(f"Roaring bitmap: high half {high} after {previous}")
            previous = high
            at = _decode_bitmap(data, at + 4, high << 32, ranges)
    except struct.error as error:
        raise CorruptFileError(f"Roaring bitmap: {len(data)} bytes end too early") from error
    if at != len(data):
        raise CorruptFileError(f"Roaring bitmap: ends at byte {at} of {len(data)}")
    return RowRanges.from_sorted(ranges)


def _decode_bitmap(data: bytes, begin: int, base: int, ranges: list[tuple[int, int]]) -> int:
    """Append the ranges of the 32-bit bitmap at ``begin``, plus ``base``; returns where it ends."""
    (cookie,) = struct.unpack_from("<I", data, begin)
    at: int = begin + 4
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if has_runs:
        size = (cookie >> 16) + 1
        flag_bytes = (size + 7) // 8
        run_flags = int.from_bytes(data[at : at + flag_bytes], "little")
        at += flag_bytes
    elif cookie == _COOKIE:
        (size,) = struct.unpack_from("<I", data, at)
        run_flags = 0
        at += 4
    else:
        raise CorruptFileError(f"Roaring bitmap: cookie {cookie}")
    if size > 65536:
        raise CorruptFileError(f"Roaring bitmap: {size} containers")
    header = struct.unpack_from(f"<{2 * size}H", data, at)
    at += 4 * size
    offsets: tuple[int, ...] = ()
    if not has_runs or size >= _OFFSETS_FROM:
        offsets = struct.unpack_from(f"<{size}I", data, at)
        at += 4 * size
    previous = -1
    for number in range(size):
        key, cardinality = header[2 * number], header[2 * number + 1] + 1
        if key <= previous:
            raise CorruptFileError(f"Roaring bitmap: container {key} after {previous}")
        previous = key
        if offsets and offsets[number] != at - begin:
            raise CorruptFileError(f"Roaring bitmap: container {key} is at {at - begin}, not {offsets[number]}")
        first = base + (key << 16)
        if run_flags >> number & 1:
            (num_runs,) = struct.unpack_from("<H", data, at)
            container = _runs(struct.unpack_from(f"<{2 * num_runs}H", data, at + 2))
            at += 2 + 4 * num_runs
        elif cardinality <= _ARRAY_MAX:
            container = _values(struct.unpack_from(f"<{cardinality}H", data, at))
            at += 2 * cardinality
        else:
            (words,) = struct.unpack_from(f"<{_BITMAP_BYTES}s", data, at)
            container = _bits(int.from_bytes(words, "little"))
            at += _BITMAP_BYTES
        rows = 0
        for start, stop in container:
            rows += stop - start
            ranges.append((first + start, first + stop))
        if rows != cardinality:
            raise CorruptFileError(f"Roaring bitmap: container {key} has {rows} values, not {cardinality}")
    return at


def _runs(pairs: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of a run container: pairs of first value and length - 1."""
    end = -1
    for start, more in zip(pairs[::2], pairs[1::2], strict=True):
        stop = start + more + 1
        if start <= end or stop > 65536:
            raise CorruptFileError(f"Roaring bitmap: run {start}-{stop} after {end}")
        end = stop - 1
        yield start, stop


def _values(values: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges, one a value, of an array container."""
    previous = -1
    for value in values:
        if value <= previous:
            raise CorruptFileError(f"Roaring bitmap: value {value} after {previous}")
        previous = value
        yield value, value + 1


def _bits(bits: int) -> Iterator[tuple[int, int]]:
    """Ranges of the ones of a bitmap container, given as one integer."""
    changes = bits ^ (bits << 1)  # a one where a range begins and where it has ended
    edges = (match.start() for match in _ONE.finditer(f"{changes:b}"[::-1]))
    yield from zip(edges, edges, strict=True)
