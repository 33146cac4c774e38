"""What is fetched of a row group: pages that hold wanted rows, cut into units in row order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import PART_BYTES, ColumnPlan, FetchPlan, Item, RowGroupPlan, estimate, skips_pages
from asyncpq.options import LimitOptions, RequestOptions
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges

NUM_ROWS = 30
PRICES = Prices.initial(RequestOptions(), LimitOptions())
rows_of_a_group = st.sets(st.integers(0, NUM_ROWS - 1)).map(lambda rows: RowRanges.from_rows(sorted(rows)))
first_rows = st.sets(st.integers(1, NUM_ROWS - 1), max_size=8).map(lambda rows: [0, *sorted(rows)])


class Span(NamedTuple):
    """A ChunkSpan."""

    leaf: int
    start: int
    stop: int


def paged(leaf: int, firsts: list[int], rows: RowRanges, *, predicate: bool = False) -> ColumnPlan:
    """A chunk of pages of 100 bytes behind a dictionary of 50."""
    start = leaf * 10_000
    offsets = OffsetIndex(
        tuple(range(start + 50, start + 50 + 100 * len(firsts), 100)), (100,) * len(firsts), tuple(firsts)
    )
    chunk = Span(leaf, start, start + 50 + 100 * len(firsts))
    return ColumnPlan(leaf, chunk, offsets, predicate, NUM_ROWS, rows)


def whole(leaf: int, rows: RowRanges, size: int = 700) -> ColumnPlan:
    return ColumnPlan(leaf, Span(leaf, leaf * 10_000, leaf * 10_000 + size), None, False, NUM_ROWS, rows)


def planned(group: RowGroupPlan, *, late: bool) -> FetchPlan:
    return FetchPlan((group,), late, PRICES, partial(estimate, [group], PRICES, None, 1))


@given(first_rows, rows_of_a_group)
def test_the_pages_of_a_column_are_those_that_hold_wanted_rows(firsts: list[int], rows: RowRanges) -> None:
    column = paged(0, firsts, rows)
    wanted = {row for start, stop in rows for row in range(start, stop)}
    stops = [*firsts[1:], NUM_ROWS]
    assert [*column.pages] == [page for page, first in enumerate(firsts) if wanted & {*range(first, stops[page])}]
    assert column.num_bytes == 50 + 100 * len(column.pages)
    items = column.items(0, column.pages, dictionary=True)
    assert [item.kind for item in items] == (["dictionary"] if column.pages else []) + ["page"] * len(column.pages)


@given(first_rows, first_rows, rows_of_a_group.filter(bool), st.integers(60, 4000))
def test_units_hold_every_page_once_in_row_order(
    firsts: list[int], others: list[int], rows: RowRanges, unit_bytes: int
) -> None:
    columns = (paged(0, firsts, rows), paged(1, others, rows), whole(2, rows))
    plan = planned(RowGroupPlan(0, NUM_ROWS, rows, columns, False), late=False)
    units = plan.units(unit_bytes)
    pieces = [piece for unit in units for piece in unit.pieces]
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [len(unit.pieces) for unit in units] == [1] * len(units)  # one for each row group
    assert sum(unit.num_bytes for unit in units) == plan.num_bytes() == sum(column.num_bytes for column in columns)
    for position, column in enumerate(columns):
        items: list[Item] = [item for piece in pieces for item in piece.items if item.column == position]
        if column.offsets is not None:
            assert items == column.items(position, column.pages, dictionary=True)
        else:
            assert [items[0].start, *[item.stop for item in items]] == [
                *[item.start for item in items],
                column.chunk.stop,
            ]


def test_whole_chunks_of_lists_come_first() -> None:
    """None of their rows are known before, and those of the other columns would wait for them."""
    rows = RowRanges.all(NUM_ROWS)
    flat, lists = whole(0, rows, 4 * PART_BYTES), whole(1, rows, 3 * PART_BYTES)
    lists.repeated = True
    plan = planned(RowGroupPlan(0, NUM_ROWS, rows, (flat, lists), False), late=False)
    pieces = [piece for unit in plan.units(2 * PART_BYTES) for piece in unit.pieces]
    assert [[item.column for item in piece.items] for piece in pieces] == [[0, 1, 1, 1], [0, 0], [0]]


def test_late_columns_count_towards_units_and_are_not_fetched_first() -> None:
    rows = RowRanges.from_rows(range(NUM_ROWS))
    columns = (paged(0, [0, 15], rows, predicate=True), paged(1, [0, 10, 20], rows))
    plan = planned(RowGroupPlan(0, NUM_ROWS, rows, columns, True), late=True)
    assert plan.num_bytes() == columns[0].num_bytes
    (unit,) = plan.units(1 << 20)
    assert {item.column for item in unit.pieces[0].items} == {0}
    assert unit.pieces[0].late_bytes == columns[1].num_bytes
    assert unit.num_bytes == columns[0].num_bytes + columns[1].num_bytes


def test_pages_are_skipped_where_few_rows_are_wanted_or_a_run_of_others_is_long() -> None:
    chunks = [Span(0, 0, 1000)]
    few, most = RowRanges.from_rows(range(50)), RowRanges.from_rows(range(60))
    assert skips_pages(few, 100, chunks, 1 << 20)
    assert skips_pages(most, 100, chunks, 399)  # the run of 40 rows has 400 bytes
    assert not skips_pages(most, 100, chunks, 400)
    assert not skips_pages(RowRanges.from_rows(range(100)), 100, chunks, 0)


@given(first_rows, first_rows, rows_of_a_group.filter(bool), st.none() | st.integers(0, 40), st.floats(1e-4, 1.0))
def test_pages_are_never_estimated_above_whole_chunks(
    firsts: list[int], others: list[int], rows: RowRanges, matches: int | None, latency_s: float
) -> None:
    columns = (paged(0, firsts, rows, predicate=True), paged(1, others, rows), whole(2, rows))
    group = RowGroupPlan(0, NUM_ROWS, rows, columns, True)
    prices = Prices(latency_s, 1e4, 1e4, 0.005, 4)
    found = estimate([group], prices, matches, 1)
    assert found.one_round_s <= found.chunks_s
    spans = [span for column in columns for span in (column.dictionary, *column.spans())]
    assert found.one_round_s == prices.round_s(prices.requests(spans))
    assert found.two_rounds_s >= prices.round_s(prices.requests([columns[0].dictionary, *columns[0].spans()]))


def test_a_second_round_pays_for_its_wait_and_the_pages_that_are_expected() -> None:
    rows = RowRanges.from_rows(range(NUM_ROWS))
    columns = (paged(0, [0, 15], rows, predicate=True), paged(1, list(range(0, 30, 3)), rows))
    group = RowGroupPlan(0, NUM_ROWS, rows, columns, True)
    prices = Prices(0.1, 1000, 1000, 0.001, 4)
    first = 0.1 + 0.001 + 0.25  # two pages behind a dictionary
    late = {0: 0.0, 1: 0.1 + 0.001 + 0.15, 1000: 0.1 + 0.001 + 1.05, None: 0.1 + 0.001 + 0.55}
    for matches, seconds in late.items():
        found = estimate([group], prices, matches, 1)
        assert found.two_rounds_s == pytest.approx(first + seconds)
        assert found.one_round_s == pytest.approx(0.1 + 0.002 + 1.3)
    again = estimate([group], prices, None, 3)
    assert again.two_rounds_s == pytest.approx(first + late[None] + 0.2)
    # one value in many files: its second round is waited for, its pages are another file's
    assert estimate([group], prices, 0.01, 1).two_rounds_s == pytest.approx(first + 0.1)


def test_bytes_between_pages_are_priced_only_if_they_are_read() -> None:
    rows = RowRanges.all(NUM_ROWS)
    offsets = OffsetIndex((0, 100, 5000), (100, 100, 100), (0, 10, 20))
    column = ColumnPlan(0, Span(0, 0, 5100), offsets, True, NUM_ROWS, rows)
    prices = Prices(0.1, 1000, 1000, 0.001, 4)
    found = estimate([RowGroupPlan(0, NUM_ROWS, rows, (column,), True)], prices, None, 1)
    assert found.one_round_s == found.two_rounds_s == pytest.approx(0.1 + 0.002 + 0.3)
    assert found.chunks_s == pytest.approx(0.1 + 0.001 + 5.1)


@pytest.mark.parametrize(
    ("matches", "sample"), [(None, range(10)), (1, [0]), (2, [0, 10]), (4, [0, 5, 10, 15]), (1000, range(20))]
)
def test_pages_that_are_expected_to_match_are_spread_over_all_row_groups(
    matches: int | None, sample: Sequence[int]
) -> None:
    rows, prices = RowRanges.all(NUM_ROWS), Prices(0.1, 1000, 1000, 0.001, 4)
    groups, pages, dictionaries, known = [], [], [], []
    for ordinal in range(2):
        first, late = paged(2 * ordinal, [0], rows, predicate=True), paged(2 * ordinal + 1, list(range(0, 30, 3)), rows)
        late.chunk = Span(1, late.chunk.start, late.chunk.stop)
        groups.append(RowGroupPlan(ordinal, NUM_ROWS, rows, (first, late), True))
        known += [first.dictionary, *first.spans()]
        pages += late.spans()
        dictionaries.append(late.dictionary)
    second = [*dictionaries, *[pages[number] for number in sample]]
    seconds = [prices.round_s(prices.requests(ranges)) for ranges in (known, second)]
    assert estimate(groups, prices, matches, 1).two_rounds_s == pytest.approx(sum(seconds))


def test_row_groups_share_a_unit_up_to_some_hundred() -> None:
    rows = RowRanges.all(NUM_ROWS)
    groups = tuple(RowGroupPlan(ordinal, NUM_ROWS, rows, (whole(0, rows),), False) for ordinal in range(1100))
    plan = FetchPlan(groups, False, PRICES, partial(estimate, groups, PRICES, None, 1))
    assert [len(unit.pieces) for unit in plan.units(1 << 30)] == [512, 512, 76]
    assert [len(unit.pieces) for unit in plan.units(None)] == [1100]
