"""Times relative to now, resolved as the types of the columns that are compared with them want it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow as pa

from asyncpq.decoding.conform import is_list
from asyncpq.decoding.filter import column_type
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Expression, resolve_times
from asyncpq.expressions.relative_times import relative_columns

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
