"""Datasets: progress, cancellation, faults, and what is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import Fault, ObjectServer
from tests.costs import cost_of
from tests.faults.stepping import CancelledAt
from tests.lakes import READS, ROWS, URL, Ask, count_ids, damaged, file_bytes, lake_server, read_ids, scan_ids, session
from tests.leaks import assert_back_to, held

pytestmark = pytest.mark.faults


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with lake_server() as running:
        yield running


async def test_each_file_is_told_once(server: ObjectServer) -> None:
    server.put("bucket/lake/9.parquet", b"no Parquet at all, and long enough for a tail")
    events: list[asyncpq.FileEnded] = []

    def watch(event: object) -> None:
        if isinstance(event, asyncpq.FileEnded):
            events.append(event)

    async with session(server, on_event=watch) as s:
        dataset = await s.open_dataset(URL, on_bad_file="skip")
        events.clear()
        cost = await cost_of(dataset.count(col("id") >= 2 * ROWS))
        assert sorted(event.files_done for event in events) == [1, 2, 3, 4, 5]
        assert {event.files_total for event in events} == {5}
        assert sorted(event.url for event in events) == [f"{URL}{name}.parquet" for name in (0, 1, 2, 3, 9)]
        assert [type(event.error) for event in events if event.error is not None] == [asyncpq.NotParquetError]
        assert sum(event.metrics.requests for event in events) + 1 == cost.requests  # and the listing
        events.clear()
        cost = await cost_of(dataset.count(col("id") >= 2 * ROWS))
        assert [event.url for event in events if event.error is None] == [f"{URL}{name}.parquet" for name in (2, 3)]
        assert cost.files_ruled_out == 2


@pytest.mark.parametrize(
    ("read", "late"),
    [
        pytest.param(read, late, marks=[] if late == number % 2 else pytest.mark.slow)
        for number, read in enumerate([*READS, "count"])
        for late in (False, True)
    ],
)
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
                if s._runtime.budget.used == 0 and not s._runtime.flights._flights:
                    break
            assert s._runtime.budget.used == 0
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
            server.put("bucket/lake/2.parquet", damaged(file_bytes(2)))
        server.faults = [Fault(path="lake/2.parquet", ranged=True, latency_s=0.3, replace_with=replaced)]
        found: list[int] = []
        async with asyncio.timeout(30):
            async with dataset.scan(["id"], ordered=False) as scan:
                async for batch in scan:
                    found += batch["id"].to_pylist()
        others = [*range(2 * ROWS), *range(3 * ROWS, 4 * ROWS)]
        assert sorted(found) == (others if how == "bad" else sorted([*others, *range(6 * ROWS, 7 * ROWS)]))
        assert [skipped.url for skipped in scan.skipped] == ([f"{URL}2.parquet"] if how == "bad" else [])
        assert s._runtime.budget.used == 0


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
