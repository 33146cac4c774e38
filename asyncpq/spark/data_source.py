"""asyncpq as a data source of Spark: ``spark.read.format("asyncpq")``, ``.readStream`` and ``.write``.

Spark calls the source in processes of its own: one infers the schema, one plans, others read. They do not see the
settings of the session, so everything is an option. Each imports this module, then what its step needs: a first query
waits for the imports of three processes. The options ``predicate`` and ``where``, and filters that Spark
pushes with ``pushdown=true``, only prune: the source may return rows that do not match, and Spark filters them.

Spark below 5.0 keeps pushed filters with the relation (SPARK-58551). If a loaded relation is scanned twice, all scans
get the filters of the last scan. A reader cannot prevent that, so these versions refuse ``pushdown``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyspark
from pyspark.sql import datasource as spark
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.types import StructType

from asyncpq import Expression, col
from asyncpq.distributed import run_on_worker
from asyncpq.errors import AsyncpqError, ExpressionError, InvalidOptionError, UnsupportedFeatureError
from asyncpq.spark import source_options

if TYPE_CHECKING:
    from asyncpq import Session
    from asyncpq.spark.reads.lake_scan import LakePlan, LakeScan

T = TypeVar("T")

_FIXED_IN: Final = (5, 0)
_HIDES: Final = "SPARK_HIDE_TRACEBACK"
_BY_ASYNCPQ: Final = "asyncpq"


def require_safe_pushdown(version: str = pyspark.__version__) -> None:
    """Raise UnsupportedFeatureError if Spark of this version may apply the filters that it pushes for one scan to
    another scan."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _FIXED_IN:
        raise UnsupportedFeatureError(
            f"pushdown=true returns wrong rows with Spark {version} if a DataFrame or view is used twice"
            f" (SPARK-58551, fixed in Spark {'.'.join(map(str, _FIXED_IN))})",
            hint="Use asyncpq.spark.scan(spark, url, where=...), or the options predicate or where.",
        )


def pushed_expression(filters: Iterable[spark.Filter]) -> Expression | None:
    """Return a condition that is true for every row for which all ``filters``, pushed by Spark, are true; None if it
    excludes no rows."""
    from asyncpq.engine.foreign_predicates import AllOf, ForeignAtom, Negated, translate

    def understand(node: Any) -> AllOf | Negated | ForeignAtom | None:
        if isinstance(node, list):
            return AllOf(node)
        if isinstance(node, spark.Not):
            return None if isinstance(node.child, spark.EqualNullSafe) else Negated(node.child)
        path, make = getattr(node, "attribute", ()), _LEAVES.get(type(node))
        if make is None or not path or any("." in part for part in path):
            return None
        try:
            return ForeignAtom.of(make(node, col(".".join(path))))
        except ExpressionError:  # asyncpq has no such literal
            return None

    return translate([*filters], understand).where


_LEAVES: Final[dict[type[spark.Filter], Callable[[Any, Any], Expression]]] = {
    spark.EqualTo: lambda pushed, column: column == pushed.value,
    spark.EqualNullSafe: lambda pushed, column: column.is_null() if pushed.value is None else column == pushed.value,
    spark.GreaterThan: lambda pushed, column: column > pushed.value,
    spark.GreaterThanOrEqual: lambda pushed, column: column >= pushed.value,
    spark.LessThan: lambda pushed, column: column < pushed.value,
    spark.LessThanOrEqual: lambda pushed, column: column <= pushed.value,
    spark.In: lambda pushed, column: column.is_in(pushed.value),
    spark.IsNull: lambda _, column: column.is_null(),
    spark.IsNotNull: lambda _, column: column.is_valid(),
    spark.StringStartsWith: lambda pushed, column: column.starts_with(pushed.value),
    spark.StringContains: lambda pushed, column: column.contains(pushed.value),
}


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Let PySpark show an AsyncpqError that ends the block as one line, not after the calls inside of asyncpq.

    Its worker looks at the variable after the block. The worker only plans for data sources: those that run users'
    functions are others.
    """
    if os.environ.get(_HIDES) == _BY_ASYNCPQ:
        del os.environ[_HIDES]
    try:
        yield
    except AsyncpqError:
        if "PYTHON_WORKER_FACTORY_SECRET" in os.environ or "PYTHON_WORKER_FACTORY_SOCK_DIR" in os.environ:
            os.environ.setdefault(_HIDES, _BY_ASYNCPQ)
        raise


class AsyncpqDataSource(spark.DataSource):
    """The format "asyncpq". See docs/spark-reading.md for its options, and
    :func:`asyncpq.spark.register`."""

    @classmethod
    def name(cls) -> str:
        return "asyncpq"

    @_told_plainly()
    def schema(self) -> StructType:
        """Infer the schema as ``spark.read.parquet`` does: from the first file and the partition folders' names."""
        options = source_options.SourceOptions.parse(
            self.options, streaming=True
        )  # Spark does not tell whether it is a stream
        schema = run_on_worker(options.settings, lambda session: source_options.inferred_schema(session, options))
        source_options.check_schema(schema)
        return schema

    @_told_plainly()
    def reader(self, schema: StructType) -> spark.DataSourceReader:
        """Return the reader of a batch query."""
        options = source_options.SourceOptions.parse(self.options)
        source_options.check_schema(schema)
        if not options.pushdown:
            return LakeReader(options, schema)
        self.require_safe_pushdown()
        return PushdownReader(options, schema)

    # Told with all calls: PySpark fails once more after an error here, and its own error would be the one line.
    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802  # pyspark's name
        """Return the reader of a stream of new files."""
        return FileStreamReader(source_options.SourceOptions.parse(self.options, streaming=True), schema)

    @_told_plainly()
    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        """Return the writer, which writes files in tasks and then commits all of them."""
        from asyncpq.spark.lake_writer import lake_writer

        return lake_writer(self.options, schema, overwrite=overwrite)

    @_told_plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # pyspark's name
        """Raise UnsupportedFeatureError: asyncpq does not support writing streams."""
        raise UnsupportedFeatureError(
            "asyncpq does not support writing streams",
            hint="Write batches: writeStream.foreachBatch with df.write in its function.",
        )

    @staticmethod
    def require_safe_pushdown() -> None:
        """Call the function :func:`require_safe_pushdown`. Tests replace this method."""
        require_safe_pushdown()


class LakeReader(spark.DataSourceReader):
    """The reader of a batch query. It plans the read when Spark pickles it, and reads splits in tasks.

    PySpark pickles the reader before it calls :meth:`partitions`, and reports errors at that time as failures of
    pickling. So an error of planning is kept, and :meth:`partitions` raises it.
    """

    def __init__(self, options: source_options.SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._pushed: Expression | None = None
        self._plan: LakePlan | None = None
        self._failed: Exception | None = None
        self._lake: LakeScan | None = None

    def __getstate__(self) -> dict[str, Any]:
        try:
            lake = self._planned().scan
        except Exception as error:  # noqa: BLE001  # raised by partitions()
            self._failed, lake = error, None
        return {"_schema": self._schema, "_lake": lake}

    @_told_plainly()
    def partitions(self) -> list[spark.InputPartition]:
        """Return one partition for each split. Raises the error if planning failed."""
        if self._failed is not None:
            raise self._failed
        return [source_options.SplitPartition(split) for split in self._planned().encoded()]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, in a task: see :func:`asyncpq.distributed.scan_tasks.read_task`."""
        if self._lake is None or not isinstance(partition, source_options.SplitPartition):
            return iter(())  # PySpark starts a task even for an empty plan
        from asyncpq.distributed import read_task

        return source_options.with_nullability(read_task(self._lake, partition.split), self._schema)

    def _planned(self) -> LakePlan:
        async def plan(session: Session) -> LakePlan:
            opened = await source_options.open_for_schema(session, self._options, self._schema)
            return await source_options.plan_source(opened, self._options, self._schema, self._pushed)

        if self._plan is None:
            self._plan = run_on_worker(self._options.settings, plan)
        return self._plan


class PushdownReader(LakeReader):
    """A reader that prunes with the filters that Spark pushes. Spark still applies these filters to the rows."""

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802  # pyspark's name
        """Use the filters for pruning, and return all of them, so that Spark applies them as well."""
        self._pushed = pushed_expression(filters)
        return filters


# -- streams -----------------------------------------------------------------------------------------


#: Maximum files of a batch of a stream if no option limits it.
MAX_FILES: Final = 1000


class FileStreamReader(spark.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """Reads new files of a lake as a stream, with the offsets of :class:`asyncpq.distributed.NewFiles`."""

    def __init__(self, options: source_options.SourceOptions, schema: StructType) -> None:
        source_options.check_schema(schema)
        from asyncpq.distributed import NewFiles

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
        return dict(self._files.first_offset)

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

        from asyncpq import Dataset
        from asyncpq.distributed import EngineDataset

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
        from asyncpq.distributed import read_task

        return source_options.with_nullability(read_task(partition.lake, partition.split), self._schema)
