"""Predicates on times relative to now, made predicates on points in time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from asyncpq.errors import ExpressionError
from asyncpq.expressions.scalars import RelativeTime, Scalar, show
from asyncpq.expressions.tree import Atom, Expression, In, KeyIn, atoms, replace_atoms


def relative_columns(expr: Expression) -> tuple[str, ...]:
    """The names of the columns that are compared with times relative to now, in order of appearance."""
    named = [atom.column for atom in atoms(expr) if atom.column is not None and _is_relative(atom)]
    return tuple(dict.fromkeys(named))


def _is_relative(atom: Atom) -> bool:
    types = atom.types if isinstance(atom, (In, KeyIn)) else map(type, atom.literals)
    return RelativeTime in types


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

    def replaced(atom: Atom) -> Atom:
        column = atom.column
        if column is None or not _is_relative(atom):
            return atom
        return atom.with_literals(lambda value: resolved(value, column))

    return replace_atoms(expr, replaced)
