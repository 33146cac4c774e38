"""Convert batches between asyncpq and Spark: to the values that Spark's reader returns, and to the types of files.

Leaves are converted by the rules of Spark's vectorized Parquet reader. :func:`lake_field` says with which Arrow types
asyncpq reads a lake's columns, so that Spark gets the types of its own schema.

A conversion is prepared once for each schema and cached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, IntegralType, MapType, StructField, StructType, TimestampType

from asyncpq.engine.array_conversions import nested_conversion, rebased, variant_conversion, with_inner_types
from asyncpq.errors import ResourceLimitError, SchemaMismatchError, UnsupportedFeatureError, located
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY
from asyncpq.spark.types.read_conf import (
    FileDates,
    ReadConf,
    RebaseCalendar,
    TimestampLoss,
    check_names,
    nullable_struct,
    within,
)
from asyncpq.spark.types.special_types import (
    as_stored,
    has_variant,
    is_spatial,
    spark_type,
    spatial_values,
    well_known_binary,
    wkb_field,
)

Convert = Callable[[pa.Array], pa.Array]

_types: Any = pa.types  # its functions lack annotations
_UINT32: Final = pa.uint32()  # Spark reads it only as wider types
_INT32: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.date32(), pa.time32("ms")})
_SIGNED: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64()})
_BINARY: Final = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_BYTES: Final = _BINARY | {pa.string(), pa.large_string(), pa.string_view()}
_UTC: Final = pa.timestamp("us", "UTC")
_LOCAL: Final = pa.timestamp("us")
# Integer digits that a decimal needs for every value of a type, as Spark counts them.
_DIGITS_OF_INT: Final = 10
_DIGITS_OF_LONG: Final = 20
_MICROS_OF_DAY: Final = 86_400_000_000


class LeafRules(NamedTuple):
    """Facts about a column in a file that its Arrow type does not show, and that decide how Spark converts its
    values."""

    dates: FileDates  # calendars of the file
    is_int96: bool  # the timestamps were stored as INT96, whatever type asyncpq gave them
    is_mixed: bool = False  # other timestamps of the column were not
    timestamp_loss: TimestampLoss | None = None  # as in ReadConf


def leaf_conversion(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    """Return a function that converts arrays of the type ``source`` to ``target``; None if arrays stay unchanged.
    Raises SchemaMismatchError if Spark cannot read ``source`` as ``target``."""
    arrow = to_arrow_type(target, timezone="UTC")
    if _types.is_null(source) or isinstance(target, T.NullType):
        return None if source.equals(arrow) else lambda array: pa.nulls(len(array), arrow)
    if isinstance(source, pa.BaseExtensionType):
        return _after(lambda array: array.storage, leaf_conversion(source.storage_type, target, rules))
    if isinstance(source, pa.DictionaryType):
        inner = leaf_conversion(source.value_type, target, rules)
        return _after(lambda array: array.dictionary_decode(), inner)
    if _types.is_run_end_encoded(source):
        import pyarrow.compute as pc

        return _after(pc.run_end_decode, leaf_conversion(source.value_type, target, rules))
    if type(target) in _KEPT and source.equals(arrow):
        return None
    make = _RULES.get(type(target))
    convert = None if make is None else make(source, target, rules)
    if convert is None:
        raise mismatch(source, target)
    return None if convert is _same else convert


def mismatch(source: pa.DataType, target: T.DataType) -> SchemaMismatchError:
    """Return the error for a column whose type ``source`` Spark cannot read as ``target``."""
    return SchemaMismatchError(
        f"the column has the type {source} in the file, which Spark cannot read as {target.simpleString()} "
        "(Spark: FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH)",
        hint="Declare another type in .schema(...), or cast the column after reading.",
    )


def _after(first: Convert, second: Convert | None) -> Convert:
    return first if second is None else lambda array: second(first(array))


def _same(array: pa.Array) -> pa.Array:
    """Return the array unchanged."""
    return array


# -- numbers --------------------------------------------------------------------------------------


def _raw32(array: pa.Array) -> pa.Array:
    """Return the stored INT32 values of an integer, date or time array."""
    return array.cast(pa.int32()) if array.type.bit_width < 32 else array.view(pa.int32())


def _raw64(array: pa.Array) -> pa.Array:
    """Return the stored INT64 values of an integer, time, timestamp or duration array."""
    return array.view(pa.int64())


def _is_int64(source: pa.DataType, rules: LeafRules) -> bool:
    """Return whether the file stores signed INT64 values: integers, times, timestamps or durations."""
    if _types.is_timestamp(source):
        return not _is_int96(source, rules)
    return bool(source.equals(pa.int64()) or _types.is_time64(source) or _types.is_duration(source))


def _narrow(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    """Return the conversion of an integer to a narrower one, which keeps the low bits, as Spark does."""
    arrow = to_arrow_type(target)
    return (lambda array: _raw32(array).cast(arrow, safe=False)) if source in _INT32 else None


def _long(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    if source.equals(_UINT32):
        return _cast(pa.int64())
    if source in _INT32:
        return lambda array: _raw32(array).cast(pa.int64())
    return _raw64 if _is_int64(source, rules) else None


def _double(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    if source.equals(pa.float32()):
        return _cast(pa.float64())
    is_read = source in _INT32 or source.equals(_UINT32)
    return (lambda array: _raw32(array).cast(pa.float64())) if is_read else None


def _decimal(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    assert isinstance(target, T.DecimalType)
    precision, scale = target.precision, target.scale
    arrow = pa.decimal128(precision, scale)
    if _types.is_decimal(source):
        more_scale = scale - source.scale
        is_wider = more_scale >= 0 and precision - source.precision >= more_scale
        return (lambda array: array.cast(arrow)) if is_wider else None
    if source.equals(pa.uint64()):
        return _digits(arrow) if (precision, scale) == (20, 0) else None
    if _types.is_duration(source):  # stored as INT64
        inner = _decimal(pa.int64(), target, rules)
        return None if inner is None else lambda array: inner(_raw64(array))
    if source not in _SIGNED:
        return None
    needed = _DIGITS_OF_LONG if source.equals(pa.int64()) else _DIGITS_OF_INT
    return _digits(arrow) if precision - scale >= needed else None


def _digits(arrow: pa.DataType) -> Convert:
    # pyarrow requires a decimal for every integer of the type, which decimal(20, 0) is
    between = pa.decimal256(min(76, 20 + arrow.scale), arrow.scale)
    return lambda array: array.cast(between).cast(arrow)


def _cast(arrow: pa.DataType) -> Convert:
    return lambda array: array.cast(arrow, safe=False)


# -- times ----------------------------------------------------------------------------------------


def _is_int96(source: pa.DataType, rules: LeafRules) -> bool:
    return bool(rules.is_int96 and _types.is_timestamp(source) and (source.tz is None or not rules.is_mixed))


def _date(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    calendar = rules.dates.datetime
    if source.equals(pa.date64()):
        return lambda array: _days(array.cast(pa.date32()), calendar).view(pa.date32())
    if source not in _INT32:
        return None
    if source.equals(pa.date32()) and calendar.mode == "CORRECTED":
        return _same
    return lambda array: _days(array, calendar).view(pa.date32())


def _days(array: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    return rebase_days(_raw32(array), calendar)


def _timestamp(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    if not _types.is_timestamp(source):
        return None
    dates = rules.dates
    if rules.is_mixed and (dates.int96_zone is not None or dates.int96 != dates.datetime):
        raise UnsupportedFeatureError(
            "the column contains INT96 timestamps and other timestamps, which Spark reads differently",
            hint="Read it with spark.read.parquet.",
        )
    if _is_int96(source, rules):
        return lambda array: _instants(rebase_micros(_micros(array, rules), dates.int96, "int96"), rules)
    if not _has_unit(source, rules):
        return None
    calendar = dates.datetime
    if calendar.mode == "CORRECTED" and source.equals(_UTC):
        return _same
    return lambda array: rebase_micros(_micros(array, rules), calendar, "datetime").view(_UTC)


def _timestamp_ntz(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    import pyarrow.compute as pc

    if source.equals(pa.date32()):
        calendar = rules.dates.datetime
        return lambda array: pc.multiply_checked(
            _days(array, calendar).cast(pa.int64()), pa.scalar(_MICROS_OF_DAY, pa.int64())
        ).view(_LOCAL)
    if not _types.is_timestamp(source) or not (_is_int96(source, rules) or _has_unit(source, rules)):
        return None
    return lambda array: _micros(array, rules).view(_LOCAL)


def _has_unit(source: pa.TimestampType, rules: LeafRules) -> bool:
    """Return whether Spark reads timestamps of this unit, which are not INT96."""
    return source.unit in ("ms", "us") or (source.unit == "ns" and rules.timestamp_loss is not None)


def _micros(array: pa.Array, rules: LeafRules) -> pa.Array:
    """Return timestamps as int64 microseconds. Nanoseconds are rounded down, as Spark rounds INT96. Raises
    UnsupportedFeatureError if ``rules`` say that this must lose no digits, and it would."""
    import pyarrow.compute as pc

    values, thousand = array.view(pa.int64()), pa.scalar(1000, pa.int64())
    if array.type.unit == "us":
        return values
    if array.type.unit != "ns":
        return pc.multiply_checked(values, thousand)
    micros = pc.divide(values, thousand)
    whole = pc.multiply(micros, thousand)
    if rules.timestamp_loss == "error" and not pc.all(pc.equal(whole, values), min_count=0).as_py():
        raise UnsupportedFeatureError(
            "the column has timestamps with digits below a microsecond, which Spark's types cannot represent",
            hint="Pass timestamp_loss='truncate' to drop these digits. INT96 outside of the years 1677 to 2262 gives"
            " the same error.",
        )
    return pc.subtract(micros, pc.greater(whole, values).cast(pa.int64()))


def _instants(micros: pa.Array, rules: LeafRules) -> pa.Array:
    """Convert microseconds of INT96 values to times in UTC; or, by Spark's settings, to wall-clock times of a zone."""
    import pyarrow.compute as pc

    zone = rules.dates.int96_zone
    if zone is None:
        return micros.view(_UTC)
    # a skipped time uses the offset before the change, and an ambiguous time is the earlier one
    before = pc.assume_timezone(micros.view(_LOCAL), zone, ambiguous="earliest", nonexistent="earliest")
    offset = pc.subtract(pc.local_timestamp(before).view(pa.int64()), before.view(pa.int64()))
    return pc.subtract(micros, offset).view(_UTC)


def _time(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    assert isinstance(target, T.TimeType)
    if not _types.is_time64(source):
        return None
    step = 10 ** (9 - target.precision)
    if step == 1 and source.unit == "ns":
        return _same
    factor = 1000 if source.unit == "us" else 1

    def convert(array: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        nanos = pc.multiply_checked(array.view(pa.int64()), pa.scalar(factor, pa.int64()))
        if step > factor:  # further digits are cut off
            scalar = pa.scalar(step, pa.int64())
            nanos = pc.multiply(pc.divide(nanos, scalar), scalar)
        return nanos.view(pa.time64("ns"))

    return convert


_Rule = Callable[[pa.DataType, T.DataType, LeafRules], Convert | None]
_RULES: Final[dict[type[T.DataType], _Rule]] = {
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType), _narrow),
    T.LongType: _long,
    T.DoubleType: _double,
    T.DecimalType: _decimal,
    # without a check for UTF-8, as Spark
    T.StringType: lambda source, *_: _cast(pa.string()) if source in _BYTES else None,
    T.BinaryType: lambda source, *_: (
        _cast(pa.binary()) if source in _BYTES or _types.is_fixed_size_binary(source) else None
    ),
    T.DateType: _date,
    T.TimestampType: _timestamp,
    T.TimestampNTZType: _timestamp_ntz,
    T.DayTimeIntervalType: lambda source, _, rules: (
        (lambda array: _raw64(array).view(pa.duration("us"))) if _is_int64(source, rules) else None
    ),
    **dict.fromkeys(
        (T.GeographyType, T.GeometryType),
        lambda source, target, _: spatial_values(target, to_arrow_type(target)) if source in _BINARY else None,
    ),
    T.TimeType: _time,
}
# Types for which Spark returns the file's values unchanged, if the file has the same type.
_KEPT: Final = frozenset({T.BooleanType, T.FloatType, *_RULES}) - {
    T.DateType,
    T.TimestampType,
    T.TimeType,
    T.GeographyType,
    T.GeometryType,
}


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
            at = self._conf.find(names, field.name)
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
    at = conf.find(source.names, field.name)
    if at is None:
        return None, None
    name = source.field(at).name
    rules = LeafRules(dates, name in dates.int96_fields, name in dates.mixed_fields, conf.timestamp_loss)
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
    :func:`asyncpq.writing.with_wkb_types`. Raises UnsupportedFeatureError if Spark cannot write a type, or PySpark
    cannot convert a type to Arrow; AmbiguousColumnError if two fields have the same name.
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
        places = [conf.find(names, field.name) for field in asked.fields]
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


# -- calendars ------------------------------------------------------------------------------------


def rebase_days(days: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    """Convert int32 days since 1970-01-01 in ``calendar`` to the Gregorian calendar. Raises UnsupportedFeatureError,
    whose hint names Spark's setting, for days before 1582-10-15 in an unknown calendar."""
    if calendar.mode == "CORRECTED":
        return days
    refusal = None if calendar.mode == "LEGACY" else _unknown_calendar("1582-10-15", "datetime")
    return rebased(days.view(pa.date32()), refusal=refusal).view(pa.int32())


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Convert int64 microseconds since 1970-01-01T00:00:00Z in ``calendar`` to the Gregorian calendar.

    Values before 1900 in an unknown calendar or zone raise UnsupportedFeatureError. Its hint names Spark's setting for
    ``kind``.
    """
    if calendar.mode == "CORRECTED":
        return micros
    refusal = None if calendar.mode == "LEGACY" else _unknown_calendar("1900-01-01T00:00:00Z", kind)
    try:
        return rebased(micros.view(pa.timestamp("us")), calendar.zone, refusal=refusal).view(pa.int64())
    except UnsupportedFeatureError as error:
        if refusal is None:  # the zone is not known
            error.hint = "Read them with spark.read.parquet."
        raise


def _unknown_calendar(date: str, kind: Literal["datetime", "int96"]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the column has values before {date}, which may be in the calendar of old Spark versions "
        "(Spark: INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME)",
        hint=f"Set spark.sql.parquet.{kind}RebaseModeInRead to LEGACY to rebase them, or to CORRECTED to read them "
        "as they are.",
    )
