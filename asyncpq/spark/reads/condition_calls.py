"""Conditions as calls of Spark's functions, with names and literals as arguments, and their predicates for pruning.

SQL and columns of PySpark become such calls. A part that asyncpq cannot express as a predicate becomes
:class:`Untranslated`: it excludes no data, and the other parts still do. Spark itself filters the rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

from asyncpq import Expression, col
from asyncpq.engine.foreign_conditions import Untranslated, constant
from asyncpq.errors import ExpressionError


class Name(NamedTuple):
    """A column, or a field inside of structs, by the names on the way to it."""

    parts: Sequence[str]


class Value(NamedTuple):
    """A literal in the type that Spark has for it; None for null."""

    value: Any


class FunctionCall(NamedTuple):
    """A call of a function or operator. ``shown`` returns its text for messages."""

    function: str  # in lower case
    arguments: Sequence[Node]
    shown: Callable[[], str]


#: None is a part that has no such form. An expression is a condition that was translated already.
Node: TypeAlias = Name | Value | FunctionCall | Expression | None


def predicate(node: Node) -> Expression:
    """Return the predicate of a condition."""
    if isinstance(node, Expression):
        return node
    condition: Expression | None = None
    if isinstance(node, Value) and (node.value is None or isinstance(node.value, bool)):
        condition = constant(node.value)
    elif isinstance(node, Name):
        condition = _call("=", [node, Value(True)])
    elif isinstance(node, FunctionCall):
        if node.function in _JOINED:
            condition = reduce(_JOINED[node.function], map(predicate, node.arguments))
        elif node.function in ("not", "!"):
            condition = ~predicate(node.arguments[0])
        else:
            try:
                condition = _call(node.function, node.arguments)
            except ExpressionError:  # a pattern with too many wildcards
                condition = None
    if condition is not None:
        return condition
    return Untranslated(
        f"asyncpq does not translate {node.shown() if isinstance(node, FunctionCall) else 'a part of it'}"
    )


_JOINED: Final[dict[str, Callable[[Expression, Expression], Expression]]] = {"and": operator.and_, "or": operator.or_}
#: For each comparison the operator, and that with both sides exchanged.
_COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], Expression], Callable[[Any, Any], Expression]]]] = {
    "=": (operator.eq, operator.eq),
    "==": (operator.eq, operator.eq),
    "!=": (operator.ne, operator.ne),
    "<": (operator.lt, operator.gt),
    "<=": (operator.le, operator.ge),
    ">": (operator.gt, operator.lt),
    ">=": (operator.ge, operator.le),
}
_OF_TEXT: Final = {"startswith": "starts_with", "contains": "contains", "like": "like"}


def _call(function: str, arguments: Sequence[Node]) -> Expression | None:
    """Return the predicate of a call of ``function``, such as a comparison with its operands in either order, or a
    function of a column; None if asyncpq has none."""
    first, *others = arguments or (None,)
    is_turned = isinstance(first, Value) and len(others) == 1 and function in _COMPARISONS
    if is_turned:
        first, others = others[0], [first]
    values = [other.value for other in others if isinstance(other, Value)]
    if not isinstance(first, Name) or len(values) < len(others) or any("." in part for part in first.parts):
        return None
    column = col(".".join(first.parts))
    if function in ("isnull", "isnotnull") and not values:
        return column.is_null() if function == "isnull" else column.is_valid()
    if function == "<=>" and len(values) == 1:
        return column.is_null() if values[0] is None else (column == values[0]) & column.is_valid()
    if not values or None in values:
        return None
    if function == "in":
        return column.is_in(values)
    if function in _COMPARISONS and len(values) == 1:
        return _COMPARISONS[function][is_turned](column, values[0])
    if function in _OF_TEXT and len(values) == 1 and isinstance(values[0], str):
        made: Expression = getattr(column, _OF_TEXT[function])(values[0])
        return made
    return None
