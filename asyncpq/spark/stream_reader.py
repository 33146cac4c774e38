"""The reader of ``spark.readStream.format("asyncpq")``: batches of new files, planned by Spark's offsets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.types import StructType

from asyncpq import Dataset, Session
from asyncpq.distributed import EngineDataset, NewFiles, read_task, run_on_worker
from asyncpq.errors import InvalidOptionError
from asyncpq.spark import source_options
from asyncpq.spark.reads.lake_scan import LakePlan

T = TypeVar("T")

#: Maximum files of a batch of a stream if no option limits it.
MAX_FILES: Final = 1000


class FileStreamReader(spark.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """Reads new files of a lake as a stream, with the offsets of :class:`asyncpq.distributed.NewFiles`."""

    def __init__(self, options: source_options.SourceOptions, schema: StructType) -> None:
        source_options.check_schema(schema)
        lake = options.lake
        self._options, self._schema = options, schema
        self._files = NewFiles(
            lake.target,
            max_age_s=options.max_file_age_s,
            skip_missing=options.conf.ignore_missing_files,
            **lake.options(options.conf),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema}

    # -- in the process that plans ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # pyspark's names
        """Return the offset before the first file."""
        return dict(NewFiles.first_offset)

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802
        """Return the maximum size of a batch that the options set; ``MAX_FILES`` files if they set none."""
        if self._options.max_bytes is not None:
            return streaming.ReadMaxBytes(self._options.max_bytes)
        return streaming.ReadMaxFiles(self._options.max_files or MAX_FILES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream, for Spark's trigger AvailableNow: ignore files that appear after this call."""
        self._run(self._files.fix_end)

    def latestOffset(self, start: dict[str, Any], limit: streaming.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch, which begins at ``start``; ``limit`` is the maximum size of the
        batch. Raises UsageError if the checkpoint belongs to another stream."""
        if not isinstance(limit, (streaming.ReadMaxFiles, streaming.ReadMaxBytes, streaming.ReadAllAvailable)):
            raise InvalidOptionError(
                f"asyncpq does not support the read limit {type(limit).__name__} for streams",
                hint="Limit batches with maxFilesPerTrigger or maxBytesPerTrigger.",
            )
        limits = {name: getattr(limit, name, None) for name in ("max_files", "max_bytes")}
        return self._run(lambda session: self._files.advance(session, start, **limits))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[spark.InputPartition]:
        """Plan the batch of files between two offsets, and return one partition for each split. Raises
        ObjectChangedError if files were replaced or deleted, unless the option ignoreMissingFiles is set."""

        async def planned(session: Session) -> LakePlan | None:
            batch = await self._files.batch(session, start, end)
            if batch is None:
                return None
            lake = replace(self._options.lake, view=batch.view)
            if batch.view == "listed":
                lake = replace(lake, index=False)
            options = replace(self._options, lake=lake)
            opened = await source_options.open_for_schema(session, options, self._schema)
            dataset = await batch.narrowed(Dataset(opened.state))
            return await source_options.plan_source(
                replace(opened, state=EngineDataset.of(dataset)), options, self._schema
            )

        plan = self._run(planned)
        if plan is None:
            return []
        return [source_options.SplitPartition(split, plan.scan) for split in plan.encoded()]

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        return run_on_worker(self._options.settings, work)

    # -- in tasks ---------------------------------------------------------------------------------

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in a task: see :func:`asyncpq.distributed.scan_tasks.read_task`."""
        if not isinstance(partition, source_options.SplitPartition) or partition.lake is None:
            return iter(())
        return source_options.with_nullability(read_task(partition.lake, partition.split), self._schema)
