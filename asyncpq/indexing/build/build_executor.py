"""Read the files of a build, and write their index rows as segments: the BuildExecutor.

:class:`LocalExecutor` reads files concurrently in this process. Rows are sorted in bounded memory and written as
segments of bounded size.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.events import Operation
from asyncpq.indexing.build.file_rows import FileCollector, FileRows, IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.commits import segment_name
from asyncpq.indexing.index_model import UNKNOWN_KEY, IndexBackend, IndexTable, Segment
from asyncpq.objects.runtime import ByteBudget, Runtime
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url
from asyncpq.waiting import wait_futures


async def write_segments(
    backend: IndexBackend,
    build: str,
    index_table: IndexTable,
    batches: AsyncIterator[pa.RecordBatch],
    files: RowRanges,
    options: BuildOptions,
    operation: Operation | None = None,
) -> list[Segment]:
    """Write the sorted rows of ``batches`` as segments, at least one even without rows; return the segments. ``build``,
    the build's id, begins their names.

    ``files`` are the ids of the indexed files. Each segment lists all of them: a file's row that is not in one segment
    is in another segment, with other keys.
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
    """Yield the batches of a blocking iterator, which runs in the session's threads."""
    while (batch := await runtime.in_thread(partial(next, batches, None))) is not None:
        yield batch


class _Rows:
    """A stream of batches with rows; one batch can be put back."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.back: pa.RecordBatch | None = None

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch that has rows; None if the stream has ended."""
        batch, self.back = self.back, None
        while batch is None or not batch.num_rows:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
        return batch

    async def more(self) -> bool:
        self.back = await self.next()
        return self.back is not None


class _Piece:
    """The rows of one segment that is being written, and its counts and bounds, which are complete once all rows
    were read."""

    def __init__(self, rows: _Rows, options: BuildOptions) -> None:
        self._rows = rows
        self._options = options
        self.num_rows = self.data_bytes = 0
        self.low = self.high = b""
        self.has_unknown = False

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the segment's rows, until it has ``segment_rows`` rows or ``segment_bytes`` bytes, or the stream
        ends."""
        options = self._options
        while self.num_rows < options.segment_rows and self.data_bytes < options.segment_bytes:
            batch = await self._rows.next()
            if batch is None:
                return
            # rounded up, so that a cut segment is full: a compaction leaves it alone
            by_size = -(-(options.segment_bytes - self.data_bytes) * batch.num_rows // batch.nbytes)
            most = min(options.segment_rows - self.num_rows, by_size)
            if batch.num_rows > most:
                self._rows.back = batch.slice(most)
                batch = batch.slice(0, most)
            self._note(batch)
            yield batch

    def _note(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key")
        self.num_rows += len(keys)
        self.data_bytes += batch.nbytes
        if keys[0].as_py() == UNKNOWN_KEY:
            self.has_unknown = True
            keys = keys.filter(pc.not_equal(keys, UNKNOWN_KEY))
        if len(keys):
            self.low = self.low or keys[0].as_py()
            self.high = keys[-1].as_py()


class SortedTables:
    """Sorts the rows of all tables in bounded memory. Call :meth:`close`, which removes local files."""

    def __init__(self, runtime: Runtime, index_tables: Sequence[IndexTable], options: BuildOptions) -> None:
        memory = max(1 << 20, options.memory_bytes // 2 // len(index_tables))
        folder = Path(options.folder or tempfile.gettempdir())
        self._runtime = runtime
        self._options = options
        self._sorts = {index_table: ExternalSort(index_table.schema, memory, folder) for index_table in index_tables}
        self._files: dict[IndexTable, list[int]] = {index_table: [] for index_table in index_tables}

    async def add(self, rows: FileRows) -> None:
        """Add the rows that one file contributes to each index table."""
        for index_table in rows.tables:
            self._files[index_table].append(rows.work.id)
        sorts = any(self._sorts[index_table].is_filled_by(table) for index_table, table in rows.tables.items())
        await self._runtime.in_thread(partial(self._add, rows), small=not sorts)

    def _add(self, rows: FileRows) -> None:
        for index_table, table in rows.tables.items():
            self._sorts[index_table].add(table)

    def files(self, index_table: IndexTable) -> RowRanges:
        """Return the ids of the files whose rows were added to the table, even if a file had none."""
        return RowRanges((file, file + 1) for file in self._files[index_table])

    async def batches(self, index_table: IndexTable) -> AsyncIterator[pa.RecordBatch]:
        """Return an iterator over all rows of the table, sorted. Callable once; no rows can be added afterwards."""
        return from_thread(self._runtime, await self._runtime.in_thread(self._sorts[index_table].batches))

    async def write(self, backend: IndexBackend, build: str, operation: Operation) -> list[Segment]:
        """Write the rows of all tables as segments, and return the segments, which the caller commits."""
        segments: list[Segment] = []
        for index_table in self._sorts:
            if files := await self._runtime.in_thread(partial(self.files, index_table)):
                rows = await self.batches(index_table)
                segments += await write_segments(backend, build, index_table, rows, files, self._options, operation)
        return segments

    async def close(self) -> None:
        """Remove the local files, even when cancelled, or after the session was closed."""
        with ExitStack() as remaining:
            for sort in self._sorts.values():
                remaining.callback(sort.close)
            for sort in self._sorts.values():
                await self._runtime.in_thread(sort.close)


#: A build commits its progress when it has read files for so long, or ``BuildOptions.checkpoint_files`` files.
CHECKPOINT_S: Final = 60.0


#: Called with the rows and the cost of each finished file. The rows may lack all tables but "files".
OnFileDone: TypeAlias = Callable[[FileRows, Operation], None]


class BuildExecutor(Protocol):
    """Reads the files of a build and writes their index rows as segments. A build calls it once for each commit."""

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
    """Read the files ``works`` concurrently, a limited number at once; yield each file's rows and cost when it is
    ready.

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
            done, _ = await wait_futures(running, return_when=asyncio.FIRST_COMPLETED)
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
