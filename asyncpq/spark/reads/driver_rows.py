"""Few rows, read on the driver: a local DataFrame of them takes Spark no task and no Python worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType, VariantType

from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import inner_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark sends the rows to its tasks with the plan, and warns of tasks that are larger.
MOST_BYTES: Final = 1 << 20
#: Seconds before the first row, without reading.
START_S: Final = 0.02
_TIMES: Final = (TimestampType, TimestampNTZType)


def may_be_local(struct: StructType) -> bool:
    """Return whether a local DataFrame may have these columns.

    PySpark takes arrays of one level as they are, but rebuilds those of more levels or with times, and not all alike.
    """
    inner = [child for field in struct.fields for child in _children(field.dataType)]
    return not any(_children(child) or isinstance(child, _TIMES) for child in inner)


def _children(dtype: DataType) -> list[DataType]:
    if isinstance(dtype, VariantType):
        return [dtype]  # as nested as can be
    return [child for _, child in inner_types(dtype)]


def few_rows(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """Return the batches; None if they have more than ``MOST_BYTES``. Then the rest is not read."""
    read, num_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        num_bytes += batch.nbytes
        if num_bytes > MOST_BYTES:
            return None
        read.append(batch)
    return read


def local_rows(spark: SparkSession, batches: Sequence[pa.RecordBatch], struct: StructType) -> DataFrame:
    """Return a local DataFrame of rows in Spark's types, whose columns may have other names."""
    schema = arrow_schema(struct)
    if not batches:
        return spark.createDataFrame(schema.empty_table(), struct)
    return spark.createDataFrame(
        pa.Table.from_batches([batch.rename_columns(schema.names) for batch in batches]), struct
    )
