"""Timestamps of nanoseconds, which Spark does not have, on their way into files of microseconds.

Spark reads INT64 timestamps of nanoseconds as BIGINT where ``spark.sql.legacy.parquet.nanosAsLong`` is set, then takes
those of other units in other files for the same numbers, and drops the last three digits of INT96: all of it without a
word. So the files themselves are asked, by asyncpq on the executors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType

from asyncpq.errors import SchemaMismatchError, UnsupportedFeatureError
from asyncpq.session import Session
from asyncpq.spark.reads.predicates import quoted
from asyncpq.spark.sessions import Batches, batches, run
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.task_errors import raised_as_asyncpq
from asyncpq.storage.urls import safe_url

#: The setting with which Spark reads nanoseconds at all.
NANOS_AS_LONG: Final = "spark.sql.legacy.parquet.nanosAsLong"

_types: Any = pa.types  # its functions lack annotations
_FOUND: Final = pa.schema([("url", pa.string()), ("column", pa.string()), ("problem", pa.string())])
_FILES_A_TASK: Final = 32

Rows: TypeAlias = Iterator[pa.RecordBatch]


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether there are timestamps of nanoseconds in it, INT96 among them, as asyncpq has types."""
    return _holds(kind, lambda one: bool(one.unit == "ns"))


def timestamp_columns(schema: pa.Schema) -> list[str]:
    """Names of the columns with timestamps of any unit in them."""
    return [field.name for field in schema if _holds(field.type, lambda one: True)]


def in_microseconds(frame: DataFrame, schema: pa.Schema, *, zoneless: bool = True) -> DataFrame:
    """``frame``, which was read with :data:`NANOS_AS_LONG`, with timestamps instead of numbers, rounded down.

    Args:
        schema: as asyncpq has it.
        zoneless: timestamps that are not adjusted to UTC are TIMESTAMP_NTZ, as Spark reads them by default.
    """
    types = {field.name: field.type for field in schema}
    columns = []
    for field in frame.schema.fields:
        column = F.col(quoted(field.name))
        found = types.get(field.name)
        if found is not None and _has_long(field.dataType, found):
            column = _converted(column, field.dataType, found, zoneless).alias(field.name)
        columns.append(column)
    return frame.select(*columns)


def numbers_of(frame: DataFrame, schema: pa.Schema) -> list[str]:
    """Names of the columns that :func:`in_microseconds` changes."""
    types = {field.name: field.type for field in schema}
    return [one.name for one in frame.schema.fields if one.name in types and _has_long(one.dataType, types[one.name])]


@dataclass(frozen=True)
class TimestampSearch:
    """What the executors get.

    Attributes:
        columns: names of columns, in lower case, whose digits must not be lost.
        numbers: of those which Spark reads as BIGINT.
        settings: of the sessions.
    """

    columns: frozenset[str]
    numbers: frozenset[str]
    settings: SparkSettings

    def __call__(self, rows: Rows) -> Rows:
        """What is wrong with the files whose urls come."""
        for batch in rows:
            found = [item for url in batch.column("url").to_pylist() for item in self._search(url)]
            yield pa.RecordBatch.from_pylist(found, schema=_FOUND)

    def _search(self, url: str) -> Iterator[dict[str, str]]:
        async def look(session: Session) -> pa.Schema:
            async with await session.open_file(url) as file:
                return file.schema

        schema = run(self.settings, look)
        asked = []
        for field in schema:
            name = field.name.lower()
            exact = has_nanoseconds(field.type)
            if name in self.numbers and not exact:
                yield {"url": url, "column": field.name, "problem": "unit"}
            if name in self.columns and exact:
                asked.append(field.name)

        async def read(session: Session) -> Batches:
            return _scanned(session, url, asked)

        if asked:
            lossy = {
                name for batch in batches(self.settings, read) for name in asked if _has_digits(batch.column(name))
            }
            yield from [{"url": url, "column": name, "problem": "digits"} for name in sorted(lossy)]


@asynccontextmanager
async def _scanned(session: Session, url: str, columns: Sequence[str]) -> AsyncIterator[AsyncIterator[pa.RecordBatch]]:
    async with await session.open_file(url) as file, file.scan(columns=columns) as scan:
        yield aiter(scan)


def check_timestamps(
    spark: SparkSession,
    urls: Sequence[str],
    settings: SparkSettings,
    *,
    columns: Sequence[str],
    numbers: Sequence[str],
) -> None:
    """Open all files, and read their columns with nanoseconds.

    Args:
        columns: whose digits must not be lost.
        numbers: columns that Spark reads as BIGINT.

    Raises:
        UnsupportedFeatureError: a timestamp that microseconds cannot hold.
        SchemaMismatchError: a file that has a column of ``numbers`` in another unit.
    """
    if not urls:
        return
    lowered = frozenset(name.lower() for name in columns), frozenset(name.lower() for name in numbers)
    search = TimestampSearch(*lowered, settings)
    listed = spark.createDataFrame(pa.table({"url": list(urls)})).repartition(-(-len(urls) // _FILES_A_TASK))
    with raised_as_asyncpq():
        found = listed.mapInArrow(search, from_arrow_schema(_FOUND)).limit(1).collect()
    for row in found:
        if row["problem"] == "unit":
            raise SchemaMismatchError(
                "the column has timestamps of nanoseconds in other files, and not in this one",
                url=safe_url(row["url"]),
                column=row["column"],
                hint="Rewrite files of one kind at a time.",
            )
        raise UnsupportedFeatureError(
            "the column has timestamps with digits below a microsecond, which Spark does not have",
            url=safe_url(row["url"]),
            column=row["column"],
            hint="Give timestamp_loss='truncate' to drop these digits. INT96 outside of the years 1677 to 2262 looks"
            " the same.",
        )


# -- Arrow ----------------------------------------------------------------------------------------


def _holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    if _types.is_timestamp(kind):
        return test(kind)
    return any(_holds(kind.field(at).type, test) for at in range(kind.num_fields))


def _has_digits(values: Any) -> bool:
    """Whether a timestamp of nanoseconds in ``values``, at any depth, does not end in 000."""
    kind = values.type
    if _types.is_timestamp(kind) and kind.unit == "ns":
        numbers = values.cast(pa.int64())
        micros = pc.multiply(pc.divide(numbers, 1000), 1000)
        return pc.any(pc.not_equal(numbers, micros)).as_py() is True
    if _types.is_struct(kind):
        return any(_has_digits(column) for column in values.flatten())
    if _types.is_map(kind):
        return _has_digits(values.keys) or _has_digits(values.items)
    if kind.num_fields:
        return _has_digits(values.flatten())
    return False


# -- Spark ----------------------------------------------------------------------------------------


def _has_long(kind: DataType, found: pa.DataType) -> bool:
    """Whether Spark reads as BIGINT, somewhere inside, what is a timestamp."""
    return (_types.is_timestamp(found) and isinstance(kind, LongType)) or any(
        _has_long(*pair) for pair in _inner(kind, found)
    )


def _inner(kind: DataType, found: pa.DataType) -> list[tuple[DataType, pa.DataType]]:
    """What is one level down, as Spark and as Arrow have it."""
    if isinstance(kind, StructType):
        return [(one.dataType, found.field(one.name).type) for one in kind.fields]
    if isinstance(kind, ArrayType):
        return [(kind.elementType, found.value_type)]
    if isinstance(kind, MapType):
        return [(kind.keyType, found.key_type), (kind.valueType, found.item_type)]
    return []


def _converted(value: Column, kind: DataType, found: pa.DataType, zoneless: bool) -> Column:
    if not _has_long(kind, found):
        return value
    inner = _inner(kind, found)
    if isinstance(kind, StructType):
        names = [one.name for one in kind.fields]
        fields = [
            _converted(value.getField(name), *pair, zoneless).alias(name)
            for name, pair in zip(names, inner, strict=True)
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: _converted(item, *inner[0], zoneless))
    if isinstance(kind, MapType):
        of_keys, of_values = inner
        keys = F.transform(F.map_keys(value), lambda key: _converted(key, *of_keys, zoneless))
        values = F.transform(F.map_values(value), lambda item: _converted(item, *of_values, zoneless))
        return F.map_from_arrays(keys, values)
    micros = F.floor(value.cast("decimal(20,0)") / 1000)
    if found.tz is None and zoneless:
        seconds = (micros / 1_000_000).cast("decimal(18,6)")
        return F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
    return F.timestamp_micros(micros.cast("bigint"))
