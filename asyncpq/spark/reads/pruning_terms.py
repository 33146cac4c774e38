"""Translate conditions with Spark's semantics into asyncpq's predicates for pruning.

The predicate is true for every row for which Spark's condition is, and perhaps for others. Spark treats NaN as equal to
itself and greater than all, casts literals and columns to a common type, and compares some strings by a collation.
Conditions that asyncpq cannot express do not prune.

Float comparisons are negated, so that they keep NaN. Dates before 1582 and times before 1900 in a condition do not
prune, since files may use the old calendar; neither do casts, collations and functions whose result is uncertain.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  # as PySpark's documentation calls it

from asyncpq import Expression
from asyncpq.engine.foreign_conditions import ForeignColumn, ForeignCondition, ForeignTest
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY, FIRST_SURE_DAY, FIRST_SURE_TIME, ReadConf

#: Instants by wall-clock time of the session's zone.
Instants = Mapping[dt.datetime, dt.datetime]

_MOST_DIGITS: Final = 38
_BITS: Final[dict[type[T.DataType], int]] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_FLOATS: Final = frozenset({pa.float32(), pa.float64()})
_CHAR: Final = re.compile(r"(?<!var)char\(")  # not VARCHAR
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)


class LakeColumn(NamedTuple):
    """A column, or a field inside of structs, with its types in Spark and in asyncpq."""

    name: str  # in asyncpq's predicates
    dtype: T.DataType  # Spark's type
    stored: pa.DataType  # asyncpq's type; for dictionaries the type of their values


class LakeColumns:
    """Finds columns by name with Spark's case sensitivity. ``struct`` and ``schema`` are the dataset's columns in Spark
    and in Arrow.

    ``by_fields``: a dot always precedes the name of a field, as in Spark; otherwise a column may be named "a.b".
    """

    def __init__(
        self, struct: T.StructType, schema: pa.Schema | None, conf: ReadConf, *, by_fields: bool = False
    ) -> None:
        self.struct = struct
        self.conf = conf
        self._by_fields = by_fields
        self._schema = pa.schema([]) if schema is None else schema
        self._tops: dict[str, list[int]] = {}
        for place, field in enumerate(struct.fields):
            self._tops.setdefault(conf.key(field.name), []).append(place)

    def split(self, path: str) -> tuple[int | None, list[str]]:
        """Split a dotted path. Return the position of its top-level column, and the names of the fields inside. The
        position is None if no column matches, or several do.

        A column of that very name comes first. If no column has the rest of the path, the longest name is taken.
        """
        found = self._matching(path)
        if len(found) != 1:
            return None, []
        return found[0]

    def knows(self, path: str) -> bool:
        """Return whether the path's top-level column matches at least one column of the dataset."""
        return bool(self._matching(path))

    def _matching(self, path: str) -> list[tuple[int, list[str]]]:
        steps = path.split(".")
        sizes = [1] if self._by_fields else range(len(steps), 0, -1)  # in names of the top-level column
        by_top = [
            [(place, steps[size:]) for place in self._tops.get(self.conf.key(".".join(steps[:size])), [])]
            for size in sizes
        ]
        tops = [found for found in by_top if found]
        if not tops:
            return []
        if self._by_fields or tops[0][0][1] == []:
            return tops[0]
        whole = [
            (place, names)
            for found in tops
            for place, rest in found
            for names in self._names(self.struct.fields[place].dataType, rest)
        ]
        return whole or tops[0]

    def _names(self, dtype: T.DataType, steps: list[str]) -> Iterator[list[str]]:
        """Yield the names of the fields on each way from ``dtype`` along ``steps``, which names with dots join."""
        if not steps:
            yield []
        for size in range(1, len(steps) + 1):
            name = ".".join(steps[:size])
            for field in self._inside(dtype, name):
                for names in self._names(field.dataType, steps[size:]):
                    yield [name, *names]

    def _inside(self, dtype: Any, part: str) -> list[Any]:
        """Return the fields named ``part`` of a Spark or Arrow struct; empty for types that are not structs."""
        fields = dtype if isinstance(dtype, (T.StructType, pa.StructType)) else []
        return [field for field in fields if self.conf.key(field.name) == self.conf.key(part)]

    def dtype(self, path: str) -> T.DataType | None:
        """Return Spark's type of a column or field; None if the column or field does not exist."""
        place, parts = self.split(path)
        dtype = None if place is None else self.struct.fields[place].dataType
        for part in parts:
            fields = self._inside(dtype, part)
            dtype = fields[0].dataType if fields else None
        return dtype

    def find(self, path: str) -> LakeColumn | None:
        """Return the column or field that a dotted path names. None if no column or several columns match, or if
        comparisons of the column's type cannot prune."""
        place, parts = self.split(path)
        if place is None:
            return None
        field, arrow = self.struct.fields[place], self._schema.field(place)
        name, dtype, stored = arrow.name, field.dataType, arrow.type
        if _CHAR.search((field.metadata or {}).get(CHAR_VARCHAR_KEY, "")):
            return None  # Spark pads CHAR with blanks
        for part in parts:
            inner, own = self._inside(dtype, part), self._inside(stored, part)
            if len(inner) != 1 or len(own) != 1:
                return None
            name, dtype, stored = f"{name}.{own[0].name}", inner[0].dataType, own[0].type
        if parts and self._schema.get_field_index(name) >= 0:
            return None  # another column has this exact name
        if isinstance(stored, pa.DictionaryType):
            stored = stored.value_type
        return LakeColumn(name, dtype, stored) if _is_by_bytes(dtype) else None


def _is_by_bytes(dtype: T.DataType) -> bool:
    """Return whether Spark compares values of the type without a collation; False only for strings with a collation."""
    return not isinstance(dtype, T.StringType) or bool(dtype.isUTF8BinaryCollation())


def pruning_terms(
    condition: Expression, columns: LakeColumns, schema: pa.Schema, instants: Instants
) -> Expression | None:
    """Return the predicate for pruning by a condition with Spark's semantics; None if all rows may match. Parts of
    the condition that are not translated, or that have a wall-clock time missing in ``instants``, do not prune."""

    def column_of(test: ForeignTest) -> ForeignColumn | None:
        column = columns.find(test.columns[0])
        if column is None or isinstance(column.dtype, T.StructType):
            return None
        is_list, element = False, column
        if isinstance(column.dtype, T.ArrayType) and hasattr(column.stored, "value_type"):
            is_list, element = True, LakeColumn(column.name, column.dtype.elementType, column.stored.value_type)
        is_float = isinstance(element.dtype, (T.FloatType, T.DoubleType))
        compares = _is_compared(element.dtype, test) and not (is_list and (is_float or not _is_by_bytes(element.dtype)))
        literal = partial(_literal, element, columns.conf, instants) if compares else _not_compared
        return ForeignColumn(column.name, element.stored, literal, is_float and not is_list, is_list)

    return ForeignCondition(condition).pruning(schema, column_of)


def _not_compared(_: Any) -> None:
    return None


def _is_compared(dtype: T.DataType, test: ForeignTest) -> bool:
    """Return whether Spark compares the column with several values after casting all to the column's type."""
    values = [value for value in test.values if value is not None]
    if len(values) <= 1 and not test.is_list:
        return True
    is_time = isinstance(dtype, (T.DateType, T.TimestampType, T.TimestampNTZType))
    if is_time and str in map(type, values):
        return False  # a setting makes Spark compare them as strings
    return not isinstance(dtype, T.DecimalType) or _comparable(dtype, values)


def _literal(column: LakeColumn, conf: ReadConf, instants: Instants, value: Any) -> Any:
    """Return a literal as a value of the column's type; None if Spark may compare it as another type."""
    dtype, stored = column.dtype, column.stored
    if isinstance(value, bool):
        return value if isinstance(dtype, T.BooleanType) and pa.types.is_boolean(stored) else None
    if isinstance(dtype, (T.FloatType, T.DoubleType)):
        return _float(stored, value)
    if isinstance(dtype, T.IntegralType):
        return _whole(value) if _is_covered(stored, dtype) else None
    if isinstance(dtype, T.DecimalType):
        return _decimal(dtype, stored, value)
    if isinstance(dtype, (T.StringType, T.BinaryType)):
        return _text_value(column, value)
    if isinstance(value, str) and conf.datetime_to_string:
        return None  # Spark may compare dates and times as strings
    if isinstance(dtype, T.DateType):
        return _date(value) if pa.types.is_date32(stored) else None
    if isinstance(dtype, (T.TimestampType, T.TimestampNTZType)) and isinstance(stored, pa.TimestampType):
        is_shifted = conf.int96_timestamp_conversion and isinstance(dtype, T.TimestampType)  # files may store INT96
        return None if is_shifted else _time(dtype, stored, value, instants)
    return None


# -- literals -------------------------------------------------------------------------------------


def _is_covered(stored: pa.DataType, dtype: T.IntegralType) -> bool:
    """Return whether Spark's type ``dtype`` can hold every integer of the type ``stored``; otherwise Spark keeps
    only the low bits."""
    if not pa.types.is_integer(stored):
        return False
    return bool(stored.bit_width + pa.types.is_unsigned_integer(stored) <= _BITS[type(dtype)])


def _whole(value: Any) -> int | None:
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return value if isinstance(value, int) else None


def _float(stored: pa.DataType, value: Any) -> float | None:
    if not isinstance(value, (int, float, Decimal)) or stored not in _FLOATS:
        return None
    try:
        number = float(value)
        near = number if stored == pa.float64() else struct.unpack("<f", struct.pack("<f", number))[0]
    except (OverflowError, ValueError):
        return None
    # the rounding of Spark's cast is not documented
    return None if isinstance(value, int) and near != value else number


def _comparable(dtype: T.DecimalType, values: Sequence[Any]) -> bool:
    """Return whether Spark compares the values with the column as decimals without rounding, in at most 38 digits."""
    whole, scale = dtype.precision - dtype.scale, dtype.scale
    for value in values:
        if isinstance(value, int):
            whole = max(whole, 10 if -(1 << 31) <= value < 1 << 31 else 20, len(str(abs(value))))
        elif isinstance(value, Decimal) and value.is_finite():
            exponent = int(value.as_tuple().exponent)
            scale, whole = max(scale, -exponent), max(whole, len(value.as_tuple().digits) + exponent)
        else:
            return False
    return whole + scale <= _MOST_DIGITS


def _decimal(dtype: T.DecimalType, stored: pa.DataType, value: Any) -> int | Decimal | None:
    if not _comparable(dtype, [value]):
        return None
    known: int | Decimal = value
    if pa.types.is_decimal(stored):
        return known
    return _whole(known) if pa.types.is_integer(stored) else None


def _text_value(column: LakeColumn, value: Any) -> str | bytes | None:
    dtype, stored = column.dtype, column.stored
    is_binary = pa.types.is_binary(stored) or pa.types.is_large_binary(stored)
    if isinstance(dtype, T.StringType) and isinstance(value, str):
        try:
            data = value.encode()
        except UnicodeEncodeError:
            return None
        return value if pa.types.is_string(stored) or pa.types.is_large_string(stored) else data if is_binary else None
    return value if isinstance(dtype, T.BinaryType) and isinstance(value, bytes) and is_binary else None


def _date(value: Any) -> dt.date | None:
    day = date_of(value) if isinstance(value, str) else value
    if not isinstance(day, dt.date) or isinstance(day, dt.datetime) or day < FIRST_SURE_DAY:
        return None
    return day


def _time(dtype: T.DataType, stored: pa.TimestampType, value: Any, instants: Instants) -> dt.datetime | None:
    """Return the literal as a timestamp of the column, in UTC or without a zone; None if it cannot be used to prune.

    A literal cannot be used if it is not a time, is before 1900, or is a local time whose UTC time is not in
    ``instants``. A column cannot be used if it stores nanoseconds, since Spark has microseconds. A column without time
    zone in Spark (TIMESTAMP_NTZ) can be used only if literal and file have no time zone either.
    """
    moment = _moment(value)
    if moment is None or stored.unit == "ns":
        return None
    if isinstance(dtype, T.TimestampNTZType):
        if moment.tzinfo is not None or stored.tz is not None:
            return None
    else:
        if moment.tzinfo in (None, SESSION_ZONE):
            known = instants.get(moment.replace(tzinfo=None))
            if known is None:
                return None
            moment = known
        try:
            moment = moment.astimezone(dt.UTC)
        except OverflowError:  # the first or last day of Python's years
            return None
        if stored.tz is None:
            moment = moment.replace(tzinfo=None)
    return moment if moment.replace(tzinfo=None) >= FIRST_SURE_TIME else None


def _moment(value: Any) -> dt.datetime | None:
    """Return a literal as a time, with midnight for a date; None for other literals."""
    moment = time_of(value) if isinstance(value, str) else value
    if isinstance(moment, dt.date) and not isinstance(moment, dt.datetime):
        return dt.datetime.combine(moment, dt.time())
    return moment if isinstance(moment, dt.datetime) else None


def wall_clock_times(condition: Expression) -> set[dt.datetime]:
    """Return the literals of a condition that may be wall-clock times in the session's time zone."""
    times: set[dt.datetime] = set()
    for test in ForeignCondition(condition).tests:
        if test.verb in ("starts with", "contains", "like"):
            continue
        for moment in map(_moment, test.values):
            if moment is not None and moment.tzinfo in (None, SESSION_ZONE):
                times.add(moment.replace(tzinfo=None))
    return times


class _SessionZone(dt.tzinfo):
    """Marks a wall-clock time in a condition that means a point in time in the session's time zone, whatever the
    column's type."""

    def utcoffset(self, moment: dt.datetime | None) -> None:
        return None

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> None:
        return None


SESSION_ZONE: Final = _SessionZone()


def date_of(text: str) -> dt.date | None:
    """Parse a date in the full form YYYY-MM-DD; None for other text."""
    try:
        return dt.date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def time_of(text: str) -> dt.datetime | None:
    """Parse ``YYYY-MM-DD HH:MM:SS``, perhaps with a fraction, or a date as midnight; None for other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction = match.groups()
    try:
        return dt.datetime.fromisoformat(f"{day} {clock or '00:00:00'}.{(fraction or '').ljust(6, '0')}")
    except ValueError:
        return None
