"""A small GET that has no response in time is sent a second time: the first good answer counts, and little is added."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from asyncpq.errors import ObjectChangedError, TransportError
from asyncpq.storage.base import Store, StoredObject, Validator
from asyncpq.storage.transport import Transport
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, FAST_RETRIES, new_context, open_test_store

HEDGED = replace(FAST_RETRIES, hedge_ratio=1.0, first_byte_timeout_s=30.0, stall_timeout_s=30.0)
LATE = Fault(latency_s=60.0)  # never answers in time


def transport_of(store: Any) -> Transport:
    found = getattr(store, "transport", None) or store._transport
    assert isinstance(found, Transport)
    return found


def teach(store: Store, seconds: float = 0.05) -> None:
    """As if recent GETs had taken so long; and allow the next one to be hedged."""
    hedging = transport_of(store)._hedging
    assert hedging is not None
    for _ in range(32):
        hedging.learn(seconds)
    hedging.begin()


@pytest.fixture(params=["s3", "s3fs", "http"])
async def hedged(request: pytest.FixtureRequest, server: ObjectServer) -> AsyncIterator[tuple[Store, str]]:
    """A store that hedges, and the object's url."""
    if request.param == "http":
        made, url = open_test_store("http", {}, HEDGED), f"{server.endpoint}/bucket/key"
    else:
        options = server.storage_options | (
            {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if request.param == "s3fs" else {}
        )
        made, url = open_test_store("s3", options, HEDGED), "s3://bucket/key"
    yield made, url
    await made.close()


async def opened(hedged: tuple[Store, str]) -> tuple[Store, StoredObject, Validator]:
    store, url = hedged
    stored = await store.open_object(url)
    tail = await stored.fetch_tail(9, context=new_context())
    teach(store)
    return store, stored, tail.validator


async def quiet(store: Store) -> None:
    """Let second requests that were cancelled end."""
    transport = transport_of(store)
    async with asyncio.timeout(5):
        while transport._hedges:
            await asyncio.wait(transport._hedges)
    assert transport._limiter.used == 0


async def both_sent(store: Store) -> None:
    async with asyncio.timeout(5):
        while transport_of(store)._limiter.used < 2:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


async def test_the_second_request_answers_for_the_first(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    server.faults = [LATE]
    context = new_context()
    for read in ("range", "tail"):
        teach(store)
        before = len(server.log)
        if read == "range":
            result = await stored.fetch_range(100, 600, context=context, pin=pin)
            assert result.data == DATA[100:600]
        else:
            server.faults = [LATE]
            result = await stored.fetch_tail(500, context=context)
            assert result.data == DATA[-500:]
        assert result.validator.same_version(pin)
        first, second = server.log[before:]
        assert (first.range, first.headers.get("if-match")) == (second.range, second.headers.get("if-match"))
    await quiet(store)
    assert (context.metrics.requests, context.metrics.hedges, context.metrics.retries) == (4, 2, 0)
    assert sorted((record.hedge, record.status) for record in context.metrics.log) == [
        (False, 0),
        (False, 0),
        (True, 206),
        (True, 206),
    ]


async def test_the_first_request_may_still_win(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    server.faults = [Fault(latency_s=0.3), Fault(after=1, latency_s=60.0)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
    await quiet(store)
    assert context.metrics.hedges == 1
    assert [record.status for record in context.metrics.log if not record.hedge] == [206]
    server.faults = []
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]


async def test_a_second_request_that_fails_is_forgotten(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    for fault in (Fault(after=1, status=503, code="SlowDown"), Fault(after=1, truncate=3), Fault(after=1, delete=True)):
        server.put("bucket/key", DATA)
        teach(store)
        for pace in transport_of(store)._limiter._paces.values():
            pace.end()
        server.faults = [Fault(latency_s=0.3, replace_with=DATA), fault]
        context = new_context()
        assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
        assert context.metrics.retries == 0
    await quiet(store)


async def test_a_first_request_that_fails_waits_for_the_second(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    server.faults = [Fault(latency_s=0.3, status=500), Fault(after=1, latency_s=0.6)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
    await quiet(store)
    assert (context.metrics.requests, context.metrics.hedges, context.metrics.retries) == (2, 1, 0)
    # both fail: the first one's failure is what is tried again
    teach(store)
    server.faults = [Fault(latency_s=0.3, status=500), Fault(after=1, latency_s=0.6, status=500)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
    assert (context.metrics.requests, context.metrics.hedges, context.metrics.retries) == (3, 1, 1)
    # and what is final, is
    teach(store)
    server.faults = [Fault(latency_s=0.3, etag="other"), Fault(after=1, latency_s=60.0)]
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    await quiet(store)


async def test_deadline_and_cancellation_end_both(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    server.faults = [Fault(stall_headers=True, times=None)]
    context = new_context()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stored.fetch_range(0, 9, context=context, pin=pin), 0.4)
    await quiet(store)
    assert context.metrics.hedges == 1
    teach(store)
    read = asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context(), pin=pin))
    await both_sent(store)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    await quiet(store)


async def test_closing_leaves_nothing(hedged: tuple[Store, str], server: ObjectServer) -> None:
    store, stored, pin = await opened(hedged)
    server.faults = [Fault(stall_headers=True, times=None)]
    read = asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context(), pin=pin))
    await both_sent(store)
    second = list(transport_of(store)._hedges)
    assert len(second) == 1
    await store.close()
    assert second[0].done()
    read.cancel()
    await asyncio.wait([read])


async def test_large_bodies_are_not_hedged(server: ObjectServer) -> None:
    store = open_test_store(
        "s3", server.storage_options, replace(HEDGED, first_byte_timeout_s=0.1, connect_timeout_s=0.1)
    )
    server.put("bucket/large", bytes(3 << 20))
    stored = await store.open_object("s3://bucket/large")
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    teach(store, 0.01)
    server.faults = [Fault(stall_headers=True, times=None)]
    context = new_context()
    with pytest.raises(TransportError):
        await stored.fetch_range(0, 2 << 20, context=context, pin=pin)
    assert (context.metrics.hedges, context.metrics.requests) == (0, FAST_RETRIES.max_attempts)
    await store.close()


@pytest.mark.parametrize("ratio", [0.0, 0.1])
async def test_second_requests_are_few(server: ObjectServer, ratio: float) -> None:
    store = open_test_store("s3", server.storage_options, replace(HEDGED, hedge_ratio=ratio))
    stored = await store.open_object("s3://bucket/key")
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    if ratio:
        teach(store, 0.001)
    server.faults = [Fault(latency_s=0.02, times=None)]  # all are late
    context = new_context()
    for _ in range(10):
        await asyncio.gather(*(stored.fetch_range(0, 9, context=context, pin=pin) for _ in range(4)))
    await store.close()
    assert context.metrics.hedges <= 42 * ratio
    assert (context.metrics.hedges > 0) == (ratio > 0)


async def test_no_second_request_to_a_store_that_asks_to_slow_down(server: ObjectServer) -> None:
    store = open_test_store("s3", server.storage_options, HEDGED)
    stored = await store.open_object("s3://bucket/key")
    pin = (await stored.fetch_tail(9, context=new_context())).validator
    limiter, now = transport_of(store)._limiter, asyncio.get_running_loop().time()
    for pace in limiter._paces.values():
        while pace.limit == math.inf:
            limiter.refused(now - 0.001, now, pace=pace)
    teach(store, 0.01)
    server.faults = [Fault(latency_s=0.1)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
    assert context.metrics.requests == 1
    await store.close()
