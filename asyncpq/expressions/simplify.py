"""Shorten predicates, resolve ``now()``, and find the values that columns may have where a predicate is true.

A contradiction is a predicate that is true for no value. Every set of values found here may be too large, never too
small. Literals are compared by their Python values. The exact filter does the same where the column's type can
represent the literal, and for numbers of integer and decimal columns. pyarrow casts other literals and may round them:
the caller passes comparisons with such literals as ``inexact``, and they rule out no values.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from asyncpq.errors import ExpressionError
from asyncpq.expressions import tree
from asyncpq.expressions.analysis import (
    EVERYTHING,
    Comparable,
    Incomparable,
    Interval,
    Intervals,
    Truth,
    ValueDomain,
    follow,
    intersect,
    intervals,
    result_values,
    unite,
)
from asyncpq.expressions.scalars import Day, Duration, RelativeTime, Scalar, Timestamp, Untyped, nanoseconds, show
from asyncpq.expressions.tree import Expression, parts
from asyncpq.records import dataclass

_MANY_KEYS: Final = 16  # comparisons of one column that are worth a set


def simplify(expr: Expression) -> Expression:
    """Return a shorter predicate with the same result for every row: constants, double negations and nested ANDs and
    ORs are folded."""
    if isinstance(expr, (tree.And, tree.Or)):
        return _simplify_junction(expr)
    if isinstance(expr, tree.Not):
        arg = simplify(expr.arg)
        if isinstance(arg, tree.Not):
            return arg.arg
        if isinstance(arg, tree.Constant):
            return tree.Constant(None if arg.value is None else not arg.value)
        return tree.Not(arg)
    if isinstance(expr, tree.Comparison) and expr.value is None:
        return tree.Constant(None)
    if isinstance(expr, tree.In) and not expr.values:
        return tree.Constant(False)
    if isinstance(expr, tree.KeyIn) and not any(value is not None and value == value for value in expr.values):
        return tree.Constant(False)  # null and NaN keys match nothing, not even null
    return expr


def _simplify_junction(expr: tree.And | tree.Or) -> Expression:
    node = type(expr)
    neutral = node is tree.And  # true changes nothing in an AND, false decides it
    args: dict[Expression, None] = {}
    for arg in map(simplify, expr.args):
        for part in parts(arg, node):
            if isinstance(part, tree.Constant) and part.value is not None:
                if part.value is not neutral:
                    return part
                continue
            args[part] = None
    if not args:
        return tree.Constant(neutral)
    return tree.join(node, list(args))


def with_key_sets(expr: Expression) -> Expression:
    """Return ``expr`` with comparisons of one column with many values (``x == 1 or x == 2 or ...``, and ``x != 1 and
    x != 2 and ...``) as one set of keys, which takes the time of one comparison. The results are the same for each row.
    """
    if isinstance(expr, tree.Not):
        arg = with_key_sets(expr.arg)
        return expr if arg is expr.arg else tree.Not(arg)
    if not isinstance(expr, (tree.And, tree.Or)):
        return expr
    if len(expr.args) < _MANY_KEYS:
        args = tuple([with_key_sets(arg) for arg in expr.args])
        return expr if all(map(operator.is_, args, expr.args)) else type(expr)(args)
    op = "==" if isinstance(expr, tree.Or) else "!="
    parts_of: dict[object, list[Expression]] = {}  # by column, or by the part itself: in the order of appearance
    for arg in expr.args:
        if isinstance(arg, tree.Comparison) and arg.op == op and arg.value is not None:
            parts_of.setdefault(arg.column, []).append(arg)
        else:
            parts_of[id(arg)] = [arg]
    args = tuple([part for parts in parts_of.values() for part in _key_set(parts, op)])
    return args[0] if len(args) == 1 else type(expr)(args)


def _key_set(comparisons: list[Any], op: str) -> list[Expression]:
    if len(comparisons) == 1:
        return [with_key_sets(comparisons[0])]
    if len(comparisons) < _MANY_KEYS or not any(comparison.value == comparison.value for comparison in comparisons):
        return comparisons  # a set of NaN alone is false, where a comparison with it is null for null
    keys = tree.KeyIn(comparisons[0].column, tuple([comparison.value for comparison in comparisons]))
    return [keys if op == "==" else tree.Not(keys)]


def implied(expr: Expression, change: Callable[[tree.Atom], Expression | None]) -> Expression | None:
    """Return a predicate that is true wherever ``expr`` is, with its comparisons replaced by ``change``.

    ``change`` returns a replacement with the same result for every row, or None to drop the comparison. The result is
    None if nothing is left: it would be true for every row.
    """

    def of_atom(atom: tree.Atom, truth: Truth) -> Expression | None:
        changed = change(atom)
        return tree.Not(changed) if truth is Truth.FALSE and changed is not None else changed

    return follow(expr, Truth.TRUE, of_atom, conjunction, disjunction)


def with_conditions(expr: Expression, condition: Callable[[tree.Atom], Expression | None]) -> Expression:
    """Add conditions that follow from comparisons to ``expr``; the result is true wherever ``expr`` is.

    ``condition`` returns, for a comparison, a predicate that is true wherever the comparison is, or None for no
    condition. AND joins it to the comparison. Comparisons below a NOT stay as they are, since nothing follows where
    they are false.
    """
    if isinstance(expr, (tree.And, tree.Or)):
        return type(expr)(tuple([with_conditions(arg, condition) for arg in expr.args]))
    added = condition(expr) if isinstance(expr, tree.Atom) else None
    return expr if added is None else tree.And((expr, added))


def conjunction(terms: Iterable[Expression | None]) -> Expression | None:
    """Join the terms with AND. A term of None is true for every row; so is a result of None."""
    known = [term for term in terms if term is not None]
    return tree.join(tree.And, known) if known else None


def disjunction(terms: Iterable[Expression | None]) -> Expression | None:
    """Join the terms with OR. A term of None is true for every row; so is a result of None."""
    branches = list(terms)
    known = [term for term in branches if term is not None]
    return tree.join(tree.Or, known) if len(known) == len(branches) else None


# -- times relative to now --------------------------------------------------------------------------


def relative_columns(expr: Expression) -> tuple[str, ...]:
    """Return the names of the columns that are compared with ``now()``, in order of appearance."""
    return _compared_with(expr, RelativeTime)


def has_open_literals(expr: Expression) -> bool:
    """Return whether ``expr`` compares a column with ``now()``, or with a literal whose type the column decides."""
    return bool(_compared_with(expr, RelativeTime, Untyped))


def _compared_with(expr: Expression, *kinds: type) -> tuple[str, ...]:
    if isinstance(expr, tree.Atom):
        return (expr.column,) if expr.column is not None and _has_literal(expr, kinds) else ()
    named = [atom.column for atom in tree.atoms(expr) if atom.column is not None and _has_literal(atom, kinds)]
    return tuple(dict.fromkeys(named))


def _has_literal(atom: tree.Atom, kinds: Collection[type]) -> bool:
    types = atom.types if isinstance(atom, (tree.In, tree.KeyIn)) else frozenset(map(type, atom.literals))
    return not types.isdisjoint(kinds)


def resolve_times(expr: Expression, now: dt.datetime, zoneless: Collection[str] = ()) -> Expression:
    """Replace times relative to ``now()`` with points in time. Returns ``expr`` itself if it has no relative times.

    Args:
        now: the current time, with a time zone.
        zoneless: names of timestamp columns without a time zone, which are compared with UTC's wall clock.

    Raises:
        ExpressionError: a time is out of datetime's range.
    """

    def resolved(value: Scalar, column: str) -> Scalar:
        if not isinstance(value, RelativeTime):
            return value
        try:
            moment = now.astimezone(dt.UTC) + value.offset
        except OverflowError as error:
            raise ExpressionError(
                f"{show(value)} is out of datetime's range",
                column=column,
                hint="Compare with a time in the years 1 to 9999.",
            ) from error
        return moment.replace(tzinfo=None) if column in zoneless else moment

    def replaced(atom: tree.Atom) -> tree.Atom:
        column = atom.column
        if column is None or not _has_literal(atom, (RelativeTime,)):
            return atom
        return atom.with_literals(lambda value: resolved(value, column))

    return tree.replace_atoms(expr, replaced)


@dataclass(frozen=True, slots=True)
class ValueRanges:
    """A superset of the values that a column has in some rows: intervals, and whether nulls and NaN may occur."""

    intervals: Intervals = EVERYTHING  # of values other than null and NaN; ascending, not meeting; ends are literals
    null: bool = True  # nulls may be among the values
    nan: bool = True  # NaN may be among the values

    @property
    def is_empty(self) -> bool:
        """Whether the set is empty: the column cannot have any value."""
        return not (self.intervals or self.null or self.nan)

    def __contains__(self, value: object) -> bool:
        """Return whether the column may have ``value``; a ``value`` of None asks for null."""
        if value is None:
            return self.null
        if value != value:
            return self.nan
        kind = _kind(value)
        if kind is None or _kind_of(self.intervals) not in (None, kind):
            return bool(self.intervals)
        return bool(intersect(_keyed(self.intervals), _keyed((Interval(value, value),))))

    def __str__(self) -> str:
        shown = ["any value"] if self.intervals == EVERYTHING else [_show(interval) for interval in self.intervals]
        return " or ".join(shown + ["null"] * self.null + ["nan"] * self.nan) or "none"


Ranges: TypeAlias = dict[str, ValueRanges]


def column_ranges(expr: Expression, inexact: Collection[Expression] = ()) -> Ranges | None:
    """Return the values that each column may have in rows where ``expr`` is true, by column name; a column that is
    missing may have any value. None if ``expr`` is true for no row.

    ``inexact``: comparisons whose literals pyarrow casts, and may round, before it compares; they rule out no values.
    """
    ranges = _ranges(expr, inexact, None)
    return None if ranges is None else {name: _literals(known) for name, known in ranges.items()}


def is_unsatisfiable(
    expr: Expression, inexact: Collection[Expression] = (), among: Collection[str] | None = None
) -> bool:
    """Return whether ``expr`` contradicts itself, and so is true for no row of any file. False if that cannot be shown.

    ``inexact``: comparisons whose literals are cast first, which are ignored. ``among``: names of the columns to
    examine; None: all columns.
    """
    return _ranges(expr, inexact, among) is None


def without_contradictions(expr: Expression, inexact: Collection[Expression] = ()) -> Expression:
    """Return an expression that is true for the same rows as ``expr``, without the branches that contradict themselves.

    For other rows, the result may be false where ``expr`` is null, or null where ``expr`` is false. ``inexact`` is that
    of :func:`column_ranges`.
    """
    if not isinstance(expr, (tree.And, tree.Or, tree.Not)):
        return expr
    seen: set[str] = set()
    again: set[str] = set()  # it takes two atoms of one column to contradict each other
    for atom in tree.atoms(expr):
        for name in tree.columns(atom):
            (again if name in seen else seen).add(name)
    if not again:
        return expr
    possible = _possible(expr, frozenset(inexact), again)
    return tree.Constant(False) if possible is None else possible


def _possible(expr: Expression, inexact: Collection[Expression], among: Collection[str]) -> Expression | None:
    """Return ``expr`` without the branches that are true for no row; None if ``expr`` itself is true for no row."""
    if is_unsatisfiable(expr, inexact, among):
        return None
    if not isinstance(expr, (tree.And, tree.Or)):
        return expr
    parts = [
        _possible(arg, inexact, among) if isinstance(arg, (tree.And, tree.Or, tree.Not)) else arg for arg in expr.args
    ]
    kept = [part for part in parts if part is not None]
    if len(kept) == len(expr.args) and all(map(operator.is_, kept, expr.args)):
        return expr
    return tree.join(type(expr), kept)


# -- from atoms to columns --------------------------------------------------------------------------


def _ranges(expr: Expression, inexact: Collection[Expression], among: Collection[str] | None) -> Ranges | None:
    """Return what :func:`column_ranges` returns, but with comparable keys, not literals, as the ends of intervals."""

    def of_atom(atom: tree.Atom, truth: Truth) -> Ranges | None:
        names = tree.columns(atom)
        if among is not None and not set(names) <= set(among):
            return {}
        values = result_values(atom, truth, _NEVER if _is_inexact(atom, inexact) else _domain_of(atom))
        ranges = ValueRanges(EVERYTHING if values.of_elements else intervals(values.values), values.null, values.nan)
        return None if ranges.is_empty else dict.fromkeys(names, ranges)

    return follow(expr, Truth.TRUE, of_atom, _all_of, _any_of)


def _is_inexact(atom: tree.Atom, inexact: Collection[Expression]) -> bool:
    if not inexact:
        return False
    # Keys are compared one by one, and some of them may be cast.
    each = [tree.Comparison(atom.column, "==", value) for value in atom.values] if isinstance(atom, tree.KeyIn) else []
    return atom in inexact or any(comparison in inexact for comparison in each)


def _all_of(parts: Iterable[Ranges | None]) -> Ranges | None:
    by_column: dict[str, list[ValueRanges]] = {}
    for part in parts:
        if part is None:
            return None
        for column, ranges in part.items():
            by_column.setdefault(column, []).append(ranges)
    met = {column: _in_pairs(several, _both) for column, several in by_column.items()}
    return None if any(ranges.is_empty for ranges in met.values()) else met


def _any_of(parts: Iterable[Ranges | None]) -> Ranges | None:
    branches = [part for part in parts if part is not None]
    if not branches:
        return None
    names = [name for name in branches[0] if all(name in branch for branch in branches)]
    return {name: _in_pairs([branch[name] for branch in branches], _either) for name in names}


def _in_pairs(ranges: list[ValueRanges], join: Callable[[ValueRanges, ValueRanges], ValueRanges]) -> ValueRanges:
    """Reduce ``ranges`` to one by joining neighbours in pairs. Joining one after the other would take
    quadratic time."""
    while len(ranges) > 1:
        ranges = [
            ranges[at] if at + 1 == len(ranges) else join(*ranges[at : at + 2]) for at in range(0, len(ranges), 2)
        ]
    return ranges[0]


def _both(left: ValueRanges, right: ValueRanges) -> ValueRanges:
    # Literals of two kinds are not ordered: the intervals of one kind hold all values of both.
    parts = intersect(left.intervals, right.intervals) if _are_of_one_kind(left, right) else left.intervals
    return ValueRanges(parts, left.null and right.null, left.nan and right.nan)


def _either(left: ValueRanges, right: ValueRanges) -> ValueRanges:
    parts = unite(left.intervals, right.intervals) if _are_of_one_kind(left, right) else EVERYTHING
    return ValueRanges(parts, left.null or right.null, left.nan or right.nan)


def _are_of_one_kind(left: ValueRanges, right: ValueRanges) -> bool:
    return len({_kind_of(left.intervals), _kind_of(right.intervals)} - {None}) < 2


# -- the order of literals --------------------------------------------------------------------------

_KINDS: Final[dict[type, str]] = {
    bool: "boolean",
    int: "number",
    float: "number",
    Decimal: "number",
    str: "string",
    bytes: "binary",
    uuid.UUID: "UUID",
    dt.date: "date",
    Day: "date",
    dt.timedelta: "duration",
    Duration: "duration",
}
_AS_THEY_STAND: Final = (int, str, bytes, dt.date)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time or duration as a sort key: ordered by its nanoseconds, with the literal that it was made from."""

    nanoseconds: int
    value: Scalar = field(compare=False)

    def __lt__(self, other: object) -> bool:
        return self.nanoseconds < other.nanoseconds if isinstance(other, _Moment) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.nanoseconds <= other.nanoseconds if isinstance(other, _Moment) else NotImplemented


def _kind(value: Any) -> str | None:
    """Return the kind of ``value``, such as "number"; literals of one kind have an order. None if ``value`` has
    none."""
    if isinstance(value, _Moment):
        value = value.value
    if isinstance(value, (dt.datetime, Timestamp)):
        zone = value.timezone if isinstance(value, Timestamp) else value.tzinfo
        return "time of no zone" if zone is None else "instant"
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return _KINDS.get(type(value))


def _kind_of(parts: Intervals) -> str | None:
    """Return the kind (:func:`_kind`) of the literals at the ends of the intervals; None without ends."""
    ends = (end for interval in parts[:1] for end in (interval.low, interval.high) if end is not None)
    return next(map(_kind, ends), None)


def _key(value: Any) -> Any:
    if isinstance(value, (dt.datetime, Timestamp, dt.timedelta, Duration)):
        return _Moment(nanoseconds(value), value)
    return value


def _keyed(parts: Intervals) -> Intervals:
    return tuple([part._replace(low=_key(part.low), high=_key(part.high)) for part in parts])


def _literal(key: Any) -> Any:
    return key.value if isinstance(key, _Moment) else key


def _literals(ranges: ValueRanges) -> ValueRanges:
    """Convert the ends of the intervals from sort keys back to literals."""
    parts = [part._replace(low=_literal(part.low), high=_literal(part.high)) for part in ranges.intervals]
    return ValueRanges(tuple(parts), ranges.null, ranges.nan)


def _show(interval: Interval) -> str:
    if interval.low is not None and interval.low is interval.high:
        return show(interval.low)
    low = "(" if interval.low is None or interval.low_open else "["
    high = ")" if interval.high is None or interval.high_open else "]"
    ends = ("" if end is None else show(end) for end in interval[:2])
    return f"{low}{', '.join(ends)}{high}"


_FOREIGN: Final = Incomparable("literals of two kinds are not ordered")
_NEVER: Final = ValueDomain(lambda _: _FOREIGN)


def _domain_of(atom: tree.Atom) -> ValueDomain:
    """Return the rules by which the literals of ``atom`` compare. If the literals are of several kinds, the kind of the
    first one decides."""
    kind = next((kind for kind in map(_kind, atom.literals) if kind is not None), None)
    return _NEVER if kind is None else _domain(kind)


@functools.cache
def _domain(kind: str) -> ValueDomain:
    def to_key(value: Scalar) -> Comparable | Incomparable:
        return Comparable(_key(value)) if _kind(value) == kind else _FOREIGN

    return ValueDomain(to_key, {type_: None for type_ in _AS_THEY_STAND if _KINDS[type_] == kind}, shared=True)
