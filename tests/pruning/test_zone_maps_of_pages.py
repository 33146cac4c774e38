"""Pruning does prune: the exact pages and row groups that are left, on data where they are known."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.expressions import Expression, In, KeyIn, col
from asyncpq.expressions.analysis import Comparable, Incomparable, Truth
from asyncpq.parquet.statistics import SortOrder, order_of
from asyncpq.pruning.literals import domain_of, kind_of_leaf
from asyncpq.pruning.zone_maps import RowGroupPruning, rows_where
from tests.parquet_files import PrunedFile
from tests.pruning.indexed_file import DAY, FILE, NAN, ROWS, TABLE, leaf

GROUPS = PrunedFile(TABLE, rows_per_page=10, rows_per_group=20)


NAMES = [leaf.dotted for leaf in FILE.metadata.schema.leaves]


PAGES = FILE.page_zones(0, *NAMES)


ZONES = GROUPS.row_group_zones(*NAMES)


ALL = list(range(10))


def pages_left(expr: Expression) -> list[int]:
    left = rows_where(expr, Truth.TRUE, ROWS, PAGES)
    pages = [page for page in ALL if left.overlaps(page * 10, page * 10 + 10)]
    assert left.num_rows == 10 * len(pages)
    return pages


@pytest.mark.parametrize(
    ("expr", "pages"),
    [
        (col("id") == 42, [4]),
        (col("id") == 1000, []),
        (col("id") != 42, ALL),
        (col("id") < 20, [0, 1]),
        (col("id") <= 20, [0, 1, 2]),
        (col("id") > 79, [8, 9]),
        (col("id") >= 79, [7, 8, 9]),
        (col("id") == 41.5, [4]),
        (col("id") < 9.5, [0]),
        (col("id").between(38, 41), [3, 4]),
        (~(col("id") >= 20), [0, 1]),
        (col("id").is_in([3, 4, 55]), [0, 5]),
        (KeyIn("id", (3, 55, None)), [0, 5]),
        (col("id").is_in([3, None]), [0]),
        (col("id").is_in([]), []),
        (col("id").is_in([3.0]), ALL),  # pyarrow casts such a list; what comes out is not compared here
        (col("price").is_in([10]), ALL),
        (col("id") == None, []),  # noqa: E711  # this is how it is written
        (col("id") == NAN, []),
        (col("id").is_null(), []),
        (col("id").is_valid(), ALL),
        (col("down") == 100, [0]),
        (col("down") <= 10, [9]),
        (col("mixed") == 4, [2]),
        (col("mixed") > 7, [4, 7]),
        (~(col("mixed") == 4), [0, 1, 3, 4, 5, 6, 7, 8, 9]),
        (col("holes") == 55, []),
        (col("holes") < 70, [0, 1, 2, 3, 4, 6]),
        (col("holes").is_null(), [5]),
        (col("holes").is_valid(), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        (~col("holes").is_in([1]), ALL),
        (~(col("holes") == 1), [0, 1, 2, 3, 4, 6, 7, 8, 9]),
        ((col("holes") < 10) | col("holes").is_null(), [0, 5]),
        (col("name") == "n4-042", [4]),
        (col("name").starts_with("n4"), [4]),
        (col("name").starts_with("n"), ALL),
        (~col("name").starts_with("n"), []),
        (col("name").like("n4%2"), [4]),
        (col("name").like("n4-04_"), [4]),
        (col("name").like("%42"), ALL),
        (~col("name").like("n%"), ALL),
        (col("name").contains("n4"), ALL),
        (col("name").has_tokens("n4"), ALL),
        (col("name").has_phrase("n4 042"), ALL),
        (col("name") > "n8-080", [8, 9]),
        (col("x") == 21.0, [4]),
        (col("x").is_null(nan_is_null=True), ALL),
        (col("x").is_in([NAN]), ALL),  # without NaN counts any page may hold some
        (~(col("x") < 1000), ALL),
        (col("x") > 44, [8, 9]),
        (col("when") == DAY + dt.timedelta(hours=42), [4]),
        (col("when") < dt.date(2024, 1, 2), [0, 1, 2]),
        (col("when") == DAY + dt.timedelta(microseconds=1), [0]),
        (col("day") == dt.date(2024, 2, 12), [4]),
        (col("day") >= dt.datetime(2024, 3, 31), [9]),
        (col("price") == Decimal("10.5"), [4]),
        (col("price") == Decimal("10.501"), [4]),
        (col("price") == 10, [4]),
        (col("price") < 2.5, ALL),  # pyarrow compares decimals with floats as floats, rounded
        (col("big") == 2**63 + 42, [4]),
        (col("big") < 5, []),
        (col("flag") == True, [3, 4, 5, 6, 7, 8, 9]),  # noqa: E712  # this is how it is written
        (col("flag") != True, [0, 1, 2]),  # noqa: E712  # this is how it is written
        (col("uid") == uuid.UUID(int=42 << 120), [4]),
        (col("inner.leaf") == 42, [4]),
        (col("inner.maybe") < 30, [2]),
        (col("inner.maybe").is_null(), ALL),  # nulls of nested leaves are not rows' nulls
        (col("tags.list.element") == 42, ALL),
        (col("id") == col("down"), ALL),
        ((col("id") < 30) & (col("down") <= 80), [2]),
        ((col("id") < 10) & (col("down") < 10), []),
        ((col("id") < 10) | (col("down") <= 10), [0, 9]),
        (~((col("id") >= 10) & (col("down") > 10)), [0, 9]),
        ((col("id") < 10) | (col("unknown") == 1), ALL),
        ((col("id") < 10) & (col("unknown") == 1), [0]),
    ],
)
def test_pages_left(expr: Expression, pages: list[int]) -> None:
    assert pages_left(expr) == pages


def test_misaligned_pages() -> None:
    """Pages of rows 0-1, 2-3, 4 against 0-2, 3-4: rows, not page numbers, are what intersects."""
    table = pa.table({"a": list(range(5)), "b": list(range(5))})
    a = PrunedFile(table, rows_per_page=2).page_zones(0, "a")
    b = PrunedFile(table, rows_per_page=3).page_zones(0, "b")
    left = rows_where((col("a") >= 2) & (col("b") < 3), Truth.TRUE, 5, {**a, **b})
    assert list(left) == [(2, 3)]
    assert list(rows_where((col("a") == 4) | (col("b") == 0), Truth.TRUE, 5, {**a, **b})) == [(0, 3), (4, 5)]


@pytest.mark.parametrize(
    ("expr", "kept", "all_match"),
    [
        (col("id") == 42, [2], []),
        (col("id") < 40, [0, 1], [0, 1]),
        (col("id") < 41, [0, 1, 2], [0, 1]),
        (col("id") >= 0, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (col("holes") >= 0, [0, 1, 2, 3, 4], [0, 1, 3, 4]),
        (col("holes").is_valid(), [0, 1, 2, 3, 4], [0, 1, 3, 4]),
        (col("holes").is_null(), [2], []),
        (col("x") < 1000, [0, 1, 2, 3, 4], []),  # NaN may be anywhere
        (col("x") > 1000, [], []),
        (~(col("x") > 1000), [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (col("flag") == True, [1, 2, 3, 4], [2, 3, 4]),  # noqa: E712  # this is how it is written
        (col("id") < 2.5, [0], []),
        (col("unknown") == 1, [0, 1, 2, 3, 4], []),
        (In("id", (45, 99)), [2, 4], []),
    ],
)
def test_row_groups_left(expr: Expression, kept: list[int], all_match: list[int]) -> None:
    pruned = RowGroupPruning(expr, ZONES, GROUPS.num_row_groups)
    assert list(pruned.kept.rows()) == kept
    assert list(pruned.all_match.rows()) == all_match


def test_report() -> None:
    expr = (col("id") < 40) & (col("down") <= 60) & (col("price") < 2.5) & (col("tags.list.element") == 1)
    pruned = RowGroupPruning(expr & (col("id") == col("down")) & (col("other") == 1), ZONES, 5)
    assert pruned.dropped_by == {
        "id < 40": 3,
        "down <= 60": 2,
        "price < 2.5": 0,
        "tags.list.element == 1": 0,
        "id == down": 0,
        "other == 1": 0,
    }
    assert pruned.reasons == [
        "price <: prunes nothing, a literal of type float is not compared exactly",
        "tags.list.element ==: prunes nothing, the column is repeated",
        "id == down: two columns are compared, which prunes nothing",
        "column 'other' has no statistics of its own",
    ]


def test_only_the_chunks_of_the_leaf_are_parsed() -> None:
    file = PrunedFile(TABLE, rows_per_page=10, rows_per_group=20)
    before = file.metadata.weight
    file.row_group_zones("id")
    one_leaf = file.metadata.weight - before
    file.row_group_zones(*NAMES)
    assert 0 < one_leaf < (file.metadata.weight - before) / 10


@pytest.mark.parametrize(
    ("column", "value", "key", "same_type"),
    [
        ("id", 7, 7, True),
        ("id", 2**70, 2**70, True),
        ("id", 7.5, 7.5, False),
        ("id", Decimal("7.5"), 7.5, False),
        ("x", 7.5, 7.5, True),
        ("price", Decimal("1.25"), 125, True),
        ("price", Decimal("1.255"), 125.5, False),
        ("price", 3, 300, False),
        ("name", "é", b"\xc3\xa9", True),
        ("name", b"\xff", b"\xff", True),
        ("uid", uuid.UUID(int=1), b"\0" * 15 + b"\1", True),
        ("day", dt.date(1970, 1, 3), 2, True),
        ("day", dt.datetime(1970, 1, 3, 12), 2.5, False),
        ("when", dt.datetime(1970, 1, 1, 0, 0, 1), 1000, True),
        ("when", dt.datetime(1970, 1, 1, 0, 0, 0, 500), 0.5, False),
        ("when", dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 0, True),
        ("flag", True, True, True),
    ],
)
def test_literals(column: str, value: Any, key: Any, same_type: bool) -> None:
    orders = FILE.metadata.column_orders
    assert orders is not None
    found = domain_of(kind_of_leaf(leaf(column), order_of(leaf(column), orders[leaf(column).index]))).to_key(value)
    assert found == Comparable(key, same_type)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", True),
        ("id", "7"),
        ("flag", 1),
        ("x", Decimal(1)),
        ("price", 1.5),
        ("price", Decimal("NaN")),
        ("name", 1),
        ("name", "\ud800"),
        ("day", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("when", 1),
        ("when", "2024-01-01"),
    ],
)
def test_literals_that_are_not_compared(column: str, value: Any) -> None:
    orders = FILE.metadata.column_orders
    assert orders is not None
    order = order_of(leaf(column), orders[leaf(column).index])
    assert isinstance(domain_of(kind_of_leaf(leaf(column), order)).to_key(value), Incomparable)


def test_an_undefined_order_prunes_nothing() -> None:
    assert isinstance(domain_of(kind_of_leaf(leaf("id"), SortOrder.UNDEFINED)).to_key(1), Incomparable)
