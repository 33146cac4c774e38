"""The rows of a row group that can match, by the ColumnIndexes of its chunks (PageIndex.md)."""

from __future__ import annotations

from collections.abc import Mapping

from asyncpq.errors import CorruptIndexError
from asyncpq.expressions import Expression
from asyncpq.expressions.analysis import ResultValues, Truth, ValueDomain
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import PageBounds, SortOrder
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zones import ZonedColumn, Zones, rows_where


class PageZones:
    """The pages of one chunk as zones, and the rows of each. Made once for each chunk: cache it."""

    __slots__ = ("_starts", "_stops", "domain", "num_rows", "weight", "zones")

    def __init__(
        self, leaf: Leaf, order: SortOrder, bounds: PageBounds, offset_index: OffsetIndex, num_rows: int
    ) -> None:
        """Raises CorruptIndexError if the two indexes differ in their number of pages,
        or rows do not ascend.
        """
        firsts = offset_index.first_rows
        if len(firsts) != len(bounds.mins):
            raise CorruptIndexError(
                f"the ColumnIndex has {len(bounds.mins)} pages, the OffsetIndex {len(firsts)}", column=leaf.dotted
            )
        self._starts = firsts
        self._stops = [*firsts[1:], num_rows]
        if not all(start < stop for start, stop in zip(self._starts, self._stops, strict=True)):
            raise CorruptIndexError("the OffsetIndex's rows do not ascend", column=leaf.dotted)
        self.num_rows = num_rows
        self.zones = Zones(
            ZonedColumn.of_leaf(leaf, order),
            bounds.mins,
            bounds.maxs,
            all_null=bounds.null_pages,
            null_counts=bounds.null_counts,
            nan_counts=bounds.nan_counts,
        )
        self.domain: ValueDomain = self.zones.domain
        self.weight = 600 + 100 * len(firsts) + bounds.weight  # approximate bytes held in memory

    def holding(self, wanted: ResultValues) -> RowRanges:
        """The rows of the pages that may hold a member of the set."""
        pages = self.zones.holding(wanted)
        starts, stops = self._starts, self._stops
        return RowRanges.from_parallel(
            [starts[page] for page in pages.starts], [stops[page - 1] for page in pages.stops]
        )


def prune_pages(expr: Expression, num_rows: int, pages: Mapping[str, PageZones]) -> RowRanges:
    """The rows of a row group in which ``expr`` may be true: a superset of those in which it is.

    ``pages``: the pages by column; all rows may match an atom of another column.
    Returns row numbers within the row group.
    """
    return rows_where(expr, Truth.TRUE, num_rows, pages)
