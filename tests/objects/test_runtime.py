"""The budget of bytes in flight, the sizes of tails that a session learns, work in threads, and deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

import asyncpq
from asyncpq.errors import DeadlineExceededError
from asyncpq.objects.runtime import SLICE_S, ByteBudget, LoopTurns, Runtime, TailSizes
from asyncpq.options import LimitOptions, RetryOptions, SessionOptions
from asyncpq.storage.threads import work_owner


async def test_budget_is_first_come_first_served() -> None:
    budget = ByteBudget(100)
    budget.take(80)
    large, small = budget.request(50), budget.request(10)
    assert not large.done()
    assert not small.done()  # does not overtake
    budget.release(80)
    assert large.done()
    assert small.done()
    assert budget.used == 60
    waiting = budget.request(90)
    assert budget.withdraw(waiting) is False
    assert budget.withdraw(large) is True
    budget.release(60)
    assert budget.used == 0


def test_tail_sizes_are_learnt_from_neighbours() -> None:
    sizes = TailSizes(640 * 1024)
    assert sizes.guess("s3://b/lake") == 640 * 1024
    sizes.learn("s3://b/lake", 20_000)
    assert 20_000 <= sizes.guess("s3://b/lake") <= 30_000
    assert sizes.guess("s3://b/other") == 640 * 1024
    sizes.learn("s3://b/lake", 100_000)  # a second request would take longer than these bytes
    assert 100_000 <= sizes.guess("s3://b/lake") <= 130_000


def test_alike_tails_are_not_weighed_for_each_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = TailSizes(640 * 1024)
    for needed in range(20_000, 20_016):
        sizes.learn("s3://b/lake", needed)
    monkeypatch.setattr(sizes, "_cost", None)
    assert sizes.guess("s3://b/lake") == 28_672  # a quarter more, in blocks of 4 KiB


def test_one_large_tail_does_not_make_its_neighbours_fetch_as_much() -> None:
    sizes = TailSizes(640 * 1024)
    sizes.learn("s3://b/lake", 5_000_000, "s3://b/lake/large")
    assert sizes.guess("s3://b/lake") == 640 * 1024  # of many files that are opened at once, before others are known
    assert sizes.guess("s3://b/lake", "s3://b/lake/large") >= 5_000_000  # opened again
    sizes.learn("s3://b/lake", 5_000_000)
    assert sizes.guess("s3://b/lake") >= 5_000_000
    sizes.learn("s3://b/lake", 500_000)
    sizes.learn("s3://b/lake", 500_000)
    assert 500_000 <= sizes.guess("s3://b/lake") <= 640_000
    for _ in range(16):
        sizes.learn("s3://b/lake", 5_000_000)
    assert sizes.guess("s3://b/lake") >= 5_000_000


async def test_many_steps_run_in_a_thread_and_few_where_they_are() -> None:
    async with asyncpq.Session() as session:
        here = threading.get_ident()
        assert await session._runtime.off_loop(threading.get_ident, 5) == here
        assert await session._runtime.off_loop(threading.get_ident, 5000) != here


async def test_work_in_threads_is_done_side_by_side() -> None:
    runtime = Runtime(SessionOptions(limits=LimitOptions(decode_threads=2)), {})
    pair = threading.Barrier(2, timeout=60)

    def work(number: int) -> tuple[int, int]:
        pair.wait()
        return number, threading.get_ident()

    try:
        done = await runtime.in_threads([partial(work, number) for number in range(10)], 2)
    finally:
        await runtime.close()
    assert [number for number, _ in done] == [*range(10)]
    assert len({thread for _, thread in done}) == 2
    assert threading.get_ident() not in {thread for _, thread in done}


@pytest.mark.parametrize("threads", [0, 1, 2])
async def test_the_first_work_that_fails_is_told_of(threads: int) -> None:
    runtime = Runtime(SessionOptions(limits=LimitOptions(decode_threads=threads)), {})
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number in (3, 4):
            raise ValueError(number)
        return number

    try:
        with pytest.raises(ValueError, match="3"):
            await runtime.in_threads([partial(work, number) for number in range(100)], threads)
    finally:
        await runtime.close()
    assert begun[:3] == [0, 1, 2]
    assert len(begun) < 100


@asynccontextmanager
async def running(timeout_s: float | None) -> AsyncIterator[Runtime]:
    runtime = Runtime(SessionOptions(retry=RetryOptions(read_timeout_s=timeout_s)), {})
    runtime.enter()
    try:
        yield runtime
    finally:
        await runtime.close()


async def forever(runtime: Runtime) -> None:
    async with runtime.deadline("s3://b/file"):
        await asyncio.Event().wait()


async def test_a_deadline_ends_each_body_and_nothing_else() -> None:
    async with running(0.01) as runtime:
        for _ in range(3):  # the timer is set again for deadlines that begin while it waits, and after it rang
            first = asyncio.ensure_future(forever(runtime))
            await asyncio.sleep(0)
            async with runtime.deadline("s3://b/other"):
                pass
            second = asyncio.ensure_future(forever(runtime))
            for task in (first, second):
                with pytest.raises(DeadlineExceededError, match=r"the call did not end within 0\.01 s") as caught:
                    await task
                assert caught.value.url == "s3://b/file"
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # in a task


async def test_the_outer_of_two_deadlines_ends_the_inner_body() -> None:
    async with running(0.01) as runtime:
        with pytest.raises(DeadlineExceededError) as caught:
            async with runtime.deadline("s3://b/outer"):
                await forever(runtime)
        assert caught.value.url == "s3://b/outer"


async def test_a_deadline_leaves_other_errors_alone() -> None:
    async with running(30.0) as runtime:
        with pytest.raises(TimeoutError) as caught:
            async with runtime.deadline("s3://b/file"):
                raise TimeoutError("of the body")
        assert not isinstance(caught.value, DeadlineExceededError)
        task = asyncio.ensure_future(forever(runtime))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancellation_beside_the_deadline_stays_one() -> None:
    """Whoever cancelled the task while the deadline ended it still sees it cancelled."""
    async with running(0.01) as runtime:

        async def read() -> None:
            async with runtime.deadline("s3://b/file"):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    asyncio.current_task().cancel()  # type: ignore[union-attr]  # in a task
                    raise

        task = asyncio.ensure_future(read())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


async def test_no_deadline() -> None:
    async with running(None) as runtime, runtime.deadline("s3://b/file"):
        await asyncio.sleep(0)


def burn(seconds: float) -> None:
    """Work on the event loop."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


async def test_work_that_is_ready_at_once_leaves_iterations_to_others() -> None:
    turns, order, others = LoopTurns(), list[int](), 0

    async def work(number: int) -> None:
        await turns.turn()
        burn(SLICE_S)
        order.append(number)

    async def other() -> None:
        nonlocal others
        while len(order) < 20:
            others += 1
            await asyncio.sleep(0)

    await asyncio.gather(*[work(number) for number in range(20)], other())
    assert order == list(range(20))
    assert others >= 20


async def test_short_work_does_not_wait() -> None:
    turns, done = LoopTurns(), 0

    async def work() -> None:
        nonlocal done
        await turns.turn()
        done += 1

    tasks = [asyncio.create_task(work()) for _ in range(1000)]
    await asyncio.gather(*tasks)
    assert done == 1000
    for _ in range(3):
        await asyncio.sleep(0)
    assert not turns._running
    await turns.turn()  # the first one of an iteration goes on at once
    assert turns._running


async def test_turns_that_begin_to_take_long_stop_the_loop_for_a_few_of_them() -> None:
    turns, long, most = LoopTurns(), 0, 0

    async def work(number: int) -> None:
        nonlocal long
        await turns.turn()
        if not number:
            burn(2 * SLICE_S)  # so all others wait
        long += number >= 500  # what came before took no time

    tasks = [asyncio.create_task(work(number)) for number in range(600)]
    while not all(task.done() for task in tasks):
        long = 0
        await asyncio.sleep(0)
        most = max(most, long)
    assert 1 < most <= 16


async def test_a_cancelled_turn_is_passed_over() -> None:
    turns, order = LoopTurns(), list[int]()

    async def work(number: int) -> None:
        await turns.turn()
        burn(2 * SLICE_S)
        order.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert order == [0, 1, 3, 4]


async def test_owners_have_their_turns_one_after_the_other() -> None:
    turns, order = LoopTurns(), list[str]()

    async def work(owner: str) -> None:
        work_owner.set(owner)
        await turns.turn()
        burn(2 * SLICE_S)
        order.append(owner)

    await asyncio.gather(*[work("many") for _ in range(10)], work("one"))
    assert "one" in order[:3]


async def test_the_loops_of_two_threads_give_turns_at_once() -> None:
    ended: list[bool] = []

    async def other() -> None:
        turns = LoopTurns()

        async def work() -> None:
            await turns.turn()
            burn(2 * SLICE_S)

        async with asyncio.timeout(10):
            await asyncio.gather(*[work() for _ in range(3)])
        ended.append(True)

    class Waiting:
        """A task of this loop whose turn it is while the other loop runs."""

        def done(self) -> bool:
            thread = threading.Thread(target=lambda: asyncio.run(other()))
            thread.start()
            thread.join()
            return True

    turns = LoopTurns()
    turns._waiting.append(Waiting())  # type: ignore[arg-type]
    await turns.turn()
    while not ended and turns._running:  # noqa: ASYNC110  # one more iteration
        await asyncio.sleep(0)
    assert ended == [True]
