"""RowRanges against sets of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import InvalidOptionError
from asyncpq.pruning.row_ranges import RowRanges

SPAN = 40
ROWS = st.integers(0, SPAN)
RANGES = st.lists(st.tuples(ROWS, ROWS), max_size=12)
ROW_SETS = st.frozensets(st.integers(0, SPAN - 1), max_size=SPAN)


def rows_of(ranges: RowRanges) -> set[int]:
    return set(ranges.rows())


def check(ranges: RowRanges, rows: set[int] | frozenset[int]) -> None:
    """The rows are these, and the ranges are in normal form."""
    assert list(ranges.rows()) == sorted(rows)
    assert ranges.num_rows == len(rows)
    assert bool(ranges) is bool(rows)
    assert ranges.num_ranges == len(ranges.starts) == len(ranges.stops)
    for start, stop in ranges:
        assert start < stop
    for stop, start in zip(ranges.stops, ranges.starts[1:], strict=False):
        assert stop < start


def of(rows: set[int] | frozenset[int]) -> RowRanges:
    return RowRanges.from_rows(sorted(rows))


@given(RANGES)
def test_construction(pairs: list[tuple[int, int]]) -> None:
    check(RowRanges(pairs), {row for start, stop in pairs for row in range(start, stop)})


@given(RANGES)
def test_from_sorted(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pair for pair in pairs if pair[0] < pair[1])
    check(RowRanges.from_sorted(pairs), {row for start, stop in pairs for row in range(start, stop)})


@given(st.lists(st.integers(0, SPAN)))
def test_from_rows_with_duplicates(rows: list[int]) -> None:
    check(RowRanges.from_rows(sorted(rows)), set(rows))


@given(ROW_SETS, ROW_SETS)
def test_algebra(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = of(left), of(right)
    check(a & b, left & right)
    check(a | b, left | right)
    check(a - b, left - right)
    assert (a == b) == (left == right)
    assert a != b or hash(a) == hash(b)


@given(st.frozensets(st.integers(0, 999), min_size=100), st.frozensets(st.integers(0, 999), min_size=2, max_size=6))
def test_algebra_of_unequal_sizes(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = of(left), of(right)
    check(a & b, left & right)
    check(b & a, left & right)
    check(a - b, left - right)
    check(b - a, right - left)


@given(ROW_SETS, ROWS, ROWS)
def test_windows(rows: frozenset[int], start: int, stop: int) -> None:
    ranges, window = of(rows), set(range(start, stop))
    check(ranges.clip(start, stop), rows & window)
    assert ranges.overlaps(start, stop) is bool(rows & window)
    assert ranges.count(start, stop) == len(rows & window)
    before, after = ranges.split(start)
    check(before, {row for row in rows if row < start})
    check(after, {row for row in rows if row >= start})
    check(ranges.shift(start), {row + start for row in rows})


@given(ROW_SETS, ROWS)
def test_complement(rows: frozenset[int], num_rows: int) -> None:
    check(of(rows).complement(num_rows), set(range(num_rows)) - rows)


@given(ROW_SETS, st.integers(-3, SPAN + 3), st.integers(-3, SPAN + 3))
def test_positions(rows: frozenset[int], start: int, stop: int) -> None:
    ranges, listed = of(rows), sorted(rows)
    check(ranges.slice(start, stop), set(listed[max(start, 0) : max(stop, 0)]))
    for position, row in enumerate(listed):
        assert ranges.row_at(position) == row
    for row in range(SPAN):
        assert (row in ranges) is (row in rows)
    for position in (-1, len(listed)):
        with pytest.raises(IndexError, match=f"position {position} does not exist"):
            ranges.row_at(position)


def test_extremes() -> None:
    check(RowRanges.all(0), set())
    check(RowRanges.empty(), set())
    check(RowRanges.all(5), set(range(5)))
    assert (RowRanges.empty().start, RowRanges.empty().stop) == (0, 0)
    assert (of({3, 9}).start, of({3, 9}).stop) == (3, 10)
    assert repr(of({3, 4, 9})) == "RowRanges(3-5, 9-10; 3 rows)"


@pytest.mark.parametrize("rows", [[3, 2], [-1]])
def test_unsorted_rows_are_refused(rows: list[int]) -> None:
    with pytest.raises(InvalidOptionError):
        RowRanges.from_rows(rows)


def test_rows_before_zero_are_refused() -> None:
    with pytest.raises(InvalidOptionError):
        RowRanges([(-1, 4)])
    with pytest.raises(InvalidOptionError):
        of({1}).shift(-2)
