"""Calls of Spark on the driver: run work in the caller's thread, and change Spark settings for a while.

Spark's job groups, tags and interrupts belong to a thread, so Spark is called in the thread of asyncpq's caller.
Errors of a task reach the driver as the asyncpq error that the task raised.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from pyspark.errors import PySparkException

from asyncpq.errors import named_error

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


T = TypeVar("T")


class _ThreadCall(NamedTuple):
    future: Future[Any]
    work: Callable[[], Any]
    on_leaving: bool


class CallerThread:
    """Lets a coroutine, which runs in the event loop of another thread, run functions in its caller's thread."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._left = self._gone = False  # set by the caller's thread
        self._cancelled = False  # set by the loop's thread

    async def call(self, work: Callable[[], T], *, on_leaving: bool = False) -> T:
        """Run ``work`` in the caller's thread and return its result; CancelledError if the caller was interrupted.

        With ``on_leaving``, ``work`` runs even if an interrupt has cancelled the coroutine.
        """
        if self._gone or (self._cancelled and not on_leaving):
            raise asyncio.CancelledError
        future: Future[T] = Future()
        self._asked.put(_ThreadCall(future, work, on_leaving))
        return await asyncio.wrap_future(future)

    async def interruptible(self, work: Awaitable[T]) -> T:
        """Await ``work`` and return its result. An interrupt of the caller's thread cancels ``work``. Only one call
        may run at a time."""
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
        """Run ``main``, which awaits an :meth:`interruptible` coroutine, in another thread; return its result.

        An interrupt of the caller is raised after ``main`` has ended.
        """
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(main())
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                ended.set_exception(error)
            self._asked.put(None)

        try:
            Thread(target=run, name="asyncpq-spark").start()
        except BaseException:  # the thread may have started
            self._gone = True
            self._interrupt()
            raise
        try:
            self._answer()
        except BaseException:  # cancel the coroutine, and run what it asks for while it ends
            self._interrupt()
            try:
                self._answer()
            except BaseException:  # a second interrupt stops that as well
                self._gone = True
                while (asked := self._asked.get()) is not None:
                    asked.future.cancel()
                raise
            raise
        return ended.result()

    def _interrupt(self) -> None:
        self._left = True
        if (running := self._running) is not None:
            loop, task = running
            loop.call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel ``task``; must run in the loop's thread. Later calls do nothing, because a second one would cancel
        the cleanup."""
        if not self._cancelled:
            self._cancelled = True
            task.cancel()

    def _answer(self) -> None:
        while (asked := self._asked.get()) is not None:
            # after an interrupt other calls get no result, since their coroutine is cancelled
            if (asked.on_leaving or not self._left) and asked.future.set_running_or_notify_cancel():
                self._do(asked)

    def _do(self, asked: _ThreadCall) -> None:
        try:
            asked.future.set_result(asked.work())
        except Exception as error:  # noqa: BLE001  # raised in the coroutine
            asked.future.set_exception(error)
        except BaseException:
            if self._left:  # otherwise serve() cancels the coroutine
                asked.future.set_exception(asyncio.CancelledError())
            raise


@dataclass(eq=False)
class _Hold:
    """A Spark setting that was changed for a while: the value from before the first user changed it, and the number
    of users."""

    spark: SparkSession
    name: str
    before: str | None
    users: int = 0


_holds: list[_Hold] = []
_lock = threading.Lock()


_DESCRIPTION: Final = "spark.job.description"


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the session's SparkContext; None in Spark Connect, which has none."""
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001  # Spark Connect raises errors of several kinds
        return None


@contextmanager
def described_jobs(spark: SparkSession, text: str) -> Iterator[None]:
    """Give the Spark jobs that the ``with`` block starts the description ``text`` in Spark's UI, unless the caller
    has set one. Does nothing in Spark Connect, which has no descriptions of jobs."""
    context = context_of(spark)
    if context is None or context.getLocalProperty(_DESCRIPTION) is not None:
        yield
        return
    context.setLocalProperty(_DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, cast(str, None))  # PySpark's stub forbids None, which removes it


@contextmanager
def held_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set the Spark settings ``wanted`` for all threads of the session during the ``with`` block; restore them after.

    All concurrent users of a setting must pass the same value. Two SparkSession objects may be the same session, which
    PySpark does not reveal: a caller that finds its value already set counts as a user of every change of that setting.
    """
    mine: list[_Hold] = []
    try:
        with _lock:
            for name, value in wanted.items():
                before = spark.conf.get(name, None)
                holds = [hold for hold in _holds if hold.name == name]
                if before != value:
                    holds = [_Hold(spark, name, before)]
                    spark.conf.set(name, value)
                    _holds.extend(holds)
                for hold in holds:
                    hold.users += 1
                mine += holds
        yield
    finally:
        with _lock:
            for hold in mine:
                hold.users -= 1
                if hold.users:
                    continue
                _holds.remove(hold)
                if hold.before is None:
                    hold.spark.conf.unset(hold.name)
                else:
                    hold.spark.conf.set(hold.name, hold.before)


#: The last line of a traceback in an error message of Spark.
_RAISED: Final = re.compile(r"^(?:\s*\S*: )?asyncpq\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def raised_as_asyncpq() -> Iterator[None]:
    """If a task failed with an AsyncpqError, raise that instead of the Spark error which the ``with`` block raises.
    Other errors pass unchanged."""
    try:
        yield
    except PySparkException as failed:
        raised = list(_RAISED.finditer(str(failed)))
        if not raised:
            raise
        raise named_error(raised[-1][1], raised[-1][2]) from failed
