"""Page indexes made for files without: what pyarrow writes for the same data, and true of every page; rows read by them
are pyarrow's, page by page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.expressions.analysis import successor
from asyncpq.indexing.entry_encoding import by_file
from asyncpq.objects.version import MadeIndex
from asyncpq.parquet.page_index import OffsetIndex, decode_column_index, decode_offset_index
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ColumnOrder, PageBounds, SortOrder, order_of, page_bounds
from tests.lakes import FILE, ask_known, keep
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import metadata_of
from tests.parquet_samples import DATA, corpus_files, requires_corpus
from tests.random_tables import NestedFile, WriterOptions, nested_files, tables, writer_options
from tests.reads import values

few = settings(max_examples=max(10, settings().max_examples // 3))  # each reads several files
URL = "memory://made/file.parquet"


def put(data: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("/made/file.parquet", data)


def made_of(data: bytes) -> dict[tuple[int, int], MadeIndex]:
    """What is made for a file, by row group and leaf."""
    put(data)

    async def run() -> dict[tuple[int, int], MadeIndex]:
        async with asyncpq.Session() as session:
            known = (await keep(session, URL)).known(footers=False)
            return dict(known.made or {}) if known is not None else {}

    return asyncio.run(run())


def bounds_of(made: MadeIndex, leaf: Leaf, num_rows: int) -> tuple[OffsetIndex, PageBounds | None]:
    offsets = decode_offset_index(made.offsets)
    if made.bounds is None:
        return offsets, None
    order = order_of(leaf, ColumnOrder.TYPE_ORDER)
    return offsets, page_bounds(decode_column_index(made.bounds), leaf, order, offsets.row_counts(num_rows))


def cut(value: Any, *, up: bool = False) -> Any:
    """As made indexes have it: strings are at most 64 bytes long."""
    if not isinstance(value, bytes) or len(value) <= 64:
        return value
    return successor(value[:64]) if up else value[:64]


# -- what is made ---------------------------------------------------------------------------------


@few
@given(drawn=tables(), options=writer_options)
def test_indexes_are_those_that_pyarrow_writes(drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions) -> None:
    table, kinds = drawn
    made = made_of(WriterOptions(**{**vars(options), "page_index": False}).write(table))
    indexed = WriterOptions(**{**vars(options), "page_index": True, "statistics": True}).write(table)
    metadata = metadata_of(indexed)
    for group in metadata.row_groups if table.num_rows else ():
        for leaf in metadata.schema.leaves:
            chunk = group.chunk(leaf.index)
            assert chunk.offset_index_range is not None
            wanted = decode_offset_index(indexed[slice(*chunk.offset_index_range)])
            if len(set(wanted.first_rows)) < wanted.num_pages:
                continue  # with pages without rows, of which an index is not used
            found, bounds = bounds_of(made[group.ordinal, leaf.index], leaf, group.num_rows)
            assert found.first_rows == wanted.first_rows
            if chunk.column_index_range is None:
                continue
            index = decode_column_index(indexed[slice(*chunk.column_index_range)])
            order = order_of(leaf, ColumnOrder.TYPE_ORDER)
            theirs = page_bounds(index, leaf, order, wanted.row_counts(group.num_rows))
            assert bounds is not None
            assert bounds.null_pages == theirs.null_pages
            assert bounds.null_counts == theirs.null_counts
            if order is SortOrder.UNDEFINED:
                continue
            lows, highs = [cut(value) for value in theirs.mins], [cut(value, up=True) for value in theirs.maxs]
            if kinds.get(leaf.dotted) == "dictionary":  # of which pyarrow takes all values, used or not
                assert all(mine >= low for mine, low in zip(bounds.mins, lows, strict=True) if mine is not None)
                assert all(mine <= high for mine, high in zip(bounds.maxs, highs, strict=True) if mine is not None)
            else:
                assert (bounds.mins, bounds.maxs) == (lows, highs)
                assert bounds.is_sorted or not theirs.is_sorted


@few
@given(file=nested_files())
def test_pages_of_nested_leaves_hold_what_is_said_of_them(file: NestedFile) -> None:
    data = WriterOptions(**{**vars(file.writer), "page_index": False}).write(file.table)
    metadata = metadata_of(data)
    for (group, number), index in made_of(data).items():
        leaf = metadata.schema.leaves[number]
        rows = metadata.row_groups[group]
        found, bounds = bounds_of(index, leaf, rows.num_rows)
        assert all(first < second for first, second in pairwise(found.first_rows))
        if bounds is None or bounds.order is not SortOrder.SIGNED or "." in leaf.dotted:
            continue  # those are held to pyarrow's by the rows that they leave over
        column = file.table.column(leaf.dotted).slice(rows.first_row, rows.num_rows).to_pylist()
        for page in range(found.num_pages):
            start, stop = found.rows_of_page(page, rows.num_rows)
            present = [value for value in column[start:stop] if value is not None]
            assert (bounds.mins[page], bounds.maxs[page]) == (min(present, default=None), max(present, default=None))


FLOATS = [0.0, -0.0, 1.5, float("nan"), float("-inf"), None]


@pytest.mark.parametrize("kind", ["float", "double", "halffloat"])
@given(column=st.lists(st.sampled_from(FLOATS), min_size=1, max_size=60))
def test_nans_are_counted_and_zeros_have_both_signs(kind: str, column: list[float | None]) -> None:
    array = pa.array(column, pa.float64()).cast(pa.type_for_alias(kind))
    data = write(pa.table({"x": array}), write_batch_size=4, data_page_size=1)
    (leaf,) = metadata_of(data).schema.leaves
    found, bounds = bounds_of(made_of(data)[0, 0], leaf, len(column))
    assert bounds is not None
    assert bounds.nan_counts is not None
    for page in range(found.num_pages):
        rows = column[slice(*found.rows_of_page(page, len(column)))]
        present = [value for value in rows if value is not None and value == value]
        assert bounds.nan_counts[page] == sum([value is not None and value != value for value in rows])
        low = None if not present else min(present) or -0.0
        high = None if not present else max(present) or 0.0
        assert repr((bounds.mins[page], bounds.maxs[page])) == repr((low, high))


@given(column=st.lists(st.binary(max_size=70) | st.just(b"\xff" * 70), min_size=1, max_size=40))
def test_long_strings_are_cut_short_around_all_values(column: list[bytes]) -> None:
    data = write(pa.table({"x": pa.array(column, pa.binary())}), write_batch_size=4, data_page_size=1)
    (leaf,) = metadata_of(data).schema.leaves
    found, bounds = bounds_of(made_of(data)[0, 0], leaf, len(column))
    assert bounds is not None
    for page in range(found.num_pages):
        rows = column[slice(*found.rows_of_page(page, len(column)))]
        assert bounds.mins[page] == min(rows)[:64]
        assert bounds.maxs[page] >= max(rows)
        if len(max(rows)) <= 64:
            assert bounds.maxs[page] == max(rows)


# -- rows that are read by it ---------------------------------------------------------------------


def compare_reads(data: bytes, wheres: list[Any], seed: int, *, footers: bool) -> None:
    """Rows with and without what is known are the same."""
    put(data)
    chosen = random.Random(seed)

    async def questions(file: asyncpq.File, rows: list[int]) -> list[Any]:
        found: list[Any] = [values(await file.take(rows))]
        for where in wheres:
            found += [values(await file.read(where=where)), await file.count(where)]
        return found

    async def run() -> None:
        async with asyncpq.Session() as session:
            kept = await keep(session, URL)
            file = await session.open_file(URL)
            rows = [chosen.randrange(file.num_rows) for _ in range(3)]
            wanted = await questions(file, rows)
        async with asyncpq.Session() as session:
            known = kept.known(footers=footers)
            assert await ask_known(session, URL, known, lambda file: questions(file, rows)) == wanted

    asyncio.run(run())


@pytest.mark.heavy
@few
@given(drawn=tables(), options=writer_options, seed=st.integers(0, 1000), footers=st.booleans())
def test_rows_are_those_of_an_opened_file(
    drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions, seed: int, footers: bool
) -> None:
    table, _ = drawn
    if table.num_rows:
        first = table.column_names[0]
        data = WriterOptions(**{**vars(options), "page_index": False}).write(table)
        compare_reads(data, [col(first).is_valid(), col(first).is_null()], seed, footers=footers)


@pytest.mark.heavy
@few
@given(file=nested_files(), seed=st.integers(0, 1000), footers=st.booleans())
def test_nested_rows_are_those_of_an_opened_file(file: NestedFile, seed: int, footers: bool) -> None:
    data = WriterOptions(**{**vars(file.writer), "page_index": False}).write(file.table)
    row = seed % file.table.num_rows
    compare_reads(data, [col("id") == row, col("id") > row], seed, footers=footers)


MANY_PAGES = "overflow_i16_page_cnt.parquet"  # 40,000


@pytest.mark.sampled(3)
@requires_corpus
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.name == MANY_PAGES)) for path in corpus_files()],
    ids=lambda path: str(path.relative_to(DATA)),
)
def test_corpus_files_read_as_before(path: Path) -> None:
    async def run() -> None:
        async with asyncpq.Session() as session:
            try:
                file = await session.open_file(str(path))
                wanted = await file.read()
            except asyncpq.AsyncpqError:
                return  # tests/file has what such a file ends in
            rows = sorted(random.Random(1).choices(range(file.num_rows), k=5)) if file.num_rows else []
            some = await file.take(rows)
            kept = await keep(session, str(path))
        async with asyncpq.Session() as session:
            known = kept.known()
            taken = await ask_known(session, str(path), known, lambda file: file.take(rows))
            assert parquet_bytes(taken) == parquet_bytes(some)  # some have dates that Python does not hold
            found = await ask_known(session, str(path), known, asyncpq.File.read)
            assert parquet_bytes(found) == parquet_bytes(wanted)

    asyncio.run(run())


# -- what that costs ------------------------------------------------------------------------------

ROWS = 40_000
TABLE = pa.table(
    {
        "id": pa.array(range(0, 3 * ROWS, 3), pa.int64()),
        "text": [f"some text of row {row * 7919 % ROWS:08d}" for row in range(ROWS)],
        "list": [[row, row + 1] for row in range(ROWS)],
    }
)


def write(table: pa.Table, **options: Any) -> bytes:
    return parquet_bytes(table, use_dictionary=False, **options)


def by_duckdb(path: Path) -> None:
    connection = duckdb.connect()
    connection.register("lake", TABLE)
    connection.execute(f"copy lake to '{path}' (format parquet, row_group_size 10000)")


def by_polars(path: Path) -> None:
    frame = pl.from_arrow(TABLE)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=20_000, data_page_size=10_000, compression="zstd")


@pytest.mark.parametrize(("writer", "lacking"), [(by_duckdb, [0, 1, 2]), (by_polars, [2])])
def test_other_writers_files_are_read_page_by_page(
    writer: Callable[[Path], None], lacking: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    writer(path)

    async def question(file: asyncpq.File) -> pa.Table:
        found = await file.lookup({"id": 30_000})
        assert file.metrics.fallbacks == []
        assert file.metrics.pages_total > 0
        return found

    async def run() -> None:
        async with asyncpq.Session() as session:
            kept = await keep(session, str(path))
            assert sorted(by_file(kept.pages)[FILE]) == lacking
        for footers in (True, False):
            async with asyncpq.Session() as session:
                found = await ask_known(session, str(path), kept.known(footers=footers), question)
                assert found.to_pylist() == TABLE.slice(10_000, 1).to_pylist()

    asyncio.run(run())


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_lookup_takes_the_bytes_of_a_file_with_an_index(version: str) -> None:
    options: dict[str, Any] = {"data_page_size": 16_384, "data_page_version": version, "write_batch_size": 256}
    indexed, bare = (write(TABLE, write_page_index=index, **options) for index in (True, False))

    async def lookup(data: bytes, known: bool) -> tuple[int, pa.Table]:
        put(data)
        requests = asyncpq.RequestOptions(gap_bytes=0)
        async with asyncpq.Session(requests=requests) as session:
            kept = await keep(session, URL)
        async with asyncpq.Session(requests=requests) as session:

            async def question(file: asyncpq.File) -> tuple[int, pa.Table]:
                found = await file.lookup({"id": 60_000})
                return file.metrics.bytes_by_purpose["data"], found

            return await ask_known(session, URL, kept.known(pages=known), question)

    async def run() -> None:
        wanted, rows = await lookup(indexed, True)
        assert rows.num_rows == 1
        whole, same = await lookup(bare, False)
        made, also = await lookup(bare, True)
        assert rows == same == also
        assert whole > 5 * wanted
        assert made <= 1.1 * wanted

    asyncio.run(run())
