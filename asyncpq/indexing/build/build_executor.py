"""Read the files of a build, and write their index rows as segments (``sorting.py``): the BuildExecutor.

:class:`LocalExecutor` reads files concurrently in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.indexing.build.file_rows import FileCollector, FileRows, IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import SortedTables
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.objects.runtime import ByteBudget, Runtime
from asyncpq.options import BuildOptions
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url

#: A build commits its progress when it has read files for so long, or ``BuildOptions.checkpoint_files`` files.
CHECKPOINT_S: Final = 60.0


#: Called with the rows and the cost of each finished file. The rows may lack all tables but "files".
OnFileDone: TypeAlias = Callable[[FileRows, Operation], None]


class BuildExecutor(Protocol):
    """Reads the files of a build and writes their index rows as segments. A build calls it once for each of its
    commits."""

    def files_between_commits(self, num_files: int) -> int:
        """Return how many files to read between two commits of a build that reads ``num_files`` files."""

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        """Read the first files of ``works``, at least one, and write their rows as segments; return the segments. The
        caller commits these, and then calls again for the other files.

        Args:
            works: the files that the build has not read yet.
            wanted: what to read of each file; its tables are those ``index_tables`` whose columns the dataset has now.
            index_tables: all tables of the index.
            build: id of the build, with which the segments' names begin.
            on_file_done: called for each finished file.
        """


#: Makes the executor of one build.
ExecutorFactory: TypeAlias = Callable[[Runtime, IndexBackend, Operation, BuildOptions], BuildExecutor]


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """A :class:`BuildExecutor` in this process."""

    runtime: Runtime
    backend: IndexBackend
    operation: Operation
    options: BuildOptions

    def files_between_commits(self, num_files: int) -> int:
        return self.options.checkpoint_files

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        rows_of_tables = SortedTables(self.runtime, index_tables, self.options)
        due = time.monotonic() + CHECKPOINT_S
        collected = collect_files(self.runtime, works, wanted, self.operation, ends=lambda: time.monotonic() >= due)
        try:
            async with aclosing(collected) as files:
                async for rows, part in files:
                    await rows_of_tables.add(rows)
                    on_file_done(rows, part)
            return await rows_of_tables.write(self.backend, build, self.operation)
        finally:
            await rows_of_tables.close()


async def collect_files(
    runtime: Runtime,
    works: Sequence[FileTask],
    wanted: IndexSpec,
    operation: Operation,
    *,
    ends: Callable[[], bool] = lambda: False,
) -> AsyncGenerator[tuple[FileRows, Operation]]:
    """Read the files ``works`` concurrently, a limited number at once; yield the rows and the cost of each file when it
    is ready.

    Once ``ends`` returns True, no further file is begun: the files that were read are the first ones of ``works``.
    """
    await runtime.in_thread(partial(pa.array, [None]))  # imports pandas, if that is installed, not on the event loop
    options = wanted.options
    at_once = options.files_at_once if wanted.by_value else runtime.options.limits.files_ahead
    collector = FileCollector(runtime, wanted, partial(_reserved, ByteBudget(options.memory_bytes // 2)))

    async def collect(work: FileTask) -> tuple[FileRows, Operation]:
        part = operation.part(safe_url(work.file.url), 0)
        try:
            return await collector.collect(work, part), part
        except BaseException:
            operation.metrics.add_part(part.metrics)
            raise

    waiting = iter(works)
    running: set[asyncio.Task[tuple[FileRows, Operation]]] = set()

    def begin(most: int) -> None:
        for work in islice(waiting, most):
            running.add(asyncio.get_running_loop().create_task(collect(work)))

    try:
        begin(at_once)
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                running.discard(task)
                await runtime.turns.turn()
                yield task.result()
                if not ends():
                    begin(1)  # one at a time: to begin many at once would stop the event loop
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)  # the first error is raised already


@asynccontextmanager
async def _reserved(budget: ByteBudget, weight: int) -> AsyncIterator[None]:
    """Wait for ``weight`` bytes of the budget (at most its limit), and reserve them during the block."""
    weight = min(weight, budget.limit)
    granted = budget.request(weight)
    try:
        await granted
    except BaseException:
        if budget.withdraw(granted):
            budget.release(weight)
        raise
    try:
        yield
    finally:
        budget.release(weight)
