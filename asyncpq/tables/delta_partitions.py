"""Partition values of a Delta table's files: the texts of ``add`` actions as values of the columns' types.

PROTOCOL.md, "Partition Value Serialization". Spark, deltalake and DuckDB all take the text of a binary value as its
UTF-8 bytes, and so does this module: the escapes that the protocol and newer versions of deltalake write stay text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Any

import pyarrow as pa

from asyncpq.errors import CorruptFileError
from asyncpq.tables.delta_schema import Leaf

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DATE = r"([+-]?[0-9]{1,7})-([0-9]{1,2})-([0-9]{1,2})"
_ONLY_DATE = re.compile(rf"{_DATE}(?:[ T].*)?", re.ASCII)
_TIME = re.compile(
    rf"{_DATE}(?:[ T]([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}})(?:\.([0-9]+))?)?)?\s*(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?",
    re.ASCII,
)
_DAYS_OF_400_YEARS = 146_097
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)


def partition_value(text: str | None, leaf: Leaf) -> Any:
    """The typed value that an ``add`` action gives as ``text``; an empty string is null.

    Returns:
        a Python value; a pyarrow scalar for a date or time that Python does not have.

    Raises:
        CorruptFileError: it is no value of the column's type.
    """
    if text is None or text == "":
        return None
    try:
        return _typed(text, leaf.type)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        message = f"partition value {text!r} is not of type {leaf.type}"
        raise CorruptFileError(message, column=leaf.name) from error


def _typed(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return text.encode()
    if pa.types.is_integer(kind):
        if _INTEGER.fullmatch(text) is None:
            raise ValueError(text)
        return pa.scalar(int(text), kind).as_py()
    if pa.types.is_floating(kind):
        return pa.scalar(float(text), kind).as_py()
    if pa.types.is_decimal(kind):
        return pa.scalar(decimal.Decimal(text), kind).as_py()
    if pa.types.is_boolean(kind):
        return bool(("false", "true").index(text.lower()))
    if pa.types.is_null(kind):
        return None
    return _date(text) if pa.types.is_date(kind) else _time(text, kind)


def _date(text: str) -> dt.date | pa.Scalar:
    """A time of day behind the date is left out, as Spark does."""
    match = _ONLY_DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return _python(pa.scalar(_days(match), pa.date32()))


def _time(text: str, kind: pa.DataType) -> dt.datetime | pa.Scalar:
    """In UTC where the type has a zone; a time without one is taken as UTC. A type without a zone ignores that of the
    text, as Spark does. Digits behind microseconds are cut off."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, minute, second = (int(part or 0) for part in match.group(4, 5, 6))
    dt.time(hour, minute, second)  # ValueError: there is no such time
    fraction, zone = match[7] or "", match[8]
    value = _days(match) * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(f"{fraction:0<6}"[:6])
    if kind.tz is not None and zone not in (None, "Z"):
        offset = dt.datetime.strptime(zone, "%z").utcoffset() or dt.timedelta()
        value -= offset // dt.timedelta(microseconds=1)
    return _python(pa.scalar(value, kind))


def _days(match: re.Match[str]) -> int:
    """Days since 1970 in the proleptic Gregorian calendar, which repeats after 400 years."""
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    cycles, inside = divmod(year, 400)
    inside += 400  # a year that Python has
    return dt.date(inside, month, day).toordinal() - _EPOCH_DAY + (cycles - 1) * _DAYS_OF_400_YEARS


def _python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value
