"""Predicates made shorter without changing what they say of any row."""

from __future__ import annotations

import operator
from collections.abc import Collection

from asyncpq.expressions.ranges import is_unsatisfiable
from asyncpq.expressions.tree import (
    And,
    Comparison,
    Constant,
    Expression,
    In,
    KeyIn,
    Not,
    Or,
    atoms,
    columns,
    join,
    parts,
)


def simplify(expr: Expression) -> Expression:
    """An expression with the same result for every row, flattened, with constants and double negations folded."""
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


def without_contradictions(expr: Expression, inexact: Collection[Expression] = ()) -> Expression:
    """An expression that is true for the same rows, without the parts that no row can meet.

    Where it is not true it may be false for null, and the other way round.

    Args:
        expr: a predicate.
        inexact: atoms of it whose literals are cast before they are compared.
    """
    if not isinstance(expr, (And, Or, Not)):
        return expr
    seen: set[str] = set()
    again: set[str] = set()  # it takes two to contradict
    for atom in atoms(expr):
        for name in columns(atom):
            (again if name in seen else seen).add(name)
    if not again:
        return expr
    found = _possible(expr, frozenset(inexact), again)
    return Constant(False) if found is None else found


def _possible(expr: Expression, inexact: Collection[Expression], among: Collection[str]) -> Expression | None:
    """What of ``expr`` some row may meet; None if none can."""
    if is_unsatisfiable(expr, inexact, among):
        return None
    if not isinstance(expr, (And, Or)):
        return expr
    found = [_possible(arg, inexact, among) if isinstance(arg, (And, Or, Not)) else arg for arg in expr.args]
    left = [arg for arg in found if arg is not None]
    if len(left) == len(expr.args) and all(map(operator.is_, left, expr.args)):
        return expr
    return join(type(expr), left)
