"""The types that Spark gives partition columns, by the texts in paths, and those values as the types.

Texts have ``%xx`` as they stand in the path. Spark undoes them for strings, timestamps and times alone, each for a
character of Latin-1: ``%31`` is text, and ``%C3%A4`` is two characters.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import zoneinfo
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from asyncpq.errors import AsyncpqError, InvalidOptionError, PartitionError, UnsupportedFeatureError
from asyncpq.spark.types.read_conf import ReadConf

DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile("%([0-9a-fA-F]{2})")
_DIGITS: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Java's Double.parseDouble; blanks around it are dropped.
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
    """A path's text with ``%xx`` undone, as Spark does it."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "%" in text else text


def partition_type(values: Iterable[str | None], conf: ReadConf) -> DataType:
    """The type of a column whose files' paths have these texts; None for no value.

    Raises:
        PartitionError: an empty value, which Spark refuses.
    """
    found: DataType = NullType()
    for value in values:
        found = _wider(found, _value_type(value, conf))
    return found


def partition_scalar(value: str | None, kind: DataType, conf: ReadConf) -> pa.Scalar[Any]:
    """A path's text as a value of the type that Spark's batches have.

    Args:
        kind: as :func:`partition_type` gives it, or as the user's schema says.

    Raises:
        PartitionError: not a value of the type.
        InvalidOptionError: it is of the session's time zone, which nobody said.
        UnsupportedFeatureError: Spark has other partition columns than these.
    """
    arrow = to_arrow_type(kind, timezone="UTC")
    if value is None or value == DEFAULT_PARTITION:
        return pa.scalar(None, arrow)
    try:
        return pa.scalar(_parsed(value, kind, conf), arrow)
    except AsyncpqError:
        raise
    except (ValueError, OverflowError, decimal.InvalidOperation, pa.ArrowException) as error:
        raise PartitionError(f"the path's value {value!r} is no {kind.simpleString()}") from error


def _value_type(value: str | None, conf: ReadConf) -> DataType:
    if value is None or value == DEFAULT_PARTITION:
        return NullType()
    if not value:
        raise PartitionError("an empty partition value (Spark: EMPTY_PARTITION_COLUMN_VALUE)")
    if not conf.infer_partition_types:
        return StringType()
    if _DIGITS.fullmatch(value):
        number = int(value)
        if -(1 << 31) <= number < 1 << 31:
            return IntegerType()
        if -(1 << 63) <= number < 1 << 63:
            return LongType()
    digits = _decimal_digits(value)
    if digits is not None:
        return DecimalType(digits, 0)
    if _DOUBLE.fullmatch(value.strip(_JAVA_BLANKS)):
        return DoubleType()
    plain = unescaped(value)
    if _is_real(_TIMESTAMP, plain):
        return TimestampType() if conf.timestamp_type == "TIMESTAMP_LTZ" else TimestampNTZType()
    if _is_real(_DATE, value):
        return DateType()
    return StringType() if _clock(plain) is None else TimeType(6)


def _decimal_digits(value: str) -> int | None:
    """Digits of a number that Java's BigDecimal takes for whole; None where it is none, or has more than 38."""
    if not _DECIMAL.fullmatch(value):
        return None
    number = decimal.Decimal(value).as_tuple()
    if not isinstance(number.exponent, int) or number.exponent < 0:
        return None
    count = len("".join(map(str, number.digits)).lstrip("0") or "0") + number.exponent
    return count if count <= _MOST_DIGITS else None


def _is_real(pattern: re.Pattern[str], value: str) -> bool:
    """Whether the value has the form, and is a date and a time that exist."""
    found = pattern.fullmatch(value)
    if found is None:
        return False
    try:
        datetime.datetime(*[int(part) for part in found.groups()[:6]])  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def _clock(value: str) -> datetime.time | None:
    """A time of the day; None where it is none."""
    found = _TIME.fullmatch(value)
    if found is None:
        return None
    hour, minute, second = (int(part) for part in found.groups()[:3])
    try:
        return datetime.time(hour, minute, second, int((found[4] or "").ljust(6, "0")))
    except ValueError:
        return None


def _wider(left: DataType, right: DataType) -> DataType:
    """The type of a column with values of both."""
    if left == right or isinstance(right, NullType):
        return left
    if isinstance(left, NullType):
        return right
    types = {type(left), type(right)}
    if types <= {IntegerType, LongType}:
        return LongType()
    if types == {IntegerType, DoubleType}:
        return DoubleType()
    if types <= {IntegerType, LongType, DecimalType}:
        return DecimalType(max(_digits(left), _digits(right)), 0)
    if types in ({DateType, TimestampType}, {DateType, TimestampNTZType}):
        return left if isinstance(right, DateType) else right
    return StringType()


def _digits(kind: DataType) -> int:
    if isinstance(kind, DecimalType):
        return kind.precision
    return 10 if isinstance(kind, IntegerType) else 20


def _parsed(value: str, kind: DataType, conf: ReadConf) -> object:
    if isinstance(kind, StringType):
        return unescaped(value)
    if isinstance(kind, IntegralType):
        if not _DIGITS.fullmatch(value):
            raise ValueError(value)
        return int(value)
    if isinstance(kind, DecimalType):
        number = decimal.Decimal(value)
        if kind.scale and number.as_tuple().exponent != -kind.scale:
            raise UnsupportedFeatureError(
                f"Spark takes the digits of {value!r} for those of a {kind.simpleString()}, whatever its point",
                hint="Ask for a string, and cast it.",
            )
        return number.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if isinstance(kind, FractionalType):
        text = value.strip(_JAVA_BLANKS)
        if not _DOUBLE.fullmatch(text):
            raise ValueError(value)
        if "x" in text.lower():
            return float.fromhex(text.rstrip("fFdD"))  # the exponent after "p" is decimal
        return float(text if text[-1:] in "Ny" else text.rstrip("fFdD"))
    if isinstance(kind, TimeType):
        clock = _clock(unescaped(value))
        if clock is None:
            raise ValueError(value)
        return clock
    if isinstance(kind, DateType):
        return _moment(value).date()
    if isinstance(kind, TimestampNTZType):
        return _moment(unescaped(value))
    if isinstance(kind, TimestampType):
        return _instant(_moment(unescaped(value)), conf.session_time_zone)
    raise UnsupportedFeatureError(f"a partition column of the type {kind.simpleString()} is not supported")


_EXACT: Final = decimal.Context(prec=38, traps=[decimal.InvalidOperation, decimal.Inexact])


def _moment(value: str) -> datetime.datetime:
    """A date, or a date and a time."""
    found = _TIMESTAMP.fullmatch(value) or _DATE.fullmatch(value)
    if found is None:
        raise ValueError(value)
    *parts, tenth = (*found.groups(), None) if found.re is _DATE else found.groups()
    return datetime.datetime(*[int(part) for part in parts], microsecond=int(tenth or 0) * 100_000)  # type: ignore[arg-type,misc]


def _instant(moment: datetime.datetime, zone: str | None) -> datetime.datetime:
    """The clock's time in a zone: the earlier of two, and as if the clock had not been moved where it skips it."""
    if zone is None:
        raise InvalidOptionError(
            "paths have times of the session's time zone, which the source cannot see",
            hint="Name it: option sessionTimeZone, such as Europe/Berlin. Or ask for strings in .schema(...).",
        )
    offset = moment.replace(tzinfo=_zone(zone)).utcoffset()
    return (moment - (offset or datetime.timedelta())).replace(tzinfo=datetime.UTC)


@functools.cache
def _zone(name: str) -> datetime.tzinfo:
    """A zone as Spark names them: a region, or an offset.

    Raises:
        UnsupportedFeatureError: a zone that Python does not know.
    """
    found = _OFFSET.fullmatch(name)
    if found is not None:
        minutes = 60 * int(found[2]) + int(found[3] or 0)
        return datetime.timezone(datetime.timedelta(minutes=-minutes if found[1] == "-" else minutes))
    try:
        return datetime.UTC if name == "Z" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnsupportedFeatureError(
            f"the session's time zone {name!r} is not known to Python",
            hint="Set spark.sql.session.timeZone to a region such as Europe/Paris, or install tzdata.",
        ) from error
