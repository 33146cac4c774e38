"""The pages of one leaf of one row group: which have come, which will, and which hold some rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Generic, Protocol, TypeVar

from asyncpq.pruning.row_ranges import RowRanges


class RowSpan(Protocol):
    """A page in any state: rows of the row group."""

    @property
    def first_row(self) -> int: ...

    @property
    def stop_row(self) -> int: ...


P = TypeVar("P", bound=RowSpan)


class PageQueue(Generic[P]):
    """Pages in row order: they are told to come, come, and are let go of.

    Args:
        num_rows: of the row group.
    """

    __slots__ = ("_expected", "_first_rows", "_num_rows", "_pages")

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._pages: list[P] = []
        self._first_rows: list[int] = []
        self._expected: deque[int] = deque()  # first rows of pages that will come, ascending

    @property
    def rows_available(self) -> int:
        """Rows from the row group's start that no page is still to come for."""
        return self._expected[0] if self._expected else self._num_rows

    def expect(self, first_row: int) -> None:
        """The page that begins at ``first_row`` will come; told in row order, before it does."""
        self._expected.append(first_row)

    def add(self, page: P) -> None:
        """A page has come, in row order."""
        first_row = page.first_row
        self._pages.append(page)
        self._first_rows.append(first_row)
        if self._expected and self._expected[0] == first_row:
            self._expected.popleft()

    def has(self, first_row: int) -> bool:
        """Whether the page that begins at ``first_row`` has come."""
        at = bisect_left(self._first_rows, first_row)
        return at < len(self._first_rows) and self._first_rows[at] == first_row

    def holding(self, rows: RowRanges) -> list[P]:
        """The pages that hold any of ``rows``."""
        pages, first_rows = self._pages, self._first_rows
        if rows.num_ranges > len(pages):
            return [page for page in pages if rows.overlaps(page.first_row, page.stop_row)]
        found: list[P] = []
        following = 0
        for start, stop in rows:
            low = max(bisect_right(first_rows, start) - 1, following)
            following = max(bisect_left(first_rows, stop), low)
            found += [page for page in pages[low:following] if page.stop_row > start]
        return found

    def discard_before(self, row: int) -> None:
        """Rows before ``row`` will not be asked for again."""
        position = bisect_right(self._first_rows, row)
        while position and self._pages[position - 1].stop_row > row:
            position -= 1
        if position:
            del self._pages[:position], self._first_rows[:position]
