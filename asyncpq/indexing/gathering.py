"""Files of a build are read, and what they give becomes segments: here, or wherever a build has it done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol, TypeAlias

from asyncpq.events import Operation
from asyncpq.indexing.file_rows import FileRows, FileWork, Wanted, collect_file
from asyncpq.indexing.model import Part, Place, Segment
from asyncpq.indexing.sorted_parts import SortedParts
from asyncpq.options import BuildOptions
from asyncpq.resources import ByteBudget, Resources
from asyncpq.storage.urls import safe_url

#: Given what came of a file and what it cost, once it is done with; of the rows only those of "files" may be there.
Told: TypeAlias = Callable[[FileRows, Operation], None]


class Gathering(Protocol):
    """The step of a build that reads files; a build asks for it once for each of its commits."""

    def files_between_commits(self, num_files: int) -> int:
        """Of a build that reads ``num_files``."""

    async def segments(
        self, works: Sequence[FileWork], wanted: Wanted, parts: Sequence[Part], build: str, told: Told
    ) -> list[Segment]:
        """Read ``works``, and write what they give.

        Args:
            parts: of the index; ``wanted`` has those of them that can be read.
            build: begins the segments' names.

        Returns:
            segments that are not committed yet.

        Raises:
            StoreError: a store is at fault.
        """


#: Makes that of one build.
MakeGathering: TypeAlias = Callable[[Resources, Place, Operation, BuildOptions], Gathering]


class LocalGathering:
    """A :class:`Gathering` in this process."""

    def __init__(self, resources: Resources, place: Place, operation: Operation, options: BuildOptions) -> None:
        self._resources = resources
        self._place = place
        self._operation = operation
        self._options = options

    def files_between_commits(self, num_files: int) -> int:
        """See :class:`Gathering`."""
        return self._options.checkpoint_files

    async def segments(
        self, works: Sequence[FileWork], wanted: Wanted, parts: Sequence[Part], build: str, told: Told
    ) -> list[Segment]:
        """See :class:`Gathering`."""
        rows_of_parts = SortedParts(self._resources, parts, self._options)
        try:
            async with aclosing(collect_files(self._resources, works, wanted, self._operation)) as found:
                async for rows, part in found:
                    await rows_of_parts.add(rows)
                    told(rows, part)
            return await rows_of_parts.write(self._place, build, self._operation)
        finally:
            await rows_of_parts.close()


async def collect_files(
    resources: Resources, works: Sequence[FileWork], wanted: Wanted, operation: Operation
) -> AsyncGenerator[tuple[FileRows, Operation]]:
    """What the files give and what each has cost, as they become ready: a bounded number at once."""
    columns, names, options = wanted.columns(), wanted.names(), wanted.options
    at_once = options.files_at_once if wanted.reads_values else resources.options.limits.files_ahead
    budget = ByteBudget(options.memory_bytes // 2)
    left = iter(works)
    running: set[asyncio.Task[tuple[FileRows, Operation]]] = set()

    @asynccontextmanager
    async def room(weight: int) -> AsyncIterator[None]:
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

    async def one(work: FileWork) -> tuple[FileRows, Operation]:
        part = operation.part(safe_url(work.file.url), 0)
        try:
            return await collect_file(resources, work, wanted, columns, names, part, room), part
        except BaseException:
            operation.metrics.add_part(part.metrics)
            raise

    try:
        while True:
            for work in left:
                running.add(asyncio.get_running_loop().create_task(one(work)))
                if len(running) >= at_once:
                    break
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running |= done
            for task in done:
                running.discard(task)
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
            for task in running:
                if not task.cancelled():
                    task.exception()  # the first one is raised
