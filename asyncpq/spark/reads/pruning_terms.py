"""Translate conditions with Spark's semantics into asyncpq's predicates for pruning.

The predicate is true for every row for which Spark's condition is, and perhaps for others. Spark treats NaN as equal to
itself and greater than all, casts literals and columns to a common type, and compares some strings by a collation.
Conditions that asyncpq cannot express do not prune.

Float comparisons are negated, so that they keep NaN. Dates before 1582 and times before 1900 in a condition do not
prune, since files may use the old calendar; neither do casts, collations and functions whose result is uncertain.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  # as PySpark's documentation calls it

from asyncpq import Expression
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import AsyncpqError
from asyncpq.expressions import analysis, atoms, conjunction, disjunction, simplify, tree
from asyncpq.expressions.scalars import Scalar
from asyncpq.spark.types.calendars import FIRST_SURE_DAY, FIRST_SURE_TIME
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY, ReadConf

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

    @property
    def is_floating(self) -> bool:
        """Whether the column has a float type, so that its values may include NaN."""
        return isinstance(self.dtype, (T.FloatType, T.DoubleType))


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
    the condition that are :class:`Unknown`, or that have a wall-clock time missing in ``instants``, do not prune."""
    terms = analysis.follow(
        condition, analysis.Truth.TRUE, _Terms(columns, schema, instants).of_atom, conjunction, disjunction
    )
    if terms is None:
        return None
    terms = simplify(terms)
    return None if terms == tree.Constant(True) else terms


class _Terms:
    """Translates the comparisons of a condition, one by one, into predicates for pruning."""

    def __init__(self, columns: LakeColumns, schema: pa.Schema, instants: Instants) -> None:
        self._columns = columns
        self._schema = schema
        self._instants = instants

    def of_atom(self, atom: Expression, truth: analysis.Truth) -> Expression | None:
        """Return a predicate that is true for every row for which the comparison ``atom`` has the result ``truth``.
        None if asyncpq cannot express a predicate that excludes rows."""
        column = None if not isinstance(atom, tree.Atom) or atom.column is None else self._columns.find(atom.column)
        if column is None or not isinstance(atom, tree.Atom) or isinstance(column.dtype, T.StructType):
            return None
        element, is_list = column, isinstance(column.dtype, T.ArrayType)
        if isinstance(column.dtype, T.ArrayType) and hasattr(column.stored, "value_type"):
            element = LakeColumn(column.name, column.dtype.elementType, column.stored.value_type)
        elif not is_list and not column.is_floating and any(value != value for value in atom.literals):
            return None  # Spark casts the column
        wanted = analysis.result_values(atom, truth, self._domain(element, atom))
        if not wanted.of_elements:
            term = _term(column, wanted)
        elif (
            is_list
            and not element.is_floating
            and _is_by_bytes(element.dtype)
            and isinstance(wanted.values, analysis.Points)
        ):
            term = disjunction([tree.Has(column.name, key) for key in wanted.values.keys])
        else:
            return None
        try:  # asyncpq would cast a value, or refuse it
            return None if term is None or compile_filter(term, self._schema).engine_atoms else term
        except AsyncpqError:
            return None

    def _domain(self, column: LakeColumn, atom: tree.Atom) -> analysis.ValueDomain:
        """Return the rules by which Spark compares the column with the literals of ``atom``, after casting all to
        one type."""
        dtype, values = column.dtype, [value for value in atom.literals if value is not None]
        if len(values) > 1 or isinstance(atom, (tree.In, tree.KeyIn)):
            is_time = isinstance(dtype, (T.DateType, T.TimestampType, T.TimestampNTZType))
            if is_time and str in map(type, values):
                return _NOT_COMPARED  # a setting makes Spark compare them as strings
            if isinstance(dtype, T.DecimalType) and not _comparable(dtype, values):
                return _NOT_COMPARED

        def to_key(value: Scalar) -> analysis.Comparable | analysis.Incomparable:
            literal = self._literal(column, value)
            return _FOREIGN if literal is None else analysis.Comparable(literal)

        return analysis.ValueDomain(to_key, spark=True)

    def _literal(self, column: LakeColumn, value: Any) -> Any:
        """Return the literal as a value of the column's type; None if Spark may compare it as another type."""
        dtype, stored, conf = column.dtype, column.stored, self._columns.conf
        if isinstance(value, bool):
            return value if isinstance(dtype, T.BooleanType) and pa.types.is_boolean(stored) else None
        if column.is_floating:
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
            return None if is_shifted else _time(dtype, stored, value, self._instants)
        return None


_FOREIGN: Final = analysis.Incomparable("Spark may cast the column")
_NOT_COMPARED: Final = analysis.ValueDomain(lambda _: _FOREIGN, spark=True)


# -- from values to predicates --------------------------------------------------------------------


def _term(column: LakeColumn, wanted: analysis.ResultValues) -> Expression | None:
    """Return a predicate that is true for all values in the set ``wanted``; None if the set has all values."""
    name = column.name
    nan = column.is_floating and (wanted.nan or not wanted.exact)  # to Spark's LIKE, NaN is the text "NaN"
    if not wanted.comparable or (wanted.values == analysis.EVERYTHING and wanted.null):
        return None
    texts = [tree.Contains(name, text) for part in wanted.texts if (text := _text_value(column, part))]
    if wanted.values == analysis.EVERYTHING:
        if texts:
            return conjunction(texts)
        valid = tree.Not(tree.IsNull(name))
        return valid if nan or not column.is_floating else tree.And((valid, tree.Comparison(name, "<=", math.inf)))
    terms: list[Expression | None] = []
    if isinstance(wanted.values, analysis.Points):
        terms += _points(column, wanted.values, nan)
        nan = nan and not wanted.values.inverted
    else:
        parts = [fitted for part in wanted.values if (fitted := _fitting(column, part)) is not None]
        if nan and parts and parts[-1].high is None and parts[-1].low is not None:
            last = parts.pop()  # NaN is greater than all numbers
            terms.append(tree.Not(tree.Comparison(name, "<=" if last.low_open else "<", last.low)))
            nan = False
        terms += [_interval(name, part) for part in parts]
    if nan:
        terms.append(tree.is_nan(name))
    if wanted.null:
        terms.append(tree.IsNull(name))
    return conjunction([disjunction(terms), *(texts if len(texts) > 1 else ())])


def _points(column: LakeColumn, points: analysis.Points, nan: bool) -> list[Expression | None]:
    name, keys, ends = column.name, points.keys, _ends(column.stored)
    if ends is not None:
        keys = [key for key in keys if ends[0] <= key <= ends[1]]
    if not keys:
        return [tree.Not(tree.IsNull(name))] if points.inverted else []
    if column.is_floating and any(_nearest(column.stored, key) != key for key in keys):
        return [None]
    if len(keys) > 1:
        term: Expression = tree.KeyIn(name, tuple(keys))
        term = tree.Not(term) if points.inverted else term
    else:
        term = tree.Comparison(name, "!=" if points.inverted else "==", keys[0])
    if points.inverted and column.is_floating and not nan:
        return [tree.And((term, tree.Comparison(name, "<=", math.inf)))]
    return [term]


def _interval(name: str, part: analysis.Interval) -> Expression | None:
    if part.prefix is not None:
        return tree.StartsWith(name, part.prefix)
    above = None if part.low is None else tree.Comparison(name, ">" if part.low_open else ">=", part.low)
    below = None if part.high is None else tree.Comparison(name, "<" if part.high_open else "<=", part.high)
    return tree.Not(tree.IsNull(name)) if above is None and below is None else conjunction([above, below])


def _fitting(column: LakeColumn, part: analysis.Interval) -> analysis.Interval | None:
    """Return the interval with the same values of the column, but with ends that are values of its type; None if the
    column can have no such value."""
    low, high, low_open, high_open = part
    if (ends := _ends(column.stored)) is not None:
        least, greatest = ends
        if (low is not None and low > greatest) or (high is not None and high < least):
            return None
        low = None if low is not None and low < least else low
        high = None if high is not None and high > greatest else high
        return analysis.Interval(low, high, low is not None and low_open, high is not None and high_open)
    if not column.is_floating:
        return part
    if low is not None and (near := _nearest(column.stored, low)) != low:
        low, low_open = near, near < low
    if high is not None and (near := _nearest(column.stored, high)) != high:
        high, high_open = near, near > high
    return analysis.Interval(low, high, low_open, high_open)


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
        near = _nearest(stored, number)
    except (OverflowError, ValueError):
        return None
    # the rounding of Spark's cast is not documented
    return None if isinstance(value, int) and near != value else number


def _ends(stored: pa.DataType) -> tuple[int | Decimal, int | Decimal] | None:
    """Return the least and the greatest value of an integer or decimal type; None for other types."""
    if pa.types.is_decimal(stored):
        greatest = Decimal((0, (9,) * stored.precision, -stored.scale))
        return -greatest, greatest
    if not pa.types.is_integer(stored):
        return None
    if pa.types.is_unsigned_integer(stored):
        return 0, (1 << stored.bit_width) - 1
    half = 1 << stored.bit_width - 1
    return -half, half - 1


def _nearest(stored: pa.DataType, number: float) -> float:
    """Return the value of the column's float type that is nearest to ``number``."""
    return number if pa.types.is_float64(stored) else float(struct.unpack("<f", struct.pack("<f", number))[0])


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
    for atom in atoms(condition):
        if not isinstance(atom, tree.Atom) or isinstance(atom, (tree.StartsWith, tree.Contains, tree.Like)):  # type: ignore[redundant-expr]
            continue  # string atoms, and unknown nodes
        for moment in map(_moment, atom.literals):
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
