"""Page locations learnt from chunks that were read whole: what an OffsetIndex would say, and rows like pyarrow's."""

from __future__ import annotations

import asyncio
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.caching.entry_format import ContentKey
from asyncpq.decoding.leaf_sources import PagedSource, StreamedSource
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.objects import page_indexes
from asyncpq.parquet.page_index import OffsetIndex, decode_offset_index
from asyncpq.pruning.row_ranges import RowRanges
from tests.parquet_files import EditedFile, RawPage, Struct
from tests.parquet_samples import LIMITS, OpenFile
from tests.random_tables import NestedFile, WriterOptions, nested_files, tables, writer_options
from tests.reads import ask, values

TABLE = pa.table({"id": pa.array(range(100), pa.int64()), "s": [f"value-{row:05d}" for row in range(100)]})


def feed(source: StreamedSource, data: bytes, pieces: int = 1) -> None:
    size = max(1, -(-len(data) // pieces))
    for start in range(0, len(data), size):
        source.feed(data[start : start + size])


@given(drawn=tables(nested=False), options=writer_options, pieces=st.integers(1, 9))
def test_locations_are_those_of_the_writer(
    drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions, pieces: int
) -> None:
    table, _ = drawn
    file = OpenFile(WriterOptions(**{**vars(options), "page_index": True}).write(table))
    for group in range(len(file.metadata.row_groups)):
        if not file.num_rows(group):
            continue  # nothing is read of it
        for column in range(table.num_columns):
            (chunk,) = file.chunks(column, group)
            source = file.streamed(column, group)
            assert source.locations is None
            feed(source, file.bytes_of(chunk), pieces)
            assert chunk.offset_index_range is not None
            assert source.locations is not None
            start, stop = chunk.offset_index_range
            index = decode_offset_index(file.data[start:stop])
            assert source.locations.offsets == index.offsets
            assert source.locations.sizes == index.sizes
            assert source.locations.first_rows == index.first_rows


@given(drawn=tables(nested=False), options=writer_options, seed=st.integers(0, 1000))
def test_rows_by_learnt_locations_are_pyarrows(
    drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions, seed: int
) -> None:
    table, _ = drawn
    data = WriterOptions(**{**vars(options), "page_index": False}).write(table)
    chosen = random.Random(seed)

    async def question(file: asyncpq.File) -> None:
        whole = await file.read()
        for _ in range(3):
            rows = [chosen.randrange(table.num_rows) for _ in range(min(4, table.num_rows))]
            with asyncpq.measure() as cost:
                assert values(await file.take(rows)) == values(whole.take(pa.array(rows, pa.int64())))
            assert cost.fallbacks == []
            first = table.column_names[0]
            assert values(await file.read(where=col(first).is_valid())) == values(
                whole.filter(whole.column(first).is_valid())
            )

    ask(data, question)


def _plan_of_second_read(data: bytes) -> asyncpq.Plan:
    async def question(file: asyncpq.File) -> asyncpq.Plan:
        assert values(await file.read()) == values(TABLE)
        return await file.plan(where=col("id") >= 50)

    return ask(data, question)


def edited(**options: Any) -> EditedFile:
    options = {"use_dictionary": False, "compression": "none", "write_page_index": False, **options}
    return EditedFile.of(TABLE, **options)


def empty_page(page: RawPage) -> RawPage:
    """A V1 data page without values, encoded like ``page``."""
    header = Struct(page.header)
    described = Struct(header.value(5))
    described.put(1, 0)
    header.put(5, described)
    header.put(2, 0)
    header.put(3, 0)
    return RawPage(header, b"")


def test_locations_are_kept_for_a_plain_file() -> None:
    plan = _plan_of_second_read(edited().data())
    assert plan.learnt == ("id", "s")
    assert "page locations learnt: id, s" in plan.explain()


@pytest.mark.parametrize(("at", "learnt"), [(0, ("s",)), (1, ("id", "s"))])
def test_an_empty_page_in_front_is_not_taken_for_a_dictionary(at: int, learnt: tuple[str, ...]) -> None:
    file = edited()
    pages = file.pages(0)
    file.set_pages([*pages[:at], empty_page(pages[0]), *pages[at:]], 0, index=False)
    assert _plan_of_second_read(file.data()).learnt == learnt


def test_pages_that_cannot_be_read_alone_are_not_learnt() -> None:
    file = edited(column_encoding={"s": "DELTA_BYTE_ARRAY", "id": "PLAIN"})
    assert _plan_of_second_read(file.data()).learnt == ("id", "s")
    file.footer.put(6, b"parquet-mr version 1.7.0 (build abcdef)")
    assert _plan_of_second_read(file.data()).learnt == ("id",)


# -- nested columns: pages that begin on rows, by the decoded levels ------------------------------


def without_indexes(data: bytes, created_by: bytes | None = None) -> bytes:
    """The file without page indexes; or with them, as of another writer."""
    file = EditedFile(data)
    if created_by is not None:
        file.footer.put(6, created_by)
        return file.data()
    for group in range(len(file.footer.value(4))):
        for column in range(len(file.row_group(group).value(1))):
            for field_id in (4, 5, 6, 7):
                file.chunk(column, group).put(field_id, None)
    return file.data()


def learnt_of(file: OpenFile, column: int, group: int) -> dict[int, OffsetIndex | None]:
    """What the leaves of a field tell once all of it was decoded, by leaf."""
    field = file.field(column)
    sources: dict[int, StreamedSource | NestedLeaf] = {}
    for leaf, chunk in zip(range(field.first_leaf, field.leaf_stop), file.chunks(column, group), strict=True):
        source = file.leaf_source(leaf, group, paged=False)
        assert not isinstance(source, PagedSource)
        source.feed(file.bytes_of(chunk))
        sources[leaf] = source
    num_rows = file.num_rows(group)
    file.joined(column, sources, num_rows).select(RowRanges.all(num_rows), LIMITS)
    return {leaf: source.locations for leaf, source in sources.items()}


@given(nested_files())
def test_nested_locations_are_those_of_the_writer(drawn: NestedFile) -> None:
    if not drawn.writer.page_index:
        return
    indexed, plain = OpenFile(drawn.data), OpenFile(without_indexes(drawn.data))
    for group in range(len(plain.metadata.row_groups)):
        for column in range(1, drawn.table.num_columns):
            for number, found in learnt_of(plain, column, group).items():
                place = indexed.version.chunk(group, number).offset_index_range
                assert place is not None
                index = decode_offset_index(indexed.data[place[0] : place[1]])
                counts = index.row_counts(plain.num_rows(group))
                if counts[0] == 0:  # pyarrow's names pages without rows, too; such a one in front is not learnt
                    assert found is None
                    continue
                assert found is not None
                pages = zip(index.offsets, index.sizes, index.first_rows, counts, strict=True)
                offsets, sizes, first_rows, _ = zip(*[page for page in pages if page[3]], strict=True)
                assert (found.offsets, found.sizes, found.first_rows) == (
                    tuple(offsets),
                    tuple(sizes),
                    tuple(first_rows),
                )


@given(nested_files(), st.sampled_from([None, b"somebody version 1.0.0"]), st.data())
def test_nested_rows_by_learnt_locations_are_pyarrows(
    drawn: NestedFile, created_by: bytes | None, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, drawn.table.num_rows - 1), min_size=1, max_size=9))
    low = data.draw(st.integers(0, drawn.table.num_rows))

    async def question(file: asyncpq.File) -> None:
        assert values(await file.read()) == values(drawn.table)
        for _ in range(2):
            assert values(await file.take(rows)) == values(drawn.table.take(pa.array(rows)))
            found = await file.read(where=(col("id") >= low) & (col("id") < low + 5))
            assert values(found) == values(drawn.table.slice(low, 5))

    ask(without_indexes(drawn.data, created_by), question)


LISTS = pa.table({"id": pa.array(range(60)), "list": pa.array([[row, row, row] for row in range(60)])})


def _plan_of_second_lists(data: bytes) -> tuple[asyncpq.Plan, asyncpq.Plan]:
    async def question(file: asyncpq.File) -> tuple[asyncpq.Plan, asyncpq.Plan]:
        first = await file.plan(where=col("id") == 50)
        assert values(await file.read()) == values(LISTS)
        second = await file.plan(where=col("id") == 50)
        assert values(await file.read(where=col("id") == 50)) == values(LISTS.slice(50, 1))
        return first, second

    return ask(data, question)


def _page_of_lists(like: RawPage, repetition: list[int], numbers: list[int]) -> RawPage:
    """A V1 data page of up to eight values of ``list``, none of them null."""

    def levels(values: list[int], width: int) -> bytes:
        packed = sum(value << width * at for at, value in enumerate(values)).to_bytes(width, "little")
        return (1 + width).to_bytes(4, "little") + b"\x03" + packed

    plain = b"".join(number.to_bytes(8, "little") for number in numbers)
    payload = levels(repetition, 1) + levels([3] * len(numbers), 2) + plain
    header, described = Struct(like.header), Struct(like.header.value(5))
    described.put(1, len(numbers))
    header.put(5, described)
    header.put(2, len(payload))
    header.put(3, len(payload))
    return RawPage(header, payload)


@pytest.mark.parametrize(("cuts", "learnt"), [((3, 6), ("id", "list")), ((6,), ("id", "list")), ((2, 6), ("id",))])
def test_lists_are_learnt_where_every_page_begins_a_row(cuts: tuple[int, ...], learnt: tuple[str, ...]) -> None:
    table = LISTS.slice(0, 3)
    options = {"use_dictionary": False, "write_page_index": False, "compression": "none", "write_statistics": False}
    file = EditedFile.of(table, **options)
    like = file.pages(1)[0]
    numbers, edges = [row for row in range(3) for _ in range(3)], [0, *cuts, 9]
    pages = [
        _page_of_lists(like, [int(at % 3 > 0) for at in range(start, stop)], numbers[start:stop])
        for start, stop in pairwise(edges)
    ]
    file.set_pages(pages, 1, index=False)

    async def question(file: asyncpq.File) -> tuple[str, ...]:
        assert values(await file.read()) == values(table)
        assert values(await file.take([2, 0])) == values(table.take(pa.array([2, 0])))
        return (await file.plan(where=col("id") == 1)).learnt

    assert ask(file.data(), question) == learnt


def test_an_empty_page_in_front_of_lists_is_not_taken_for_a_dictionary() -> None:
    file = EditedFile.of(LISTS, use_dictionary=False, compression="none", write_page_index=False)
    pages = file.pages(1)
    file.set_pages([empty_page(pages[0]), *pages], 1, index=False)
    assert _plan_of_second_lists(file.data())[1].learnt == ("id",)


def test_an_index_that_may_split_rows_is_replaced_by_what_was_learnt() -> None:
    file = EditedFile.of(LISTS, rows_per_page=3)
    file.footer.put(6, b"somebody version 1.0.0")
    first, second = _plan_of_second_lists(file.data())
    assert any("may split rows" in reason for reason in first.fallbacks)
    assert second.learnt == ("list",)
    assert not any("may split rows" in reason for reason in second.fallbacks)


@pytest.mark.parametrize(("index", "expected"), [(True, 0), (False, 2)])
def test_nothing_is_learnt_where_there_is_an_index(index: bool, expected: int) -> None:
    cache = asyncpq.MemoryCache(1 << 24)

    async def question(file: asyncpq.File) -> int:
        await file.read()
        return cache.discard_if(lambda key: isinstance(key, ContentKey) and key.kind == "learnt")

    data = EditedFile.of(LISTS, rows_per_page=3, write_page_index=index).data()
    assert ask(data, question, memory_cache=cache) == expected


async def test_long_indexes_are_parsed_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their bytes: one chunk may have thousands of pages."""
    threads: dict[int, set[bool]] = {}

    def decode(data: bytes) -> Any:
        threads.setdefault(pages, set()).add(threading.current_thread() is threading.main_thread())
        return decode_offset_index(data)

    monkeypatch.setattr(page_indexes, "decode_offset_index", decode)
    for pages in (10, 3000):
        path, rows = tmp_path / f"{pages}.parquet", range(pages * 10)
        table = pa.table({"id": rows})
        pq.write_table(table, path, write_page_index=True, max_rows_per_page=10, write_batch_size=10)
        async with asyncpq.Session() as session:
            file = await session.open_file(str(path))
            assert (await file.lookup({"id": 77})).num_rows == 1
    assert threads == {10: {True}, 3000: {False}}


async def test_reads_at_once_decode_an_index_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pages.parquet"
    options: dict[str, Any] = {"max_rows_per_page": 10, "write_batch_size": 10, "use_dictionary": False}
    pq.write_table(pa.table({"id": range(1000)}), path, write_page_index=True, **options)
    decoded: list[bytes] = []

    def decode(data: bytes) -> Any:
        decoded.append(data)
        return decode_offset_index(data)

    monkeypatch.setattr(page_indexes, "decode_offset_index", decode)
    async with asyncpq.Session(limits=asyncpq.LimitOptions(decode_threads=0)) as session:
        file = await session.open_file(str(path))
        found = await asyncio.gather(*[file.lookup({"id": number}) for number in range(20)])
    assert [table.num_rows for table in found] == [1] * 20
    assert len(decoded) == 1
