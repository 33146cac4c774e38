"""Event loops in threads: calls from other threads, their errors and interrupts, and the ends of loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpq.errors import UsageError
from asyncpq.objects import loop_threads
from asyncpq.objects.loop_threads import LoopCall, Portal, post, runs, wait_in

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="none")


@pytest.fixture
def portal() -> Iterator[Portal]:
    opened = Portal("loop of a test")
    yield opened
    opened.close()


async def thread_name() -> str:
    return threading.current_thread().name


async def word() -> str:
    return WORD.get()


async def fails() -> None:
    raise ZeroDivisionError("of the coroutine")


async def nothing() -> None: ...


def eventually(condition: Any) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


# -- calls ----------------------------------------------------------------------------------------


def test_a_call_runs_in_the_loop_s_thread_and_in_the_caller_s_context(portal: Portal) -> None:
    assert portal.call(thread_name()) == "loop of a test"
    token = WORD.set("the caller's")
    try:
        assert portal.call(word()) == "the caller's"
    finally:
        WORD.reset(token)
    assert portal.call(word()) == "none"


def test_a_call_raises_what_its_coroutine_raised(portal: Portal) -> None:
    with pytest.raises(ZeroDivisionError, match="of the coroutine"):
        portal.call(fails())
    assert portal.call(thread_name()) == "loop of a test", "the loop goes on"


def test_calls_of_many_threads_at_once(portal: Portal) -> None:
    meeting = 20
    begun, met = 0, asyncio.Event()

    async def meet() -> int:
        nonlocal begun
        begun += 1
        own = begun
        if begun == meeting:
            met.set()
        await met.wait()
        return own

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(portal.call(meet()))) for _ in range(meeting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(1, meeting + 1))


def test_an_interrupt_of_the_wait_cancels_the_coroutine(portal: Portal) -> None:
    cancelled = threading.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LoopCall(portal.loop, long()).result(look)
    assert looks == 1
    assert cancelled.wait(30)


def test_a_cancelled_coroutine_is_an_error_of_the_call(portal: Portal) -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(UsageError, match="has ended"):
        portal.call(cancels_itself())


def test_a_call_that_is_cancelled_before_it_begins_does_not_begin(portal: Portal) -> None:
    hold, held = threading.Event(), threading.Event()

    def block() -> None:
        held.set()
        hold.wait(30)

    portal.loop.call_soon_threadsafe(block)
    assert held.wait(30)
    call = LoopCall(portal.loop, nothing())
    call.cancel()
    hold.set()
    portal.call(nothing())
    assert not call.begun


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("late", [False, True])
def test_what_ends_an_event_loop_ends_the_call_and_not_the_loop(
    portal: Portal, error: type[BaseException], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the coroutine ends before its call is among those that wait."""
    if late:

        class Calls(set[Any]):
            def add(self, call: Any) -> None:
                eventually(lambda: portal.thread._unseen is not None)
                super().add(call)

        monkeypatch.setattr(portal.thread, "_calls", Calls())

    async def ends() -> None:
        raise error("once")

    with pytest.raises(error, match="once"):
        portal.call(ends())
    monkeypatch.undo()
    assert portal.call(thread_name()) == "loop of a test"


def test_an_interrupt_that_no_call_waited_for_is_raised_by_the_next(portal: Portal) -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt("unseen")

    portal.post(interrupt)
    eventually(lambda: portal.thread._unseen is not None)
    with pytest.raises(KeyboardInterrupt, match="unseen"):
        portal.call(nothing())
    portal.call(nothing())


# -- ends -----------------------------------------------------------------------------------------


def test_a_closed_portal_refuses_calls_and_its_thread_is_gone() -> None:
    ended: list[str] = []

    async def end() -> None:
        ended.append(threading.current_thread().name)

    portal = Portal("to close", end)
    thread = portal.thread.thread
    portal.close()
    portal.close()
    assert ended == ["to close"]
    assert portal.closed
    assert not thread.is_alive()
    with pytest.raises(UsageError, match="is closed"):
        portal.call(nothing())
    portal.post(nothing)  # does nothing
    portal.finish(nothing)


def test_the_error_of_an_end_is_raised_once_the_loop_has_ended() -> None:
    portal = Portal(end=fails)
    with pytest.raises(ZeroDivisionError):
        portal.close()
    assert portal.closed
    eventually(lambda: not portal.thread.thread.is_alive())


def test_portals_share_a_thread_until_the_last_is_closed() -> None:
    first = Portal()
    second = Portal(beside=first)
    assert first.loop is second.loop
    first.close()
    assert first.closed
    assert second.call(thread_name()) == "asyncpq-blocking"
    second.close()
    assert not second.thread.thread.is_alive()


def test_what_users_started_in_the_loop_is_cancelled_at_its_end() -> None:
    portal, seen = Portal(), list[str]()

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    portal.post(background)
    portal.call(asyncio.sleep(0))
    portal.close()
    assert seen == ["cancelled"]


def test_a_call_in_its_own_loop_is_an_error(portal: Portal) -> None:
    async def calls_itself() -> None:
        portal.call(nothing())

    with pytest.raises(UsageError, match="event loop of its own session"):
        portal.call(calls_itself())


def test_an_end_in_the_loop_s_own_thread_is_posted(portal: Portal) -> None:
    """As by a finalizer that the garbage collector runs there."""
    ended = threading.Event()

    async def end() -> None:
        ended.set()

    async def collects() -> bool:
        portal.finish(end)
        return ended.is_set()

    assert not portal.call(collects())
    assert ended.wait(30)


# -- loops of users -------------------------------------------------------------------------------


async def test_a_thread_waits_in_a_loop_that_runs() -> None:
    loop = asyncio.get_running_loop()
    assert runs(loop)
    name = threading.current_thread().name
    assert await asyncio.to_thread(wait_in, loop, thread_name()) == name
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(wait_in, loop, fails())


def test_a_loop_that_has_ended_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_threads, "_LOOK_S", 0.01)
    loop = asyncio.new_event_loop()
    with pytest.raises(UsageError, match="has ended"):
        wait_in(loop, nothing())  # it does not run
    loop.run_until_complete(asyncio.sleep(0))  # cancels the coroutine
    loop.close()
    assert not runs(loop)
    with pytest.raises(UsageError, match="has ended"):
        wait_in(loop, nothing())
    post(loop, nothing)  # nothing is left to end
    gc.collect()


def test_open_loops_end_before_the_process_does() -> None:
    """Their ends are awaited, and a daemon thread that waits gets no traceback."""
    script = """
import asyncio, threading, time
from asyncpq.objects.loop_threads import Portal

async def end():
    await asyncio.sleep(0.01)
    print("ended", flush=True)

portal = Portal(end=end)
threading.Thread(target=lambda: portal.call(asyncio.sleep(3600)), daemon=True).start()
portal.call(asyncio.sleep(0.01))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")
