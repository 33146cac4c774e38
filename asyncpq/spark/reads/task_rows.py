"""DataFrames of the rows that tasks read, or the driver, and what the tasks have read.

Spark estimates the size of ``mapInArrow`` output by its input, here one number a task, and would broadcast any lake in
a join. So the input is padded to the size of the data: more numbers than tasks, which are dropped at once, beside a
wide column without values. With ``spark.sql.cbo.enabled`` Spark counts rows and multiplies them by the width of the
selected columns: then there are more numbers and no wide column.

Spark offers Python sources no metrics of their own. So tasks add their counts to an accumulator, which the driver
reads, and Spark shows the name of the tasks' function in ``explain`` and in its UI.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.types import StructType

from asyncpq.distributed import worker_counts
from asyncpq.options import MIB
from asyncpq.spark.driver import context_of
from asyncpq.spark.types.conversion import arrow_schema

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession


logger: logging.Logger = logging.getLogger(__name__)

_FIELDS: Final = 20
_WIDTH: Final = _FIELDS * 100  # bytes: Spark's estimate for a BINARY is 100
_WIDE: Final = f"CAST(NULL AS STRUCT<{', '.join(f'c{at}: BINARY' for at in range(_FIELDS))}>) AS wide"
#: Spark adds 8 bytes to each row, and counts 8 bytes for a number.
_WIDE_ROW_BYTES: Final = (8 + 8 + _WIDTH) // 2
_NUMBER_BYTES: Final = 8
# Larger estimates change no plan, and counting the numbers takes about 0.3 s in all tasks together.
_PADDED_BYTES: Final = 65_536 * MIB
_NUMBERS_BYTES: Final = 512 * MIB

# -- rows -----------------------------------------------------------------------------------------


#: Reads the rows of one task from its encoded part of the plan. Picklable.
TaskReader: TypeAlias = Callable[[bytes], Iterator[pa.RecordBatch]]


def task_rows(
    spark: SparkSession,
    read: TaskReader,
    tasks: Sequence[bytes],
    struct: StructType,
    num_bytes: int,
    metrics: TaskMetrics,
) -> DataFrame:
    """Return the rows that ``read`` yields for each of ``tasks``, as a DataFrame whose size Spark estimates at
    ``num_bytes``. Tasks add what they read to ``metrics``."""
    if not tasks:
        return local_rows(spark, [], struct)
    return mapped_tasks(spark, partial(read_tasks, read, metrics), tasks, struct, num_bytes, metrics.name)


def read_tasks(read: TaskReader, metrics: TaskMetrics, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that ``read`` returns for each payload in ``batches``. Runs on executors."""
    for batch in batches:
        for payload in batch.column("payload").to_pylist():
            yield from metrics.timed(metrics.counted(read(payload)))


#: Tasks of at most so many bytes are sent with the function that each of them runs; others as rows.
MOST_CLOSURE_BYTES: Final = MIB

#: A function of record batches, as ``mapInArrow`` takes it.
Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def mapped_tasks(
    spark: SparkSession, work: Work, tasks: Sequence[bytes], struct: StructType, num_bytes: int = 0, name: str = ""
) -> DataFrame:
    """Return the rows that ``work`` yields for ``tasks``, each in a task of Spark, as a DataFrame with the columns of
    ``struct``.

    ``work`` gets batches with the columns "id", a task's number, and "payload". Spark estimates the size of the
    DataFrame at ``num_bytes``, and shows ``name`` in its plans.
    """
    numbers, columns = _padding(spark, num_bytes)
    if sum(map(len, tasks)) <= MOST_CLOSURE_BYTES:
        step = -(-numbers // len(tasks))
        rows = spark.range(0, len(tasks) * step, 1, len(tasks))
        if step > 1:
            rows = rows.filter(f"id % {step} = 0").selectExpr("id", *columns)
        function = partial(_of_numbers, work, tuple(tasks), step)
    else:
        ids = pa.array(range(len(tasks)), pa.int32())
        rows = spark.createDataFrame(pa.table({"id": ids, "payload": pa.array(tasks, pa.binary())}))
        if num_bytes:
            none = spark.range(0, numbers, 1, 1).filter("id % 2 < 0")  # empty, but Spark's optimizer does not know that
            none = none.selectExpr("int(id) AS id", "binary('') AS payload", *columns)
            rows = rows.selectExpr("*", *columns).union(none)
        rows = rows.repartitionById(len(tasks), "id")
        function = partial(work)
    vars(function)["__name__"] = name or type(work).__name__  # PySpark takes it for the name in Spark's plans
    return rows.mapInArrow(function, struct)


def _of_numbers(
    work: Work, tasks: Sequence[bytes], step: int, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return what ``work`` yields for ``tasks[number // step]``, for all numbers in the batches. Runs on executors."""

    def sent(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = [number // step for number in batch.column(0).to_pylist()]
        return pa.record_batch({"id": ids, "payload": pa.array([tasks[at] for at in ids], pa.binary())})

    return work(map(sent, numbers))


def _padding(spark: SparkSession, num_bytes: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of input rows whose size Spark estimates at ``num_bytes``, and SQL of their other columns.

    The number is rounded up by at most an eighth, since Spark compiles a new plan for each distinct number.
    """
    counts_rows = spark.conf.get("spark.sql.cbo.enabled", "false") == "true"
    most_bytes, row_bytes = (_NUMBERS_BYTES, _NUMBER_BYTES) if counts_rows else (_PADDED_BYTES, _WIDE_ROW_BYTES)
    number = min(num_bytes, most_bytes) // row_bytes
    digits = max(0, number.bit_length() - 4)
    return max(1, -(-number >> digits) << digits), () if counts_rows else (_WIDE,)


# -- rows that the driver has read -------------------------------------------------------------------

#: Most bytes of the rows. Spark sends them to its tasks with the plan, and warns of tasks that are larger.
MOST_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


def read_few(batches: Generator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """Return the batches; None if they have more than ``MOST_BYTES``. Ends the read."""
    read, num_bytes = list[pa.RecordBatch](), 0
    with closing(batches):
        for batch in batches:
            num_bytes += batch.nbytes
            if num_bytes > MOST_BYTES:
                logger.info("the rows take more than %d bytes, so tasks read them, not the driver", MOST_BYTES)
                return None
            read.append(batch)
    return read


def local_rows(spark: SparkSession, batches: Sequence[pa.RecordBatch], struct: StructType) -> DataFrame:
    """Return a local DataFrame of rows in Spark's types. It has the names of ``struct``; columns match by position."""
    schema = arrow_schema(struct)
    if batches:
        table = pa.Table.from_batches([batch.rename_columns(schema.names) for batch in batches])
    elif limits_batches(spark):
        table = schema.empty_table()
    else:
        return spark.createDataFrame([], struct)  # with tasks
    return spark.createDataFrame(table, struct)


def limits_batches(spark: SparkSession) -> bool:
    """Return whether the session limits the rows of a batch."""
    return int(spark.conf.get(_BATCH_ROWS, None) or 1) > 0


# -- what tasks have read -------------------------------------------------------------------------


#: Plans whose counts the driver keeps. PySpark never frees an accumulator, so all plans of an application share one.
_KEPT: Final = 256
_Counts = dict[str, dict[str, int]]  # by plan, by name

_accumulators: dict[str, Accumulator[_Counts]] = {}


def _accumulator(spark: SparkSession) -> Accumulator[_Counts] | None:
    """Return the accumulator of the application; None in Spark Connect, which has none."""
    context = context_of(spark)
    if context is None:
        return None
    application = str(context.applicationId)
    if application not in _accumulators:
        _accumulators[application] = context.accumulator({}, PlanCounts())
    return _accumulators[application]


#: Seconds of a row that passes from Python to Spark, before the first measurement.
ROW_S: Final = 0.5e-6
_BOUNDS: Final = (ROW_S / 8, ROW_S * 8)
_MEASUREMENTS: Final = 16  # the last plans that are counted
_LEAST_ROWS: Final = 10_000  # of a plan that is counted
#: Names of what :meth:`TaskMetrics.timed` counts.
_ROWS: Final = "rows_sent"
_NANOSECONDS: Final = "nanoseconds_sent"


def row_seconds(spark: SparkSession) -> float:
    """Return the seconds in which a row passes from Python to Spark: the median of the last plans, within bounds."""
    accumulator = _accumulator(spark)
    counted = [] if accumulator is None else [*accumulator.value.values()]
    measured = [
        min(max(counts[_NANOSECONDS] / 1e9 / counts[_ROWS], _BOUNDS[0]), _BOUNDS[1])
        for counts in counted
        if counts.get(_ROWS, 0) >= _LEAST_ROWS
    ]
    return median(measured[-_MEASUREMENTS:]) if measured else ROW_S


class PlanCounts(AccumulatorParam[_Counts]):
    """Adds the counts of tasks, plan by plan; forgets those of the oldest plans."""

    def zero(self, value: _Counts) -> _Counts:
        """Return no counts."""
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:  # noqa: N802  # PySpark's name
        """Add the counts ``value2`` to ``value1``, and return it."""
        for plan, counts in value2.items():
            known = value1.setdefault(plan, {})
            for name, count in counts.items():
                known[name] = known.get(name, 0) + count
        while len(value1) > _KEPT:
            del value1[next(iter(value1))]
        return value1


@dataclass(frozen=True)
class TaskMetrics:
    """The counts of a plan's tasks, and the name under which Spark shows them. Picklable."""

    name: str
    plan: str
    accumulator: Accumulator[_Counts] | None  # None in Spark Connect, which has none

    @classmethod
    def of(cls, spark: SparkSession, name: str) -> TaskMetrics:
        """Return the metrics of a new plan."""
        return cls(name, uuid.uuid4().hex, _accumulator(spark))

    def counts(self) -> Mapping[str, int]:
        """Return the sums of the tasks that have ended, by the names of :class:`asyncpq.metrics.ReadMetrics`. Runs on
        the driver."""
        counts = {} if self.accumulator is None else self.accumulator.value.get(self.plan, {})
        return {name: count for name, count in counts.items() if name not in (_ROWS, _NANOSECONDS)}

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """Yield the batches, and count what this process reads meanwhile. A worker has one task at a time; the driver
        may have other reads."""
        before = worker_counts()
        try:
            yield from batches
        finally:
            read = {name: count - before.get(name, 0) for name, count in worker_counts().items()}
            if self.accumulator is not None:
                self.accumulator.add({self.plan: {name: count for name, count in read.items() if count > 0}})

    def timed(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """Yield the batches, and measure the time in which their rows pass from Python to Spark. Runs in tasks."""
        rows, nanoseconds = 0, 0
        try:
            for batch in batches:
                rows += batch.num_rows
                began = time.perf_counter_ns()
                yield batch
                nanoseconds += time.perf_counter_ns() - began
        finally:
            if self.accumulator is not None:
                self.accumulator.add({self.plan: {_ROWS: rows, _NANOSECONDS: nanoseconds}})
