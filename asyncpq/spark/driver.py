"""Spark is asked in the thread that called: its job groups, tags and interrupts are of a thread.

Settings of a Spark session, as they must be while something runs; calls may run at once, and end in any order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")


class _ThreadCall(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]
    on_leaving: bool


class CallerThread:
    """Runs in the caller's thread what a coroutine of another thread's loop asks for."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._left = self._gone = False  # as the caller's thread knows
        self._cancelled = False  # as the loop's does

    async def call(self, work: Callable[[], T], *, on_leaving: bool = False) -> T:
        """What ``work`` gives there.

        Args:
            on_leaving: it is done also for a coroutine that an interrupt has cancelled.

        Raises:
            asyncio.CancelledError: the caller was interrupted.
        """
        if self._gone or (self._cancelled and not on_leaving):
            raise asyncio.CancelledError
        future: Future[T] = Future()
        self._asked.put(_ThreadCall(future, work, on_leaving))
        return await asyncio.wrap_future(future)

    async def interruptible(self, work: Awaitable[T]) -> T:
        """What ``work`` gives, which is cancelled where the caller is interrupted. One at a time.

        Raises:
            asyncio.CancelledError: the caller was interrupted.
        """
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        try:
            if self._left:
                self._cancel(task)
            return await work
        finally:
            self._running = None

    def serve(self, main: Callable[[], T]) -> T:
        """What ``main`` gives, which runs in another thread and has an :meth:`interruptible` coroutine.

        Raises:
            BaseException: as ``main`` does; or an interrupt, once ``main`` has ended.
        """
        ended: Future[T] = Future()
        try:
            Thread(target=self._run, args=(main, ended), name="asyncpq-spark").start()
        except BaseException:  # perhaps it runs
            self._gone = True
            self._interrupt()
            raise
        try:
            self._answer()
        except BaseException:
            self._leave()
            raise
        return ended.result()

    def _run(self, main: Callable[[], T], ended: Future[T]) -> None:
        try:
            ended.set_result(main())
        except BaseException as error:  # noqa: BLE001  # it is the caller's
            ended.set_exception(error)
        self._asked.put(None)

    def _leave(self) -> None:
        """Cancel what runs, and do what it asks for on its way out, unless the caller is interrupted once more."""
        self._interrupt()
        try:
            self._answer()
        except BaseException:
            self._gone = True
            while (asked := self._asked.get()) is not None:
                asked.future.cancel()
            raise

    def _interrupt(self) -> None:
        self._left = True
        if (running := self._running) is not None:
            loop, task = running
            loop.call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """In the loop; once, lest what the coroutine does on its way out is cancelled, too."""
        if not self._cancelled:
            self._cancelled = True
            task.cancel()

    def _answer(self) -> None:
        while (asked := self._asked.get()) is not None:
            # on leaving, others get no answer: their coroutine is being cancelled
            if (asked.on_leaving or not self._left) and asked.future.set_running_or_notify_cancel():
                self._do(asked)

    def _do(self, asked: _ThreadCall) -> None:
        try:
            result = asked.work()
        except BaseException as error:
            if isinstance(error, Exception):
                asked.future.set_exception(error)
                return
            if self._left:  # else the coroutine is cancelled, once
                asked.future.set_exception(asyncio.CancelledError())
            raise
        else:
            asked.future.set_result(result)


@dataclass(eq=False)
class _Hold:
    """A setting as it was in a session before the first of its users."""

    spark: SparkSession
    name: str
    before: str | None
    users: int = 0


_holds: list[_Hold] = []
_lock = threading.Lock()


@contextmanager
def held_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings are so inside, for all threads of the session; behind the last one who wants that, as they were.

    Whoever holds a setting wants the same value: Spark has one for all. Nobody can tell whether two objects are of one
    session: who finds a value as it should be takes part in all holds of that setting.
    """
    mine: list[_Hold] = []
    try:
        with _lock:
            for name, value in wanted.items():
                mine += _held(spark, name, value)
        yield
    finally:
        with _lock:
            for hold in mine:
                hold.users -= 1
                if not hold.users:
                    _holds.remove(hold)
                    _restore(hold)


def _held(spark: SparkSession, name: str, value: str) -> list[_Hold]:
    before = spark.conf.get(name, None)
    found = [hold for hold in _holds if hold.name == name]
    if before != value:
        found = [_Hold(spark, name, before)]
        spark.conf.set(name, value)
        _holds.extend(found)
    for hold in found:
        hold.users += 1
    return found


def _restore(hold: _Hold) -> None:
    if hold.before is None:
        hold.spark.conf.unset(hold.name)
    else:
        hold.spark.conf.set(hold.name, hold.before)
