"""Types and values of partition columns as Spark derives them from the texts in paths.

Texts keep their ``%xx`` escapes. Spark unescapes only strings, timestamps and times, one Latin-1 character for each
escape: ``%31`` is text, and ``%C3%A4`` is two characters.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from asyncpq.errors import AsyncpqError, InvalidOptionError, PartitionError, UnsupportedFeatureError
from asyncpq.spark.types.read_conf import ReadConf

DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile("%([0-9a-fA-F]{2})")
_DIGITS: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# The syntax of Java's Double.parseDouble, without the blanks around it.
_DOUBLE: Final = re.compile(
    r"[+-]?(NaN|Infinity|((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)|"
    r"0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]+[pP][+-]?\d+[fFdD]?)",
    re.ASCII,
)
_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_TIMESTAMP: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d))?", re.ASCII)
_TIME: Final = re.compile(r"(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?", re.ASCII)
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
_MOST_DIGITS: Final = 38
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII)


def unescaped(text: str) -> str:
    """Return a text from a path with each ``%xx`` escape replaced by one Latin-1 character, as Spark does."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if "%" in text else text


def partition_type(values: Iterable[str | None], conf: ReadConf) -> T.DataType:
    """Return the type that Spark infers for a partition column with these texts in paths; None is a missing value.
    Raises PartitionError for an empty text."""
    dtype: T.DataType = T.NullType()
    for value in values:
        dtype = _wider(dtype, _value_type(value, conf))
    return dtype


def partition_scalar(value: str | None, dtype: T.DataType, conf: ReadConf) -> pa.Scalar[Any]:
    """Convert a text in a path to a value of the Spark type ``dtype``; None is a missing value.

    Raises:
        PartitionError: the text is not a value of the type.
        InvalidOptionError: the value depends on the session's time zone, which is unknown.
        UnsupportedFeatureError: Spark has no partition columns of this type.
    """
    arrow = to_arrow_type(dtype, timezone="UTC")
    if value is None or value == DEFAULT_PARTITION:
        return pa.scalar(None, arrow)
    try:
        return pa.scalar(_parsed(value, dtype, conf), arrow)
    except AsyncpqError:
        raise
    except (ValueError, OverflowError, decimal.InvalidOperation, pa.ArrowException) as error:
        raise PartitionError(
            f"the value {value!r} in the path is not a valid {dtype.simpleString()}",
            hint="Declare the column as a string in .schema(...), or rename the folder.",
        ) from error


def _value_type(value: str | None, conf: ReadConf) -> T.DataType:
    if value is None or value == DEFAULT_PARTITION:
        return T.NullType()
    if not value:
        raise PartitionError(
            "a folder has an empty partition value (Spark: EMPTY_PARTITION_COLUMN_VALUE)",
            hint=f"Rename the folder: key=value, or key={DEFAULT_PARTITION} for null.",
        )
    if not conf.infer_partition_types:
        return T.StringType()
    if _DIGITS.fullmatch(value):
        number = int(value)
        if -(1 << 31) <= number < 1 << 31:
            return T.IntegerType()
        if -(1 << 63) <= number < 1 << 63:
            return T.LongType()
    digits = _decimal_digits(value)
    if digits is not None:
        return T.DecimalType(digits, 0)
    if _DOUBLE.fullmatch(value.strip(_JAVA_BLANKS)):
        return T.DoubleType()
    plain = unescaped(value)
    if _TIMESTAMP.fullmatch(plain) and _is_valid(_moment, plain):
        return T.TimestampType() if conf.timestamp_type == "TIMESTAMP_LTZ" else T.TimestampNTZType()
    if _DATE.fullmatch(value) and _is_valid(_moment, value):
        return T.DateType()
    return T.TimeType(6) if _is_valid(_clock, plain) else T.StringType()


def _decimal_digits(value: str) -> int | None:
    """Return the number of digits of a whole number, as Java's BigDecimal parses it. None for other texts, and for
    numbers of more than 38 digits."""
    if not _DECIMAL.fullmatch(value):
        return None
    number = decimal.Decimal(value).as_tuple()
    if not isinstance(number.exponent, int) or number.exponent < 0:
        return None
    count = len("".join(map(str, number.digits)).lstrip("0") or "0") + number.exponent
    return count if count <= _MOST_DIGITS else None


def _is_valid(parse: Callable[[str], object], value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _clock(value: str) -> datetime.time:
    match = _TIME.fullmatch(value)
    if match is None:
        raise ValueError(value)
    return datetime.time(int(match[1]), int(match[2]), int(match[3]), int((match[4] or "").ljust(6, "0")))


def _wider(left: T.DataType, right: T.DataType) -> T.DataType:
    """Return the type that Spark infers for a column with values of both types."""
    if left == right or isinstance(right, T.NullType):
        return left
    if isinstance(left, T.NullType):
        return right
    types = {type(left), type(right)}
    if types <= {T.IntegerType, T.LongType}:
        return T.LongType()
    if types == {T.IntegerType, T.DoubleType}:
        return T.DoubleType()
    if types <= {T.IntegerType, T.LongType, T.DecimalType}:
        return T.DecimalType(max(_digits(left), _digits(right)), 0)
    if types in ({T.DateType, T.TimestampType}, {T.DateType, T.TimestampNTZType}):
        return left if isinstance(right, T.DateType) else right
    return T.StringType()


def _digits(dtype: T.DataType) -> int:
    if isinstance(dtype, T.DecimalType):
        return dtype.precision
    return 10 if isinstance(dtype, T.IntegerType) else 20


def _parsed(value: str, dtype: T.DataType, conf: ReadConf) -> object:
    if isinstance(dtype, T.StringType):
        return unescaped(value)
    if isinstance(dtype, T.IntegralType):
        if not _DIGITS.fullmatch(value):
            raise ValueError(value)
        return int(value)
    if isinstance(dtype, T.DecimalType):
        number = decimal.Decimal(value)
        if dtype.scale and number.as_tuple().exponent != -dtype.scale:
            raise UnsupportedFeatureError(
                f"Spark ignores the decimal point of the value {value!r} in the path for {dtype.simpleString()}",
                hint="Declare the column as a string, and cast it.",
            )
        return number.quantize(decimal.Decimal(1).scaleb(-dtype.scale), context=_EXACT)
    if isinstance(dtype, T.FractionalType):
        return _float(value)
    if isinstance(dtype, T.TimeType):
        return _clock(unescaped(value))
    if isinstance(dtype, T.DateType):
        return _moment(value).date()
    if isinstance(dtype, T.TimestampNTZType):
        return _moment(unescaped(value))
    if isinstance(dtype, T.TimestampType):
        return _instant(_moment(unescaped(value)), conf.session_time_zone)
    raise UnsupportedFeatureError(
        f"Spark does not support partition columns of the type {dtype.simpleString()}",
        hint="Declare the column as a string in .schema(...).",
    )


def _float(value: str) -> float:
    text = value.strip(_JAVA_BLANKS)
    if not _DOUBLE.fullmatch(text):
        raise ValueError(value)
    if "x" in text.lower():
        return float.fromhex(text.rstrip("fFdD"))  # the exponent after "p" is decimal
    return float(text if text[-1:] in "Ny" else text.rstrip("fFdD"))


_EXACT: Final = decimal.Context(prec=38, traps=[decimal.InvalidOperation, decimal.Inexact])


def _moment(value: str) -> datetime.datetime:
    """Parse ``YYYY-MM-DD``, perhaps with a time ``HH:MM:SS`` or ``HH:MM:SS.f``; ValueError for other texts."""
    match = _TIMESTAMP.fullmatch(value) or _DATE.fullmatch(value)
    if match is None:
        raise ValueError(value)
    *parts, tenth = (*match.groups(), None) if match.re is _DATE else match.groups()
    return datetime.datetime(*[int(part) for part in parts], microsecond=int(tenth or 0) * 100_000)  # type: ignore[arg-type,misc]


def _instant(moment: datetime.datetime, zone: str | None) -> datetime.datetime:
    """Convert a wall-clock time of the session's time zone to an instant in UTC. An ambiguous time is the earlier
    instant; a skipped time uses the offset before the change."""
    if zone is None:
        raise InvalidOptionError(
            "timestamps in paths depend on the session's time zone, which is not set",
            hint="Set the option sessionTimeZone, such as Europe/Berlin, or declare strings in .schema(...).",
        )
    offset = moment.replace(tzinfo=_zone(zone)).utcoffset()
    return (moment - (offset or datetime.timedelta())).replace(tzinfo=datetime.UTC)


@functools.cache
def _zone(name: str) -> datetime.tzinfo:
    """Return the time zone with the name of a region or an offset. Raises UnsupportedFeatureError if Python has no data
    of that time zone."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        minutes = 60 * int(offset[2]) + int(offset[3] or 0)
        return datetime.timezone(datetime.timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return datetime.UTC if name == "Z" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnsupportedFeatureError(
            f"Python's time zone data has no entry for the session's time zone {name!r}",
            hint="Set spark.sql.session.timeZone to a region such as Europe/Paris, or install tzdata.",
        ) from error
