"""Whose work runs, and where."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

import asyncpq
from asyncpq.engine.work import in_thread, loop_first, owner_in, set_owner, watched
from asyncpq.events import Event
from asyncpq.objects.fair_threads import FairThreads


async def test_tasks_inherit_the_owner() -> None:
    async def inner() -> object:
        return owner_in()

    async def request(owner: str) -> object:
        set_owner(owner)
        return await asyncio.create_task(inner())

    assert owner_in() is None
    assert await asyncio.gather(*[asyncio.create_task(request(owner)) for owner in "ab"]) == ["a", "b"]
    assert owner_in() is None
    context = contextvars.copy_context()
    context.run(set_owner, "c")
    assert owner_in(context) == "c"


@pytest.mark.parametrize("small", [False, True])
async def test_only_small_work_runs_on_the_loop(small: bool) -> None:
    async with asyncpq.Session() as session:
        thread = await in_thread(session, threading.current_thread, small=small)
    assert (thread is threading.current_thread()) == small


def test_one_loop_comes_before_threads_in_the_block() -> None:
    before = FairThreads.niceness
    with loop_first(3) as selector:
        assert (FairThreads.loop_first, FairThreads.niceness) == (selector, 3)
    assert (FairThreads.loop_first, FairThreads.niceness) == (None, before)


async def test_a_watcher_gets_the_events_of_its_block() -> None:
    events: list[Event] = []
    async with asyncpq.Session() as session:
        with watched(session, events.append), pytest.raises(asyncpq.ObjectNotFoundError):
            await session.open_file("/none/a.parquet")
        seen = len(events)
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await session.open_file("/none/a.parquet")
    assert seen == len(events) > 0
