"""Tasks in processes of this host; tests/ends ends scripts while they run."""

from __future__ import annotations

import os

import pytest

from asyncpq import UsageError
from asyncpq.distributed.processes import worker_processes


class Dies:
    """A task whose process ends."""

    def run(self) -> None:
        os._exit(1)


async def test_a_process_that_ends_is_said() -> None:
    async with worker_processes(1) as run:
        with pytest.raises(UsageError, match="a worker process ended before its task"):
            await run(Dies())
