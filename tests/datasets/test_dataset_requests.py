"""Which objects a dataset's reads ask for, request by request, by the server's own log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.testing import LoggedRequest, ObjectServer
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.io

ROWS = 1000  # of each file


def file_bytes(number: int) -> bytes:
    """Ids ``[number * ROWS, (number + 1) * ROWS)``, four pages of each column, page index."""
    table = pa.table(
        {
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "text": [f"text {number} {row}" * 20 for row in range(ROWS)],
        }
    )
    options: dict[str, Any] = {"max_rows_per_page": 250, "write_batch_size": 250, "use_dictionary": False}
    return parquet_bytes(table, compression="none", write_page_index=True, **options)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        yield running


def session(server: ObjectServer, **limits: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=4096, gap_bytes=0)
    return asyncpq.Session(server.storage_options, requests=requests, limits=asyncpq.LimitOptions(**limits))


def taken(server: ObjectServer) -> list[str]:
    """What was asked for since the last call: "LIST", or an object's name and "tail" or "range"; sorted."""
    lines = []
    for request in server.log:
        name = request.path.rpartition("lake/")[2]
        if request.range is None:
            lines.append("LIST")
        else:
            lines.append(f"{name} {'tail' if request.range.startswith('bytes=-') else 'range'}")
    server.log.clear()
    return sorted(lines)


async def test_a_warm_lookup_is_one_listing_and_the_one_files_pages(server: ObjectServer) -> None:
    for number in range(20):
        server.put(f"bucket/lake/{number:02d}.parquet", file_bytes(number))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/lake")
        assert taken(server) == ["00.parquet tail", "LIST"]
        assert (await dataset.lookup({"id": 7_300}, ["text"])).num_rows == 1
        # the other footers; one page of each column is what the key's page and its rows take
        assert taken(server) == sorted(
            ["LIST", "07.parquet range", "07.parquet range"] + [f"{number:02d}.parquet tail" for number in range(1, 20)]
        )
        with asyncpq.measure() as cost:
            assert (await dataset.lookup({"id": 9_900}, ["text"])).num_rows == 1
        assert taken(server) == ["09.parquet range", "09.parquet range", "LIST"]
        assert cost.rounds == 1
        assert (cost.files_ruled_out, cost.files_opened) == (19, 1)
        assert (await dataset.lookup({"id": [3, 19_999, 50_000]}, ["id"]))["id"].to_pylist() == [3, 19_999]
        assert taken(server) == ["00.parquet range", "19.parquet range", "LIST"]
        assert (await dataset.count(col("id") < 0)) == 0
        assert taken(server) == ["LIST"]


@pytest.mark.heavy
async def test_a_lookup_in_one_of_2000_partitions_opens_its_file_only(server: ObjectServer) -> None:
    data = file_bytes(0)
    for day in range(2000):
        server.put(f"bucket/lake/year={2000 + day // 365}/day={day}/part.parquet", data)
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        opening = taken(server)
        assert opening.count("year=2000/day=0/part.parquet tail") == 1
        assert len(opening) <= 8  # two thousand names are two pages, and a few more to list them side by side
        assert (await dataset.lookup({"day": 1234, "id": 17})).num_rows == 1
        asked = taken(server)
        files = {line.partition(" ")[0] for line in asked if line != "LIST"}
        assert files == {"year=2003/day=1234/part.parquet"}
        assert asked.count("LIST") <= 7
        assert dataset.metrics.files_ruled_out == 1999
        year = await dataset.count((col("year") == 2001) & (col("id") < 10))
        assert year == 365 * 10
        assert {line.partition(" ")[0].partition("/")[0] for line in taken(server) if line != "LIST"} == {"year=2001"}


async def test_a_predicate_that_nothing_satisfies_asks_for_nothing(server: ObjectServer) -> None:
    server.put("bucket/lake/0.parquet", file_bytes(0))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        taken(server)
        assert (await dataset.read(where=(col("id") > 5) & (col("id") < 3))).schema.names == ["id", "text"]
        assert (await dataset.plan(where=(col("id") > 5) & (col("id") < 3))).num_requests == 0
        assert taken(server) == []
        with pytest.raises(asyncpq.ColumnNotFoundError):
            await dataset.read(where=(col("id") > 5) & (col("id") < 3) & (col("nothing") == 1))


async def test_rows_are_counted_by_footers_once(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        server.put(f"bucket/lake/part-{number}", file_bytes(number))

    def plans(*arguments: object, **options: object) -> None:
        pytest.fail("a plan is made")

    async with session(server) as open_session:
        dataset = await open_session.open_dataset("s3://bucket/lake/")
        with monkeypatch.context() as patch:
            patch.setattr(OpenedFile, "prepare", plans)
            taken(server)
            assert await dataset.count() == 4 * ROWS
            assert taken(server) == ["LIST", *(f"part-{number} tail" for number in range(1, 4))]
            assert (dataset.metrics.files_opened, dataset.metrics.files_read) == (4, 0)
            for _ in range(2):
                with asyncpq.measure() as cost:
                    assert await dataset.count() == 4 * ROWS
                assert taken(server) == ["LIST"]
                assert (cost.files_total, cost.files_opened) == (4, 0)
            server.put("bucket/lake/part-1", file_bytes(9))
            server.put("bucket/lake/part-4", file_bytes(4))
            server.delete("bucket/lake/part-2")
            assert await dataset.count() == 4 * ROWS
            assert taken(server) == ["LIST", "part-1 tail", "part-4 tail"]
        assert (await dataset.why(count=True)).to_dict()["rows"] == 4 * ROWS


async def test_a_count_ends_between_files(server: ObjectServer) -> None:
    content = file_bytes(1)
    for number in range(500):
        server.put(f"bucket/lake/part-{number:03}", content)
    async with session(server, files_ahead=2) as open_session:
        dataset = await open_session.open_dataset("s3://bucket/lake/")
        opened = 0

        def before(request: LoggedRequest) -> None:
            nonlocal opened
            opened += 1
            if opened == 20:
                task.cancel()

        server.before = before
        task = asyncio.ensure_future(dataset.count())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert opened < 30
    async with session(server, files_ahead=2) as open_session:
        server.before = lambda request: None
        dataset = await open_session.open_dataset("s3://bucket/lake/")
        opened = 0

        def expire(request: LoggedRequest) -> None:
            nonlocal opened
            opened += 1
            if opened == 20:
                for deadline in tuple(open_session._runtime._deadlines.running):
                    deadline.expire()

        server.before = expire
        with pytest.raises(asyncpq.DeadlineExceededError):
            await dataset.count()
        assert opened < 30


async def test_a_limit_opens_the_first_files_only(server: ObjectServer) -> None:
    for number in range(30):
        server.put(f"bucket/lake/{number:02d}.parquet", file_bytes(number))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        taken(server)
        assert (await dataset.read(["id"], limit=10))["id"].to_pylist() == list(range(10))
        files = {line.partition(" ")[0] for line in taken(server)} - {"LIST"}
        assert files <= {"00.parquet", "01.parquet", "02.parquet"}


async def test_what_is_listed_is_what_is_read(server: ObjectServer) -> None:
    for number in range(3):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        assert await dataset.count(col("id") < 5000) == 3000
        server.put("bucket/lake/3.parquet", file_bytes(3))
        server.delete("bucket/lake/0.parquet")
        server.put("bucket/lake/1.parquet", file_bytes(4))
        taken(server)
        # known files are read at once, and over again as the listing that comes meanwhile is another
        found = (await dataset.read(["id"], col("id") < 5000))["id"].to_pylist()
        assert found == [*range(4000, 5000), *range(2000, 3000), *range(3000, 4000)]
        asked = taken(server)
        assert asked.count("LIST") == 1
        assert not [line for line in asked if line.startswith("2.parquet tail")]
        assert await dataset.files() == [f"s3://bucket/lake/{number}.parquet" for number in (1, 2, 3)]


async def test_files_of_unknown_footers_are_opened_side_by_side(server: ObjectServer) -> None:
    for number in range(40):
        server.put(f"bucket/lake/{number:02d}.parquet", file_bytes(number))
    async with session(server, files_ahead=8) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        assert await dataset.count() == 40 * ROWS
        assert dataset.metrics.rounds == 1  # the listing and all footers
        assert dataset.metrics.requests == 40


async def test_a_listing_validates_the_footers_of_its_files(server: ObjectServer) -> None:
    for number in range(4):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(max_age_s=1.0)) as s:
        assert await (await s.open_dataset("s3://bucket/lake/")).count() == 4 * ROWS
        await asyncio.sleep(1.1)  # whatever was seen of them is too old now
        taken(server)
        assert await (await s.open_dataset("s3://bucket/lake/")).count() == 4 * ROWS
        assert set(taken(server)) == {"LIST"}


def unsorted_bytes(number: int) -> bytes:
    """Keys of which no statistics rule any out, and 200 kB of text."""
    keys = [row * 40 + number for row in range(ROWS)]
    table = pa.table({"key": pa.array(keys, pa.int64()), "text": [f"{key:0200d}" for key in keys]})
    return parquet_bytes(table, compression="none", use_dictionary=False, write_statistics=False)


async def test_a_key_that_any_of_many_files_may_have_fetches_the_other_columns_of_one(server: ObjectServer) -> None:
    for number in range(40):
        server.put(f"bucket/lake/{number:02d}.parquet", unsorted_bytes(number))
    requests = asyncpq.RequestOptions(tail_bytes=4096, latency_s=0.03, bandwidth_bytes_s=200e6)
    async with asyncpq.Session(server.storage_options, requests=requests) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        found = await dataset.lookup({"key": 123 * 40 + 39}, ["text"])
        assert found["text"].to_pylist() == [f"{123 * 40 + 39:0200d}"]
        # 4 kB of the end and 8 kB of keys of each; of text, that of the first three, and of the file that has the key
        assert dataset.metrics.bytes_fetched < 40 * 13_000 + 4 * 210_000
        file = await s.open_file("s3://bucket/lake/07.parquet")
        assert (await file.lookup({"key": 123 * 40 + 7}, ["text"])).num_rows == 1
        assert file.metrics.rounds == 1  # alone, its text takes less time than a second round
