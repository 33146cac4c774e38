"""Rows of files as Spark's types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncpq.datasets.files_read import FileRows
from asyncpq.datasets.model import TableField
from asyncpq.errors import AsyncpqError
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.types.rebase import FileDates, file_dates

_Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class SparkTables:
    """Converts what one read gives.

    Args:
        struct: the columns, as JSON of a ``StructType``.
    """

    def __init__(self, struct: str, conf: ReadConf) -> None:
        self._struct = spark_struct(struct)
        self._conf = conf
        self._last: tuple[pa.Schema, FileDates, _Convert] | None = None  # that of the next file, too, as a rule

    def of(self, rows: FileRows) -> list[pa.Table]:
        """The tables that have rows, as Spark has them; errors name the file."""
        version, conf = rows.file.version, self._conf
        try:
            dates = version.derived(("spark dates", conf), lambda: file_dates(version.metadata, conf))
            dates = _named(dates, rows.file.file.fields or ())
            return [self._converted(table, dates) for table in rows.tables if table.num_rows]
        except AsyncpqError as error:
            raise error.locate(url=version.url) from error.__cause__

    def _converted(self, table: pa.Table, dates: FileDates) -> pa.Table:
        last = self._last
        if last is None or last[0] != table.schema or last[1] != dates:
            last = self._last = table.schema, dates, converter(table.schema, self._struct, self._conf, dates)
        return pa.Table.from_batches([last[2](batch) for batch in table.to_batches()])


def _named(dates: FileDates, fields: Sequence[TableField]) -> FileDates:
    """By the lake's names of the columns."""
    names = {field.names[0]: field.name for field in fields if field.names} if dates.int96_fields else {}
    if not names:
        return dates
    some = (dates.int96_fields, dates.mixed_fields)
    int96, mixed = (frozenset(names.get(name, name) for name in one) for one in some)
    return replace(dates, int96_fields=int96, mixed_fields=mixed)


@lru_cache(maxsize=64)
def spark_struct(text: str) -> StructType:
    """From its JSON."""
    struct: StructType = StructType.fromJson(json.loads(text))
    return struct
