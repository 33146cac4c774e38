"""What the requests of one store share: connections, and the timer of their timeouts."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.limits import ConnectionLimiter, Watch, Watchdog
from asyncpq.storage.retries import RetryableError

# -- connections ------------------------------------------------------------------------------------

STEPS = st.lists(st.sampled_from(["lookup", "scan", "give", "cancel", "throttled", "succeeded"]), max_size=60)


@given(steps=STEPS, most=st.integers(1, 6), scans=st.integers(0, 6), choices=st.lists(st.integers(0, 50), max_size=60))
def test_slots_are_never_too_many_nor_left_idle(steps: list[str], most: int, scans: int, choices: list[int]) -> None:
    """A model of it: who holds one, who waits, whatever is granted, given back, or no longer wanted."""

    async def run() -> None:
        limiter = ConnectionLimiter(StoreLimits(most, min(scans, most)))
        holding: list[bool] = []
        waiting: deque[tuple[bool, asyncio.Task[None]]] = deque()
        picks = iter(choices + [0] * len(steps))
        now = 0.0
        for step in steps:
            pick, now = next(picks), now + 1.0
            if step in ("lookup", "scan"):
                scan = step == "scan"
                if limiter.try_take(scan):
                    holding.append(scan)
                else:
                    waiting.append((scan, asyncio.ensure_future(limiter.wait(scan))))
            elif step == "give" and holding:
                limiter.give(holding.pop(pick % len(holding)))
            elif step == "cancel" and waiting:
                waiting[pick % len(waiting)][1].cancel()
            elif step == "throttled" and holding:
                limiter.slow_down(now - pick, now)
            elif step == "succeeded":
                limiter.speed_up()
            for _ in range(3):
                await asyncio.sleep(0)
            for scan, task in tuple(waiting):
                if task.done():
                    waiting.remove((scan, task))
                    if not task.cancelled():
                        holding.append(scan)
            assert (limiter.used, limiter.scans) == (len(holding), sum(holding))
            assert min(2, most) <= limiter.limit <= most
            assert 1 <= limiter.scan_limit <= max(1, min(scans, most))
            if waiting and limiter.used < limiter.limit:  # only scans, which leave this to lookups
                assert all(scan for scan, _ in waiting)
                assert limiter.scans >= limiter.scan_limit
        while holding:
            limiter.give(holding.pop())
        for _ in range(len(waiting) + 3):
            await asyncio.sleep(0)
            while (done := next((item for item in waiting if item[1].done()), None)) is not None:
                waiting.remove(done)
                limiter.give(done[0])
        assert (limiter.used, limiter.scans, len(waiting)) == (0, 0, 0)

    asyncio.run(run())


async def test_granted_in_the_order_asked_but_for_scans_at_their_limit() -> None:
    limiter = ConnectionLimiter(StoreLimits(3, 1))
    assert [limiter.try_take(True), limiter.try_take(True), limiter.try_take(False), limiter.try_take(False)] == [
        1,
        0,
        1,
        1,
    ]
    order: list[str] = []

    async def ask(name: str, scan: bool) -> None:
        await limiter.wait(scan)
        order.append(name)

    tasks = [asyncio.ensure_future(ask(name, name.startswith("s"))) for name in ("s1", "l1", "s2", "l2")]
    await asyncio.sleep(0)
    for scan in (False, True, False):  # the second is the scan's own
        limiter.give(scan)
        await asyncio.sleep(0)
    assert order == ["l1", "s1", "l2"]
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("scan_first", [False, True])
async def test_neither_kind_passes_the_other(scan_first: bool) -> None:
    limiter = ConnectionLimiter(StoreLimits(2, 1))
    taken(limiter, 2)
    waiting = [asyncio.ensure_future(limiter.wait(scan)) for scan in (scan_first, not scan_first)]
    await asyncio.sleep(0)
    limiter.give(False)
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False]
    limiter.give(False)
    await asyncio.wait(waiting)


async def test_a_grant_that_comes_with_its_cancellation_goes_on() -> None:
    limiter = ConnectionLimiter(StoreLimits(1, 1))
    assert limiter.try_take(False)
    first, second = (asyncio.ensure_future(limiter.wait(False)) for _ in range(2))
    await asyncio.sleep(0)
    limiter.give(False)
    first.cancel()
    await asyncio.wait_for(second, 5)
    assert limiter.used == 1


def taken(limiter: ConnectionLimiter, number: int) -> None:
    assert all(limiter.try_take(False) for _ in range(number))


async def test_throttling_halves_once_for_what_was_under_way() -> None:
    limiter = ConnectionLimiter(StoreLimits(64, 48))
    taken(limiter, 64)
    limiter.slow_down(sent=1.0, now=2.0)
    assert (limiter.limit, limiter.scan_limit) == (32, 16)  # lookups keep their sixteen
    limiter.slow_down(sent=1.5, now=2.1)  # sent before the first was refused
    assert limiter.limit == 32
    limiter.slow_down(sent=2.2, now=3.0)
    assert (limiter.limit, limiter.scan_limit) == (16, 1)
    for at in range(4, 20):
        limiter.slow_down(sent=float(at), now=float(at))
    assert (limiter.limit, limiter.scan_limit) == (2, 1)


async def test_throttling_counts_what_is_under_way_not_what_may_be() -> None:
    limiter = ConnectionLimiter(StoreLimits(64, 48))
    taken(limiter, 8)
    limiter.slow_down(sent=1.0, now=2.0)
    assert limiter.limit == 4


async def test_successes_raise_the_limit_by_one_for_each_window() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    taken(limiter, 8)
    limiter.slow_down(sent=1.0, now=2.0)
    limits = []
    for _ in range(40):
        limiter.speed_up()
        limits.append(limiter.limit)
    assert [limits.index(limit) for limit in (5, 6, 7, 8)] == [4, 9, 16, 23]
    assert limits[-1] == 8
    assert limiter.scan_limit == 6


async def test_a_higher_limit_is_granted_to_who_waits() -> None:
    limiter = ConnectionLimiter(StoreLimits(2, 1))
    limiter.limit = 1
    limiter._allowed = 1.0
    taken(limiter, 1)
    waiting = asyncio.ensure_future(limiter.wait(False))
    await asyncio.sleep(0)
    limiter.speed_up()
    await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("most", [1, 2])
async def test_few_connections(most: int) -> None:
    limiter = ConnectionLimiter(StoreLimits(most, 1))
    taken(limiter, most)
    limiter.slow_down(sent=1.0, now=2.0)
    assert limiter.limit == most


# -- timeouts ---------------------------------------------------------------------------------------

TIMEOUTS = RetryOptions(
    connect_timeout_s=0.05, first_byte_timeout_s=0.1, stall_timeout_s=0.1, min_throughput_bytes_s=1000
)


async def watched(watch: Watch, seconds: float) -> None:
    """Wait as a fetch does, and say as a fetch does why that ended."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        watch.raise_if_silent("url", (0, 1))
        raise
    finally:
        watch.stop()


async def test_no_response() -> None:
    watch = Watch(Watchdog(TIMEOUTS))
    started = watch.expect_head()
    with pytest.raises(RetryableError, match="no response"):
        await watched(watch, 5)
    assert 0.15 <= watch.loop.time() - started < 2


async def test_silent_body() -> None:
    watch = Watch(Watchdog(TIMEOUTS))
    watch.expect_head()
    watch.expect_body()
    watch.received = 10_000
    with pytest.raises(RetryableError, match="stopped"):
        await watched(watch, 5)


async def test_trickling_body() -> None:
    watch = Watch(Watchdog(TIMEOUTS))
    watch.expect_head()
    watch.expect_body()

    async def trickle() -> None:
        try:
            for received in range(100):
                watch.received = received
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            watch.raise_if_silent("url", None)
            raise

    with pytest.raises(RetryableError, match="bytes/s"):
        await trickle()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    watch.stop()


async def test_enough_progress_is_left_alone() -> None:
    watch = Watch(Watchdog(replace(TIMEOUTS, first_byte_timeout_s=60.0, stall_timeout_s=60.0)))
    watch.expect_head()
    watch.expect_body()
    for received in range(1, 9):
        watch.received = received * 51_000  # the limit is 1,000 a second, and times are rounded
        assert watch.look(watch.since + received * 50) < float("inf")
    await asyncio.sleep(0)  # it would be cancelled here
    assert watch.look(watch.since + 8 * 50 + 60) == float("inf")
    with pytest.raises(RetryableError, match="stopped for 60"):
        await watched(watch, 5)


async def test_cancellation_from_outside_stays_one() -> None:
    dog = Watchdog(TIMEOUTS)

    async def fetch() -> None:
        await watched(Watch(dog), 5)

    task = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancellation() -> None:
    dog = Watchdog(TIMEOUTS)
    watches: list[Watch] = []

    async def fetch() -> None:
        watches.append(Watch(dog))
        watches[0].expect_head()
        await watched(watches[0], 5)

    task = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    watches[0].look(float("inf"))  # no response has come in time ...
    task.cancel()  # ... in the very step in which the caller gives up
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_timer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *arguments: object, **options: object) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    dog = Watchdog(RetryOptions())
    for _ in range(1000):
        watch = Watch(dog)
        watch.expect_head()
        watch.expect_body()
        watch.stop()
    assert len(timers) == 1
    dog.close()
