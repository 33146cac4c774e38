"""Convert literals to keys that compare with a column's bounds as pyarrow compares the literals with its values.

Bounds are plain Python values (``parquet.statistics.decode_values``): integers for integers, dates (days), times and
timestamps (the column's unit) and decimals (unscaled); floats; bytes in unsigned order; bools. A literal becomes an
int, float, Fraction, bytes or bool that Python compares with them *exactly*, even where the column's type cannot
represent it: a timestamp between two milliseconds is a Fraction.

That is correct where pyarrow's implicit casts are exact or raise: integers against floats (its safe casts refuse what a
float cannot hold), narrower against wider numbers, units of time, scales of decimals. Where a cast may round (decimals
against floats), or pyarrow does not compare the two values, the literal is ``Incomparable``: it prunes nothing.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import math
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncpq.errors import UsageError
from asyncpq.expressions.analysis import Comparable, Incomparable, ToKey, ValueDomain
from asyncpq.expressions.scalars import (
    NANOSECONDS,
    Day,
    RelativeTime,
    Scalar,
    TimeOfDay,
    Timestamp,
    days,
    nanoseconds,
    unscaled_decimal,
)
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import SortOrder
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from fractions import Fraction


class Domain(enum.Enum):
    """Groups of column types whose values compare in the same way. Comments say the Python type of bounds and keys."""

    BOOLEAN = "boolean"  # (bool)
    INTEGER = "integer"  # (int)
    FLOAT = "float"  # of 64 bits (float)
    FLOAT32 = "float32"  # (float)
    FLOAT16 = "float16"  # never compared, but may hold NaN
    DECIMAL = "decimal"  # (int or Fraction: the value times 10**scale)
    DATE = "date"  # (int or Fraction: days)
    TIME = "time"  # (int or Fraction: units)
    TIMESTAMP = "timestamp"  # (int or Fraction: units)
    BYTES = "bytes"  # strings too (bytes, in unsigned order)
    FIXED = "fixed"  # bytes of one length, UUIDs too (bytes)
    OTHER = "other"  # never compared


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The properties of a column's type that decide how its values compare with literals and bounds.

    Attributes:
        domain: how values compare.
        scale: of decimals.
        unit: of times and timestamps: s, ms, us or ns.
        zoned: timestamps are instants; None where the filter checks that.
        why_not: of ``FLOAT16`` and ``OTHER``, why values are never compared.
    """

    domain: Domain
    scale: int = 0
    unit: str = ""
    zoned: bool | None = None
    why_not: str = ""

    @property
    def has_nan(self) -> bool:
        """Whether the values may include NaN."""
        return self.domain in (Domain.FLOAT, Domain.FLOAT32, Domain.FLOAT16)

    @property
    def is_bytes(self) -> bool:
        """Whether values compare byte by byte; writers may then truncate bounds."""
        return self.domain is Domain.BYTES or self.domain is Domain.FIXED


FLOAT16: Final = ValueKind(Domain.FLOAT16, why_not="pyarrow does not compare float16")
_FLOAT32: Final = ValueKind(Domain.FLOAT32)
_KINDS: Final = {
    SortOrder.BOOLEAN: ValueKind(Domain.BOOLEAN),
    SortOrder.FLOAT: ValueKind(Domain.FLOAT),
    SortOrder.FLOAT16: FLOAT16,
    SortOrder.INT96: ValueKind(Domain.TIMESTAMP, unit="us"),
}


def kind_of_leaf(leaf: Leaf, order: SortOrder) -> ValueKind:
    """Return how the values of a leaf column compare. ``order``: the sort order of its statistics."""
    logical = leaf.element.logical_type
    kind = None if logical is None else logical.kind
    if order is SortOrder.UNDEFINED:
        return _other(f"the order of its statistics is undefined ({_describe(leaf)})")
    if order is SortOrder.FLOAT and leaf.physical_type is PhysicalType.FLOAT:
        return _FLOAT32
    plain = _KINDS.get(order)
    if plain is not None:
        return plain
    if kind is LogicalKind.DECIMAL and logical is not None:
        return ValueKind(Domain.DECIMAL, scale=logical.scale or 0)
    if kind is LogicalKind.DATE:
        return ValueKind(Domain.DATE)
    if kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP) and logical is not None:
        if logical.unit is None:
            return _other("its unit of time is unknown")
        # The filter checks whether a literal needs a time zone.
        return ValueKind(Domain.TIMESTAMP if kind is LogicalKind.TIMESTAMP else Domain.TIME, unit=logical.unit)
    if order in (SortOrder.SIGNED, SortOrder.UNSIGNED) and kind in (None, LogicalKind.INTEGER):
        return ValueKind(Domain.INTEGER)
    if order is SortOrder.BYTES:
        fixed = leaf.element.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY
        return ValueKind(Domain.FIXED if fixed else Domain.BYTES)
    return _other(f"literals are not compared with {_describe(leaf)}")


def first_sure(kind: ValueKind) -> int | None:
    """Return the first key of dates or timestamps that is the same in the calendar of old Spark versions
    (``parquet/calendars.py``); None for other columns.

    What is known of a column without its files' footers, such as a table's bounds or an index, may be in either
    calendar, so earlier values prove nothing.
    """
    if kind.domain is not Domain.DATE and kind.domain is not Domain.TIMESTAMP:
        return None
    from asyncpq.parquet.calendars import FIRST_SAME_DAY, FIRST_SURE_SECOND  # few columns need them

    if kind.domain is Domain.DATE:
        return FIRST_SAME_DAY
    return FIRST_SURE_SECOND * NANOSECONDS["s"] // NANOSECONDS[kind.unit]


def is_sure(value: Scalar) -> bool:
    """Return whether a bound is the same in the calendar of old Spark versions; see :func:`first_sure`."""
    from asyncpq.parquet.calendars import FIRST_SAME_DAY, FIRST_SURE_SECOND

    if isinstance(value, (dt.datetime, Timestamp)):
        return nanoseconds(value) >= FIRST_SURE_SECOND * NANOSECONDS["s"]
    return not isinstance(value, (dt.date, Day)) or days(value) >= FIRST_SAME_DAY


def _other(why_not: str) -> ValueKind:
    return ValueKind(Domain.OTHER, why_not=why_not)


def _describe(leaf: Leaf) -> str:
    logical, physical = leaf.element.logical_type, leaf.element.physical_type
    return logical.kind.name if logical is not None else physical.name if physical is not None else "a group"


Key: TypeAlias = "int | float | Fraction | bytes | bool"

_SINGLE: Final = struct.Struct("<f")
_DAY = 86_400 * NANOSECONDS["s"]


@functools.cache
def domain_of(kind: ValueKind) -> ValueDomain:
    """Return the rules by which literals compare with the statistics of columns of this kind."""
    return ValueDomain(_to_key(kind), _KEYS_AS_THEY_STAND.get(kind.domain, {}), shared=True)


def _to_key(kind: ValueKind) -> ToKey:
    domain = kind.domain
    plain = _TO_KEY.get(domain)
    if plain is not None:
        return plain
    if domain is Domain.DECIMAL:
        return _decimal(kind.scale)
    if domain is Domain.TIMESTAMP:
        return _timestamp(NANOSECONDS[kind.unit], kind.zoned)
    if domain is Domain.TIME:
        return _time(NANOSECONDS[kind.unit])
    never = Incomparable(kind.why_not)
    return lambda value: never


def _mismatch(value: Scalar) -> Incomparable:
    if type(value) is RelativeTime:
        raise UsageError(f"the relative time {value} must be resolved to a point in time before a comparison")
    return Incomparable(f"a literal of type {type(value).__name__} is not compared exactly")


def _boolean(value: Scalar) -> Comparable | Incomparable:
    return Comparable(value) if type(value) is bool else _mismatch(value)


def _integer(value: Scalar) -> Comparable | Incomparable:
    if type(value) is int:
        return Comparable(value)
    if type(value) is float:
        return Comparable(value, same_type=False)
    if type(value) is Decimal and value.is_finite():
        return Comparable(unscaled_decimal(value, 0), same_type=False)
    return _mismatch(value)


def _float(value: Scalar) -> Comparable | Incomparable:
    # pyarrow casts decimals to floats, which may round them: not compared here.
    if type(value) is float:
        return Comparable(value, same_type=True)
    return Comparable(value, same_type=False) if type(value) is int else _mismatch(value)


def _float32(value: Scalar) -> Comparable | Incomparable:
    # Comparisons take them in 64 bits; ``isin`` rounds them to the column's 32 first.
    literal = _float(value)
    if type(value) is float and isinstance(literal, Comparable) and not is_float32(value):
        return Comparable(value, same_type=False)
    return literal


def is_float32(value: float) -> bool:
    """Return whether a 32-bit float can represent the value exactly; True for NaN and infinities."""
    if value != value or value in (math.inf, -math.inf):
        return True
    try:
        return bool(_SINGLE.unpack(_SINGLE.pack(value))[0] == value)
    except OverflowError:
        return False


def _decimal(scale: int) -> ToKey:
    factor = 10**scale

    def convert(value: Scalar) -> Comparable | Incomparable:
        if type(value) is int:
            return Comparable(value * factor, same_type=False)
        if type(value) is Decimal and value.is_finite():
            key = unscaled_decimal(value, scale)
            return Comparable(key, same_type=type(key) is int)
        return _mismatch(value)

    return convert


def _date(value: Scalar) -> Comparable | Incomparable:
    if type(value) is dt.date or type(value) is Day:
        return Comparable(days(value))
    if type(value) is dt.datetime and value.tzinfo is None:
        return _in_units(nanoseconds(value), _DAY)._replace(same_type=False)
    return _mismatch(value)


def _timestamp(unit: int, zoned: bool | None) -> ToKey:
    # Instants are compared in UTC, in which the column is stored. A date is its midnight in UTC.
    def convert(value: Scalar) -> Comparable | Incomparable:
        if type(value) is dt.datetime or type(value) is Timestamp:
            zone = value.timezone if isinstance(value, Timestamp) else value.tzinfo
            if zoned is not None and zoned is (zone is None):
                return Incomparable("instants are not compared with times of no zone")
            return _in_units(nanoseconds(value), unit)
        if type(value) is dt.date or type(value) is Day:
            return Comparable(days(value) * (_DAY // unit), same_type=False)
        return _mismatch(value)

    return convert


def _time(unit: int) -> ToKey:
    def convert(value: Scalar) -> Comparable | Incomparable:
        if type(value) is TimeOfDay or (type(value) is dt.time and value.tzinfo is None):
            return _in_units(nanoseconds(value), unit)
        return _mismatch(value)

    return convert


def _bytes(value: Scalar) -> Comparable | Incomparable:
    if type(value) is bytes:
        return Comparable(value)
    if type(value) is str:
        try:
            return Comparable(value.encode())
        except UnicodeEncodeError:
            return Incomparable("a string with lone surrogates is no UTF-8")
    return _mismatch(value)


def _fixed(value: Scalar) -> Comparable | Incomparable:
    return Comparable(value.bytes) if type(value) is uuid.UUID else _bytes(value)


def _in_units(amount: int, unit: int) -> Comparable:
    whole, rest = divmod(amount, unit)
    if not rest:
        return Comparable(whole)
    from fractions import Fraction  # few literals need it

    return Comparable(Fraction(amount, unit), same_type=False)


_TO_KEY: Final[Mapping[Domain, ToKey]] = {
    Domain.BOOLEAN: _boolean,
    Domain.INTEGER: _integer,
    Domain.FLOAT: _float,
    Domain.FLOAT32: _float32,
    Domain.DATE: _date,
    Domain.BYTES: _bytes,
    Domain.FIXED: _fixed,
}
_KEYS_AS_THEY_STAND: Final[Mapping[Domain, Mapping[type, Callable[[Any], Any] | None]]] = {
    Domain.INTEGER: {int: None},
    Domain.BYTES: {bytes: None, str: str.encode},
    Domain.FIXED: {bytes: None, str: str.encode},
}
TEXTS: Final = domain_of(ValueKind(Domain.BYTES))  # the rules for any column of strings or binary
