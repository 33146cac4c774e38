"""What memory keeps of the pages of a read."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import threading
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.decoding.page import Dictionary
from asyncpq.decoding.row_group_reader import RowGroupReader
from asyncpq.objects.read_plan import Item
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


def unsorted_parquet() -> bytes:
    """Return a file of four row groups whose column "a" has 1.4 MB of many pages in each, and "b" one match in all."""
    numbers = np.random.default_rng(7).integers(1, 1 << 62, 4 * 180_000)
    sink = io.BytesIO()
    table = pa.table({"a": numbers, "b": np.arange(len(numbers))})
    pq.write_table(
        table, sink, row_group_size=180_000, data_page_size=64 * 1024, use_dictionary=False, write_page_index=True
    )
    return sink.getvalue()


TWO_ROUNDS = asyncpq.RequestOptions(late_materialization="always", gap_bytes=0)


class Unsorted:
    """A file on a server, whose column "a" one row is looked for in."""

    def __init__(self, server: ObjectServer) -> None:
        data = unsorted_parquet()
        server.put("lake/file.parquet", data)
        self.table = pq.read_table(io.BytesIO(data))
        self.chunks = [pq.read_metadata(io.BytesIO(data)).row_group(group).column(0) for group in range(4)]

    async def find(self, file: asyncpq.File, row: int) -> asyncpq.ReadMetrics:
        """Look for one row by its number in "a"; return the cost."""
        expected = self.table.slice(row, 1)
        with asyncpq.measure() as cost:
            assert (await file.read(where=asyncpq.col("a") == expected["a"][0].as_py())).equals(expected)
        return cost


async def test_a_filter_reads_large_columns_by_chunks_and_memory_keeps_these() -> None:
    async with ObjectServer() as server:
        unsorted = Unsorted(server)
        memory = 32 << 20  # of which the chunks take more than 1/16
        async with asyncpq.Session(server.storage_options, requests=TWO_ROUNDS, memory_cache_bytes=memory) as session:
            file = await session.open_file(URL)
            cost = await unsorted.find(file, 5)
            assert cost.cache_misses < 20  # a page each would be 90
            fetched = {request.start: request.stop for request in cost.log if request.purpose == "data"}
            for chunk in unsorted.chunks:
                assert fetched[chunk.data_page_offset] == chunk.data_page_offset + chunk.total_compressed_size
            assert (await unsorted.find(file, 500_000)).bytes_fetched < 300_000  # of the other column
            with asyncpq.measure() as cost:  # single pages are in the chunks
                assert (await file.take([7, 400_000], columns=["a"])).equals(
                    unsorted.table.select(["a"]).take([7, 400_000])
                )
            assert not cost.bytes_fetched


async def test_a_chunk_with_a_page_in_memory_is_read_page_by_page() -> None:
    async with ObjectServer() as server:
        unsorted = Unsorted(server)
        async with asyncpq.Session(server.storage_options, requests=TWO_ROUNDS, memory_cache_bytes=32 << 20) as session:
            file = await session.open_file(URL)
            await file.take(np.arange(0, 90_000, 900).tolist(), columns=["a"])  # half of the first chunk
            cost = await unsorted.find(file, 500_000)
            first = unsorted.chunks[0]
            stop = first.data_page_offset + first.total_compressed_size
            fetched = [request for request in cost.log if first.data_page_offset <= request.start < stop]
            assert 0 < sum(request.stop - request.start for request in fetched) < 0.6 * first.total_compressed_size


async def test_a_damaged_chunk_is_fetched_again() -> None:
    async with ObjectServer() as server:
        unsorted = Unsorted(server)
        good = unsorted_parquet()
        start = unsorted.chunks[2].data_page_offset
        server.put("lake/file.parquet", good[:start] + b"\xff" * 100 + good[start + 100 :], etag='"same"')
        async with asyncpq.Session(server.storage_options, requests=TWO_ROUNDS, memory_cache_bytes=32 << 20) as session:
            file = await session.open_file(URL)
            with pytest.raises(asyncpq.CorruptFileError):
                await unsorted.find(file, 500_000)
            with pytest.raises(asyncpq.CorruptFileError):  # its pages are not cut out of the damaged chunk for ever
                await file.take([360_000], columns=["a"])
            server.put("lake/file.parquet", good, etag='"same"')
            assert len(await file.take([360_000], columns=["a"])) == 1
            await unsorted.find(file, 500_000)


@pytest.mark.heavy
async def test_filters_of_many_units_keep_more_of_them_ahead_than_scans() -> None:
    """A unit of theirs waits for a second round, for the few rows that match."""
    async with ObjectServer(latency_s=0.5) as server:
        unsorted = Unsorted(server)
        limits = asyncpq.LimitOptions(unit_bytes=1 << 20, round_bytes=1 << 20, in_flight_bytes=16 << 20)
        requests = dataclasses.replace(TWO_ROUNDS, latency_s=0.01, bandwidth_bytes_s=1e7)
        async with asyncpq.Session(server.storage_options, requests=requests, limits=limits) as session:
            file = await session.open_file(URL)
            ahead: list[int] = []
            for cost in (await unsorted.find(file, 5), await cost_of(drain(file))):
                data = [request for request in cost.log if request.purpose == "data"]
                answered = min(request.began + (request.first_byte_s or 0.0) for request in data)
                ahead.append(sum(request.stop - request.start for request in data if request.began < answered))
            assert ahead[0] > 4_000_000 > ahead[1]


async def test_lookups_at_once_decode_a_dictionary_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "texts.parquet"
    table = pa.table({"id": range(1000), "text": [f"text {row % 500}" for row in range(1000)]})
    pq.write_table(table, path, write_page_index=True)
    decoded: list[int] = []
    add = RowGroupReader.add_dictionary

    def counted(reader: RowGroupReader, item: Item, page: bytes) -> Dictionary | None:
        decoded.append(item.leaf)
        return add(reader, item, page)

    monkeypatch.setattr(RowGroupReader, "add_dictionary", counted)
    async with asyncpq.Session(limits=asyncpq.LimitOptions(decode_threads=0)) as session:
        file = await session.open_file(str(path))
        found = await asyncio.gather(*[file.lookup({"text": f"text {number}"}, columns=["id"]) for number in range(20)])
    assert [table.column("id").to_pylist() for table in found] == [[number, number + 500] for number in range(20)]
    assert sorted(decoded) == [0, 1]


AT_ONCE = 12
SMALL_UNITS = asyncpq.LimitOptions(inline_decode_bytes=1)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("late", ["never", "always"])
async def test_reads_at_once_decode_the_pages_of_a_column_once(
    indexed: bool, groups: int, late: Literal["never", "always"]
) -> None:
    numbers = np.random.default_rng(7).permutation(60_000)
    table = pa.table({"a": numbers, "b": np.arange(len(numbers))})
    pages = {"data_page_size": 16 * 1024, "use_dictionary": False, "write_page_index": indexed}
    data = parquet_bytes(table, row_group_size=len(numbers) // groups, compression="none", **pages)
    async with ObjectServer(latency_s=0.01) as server:
        server.put("lake/file.parquet", data)
        server.put("lake/folder/one.parquet", data)
        for target in (URL, "s3://lake/folder/"):
            requests = asyncpq.RequestOptions(late_materialization=late)
            async with asyncpq.Session(server.storage_options, limits=SMALL_UNITS, requests=requests) as session:
                opened: asyncpq.File | asyncpq.Dataset
                if target == URL:
                    opened = await session.open_file(URL)
                else:
                    opened = await session.open_dataset(target, index=False)
                keys = [int(numbers[row]) for row in range(5, len(numbers), len(numbers) // AT_ONCE)]
                with asyncpq.measure() as cost:
                    rows = await asyncio.gather(*[opened.lookup({"a": key}) for key in keys])
                assert [row.to_pydict() for row in rows] == [
                    {"a": [key], "b": [int(np.nonzero(numbers == key)[0][0])]} for key in keys
                ]
                # a chunk once, to find its pages, and each page once; beside them, "b" of the row that matches
                assert cost.pages_read < 4 * 60_000 * 8 / (16 * 1024) + 4 * len(keys)


async def test_reads_go_on_where_the_one_that_they_wait_for_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(7).permutation(60_000)
    table = pa.table({"a": numbers, "b": numbers})
    async with ObjectServer() as server:
        server.put("lake/file.parquet", parquet_bytes(table, data_page_size=16 * 1024, use_dictionary=False))
        async with asyncpq.Session(server.storage_options, limits=SMALL_UNITS) as session:
            file = await session.open_file(URL)
            entered, released, match = asyncio.Event(), threading.Event(), RowGroupReader.match
            loop = asyncio.get_running_loop()

            def held(reader: RowGroupReader, *args: object) -> object:
                loop.call_soon_threadsafe(entered.set)
                released.wait(10)
                return match(reader, *args)  # type: ignore[arg-type]

            monkeypatch.setattr(RowGroupReader, "match", held)
            first, *others = [asyncio.ensure_future(file.lookup({"a": int(numbers[row])})) for row in range(3)]
            await entered.wait()
            await asyncio.sleep(0.05)
            first.cancel()
            released.set()
            assert [found.to_pydict()["a"] for found in await asyncio.gather(*others)] == [
                [int(numbers[1])],
                [int(numbers[2])],
            ]
            await asyncio.wait((first,))
            assert first.cancelled()
