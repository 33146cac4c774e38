"""Streaming reads over many files."""

from __future__ import annotations

import pyarrow as pa

from asyncpq.datasets.dataset_files import DatasetFiles
from asyncpq.datasets.providers import SkippedFile
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.scan.executor import ScanExecutor
from asyncpq.scan.stream import RecordBatchStream, ScanUnits


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
        files: DatasetFiles,
        operation: Operation,
        schema: pa.Schema,
        *,
        batch_size: int,
        limit: int | None,
    ) -> None:
        executor = ScanExecutor(runtime, operation.url, files, ordered=files.ordered)
        super().__init__(runtime, operation, ScanUnits(executor, lambda: schema), batch_size=batch_size, limit=limit)
        self._files = files

    @property
    def skipped(self) -> list[SkippedFile]:
        """Bad files that were left out so far, where the dataset was opened with ``on_bad_file="skip"``."""
        return self._files.skipped
