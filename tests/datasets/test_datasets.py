"""Datasets of bad files, deleted rows, and small budgets; many reads at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.testing import Fault, ObjectServer
from tests.lakes import READS, ROWS, URL, damaged, file_bytes, lake_server, lookup_ids, read_ids, session


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with lake_server() as running:
        yield running


# -- bad files ------------------------------------------------------------------------------------


BAD: dict[str, tuple[bytes | None, type[asyncpq.AsyncpqError]]] = {
    "no Parquet": (b"id,text\n1,2\n" * 100, asyncpq.NotParquetError),
    "empty": (b"", asyncpq.NotParquetError),
    "cut short": (file_bytes(2)[:-20], asyncpq.NotParquetError),
    "damaged page": (damaged(file_bytes(2)), asyncpq.CorruptFileError),
    "other columns": (file_bytes(2, more=list(range(ROWS))), asyncpq.SchemaMismatchError),
    "other type": (file_bytes(2, id=[str(row) for row in range(ROWS)]), asyncpq.SchemaMismatchError),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_file_is_named_or_skipped(server: ObjectServer, bad: str, read: str) -> None:
    data, error = BAD[bad]
    assert data is not None
    server.put("bucket/lake/2.parquet", data)
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        with pytest.raises(error) as raised:
            await READS[read](dataset)
        assert raised.value.url == f"{URL}2.parquet"
        lenient = await s.open_dataset(URL, on_bad_file="skip")
        found = await READS[read](lenient)
        assert found == [*range(2 * ROWS), *range(3 * ROWS, 4 * ROWS)]
        assert [(skipped.url, type(skipped.error)) for skipped in lenient.skipped] == [(f"{URL}2.parquet", error)]
        assert s._runtime.budget.used == 0


async def test_a_scan_does_not_take_rows_back(server: ObjectServer) -> None:
    """The second row group's page is damaged: rows of the first were handed out."""
    server.put("bucket/lake/1.parquet", damaged(file_bytes(1), row_group=1))
    async with session(server, limits=asyncpq.LimitOptions(unit_bytes=1)) as s:
        dataset = await s.open_dataset(URL, on_bad_file="skip")
        found: list[int] = []

        async def scan_all() -> None:
            async with dataset.scan(["id"]) as scan:
                async for batch in scan:
                    found.extend(batch["id"].to_pylist())

        with pytest.raises(asyncpq.CorruptFileError):
            await scan_all()
        assert found == list(range(ROWS + ROWS // 2))
        # what is put together first leaves the whole file out
        assert await lookup_ids(dataset) == [*range(ROWS), *range(2 * ROWS, 4 * ROWS)]


async def test_a_file_of_a_list_that_is_not_there(server: ObjectServer) -> None:
    urls = [f"{URL}{name}.parquet" for name in (3, "gone", 1)]
    async with session(server) as s:
        with pytest.raises(asyncpq.ObjectNotFoundError) as raised:
            await (await s.open_dataset(urls)).count()
        assert raised.value.url == urls[1]
        dataset = await s.open_dataset(urls, on_bad_file="skip")
        assert await read_ids(dataset) == [*range(3 * ROWS, 4 * ROWS), *range(ROWS, 2 * ROWS)]
        assert [skipped.url for skipped in dataset.skipped] == [urls[1]]
        assert dataset.metrics.files_skipped == 1
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await s.open_dataset("s3://bucket/nothing/")
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await s.open_dataset([urls[1]], on_bad_file="skip")


async def test_a_partition_that_does_not_parse(server: ObjectServer) -> None:
    for value in ("1", "2", "three"):
        server.put(f"bucket/parts/number={value}/0.parquet", file_bytes(0))
    async with session(server) as s:
        assert (await s.open_dataset("s3://bucket/parts/")).schema.field("number").type == pa.string()
        types = {"number": pa.int64()}
        with pytest.raises(asyncpq.PartitionError) as raised:
            await s.open_dataset("s3://bucket/parts/", partition_types=types)
        assert raised.value.url == "s3://bucket/parts/number=three/0.parquet"
        assert "'three'" in str(raised.value)
        dataset = await s.open_dataset("s3://bucket/parts/", partition_types=types, on_bad_file="skip")
        for _ in range(2):
            assert await dataset.count(col("number") >= 0) == 2 * ROWS
            assert [skipped.url for skipped in dataset.skipped] == [raised.value.url]
        server.put("bucket/parts/number=4/0.parquet", file_bytes(0))
        assert await dataset.count(col("number") == 4) == ROWS


async def test_a_table_is_not_read_as_files(server: ObjectServer) -> None:
    server.put("bucket/lake/_delta_log/00000000000000000000.json", b"{}")
    async with session(server) as s:
        with pytest.raises(asyncpq.InvalidOptionError, match="Delta"):
            await s.open_dataset(URL)
        assert await (await s.open_dataset(URL, format="parquet")).count() == 4 * ROWS


# -- deleted rows ---------------------------------------------------------------------------------


class _Deleted:
    """Rows 3 and 5 to 9 of a file."""

    identity = "some"

    async def rows(self, reader: asyncpq.CatalogReader, num_rows: int) -> RowRanges:
        assert num_rows == ROWS
        return RowRanges([(3, 4), (5, 10)])


class _Table:
    """A file with deleted rows, and one without."""

    async def snapshot(self, reader: asyncpq.CatalogReader) -> asyncpq.Snapshot:
        files = (
            asyncpq.DataFile(url=f"{URL}0.parquet", num_rows=ROWS, deletes=_Deleted(), immutable=True),
            asyncpq.DataFile(url=f"{URL}1.parquet", num_rows=ROWS, immutable=True),
        )
        return asyncpq.FileList(description="two files", data_files=files)


async def test_deleted_rows_are_in_no_read(server: ObjectServer) -> None:
    first, second = f"{URL}0.parquet", f"{URL}1.parquet"
    left = [0, 1, 2, 4, *range(10, 2 * ROWS)]
    async with session(server) as s:
        dataset = await s.open_dataset(_Table())
        assert await read_ids(dataset) == left
        assert await dataset.count() == len(left)
        assert await dataset.count(col("id") < 10) == 4
        assert (await dataset.read(["id"], limit=5))["id"].to_pylist() == left[:5]
        assert (await dataset.lookup({"id": [2, 3, 4, 11]}, ["id"]))["id"].to_pylist() == [2, 4, 11]
        # row numbers are those of the file
        assert (await dataset.take([(second, 3), (first, 10), (first, 4)]))["id"].to_pylist() == [ROWS + 3, 10, 4]
        access = {first: asyncpq.AccessPlan.row_ranges([(2, 12)])}
        assert (await dataset.read(["id"], access=access))["id"].to_pylist() == [2, 4, 10, 11]
        with pytest.raises(asyncpq.RowIndexError, match="deleted"):
            await dataset.take([(first, 2), (first, 3)])


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_budget_of_one_byte_is_enough(server: ObjectServer, ordered: bool) -> None:
    limits = asyncpq.LimitOptions(in_flight_bytes=1, unit_bytes=1, files_ahead=2, decode_threads=2)
    async with session(server, limits=limits) as s:
        dataset = await s.open_dataset(URL)
        async with dataset.scan(["id"], ordered=ordered) as one, dataset.scan(["id"], ordered=ordered) as other:
            first: list[int] = []
            second: list[int] = []
            async with asyncio.timeout(30):
                async for batch in one:
                    first += batch["id"].to_pylist()
                    second += (await anext(other))["id"].to_pylist()
        assert sorted(first) == sorted(second) == list(range(4 * ROWS))
        assert s._runtime.budget.used == 0


async def test_bytes_in_flight_are_bounded_over_all_files(server: ObjectServer) -> None:
    for number in range(4, 60):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number))
    limits = asyncpq.LimitOptions(in_flight_bytes=20_000, unit_bytes=10_000)
    async with session(server, limits=limits) as s:
        dataset = await s.open_dataset(URL)
        most = 0
        async with dataset.scan() as scan:
            async for _ in scan:
                await asyncio.sleep(0.002)  # read-ahead has all the time it wants
                most = max(most, s._runtime.budget.used)
        assert 10_000 < most <= 20_000 + 10_000  # the unit that is waited for may be over budget
        assert s._runtime.budget.used == 0


async def test_as_they_become_ready(server: ObjectServer) -> None:
    server.faults = [Fault(path="lake/0.parquet", ranged=True, latency_s=0.5, after=1, times=None)]
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        async with dataset.scan(["id"], ordered=False) as scan:
            found = [batch["id"].to_pylist() async for batch in scan]
        assert sorted(value for values in found for value in values) == list(range(4 * ROWS))
        assert found[-1][-1] == ROWS - 1


async def test_many_reads_at_once(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = await s.open_dataset(URL)

        async def one(number: int) -> None:
            for step in range(5):
                key = (number * 97 + step * 31) % (4 * ROWS)
                assert (await dataset.lookup({"id": key}, ["text"]))["text"].to_pylist() == [f"{key // ROWS} {key}"]

        await asyncio.gather(*(one(number) for number in range(32)))
        assert s._runtime.budget.used == 0
