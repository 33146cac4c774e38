"""Streaming reads: record batches in file order, with read-ahead that the consumer's pace bounds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from asyncpq.batches import Batches
from asyncpq.errors import ObjectChangedError, UsageError
from asyncpq.format.page_index import PageLocationError
from asyncpq.pipeline import Pipeline, jobs_of

if TYPE_CHECKING:
    from asyncpq.prepared import Preparation, Prepared


class Scan(Batches):
    """Batches of one file's rows. Use it as ``async with file.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block
    is left. Made by :meth:`asyncpq.File.scan`.

    Attributes:
        metrics: what it has cost so far.
    """

    _of: ClassVar[str] = "file"

    def __init__(self, preparation: Preparation, *, batch_size: int, limit: int | None) -> None:
        super().__init__(preparation.source.resources, preparation.operation, batch_size=batch_size, limit=limit)
        self._preparation = preparation
        self._prepared: Prepared | None = None
        self._pipeline: Pipeline | None = None

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the batches; known once the scan was entered."""
        if self._prepared is None:
            raise UsageError("the scan has not been entered", hint="Write `async with file.scan(...) as scan:`.")
        return self._prepared.shape.schema

    async def _begin(self) -> None:
        """Plan and start fetching, over again while the object changes in between."""
        self._prepared = await self._preparation.prepare(scan=True)
        read = self._prepared.read
        units = read.units(self._resources.options.limits.unit_bytes)
        self._pipeline = Pipeline(jobs_of(read, units), self._resources)
        self._pipeline.start()

    def _waiting(self) -> AbstractAsyncContextManager[object]:
        return self._preparation.deadline()

    async def _next_unit(self) -> Sequence[pa.Table] | None:
        while True:
            pipeline = self._pipeline
            if pipeline is None:
                raise UsageError("the scan is closed")
            try:
                landed = await pipeline.next()
                if landed is not None:
                    return landed.tables
                if self._prepared is not None:
                    self._prepared.read.check_complete()
                    await self._prepared.read.ensure_current()
                return None
            except ObjectChangedError as error:
                await pipeline.close()
                await self._preparation.changed(error, restartable=not self.metrics.rows_returned)
                await self._begin()
            except PageLocationError as error:
                if self.metrics.rows_returned:
                    raise
                self._preparation.relocated(error)
                await pipeline.close()
                await self._begin()

    def _done_with_unit(self) -> None:
        if self._pipeline is not None:
            self._pipeline.done_with_head()

    async def _stop(self) -> None:
        if self._pipeline is not None:
            await self._pipeline.close()
