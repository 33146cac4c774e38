"""DataFrames of the rows that tasks read, or the driver, and what the tasks have read and measured.

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
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.types import StructType

from asyncpq.distributed import worker_counts
from asyncpq.options import MIB
from asyncpq.spark.driver import MOST_CLOSURE_BYTES, context_of
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
    numbers, columns = _padding(spark, num_bytes)
    if sum(map(len, tasks)) <= MOST_CLOSURE_BYTES:
        step = -(-numbers // len(tasks))
        rows = spark.range(0, len(tasks) * step, 1, len(tasks))
        if step > 1:
            rows = rows.filter(f"id % {step} = 0").selectExpr("id", *columns)
        return rows.mapInArrow(metrics.named(read_numbers, read, tuple(tasks), step, clock_of(spark), metrics), struct)
    table = pa.table({"number": pa.array(range(len(tasks)), pa.int32()), "split": pa.array(tasks, pa.binary())})
    rows = spark.createDataFrame(table).selectExpr("*", *columns)
    none = spark.range(0, numbers, 1, 1).filter("id % 2 < 0")  # empty, but Spark's optimizer does not know that
    rows = rows.union(none.selectExpr("int(id) AS number", "binary('') AS split", *columns))
    return rows.repartitionById(len(tasks), "number").mapInArrow(
        metrics.named(read_rows, read, clock_of(spark), metrics), struct
    )


def _padding(spark: SparkSession, num_bytes: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of input rows whose size Spark estimates at ``num_bytes``, and SQL of their other columns.

    The number is rounded up by at most an eighth, since Spark compiles a new plan for each distinct number.
    """
    counts_rows = spark.conf.get("spark.sql.cbo.enabled", "false") == "true"
    most_bytes, row_bytes = (_NUMBERS_BYTES, _NUMBER_BYTES) if counts_rows else (_PADDED_BYTES, _WIDE_ROW_BYTES)
    number = min(num_bytes, most_bytes) // row_bytes
    digits = max(0, number.bit_length() - 4)
    return max(1, -(-number >> digits) << digits), () if counts_rows else (_WIDE,)


def read_numbers(
    read: TaskReader,
    tasks: Sequence[bytes],
    step: int,
    clock: RowClock,
    metrics: TaskMetrics,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``tasks[number // step]`` for all numbers in the batches. Runs on executors."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from clock.timed(metrics.counted(read(tasks[number // step])))


def read_rows(
    read: TaskReader, clock: RowClock, metrics: TaskMetrics, tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read tasks, and yield the rows that ``read`` returns for each. Runs on executors, by ``mapInArrow``.

    Each row of ``tasks`` has an encoded task (bytes) in its second column.
    """
    for batch in tasks:
        for split in batch.column(1).to_pylist():
            yield from clock.timed(metrics.counted(read(split)))


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
        context = context_of(spark)
        if context is None:
            return cls(name, "", None)
        application = str(context.applicationId)
        if application not in _accumulators:
            _accumulators[application] = context.accumulator({}, PlanCounts())
        return cls(name, uuid.uuid4().hex, _accumulators[application])

    def counts(self) -> Mapping[str, int]:
        """Return the sums of the tasks that have ended, by the names of :class:`asyncpq.metrics.ReadMetrics`. Runs on
        the driver."""
        return {} if self.accumulator is None else dict(self.accumulator.value.get(self.plan, {}))

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

    def named(
        self, function: Callable[..., Iterator[pa.RecordBatch]], *arguments: Any
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return the function with its first arguments, for ``mapInArrow``, under the name of the tasks."""
        task = partial(function, *arguments)
        vars(task)["__name__"] = self.name  # PySpark takes it for the name in Spark's plans
        return task


# -- the time of a row -------------------------------------------------------------------------------

#: Seconds of a row before the first measurement.
ROW_S: Final = 0.5e-6
_BOUNDS: Final = (ROW_S / 8, ROW_S * 8)
_MEASUREMENTS: Final = 16  # that are kept
_LEAST_ROWS: Final = 10_000  # of a measurement


class RowClock:
    """Measures in tasks the time in which rows pass from Python to Spark. Picklable: tasks have no measurements.

    ``rows`` and ``seconds`` are Spark's accumulators, or None in Spark Connect, which has none.
    """

    def __init__(self, rows: Accumulator[float] | None, seconds: Accumulator[float] | None) -> None:
        self._rows = rows
        self._seconds = seconds
        self._before = (0.0, 0.0)
        self._seen: deque[float] = deque(maxlen=_MEASUREMENTS)

    def __reduce__(self) -> tuple[type[RowClock], tuple[Any, Any]]:
        return RowClock, (self._rows, self._seconds)

    def timed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Runs in tasks."""
        rows, seconds = 0, 0.0
        try:
            for batch in batches:
                rows += batch.num_rows
                began = time.perf_counter()
                yield batch
                seconds += time.perf_counter() - began
        finally:
            if self._rows is not None and self._seconds is not None:
                self._rows.add(float(rows))
                self._seconds.add(seconds)

    def row_s(self) -> float:
        """Return the seconds of a row: the median of the last measurements, within bounds. Runs on the driver."""
        if self._rows is not None and self._seconds is not None:
            now = self._rows.value, self._seconds.value
            rows, seconds = now[0] - self._before[0], now[1] - self._before[1]
            if rows >= _LEAST_ROWS:
                self._before = now
                self._seen.append(min(max(seconds / rows, _BOUNDS[0]), _BOUNDS[1]))
        return median(self._seen) if self._seen else ROW_S


def clock_of(spark: SparkSession) -> RowClock:
    """Return the clock of the application, whose accumulators its tasks share."""
    context = context_of(spark)
    if context is None:
        return _clocks.setdefault("", RowClock(None, None))
    name = str(context.applicationId)
    if name not in _clocks:
        _clocks[name] = RowClock(context.accumulator(0.0), context.accumulator(0.0))
    return _clocks[name]


_clocks: dict[str, RowClock] = {}
