"""Predicates with the columns that are constant in a file put in.

Times relative to now, resolved as the types of the columns that are compared with them want it.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from asyncpq.decoding.conform import constant_array, is_list
from asyncpq.decoding.expression_engine import literals
from asyncpq.decoding.filter import column_type, compile_filter
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import And, Constant, Expression, Not, Or, columns, resolve_times, simplify
from asyncpq.expressions.relative_times import relative_columns

_FEW_LITERALS = 16  # an atom with more is not kept


def fold(expr: Expression, constant: Callable[[str], pa.Scalar | None]) -> Expression:
    """What is left of a filter where some columns have one value in all rows; simplified.

    Rows come out where a filter is true, so null is as good as false.

    Args:
        expr: a predicate.
        constant: the one value of a column; None if it has others.

    Raises:
        PredicateTypeError: pyarrow cannot compare a constant with a literal.
    """
    folded = _fold(expr, constant)
    return expr if folded is expr else _true_where(simplify(folded))


def _fold(expr: Expression, constant: Callable[[str], pa.Scalar | None]) -> Expression:
    if isinstance(expr, (And, Or)):
        args = tuple([_fold(arg, constant) for arg in expr.args])
        same = all(new is old for new, old in zip(args, expr.args, strict=True))
        return expr if same else type(expr)(args)
    if isinstance(expr, Not):
        arg = _fold(expr.arg, constant)
        return expr if arg is expr.arg else Not(arg)
    if isinstance(expr, Constant):
        return expr
    values = tuple([constant(name) for name in columns(expr)])
    if None in values:
        return expr
    few = len(literals(expr)) <= _FEW_LITERALS
    # 0.0 and -0.0 are equal scalars, and not the same to all predicates: their texts tell them apart
    return _known(expr, values, tuple(map(_text, values))) if few else _result(expr, values)


def _text(value: pa.Scalar) -> str:
    try:
        return repr(value)
    except (ValueError, OverflowError):  # a date that Python does not have
        return ""


def _result(atom: Expression, values: Sequence[pa.Scalar], _: Sequence[str] = ()) -> Constant:
    """What an atom is for one value of each of its columns."""
    named = dict(zip(columns(atom), values, strict=True))
    types = {name: value.type for name, value in named.items()}
    arrays = {name: constant_array(value, 1) for name, value in named.items()}
    return Constant(compile_filter(atom, types).mask(arrays, 1)[0].as_py())


_known = functools.lru_cache(maxsize=1024)(_result)  # many files, and many reads, have the same constants


def _true_where(expr: Expression) -> Expression:
    """``expr`` without what can only make it null where it is not true, as nothing above it turns that around."""
    if isinstance(expr, Constant):
        return Constant(expr.value is True)
    if not isinstance(expr, (And, Or)):
        return expr
    args = tuple([_true_where(arg) for arg in expr.args])
    return simplify(type(expr)(args)) if args != expr.args else expr


_DATE_HINT = "Compare it with a date: datetime.date.today() - datetime.timedelta(days=7)."


def resolve_typed_times(
    expr: Expression, now: dt.datetime, schema: pa.Schema | Mapping[str, pa.DataType]
) -> Expression:
    """``expr`` with points in time for times relative to ``now``; itself if it has none.

    Args:
        expr: a predicate.
        now: with a time zone.
        schema: of its columns, as for :func:`asyncpq.decoding.filter.compile_filter`. Timestamps with a zone are
            compared with instants, those without with UTC's clock.

    Raises:
        ColumnNotFoundError: there is no such column.
        PredicateTypeError: a column is of another type.
        ExpressionError: a time is out of datetime's range.
    """
    zoneless: set[str] = set()
    for name in relative_columns(expr):
        type_ = storage_type(column_type(name, schema))
        if is_list(type_):
            type_ = storage_type(type_.value_type)
        if not isinstance(type_, pa.TimestampType):
            raise PredicateTypeError(
                f"times relative to now are compared with timestamps, and {name!r} is {type_}",
                column=name,
                hint=_DATE_HINT if pa.types.is_date(type_) else None,
            )
        if type_.tz is None:
            zoneless.add(name)
    return resolve_times(expr, now, zoneless)
