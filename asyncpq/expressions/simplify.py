"""Shorter predicates with the same result for every row."""

from __future__ import annotations

from asyncpq.expressions.tree import And, Comparison, Constant, Expression, In, KeyIn, Not, Or, join, parts


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
