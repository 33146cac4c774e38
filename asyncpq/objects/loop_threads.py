"""Event loops in threads: other threads run coroutines in them, wait for them, and end them.

Every wait looks whether its loop still runs, so that it ends with an error if the loop's thread is gone. Finalizers,
which the garbage collector runs in any thread, only post. At exit, the loops that are open end before the interpreter
stops their threads.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from asyncpq.errors import UsageError
from asyncpq.storage.threads import CLOSE_S, start_thread

T = TypeVar("T")

_QUIET: Final = 2  # looks that find no thread that reads
_QUIET_S: Final = 0.01
_LOOK_S: Final = 1.0  # how often a wait looks whether its event loop still runs


class LoopCall(Generic[T]):
    """The coroutine ``work``, run in ``loop``, which runs in another thread, and waited for in this one.

    The waiting thread holds no lock: a finalizer that runs in it may wait itself, which the locks of
    :class:`concurrent.futures.Future` would not survive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.begun: bool = False
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._error: BaseException | None = None
        self._cancelled = False
        self._waiting = threading.Lock()  # until the end
        self._waiting.acquire()
        try:
            # in the caller's context: what it measures, and its span, are those of the call
            loop.call_soon_threadsafe(self._begin, context=copy_context())
        except RuntimeError:  # it was closed since
            work.close()
            self.fail(ended_error())

    def result(self, look: Callable[[], None]) -> T:
        """Wait for the result. ``look`` is called each second, and raises if the wait is in vain.

        Raises:
            UsageError: the coroutine was cancelled, as by the end of its session.
            BaseException: what the coroutine raised. An interrupt of the wait cancels the coroutine.
        """
        global _foreign_waited
        _foreign_waited = _foreign_waited or _is_foreign()
        try:
            while not self._waiting.acquire(timeout=_LOOK_S):
                look()
            if self._error is not None:
                raise self._error
            assert self._task is not None, "it has ended"
            if self._task.cancelled():
                raise ended_error()
            return self._task.result()
        except BaseException:
            self.cancel()
            raise
        finally:
            del self  # the error's traceback has this frame, and the task has the error

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the coroutine, for at most ``timeout_s`` seconds."""
        if self._waiting.acquire(timeout=max(0.0, timeout_s)):
            self._waiting.release()

    def cancel(self) -> None:
        """Cancel the coroutine, without waiting. Does nothing if it has ended."""
        self._cancelled = True
        if self._task is None or not self._task.done():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def fail(self, error: BaseException) -> None:
        """End the wait with ``error``. Called in the loop's thread, or once it has ended."""
        if self._waiting.locked():
            self._error = error
            self._waiting.release()

    def _begin(self) -> None:
        if self._cancelled:
            self._work.close()
            return
        self.begun = True
        self._task = task = self._loop.create_task(self._work)
        task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        if self._waiting.locked():
            self._waiting.release()


class LoopThread:
    """A daemon thread that runs an event loop until its last :class:`Portal` is closed.

    KeyboardInterrupt and SystemExit, which end an event loop, are raised by the calls that wait, or by the next call.
    The loop goes on, so that the session can be closed.
    """

    def __init__(self, name: str) -> None:
        self.process: int = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.portals: list[Portal] = []
        self._calls: set[LoopCall[Any]] = set()  # that are waited for
        self._raised: BaseException | None = None  # the last one that ended the loop
        self._unseen: BaseException | None = None  # nothing has waited for it
        self._over = False
        self.refused: bool = False
        self.thread: threading.Thread = threading.Thread(
            target=self._run, args=(threading.get_native_id(),), name=name, daemon=True
        )
        try:
            start_thread(self.thread)
        except UsageError:
            self.loop.close()
            raise

    @property
    def lives(self) -> bool:
        """Whether the loop runs, in this process."""
        return not (self._over or sys.is_finalizing() or self.process != os.getpid()) and self.thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, wait, and return its result."""
        if self._unseen is not None:
            error, self._unseen = self._unseen, None
            work.close()
            raise error
        call = LoopCall(self.loop, work)
        self._calls.add(call)
        try:
            return call.result(self._look)
        except (KeyboardInterrupt, SystemExit) as error:
            self._forget(error)
            raise
        finally:
            self._calls.discard(call)
            del call  # it has the error, whose traceback has this frame

    def _forget(self, error: BaseException) -> None:
        """Note that a call raises what ended the loop before the call was in ``_calls``."""
        if self._unseen is error:
            self._unseen = None

    async def leave(self, portals: Sequence[Portal]) -> None:
        """End portals, and the loop with the last one. Raises the first error of the portals."""
        try:
            errors = await asyncio.gather(*[portal.end() for portal in portals], return_exceptions=True)
            for error in errors:
                if error is not None:
                    raise error
        finally:
            left = [portal for portal in portals if portal in self.portals]
            for portal in left:
                self.portals.remove(portal)
            if left and not self.portals:
                self.loop.call_soon(self.loop.stop)  # after this task has ended

    def _look(self) -> None:
        if not self.lives:
            raise ended_error()

    def _run(self, maker: int) -> None:
        """Run the loop. ``maker``: the system's id of the thread that made this one; the same for a green thread."""
        self.refused = threading.get_native_id() == maker and _a_loop_runs()
        try:
            if not self.refused:
                _open.append(self)
                self._run_forever()
                self.loop.run_until_complete(self._finish())
        finally:
            self._over = True
            with suppress(ValueError):
                _open.remove(self)
            for call in list(self._calls):
                call.fail(ended_error())
            self.loop.close()

    def _run_forever(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                self._ended_by(error)
            else:
                return

    async def _finish(self) -> None:
        """End what users have started in the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        with suppress(RuntimeError):  # at exit no thread starts
            await self.loop.shutdown_default_executor()

    def _ended_by(self, error: BaseException) -> None:
        if error is self._raised:  # again, by a task that awaited the first one
            return
        self._raised = error
        calls = list(self._calls)
        if not calls:
            self._unseen = error
        for call in calls:
            call.fail(error)


def _loop_thread(name: str) -> LoopThread:
    """Return a new thread, or the one that runs a loop already where threads are green (gevent, eventlet): they are all
    one thread of the system, which can run one loop."""
    thread = _green_thread() or LoopThread(name)
    if not thread.refused:
        return thread
    other = _green_thread()
    if other is None:
        raise UsageError(
            "an event loop runs in this thread already, and its threads are green, so that no other loop can run",
            hint="Use asyncpq.Session in that event loop.",
        )
    return other


def _green_thread() -> LoopThread | None:
    """Return a thread that runs a loop and is green like this one; None if there is none."""
    own = threading.get_native_id()
    return next((thread for thread in list(_open) if thread.lives and thread.thread.native_id == own), None)


class Portal:
    """An event loop in another thread, in which threads run coroutines. It has a thread of its own, except beside
    another portal, whose thread it shares, and among green threads.

    ``end()`` is awaited in the loop when the portal is closed, or at exit.
    """

    def __init__(
        self,
        name: str = "asyncpq-blocking",
        end: Callable[[], Coroutine[Any, Any, None]] | None = None,
        *,
        beside: Portal | None = None,
    ) -> None:
        self.end: Callable[[], Coroutine[Any, Any, None]] = end or _nothing
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()  # that were begun through this portal
        self.thread: LoopThread = _loop_thread(name) if beside is None else beside.thread
        self.thread.portals.append(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self.thread.loop

    @property
    def closed(self) -> bool:
        """Whether the portal is closed, or the loop's thread has ended, or does not exist in this forked process."""
        return self not in self.thread.portals or not self.thread.lives

    def check(self) -> None:
        """Raise UsageError if the portal is closed, its loop runs in this thread, or it belongs to another process."""
        if self.thread.process != os.getpid():  # the loop's thread does not exist here, so a call would not end
            raise UsageError(
                "a blocking session belongs to the process that made it", hint="Make a new session after a fork."
            )
        if self.closed:
            raise UsageError(
                "the session is closed",
                hint="Use files and scans inside `with asyncpq.blocking.Session() as session:`.",
            )
        if threading.current_thread() is self.thread.thread:
            raise UsageError(
                "a blocking method was called in the event loop of its own session",
                hint="Call it from another thread, or await the method of its `asynchronous` object.",
            )

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine ``work`` in the loop, wait, and return its result. An interrupt cancels ``work``.

        At exit, it ends the calls of daemon threads in silence, by SystemExit.
        """
        try:
            try:
                self.check()
            except UsageError:
                work.close()
                raise
            return self.thread.call(work)
        except Exception as error:
            if _exiting and threading.current_thread().daemon and not _is_foreign():
                raise SystemExit from error
            raise

    def post(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the coroutine ``work()`` in the loop, and return without waiting. Does nothing if the portal is
        closed. Used by finalizers."""
        if not self.closed:
            post(self.thread.loop, work)

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine ``work()``, which ends something, and wait. Does nothing if the portal is closed.

        In a thread that runs a loop it is only posted, for finalizers.
        """
        if _in_loop_thread():
            self.post(work)
        elif not self.closed:
            try:
                self.call(work())
            except UsageError:
                if not self.closed:  # by another thread meanwhile
                    raise

    async def leave(self) -> None:
        """Close the portal from within its loop."""
        await self.thread.leave([self])

    def close(self) -> None:
        """Await ``end()``, and end the loop and its thread if nothing else uses them. Idempotent."""
        try:
            self.finish(self.leave)
        finally:
            if self.closed and not self.thread.portals and not _in_loop_thread():
                self.thread.thread.join(CLOSE_S)


async def _nothing() -> None: ...


def _in_loop_thread() -> bool:
    """Return whether this thread runs a loop. A finalizer may run in any thread."""
    current = threading.current_thread()
    return any(current is thread.thread for thread in list(_open))


def _is_foreign(thread: threading.Thread | None = None) -> bool:
    """Return whether Python did not start a thread, by default this one. Of such threads, threading has dummies."""
    return type(thread or threading.current_thread()).__name__ == "_DummyThread"


def _foreign_threads_read() -> bool:
    """Return whether a thread that Python did not start, such as DuckDB's, runs code of asyncpq."""
    own = {thread.ident for thread in threading.enumerate() if not _is_foreign(thread)}
    frames = [frame for ident, frame in sys._current_frames().items() if ident not in own]  # noqa: SLF001  # documented
    here = inspect.currentframe()
    return any(_reads(frame, here) for frame in frames)


def _reads(frame: FrameType | None, here: FrameType | None) -> bool:
    reads = False
    while frame is not None:
        if frame is here:  # a green thread has another number than its thread
            return False
        reads = reads or frame.f_globals.get("__name__", "").startswith("asyncpq.")
        frame = frame.f_back
    return reads


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def wait_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine ``work`` in ``loop``, which runs in another thread, wait, and return its result. An interrupt
    of the wait, such as Ctrl-C, cancels the coroutine.

    Raises:
        UsageError: the loop has ended, or ends during the call, as at the end of the process.
    """

    def look() -> None:
        if not runs(loop):
            raise ended_error()

    if sys.is_finalizing():
        work.close()
        raise ended_error()
    return LoopCall(loop, work).result(look)


def runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop runs; no thread does, once the interpreter ends."""
    return loop.is_running() and not sys.is_finalizing()


def post(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Schedule the coroutine that ``work`` returns in ``loop``, without waiting. For finalizers, which may run in any
    thread."""

    def start() -> None:
        task = loop.create_task(work())
        _posted.add(task)
        task.add_done_callback(_posted.discard)

    with suppress(RuntimeError):  # it was closed since: nothing is left to end
        loop.call_soon_threadsafe(start)


def ended_error() -> UsageError:
    """Return the error of a call whose event loop has ended."""
    return UsageError(
        "the event loop that runs this read has ended", hint="Read while the session and its event loop are open."
    )


def _end_all() -> None:
    """End the loops of this process, as far as they end in time. Called at exit, once all other threads that are no
    daemons have ended."""
    global _exiting
    _exiting = True
    ends_at = time.monotonic() + CLOSE_S
    threads = [thread for thread in list(_open) if thread.lives]
    for call in [LoopCall(thread.loop, thread.leave(list(thread.portals))) for thread in threads]:
        call.wait(ends_at - time.monotonic())
    for thread in threads:
        thread.thread.join(max(0.0, ends_at - time.monotonic()))
    # The interpreter would end DuckDB's threads in the midst of C++ code, which aborts the process. They may still read
    # ahead though their query has ended; those that have waited get an error now.
    quiet = 0 if _foreign_waited else _QUIET
    while quiet < _QUIET and time.monotonic() < ends_at:
        time.sleep(_QUIET_S)
        quiet = 0 if _foreign_threads_read() else quiet + 1


_exiting = False
_foreign_waited = False  # a thread that Python did not start
_open: list[LoopThread] = []
_posted: set[asyncio.Task[None]] = set()
atexit.register(_end_all)
