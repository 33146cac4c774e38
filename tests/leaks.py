"""What a process holds: descriptors, tasks, threads and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """What this process holds: open descriptors, tasks of the running loop, threads of asyncpq."""

    descriptors: int
    tasks: int
    threads: int


def held() -> Held:
    """What it holds right now, but for garbage. Call it in a running loop, before what may leak.

    What is alive by now is taken out of the garbage collector's sight, so that later collections are quick.
    """
    gc.collect()  # of tests before this one
    gc.freeze()
    return _held()


def _held() -> Held:
    threads = sum(thread.name.startswith("asyncpq-") for thread in threading.enumerate())
    return Held(len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), threads)


async def assert_back_to(before: Held, timeout_s: float = 30.0) -> None:
    """Wait for the other end of closed connections, then compare."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        gc.collect()
        now = _held()
        if now == before or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(0.02)
    assert now == before, (now, before, [str(task) for task in asyncio.all_tasks()])


def peak_bytes() -> int:
    """The most of this process; ``ru_maxrss`` of a new one begins with that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
