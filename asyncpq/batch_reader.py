"""Batches of a scan for consumers that pull them in a thread: Arrow's C stream, pyarrow, DuckDB, Polars."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Self, TypeVar

from asyncpq.errors import UsageError

T = TypeVar("T")

_LOOK_S: Final = 1.0  # how often a waiting consumer looks whether the event loop still runs


class BatchPuller(Generic[T]):
    """An iterator over the batches that an event loop in another thread makes. Made in that loop's thread.

    Args:
        next_batch: gives the next batch, None after the last one.
        close: ends what makes them; called when the iterator is dropped before its end. None: others end it.
    """

    def __init__(
        self,
        next_batch: Callable[[], Coroutine[Any, Any, T | None]],
        close: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        self._next_batch = next_batch
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """
        Raises:
            UsageError: it is called in the event loop's own thread, or the loop has ended.
            AsyncpqError: reading failed.
        """
        self._check()
        future = asyncio.run_coroutine_threadsafe(self._next_batch(), self._loop)
        try:
            batch = self._result(future)
        except BaseException:
            future.cancel()
            raise
        if batch is None:
            self._close = None
            raise StopIteration
        return batch

    def __del__(self) -> None:
        close, self._close = self._close, None
        if close is not None and self._process == os.getpid() and self._loop.is_running():
            post(self._loop, close)

    def _check(self) -> None:
        if threading.get_ident() == self._thread:
            raise UsageError(
                "the batches of a scan are pulled in its event loop's own thread, which would wait for itself",
                hint="Pull in another one: `await asyncio.to_thread(consume, reader)`; or `await scan.to_table()`.",
            )
        if self._process != os.getpid() or not self._loop.is_running():
            raise _ended()

    def _result(self, future: concurrent.futures.Future[T | None]) -> T | None:
        while True:
            try:
                return future.result(_LOOK_S)
            except concurrent.futures.CancelledError:
                raise _ended() from None
            except TimeoutError:  # the wait's, or that of the read
                if future.done():
                    return future.result()
                if not self._loop.is_running():
                    raise _ended() from None


def post(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` in ``loop`` some time, without waiting for it: from a destructor, in any thread."""

    def start() -> None:
        task = loop.create_task(work())
        _running.add(task)
        task.add_done_callback(_running.discard)

    try:
        loop.call_soon_threadsafe(start)
    except RuntimeError:  # it was closed since: nothing is left to end
        return


_running: set[asyncio.Task[None]] = set()


def _ended() -> UsageError:
    return UsageError("the scan's event loop has ended", hint="Consume the reader while the scan and its loop run.")
