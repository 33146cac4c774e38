"""Types without a plain Arrow form in PySpark (GEOMETRY and GEOGRAPHY, intervals of months, VARIANT), and Spark's types
for Arrow's.

Files store GEOMETRY and GEOGRAPHY as well-known binary with a coordinate reference system. PySpark takes no Arrow data
of intervals of months, which travel as integers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import or_
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.types.read_conf import ReadConf, inner_types, nullable_struct, with_leaves

_YEARS: Final = T.YearMonthIntervalType(T.YearMonthIntervalType.YEAR, T.YearMonthIntervalType.YEAR)
_DEFAULT_CRS: Final = "OGC:CRS84"
_TYPE_TEXT: Final = re.compile(r"geo(?:metry|graphy)\((.*?)(?:, \w+)?\)")


# -- GEOMETRY and GEOGRAPHY -----------------------------------------------------------------------


def is_spatial(dtype: T.DataType) -> bool:
    """Return whether the type is GEOMETRY or GEOGRAPHY."""
    return isinstance(dtype, (T.GeometryType, T.GeographyType))


def spatial_type(annotation: str, parameters: Mapping[str, int | str]) -> T.DataType:
    """Return Spark's type for a column with the annotation GEOMETRY or GEOGRAPHY. Raises UnsupportedFeatureError if
    Spark does not support the annotation's reference system or algorithm."""
    text = f"{annotation.lower()}({', '.join(map(str, parameters.values()))})"
    field = {"name": "x", "type": text, "nullable": True, "metadata": {}}
    try:
        spatial = T.StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType
    except (PySparkException, ValueError, KeyError) as error:
        raise UnsupportedFeatureError(
            f"Spark does not support the type {text}",
            hint="Declare the column in a schema as BINARY, or with another coordinate reference system.",
        ) from error
    check_spatial(spatial)
    return spatial


def check_spatial(dtype: T.DataType) -> None:
    """Raise UnsupportedFeatureError for a spatial type that mixes coordinate reference systems. Parquet stores one
    coordinate reference system for a column. Other types pass."""
    if isinstance(dtype, (T.GeometryType, T.GeographyType)) and int(dtype.srid) < 0:
        raise UnsupportedFeatureError(
            f"Parquet cannot store the type {dtype.simpleString()}, which mixes coordinate reference systems"
            " (Spark: UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE)",
            hint="Cast the column to a type of one system, such as GEOMETRY(4326).",
        )


def spatial_values(dtype: T.DataType, arrow: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts well-known binary to PySpark's structs for the type ``dtype``."""
    assert isinstance(dtype, (T.GeometryType, T.GeographyType))
    srid = pa.scalar(int(dtype.srid), pa.int32())

    def convert(array: pa.Array) -> pa.Array:
        values = array.cast(pa.binary(), safe=False)
        children = [pa.repeat(srid, len(array)), values.fill_null(b"")]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=values.is_null())

    return convert


def well_known_binary(array: pa.Array) -> pa.Array:
    """Convert PySpark's structs for GEOMETRY or GEOGRAPHY to well-known binary."""
    import pyarrow.compute as pc

    values = array.field(array.type.get_field_index("wkb"))
    return pc.if_else(array.is_valid(), values, pa.scalar(None, pa.binary())) if array.null_count else values


def wkb_field(field: T.StructField) -> pa.Field:
    """Return the Arrow field with which asyncpq writes the spatial column ``field`` as Parquet's GEOMETRY or
    GEOGRAPHY."""
    from asyncpq.distributed import LakeWrite

    dtype = field.dataType
    check_spatial(dtype)
    text = dtype.jsonValue()
    match = _TYPE_TEXT.fullmatch(text if isinstance(text, str) else "")
    about = {"crs": match[1] if match else _DEFAULT_CRS}
    if isinstance(dtype, T.GeographyType):
        about["edges"] = "spherical"
    return pa.field(field.name, pa.binary(), field.nullable, metadata={LakeWrite.WKB_KEY: json.dumps(about).encode()})


# -- types as files store them --------------------------------------------------------------------


def _is_months(dtype: T.DataType) -> bool:
    return isinstance(dtype, T.YearMonthIntervalType)


def as_stored(dtype: T.DataType) -> T.DataType:
    """Return the type that would be inferred from the Arrow type in which a file stores it: BINARY for GEOMETRY and
    GEOGRAPHY, INT for intervals of months."""
    return with_leaves(without_months(dtype), lambda leaf: T.BinaryType() if is_spatial(leaf) else leaf)


def without_months(dtype: T.DataType) -> T.DataType:
    """Return the type with integers for intervals of months, for which PySpark does not accept Arrow data."""
    return with_leaves(dtype, lambda leaf: T.IntegerType() if _is_months(leaf) else leaf)


def from_months(column: Column, dtype: T.DataType) -> Column:
    """Return a column with integers converted to intervals of months where ``dtype`` has intervals of months. A value
    for INTERVAL YEAR that is not a whole number of years raises an error: Spark's casts would lose the months."""
    months = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH, T.YearMonthIntervalType.MONTH)
    intervals = column.cast(with_leaves(dtype, lambda leaf: months if _is_months(leaf) else leaf)).cast(dtype)
    if not _contains(dtype, _YEARS):
        return intervals
    error = F.raise_error(
        F.lit(
            "asyncpq.errors.SchemaMismatchError: a file has months, but the lake's columns, those of its first file,"
            " have INTERVAL YEAR. Set spark.sql.parquet.mergeSchema, or pass schema= with INTERVAL YEAR TO MONTH."
        )
    )
    return F.when(_has_months(column, dtype), error).otherwise(intervals)


def _contains(dtype: T.DataType, wanted: T.DataType) -> bool:
    return dtype == wanted or any(_contains(inner, wanted) for _, inner in inner_types(dtype))


def _has_months(column: Column, dtype: T.DataType) -> Column:
    """Return a boolean column that is true where an INTERVAL YEAR in ``column`` is not a whole number of years;
    never null."""
    if isinstance(dtype, T.StructType):
        fields = [(name, inner) for name, inner in inner_types(dtype) if _contains(inner, _YEARS)]
        return reduce(or_, [_has_months(column[name], inner) for name, inner in fields], F.lit(False))
    if isinstance(dtype, T.MapType):
        keys, values = T.ArrayType(dtype.keyType), T.ArrayType(dtype.valueType)
        return _has_months(F.map_keys(column), keys) | _has_months(F.map_values(column), values)
    if isinstance(dtype, T.ArrayType):
        return F.coalesce(F.exists(column, lambda item: _has_months(item, dtype.elementType)), F.lit(False))
    return F.coalesce(column % 12 != 0, F.lit(False)) if dtype == _YEARS else F.lit(False)


def has_variant(dtype: T.DataType) -> bool:
    """Return whether the type is or contains VARIANT."""
    return _contains(dtype, T.VariantType())


# -- Spark's types for Arrow's --------------------------------------------------------------------


def same_to_spark(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether Spark has the same type for both Arrow types."""
    return left.equals(right) or (spark_type(left) is not None and spark_type(left) == spark_type(right))


@cache
def spark_type(dtype: pa.DataType) -> T.DataType | None:
    """Return Spark's type for the nearest Arrow type that PySpark supports; None if there is no such type."""
    try:
        return from_arrow_type(_taken(dtype))
    except PySparkException:
        return None


def tells_more(dtype: T.DataType) -> bool:
    """Return whether a Spark type is more specific than the type that Spark infers from its Arrow form; see
    :func:`with_untold`."""
    return has_variant(dtype) or as_stored(dtype) != dtype


def with_untold(known: T.DataType, inferred: T.DataType, conf: ReadConf) -> T.DataType:
    """Return ``known``, a type inferred from Arrow, in which the types that Arrow cannot express (VARIANT, GEOMETRY,
    GEOGRAPHY and intervals of months) are taken from ``inferred``, the type in a file's Spark schema."""
    if isinstance(inferred, T.VariantType) or (as_stored(inferred) == known != inferred):
        return inferred
    if isinstance(known, T.StructType) and isinstance(inferred, T.StructType):
        columns = []
        for field in known.fields:
            at = conf.find(inferred.names, field.name)
            dtype = field.dataType if at is None else with_untold(field.dataType, inferred.fields[at].dataType, conf)
            columns.append(T.StructField(field.name, dtype, field.nullable))
        return T.StructType(columns)
    if isinstance(known, T.ArrayType) and isinstance(inferred, T.ArrayType):
        return T.ArrayType(with_untold(known.elementType, inferred.elementType, conf), known.containsNull)
    if isinstance(known, T.MapType) and isinstance(inferred, T.MapType):
        values = with_untold(known.valueType, inferred.valueType, conf)
        return T.MapType(known.keyType, values, known.valueContainsNull)
    return known


def struct_of(schema: pa.Schema) -> T.StructType:
    """Return the columns with the types that Spark has for their Arrow types, for columns of which nothing else is
    known, such as those of tables and partition columns."""
    return nullable_struct(from_arrow_schema(pa.schema([field.with_type(_taken(field.type)) for field in schema])))


@cache
def _taken(dtype: pa.DataType) -> pa.DataType:
    """Return the nearest Arrow type that PySpark supports."""
    if isinstance(dtype, pa.DictionaryType):
        return _taken(dtype.value_type)
    if isinstance(dtype, pa.BaseExtensionType):
        return _taken(dtype.storage_type)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if dtype in wider:
        return wider[dtype]
    if isinstance(dtype, pa.TimestampType):
        return pa.timestamp("us", dtype.tz)
    if isinstance(dtype, pa.StructType):
        return pa.struct([field.with_type(_taken(field.type)) for field in dtype])
    if isinstance(dtype, pa.MapType):
        return pa.map_(_taken(dtype.key_type), _taken(dtype.item_type))
    if isinstance(dtype, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return pa.list_(_taken(dtype.value_type))
    if pa.types.is_fixed_size_binary(dtype):
        return pa.binary()
    return dtype
