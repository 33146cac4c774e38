"""Files of a build are read, and what they give becomes segments: here, or wherever a build has it done.

Sorted rows of a part, however many, as segments of bounded size in a place.

Rows of all parts of an index, on their way from files to segments.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.events import Operation
from asyncpq.indexing.build.file_rows import FileRows, FileTask, IndexSpec, collect_file
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.manifest.commits import segment_name
from asyncpq.indexing.model import UNKNOWN_KEY, IndexBackend, IndexTable, Segment
from asyncpq.objects.runtime import ByteBudget, Runtime
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.urls import safe_url


async def write_segments(
    backend: IndexBackend,
    build: str,
    index_table: IndexTable,
    batches: AsyncIterator[pa.RecordBatch],
    files: RowRanges,
    options: BuildOptions,
    operation: Operation | None = None,
) -> list[Segment]:
    """Write ``batches``, which are sorted by key; at least one segment, though there be no row.

    Args:
        build: begins the segments' names.
        files: ids of the files of which these are all rows. Each segment says so: what of them is not in the one is in
            another, whose keys are others.
        options: say how large a segment may be, and where local files go.
        operation: counts the requests.
    """
    rows, ids = _Rows(batches), tuple(files)
    segments: list[Segment] = []
    while not segments or await rows.more():
        piece = _Piece(rows, options)
        name = segment_name(build)
        size, extra = await backend.write_segment(
            name, index_table, piece.batches(), folder=options.folder, operation=operation
        )
        segments.append(
            Segment(
                name=name,
                table=index_table,
                num_rows=piece.num_rows,
                size=size,
                data_bytes=piece.data_bytes,
                low=piece.low,
                high=piece.high,
                files=ids,
                has_unknown=piece.has_unknown,
                extra=extra,
            )
        )
    return segments


async def from_thread(runtime: Runtime, batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """Batches that are made in the session's threads."""
    while (batch := await runtime.in_thread(partial(next, batches, None))) is not None:
        yield batch


class _Rows:
    """Batches that can be given back."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._back: deque[pa.RecordBatch] = deque()

    async def next(self) -> pa.RecordBatch | None:
        """The next one with rows; None at the end."""
        if self._back:
            return self._back.popleft()
        while True:
            batch = await anext(self._batches, None)
            if batch is None or batch.num_rows:
                return batch

    def give_back(self, batch: pa.RecordBatch) -> None:
        self._back.appendleft(batch)

    async def more(self) -> bool:
        batch = await self.next()
        if batch is None:
            return False
        self.give_back(batch)
        return True


class _Piece:
    """The rows of one segment, and what is said of them once they were taken."""

    def __init__(self, rows: _Rows, options: BuildOptions) -> None:
        self._rows = rows
        self._options = options
        self.num_rows = self.data_bytes = 0
        self.low = self.high = b""
        self.has_unknown = False

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (left := self._left()) is not None and (batch := await self._rows.next()) is not None:
            rows, size = left
            # rounded up, so that a piece that was cut is full: whoever merges segments lets it be
            most = min(rows, -(-size * batch.num_rows // batch.nbytes))
            if batch.num_rows > most:
                self._rows.give_back(batch.slice(most))
                batch = batch.slice(0, most)
            self._note(batch)
            yield batch

    def _left(self) -> tuple[int, int] | None:
        """How many rows and bytes there is room for; None: it is full."""
        rows, size = self._options.segment_rows - self.num_rows, self._options.segment_bytes - self.data_bytes
        return (rows, size) if rows > 0 and size > 0 else None

    def _note(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key")
        self.num_rows += len(keys)
        self.data_bytes += batch.nbytes
        if keys[0].as_py() == UNKNOWN_KEY:
            self.has_unknown = True
            keys = keys.filter(pc.not_equal(keys, UNKNOWN_KEY))
        if not len(keys):
            return
        self.low = self.low or keys[0].as_py()
        self.high = keys[-1].as_py()


class SortedTables:
    """Rows of all parts, of some files, sorted within bounded memory. Close it: it may have local files."""

    def __init__(self, runtime: Runtime, index_tables: Sequence[IndexTable], options: BuildOptions) -> None:
        memory = max(1 << 20, options.memory_bytes // 2 // len(index_tables))
        self._runtime = runtime
        self._options = options
        folder = Path(options.folder or tempfile.gettempdir())
        self._sorts = {index_table: ExternalSort(index_table.schema, memory, folder) for index_table in index_tables}
        self._files: dict[IndexTable, list[int]] = {index_table: [] for index_table in index_tables}

    async def add(self, rows: FileRows) -> None:
        """What one file gives."""
        for index_table in rows.tables:
            self._files[index_table].append(rows.work.id)
        sorts = any(self._sorts[index_table].is_filled_by(table) for index_table, table in rows.tables.items())
        await self._runtime.in_thread(partial(self._add, rows), small=not sorts)

    def _add(self, rows: FileRows) -> None:
        for index_table, table in rows.tables.items():
            if table.num_rows:
                self._sorts[index_table].add(table)

    def files(self, index_table: IndexTable) -> RowRanges:
        """Ids of those of which it has all rows of the part."""
        return RowRanges((file, file + 1) for file in self._files[index_table])

    async def batches(self, index_table: IndexTable) -> AsyncIterator[pa.RecordBatch]:
        """All rows of the part, in order; once, and nothing can be added after."""
        return from_thread(self._runtime, await self._runtime.in_thread(self._sorts[index_table].batches))

    async def write(self, backend: IndexBackend, build: str, operation: Operation) -> list[Segment]:
        """The segments of all parts, which are not committed yet."""
        segments: list[Segment] = []
        for index_table in self._sorts:
            if files := self.files(index_table):
                rows = await self.batches(index_table)
                segments += await write_segments(backend, build, index_table, rows, files, self._options, operation)
        return segments

    async def close(self) -> None:
        """Remove the local files, also where it is cancelled, or the session was closed before."""
        with ExitStack() as left:
            for sort in self._sorts.values():
                left.callback(sort.close)
            for sort in self._sorts.values():
                await self._runtime.in_thread(sort.close)


#: Given what came of a file and what it cost, once it is done with; of the rows only those of "files" may be there.
OnFileDone: TypeAlias = Callable[[FileRows, Operation], None]


class BuildExecutor(Protocol):
    """The step of a build that reads files; a build asks for it once for each of its commits."""

    def files_between_commits(self, num_files: int) -> int:
        """Of a build that reads ``num_files``."""

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        told: OnFileDone,
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
ExecutorFactory: TypeAlias = Callable[[Runtime, IndexBackend, Operation, BuildOptions], BuildExecutor]


class LocalExecutor:
    """A :class:`BuildExecutor` in this process."""

    def __init__(self, runtime: Runtime, backend: IndexBackend, operation: Operation, options: BuildOptions) -> None:
        self._runtime = runtime
        self._backend = backend
        self._operation = operation
        self._options = options

    def files_between_commits(self, num_files: int) -> int:
        """See :class:`BuildExecutor`."""
        return self._options.checkpoint_files

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        told: OnFileDone,
    ) -> list[Segment]:
        """See :class:`BuildExecutor`."""
        rows_of_parts = SortedTables(self._runtime, index_tables, self._options)
        try:
            async with aclosing(collect_files(self._runtime, works, wanted, self._operation)) as found:
                async for rows, part in found:
                    await rows_of_parts.add(rows)
                    told(rows, part)
            return await rows_of_parts.write(self._backend, build, self._operation)
        finally:
            await rows_of_parts.close()


async def collect_files(
    runtime: Runtime, works: Sequence[FileTask], wanted: IndexSpec, operation: Operation
) -> AsyncGenerator[tuple[FileRows, Operation]]:
    """What the files give and what each has cost, as they become ready: a bounded number at once."""
    columns, names, options = wanted.columns(), wanted.names(), wanted.options
    at_once = options.files_at_once if wanted.reads_values else runtime.options.limits.files_ahead
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

    async def one(work: FileTask) -> tuple[FileRows, Operation]:
        part = operation.part(safe_url(work.file.url), 0)
        try:
            return await collect_file(runtime, work, wanted, columns, names, part, room), part
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
