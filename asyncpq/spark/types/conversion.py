"""Batches as asyncpq reads them as batches of Spark's types, with the values that Spark's reader gives; and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from asyncpq.errors import AsyncpqError, ResourceLimitError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.spark.types.file_types import file_field
from asyncpq.spark.types.leaf_conversion import Convert, LeafRules, leaf_conversion, mismatch
from asyncpq.spark.types.nested_conversion import NestedConversion, inside
from asyncpq.spark.types.read_conf import ReadConf, check_names, find_name
from asyncpq.spark.types.rebase import FileDates
from asyncpq.spark.types.row_metadata import ROW_METADATA_KEY
from asyncpq.spark.types.special_types import is_spatial, well_known_binary

FIELD_ID_KEY: Final = "parquet.field.id"
_PLAIN_DATES: Final = FileDates()


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of batches that Spark takes for ``schema``.

    Raises:
        UnsupportedFeatureError: PySpark takes no Arrow data of one of the types.
    """
    for field in schema.fields:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkException as error:
            raise UnsupportedFeatureError(
                f"PySpark takes no values of the type {field.dataType.simpleString()}",
                column=field.name,
                hint="Leave the column out, or read it with spark.read.parquet.",
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


def to_spark(
    batch: pa.RecordBatch, schema: StructType, conf: ReadConf, dates: FileDates = _PLAIN_DATES
) -> pa.RecordBatch:
    """The batch with exactly the columns of ``schema``: found by name, those that are missing null.

    Args:
        batch: of one file, as asyncpq reads it; columns that ``schema`` lacks are left out.
        schema: as inferred, or as the user gave it: then types may be wider, where Spark's reader allows that.
        dates: of the file.

    Raises:
        SchemaMismatchError: a column of a type that Spark does not read as the schema's.
        UnsupportedFeatureError: values that cannot be given as Spark does.
        AmbiguousColumnError: columns whose names differ in case only.
    """
    return converter(batch.schema, schema, conf, dates)(batch)


@functools.lru_cache(maxsize=64)
def converter(
    source: pa.Schema, schema: StructType, conf: ReadConf, dates: FileDates = _PLAIN_DATES
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """What :func:`to_spark` does to batches of ``source``; raises at once what does not depend on values."""
    target = arrow_schema(schema)
    columns = []
    for field, arrow in zip(schema.fields, target, strict=True):
        columns.append((*_column(source, field, arrow, conf, dates), arrow))

    def convert_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for at, convert, arrow in columns:
            if at is None:
                arrays.append(pa.nulls(batch.num_rows, arrow.type))
            elif convert is None:
                arrays.append(batch.column(at))
            else:
                arrays.append(_converted(convert, batch.column(at), arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    return convert_batch


def _column(
    source: pa.Schema, field: StructField, arrow: pa.Field, conf: ReadConf, dates: FileDates
) -> tuple[int | None, Convert | None]:
    """Where a column is in batches of ``source``, and what makes it Spark's."""
    if conf.field_ids and FIELD_ID_KEY in (field.metadata or {}):
        raise UnsupportedFeatureError(
            "columns are not found by field ids",
            column=field.name,
            hint="Set spark.sql.parquet.fieldId.read.enabled=false.",
        )
    at = find_name(source.names, field.name, conf)
    if at is None:
        return None, None
    name = source.field(at).name
    rules = LeafRules(dates, name in dates.int96_fields, name in dates.mixed_fields)
    nested = NestedConversion(conf, lambda kind, target, _: leaf_conversion(kind, target, rules))
    try:
        return at, nested.conversion(source.field(at).type, field.dataType, arrow.type)
    except AsyncpqError as error:
        raise inside(error, field.name) from error.__cause__


def _converted(convert: Convert, array: pa.Array, arrow: pa.Field) -> pa.Array:
    """``convert`` done to a column, errors with its name."""
    try:
        return convert(array)
    except AsyncpqError as error:
        raise error.locate(column=arrow.name) from error.__cause__
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        if isinstance(error, (pa.ArrowCapacityError, MemoryError)) or "offset overflow" in str(error):
            raise ResourceLimitError(
                f"a batch's values are too large for {arrow.type}: {error}",
                column=arrow.name,
                hint="Read fewer rows at once.",
            ) from error
        raise SchemaMismatchError(
            f"a value of the file's {array.type} is none of {arrow.type}: {error}", column=arrow.name
        ) from error


# -- writing --------------------------------------------------------------------------------------


class ToParquet(NamedTuple):
    """How batches of a Spark type become a file's.

    Attributes:
        schema: of the file; its metadata, which belongs into the footer, tells Spark what Parquet has no types for.
        convert: from Spark's batches, as mapInArrow and Arrow writers get them, to batches of ``schema``.
    """

    schema: pa.Schema
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]


def from_spark(schema: StructType, conf: ReadConf) -> ToParquet:
    """How to write ``schema`` so that everybody reads the values, and Spark the same types.

    Timestamps are microseconds of UTC, TIMESTAMP_NTZ without zone; TIME in microseconds, beyond 6 digits in
    nanoseconds; intervals of days to seconds are microseconds; VARIANT is a struct of value and metadata; GEOMETRY and
    GEOGRAPHY are well-known binary, for :func:`asyncpq.spark.types.special_types.with_wkb_types`.

    Raises:
        UnsupportedFeatureError: a type that Spark does not write to Parquet, or of which PySpark gives no values.
        AmbiguousColumnError: two fields of one name.
    """
    check_names(schema, conf)
    fields = [file_field(field) for field in schema.fields]
    target = pa.schema(fields, metadata={ROW_METADATA_KEY: schema.json()})
    converts: dict[pa.Schema, list[Convert | None]] = {}

    def convert_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = converts.get(batch.schema)
        if found is None:
            found = converts[batch.schema] = _file_converts(batch.schema, schema, target, conf)
        columns = zip(found, batch.columns, target, strict=True)
        arrays = [array if convert is None else _converted(convert, array, arrow) for convert, array, arrow in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    return ToParquet(target, convert_batch)


def _file_converts(source: pa.Schema, schema: StructType, target: pa.Schema, conf: ReadConf) -> list[Convert | None]:
    if len(source) != len(target):
        raise SchemaMismatchError(f"a batch has {len(source)} columns, its schema {len(target)}")
    nested = NestedConversion(conf, _file_leaf)
    converts = []
    for kind, field, arrow in zip(source.types, schema.fields, target, strict=True):
        try:
            converts.append(nested.conversion(kind, field.dataType, arrow.type))
        except AsyncpqError as error:
            raise inside(error, field.name) from error.__cause__
    return converts


def _file_leaf(source: pa.DataType, target: DataType, arrow: pa.DataType) -> Convert | None:
    """Spark's Arrow types are the file's but for zones, digits of times, and large offsets."""
    if source.equals(arrow):
        return None
    if is_spatial(target):
        return well_known_binary
    if pa.types.is_timestamp(source):
        if not pa.types.is_timestamp(arrow) or source.unit != arrow.unit:
            raise mismatch(source, target)
        return lambda array: array.view(arrow)
    return lambda array: array.cast(arrow)
