"""A store's own threads, for filesystem calls that block."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most ``count`` threads, made when they are needed. Belongs to one event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, work: Callable[..., T], *arguments: Any, **options: Any) -> asyncio.Future[T]:
        """Call ``work`` in a thread. A call that has begun goes on when the future is cancelled."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, functools.partial(work, *arguments, **options))
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    async def close(self) -> None:
        """Wait for the running calls; end the threads. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._running:
            await asyncio.wait(set(self._running))
        self._pool.shutdown(wait=True)  # nothing runs any more: this does not block

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # whoever waited has seen it, or has left
