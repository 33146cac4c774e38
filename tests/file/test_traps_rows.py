"""Correctness traps 10 to 18, nulls, indexes and rows: each ends in pyarrow's rows, statistics trusted or not.

The number in a test's name is the trap's:

10. null counts that are missing, or count no rows     14. pages that are not aligned between columns
11. ColumnIndexes whose null pages and counts differ   15. disjoint predicates that empty a row group
12. null pages between sorted ones                     16. ranges that are not adjacent
13. first rows that lie                                17. lists, pages that begin with nulls
18. indexes that are missing, empty, too short, too long, very long, or scattered in the file
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from tests.example_counts import examples
from tests.parquet_files import BINARY, I64, LIST, STRUCT, EditedFile, Items, Struct
from tests.reads import ask, assert_reads, by_pyarrow, row_groups_read, rows_left, values

x, n = col("x"), col("n")
_NULLS = [x.is_null(), x.is_valid(), ~x.is_in([3]), x != 3, x == 3, x.is_in([3, None]), (x < 3) | x.is_null()]


def column(values: list[Any], *, page: int = 2, group: int = 1000, kind: pa.DataType | None = None) -> EditedFile:
    """A column x and the row number n, both with ``page`` rows in a page."""
    table = pa.table({"x": pa.array(values, kind or pa.int64()), "n": pa.array(range(len(values)), pa.int64())})
    return EditedFile.of(table, row_group_size=group, rows_per_page=page, use_dictionary=False)


def reason(data: bytes, where: Any) -> str:
    """The fallbacks of a read, as one text."""

    async def question(file: asyncpq.File) -> str:
        await file.read(where=where)
        return "; ".join(file.metrics.fallbacks)

    return ask(data, question)


# -- 10 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [True, False])
@pytest.mark.parametrize("pages", [True, False])
def test_10_a_missing_null_count_is_not_zero(chunks: bool, pages: bool) -> None:
    file = column([1, None, 3, 3, None, None, 3, 3], group=4)
    for group in range(2):
        if chunks:
            file.statistics(0, group).put(3, None)
        if pages:
            index = file.column_index(0, group)
            index.put(5, None)
            file.set_column_index(index, 0, group)
    assert_reads(file.data(), *_NULLS)


@pytest.mark.parametrize("count", [-1, 99])
def test_10_null_counts_that_cannot_be(count: int) -> None:
    file = column([1, None, 3, 3, None, None, 3, 3], group=4)
    for group in range(2):
        file.statistics(0, group).put(3, count)
    assert_reads(file.data(), *_NULLS)


def test_10_counts_of_nested_leaves_are_not_of_rows() -> None:
    rows = [[1, None], None, [], [None], [2, 3], [4], [None, None], []]
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    table = pa.table(
        {
            "list": pa.array(rows, pa.list_(pa.int64())),
            "struct": pa.array([None if row is None else {"a": len(row) or None, "b": row} for row in rows], kind),
        }
    )
    file = EditedFile.of(table, row_group_size=4, rows_per_page=1)
    names = ("list", "struct", "struct.a")
    atoms = [predicate for name in names for predicate in (col(name).is_null(), col(name).is_valid())]
    assert_reads(file.data(), *atoms, col("struct.a") == 2, col("struct.a") != 2, ~col("struct.a").is_in([2]))


# -- 11 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("null_pages", "counts"),
    [
        ([True, False, False], [0, 2, 0]),  # claims nulls alone, and none
        ([True, True, False], None),
        ([True, True, False], [1, 2, 0]),
        ([False, False, False], [0, 2, 0]),  # a page of nulls alone is not marked
        ([False, True, True], [0, 2, 2]),  # nulls where there are none
        ([False, True, False], [0, -1, 0]),
        ([False, True, False], [1, 2, 9]),
    ],
)
def test_11_null_pages_and_null_counts_that_differ(null_pages: list[bool], counts: list[int] | None) -> None:
    file = column([1, 3, None, None, 3, 4])
    index = file.column_index()
    index.put(1, Items(1, null_pages))
    index.put(5, None if counts is None else Items(I64, counts))
    file.set_column_index(index)
    # the last but one is consistent in itself: only the chunk's own statistics could contradict it
    if null_pages != [False, True, True]:
        assert_reads(file.data(), *_NULLS, x > 3, x < 2)
    else:
        assert "index is not used" not in reason(file.data(), x > 3)


def test_11_what_contradicts_itself_is_said() -> None:
    file = column([1, 3, None, None, 3, 4])
    index = file.column_index()
    index.put(5, Items(I64, [0, 0, 0]))
    file.set_column_index(index)
    assert "index is not used" in reason(file.data(), x == 3)
    assert rows_left(file.data(), x == 3) == 6


# -- 12 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
def test_12_null_pages_between_sorted_ones(descending: bool) -> None:
    data = [None, None, 1, 2, None, None, None, None, 3, 5, 4, 6, None, None, 6, 9, None, None]
    data = data[::-1] if descending else data
    file = column(data)
    assert file.column_index().value(4) in (1, 2)
    atoms = [predicate for key in range(11) for predicate in (x == key, x < key, x >= key, x != key, x.is_in([key, 1]))]
    assert_reads(file.data(), *atoms, *_NULLS, (x < 2) | x.is_null())
    assert rows_left(file.data(), x == 9) == 2
    assert rows_left(file.data(), (x < 2) | x.is_null()) == 12


def test_12_a_max_above_the_next_min() -> None:
    file = column([1, 5, 2, 7, 4, 8, 6, 9])
    atoms = [predicate for key in range(11) for predicate in (x == key, x < key, x > key)]
    assert_reads(file.data(), *atoms)
    assert rows_left(file.data(), x == 6) == 6


@pytest.mark.parametrize("order", [0, 1, 2, 7])
def test_12_a_boundary_order_that_is_not_so(order: int) -> None:
    file = column([5, 6, 1, 2, 9, 9, 3, 4])
    index = file.column_index()
    index.put(4, order)
    file.set_column_index(index)
    assert_reads(file.data(), *[predicate for key in range(10) for predicate in (x == key, x < key, x > key)])


def test_12_nothing_but_nulls() -> None:
    file = column([None] * 6, group=4)
    assert_reads(file.data(), (x < 2) | x.is_null(), *_NULLS)
    assert rows_left(file.data(), x < 2) == 0


# -- 13 ---------------------------------------------------------------------------------------------


def shift(file: EditedFile, firsts: list[int], at: int = 0) -> bytes:
    index = file.offset_index(at)
    for location, first in zip(index.value(1), firsts, strict=True):
        location.put(3, first)
    file.set_offset_index(index, at)
    return file.data()


@pytest.mark.parametrize("firsts", [[1, 2, 4, 6], [0, 4, 2, 6], [0, 2, 2, 6], [0, 2, 4, 8], [0, 2, 4, 99]])
def test_13_first_rows_that_cannot_be(firsts: list[int]) -> None:
    data = shift(column([1, 2, 3, 4, 5, 6, 7, 8]), firsts)
    assert_reads(data, x == 3, x > 6, n == 4)
    assert "index is not used" in reason(data, x == 3)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("firsts", [[0, 1, 4, 6], [0, 3, 4, 6], [0, 2, 4, 7]])
def test_13_an_interior_first_row_that_is_shifted(firsts: list[int], at: int) -> None:
    data = shift(column([1, 2, 3, 4, 5, 6, 7, 8]), firsts, at)

    async def question(file: asyncpq.File) -> None:
        for row in range(8):
            assert (await file.read(where=x == row + 1))["n"].to_pylist() == [row]
            assert (await file.take([row]))["n"].to_pylist() == [row]
        dropped = f"{('x', 'n')[at]}: its OffsetIndex is not that of its pages; it is not used"
        assert dropped in (await file.plan()).fallbacks

    ask(data, question)


async def right_or_refused(reading: Awaitable[pa.Table], row: int) -> str | None:
    """One row of n, or a typed error: the column that it names."""
    try:
        table = await reading
    except asyncpq.CorruptFileError as error:
        return error.column
    assert table["n"].to_pylist() == [row]
    return None


# -- 14 ---------------------------------------------------------------------------------------------


def misaligned(pages: dict[str, list[int]], columns: dict[str, list[Any]]) -> bytes:
    """A file in whose columns pages hold the given numbers of rows."""
    total = len(next(iter(columns.values())))
    table = pa.table({name: pa.array(data, pa.int64()) for name, data in columns.items()})
    file = EditedFile.of(table, rows_per_page=1, use_dictionary=False, compression="none")
    for at, (name, counts) in enumerate(pages.items()):
        assert sum(counts) == total
        first = 0
        made = []
        nulls, mins, maxs, null_counts = Items(1), Items(BINARY), Items(BINARY), Items(I64)
        for count in counts:
            part = pa.table({name: table[name].slice(first, count)})
            piece = EditedFile.of(part, rows_per_page=1 << 20, use_dictionary=False, compression="none")
            (page,) = piece.pages()
            made.append(page)
            bounds = piece.column_index()
            nulls.append(bounds.value(1)[0])
            mins.append(bounds.value(2)[0])
            maxs.append(bounds.value(3)[0])
            null_counts.append(bounds.value(5)[0])
            first += count
        file.set_pages(made, at)
        index = file.column_index(at)
        for field, found in ((1, nulls), (2, mins), (3, maxs), (5, null_counts)):
            index.put(field, found)
        index.put(4, 0)
        file.set_column_index(index, at)
    return file.data()


def test_14_the_classic() -> None:
    columns = {"x": [0, 1, 2, 3, 4], "n": [10, 11, 12, 13, 14]}
    data = misaligned({"x": [2, 2, 1], "n": [3, 2]}, columns)
    assert_reads(data, *[x == key for key in range(5)], *[n == key + 10 for key in range(5)], (x >= 1) & (n < 14))
    assert rows_left(data, x == 2) == 2
    assert rows_left(data, (x == 2) & (n == 12)) == 1


@st.composite
def _pages(draw: st.DrawFn, total: int) -> list[int]:
    edges = sorted(draw(st.sets(st.integers(1, total - 1), max_size=6)))
    return [stop - start for start, stop in zip([0, *edges], [*edges, total], strict=True)]


@pytest.mark.heavy
@settings(max_examples=examples(20, thorough=200))
@given(st.data())
def test_14_any_pages(data: st.DataObject) -> None:
    total = data.draw(st.integers(2, 16))
    cells = st.lists(st.none() | st.integers(0, 5), min_size=total, max_size=total)
    columns = {name: sorted(data.draw(cells), key=lambda cell: cell is not None and cell) for name in ("x", "n")}
    columns["m"] = data.draw(cells)
    file = misaligned({name: data.draw(_pages(total)) for name in columns}, columns)
    low, high, other = (data.draw(st.integers(0, 5)) for _ in range(3))
    m = col("m")
    assert_reads(file, (x >= low) & (n <= high), (x == low) | (m == other), (m != other) & x.is_null(), ~(n > low))


# -- 15 ---------------------------------------------------------------------------------------------


def test_15_disjoint_predicates_empty_one_row_group_of_several() -> None:
    first = {"x": [1, 1, 9, 9], "n": [9, 9, 1, 1]}
    table = pa.table({name: [*data, 1, 2, 3, 4, *data] for name, data in first.items()})
    file = EditedFile.of(table, row_group_size=4, rows_per_page=2, use_dictionary=False)
    assert_reads(file.data(), (x == 1) & (n == 1), (x <= 2) & (n <= 2), (x == 9) & (n == 9))
    assert rows_left(file.data(), (x == 1) & (n == 1)) == 2

    async def question(opened: asyncpq.File) -> None:
        for limit in (1, 2, 3):
            assert (await opened.read(where=(x <= 2) & (n <= 2), limit=limit)).num_rows == min(limit, 2)

    ask(file.data(), question)


# -- 16 ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(20, thorough=200))
@given(
    st.sets(st.integers(0, 59), min_size=1), st.sampled_from([0, 1, 40, 200, 10_000]), st.sampled_from([None, 1, 2, 5])
)
def test_16_ranges_that_are_not_adjacent(keys: set[int], gap: int, most: int | None) -> None:
    data = column(list(range(60)), page=3, group=20).data()
    requests = asyncpq.RequestOptions(gap_bytes=gap, max_requests=most, tail_bytes=8)

    async def question(file: asyncpq.File) -> None:
        found = await file.read(where=x.is_in(sorted(keys)))
        assert found["n"].to_pylist() == sorted(keys)
        assert (await file.take(sorted(keys)))["x"].to_pylist() == sorted(keys)

    ask(data, question, requests=requests, memory_cache_bytes=0)


# -- 17 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("index", [True, False])
def test_17_lists_over_pages(version: str, index: bool) -> None:
    rows = [[1, 2], [], None, [3] * 40, [None], [4, None, 5], [], [6]] * 5
    table = pa.table({"x": pa.array(range(40)), "list": pa.array(rows, pa.list_(pa.int64()))})
    file = EditedFile.of(table, rows_per_page=3, data_page_version=version, write_page_index=index)
    assert_reads(file.data(), *[x == key for key in (0, 2, 3, 4, 39)], (x > 2) & (x < 12), x.is_in([3, 11, 19]))

    async def question(opened: asyncpq.File) -> None:
        whole = by_pyarrow(file.data())
        for row in range(40):
            assert values(await opened.take([row])) == values(whole.slice(row, 1))

    ask(file.data(), question)


def test_17_pages_that_begin_with_nulls() -> None:
    file = column([None, 1, None, 2, None, 3, None, None, None, 4, 5, None])
    assert_reads(file.data(), *_NULLS, *[x == key for key in range(6)], *[x != key for key in range(6)])


# -- 18 ---------------------------------------------------------------------------------------------


def _two_columns() -> EditedFile:
    return column(list(range(12)), page=2, group=6)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("kept", ["no index", "OffsetIndex", "ColumnIndex"])
def test_18_indexes_of_some_columns_only(at: int, kept: str) -> None:
    file = _two_columns()
    for group in range(2):
        if kept != "OffsetIndex":
            file.set_offset_index(None, at, group)
        if kept != "ColumnIndex":
            file.set_column_index(None, at, group)
    assert_reads(file.data(), x == 3, n == 3, (x >= 3) & (n < 8), (x == 1) | (n == 10), x.is_null())
    assert rows_left(file.data(), n == 3) == (2 if at == 0 else 6)
    assert rows_left(file.data(), x == 3) == (6 if at == 0 else 2)


def test_18_an_index_in_one_row_group_only() -> None:
    file = _two_columns()
    file.set_offset_index(None, 0, 0)
    file.set_column_index(None, 0, 0)
    assert_reads(file.data(), x == 3, x == 8, (x >= 3) & (n < 8))
    assert (rows_left(file.data(), x == 3), rows_left(file.data(), x == 8)) == (6, 2)


def test_18_an_empty_offset_index() -> None:
    file = _two_columns()
    file.set_offset_index(Struct({1: (LIST, Items(STRUCT))}))
    assert_reads(file.data(), x == 3, x == 8)
    file.chunk().put(5, 0)
    assert_reads(file.data(), x == 3, x == 8)
    assert "no OffsetIndex" in reason(file.data(), x == 3)


@pytest.mark.parametrize("field", [4, 6])
def test_18_an_index_outside_of_the_file(field: int) -> None:
    file = _two_columns()
    file.chunk().put(field, 1 << 40)
    assert_reads(file.data(), x == 3, x == 8)


def test_18_more_or_fewer_pages_than_the_column_index_has() -> None:
    for kept in (slice(0, 2), slice(0, 1), slice(0, 0)):
        file = _two_columns()
        index = file.column_index()
        for field in (1, 2, 3, 5):
            index.put(field, Items(index.value(field).kind, index.value(field)[kept]))
        file.set_column_index(index)
        assert_reads(file.data(), x == 0, x == 3, x == 5, x == 8)


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_18_an_offset_index_that_lacks_a_page(dropped: int) -> None:
    file = _two_columns()
    index = file.offset_index(1)
    del index.value(1)[dropped]
    file.set_offset_index(index, 1)

    async def question(opened: asyncpq.File) -> None:
        outcomes = {await right_or_refused(opened.read(where=x == row), row) for row in range(6)}
        assert outcomes <= {None, "n"}

    ask(file.data(), question)


def test_18_indexes_scattered_over_the_file() -> None:
    table = pa.table({name: pa.array(range(40), pa.int64()) for name in ("x", "n")})
    file = EditedFile.of(table, row_group_size=20, rows_per_page=2, use_dictionary=False)
    for group, at, kind in [(1, 1, "o"), (0, 0, "c"), (1, 0, "o"), (0, 1, "o"), (0, 0, "o"), (1, 0, "c"), (1, 1, "c")]:
        file.append(b"\xaa" * 5000)
        if kind == "o":
            file.set_offset_index(file.offset_index(at, group), at, group)
        else:
            file.set_column_index(file.column_index(at, group), at, group)
    data = file.data()
    assert_reads(data, x == 3, x == 25, (x >= 18) & (n < 23), n == 39)
    assert rows_left(data, x == 25) == 2
    small = asyncpq.RequestOptions(tail_bytes=100, gap_bytes=0)

    async def question(opened: asyncpq.File) -> list[int]:
        found: list[int] = (await opened.read(["n"], x.is_in([3, 25])))["n"].to_pylist()
        return found

    assert ask(data, question, requests=small) == [3, 25]


@pytest.mark.heavy
def test_18_more_than_32767_pages() -> None:
    total = 33_500
    table = pa.table({"x": pa.array(range(total), pa.int32()), "n": pa.array(range(total), pa.int32())})
    file = EditedFile.of(table, rows_per_page=1, use_dictionary=False, compression="none")
    assert len(file.offset_index().value(1)) == total
    data = file.data()

    async def question(opened: asyncpq.File) -> None:
        for key in (0, 32_766, 32_767, 32_768, total - 1):
            with asyncpq.measure() as cost:
                found = await opened.lookup({"x": key})
            assert found["n"].to_pylist() == [key]
            assert cost.pages_read == 2
        assert (await opened.count(x >= 32_760)) == total - 32_760
        assert (await opened.take([total - 1, 32_768]))["n"].to_pylist() == [total - 1, 32_768]

    ask(data, question)


def test_18_row_groups_are_still_pruned_without_page_indexes() -> None:
    file = _two_columns()
    for at in range(2):
        for group in range(2):
            file.set_offset_index(None, at, group)
            file.set_column_index(None, at, group)
    assert_reads(file.data(), x == 3, x == 8)
    assert row_groups_read(file.data(), x == 3) == 1
