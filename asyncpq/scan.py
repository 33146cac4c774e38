"""Streaming reads: record batches in file order, with read-ahead that the consumer's pace bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from asyncpq.errors import ObjectChangedError, UsageError
from asyncpq.metrics import ReadMetrics
from asyncpq.pipeline import Pipeline, jobs_of

if TYPE_CHECKING:
    from asyncpq.prepared import Preparation, Prepared


class Scan:
    """Batches of one file's rows. Use it as ``async with file.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block
    is left. Made by :meth:`asyncpq.File.scan`.

    Attributes:
        metrics: what it has cost so far.
    """

    def __init__(self, preparation: Preparation, *, batch_size: int, limit: int | None) -> None:
        self.metrics: ReadMetrics = preparation.metrics
        self._preparation = preparation
        self._resources = preparation.source.resources
        self._batch_size = batch_size
        self._left = limit
        self._prepared: Prepared | None = None
        self._pipeline: Pipeline | None = None
        self._batches: deque[pa.RecordBatch] = deque()
        self._holds_unit = False
        self._delivered = False
        self._state = "new"

    def __repr__(self) -> str:
        return f"Scan({self._preparation.source.handle.url!r}, {self._state})"

    @property
    def entered(self) -> bool:
        """Whether the scan was entered."""
        return self._state != "new"

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the batches; known once the scan was entered."""
        if self._prepared is None:
            raise UsageError("the scan has not been entered", hint="Write `async with file.scan(...) as scan:`.")
        return self._prepared.shape.schema

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise UsageError("a scan can be entered once", hint="Call file.scan(...) again.")
        self._resources.check()
        self._state = "open"
        self._resources.register(self, self.close)
        self._preparation.operation.begin()
        try:
            async with self._preparation.deadline():
                await self._begin()
        except BaseException as error:
            await self._end("closed", error)
            raise
        return self

    async def _begin(self) -> None:
        """Plan and start fetching, over again while the object changes in between."""
        self._prepared = await self._preparation.prepare(scan=True)
        read = self._prepared.read
        units = read.units(self._resources.options.limits.unit_bytes)
        self._pipeline = Pipeline(jobs_of(read, units), self._resources)
        self._pipeline.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        if self._state == "new":
            raise UsageError(
                "a scan is iterated inside `async with`",
                hint="Write `async with file.scan(...) as scan:`, or await file.read(...) for one table.",
            )
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch: at least one row, at most ``batch_size``.

        Raises:
            ObjectChangedError: the object was replaced after the first batch was given out.
            AsyncpqError: reading failed; the scan is over.
        """
        if self._state == "done":
            raise StopAsyncIteration
        if self._state != "open":
            raise UsageError("the scan is closed")
        self._resources.check()  # in another loop or process it would wait for ever
        try:
            if self._left == 0:
                raise StopAsyncIteration
            if not self._batches:
                async with self._preparation.deadline():
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
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        self.metrics.rows_returned += batch.num_rows
        self._delivered = True
        return batch

    async def _refill(self) -> None:
        while not self._batches:
            pipeline = self._pipeline
            if pipeline is None:
                raise UsageError("the scan is closed")
            if self._holds_unit:
                pipeline.done_with_head()
                self._holds_unit = False
            try:
                landed = await pipeline.next()
                if landed is None:
                    if self._prepared is not None:
                        self._prepared.read.check_complete()
                        await self._prepared.read.ensure_current()
                    raise StopAsyncIteration
            except ObjectChangedError as error:
                await pipeline.close()
                await self._preparation.changed(error, restartable=not self._delivered)
                await self._begin()
                continue
            self._holds_unit = True
            for table in landed.tables:
                self._batches.extend(batch for batch in table.to_batches() if batch.num_rows)

    async def close(self) -> None:
        """End the scan and everything it runs. Idempotent."""
        await self._end("closed", None)

    async def _end(self, state: str, error: BaseException | None) -> None:
        self._state = "closed"
        self._batches.clear()
        try:
            if self._pipeline is not None:
                await self._pipeline.close()
        finally:
            self._resources.unregister(self)
            self._preparation.operation.end(error)
        self._state = state
