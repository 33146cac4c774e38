"""Choose which reader reads a planned scan: asyncpq or Spark's own reader. The lower estimated cost wins.

asyncpq's tasks, or the driver, read the planned rows alone, but each row passes from Python to Spark. Spark's reader
decodes the planned files whole, and only the columns that the query uses, which a plan cannot know: the estimate counts
all. Latency and bandwidth are what the driver's session has measured at the store; tasks measure the seconds of a row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import pyarrow as pa

from asyncpq.engine.target_facts import url_facts
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.reads.driver_rows import DRIVER_START_S, driver_may_read
from asyncpq.spark.reads.lake_scan import LakePlan, spark_struct
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.spark_files import NotForSpark, spark_frame

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

ReaderName: TypeAlias = Literal["auto", "asyncpq", "spark"]

#: Seconds before the first row, without reading.
_PYTHON_START_S: Final = 0.15
_SPARK_START_S: Final = 0.05
_PYTHON_TASK_S: Final = 0.020
_FILE_S: Final = 0.004  # a file opened in a task, by either reader
#: Requests of a file that wait for each other: for asyncpq's tasks without a footer, and for Spark.
_ROUNDS: Final = 2
_SPARK_ROUNDS: Final = 3
#: Requests that wait for each other while Spark, and then asyncpq, list the files again.
_LISTING_ROUNDS: Final = 8
#: Compressed bytes that a core decodes.
_PYTHON_BYTES_S: Final = 200e6
_SPARK_BYTES_S: Final = 200e6
#: Seconds of a row before the first measurement.
ROW_S: Final = 0.5e-6
_BOUNDS: Final = (ROW_S / 8, ROW_S * 8)
_KEPT: Final = 16  # measurements
_LEAST_ROWS: Final = 10_000  # of a measurement


@dataclass(frozen=True, kw_only=True)
class ReaderCosts:
    """Estimated seconds of a scan by each reader."""

    asyncpq_s: float
    spark_s: float
    driver_s: float  # by asyncpq on the driver, without tasks

    @property
    def cheaper(self) -> str:
        """The reader of the lower estimate."""
        return "asyncpq" if self.asyncpq_s < self.spark_s else "spark"


@dataclass(frozen=True)
class ReaderChoice:
    """The reader of a planned scan, and why."""

    costs: ReaderCosts
    reader: Literal["asyncpq", "spark"]
    reason: str
    native: DataFrame | None = None  # the planned columns of the planned files by Spark's own reader, if it reads them
    on_driver: bool = False  # asyncpq reads on the driver, not in tasks


class RowClock:
    """Measures in tasks the time in which rows pass from Python to Spark. Picklable: tasks have no measurements.

    ``rows`` and ``seconds`` are Spark's accumulators, or None in Spark Connect, which has none.
    """

    def __init__(self, rows: Accumulator[float] | None, seconds: Accumulator[float] | None) -> None:
        self._rows = rows
        self._seconds = seconds
        self._before = (0.0, 0.0)
        self._seen: deque[float] = deque(maxlen=_KEPT)

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


def choose_reader(
    spark: SparkSession, opened: OpenLake, read: LakePlan, reader: ReaderName, *, parallelism: int, row_s: float
) -> ReaderChoice:
    """Choose the reader of a plan.

    Args:
        reader: the caller's choice; "auto" takes the reader of the lower estimate, if it returns the same rows.
        parallelism: tasks that run at once.
        row_s: seconds of a row that passes from Python to Spark.

    Raises:
        UnsupportedFeatureError: the caller chose Spark's own reader, and it cannot read the files, or not with the same
            rows.
    """
    costs = _costs_of(opened, read, parallelism, row_s)
    on_driver = False
    if reader == "auto" and costs.driver_s < costs.asyncpq_s:
        on_driver = driver_may_read(spark, spark_struct(read.scan.spark_schema), costs.driver_s, read.num_bytes)
        if on_driver:
            costs = replace(costs, asyncpq_s=costs.driver_s)
    if reader == "asyncpq":
        return ReaderChoice(costs, "asyncpq", "the argument reader names it")
    if not read.num_files:
        return ReaderChoice(costs, "asyncpq", "no file is left")
    if reader == "auto" and costs.cheaper == "asyncpq":
        return ReaderChoice(costs, "asyncpq", "it is estimated at less time", on_driver=on_driver)
    try:
        native = spark_frame(spark, opened, read, asked=reader == "spark")
    except NotForSpark as error:
        if reader == "auto":
            return ReaderChoice(costs, "asyncpq", str(error), on_driver=on_driver)
        raise UnsupportedFeatureError(
            f"Spark's own reader cannot read the planned files: {error}",
            url=opened.state.url,
            hint='Pass reader="auto", or reader="asyncpq".',
        ) from error
    reason = "the argument reader names it" if reader == "spark" else "it is estimated at less time"
    return ReaderChoice(costs, "spark", reason, native)


def _costs_of(opened: OpenLake, read: LakePlan, parallelism: int, row_s: float) -> ReaderCosts:
    share = len(read.scan.columns) / max(1, len(opened.names))
    size = ScanSize(
        num_files=read.num_files,
        whole_bytes=int(share * read.whole_bytes),
        num_splits=len(read),
        num_bytes=read.num_bytes,
        num_rows=read.num_rows or (int(read.whole_bytes / opened.row_bytes) if opened.row_bytes else 0),
    )
    store = None if url_facts(opened.state.url).protocol == "file" else read.prices
    return reader_costs(size, parallelism=parallelism, store=store, row_s=row_s)


@dataclass(frozen=True, kw_only=True)
class ScanSize:
    """What both readers read.

    Attributes:
        num_files, whole_bytes: files that have planned rows, and their bytes in the planned columns.
        num_splits, num_bytes, num_rows: tasks, bytes and rows of asyncpq's plan.
    """

    num_files: int
    whole_bytes: int
    num_splits: int = 1
    num_bytes: int = 0
    num_rows: int = 0


class StoreSpeed(Protocol):
    """What a store was measured at."""

    @property
    def latency_s(self) -> float: ...

    @property
    def bandwidth_bytes_s(self) -> float: ...


def reader_costs(size: ScanSize, *, parallelism: int, store: StoreSpeed | None, row_s: float = ROW_S) -> ReaderCosts:
    """Estimate the seconds of both readers.

    Args:
        parallelism: tasks that run at once.
        store: None if files are read without requests.
        row_s: seconds of a row that passes from Python to Spark.
    """
    latency_s = 0.0 if store is None else store.latency_s
    transfer_bytes_s = float("inf") if store is None else store.bandwidth_bytes_s
    python = size.num_files * (_FILE_S + _ROUNDS * latency_s) + size.num_rows * row_s + size.num_bytes / _PYTHON_BYTES_S
    tasks = (size.num_splits * _PYTHON_TASK_S + python) / parallelism
    spark = size.num_files * (_FILE_S + _SPARK_ROUNDS * latency_s) + size.whole_bytes / _SPARK_BYTES_S
    listing_s = _LISTING_ROUNDS * latency_s
    return ReaderCosts(
        asyncpq_s=_PYTHON_START_S + max(tasks, size.num_bytes / transfer_bytes_s),
        spark_s=_SPARK_START_S + listing_s + max(spark / parallelism, size.whole_bytes / transfer_bytes_s),
        driver_s=DRIVER_START_S + max(python, size.num_bytes / transfer_bytes_s),
    )
