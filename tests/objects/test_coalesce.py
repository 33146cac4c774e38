"""Coalescing covers every byte that was asked for, and keeps to its knobs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.objects.coalesce import ByteRange, coalesce, cut, starts_and_stops

RANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 100)).map(lambda item: (item[0], item[0] + item[1])))


def covered(ranges: list[ByteRange] | list[tuple[int, int]]) -> set[int]:
    return {byte for start, stop in ranges for byte in range(start, stop)}


@given(
    RANGES,
    st.integers(1, 300),
    st.fixed_dictionaries(
        {
            "gap_bytes": st.integers(0, 50),
            "wave": st.integers(1, 8),
            "wave_bytes": st.integers(0, 800),
            "max_requests": st.none() | st.integers(1, 5),
        }
    ),
)
def test_every_byte_is_covered_once(ranges: list[tuple[int, int]], part: int, knobs: dict[str, Any]) -> None:
    found = coalesce(*starts_and_stops(ranges), part_bytes=part, **knobs)
    assert covered(found) >= covered(ranges)
    assert all(left.stop <= right.start for left, right in pairwise(found))
    assert all(0 < item.stop - item.start <= part for item in found)
    whole = coalesce(*starts_and_stops(ranges), part_bytes=1 << 60, **knobs)
    if knobs["max_requests"] is not None:
        assert len(whole) <= knobs["max_requests"]
    else:
        assert all(right.start - left.stop > knobs["gap_bytes"] for left, right in pairwise(whole))


@given(RANGES, st.integers(0, 50))
def test_without_pressure_only_small_gaps_are_read(ranges: list[tuple[int, int]], gap: int) -> None:
    found = coalesce(
        *starts_and_stops(ranges), gap_bytes=gap, wave=10_000, wave_bytes=1 << 60, part_bytes=1 << 60, max_requests=None
    )
    wanted = covered(ranges)
    extra = sorted(covered(found) - wanted)
    runs = 0
    for byte in extra:
        runs = runs + 1 if byte - 1 in extra else 1
        assert runs <= gap
    assert all(right.start - left.stop > gap for left, right in pairwise(found))
    assert all(item.start in wanted and item.stop - 1 in wanted for item in found)


@pytest.mark.parametrize(
    ("ranges", "knobs", "wanted"),
    [
        ([(0, 10), (10, 20)], {}, [(0, 20)]),
        ([(10, 20), (0, 5)], {}, [(0, 5), (10, 20)]),
        ([(10, 20), (0, 5)], {"gap_bytes": 5}, [(0, 20)]),
        ([(10, 20), (0, 4)], {"gap_bytes": 5}, [(0, 4), (10, 20)]),
        ([(0, 10), (2, 5), (5, 5)], {}, [(0, 10)]),
        ([], {}, []),
        ([(0, 100)], {"part_bytes": 40}, [(0, 33), (33, 66), (66, 100)]),
        # three ranges and two connections: the smaller gap is closed, so that one wave is enough
        ([(0, 1), (20, 21), (30, 31)], {"wave": 2, "wave_bytes": 24}, [(0, 1), (20, 31)]),
        # but not for gaps that cost more than they save
        ([(0, 1), (200, 201), (300, 301)], {"wave": 1, "wave_bytes": 99}, [(0, 1), (200, 301)]),
        ([(0, 1), (200, 201), (300, 301)], {"wave": 2, "wave_bytes": 196}, [(0, 1), (200, 201), (300, 301)]),
        # nor while the bytes take longer than the third range waits
        ([(0, 51), (70, 121), (130, 181)], {"wave": 2, "wave_bytes": 100}, [(0, 51), (70, 121), (130, 181)]),
        ([(0, 51), (70, 121), (130, 181)], {"wave": 2, "wave_bytes": 140}, [(0, 51), (70, 181)]),
        # the price of a request alone pays for the bytes that are then waited for
        ([(0, 51), (70, 121), (130, 181)], {"wave": 2, "wave_bytes": 110, "gap_bytes": 8}, [(0, 51), (70, 181)]),
        ([(0, 51), (70, 121), (130, 181)], {"wave": 2, "wave_bytes": 110}, [(0, 51), (70, 121), (130, 181)]),
        ([(0, 1), (200, 201), (300, 301)], {"max_requests": 2}, [(0, 1), (200, 301)]),
        ([(0, 1), (200, 201), (300, 301)], {"max_requests": 1}, [(0, 301)]),
    ],
)
def test_exact_ranges(ranges: list[tuple[int, int]], knobs: dict[str, int], wanted: list[tuple[int, int]]) -> None:
    found = coalesce(
        *starts_and_stops(ranges),
        gap_bytes=knobs.get("gap_bytes", 0),
        wave=knobs.get("wave", 100),
        wave_bytes=knobs.get("wave_bytes", 0),
        part_bytes=knobs.get("part_bytes", 1 << 60),
        max_requests=knobs.get("max_requests"),
    )
    assert found == [ByteRange(*item) for item in wanted]


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 500))
def test_cut_is_near_equal(start: int, length: int, part: int) -> None:
    pieces = cut(ByteRange(start, start + length), part)
    sizes = [piece.stop - piece.start for piece in pieces]
    assert sum(sizes) == length
    assert max(sizes) <= part
    assert max(sizes) - min(sizes) <= 1
