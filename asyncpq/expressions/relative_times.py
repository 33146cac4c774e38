"""Predicates on times relative to now, made predicates on points in time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from asyncpq.errors import ExpressionError
from asyncpq.expressions.scalars import RelativeTime, Scalar, show
from asyncpq.expressions.tree import And, Comparison, Expression, Has, In, KeyIn, Not, Or, atoms


def relative_columns(expr: Expression) -> tuple[str, ...]:
    """The names of the columns that are compared with times relative to now, in order of appearance."""
    found: dict[str, None] = {}
    for atom in atoms(expr):
        if isinstance(atom, (Comparison, Has)):
            if type(atom.value) is RelativeTime:
                found[atom.column] = None
        elif isinstance(atom, (In, KeyIn)) and RelativeTime in atom.types:
            found[atom.column] = None
    return tuple(found)


def has_relative_times(expr: Expression) -> bool:
    """Whether ``expr`` means something only once it is known when it is asked."""
    return bool(relative_columns(expr))


def resolve_times(expr: Expression, now: dt.datetime, zoneless: Collection[str] = ()) -> Expression:
    """``expr`` with points in time for times relative to now; itself if it has none.

    Args:
        expr: a predicate.
        now: with a time zone.
        zoneless: the columns whose times have no zone. They are compared with UTC's clock, others with instants.

    Raises:
        ExpressionError: a time is out of datetime's range.
    """

    def resolved(value: Scalar, column: str) -> Scalar:
        if not isinstance(value, RelativeTime):
            return value
        try:
            moment = now.astimezone(dt.UTC) + value.offset
        except OverflowError as error:
            raise ExpressionError(f"{show(value)} is out of datetime's range", column=column) from error
        return moment.replace(tzinfo=None) if column in zoneless else moment

    def replaced(node: Expression) -> Expression:
        if isinstance(node, Not):
            return Not(replaced(node.arg))
        if isinstance(node, (And, Or)):
            return type(node)(tuple(map(replaced, node.args)))
        if isinstance(node, Comparison):
            return Comparison(node.column, node.op, resolved(node.value, node.column))
        if isinstance(node, Has):
            return Has(node.column, resolved(node.value, node.column))
        if isinstance(node, (In, KeyIn)):
            return type(node)(node.column, tuple(resolved(value, node.column) for value in node.values))
        return node

    return replaced(expr) if has_relative_times(expr) else expr
