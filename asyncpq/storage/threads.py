"""Threads for blocking filesystem calls and imports, and helpers that run a bounded number of awaitables concurrently.

The helpers wait for all of their work, so no concurrent call outlives its caller.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from asyncpq.errors import UsageError, closed_while_reading
from asyncpq.waiting import wait_futures

T = TypeVar("T")
U = TypeVar("U")

CLOSE_S: Final = 3.0  # the end of a session waits for running calls so long

#: Whose work the calling task runs, such as a token of the service; tasks that it starts inherit it. None: work that
#: several owners wait for.
work_owner: ContextVar[object] = ContextVar("asyncpq_work_owner", default=None)

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]


class OwnersQueue(dict[object, deque[T]]):
    """Items that wait for their turns, by owner, the next one first. The owners that appended them have their turns one
    after the other, however many items each has."""

    __slots__ = ()

    def append(self, item: T) -> None:
        """Append an item of the present owner."""
        self.setdefault(work_owner.get(), deque()).append(item)

    def popleft(self) -> T:
        """Remove and return the first item of the next owner. There must be one."""
        owner = next(iter(self))
        items = self.pop(owner)
        item = items.popleft()
        if items:
            self[owner] = items
        return item


class _Calls:
    """Calls that wait for a thread."""

    def __init__(self) -> None:
        # by its module's name, which gevent may patch after this import; one item for each call or end
        self._tickets: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = False
        self._lock = threading.Lock()
        self._waiting: OwnersQueue[_Call] = OwnersQueue()

    def put(self, call: _Call) -> None:
        """Append a call of the present owner."""
        with self._lock:
            self._waiting.append(call)
        self._tickets.put(None)

    def get(self, *, block: bool) -> _Call | None:
        """Take the next call; None: the thread is to end. Raises queue.Empty if none is there, without ``block``."""
        self._tickets.get(block)
        if self._ended:
            self.drop()
            return None
        with self._lock:
            return self._waiting.popleft() if self._waiting else None  # none if dropped meanwhile

    def drop(self) -> None:
        """Cancel the calls that have not begun."""
        with self._lock:
            waiting, self._waiting = self._waiting, OwnersQueue()
        while waiting:
            waiting.popleft()[0].cancel()

    def end(self, count: int) -> None:
        """Make each of ``count`` threads end after its present call. Takes no lock, as finalizers call it."""
        self._ended = True
        for _ in range(count):
            self._tickets.put(None)


def shared_context() -> Context:
    """Return a copy of the current context (:mod:`contextvars`) without an owner (``set_owner``), for a task whose
    result several owners wait for."""
    context = copy_context()
    context.run(work_owner.set, None)
    return context


class Threads:
    """A pool of at most ``count`` daemon threads, started on demand. Belongs to one event loop at a time.

    Since they are daemon threads, the process can end even if a call to a disk never returns.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls = _Calls()
        self._idle = threading.Semaphore(0)  # threads that wait for a call
        self._threads: dict[threading.Thread, Future[None]] = {}
        self._running: set[asyncio.Future[Any]] = set()
        # when this object is collected
        self._finalizer = weakref.finalize(self, self._calls.end, count)
        self._finalizer.atexit = False

    def start(self, work: Callable[..., T], *arguments: Any, **options: Any) -> asyncio.Future[T]:
        """Call ``work`` in a thread; return a future of its result. Cancelling it does not stop a call that has begun.

        Raises:
            UsageError: there is no thread, and none can start, since the interpreter ends.
        """
        if not self._finalizer.alive:
            raise RuntimeError("the thread pool is closed: no call can be started")
        call: Future[T] = Future()
        future = asyncio.wrap_future(call)
        self._running.add(future)
        future.add_done_callback(self._ended)
        self._calls.put((call, functools.partial(work, *arguments, **options)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            ended: Future[None] = Future()
            ended.set_running_or_notify_cancel()  # no waiter cancels it
            thread = threading.Thread(
                target=_serve,
                args=(self._calls, self._idle, ended),
                name=f"{self._name}_{len(self._threads)}",
                daemon=True,
            )
            try:
                start_thread(thread)
            except UsageError:
                if not self._threads:
                    call.cancel()
                    raise
            else:
                self._threads[thread] = ended
        return future

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Drop the calls that have not begun, wait for the running ones, end the threads. Idempotent.

        A call that runs for longer than ``timeout_s`` seconds is left to its thread, which ends after the call.
        """
        if self._finalizer.detach() is not None:  # not called, as at exit a finalizer may do nothing
            self._calls.end(self._count)
            self._calls.drop()
        await join_threads(self._threads, timeout_s)
        for future in list(self._running):
            if future.get_loop() is asyncio.get_running_loop():
                future.cancel()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises UsageError if none can start, since the interpreter ends."""
    try:
        thread.start()
    except RuntimeError as error:
        raise UsageError(
            f"a read needs a thread, and none can start: {error}", hint="Read before the end of the script."
        ) from error


async def join_threads(threads: Mapping[threading.Thread, Future[None]], timeout_s: float) -> None:
    """Wait until the last calls of threads have ended, at most ``timeout_s`` seconds, and join those threads.
    ``threads`` has a future for each, which has a result at the thread's end."""
    running = [
        asyncio.wrap_future(ended) for thread, ended in threads.items() if thread.is_alive() and not ended.done()
    ]
    try:
        if running:
            await wait_futures(running, timeout=timeout_s)
    finally:
        for future in running:
            future.cancel()
    for thread, ended in threads.items():
        if ended.done():
            thread.join()  # it is past its last call: this does not block


def _serve(calls: _Calls, idle: threading.Semaphore, ended: Future[None]) -> None:
    while True:
        try:
            item = calls.get(block=False)
        except queue.Empty:
            idle.release()
            item = calls.get(block=True)
        if item is None:
            break
        call, *work = item  # the call takes it out: no frame of an error that it raises holds its arguments
        del item
        if call.set_running_or_notify_cancel():
            try:
                result = work.pop()()
            except BaseException as error:  # noqa: BLE001  # every error is the caller's
                call.set_exception(error)
            else:
                call.set_result(result)
                del result
        del call, work  # a waiting thread holds no arguments
    ended.set_result(None)


async def result_of(started: asyncio.Future[T]) -> T:
    """Return the result of a call or task that goes on if the caller is cancelled. Raises UsageError if it was
    cancelled itself, as the end of a session does."""
    await wait_futures((started,))
    if started.cancelled():
        raise closed_while_reading()
    return started.result()


async def results_of(work: Sequence[Awaitable[T]]) -> list[T]:
    """Await all of ``work`` concurrently; return the results in order.

    The first error cancels the others, and is raised once they have ended.
    """
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(call) for call in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, with whatever result."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await wait_futures(ending)


async def call_each(call: Callable[[T], Awaitable[U]], arguments: Iterable[T], *, at_once: int = 16) -> list[U]:
    """Await ``call`` for each argument, at most ``at_once`` of them concurrently; return the results in order.

    The first error cancels the others, and is raised once they have ended.
    """
    items = list(arguments)
    results: dict[int, U] = {}
    numbered = iter(enumerate(items))

    async def work() -> None:
        for number, item in numbered:
            results[number] = await call(item)

    await results_of([work() for _ in range(min(at_once, len(items)))])
    return [results[number] for number in range(len(items))]


# Modules that are whole: in sys.modules they stand while a thread still imports them.
_whole: dict[str, ModuleType] = {}
_importing = threading.RLock()


def is_imported(module: str) -> bool:
    """Return whether :func:`import_whole` has returned for a module."""
    return module in _whole


def import_whole(module: str) -> ModuleType:
    """Import a module, also from a thread, while no other thread forks the process."""
    with _importing:
        _whole[module] = import_module(module)
    return _whole[module]


# A fork copies the locks of the modules that another thread is importing, and the child would wait for them forever:
# it waits until they are imported.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )
