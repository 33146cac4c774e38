"""Columns of PySpark such as ``F.col("id") == 17`` as predicates, for pruning. Spark itself filters the rows by them.

A column is a tree of calls, names and literals: objects of the JVM in classic Spark, messages of Spark Connect's
protocol otherwise. :mod:`asyncpq.spark.reads.condition_calls` makes the predicate.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

from pyspark.sql import Column

from asyncpq import Expression
from asyncpq.spark.reads.condition_calls import FunctionCall, Name, Node, Value, predicate
from asyncpq.spark.reads.pruning_terms import date_of
from asyncpq.spark.reads.sql_conditions import read_condition
from asyncpq.spark.types.read_conf import ReadConf

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
_PLAIN: Final = (bool, int, float, str, Decimal, bytes)


def read_column(column: Column, conf: ReadConf | None = None) -> Expression:
    """Return the predicate of a boolean column; ``Untranslated`` replaces the parts that asyncpq cannot express."""
    made: Any = column
    if hasattr(type(made), "to_plan"):  # of Spark Connect
        node = _of_message(made.to_plan(None), conf or ReadConf())
    else:
        node = _of_jvm(made._jc.node(), conf or ReadConf())  # noqa: SLF001  # PySpark has no public way
    return predicate(node)


# -- nodes ----------------------------------------------------------------------------------------


def _of_jvm(node: Any, conf: ReadConf) -> Node:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedAttribute":
        return Name(_sequence(node.nameParts()))
    if kind == "Literal":
        try:
            value = _of_java(node.value())
        except OverflowError:  # a time outside of the years of Python
            return None
        return None if value is _NO_VALUE else Value(value)
    if kind == "UnresolvedFunction":
        return _call(node.functionName(), [_of_jvm(argument, conf) for argument in _sequence(node.arguments())])
    return read_condition(node.expression(), conf) if kind == "SqlExpression" else None


def _call(function: str, arguments: Sequence[Node]) -> FunctionCall:
    return FunctionCall(function.lower(), arguments, lambda: f"the function {function} with these arguments")


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


def _of_message(message: Any, conf: ReadConf) -> Node:
    kind = message.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        return Name(_parts(message.unresolved_attribute.unparsed_identifier))
    if kind == "literal":
        literal = message.literal
        read = _LITERALS.get(literal.WhichOneof("literal_type"))
        try:
            return None if read is None else Value(read(literal))
        except OverflowError:  # a time outside of the years of Python
            return None
    if kind == "unresolved_function":
        call = message.unresolved_function
        return _call(call.function_name, [_of_message(argument, conf) for argument in call.arguments])
    return read_condition(message.expression_string.expression, conf) if kind == "expression_string" else None


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
