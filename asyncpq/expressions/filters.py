"""Predicates written as pyarrow's ``filters=`` lists."""

from __future__ import annotations

import reprlib

from asyncpq.errors import ExpressionError
from asyncpq.expressions.scalars import as_scalar, as_scalars
from asyncpq.expressions.tree import And, Column, CompareOp, Comparison, Expression, In, Not, Or, bare_column, join

_OPS: dict[str, CompareOp] = {"=": "==", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ACCEPTED = (
    'Give an expression of asyncpq.col, such as col("id") == 1, a list as in pyarrow\'s filters=, such as '
    '[("id", "==", 1)], or a pyarrow.compute expression; None for all rows.'
)


def parse_filters(filters: object) -> Expression:
    """Turn pyarrow's ``filters=`` lists into an expression.

    Args:
        filters: ``[(column, op, value), ...]``, all of which must hold, or a list of such lists, of which one
            must. Ops: ``= == != < > <= >= in``, ``not in``. An :class:`Expression` is returned as it is.

    Raises:
        ExpressionError: naming the tuple that cannot be understood.
    """
    if isinstance(filters, Expression):
        return filters
    if isinstance(filters, Column):
        raise bare_column(filters)
    if not isinstance(filters, (list, tuple)):
        raise ExpressionError(f"{reprlib.repr(filters)} is not a predicate", hint=_ACCEPTED)
    if not filters:
        raise ExpressionError("[] is not a predicate: a list of filters holds at least one", hint=_ACCEPTED)
    if len(filters) == 3 and all(isinstance(part, str) for part in filters[:2]):
        raise ExpressionError(f"{reprlib.repr(filters)} is one filter, not a list", hint="Put it in a list: [(...)].")
    if isinstance(filters[0], (list, tuple)) and filters[0] and isinstance(filters[0][0], str):
        return _conjunction(filters)
    return join(Or, [_conjunction(group) for group in filters])


def _conjunction(group: object) -> Expression:
    if not isinstance(group, (list, tuple)) or not group:
        raise ExpressionError(f"expected a non-empty list of (column, op, value) tuples, not {group!r}")
    return join(And, [_filter_tuple(item) for item in group])


def _filter_tuple(item: object) -> Expression:
    if not isinstance(item, (list, tuple)) or len(item) != 3 or not isinstance(item[0], str):
        raise ExpressionError(f"filter {item!r} is not a (column, op, value) tuple")
    column, op, value = item
    if not isinstance(op, str):
        raise ExpressionError(f"filter {item!r}: {op!r} is no operator", column=column)
    try:
        if op in _OPS:
            return Comparison(column, _OPS[op], as_scalar(value))
        if op in ("in", "not in"):
            member = In(column, as_scalars(value))
            return member if op == "in" else Not(member)
    except ExpressionError as error:
        raise ExpressionError(f"filter {item!r}: {error.message}", column=column) from error
    raise ExpressionError(f"filter {item!r}: unknown operator {op!r}", hint=f"Known: {', '.join(_OPS)}, in, not in.")
