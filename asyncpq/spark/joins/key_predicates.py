"""What of a lake is read for some keys: predicates in asyncpq's terms, which no row fails that has one of the keys."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncpq.expressions import And, Comparison, Expression, KeyIn, Not, Or
from asyncpq.scalars import Scalar, as_scalar
from asyncpq.spark.joins.keys import KeyForm, is_bytes
from asyncpq.spark.types.rebase import FIRST_SURE_DAY, FIRST_SURE_TIME

#: Keys of several columns of which each is asked for; of more at once, only the values of each column.
MOST_TUPLES: Final = 256

# Times after it are asked for all together, as those before the first sure ones are: Python has no values for some.
_LAST_TIME: Final = dt.datetime(9999, 12, 29)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_WHOLE: Final = 1 << 53  # as doubles, integers below it are all different


class Asked(NamedTuple):
    """
    Attributes:
        where: true for all rows that have one of the keys, and perhaps for others.
        prune: a sharper one to prune by, or None.
    """

    where: Expression
    prune: Expression | None = None


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """A key column of the lake.

    Attributes:
        name: as asyncpq names it.
        stored: its type in the dataset.
        form: of its keys.
    """

    name: str
    stored: pa.DataType
    form: KeyForm = "value"


def predicates(columns: Sequence[KeyColumn], keys: Sequence[pa.Array]) -> Iterator[tuple[range, Asked]]:
    """What is read for the keys: positions of some of them, and what gives every row that has one of these. It may give
    rows that have other keys, too, which are given again for those.

    Args:
        keys: for each column its values, in Spark's type, without nulls; those of one position are one key.
    """
    parts = [_Column(column, values) for column, values in zip(columns, keys, strict=True)]
    if len(parts) == 1:
        yield range(len(keys[0])), Asked(parts[0].any_of(0, len(keys[0])))
        return
    for begin in range(0, len(keys[0]), MOST_TUPLES):
        stop = min(begin + MOST_TUPLES, len(keys[0]))
        where = And(tuple(part.any_of(begin, stop) for part in parts))
        tuples = tuple(And(tuple(part.any_of(at, at + 1) for part in parts)) for at in range(begin, stop))
        yield range(begin, stop), Asked(where, tuples[0] if len(tuples) == 1 else Or(tuples))


class _Column:
    """The keys of one column, as asyncpq's literals; where a key has none, as a predicate that others share."""

    def __init__(self, column: KeyColumn, keys: pa.Array) -> None:
        self._name = column.name
        kind = column.stored.value_type if isinstance(column.stored, pa.DictionaryType) else column.stored
        self._keys: list[Scalar | Expression] = [
            one if isinstance(one, Expression) else as_scalar(one) for one in self._literals(kind, keys, column.form)
        ]

    def any_of(self, begin: int, stop: int) -> Expression:
        """Rows that have one of the keys ``[begin, stop)``."""
        values: list[Scalar] = []
        others: dict[Expression, None] = {}
        for key in self._keys[begin:stop]:
            if isinstance(key, Expression):
                others[key] = None
            else:
                values.append(key)
        if not others:
            return self._equals(values[0]) if len(values) == 1 else KeyIn(self._name, tuple(values))
        some: list[Expression] = [KeyIn(self._name, tuple(values))] if values else []
        some.extend(others)
        return some[0] if len(some) == 1 else Or(tuple(some))

    def _equals(self, value: Scalar) -> Expression:
        return Comparison(self._name, "==", value)

    def _literals(self, kind: pa.DataType, keys: pa.Array, form: KeyForm) -> list[Any]:
        if form == "rounded":
            return [self._rounded_to(key) for key in keys.to_pylist()]
        if pa.types.is_floating(kind):
            nan = Not(Comparison(self._name, "<=", math.inf))
            return [nan if key != key else key for key in keys.to_pylist()]
        if pa.types.is_timestamp(kind):
            zone = None if kind.tz is None else dt.UTC
            epoch, unit = _EPOCH.replace(tzinfo=zone), dt.timedelta(microseconds=1)
            first, last = FIRST_SURE_TIME.replace(tzinfo=zone), _LAST_TIME.replace(tzinfo=zone)
            return self._times(keys.view(pa.int64()), epoch, unit, first, last)
        if pa.types.is_date32(kind):
            days = keys.view(pa.int32())
            return self._times(days, _EPOCH.date(), dt.timedelta(days=1), FIRST_SURE_DAY, _LAST_TIME.date())
        if is_bytes(kind):
            keys = keys.cast(pa.binary())
        values: list[Any] = keys.to_pylist()
        return [int(value) for value in values] if pa.types.is_integer(kind) else values

    def _times(self, keys: pa.Array, epoch: Any, unit: dt.timedelta, first: Any, last: Any) -> list[Any]:
        """
        Args:
            keys: numbers of ``unit`` since ``epoch``.
        """
        least, most = (first - epoch) // unit, (last - epoch) // unit
        early, late = Comparison(self._name, "<", first), Comparison(self._name, ">", last)
        return [early if key < least else late if key > most else epoch + key * unit for key in keys.to_pylist()]

    def _rounded_to(self, key: float) -> int | Expression:
        """The integers that are ``key`` as doubles."""
        if abs(key) < _WHOLE:
            return int(key)
        low, high = int(math.nextafter(key, -math.inf)), int(math.nextafter(key, math.inf))
        return And((Comparison(self._name, ">", low), Comparison(self._name, "<", high)))
