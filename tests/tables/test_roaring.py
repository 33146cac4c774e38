"""Roaring bitmaps of Delta and Iceberg against CRoaring: every container, the 64-bit form, and bytes that lie."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from asyncpq.errors import CorruptFileError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.tables.roaring import decode_roaring

_STARTS = st.one_of(
    st.integers(0, 1 << 18),
    st.integers(0, (1 << 64) - 1),
    st.builds(lambda high, low: (high << 16) + low, st.integers(0, 1 << 40), st.integers(-3, 3)).filter(
        lambda start: start >= 0
    ),
)


@st.composite
def _bitmaps(draw: st.DrawFn) -> BitMap64:
    """Points, ranges and combs, which come out as arrays, runs and bitmaps."""
    bitmap = BitMap64(draw(st.lists(_STARTS, max_size=20)))
    for start in draw(st.lists(_STARTS, max_size=4)):
        length = draw(st.integers(1, 150_000))
        step = draw(st.sampled_from([1, 1, 2, 3, 17]))
        bitmap |= BitMap64(range(start, min(start + length, (1 << 64) - 1), step))
    if draw(st.booleans()):
        bitmap.run_optimize()
    return bitmap


@given(_bitmaps())
@example(BitMap64())
@example(BitMap64([(1 << 64) - 1]))
@example(BitMap64(range(65_536 * 5)))
@example(BitMap64(range(0, 65_536 * 2, 2)))
@example(BitMap64(range(4_096)))
@example(BitMap64(range(4_097)))
@example(BitMap64(range((1 << 32) - 5, (1 << 32) + 5)))
def test_equals_croaring(bitmap: BitMap64) -> None:
    assert decode_roaring(bitmap.serialize()) == RowRanges.from_rows(bitmap)


@given(_bitmaps(), st.data())
def test_bytes_that_lie_are_an_error_or_a_bitmap(bitmap: BitMap64, data: st.DataObject) -> None:
    good = bitmap.serialize()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        ranges = decode_roaring(bytes(bad))
    except CorruptFileError:
        return
    # a checksum is no part of the format: what decodes has to be well-formed
    assert ranges.stop <= 1 << 64
    assert ranges == RowRanges(ranges)


@given(_bitmaps(), st.data())
def test_cut_or_longer_bytes_are_refused(bitmap: BitMap64, data: st.DataObject) -> None:
    good = bitmap.serialize()
    with pytest.raises(CorruptFileError, match="Roaring"):
        decode_roaring(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(CorruptFileError, match="ends at byte"):
        decode_roaring(good + b"\0")


_ONE_ARRAY = struct.pack("<QI", 1, 0) + struct.pack("<IIHHI", 12346, 1, 0, 1, 16)  # two values follow


def test_hand_made() -> None:
    assert decode_roaring(_ONE_ARRAY + struct.pack("<HH", 3, 9)) == RowRanges([(3, 4), (9, 10)])
    two_runs = struct.pack("<QI", 1, 2) + struct.pack("<IBHHHHHHH", 12347, 1, 1, 11, 2, 0, 9, 65534, 1)
    base = (2 << 32) + (1 << 16)
    assert decode_roaring(two_runs) == RowRanges([(base, base + 10), (base + 65534, base + 65536)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_ONE_ARRAY + struct.pack("<HH", 9, 3), "value 3 after 9"),
        (_ONE_ARRAY + struct.pack("<HH", 9, 9), "value 9 after 9"),
        (_ONE_ARRAY.replace(b"\x3a\x30", b"\x3c\x30") + struct.pack("<HH", 3, 9), "cookie"),
        (_ONE_ARRAY[:-4] + struct.pack("<IHH", 17, 3, 9), "is at 16, not 17"),
        (struct.pack("<QI", 2, 5) + struct.pack("<II", 12346, 0) + struct.pack("<III", 5, 12346, 0), "half 5 after 5"),
        (struct.pack("<QI", 1, 0) + struct.pack("<II", 12346, 65537), "65537 containers"),
        (struct.pack("<QI", 1, 0) + struct.pack("<IBHHHHH", 12347, 1, 0, 1, 1, 65535, 1), "run 65535-65537"),
        (struct.pack("<QI", 1, 0) + struct.pack("<IBHHHHHHH", 12347, 1, 0, 3, 2, 0, 1, 1, 1), "run 1-3 after 1"),
        (struct.pack("<QI", 1, 0) + struct.pack("<IBHHHHH", 12347, 1, 0, 3, 1, 0, 1), "has 2 values, not 4"),
        (struct.pack("<Q", 1 << 63), "end too early"),
        (b"", "end too early"),
        (
            struct.pack("<QI", 1, 0) + struct.pack("<IIHHHHII", 12346, 2, 7, 0, 7, 0, 24, 26) + b"\0\0\0\0",
            "container 7 after 7",
        ),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        decode_roaring(data)
