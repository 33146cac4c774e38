"""Conditions that another engine applies to the rows by its own rules, while asyncpq only prunes data by them.

The engine compares a literal with a column after casting both to a type of its choice, and NaN equals itself and
exceeds all numbers, as in Spark. So a :class:`ForeignCondition` is converted twice: to the engine's own condition
(:meth:`ForeignCondition.expressed`), which filters the rows, and to a predicate of asyncpq that is true for a superset
of these rows (:meth:`ForeignCondition.pruning`).
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, TypeVar

import pyarrow as pa

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import AsyncpqError
from asyncpq.expressions import (
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
    analysis,
    atoms,
    columns,
    conjunction,
    disjunction,
    is_nan,
    parse_filters,
    resolve_times,
    simplify,
)
from asyncpq.expressions.scalars import Day, Scalar, Timestamp, days, nanoseconds
from asyncpq.expressions.tree import Atom

__all__ = ["ForeignColumn", "ForeignCondition", "ForeignTest", "SinceEpoch", "Untranslated", "constant", "since_epoch"]

T = TypeVar("T")


class Untranslated(Expression):
    """A part of a :class:`ForeignCondition` that the caller cannot express in asyncpq, so that it excludes no rows.

    Args:
        reason: why it cannot be expressed, as text.
    """

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason: str = reason

    def _key(self) -> tuple[object, ...]:
        return (self.reason,)

    def __str__(self) -> str:
        return "?"


def constant(value: bool | None) -> Expression:
    """Return a predicate with the result ``value`` for every row; None is null. For parts of a
    :class:`ForeignCondition`."""
    return Constant(value)


class ForeignTest(NamedTuple):
    """A comparison of a condition, as the callbacks of :class:`ForeignCondition` get it.

    Attributes:
        verb: ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``equals any`` (without null and NaN among the
            values), ``is null``, ``is null or nan``, ``starts with``, ``contains``, ``like``, ``has``; or the name of a
            test that few engines have.
        columns: names, or dotted paths of structs' fields: one, or two that are compared with each other.
        values: the literals that the columns are compared with; None is null.
    """

    verb: str
    columns: tuple[str, ...]
    values: tuple[Scalar, ...]

    @property
    def is_list(self) -> bool:
        """Whether ``values`` are alternatives, of which one has to match; else the verb defines their number."""
        return self.verb in ("in", "equals any")


class SinceEpoch(NamedTuple):
    """A date or a point in time, counted from 1970-01-01. Made by :func:`since_epoch`.

    Attributes:
        days: days, for a date; else None.
        nanoseconds: nanoseconds, for a point in time; else None.
        zoned: whether the nanoseconds are UTC; if not, they are those of a clock without a time zone.
    """

    days: int | None
    nanoseconds: int | None = None
    zoned: bool = False


def since_epoch(literal: Any) -> SinceEpoch | None:
    """Return a literal of a condition that is a date or time, also outside of the years 1 to 9999, as a number; None
    for other literals."""
    if isinstance(literal, dt.datetime):
        return SinceEpoch(None, nanoseconds(literal), literal.tzinfo is not None)
    if isinstance(literal, Timestamp):
        return SinceEpoch(None, literal.nanoseconds, literal.timezone is not None)
    return SinceEpoch(days(literal)) if isinstance(literal, (dt.date, Day)) else None


class ForeignColumn(NamedTuple):
    """A column, or a field of structs, as another engine compares it: the result of ``column_of`` of
    :meth:`ForeignCondition.pruning`.

    Attributes:
        name: its name in asyncpq's predicates.
        stored: its Arrow type in the dataset; of a list, the type of the elements.
        literal: a function that converts a literal to a value that compares as values of ``stored`` do. It returns None
            if the engine may cast the column instead: the comparison then excludes no rows.
        is_float: whether the engine compares floats, which may be NaN.
        is_list: whether the column is a list whose elements are compared.
    """

    name: str
    stored: pa.DataType
    literal: Callable[[Any], Any]
    is_float: bool = False
    is_list: bool = False


class ForeignCondition:
    """A condition that another engine applies to the rows: an expression of :func:`asyncpq.col`, or a filter list like
    pyarrow's, passed as ``where``. Parts may be :class:`Untranslated`.

    Raises:
        ExpressionError: ``where`` is neither.
    """

    def __init__(self, where: object) -> None:
        self.expression: Expression = parse_filters(where)

    def __str__(self) -> str:
        return str(self.expression)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, or dotted paths of fields, that are compared, in order of appearance."""
        return columns(And(tuple(self._atoms())))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The ``reason`` of each :class:`Untranslated` part of the condition; empty if there is none."""
        parts: Iterator[Expression] = atoms(self.expression)
        return tuple(dict.fromkeys(part.reason for part in parts if isinstance(part, Untranslated)))

    @property
    def tests(self) -> list[ForeignTest]:
        """The comparisons of the condition, without :class:`Untranslated` parts."""
        return [*map(_test, self._atoms())]

    def _atoms(self) -> Iterator[Atom]:
        parts: Iterator[Expression] = atoms(self.expression)
        return (part for part in parts if isinstance(part, Atom))

    def at(self, now: dt.datetime, zoneless: Collection[str] = ()) -> ForeignCondition:
        """Return the condition with times relative to ``now()`` replaced by points in time.

        Args:
            now: the time of the read, with a time zone.
            zoneless: names of columns of timestamps without a time zone, which are compared with UTC's wall clock.
        """
        return ForeignCondition(resolve_times(self.expression, now, zoneless))

    def expressed(
        self,
        test: Callable[[ForeignTest], T],
        *,
        constant: Callable[[bool | None], T],
        junction: Callable[[Literal["and", "or"], Sequence[T]], T],
        negated: Callable[[T], T],
    ) -> T:
        """Return the condition in the language of another engine.

        Args:
            test: converts a comparison. It may raise an error of its own for one that the engine lacks.
            constant: returns a condition that is true, false or null (None) for every row.
            junction: joins a list of one or more conditions by "and" or "or".
            negated: negates a condition.

        Returns:
            The result of the callbacks for the whole condition.
        """

        def made(expr: Expression) -> T:
            if isinstance(expr, Constant):
                return constant(expr.value)
            if isinstance(expr, Not):
                return negated(made(expr.arg))
            if isinstance(expr, (And, Or)):
                is_and = isinstance(expr, And)
                return junction("and" if is_and else "or", [*map(made, expr.args)]) if expr.args else constant(is_and)
            return test(_test(expr) if isinstance(expr, Atom) else ForeignTest(str(expr), (), ()))

        return made(self.expression)

    def pruning(self, schema: pa.Schema, column_of: Callable[[ForeignTest], ForeignColumn | None]) -> Expression | None:
        """Return a predicate for ``where`` of a read. It is true for every row for which the condition is true, and
        perhaps for others; None if it excludes no rows.

        Args:
            schema: the dataset's columns.
            column_of: a function that returns the column of a comparison, or None if the comparison excludes no rows.
        """

        def of_part(part: Expression, truth: analysis.Truth) -> Expression | None:
            column = column_of(_test(part)) if isinstance(part, Atom) and part.column is not None else None
            if column is None or not isinstance(part, Atom):
                return None
            term = _rows(part, truth, column)
            try:  # asyncpq would cast a value, or refuse it
                return None if term is None or compile_filter(term, schema).engine_atoms else term
            except AsyncpqError:
                return None

        terms = analysis.follow(self.expression, analysis.Truth.TRUE, of_part, conjunction, disjunction)
        terms = None if terms is None else simplify(terms)
        return None if terms == Constant(True) else terms


_VERBS: Final[dict[type[Atom], str]] = {
    In: "in",
    KeyIn: "equals any",
    StartsWith: "starts with",
    Contains: "contains",
    Like: "like",
    Has: "has",
    HasTokens: "has_tokens",
    HasPhrase: "has_phrase",
}


def _test(atom: Atom) -> ForeignTest:
    if isinstance(atom, Comparison):
        return ForeignTest(atom.op, (atom.column,), (atom.value,))
    if isinstance(atom, ColumnComparison):
        return ForeignTest(atom.op, (atom.left, atom.right), ())
    if isinstance(atom, IsNull):
        return ForeignTest("is null or nan" if atom.nan_is_null else "is null", (atom.column,), ())
    values = (atom.pattern,) if isinstance(atom, Like) else atom.literals
    return ForeignTest(
        _VERBS.get(type(atom), type(atom).__name__), () if atom.column is None else (atom.column,), values
    )


# -- from comparisons to predicates ---------------------------------------------------------------


_FOREIGN: Final = analysis.Incomparable("the engine may cast the column")


def _rows(atom: Atom, truth: analysis.Truth, column: ForeignColumn) -> Expression | None:
    """Return a predicate that is true for every row for which the comparison ``atom`` has the result ``truth``. None
    if asyncpq cannot express one that excludes rows."""
    if not column.is_list and not column.is_float and any(value != value for value in atom.literals):
        return None  # the engine casts the column

    def to_key(value: Scalar) -> analysis.Comparable | analysis.Incomparable:
        literal = column.literal(value)
        return _FOREIGN if literal is None else analysis.Comparable(literal)

    wanted = analysis.result_values(atom, truth, analysis.ValueDomain(to_key, spark=True))
    if wanted.of_elements:
        if not column.is_list or not isinstance(wanted.values, analysis.Points):
            return None
        return disjunction([Has(column.name, key) for key in wanted.values.keys])
    if column.is_list and wanted.values not in ((), analysis.EVERYTHING):
        return None  # whole lists are compared
    return _term(column, wanted)


def _term(column: ForeignColumn, wanted: analysis.ResultValues) -> Expression | None:
    """Return a predicate that is true for all values in the set ``wanted``; None if the set has all values."""
    name = column.name
    nan = column.is_float and (wanted.nan or not wanted.exact)  # to the engine's LIKE, NaN is the text "NaN"
    if not wanted.comparable or (wanted.values == analysis.EVERYTHING and wanted.null):
        return None
    texts = [Contains(name, text) for part in wanted.texts if isinstance(text := column.literal(part), (str, bytes))]
    texts = [term for term in texts if term.text]
    if wanted.values == analysis.EVERYTHING:
        if texts:
            return conjunction(texts)
        valid = Not(IsNull(name))
        return valid if nan or not column.is_float else And((valid, Comparison(name, "<=", math.inf)))
    terms: list[Expression | None] = []
    if isinstance(wanted.values, analysis.Points):
        terms += _points(column, wanted.values, nan)
        nan = nan and not wanted.values.inverted
    else:
        parts = [fitted for part in wanted.values if (fitted := _fitting(column, part)) is not None]
        if nan and parts and parts[-1].high is None and parts[-1].low is not None:
            last = parts.pop()  # NaN is greater than all numbers
            terms.append(Not(Comparison(name, "<=" if last.low_open else "<", last.low)))
            nan = False
        terms += [_interval(name, part) for part in parts]
    if nan:
        terms.append(is_nan(name))
    if wanted.null:
        terms.append(IsNull(name))
    return conjunction([disjunction(terms), *(texts if len(texts) > 1 else ())])


def _points(column: ForeignColumn, points: analysis.Points, nan: bool) -> list[Expression | None]:
    name, keys, ends = column.name, points.keys, _ends(column.stored)
    if ends is not None:
        keys = [key for key in keys if ends[0] <= key <= ends[1]]
    if not keys:
        return [Not(IsNull(name))] if points.inverted else []
    if column.is_float and any(_nearest(column.stored, key) != key for key in keys):
        return [None]
    if len(keys) > 1:
        term: Expression = KeyIn(name, tuple(keys))
        term = Not(term) if points.inverted else term
    else:
        term = Comparison(name, "!=" if points.inverted else "==", keys[0])
    if points.inverted and column.is_float and not nan:
        return [And((term, Comparison(name, "<=", math.inf)))]
    return [term]


def _interval(name: str, part: analysis.Interval) -> Expression | None:
    if part.prefix is not None:
        return StartsWith(name, part.prefix)
    above = None if part.low is None else Comparison(name, ">" if part.low_open else ">=", part.low)
    below = None if part.high is None else Comparison(name, "<" if part.high_open else "<=", part.high)
    return Not(IsNull(name)) if above is None and below is None else conjunction([above, below])


def _fitting(column: ForeignColumn, part: analysis.Interval) -> analysis.Interval | None:
    """Return the interval with the same values of the column, but with ends that are values of its type; None if the
    column can have no such value."""
    low, high, low_open, high_open = part
    if (ends := _ends(column.stored)) is not None:
        least, greatest = ends
        if (low is not None and low > greatest) or (high is not None and high < least):
            return None
        low = None if low is not None and low < least else low
        high = None if high is not None and high > greatest else high
        return analysis.Interval(low, high, low is not None and low_open, high is not None and high_open)
    if not column.is_float:
        return part
    if low is not None and (near := _nearest(column.stored, low)) != low:
        low, low_open = near, near < low
    if high is not None and (near := _nearest(column.stored, high)) != high:
        high, high_open = near, near > high
    return analysis.Interval(low, high, low_open, high_open)


def _ends(stored: pa.DataType) -> tuple[int | Decimal, int | Decimal] | None:
    """Return the least and the greatest value of an integer or decimal type; None for other types."""
    if pa.types.is_decimal(stored):
        greatest = Decimal((0, (9,) * stored.precision, -stored.scale))
        return -greatest, greatest
    if not pa.types.is_integer(stored):
        return None
    if pa.types.is_unsigned_integer(stored):
        return 0, (1 << stored.bit_width) - 1
    half = 1 << stored.bit_width - 1
    return -half, half - 1


def _nearest(stored: pa.DataType, number: float) -> float:
    """Return the value of the column's float type that is nearest to ``number``."""
    if pa.types.is_float64(stored):
        return number
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.inf if number > 0 else -math.inf
