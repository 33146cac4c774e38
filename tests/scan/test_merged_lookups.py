"""Lookups of one key that are called in the same turn run as one; each has its own rows, error, deadline and cost."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.events import ReadEnded, RequestEnded
from asyncpq.metrics import ReadMetrics
from asyncpq.scan import merged_lookups
from asyncpq.testing import ObjectServer
from tests.costs import cost_of

ROWS = 4000
TABLE = pa.table(
    {
        "id": pa.array([row // 2 for row in range(ROWS)], pa.int64()),  # twice each
        "name": pa.array([f"name {row * 7919 % 3001}" for row in range(ROWS)]),
        "raw": pa.array([row.to_bytes(2, "big") for row in range(ROWS)], pa.binary()),
        "price": pa.array([row / 8 for row in range(ROWS)]),
        "tags": pa.array([list(range(row % 3)) for row in range(ROWS)], pa.list_(pa.int32())),
    }
)
PATH = "bucket/file.parquet"
REQUESTS = asyncpq.RequestOptions(tail_bytes=65_536, gap_bytes=1000, latency_s=0.02, bandwidth_bytes_s=200e6)


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, row_group_size=1000, data_page_size=512, write_batch_size=64, write_page_index=True)
    return sink.getvalue()


DATA = _parquet()


@asynccontextmanager
async def opened(latency_s: float = 0.02, **options: Any) -> AsyncIterator[tuple[ObjectServer, asyncpq.File]]:
    options = {"requests": REQUESTS, "cache_policy": asyncpq.etag(0), **options}
    async with ObjectServer(latency_s=latency_s) as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **options) as session:
            file = await session.open_file(f"s3://{PATH}")
            await file.lookup({"id": 5})
            server.log.clear()
            yield server, file


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of lookups that ran together, also of those that were too few."""
    sizes: list[int] = []
    run = merged_lookups.MergedLookups._run

    async def counted(self: merged_lookups.MergedLookups, shape: Any, calls: Any, read: Any) -> Any:
        try:
            return await run(self, shape, calls, read)
        finally:
            sizes.append(len(calls))

    monkeypatch.setattr(merged_lookups.MergedLookups, "_run", counted)
    return sizes


def rows_of(column: str, key: Any, columns: list[str] | None) -> pa.Table:
    found = TABLE.filter(pc.equal(TABLE[column], pa.scalar(key, TABLE.schema.field(column).type)))
    return found if columns is None else found.select(columns)


@pytest.mark.parametrize(
    ("column", "keys", "columns"),
    [
        ("id", [*range(0, 1900, 37)], ["name", "price"]),
        ("id", [3, 3, 3, 4, 5, 9999, -1, 1999, 0, 3] * 4, None),  # repeated, absent, the first and the last
        ("name", [f"name {number}" for number in range(0, 3100, 61)], ["id", "tags"]),
        ("raw", [number.to_bytes(2, "big") for number in range(0, 4096, 99)], ["raw", "name"]),
        ("id", [*range(200)], ["id"]),  # more than one read takes
    ],
)
async def test_each_call_has_the_rows_of_its_key(
    runs: list[int], column: str, keys: list[Any], columns: list[str] | None
) -> None:
    async with opened() as (_, file):
        found = await asyncio.gather(*(file.lookup({column: key}, columns) for key in keys))
    assert max(runs) >= min(len(keys) - 3, 128)
    assert max(runs) <= 128
    for key, rows in zip(keys, found, strict=True):
        assert rows.equals(rows_of(column, key, columns))
        rows.validate(full=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda file, key: file.lookup({"price": key / 4}, ["id"]),  # other types of keys are compared otherwise
        lambda file, key: file.lookup({"id": key, "price": key / 4}, ["id"]),
        lambda file, key: file.lookup({"id": [key]}, ["id"], with_keys=True),
        lambda file, key: file.lookup({"id": key}, ["name"], read_dictionary=["name"]),
        lambda file, key: file.lookup({"id": key}, ["id"], access=asyncpq.AccessPlan.row_groups([0])),
        lambda file, key: file.lookup({"id": key}, []),
    ],
)
async def test_unusual_lookups_run_alone(
    runs: list[int], ask: Callable[[asyncpq.File, int], Awaitable[pa.Table]]
) -> None:
    async with opened() as (_, file):
        found = await asyncio.gather(*(ask(file, key) for key in range(40)))
        alone = [await ask(file, key) for key in range(40)]
    assert not runs
    assert found == alone


async def test_they_cost_no_more_than_each_alone() -> None:
    keys, costs = range(0, 1900, 50), []
    for together in (False, True):
        async with opened() as (server, file):
            total = file._source.runtime.metrics
            before = total.bytes_fetched
            if together:
                await asyncio.gather(*(file.lookup({"id": key}, ["name", "price"]) for key in keys))
            else:
                for key in keys:
                    await file.lookup({"id": key}, ["name", "price"])
            costs.append((len(server.log), total.bytes_fetched - before))
    alone, merged = costs
    assert merged[0] <= alone[0]
    assert merged[1] <= alone[1] + (alone[0] - merged[0]) * 1000  # the gaps that are worth a request


async def test_lookups_one_after_another_wait_for_no_other(runs: list[int]) -> None:
    async with opened() as (_, file):
        for key in range(3):
            await file.lookup({"id": key})
        assert not runs
        found = await asyncio.gather(*(file.lookup({"id": key}) for key in range(5)))  # so few run alone
    assert found == [rows_of("id", key, None) for key in range(5)]
    assert runs == [4]


@pytest.mark.parametrize("hook", [False, True])
async def test_each_call_counts_a_share_of_the_cost(hook: bool) -> None:
    events: list[Any] = []
    async with opened(on_event=events.append if hook else None) as (server, file):
        total = file._source.runtime.metrics
        before, own = (total.requests, total.bytes_fetched, total.rows_returned), file.metrics.requests
        events.clear()
        keys = range(0, 1900, 37)
        costs = await asyncio.gather(*(cost_of(file.lookup({"id": key}, ["name"])) for key in keys))
        assert sum(metrics.requests for metrics in costs) == len(server.log) == total.requests - before[0]
        assert sum(metrics.bytes_fetched for metrics in costs) == total.bytes_fetched - before[1]
        assert sum(len(metrics.log) for metrics in costs) == len(server.log) == file.metrics.requests - own
        assert [metrics.rows_returned for metrics in costs] == [2] * len(costs)
        assert total.rows_returned - before[2] == 2 * len(costs)
        assert sum(metrics.pages_read for metrics in costs) >= len(costs)
        merged = costs[-10:]
        assert {metrics.rounds for metrics in merged} == {1}
        assert {(metrics.row_groups_total, metrics.guarantee, metrics.store_path) for metrics in merged} == {
            (4, "pinned", "direct")
        }
    if hook:
        assert sum(isinstance(event, RequestEnded) for event in events) == len(server.log)
        assert sum(isinstance(event, ReadEnded) for event in events) == len(keys)


async def test_a_cancelled_call_leaves_the_others(runs: list[int]) -> None:
    async with opened(latency_s=0.05) as (_, file):
        calls = [asyncio.ensure_future(file.lookup({"id": key}, ["price"])) for key in range(30)]
        await asyncio.sleep(0)
        calls[20].cancel()  # before the read begins
        await asyncio.sleep(0.02)  # until it has
        calls[10].cancel()
        calls[29].cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        for key, rows in enumerate(found):
            if key in (10, 20, 29):
                assert isinstance(rows, asyncio.CancelledError)
            else:
                assert rows == rows_of("id", key, ["price"])
        assert not file._source.runtime.flights._flights
        assert file._source.runtime.budget.used == 0
    assert runs


async def test_the_read_ends_with_its_last_call() -> None:
    async with opened(latency_s=5) as (_, file):
        calls = [asyncio.ensure_future(file.lookup({"id": key}, ["price"])) for key in range(30)]
        await asyncio.sleep(0.05)
        assert file._source.runtime.flights._tasks
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.sleep(0.05)
        assert not file._source.runtime.flights._tasks
        assert file._source.runtime.budget.used == 0


async def test_calls_after_cancelled_ones_are_read() -> None:
    async with opened() as (_, file):
        calls = [asyncio.ensure_future(file.lookup({"id": key}, ["price"])) for key in range(30)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()  # before the common read begins
        later = [asyncio.ensure_future(file.lookup({"id": key}, ["price"])) for key in range(30)]
        await asyncio.wait(calls)
        assert await asyncio.gather(*later) == [rows_of("id", key, ["price"]) for key in range(30)]
        found = await asyncio.gather(*(file.lookup({"id": key}, ["price"]) for key in range(30)))
        assert found == [rows_of("id", key, ["price"]) for key in range(30)]


async def test_each_call_has_its_own_error(runs: list[int]) -> None:
    async with opened() as (_, file):
        wrong = [file.lookup({"price": f"text {number}"}, ["id"]) for number in range(40)]
        found = await asyncio.gather(
            *wrong, *(file.lookup({"id": 3}, ["x"]) for _ in range(40)), return_exceptions=True
        )
    assert runs
    for number, error in enumerate(found[:40]):
        assert isinstance(error, asyncpq.PredicateTypeError)
        assert f"text {number}" in str(error)
    assert all(isinstance(error, asyncpq.ColumnNotFoundError) for error in found[40:])
    assert len({id(error) for error in found}) == len(found)


async def test_each_call_has_its_own_deadline(runs: list[int]) -> None:
    async with opened(retry=asyncpq.RetryOptions(read_timeout_s=0.3)) as (server, file):
        server.latency_s = 5
        found = await asyncio.gather(*(file.lookup({"id": key}) for key in range(100, 130)), return_exceptions=True)
        assert all(isinstance(error, asyncpq.DeadlineExceededError) for error in found)
        server.latency_s = 0
        assert await file.lookup({"id": 9}) == rows_of("id", 9, None)
    assert runs


async def test_a_replaced_object_gives_one_version_to_each() -> None:
    async with opened() as (server, file):
        other = TABLE.set_column(3, "price", pc.add(TABLE["price"], 1.0))
        sink = io.BytesIO()
        pq.write_table(other, sink, row_group_size=500)
        server.put(PATH, sink.getvalue())

        async def look_up(key: int) -> ReadMetrics:
            with asyncpq.measure() as cost:
                rows = await file.lookup({"id": key}, ["price"])
            assert rows["price"].to_pylist() == [key / 4 + 1, key / 4 + 1 + 1 / 8]
            return cost

        costs = await asyncio.gather(*map(look_up, range(500, 530)))
        assert [cost.restarts for cost in costs[-10:]] == [1] * 10


async def test_a_session_that_closes_ends_them() -> None:
    async with ObjectServer(latency_s=0.02) as server:
        server.put(PATH, DATA)
        session = await asyncpq.Session(server.storage_options, requests=REQUESTS).__aenter__()
        file = await session.open_file(f"s3://{PATH}")
        server.latency_s = 5
        calls = [asyncio.ensure_future(file.lookup({"id": key})) for key in range(500, 530)]
        await asyncio.sleep(0.05)
        await session.close()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, asyncpq.UsageError) for error in found)


async def test_rows_of_a_large_read_hold_only_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_lookups, "_SHARED_BYTES", 100)
    async with opened() as (_, file):
        found = await asyncio.gather(*(file.lookup({"id": key}, ["name", "tags"]) for key in range(40)))
    for key, rows in enumerate(found):
        assert rows == rows_of("id", key, ["name", "tags"])
    assert max(rows.get_total_buffer_size() for rows in found[8:]) < 400
