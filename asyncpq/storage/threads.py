"""Threads for blocking filesystem calls and imports, and helpers that run a bounded number of awaitables concurrently.

The helpers wait for all of their work, so no concurrent call outlives its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from importlib import import_module
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]
_Calls: TypeAlias = "SimpleQueue[_Call | None]"  # None: end


class Threads:
    """A pool of at most ``count`` daemon threads, started on demand. Belongs to one event loop at a time.

    Since they are daemon threads, the process can end even if a call to a disk never returns.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)  # threads that wait for a call
        self._threads: dict[threading.Thread, Future[None]] = {}
        self._running: set[asyncio.Future[Any]] = set()
        # runs once: by close(), or when this object is collected
        self._end = weakref.finalize(self, _end, self._calls, count)
        self._end.atexit = False

    def start(self, work: Callable[..., T], *arguments: Any, **options: Any) -> asyncio.Future[T]:
        """Call ``work`` in a thread; return a future of its result. Cancelling the future does not stop a call that has
        begun."""
        if not self._end.alive:
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
            self._threads[thread] = ended
            thread.start()
        return future

    async def close(self, timeout_s: float | None = None) -> None:
        """Drop the calls that have not begun, wait for the running ones, end the threads. Idempotent.

        A call that runs for longer than ``timeout_s`` seconds is left to its thread, which ends after the call.
        """
        self._end()
        ends = [asyncio.wrap_future(ended) for ended in self._threads.values() if not ended.done()]
        try:
            if ends:
                await asyncio.wait(ends, timeout=timeout_s)
        finally:
            for end in ends:
                end.cancel()
        for thread, ended in self._threads.items():
            if ended.done():
                thread.join()  # it is past its last call: this does not block
        for future in list(self._running):
            if future.get_loop() is asyncio.get_running_loop():
                future.cancel()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it


def _serve(calls: _Calls, idle: threading.Semaphore, ended: Future[None]) -> None:
    while True:
        try:
            item = calls.get_nowait()
        except Empty:
            idle.release()
            item = calls.get()
        if item is None:
            break
        call, work = item
        if call.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  # every error is the caller's
                call.set_exception(error)
            else:
                call.set_result(result)
                del result
        del item, call, work  # a waiting thread holds no arguments
    ended.set_result(None)


def _end(calls: _Calls, count: int) -> None:
    """Drop the calls that have not begun, and make each of the ``count`` threads end after its present call."""
    with contextlib.suppress(Empty):
        while True:
            item = calls.get_nowait()
            if item is not None:
                item[0].cancel()
    for _ in range(count):
        calls.put(None)


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
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


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
