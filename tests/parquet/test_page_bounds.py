"""What ColumnIndexes prove of pages: orders claimed and checked, null pages, and indexes that lie."""

from __future__ import annotations

import math
import struct

import pyarrow as pa
import pytest

from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.page_index import BoundaryOrder, ColumnIndex
from asyncpq.parquet.statistics import SortOrder, page_bounds
from tests.parquet_samples import flat_leaf

INT = flat_leaf(pa.int32())
FLOAT = flat_leaf(pa.float64())


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def f64(value: float) -> bytes:
    return struct.pack("<d", value)


def index_of(
    pages: list[tuple[bytes, bytes] | None],
    order: BoundaryOrder = BoundaryOrder.UNORDERED,
    null_counts: list[int] | None = None,
    nan_counts: list[int] | None = None,
) -> ColumnIndex:
    return ColumnIndex(
        [page is None for page in pages],
        [page[0] if page else b"" for page in pages],
        [page[1] if page else b"" for page in pages],
        order,
        null_counts,
        nan_counts,
    )


def ints(*pages: tuple[int, int] | None) -> list[tuple[bytes, bytes] | None]:
    return [None if page is None else (i32(page[0]), i32(page[1])) for page in pages]


ASC, DESC, UNORDERED = BoundaryOrder.ASCENDING, BoundaryOrder.DESCENDING, BoundaryOrder.UNORDERED


@pytest.mark.parametrize(
    ("pages", "claimed", "confirmed"),
    [
        (ints((1, 5), (3, 7), (3, 9)), ASC, ASC),  # max[i] > min[i+1] is allowed
        (ints((1, 5), None, (3, 7)), ASC, ASC),
        (ints((1, 5), (0, 7)), ASC, UNORDERED),
        (ints((1, 5), (2, 4)), ASC, UNORDERED),
        (ints((5, 9), None, (1, 9), (1, 2)), DESC, DESC),
        (ints((1, 2), (5, 9)), DESC, UNORDERED),
        (ints((1, 2), (5, 9)), UNORDERED, UNORDERED),
        (ints(None, None), ASC, ASC),
    ],
)
def test_claimed_orders_are_checked(
    pages: list[tuple[bytes, bytes] | None], claimed: BoundaryOrder, confirmed: BoundaryOrder
) -> None:
    counts = [10 if page is None else 1 for page in pages]
    found = page_bounds(index_of(pages, claimed, counts), INT, SortOrder.SIGNED, [10] * len(pages))
    assert found.boundary_order is confirmed
    assert found.is_sorted is (confirmed is not UNORDERED)
    assert found.null_pages == [page is None for page in pages]
    assert [low is None for low in found.mins] == found.null_pages


def test_null_pages_without_null_counts_are_not_believed() -> None:
    # parquet-mr writes such an index for a column without statistics, whatever its pages hold.
    found = page_bounds(index_of([None, *ints((1, 2))], ASC), INT, SortOrder.SIGNED, [10, 10])
    assert (found.null_pages, found.mins, found.is_sorted) == ([False, False], [None, 1], False)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        pytest.param(index_of(ints((2, 1))), [10], id="min above max"),
        pytest.param(index_of(ints((1, 2))), [10, 10], id="other numbers of pages"),
        pytest.param(index_of(ints((1, 2)), null_counts=[11]), [10], id="more nulls than rows"),
        pytest.param(index_of(ints((1, 2)), null_counts=[10]), [10], id="nothing but nulls, not marked"),
        pytest.param(index_of([None], null_counts=[9]), [10], id="marked as nothing but nulls, has values"),
        pytest.param(index_of([(b"123", b"1234")]), [10], id="a bound of three bytes"),
    ],
)
def test_lying_column_indexes_prove_nothing(index: ColumnIndex, rows: list[int]) -> None:
    with pytest.raises(CorruptIndexError):
        page_bounds(index, INT, SortOrder.SIGNED, rows)


def test_null_pages_of_a_required_column_are_corrupt() -> None:
    with pytest.raises(CorruptIndexError, match="required"):
        page_bounds(index_of([None]), flat_leaf(pa.int32(), nullable=False), SortOrder.SIGNED, [10])


def test_a_page_with_a_nan_bound_has_no_bounds() -> None:
    pages: list[tuple[bytes, bytes] | None] = [(f64(1), f64(2)), (f64(math.nan), f64(3)), (f64(0.0), f64(-0.0))]
    found = page_bounds(index_of(pages, ASC, nan_counts=[0, 1, 0]), FLOAT, SortOrder.FLOAT, [5, 5, 5])
    assert (found.mins[:2], found.maxs[:2], found.is_sorted) == ([1.0, None], [2.0, None], False)
    assert (str(found.mins[2]), str(found.maxs[2])) == ("-0.0", "0.0")
    assert found.nan_counts == [0, 1, 0]


@pytest.mark.parametrize(("order", "has_orders"), [(SortOrder.UNDEFINED, True), (SortOrder.SIGNED, False)])
def test_without_an_order_only_counts_are_known(order: SortOrder, has_orders: bool) -> None:
    index = index_of([*ints((1, 2)), None], ASC, null_counts=[3, 10])
    found = page_bounds(index, INT, order, [10, 10], has_column_orders=has_orders)
    assert (found.mins, found.maxs, found.is_sorted) == ([None, None], [None, None], False)
    assert (found.null_pages, found.null_counts) == ([False, True], [3, 10])
