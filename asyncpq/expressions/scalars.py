"""The literals of predicates: Python values of a few plain types.

Scalars of numpy, pandas and pyarrow are unwrapped by duck typing, without importing those libraries.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
import reprlib
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from asyncpq.checkpoints import PIECE, checkpoint, pieces
from asyncpq.errors import ExpressionError
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from fractions import Fraction

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds in each unit of Arrow and Parquet."""

_DOUBLE = struct.Struct("<d")
_REPR_VALUES = 8
_REPR_CHARACTERS = 200
_DAYS_OF_400_YEARS = 146_097
EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_LAST_DAY = dt.date.max.toordinal()
_EPOCH = dt.datetime(1970, 1, 1)
EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_WIDE = Context(prec=100)
#: Digits that survive where a writer turns a number into an 8-byte float first.
_FLOAT_DIGITS = 15
_FLOAT_ERROR = Decimal(2) ** -50


@dataclass(frozen=True, slots=True)
class Day:
    """A date outside of the years 1 to 9999, which ``date`` cannot represent. It is ordered among ``date`` objects.

    Attributes:
        days: since 1970-01-01, in the proleptic Gregorian calendar.
    """

    days: int

    def __lt__(self, other: object) -> bool:
        return self.days < days(other) if type(other) in (Day, dt.date) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.days <= days(other) if type(other) in (Day, dt.date) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.days > days(other) if type(other) in (Day, dt.date) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.days >= days(other) if type(other) in (Day, dt.date) else NotImplemented

    def __str__(self) -> str:
        cycles, inside = divmod(self.days, _DAYS_OF_400_YEARS)
        date = dt.date.fromordinal(EPOCH_DAY + inside)
        year = date.year + 400 * cycles
        return f"{'-' if year < 0 else ''}{abs(year):04}-{date.month:02}-{date.day:02}"


def days(value: Any) -> int:
    """Return the days from 1970-01-01 to a ``date`` or a :class:`Day`."""
    return value.days if type(value) is Day else value.toordinal() - EPOCH_DAY


def day(since_epoch: int) -> dt.date | Day:
    """Convert days since 1970-01-01 to a ``date``; to a :class:`Day` outside of the years 1 to 9999."""
    ordinal = EPOCH_DAY + since_epoch
    return dt.date.fromordinal(ordinal) if 1 <= ordinal <= _LAST_DAY else Day(since_epoch)


def days_of(year: int, month: int, day_of_month: int) -> int:
    """Return the days from 1970-01-01 to a date of the proleptic Gregorian calendar, which repeats every 400 years and
    has a year 0. Raises ValueError if there is no such date."""
    cycles, inside = divmod(year, 400)
    inside += 400  # into Python's range of years
    return dt.date(inside, month, day_of_month).toordinal() - EPOCH_DAY + (cycles - 1) * _DAYS_OF_400_YEARS


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time in nanoseconds, for times that ``datetime`` cannot represent exactly.

    Attributes:
        timezone: a zone name, or None for local (zoneless) time.
    """

    nanoseconds: int  # since 1970-01-01, in UTC when ``timezone`` is given, else of the wall clock
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of day in nanoseconds, for times that ``time`` cannot represent exactly."""

    nanoseconds: int  # since midnight

    def __str__(self) -> str:
        seconds, fraction = divmod(self.nanoseconds, NANOSECONDS["s"])
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:09}"


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in nanoseconds, for durations that ``timedelta`` cannot represent exactly."""

    nanoseconds: int  # negative for durations into the past

    def __str__(self) -> str:
        return f"{self.nanoseconds} ns"


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """A time relative to the beginning of a read; made by :func:`now`. A ``timedelta`` can be added or subtracted.

    Attributes:
        offset: from the beginning; negative before it.
    """

    offset: dt.timedelta

    def __add__(self, other: object) -> RelativeTime:
        if not isinstance(other, dt.timedelta):
            return NotImplemented
        moved = as_scalar(self.offset + other)  # pandas' timedelta is finer than the plain one
        if not isinstance(moved, dt.timedelta):
            raise ExpressionError(f"{other!r} is finer than a microsecond", hint="Add whole microseconds to now().")
        return RelativeTime(moved)

    __radd__ = __add__

    def __sub__(self, other: object) -> RelativeTime:
        return self + -other if isinstance(other, dt.timedelta) else NotImplemented

    def __str__(self) -> str:
        if not self.offset:
            return "now"
        text = str(abs(self.offset)).removesuffix(", 0:00:00")
        return f"now {'-' if self.offset < dt.timedelta(0) else '+'} {text}"


@dataclass(frozen=True, slots=True)
class Untyped:
    """A literal of SQL that states no type, such as ``0.3`` or ``'2024-05-01'``. It takes the type of the column that
    it is compared with.

    Attributes:
        is_number: otherwise it is text in quotes.
    """

    text: str
    is_number: bool

    def __str__(self) -> str:
        return self.text if self.is_number else repr(self.text)


def now() -> RelativeTime:
    """Return the time at which a read begins, for use in predicates: ``col("ts") >= now() - timedelta(days=7)``.

    The time is taken anew for each read. Timestamps with a time zone are compared with that instant, timestamps without
    one with the wall clock of UTC at that instant.
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
    | Day
    | Timestamp
    | TimeOfDay
    | Duration
    | RelativeTime
    | Untyped
    | None
)
SCALAR_TYPES: frozenset[type] = frozenset(get_args(Scalar))
Moment: TypeAlias = dt.datetime | dt.time | dt.timedelta | Timestamp | TimeOfDay | Duration
_BASES: tuple[type, ...] = (bool, int, float, Decimal, str, bytes, dt.date, dt.time, uuid.UUID)
_ARROW_VALUES = frozenset({"extension<arrow.uuid>", "extension<arrow.bool8>"})  # of which as_py() is the value
DAY_MILLISECONDS = 86_400_000
_HINT = (
    "Literals are None, bool, int, float, Decimal, str, bytes, date, datetime, time, timedelta and UUID, and the "
    "scalars of numpy, pandas and pyarrow that stand for one."
)


def as_scalar(value: object) -> Scalar:
    """Convert a literal into one of the :data:`Scalar` types, exactly, to the nanosecond.

    Scalars of numpy, pandas and pyarrow are unwrapped.

    Raises ExpressionError if the value is not a scalar of a known type.
    """
    if type(value) in SCALAR_TYPES:
        return value  # type: ignore[return-value]  # just checked
    try:
        return _unwrapped(value)
    except ExpressionError:
        raise
    except (ValueError, OverflowError, TypeError) as error:
        raise ExpressionError(f"literal {described(value)}: {error}", hint=_HINT) from error


def _unwrapped(value: Any) -> Scalar:
    kind = type(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if getattr(value, "shape", ()):
        _refuse_several_columns(value)
        raise ExpressionError(
            f"a {kind.__name__} is not one literal but several", hint="Use is_in(...) to match one of several values."
        )
    if isinstance(value, dt.datetime):
        return None if value != value else _moment(value)  # pandas.NaT is a datetime
    if isinstance(value, dt.timedelta):
        plain = dt.timedelta(value.days, value.seconds, value.microseconds)
        return duration(nanoseconds(plain) + getattr(value, "nanoseconds", 0))
    if isinstance(value, _BASES):  # IntEnum, StrEnum, numpy.float64, ...
        return _plain_subclass(value, next(base for base in _BASES if isinstance(value, base)))
    if hasattr(value, "as_py"):
        return _from_arrow(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("datetime64", "timedelta64"):
        return _from_numpy_time(value)
    if hasattr(value, "item"):
        inner = value.item()
        if type(inner) is not kind:
            return as_scalar(inner)
    if kind.__name__ == "NAType" and kind.__module__.startswith("pandas"):
        return None
    raise ExpressionError(
        f"{described(value)} of type {kind.__name__} is not a literal that a column can be compared with", hint=_HINT
    )


def described(value: object) -> str:
    """Return a short form of any value, for messages."""
    try:
        return _SHORT.repr(value)
    except Exception:  # noqa: BLE001  # it is a long int, pyarrow makes a Python value for it, or its class is broken
        return f"of type {getattr(value, 'type', type(value).__name__)}"


class _ShortRepr(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:  # reprlib's shows an address if repr() fails
        text = repr(x)
        return text if len(text) <= _REPR_CHARACTERS else f"{text[:_REPR_CHARACTERS]}..."


_SHORT = _ShortRepr()


def duration(nanoseconds: int) -> dt.timedelta | Duration:
    """Convert nanoseconds to a ``timedelta``; to a :class:`Duration` if that cannot represent them exactly."""
    micros, rest = divmod(nanoseconds, 1000)
    try:
        return Duration(nanoseconds) if rest else dt.timedelta(microseconds=micros)
    except OverflowError:
        return Duration(nanoseconds)


def time_of_day(nanoseconds: int) -> dt.time | TimeOfDay:
    """Convert nanoseconds since midnight to a ``time``; to a :class:`TimeOfDay` if that cannot represent them
    exactly."""
    micros, rest = divmod(nanoseconds, 1000)
    if rest or not 0 <= nanoseconds < NANOSECONDS["s"] * 86_400:
        return TimeOfDay(nanoseconds)
    return (_EPOCH + dt.timedelta(microseconds=micros)).time()


def timestamp(nanoseconds: int, timezone: str | None) -> dt.datetime | Timestamp:
    """Convert nanoseconds since 1970 to a ``datetime``; to a :class:`Timestamp` if that is inexact, or has a zone.

    ``timezone``: the name of the zone. With a zone, ``nanoseconds`` count in UTC; without one, on the wall clock.
    """
    micros, rest = divmod(nanoseconds, 1000)
    if rest or timezone is not None:
        return Timestamp(nanoseconds, timezone)
    try:
        return _EPOCH + dt.timedelta(microseconds=micros)
    except OverflowError:
        return Timestamp(nanoseconds)


# -- of other libraries ---------------------------------------------------------------------------


def _from_arrow(value: Any) -> Scalar:
    """Convert a pyarrow scalar exactly; ``as_py()`` would truncate times and durations to microseconds."""
    if not value.is_valid:
        return None
    kind = value.type
    inner: Any = getattr(value, "value", None)
    name = str(kind)
    if hasattr(inner, "as_py") and name not in _ARROW_VALUES:  # of a dictionary, of another extension type, ...
        return as_scalar(inner)
    family = name.partition("[")[0]
    if family in ("time32", "time64"):
        return time_of_day(inner * NANOSECONDS[kind.unit])
    if family == "duration":
        return duration(inner * NANOSECONDS[kind.unit])
    if family == "timestamp":
        return _from_arrow_timestamp(value, inner * NANOSECONDS[kind.unit])
    if family == "date32":
        return day(inner)
    if family == "date64":
        if inner % DAY_MILLISECONDS:
            raise ValueError("a date64 must be a midnight, but this value has a time of day")
        return day(inner // DAY_MILLISECONDS)
    return as_scalar(value.as_py())


def _from_arrow_timestamp(value: Any, since_epoch: int) -> Scalar:
    zone = value.type.tz
    if zone is None or value.type.unit == "ns":
        return timestamp(since_epoch, zone)
    try:
        return as_scalar(value.as_py())
    except (ValueError, OverflowError, KeyError):  # before year 1, an unknown zone, ...
        return Timestamp(since_epoch, zone)


def _from_numpy_time(value: Any) -> Scalar:
    if value != value:  # NaT
        return None
    inner = value.item()
    if not isinstance(inner, int):
        return as_scalar(inner)
    # numpy returns integers for times that datetime and timedelta cannot represent
    is_moment = type(value).__name__ == "datetime64"
    held = re.search(r"\[(\d*)([a-z]+)\]", value.dtype.str, re.IGNORECASE)  # the unit
    unit = None if held is None else _NUMPY_NANOSECONDS.get(held[2])
    if held is None or unit is None:
        raise ExpressionError(
            f"literal {value!r} has a unit that columns cannot be compared with",
            hint="Convert the literal to numpy's unit ns, us, ms or s.",
        )
    if is_moment and held[2] == "D":
        return day(inner * int(held[1] or 1))
    since_epoch = inner * int(held[1] or 1) * unit
    return timestamp(since_epoch, None) if is_moment else duration(since_epoch)


_NUMPY_NANOSECONDS = {
    **NANOSECONDS,
    "m": 60 * NANOSECONDS["s"],
    "h": 3_600 * NANOSECONDS["s"],
    "D": 86_400 * NANOSECONDS["s"],
    "W": 604_800 * NANOSECONDS["s"],
}


def _moment(value: dt.datetime) -> dt.datetime | Timestamp:
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    plain = dt.datetime(*parts, tzinfo=value.tzinfo, fold=value.fold)
    finer = getattr(value, "nanosecond", 0)  # pandas'
    zone = None if value.tzinfo is None else str(value.tzinfo)
    return Timestamp(nanoseconds(plain) + finer, zone) if finer else plain


def _plain_subclass(value: Any, base: type) -> Scalar:
    if base is dt.date:
        return dt.date(value.year, value.month, value.day)
    if base is dt.time:
        return dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)
    if base is uuid.UUID:
        return uuid.UUID(int=value.int)
    return base(value)  # type: ignore[no-any-return]  # one of the plain types


# -- several --------------------------------------------------------------------------------------


def is_collection(value: object) -> bool:
    """Return whether ``value`` is a collection of literals; text and bytes are not."""
    if type(value) in SCALAR_TYPES or isinstance(value, (str, bytes, bytearray, memoryview)) or hasattr(value, "as_py"):
        return False
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


def as_scalars(values: object) -> tuple[Scalar, ...]:
    """Convert each value of a collection with :func:`as_scalar`.

    ``values``: any iterable, or one column of pyarrow, numpy, pandas or Polars. NaN of pandas is null, as in pyarrow.
    Raises ExpressionError if ``values`` is not a collection, or one of the values is not a scalar.
    """
    _refuse_several_columns(values)
    if not is_collection(values):
        raise ExpressionError(
            f"expected a collection of values, not {described(values)}", hint="Write [...] around the value."
        )
    scalars: list[Scalar] = []
    for piece in _pieces(values):
        scalars += piece if SCALAR_TYPES.issuperset(map(type, piece)) else map(as_scalar, piece)
    if type(values).__module__.startswith("pandas"):
        return tuple(None if type(value) is float and value != value else value for value in scalars)
    return tuple(scalars)


def _refuse_several_columns(values: object) -> None:
    """Raise ExpressionError if ``values`` is a frame, a table or an array of several dimensions."""
    if len(getattr(values, "shape", ())) > 1:
        raise ExpressionError(
            f"expected one column of values, not a {type(values).__name__} of several columns",
            hint='Take one of its columns, such as frame["id"].',
        )


def _pieces(values: Any) -> Iterator[list[Any]]:
    """Yield the values of a collection as Python values, :data:`asyncpq.checkpoints.PIECE` at once, converted by the
    collection's own library in one call if that is exact."""
    dtype = getattr(values, "dtype", None)
    if type(values).__module__.startswith("polars"):
        values = values.to_arrow()  # its own values are cut to microseconds
    elif hasattr(dtype, "pyarrow_dtype"):  # pandas with values of pyarrow
        values = values.array.__arrow_array__()
    convert: Callable[[Any], list[Any]] = list
    if hasattr(values, "to_pylist"):
        name = str(values.type)
        if not any(text in name for text in _CHANGED_BY_ARROW):
            convert = _python_values
    elif type(values).__module__ == "numpy" and getattr(dtype, "kind", "") in "biufSU":
        convert = type(values).tolist
    if convert is list:
        remaining = iter(values)
        while piece := list(itertools.islice(remaining, PIECE)):
            checkpoint()
            yield piece
    else:
        yield from map(convert, pieces(values))


def _python_values(values: Any) -> list[Any]:
    try:
        return list(values.to_pylist())
    except (ValueError, OverflowError):  # of a value that is no Python object as_scalar() says so
        return list(values)


_CHANGED_BY_ARROW = ("[ns", "date64", "time32", "time64")
"""What the types have in their names whose values ``as_py()`` may change: it cuts nanoseconds, and takes times of day
beyond a day for those of another day."""

_FAR = 10_000  # digits


def unscaled_decimal(value: Decimal, scale: int) -> int | Fraction:
    """Return ``value * 10**scale`` exactly, regardless of the decimal context. ``value`` must be finite.

    A value of more than 10,000 digits before the point, or of as many zeros behind it, stands for a nearer one: it
    compares equally with all values of columns, and the exact number would fill the memory.
    """
    if value and abs(value.adjusted()) > _FAR:
        value = Decimal((int(value.is_signed()), (1,), _FAR if value.adjusted() > 0 else -_FAR))
    from fractions import Fraction  # few predicates need it

    unscaled = Fraction(value) * Fraction(10) ** scale
    return unscaled.numerator if unscaled.denominator == 1 else unscaled


def exact_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    """Return ``value`` with ``scale`` digits after the point, equal to it and of at most ``precision`` digits.

    Raises ArithmeticError if there is no such value. Decimals from outside are checked before pyarrow converts them:
    pyarrow 26 does not check how far it moves the point, and ``Decimal("1e-100000000")`` crashes the process.
    """
    if not value.is_finite():
        raise InvalidOperation(f"{value} is not finite")
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    return value.quantize(Decimal((0, (1,), -scale)), context=exact)


def widened_decimal(bound: Decimal, precision: int, scale: int, side: int) -> Decimal:
    """Return the bound of a column of decimals, moved outwards to ``scale`` digits after the point, and by as much as a
    writer may have rounded it that makes 8-byte floats of decimals, as deltalake does.

    ``side``: -1 for a lower bound, 1 for an upper one.
    """
    if precision > _FLOAT_DIGITS:
        bound = _WIDE.add(bound, _WIDE.multiply(side * abs(bound), _FLOAT_ERROR))
    # it may exceed the column's precision, as may the values themselves
    return bound.quantize(Decimal((0, (1,), -scale)), ROUND_CEILING if side > 0 else ROUND_FLOOR, _WIDE)


def nanoseconds(value: Moment) -> int:
    """Convert a point in time, a time of day or a duration to nanoseconds.

    Points in time count from 1970-01-01: in UTC if they have a zone, otherwise on the wall clock. Times of day count
    from midnight.
    """
    if isinstance(value, (Timestamp, TimeOfDay, Duration)):
        return value.nanoseconds
    if isinstance(value, dt.timedelta):
        return value // _MICROSECOND * 1000
    if isinstance(value, dt.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) * 1000
    return (value - (_EPOCH if value.tzinfo is None else EPOCH_UTC)) // _MICROSECOND * 1000


def literal_key(value: Scalar) -> tuple[object, ...]:
    """Return a hashable key: two literals have equal keys if they have the same type and exact value; two
    NaNs, if they have the same bits."""
    if type(value) is float:
        return (float, value.hex() if value == value else _DOUBLE.pack(value))  # tells -0.0 from 0.0
    if type(value) is Decimal:
        return (Decimal, str(value))  # 1.0 and 1.00 compare as other decimal types
    if isinstance(value, (dt.datetime, dt.time)):
        return (type(value), repr(value))  # equal instants in other zones are other literals
    return (type(value), value)


def show(value: Scalar) -> str:
    """Return the text of a literal for messages and ``explain()``."""
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, uuid.UUID, dt.timedelta, Day, TimeOfDay, Duration, RelativeTime, Untyped)):
        return str(value)
    return "null" if value is None else repr(value)


def show_many(values: tuple[Scalar, ...]) -> str:
    """Return a text for messages: the first few literals, and how many there are in all."""
    shown = ", ".join(map(show, values[:_REPR_VALUES]))
    return f"[{shown}]" if len(values) <= _REPR_VALUES else f"[{shown}, ... {len(values)} values]"
