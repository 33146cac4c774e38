"""What a file's statistics prove about values (parquet.thrift, Statistics and ColumnIndex).

What cannot be trusted is left out, with the reason; counts stay where bounds go. How bounds compare:
``format.column_order``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.column_chunk import ColumnChunk, Statistics
from asyncpq.parquet.column_order import SIGNED_ORDERS, Comparable, Order, decode_value, decode_values, order_of
from asyncpq.parquet.page_index import BoundaryOrder, ColumnIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.writer_faults import Claim, WriterFaults

__all__ = [
    "Bounds",
    "Comparable",
    "Order",
    "PageBounds",
    "chunk_bounds",
    "decode_value",
    "order_of",
    "page_bounds",
]

# Orders in which a bound may be a shorter value than any in the data.
_TRUNCATED: Final = (Order.BYTES,)
_OF_PAGES: Final = (Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS, Claim.EMPTY_PAGE_BOUNDS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of the values of one chunk.

    Attributes:
        order: how the bounds compare.
        min, max: no value (NaN aside) is below or above; both None when nothing is known.
        min_exact, max_exact: the bound occurs as a value (0.0 may stand for -0.0).
        null_count, nan_count: None when unknown. Of a nested leaf they count leaf values, not rows.
        num_values: leaf values with nulls; the rows of a leaf that is not repeated.
    """

    order: Order
    min: Comparable | None
    max: Comparable | None
    min_exact: bool
    max_exact: bool
    null_count: int | None
    nan_count: int | None
    num_values: int

    @property
    def all_null(self) -> bool:
        """Certain that every value is null."""
        return self.null_count == self.num_values


def chunk_bounds(
    chunk: ColumnChunk,
    leaf: Leaf,
    order: Order,
    faults: WriterFaults,
    has_column_orders: bool,
    num_rows: int,
) -> tuple[Bounds, str | None]:
    """What a chunk's statistics prove.

    Args:
        chunk: with its raw statistics.
        leaf: its column.
        order: :func:`order_of` it.
        faults: of the file's writer: what it is known to get wrong is taken as unknown.
        has_column_orders: whether the file has column orders; if so the deprecated bounds are not used,
            if not only they are.
        num_rows: of the row group.

    Returns:
        The bounds, with nothing known when the statistics are absent or contradict each other; and why
        they are not used although the file has some, else None.
    """
    statistics = chunk.statistics
    num_values = chunk.num_values
    if statistics is None:
        return _unknown(order, num_values)
    nulls, nans = statistics.null_count, statistics.nan_count
    if order not in (Order.FLOAT, Order.FLOAT16):
        nans = None
    wrong_nulls = _fault(faults, Claim.NULL_COUNTS, leaf, chunk) if nulls is not None else None
    if wrong_nulls is not None:
        nulls = None
    if (nulls or 0) + (nans or 0) > num_values or (leaf.max_repetition_level == 0 and num_values != num_rows):
        return _unknown(order, num_values, "its counts of nulls and NaN do not fit its count of values")
    raw_min, raw_max = _raw_ends(statistics, has_column_orders)
    if raw_min is None or raw_max is None:
        reason = "it has deprecated bounds only" if has_column_orders and statistics.deprecated_min else wrong_nulls
        return _unknown(order, num_values, reason, nulls, nans)
    if nulls == num_values:
        return _unknown(order, num_values, "it has bounds, and nothing but nulls")
    if order is Order.UNDEFINED or (not has_column_orders and order not in SIGNED_ORDERS):
        return _unknown(order, num_values, "the order of its bounds is undefined or unknown", nulls, nans)
    wrong_bounds = _fault(faults, Claim.BOUNDS, leaf, chunk)
    if wrong_bounds is not None:
        return _unknown(order, num_values, wrong_bounds, nulls, nans)
    try:
        low, high = _decode_ends(raw_min, raw_max, leaf, order)
    except CorruptIndexError as error:
        return _unknown(order, num_values, error.message, nulls, nans)
    if low > high:
        return _unknown(order, num_values, "its min is above its max")
    # The flags are newer than the fields: where one is missing, strings may have been cut short.
    min_exact, max_exact = statistics.is_min_value_exact, statistics.is_max_value_exact
    if order in _TRUNCATED:
        min_exact, max_exact = min_exact is True, max_exact is True
    exact = (min_exact is not False, max_exact is not False)
    return Bounds(order, low, high, *exact, nulls, nans, num_values), wrong_nulls


def _raw_ends(statistics: Statistics, has_column_orders: bool) -> tuple[bytes | None, bytes | None]:
    if has_column_orders:
        return statistics.min_value, statistics.max_value
    return statistics.deprecated_min, statistics.deprecated_max


def _decode_ends(raw_min: bytes, raw_max: bytes, leaf: Leaf, order: Order) -> tuple[Any, Any]:
    """The values of a chunk's min and max; a zero includes the other one.

    Raises:
        CorruptIndexError: one of them is no value, or NaN.
    """
    low, high = decode_values((raw_min, raw_max), leaf, order)
    if low != low or high != high:
        raise CorruptIndexError("a bound is NaN", column=leaf.dotted)
    if order in (Order.FLOAT, Order.FLOAT16):
        return _wide_zero(low, -0.0), _wide_zero(high, 0.0)
    return low, high


def _fault(faults: WriterFaults, claim: Claim, leaf: Leaf, chunk: ColumnChunk) -> str | None:
    """Why a claim of a chunk's statistics is not believed; None if it is."""
    if claim is Claim.NULL_COUNTS and leaf.max_definition_level == 0:
        return None  # no count says more than the schema
    fault = faults.find(claim, leaf, chunk.encodings)
    return None if fault is None else fault.reason(claim)


def _unknown(
    order: Order, num_values: int, reason: str | None = None, nulls: int | None = None, nans: int | None = None
) -> tuple[Bounds, str | None]:
    return Bounds(order, None, None, False, False, nulls, nans, num_values), reason


def _wide_zero(value: float, zero: float) -> float:
    # A min of +0 may stand for -0, a max of -0 for +0.
    return zero if value == 0 else value


@dataclass(slots=True, eq=False)
class PageBounds:
    """What is known of the values of each page of a chunk. Bounds are inclusive; in byte order they may
    be cut short, so they are never exact.

    Attributes:
        order: how the bounds compare.
        mins, maxs: NaN aside; both None of a page where unknown.
        null_pages: True where every value is null, as the null counts confirm.
        null_counts, nan_counts: None when unknown. Of a nested leaf they count leaf values, not rows.
        boundary_order: as the writer claims and the bounds confirm, else UNORDERED.
    """

    order: Order
    mins: list[Any]
    maxs: list[Any]
    null_pages: list[bool]
    null_counts: list[int] | None
    nan_counts: list[int] | None
    boundary_order: BoundaryOrder

    @property
    def is_sorted(self) -> bool:
        """Both lists ascend, or both descend, over the pages that have bounds."""
        return self.boundary_order is not BoundaryOrder.UNORDERED

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""
        strings = 0
        if self.order is Order.BYTES:
            strings = sum(len(value) for values in (self.mins, self.maxs) for value in values if value is not None)
        return 300 + 150 * len(self.mins) + strings


def page_bounds(
    index: ColumnIndex,
    leaf: Leaf,
    order: Order,
    page_row_counts: Sequence[int],
    *,
    has_column_orders: bool = True,
    faults: WriterFaults | None = None,
    encodings: Sequence[int] = (),
) -> PageBounds:
    """What a ColumnIndex proves.

    Args:
        index: decoded, of the chunk of ``leaf``.
        leaf: the column.
        order: :func:`order_of` it; with UNDEFINED only nulls are known.
        page_row_counts: rows of each page, from the OffsetIndex.
        has_column_orders: whether the file has column orders; a ColumnIndex's bounds mean nothing without.
        faults: of the writer of the index: what it is known to get wrong is taken as unknown. None for one of our own.
        encodings: of the chunk.

    Raises:
        CorruptIndexError: the index contradicts itself or the OffsetIndex, and proves nothing.
    """
    num_pages = index.num_pages
    if len(page_row_counts) != num_pages:
        raise CorruptIndexError(
            f"the ColumnIndex has {num_pages} pages, the OffsetIndex {len(page_row_counts)}", column=leaf.dotted
        )
    if leaf.max_definition_level == 0 and True in index.null_pages:
        raise CorruptIndexError("the ColumnIndex has pages of nulls in a required column", column=leaf.dotted)
    if leaf.max_repetition_level == 0:
        _check_null_counts(index, page_row_counts, leaf)
    wrong = [claim for claim in _OF_PAGES if faults is not None and faults.find(claim, leaf, encodings) is not None]
    is_float = order in (Order.FLOAT, Order.FLOAT16)
    if order is Order.UNDEFINED or not has_column_orders or Claim.PAGE_BOUNDS in wrong:
        mins: list[Any] = [None] * num_pages
        maxs: list[Any] = [None] * num_pages
        claimed = BoundaryOrder.UNORDERED
    else:
        mins, maxs = (_page_values(raw, index.null_pages, leaf, order) for raw in (index.min_values, index.max_values))
        claimed = index.boundary_order
        if is_float:
            claimed = _without_nan(mins, maxs, claimed)
        elif order is Order.BYTES and Claim.EMPTY_PAGE_BOUNDS in wrong and b"" in maxs:
            mins, maxs = ([None if high == b"" else v for v, high in zip(vs, maxs, strict=True)] for vs in (mins, maxs))
    null_pages = index.null_pages
    null_counts = None if Claim.PAGE_NULL_COUNTS in wrong else index.null_counts
    if null_counts is None and True in null_pages:
        # parquet-mr marks the pages of a column written without statistics so, whatever is in them.
        null_pages = [False] * num_pages
        claimed = BoundaryOrder.UNORDERED
    present = [(low, high) for low, high in zip(mins, maxs, strict=True) if low is not None]
    if any(low > high for low, high in present):
        raise CorruptIndexError("the ColumnIndex has a page whose min is above its max", column=leaf.dotted)
    if not _is_ordered(present, claimed):
        claimed = BoundaryOrder.UNORDERED
    return PageBounds(order, mins, maxs, null_pages, null_counts, index.nan_counts if is_float else None, claimed)


def _check_null_counts(index: ColumnIndex, rows: Sequence[int], leaf: Leaf) -> None:
    if index.null_counts is None:
        return
    for is_null, nulls, num_rows in zip(index.null_pages, index.null_counts, rows, strict=True):
        if nulls > num_rows or is_null != (nulls == num_rows):
            raise CorruptIndexError(
                f"the ColumnIndex has a page of {num_rows} rows with {nulls} nulls that is "
                f"{'' if is_null else 'not '}marked as nothing but nulls",
                column=leaf.dotted,
            )


def _page_values(raw: list[bytes], null_pages: list[bool], leaf: Leaf, order: Order) -> list[Any]:
    """Decoded bounds, None for null pages, whose entries in the file are placeholders."""
    if True not in null_pages:
        return decode_values(raw, leaf, order)
    present = [value for value, is_null in zip(raw, null_pages, strict=True) if not is_null]
    decoded = iter(decode_values(present, leaf, order))
    return [None if is_null else next(decoded) for is_null in null_pages]


def _without_nan(mins: list[Any], maxs: list[Any], claimed: BoundaryOrder) -> BoundaryOrder:
    """Take out, in place, the bounds of pages with a NaN among them; widen zeros. Returns the order left."""
    for i, (low, high) in enumerate(zip(mins, maxs, strict=True)):
        if low is None:
            continue
        if low != low or high != high:
            mins[i] = maxs[i] = None
            claimed = BoundaryOrder.UNORDERED
        else:
            if low == 0:
                mins[i] = -0.0
            if high == 0:
                maxs[i] = 0.0
    return claimed


def _is_ordered(bounds: list[tuple[Any, Any]], order: BoundaryOrder) -> bool:
    if order is BoundaryOrder.ASCENDING:
        return all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(bounds))
    if order is BoundaryOrder.DESCENDING:
        return all(a[0] >= b[0] and a[1] >= b[1] for a, b in pairwise(bounds))
    return False
