"""The stores of asyncpq.testing around a session's own: they record, delay and fail what is asked of it, no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import asyncpq
from asyncpq.storage.base import RangeResult
from asyncpq.testing import FaultStore, LatencyStore, RecordingStore, StoreFault, wrap_store
from asyncpq.testing.stores import Fetch, StoreCall, WrappedStore
from tests.faults.operations import OPERATIONS, REQUESTS, Rows, by_pyarrow, parquet
from tests.leaks import assert_back_to, held

pytestmark = pytest.mark.faults

DATA = parquet()


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "file.parquet").write_bytes(DATA)
    return str(tmp_path / "file.parquet")


async def ask(session: asyncpq.Session, path: str, operation: str) -> asyncpq.ReadMetrics | None:
    rows = Rows()
    await OPERATIONS[operation](await session.open_file(path), rows)
    assert rows.value is not None
    assert rows.value.equals(by_pyarrow(operation, DATA))
    return rows.metrics


@pytest.mark.parametrize("operation", ["lookup", "scan", "take", "count"])
async def test_records_what_the_metrics_count(path: str, operation: str) -> None:
    async with asyncpq.Session(requests=REQUESTS) as session:
        recorded = wrap_store(session, path, RecordingStore)
        metrics = await ask(session, path, operation)
        assert metrics is not None
        calls = [(call.start, call.stop, call.purpose, call.round) for call in recorded.calls if call.purpose != "tail"]
        logged = [(one.start, one.stop, one.purpose, one.round) for one in metrics.log]
        assert sorted(logged) == sorted(call for call in calls if call[2] != "footer")
        assert recorded.calls[0].start == -REQUESTS.tail_bytes
        assert [call.pinned for call in recorded.calls] == [False] + [True] * (len(recorded.calls) - 1)
        assert {call.scan for call in recorded.calls if call.purpose == "data"} == {operation == "scan"}
        assert {call.url for call in recorded.calls} == {path}


@pytest.mark.parametrize("operation", ["lookup", "scan", "take", "count"])
async def test_large_lookups_are_no_scans(path: str, operation: str) -> None:
    """To the memory cache their pages are like a scan's; to stores, their connections and files, they are not."""
    async with asyncpq.Session(requests=REQUESTS, memory_cache_bytes=1) as session:
        recorded = wrap_store(session, path, RecordingStore)
        await ask(session, path, operation)
        assert {call.scan for call in recorded.calls if call.purpose == "data"} == {operation == "scan"}


async def test_delays_each_call(path: str) -> None:
    slept: list[float] = []

    class Counted(LatencyStore):
        async def around(self, call: StoreCall, fetch: Fetch) -> RangeResult:
            loop = asyncio.get_running_loop()
            began = loop.time()
            result = await super().around(call, fetch)
            slept.append((loop.time() - began) - len(result.data) / self.bandwidth_bytes_s)
            return result

    async with asyncpq.Session(requests=REQUESTS) as session:
        wrap_store(session, path, lambda store: Counted(store, latency_s=0.02, bandwidth_bytes_s=1e6))
        await ask(session, path, "lookup")
    assert len(slept) > 3
    assert min(slept) >= 0.019  # clocks have a grain


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_store_that_fails(path: str, operation: str, after: int) -> None:
    """Its error is the read's, nothing is left, and the next read is right."""
    before = held()
    async with asyncpq.Session(requests=REQUESTS, limits=asyncpq.LimitOptions(unit_bytes=20_000)) as session:
        failing = wrap_store(session, path, FaultStore)
        failing.faults = [StoreFault(path="nowhere", times=None), StoreFault(after=after, error=asyncpq.ThrottledError)]
        if operation == "open" and after >= 2:
            await ask(session, path, operation)
        else:
            with pytest.raises(asyncpq.ThrottledError) as caught:
                await ask(session, path, operation)
            assert caught.value.url == path
        assert session._runtime.budget.used == 0
        assert not session._runtime.flights._flights
        session.memory_cache.clear()
        failing.faults = []
        await ask(session, path, operation)
    await assert_back_to(before)


async def test_a_store_that_never_answers(path: str) -> None:
    retry = asyncpq.RetryOptions(read_timeout_s=1.0)
    async with asyncpq.Session(requests=REQUESTS, retry=retry) as session:
        failing = wrap_store(session, path, FaultStore)
        failing.faults = [StoreFault(after=3, stall=True)]
        with pytest.raises(asyncpq.DeadlineExceededError):
            await ask(session, path, "lookup")
        failing.faults = []
        await ask(session, path, "lookup")


async def test_wrapping_twice_and_what_was_opened_before(path: str) -> None:
    async with asyncpq.Session(requests=REQUESTS, memory_cache_bytes=0) as session:
        before = await session.open_file(path)
        inner = wrap_store(session, path, RecordingStore)
        outer = wrap_store(session, path, WrappedStore)
        assert outer.inner is inner
        await before.count(asyncpq.col("id") == 3)
        assert not inner.calls
        await (await session.open_file(path)).count(asyncpq.col("id") == 3)
        assert inner.calls
