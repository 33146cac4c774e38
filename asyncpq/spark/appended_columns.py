"""Columns of rows that are appended to a lake: put into the lake's order and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import SchemaMismatchError
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, find_name
from asyncpq.spark.types.special_types import struct_of

#: Types of numbers, of which each holds all values of those before.
_WIDER: Final[tuple[tuple[type[DataType], ...], ...]] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)


def arranged(batch: pa.RecordBatch, order: Sequence[int | None], schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch's columns in the order of ``schema``: ``order`` has the position of each in ``batch``, or
    None for a column of nulls. Integers and floats are widened to the types of ``schema``."""
    columns = []
    for at, wanted in zip(order, schema, strict=True):
        column = pa.nulls(batch.num_rows, wanted.type) if at is None else batch.column(at)
        columns.append(column.cast(wanted.type) if _is_number(column.type) else column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def fitted(
    schema: StructType, lake: pa.Schema, conf: ReadConf, folder: str
) -> tuple[StructType, tuple[int | None, ...]]:
    """Return the columns to append, in the order and spelling of the lake's columns ``lake``, and the position of each
    in ``schema``, the columns of the appended rows. The position is None for a column that ``schema`` lacks, which
    becomes null; narrower integers and floats are widened. ``folder``: the lake's url, for messages.

    Raises SchemaMismatchError if the columns differ from the lake's, AmbiguousColumnError if names differ only in case.
    """
    names = schema.fieldNames()
    places = [find_name(names, name, conf) for name in lake.names]
    unknown = set(range(len(names))) - set(places)
    if unknown:
        raise _mismatch("the appended rows have this column, which the lake lacks", names[min(unknown)], folder)
    columns: list[StructField] = []
    for field, at in zip(lake, places, strict=True):
        own = _lake_column(field) if at is None else schema.fields[at]
        dtype = own.dataType
        if at is not None and _is_number(field.type) and _is_wider(known := _lake_column(field).dataType, dtype):
            dtype = known
        columns.append(StructField(field.name, dtype, own.nullable, own.metadata))
    struct = StructType(columns)
    for ours, theirs in zip(from_spark(struct, conf).schema, lake, strict=True):
        if ours.type != theirs.type:
            raise _mismatch(
                f"the appended column has the type {ours.type}, the lake's {theirs.type}", ours.name, folder
            )
    return struct, tuple(places)


def _lake_column(field: pa.Field) -> StructField:
    return struct_of(pa.schema([field])).fields[0]


def _is_wider(dtype: DataType, other: DataType) -> bool:
    """Return whether ``dtype`` holds all numbers of the type ``other``."""
    groups = [kinds for kinds in _WIDER if type(other) in kinds]
    return any(type(dtype) in kinds[kinds.index(type(other)) :] for kinds in groups)


def _mismatch(what: str, column: str, folder: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        what, url=safe_url(folder), column=column, hint="Append the lake's columns and types, or overwrite the lake."
    )
