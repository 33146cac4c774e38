"""What memory keeps of the pages of a read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.costs import cost_of
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"
ROWS = 200_000


def parquet() -> bytes:
    numbers = np.random.default_rng(7).integers(1, 1 << 62, ROWS)
    table = pa.table({"a": numbers, "b": numbers})
    return parquet_bytes(
        table, row_group_size=ROWS // 2, data_page_size=64 * 1024, use_dictionary=False, write_page_index=True
    )


async def drain(file: asyncpq.File) -> int:
    async with file.scan(["a"]) as scan:
        sizes = [batch.num_rows async for batch in scan]
    return sum(sizes)


@pytest.mark.parametrize("keeps", [True, False])
async def test_reads_of_few_rows_find_the_pages_of_a_scan_that_had_room(keeps: bool) -> None:
    async with ObjectServer() as server:
        server.put("lake/file.parquet", parquet())
        requests = asyncpq.RequestOptions(tail_bytes=2000)
        memory = 64 << 20 if keeps else 8 << 20
        async with asyncpq.Session(server.storage_options, requests=requests, memory_cache_bytes=memory) as session:
            file = await session.open_file(URL)
            assert await drain(file) == ROWS
            cost = await cost_of(file.take([7, 150_000], columns=["a"]))
            assert ("data" not in {request.purpose for request in cost.log}) is keeps


async def test_a_lookup_in_an_unsorted_column_finds_its_pages_decoded_from_the_third_time_on(tmp_path: Path) -> None:
    path = tmp_path / "unsorted.parquet"
    path.write_bytes(parquet())
    table = pq.read_table(path)
    async with asyncpq.Session(memory_cache_bytes=64 << 20) as session:  # more than 16 times the pages' bytes
        file = await session.open_file(str(path))
        pages = []
        for row in (5, 70_000, 150_000):
            expected = table.slice(row, 1)
            with asyncpq.measure() as cost:
                assert (await file.read(where=asyncpq.col("b") == expected["b"][0].as_py())).equals(expected)
            pages.append(cost.pages_read)
    assert pages[1] > 20
    assert pages[2] <= 1  # one of the other column


def write_wide(path: Path) -> pa.Table:
    """Write 101 columns of one page each."""
    numbers = np.random.default_rng(7).integers(1, 1 << 62, (100, 1000))
    table = pa.table({"id": np.arange(1000), **{f"c{number}": column for number, column in enumerate(numbers)}})
    pq.write_table(table, path, use_dictionary=False, write_page_index=True)
    return table


async def test_the_second_row_of_many_columns_finds_their_pages_decoded(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    table = write_wide(path)
    async with asyncpq.Session(memory_cache_bytes=32 << 20) as session:  # less than 64 times the pages' bytes
        file = await session.open_file(str(path))
        for row, pages in ((5, 101), (6, 0)):
            with asyncpq.measure() as cost:
                assert (await file.lookup({"id": row})).equals(table.slice(row, 1))
            assert cost.pages_read == pages


async def test_decoded_pages_of_one_read_take_a_small_part_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    table = write_wide(path)
    async with asyncpq.Session(memory_cache_bytes=16 << 20) as session:  # of which they may take 1 MiB
        file = await session.open_file(str(path))
        await file.lookup({"id": 5})
        with asyncpq.measure() as cost:
            assert (await file.lookup({"id": 6})).equals(table.slice(6, 1))
        assert 0 < cost.pages_read < 101
