"""The Arrow types under which Spark's types are written to Parquet files."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StructField,
    StructType,
    TimeType,
    UserDefinedType,
    VariantType,
)

from asyncpq.errors import AsyncpqError, UnsupportedFeatureError


def file_field(field: StructField) -> pa.Field:
    """The field of a file, without Spark's metadata.

    Raises:
        UnsupportedFeatureError: a type that Spark does not write to Parquet, or that asyncpq does not.
    """
    try:
        return pa.field(field.name, _file_type(field.dataType), nullable=field.nullable)
    except AsyncpqError as error:
        error.column = field.name if error.column is None else f"{field.name}.{error.column}"
        raise


def _file_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        if not kind.fields:
            raise UnsupportedFeatureError("Parquet has no structs without fields")
        return pa.struct([file_field(field) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _file_type(kind.elementType), nullable=kind.containsNull))
    if isinstance(kind, MapType):
        value = pa.field("value", _file_type(kind.valueType), nullable=kind.valueContainsNull)
        return pa.map_(pa.field("key", _file_type(kind.keyType), nullable=False), value)
    if isinstance(kind, UserDefinedType):
        return _file_type(kind.sqlType())
    if isinstance(kind, VariantType):
        return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
    if isinstance(kind, TimeType):
        return pa.time64("us" if kind.precision <= 6 else "ns")
    try:
        if not isinstance(kind, (NullType, GeometryType, GeographyType)):
            return to_arrow_type(kind, timezone="UTC")
    except PySparkException:
        pass
    raise UnsupportedFeatureError(
        f"values of the type {kind.simpleString()} are not written to Parquet", hint="Leave the column out, or cast it."
    )
