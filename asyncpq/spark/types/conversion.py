"""Convert batches between asyncpq and Spark: to the values that Spark's reader returns, and to the types of files.

A conversion is prepared once for each schema and cached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from asyncpq.engine.array_conversions import nested_conversion, variant_conversion
from asyncpq.errors import ResourceLimitError, SchemaMismatchError, UnsupportedFeatureError, located
from asyncpq.spark.types.calendars import FileDates
from asyncpq.spark.types.leaf_conversion import Convert, LeafRules, leaf_conversion, mismatch
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY
from asyncpq.spark.types.read_conf import ReadConf, check_names, find_name, nullable_struct, within
from asyncpq.spark.types.special_types import is_spatial, well_known_binary, wkb_field


def file_field(field: T.StructField) -> pa.Field:
    """Return the Arrow field with which a Spark field is written, without Spark's metadata. Raises
    UnsupportedFeatureError if Parquet or PySpark cannot store the field's type."""
    with within(field.name):
        if is_spatial(field.dataType):
            return wkb_field(field)
        return pa.field(field.name, _file_type(field.dataType), nullable=field.nullable)


def _refuse_void(dtype: T.DataType) -> None:
    """Raise UnsupportedFeatureError if a type inside a list or map is or contains VOID. Spark 4.3 returns Arrow data of
    the wrong length for VOID in lists and maps."""
    if isinstance(dtype, T.NullType):
        raise UnsupportedFeatureError(
            "PySpark does not support values of the type void in arrays and maps", hint="Omit the column, or cast it."
        )
    if isinstance(dtype, T.StructType):
        for field in dtype.fields:
            _refuse_void(field.dataType)


def _file_type(dtype: T.DataType) -> pa.DataType:
    if isinstance(dtype, T.StructType):
        if not dtype.fields:
            raise UnsupportedFeatureError(
                "the type is a struct without fields, which Parquet cannot store",
                hint="Leave the column out, or add a field.",
            )
        return pa.struct([file_field(field) for field in dtype.fields])
    if isinstance(dtype, T.ArrayType):
        _refuse_void(dtype.elementType)
        return pa.list_(file_field(T.StructField("element", dtype.elementType, dtype.containsNull)))
    if isinstance(dtype, T.MapType):
        _refuse_void(dtype.valueType)
        value = file_field(T.StructField("value", dtype.valueType, dtype.valueContainsNull))
        return pa.map_(file_field(T.StructField("key", dtype.keyType, False)), value)
    if isinstance(dtype, T.UserDefinedType):
        return _file_type(dtype.sqlType())
    if isinstance(dtype, T.VariantType):
        return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
    if isinstance(dtype, T.TimeType):
        return pa.time64("us" if dtype.precision <= 6 else "ns")
    try:
        return to_arrow_type(dtype, timezone="UTC")
    except PySparkException as error:
        raise UnsupportedFeatureError(
            f"PySpark cannot convert the type {dtype.simpleString()} to Arrow, so asyncpq cannot write the column",
            hint="Leave the column out, or cast it.",
        ) from error


#: Returns the conversion of a leaf from an Arrow type, for a Spark type, to another Arrow type; None to keep arrays.
Leaf = Callable[[pa.DataType, T.DataType, pa.DataType], Convert | None]

LISTS: Final = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_types: Any = pa.types  # its functions lack annotations


class NestedConversion:
    """Makes functions that convert nested columns. ``conf`` decides how names are compared; ``leaf`` makes the
    function that converts a leaf."""

    def __init__(self, conf: ReadConf, leaf: Leaf) -> None:
        self._conf = conf
        self._leaf = leaf

    def conversion(self, source: pa.DataType, target: T.DataType, arrow: pa.DataType) -> Convert | None:
        """Return a function that converts arrays of the type ``source`` to ``arrow``, for the Spark type ``target``.
        None if the arrays stay unchanged."""
        if isinstance(target, T.UserDefinedType):
            return self.conversion(source, target.sqlType(), arrow)
        make = {
            T.StructType: self._struct,
            T.ArrayType: self._list,
            T.MapType: self._map,
            T.VariantType: self._variant,
        }.get(type(target))
        if make is None:
            return self._leaf(source, target, arrow)
        if isinstance(source, pa.BaseExtensionType):
            inner = self.conversion(source.storage_type, target, arrow)
            return lambda array: _applied(inner, array.storage)
        if _types.is_null(source):
            return lambda array: pa.nulls(len(array), arrow)
        return make(source, target, arrow)

    def _part(self, source: pa.DataType, target: T.DataType, arrow: pa.DataType, name: str) -> Convert | None:
        with within(name):
            return self.conversion(source, target, arrow)

    def _struct(self, source: pa.DataType, target: Any, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.StructType):
            raise mismatch(source, target)
        names = [source.field(at).name for at in range(source.num_fields)]
        parts: list[tuple[int | None, Convert | None]] = []
        for field, child in zip(target.fields, arrow, strict=True):
            at = find_name(names, field.name, self._conf)
            convert = None if at is None else self._part(source.field(at).type, field.dataType, child.type, field.name)
            parts.append((at, convert))
        return nested_conversion(source, arrow, parts)

    def _list(self, source: pa.DataType, target: Any, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, LISTS):
            raise mismatch(source, target)
        part = self._part(source.value_type, target.elementType, arrow.value_type, "element")
        return nested_conversion(source, arrow, [(0, part)])

    def _map(self, source: pa.DataType, target: Any, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.MapType):
            raise mismatch(source, target)
        key = self._part(source.key_type, target.keyType, arrow.key_type, "key")
        item = self._part(source.item_type, target.valueType, arrow.item_type, "value")
        return nested_conversion(source, arrow, [(0, key), (1, item)])

    def _variant(self, source: pa.DataType, target: Any, arrow: pa.DataType) -> Convert | None:
        if not isinstance(source, pa.StructType):
            raise mismatch(source, target)
        return variant_conversion(source, arrow)


def _applied(convert: Convert | None, array: pa.Array) -> pa.Array:
    return array if convert is None else convert(array)


FIELD_ID_KEY: Final = "parquet.field.id"
_SPARK_VERSION_KEY: Final = "org.apache.spark.version"  # tells readers that dates use Spark 3's calendar
_PLAIN_DATES: Final = FileDates()


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema of batches that PySpark converts to ``schema``. Raises UnsupportedFeatureError if PySpark
    cannot convert Arrow data to a column's type."""
    for field in schema.fields:
        try:
            to_arrow_schema(T.StructType([field]), timezone="UTC")
        except PySparkException as error:
            raise UnsupportedFeatureError(
                f"PySpark cannot convert Arrow data to the type {field.dataType.simpleString()}",
                column=field.name,
                hint="Leave the column out, or read it with spark.read.parquet.",
            ) from error
    return to_arrow_schema(schema, timezone="UTC")


@functools.lru_cache(maxsize=64)
def converter(
    source: pa.Schema, schema: T.StructType, conf: ReadConf, dates: FileDates = _PLAIN_DATES
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that converts batches of a file to the columns of ``schema``.

    Columns are matched by name, and missing columns are null. ``source`` is the file's schema as asyncpq reads it. The
    types of ``schema`` may be wider where Spark's reader allows wider types. Both this function and the conversion
    raise SchemaMismatchError if Spark cannot read a column as the schema's type, and UnsupportedFeatureError if asyncpq
    cannot convert values as Spark does. This function raises AmbiguousColumnError for names that differ only in case.
    """
    target = arrow_schema(schema)
    columns = [
        (*_column(source, field, arrow, conf, dates), arrow) for field, arrow in zip(schema.fields, target, strict=True)
    ]

    def convert_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            pa.nulls(batch.num_rows, arrow.type) if place is None else _converted(convert, batch.column(place), arrow)
            for place, convert, arrow in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    return convert_batch


def _column(
    source: pa.Schema, field: T.StructField, arrow: pa.Field, conf: ReadConf, dates: FileDates
) -> tuple[int | None, Convert | None]:
    """Return the position in ``source`` of the column that ``field`` asks for (None if missing), and the function
    that converts it to ``arrow`` (None if it stays unchanged)."""
    if conf.field_ids and FIELD_ID_KEY in (field.metadata or {}):
        raise UnsupportedFeatureError(
            "the schema has field ids, and asyncpq does not support matching columns by field id",
            column=field.name,
            hint="Set spark.sql.parquet.fieldId.read.enabled=false.",
        )
    at = find_name(source.names, field.name, conf)
    if at is None:
        return None, None
    name = source.field(at).name
    rules = LeafRules(dates, name in dates.int96_fields, name in dates.mixed_fields)
    nested = NestedConversion(conf, lambda dtype, target, _: leaf_conversion(dtype, target, rules))
    with within(field.name):
        return at, nested.conversion(source.field(at).type, field.dataType, arrow.type)


def _converted(convert: Convert | None, array: pa.Array, arrow: pa.Field) -> pa.Array:
    """Return the converted column, or the column itself if ``convert`` is None. Errors name the column."""
    try:
        with located(column=arrow.name):
            return _applied(convert, array)
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        if isinstance(error, MemoryError):
            raise ResourceLimitError(
                f"a worker has too little memory to convert a batch of values to {arrow.type}",
                column=arrow.name,
                hint="Give Python workers more memory, for instance with spark.executor.pyspark.memory.",
            ) from error
        if isinstance(error, pa.ArrowCapacityError) or "offset overflow" in str(error):
            raise ResourceLimitError(
                f"the values of one batch exceed the maximum size of an array of the type {arrow.type}: {error}",
                column=arrow.name,
                hint="Leave the column out, or read it with spark.read.parquet.",
            ) from error
        raise SchemaMismatchError(
            f"a value of the type {array.type} cannot be converted to {arrow.type}: {error}",
            column=arrow.name,
            hint="Declare a wider type in .schema(...).",
        ) from error


class ToParquet(NamedTuple):
    """The conversion of Spark's batches, as mapInArrow passes them, to batches of ``schema`` for a Parquet file."""

    schema: pa.Schema  # of the file; its metadata goes into the footer and tells Spark the types that Parquet lacks
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]


def from_spark(schema: T.StructType, conf: ReadConf) -> ToParquet:
    """Return the conversion of Spark's batches to batches for a Parquet file, which Spark reads with the same types.

    All columns are nullable, as in files that Spark writes. Timestamps are in microseconds of UTC, TIMESTAMP_NTZ
    without zone. TIME is in microseconds, or in nanoseconds above 6 digits. Intervals of days to seconds are in
    microseconds. VARIANT is a struct of value and metadata. GEOMETRY and GEOGRAPHY are well-known binary, for
    :func:`asyncpq.spark.types.special_types.with_wkb_types`. Raises UnsupportedFeatureError if Spark cannot write a
    type, or PySpark cannot convert a type to Arrow; AmbiguousColumnError if two fields have the same name.
    """
    if not schema.fields:
        raise UnsupportedFeatureError("asyncpq cannot write rows without columns", hint="Write at least one column.")
    schema = nullable_struct(schema)
    check_names(schema, conf)
    metadata = {ROW_METADATA_KEY: schema.json(), _SPARK_VERSION_KEY: pyspark.__version__}
    target = pa.schema([file_field(field) for field in schema.fields], metadata=metadata)
    converts: dict[pa.Schema, list[Convert | None]] = {}
    nested = NestedConversion(conf, _file_leaf)

    def conversions(source: pa.Schema) -> list[Convert | None]:
        if len(source) != len(target):
            raise SchemaMismatchError(f"a batch from Spark has {len(source)} columns, but the schema has {len(target)}")
        made = []
        for dtype, field, arrow in zip(source.types, schema.fields, target, strict=True):
            with within(field.name):
                made.append(nested.conversion(dtype, field.dataType, arrow.type))
        return made

    def convert_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema not in converts:
            converts[batch.schema] = conversions(batch.schema)
        arrays = map(_converted, converts[batch.schema], batch.columns, target)
        return pa.RecordBatch.from_arrays(list(arrays), schema=target)

    return ToParquet(target, convert_batch)


def _file_leaf(source: pa.DataType, target: T.DataType, arrow: pa.DataType) -> Convert | None:
    """Return the function that converts a leaf from Spark's Arrow type ``source`` to the file's type ``arrow``; None
    if the types are equal. They may differ in time zones, units of times, and the size of offsets."""
    if source.equals(arrow):
        return None
    if is_spatial(target):
        return well_known_binary
    if pa.types.is_timestamp(source):
        if not pa.types.is_timestamp(arrow) or source.unit != arrow.unit:
            raise mismatch(source, target)
        return lambda array: array.view(arrow)
    return lambda array: array.cast(arrow)
