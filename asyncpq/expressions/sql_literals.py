"""Literals of SQL that state their type, such as ``DATE '2024-05-01'`` or ``CAST('1.50' AS DECIMAL(5, 2))``.

All functions raise ValueError or ArithmeticError for a text that is not a value of the type, or that a conversion would
change.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from asyncpq.expressions.scalars import (
    NANOSECONDS,
    Day,
    Scalar,
    Timestamp,
    Untyped,
    day,
    days_of,
    time_of_day,
    timestamp,
)

_DATE: Final = r"([+-]?\d{4,7})-(\d\d)-(\d\d)"
_CLOCK: Final = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
_ZONE: Final = r"(?: ?(?:(Z|UTC)|([+-])(\d\d)(?::?(\d\d))?))?"
_DATE_TEXT: Final = re.compile(_DATE, re.ASCII)
_CLOCK_TEXT: Final = re.compile(_CLOCK, re.ASCII)
_MOMENT_TEXT: Final = re.compile(f"{_DATE}(?:[ T]{_CLOCK}{_ZONE})?", re.ASCII)
_DAY: Final = 86_400 * NANOSECONDS["s"]
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "INT128": 128}
_UNITS: Final = {
    "WEEK": dt.timedelta(weeks=1),
    "DAY": dt.timedelta(days=1),
    "HOUR": dt.timedelta(hours=1),
    "MINUTE": dt.timedelta(minutes=1),
    "SECOND": dt.timedelta(seconds=1),
    "MILLISECOND": dt.timedelta(milliseconds=1),
    "MICROSECOND": dt.timedelta(microseconds=1),
}


def typed_literal(target: str, value: Any, lengths: Sequence[int] = ()) -> Scalar:
    """Return the value of ``CAST(value AS target(lengths))``. ``target`` is sqlglot's name of the type; ``lengths`` are
    its parameters, such as precision and scale."""
    if target in _BITS or (target.startswith("U") and target[1:] in _BITS):
        return _integer(target, _decimal_of(value))
    if target == "DECIMAL":
        return _decimal(_decimal_of(value), lengths)
    if target == "DOUBLE":
        return float(_decimal_of(value))
    if isinstance(value, bytes):
        if target in ("BINARY", "VARBINARY") and not lengths:
            return value
        raise ValueError(f"bytes cannot be cast to {target}")
    if target in ("VARCHAR", "TEXT") and not isinstance(value, bool):
        return _text(value, lengths)
    make = _OF_TEXT.get(target)
    if make is None:
        raise ValueError(f"casts to {target} are not supported")
    if not isinstance(value, Untyped) or value.is_number:
        if target == "BOOLEAN" and isinstance(value, bool):
            return value
        raise ValueError(f"a value of type {target} must be written in quotes")
    if lengths:
        raise ValueError(f"{target} with a precision is not supported, because it may round the value")
    return make(value.text)


def date(text: str) -> dt.date | Day:
    """Parse a date of the form 2024-05-01. The year may have a sign and up to seven digits."""
    parts = _DATE_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a date such as 2024-05-01")
    return day(days_of(*map(int, parts.groups())))


def moment(text: str) -> dt.datetime | Timestamp:
    """Parse a timestamp of the form ``2024-05-01 12:30:00.25``. With an offset, such as ``+02:00`` or ``Z``, it is an
    instant."""
    parts = _MOMENT_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a time such as 2024-05-01 12:30:00")
    since_epoch = days_of(*map(int, parts.groups()[:3])) * _DAY + (
        _nanoseconds(*parts.groups()[3:7]) if parts[4] else 0
    )
    if not (parts[8] or parts[9]):
        return timestamp(since_epoch, None)
    offset = (int(parts[10]) * 60 + int(parts[11] or 0)) * 60 if parts[9] else 0
    since_epoch -= offset * NANOSECONDS["s"] * (-1 if parts[9] == "-" else 1)
    plain = timestamp(since_epoch, None)
    return plain.replace(tzinfo=dt.UTC) if isinstance(plain, dt.datetime) else Timestamp(since_epoch, "UTC")


def interval(text: str, unit: str) -> dt.timedelta:
    """Parse an SQL interval in units from weeks to microseconds: ``text`` is the quoted part, ``unit`` the word after
    it."""
    amount, _, rest = text.strip().partition(" ")
    name = (unit or rest).strip().upper()
    step = _UNITS.get(name) or _UNITS.get(name.removesuffix("S"))
    if step is None or (unit and rest):
        raise ValueError(f"{' '.join(filter(None, [text, unit]))!r} must have one unit, from weeks to microseconds")
    micros = _decimal_of(Untyped(amount, is_number=True)) * (step // dt.timedelta(microseconds=1))
    if micros != int(micros):
        raise ValueError(f"{text!r} is finer than a microsecond")
    return dt.timedelta(microseconds=int(micros))


def clock(text: str) -> Scalar:
    """Parse a time of day of the form ``12:30:00.25``."""
    parts = _CLOCK_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a time of day such as 12:30:00")
    return time_of_day(_nanoseconds(*parts.groups()))


def _nanoseconds(hours: str, minutes: str, seconds: str | None, fraction: str | None) -> int:
    clock = dt.time(int(hours), int(minutes), int(seconds or 0))  # checks the ranges
    whole = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return whole * NANOSECONDS["s"] + int((fraction or "").ljust(9, "0"))


def _zoned(text: str) -> Scalar:
    value = moment(text)
    if (value.timezone if isinstance(value, Timestamp) else value.tzinfo) is None:
        raise ValueError("the time has no offset from UTC, such as +00:00")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


_OF_TEXT: Final[dict[str, Callable[[str], Scalar]]] = {
    "DATE": date,
    "TIME": clock,
    "TIMESTAMP": moment,  # with an offset it has a zone, as in ANSI
    "TIMESTAMPNTZ": moment,
    "DATETIME": moment,
    "TIMESTAMPTZ": _zoned,
    "UUID": uuid.UUID,
    "BOOLEAN": _boolean,
}


def _decimal_of(value: Any) -> Decimal:
    if type(value) in (int, Decimal):
        return Decimal(value)
    number = Decimal(value.text.strip()) if isinstance(value, Untyped) else None
    if number is None or not number.is_finite():
        raise ValueError("the value is not a finite number")
    return number


def _integer(target: str, number: Decimal) -> int:
    bits = _BITS.get(target)
    low, high = (0, 1 << _BITS[target[1:]]) if bits is None else (-1 << bits - 1, 1 << bits - 1)
    if number != number.to_integral_value():
        raise ValueError("SQL engines disagree on how to round the value")
    if not low <= number < high:
        raise ValueError(f"the value is out of the range of {target}")
    return int(number)


def _decimal(number: Decimal, lengths: Sequence[int]) -> Decimal:
    if not lengths:
        return number
    precision, scale = (*lengths, 0)[:2]
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if -exponent > scale or len(digits) + exponent > precision - scale:
        raise ValueError(f"DECIMAL({precision}, {scale}) cannot represent the number exactly")
    return number


def _text(value: Any, lengths: Sequence[int]) -> str:
    text = value.text if isinstance(value, Untyped) else str(value)
    if isinstance(value, (float, dt.date, Day, dt.timedelta)) or (isinstance(value, Untyped) and value.is_number):
        raise ValueError("SQL engines disagree on how to write the value as text")
    if lengths and len(text) > lengths[0]:
        raise ValueError(f"the text has more than {lengths[0]} characters")
    return text
