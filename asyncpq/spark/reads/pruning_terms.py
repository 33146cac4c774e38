"""Conditions as Spark means them, in asyncpq's terms: true for every row for which Spark's is, and perhaps for others.

Spark takes NaN for equal to itself and greater than all, casts literals and columns to each other's types, and compares
some strings otherwise. Where that cannot be said here, nothing is left out.
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
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import AsyncpqError
from asyncpq.expressions import (
    And,
    CompareOp,
    Comparison,
    Constant,
    Contains,
    Expression,
    Has,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    simplify,
)
from asyncpq.expressions.like_patterns import like_prefix
from asyncpq.spark.reads.sql_conditions import SESSION_ZONE, date_of, time_of
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY, ReadConf
from asyncpq.spark.types.rebase import FIRST_SURE_DAY, FIRST_SURE_TIME

#: Instants of wall-clock times, by the session's zone.
Instants = Mapping[dt.datetime, dt.datetime]

_MOST_DIGITS: Final = 38
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_CHAR: Final = re.compile(r"(?<!var)char\(")  # not VARCHAR
_NEGATED: Final[dict[CompareOp, CompareOp]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class LakeColumn(NamedTuple):
    """A column, or a field in structs.

    Attributes:
        name: as asyncpq's predicates name it.
        kind: Spark's type.
        stored: asyncpq's; of dictionaries that of their values.
    """

    name: str
    kind: DataType
    stored: pa.DataType


class LakeColumns:
    """Finds columns by Spark's rule of cases.

    Args:
        struct: of the dataset.
        schema: of the dataset, field by field the same.
        by_fields: each dot in a path is before a field's name, as Spark has it; else a column may be named "a.b".
    """

    def __init__(self, struct: StructType, schema: pa.Schema, conf: ReadConf, *, by_fields: bool = False) -> None:
        self.conf = conf
        self._by_fields = by_fields
        self._schema = schema
        self._fields = struct.fields
        self._tops: dict[str, list[int]] = {}
        for at, field in enumerate(self._fields):
            self._tops.setdefault(conf.key(field.name), []).append(at)

    def split(self, path: str) -> tuple[int | None, list[str]]:
        """The place of the top-level column that a path begins with, the longest that there is, and names of fields in
        it; None where there is none, or several."""
        found, parts = self._top(path)
        return (found[0] if len(found) == 1 else None), parts

    def knows(self, path: str) -> bool:
        """Whether there is such a top-level column, once or more often."""
        return bool(self._top(path)[0])

    def _top(self, path: str) -> tuple[list[int], list[str]]:
        top, *parts = path.split(".") if self._by_fields else [path]
        while not (found := self._tops.get(self.conf.key(top), [])):
            top, dot, part = top.rpartition(".")
            parts.insert(0, part)
            if not dot:
                return [], []
        return found, parts

    def find(self, path: str) -> LakeColumn | None:
        """None for what is not there, or not once; and for types of which nothing is said."""
        at, parts = self.split(path)
        if at is None:
            return None
        field, arrow = self._fields[at], self._schema.field(at)
        name, kind, stored = arrow.name, field.dataType, arrow.type
        if _CHAR.search((field.metadata or {}).get(CHAR_VARCHAR_KEY, "")):
            return None  # compared with blanks at its end
        for part in parts:
            if not isinstance(kind, StructType) or not isinstance(stored, pa.StructType):
                return None
            inner = [one for one in kind.fields if self.conf.key(one.name) == self.conf.key(part)]
            mine = [one for one in stored if self.conf.key(one.name) == self.conf.key(part)]
            if len(inner) != 1 or len(mine) != 1:
                return None
            name, kind, stored = f"{name}.{mine[0].name}", inner[0].dataType, mine[0].type
        if parts and self._schema.get_field_index(name) >= 0:
            return None  # there is a column of that very name
        if isinstance(stored, pa.DictionaryType):
            stored = stored.value_type
        return LakeColumn(name, kind, stored) if _is_by_bytes(kind) else None


def _is_by_bytes(kind: DataType) -> bool:
    """False for strings that another collation takes for equal, or orders otherwise."""
    return not isinstance(kind, StringType) or bool(kind.isUTF8BinaryCollation())


def pruning_terms(
    condition: Expression, columns: LakeColumns, schema: pa.Schema, instants: Instants
) -> Expression | None:
    """What rows are left out by; None where all of them may match.

    Args:
        condition: as Spark means it; of other nodes than asyncpq's nothing is known.
        instants: of all wall-clock times that it compares with timestamps; those that are missing do not prune.
    """
    found = _Terms(columns, schema, instants).true(condition)
    if found is None:
        return None
    found = simplify(found)
    return None if found == Constant(True) else found


class _Terms:
    """``true`` gives what is true where Spark's condition is; ``false`` what is true where Spark's is false."""

    def __init__(self, columns: LakeColumns, schema: pa.Schema, instants: Instants) -> None:
        self._columns = columns
        self._schema = schema
        self._instants = instants

    def true(self, expr: Expression) -> Expression | None:
        if isinstance(expr, Constant):
            return None if expr.value else Constant(False)
        if isinstance(expr, Not):
            return self.false(expr.arg)
        if isinstance(expr, And):
            return _all([self.true(arg) for arg in expr.args])
        if isinstance(expr, Or):
            return _any([self.true(arg) for arg in expr.args])
        return self._sure(self._atom(expr, negated=False))

    def false(self, expr: Expression) -> Expression | None:
        if isinstance(expr, Constant):
            return None if expr.value is False else Constant(False)
        if isinstance(expr, Not):
            return self.true(expr.arg)
        if isinstance(expr, And):
            return _any([self.false(arg) for arg in expr.args])
        if isinstance(expr, Or):
            return _all([self.false(arg) for arg in expr.args])
        return self._sure(self._atom(expr, negated=True))

    def _sure(self, found: Expression | None) -> Expression | None:
        """Nothing where asyncpq would have to cast, or refuses."""
        if found is None:
            return None
        try:
            return None if compile_filter(found, self._schema).engine_atoms else found
        except AsyncpqError:
            return None

    def _atom(self, expr: Expression, *, negated: bool) -> Expression | None:
        if isinstance(expr, Comparison):
            if expr.value is None:
                return Constant(False)
            column = self._columns.find(expr.column)
            return (
                None
                if column is None
                else self._compared(column, _NEGATED[expr.op] if negated else expr.op, expr.value)
            )
        if isinstance(expr, (In, KeyIn)):
            column = self._columns.find(expr.column)
            return None if column is None else self._member(expr, column, negated=negated)
        if isinstance(expr, IsNull):
            return self._is_null(expr, negated=negated)
        if isinstance(expr, (StartsWith, Contains, Like)):
            return self._text(expr, negated=negated)
        if isinstance(expr, Has):
            return self._has(expr, negated=negated)
        return None

    # -- comparisons ------------------------------------------------------------------------------

    def _compared(self, column: LakeColumn, op: CompareOp, value: Any) -> Expression | None:
        name = column.name
        if isinstance(value, float) and value != value:
            return _with_nan(column, op)
        for asked, literal in self._fitting(column, op, value):
            if not isinstance(column.kind, (FloatType, DoubleType)) or asked in ("==", "!=", "<", "<="):
                return Comparison(name, asked, literal)
            return Not(Comparison(name, "<=" if asked == ">" else "<", literal))  # NaN is greater
        return None

    def _member(self, expr: In | KeyIn, column: LakeColumn, *, negated: bool) -> Expression | None:
        values = [value for value in expr.values if value is not None]
        with_null = isinstance(expr, In) and len(values) < len(expr.values)
        if isinstance(expr, KeyIn):
            values = [value for value in values if value == value]
        if isinstance(column.kind, (DateType, TimestampType, TimestampNTZType)) and any(
            isinstance(value, str) for value in values
        ):
            return None  # by a setting, they are compared as strings
        if isinstance(column.kind, DecimalType) and not _comparable(column.kind, values):
            return None
        op: CompareOp = "!=" if negated else "=="
        found = [self._compared(column, op, value) for value in values]
        if any(one is None for one in found):
            return None  # all are cast to one type
        if negated:
            return _all([*found, Not(IsNull(column.name))])
        if with_null:
            found.append(IsNull(column.name))
        if not found:
            return Constant(False)
        whole = [one for one in found if isinstance(one, Comparison) and one.op == "=="]
        if len(whole) == len(found) > 1:
            return KeyIn(column.name, tuple(one.value for one in whole))
        return _any(found)

    def _is_null(self, expr: IsNull, *, negated: bool) -> Expression | None:
        column = self._columns.find(expr.column)
        if column is None or isinstance(column.kind, StructType):
            return None
        with_nan = expr.nan_is_null and isinstance(column.kind, (FloatType, DoubleType))
        found = IsNull(column.name, with_nan)
        return Not(found) if negated else found

    # -- texts and lists --------------------------------------------------------------------------

    def _text(self, expr: StartsWith | Contains | Like, *, negated: bool) -> Expression | None:
        column = self._columns.find(expr.column)
        if column is None:
            return None
        text = (
            expr.prefix if isinstance(expr, StartsWith) else expr.text if isinstance(expr, Contains) else expr.pattern
        )
        found = _text_value(column, text)
        if found is None:
            return None
        if isinstance(expr, Like):
            plain = text if isinstance(text, str) else text.decode("latin-1")
            if "_" not in plain and "\\" not in plain:
                term: Expression = Like(column.name, found)
            else:  # "_" is a character of Java's, where the bytes are none
                prefix = like_prefix(found)
                return None if negated or not prefix else StartsWith(column.name, prefix)
        else:
            term = type(expr)(column.name, found)
        return Not(term) if negated else term

    def _has(self, expr: Has, *, negated: bool) -> Expression | None:
        at = self._columns.find(expr.column)
        if at is None or not hasattr(at.kind, "elementType") or not hasattr(at.stored, "value_type"):
            return None
        element = LakeColumn(at.name, at.kind.elementType, at.stored.value_type)
        if isinstance(element.kind, (FloatType, DoubleType)) or not _is_by_bytes(element.kind):
            return None
        for op, literal in self._fitting(element, "==", expr.value):
            found = Has(at.name, literal)
            return None if op != "==" else Not(found) if negated else found
        return None

    # -- literals ---------------------------------------------------------------------------------

    def _fitting(self, column: LakeColumn, op: CompareOp, value: Any) -> Iterator[tuple[CompareOp, Any]]:
        """The comparison with a literal of the column's own type, if there is one that Spark's implies."""
        kind, stored, conf = column.kind, column.stored, self._columns.conf
        literal: Any = None
        if isinstance(kind, (FloatType, DoubleType)):
            yield from _float(stored, op, value)
            return
        if isinstance(kind, BooleanType):
            literal = value if isinstance(value, bool) and op in ("==", "!=") and pa.types.is_boolean(stored) else None
        elif isinstance(value, bool):
            literal = None
        elif isinstance(kind, IntegralType):
            literal = _whole(value) if _is_covered(stored, kind) else None
        elif isinstance(kind, DecimalType):
            literal = _decimal(kind, stored, value)
        elif isinstance(kind, (StringType, BinaryType)):
            literal = _text_value(column, value)
        elif isinstance(value, str) and conf.datetime_to_string:
            literal = None  # dates and times may be compared as texts
        elif isinstance(kind, DateType):
            literal = _date(value) if pa.types.is_date32(stored) else None
        elif isinstance(kind, (TimestampType, TimestampNTZType)) and isinstance(stored, pa.TimestampType):
            is_shifted = conf.int96_timestamp_conversion and isinstance(kind, TimestampType)  # INT96 of some file
            literal = None if is_shifted else _time(kind, stored, value, self._instants)
        if literal is not None:
            yield op, literal


def _all(found: Sequence[Expression | None]) -> Expression | None:
    left = [one for one in found if one is not None]
    return None if not left else left[0] if len(left) == 1 else And(tuple(left))


def _any(found: Sequence[Expression | None]) -> Expression | None:
    left = [one for one in found if one is not None]
    if len(left) < len(found):
        return None
    return left[0] if len(left) == 1 else Or(tuple(left))


def _with_nan(column: LakeColumn, op: CompareOp) -> Expression | None:
    """Compared with NaN, which equals itself and is greater than all others."""
    if not isinstance(column.kind, (FloatType, DoubleType)) or not pa.types.is_floating(column.stored):
        return None
    number = Comparison(column.name, "<=", math.inf)
    if op in ("==", ">="):
        return Not(number)
    if op in ("!=", "<"):
        return number
    return Constant(False) if op == ">" else Not(IsNull(column.name))


# -- literals -------------------------------------------------------------------------------------


def _is_covered(stored: pa.DataType, kind: IntegralType) -> bool:
    """Whether Spark has every stored integer as it is: of those that its type is too narrow for, it keeps low bits."""
    if not pa.types.is_integer(stored):
        return False
    return bool(stored.bit_width + pa.types.is_unsigned_integer(stored) <= _BITS[type(kind)])


def _whole(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return None


def _float(stored: pa.DataType, op: CompareOp, value: Any) -> Iterator[tuple[CompareOp, float]]:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return
    is_double = pa.types.is_float64(stored)
    if not is_double and not pa.types.is_float32(stored):
        return
    try:
        number = float(value)
        near = number if is_double else struct.unpack("<f", struct.pack("<f", number))[0]
    except (OverflowError, ValueError):
        return
    if isinstance(value, int) and near != value:
        return  # Spark casts it, and by which rounding is not said
    if near == number:
        yield op, near
    elif op in (">", ">="):  # no value of the column is between them
        yield ">=" if near > number else ">", near
    elif op in ("<", "<="):
        yield "<=" if near < number else "<", near


def _comparable(kind: DecimalType, values: Sequence[Any]) -> bool:
    """Whether Spark compares them as decimals that hold all of their digits."""
    whole, scale = kind.precision - kind.scale, kind.scale
    for value in values:
        if isinstance(value, int):
            whole = max(whole, 10 if -(1 << 31) <= value < 1 << 31 else 20, len(str(abs(value))))
        elif isinstance(value, Decimal) and value.is_finite():
            exponent = int(value.as_tuple().exponent)
            scale, whole = max(scale, -exponent), max(whole, len(value.as_tuple().digits) + exponent)
        else:
            return False
    return whole + scale <= _MOST_DIGITS


def _decimal(kind: DecimalType, stored: pa.DataType, value: Any) -> int | Decimal | None:
    if not _comparable(kind, [value]):
        return None
    known: int | Decimal = value
    if pa.types.is_decimal(stored):
        return known
    return _whole(known) if pa.types.is_integer(stored) else None


def _text_value(column: LakeColumn, value: Any) -> str | bytes | None:
    kind, stored = column.kind, column.stored
    is_binary = pa.types.is_binary(stored) or pa.types.is_large_binary(stored)
    if isinstance(kind, StringType) and isinstance(value, str):
        try:
            data = value.encode()
        except UnicodeEncodeError:
            return None
        return value if pa.types.is_string(stored) or pa.types.is_large_string(stored) else data if is_binary else None
    return value if isinstance(kind, BinaryType) and isinstance(value, bytes) and is_binary else None


def _date(value: Any) -> dt.date | None:
    day = date_of(value) if isinstance(value, str) else value
    if not isinstance(day, dt.date) or isinstance(day, dt.datetime) or day < FIRST_SURE_DAY:
        return None
    return day


def _time(kind: DataType, stored: pa.TimestampType, value: Any, instants: Instants) -> dt.datetime | None:
    """A time of the zone that the column has, or without one."""
    if stored.unit == "ns":
        return None  # Spark has microseconds
    moment: Any = time_of(value) if isinstance(value, str) else value
    if isinstance(moment, dt.date) and not isinstance(moment, dt.datetime):
        moment = dt.datetime.combine(moment, dt.time())
    if not isinstance(moment, dt.datetime):
        return None
    if isinstance(kind, TimestampNTZType):
        if moment.tzinfo is not None or stored.tz is not None:
            return None
    else:
        if moment.tzinfo is None or moment.tzinfo is SESSION_ZONE:
            known = instants.get(moment.replace(tzinfo=None))
            if known is None:
                return None
            moment = known
        moment = moment.astimezone(dt.UTC)
        if stored.tz is None:
            moment = moment.replace(tzinfo=None)
    return moment if moment.replace(tzinfo=None) >= FIRST_SURE_TIME else None


def wall_clock_times(condition: Expression) -> set[dt.datetime]:
    """What of its literals may be a wall-clock time by the session's zone."""
    found: set[dt.datetime] = set()
    todo = [condition]
    while todo:
        expr = todo.pop()
        if isinstance(expr, Not):
            todo.append(expr.arg)
        elif isinstance(expr, (And, Or)):
            todo.extend(expr.args)
        elif isinstance(expr, (Comparison, In, KeyIn, Has)):
            values = expr.values if isinstance(expr, (In, KeyIn)) else (expr.value,)
            for value in values:
                moment: Any = time_of(value) if isinstance(value, str) else value
                if isinstance(moment, dt.date) and not isinstance(moment, dt.datetime):
                    moment = dt.datetime.combine(moment, dt.time())
                if isinstance(moment, dt.datetime) and moment.tzinfo in (None, SESSION_ZONE):
                    found.add(moment.replace(tzinfo=None))
    return found
