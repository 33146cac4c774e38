"""The Arrow types under which Spark's types are written to Parquet files."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimeType,
    UserDefinedType,
    VariantType,
)

from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.spark.types.special_types import is_spatial, wkb_field


def file_field(field: StructField) -> pa.Field:
    """The field of a file, without Spark's metadata.

    Raises:
        UnsupportedFeatureError: a type that Spark does not write to Parquet, or that asyncpq does not.
    """
    try:
        if is_spatial(field.dataType):
            return wkb_field(field)
        return pa.field(field.name, _file_type(field.dataType), nullable=field.nullable)
    except AsyncpqError as error:
        error.column = field.name if error.column is None else f"{field.name}.{error.column}"
        raise


def _refuse_void(kind: DataType) -> None:
    """Of VOID in lists and maps, Spark 4.3 gives Arrow data of the wrong length."""
    if isinstance(kind, NullType):
        raise UnsupportedFeatureError(
            "PySpark gives no values of the type void in arrays and maps", hint="Leave the column out, or cast it."
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _refuse_void(field.dataType)


def _file_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        if not kind.fields:
            raise UnsupportedFeatureError("Parquet has no structs without fields")
        return pa.struct([file_field(field) for field in kind.fields])
    if isinstance(kind, ArrayType):
        _refuse_void(kind.elementType)
        return pa.list_(file_field(StructField("element", kind.elementType, kind.containsNull)))
    if isinstance(kind, MapType):
        _refuse_void(kind.valueType)
        value = file_field(StructField("value", kind.valueType, kind.valueContainsNull))
        return pa.map_(file_field(StructField("key", kind.keyType, False)), value)
    if isinstance(kind, UserDefinedType):
        return _file_type(kind.sqlType())
    if isinstance(kind, VariantType):
        return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
    if isinstance(kind, TimeType):
        return pa.time64("us" if kind.precision <= 6 else "ns")
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException as error:
        raise UnsupportedFeatureError(
            f"PySpark gives no values of the type {kind.simpleString()}", hint="Leave the column out, or cast it."
        ) from error
