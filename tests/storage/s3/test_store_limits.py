"""How long a request of S3Store may take, how many there may be at once, and how many more than were asked for."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.errors import DeadlineExceededError, ThrottledError, TransportError
from asyncpq.storage import limits
from asyncpq.storage.base import Store
from asyncpq.testing import Fault, ObjectServer
from asyncpq.testing.object_server import LoggedRequest
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import DATA, FAST_RETRIES, LIMITS, new_context, open_test_store, opened


def ten_rows(number: int) -> bytes:
    """A file of ten rows, one of which has the id ``number``."""
    return parquet_bytes(pa.table({"id": range(number, number + 10)}))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(stall_headers=True, times=None),
        Fault(stall_body=True, times=None),
        Fault(status=503, code="SlowDown", times=None, retry_after_s=3600),
    ],
)
async def test_no_hang_beyond_the_deadline(store: Store, server: ObjectServer, fault: Fault) -> None:
    stored, tail = await opened(store)
    server.faults = [fault]
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stored.fetch_range(0, 500, context=new_context(), pin=tail.validator), 0.2)
    assert loop.time() - started < 2


async def test_deadline_while_waiting_for_a_connection(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(latency_s=0.25, times=None)]
    context = new_context()
    others = [asyncio.create_task(stored.fetch_range(0, 9, context=context, pin=tail.validator)) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stored.fetch_range(0, 9, context=new_context(), pin=tail.validator), 0.1)
    assert all(result.data == DATA[:9] for result in await asyncio.gather(*others))
    assert context.metrics.retries == 0  # waiting for a turn is not waiting for a response


async def test_scans_leave_connections_to_lookups(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(latency_s=0.2, times=None)]
    scan = new_context(scan=True)
    scans = [asyncio.create_task(stored.fetch_range(0, 9, context=scan, pin=tail.validator)) for _ in range(30)]
    await asyncio.sleep(0.02)
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert sum(task.done() for task in scans) <= LIMITS.scan_connections
    for task in scans:
        task.cancel()
    await asyncio.gather(*scans, return_exceptions=True)


@pytest.mark.parametrize("options", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}])
async def test_throttling_lowers_the_rate_and_success_raises_it(
    server: ObjectServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(limits, "OUTAGE_RATE", 8.0)
    retry = replace(FAST_RETRIES, max_attempts=2)
    store: Any = open_test_store("s3", {**server.storage_options, **options}, retry)
    stored, tail = await opened(store)
    limiter = store._transport._limiter
    (pace,) = limiter._paces.values()
    server.faults = [Fault(latency_s=0.02, times=None, status=503, code="SlowDown")]
    context = new_context()
    reads = [stored.fetch_range(0, 9, context=context, pin=tail.validator) for _ in range(8)]
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ThrottledError}
    assert context.metrics.throttles == context.metrics.requests == 8 * retry.max_attempts
    assert pace.rate(loop.time()) == limits.OUTAGE_RATE
    server.faults = []
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert limits.OUTAGE_RATE < pace.rate(loop.time()) < math.inf
    later = loop.time
    monkeypatch.setattr(loop, "time", lambda: later() + 30.0)
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert pace.limit == math.inf
    assert limiter.used == 0
    await store.close()


async def test_the_retry_budget_ends_retries_and_says_so(server: ObjectServer) -> None:
    retry = replace(FAST_RETRIES, max_attempts=100, retry_budget=7.0)
    store = open_test_store("s3", server.storage_options, retry)
    stored, tail = await opened(store)
    server.faults = [Fault(times=None, status=500)]
    context = new_context()
    with pytest.raises(TransportError, match="retry budget is used up") as caught:
        await stored.fetch_range(0, 9, context=context, pin=tail.validator)
    assert context.metrics.requests == 8
    assert "retry_budget" in str(caught.value.hint)
    with pytest.raises(TransportError, match="after attempt 1"):
        await stored.fetch_range(0, 9, context=context, pin=tail.validator)
    assert context.metrics.requests == 9
    server.faults = []
    for _ in range(5):
        await stored.fetch_range(0, 9, context=context, pin=tail.validator)
    server.faults = [Fault(status=500)]
    assert (await stored.fetch_range(0, 9, context=context, pin=tail.validator)).data == DATA[:9]
    await store.close()


async def test_a_fetch_does_not_wait_longer_than_a_read_may(server: ObjectServer) -> None:
    """No read's deadline ends a fetch that serves several reads at once."""
    store = open_test_store("s3", server.storage_options, replace(FAST_RETRIES, read_timeout_s=30.0))
    stored, tail = await opened(store)
    server.faults = [Fault(status=503, code="SlowDown", times=None, retry_after_s=31)]
    async with asyncio.timeout(5):
        with pytest.raises(DeadlineExceededError, match="Retry-After: 31 s"):
            await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    await store.close()


class TokenBucket:
    """Throttles the first requests, and those beyond ``rate`` per second, as a proxy does: without Retry-After."""

    def __init__(self, rate: float, status: int = 503) -> None:
        self._rate = rate
        self._fault = Fault(status=status, code="SlowDown" if status == 503 else "")
        self._tokens = 1.0
        self._first = 8
        self._at = time.monotonic()

    def __call__(self, request: LoggedRequest) -> Fault | None:
        now = time.monotonic()
        self._tokens = min(1.0, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._first > 0 or self._tokens < 1.0:
            self._first -= 1
            return self._fault
        self._tokens -= 1.0
        return None


@pytest.mark.heavy
@pytest.mark.parametrize("status", [503, 429])
async def test_many_lookups_at_a_store_that_throttles_all_wait_for_their_turn(
    server: ObjectServer, status: int
) -> None:
    for number in range(100):
        server.put(f"bucket/throttled/{number}.parquet", ten_rows(number))
    server.faults = TokenBucket(50.0, status)
    before = len(server.log)
    async with asyncpq.Session(storage_options={"s3": server.storage_options}) as session:

        async def look_up(number: int) -> int:
            file = await session.open_file(f"s3://bucket/throttled/{number}.parquet")
            return int((await file.lookup({"id": number})).num_rows)

        async with asyncio.timeout(60):
            assert await asyncio.gather(*map(look_up, range(100))) == [1] * 100
        metrics = session.metrics
    assert metrics.throttles >= 8
    assert metrics.paced_s > 0.0
    assert len(server.log) - before == metrics.requests


async def test_a_store_that_serves_nothing_ends_all_requests(server: ObjectServer) -> None:
    """The budget ends them, long before the deadline; those that wait for their turn fail with the others."""
    store = open_test_store("s3", server.storage_options, replace(FAST_RETRIES, max_attempts=100, retry_budget=10.0))
    stored, tail = await opened(store)
    server.faults = [Fault(times=None, status=503, code="SlowDown")]
    context = new_context()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(
            *(stored.fetch_range(0, 9, context=context, pin=tail.validator) for _ in range(60)), return_exceptions=True
        )
    assert {type(outcome) for outcome in outcomes} == {ThrottledError}
    assert context.metrics.requests <= 2 * 60 + 10  # one retry of each is free, others take from the budget
    await store.close()


async def test_a_key_that_is_always_throttled_ends(server: ObjectServer) -> None:
    """Others are served meanwhile, so that it waits for its turn; not for ever."""
    store = open_test_store("s3", server.storage_options)
    stored, tail = await opened(store)
    server.put("bucket/other", DATA)
    other = await store.open_object("s3://bucket/other")
    server.faults = [Fault(times=None, status=503, code="SlowDown", path="other")]
    hot = asyncio.ensure_future(other.fetch_range(0, 9, context=(context := new_context())))
    async with asyncio.timeout(30):
        while not hot.done():
            await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
            await asyncio.sleep(0.01)
    with pytest.raises(ThrottledError, match="given up after"):
        await hot
    assert FAST_RETRIES.max_attempts < context.metrics.requests <= 2 * FAST_RETRIES.max_attempts
    await store.close()
