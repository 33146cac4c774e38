"""The budget of bytes in flight, and the sizes of tails that a session learns."""

from __future__ import annotations

import threading

import asyncpq
from asyncpq.objects.runtime import ByteBudget, TailSizes


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
    sizes.learn("s3://b/lake", 5_000_000)
    assert sizes.guess("s3://b/lake") >= 5_000_000


async def test_many_steps_run_in_a_thread_and_few_where_they_are() -> None:
    async with asyncpq.Session() as session:
        here = threading.get_ident()
        assert await session.runtime.off_loop(threading.get_ident, 5) == here
        assert await session.runtime.off_loop(threading.get_ident, 5000) != here
