"""Choose which reader reads a planned scan: asyncpq or Spark's own reader. The lower estimated cost wins.

asyncpq's tasks, or the driver, read the planned rows alone, but each row passes from Python to Spark. Few rows are read
on the driver: a local DataFrame of them takes Spark no task and no Python worker. Spark's reader decodes the planned
files whole, and only the columns that the query uses, which a plan cannot know: the estimate counts all. Latency and
bandwidth are what the driver's session has measured at the store; tasks measure the seconds of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from asyncpq.engine.target_facts import url_facts
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.reads.lake_scan import LakePlan, spark_struct
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.spark_files import NotForSpark, spark_frame
from asyncpq.spark.reads.task_rows import ROW_S, limits_batches
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.special_types import without_months

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Estimated seconds and compressed bytes of the longest read.
_MOST_S: Final = 0.5
_MOST_READ_BYTES: Final = 16 << 20
#: Seconds before the first row, without reading.
DRIVER_START_S: Final = 0.02
_CONTAINERS: Final = (ArrayType, MapType, StructType)


def driver_may_read(spark: SparkSession, struct: StructType, driver_s: float, num_bytes: int) -> bool:
    """Return whether the driver may read rows of these columns, in estimated ``driver_s`` from ``num_bytes`` of files.

    The read must be short, and PySpark must take the rows for a local DataFrame as they are: it rebuilds arrays of
    several levels and arrays with times inside, and not all of them alike, and it refuses all rows if the session does
    not limit the rows of a batch.
    """
    if driver_s > _MOST_S or num_bytes > _MOST_READ_BYTES or not limits_batches(spark):
        return False
    sent = without_months(struct)
    assert isinstance(sent, StructType)
    try:
        types = arrow_schema(sent).types
    except UnsupportedFeatureError:
        return False  # Spark's own reader may read the columns
    return all(map(_is_kept, (field.dataType for field in sent.fields), types))


def _is_kept(dtype: DataType, arrow_type: pa.DataType) -> bool:
    if not pa.types.is_nested(arrow_type):
        return True
    if isinstance(arrow_type, pa.StructType):
        inner = [field.type for field in arrow_type]
    elif isinstance(arrow_type, pa.MapType):
        inner = [arrow_type.key_type, arrow_type.item_type]
    else:
        inner = [arrow_type.value_type]
    is_deep = any(pa.types.is_nested(kind) or pa.types.is_timestamp(kind) for kind in inner)
    return isinstance(dtype, _CONTAINERS) and not is_deep  # not UDTs, whose parts PySpark would look for


# -- the choice -----------------------------------------------------------------------------------


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
    """The amounts that both readers read.

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
    """A measured store: seconds to the first byte, and bytes per second."""

    @property
    def latency_s(self) -> float:
        """Seconds to the first byte of a response."""

    @property
    def bandwidth_bytes_s(self) -> float:
        """Bytes per second of all connections together."""


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
