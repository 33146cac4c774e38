"""The reader of ``spark.readStream.format("asyncpq")``: batches of new files, planned by Spark's offsets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.types import StructType

from asyncpq import Session
from asyncpq.distributed import read_task, run_on_worker
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import InvalidOptionError, ObjectChangedError
from asyncpq.spark import source_options
from asyncpq.spark.reads.lake_scan import LakePlan
from asyncpq.spark.stream_files import START, IndexStream, ListedStream, StreamLimits, kind_of_stream

T = TypeVar("T")

#: Maximum files of a batch of a stream if no option limits it.
MAX_FILES: Final = 1000


class FileStreamReader(spark.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """Reads new files of a lake as a stream, with the offsets of :mod:`asyncpq.spark.stream_files`."""

    def __init__(self, options: source_options.SourceOptions, schema: StructType) -> None:
        source_options.check_schema(schema)
        if options.lake.format in ("delta", "iceberg") or not isinstance(options.lake.target, str):
            raise InvalidOptionError(
                "a stream reads one folder or pattern, but the path is a table or several paths",
                hint="Pass the url of one folder: .load('s3://bucket/lake/').",
            )
        self._options, self._schema = options, schema
        self._stream: ListedStream | IndexStream | None = None
        self._ends = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema}

    # -- in the process that plans ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # pyspark's names
        """Return the offset before the first file."""
        return dict(START)

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802
        """Return the maximum size of a batch that the options set; ``MAX_FILES`` files if they set none."""
        if self._options.max_bytes is not None:
            return streaming.ReadMaxBytes(self._options.max_bytes)
        return streaming.ReadMaxFiles(self._options.max_files or MAX_FILES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream, for Spark's trigger AvailableNow: ignore files that appear after this call."""
        self._ends = True
        self._run(self._opened)

    def latestOffset(self, start: dict[str, Any], limit: streaming.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset after the next batch, which begins at ``start``; ``limit`` is the maximum size of the
        batch. Raises UsageError if the checkpoint belongs to another stream."""

        async def advance(session: Session) -> dict[str, Any]:
            stream = await self._opened(session, start)
            return start if stream is None else await stream.advance(session, start, _limits(limit))

        return self._run(advance)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[spark.InputPartition]:
        """Plan the batch of files between two offsets, and return one partition for each split. Raises
        ObjectChangedError if files were replaced or deleted, unless the option ignoreMissingFiles is set."""
        if start == end:
            return []

        async def planned(session: Session) -> LakePlan | None:
            stream = await self._opened(session, end)
            if stream is None:
                return None
            batch = await stream.batch(session, start, end)
            if batch.num_files < batch.expected and not self._options.conf.ignore_missing_files:
                raise ObjectChangedError(
                    f"{batch.expected - batch.num_files} of the {batch.expected} files of this batch were replaced or"
                    " deleted before they were read",
                    url=safe_url(batch.gone or str(self._options.lake.target)),
                    hint="Set ignoreMissingFiles=true to skip these files; a later batch reads their replacements.",
                )
            if batch.opened is None or not batch.num_files:
                return None
            return await source_options.plan_source(batch.opened, self._options, self._schema)

        plan = self._run(planned)
        if plan is None:
            return []
        return [source_options.SplitPartition(split, plan.scan) for split in plan.encoded()]

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        return run_on_worker(self._options.settings, work)

    async def _opened(self, session: Session, offset: Mapping[str, Any] = START) -> ListedStream | IndexStream | None:
        """Return the stream's file provider: over listings or over an index, whichever wrote ``offset``. None if the
        offset is the first one and there are no files yet, so that this is undecided."""
        provider: type[ListedStream | IndexStream] | None
        if "after" in offset or "index" in offset:
            provider = ListedStream if "after" in offset else IndexStream
        elif self._stream is not None:
            return self._stream
        else:
            provider = await kind_of_stream(session, self._options)
            if provider is None and self._ends:  # no file has come yet
                provider = ListedStream
        if provider is not None and type(self._stream) is not provider:
            self._stream = provider(self._options, self._schema)
            if self._ends:
                await self._stream.look(session)
        return self._stream

    # -- in tasks ---------------------------------------------------------------------------------

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in a task: see :func:`asyncpq.distributed.scan_tasks.read_task`."""
        if not isinstance(partition, source_options.SplitPartition) or partition.lake is None:
            return iter(())
        return source_options.with_nullability(read_task(partition.lake, partition.split), self._schema)


def _limits(limit: streaming.ReadLimit) -> StreamLimits:
    if not isinstance(limit, (streaming.ReadMaxFiles, streaming.ReadMaxBytes, streaming.ReadAllAvailable)):
        raise InvalidOptionError(
            f"asyncpq does not support the read limit {type(limit).__name__} for streams",
            hint="Limit batches with maxFilesPerTrigger or maxBytesPerTrigger.",
        )
    return StreamLimits(getattr(limit, "max_files", None), getattr(limit, "max_bytes", None))
