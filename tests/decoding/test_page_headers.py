"""What page headers are held to wherever pages are decoded: flat or nested, alone, several at once or whole chunks.

Holds: pages of a chunk have a CRC all or none; levels have an encoding that the chunk lists.
"""

from __future__ import annotations

import pytest

import asyncpq
from asyncpq.errors import CorruptFileError
from asyncpq.parquet.thrift import I32
from tests.fuzz import bases
from tests.fuzz.parquet_parts import ChunkPart, ParquetParts
from tests.reads import ask

PAGED = ["plain", "plain_v2", "dictionary", "dictionary_v2", "encodings", "fallback", "nested", "nested_v2"]
FIRST, SECOND = 3, 45  # rows of two pages


def column_of(chunk: ChunkPart) -> str:
    name = chunk.meta.items(3).values[0]
    assert isinstance(name, bytes)
    return name.decode()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("base", PAGED)
@pytest.mark.parametrize("leaf", [1, 2, 3, 4])
@pytest.mark.parametrize("page", [0, 1])
def test_a_page_without_the_crc_that_others_have(base: str, leaf: int, page: int) -> None:
    """Pages of single rows are decoded alone, or not decoded at all; then it shows all the same."""
    parts = ParquetParts(bases.data(base))
    parts.chunks[leaf].data_pages[page].header.drop(4)
    data, column = parts.rebuilt(), column_of(parts.chunks[leaf])

    async def question(file: asyncpq.File) -> None:
        wanted = bases.table(base).select([column])
        for _ in range(2):
            for rows in ([FIRST, SECOND], [SECOND, FIRST], list(range(FIRST, SECOND))):
                with pytest.raises(CorruptFileError, match="others do not") as caught:
                    await file.take(rows, [column])
                assert caught.value.column is not None
                assert caught.value.column.split(".")[0] == column
        for row in (FIRST, FIRST + 1):  # of one page, that alone tells nothing
            assert (await file.take([row], [column])).to_pylist() == wanted.take([row]).to_pylist()

    for cached in (0, 1 << 24):
        ask(data, question, memory_cache_bytes=cached)


@pytest.mark.parametrize("base", ["nested", "nested_plain"])
@pytest.mark.parametrize(("leaf", "level"), [(1, 3), (1, 4), (3, 3), (5, 3), (5, 4)])  # of definition, of repetition
def test_levels_of_an_encoding_that_the_chunk_does_not_list(base: str, leaf: int, level: int) -> None:
    """Nested pages as well as flat ones, one by one or as a whole chunk."""
    parts = ParquetParts(bases.data(base))
    parts.chunks[leaf].data_pages[0].header.struct(5).set(level, 4, I32)
    data, column = parts.rebuilt(), column_of(parts.chunks[leaf])

    async def question(file: asyncpq.File) -> None:
        for rows in ([FIRST], list(range(100))):
            with pytest.raises(CorruptFileError, match="levels have the encoding 4"):
                await file.take(rows, [column])
        with pytest.raises(CorruptFileError, match="levels have the encoding 4"):
            await file.read([column])

    ask(data, question)
