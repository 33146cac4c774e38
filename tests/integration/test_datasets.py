"""Datasets while things go wrong: bad files, files that change, small budgets, cancellation, many reads at once."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.pruning.row_ranges import RowRanges
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


def _damaged(data: bytes, row_group: int = 0) -> bytes:
    """A byte of the row group's first data page is another one; the footer is right."""
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(row_group).column(0)
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
    server.put("bucket/lake/1.parquet", _damaged(file_bytes(1), row_group=1))
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


async def test_what_was_learnt_of_a_file_is_of_all_its_row_groups(server: ObjectServer) -> None:
    numbers = [*range(20, 30), *[None] * 10, *range(10), *range(40, 50), *range(10, 20)]
    sink = io.BytesIO()
    texts = [None if number is None else f"{number:02d}" for number in numbers]
    table = pa.table({"number": pa.array(numbers, pa.int64()), "text": texts})
    pq.write_table(table, sink, row_group_size=10)
    server.put("bucket/groups/0.parquet", sink.getvalue())
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/groups/")
        for _ in range(2):  # by the footer, and without it
            for number in (5, 15, 25, 45):
                assert await dataset.count(col("number") == number) == 1
                assert await dataset.count(col("text") == f"{number:02d}") == 1
            assert await dataset.count(col("number").is_null()) == 10
            assert await dataset.count(col("number") > 49) == await dataset.count(col("text") < "00") == 0
            assert dataset.metrics.files_ruled_out == 1


@pytest.mark.parametrize("listed", [True, False])
async def test_what_was_learnt_of_a_replaced_file_is_not_believed(server: ObjectServer, listed: bool) -> None:
    async with session(server, cache_policy=asyncpq.etag(max_age_s=0)) as s:
        dataset = await s.open_dataset(URL if listed else [f"{URL}{number}.parquet" for number in range(4)])
        for _ in range(2):  # the second time, footers and pages are cached
            assert (await dataset.lookup({"id": ROWS}, ["text"]))["text"].to_pylist() == [f"1 {ROWS}"]
            assert await dataset.count(col("id") == 7 * ROWS) == 0
        server.put("bucket/lake/1.parquet", file_bytes(1, text=["new"] * ROWS))
        assert (await dataset.lookup({"id": ROWS}, ["text"]))["text"].to_pylist() == ["new"]
        assert await dataset.count(col("id") == 7 * ROWS) == 0
        server.put("bucket/lake/1.parquet", file_bytes(7))
        assert await dataset.count(col("id") == 7 * ROWS) == 1
        assert await dataset.count(col("id") == ROWS) == 0


async def test_rows_of_a_file_that_begins_again_are_put_together_once(
    server: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    limits = asyncpq.LimitOptions(unit_bytes=1, in_flight_bytes=1, round_bytes=0)  # two units of each file
    async with session(server, limits=limits) as s:
        dataset = await s.open_dataset(URL)
        assert await lookup_ids(dataset) == list(range(4 * ROWS))
        s.memory_cache.discard_if(lambda key: getattr(key, "kind", "") in ("page", "dictionary", "tail"))
        replaced = Fault(path="lake/1.parquet", ranged=True, after=1, times=1, replace_with=file_bytes(7))
        server.faults = [replaced]  # the first unit's rows have come, the second finds another version
        assert await lookup_ids(dataset) == [*range(ROWS), *range(2 * ROWS, 4 * ROWS)]
        assert dataset.metrics.restarts == 1
        assert [record.getMessage() for record in caplog.records if "starts again" in record.getMessage()] == [
            f"lookup of {URL}1.parquet starts again: the object has changed"
        ]
        server.put("bucket/lake/2.parquet", _damaged(file_bytes(2), row_group=1))
        lenient = await s.open_dataset(URL, on_bad_file="skip")
        assert await lookup_ids(lenient) == [*range(ROWS), *range(3 * ROWS, 4 * ROWS)]


async def test_files_done_with_before_the_listing_came_count_once(server: ObjectServer) -> None:
    server.delete("bucket/lake/0.parquet")
    server.put("bucket/lake/9.parquet", b"no Parquet at all, and long enough for a tail")
    async with session(server) as s:
        dataset = await s.open_dataset(URL, on_bad_file="skip")
        assert await dataset.count() == 3 * ROWS
        server.put("bucket/lake/0.parquet", file_bytes(0))  # the others stand elsewhere in the new listing
        server.faults = [Fault(path="/bucket", ranged=False, latency_s=0.3, times=None)]
        assert await dataset.count() == 4 * ROWS
        assert [skipped.url for skipped in dataset.skipped] == [f"{URL}9.parquet"]
        assert dataset.metrics.files_skipped == 1
        server.delete("bucket/lake/0.parquet")
        assert await read_ids(dataset) == list(range(ROWS, 4 * ROWS))


async def test_columns_by_ordinal(server: ObjectServer) -> None:
    server.put("bucket/days/day=7/0.parquet", file_bytes(0))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/days/")
        names = dataset.schema.names
        found = await dataset.read([2, 0], limit=1)
        assert found.schema.names == [names[2], names[0]]
        with pytest.raises(asyncpq.ColumnNotFoundError, match="no column 3: the dataset has 3"):
            await dataset.read([3])


async def test_rows_that_came_out_are_told(server: ObjectServer) -> None:
    told: list[int] = []

    def watch(event: object) -> None:
        if isinstance(event, asyncpq.ReadEnded) and event.operation != "open":
            told.append(event.metrics.rows_returned)

    async with session(server, on_event=watch) as s:
        dataset = await s.open_dataset(URL)
        await dataset.lookup({"id": [1, 2, -1]})
        await dataset.count(col("id") < 10)
        await dataset.count()
        await dataset.take([(f"{URL}0.parquet", 3), (f"{URL}1.parquet", 3)])
        await dataset.read(limit=5)
        assert told == [2, 10, 4 * ROWS, 2, 5]
        assert s.metrics.rows_returned == sum(told)


# -- deleted rows ---------------------------------------------------------------------------------


class _Deleted:
    """Rows 3 and 5 to 9 of a file."""

    identity = "some"

    async def rows(self, reader: asyncpq.Reader, num_rows: int) -> RowRanges:
        assert num_rows == ROWS
        return RowRanges([(3, 4), (5, 10)])


class _Table:
    """A file with deleted rows, and one without."""

    async def snapshot(self, reader: asyncpq.Reader) -> asyncpq.Snapshot:
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


async def test_local_files_are_closed(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.parquet").write_bytes(file_bytes(number))
    (tmp_path / "9.parquet").write_bytes(b"no Parquet at all, and long enough for a tail")
    async with asyncpq.Session(limits=asyncpq.LimitOptions(unit_bytes=1)) as s:
        dataset = await s.open_dataset(tmp_path, on_bad_file="skip")
        assert len(await read_ids(dataset)) == 8 * ROWS  # its threads have begun
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await dataset.lookup({"id": 5})
            await dataset.count(col("id") == 3 * ROWS)
            await dataset.plan(where=col("id") > 5)
            await dataset.take([(str(tmp_path / "2.parquet"), 7)])
            assert await dataset.read(limit=3) is not None
            async with dataset.scan() as scan:  # left while others are being opened
                await anext(scan)
        assert len(os.listdir("/proc/self/fd")) == before


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


@pytest.mark.parametrize("how", ["bad", "replaced"])
async def test_where_order_does_not_matter_one_file_does_not_end_the_others(server: ObjectServer, how: str) -> None:
    """The others have handed out rows when it is met."""
    limits = asyncpq.LimitOptions(unit_bytes=1)
    async with session(server, limits=limits, max_attempts=1) as s:
        dataset = await s.open_dataset(URL, on_bad_file="skip")
        await dataset.count()
        s.memory_cache.discard_if(lambda key: getattr(key, "kind", "") in ("page", "dictionary", "tail"))
        replaced = file_bytes(6) if how == "replaced" else None
        if how == "bad":
            server.put("bucket/lake/2.parquet", _damaged(file_bytes(2)))
        server.faults = [Fault(path="lake/2.parquet", ranged=True, latency_s=0.3, replace_with=replaced)]
        found: list[int] = []
        async with asyncio.timeout(30):
            async with dataset.scan(["id"], ordered=False) as scan:
                async for batch in scan:
                    found += batch["id"].to_pylist()
        others = [*range(2 * ROWS), *range(3 * ROWS, 4 * ROWS)]
        assert sorted(found) == (others if how == "bad" else sorted([*others, *range(6 * ROWS, 7 * ROWS)]))
        assert [skipped.url for skipped in scan.skipped] == ([f"{URL}2.parquet"] if how == "bad" else [])
        assert s._resources.budget.used == 0


async def test_a_url_that_the_dataset_lacks(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        access = {f"{URL}1.parquet": asyncpq.AccessPlan.all(), f"{URL}11.parquet": asyncpq.AccessPlan.all()}
        for ask in (dataset.read(access=access), dataset.plan(access=access), dataset.take([(f"{URL}11.parquet", 0)])):
            with pytest.raises(asyncpq.RowIndexError) as raised:
                await ask
            assert raised.value.url == f"{URL}11.parquet"


async def test_files_of_a_list_are_validated_side_by_side(server: ObjectServer) -> None:
    """All they have is cached, and older than the policy allows."""
    urls = [f"{URL}{number}.parquet" for number in range(4)]
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        dataset = await s.open_dataset(urls)
        assert len(await scan_ids(dataset)) == 4 * ROWS
        arrived: list[float] = []

        def slow(request: object) -> Fault:
            arrived.append(asyncio.get_running_loop().time())
            return Fault(latency_s=0.4)

        server.faults = slow
        assert len(await scan_ids(dataset)) == 4 * ROWS
        assert len(arrived) == 4
        assert max(arrived) - min(arrived) < 0.4  # each but the last would wait for the one before
