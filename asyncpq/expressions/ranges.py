"""Which values a column may have where a predicate is true: intervals, and whether nulls and NaN may be among them.

Every answer is a superset. A literal is taken for the value that Python has it for, as the filter does for all
literals that a column's type holds, and for numbers of integer and decimal columns. Elsewhere pyarrow's casts
decide, which may round; such atoms are named by ``inexact``, and say nothing of values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from asyncpq.expressions.intervals import (
    EVERYTHING,
    Interval,
    Intervals,
    are_ordered,
    complement,
    intersect,
    kind_of,
    order_key,
    points,
    prefixed,
    unite,
)
from asyncpq.expressions.tree import (
    And,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Expression,
    Has,
    HasPhrase,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
)


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """
    Attributes:
        intervals: that hold the values other than null and NaN, ascending, apart; their ends are of one kind.
        null, nan: whether nulls, NaN may be among the values.
    """

    intervals: Intervals = EVERYTHING
    null: bool = True
    nan: bool = True

    @property
    def is_empty(self) -> bool:
        """No value is left."""
        return not (self.intervals or self.null or self.nan)

    def __contains__(self, value: object) -> bool:
        """Whether a value of the literals' own kind may be among them."""
        if value is None:
            return self.null
        if value != value:
            return self.nan
        ordered = order_key(value)  # type: ignore[arg-type]  # others are of no kind
        if ordered is None or kind_of(self.intervals) not in (None, ordered[0]):
            return bool(self.intervals)
        return bool(intersect(self.intervals, (Interval(value, value),)))  # type: ignore[arg-type]  # it is ordered

    def __str__(self) -> str:
        parts = [str(interval) for interval in self.intervals] if self.intervals != EVERYTHING else ["any value"]
        return " or ".join(parts + ["null"] * self.null + ["nan"] * self.nan) or "none"


Ranges: TypeAlias = dict[str, ValueRanges]

_NONE: Final = ValueRanges((), null=False, nan=False)
_VALID: Final = ValueRanges(null=False)


def column_ranges(expr: Expression, inexact: Collection[Expression] = ()) -> Ranges | None:
    """For each column the values that it may have in rows where ``expr`` is true.

    Args:
        expr: a predicate.
        inexact: atoms of it whose literals are cast before they are compared.

    Returns:
        columns that are not there may have any value; None if ``expr`` is seen to be true for no row.
    """
    return _Reader(inexact).ranges(expr, True)


def is_unsatisfiable(
    expr: Expression, inexact: Collection[Expression] = (), among: Collection[str] | None = None
) -> bool:
    """Whether ``expr`` can be seen to be true for no row.

    Args:
        expr: a predicate.
        inexact: see :func:`column_ranges`.
        among: the columns whose values are looked at; None for all.
    """
    return _Reader(inexact, among).ranges(expr, True) is None


class _Reader:
    def __init__(self, inexact: Collection[Expression], among: Collection[str] | None = None) -> None:
        self._inexact = inexact
        self._among = among

    def ranges(self, expr: Expression, truth: bool) -> Ranges | None:
        """Where ``expr`` may be ``truth``; None where nowhere."""
        if isinstance(expr, Not):
            return self.ranges(expr.arg, not truth)
        if isinstance(expr, (And, Or)):
            return self._all(expr.args, truth) if isinstance(expr, And) is truth else self._any(expr.args, truth)
        if isinstance(expr, Constant):
            return {} if expr.value is truth else None
        if isinstance(expr, ColumnComparison):
            valid = ValueRanges(null=False)
            return {expr.left: valid, expr.right: valid}
        column: str = expr.column  # type: ignore[attr-defined]  # all others have one
        if self._among is not None and column not in self._among:
            return {}
        found = self._atom(expr, truth)
        return None if found.is_empty else {column: found}

    def _all(self, args: Iterable[Expression], truth: bool) -> Ranges | None:
        met: Ranges = {}
        for arg in args:
            found = self.ranges(arg, truth)
            if found is None:
                return None
            for column, ranges in found.items():
                known = met.get(column)
                both = ranges if known is None else _both(known, ranges)
                if both.is_empty:
                    return None
                met[column] = both
        return met

    def _any(self, args: Iterable[Expression], truth: bool) -> Ranges | None:
        branches = [found for found in (self.ranges(arg, truth) for arg in args) if found is not None]
        if not branches:
            return None
        joined = branches[0]
        for other in branches[1:]:
            joined = {name: _either(joined[name], ranges) for name, ranges in other.items() if name in joined}
        return joined

    def _atom(self, atom: Expression, truth: bool) -> ValueRanges:
        if isinstance(atom, IsNull):
            if truth:
                return ValueRanges((), null=True, nan=atom.nan_is_null)
            return ValueRanges(null=False, nan=not atom.nan_is_null)
        exact = atom not in self._inexact if self._inexact else True
        if isinstance(atom, Comparison):
            return _comparison(atom, truth, exact)
        if isinstance(atom, In):
            return _membership(atom, truth, exact)
        if isinstance(atom, KeyIn):
            if self._inexact and exact:
                exact = not any(Comparison(atom.column, "==", value) in self._inexact for value in atom.values)
            return _key_in(atom, truth, exact)
        if isinstance(atom, StartsWith):
            inside = prefixed(atom.prefix) if exact else EVERYTHING
            outside = complement(inside) if exact else EVERYTHING
            return ValueRanges(inside if truth else outside, null=False, nan=not exact)
        if isinstance(atom, Like):
            return ValueRanges(prefixed(atom.prefix) if truth and exact else EVERYTHING, null=False, nan=not exact)
        if isinstance(atom, (Contains, HasTokens, HasPhrase, Has)):
            return _VALID
        raise TypeError(f"{atom!r} is no predicate")


# -- atoms ----------------------------------------------------------------------------------------


def _comparison(atom: Comparison, truth: bool, exact: bool) -> ValueRanges:
    value, op = atom.value, atom.op
    if value is None:
        return _NONE
    if value != value:  # only != is true of NaN, and it is of every value
        if not isinstance(value, float):
            return _VALID
        return _VALID if truth is (op == "!=") else _NONE
    if not exact or order_key(value) is None:
        return _VALID
    if op == "==" or op == "!=":
        point: Intervals = (Interval(value, value),)
        inside = truth is (op == "==")
        return ValueRanges(point if inside else complement(point), null=False, nan=not inside)
    below = op[0] == "<"
    closed = op.endswith("=")
    holds: Intervals = (
        (Interval(high=value, high_open=not closed),) if below else (Interval(low=value, low_open=not closed),)
    )
    return ValueRanges(holds if truth else complement(holds), null=False, nan=not truth)


def _membership(atom: In, truth: bool, exact: bool) -> ValueRanges:
    null = (None in atom.values) is truth
    nan = any(value != value for value in atom.values) is truth
    values = [value for value in atom.values if value is not None and value == value]
    if not exact:
        return ValueRanges(null=null)
    if truth:
        return ValueRanges(points(values), null, nan)
    # 0.0 and -0.0 are two members, but one value here.
    others = [value for value in values if value != 0]
    return ValueRanges(complement(points(others)) if are_ordered(others) else EVERYTHING, null, nan)


def _key_in(atom: KeyIn, truth: bool, exact: bool) -> ValueRanges:
    keys = [value for value in atom.values if value is not None and value == value]
    if not keys:
        return _NONE if truth else ValueRanges()
    if not exact or not are_ordered(keys):
        return _VALID
    inside = points(keys)
    return ValueRanges(inside if truth else complement(inside), null=False, nan=not truth)


# -- sets of values -------------------------------------------------------------------------------


def _both(left: ValueRanges, right: ValueRanges) -> ValueRanges:
    kinds = {kind_of(left.intervals), kind_of(right.intervals)} - {None}
    # Of two kinds one alone holds them all.
    intervals = left.intervals if len(kinds) > 1 else intersect(left.intervals, right.intervals)
    return ValueRanges(intervals, left.null and right.null, left.nan and right.nan)


def _either(left: ValueRanges, right: ValueRanges) -> ValueRanges:
    kinds = {kind_of(left.intervals), kind_of(right.intervals)} - {None}
    intervals = EVERYTHING if len(kinds) > 1 else unite(left.intervals, right.intervals)
    return ValueRanges(intervals, left.null or right.null, left.nan or right.nan)
