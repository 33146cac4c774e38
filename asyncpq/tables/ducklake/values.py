"""DuckLake's types in Arrow, and the values and bounds that its catalog stores as text.

Types are those of the table's files: uuid and json as Arrow extensions, 128-bit integers as doubles, intervals as 12
bytes. Spec: "Data Types"; "ducklake_file_column_stats" for the text of bounds.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa

from asyncpq.datasets.model import ColumnBounds
from asyncpq.expressions.scalars import Scalar, Timestamp

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "int128": pa.float64(),  # as in the files
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "uint128": pa.float64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "time": pa.time64("us"),
    "timetz": pa.time64("us"),
    "time_ns": pa.time64("ns"),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("us"),  # Parquet has no seconds
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "interval": pa.binary(12),
    "varchar": pa.string(),
    "blob": pa.binary(),
    "uuid": pa.uuid(),
    "json": pa.json_(pa.string()),
    "geometry": pa.binary(),  # WKB
}
#: Units of timestamps, by DuckLake type. Files that were added to a lake may have finer units.
RESOLUTIONS = {
    "timestamp_s": "s",
    "timestamp_ms": "ms",
    "timestamp": "us",
    "timestamp_us": "us",
    "timestamptz": "us",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?: (\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?)?([+-]\d{2}(?::\d{2}(?::\d{2})?)?)?", re.ASCII
)
_OFFSET = r"[+-]\d{2}(?::\d{2}(?::\d{2})?)?"
_TIME = re.compile(rf"(\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}})?)({_OFFSET})?", re.ASCII)
_BLOB = re.compile(r"([^\\]|\\x[0-9A-Fa-f]{2})*", re.DOTALL)
_ESCAPE = re.compile(rb"\\x(..)", re.DOTALL)
#: For each unit, the part of an interval it belongs to and its factor. PostgreSQL writes "mon".
_INTERVAL_UNITS = {
    "year": ("months", 12),
    "month": ("months", 1),
    "mon": ("months", 1),
    "week": ("days", 7),
    "day": ("days", 1),
    "hour": ("micros", 3_600_000_000),
    "minute": ("micros", 60_000_000),
    "second": ("micros", 1_000_000),
    "millisecond": ("micros", 1000),
    "microsecond": ("micros", 1),
}
_INTERVAL = re.compile(
    r"(?P<words>(?:[+-]?\d+ [a-z]+ ?)*)"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d{2}):(?P<seconds>\d{2})(?:\.(?P<fraction>\d{1,6}))?)?",
    re.ASCII,
)
_FLOAT_WORDS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def arrow_type(name: str) -> pa.DataType | None:
    """The Arrow type of a DuckLake type without children; None for a type that is not read."""
    match = _DECIMAL.fullmatch(name)
    if match is not None:
        return pa.decimal128(int(match[1]), int(match[2]))
    return _PLAIN.get(name)


def value_of_text(text: str, type_name: str) -> Scalar:
    """Parse a value of the catalog.

    Raises ValueError if DuckDB does not write the type like this, or Python has no such value (infinity, BC).
    """
    if type_name in ("varchar", "json"):
        return text
    parse = _PARSERS.get("decimal" if type_name.startswith("decimal(") else type_name)
    if parse is None:
        raise ValueError(f"{type_name} values are not read from text")
    return parse(text)


def bounds_of_statistics(
    type_name: str,
    *,
    min_text: str | None,
    max_text: str | None,
    value_count: int | None,
    null_count: int | None,
    contains_nan: bool | None,
    record_count: int,
) -> ColumnBounds | None:
    """Bounds from a row of ``ducklake_file_column_stats``; None where the type has no bounds.

    A text that cannot be parsed is no bound. For types without text bounds the whole row is ignored: DuckDB writes a
    null count of 0 for them in any case.
    """
    if type_name not in _BOUNDED and not type_name.startswith("decimal("):
        return None
    low, high = _bound(min_text, type_name), _bound(max_text, type_name)
    is_float = type_name in ("float32", "float64")
    if type_name in _COARSE:
        low, high = _whole(low, _COARSE[type_name], 0), _whole(high, _COARSE[type_name], 1)
    if is_float:
        low, high = _widened(low, min), _widened(high, max)
    # value_count excludes nulls (1.0) or includes them (some writers); otherwise the counts cannot be trusted
    counted = null_count is not None and (value_count or 0) + null_count == record_count
    if null_count == 0:
        counted = value_count == record_count
    return ColumnBounds(
        min=low,
        max=high,
        null_count=null_count if counted else None,
        all_null=counted and record_count > 0 and null_count == record_count,
        may_be_nan=is_float and contains_nan is not False,
    )


def _bound(text: str | None, type_name: str) -> Scalar:
    if text is None:
        return None
    try:
        value = value_of_text(text, type_name)
    except ValueError:
        return None
    return None if isinstance(value, float) and value != value else value


def _whole(value: Scalar, micros: int, up: int) -> Scalar:
    """Round a bound of timestamps outwards to the coarser unit in which they are read."""
    if not isinstance(value, dt.datetime):
        return None
    beyond = value.microsecond % micros
    if not beyond:
        return value
    try:
        return value + dt.timedelta(microseconds=up * micros - beyond)
    except OverflowError:
        return None


def _widened(value: Scalar, choose: Callable[[float, float], float]) -> float | None:
    """Widen the bound of a float.

    The text may come from a time when the column was FLOAT and then means that float: the double 0.1 is less than the
    float 0.1. Zero has no sign in statistics.
    """
    if not isinstance(value, float):
        return None
    if value == 0:
        return -0.0 if choose is min else 0.0
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return value
    return choose(value, single)


def _boolean(text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise ValueError(f"not a boolean: {text!r}")
    return text in ("true", "1")


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"not an integer: {text!r}")
    return int(text)


def _float(text: str) -> float:
    if text in _FLOAT_WORDS:
        return _FLOAT_WORDS[text]
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number: {text!r}")
    return float(text)


def _single(text: str) -> float:
    (value,) = struct.unpack("<f", struct.pack("<f", _float(text)))
    return float(value)


def _decimal(text: str) -> Decimal:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a decimal: {text!r}")
    return Decimal(text)


def _blob(text: str) -> bytes:
    r"""Parse bytes: those that are not printable ASCII are written as ``\xAA``."""
    if not text.isascii() or _BLOB.fullmatch(text) is None:
        raise ValueError(f"not a blob: {text!r}")
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())


def _interval(text: str) -> bytes:
    """Parse an interval into Parquet's form: months, days and milliseconds, none of them negative."""
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an interval: {text!r}")
    counts = {"months": 0, "days": 0, "micros": 0}
    words = match["words"].split()
    for count, unit in zip(words[::2], words[1::2], strict=True):
        part, factor = _INTERVAL_UNITS.get(unit.removesuffix("s"), (None, 0))
        if part is None:
            raise ValueError(f"not an interval: {text!r}")
        counts[part] += int(count) * factor
    if match["hours"] is not None:
        seconds = (int(match["hours"]) * 60 + int(match["minutes"])) * 60 + int(match["seconds"])
        clock = seconds * 1_000_000 + int(f"{match['fraction'] or '':0<6}")
        counts["micros"] += -clock if match["sign"] == "-" else clock
    try:
        if counts["micros"] % 1000:
            raise ValueError(f"Parquet holds no microseconds of intervals: {text!r}")
        return struct.pack("<III", counts["months"], counts["days"], counts["micros"] // 1000)
    except struct.error:
        raise ValueError(f"Parquet holds no such interval: {text!r}") from None


def _date(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def _time(text: str) -> dt.time:
    match = _TIME.fullmatch(text)
    if match is None or match[2] is not None:
        raise ValueError(f"not a time of day: {text!r}")
    return _clock(match[1])


def _time_in_utc(text: str) -> dt.time:
    match = _TIME.fullmatch(text)
    if match is None or match[2] is None:
        raise ValueError(f"not a time of day with a zone: {text!r}")
    return (dt.datetime.combine(_EPOCH_UTC, _clock(match[1])) - _offset(match[2])).time()


def _clock(text: str) -> dt.time:
    seconds, _, fraction = text.partition(".")
    return dt.time.fromisoformat(f"{seconds}.{fraction:0<6}")


def _wall_clock(text: str) -> dt.datetime:
    point, nanoseconds, zone = _point(text)
    if zone is not None or nanoseconds % 1000:
        raise ValueError(f"not a timestamp of microseconds: {text!r}")
    return point.replace(microsecond=nanoseconds // 1000)


def _instant(text: str) -> dt.datetime:
    point, nanoseconds, zone = _point(text)
    if zone is None or nanoseconds % 1000:
        raise ValueError(f"not a timestamp with a zone: {text!r}")
    return (point.replace(microsecond=nanoseconds // 1000, tzinfo=dt.UTC) - zone).astimezone(dt.UTC)


def _nanoseconds(text: str) -> Timestamp:
    point, nanoseconds, zone = _point(text)
    if zone is not None:
        raise ValueError(f"not a timestamp without a zone: {text!r}")
    seconds = (point.replace(tzinfo=dt.UTC) - _EPOCH_UTC) // dt.timedelta(seconds=1)
    return Timestamp(seconds * 1_000_000_000 + nanoseconds)


def _point(text: str) -> tuple[dt.datetime, int, dt.timedelta | None]:
    """Parse a timestamp into whole seconds, nanoseconds, and the offset of its zone from UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"not a timestamp: {text!r}")
    day, clock, fraction, zone = match.groups()
    point = dt.datetime.fromisoformat(f"{day} {clock or '00:00:00'}")
    return point, int(f"{fraction or '':0<9}"), None if zone is None else _offset(zone)


def _offset(zone: str) -> dt.timedelta:
    hours, minutes, seconds = (int(part) for part in f"{zone[1:]}:00:00".split(":")[:3])
    ahead = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return -ahead if zone[0] == "-" else ahead


_PARSERS: dict[str, Callable[[str], Scalar]] = {
    "boolean": _boolean,
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), _integer),
    "int128": _float,
    "uint128": _float,
    "float32": _single,
    "float64": _float,
    "decimal": _decimal,
    "date": _date,
    "time": _time,
    "timetz": _time_in_utc,
    **dict.fromkeys(("timestamp", "timestamp_us", "timestamp_s", "timestamp_ms"), _wall_clock),
    "timestamp_ns": _nanoseconds,
    "timestamptz": _instant,
    "uuid": uuid.UUID,
    "blob": _blob,
    "interval": _interval,
}
_COARSE = {"timestamp_s": 1_000_000, "timestamp_ms": 1000}
_BOUNDED = frozenset(_PARSERS) - {"int128", "uint128", "decimal", "blob", "timetz", "interval"} | {"varchar"}


def snapshot_time(value: str | dt.datetime | None) -> dt.datetime | None:
    """A ``snapshot_time`` in UTC. Databases without timestamps hold text.

    Raises ValueError if the text is not a timestamp with a zone.
    """
    if value is None or isinstance(value, dt.datetime):
        return value if value is None or value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return _instant(value)
