"""Partitions of a DataFrame as files, which nobody sees until they are committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from asyncpq.spark.layout.checksums import numbered
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.task_errors import raised_as_asyncpq
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.writes.file_writer import WrittenFile, write_partition
from asyncpq.spark.writes.write_options import WriteOptions
from asyncpq.spark.writes.write_planning import file_columns
from asyncpq.spark.writes.writing import task_names
from asyncpq.storage.base import Validator

_WRITTEN: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.string()),
        pa.field("version", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("footer_start", pa.int64()),
        pa.field("tail", pa.binary()),
    ]
)


@dataclass(frozen=True)
class PartitionWrite:
    """What the executors get.

    Attributes:
        folder: url of the lake, with its slash.
        job: names the folder of the files.
        struct: of the rows.
    """

    folder: str
    job: str
    struct: StructType
    conf: ReadConf
    options: WriteOptions
    settings: SparkSettings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write one partition in its order; gives its files."""
        columns = file_columns(self.struct, self.conf)
        names = self.struct.names
        converted = (columns.convert(batch.rename_columns(names)) for batch in batches)
        partition, stem = task_names(self.job)
        files = write_partition(
            self.settings, self.folder, stem, converted, columns.schema, self.options, partition=partition
        )
        rows = [
            {
                "path": file.path,
                "size": file.size,
                "etag": file.validator.etag,
                "last_modified": file.validator.last_modified,
                "version": file.validator.version,
                "rows": file.rows,
                "footer_start": file.footer_start,
                "tail": file.tail,
            }
            for file in files
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_WRITTEN)


def write_frame(
    frame: DataFrame,
    folder: str,
    job: str,
    options: WriteOptions,
    settings: SparkSettings,
    conf: ReadConf,
) -> list[WrittenFile]:
    """Write all partitions. Files of attempts that lost are left beside those that are returned, in their order.

    Raises:
        AsyncpqError: as :func:`asyncpq.spark.writes.file_writer.write_partition`.
    """
    write = PartitionWrite(folder, job, frame.schema, conf, options, settings)
    with raised_as_asyncpq():
        # mapInArrow takes dots in names for fields
        rows = numbered(frame).mapInArrow(write, from_arrow_schema(_WRITTEN)).collect()
    return [
        WrittenFile(
            path=row["path"],
            validator=Validator(
                size=row["size"], etag=row["etag"], last_modified=row["last_modified"], version=row["version"]
            ),
            size=row["size"],
            rows=row["rows"],
            footer_start=row["footer_start"],
            tail=bytes(row["tail"]),
        )
        for row in rows
    ]
