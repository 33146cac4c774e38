"""Streaming reads over many files."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from asyncpq.datasets.file_sets import SkippedFile
from asyncpq.datasets.files_read import FilesRead
from asyncpq.errors import UsageError
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.resources import Resources


class DatasetScan:
    """Batches of a dataset's rows. Use it as ``async with dataset.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block
    is left. Made by :meth:`asyncpq.Dataset.scan`.

    Attributes:
        metrics: what it has cost so far, of files that are done with.
        schema: Arrow schema of the batches.
    """

    def __init__(
        self,
        resources: Resources,
        read: FilesRead,
        operation: Operation,
        schema: pa.Schema,
        *,
        batch_size: int,
        limit: int | None,
    ) -> None:
        self.metrics: ReadMetrics = operation.metrics
        self.schema = schema
        self._resources = resources
        self._read = read
        self._operation = operation
        self._batch_size = batch_size
        self._left = limit
        self._batches: deque[pa.RecordBatch] = deque()
        self._holds_unit = False
        self._state = "new"

    def __repr__(self) -> str:
        return f"DatasetScan({self._operation.url!r}, {self._state})"

    @property
    def entered(self) -> bool:
        """Whether the scan was entered."""
        return self._state != "new"

    @property
    def skipped(self) -> list[SkippedFile]:
        """Bad files that were left out so far, where the dataset was opened with ``on_bad_file="skip"``."""
        return self._read.skipped

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise UsageError("a scan can be entered once", hint="Call dataset.scan(...) again.")
        self._resources.check()
        self._state = "open"
        self._resources.register(self, self.close)
        self._operation.begin()
        try:
            async with self._resources.deadline(self._operation.url):
                await self._read.start()
        except BaseException as error:
            await self._end("closed", error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        if self._state == "new":
            raise UsageError(
                "a scan is iterated inside `async with`",
                hint="Write `async with dataset.scan(...) as scan:`, or await dataset.read(...) for one table.",
            )
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch: at least one row, at most ``batch_size``, all of one file.

        Raises:
            ObjectChangedError: a file was replaced after rows of it were given out.
            AsyncpqError: reading failed; the scan is over.
        """
        if self._state == "done":
            raise StopAsyncIteration
        if self._state != "open":
            raise UsageError("the scan is closed")
        self._resources.check()
        try:
            if self._left == 0:
                raise StopAsyncIteration
            while not self._batches:
                await self._refill()
            batch = self._batches.popleft()
            if batch.num_rows > self._batch_size:
                self._batches.appendleft(batch.slice(self._batch_size))
                batch = batch.slice(0, self._batch_size)
        except StopAsyncIteration:
            await self._end("done", None)
            raise
        except BaseException as error:
            await self._end("closed", error)
            raise
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        self.metrics.rows_returned += batch.num_rows
        return batch

    async def _refill(self) -> None:
        if self._holds_unit:
            self._read.done_with_head()
            self._holds_unit = False
        rows = await self._read.next()
        if rows is None:
            raise StopAsyncIteration
        self._holds_unit = True
        for table in rows.tables:
            self._batches.extend(batch for batch in table.to_batches() if batch.num_rows)

    async def close(self) -> None:
        """End the scan and everything it runs. Idempotent."""
        await self._end("closed", None)

    async def _end(self, state: str, error: BaseException | None) -> None:
        self._state = "closed"
        self._batches.clear()
        try:
            await self._read.close()
        finally:
            self._resources.unregister(self)
            self._operation.end(error)
        self._state = state
