"""Coroutines of a foreign client, whose waits end in bounded time.

adlfs and other filesystems of fsspec swallow their cancellation while their host is silent: they catch it with other
errors, and try again. So each call runs in a task of its own (``ForeignCall``). Its waiter cancels that task, gives it
a short time to end, and then leaves the call: its next wait is its last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from asyncpq.errors import closed_while_reading
from asyncpq.storage.threads import CLOSE_S
from asyncpq.waiting import wait_futures

LEAVE_S: Final = 0.5  # a call has so long to end after its cancellation

T = TypeVar("T")


class ForeignCall(Generic[T]):
    """A coroutine of a client, run by ``task`` until it ends or is left.

    The coroutine's waits pass through :meth:`__await__`. Once the call is left, a cancellation ends the task there
    and does not reach the client, which could swallow it.
    """

    def __init__(self, work: Awaitable[T]) -> None:
        self._steps: Generator[Any, Any, T] = work.__await__()
        self._is_left = False
        self.task: asyncio.Task[T] = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._close)

    def _close(self, task: asyncio.Task[T]) -> None:
        with suppress(Exception):  # a client that was left may swallow this, too
            self._steps.close()

    async def _run(self) -> T:
        return await self

    def __await__(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            try:
                awaited = next(self._steps) if error is None else self._steps.throw(error)
            except StopIteration as ended:
                result: T = ended.value
                return result
            try:
                yield awaited
                error = None
            except BaseException as thrown:
                if self._is_left or isinstance(thrown, GeneratorExit):
                    raise
                error = thrown

    async def end(self, timeout_s: float) -> None:
        """Wait until the call has ended. After ``timeout_s`` seconds it is left: the task ends, and the client's
        coroutine is closed where it waits. (If it waits for tasks of its own, only once these have ended.)"""
        try:
            await wait_futures((self.task,), timeout=timeout_s)
        finally:
            self._is_left = True
            self.task.cancel()
        await wait_futures((self.task,), timeout=LEAVE_S)


class ForeignCalls:
    """Runs coroutines of one store's client, and ends the wait for them in bounded time. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[ForeignCall[Any], asyncio.Future[None]] = {}  # of the calls that have not ended
        self._closed = False

    async def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        check_s: float | None = None,
    ) -> T:
        """Run ``work`` as a task, and return its result. The waiter's cancellation cancels it, and is raised once it
        has ended, or was left after ``LEAVE_S`` seconds.

        ``check`` is awaited after each ``check_s`` seconds of ``work``. An error that it raises ends ``work`` like a
        cancellation.

        Raises:
            UsageError: the store was closed.
            ConnectionAbortedError: the client cancelled its own call.
        """
        if self._closed:
            work.close()
            raise closed_while_reading()
        call = ForeignCall(work)
        task = call.task
        self._waiters[call] = ended = task.get_loop().create_future()
        task.add_done_callback(partial(self._end, call))
        try:
            while check is not None and not (await wait_futures((ended,), timeout=check_s))[0]:
                await check()
            await ended
        except BaseException:
            task.cancel()
            await call.end(LEAVE_S)
            raise
        if task.done() and not task.cancelled():
            return task.result()
        if self._closed:
            raise closed_while_reading()
        raise ConnectionAbortedError("the client cancelled its own call")

    async def close(self) -> None:
        """Cancel the calls, and end the waits for them. Idempotent. Calls that go on after ``CLOSE_S`` seconds are
        left."""
        self._closed = True
        calls = list(self._waiters)
        for call in calls:
            call.task.cancel()
            self._wake(call)
        await asyncio.gather(*[call.end(CLOSE_S) for call in calls])

    def _wake(self, call: ForeignCall[Any]) -> None:
        waiter = self._waiters[call]
        if not waiter.done():
            waiter.set_result(None)

    def _end(self, call: ForeignCall[Any], task: asyncio.Task[Any]) -> None:
        self._wake(call)
        del self._waiters[call]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
