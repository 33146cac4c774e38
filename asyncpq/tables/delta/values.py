"""Statistics of a Delta table's files, in terms of its columns' types.

PROTOCOL.md, "Per-file Statistics". A bound that is not understood is unknown.

Partition values of a Delta table's files: the texts of ``add`` actions as values of the columns' types.

PROTOCOL.md, "Partition Value Serialization". Spark, deltalake and DuckDB all take the text of a binary value as its
UTF-8 bytes, and so does this module: the escapes that the protocol and newer versions of deltalake write stay text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import ColumnBounds
from asyncpq.errors import CorruptFileError
from asyncpq.expressions.scalars import Scalar
from asyncpq.tables.delta.schema import Leaf

_NUM_RECORDS = re.compile(r'\{\s*"numRecords"\s*:\s*([0-9]{1,18})\s*[,}]')
_MILLISECOND = dt.timedelta(milliseconds=1)
_EXACT = decimal.Context(prec=100)
#: Digits that a JSON number keeps where a writer makes it from an 8-byte float, as deltalake does for decimals.
_FLOAT_DIGITS = 15
_FLOAT_ERROR = decimal.Decimal(2) ** -50
#: A string bound of so many characters may be the beginning of a longer value. (Spark's default; others keep more.)
_CUT_CHARACTERS = 32


def num_records(stats: str | pa.StructScalar | None) -> int | None:
    """Rows in the file, deleted ones included; None where unknown."""
    if isinstance(stats, str) and (match := _NUM_RECORDS.match(stats)) is not None:
        return int(match[1])  # the first key of most writers: the rest is parsed when somebody asks
    return _count(_at(_parsed(stats), ("numRecords",)))


class Statistics(Mapping[str, ColumnBounds]):
    """Bounds by dotted path, parsed when they are first looked at.

    Args:
        stats: the JSON text of an ``add`` action, or the struct that a checkpoint has in its place.
        leaves: of the columns that have statistics.
        has_deletes: the file has a deletion vector, so that its null counts may be outdated.
    """

    __slots__ = ("_bounds", "_has_deletes", "_leaves", "_stats")

    def __init__(self, stats: str | pa.StructScalar | None, leaves: Mapping[str, Leaf], has_deletes: bool) -> None:
        self._stats = stats
        self._leaves = leaves
        self._has_deletes = has_deletes
        self._bounds: dict[str, ColumnBounds | None] = {}

    def __getitem__(self, name: str) -> ColumnBounds:
        try:
            bounds = self._bounds[name]
        except KeyError:
            bounds = self._bounds[name] = self._decode(self._leaves[name])
        if bounds is None:
            raise KeyError(name)
        return bounds

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._leaves if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _decode(self, leaf: Leaf) -> ColumnBounds | None:
        self._stats = stats = _parsed(self._stats)
        low, high, nulls = (_at(stats, (key, *leaf.path)) for key in ("minValues", "maxValues", "nullCount"))
        nulls = _count(nulls)
        rows = _count(_at(stats, ("numRecords",)))
        all_null = rows is not None and nulls == rows > 0
        if self._has_deletes and not all_null and nulls != 0:
            nulls = None
        if all_null:
            return ColumnBounds(null_count=nulls, all_null=True)
        low, high = lower_bound(low, leaf), upper_bound(high, leaf)
        if low is None and high is None and nulls is None:
            return None
        return ColumnBounds(min=low, max=high, null_count=nulls)


def _parsed(stats: str | pa.StructScalar | dict[str, Any] | None) -> pa.StructScalar | dict[str, Any]:
    """Statistics to look into; an empty dict for what is not understood."""
    if isinstance(stats, (pa.StructScalar, dict)):
        return stats
    try:
        parsed = json.loads(stats, parse_float=decimal.Decimal) if stats else None
    except (ValueError, ArithmeticError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}


def _at(values: Any, path: tuple[str, ...]) -> Any:
    """A value inside of dicts or structs; None where there is none, or one that Python does not have."""
    try:
        for name in path:
            if not isinstance(values, (dict, pa.StructScalar)):
                return None
            values = values[name]
        return values.as_py() if isinstance(values, pa.Scalar) else values
    except (KeyError, ValueError, OverflowError):
        return None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def lower_bound(value: Any, leaf: Leaf) -> Scalar:
    """What no value of the column lies below, of what a ``minValues`` says; None where unknown."""
    return _bound(value, leaf, -1)


def upper_bound(value: Any, leaf: Leaf) -> Scalar:
    """What no value of the column lies above, of what a ``maxValues`` says; None where unknown."""
    return _bound(value, leaf, 1)


def _bound(value: Any, leaf: Leaf, side: int) -> Scalar:
    """``value`` in the column's type, moved outwards (``side`` -1 or 1) by as much as writers may have cut it."""
    kind = leaf.type
    try:
        if pa.types.is_string(kind):
            return _string_bound(value, side)
        if pa.types.is_boolean(kind):
            return value if isinstance(value, bool) else None
        if isinstance(value, bool):
            return None
        if pa.types.is_integer(kind):
            return value if isinstance(value, int) else None
        if pa.types.is_floating(kind):
            return _float_bound(value, side, leaf.was_float or pa.types.is_float32(kind))
        if pa.types.is_decimal(kind):
            return _decimal_bound(value, kind, side)
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(value) if isinstance(value, str) else _plain_date(value)
        if pa.types.is_timestamp(kind):
            return _time_bound(value, kind, side)
    except (ValueError, ArithmeticError):
        pass  # unknown
    return None


def _string_bound(value: Any, side: int) -> str | None:
    if not isinstance(value, str):
        return None
    value.encode()  # half a surrogate pair is no bound: ValueError
    if side < 0 or len(value) < _CUT_CHARACTERS:
        return value
    kept = value.rstrip("\U0010ffff")
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if after == 0xD800 else after)


def _float_bound(value: Any, side: int, is_single: bool) -> float | None:
    if not isinstance(value, (int, float, decimal.Decimal, str)):
        return None
    number = float(value)  # NaN and infinities may come as strings
    if math.isnan(number):
        return None
    if number == 0 and not is_single:
        return math.copysign(0.0, side)  # either zero may stand for both
    if not is_single or math.isinf(number):
        return number
    # the number is the short form of a 4-byte float: step over whatever that rounded
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return None
    (bits,) = struct.unpack("<i", struct.pack("<f", single))
    if single == 0:
        return side * 2.0**-149
    bits += side if single > 0 else -side
    (outer,) = struct.unpack("<f", struct.pack("<i", bits))
    return float(outer)


def _decimal_bound(value: Any, kind: pa.DataType, side: int) -> decimal.Decimal | None:
    if not isinstance(value, (int, decimal.Decimal, str)):
        return None
    number = decimal.Decimal(value)
    if not number.is_finite():
        return None
    if kind.precision > _FLOAT_DIGITS:
        number = _EXACT.add(number, _EXACT.multiply(side * abs(number), _FLOAT_ERROR))
    rounding = decimal.ROUND_CEILING if side > 0 else decimal.ROUND_FLOOR
    number = number.quantize(decimal.Decimal((0, (1,), -kind.scale)), rounding, _EXACT)
    largest = decimal.Decimal((0, (9,) * kind.precision, -kind.scale))
    return max(min(number, largest), -largest)


def _plain_date(value: Any) -> dt.date | None:
    return value if type(value) is dt.date else None


def _time(value: dt.datetime, kind: pa.DataType) -> dt.datetime:
    """In UTC where the type has a zone; a time without one is taken as UTC."""
    if kind.tz is None:
        if value.tzinfo is not None:
            raise ValueError(f"{value} has a zone")
        return value
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _time_bound(value: Any, kind: pa.DataType, side: int) -> dt.datetime | None:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    elif type(value) is dt.date:
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime) or (value.tzinfo is None and kind.tz is not None):
        return None
    # cut to milliseconds: of times before 1970 either way
    return _time(value.replace(fold=0), kind) + side * _MILLISECOND


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
    return _date(text) if pa.types.is_date(kind) else _partition_time(text, kind)


def _date(text: str) -> dt.date | pa.Scalar:
    """A time of day behind the date is left out, as Spark does."""
    match = _ONLY_DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return _python(pa.scalar(_days(match), pa.date32()))


def _partition_time(text: str, kind: pa.DataType) -> dt.datetime | pa.Scalar:
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
