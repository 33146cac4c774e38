"""Spark is asked in the thread that called: its job groups, tags and interrupts are of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallerThread:
    """Runs in the caller's thread what a coroutine of another thread's loop asks for."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._left = False

    async def call(self, work: Callable[[], T]) -> T:
        """What ``work`` gives there.

        Raises:
            asyncio.CancelledError: the caller was interrupted, and is not there any more.
        """
        if self._left:
            raise asyncio.CancelledError
        future: Future[T] = Future()
        self._asked.put((future, work))
        return await asyncio.wrap_future(future)

    def serve(self, main: Callable[[], T]) -> T:
        """What ``main`` gives, which runs in another thread and has coroutines that :meth:`call`.

        Raises:
            BaseException: as ``main`` does; or an interrupt, once ``main`` has ended.
        """
        with ThreadPoolExecutor(1, "asyncpq-spark") as pool:
            done = pool.submit(main)
            done.add_done_callback(lambda _: self._asked.put(None))
            try:
                while (asked := self._asked.get()) is not None:
                    self._answer(*asked)
            except BaseException:
                self._left = True
                while not done.done() or not self._asked.empty():
                    if (asked := self._asked.get()) is not None:
                        asked[0].cancel()
                raise
            return done.result()

    @staticmethod
    def _answer(future: Future[Any], work: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            if isinstance(error, Exception):
                future.set_exception(error)
            else:  # an interrupt is the caller's, and ends the build, too
                future.set_exception(asyncio.CancelledError())
                raise
        else:
            future.set_result(result)
