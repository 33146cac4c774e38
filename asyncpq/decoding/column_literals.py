"""Resolve literals whose value depends on their column: ``now()``, and SQL literals without a type.

:func:`resolve_literals` replaces them with plain values once the types of the columns are known.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from asyncpq.decoding.arrow import is_list
from asyncpq.decoding.expression_engine import function_type
from asyncpq.decoding.filter import column_type
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.decoding.variants import part_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Expression, FunctionTest, VariantTest, resolve_times, tree
from asyncpq.expressions.scalars import Scalar, Timestamp, Untyped
from asyncpq.expressions.simplify import has_open_literals, relative_columns
from asyncpq.expressions.sql_operands import clock, date, moment

_DATE_HINT = "Compare it with a date: datetime.date.today() - datetime.timedelta(days=7)."
_TEXT = frozenset({pa.string(), pa.large_string()})
_BYTES = frozenset({pa.binary(), pa.large_binary()})


def resolve_literals(expr: Expression, now: dt.datetime, schema: pa.Schema | Mapping[str, pa.DataType]) -> Expression:
    """Return ``expr`` with plain literals in place of times relative to ``now()``, and of SQL literals without a type.

    ``now`` is the current time, with a time zone. Timestamps with a zone are compared with that instant, those without
    a zone with UTC's wall clock. Untyped literals take the types of their columns. Raises ColumnNotFoundError for an
    unknown column, PredicateTypeError if a literal does not fit its column's type, or ExpressionError if a time is out
    of datetime's range.
    """

    def resolved(atom: tree.Atom) -> Expression:
        column = atom.column
        if column is None or not has_open_literals(atom):
            return atom
        if isinstance(atom, VariantTest):
            type_ = part_type(atom.type)
        elif isinstance(atom, FunctionTest):
            type_ = function_type(atom, column_type(column, schema))
        else:
            type_ = _value_type(column, schema)
        if relative_columns(atom):
            stored = storage_type(type_)
            if not isinstance(stored, pa.TimestampType):
                raise PredicateTypeError(
                    f"now() can only be compared with timestamps, but {column!r} has the type {stored}",
                    column=column,
                    hint=_DATE_HINT if pa.types.is_date(stored) else None,
                )
            return resolve_times(atom, now, (column,) if stored.tz is None else ())
        return atom.with_literals(lambda value: _typed(value, type_, column))

    return tree.replace_atoms(expr, resolved)


def _value_type(name: str, schema: pa.Schema | Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type of a column's literals: the column's; of a list its elements', of a UUID column UUID."""
    type_ = column_type(name, schema)
    if is_list(storage_type(type_)):
        type_ = storage_type(type_).value_type
    return type_.value_type if isinstance(type_, pa.DictionaryType) else type_


def _typed(value: Scalar, type_: pa.DataType, column: str) -> Scalar:
    if not isinstance(value, Untyped):
        return value
    try:
        return _number(value.text, type_) if value.is_number else _quoted(value.text, type_)
    except ValueError as error:
        raise PredicateTypeError(
            f"{value} is compared with a column of type {type_}, but {error}", column=column
        ) from None


def _number(text: str, type_: pa.DataType) -> Scalar:
    """Parse a number for a column of ``type_``: the nearest float for floats, the exact number for others."""
    if not pa.types.is_floating(type_):
        exact = Decimal(text)
        return int(exact) if exact == exact.to_integral_value() else exact
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("the number is out of the type's range")
    if pa.types.is_float32(type_):
        try:
            return float(struct.unpack("<f", struct.pack("<f", number))[0])
        except OverflowError:
            return number
    return number


def _quoted(text: str, type_: pa.DataType) -> Scalar:
    if isinstance(type_, pa.UuidType):
        return uuid.UUID(text)
    stored = storage_type(type_)
    if stored in _BYTES or pa.types.is_fixed_size_binary(stored):
        return text.encode("utf-8", "surrogatepass")
    if pa.types.is_date(stored):
        return date(text)
    if pa.types.is_time(stored):
        return clock(text)
    if isinstance(stored, pa.TimestampType):
        return _moment(text, stored)
    if stored not in _TEXT and (pa.types.is_primitive(stored) or pa.types.is_decimal(stored)):
        raise ValueError("text in quotes is neither a number nor TRUE or FALSE: write it without quotes")
    return text


def _moment(text: str, type_: Any) -> Scalar:
    value = moment(text)
    zone = value.timezone if isinstance(value, Timestamp) else value.tzinfo
    if (zone is None) is not (type_.tz is None):
        if zone is None:
            raise ValueError("the time has no offset: write +00:00 after it for UTC")
        raise ValueError("the column's times have no zone: write the time without an offset")
    return value
