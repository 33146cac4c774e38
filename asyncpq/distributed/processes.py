"""Run tasks in processes of this host, which start anew and know nothing of this one."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

from asyncpq.errors import UsageError


class _Task(Protocol):
    def run(self) -> Any: ...


#: Awaits what ``task.run()`` returns in a process.
RunsTask: TypeAlias = Callable[[Any], Any]


@asynccontextmanager
async def worker_processes(count: int) -> AsyncIterator[RunsTask]:
    """Yield a function that runs a task in one of ``count`` processes and awaits its result. They end with the block.

    Raises:
        UsageError: a process ended by itself: for lack of memory, or since it cannot import the script.
    """
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    async def run(task: _Task) -> Any:
        try:
            return await asyncio.wrap_future(pool.submit(_call, task))
        except BrokenProcessPool as error:
            raise UsageError(
                "a worker process ended before its task",
                hint="A script needs `if __name__ == '__main__':` around its code, since workers import it. For lack of"
                " memory, take fewer workers.",
            ) from error

    try:
        yield run
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)


def _call(task: _Task) -> Any:
    return task.run()
