"""Timeouts of a fetch: what is due when, and that a cancellation from outside stays one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from asyncpq.errors import DeadlineExceededError
from asyncpq.options import RetryOptions
from asyncpq.storage.retry import RetryableError
from asyncpq.storage.watchdog import Watch, Watchdog

OPTIONS = RetryOptions(
    connect_timeout_s=0.05, first_byte_timeout_s=0.1, stall_timeout_s=0.1, min_throughput_bytes_s=1000
)


async def watched(watch: Watch, seconds: float) -> None:
    """Wait as a fetch does, and say as a fetch does why that ended."""
    try:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            watch.raise_if_silent("url", (0, 1))
            raise
    except asyncio.CancelledError:
        watch.raise_if_deadline("url", (0, 1))
        raise
    finally:
        watch.stop()


async def test_deadline() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.05
    with pytest.raises(DeadlineExceededError):
        await watched(Watch(Watchdog(OPTIONS), deadline), 5)
    assert 0 <= loop.time() - deadline < 2


async def test_no_response() -> None:
    watch = Watch(Watchdog(OPTIONS), None)
    started = watch.expect_head()
    with pytest.raises(RetryableError, match="no response"):
        await watched(watch, 5)
    assert 0.15 <= watch.loop.time() - started < 2


async def test_silent_body() -> None:
    watch = Watch(Watchdog(OPTIONS), None)
    watch.expect_head()
    watch.expect_body()
    watch.received = 10_000
    with pytest.raises(RetryableError, match="stopped"):
        await watched(watch, 5)


async def test_trickling_body() -> None:
    watch = Watch(Watchdog(OPTIONS), None)
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
    watch = Watch(Watchdog(replace(OPTIONS, first_byte_timeout_s=60.0, stall_timeout_s=60.0)), None)
    watch.expect_head()
    watch.expect_body()
    for received in range(1, 9):
        watch.received = received * 50_000
        assert watch.look(watch.since + received * 50) < float("inf")
    await asyncio.sleep(0)  # it would be cancelled here
    assert watch.look(watch.since + 8 * 50 + 60) == float("inf")
    with pytest.raises(RetryableError, match="stopped for 60"):
        await watched(watch, 5)


async def test_cancellation_from_outside_stays_one() -> None:
    dog = Watchdog(OPTIONS)

    async def fetch() -> None:
        await watched(Watch(dog, asyncio.get_running_loop().time() + 0.03), 5)

    task = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancellation() -> None:
    dog = Watchdog(OPTIONS)
    watches: list[Watch] = []

    async def fetch() -> None:
        watches.append(Watch(dog, asyncio.get_running_loop().time() + 60))
        await watched(watches[0], 5)

    task = asyncio.create_task(fetch())
    await asyncio.sleep(0)
    watches[0].look(float("inf"))  # the deadline passes ...
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
        watch = Watch(dog, loop.time() + 120)
        watch.expect_head()
        watch.expect_body()
        watch.stop()
    assert len(timers) == 1
    dog.close()
