"""Calls readers of the source as PySpark does, without Spark: pickled, planned, and read from their pickles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from asyncpq.spark.data_source import AsyncpqDataSource

_pickles: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]


def source(**options: str) -> AsyncpqDataSource:
    """With names of options in lower case, as they arrive."""
    given = CaseInsensitiveDict({name.lower(): value for name, value in options.items()})
    found: AsyncpqDataSource = again(AsyncpqDataSource(given))
    return found


def again(value: Any) -> Any:
    """What another process gets."""
    return _pickles.loads(_pickles.dumps(value))


def pickled(reader: DataSourceReader | DataSourceStreamReader) -> bytes:
    """As it is sent to tasks."""
    data: bytes = _pickles.dumps(reader)
    return data


def read_table(found: AsyncpqDataSource, schema: StructType | None = None) -> pa.Table:
    """All rows of a batch read."""
    schema = found.schema() if schema is None else schema
    reader = found.reader(schema)
    executor = pickled(reader)
    return rows_of(executor, reader.partitions(), schema)


def rows_of(reader: bytes, partitions: Sequence[InputPartition], schema: StructType) -> pa.Table:
    """What tasks read, each with a reader of its own; PySpark checks their first batches."""
    batches: list[pa.RecordBatch] = []
    for partition in partitions or [InputPartition(None)]:
        there: DataSourceReader | DataSourceStreamReader = _pickles.loads(reader)
        rows = there.read(again(partition))
        batches += records_to_arrow_batches(rows, 10_000, schema, source(path="-"))
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))
