"""Turns on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

from asyncpq.objects.loop_turns import SLICE_S, LoopTurns
from asyncpq.storage.threads import work_owner


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
