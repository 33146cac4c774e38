"""A store's threads: they end with it, and closing waits without stopping the event loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from asyncpq.storage.threads import Threads


async def test_closing_waits_for_what_runs_and_keeps_the_loop_going() -> None:
    threads = Threads(2, "asyncpq-test")
    release = threading.Event()
    running = threads.start(release.wait, 10)
    await asyncio.sleep(0.02)
    closing = asyncio.create_task(threads.close())
    started = time.monotonic()
    await asyncio.sleep(0.05)
    assert not closing.done()
    assert time.monotonic() - started < 1
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
