"""``spark.read.format("asyncpq")``, ``.readStream`` and ``.write``: asyncpq as a data source of Spark.

Spark calls it in processes of its own: one infers the schema, one plans, others read. None of them sees the settings of
Spark's session, so all that matters is among the options. The options ``predicate`` and ``where`` only leave out what
cannot match: rows that do not match may come, and the query filters them as well.

Filters that Spark hands to the source with ``pushdown=true``; they only prune, and Spark applies all of them again.

Spark below 5.0 keeps what was pushed with the relation (SPARK-58551): where one loaded relation is scanned twice,
every scan gets the filters of the last one, and an unfiltered scan after a filtered one asks Python nothing. Nothing
that a reader does can make that right, so the option is refused there.

``spark.readStream.format("asyncpq")``: files as they come, each version of a file once (docs/spark.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyspark
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from asyncpq.errors import ExpressionError, InvalidOptionError, ObjectChangedError, UnsupportedFeatureError
from asyncpq.expressions import (
    And,
    Comparison,
    Contains,
    Expression,
    In,
    IsNull,
    Not,
    StartsWith,
)
from asyncpq.expressions.scalars import as_scalar, as_scalars
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.planning import LakePlan
from asyncpq.spark.reads.reading import read_split
from asyncpq.spark.reads.splits import LakeScan
from asyncpq.spark.source_options import (
    SourceOptions,
    SplitPartition,
    as_asked,
    check_asked,
    inferred_schema,
    open_as_asked,
    plan_as_asked,
)
from asyncpq.spark.stream_files import START, IndexStream, ListedStream, StreamLimits, kind_of_stream
from asyncpq.storage.urls import safe_url

_FIXED_IN: Final = (5, 0)

_COMPARED: Final[dict[type[spark.Filter], str]] = {
    spark.EqualTo: "==",
    spark.EqualNullSafe: "==",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


def require_safe_pushdown(version: str = pyspark.__version__) -> None:
    """
    Raises:
        UnsupportedFeatureError: this version of Spark may give rows of another scan's filters.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _FIXED_IN:
        raise UnsupportedFeatureError(
            f"pushdown=true gives wrong rows with Spark {version}, where a DataFrame or view is used twice"
            f" (SPARK-58551, fixed in Spark {'.'.join(map(str, _FIXED_IN))})",
            hint="Use asyncpq.spark.scan(spark, url, where=...), or the options predicate or where.",
        )


def pushed_expression(filters: Iterable[spark.Filter]) -> Expression | None:
    """A condition that is true wherever all of the filters are, in Spark's meaning; None for no condition."""
    found = [one for one in map(_expression, filters) if one is not None]
    return found[0] if len(found) == 1 else And(tuple(found)) if found else None


def _expression(pushed: spark.Filter) -> Expression | None:
    """None for what has no counterpart."""
    if isinstance(pushed, spark.Not):
        # Nothing is lost in between: each of these is the filter itself, not something wider.
        inner = None if isinstance(pushed.child, spark.EqualNullSafe) else _expression(pushed.child)
        return None if inner is None else Not(inner)
    path = getattr(pushed, "attribute", ())
    if not path or any("." in part for part in path):
        return None
    try:
        return _leaf(pushed, ".".join(path))
    except ExpressionError:  # a literal that asyncpq has no form for
        return None


def _leaf(pushed: spark.Filter, column: str) -> Expression | None:
    if isinstance(pushed, spark.EqualNullSafe) and pushed.value is None:
        return IsNull(column)
    op = _COMPARED.get(type(pushed))
    if op is not None:
        return Comparison(column, op, as_scalar(pushed.value))  # type: ignore[attr-defined,arg-type]  # all of these have a value
    make = _OTHERS.get(type(pushed))
    return None if make is None else make(pushed, column)


_OTHERS: Final[dict[type[spark.Filter], Callable[..., Expression | None]]] = {
    spark.In: lambda pushed, column: In(column, as_scalars(pushed.value)),
    spark.IsNull: lambda _, column: IsNull(column),
    spark.IsNotNull: lambda _, column: Not(IsNull(column)),
    spark.StringStartsWith: lambda pushed, column: StartsWith(column, pushed.value),
    spark.StringContains: lambda pushed, column: Contains(column, pushed.value),
}


class AsyncpqDataSource(DataSource):
    """See docs/spark.md for the options. To be registered by :func:`asyncpq.spark.register`."""

    @classmethod
    def name(cls) -> str:
        return "asyncpq"

    def schema(self) -> StructType:
        """As ``spark.read.parquet`` infers it: of the first file, and of the folders' names.

        Raises:
            AsyncpqError: there are no files, or an option cannot be; or PySpark takes no data of a type.
        """
        options = SourceOptions.parse(self.options, streaming=True)  # Spark does not say whether it is a stream
        found = sessions.run(options.settings, lambda session: inferred_schema(session, options))
        check_asked(found)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Raises:
            InvalidOptionError: an option that cannot be.
            UnsupportedFeatureError: ``pushdown`` with a version of Spark that goes wrong then.
        """
        options = SourceOptions.parse(self.options)
        check_asked(schema)
        if not options.pushdown:
            return LakeReader(options, schema)
        self.require_safe_pushdown()
        return PushdownReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # pyspark's name
        """New files, as they come."""

        return FileStreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Files and the commit of them."""
        from asyncpq.spark.lake_writer import lake_writer

        return lake_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # pyspark's name
        """
        Raises:
            UnsupportedFeatureError: in any case.
        """
        raise UnsupportedFeatureError(
            "streams are not written", hint="Write batches: writeStream.foreachBatch, and df.write in its function."
        )

    @staticmethod
    def require_safe_pushdown() -> None:
        """
        Raises:
            UnsupportedFeatureError: this version of Spark goes wrong with it.
        """
        require_safe_pushdown()


class LakeReader(DataSourceReader):
    """Plans when it is sent to the tasks, and reads there.

    PySpark pickles the reader before it asks for the partitions, and takes what happens then for a failure of pickling:
    so it is planned when it is pickled, and said afterwards if that has failed.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: Expression | None = None
        self._plan: LakePlan | None = None
        self._failed: Exception | None = None
        self._lake: LakeScan | None = None

    def __getstate__(self) -> dict[str, Any]:
        try:
            lake = self._planned().lake
        except Exception as error:  # noqa: BLE001  # raised by partitions()
            self._failed, lake = error, None
        return {"_schema": self._schema, "_lake": lake}

    def partitions(self) -> list[InputPartition]:
        """
        Raises:
            AsyncpqError: it could not be planned.
        """
        if self._failed is not None:
            raise self._failed
        return [SplitPartition(split) for split in self._planned().tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ObjectChangedError: a file is not there any more as it was planned.
            AsyncpqError: it could not be read.
        """
        if self._lake is None or not isinstance(partition, SplitPartition):
            return iter(())  # PySpark has a task for an empty plan, too
        return as_asked(read_split(self._lake, partition.split), self._schema)

    def _planned(self) -> LakePlan:
        if self._plan is None:
            self._plan = sessions.run(self._options.settings, self._make_plan)
        return self._plan

    async def _make_plan(self, session: Session) -> LakePlan:
        opened = await open_as_asked(session, self._options, self._schema)
        return await plan_as_asked(opened, self._options, self._schema, self._pushed)


class PushdownReader(LakeReader):
    """The same with filters that Spark pushes, which it goes on to apply itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # pyspark's name
        """Remember them; all are given back."""
        self._pushed = pushed_expression(filters)
        return filters


T = TypeVar("T")

#: Of one batch, where no option limits it.
MAX_FILES: Final = 1000


class StreamPartition(SplitPartition):
    """One split, with what it shares with others of its batch: the reader was pickled before any batch was planned."""

    def __init__(self, split: bytes, lake: LakeScan) -> None:
        super().__init__(split)
        self.lake = lake


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are as in :mod:`asyncpq.spark.stream_files`; the first says nothing, so it asks for nothing."""

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

        async def planned(session: Session) -> LakePlan | None:
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


def _limits(limit: ReadLimit) -> StreamLimits:
    if isinstance(limit, ReadMaxFiles):
        return StreamLimits(max_files=limit.max_files)
    if isinstance(limit, ReadMaxBytes):
        return StreamLimits(max_bytes=limit.max_bytes)
    if isinstance(limit, ReadAllAvailable):
        return StreamLimits()
    raise InvalidOptionError(f"a stream of files has no limit such as {type(limit).__name__}")
