"""Sets of rows as sorted ranges, and their algebra."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from asyncpq.errors import InvalidOptionError


class RowRanges:
    """An immutable set of row numbers: sorted, disjoint, non-adjacent half-open ranges.

    Row numbers count within a row group, a file or any other sequence. Operations take time linear in the number of
    ranges, less where one side is small.

    Attributes:
        starts, stops: the ranges, as parallel tuples.
        num_rows: how many rows the set holds.
    """

    __slots__ = ("num_rows", "starts", "stops")

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    num_rows: int

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Make a set from half-open ranges (start, stop) in any order; ranges may overlap, touch or be empty."""
        ascending = sorted(ranges)
        if ascending and ascending[0][0] < 0:
            start, stop = ascending[0]
            raise InvalidOptionError(f"row range {start}-{stop} begins before row 0")
        merged = RowRanges.from_sorted([(start, stop) for start, stop in ascending if start < stop])
        self.starts, self.stops, self.num_rows = merged.starts, merged.stops, merged.num_rows

    @classmethod
    def from_parallel(cls, starts: Iterable[int], stops: Iterable[int]) -> RowRanges:
        """Make a set from starts and stops of ranges that ascend and do not touch or overlap; this is not checked."""
        ranges = cls.__new__(cls)
        ranges.starts = starts = tuple(starts)
        ranges.stops = stops = tuple(stops)
        ranges.num_rows = sum(stops) - sum(starts)
        return ranges

    @classmethod
    def single(cls, start: int, stop: int) -> RowRanges:
        """Return the set of the rows from ``start`` to before ``stop``; the caller ensures 0 <= start < stop."""
        ranges = cls.__new__(cls)
        ranges.starts, ranges.stops, ranges.num_rows = (start,), (stop,), stop - start
        return ranges

    @classmethod
    def all(cls, num_rows: int) -> RowRanges:
        """Return the set of the rows 0 to ``num_rows`` - 1."""
        return _all(num_rows)

    @classmethod
    def empty(cls) -> RowRanges:
        """Return the set without rows."""
        return EMPTY

    @classmethod
    def from_rows(cls, rows: Iterable[int]) -> RowRanges:
        """Make a set from row numbers in ascending order; duplicates are allowed."""
        starts: list[int] = []
        stops: list[int] = []
        last = -1
        for row in rows:
            if row < last or row < 0:
                raise InvalidOptionError(
                    f"row number {row} is negative"
                    if row < 0
                    else f"row number {row} comes after {last}, but row numbers must be in ascending order"
                )
            if stops and row <= stops[-1]:
                stops[-1] = row + 1
            else:
                starts.append(row)
                stops.append(row + 1)
            last = row
        return cls.from_parallel(starts, stops)

    @classmethod
    def from_sorted(cls, ranges: Iterable[tuple[int, int]]) -> RowRanges:
        """Make a set from half-open ranges that may touch or overlap.

        The caller ensures that starts ascend and no range is empty.
        """
        starts: list[int] = []
        stops: list[int] = []
        last = -1
        for start, stop in ranges:
            if start <= last:
                if stop > last:
                    stops[-1] = last = stop
            else:
                starts.append(start)
                stops.append(stop)
                last = stop
        return cls.from_parallel(starts, stops)

    # -- looking ----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges in ascending order, as pairs (start, stop)."""
        return zip(self.starts, self.stops, strict=True)

    @property
    def num_ranges(self) -> int:
        return len(self.starts)

    @property
    def start(self) -> int:
        """The first row number; 0 if the set is empty."""
        return self.starts[0] if self.starts else 0

    @property
    def stop(self) -> int:
        """The last row number plus 1; 0 if the set is empty."""
        return self.stops[-1] if self.stops else 0

    def rows(self) -> Iterator[int]:
        """Iterate over the row numbers in ascending order."""
        for start, stop in self:
            yield from range(start, stop)

    def __contains__(self, row: object) -> bool:
        if not isinstance(row, int):
            return False
        position = bisect_right(self.starts, row) - 1
        return position >= 0 and row < self.stops[position]

    def overlaps(self, start: int, stop: int) -> bool:
        """Return whether any row of [start, stop) is in the set."""
        position = bisect_right(self.stops, start)
        return start < stop and position < len(self.starts) and self.starts[position] < stop

    def count(self, start: int, stop: int) -> int:
        """Return the number of rows of [start, stop) that are in the set."""
        return self.clip(start, stop).num_rows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowRanges):
            return NotImplemented
        return self.starts == other.starts and self.stops == other.stops

    def __hash__(self) -> int:
        return hash((self.starts, self.stops))

    def __repr__(self) -> str:
        shown = ", ".join(f"{start}-{stop}" for start, stop in list(self)[:8])
        return f"RowRanges({shown}{', ...' if len(self.starts) > 8 else ''}; {self.num_rows} rows)"

    # -- the algebra ------------------------------------------------------------------------------

    def clip(self, start: int, stop: int) -> RowRanges:
        """Return the rows of the set that lie in [start, stop)."""
        starts, stops = self.starts, self.stops
        if not starts or (start <= starts[0] and stop >= stops[-1]):
            return self
        low = bisect_right(stops, start)
        high = bisect_left(starts, stop)
        if low >= high or start >= stop:
            return EMPTY
        return RowRanges.from_parallel(
            (max(start, starts[low]), *starts[low + 1 : high]), (*stops[low : high - 1], min(stop, stops[high - 1]))
        )

    def __and__(self, other: RowRanges) -> RowRanges:
        if len(self.starts) < len(other.starts):
            self, other = other, self
        if len(other.starts) <= 1:
            if not other.starts:
                return EMPTY
            start, stop = other.starts[0], other.stops[0]
            if len(self.starts) == 1 and self.starts[0] <= start and stop <= self.stops[0]:
                return other
            return self.clip(start, stop)
        if self is other:
            return self
        return self._intersect(other)

    def _intersect(self, other: RowRanges) -> RowRanges:
        starts: list[int] = []
        stops: list[int] = []
        mine_starts, mine_stops = self.starts, self.stops
        size = len(mine_starts)
        skip = size > 8 * len(other.starts)
        at = 0
        for start, stop in other:
            if skip:
                at = bisect_right(mine_stops, start, at)
            while at < size and mine_stops[at] <= start:
                at += 1
            while at < size and mine_starts[at] < stop:
                starts.append(max(start, mine_starts[at]))
                if mine_stops[at] > stop:
                    stops.append(stop)
                    break
                stops.append(mine_stops[at])
                at += 1
        return RowRanges.from_parallel(starts, stops)

    def __or__(self, other: RowRanges) -> RowRanges:
        if not self.starts or self is other:
            return other
        if not other.starts:
            return self
        return RowRanges.from_sorted(sorted((*self, *other)))  # two runs: timsort merges them in linear time

    def complement(self, num_rows: int) -> RowRanges:
        """Return the rows of [0, num_rows) that are not in the set."""
        clipped = self.clip(0, num_rows)
        if not clipped.starts:
            return RowRanges.all(num_rows)
        starts = (0, *clipped.stops)
        stops = (*clipped.starts, num_rows)
        low = clipped.starts[0] == 0
        high = len(starts) - (clipped.stops[-1] == num_rows)
        return RowRanges.from_parallel(starts[low:high], stops[low:high])

    def __sub__(self, other: RowRanges) -> RowRanges:
        if not self.starts or not other.overlaps(self.starts[0], self.stops[-1]):
            return self
        return self & other.complement(self.stops[-1])

    def shift(self, offset: int) -> RowRanges:
        """Return the set with ``offset`` added to each row number. Raises InvalidOptionError if one becomes
        negative."""
        if offset == 0 or not self.starts:
            return self
        if self.starts[0] + offset < 0:
            raise InvalidOptionError(f"{self!r} cannot be shifted by {offset}: its first row would be negative")
        return RowRanges.from_parallel([row + offset for row in self.starts], [row + offset for row in self.stops])

    def split(self, row: int) -> tuple[RowRanges, RowRanges]:
        """Return two sets: the rows before ``row``, and the rows from ``row`` on."""
        return self.clip(0, row), self.clip(row, max(row, self.stop))

    def slice(self, start: int, stop: int) -> RowRanges:
        """Return the rows from number ``start`` to before number ``stop`` of the set, counted from 0 in ascending
        order."""
        start, stop = max(start, 0), min(stop, self.num_rows)
        if start >= stop:
            return EMPTY
        if start == 0 and stop == self.num_rows:
            return self
        return self.clip(self.row_at(start), self.row_at(stop - 1) + 1)

    def row_at(self, position: int) -> int:
        """Return the row number that is at ``position``, from 0, among the set's rows in ascending order. Raises
        IndexError if the set has fewer rows."""
        if not 0 <= position < self.num_rows:
            raise IndexError(f"position {position} does not exist: the set has {self.num_rows} rows, counted from 0")
        ends = list(accumulate(stop - start for start, stop in self))
        range_number = bisect_right(ends, position)
        return self.stops[range_number] - (ends[range_number] - position)


EMPTY = RowRanges()


@functools.lru_cache(maxsize=1024)  # a lookup asks for the same few sets again and again
def _all(num_rows: int) -> RowRanges:
    return RowRanges.single(0, num_rows) if num_rows > 0 else EMPTY
