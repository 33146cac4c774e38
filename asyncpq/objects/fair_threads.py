"""Threads that share processors fairly between owners, and stop work whose caller has given it up.

The work of each owner (:data:`work_owner`, such as a token of the service) gets an equal share of the time, however
much of it waits. Work that takes long calls :func:`asyncpq.checkpoints.checkpoint` every few milliseconds. There it
stops if its caller was cancelled, and pauses if it has run for a slice of time and another owner's work waits. In a
process whose event loop comes first (:class:`LoopFirst`), it also waits there while the loop has something to do.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import selectors
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar

from asyncpq.checkpoints import checks
from asyncpq.errors import UsageError, closed_while_reading
from asyncpq.storage.threads import CLOSE_S, join_threads, start_thread, work_owner
from asyncpq.waiting import wait_futures

T = TypeVar("T")

SLICE_S: Final = 0.01
# Beside a loop that never waits, work in threads waits and runs in turns of these lengths.
LOOP_FIRST_S: Final = 0.01
LEAST_RUN_S: Final = 0.005


class WorkStoppedError(BaseException):
    """Ends work in a thread whose caller was cancelled. It is no Exception, so that no handler of errors keeps it."""


class _Owner:
    """The works of one owner that have not ended."""

    __slots__ = ("key", "num_works", "used_s", "waiting")

    def __init__(self, key: object, used_s: float) -> None:
        self.key: object = key
        self.waiting: deque[_Work] = deque()  # paused works first
        self.num_works: int = 0  # running or waiting
        self.used_s: float = (
            used_s  # the time that its works ran; an owner begins with that of the owner with the least
        )


class _Work:
    """One call, from its start to its end."""

    __slots__ = ("began_s", "call", "future", "owner", "paused", "resumed", "stopped", "threads", "waited_s")

    def __init__(self, threads: FairThreads, call: Callable[[], Any], owner: _Owner) -> None:
        self.threads: FairThreads = threads
        self.call: Callable[[], Any] = call
        self.owner: _Owner = owner
        self.stopped: bool = False
        self.paused: bool = False
        self.began_s: float = 0.0  # of its present turn
        self.waited_s: float = 0.0  # when it waited for the event loop last
        self.resumed: threading.Event = threading.Event()
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # the cancellation of a waiter does not cancel it

    def check(self) -> None:
        """Stop or pause, if there is reason to."""
        if not self.stopped and self.threads.others_wait(self) and time.monotonic() - self.began_s >= SLICE_S:
            self.threads.pause(self)
            self.resumed.wait()
        first = self.threads.loop_first
        if first is not None and first.is_busy and time.monotonic() - self.waited_s >= LEAST_RUN_S:
            first.idle.wait(LOOP_FIRST_S)
            self.waited_s = time.monotonic()
        if self.stopped:
            raise WorkStoppedError


class LoopFirst(selectors.DefaultSelector):
    """The selector of an event loop that comes before work in threads: at its checkpoints, the work waits until the
    loop waits for its descriptors or timers, at most two thirds of the time. Without it, the loop waits for
    Python's lock after each call of the system, and often takes twice as long as without the threads."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy: bool = False
        self.idle: threading.Event = threading.Event()
        self.idle.set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait as any selector does; see the class."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self.is_busy = False
        self.idle.set()
        try:
            return super().select(timeout)
        finally:
            self.is_busy = True
            self.idle.clear()


class FairThreads:
    """Runs the works of all owners in daemon threads, at most ``count`` at once. Belongs to one event loop.

    Paused work keeps its thread. Each owner has at most ``count`` works that have begun, so there are at most ``count``
    threads for each owner.
    """

    #: Added to the niceness of new threads, where threads have their own (Linux). A process sets it whose event loop
    #: must answer while all processors decode.
    niceness: ClassVar[int] = 0
    #: The selector of the process's event loop, if that comes before the works.
    loop_first: ClassVar[LoopFirst | None] = None

    def __init__(self, count: int, name: str) -> None:
        self.process: int = os.getpid()
        self._count = count
        self._name = name
        self._lock = threading.Lock()
        self._owners: dict[object, _Owner] = {}
        self._works: set[_Work] = set()
        self._num_running = 0
        self._num_waiting = 0
        self._threads: dict[threading.Thread, Future[None]] = {}  # with their ends
        self._num_idle = 0  # threads that wait for a call
        # by its module's name, which gevent may patch after this import; None: end
        self._calls: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = False
        _all.add(self)

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` in a thread and return its result. If the caller is cancelled, the work is stopped, and the
        cancellation is raised once it has ended, since it still uses the caller's data.

        Raises:
            UsageError: the threads are closed, or none can start, since the interpreter ends.
        """
        work = self._start(call)
        result: asyncio.Future[T] = asyncio.wrap_future(work.future)
        result.add_done_callback(_retrieved)
        try:
            return await result
        except WorkStoppedError:
            raise closed_while_reading() from None
        except asyncio.CancelledError:
            self._stop(work)
            ended = asyncio.ensure_future(self._ended(work))
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await wait_futures((ended,))
            raise
        finally:
            del work, result  # they have the error, whose traceback has this frame

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Stop all works and end the threads. Idempotent. Work that does not stop within ``timeout_s`` seconds is left
        to its thread, which ends after it."""
        self.stop()
        threads, self._threads = self._threads, {}
        await join_threads(threads, timeout_s)

    def stop(self) -> list[_Work]:
        """Stop all works at their next checkpoints, and the threads after them, without waiting. Return the works."""
        with self._lock:  # all at once: a work that pauses would let another one begin
            works = list(self._works)
            for work in works:
                self._stop_locked(work)
            for _ in range(0 if self._closed else len(self._threads)):
                self._calls.put(None)
            self._closed = True
        return works

    @staticmethod
    async def _ended(work: _Work) -> None:
        """Wait until a work has ended, with whatever result."""
        waiting = asyncio.wrap_future(work.future)
        waiting.add_done_callback(_retrieved)
        await wait_futures((waiting,))

    # -- turns ------------------------------------------------------------------------------------

    def others_wait(self, work: _Work) -> bool:
        """Return whether work of another owner waits."""
        return self._num_waiting > len(work.owner.waiting)

    def _start(self, call: Callable[[], Any]) -> _Work:
        key = work_owner.get()
        with self._lock:
            if self._closed:
                raise closed_while_reading()
            owner = self._owners.get(key)
            if owner is None:
                least_s = min((other.used_s for other in self._owners.values()), default=0.0)
                owner = self._owners[key] = _Owner(key, least_s)
            work = _Work(self, call, owner)
            owner.num_works += 1
            self._works.add(work)
            owner.waiting.append(work)
            self._num_waiting += 1
            try:
                self._give_turns()
            except UsageError:
                self._withdraw(work)
                raise
        return work

    def _give_turns(self) -> None:
        """Let waiting works run, first those of the owner that has used the least time. The lock is held."""
        while self._num_waiting and self._num_running < self._count:
            owners = (owner for owner in self._owners.values() if owner.waiting)
            if not self._give_turn(min(owners, key=lambda owner: owner.used_s).waiting[0]):
                return

    def _give_turn(self, work: _Work) -> bool:
        """Let a waiting work run. Return False if it needs a new thread and none can start: it goes on waiting, for
        a thread whose work ends. Raises UsageError if there is no such thread."""
        if not work.paused and not self._num_idle and not self._start_thread():
            return False
        work.owner.waiting.remove(work)
        self._num_waiting -= 1
        self._num_running += 1
        work.began_s = time.monotonic()
        if work.paused:
            work.paused = False
            work.resumed.set()
        else:
            self._num_idle -= 1
            self._calls.put(work)
        return True

    def _start_thread(self) -> bool:
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # no waiter cancels it
        name = f"{self._name}_{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, args=(ended,), name=name, daemon=True)
        try:
            start_thread(thread)
        except UsageError:
            if not self._threads:
                raise
            return False
        self._threads[thread] = ended
        self._num_idle += 1
        return True

    def _end_turn(self, work: _Work) -> None:
        self._num_running -= 1
        work.owner.used_s += time.monotonic() - work.began_s

    def pause(self, work: _Work) -> None:
        """Give the turn of ``work`` to a work of another owner. ``work.resumed`` is set when it is its turn again."""
        with self._lock:
            if work.stopped:
                work.resumed.set()  # nothing would give it another turn
                return
            work.resumed.clear()
            work.paused = True
            self._end_turn(work)
            work.owner.waiting.appendleft(work)
            self._num_waiting += 1
            self._give_turns()
            if work.paused and self._num_running < self._count:
                self._give_turn(work)  # no thread can start for the others: they wait for its end

    def _stop(self, work: _Work) -> None:
        """Stop a work at its next checkpoint, or before it begins."""
        with self._lock:
            self._stop_locked(work)

    def _stop_locked(self, work: _Work) -> None:
        work.stopped = True
        if work.paused:
            self._give_turn(work)  # beyond the count, since it only unwinds
        elif work in work.owner.waiting:
            self._withdraw(work)
            work.future.set_exception(WorkStoppedError())

    def _withdraw(self, work: _Work) -> None:
        work.owner.waiting.remove(work)
        self._num_waiting -= 1
        self._forget(work)

    def _forget(self, work: _Work) -> None:
        self._works.discard(work)
        work.owner.num_works -= 1
        if not work.owner.num_works:
            del self._owners[work.owner.key]

    # -- in a thread ------------------------------------------------------------------------------

    def _serve(self, ended: Future[None]) -> None:
        if self.niceness and sys.platform == "linux":
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + self.niceness)
        while (work := self._calls.get()) is not None:
            self._run(work)
            del work  # a waiting thread holds no arguments
        ended.set_result(None)

    def _run(self, work: _Work) -> None:
        thread = threading.get_ident()
        checks[thread] = work.check
        result: Any = None
        failure: BaseException | None = None
        try:
            work.check()
            result = work.call()
        except WorkStoppedError:
            failure = WorkStoppedError()  # without the frames of the work, and what they hold
        except BaseException as error:  # noqa: BLE001  # every error is the caller's
            # without this frame, which has the work, which has the error
            failure = error.with_traceback(None if error.__traceback__ is None else error.__traceback__.tb_next)
        finally:
            del checks[thread]
            del work.call
        with self._lock:
            self._end_turn(work)
            self._forget(work)
            self._num_idle += 1
            self._give_turns()
        if failure is None:
            work.future.set_result(result)
        else:
            work.future.set_exception(failure)
            failure = None  # which holds this frame


def _retrieved(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # else asyncio would log it, if the loop ends before its waiter goes on


def _stop_all() -> None:
    """Stop the works of all threads, which may be in the midst of C++ code that cannot be ended with its thread. Called
    at exit, once the sessions of other threads' loops are closed: these are sessions that nothing closed."""
    ends_at = time.monotonic() + CLOSE_S
    works = [work for threads in list(_all) if threads.process == os.getpid() for work in threads.stop()]
    wait([work.future for work in works], max(0.0, ends_at - time.monotonic()))


_all: weakref.WeakSet[FairThreads] = weakref.WeakSet()
atexit.register(_stop_all)
