"""Datasets whose files change while they are read."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col, events
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.scan.request import rows_at
from asyncpq.testing import Fault, ObjectServer
from tests.lakes import READS, ROWS, URL, damaged, file_bytes, lake_server, lookup_ids, read_ids, session
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.faults


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with lake_server() as running:
        yield running


@pytest.mark.parametrize("read", READS)
async def test_a_file_that_is_replaced_before_its_rows_are_given_is_read_anew(server: ObjectServer, read: str) -> None:
    async with session(server) as s:
        dataset = await s.open_dataset(URL)
        assert len(await READS[read](dataset)) == 4 * ROWS
        s.memory_cache.discard_if(lambda key: getattr(key, "kind", "") in ("page", "dictionary", "tail"))
        # its footer is known, and the listing still says so; then the data request finds another version
        server.faults = [Fault(path="lake/2.parquet", ranged=True, replace_with=file_bytes(7), times=1)]
        with asyncpq.measure() as cost:
            found = await READS[read](dataset)
        wanted = [*range(2 * ROWS), *range(7 * ROWS, 8 * ROWS), *range(3 * ROWS, 4 * ROWS)]
        assert found == (wanted if read != "lookup" else wanted[: 2 * ROWS] + wanted[3 * ROWS :])
        assert cost.restarts == 1


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
    texts = [None if number is None else f"{number:02d}" for number in numbers]
    table = pa.table({"number": pa.array(numbers, pa.int64()), "text": texts})
    server.put("bucket/groups/0.parquet", parquet_bytes(table, row_group_size=10))
    async with session(server) as s:
        dataset = await s.open_dataset("s3://bucket/groups/")
        for _ in range(2):  # by the footer, and without it
            for number in (5, 15, 25, 45):
                assert await dataset.count(col("number") == number) == 1
                assert await dataset.count(col("text") == f"{number:02d}") == 1
            assert await dataset.count(col("number").is_null()) == 10
            for none in (col("number") > 49, col("text") < "00"):
                with asyncpq.measure() as cost:
                    assert await dataset.count(none) == 0
                assert cost.files_ruled_out == 1


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
    server: ObjectServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_RESTARTS", events._Restarts())
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
        server.put("bucket/lake/2.parquet", damaged(file_bytes(2), row_group=1))
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
        with asyncpq.measure() as cost:
            assert await dataset.count() == 4 * ROWS
        assert [skipped.url for skipped in dataset.skipped] == [f"{URL}9.parquet"]
        assert cost.files_skipped == 1
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


async def test_reads_of_many_files_keep_their_rows_alone_and_leave_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        (tmp_path / f"{number:03d}.parquet").write_bytes(parquet_bytes(pa.table({"id": [number]})))
    opened, threads, kept = weakref.WeakSet[OpenedFile](), dict[str, threading.Thread](), list[int]()
    made: list[int] = []

    class Watched(OpenedFile):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            opened.add(self)
            made.append(1)

    def watched(name: str, call: Any) -> Any:
        def called(*given: Any) -> Any:
            threads[name] = threading.current_thread()
            gc.collect()
            kept.append(len(opened) if name != "plan" else 0)
            return call(*given)

        return called

    async with asyncpq.Session() as s:
        dataset = await s.open_dataset(str(tmp_path))
        urls = await dataset.files()
        monkeypatch.setattr("asyncpq.datasets.opened_file.OpenedFile", Watched)
        monkeypatch.setattr(dataset, "_concatenated", watched("", dataset._concatenated))
        monkeypatch.setattr("asyncpq.dataset.rows_at", watched("take", rows_at))
        monkeypatch.setattr(dataset, "_plan_of", watched("plan", dataset._plan_of))
        assert (await dataset.take([(url, 0) for url in reversed(urls)]))["id"].to_pylist() == [*range(149, -1, -1)]
        assert (await dataset.lookup({"id": [*range(150)]})).num_rows == 150
        await dataset.plan(where=col("id") < 120)
        await dataset.why(where=col("id") < 120)
    assert kept == [0] * len(kept), "files that are read"
    assert sum(made) >= 4 * len(urls) - 30 - 30, "the files are watched"
    assert threading.main_thread() not in (threads["take"], threads["plan"])
