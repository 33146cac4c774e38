"""Calls of foreign coroutines, which may swallow their cancellation.

adlfs and other filesystems of fsspec do so while their host is silent: they catch the cancellation with other errors,
and try again. So each call runs in a task of its own. Its waiter cancels that task, gives it a short time to end, and
then leaves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from asyncpq.errors import closed_while_reading
from asyncpq.storage.threads import CLOSE_S

T = TypeVar("T")

LEAVE_S: Final = 0.5  # a call has so long to end after its cancellation


class ForeignCalls:
    """Runs coroutines of one store's client, and ends the wait for them in bounded time. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Task[Any], asyncio.Future[None]] = {}  # of the calls that have not ended
        self._closed = False

    async def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        check_s: float | None = None,
    ) -> T:
        """Run ``work`` as a task, and return its result. The waiter's cancellation cancels it, and is raised once it
        has ended, after ``LEAVE_S`` seconds at the latest.

        ``check`` is awaited after each ``check_s`` seconds of ``work``. An error that it raises ends ``work`` like a
        cancellation.

        Raises:
            UsageError: the store was closed.
            ConnectionAbortedError: the client cancelled its own call.
        """
        if self._closed:
            work.close()
            raise closed_while_reading()
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        _hide(task)  # the end of the loop cancels the waiter, which leaves the task
        self._waiters[task] = ended = loop.create_future()
        task.add_done_callback(self._end)
        try:
            while check is not None and not (await asyncio.wait((ended,), timeout=check_s))[0]:
                await check()
            await ended
        except BaseException:
            task.cancel()
            await asyncio.wait((task,), timeout=LEAVE_S)
            raise
        if task.done() and not task.cancelled():
            return task.result()
        if self._closed:
            raise closed_while_reading()
        raise ConnectionAbortedError("the client cancelled its own call")

    async def close(self) -> None:
        """Cancel the calls, and end the waits for them. Idempotent. Calls that do not end within ``CLOSE_S`` seconds
        are left."""
        self._closed = True
        tasks = list(self._waiters)
        for task in tasks:
            task.cancel()
            self._wake(task)
        await end(tasks)

    def _wake(self, task: asyncio.Task[Any]) -> None:
        waiter = self._waiters[task]
        if not waiter.done():
            waiter.set_result(None)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._wake(task)
        del self._waiters[task]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until tasks have ended, for at most ``CLOSE_S`` seconds. Those that are left hold neither the end of the
    event loop nor that of the process."""
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=CLOSE_S)
    for task in left:
        _hide(task)


def _hide(task: asyncio.Task[Any]) -> None:
    """Keep ``asyncio.run`` from waiting for a task's end: it would wait for each task that it knows, and asyncio would
    complain of one that is collected before its end."""
    asyncio._unregister_task(task)  # noqa: SLF001  # documented, in "Extending"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # as asyncio does with its own
