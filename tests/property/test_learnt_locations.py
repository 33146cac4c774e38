"""Page locations learnt from chunks that were read whole: what an OffsetIndex would say, and rows like pyarrow's."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.decoding.assemble import StreamedSource
from asyncpq.format.page_index import decode_offset_index
from tests.column_chunks import OpenFile
from tests.edited_files import EditedFile, RawPage, Struct
from tests.reads import ask, values
from tests.tables import WriterOptions, tables, writer_options

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
            assert values(await file.take(rows)) == values(whole.take(pa.array(rows, pa.int64())))
            assert file.metrics.fallbacks == []
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
