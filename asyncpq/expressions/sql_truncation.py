"""Comparisons of ``date_trunc('day', ts)`` with literals, as ranges of the column.

A truncated time is at least a literal where the time itself is at least the literal, rounded up to the unit. So each
comparison is a range of the column, which bounds can answer. Times with an offset are truncated in UTC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

from asyncpq.expressions import tree
from asyncpq.expressions.scalars import Scalar, Untyped
from asyncpq.expressions.sql_literals import moment
from asyncpq.expressions.sql_operands import ColumnPath, kind_of, operand_of, refuse
from asyncpq.expressions.tree import Expression

_FORM: Final = "Write date_trunc('day', ts) = TIMESTAMP '2024-05-01 00:00:00', with a column and one literal."
_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_DAYS: Final = {"DAY": 1, "WEEK": 7}
_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600}


def is_truncation(node: Any) -> bool:
    """Return whether a node is a call of date_trunc."""
    return kind_of(node) == "DateTrunc" or (kind_of(node) == "Paren" and is_truncation(node.this))


def compare_truncated(node: Any, op: tree.CompareOp, flipped: tree.CompareOp, left: Any, right: Any) -> Expression:
    """Return the range of the column in which ``left op right`` is true; one of the two is a call of date_trunc, and
    ``flipped`` is the operator with both sides exchanged. ``node`` is named in errors.

    Raises ExpressionError if the other side is no literal of a time, or the unit is unknown.
    """
    if not is_truncation(left):
        left, right, op = right, left, flipped
    while kind_of(left) == "Paren":
        left = left.this
    unit = str(left.args["unit"].name).upper()
    if left.args.get("zone") or unit not in {*_MONTHS, *_DAYS, *_SECONDS}:
        known = ", ".join([*_SECONDS, *_DAYS, *_MONTHS]).lower()
        refuse(node, "truncates to a unit that asyncpq does not know", f"Use one of {known}.")
    column, value = operand_of(left.this), None if is_truncation(right) else operand_of(right)
    if not isinstance(column, ColumnPath) or is_truncation(right) or isinstance(value, ColumnPath):
        refuse(node, "does not compare a truncated column with a literal", _FORM)
    if value is None:
        return tree.Constant(None)
    time, bound_of = _literal(node, value)
    try:
        below = _floor(time, unit)
        above = _next(below, unit)
    except (OverflowError, ValueError):
        refuse(node, "truncates to a time beyond the years 1 to 9999", "Compare the column itself.")
    first = below if below == time else above  # the least truncated time that is not less than the literal

    def is_from(bound: dt.datetime) -> Expression:
        return tree.Comparison(column.name, ">=", bound_of(bound))

    def is_before(bound: dt.datetime) -> Expression:
        return tree.Comparison(column.name, "<", bound_of(bound))

    if op in ("==", "!="):
        # false, or null for null, where no truncated time equals the literal
        equal = tree.And((is_from(first), is_before(above)))
        return equal if op == "==" else tree.Not(equal)
    return {">=": is_from(first), ">": is_from(above), "<": is_before(first), "<=": is_before(above)}[op]


def _literal(node: Any, value: Any) -> tuple[dt.datetime, Callable[[dt.datetime], Scalar]]:
    """Return a literal as a time, and a function that makes literals of its kind of other times."""
    if isinstance(value, Untyped) and not value.is_number:
        try:
            parsed = moment(value.text)
        except ValueError as error:
            refuse(node, f"is about no time: {error}", _FORM)
        if isinstance(parsed, dt.datetime):
            return parsed, _untyped
    if isinstance(value, dt.datetime):
        return value, lambda time: time
    if isinstance(value, dt.date):  # a date, or a time at midnight, as the column has it
        return dt.datetime(value.year, value.month, value.day), _untyped
    refuse(node, "does not compare with a time in microseconds of the years 1 to 9999", _FORM)


def _untyped(time: dt.datetime) -> Untyped:
    midnight = time.tzinfo is None and time.time() == dt.time()
    return Untyped(time.date().isoformat() if midnight else time.isoformat(" "), is_number=False)


def _floor(time: dt.datetime, unit: str) -> dt.datetime:
    if unit in _SECONDS:
        inside = time - time.replace(hour=0, minute=0, second=0, microsecond=0)
        return time - inside % dt.timedelta(seconds=_SECONDS[unit])
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit in _DAYS:
        return day - dt.timedelta(days=day.weekday() if unit == "WEEK" else 0)
    months = _MONTHS[unit]
    return day.replace(month=(day.month - 1) // months * months + 1, day=1)


def _next(time: dt.datetime, unit: str) -> dt.datetime:
    if unit in _SECONDS:
        return time + dt.timedelta(seconds=_SECONDS[unit])
    if unit in _DAYS:
        return time + dt.timedelta(days=_DAYS[unit])
    years, month = divmod(time.month - 1 + _MONTHS[unit], 12)
    return time.replace(year=time.year + years, month=month + 1)
