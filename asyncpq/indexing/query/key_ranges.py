"""Convert a comparison of a predicate to key ranges, which contain the keys of all rows for which it may have a result.

The ranges may contain keys of other rows too. Literals are compared as in :mod:`asyncpq.pruning.literals` and in the
filter; a literal that cannot be compared exactly narrows nothing. ``UNKNOWN_KEY`` is in no range, but every lookup
includes it.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from operator import itemgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.expressions import Atom
from asyncpq.expressions.analysis import (
    Comparable,
    Incomparable,
    Interval,
    Intervals,
    Points,
    ToKey,
    Truth,
    ValueDomain,
    result_values,
)
from asyncpq.expressions.scalars import NANOSECONDS, Duration, Scalar, nanoseconds
from asyncpq.indexing.index_model import AFTER_ALL, NAN_KEY, NULL_KEY, VALUE_TAG, KeyRange
from asyncpq.indexing.key_encoding import (
    END,
    ESCAPED,
    PREFIX_BYTES,
    element_type,
    float_key,
    integer_key,
    is_variable,
    text_key,
    width_of,
)
from asyncpq.pruning.literals import Domain, Key, domain_of, first_sure
from asyncpq.records import dataclass

Ranges: TypeAlias = tuple[KeyRange, ...]

NULLS: Final = KeyRange(NULL_KEY, VALUE_TAG)
NANS: Final = KeyRange(NAN_KEY, AFTER_ALL)
_EVERYTHING: Final = (KeyRange(NULL_KEY, AFTER_ALL),)
_LOW: Final = itemgetter(0)
_MAX_COMPOSITE: Final = 1000


def atom_ranges(atom: Atom, truth: Truth, type_: pa.DataType) -> Ranges | None:
    """Return ranges with the keys of all rows for which ``atom``, a comparison on a column of ``type_``, may have the
    result ``truth``. The keys of a list are those of its elements; a null list has ``NULL_KEY``. The ranges ascend and
    do not overlap. Empty if no row can have the result; None if any row may have it."""
    item = element_type(type_)
    domain, locate, sure = _column(type_ if item is None else item)
    wanted = result_values(atom, truth, domain)
    values = wanted.values if sure is None else _of_any_calendar(wanted.values, sure)
    if item is not None and not wanted.of_elements:  # an element's key does not show the list's other elements
        return None if values else (NULLS,) * wanted.null
    if (item is None and wanted.of_elements) or not wanted.comparable:
        return None
    ranges = [NULLS] if wanted.null else []
    if not isinstance(values, Points):
        ranges += [_between(interval, locate) for interval in values]
    elif values.inverted:
        ranges += _outside([locate(key) for key in values.keys])
    else:
        ranges += [place.point or KeyRange(place.low, place.high) for place in map(locate, values.keys)]
    if wanted.nan:
        ranges.append(NANS)
    merged = merged_ranges(ranges)
    return None if merged == _EVERYTHING else merged


def merged_ranges(ranges: Iterable[KeyRange]) -> Ranges:
    """Return ranges with the same keys that ascend and do not touch each other; empty ranges are left out."""
    merged: list[KeyRange] = []
    for low, high in sorted(ranges, key=_LOW):
        if high is not None and low >= high:
            continue
        last = merged[-1] if merged else None
        if last is None or (last.high is not None and low > last.high):
            merged.append(KeyRange(low, high))
        elif last.high is not None and (high is None or high > last.high):
            merged[-1] = KeyRange(last.low, high)
    return tuple(merged)


def intersected(left: Ranges, right: Ranges) -> Ranges:
    """Return the keys that are in both ``left`` and ``right``. All ranges ascend and do not overlap."""
    both: list[KeyRange] = []
    first, second = 0, 0
    while first < len(left) and second < len(right):
        mine, other = left[first], right[second]
        low = max(mine.low, other.low)
        high = mine.high if other.high is None else other.high if mine.high is None else min(mine.high, other.high)
        if high is None or low < high:
            both.append(KeyRange(low, high))
        if other.high is None or (mine.high is not None and mine.high < other.high):
            first += 1
        else:
            second += 1
    return tuple(both)


def is_wide(ranges: Ranges) -> bool:
    """Return whether the ranges hold nearly all keys, as those of ``!=`` do, so that a lookup reads nearly all rows."""
    begins = ends = False
    for low, high in ranges:
        begins = begins or (low <= VALUE_TAG and (high is None or high > VALUE_TAG))
        ends = ends or (low < NAN_KEY and (high is None or high >= NAN_KEY))
    return begins and ends


def point_key(range_: KeyRange) -> bytes | None:
    """Return the only key in the range; None if the range may contain several."""
    low, high = range_
    return low if high == low + b"\x00" or range_ in (NULLS, NANS) else None


def point_keys(ranges: Ranges) -> tuple[bytes, ...] | None:
    """Return the only key of each range; None if one of the ranges may contain several keys."""
    keys = tuple(key for key in map(point_key, ranges) if key is not None)
    return keys if len(keys) == len(ranges) else None


# -- literals among the keys ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a literal stands among the sorted keys of a column."""

    low: bytes  # keys of greater and equal values are at or above it
    high: bytes  # keys of less and equal values are below it. Where it is ``low``, no value is equal
    exact: bool = True  # keys of other values are outside of the two
    point: KeyRange | None = None  # keys of equal values


_Locate: TypeAlias = Callable[[Any], _Place]
_BEFORE: Final = _Place(VALUE_TAG, VALUE_TAG)
_AFTER: Final = _Place(NAN_KEY, NAN_KEY)


def _at(key: bytes) -> _Place:
    return _Place(key, key + b"\x00")


def _after(key: bytes) -> _Place:
    """Return the place of a literal that lies between ``key`` and the next possible key."""
    return _Place(key + b"\x00", key + b"\x00")


def _integers(width: int, *, signed: bool) -> _Locate:
    least, greatest = (-(1 << 8 * width - 1), (1 << 8 * width - 1) - 1) if signed else (0, (1 << 8 * width) - 1)

    def locate(key: int | float | Fraction) -> _Place:
        if key < least:
            return _BEFORE
        if key > greatest:
            return _AFTER
        floor = math.floor(key)
        body = integer_key(floor, width, signed=signed)
        return _at(body) if floor == key else _after(body)

    return locate


def _floats(key: Key) -> _Place:
    try:
        near = float(key)
    except OverflowError:
        near = math.inf if key > 0 else -math.inf  # type: ignore[operator]  # a number
    body = float_key(near)
    if near == key:
        return _at(body)
    return _after(body) if near < key else _Place(body, body)  # type: ignore[operator]  # a number


def _texts(key: bytes) -> _Place:
    if len(key) <= PREFIX_BYTES:
        return _at(VALUE_TAG + key)
    head = KeyRange.prefix(VALUE_TAG + key[:PREFIX_BYTES])
    assert head.high is not None, "the tag can be counted up"
    return _Place(head.low + b"\x00", head.high, exact=False, point=KeyRange.point(text_key(key)))


@functools.cache
def _column(type_: pa.DataType) -> tuple[ValueDomain, _Locate, int | None]:
    """Return the rules by which literals compare with the column's values, a function that locates a literal among
    the column's keys, and :func:`first_sure`."""
    kind = kind_of(type_)
    domain = domain_of(kind)
    if pa.types.is_duration(type_):
        domain = ValueDomain(_durations(NANOSECONDS[type_.unit]), shared=True)
    if kind.domain in (Domain.FLOAT, Domain.FLOAT32):
        return domain, _floats, None
    if kind.is_bytes:
        return domain, _texts, None
    if kind.domain is Domain.BOOLEAN:
        return domain, lambda key: _at(VALUE_TAG + bytes([key])), None
    unsigned = pa.types.is_uint64(type_.value_type if isinstance(type_, pa.DictionaryType) else type_)
    return domain, _integers(width_of(type_) or 8, signed=not unsigned), first_sure(kind)


def _of_any_calendar(values: Intervals | Points, sure: int) -> Intervals | Points:
    """Return ``values`` and, if they contain some of the values before ``sure`` but not others, all of these: an index
    may have been built when old values were read in another calendar."""
    if isinstance(values, Points):
        kept = [key for key in values.keys if key >= sure]
        if values.inverted:
            return Points(kept, inverted=True)
        return (
            values if len(kept) == len(values.keys) else (Interval(None, sure), *[Interval(key, key) for key in kept])
        )
    widened: list[Interval] = []
    for interval in values:
        if interval.high is not None and interval.high < sure:
            interval = Interval(None, sure)
        elif interval.low is not None and interval.low < sure:
            interval = interval._replace(low=None, low_open=False)
        if not (widened and widened[-1] == interval):
            widened.append(interval)
    return tuple(widened)


def _durations(unit: int) -> ToKey:
    def convert(value: Scalar) -> Comparable | Incomparable:
        if not isinstance(value, (dt.timedelta, Duration)):
            return Incomparable("no duration")
        key = Fraction(nanoseconds(value), unit)
        return Comparable(key, same_type=key.denominator == 1)

    return convert


# -- ranges of values -----------------------------------------------------------------------------


def _between(interval: Interval, locate: _Locate) -> KeyRange:
    """Return the range with the keys of the values in ``interval``; ``locate`` places its ends among the column's
    keys."""
    low, high = VALUE_TAG, NAN_KEY
    if interval.low is not None:
        place = locate(interval.low)
        low = place.high if interval.low_open and place.exact else place.low
    if interval.high is not None:
        place = locate(interval.high)
        high = place.low if interval.high_open and place.exact else place.high
    return KeyRange(low, high)


def _outside(places: Iterable[_Place]) -> Ranges:
    """Return ranges with the keys of the values that are equal to none of the literals, which are at ``places``."""
    gaps: list[KeyRange] = []
    low = VALUE_TAG
    for place in sorted((place for place in places if place.exact), key=lambda place: place.low):
        gaps.append(KeyRange(low, place.low))
        low = place.high
    return (*gaps, KeyRange(low, NAN_KEY))


# -- several columns ------------------------------------------------------------------------------


def composite_ranges(
    per_column: Sequence[Ranges | None], types: Sequence[pa.DataType], limit: int = _MAX_COMPOSITE
) -> Ranges | None:
    """Return ranges with the composite keys of the rows whose key of each column is in that column's ranges.

    Single keys of the first columns are combined, as long as there are at most ``limit`` combinations; then come the
    ranges of one more column. Columns after that one are ignored.

    ``per_column`` has the ranges that :func:`atom_ranges` returned for each column; None allows any key. A column with
    more than ``limit`` ranges counts as one range that spans them all. The ranges ascend and do not overlap. The result
    is empty if no row matches, None if any row may match.
    """
    if () in per_column:
        return ()
    prefixes = [b""]
    for ranges, type_ in zip(per_column, types, strict=True):
        if ranges is None:
            break
        keys = point_keys(ranges)
        if keys is not None and len(keys) * len(prefixes) <= limit:
            components = [_component(key, type_) for key in keys]
            prefixes = [prefix + component for prefix in prefixes for component in components]
            continue
        if len(ranges) * len(prefixes) > limit:
            ranges = (KeyRange(ranges[0].low, ranges[-1].high),)
        cuts = [(_cut(low, type_), None if high is None else _cut(high, type_)) for low, high in ranges]
        return merged_ranges(
            KeyRange(prefix + low, prefix + (AFTER_ALL if high is None else high))
            for prefix in prefixes
            for low, high in cuts
        )
    if prefixes == [b""]:
        return None
    # What follows a component is another one, which begins with a tag, or nothing.
    return merged_ranges(KeyRange(prefix, prefix + AFTER_ALL) for prefix in prefixes)


def _component(key: bytes, type_: pa.DataType) -> bytes:
    """Return the bytes that stand for one column's ``key`` in a composite key
    (:func:`asyncpq.indexing.key_encoding.composite`)."""
    if key[:1] != VALUE_TAG or not is_variable(type_):
        return key
    return _cut(key, type_) + END


def _cut(cut: bytes, type_: pa.DataType) -> bytes:
    """Convert a bound between keys of one column, ``cut``, to the bound between composite keys at the same place."""
    if cut[:1] != VALUE_TAG:
        return cut
    if is_variable(type_):
        return VALUE_TAG + cut[1:].replace(b"\x00", ESCAPED)
    width = width_of(type_)
    if width is None or len(cut) <= width + 1:
        return cut
    return cut[: width + 1] + AFTER_ALL  # right after a value: after all that goes on with another column
