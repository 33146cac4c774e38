"""Streaming reads over many files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import ClassVar

import pyarrow as pa

from asyncpq.datasets.files_read import FilesRead
from asyncpq.datasets.providers import SkippedFile
from asyncpq.events import Operation
from asyncpq.objects.runtime import Resources
from asyncpq.scan.stream import Batches


class DatasetScan(Batches):
    """Batches of a dataset's rows. Use it as ``async with dataset.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block
    is left. Made by :meth:`asyncpq.Dataset.scan`.

    Attributes:
        metrics: what it has cost so far, of files that are done with.
    """

    _of: ClassVar[str] = "dataset"

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
        super().__init__(resources, operation, batch_size=batch_size, limit=limit)
        self._schema = schema
        self._read = read

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the batches."""
        return self._schema

    @property
    def skipped(self) -> list[SkippedFile]:
        """Bad files that were left out so far, where the dataset was opened with ``on_bad_file="skip"``."""
        return self._read.skipped

    async def _begin(self) -> None:
        await self._read.start()

    def _waiting(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()  # the read bounds the wait for each unit

    async def _next_unit(self) -> Sequence[pa.Table] | None:
        rows = await self._read.next()
        return None if rows is None else rows.tables

    def _done_with_unit(self) -> None:
        self._read.done_with_head()

    async def _stop(self) -> None:
        await self._read.close()
