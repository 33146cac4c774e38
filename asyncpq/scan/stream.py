"""Record batch streams: the rows of a scan, at the consumer's pace; also for consumers in another thread."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

import pyarrow as pa

from asyncpq.errors import UsageError
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.scan.executor import F, OneFile, ScanExecutor, UnitRows
from asyncpq.scan.file_planner import ScanPlanner
from asyncpq.scan.foreign_names import EnteredAsync, foreign_name

_MAX_COMBINED: Final = 64  # tables that are combined to one


class RecordBatchStream(EnteredAsync):
    """The batches of a scan. Enter it once and iterate inside; leaving the block in any way ends the scan.

    Args:
        operation: the call; it begins when the stream is entered.
        executor: reads the rows.
        schema: returns the Arrow schema of the rows, once the executor was started.
        tables: makes tables of what the executor returned for one unit.
        batch_size: rows of a batch, at most.
        limit: maximum of rows in all; None for all rows.
        combine_rows: units are combined to tables of so many rows; 0 leaves them as they are.

    Attributes:
        metrics: the cost of the scan so far (:class:`asyncpq.ReadMetrics`).
    """

    _of: ClassVar[str] = "dataset"  # for hints

    def __init__(
        self,
        operation: Operation,
        executor: ScanExecutor[F],
        schema: Callable[[], pa.Schema],
        tables: Callable[[UnitRows[F]], Sequence[pa.Table]] = attrgetter("tables"),
        *,
        batch_size: int,
        limit: int | None,
        combine_rows: int = 0,
    ) -> None:
        self.metrics: ReadMetrics = operation.metrics
        self._runtime = executor.runtime
        self._operation = operation
        self._executor: ScanExecutor[Any] = executor
        self._schema = schema
        self._tables = tables
        self._combine_rows = combine_rows
        self._batch_size = batch_size
        self._left = limit
        self._batches: deque[pa.RecordBatch] = deque()
        self._holds_unit = False
        self._state = "new"
        self._pulling = asyncio.Lock()
        self.again: Callable[[], RecordBatchStream] | None = None  # makes the same scan, not entered
        self._next: tuple[RecordBatchStream, weakref.finalize[..., Any]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._operation.url!r}, {self._state})"

    @property
    def entered(self) -> bool:
        """Whether the scan's ``async with`` block was entered; stays True after it."""
        return self._state != "new"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema (pyarrow.Schema) of the batches. That of a file's scan raises UsageError until the scan was
        entered."""
        return self._schema()

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise UsageError("a scan can be entered once", hint=f"Call {self._of}.scan(...) again.")
        self._runtime.check()
        self._state = "open"
        self._runtime.register(self, self.close)
        self._operation.begin()
        try:
            async with self._runtime.deadline(self._operation.url):
                await self._executor.start()
        except BaseException as error:
            await self._end("closed", error)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    if not TYPE_CHECKING:  # type checkers find these mistakes themselves
        __getattr__ = foreign_name

        def __await__(self) -> Generator[Any, Any, NoReturn]:
            raise UsageError(
                "a scan is entered, not awaited",
                hint=f"Write `async with {self._of}.scan(...) as scan:`. `await {self._of}.read(...)` returns a table.",
            )

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        self._require_entered()
        return self

    def _require_entered(self) -> None:
        if self._state == "new":
            raise UsageError(
                "a scan is iterated inside `async with`",
                hint=f"Write `async with {self._of}.scan(...) as scan:`, or await {self._of}.read(...) for one table.",
            )

    def _check_loop(self) -> None:
        if self._state == "open":
            self._runtime.check()  # in another loop or process it would wait for ever

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch: one to ``batch_size`` rows, in order; small files may share one. Several consumers may
        take turns.

        Raises:
            ObjectChangedError: a file was replaced after rows of it were delivered.
            AsyncpqError: reading failed; the scan is over.
        """
        self._require_entered()
        self._check_loop()
        async with self._pulling:
            return await self._pull()

    async def _pull(self) -> pa.RecordBatch:
        """Return the next batch; only one consumer may wait here at a time."""
        if self._state == "done":
            raise StopAsyncIteration
        if self._state != "open":
            raise UsageError("the scan is closed", hint="Begin a new scan to read again.")
        try:
            if self._left == 0:
                raise StopAsyncIteration
            while not self._batches:
                await self._refill()
            batch = self._batches.popleft()
            if batch.num_rows > self._batch_size:  # cut as they are asked for: rows without columns may be any number
                self._batches.appendleft(batch.slice(self._batch_size))
                batch = batch.slice(0, self._batch_size)
        except StopAsyncIteration:
            await self._end("done", None)
            raise
        except BaseException as error:
            await self._end("closed", error)
            raise
        if self._left is not None:
            batch = batch.slice(0, min(self._left, batch.num_rows))  # a limit may be larger than Arrow's integers
            self._left -= batch.num_rows
        self.metrics.rows_returned += batch.num_rows
        if self._left == 0:  # nothing more is fetched while the consumer works on the last batch
            await self._end("done", None)
        return batch

    async def to_table(self) -> pa.Table:
        """Return the remaining rows as one table. A scan that was not entered is entered and closed.

        Raises:
            AsyncpqError: reading failed.
        """
        if self._state == "new":
            async with self:
                return await self.to_table()
        batches = [batch async for batch in self]
        return pa.Table.from_batches(batches, self.schema)

    async def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the remaining batches, for one consumer in another thread::

            async with file.scan() as scan:
                reader = await scan.to_reader()
                await asyncio.to_thread(duckdb_query, reader)

        A consumer in this thread gets a UsageError: it would wait for itself. The reader is used inside the ``async
        with`` block. It fetches ahead no more than the scan does.

        Raises:
            UsageError: the scan is not open, or runs in another event loop.
        """
        self._require_entered()
        self._check_loop()
        return reader_of(self, closes=False)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return an Arrow PyCapsule stream, for a consumer in another thread::

            table = await asyncio.to_thread(pa.table, scan)

        Batches are fetched when they are consumed. Inside of an ``async with`` block all streams share one read;
        outside, each is a read of its own, which ends when the stream is dropped.

        Raises:
            UsageError: this is the event loop's own thread, which would wait for itself; or the loop does not run.
            QueryError: the consumer requests a schema that the batches cannot be cast to.
        """
        from asyncpq.scan.arrow_stream import OtherThread, stream_capsule

        return stream_capsule(OtherThread(self._runtime.loop).call(self._reader), requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return an Arrow PyCapsule of the schema of the batches. If the scan was not entered, this plans the read that
        the next stream makes.

        Raises:
            UsageError: as :meth:`__arrow_c_stream__`: DuckDB asks for the schema first, and for the stream in a thread.
        """
        from asyncpq.scan.arrow_stream import OtherThread

        return OtherThread(self._runtime.loop).call(self._schema_of_next).__arrow_c_schema__()

    async def _reader(self) -> pa.RecordBatchReader:
        if self.entered:
            return reader_of(self, closes=False)
        async with self._pulling:
            read, end = await self._planned()
            end.detach()
            self._next, self.metrics = None, read.metrics
        return reader_of(read, closes=True)

    async def _schema_of_next(self) -> pa.Schema:
        if self.entered:
            return self.schema
        async with self._pulling:
            return (await self._planned())[0].schema

    async def _planned(self) -> tuple[RecordBatchStream, weakref.finalize[..., Any]]:
        """Return the read that the next stream makes, which has begun, and the finalizer that ends it when this scan is
        no longer referenced."""
        if self._next is None:
            from asyncpq.scan.arrow_stream import OtherThread

            assert self.again is not None, "File and Dataset set it"
            read = self.again()
            await read.__aenter__()
            self._next = read, weakref.finalize(self, OtherThread().post, read.close)
        return self._next

    async def _refill(self) -> None:
        """Read units until they have ``combine_rows`` rows, at least one unit, and split their rows into batches.
        Raises StopAsyncIteration at the end."""
        tables: list[pa.Table] = []
        num_rows = 0
        while not tables or (num_rows < self._combine_rows and len(tables) < _MAX_COMBINED):
            if self._holds_unit:
                self._holds_unit = False
                self._executor.done_with_head()
            unit = await self._executor.next()
            if unit is None:
                break
            self._holds_unit = True
            of_unit = self._tables(unit)
            tables.extend(of_unit)
            num_rows += sum(table.num_rows for table in of_unit)
        if not tables:
            raise StopAsyncIteration
        if self._combine_rows:
            tables = [pa.concat_tables(tables).combine_chunks()]
        for table in tables:
            self._batches.extend(batch for batch in table.to_batches() if batch.num_rows)

    async def close(self) -> None:
        """End the scan and cancel its tasks. Idempotent. Raises UsageError in another event loop or process than that
        in which the scan runs."""
        if self._state not in ("new", "done", "closed"):
            self._runtime.check_place("a scan", f"async with {self._of}.scan(...) as scan:")
        await self._end("closed", None)

    async def _end(self, state: str, error: BaseException | None) -> None:
        self._state = "closed"
        self._batches.clear()
        try:
            await self._executor.close()
        finally:
            self._runtime.unregister(self)
            self._operation.end(error)
        self._state = state


def reader_of(scan: RecordBatchStream, *, closes: bool) -> pa.RecordBatchReader:
    """Return a pyarrow reader of the remaining batches, as :meth:`RecordBatchStream.to_reader` does.

    Call it in the scan's event loop. With ``closes``, dropping the reader closes the scan.
    """
    from asyncpq.scan.arrow_stream import BatchPuller

    async def next_batch() -> pa.RecordBatch | None:
        return await anext(scan, None)

    return pa.RecordBatchReader.from_batches(scan.schema, BatchPuller(next_batch, scan.close if closes else None))


class Scan(RecordBatchStream):
    """The batches of one file's rows. Use it as ``async with file.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block is left. Made by
    :meth:`asyncpq.File.scan`.

    Attributes:
        metrics: the cost of the scan so far (:class:`asyncpq.ReadMetrics`).
    """

    _of = "file"

    def __init__(self, planner: ScanPlanner, *, batch_size: int, limit: int | None) -> None:
        runtime, file = planner.source.runtime, OneFile(planner, scan=True)
        executor = ScanExecutor(runtime, planner.source.handle.url, file)
        super().__init__(planner.operation, executor, file.schema, batch_size=batch_size, limit=limit)
