"""Shorter predicates with the same result for every row, and points in time for ``now()``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable

from asyncpq.errors import ExpressionError
from asyncpq.expressions.analysis import Truth, follow
from asyncpq.expressions.scalars import RelativeTime, Scalar, show
from asyncpq.expressions.tree import (
    And,
    Atom,
    Comparison,
    Constant,
    Expression,
    In,
    KeyIn,
    Not,
    Or,
    atoms,
    join,
    parts,
    replace_atoms,
)


def simplify(expr: Expression) -> Expression:
    """Fold constants, double negations and nested junctions; the result is the same for every row."""
    if isinstance(expr, (And, Or)):
        return _simplify_junction(expr)
    if isinstance(expr, Not):
        arg = simplify(expr.arg)
        if isinstance(arg, Not):
            return arg.arg
        if isinstance(arg, Constant):
            return Constant(None if arg.value is None else not arg.value)
        return Not(arg)
    if isinstance(expr, Comparison) and expr.value is None:
        return Constant(None)
    if isinstance(expr, In) and not expr.values:
        return Constant(False)
    if isinstance(expr, KeyIn) and not any(value is not None and value == value for value in expr.values):
        return Constant(False)  # null and NaN keys match nothing, not even null
    return expr


def _simplify_junction(expr: And | Or) -> Expression:
    node = type(expr)
    neutral = node is And  # true changes nothing in an AND, false decides it
    args: dict[Expression, None] = {}
    for arg in map(simplify, expr.args):
        for part in parts(arg, node):
            if isinstance(part, Constant) and part.value is not None:
                if part.value is not neutral:
                    return part
                continue
            args[part] = None
    if not args:
        return Constant(neutral)
    return join(node, list(args))


def implied(expr: Expression, change: Callable[[Atom], Expression | None]) -> Expression | None:
    """A predicate that is true wherever ``expr`` is, of changed atoms.

    ``change``: an atom with the same result for every row, or None to do without it. None stands for a predicate
    that is true for every row.
    """

    def of_atom(atom: Atom, truth: Truth) -> Expression | None:
        changed = change(atom)
        return Not(changed) if truth is Truth.FALSE and changed is not None else changed

    return follow(expr, Truth.TRUE, of_atom, conjunction, disjunction)


def conjunction(terms: Iterable[Expression | None]) -> Expression | None:
    """All terms that are not None, which is true for every row; None without any."""
    known = [term for term in terms if term is not None]
    return join(And, known) if known else None


def disjunction(terms: Iterable[Expression | None]) -> Expression | None:
    """Any of the terms; None where a term is None, which is true for every row."""
    branches = list(terms)
    known = [term for term in branches if term is not None]
    return join(Or, known) if len(known) == len(branches) else None


# -- times relative to now --------------------------------------------------------------------------


def relative_columns(expr: Expression) -> tuple[str, ...]:
    """The columns that are compared with ``now()``, in order of appearance."""
    if isinstance(expr, Atom):
        return (expr.column,) if expr.column is not None and _is_relative(expr) else ()
    named = [atom.column for atom in atoms(expr) if atom.column is not None and _is_relative(atom)]
    return tuple(dict.fromkeys(named))


def _is_relative(atom: Atom) -> bool:
    return RelativeTime in (atom.types if isinstance(atom, (In, KeyIn)) else map(type, atom.literals))


def has_relative_times(expr: Expression) -> bool:
    """Whether ``expr`` compares a column with ``now()``."""
    return bool(relative_columns(expr))


def resolve_times(expr: Expression, now: dt.datetime, zoneless: Collection[str] = ()) -> Expression:
    """Replace times relative to now by points in time.

    ``now``: with a time zone. ``zoneless``: columns of times without a zone, which are compared with UTC's clock;
    others hold instants. Returns ``expr`` itself if it has no relative times. Raises ExpressionError if a time is out
    of datetime's range.
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
