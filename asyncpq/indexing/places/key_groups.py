"""Which groups of sorted rows hold ranges of keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from asyncpq.indexing.model import KeyRange

Bounds = tuple[Sequence[bytes], Sequence[bytes]]


class KeyGroups:
    """Where the keys of a segment are: in row groups of a file, or chunks of another kind.

    Args:
        num_rows: of each.
        bounds: least and greatest values of each, by the name of the column; of ``key`` at least.

    Attributes:
        weight: approximate bytes held in memory, once all bounds were looked at.
    """

    __slots__ = ("_bounds", "_num_rows", "weight")

    def __init__(self, num_rows: Sequence[int], bounds: Mapping[str, Bounds]) -> None:
        self._num_rows = num_rows
        self._bounds = bounds
        count = len(num_rows)
        of_one = sum(len(values[0]) + len(values[-1]) + 80 for pair in bounds.values() for values in pair if count) // 2
        self.weight = 500 + (40 + of_one) * count

    def __len__(self) -> int:
        return len(self._num_rows)

    @property
    def num_rows(self) -> int:
        """Rows of all of them."""
        return sum(self._num_rows)

    def num_rows_of(self, ordinal: int) -> int:
        """Rows of one of them."""
        return self._num_rows[ordinal]

    def touched(self, ranges: Sequence[KeyRange] | None, at_least: tuple[str, bytes] | None) -> list[int]:
        """Ordinals of those that may hold keys in ``ranges``, and as much as ``at_least`` in that column."""
        if ranges is None:
            found: Sequence[int] = range(len(self))
        else:
            lows, highs = self._bounds["key"]
            ordinals: dict[int, None] = {}
            for low, high in ranges:
                start = bisect_left(highs, low)
                stop = len(lows) if high is None else bisect_left(lows, high, lo=start)
                ordinals.update(dict.fromkeys(range(start, stop)))
            found = list(ordinals)
        if at_least is not None and at_least[0] in self._bounds:
            _, most = self._bounds[at_least[0]]
            found = [ordinal for ordinal in found if most[ordinal] >= at_least[1]]
        return list(found)

    def least_rows(self, ranges: Sequence[KeyRange] | None, ordinals: Sequence[int]) -> int:
        """How many rows are in ``ranges`` at least, of the groups that they touch."""
        if ranges is None:
            return self.num_rows
        lows, highs = self._bounds["key"]
        starts = [wanted.low for wanted in ranges]
        count = 0
        for ordinal in ordinals:
            inside = bisect_left(starts, lows[ordinal] + b"\x00") - 1  # the last range that begins before its keys do
            if inside >= 0 and highs[ordinal] in ranges[inside]:
                count += self._num_rows[ordinal]
        return count

    def runs(self, num_rows: int) -> Iterator[range]:
        """All of them, in runs of about so many rows."""
        start = held = 0
        for ordinal, rows in enumerate(self._num_rows):
            held += rows
            if held >= num_rows:
                yield range(start, ordinal + 1)
                start, held = ordinal + 1, 0
        if start < len(self):
            yield range(start, len(self))
