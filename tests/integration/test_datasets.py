"""Datasets while things go wrong: bad files, files that change, small budgets, cancellation, many reads at once."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import Fault, ObjectServer
from tests.faults.leaks import assert_back_to, held
from tests.faults.stepping import CancelledAt

ROWS = 400
URL = "s3://bucket/lake/"
Ask = Callable[[asyncpq.Dataset], Coroutine[Any, Any, list[int]]]


def file_bytes(number: int, **columns: Any) -> bytes:
    """Ids ``[number * ROWS, (number + 1) * ROWS)``, in two row groups, with checksums."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{number} {row}" for row in ids]} | columns)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=ROWS // 2, write_page_index=True, write_page_checksum=True)
    return sink.getvalue()


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        for number in range(4):
            running.put(f"bucket/lake/{number}.parquet", file_bytes(number))
        yield running


def session(server: ObjectServer, *, max_attempts: int = 2, **options: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=2000)
    retry = asyncpq.RetryOptions(max_attempts=max_attempts, backoff_base_s=0.001, backoff_max_s=0.002)
    return asyncpq.Session(server.storage_options, requests=requests, retry=retry, **options)


async def read_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.read(["id"]))["id"].to_pylist())


async def scan_ids(dataset: asyncpq.Dataset) -> list[int]:
    async with dataset.scan(["id"], batch_size=50) as scan:
        found = [value for batch in [batch async for batch in scan] for value in batch["id"].to_pylist()]
    dataset.skipped = scan.skipped
    return found


async def lookup_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.lookup({"id": list(range(4 * ROWS))}, ["id"]))["id"].to_pylist())


async def count_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list(range(await dataset.count(col("id") >= 0)))


READS: dict[str, Ask] = {"read": read_ids, "scan": scan_ids, "lookup": lookup_ids}


# -- bad files ------------------------------------------------------------------------------------


def _damaged(data: bytes) -> bytes:
    """A byte of the first data page is another one; the footer is right."""
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    at = chunk.data_page_offset + 60
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


BAD: dict[str, tuple[bytes | None, type[asyncpq.AsyncpqError]]] = {
    "no Parquet": (b"id,text\n1,2\n" * 100, asyncpq.NotParquetError),
    "empty": (b"", asyncpq.NotParquetError),
    "cut short": (file_bytes(2)[:-20], asyncpq.NotParquetError),
    "damaged page": (_damaged(file_bytes(2)), asyncpq.CorruptFileError),
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
        assert s._resources.budget.used == 0


async def test_a_scan_does_not_take_rows_back(server: ObjectServer) -> None:
    """The second row group's page is damaged: rows of the first were handed out."""
    data = file_bytes(1)
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(1).column(0)
    at = chunk.data_page_offset + 60
    server.put("bucket/lake/1.parquet", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
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


# -- files that change ----------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
async def test_a_file_that_is_replaced_before_its_rows_are_given_is_read_anew(server: ObjectServer, read: str) -> None:
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        assert len(await READS[read](dataset)) == 4 * ROWS
        s.memory_cache.discard_if(lambda key: getattr(key, "kind", "") in ("page", "dictionary", "tail"))
        # its footer is known, and the listing still says so; then the data request finds another version
        server.faults = [Fault(path="lake/2.parquet", ranged=True, replace_with=file_bytes(7), times=1)]
        found = await READS[read](dataset)
        wanted = [*range(2 * ROWS), *range(7 * ROWS, 8 * ROWS), *range(3 * ROWS, 4 * ROWS)]
        assert found == (wanted if read != "lookup" else wanted[: 2 * ROWS] + wanted[3 * ROWS :])
        assert dataset.metrics.restarts == 1 or read == "scan"


async def test_a_file_that_is_replaced_after_rows_of_it_were_given(server: ObjectServer) -> None:
    limits = asyncpq.LimitOptions(unit_bytes=1, in_flight_bytes=1)
    async with session(server, limits=limits) as s:
        dataset = await s.open_dataset(URL)

        async def scan_and_replace() -> None:
            async with dataset.scan(["id"]) as scan:
                assert (await anext(scan))["id"][0].as_py() == 0
                server.put("bucket/lake/0.parquet", file_bytes(9))
                s.memory_cache.clear()
                async for _ in scan:
                    pass

        with pytest.raises(asyncpq.ObjectChangedError) as raised:
            await scan_and_replace()
        assert raised.value.url == f"{URL}0.parquet"
        urls = await dataset.files()
        access = {urls[1]: asyncpq.AccessPlan.rows([3])}
        assert (await dataset.read(["id"], access=access))["id"].to_pylist() == [ROWS + 3]
        s.memory_cache.clear()
        server.faults = [Fault(path="lake/1.parquet", ranged=True, after=1, replace_with=file_bytes(8))]
        with pytest.raises(asyncpq.ObjectChangedError):  # row numbers mean one version
            await dataset.take([(urls[1], 3)], ["text"])


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
        assert s._resources.budget.used == 0


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
                most = max(most, s._resources.budget.used)
        assert 10_000 < most <= 20_000 + 10_000  # the unit that is waited for may be over budget
        assert s._resources.budget.used == 0


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
        assert s._resources.budget.used == 0


# -- progress, cancellation -----------------------------------------------------------------------


async def test_each_file_is_told_once(server: ObjectServer) -> None:
    server.put("bucket/lake/9.parquet", b"no Parquet at all, and long enough for a tail")
    events: list[asyncpq.FileEnded] = []

    def watch(event: object) -> None:
        if isinstance(event, asyncpq.FileEnded):
            events.append(event)

    async with session(server, on_event=watch) as s:
        dataset = await s.open_dataset(URL, on_bad_file="skip")
        events.clear()
        await dataset.count(col("id") >= 2 * ROWS)
        assert sorted(event.files_done for event in events) == [1, 2, 3, 4, 5]
        assert {event.files_total for event in events} == {5}
        assert sorted(event.url for event in events) == [f"{URL}{name}.parquet" for name in (0, 1, 2, 3, 9)]
        assert [type(event.error) for event in events if event.error is not None] == [asyncpq.NotParquetError]
        cost = dataset.metrics
        assert sum(event.metrics.requests for event in events) + 1 == cost.requests  # and the listing
        events.clear()
        await dataset.count(col("id") >= 2 * ROWS)
        assert [event.url for event in events if event.error is None] == [f"{URL}{name}.parquet" for name in (2, 3)]
        assert dataset.metrics.files_ruled_out == 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("read", [*READS, "count"])
async def test_cancelled_at_every_await(server: ObjectServer, read: str, late: bool) -> None:
    ask: Ask = READS.get(read, count_ids)
    before = held()
    async with session(server, limits=asyncpq.LimitOptions(unit_bytes=2000, decode_threads=0)) as s:
        dataset = await s.open_dataset(URL)
        wanted = await ask(dataset)
        step = 0
        while True:
            step += 1
            s.memory_cache.clear()
            stepped = CancelledAt(ask(dataset), step, late=late)
            try:
                async with asyncio.timeout(30):
                    await stepped
            except asyncio.CancelledError:
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
            if not stepped.reached:
                break
            for _ in range(200):
                await asyncio.sleep(0.001)
                if s._resources.budget.used == 0 and not s._resources.flights._flights:
                    break
            assert s._resources.budget.used == 0
            assert await ask(dataset) == wanted
        assert step >= 2
    await assert_back_to(before)


async def test_leaving_early_and_closing_the_session(server: ObjectServer) -> None:
    before = held()
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        async with dataset.scan() as scan:
            await anext(scan)
        with pytest.raises(asyncpq.UsageError):
            await anext(scan)
        left = dataset.scan(ordered=False)
        await left.__aenter__()
        await anext(left)
    with pytest.raises(asyncpq.UsageError):
        await anext(left)
    with pytest.raises(asyncpq.UsageError):
        await dataset.count()
    await assert_back_to(before)


async def test_store_faults_are_survived(server: ObjectServer) -> None:
    server.faults = [
        Fault(status=503, code="SlowDown", times=1),  # the listing
        Fault(path="lake/1.parquet", hang_up=True, times=1),
        Fault(path="lake/2.parquet", truncate=10, times=1),
    ]
    async with session(server, max_attempts=4) as s:
        dataset = await s.open_dataset(URL)
        assert await read_ids(dataset) == list(range(4 * ROWS))
        server.faults = [Fault(path="lake/3.parquet", status=403, code="AccessDenied", times=None)]
        s.memory_cache.clear()
        with pytest.raises(asyncpq.AccessDeniedError) as raised:
            await read_ids(dataset)
        assert raised.value.url == f"{URL}3.parquet"
