"""Sets of values as intervals between literals.

Literals are ordered within their kind only: numbers are one kind, and so are moments with a zone. Intervals ascend
and are apart.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from asyncpq.expressions.scalars import Duration, Scalar, Timestamp, nanoseconds, show

_MAX_EXPONENT: Final = 400  # of decimals that are made fractions
_SURROGATES: Final = (0xD800, 0xDFFF)


class Interval(NamedTuple):
    """Values from ``low`` to ``high``; None where it has no end."""

    low: Scalar = None
    high: Scalar = None
    low_open: bool = False
    high_open: bool = False

    def __str__(self) -> str:
        if self.low is not None and self.low is self.high:
            return show(self.low)
        low = "(" if self.low is None or self.low_open else "["
        high = ")" if self.high is None or self.high_open else "]"
        ends = ("" if end is None else show(end) for end in (self.low, self.high))
        return f"{low}{', '.join(ends)}{high}"


Intervals: TypeAlias = tuple[Interval, ...]
EVERYTHING: Final[Intervals] = (Interval(),)


# -- the order of literals ------------------------------------------------------------------------


def _decimal(value: Decimal) -> Fraction | None:
    if not value.is_finite() or abs(value.adjusted()) > _MAX_EXPONENT:
        return None
    return Fraction(value)


def _moment(value: dt.datetime | Timestamp) -> tuple[str, int]:
    zone = value.timezone if isinstance(value, Timestamp) else value.tzinfo
    return "time of no zone" if zone is None else "instant", nanoseconds(value)


def _duration(value: dt.timedelta | Duration) -> tuple[str, int]:
    return "duration", nanoseconds(value)


def _plain(kind: str) -> Callable[[Any], tuple[str, Any]]:
    return lambda value: (kind, value)


_ORDER: Final[Mapping[type, Callable[[Any], tuple[str, Any]]]] = {
    bool: _plain("boolean"),
    int: _plain("number"),
    float: _plain("number"),
    Decimal: lambda value: ("number", _decimal(value)),
    str: _plain("string"),
    bytes: _plain("binary"),
    dt.date: _plain("date"),
    dt.datetime: _moment,
    Timestamp: _moment,
    dt.timedelta: _duration,
    Duration: _duration,
    uuid.UUID: lambda value: ("binary", value.bytes),
}


def order_key(value: Scalar) -> tuple[str, Any] | None:
    """The kind of a literal, and what orders it among those of its kind; None if it is not ordered."""
    order = _ORDER.get(type(value))
    if order is None or value != value:
        return None
    kind, key = order(value)
    return None if key is None else (kind, key)


def _key(value: Scalar) -> Any:
    ordered = order_key(value)
    assert ordered is not None, "ends of intervals are ordered"
    return ordered[1]


# -- sets of one kind -----------------------------------------------------------------------------


def points(values: Collection[Scalar]) -> Intervals:
    """The values, ascending; everything if they are not of one kind."""
    if not are_ordered(values):
        return EVERYTHING
    by_key = {_key(value): value for value in values}
    return tuple([Interval(by_key[key], by_key[key]) for key in sorted(by_key)])


def are_ordered(values: Collection[Scalar]) -> bool:
    """Whether the values are of one kind, and ordered."""
    kinds = {None if ordered is None else ordered[0] for ordered in map(order_key, values)}
    return len(kinds) <= 1 and None not in kinds


def prefixed(prefix: str | bytes) -> Intervals:
    """The strings that begin with ``prefix``."""
    if not prefix:
        return EVERYTHING
    above = _above(prefix)
    return (Interval(prefix, above, high_open=above is not None),)


def _above(prefix: str | bytes) -> str | bytes | None:
    """The least string above all that begin with ``prefix``; None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    text = prefix.rstrip(chr(sys.maxunicode))
    if not text:
        return None
    after = ord(text[-1]) + 1
    first, last = _SURROGATES
    return text[:-1] + chr(last + 1 if first <= after <= last else after)


def kind_of(intervals: Intervals) -> str | None:
    """The kind of the ends; None if there are none."""
    ends = (end for interval in intervals[:1] for end in (interval.low, interval.high) if end is not None)
    ordered = (order_key(end) for end in ends)
    return next((found[0] for found in ordered if found is not None), None)


# Where an interval begins and ends: before all values, (-1,); before or after one, (0, key, False or True);
# after all, (1,).
_Cut: TypeAlias = tuple[Any, ...]


def _begin(interval: Interval) -> _Cut:
    return (-1,) if interval.low is None else (0, _key(interval.low), interval.low_open)


def _end(interval: Interval) -> _Cut:
    return (1,) if interval.high is None else (0, _key(interval.high), not interval.high_open)


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """The values in both, whose ends are of one kind."""
    found: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        one, other = left[i], right[j]
        low = one if _begin(one) >= _begin(other) else other
        high = one if _end(one) <= _end(other) else other
        both = Interval(low.low, high.high, low.low_open, high.high_open)
        if _begin(both) < _end(both):
            found.append(both)
        if high is one:
            i += 1
        else:
            j += 1
    return tuple(found)


def unite(left: Intervals, right: Intervals) -> Intervals:
    """The values in either, whose ends are of one kind."""
    found: list[Interval] = []
    for interval in sorted((*left, *right), key=_begin):
        last = found[-1] if found else None
        if last is None or _begin(interval) > _end(last):
            found.append(interval)
        elif _end(interval) > _end(last):
            found[-1] = Interval(last.low, interval.high, last.low_open, interval.high_open)
    return tuple(found)


def complement(intervals: Intervals) -> Intervals:
    """What is between the intervals, which are ascending and apart."""
    found: list[Interval] = []
    low, low_open = None, False
    for interval in intervals:
        if interval.low is not None:
            found.append(Interval(low, interval.low, low_open, not interval.low_open))
        low, low_open = interval.high, not interval.high_open
    if not intervals or low is not None:
        found.append(Interval(low, None, low_open))
    return tuple(found)
