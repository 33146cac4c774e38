"""Connections: never more than the limit, lookups before scans, and what throttling takes and gives back."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.storage.base import StoreLimits
from asyncpq.storage.connection_limiter import ConnectionSlots

STEPS = st.lists(st.sampled_from(["lookup", "scan", "give", "cancel", "throttled", "succeeded"]), max_size=60)


@given(steps=STEPS, most=st.integers(1, 6), scans=st.integers(0, 6), choices=st.lists(st.integers(0, 50), max_size=60))
def test_slots_are_never_too_many_nor_left_idle(steps: list[str], most: int, scans: int, choices: list[int]) -> None:
    """A model of it: who holds one, who waits, whatever is granted, given back, or no longer wanted."""

    async def run() -> None:
        slots = ConnectionSlots(StoreLimits(most, min(scans, most)))
        holding: list[bool] = []
        waiting: deque[tuple[bool, asyncio.Task[None]]] = deque()
        picks = iter(choices + [0] * len(steps))
        now = 0.0
        for step in steps:
            pick, now = next(picks), now + 1.0
            if step in ("lookup", "scan"):
                scan = step == "scan"
                if slots.try_take(scan):
                    holding.append(scan)
                else:
                    waiting.append((scan, asyncio.ensure_future(slots.wait(scan))))
            elif step == "give" and holding:
                slots.give(holding.pop(pick % len(holding)))
            elif step == "cancel" and waiting:
                waiting[pick % len(waiting)][1].cancel()
            elif step == "throttled" and holding:
                slots.slow_down(now - pick, now)
            elif step == "succeeded":
                slots.speed_up()
            for _ in range(3):
                await asyncio.sleep(0)
            for scan, task in tuple(waiting):
                if task.done():
                    waiting.remove((scan, task))
                    if not task.cancelled():
                        holding.append(scan)
            assert (slots.used, slots.scans) == (len(holding), sum(holding))
            assert min(2, most) <= slots.limit <= most
            assert 1 <= slots.scan_limit <= max(1, min(scans, most))
            if waiting and slots.used < slots.limit:  # only scans, which leave this to lookups
                assert all(scan for scan, _ in waiting)
                assert slots.scans >= slots.scan_limit
        while holding:
            slots.give(holding.pop())
        for _ in range(len(waiting) + 3):
            await asyncio.sleep(0)
            while (done := next((item for item in waiting if item[1].done()), None)) is not None:
                waiting.remove(done)
                slots.give(done[0])
        assert (slots.used, slots.scans, len(waiting)) == (0, 0, 0)

    asyncio.run(run())


async def test_granted_in_the_order_asked_but_for_scans_at_their_limit() -> None:
    slots = ConnectionSlots(StoreLimits(3, 1))
    assert [slots.try_take(True), slots.try_take(True), slots.try_take(False), slots.try_take(False)] == [1, 0, 1, 1]
    order: list[str] = []

    async def ask(name: str, scan: bool) -> None:
        await slots.wait(scan)
        order.append(name)

    tasks = [asyncio.ensure_future(ask(name, name.startswith("s"))) for name in ("s1", "l1", "s2", "l2")]
    await asyncio.sleep(0)
    for scan in (False, True, False):  # the second is the scan's own
        slots.give(scan)
        await asyncio.sleep(0)
    assert order == ["l1", "s1", "l2"]
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("scan_first", [False, True])
async def test_neither_kind_passes_the_other(scan_first: bool) -> None:
    slots = ConnectionSlots(StoreLimits(2, 1))
    taken(slots, 2)
    waiting = [asyncio.ensure_future(slots.wait(scan)) for scan in (scan_first, not scan_first)]
    await asyncio.sleep(0)
    slots.give(False)
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False]
    slots.give(False)
    await asyncio.wait(waiting)


async def test_a_grant_that_comes_with_its_cancellation_goes_on() -> None:
    slots = ConnectionSlots(StoreLimits(1, 1))
    assert slots.try_take(False)
    first, second = (asyncio.ensure_future(slots.wait(False)) for _ in range(2))
    await asyncio.sleep(0)
    slots.give(False)
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert slots.used == 1


def taken(slots: ConnectionSlots, number: int) -> None:
    assert all(slots.try_take(False) for _ in range(number))


async def test_throttling_halves_once_for_what_was_under_way() -> None:
    slots = ConnectionSlots(StoreLimits(64, 48))
    taken(slots, 64)
    slots.slow_down(sent=1.0, now=2.0)
    assert (slots.limit, slots.scan_limit) == (32, 16)  # lookups keep their sixteen
    slots.slow_down(sent=1.5, now=2.1)  # sent before the first was refused
    assert slots.limit == 32
    slots.slow_down(sent=2.2, now=3.0)
    assert (slots.limit, slots.scan_limit) == (16, 1)
    for at in range(4, 20):
        slots.slow_down(sent=float(at), now=float(at))
    assert (slots.limit, slots.scan_limit) == (2, 1)


async def test_throttling_counts_what_is_under_way_not_what_may_be() -> None:
    slots = ConnectionSlots(StoreLimits(64, 48))
    taken(slots, 8)
    slots.slow_down(sent=1.0, now=2.0)
    assert slots.limit == 4


async def test_successes_raise_the_limit_by_one_for_each_window() -> None:
    slots = ConnectionSlots(StoreLimits(8, 6))
    taken(slots, 8)
    slots.slow_down(sent=1.0, now=2.0)
    limits = []
    for _ in range(40):
        slots.speed_up()
        limits.append(slots.limit)
    assert [limits.index(limit) for limit in (5, 6, 7, 8)] == [4, 9, 16, 23]
    assert limits[-1] == 8
    assert slots.scan_limit == 6


async def test_a_higher_limit_is_granted_to_who_waits() -> None:
    slots = ConnectionSlots(StoreLimits(2, 1))
    slots.limit = 1
    slots._allowed = 1.0
    taken(slots, 1)
    waiting = asyncio.ensure_future(slots.wait(False))
    await asyncio.sleep(0)
    slots.speed_up()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("most", [1, 2])
async def test_few_connections(most: int) -> None:
    slots = ConnectionSlots(StoreLimits(most, 1))
    taken(slots, most)
    slots.slow_down(sent=1.0, now=2.0)
    assert slots.limit == most
