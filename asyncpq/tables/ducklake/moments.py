"""Texts of dates and times in a DuckLake's catalog, as the numbers that the table's files hold.

Python has no years before 1 and after 9999, no infinity, no time 24:00:00 and no nanoseconds; Arrow and DuckDB's files
have all of them. DuckDB writes ``0044-03-15 (BC) 01:02:03`` for the year -43.
"""

from __future__ import annotations

import re
from typing import Final

from asyncpq.errors import shown
from asyncpq.expressions.scalars import days_of
from asyncpq.parquet.calendars import DAY_SECONDS

#: Units in a second, by DuckLake type; a timestamp_s is read in microseconds, as Parquet has no seconds.
_TICKS: Final = {
    "time": 10**6,
    "timetz": 10**6,
    "time_ns": 10**9,
    "timestamp": 10**6,
    "timestamp_us": 10**6,
    "timestamp_s": 10**6,
    "timestamp_ms": 10**3,
    "timestamp_ns": 10**9,
    "timestamptz": 10**6,
    "timestamptz_ns": 10**9,
}
_DAY: Final = r"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)(?P<bc> \(BC\))?"
_CLOCK: Final = r"(?P<hour>\d\d):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:\.(?P<fraction>\d{1,9}))?"
_OFFSET: Final = r"(?P<sign>[+-])(?P<hours>\d\d)(?::(?P<minutes>\d\d))?(?::(?P<seconds>\d\d))?"
_DATE: Final = re.compile(_DAY, re.ASCII)
_TIME: Final = re.compile(_CLOCK, re.ASCII)
_ZONED_TIME: Final = re.compile(_CLOCK + _OFFSET, re.ASCII)
_TIMESTAMP: Final = re.compile(f"{_DAY}(?: {_CLOCK})?", re.ASCII)
_INSTANT: Final = re.compile(f"{_DAY} {_CLOCK}{_OFFSET}", re.ASCII)


def is_moment(type_name: str) -> bool:
    """Return whether :func:`number_of_text` parses texts of the DuckLake type."""
    return type_name == "date" or type_name in _TICKS


def number_of_text(text: str, type_name: str) -> int:
    """Return the number by which Arrow and the table's files represent a date or time.

    It is in days for a date, else in units of the type; since 1970, or for a time since midnight, in UTC if the text
    has an offset. Infinity is the largest number of the type, minus infinity the same below zero, as in DuckDB.

    Raises ValueError if the text is not one that DuckDB writes for the type.
    """
    is_time = type_name in ("time", "timetz", "time_ns")
    if text in ("infinity", "-infinity") and not is_time:
        largest = (1 << (31 if type_name == "date" else 63)) - 1
        return largest if text == "infinity" else -largest
    if type_name == "date":
        pattern = _DATE
    elif is_time:
        pattern = _ZONED_TIME if type_name == "timetz" else _TIME
    else:
        pattern = _INSTANT if type_name.startswith("timestamptz") else _TIMESTAMP
    match = pattern.fullmatch(text)
    if match is None:
        raise _malformed(text, type_name)
    parts = match.groupdict()
    days = 0 if is_time else _days(parts, text, type_name)
    if type_name == "date":
        return days
    ticks = _TICKS[type_name]
    clock, fraction = _clock(parts), f"{parts['fraction'] or '':0<9}"
    is_end = clock == DAY_SECONDS and int(fraction) == 0
    if clock >= DAY_SECONDS and not (is_time and is_end):
        raise _malformed(text, type_name)
    if int(fraction) % (10**9 // ticks):
        raise ValueError(f"{shown(text)} is finer than the type {type_name}")
    number = (days * DAY_SECONDS + clock - _offset(parts)) * ticks + int(fraction) // (10**9 // ticks)
    return number % (DAY_SECONDS * ticks) if type_name == "timetz" else number


def _days(parts: dict[str, str | None], text: str, type_name: str) -> int:
    """Return the days from 1970-01-01 to a date of the proleptic Gregorian calendar."""
    year, month, day = (int(parts[name] or 0) for name in ("year", "month", "day"))
    if parts["bc"]:
        year = 1 - year  # 1 BC is the year 0
    try:
        return days_of(year, month, day)
    except ValueError:
        raise _malformed(text, type_name) from None


def _clock(parts: dict[str, str | None]) -> int:
    return (int(parts["hour"] or 0) * 60 + int(parts["minute"] or 0)) * 60 + int(parts["second"] or 0)


def _offset(parts: dict[str, str | None]) -> int:
    """Return how many seconds the text's clock is before UTC."""
    seconds = (int(parts.get("hours") or 0) * 60 + int(parts.get("minutes") or 0)) * 60 + int(parts.get("seconds") or 0)
    return -seconds if parts.get("sign") == "-" else seconds


def _malformed(text: str, type_name: str) -> ValueError:
    return ValueError(f"{shown(text)} is not the text of a value of type {type_name}")
