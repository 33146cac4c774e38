"""Filters that Spark hands to the source with ``pushdown=true``; they only prune, and Spark applies all of them again.

Spark below 5.0 keeps what was pushed with the relation (SPARK-58551): where one loaded relation is scanned twice,
every scan gets the filters of the last one, and an unfiltered scan after a filtered one asks Python nothing. Nothing
that a reader does can make that right, so the option is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import pyspark
from pyspark.sql import datasource as spark

from asyncpq.errors import ExpressionError, UnsupportedFeatureError
from asyncpq.expressions import (
    And,
    Comparison,
    Contains,
    Expression,
    In,
    IsNull,
    Not,
    StartsWith,
)
from asyncpq.scalars import as_scalar, as_scalars

_FIXED_IN: Final = (5, 0)

_COMPARED: Final[dict[type[spark.Filter], str]] = {
    spark.EqualTo: "==",
    spark.EqualNullSafe: "==",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


def require_safe_pushdown(version: str = pyspark.__version__) -> None:
    """
    Raises:
        UnsupportedFeatureError: this version of Spark may give rows of another scan's filters.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _FIXED_IN:
        raise UnsupportedFeatureError(
            f"pushdown=true gives wrong rows with Spark {version}, where a DataFrame or view is used twice"
            f" (SPARK-58551, fixed in Spark {'.'.join(map(str, _FIXED_IN))})",
            hint="Use asyncpq.spark.scan(spark, url, where=...), or the options predicate or where.",
        )


def pushed_expression(filters: Iterable[spark.Filter]) -> Expression | None:
    """A condition that is true wherever all of the filters are, in Spark's meaning; None for no condition."""
    found = [one for one in map(_expression, filters) if one is not None]
    return found[0] if len(found) == 1 else And(tuple(found)) if found else None


def _expression(pushed: spark.Filter) -> Expression | None:
    """None for what has no counterpart."""
    if isinstance(pushed, spark.Not):
        # Nothing is lost in between: each of these is the filter itself, not something wider.
        inner = None if isinstance(pushed.child, spark.EqualNullSafe) else _expression(pushed.child)
        return None if inner is None else Not(inner)
    path = getattr(pushed, "attribute", ())
    if not path or any("." in part for part in path):
        return None
    try:
        return _leaf(pushed, ".".join(path))
    except ExpressionError:  # a literal that asyncpq has no form for
        return None


def _leaf(pushed: spark.Filter, column: str) -> Expression | None:
    if isinstance(pushed, spark.EqualNullSafe) and pushed.value is None:
        return IsNull(column)
    op = _COMPARED.get(type(pushed))
    if op is not None:
        return Comparison(column, op, as_scalar(pushed.value))  # type: ignore[attr-defined,arg-type]  # all of these have a value
    make = _OTHERS.get(type(pushed))
    return None if make is None else make(pushed, column)


_OTHERS: Final[dict[type[spark.Filter], Callable[..., Expression | None]]] = {
    spark.In: lambda pushed, column: In(column, as_scalars(pushed.value)),
    spark.IsNull: lambda _, column: IsNull(column),
    spark.IsNotNull: lambda _, column: Not(IsNull(column)),
    spark.StringStartsWith: lambda pushed, column: StartsWith(column, pushed.value),
    spark.StringContains: lambda pushed, column: Contains(column, pushed.value),
}
