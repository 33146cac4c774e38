"""Whether rows that are written come sorted as their file says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import InvalidOptionError
from asyncpq.spark.writes.write_options import SortedBy, leaf_places
from asyncpq.storage.urls import safe_url


class RowOrder:
    """Looks at the rows of one file, as they come; in Spark's order, in which NaN is greater than all else."""

    def __init__(self, url: str, schema: pa.Schema, columns: Sequence[SortedBy]) -> None:
        self._url = url
        self._columns = [(one, leaf_places(schema, one.column) or ()) for one in columns]
        self._last: list[pa.ChunkedArray] | None = None

    def check(self, rows: pa.Table) -> None:
        """
        Args:
            rows: the next ones, at least one.

        Raises:
            InvalidOptionError: one of them belongs before the one that it follows.
        """
        if not self._columns:
            return
        values = [_leaf(rows, places) for _, places in self._columns]
        seen = values
        if self._last:
            seen = [pa.chunked_array([*a.chunks, *b.chunks]) for a, b in zip(self._last, values, strict=True)]
        self._last = [one.slice(len(one) - 1) for one in values]
        tied = None  # so far
        for (column, _), one in zip(self._columns, seen, strict=True):
            before, equal = _compared(one.slice(0, len(one) - 1), one.slice(1), column)
            right = pc.or_(before, equal)
            if tied is not None:
                right, equal = pc.or_(right, pc.invert(tied)), pc.and_(equal, tied)
            if not pc.all(right, min_count=0).as_py():
                raise InvalidOptionError(
                    "sortedBy: the rows are not sorted so",
                    url=safe_url(self._url),
                    column=column.column,
                    hint="Sort them within their partitions: df.sortWithinPartitions(...). Spark puts nulls first, or"
                    ' last where it is descending: {"column": "id", "descending": true, "nullsFirst": false}.',
                )
            tied = equal


def _leaf(rows: pa.Table, places: Sequence[int]) -> pa.ChunkedArray:
    first, *rest = places
    values = rows.column(first)
    return pc.struct_field(values, rest) if rest else values


def _compared(
    ones: pa.ChunkedArray, others: pa.ChunkedArray, column: SortedBy
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Of each pair, whether the first belongs before the second, and whether they are equal."""
    if column.descending:
        return _compared(others, ones, SortedBy(column=column.column, nulls_first=not column.nulls_first))
    before, equal = pc.less(ones, others), pc.equal(ones, others)
    if pa.types.is_floating(ones.type):
        nan, other_nan = pc.is_nan(ones), pc.is_nan(others)
        before = pc.or_(before, pc.and_not(other_nan, nan))
        equal = pc.or_(equal, pc.and_(nan, other_nan))
    null, other_null = pc.is_null(ones), pc.is_null(others)
    by_null = pc.and_not(null, other_null) if column.nulls_first else pc.and_not(other_null, null)
    return pc.or_(pc.fill_null(before, False), by_null), pc.or_(pc.fill_null(equal, False), pc.and_(null, other_null))
