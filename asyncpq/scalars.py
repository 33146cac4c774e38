"""The literals that predicates hold: Python values of a few plain types.

numpy, pandas and pyarrow scalars are unwrapped by duck typing, so that none of them is imported here.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from asyncpq.errors import ExpressionError

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds in each unit of Arrow and Parquet."""

_REPR_VALUES = 8
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time finer than ``datetime`` can hold; made from numpy, pandas and pyarrow nanoseconds.

    Attributes:
        nanoseconds: since 1970-01-01, in UTC when ``timezone`` is given, else of the wall clock.
        timezone: a zone name, or None for local (zoneless) time.
    """

    nanoseconds: int
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """A time relative to when a read begins; made by :func:`now`. Adding a ``timedelta`` moves it.

    Attributes:
        offset: from then on; negative before it.
    """

    offset: dt.timedelta

    def __add__(self, other: object) -> RelativeTime:
        if not isinstance(other, dt.timedelta):
            return NotImplemented
        moved = as_scalar(self.offset + other)  # pandas' timedelta is finer than the plain one
        return RelativeTime(moved) if isinstance(moved, dt.timedelta) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: object) -> RelativeTime:
        return self + -other if isinstance(other, dt.timedelta) else NotImplemented

    def __str__(self) -> str:
        if not self.offset:
            return "now"
        text = str(abs(self.offset)).removesuffix(", 0:00:00")
        return f"now {'-' if self.offset < dt.timedelta(0) else '+'} {text}"


def now() -> RelativeTime:
    """The time when a read begins, one for all of it: ``col("ts") >= now() - timedelta(days=7)``.

    Timestamps with a zone are compared with that instant, those without with UTC's clock at it.
    """
    return RelativeTime(dt.timedelta())


Scalar: TypeAlias = (
    bool
    | int
    | float
    | Decimal
    | str
    | bytes
    | dt.datetime
    | dt.date
    | dt.time
    | dt.timedelta
    | uuid.UUID
    | Timestamp
    | RelativeTime
    | None
)
_PLAIN: frozenset[type] = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        Decimal,
        str,
        bytes,
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        uuid.UUID,
        Timestamp,
        RelativeTime,
    }
)


def as_scalar(value: object) -> Scalar:
    """Bring a literal into one of the :data:`Scalar` types; numpy, pandas and pyarrow scalars are unwrapped.

    Raises:
        ExpressionError: the value is not a scalar of a known kind.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[return-value]  # just checked
    nanosecond = getattr(value, "nanosecond", None)
    if isinstance(value, dt.datetime):  # pandas.Timestamp among others
        return _from_nanoseconds(int(value.value), value) if nanosecond else _plain_datetime(value)  # type: ignore[attr-defined]  # pandas'
    if kind.__module__ == "numpy" and kind.__name__ in ("datetime64", "timedelta64"):
        return _from_numpy_time(value)
    for name in ("as_py", "item"):
        unwrap: Callable[[], object] | None = getattr(value, name, None)
        if unwrap is not None:
            return _unwrap(value, unwrap)
    for base in (bool, int, float, Decimal, str, bytes, dt.date, dt.time, dt.timedelta, uuid.UUID):
        if isinstance(value, base):  # IntEnum, StrEnum, pandas.Timedelta, ...
            return _plain_subclass(value, base)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise ExpressionError(f"{value!r} of type {kind.__name__} is not a literal that a column can be compared with")


def as_scalars(values: Iterable[object]) -> tuple[Scalar, ...]:
    """Bring each of ``values`` through :func:`as_scalar`. A string is not a collection of values."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ExpressionError(f"expected a collection of values, not {values!r}")
    return tuple(value if type(value) in _PLAIN else as_scalar(value) for value in values)  # type: ignore[misc]  # just checked


def _unwrap(value: object, unwrap: Callable[[], object]) -> Scalar:
    try:
        inner = unwrap()
    except (ValueError, OverflowError) as error:
        kind = getattr(value, "type", None)
        if str(kind).startswith("timestamp[ns"):
            return Timestamp(int(value.value), getattr(kind, "tz", None))  # type: ignore[attr-defined]  # pyarrow's
        raise ExpressionError(f"literal {value!r}: {error}") from error
    if inner is value:
        raise ExpressionError(f"{value!r} is not a literal that a column can be compared with")
    return as_scalar(inner)


def _from_numpy_time(value: Any) -> Scalar:
    if str(value) == "NaT":
        return None
    inner = value.item()
    if not isinstance(inner, int):
        return as_scalar(inner)
    # numpy gives plain integers for what datetime and timedelta cannot hold
    if type(value).__name__ == "datetime64":
        nanoseconds = value.astype("datetime64[ns]")
        if nanoseconds.astype(value.dtype) == value:
            return _from_nanoseconds(int(nanoseconds.astype("int64")), None)
    else:
        microseconds = value.astype("timedelta64[us]")
        if microseconds.astype(value.dtype) == value and isinstance(microseconds.item(), dt.timedelta):
            return as_scalar(microseconds.item())
    raise ExpressionError(f"literal {value!r} is finer or larger than a column can be compared with")


def _from_nanoseconds(nanoseconds: int, source: dt.datetime | None) -> Scalar:
    zone = None if source is None or source.tzinfo is None else str(source.tzinfo)
    micros, rest = divmod(nanoseconds, 1000)
    if rest or zone is not None:
        return Timestamp(nanoseconds, zone)
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)


def _plain_datetime(value: dt.datetime) -> dt.datetime:
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return dt.datetime(*parts, tzinfo=value.tzinfo, fold=value.fold)


def _plain_subclass(value: Any, base: type) -> Scalar:
    if base is dt.date:
        return dt.date(value.year, value.month, value.day)
    if base is dt.time:
        return dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if base is dt.timedelta:
        if getattr(value, "nanoseconds", 0):
            raise ExpressionError(f"literal {value!r} is finer than a microsecond")
        return dt.timedelta(value.days, value.seconds, value.microseconds)
    if base is uuid.UUID:
        return uuid.UUID(int=value.int)
    return base(value)  # type: ignore[no-any-return]  # one of the plain types


def unscaled_decimal(value: Decimal, scale: int) -> int | Fraction:
    """A finite ``value * 10**scale``, exactly: the decimal context's precision plays no part."""
    unscaled = Fraction(value) * Fraction(10) ** scale
    return unscaled.numerator if unscaled.denominator == 1 else unscaled


def nanoseconds(value: dt.datetime | dt.time | dt.timedelta | Timestamp) -> int:
    """Since 1970-01-01 (in UTC if there is a zone, else of the wall clock), since midnight, or of a duration."""
    if isinstance(value, Timestamp):
        return value.nanoseconds
    if isinstance(value, dt.timedelta):
        return value // _MICROSECOND * 1000
    if isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1000
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND * 1000


def literal_key(value: Scalar) -> tuple[object, ...]:
    """What makes two literals the same question: type and exact value, NaN included."""
    if type(value) is float:
        return (float, value.hex())  # tells -0.0 from 0.0, and NaN equals itself
    if type(value) is Decimal:
        return (Decimal, str(value))  # 1.0 and 1.00 compare as other decimal types
    if isinstance(value, (dt.datetime, dt.time)):
        return (type(value), repr(value))  # equal instants in other zones are other literals
    return (type(value), value)


def show(value: Scalar) -> str:
    """A literal for messages and ``explain()``."""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, uuid.UUID, dt.timedelta, RelativeTime)):
        return str(value)
    return "null" if value is None else repr(value)


def show_many(values: tuple[Scalar, ...]) -> str:
    """The first few of many literals, and their number."""
    shown = ", ".join(map(show, values[:_REPR_VALUES]))
    return f"[{shown}]" if len(values) <= _REPR_VALUES else f"[{shown}, ... {len(values)} values]"
