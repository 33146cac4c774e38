"""Deletion vectors' bitmaps: every container, the 64-bit form, and malformed bytes."""

from __future__ import annotations

import struct
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.options import LimitOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.tables import deleted_rows

_STARTS = st.one_of(
    st.integers(0, 1 << 18),
    st.integers(0, (1 << 64) - 1),
    st.builds(lambda high, low: (high << 16) + low, st.integers(0, 1 << 40), st.integers(-3, 3)).filter(
        lambda start: start >= 0
    ),
)

decode_roaring = partial(deleted_rows.decode_roaring, limits=LimitOptions())


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
@example(BitMap64([(1 << 64) - 2, (1 << 64) - 1]))
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
    # the format has no checksum: whatever decodes must be well-formed
    assert ranges.stop <= 1 << 64
    assert ranges == RowRanges(ranges)


@given(_bitmaps(), st.data())
def test_cut_bytes_are_refused(bitmap: BitMap64, data: st.DataObject) -> None:
    good = bitmap.serialize()
    with pytest.raises(CorruptFileError, match="Roaring"):
        decode_roaring(good[: data.draw(st.integers(0, len(good) - 1))])


_ONE_ARRAY = struct.pack("<QI", 1, 0) + struct.pack("<IIHHI", 12346, 1, 0, 1, 16)  # two values follow


def test_hand_made() -> None:
    assert decode_roaring(_ONE_ARRAY + struct.pack("<HH", 3, 9)) == RowRanges([(3, 4), (9, 10)])
    two_runs = struct.pack("<QI", 1, 2) + struct.pack("<IBHHHHHHH", 12347, 1, 1, 11, 2, 0, 9, 65534, 1)
    base = (2 << 32) + (1 << 16)
    assert decode_roaring(two_runs) == RowRanges([(base, base + 10), (base + 65534, base + 65536)])


def test_empty_bitmaps_between_others() -> None:
    """Delta writes one for each high half below the largest."""
    empty = struct.pack("<II", 12346, 0)
    data = struct.pack("<QI", 3, 0) + empty + struct.pack("<I", 1) + empty + BitMap64([(2 << 32) + 7]).serialize()[8:]
    assert decode_roaring(data) == RowRanges([((2 << 32) + 7, (2 << 32) + 8)])


def test_memory_grows_with_the_bytes_not_with_the_values() -> None:
    """65,536 containers, each one run of all 65,536 values: 900 kB for 4 billion rows."""
    count = 65_536
    header = struct.pack("<QII", 1, 0, 12347 | (count - 1) << 16) + b"\xff" * (count // 8)
    keys = b"".join(struct.pack("<HH", key, 65_535) for key in range(count))
    offset = len(header) - 12 + len(keys) + 4 * count
    offsets = b"".join(struct.pack("<I", offset + 6 * number) for number in range(count))
    data = header + keys + offsets + struct.pack("<HHH", 1, 0, 65_535) * count
    assert decode_roaring(data) == RowRanges([(0, 1 << 32)])


@pytest.mark.parametrize(
    "data",
    [
        _ONE_ARRAY + struct.pack("<HH", 9, 3),
        _ONE_ARRAY + struct.pack("<HH", 9, 9),
        _ONE_ARRAY.replace(b"\x3a\x30", b"\x3c\x30") + struct.pack("<HH", 3, 9),
        struct.pack("<QI", 2, 5) + struct.pack("<II", 12346, 0) + struct.pack("<III", 5, 12346, 0),
        struct.pack("<QI", 1, 0) + struct.pack("<II", 12346, 65537),
        struct.pack("<QI", 1, 0) + struct.pack("<IBHHHHH", 12347, 1, 0, 1, 1, 65535, 1),
        struct.pack("<QI", 1, 0) + struct.pack("<IBHHHHHHH", 12347, 1, 0, 3, 2, 0, 1, 1, 1),
        struct.pack("<QI", 1, 0) + struct.pack("<IIHHI", 12346, 1, 0, 4_999, 16) + b"\xff" * 8192,
        struct.pack("<Q", 1 << 63),
        b"",
        struct.pack("<QI", 1, 0) + struct.pack("<IIHHHHII", 12346, 2, 7, 0, 7, 0, 24, 26) + b"\0\0\0\0",
    ],
    ids=[
        "values descend",
        "a value twice",
        "cookie",
        "a high half twice",
        "too many containers",
        "a run past the container",
        "runs overlap",
        "another cardinality",
        "a huge count",
        "empty",
        "a container twice",
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="Roaring bitmap of"):
        decode_roaring(data)


# -- memory -------------------------------------------------------------------------------------------

_COMB = range(0, 2000, 2)  # as many ranges as rows


def test_ranges_of_a_bitmap_are_bounded() -> None:
    """A bit of a bitmap container stands for a range, which takes some 100 bytes."""
    data = BitMap64(_COMB).serialize()
    few, enough = LimitOptions(max_decoded_bytes=999 * 96), LimitOptions(max_decoded_bytes=1000 * 96)
    assert deleted_rows.decode_roaring(data, enough).num_ranges == 1000
    with pytest.raises(ResourceLimitError, match="1000 ranges, which take more than max_decoded_bytes"):
        deleted_rows.decode_roaring(data, few)
    assert deleted_rows.decode_roaring(BitMap64(range(1 << 20)).serialize(), few).num_rows == 1 << 20


def test_ranges_of_positions_are_bounded() -> None:
    few = LimitOptions(max_decoded_bytes=999 * 96)
    positions = pa.chunked_array([pa.array(reversed(_COMB), pa.int64())])
    assert list(deleted_rows.decode_positions(positions, "f", LimitOptions()).rows()) == list(_COMB)
    with pytest.raises(ResourceLimitError, match="1000 ranges") as caught:
        deleted_rows.decode_positions(positions, "f", few)
    assert caught.value.url == "f"


@given(st.lists(st.integers(0, 40)))
def test_positions_are_the_ranges_of_their_rows(rows: list[int]) -> None:
    found = deleted_rows.decode_positions(pa.chunked_array([rows], pa.int64()), "f", LimitOptions())
    assert found == RowRanges.from_rows(sorted(rows))
