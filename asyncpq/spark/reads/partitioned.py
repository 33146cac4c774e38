"""Files whose partition values have the types that Spark gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.known_files import KnownFiles
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.events import Operation
from asyncpq.spark.types.partition_types import partition_scalar, partition_type
from asyncpq.spark.types.read_conf import ReadConf, find_name


async def with_spark_partitions(
    state: DatasetState, asked: StructType | None, conf: ReadConf, operation: Operation
) -> tuple[DatasetState, dict[str, DataType]]:
    """The dataset with partition columns as Spark has them, and their types.

    Args:
        asked: the caller's schema, whose types count; or None.

    Raises:
        PartitionError: a path has a value that is none of its column's type.
    """
    known = state.source.known
    files: Sequence[DataFile] = () if known is None else known.files
    if not files:
        files = (await state.source.files(Ask(), operation)).files
    names = dict.fromkeys(name for file in files[:1] for name in file.partition)
    kinds: dict[str, DataType] = {}
    schema = state.columns.schema
    for name in names:
        at = schema.get_field_index(name)
        if not pa.types.is_string(schema.field(at).type):
            continue
        values = {value for file in files if (value := file.partition.get(name)) is not None}
        kind = partition_type(sorted(values), conf)
        if asked is not None and (place := find_name(asked.names, name, conf)) is not None:
            kind = asked.fields[place].dataType
        kinds[name] = kind
        schema = schema.set(at, pa.field(name, to_arrow_type(kind, timezone="UTC")))
    if schema is state.columns.schema:
        return state, kinds
    source = _TypedFiles(state.source, kinds, conf)
    columns = state.columns._replace(schema=schema, token=object())
    return replace(state, source=source, columns=columns, known=KnownFiles()), kinds


class _TypedFiles:
    """The files of another source, with typed partition values: a :class:`asyncpq.datasets.file_sets.FileSource`."""

    def __init__(self, source: FileSource, kinds: Mapping[str, DataType], conf: ReadConf) -> None:
        self.view: View = source.view
        self._source = source
        self._kinds = kinds
        self._conf = conf
        self._values: dict[tuple[str, str | None], Any] = {}

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def known(self) -> FileSet | None:
        return None

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        found = await self._source.files(ask, operation, scan=scan)
        return found._replace(files=[self._typed(file) for file in found.files])

    def _typed(self, file: DataFile) -> DataFile:
        values = dict(file.partition)
        for name, kind in self._kinds.items():
            text = values.get(name)
            key = (name, text)
            if key not in self._values:
                self._values[key] = partition_scalar(text, kind, self._conf).as_py()
            values[name] = self._values[key]
        return replace(file, partition=values)
