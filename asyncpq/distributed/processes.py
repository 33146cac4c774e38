"""Run tasks in processes of this host, which start anew and know nothing of this one."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias

from asyncpq.errors import UsageError


class _Task(Protocol):
    def run(self) -> Any: ...


#: Runs a task in a process; its result is that of ``task.run()``.
RunsTask: TypeAlias = Callable[[Any], Awaitable[Any]]

_pools: set[ProcessPoolExecutor] = set()  # whose blocks are entered


@asynccontextmanager
async def worker_processes(count: int) -> AsyncIterator[RunsTask]:
    """Yield a function that runs a task in one of ``count`` processes and awaits its result. They end with the block,
    or are killed at the end of this process.

    Raises:
        UsageError: a process ended by itself: for lack of memory, or since it cannot import the script.
    """
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    _pools.add(pool)

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
        try:
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        except RuntimeError:  # at exit no thread starts, and the workers were killed
            pool.shutdown(wait=False, cancel_futures=True)
        _pools.discard(pool)


def _call(task: _Task) -> Any:
    return task.run()


def _kill_workers() -> None:
    """Kill the workers of all blocks, for whose tasks the end of this process would wait."""
    for pool in list(_pools):
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  # public from Python 3.14 on: kill_workers
            process.kill()


# before concurrent.futures waits for all tasks; functions of `atexit` run after that
threading._register_atexit(_kill_workers)  # type: ignore[attr-defined]  # noqa: SLF001
