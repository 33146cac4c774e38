"""Which rows of each row group may be read, once it is known where the row groups of the file begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from asyncpq.errors import RowIndexError
from asyncpq.pruning.row_ranges import RowRanges


class RowGroupLayout:
    """Which rows of a file its row groups hold.

    Attributes:
        counts: rows of each row group.
        first_rows, stop_rows: of each, the first row and the one behind the last, as rows of the file.
        filled: ordinals of those that are not empty.
        num_rows: rows of the file.
        weight: approximate bytes held in memory.
    """

    __slots__ = ("counts", "filled", "first_rows", "num_rows", "stop_rows", "weight")

    def __init__(self, counts: Iterable[int]) -> None:
        self.counts = tuple(counts)
        ends = tuple(accumulate(self.counts, initial=0))
        self.first_rows, self.stop_rows, self.num_rows = ends[:-1], ends[1:], ends[-1]
        self.filled = RowRanges.from_rows([ordinal for ordinal, count in enumerate(self.counts) if count])
        self.weight = 300 + 80 * len(self.counts)


class ResolvedAccess(Mapping[int, RowRanges]):
    """The rows that may be read of each row group, by ordinal; row groups of which none may are not there.

    Row groups that may be read whole are kept as ranges of ordinals: a file may have thousands.

    Args:
        layout: of the file.
        whole: ordinals of row groups that may be read whole; empty ones among them are dropped.
        parts: by ordinal, of others, the rows that may be read, as rows of the row group.

    Attributes:
        layout: as given.
        scanned: ordinals of the row groups that may be read whole.
        selected: rows of the row groups that may be read in part; some, and not all of them.
    """

    __slots__ = ("layout", "scanned", "selected")

    def __init__(self, layout: RowGroupLayout, whole: RowRanges, parts: Mapping[int, RowRanges]) -> None:
        self.layout = layout
        self.selected: dict[int, RowRanges] = {}
        full: list[int] = []
        for ordinal, rows in parts.items():
            if rows.num_rows == layout.counts[ordinal]:
                full.append(ordinal)
            elif rows:
                self.selected[ordinal] = rows
        self.scanned = (whole | RowRanges.from_rows(sorted(full)) if full else whole) & layout.filled

    @classmethod
    def of_rows(cls, layout: RowGroupLayout, ranges: RowRanges) -> ResolvedAccess:
        """Rows of the file.

        Raises:
            RowIndexError: the file has fewer rows.
        """
        if ranges.stop > layout.num_rows:
            outside = ranges.clip(layout.num_rows, ranges.stop).start
            raise RowIndexError(f"row {outside} is not in a file of {layout.num_rows} rows")
        whole: list[tuple[int, int]] = []
        parts: dict[int, RowRanges] = {}
        at = 0
        row = ranges.start
        while at < ranges.num_ranges:
            # of empty row groups at the same row, the last is none
            ordinal = bisect_right(layout.first_rows, row) - 1
            first, stop = layout.first_rows[ordinal], layout.stop_rows[ordinal]
            if row == first and ranges.stops[at] >= stop:
                behind = bisect_right(layout.stop_rows, ranges.stops[at])
                whole.append((ordinal, behind))
                stop = layout.stop_rows[behind - 1]
            else:
                parts[ordinal] = ranges.clip(first, stop).shift(-first)
            at = bisect_right(ranges.stops, stop, at)
            if at < ranges.num_ranges:
                row = max(stop, ranges.starts[at])
        return cls(layout, RowRanges(whole) if whole else RowRanges.empty(), parts)

    # -- looking ----------------------------------------------------------------------------------

    @property
    def ordinals(self) -> RowRanges:
        """Of all row groups that may be read."""
        return self.scanned | RowRanges.from_rows(sorted(self.selected)) if self.selected else self.scanned

    @property
    def num_rows(self) -> int:
        """Rows that may be read."""
        layout = self.layout
        whole = [layout.stop_rows[stop - 1] - layout.first_rows[start] for start, stop in self.scanned]
        return sum([rows.num_rows for rows in self.selected.values()], sum(whole))

    def __getitem__(self, ordinal: int) -> RowRanges:
        rows = self.selected.get(ordinal)
        if rows is None:
            if ordinal not in self.scanned:
                raise KeyError(ordinal)
            rows = RowRanges.all(self.layout.counts[ordinal])
        return rows

    def __iter__(self) -> Iterator[int]:
        return self.ordinals.rows()

    def __len__(self) -> int:
        return self.scanned.num_rows + len(self.selected)

    def __repr__(self) -> str:
        return f"ResolvedAccess({len(self)} of {len(self.layout.counts)} row groups, {self.num_rows} rows)"

    # -- the algebra ------------------------------------------------------------------------------

    def __invert__(self) -> ResolvedAccess:
        """The other rows of the file."""
        layout = self.layout
        parts = {ordinal: rows.complement(layout.counts[ordinal]) for ordinal, rows in self.selected.items()}
        return ResolvedAccess(layout, layout.filled - self.ordinals, parts)

    def __and__(self, other: ResolvedAccess) -> ResolvedAccess:
        parts: dict[int, RowRanges] = {}
        for mine, its in ((self, other), (other, self)):
            for ordinal, rows in mine.selected.items():
                if ordinal in its.scanned:
                    parts[ordinal] = rows
                elif ordinal in its.selected:
                    parts[ordinal] = rows & its.selected[ordinal]
        return ResolvedAccess(self.layout, self.scanned & other.scanned, parts)

    def __or__(self, other: ResolvedAccess) -> ResolvedAccess:
        whole = self.scanned | other.scanned
        parts: dict[int, RowRanges] = {}
        for rows_of in (self.selected, other.selected):
            for ordinal, rows in rows_of.items():
                if ordinal not in whole:
                    parts[ordinal] = parts[ordinal] | rows if ordinal in parts else rows
        return ResolvedAccess(self.layout, whole, parts)
