"""Predicates for the rows of a dataset that have one of many keys, of one column or several.

Many keys become one predicate that prunes files, pages and index entries. It may match other rows: whoever joins
matches the rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.expressions import And, Comparison, Expression, KeyIn, Or, col, simplify
from asyncpq.expressions.scalars import NANOSECONDS, Scalar, Timestamp, as_scalar, as_scalars

#: How keys come: as values of the dataset's type, or as doubles to which the dataset's integers are rounded.
KeyForm: TypeAlias = Literal["value", "rounded"]


def _is_bytes(dtype: pa.DataType) -> bool:
    """Return whether asyncpq compares values of this type as bytes, not as text."""
    return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_fixed_size_binary(dtype))


#: Maximum number of keys of several columns in one predicate.
MOST_TUPLES: Final = 256

# Later times share one predicate, since Python lacks values for some; so do times before JoinKey.first_time.
_LAST_TIME: Final = dt.datetime(9999, 12, 29)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_WHOLE: Final = 1 << 53  # smaller integers are exact as doubles


class KeyPredicate(NamedTuple):
    """A predicate that reads all rows with one of some keys."""

    where: Expression  # true for all rows with one of the keys, and perhaps for others
    prune: Expression | None = None  # a stricter predicate to prune by


@dataclass(frozen=True, kw_only=True)
class JoinKey:
    """A key column of a join.

    Attributes:
        name: of the dataset's column.
        stored: its type in the dataset.
        form: "value", or "rounded" for doubles that are compared with the dataset's integers.
        candidates: columns of the left side with the values that a key may have in the dataset.
        place: position among the columns that are read from the dataset.
        type: of the dataset's column in the engine; keys have this type, or are doubles if they are rounded.
        first_day, first_time: earlier keys share one predicate, since files may have them in another calendar.
    """

    name: str
    stored: pa.DataType
    form: KeyForm = "value"
    candidates: tuple[int, ...]
    place: int
    type: pa.DataType
    first_day: dt.date = dt.date(1, 1, 2)
    first_time: dt.datetime = dt.datetime(1, 1, 2)

    @property
    def compared_type(self) -> pa.DataType:
        """The type in which keys compare: rounded keys are compared as doubles."""
        return pa.float64() if self.form == "rounded" else self.type


def predicates(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> Iterator[tuple[range, KeyPredicate]]:
    """Yield ranges of positions in ``keys``, each with a predicate for the rows whose key is at one of these positions.

    A predicate matches all these rows, and perhaps rows with other keys. The caller keeps only rows whose key is in the
    range, so that no row is returned twice.

    Args:
        keys: for each column, values of :attr:`JoinKey.compared_type`, without nulls; the values at one position form
            a key.
    """
    literals = [_literals(column, values) for column, values in zip(columns, keys, strict=True)]
    if len(columns) == 1:
        yield range(len(keys[0])), KeyPredicate(_any_of(columns[0].name, literals[0]))
        return

    def rows_in(begin: int, stop: int) -> Expression:
        return And(tuple(_any_of(key.name, own[begin:stop]) for key, own in zip(columns, literals, strict=True)))

    for begin in range(0, len(keys[0]), MOST_TUPLES):
        positions = range(begin, min(begin + MOST_TUPLES, len(keys[0])))
        tuples = tuple(rows_in(place, place + 1) for place in positions)
        prune = simplify(tuples[0] if len(tuples) == 1 else Or(tuples))
        yield positions, KeyPredicate(rows_in(positions.start, positions.stop), prune)


def one_predicate(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> KeyPredicate:
    """Return one predicate for the rows with any of ``keys``, as :func:`predicates` takes them; it may match others.

    Many keys of several columns become a condition on each column.
    """
    if len(columns) == 1 or len(keys[0]) <= MOST_TUPLES:
        ((_, predicate),) = predicates(columns, keys)
        return predicate
    values = [_literals(column, pc.unique(array)) for column, array in zip(columns, keys, strict=True)]
    return KeyPredicate(And(tuple([_any_of(key.name, own) for key, own in zip(columns, values, strict=True)])))


def bounds_predicate(columns: Sequence[JoinKey], bounds: Sequence[pa.Array]) -> KeyPredicate | None:
    """Return a predicate for the rows between bounds of the keys; None if no literal expresses any of the bounds.

    ``bounds`` are for each column the lower bound and the upper one, of :attr:`JoinKey.compared_type`.
    """
    terms: list[Expression] = []
    for column, array in zip(columns, bounds, strict=True):
        low, high = _literals(column, array)
        if not isinstance(low, Expression):
            terms.append(Comparison(column.name, ">=", low))
        if not isinstance(high, Expression):
            terms.append(Comparison(column.name, "<=", high))
    return KeyPredicate(And(tuple(terms))) if terms else None


def _any_of(name: str, keys: Sequence[Scalar | Expression]) -> Expression:
    """Return the predicate that a column equals one of ``keys``, which are literals, or predicates of their own."""
    values = tuple([key for key in keys if not isinstance(key, Expression)])
    terms: list[Expression] = [col(name) == values[0]] if len(values) == 1 else []
    if len(values) > 1:
        terms.append(KeyIn(name, values))
    terms += dict.fromkeys([key for key in keys if isinstance(key, Expression)])
    return terms[0] if len(terms) == 1 else Or(tuple(terms))


def _literals(column: JoinKey, keys: pa.Array) -> list[Scalar | Expression]:
    """Return for each key its literal, or a predicate if no literal can express the key."""
    dtype = column.stored.value_type if isinstance(column.stored, pa.DictionaryType) else column.stored
    if column.form == "rounded":
        return [_rounded_to(column.name, key) for key in keys.to_pylist()]
    if pa.types.is_floating(dtype):
        nan = col(column.name).is_nan()
        return [nan if key != key else as_scalar(key) for key in keys.to_pylist()]
    if pa.types.is_timestamp(dtype):
        zone = None if dtype.tz is None else dt.UTC
        epoch, first, last = (time.replace(tzinfo=zone) for time in (_EPOCH, column.first_time, _LAST_TIME))
        each = NANOSECONDS[keys.type.unit]
        times = [divmod(key * each, 1000) for key in keys.view(pa.int64()).to_pylist()]
        micros = [number for number, _ in times]
        literals = _times(column.name, micros, epoch, dt.timedelta(microseconds=1), first, last)
        return [
            Timestamp(number * 1000 + rest, dtype.tz) if rest and not isinstance(literal, Expression) else literal
            for literal, (number, rest) in zip(literals, times, strict=True)
        ]
    if pa.types.is_date32(dtype):
        days = keys.view(pa.int32()).to_pylist()
        return _times(column.name, days, _EPOCH.date(), dt.timedelta(days=1), column.first_day, _LAST_TIME.date())
    if pa.types.is_integer(dtype):
        return [as_scalar(int(value)) for value in keys.to_pylist()]
    return list(as_scalars(keys.cast(pa.binary()) if _is_bytes(dtype) else keys))


def _times(
    name: str, keys: Sequence[int], epoch: Any, unit: dt.timedelta, first: Any, last: Any
) -> list[Scalar | Expression]:
    """Return literals of dates or timestamps from numbers of ``unit`` since ``epoch``.

    A key before ``first`` or after ``last``, which Python may not express, becomes a predicate on that side.
    """
    least, most = (first - epoch) // unit, (last - epoch) // unit
    early, late = col(name) < first, col(name) > last
    return [early if key < least else late if key > most else as_scalar(epoch + key * unit) for key in keys]


def _rounded_to(name: str, key: float) -> Scalar | Expression:
    """Return the integer that becomes ``key`` as a double, or a predicate for a range if several integers do."""
    if abs(key) < _WHOLE:
        return int(key)
    low, high = int(math.nextafter(key, -math.inf)), int(math.nextafter(key, math.inf))
    return (col(name) > low) & (col(name) < high)
