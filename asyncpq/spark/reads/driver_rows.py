"""Few rows, read on the driver: a local DataFrame of them takes Spark no task and no Python worker."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.special_types import without_months

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger: logging.Logger = logging.getLogger(__name__)

#: Most bytes of the rows. Spark sends them to its tasks with the plan, and warns of tasks that are larger.
MOST_BYTES: Final = 1 << 20
#: Estimated seconds and compressed bytes of the longest read.
_MOST_S: Final = 0.5
_MOST_READ_BYTES: Final = 16 << 20
#: Seconds before the first row, without reading.
DRIVER_START_S: Final = 0.02
_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CONTAINERS: Final = (ArrayType, MapType, StructType)


def driver_may_read(spark: SparkSession, struct: StructType, driver_s: float, num_bytes: int) -> bool:
    """Return whether the driver may read rows of these columns, in estimated ``driver_s`` from ``num_bytes`` of files.

    The read must be short, and PySpark must take the rows for a local DataFrame as they are: it rebuilds arrays of
    several levels and arrays with times inside, and not all of them alike, and it refuses all rows if the session does
    not limit the rows of a batch.
    """
    if driver_s > _MOST_S or num_bytes > _MOST_READ_BYTES or not _limits_batches(spark):
        return False
    sent = without_months(struct)
    assert isinstance(sent, StructType)
    try:
        types = arrow_schema(sent).types
    except UnsupportedFeatureError:
        return False  # Spark's own reader may read the columns
    return all(map(_is_kept, (field.dataType for field in sent.fields), types))


def _limits_batches(spark: SparkSession) -> bool:
    return int(spark.conf.get(_BATCH_ROWS, None) or 1) > 0


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
    elif _limits_batches(spark):
        table = schema.empty_table()
    else:
        return spark.createDataFrame([], struct)  # with tasks
    return spark.createDataFrame(table, struct)
