"""What the requests of one store share: connections, and the timer of their timeouts."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.options import RetryOptions
from asyncpq.storage import limits
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.limits import FIRST_RATE, OUTAGE_RATE, ConnectionLimiter, Pace, Watch, Watchdog
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.threads import work_owner

# -- connections ------------------------------------------------------------------------------------

STEPS = st.lists(st.sampled_from(["lookup", "scan", "give", "cancel"]), max_size=60)


@given(steps=STEPS, most=st.integers(1, 6), scans=st.integers(0, 6), choices=st.lists(st.integers(0, 50), max_size=60))
def test_slots_are_never_too_many_nor_left_idle(steps: list[str], most: int, scans: int, choices: list[int]) -> None:
    """A model of it: who holds one, who waits, whatever is granted, given back, or no longer wanted."""

    async def run() -> None:
        limiter = ConnectionLimiter(StoreLimits(most, min(scans, most)))
        holding: list[bool] = []
        waiting: deque[tuple[bool, asyncio.Task[float]]] = deque()
        picks = iter(choices + [0] * len(steps))
        for step in steps:
            pick = next(picks)
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
            for _ in range(3):
                await asyncio.sleep(0)
            for scan, task in tuple(waiting):
                if task.done():
                    waiting.remove((scan, task))
                    if not task.cancelled():
                        holding.append(scan)
            assert (limiter.used, limiter.scans) == (len(holding), sum(holding))
            assert limiter.used <= most
            assert limiter.scans <= max(1, min(scans, most))
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


async def test_owners_have_their_turns_one_after_the_other() -> None:
    limiter = ConnectionLimiter(StoreLimits(1, 1))
    assert limiter.try_take(False)
    order: list[str] = []

    async def ask(owner: str) -> None:
        work_owner.set(owner)
        await limiter.wait(False)
        order.append(owner)

    tasks = [asyncio.ensure_future(ask(owner)) for owner in "a" * 6 + "bb" + "c"]
    for _ in tasks:
        await asyncio.sleep(0)
        limiter.give(False)
    await asyncio.gather(*tasks)
    assert "".join(order) == "abcabaaaa"
    later = [asyncio.ensure_future(ask(owner)) for owner in "ad"]
    for _ in later:
        await asyncio.sleep(0)
        limiter.give(False)
    await asyncio.gather(*later)
    assert "".join(order[9:]) == "ad"


async def test_waits_that_were_cancelled_keep_no_owner_behind() -> None:
    limiter = ConnectionLimiter(StoreLimits(1, 1))
    assert limiter.try_take(False)
    order: list[str] = []

    async def ask(owner: str) -> None:
        work_owner.set(owner)
        await limiter.wait(False)
        order.append(owner)

    others = [asyncio.ensure_future(ask("a")) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(20):
        given_up = asyncio.ensure_future(ask("b"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait((given_up,))
    tasks = [*others, asyncio.ensure_future(ask("b"))]
    for _ in tasks:
        await asyncio.sleep(0)
        limiter.give(False)
    await asyncio.gather(*tasks)
    assert "".join(order) == "abaa"


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


# -- pace -------------------------------------------------------------------------------------------


def throttle(limiter: ConnectionLimiter, now: float, pace: Pace | None = None) -> None:
    """Refuse as many requests as lower the rate of a host."""
    refused = [limiter.refused(sent=now - 0.1, now=now, pace=pace) for _ in range(5)]
    assert refused == [True] * 4 + [False]  # the last one says nothing new
    assert (pace or limiter.pace).limit < math.inf


async def test_throttled_requests_begin_in_turn_and_the_wait_is_told() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    loop = asyncio.get_running_loop()
    taken(limiter, 1)
    throttle(limiter, loop.time())
    limiter.succeeded(math.inf, loop.time())  # the outage is over
    limiter.pace.begin(loop.time())
    assert not limiter.try_take(False)  # though a connection is free
    began = loop.time()
    waiting = [asyncio.ensure_future(limiter.wait(False)) for _ in range(3)]
    cancelled = asyncio.ensure_future(limiter.wait(False))
    last = asyncio.ensure_future(limiter.wait(False))
    await asyncio.sleep(0)
    cancelled.cancel()
    limiter.give(False)
    waits = []
    for task in (*waiting, last):
        waits.append(await asyncio.wait_for(task, 5))
        limiter.give(False)
    assert waits == sorted(waits)
    assert 2.5 / FIRST_RATE < loop.time() - began < 4
    assert limiter.used == 0


async def test_a_host_that_throttles_slows_down_no_other() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    slow, other = limiter.pace_of("slow"), limiter.pace_of("other")
    assert limiter.pace_of("slow") is slow
    now = asyncio.get_running_loop().time()
    throttle(limiter, now, slow)
    slow.next_at = now + 3600
    waiting = [asyncio.ensure_future(limiter.wait(scan, slow)) for scan in (False, True)]
    await asyncio.sleep(0)
    limiter.limit = 1  # the other's requests wait for a connection, behind those that wait for their turn
    assert limiter.try_take(False, other)
    third = asyncio.ensure_future(limiter.wait(False, other))
    await asyncio.sleep(0)
    limiter.give(False)
    assert await asyncio.wait_for(third, 5) == 0.0
    assert not any(task.done() for task in waiting)
    throttle(limiter, now, other)
    limiter.give(False)
    slow.lowered_at -= 60.0
    limiter.release(slow)
    for task in waiting:
        await asyncio.wait_for(task, 5)
        limiter.give(False)
    assert other.limit < math.inf


async def test_hosts_that_wait_for_connections_take_turns_by_the_order_of_calls() -> None:
    limiter = ConnectionLimiter(StoreLimits(1, 1))
    paces = [limiter.pace_of(host) for host in "aba"]
    assert limiter.try_take(False, paces[0])
    order: list[int] = []

    async def ask(number: int) -> None:
        await limiter.wait(False, paces[number])
        order.append(number)

    tasks = [asyncio.ensure_future(ask(number)) for number in range(3)]
    for _ in tasks:
        await asyncio.sleep(0)
        limiter.give(False)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_the_earliest_turn_of_all_hosts_is_kept() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    now = asyncio.get_running_loop().time()
    tasks = []
    for host, wait_s in (("late", 3600.0), ("soon", 0.05)):
        pace = limiter.pace_of(host)
        throttle(limiter, now, pace)
        pace.next_at = now + wait_s
        tasks.append(asyncio.ensure_future(limiter.wait(False, pace)))
        await asyncio.sleep(0)
    await asyncio.wait_for(tasks[1], 5)
    assert not tasks[0].done()
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def test_few_hosts_have_a_pace_of_their_own() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    now = asyncio.get_running_loop().time()
    throttled = limiter.pace_of("throttled")
    throttle(limiter, now, throttled)
    paces = [limiter.pace_of(str(number)) for number in range(1000)]
    assert len(limiter._paces) == limits._MOST_HOSTS
    assert limiter.pace_of("throttled") is throttled
    for pace in map(limiter.pace_of, map(str, range(1000))):
        if pace.limit == math.inf:
            throttle(limiter, now, pace)
    assert limiter.pace_of("one more") is limiter.pace
    assert paces


async def test_requests_that_wait_for_a_host_that_is_down_are_released_together() -> None:
    limiter = ConnectionLimiter(StoreLimits(8, 6))
    now = asyncio.get_running_loop().time()
    throttle(limiter, now)
    limiter.pace.next_at = now + 3600
    waiting = asyncio.ensure_future(limiter.wait(False))
    await asyncio.sleep(0)
    limiter.release()  # the rate was lowered just now
    assert not waiting.done()
    limiter.pace.lowered_at -= 60.0
    limiter.release()
    await asyncio.wait_for(waiting, 5)
    assert limiter.pace.limit < math.inf
    assert not limiter.try_take(False)  # what comes later waits for its turn
    limiter.release()
    later = asyncio.ensure_future(limiter.wait(False))
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    await asyncio.wait((later,))


@pytest.mark.parametrize("allowed", [1.0, 2.0, 5.0, 50.0, 5000.0])
def test_the_rate_settles_at_the_limit(allowed: float) -> None:
    """Answers come at once: what is served is near the limit, and few requests are refused."""
    pace, now, tokens, served, refused = Pace(), 0.0, 2.0, 0, 0
    for _ in range(2000):
        step_s = 0.001 if pace.limit == math.inf else max(pace.next_at - now, 0.0)
        now += step_s
        tokens = min(2.0, tokens + allowed * step_s)
        if pace.wait_s(now) <= 0.0 and pace.limit < math.inf:
            pace.begin(now)
        if tokens >= 1.0:
            tokens, served = tokens - 1.0, served + 1
            pace.succeeded(now, now + 1e-6)
        else:
            refused += 1
            pace.throttled(now, now + 0.001, 4)
    assert served > 0.8 * now * min(allowed, 1000.0)
    assert refused < 0.1 * served + 100


def test_one_stray_refusal_lowers_nothing() -> None:
    pace = Pace()
    assert all(pace.throttled(number / 100, number / 100 + 0.02, 1) for number in range(3))
    assert pace.limit == math.inf
    pace.throttled(0.03, 0.05, 1)
    assert pace.limit < math.inf


def test_few_refusals_of_many_lower_nothing() -> None:
    pace = Pace()
    for number in range(3000):
        if number % 40:
            pace.succeeded(number / 1000, number / 1000 + 0.02)
        else:
            pace.throttled(number / 1000, number / 1000 + 0.02, 20)
        assert pace.limit == math.inf


def test_the_first_limit_is_what_was_served() -> None:
    """By Little's law: 20 requests of 20 ms each are 1,000 per second, of which a third was refused."""
    pace = Pace()
    number = 0
    while pace.limit == math.inf:
        number += 1
        if number % 3:
            pace.succeeded(number / 1000, number / 1000 + 0.02)
        else:
            pace.throttled(number / 1000, number / 1000 + 0.02, 20)
    assert number < 20
    assert 500 < pace.limit < 800
    assert pace.rate(pace.lowered_at) < pace.limit


def test_a_host_that_serves_nothing_and_comes_back() -> None:
    pace, now = Pace(), 0.0
    for _ in range(100):
        now = max(now + 0.01, pace.next_at)
        pace.throttled(now, now + 0.02, 64)
    assert pace.limit == FIRST_RATE
    assert pace.rate(now) == OUTAGE_RATE
    pace.succeeded(now + 1, now + 1.02)
    assert pace.wait_s(now + 1.02) == 0.0
    assert pace.rate(now + 2.2) > 4 * FIRST_RATE
    assert pace.wait_s(now + 3) == -math.inf


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
