"""A DuckLake table's columns and types in Arrow, and the values and bounds that its catalog stores as text.

Types are those of the table's files: uuid and json as Arrow extensions, intervals as 12 bytes. 128-bit integers, which
files hold as doubles and catalogs as they are, have the type that DuckDB gives them in Arrow: decimals of 38 digits.
Variants are structs of the bytes of Parquet's variant encoding.
Spec: "Data Types"; "ducklake_file_column_stats" for the text of bounds.

Files match columns by field id. Files that were added to a DuckLake as they are match by name, through a mapping:
their field ids are not the table's. Spec: ``ducklake_column_mapping``, ``ducklake_name_mapping``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import struct
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import OTHER_COLUMNS, VARIANT_PARTS, VARIANT_TYPE, ColumnBounds, ColumnPaths, TableField
from asyncpq.datasets.partitioning import HIVE_NULL
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError, shown
from asyncpq.expressions.scalars import Scalar, Timestamp, days_of, exact_decimal, widened_decimal
from asyncpq.expressions.tree import MAX_DIGITS
from asyncpq.parquet.calendars import DAY_SECONDS
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url

Row: TypeAlias = Mapping[str, Any]  # of a table of the catalog, keyed by column

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "int128": pa.decimal128(38, 0),  # as DuckDB's Arrow; the longest have 39 digits
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "uint128": pa.decimal128(38, 0),
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
    "null": pa.null(),
    "varchar": pa.string(),
    "blob": pa.binary(),
    "uuid": pa.uuid(),
    "json": pa.json_(pa.string()),
    "geometry": pa.binary(),  # WKB
}
#: Units of timestamps, by DuckLake type. Files that were added to a lake may have finer units.
RESOLUTIONS = {"timestamp_s": "s", "timestamp_ms": "ms", "timestamp": "us", "timestamp_us": "us", "timestamptz": "us"}
#: Types of dates and times that have values of Python.
_TIMES = frozenset({"date", "time", "timetz", "timestamp_ns", *RESOLUTIONS})
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_FLOAT = rf"-?(?i:inf(?:inity)?)|(?i:nan)|{_NUMBER}"  # PostgreSQL writes Infinity and NaN
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
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
_EPOCH = dt.datetime(1970, 1, 1)


def arrow_type(name: str) -> pa.DataType | None:
    """Return the Arrow type of a DuckLake type without children; None for a type that asyncpq does not support."""
    digits = _digits(name)
    return _PLAIN.get(name) if digits is None else pa.decimal128(*digits)


def _digits(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None for another type, or for digits that no decimal has."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return (precision, scale) if 0 < precision <= MAX_DIGITS and scale <= precision else None


def value_of_text(text: str, type_name: str) -> Scalar:
    """Parse the text of a value in the catalog.

    Raises ValueError if the text is not in DuckDB's format for the type, or Python cannot represent the value
    (infinity, BC).
    """
    if type_name in ("varchar", "json"):
        return text
    if type_name in _TIMES:
        return _moment(text, type_name)
    pattern, parse = _PARSERS.get("decimal" if type_name.startswith("decimal(") else type_name, (None, str))
    if pattern is None or pattern.fullmatch(text) is None:
        raise ValueError(f"{shown(text)} is not the text of a value of type {type_name}")
    try:
        value = parse(text)
        digits = _digits(type_name)
        return exact_decimal(value, *digits) if digits is not None and isinstance(value, Decimal) else value
    except ArithmeticError as error:
        raise ValueError(f"{shown(text)} is not a value of type {type_name}") from error


def _moment(text: str, type_name: str) -> Scalar:
    """Parse a date or time. Timestamps in seconds or milliseconds may be finer: files that were added have such."""
    number = number_of_text(text, "timestamp" if type_name in _COARSE else type_name)
    if type_name == "timestamp_ns":
        return Timestamp(number)
    try:
        if type_name == "date":
            return _EPOCH.date() + dt.timedelta(number)
        moment = _EPOCH + dt.timedelta(microseconds=number)
    except OverflowError:
        raise ValueError(f"Python cannot represent the time {shown(text)}") from None
    if type_name == "timestamptz":
        return moment.replace(tzinfo=dt.UTC)
    if type_name not in ("time", "timetz"):
        return moment
    if number == DAY_SECONDS * 10**6:
        raise ValueError("Python has no time 24:00:00")
    return moment.time()


def arrow_value(text: str, type_name: str) -> Any:
    """Parse the text of a value into what pyarrow converts to the type of :func:`arrow_type`. Dates and times are
    numbers, as in the table's files, and can be any that Arrow holds.

    Raises ValueError if the text is not in DuckDB's format for the type.
    """
    return number_of_text(text, type_name) if is_moment(type_name) else value_of_text(text, type_name)


def bounds_of_statistics(type_name: str, row: Mapping[str, Any], num_rows: int) -> ColumnBounds | None:
    """Decode a file's bounds from a row of ``ducklake_file_column_stats``; None if the type has no usable bounds.

    A bound whose text cannot be parsed is unknown. For types without text bounds the whole row is ignored: DuckDB
    always writes a null count of 0 for them.
    """
    if type_name not in _BOUNDED and not type_name.startswith("decimal("):
        return None
    low, high = _bound(row["min_value"], type_name), _bound(row["max_value"], type_name)
    is_float = type_name in ("float32", "float64")
    if type_name in _COARSE:
        low, high = _whole(low, _COARSE[type_name], 0), _whole(high, _COARSE[type_name], 1)
    elif type_name in ("timestamp", "timestamptz"):
        low, high = _uncut(low, -1), _uncut(high, 1)
    if (digits := _digits(type_name)) is not None:  # those of a Delta log may be rounded
        low, high = (
            widened_decimal(bound, *digits, side) if isinstance(bound, Decimal) else None
            for bound, side in ((low, -1), (high, 1))
        )
    if is_float:
        low, high = _widened(low, min), _widened(high, max)
    # value_count excludes nulls (1.0) or includes them (some writers); otherwise the counts cannot be trusted
    value_count, null_count, contains_nan = row["value_count"], row["null_count"], row.get("contains_nan")
    counted = null_count is not None and (value_count or 0) + null_count == num_rows
    if null_count == 0:
        counted = value_count == num_rows
    # DuckDB writes a size. delta2ducklake, without one, writes that there is no NaN, which a Delta log does not tell.
    has_no_nan = contains_nan is not None and not contains_nan and row.get("column_size_bytes") is not None
    return ColumnBounds(
        min=low,
        max=high,
        null_count=null_count if counted else None,
        all_null=counted and num_rows > 0 and null_count == num_rows,
        may_be_nan=is_float and not has_no_nan,
    )


def _bound(text: str | None, type_name: str) -> Scalar:
    if text is None:
        return None
    try:
        value = value_of_text(text, type_name)
    except ValueError:
        return None
    return None if isinstance(value, float) and value != value else value


def _uncut(bound: Scalar, side: int) -> Scalar:
    """Move a bound of whole milliseconds outwards by those that it may lack: it may be one of a Delta log, which
    delta2ducklake 0.2.1 copies, and whose writers cut times to milliseconds, those before 1970 in either direction.

    ``side``: -1 for a lower bound, 1 for an upper one.
    """
    if not isinstance(bound, dt.datetime) or bound.microsecond % 1000:
        return bound
    if side < 0 and bound.replace(tzinfo=None) > _EPOCH:
        return bound
    try:
        return bound + dt.timedelta(microseconds=side * 999)
    except OverflowError:
        return None


def _whole(value: Scalar, micros: int, up: int) -> Scalar:
    """Round the bound ``value`` of timestamps to whole units of ``micros`` microseconds, in which the column is
    read: up if ``up`` is 1, down if it is 0. None if the bound is unknown or leaves Python's range."""
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
    """Widen the bound of a float column with ``choose``: ``min`` for a lower bound, ``max`` for an upper one. None if
    the bound is not a float.

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


def _wide_integer(text: str) -> Decimal:
    """Parse a 128-bit integer. Raises ValueError if no decimal holds it."""
    value = Decimal(text)
    if value.adjusted() >= MAX_DIGITS:
        raise ValueError(f"{shown(text)} has more than {MAX_DIGITS} digits, the most of a decimal")
    return value


def _single(text: str) -> float:
    (value,) = struct.unpack("<f", struct.pack("<f", float(text)))
    return float(value)


def _blob(text: str) -> bytes:
    r"""Parse the text of a blob, in which bytes that are not printable ASCII are written as ``\xAA``."""
    return _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())


def _interval(text: str) -> bytes:
    """Parse an interval into Parquet's form: months, days and milliseconds, none of them negative."""
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{shown(text)} is not an interval")
    counts = {"months": 0, "days": 0, "micros": 0}
    words = match["words"].split()
    for count, unit in zip(words[::2], words[1::2], strict=True):
        part, factor = _INTERVAL_UNITS.get(unit.removesuffix("s"), (None, 0))
        if part is None:
            raise ValueError(f"{shown(text)} is not an interval: unknown unit {shown(unit)}")
        counts[part] += int(count) * factor
    if match["hours"] is not None:
        seconds = (int(match["hours"]) * 60 + int(match["minutes"])) * 60 + int(match["seconds"])
        clock = seconds * 1_000_000 + int(f"{match['fraction'] or '':0<6}")
        counts["micros"] += -clock if match["sign"] == "-" else clock
    try:
        if counts["micros"] % 1000:
            raise ValueError(f"Parquet intervals have milliseconds, but {shown(text)} has microseconds")
        return struct.pack("<III", counts["months"], counts["days"], counts["micros"] // 1000)
    except struct.error:
        message = f"Parquet cannot represent the interval {shown(text)}: a part is negative or too large"
        raise ValueError(message) from None


# -- dates and times -------------------------------------------------------------------------------
# Python has no years before 1 and after 9999, no infinity, no time 24:00:00 and no nanoseconds; Arrow and DuckDB's
# files have all of them. DuckDB writes ``0044-03-15 (BC) 01:02:03`` for the year -43.

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


# -- parsers ---------------------------------------------------------------------------------------


def _parser(pattern: str, parse: Callable[[str], Scalar]) -> tuple[re.Pattern[str], Callable[[str], Scalar]]:
    return re.compile(pattern, re.ASCII | re.DOTALL), parse


#: For each other type, the texts that DuckDB writes, and their parser.
_PARSERS = {
    "boolean": _parser("true|false|1|0", _BOOLEANS.__getitem__),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), _parser(r"-?\d+", int)),
    **dict.fromkeys(("int128", "uint128"), _parser(r"-?\d+", _wide_integer)),
    "float64": _parser(_FLOAT, float),
    "float32": _parser(_FLOAT, _single),
    "decimal": _parser(_NUMBER, Decimal),
    "uuid": _parser(".*", uuid.UUID),
    "blob": _parser(r"(?:[\x00-\x5b\x5d-\x7f]|\\x[0-9A-Fa-f]{2})*", _blob),
    "interval": _parser(".*", _interval),
}
_COARSE = {"timestamp_s": 1_000_000, "timestamp_ms": 1000}
_BOUNDED = {*_PARSERS, *_TIMES, "varchar"} - {"int128", "uint128", "decimal", "blob", "timetz", "interval"}


def snapshot_time(value: str | dt.datetime | None) -> dt.datetime | None:
    """Return a ``snapshot_time`` with its zone; None is unknown. Databases without timestamps store text. Without a
    zone it is in UTC, as writers other than DuckDB store it.

    Raises ValueError if the text is not a timestamp.
    """
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    return value.replace(tzinfo=dt.UTC) if value is not None and value.tzinfo is None else value


# -- columns ---------------------------------------------------------------------------------------

_Children: TypeAlias = Mapping[int | None, Sequence[Row]]  # by parent id, in column order

_NESTED = ("struct", "list", "map")
_NO_NAME = ("\ud800",)  # not UTF-8, so no field of a file has it


@dataclass(frozen=True, slots=True)
class DuckLakeColumn:
    """A column, or a part of a nested column."""

    field: TableField
    type_name: str  # DuckLake's name of the type
    children: tuple[DuckLakeColumn, ...]


def columns_of_rows(rows: Sequence[Row], table: str) -> tuple[DuckLakeColumn, ...]:
    """Decode a snapshot's rows of ``ducklake_column``.

    A column with an unsupported type or default is unreadable: its error names ``table``. Raises CorruptFileError if
    two rows have one id, UnsupportedFeatureError if columns are nested too deeply.
    """
    # each part once: two columns of one id would both have all of its parts, and their parts again
    if len({row["column_id"] for row in rows}) < len(rows):
        raise CorruptFileError(f"the catalog has two columns of one id in DuckLake table {table}")
    children = _by_parent(rows)
    try:
        return tuple(_column(row, children, table) for row in children.get(None, ()))
    except RecursionError:
        raise UnsupportedFeatureError(f"DuckLake table {table}: columns are nested too deeply") from None


def leaves_of(columns: Sequence[Row], ever: Sequence[Row]) -> dict[str, Row]:
    """Return the rows of the primitive columns and struct fields that can have bounds, keyed by dotted path.

    Left out are text columns that once had another type, whose bounds may follow that type's order, and paths that name
    two columns. ``columns``: rows of ``ducklake_column`` for the snapshot; ``ever``: those for all snapshots.
    """
    retyped = {row["column_id"] for row in ever if row["column_type"] != "varchar"}
    leaves = list(_leaf_paths(_by_parent(columns), None, "", ColumnPaths()))
    times = Counter(path for path, _ in leaves)
    return {
        path: row
        for path, row in leaves
        if times[path] == 1 and not (row["column_type"] == "varchar" and row["column_id"] in retyped)
    }


def _leaf_paths(children: _Children, parent: int | None, above: str, paths: ColumnPaths) -> Iterator[tuple[str, Row]]:
    for row in children.get(parent, ()):
        path = paths.join(above, str(row["column_name"]))
        if row["column_type"] == "struct":
            yield from _leaf_paths(children, row["column_id"], path, paths)
        elif row["column_type"] not in _NESTED:
            yield path, row


def _by_parent(columns: Sequence[Row]) -> _Children:
    children: dict[int | None, list[Row]] = {}
    for row in sorted(columns, key=lambda row: row["column_order"]):
        children.setdefault(row["parent_column"], []).append(row)
    return children


def _column(row: Row, below: _Children, table: str) -> DuckLakeColumn:
    name, type_name = str(row["column_name"]), str(row["column_type"])
    children = tuple(_column(child, below, table) for child in below.get(row["column_id"], ()))
    if type_name == "variant" and not children:
        children = tuple(DuckLakeColumn(part, "blob", ()) for part in VARIANT_PARTS)
    fields = tuple(child.field for child in children)
    type_, default, unreadable = _type(type_name, fields), None, None
    if type_ is None:
        message = f"DuckLake table {table}: asyncpq does not support columns of type {type_name}"
        unreadable = UnsupportedFeatureError(message, column=name, hint=OTHER_COLUMNS)
    else:
        try:
            default = _default(row, type_)
        except (ValueError, pa.ArrowException) as error:
            message = f"DuckLake table {table}: asyncpq cannot read an initial default of type {type_name}: {error}"
            unreadable = UnsupportedFeatureError(message, column=name, hint=OTHER_COLUMNS)
    field = TableField(
        name=name,
        type=pa.null() if type_ is None else type_,
        nullable=bool(row["nulls_allowed"]),
        field_id=row["column_id"],
        default=default,
        children=() if type_ is None else fields,
        is_variant=type_ is VARIANT_TYPE,
        unreadable=unreadable,
    )
    return DuckLakeColumn(field, type_name, children)


def _type(name: str, children: tuple[TableField, ...]) -> pa.DataType | None:
    if name == "variant" and children == VARIANT_PARTS:
        return VARIANT_TYPE
    parts = [pa.field(child.name, child.type, child.nullable) for child in children]
    if name == "struct" and parts:
        return pa.struct(parts)
    if name == "list" and len(parts) == 1:
        return pa.list_(parts[0])
    if name == "map" and len(parts) == 2:
        return pa.map_(parts[0].with_nullable(False), parts[1])
    return arrow_type(name) if not children else None


def _default(row: Row, type_: pa.DataType) -> pa.Scalar | None:
    """Parse the ``initial_default`` of a row of ``ducklake_column``: the value in files without the column. None is
    null. Raises ValueError or pyarrow.ArrowException if it is no value of the type."""
    text = row["initial_default"]
    return None if text is None else typed(str(text), str(row["column_type"]), type_)


def typed(text: str, type_name: str, type_: pa.DataType) -> pa.Scalar:
    """Convert a text in the catalog or in a path to a value of DuckLake's type ``type_name``.

    Raises ValueError or pyarrow.ArrowException if the text is not a value of the type.
    """
    try:
        return pa.scalar(arrow_value(text, type_name), type_)
    except OverflowError as error:
        raise ValueError(f"{shown(text)} is not a value of type {type_name}") from error


def mapped_fields(
    fields: Sequence[TableField], names: Sequence[Row], types: Mapping[int, str], url: str
) -> tuple[tuple[TableField, ...], dict[str, Any]]:
    """Return two items for a file that was added with ``ducklake_add_data_files``: the table's columns, with their
    names in this file; and the partition values in the directories ``key=value`` of ``url``, keyed by column.

    ``names``: rows of ``ducklake_name_mapping`` for the file. ``types``: DuckLake's type names keyed by column id.
    """
    by_target = {row["target_field_id"]: row for row in names}
    partition: dict[str, Any] = {}
    for field in fields:
        row = by_target.get(field.field_id)
        if row is not None and row.get("is_partition"):
            text = _path_value(url, str(row["source_name"]))
            try:
                partition[field.name] = None if text is None else typed(text, types[row["target_field_id"]], field.type)
            except (ValueError, pa.ArrowException):
                raise UnsupportedFeatureError(
                    f"the file's path has {shown(str(text))}, which is not a value of type {field.type}",
                    url=safe_url(url),
                    column=field.name,
                ) from None
    return tuple(_mapped(field, by_target, types) for field in fields), partition


def _mapped(field: TableField, by_target: Mapping[int, Row], types: Mapping[int, str]) -> TableField:
    row = None if field.field_id is None else by_target.get(field.field_id)
    return dataclasses.replace(
        field,
        field_id=None,
        names=_NO_NAME if row is None else (str(row["source_name"]),),
        children=field.children
        if field.is_variant
        else tuple(_mapped(child, by_target, types) for child in field.children),
        resolution=None if field.field_id is None else RESOLUTIONS.get(types[field.field_id]),
    )


def _path_value(url: str, key: str) -> str | None:
    values = {part.partition("=")[2] for part in url.split("/")[:-1] if part.partition("=")[:2] == (key, "=")}
    if len(values) != 1:
        raise UnsupportedFeatureError(
            f"the file's path must have exactly one value of the partition column {key!r}", url=safe_url(url)
        )
    (text,) = values
    return None if text == HIVE_NULL else unquote(text)
