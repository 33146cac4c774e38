"""Threads that owners share: turns, stops and ends."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncpq.checkpoints import checkpoint
from asyncpq.errors import UsageError
from asyncpq.objects import fair_threads
from asyncpq.objects.fair_threads import LEAST_RUN_S, LOOP_FIRST_S, SLICE_S, FairThreads, LoopFirst, WorkStoppedError
from asyncpq.storage.threads import work_owner
from tests.clock import Clock

ENDLESS_S = 30.0  # work that nothing stops ends then, and the test fails


def endless(begun: threading.Event | None = None) -> None:
    if begun is not None:
        begun.set()
    ends = time.monotonic() + ENDLESS_S
    while time.monotonic() < ends:
        checkpoint()
        time.sleep(0.001)
    raise AssertionError("nothing has stopped this work")


async def run_as(threads: FairThreads, owner: str, work: object) -> object:
    work_owner.set(owner)
    return await threads.run(work)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(count: int) -> AsyncIterator[FairThreads]:
    threads = FairThreads(count, "test-fair")
    yield threads
    await threads.close()
    assert not any(thread.name.startswith("test-fair") for thread in threading.enumerate())


async def until(event: threading.Event) -> None:
    while not event.is_set():  # noqa: ASYNC110  # of another thread
        await asyncio.sleep(0.001)


async def test_results_and_errors_are_the_works() -> None:
    async with opened(2) as threads:
        assert await asyncio.gather(*[threads.run(lambda n=n: n * 2) for n in range(50)]) == list(range(0, 100, 2))  # type: ignore[misc]
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
        with pytest.raises(KeyboardInterrupt):
            await threads.run(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        assert await threads.run(threading.get_ident) != threading.get_ident()


def test_a_checkpoint_outside_of_these_threads_does_nothing() -> None:
    checkpoint()


async def test_work_whose_caller_is_cancelled_stops_at_its_next_checkpoint() -> None:
    async with opened(1) as threads:
        begun, seen = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                endless(begun)
            except BaseException as error:
                seen.append(error)
                raise

        running = asyncio.create_task(threads.run(work))
        await until(begun)
        waiting = asyncio.create_task(threads.run(lambda: seen.append(AssertionError("it was cancelled before"))))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        for task in (waiting, running):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert list(map(type, seen)) == [WorkStoppedError]
        assert await threads.run(lambda: 7) == 7


async def test_a_second_cancellation_does_not_leave_work_behind() -> None:
    async with opened(1) as threads:
        begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:  # has no checkpoint
            begun.set()
            goes_on.wait(ENDLESS_S)
            ended.set()

        task = asyncio.create_task(threads.run(work))
        await until(begun)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


@pytest.mark.parametrize("count", [1, 2])
async def test_long_work_of_one_owner_makes_way_for_others(count: int) -> None:
    async with opened(count) as threads:
        greedy = [asyncio.create_task(run_as(threads, f"greedy {n % 2}", endless)) for n in range(10)]
        await asyncio.sleep(2 * SLICE_S)
        for number in range(20):
            assert await run_as(threads, "modest", lambda number=number: number) == number
        assert not any(task.done() for task in greedy)
        for task in greedy:
            task.cancel()
        await asyncio.wait(greedy)


async def test_owners_get_equal_shares_whatever_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(fair_threads, "time", clock)
    async with opened(1) as threads:
        turns = {"many": 0, "one": 0}

        def work(owner: str) -> None:
            while turns["one"] < 20 and turns["many"] < 1000:
                clock.now_s += 1.2 * SLICE_S  # so each checkpoint ends a turn
                checkpoint()
                turns[owner] += 1
                time.sleep(0)

        await asyncio.gather(
            *[run_as(threads, "many", lambda: work("many")) for _ in range(8)],
            run_as(threads, "one", lambda: work("one")),
        )
        assert turns["many"] <= turns["one"] + 8


async def test_no_more_run_at_once_than_there_are_turns() -> None:
    async with opened(2) as threads:
        lock, running, most, seed = threading.Lock(), 0, 0, random.Random(3)

        def enter(step: int) -> None:
            nonlocal running, most
            with lock:
                running += step
                most = max(most, running)

        def work(steps: int) -> int:
            for _ in range(steps):
                checkpoint()
                enter(1)
                time.sleep(0.004)
                enter(-1)
            return steps

        sizes = [seed.randrange(8) for _ in range(40)]
        tasks = [run_as(threads, f"owner {n % 5}", lambda size=size: work(size)) for n, size in enumerate(sizes)]
        assert await asyncio.gather(*tasks) == sizes
        assert most <= 2
        assert threads._owners == {}
        assert (threads._num_running, threads._num_waiting, threads._works) == (0, 0, set())


async def test_paused_work_can_be_stopped() -> None:
    async with opened(1) as threads:
        begun = threading.Event()
        paused = asyncio.create_task(run_as(threads, "first", lambda: endless(begun)))
        await until(begun)
        held = threading.Event()

        def hold() -> None:  # has no checkpoint
            held.set()
            time.sleep(0.2)

        holding = asyncio.create_task(run_as(threads, "second", hold))
        await until(held)  # so the first one is paused
        paused.cancel()
        with pytest.raises(asyncio.CancelledError):
            await paused
        await holding
        assert await threads.run(lambda: 1) == 1


async def test_closing_stops_all_work() -> None:
    threads = FairThreads(2, "test-closing")
    begun = threading.Event()
    tasks = [asyncio.create_task(run_as(threads, f"owner {n}", lambda: endless(begun))) for n in range(6)]
    await until(begun)
    await threads.close()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, UsageError)
        assert "closed" in str(error)
    with pytest.raises(UsageError, match="closed"):
        await threads.run(lambda: 1)
    await threads.close()


async def test_work_that_pauses_while_it_is_stopped_begins_no_other() -> None:
    threads = FairThreads(1, "test-pausing")
    begun, stopping, paused = threading.Event(), threading.Event(), threading.Event()

    def pauses() -> None:
        begun.set()
        stopping.wait(ENDLESS_S)
        threads.pause(work)
        paused.set()
        work.resumed.wait(ENDLESS_S)

    tasks = [asyncio.create_task(run_as(threads, owner, call)) for owner, call in (("a", pauses), ("b", endless))]
    await until(begun)
    work = next(work for work in threads._works if work.owner.key == "a")
    stop = threads._stop_locked

    def stop_late(other: object) -> None:
        stopping.set()
        paused.wait(0.1)  # it has no chance, since the works are stopped at once
        stop(other)  # type: ignore[arg-type]

    threads._stop_locked = stop_late  # type: ignore[method-assign, assignment]
    await threads.close()
    assert not any(thread.name.startswith("test-pausing") for thread in threading.enumerate())
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_closing_does_not_wait_for_work_that_does_not_stop() -> None:
    threads = FairThreads(1, "test-stuck")
    begun, goes_on = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        goes_on.wait(ENDLESS_S)

    task = asyncio.create_task(threads.run(stuck))
    await until(begun)
    await threads.close(timeout_s=0.05)
    assert not task.done()
    goes_on.set()
    await task


@pytest.mark.skipif(sys.platform != "linux", reason="threads of other systems have no niceness of their own")
async def test_threads_can_leave_processors_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = niceness()
    async with opened(1) as threads:
        assert await threads.run(niceness) == own
    monkeypatch.setattr(FairThreads, "niceness", 1)
    async with opened(1) as threads:
        assert await threads.run(niceness) == own + 1
    assert niceness() == own


async def test_work_for_which_no_thread_can_start_waits_for_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the number of processes is limited."""
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if started:
            raise UsageError("no thread can start")
        started.append(thread)
        thread.start()

    monkeypatch.setattr(fair_threads, "start_thread", start)

    def long() -> str:
        ends = time.monotonic() + 5 * SLICE_S
        while time.monotonic() < ends:
            checkpoint()
            time.sleep(0.001)
        return "long"

    async with opened(2) as threads, asyncio.timeout(ENDLESS_S):
        first = asyncio.create_task(run_as(threads, "a", long))
        others = [asyncio.create_task(run_as(threads, owner, lambda: "short")) for owner in "bcb"]
        assert await asyncio.gather(first, *others) == ["long", "short", "short", "short"]
        assert await run_as(threads, "d", lambda: "after") == "after"


async def test_work_that_is_stopped_just_before_it_pauses_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(1) as threads, asyncio.timeout(ENDLESS_S):
        about_to_pause, stopped, begun = threading.Event(), threading.Event(), threading.Event()
        pause = threads.pause

        def late(work: object) -> None:
            about_to_pause.set()
            stopped.wait(ENDLESS_S)
            pause(work)  # type: ignore[arg-type]

        monkeypatch.setattr(threads, "pause", late)
        other_ended = threading.Event()
        task = asyncio.create_task(run_as(threads, "a", lambda: endless(begun)))
        await until(begun)
        other = asyncio.create_task(run_as(threads, "b", lambda: other_ended.wait(ENDLESS_S)))
        await until(about_to_pause)
        task.cancel()
        await asyncio.sleep(0)
        stopped.set()
        with pytest.raises(asyncio.CancelledError):
            await task  # which does not wait for the other one's end
        other_ended.set()
        assert await other


@pytest.mark.parametrize("is_first", [True, False])
async def test_work_waits_for_an_event_loop_that_comes_first(monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """While the loop is busy, work runs a third of the time, however many checkpoints it has."""
    clock, selector = Clock(), LoopFirst()
    monkeypatch.setattr(fair_threads, "time", clock)
    monkeypatch.setattr(FairThreads, "loop_first", selector if is_first else None)
    waits: list[float | None] = []

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        clock.now_s += timeout or 0.0
        return False

    monkeypatch.setattr(selector.idle, "wait", wait)

    def work() -> None:
        for _ in range(1000):
            clock.now_s += LEAST_RUN_S / 10
            checkpoint()

    selector.is_busy = True
    async with opened(1) as threads:
        await run_as(threads, "any", work)
    # It waits before it begins, too.
    assert waits == [LOOP_FIRST_S] * 101 if is_first else not waits


def test_a_loop_that_comes_first_is_busy_unless_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = LoopFirst()
    during: list[tuple[float | None, bool, bool]] = []

    def select(_self: object, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        during.append((timeout, selector.is_busy, selector.idle.is_set()))
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    assert not selector.is_busy
    assert selector.idle.is_set()
    for timeout in (None, 0, 1.5, 0, -1):
        selector.select(timeout)
        assert selector.is_busy
        assert not selector.idle.is_set()
    assert during == [(None, False, True), (0, True, False), (1.5, False, True), (0, True, False), (-1, True, False)]
    selector.close()
