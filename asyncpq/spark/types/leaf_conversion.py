"""Convert arrays without children to Spark's types, by the rules of Spark's vectorized Parquet reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from asyncpq.errors import SchemaMismatchError, UnsupportedFeatureError
from asyncpq.spark.types.calendars import FileDates, RebaseCalendar, rebase_days, rebase_micros
from asyncpq.spark.types.special_types import spatial_values

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
        return lambda array: _instants(rebase_micros(_micros_of_int96(array), dates.int96, "int96"), rules)
    if source.unit not in ("ms", "us"):
        return None
    calendar = dates.datetime
    if calendar.mode == "CORRECTED" and source.equals(_UTC):
        return _same
    return lambda array: rebase_micros(_micros(array), calendar, "datetime").view(_UTC)


def _timestamp_ntz(source: pa.DataType, target: T.DataType, rules: LeafRules) -> Convert | None:
    import pyarrow.compute as pc

    if source.equals(pa.date32()):
        calendar = rules.dates.datetime
        return lambda array: pc.multiply_checked(
            _days(array, calendar).cast(pa.int64()), pa.scalar(_MICROS_OF_DAY, pa.int64())
        ).view(_LOCAL)
    if _is_int96(source, rules):
        return lambda array: _micros_of_int96(array).view(_LOCAL)
    if not _types.is_timestamp(source) or source.unit not in ("ms", "us"):
        return None
    return lambda array: _micros(array).view(_LOCAL)


def _micros(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    values = array.view(pa.int64())
    if array.type.unit == "us":
        return values
    return pc.multiply_checked(values, pa.scalar(1000, pa.int64()))


def _micros_of_int96(array: pa.Array) -> pa.Array:
    """Return INT96 timestamps as int64 microseconds, rounded down as Spark does."""
    import pyarrow.compute as pc

    if array.type.unit != "ns":
        return _micros(array)
    nanos = array.view(pa.int64())
    thousand = pa.scalar(1000, pa.int64())
    micros = pc.divide(nanos, thousand)
    is_above = pc.greater(pc.multiply(micros, thousand), nanos)
    return pc.subtract(micros, is_above.cast(pa.int64()))


def _instants(micros: pa.Array, rules: LeafRules) -> pa.Array:
    """Convert microseconds of INT96 values to times in UTC; or, if Spark's settings say so, to wall-clock times of a
    zone."""
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
