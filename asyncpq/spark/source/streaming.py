"""``spark.readStream.format("asyncpq")``: files as they come, each version of a file once (docs/spark.md)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from asyncpq.errors import InvalidOptionError, ObjectChangedError
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.planning import ReadPlan
from asyncpq.spark.reads.reading import read_split
from asyncpq.spark.reads.splits import Lake
from asyncpq.spark.source.columns_asked import SplitPartition, as_asked, check_asked, plan_as_asked
from asyncpq.spark.source.source_options import SourceOptions
from asyncpq.spark.source.stream_files import START, IndexStream, Limits, ListedStream, kind_of_stream
from asyncpq.storage.urls import safe_url

T = TypeVar("T")

#: Of one batch, where no option limits it.
MAX_FILES: Final = 1000


class StreamPartition(SplitPartition):
    """One split, with what it shares with others of its batch: the reader was pickled before any batch was planned."""

    def __init__(self, split: bytes, lake: Lake) -> None:
        super().__init__(split)
        self.lake = lake


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are as in :mod:`asyncpq.spark.source.stream_files`; the first says nothing, so it asks for nothing."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_asked(schema)
        if options.format in ("delta", "iceberg") or not isinstance(options.target, str):
            raise InvalidOptionError("a stream is of one folder or pattern, not of a table, nor of several paths")
        self._options = options
        self._schema = schema
        self._stream: ListedStream | IndexStream | None = None
        self._ends = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema}

    # -- in the process that plans ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # pyspark's names
        """Before all files."""
        return dict(START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the options say."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxFiles(self._options.max_files or MAX_FILES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that comes from now on is read."""
        self._ends = True
        self._run(self._opened)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset behind the next batch.

        Raises:
            AsyncpqError: the files cannot be listed; or the checkpoint is of another stream.
        """

        async def advance(session: Session) -> dict[str, Any]:
            stream = await self._opened(session, start)
            return start if stream is None else await stream.advance(session, start, _limits(limit))

        return self._run(advance)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """
        Raises:
            ObjectChangedError: files of the batch are not there any more as they were, unless that may be ignored.
        """
        if start == end:
            return []

        async def planned(session: Session) -> ReadPlan | None:
            stream = await self._opened(session, end)
            if stream is None:
                return None
            batch = await stream.batch(session, start, end)
            if batch.num_files < batch.expected and not self._options.ignore_missing_files:
                raise ObjectChangedError(
                    f"{batch.expected - batch.num_files} of the {batch.expected} files of this batch were replaced or"
                    " deleted before they were read",
                    url=safe_url(batch.gone or str(self._options.target)),
                    hint="The option ignoreMissingFiles=true goes on without them; what replaced them is read later.",
                )
            if batch.opened is None or not batch.num_files:
                return None
            return await plan_as_asked(batch.opened, self._options, self._schema)

        plan = self._run(planned)
        if plan is None:
            return []
        return [StreamPartition(split, plan.lake) for split in plan.tasks()]

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        return sessions.run(self._options.settings, work)

    async def _opened(self, session: Session, offset: Mapping[str, Any] = START) -> ListedStream | IndexStream | None:
        """Where the files come from: as the offset says, which a checkpoint may have kept. None: nobody knows yet."""
        kind: type[ListedStream | IndexStream] | None
        if "after" in offset:
            kind = ListedStream
        elif "index" in offset:
            kind = IndexStream
        elif self._stream is not None:
            return self._stream
        else:
            kind = await kind_of_stream(session, self._options)
            if kind is None and self._ends:  # before the first file has come
                kind = ListedStream
        if kind is not None and type(self._stream) is not kind:
            self._stream = kind(self._options, self._schema)
            if self._ends:
                await self._stream.look(session)
        return self._stream

    # -- in tasks ---------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ObjectChangedError: a file is not there any more as it was planned.
        """
        if not isinstance(partition, StreamPartition):
            return iter(())
        return as_asked(read_split(partition.lake, partition.split), self._schema)


def _limits(limit: ReadLimit) -> Limits:
    if isinstance(limit, ReadMaxFiles):
        return Limits(max_files=limit.max_files)
    if isinstance(limit, ReadMaxBytes):
        return Limits(max_bytes=limit.max_bytes)
    if isinstance(limit, ReadAllAvailable):
        return Limits()
    raise InvalidOptionError(f"a stream of files has no limit such as {type(limit).__name__}")
