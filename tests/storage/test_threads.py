"""A store's threads: they end with it, closing waits without stopping the event loop, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from asyncpq.errors import UsageError
from asyncpq.storage.threads import Threads, _Calls, result_of, work_owner


async def test_closing_waits_for_what_runs_and_keeps_the_loop_going() -> None:
    threads = Threads(2, "asyncpq-test")
    release = threading.Event()
    running = threads.start(release.wait, 10)
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(threads.close())
    started = time.monotonic()
    await asyncio.sleep(0.05)
    assert not closing.done()
    assert time.monotonic() - started < 9  # what runs takes ten
    release.set()
    await closing
    assert running.done()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncpq-test")]
    await threads.close()


async def test_results_and_errors() -> None:
    threads = Threads(1, "asyncpq-test")
    assert await threads.start(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.start(divmod, 7, 0)
    await threads.close()


async def test_an_error_that_nobody_waits_for_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    threads = Threads(1, "asyncpq-test")
    waiting = asyncio.ensure_future(asyncio.shield(threads.start(divmod, 7, 0)))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await threads.close()
    assert not caplog.records


def running(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]


async def until_none_run(name: str) -> None:
    async with asyncio.timeout(20):
        while running(name):  # noqa: ASYNC110  # threads set no event when they end
            await asyncio.sleep(0.005)


async def test_a_call_that_does_not_end_is_left_to_its_thread() -> None:
    threads = Threads(1, "asyncpq-hung")
    begun, release = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        release.wait(60)

    hung, queued = threads.start(hang), threads.start(divmod, 7, 3)
    await asyncio.to_thread(begun.wait, 20)
    try:
        async with asyncio.timeout(20):
            await threads.close(timeout_s=0.01)
            await asyncio.wait((hung, queued))
        assert hung.cancelled()
        assert queued.cancelled()
        assert running("asyncpq-hung")
        with pytest.raises(RuntimeError):
            threads.start(divmod, 7, 3)
    finally:
        release.set()
    await until_none_run("asyncpq-hung")


async def test_who_waits_is_told_that_the_threads_were_closed() -> None:
    """A caller that nobody has cancelled gets no CancelledError."""
    threads = Threads(1, "asyncpq-closed")
    release = threading.Event()
    threads.start(release.wait, 60)
    waiting = asyncio.ensure_future(result_of(threads.start(divmod, 7, 3)))
    given_up = asyncio.ensure_future(result_of(threads.start(divmod, 7, 3)))
    await asyncio.sleep(0)
    given_up.cancel()
    closing = asyncio.ensure_future(threads.close())
    await asyncio.wait((waiting, given_up), timeout=20)
    release.set()
    await closing
    with pytest.raises(UsageError, match="closed"):
        waiting.result()
    assert given_up.cancelled()


async def test_whoever_gives_up_keeps_no_other_waiting() -> None:
    """Nor does closing forget the call that nobody waits for."""
    threads = Threads(2, "asyncpq-given-up")
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(60)
        done.set()

    given_up = threads.start(work)
    await asyncio.to_thread(begun.wait, 20)
    given_up.cancel()
    async with asyncio.timeout(20):
        assert await threads.start(divmod, 7, 3) == (2, 1)
    closing = asyncio.create_task(threads.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    release.set()
    await closing
    assert done.is_set()
    assert not running("asyncpq-given-up")


async def test_no_more_threads_than_are_needed() -> None:
    threads = Threads(3, "asyncpq-few")
    for _ in range(20):
        await threads.start(divmod, 7, 3)
        await asyncio.sleep(0.001)
    assert len(running("asyncpq-few")) <= 2
    await asyncio.gather(*(threads.start(time.sleep, 0.001) for _ in range(20)))
    assert len(running("asyncpq-few")) <= 3
    await threads.close()


async def test_owners_have_their_turns_one_after_the_other() -> None:
    threads, order, begin = Threads(1, "asyncpq-owners"), list[str](), threading.Event()

    async def call(owner: str) -> None:
        work_owner.set(owner)
        await threads.start(order.append, owner)

    first = threads.start(begin.wait)
    calls = [asyncio.ensure_future(call(owner)) for owner in "a" * 6 + "bb" + "c"]
    await asyncio.sleep(0)
    begin.set()
    await asyncio.gather(first, *calls)
    assert "".join(order) == "abcabaaaa"
    await threads.close()


async def test_threads_that_nobody_has_end() -> None:
    threads = Threads(2, "asyncpq-dropped")
    await threads.start(divmod, 7, 3)
    del threads
    await until_none_run("asyncpq-dropped")


def test_a_thread_that_comes_too_late_for_dropped_calls_ends() -> None:
    calls = _Calls()
    calls.put((Future(), int))
    calls.drop()  # as :meth:`Threads.close` does once a thread has its ticket
    assert calls.get(block=True) is None


async def test_a_finalizer_takes_no_lock() -> None:
    """The garbage collector may call it in a thread that has the lock."""
    threads = Threads(1, "asyncpq-locked")
    await threads.start(divmod, 7, 3)
    with threads._calls._lock:
        del threads
        gc.collect()
    await until_none_run("asyncpq-locked")


def test_a_process_ends_though_a_call_does_not() -> None:
    program = """
import asyncio, threading
from asyncpq.storage.threads import Threads, _Calls, work_owner

async def main():
    threads = Threads(1, "asyncpq-hung")
    begun = threading.Event()
    threads.start(lambda: (begun.set(), threading.Event().wait()))
    await asyncio.to_thread(begun.wait)
    await threads.close(timeout_s=0.01)

asyncio.run(main())
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")
