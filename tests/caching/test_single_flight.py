"""Reads that want the same at once share one fetch, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import pytest

from asyncpq.caching.single_flight import Claims, Flight, SingleFlight, landing
from asyncpq.errors import UsageError


class Fetch:
    """Counts its calls; ends when told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.calls += 1
        await self.end.wait()
        if self.error is not None:
            raise self.error
        return self.calls


async def test_one_fetch_for_all_who_ask_meanwhile() -> None:
    flights, fetch = SingleFlight(), Fetch()
    reads = [asyncio.ensure_future(flights.run("key", fetch)) for _ in range(3)]
    await asyncio.sleep(0)
    fetch.end.set()
    assert await asyncio.gather(*reads) == [1, 1, 1]
    assert flights.get("key") is None
    assert await flights.run("key", fetch) == 2, "nothing is kept"
    await flights.close()


async def test_a_failure_goes_to_its_waiters_and_is_not_kept() -> None:
    flights, fetch = SingleFlight(), Fetch()
    fetch.error = OSError("broken")
    fetch.end.set()
    for outcome in await asyncio.gather(*(flights.run("key", fetch) for _ in range(2)), return_exceptions=True):
        assert outcome is fetch.error
    fetch.error = None
    assert await flights.run("key", fetch) == 2
    await flights.close()


async def test_a_cancelled_read_leaves_the_others_theirs() -> None:
    flights, fetch = SingleFlight(), Fetch()
    reads = [asyncio.ensure_future(flights.run("key", fetch)) for _ in range(2)]
    await asyncio.sleep(0)
    reads[0].cancel()
    await asyncio.wait(reads[:1])
    fetch.end.set()
    assert await reads[1] == 1
    assert reads[0].cancelled()
    await flights.close()


async def test_a_flight_without_waiters_is_cancelled() -> None:
    flights, fetch = SingleFlight(), Fetch()
    read = asyncio.ensure_future(flights.run("key", fetch))
    await asyncio.sleep(0)
    flight = flights.get("key")
    assert flight is not None
    read.cancel()
    await asyncio.wait([read])
    assert flights.get("key") is None, "no read joins an abandoned flight"
    with pytest.raises(asyncio.CancelledError):
        await flight.task
    await flights.close()


async def test_closing_says_so_to_those_who_wait() -> None:
    flights, fetch = SingleFlight(), Fetch()
    read = asyncio.ensure_future(flights.run("key", fetch))
    await asyncio.sleep(0)
    await flights.close()
    with pytest.raises(UsageError, match="closed"):
        await read


async def test_several_flights_end_with_the_last_or_with_a_failure() -> None:
    flights, good, bad = SingleFlight(), Fetch(), Fetch()
    first, second = flights.start(("a", "b"), good), flights.start(("c",), bad)
    assert flights.get("b") is first
    for flight in (first, second):
        flight.join()
    waiting = asyncio.ensure_future(landing((first, second)))
    await asyncio.sleep(0)
    assert not waiting.done()
    bad.error = OSError("broken")
    bad.end.set()
    await waiting
    assert not first.task.done()
    assert isinstance(second.task.exception(), OSError)
    good.end.set()
    await landing((first,))
    assert first.task.result() == 1
    for flight in (first, second):
        flight.leave()
    await flights.close()


async def test_a_result_can_be_had_until_the_last_waiter_has_left() -> None:
    """Who keeps it may not have run yet when the next read begins."""
    flights = SingleFlight()
    flight = flights.start(("key",), partial(asyncio.sleep, 0, 7))
    flight.join()
    await landing((flight,))
    late = flights.get("key")
    assert late is flight
    assert flights.split(["key", "other"]) == ({flight: ["key"]}, ["other"])
    late.join()
    flight.leave()
    assert await late.wait() == 7
    late.leave()
    assert flights.get("key") is None
    assert flights._flights == {}


async def test_a_damaged_result_is_forgotten_while_others_wait() -> None:
    flights = SingleFlight()
    flight = flights.start(("key", "other"), partial(asyncio.sleep, 0, 7))
    flight.join()
    flights.forget(["key", "unknown"])
    assert flights.get("key") is flight, "it still runs"
    await landing((flight,))
    flights.forget(["key"])
    assert flights.get("key") is None
    assert flights.get("other") is flight
    again: Flight[Any] = flights.start(("key",), partial(asyncio.sleep, 0, 8))
    again.join()
    flight.leave()
    assert flights.get("key") is again
    assert await again.wait() == 8
    again.leave()
    assert flights._flights == {}


async def test_claims_are_waited_for_and_end_with_their_block() -> None:
    claims = Claims()
    assert not await claims.wait(["a", "b"])
    with claims.claim(["a", "b"]), claims.claim(["b", "c"]):
        waits = [asyncio.ensure_future(claims.wait([key])) for key in "abcd"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == [False, False, False, True]
    assert await asyncio.gather(*waits) == [True, True, True, False]
    assert not await claims.wait("abc")


async def test_a_claim_of_a_read_that_fails_or_is_cancelled_ends() -> None:
    claims = Claims()
    with pytest.raises(ZeroDivisionError), claims.claim(["a"]):
        raise ZeroDivisionError

    async def hold() -> None:
        with claims.claim(["a"]):
            await asyncio.Event().wait()

    held = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    waits = [asyncio.ensure_future(claims.wait("a")) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()  # harms no one else
    await asyncio.sleep(0)
    assert not held.done()
    held.cancel()
    assert await waits[1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has no eager tasks")
async def test_tasks_may_begin_at_once() -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    flights, fetch = SingleFlight(), Fetch()
    reads = [asyncio.ensure_future(flights.run("key", fetch)) for _ in range(3)]
    fetch.end.set()
    assert await asyncio.gather(*reads) == [1, 1, 1]
    assert flights.get("key") is None
    flight = flights.start(("other",), fetch)  # its fetch has no need to wait
    flight.join()
    assert flight.began < float("inf")
    assert await flight.wait() == 2
    flight.leave()
    await asyncio.sleep(0)
    assert flights.get("other") is None
    await flights.close()
