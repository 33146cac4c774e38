"""The Arrow fields with which asyncpq reads a lake's columns, so that Spark gets the types of its own schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StructField, StructType, TimestampType

from asyncpq.engine.array_conversions import with_inner_types
from asyncpq.spark.types.conversion import LISTS, arrow_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name
from asyncpq.spark.types.special_types import as_stored, has_variant, spark_type

#: Returns the Arrow type of a leaf, given the leaf's type in files and Spark's type.
_Leaf: TypeAlias = Callable[[pa.DataType, DataType], pa.DataType]


def lake_field(known: pa.Field, asked: StructField, conf: ReadConf) -> pa.Field:
    """Return the Arrow field with which asyncpq reads a column so that Spark gets the type of ``asked``. ``known`` is
    the column in the dataset's schema.

    A part whose type in ``known`` Spark already reads as the requested type keeps its type. Other parts get the Arrow
    type that corresponds to the requested type.
    """
    return _field(known, asked, conf, _asked_leaf)


def lake_column(asked: StructField) -> pa.Field:
    """Return the Arrow field for a column that is missing in the dataset's schema. Raises UnsupportedFeatureError if
    PySpark cannot convert Arrow data to the column's type."""
    stored = StructField(asked.name, as_stored(asked.dataType), asked.nullable, asked.metadata)
    return arrow_schema(StructType([stored])).field(0)


def for_other_files(known: pa.Field, asked: StructField) -> pa.Field:
    """Return the Arrow field of one file, ``known``, with types that also hold the values of files for which Spark has
    the same type: UTC is the zone of those timestamps without a zone that Spark reads as points in time, such as INT96,
    and unsigned integers are signed ones of Spark's width."""
    return _field(known, asked, ReadConf(case_sensitive=True), _of_other_files)


def _field(known: pa.Field, asked: StructField, conf: ReadConf, leaf: _Leaf) -> pa.Field:
    dtype = _type(known.type, asked.dataType, conf, leaf)
    # VARIANT is marked by metadata, which files lack
    return known if dtype.equals(known.type) and not has_variant(asked.dataType) else pa.field(known.name, dtype)


def _type(known: pa.DataType, asked: DataType, conf: ReadConf, leaf: _Leaf) -> pa.DataType:
    if isinstance(asked, StructType) and isinstance(known, pa.StructType):
        names = [child.name for child in known]
        places = [find_name(names, field.name, conf) for field in asked.fields]
        return pa.struct(
            [
                lake_column(field) if at is None else _field(known.field(at), field, conf, leaf)
                for field, at in zip(asked.fields, places, strict=True)
            ]
        )
    if isinstance(asked, ArrayType) and isinstance(known, LISTS):
        return with_inner_types(known, [_type(known.value_type, asked.elementType, conf, leaf)])
    if isinstance(asked, MapType) and isinstance(known, pa.MapType):
        key = _type(known.key_type, asked.keyType, conf, leaf)
        return with_inner_types(known, [key, _type(known.item_type, asked.valueType, conf, leaf)])
    return leaf(known, asked)


def _asked_leaf(known: pa.DataType, asked: DataType) -> pa.DataType:
    stored = as_stored(asked)
    return known if spark_type(known) == stored else lake_column(StructField("", stored)).type


def _of_other_files(known: pa.DataType, asked: DataType) -> pa.DataType:
    is_zoneless = isinstance(asked, TimestampType) and isinstance(known, pa.TimestampType) and known.tz is None
    is_unsigned = isinstance(asked, IntegralType) and pa.types.is_unsigned_integer(known)
    return to_arrow_type(asked, timezone="UTC") if is_zoneless or is_unsigned else known
