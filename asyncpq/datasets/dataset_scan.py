"""Streaming reads over many files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import pyarrow as pa

from asyncpq.datasets.files_read import FilesRead, UnitRows
from asyncpq.datasets.providers import SkippedFile
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.scan.stream import RecordBatchStream


class ReadUnits:
    """The rows of a read of many files, unit by unit (:class:`asyncpq.scan.stream.Units`).

    Args:
        schema: of the rows.
        tables: makes of what one unit gave the tables that go out.
    """

    def __init__(
        self,
        read: FilesRead,
        schema: pa.Schema,
        tables: Callable[[UnitRows], Sequence[pa.Table]] = attrgetter("tables"),
    ) -> None:
        self.schema = schema
        self._read = read
        self._tables = tables

    async def start(self) -> None:
        """Find the files and start fetching."""
        await self._read.start()

    async def next(self) -> Sequence[pa.Table] | None:
        """The rows of the next unit; None at the end."""
        rows = await self._read.next()
        return None if rows is None else self._tables(rows)

    def done(self) -> None:
        """The rows of the last unit were consumed."""
        self._read.done_with_head()

    async def close(self) -> None:
        """End what runs. Idempotent."""
        await self._read.close()


class DatasetScan(RecordBatchStream):
    """Batches of a dataset's rows. Use it as ``async with dataset.scan(...) as scan: async for batch in scan``.

    It owns its tasks: leaving the block early, an error or a cancellation ends them before the block
    is left. Made by :meth:`asyncpq.Dataset.scan`.

    Attributes:
        metrics: what it has cost so far, of files that are done with.
    """

    def __init__(
        self,
        runtime: Runtime,
        read: FilesRead,
        operation: Operation,
        schema: pa.Schema,
        *,
        batch_size: int,
        limit: int | None,
    ) -> None:
        super().__init__(runtime, operation, ReadUnits(read, schema), batch_size=batch_size, limit=limit)
        self._read = read

    @property
    def skipped(self) -> list[SkippedFile]:
        """Bad files that were left out so far, where the dataset was opened with ``on_bad_file="skip"``."""
        return self._read.skipped
