"""Access plans as users make them: what is refused, how they print, and what encrypted files do with them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet.encryption as encryption
import pytest

import asyncpq
from asyncpq import AccessPlan
from asyncpq.objects.read_plan import skips_pages
from asyncpq.pruning.access_plan import RowGroupLayout
from asyncpq.pruning.row_ranges import RowRanges
from tests.parquet_bytes import parquet_bytes
from tests.reads import ask


class Span(NamedTuple):
    """A ChunkSpan."""

    leaf: int
    start: int
    stop: int


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (AccessPlan(), "AccessPlan.all()"),
        (AccessPlan.rows([]), "AccessPlan.none()"),
        (AccessPlan.rows([7, 3, 4, 3]), "AccessPlan.row_ranges([(3, 5), (7, 8)])"),
        (AccessPlan.row_groups([3, 0]), "AccessPlan.row_groups([0, 3])"),
        (AccessPlan.from_row_groups({3: None, 0: [(0, 10)]}), "AccessPlan.from_row_groups({0: [(0, 10)], 3: None})"),
        (AccessPlan.all() - AccessPlan.row_groups([1]), "~AccessPlan.row_groups([1])"),
        (
            AccessPlan.row_groups([1]) - AccessPlan.rows([5]),
            "~AccessPlan.row_ranges([(5, 6)]) & AccessPlan.row_groups([1])",
        ),
        (
            AccessPlan.rows(range(0, 40, 2)),
            "AccessPlan.row_ranges([(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15), "
            "... (20 in all)])",
        ),
    ],
)
def test_what_plans_print(plan: AccessPlan, text: str) -> None:
    assert repr(plan) == text


def test_what_numbers_may_come_as() -> None:
    plan = AccessPlan.rows([1, 5])
    assert AccessPlan.rows(np.array([5, 1])) == plan
    assert AccessPlan.rows(pa.array([5, 1])) == plan
    assert AccessPlan.rows(iter((5, 1))) == plan
    assert AccessPlan.row_ranges(RowRanges([(1, 2), (5, 6)])) == plan
    assert AccessPlan.row_ranges(np.array([[5, 6], [1, 2]])) == plan
    assert AccessPlan.from_row_groups({2: RowRanges([(1, 2)])}) == AccessPlan.from_row_groups({2: [(1, 2)]})
    assert AccessPlan.row_groups(np.array([2])) == AccessPlan.row_groups([2])
    assert AccessPlan.from_row_groups({2: None}) == AccessPlan.row_groups([2])
    rows: object = [1, 5]
    assert plan != rows


@pytest.mark.parametrize(
    "make",
    [
        lambda: AccessPlan.rows("17"),  # type: ignore[arg-type]
        lambda: AccessPlan.rows(17),  # type: ignore[arg-type]
        lambda: AccessPlan.rows([1.0]),  # type: ignore[list-item]
        lambda: AccessPlan.rows([True]),
        lambda: AccessPlan.rows([None]),  # type: ignore[list-item]
        lambda: AccessPlan.row_groups([None]),  # type: ignore[list-item]
        lambda: AccessPlan.row_ranges([(5, 3)]),
        lambda: AccessPlan.row_ranges([5]),  # type: ignore[list-item]
        lambda: AccessPlan.row_ranges([(1, 2, 3)]),  # type: ignore[list-item]
        lambda: AccessPlan.row_ranges([("a", "b")]),  # type: ignore[list-item]
        lambda: AccessPlan.row_ranges(None),  # type: ignore[arg-type]
        lambda: AccessPlan.from_row_groups([0]),  # type: ignore[arg-type]
        lambda: AccessPlan.from_row_groups({"0": None}),  # type: ignore[dict-item]
        lambda: AccessPlan.from_row_groups({0: [(2, 1)]}),
    ],
)
def test_what_is_no_plan(make: Any) -> None:
    with pytest.raises(asyncpq.InvalidOptionError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: AccessPlan.rows([3, -1]),
        lambda: AccessPlan.row_groups([-1]),
        lambda: AccessPlan.row_ranges([(-1, 3)]),
        lambda: AccessPlan.from_row_groups({-1: None}),
        lambda: AccessPlan.from_row_groups({0: [(-5, -1)]}),
    ],
)
def test_negative_positions(make: Any) -> None:
    with pytest.raises(asyncpq.RowIndexError):
        make()


@pytest.mark.parametrize("operation", ["__and__", "__or__", "__sub__"])
def test_plans_are_joined_with_plans_only(operation: str) -> None:
    assert getattr(AccessPlan.all(), operation)([0]) is NotImplemented


def test_files_take_nothing_else_for_a_plan() -> None:
    data = parquet_bytes(pa.table({"id": [1]}))
    with pytest.raises(asyncpq.InvalidOptionError, match="AccessPlan"):
        ask(data, lambda file: file.read(access=[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "gap_bytes", "skips"),
    [
        (RowRanges([(0, 1000)]), 0, False),
        (RowRanges([(0, 500)]), 10**9, True),  # half of the rows and less are always looked for
        (RowRanges([(0, 501)]), 10**9, False),
        (RowRanges([(0, 900)]), 799, True),  # 100 rows of 8 bytes
        (RowRanges([(0, 900)]), 800, False),
        (RowRanges([(100, 1000)]), 799, True),
        (RowRanges([(0, 300), (400, 1000)]), 799, True),
        (RowRanges([(0, 300), (350, 600), (650, 1000)]), 799, False),  # no hole is long enough
    ],
)
def test_holes_that_are_worth_an_index(rows: RowRanges, gap_bytes: int, skips: bool) -> None:
    assert skips_pages(rows, 1000, [Span(0, 100, 200), Span(1, 200, 8200)], gap_bytes) is skips


def test_encrypted_files_heed_plans() -> None:
    table = pa.table({"id": range(1000), "tags": [[row, row + 1] if row % 3 else None for row in range(1000)]})
    keys = encryption.create_encryption_properties(footer_key=b"0123456789012345")
    data = parquet_bytes(table, encryption_properties=keys, row_group_size=300, write_page_index=True)
    opening = encryption.create_decryption_properties(footer_key=b"0123456789012345")
    plan = AccessPlan.row_groups([0, 2]) - AccessPlan.row_ranges([(10, 290)])

    async def question() -> pa.Table:
        async with asyncpq.Session() as session:
            file = await session.open_file("memory://reads/encrypted.parquet", decryption_properties=opening)
            assert await file.count(access=plan) == 320
            return await file.read(where=asyncpq.col("id") != 605, access=plan)

    fsspec.filesystem("memory").pipe_file("/reads/encrypted.parquet", data)
    rows = [row for row in [*range(10), *range(290, 300), *range(600, 900)] if row != 605]
    assert asyncio.run(question()).equals(table.take(rows))


def test_the_last_plan_of_few_rows_is_resolved_once() -> None:
    layout, plans = RowGroupLayout([100, 100]), [AccessPlan.rows([3, 150]), AccessPlan.from_row_groups({1: [(5, 9)]})]
    for plan in plans:
        assert plan.resolve(layout) == plan.resolve([100, 100])
    assert plans[1].resolve(layout) is plans[1].resolve(layout)
    many = AccessPlan.rows(range(0, 200, 2))
    assert many.resolve(layout) is not many.resolve(layout)
    assert layout.last_resolved is not None
    assert layout.last_resolved[0] is plans[1]
