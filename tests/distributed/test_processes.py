"""Tasks in processes of this host; tests/ends ends scripts while they run."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest

from asyncpq import UsageError
from asyncpq.distributed import processes
from asyncpq.distributed.processes import worker_processes


class Dies:
    """A task whose process ends."""

    def run(self) -> None:
        os._exit(1)


async def test_a_process_that_ends_is_said() -> None:
    async with worker_processes(1) as run:
        with pytest.raises(UsageError, match="a worker process ended before its task"):
            await run(Dies())


async def test_a_cancelled_block_does_not_wait_for_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_GRACE_S", 0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), worker_processes(1) as run:
            await run(SimpleNamespace(run=partial(time.sleep, 1000)))
