"""How long a request of S3Store may take, how many there may be at once, and how many more than were asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from asyncpq.errors import DeadlineExceededError, ThrottledError, TransportError
from asyncpq.storage.base import Store
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, FAST_RETRIES, LIMITS, new_context, open_test_store, opened


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
async def test_throttling_takes_connections_and_success_gives_them_back(
    server: ObjectServer, options: dict[str, Any]
) -> None:
    store: Any = open_test_store("s3", {**server.storage_options, **options})
    stored, tail = await opened(store)
    limiter = store._transport._limiter
    assert limiter.limit == 8
    server.faults = [Fault(latency_s=0.02, times=None, status=503, code="SlowDown")]
    context = new_context()
    reads = [stored.fetch_range(0, 9, context=context, pin=tail.validator) for _ in range(8)]
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ThrottledError}
    assert context.metrics.throttles == context.metrics.requests == 8 * FAST_RETRIES.max_attempts
    assert limiter.limit == limiter.scan_limit + 1 == 2  # one stays with lookups
    server.faults = []
    most = 0

    def watch(request: object) -> None:
        nonlocal most
        most = max(most, limiter.used)

    server.faults = watch
    for _ in range(12):
        await asyncio.gather(
            *(stored.fetch_range(0, 9, context=new_context(), pin=tail.validator) for _ in range(limiter.limit + 2))
        )
        assert most <= limiter.limit
    assert limiter.limit == 8
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
