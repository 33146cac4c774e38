"""Columns of PySpark such as ``F.col("id") == 17`` as predicates, for pruning. Spark itself filters the rows by them.

A column is a tree of calls, names and literals: objects of the JVM in classic Spark, messages of Spark Connect's
protocol otherwise. A part that asyncpq cannot express as a predicate becomes :class:`Unknown`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import Column

from asyncpq import Expression
from asyncpq.expressions import tree
from asyncpq.spark.reads.pruning_terms import date_of
from asyncpq.spark.reads.sql_conditions import Unknown, read_condition
from asyncpq.spark.types.read_conf import ReadConf

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
_PLAIN: Final = (bool, int, float, str, Decimal, bytes)


class _Name(NamedTuple):
    parts: Sequence[str]


class _Value(NamedTuple):
    value: Any  # None for null


class _Call(NamedTuple):
    function: str
    arguments: Sequence[_Node]


class _Sql(NamedTuple):
    text: str


_Node: TypeAlias = _Name | _Value | _Call | _Sql | None


def read_column(column: Column, conf: ReadConf | None = None) -> Expression:
    """Return the predicate of a boolean column. :class:`Unknown` replaces the parts that asyncpq cannot translate."""
    made: Any = column
    if hasattr(type(made), "to_plan"):  # of Spark Connect
        node = _of_message(made.to_plan(None))
    else:
        node = _of_jvm(made._jc.node())  # noqa: SLF001  # PySpark has no public way
    return _condition(node, conf or ReadConf())


# -- nodes ----------------------------------------------------------------------------------------


def _of_jvm(node: Any) -> _Node:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedAttribute":
        return _Name(_sequence(node.nameParts()))
    if kind == "Literal":
        try:
            value = _of_java(node.value())
        except OverflowError:  # a time outside of the years of Python
            return None
        return None if value is _NO_VALUE else _Value(value)
    if kind == "UnresolvedFunction":
        return _Call(node.functionName(), [_of_jvm(argument) for argument in _sequence(node.arguments())])
    return _Sql(node.expression()) if kind == "SqlExpression" else None


def _sequence(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


_NO_VALUE: Final = object()


def _of_java(value: Any) -> Any:
    """Return the Python value of a JVM literal; ``_NO_VALUE`` if it has a type that asyncpq does not support."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    kind = value.getClass().getName()
    if kind == "java.sql.Date":
        return date_of(value.toString()) or _NO_VALUE
    if kind == "java.sql.Timestamp":
        seconds = value.getTime() // 1000
        return _EPOCH + dt.timedelta(seconds=seconds, microseconds=value.getNanos() // 1000)
    if kind == "scala.math.BigDecimal":
        return Decimal(value.toString())
    return _NO_VALUE


def _of_message(message: Any) -> _Node:
    kind = message.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        return _Name(_parts(message.unresolved_attribute.unparsed_identifier))
    if kind == "literal":
        literal = message.literal
        read = _LITERALS.get(literal.WhichOneof("literal_type"))
        try:
            return None if read is None else _Value(read(literal))
        except OverflowError:  # a time outside of the years of Python
            return None
    if kind == "unresolved_function":
        call = message.unresolved_function
        return _Call(call.function_name, [_of_message(argument) for argument in call.arguments])
    return _Sql(message.expression_string.expression) if kind == "expression_string" else None


def _parts(name: str) -> list[str]:
    """Split a dotted name into its parts, which may be in backquotes."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(name)]


_LITERALS: Final[dict[str, Callable[[Any], Any]]] = {
    "null": lambda literal: None,
    **{
        name: attrgetter(name)
        for name in ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary")
    },
    "decimal": lambda literal: Decimal(literal.decimal.value),
    "date": lambda literal: _EPOCH.date() + dt.timedelta(days=literal.date),
    "timestamp": lambda literal: _EPOCH + dt.timedelta(microseconds=literal.timestamp),
    "timestamp_ntz": lambda literal: _EPOCH.replace(tzinfo=None) + dt.timedelta(microseconds=literal.timestamp_ntz),
}

# -- conditions -----------------------------------------------------------------------------------


def _condition(node: _Node, conf: ReadConf) -> Expression:
    condition: Expression | None = None
    if isinstance(node, _Sql):
        return read_condition(node.text, conf)
    if isinstance(node, _Value) and (node.value is None or isinstance(node.value, bool)):
        condition = tree.Constant(node.value)
    elif isinstance(node, _Name):
        condition = _named(node, lambda name: tree.Comparison(name, "==", True))
    elif isinstance(node, _Call):
        function = node.function.lower()
        if function in _JOINED:
            condition = _JOINED[function](tuple([_condition(argument, conf) for argument in node.arguments]))
        elif function in ("not", "!"):
            condition = tree.Not(_condition(node.arguments[0], conf))
        else:
            condition = _call(function, node.arguments)
    what = f"the function {node.function}" if isinstance(node, _Call) else "a part of the column"
    return Unknown(f"asyncpq does not translate {what} with these arguments") if condition is None else condition


_JOINED: Final[dict[str, Callable[[tuple[Expression, ...]], Expression]]] = {"and": tree.And, "or": tree.Or}
#: For each comparison the operator, and that with both sides exchanged.
_COMPARISONS: Final[dict[str, tuple[tree.CompareOp, tree.CompareOp]]] = {
    "=": ("==", "=="),
    "==": ("==", "=="),
    "!=": ("!=", "!="),
    "<": ("<", ">"),
    "<=": ("<=", ">="),
    ">": (">", "<"),
    ">=": (">=", "<="),
}
_OF_TEXT: Final[dict[str, Callable[[str, str], Expression]]] = {
    "startswith": tree.StartsWith,
    "contains": tree.Contains,
    "like": tree.Like,
}


def _call(function: str, arguments: Sequence[_Node]) -> Expression | None:
    """Return the predicate of a call of ``function``, such as a comparison with its operands in either order, or a
    function of a column; None if asyncpq has none."""
    first, *others = arguments or (None,)
    if isinstance(first, _Value) and len(others) == 1 and function in _COMPARISONS:
        first, others = others[0], [first]
        op = _COMPARISONS[function][1]
    else:
        op = _COMPARISONS.get(function, ("==", "=="))[0]
    values = [other.value for other in others if isinstance(other, _Value)]
    if not isinstance(first, _Name) or len(values) < len(others):
        return None
    if function in ("isnull", "isnotnull") and not values:
        return _named(first, lambda name: tree.IsNull(name) if function == "isnull" else tree.Not(tree.IsNull(name)))
    if function == "<=>" and len(values) == 1:
        return _named(first, lambda name: _null_safe(name, values[0]))
    if not values or None in values:
        return None
    if function == "in":
        return _named(first, lambda name: tree.In(name, tuple(values)))
    if function in _COMPARISONS and len(values) == 1:
        return _named(first, lambda name: tree.Comparison(name, op, values[0]))
    if function in _OF_TEXT and len(values) == 1 and isinstance(values[0], str):
        return _named(first, lambda name: _OF_TEXT[function](name, values[0]))
    return None


def _null_safe(name: str, value: Any) -> Expression:
    if value is None:
        return tree.IsNull(name)
    return tree.And((tree.Comparison(name, "==", value), tree.Not(tree.IsNull(name))))


def _named(node: _Name, make: Callable[[str], Expression]) -> Expression | None:
    """Return ``make(path)`` for the dotted path of a column; None if one of the names in it contains a dot."""
    return None if any("." in part for part in node.parts) else make(".".join(node.parts))
