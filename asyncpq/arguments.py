"""What callers pass to the verbs of files, checked before anything else is done."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import InvalidOptionError
from asyncpq.expressions import Expression, parse_filters
from asyncpq.planning.access_plan import AccessPlan


def column_names(columns: Any, argument: str = "columns") -> list[str | int] | None:
    """Names and ordinals of columns; None for all.

    Raises:
        InvalidOptionError: it is no list of such.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidOptionError(
            f"{argument}={columns!r}: must be a list of names", hint="Write [...] around the name."
        )
    names = list(columns)
    for name in names:
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise InvalidOptionError(f"{argument}: {name!r} is neither a name nor an ordinal")
    return names


def dictionary_names(names: Any) -> tuple[str, ...]:
    """Names of columns that are to come as dictionary arrays.

    Raises:
        InvalidOptionError: it is no list of names.
    """
    found = column_names(names, "read_dictionary")
    if found is None or not all(isinstance(name, str) for name in found):
        raise InvalidOptionError(f"read_dictionary={names!r}: must be a list of names")
    return tuple(str(name) for name in found)


class Predicate(TypedDict, total=False):
    """What a :class:`asyncpq.prepared.Question` takes for a predicate."""

    where: Expression
    unbound: pc.Expression


def predicate(where: object) -> Predicate:
    """The predicate in whichever form it was given; nothing for None.

    Raises:
        ExpressionError: it is none.
    """
    if where is None:
        return {}
    return {"unbound": where} if isinstance(where, pc.Expression) else {"where": parse_filters(where)}


def access_plan(access: Any) -> AccessPlan | None:
    """Which of a file's rows may be read; None for all.

    Raises:
        InvalidOptionError: it is no :class:`AccessPlan`.
    """
    if access is not None and not isinstance(access, AccessPlan):
        raise InvalidOptionError(
            f"access={access!r}: must be an AccessPlan", hint="Make one with asyncpq.AccessPlan.rows([...]), say."
        )
    return access


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Check the argument ``name``.

    Raises:
        InvalidOptionError: it is none of those that are known.
    """
    if value not in known:
        raise InvalidOptionError(f"{name}={value!r}: must be {' or '.join(map(repr, known))}")


def whole_number(name: str, value: Any, least: int) -> int | None:
    """The argument ``name``, if it was given.

    Raises:
        InvalidOptionError: it is no whole number, or less than ``least``.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise InvalidOptionError(f"{name}={value!r}: must be a whole number of at least {least}")
    return value


def row_numbers(rows: Any) -> list[int]:
    """Row numbers as ints; Arrow and numpy arrays are taken as lists.

    Raises:
        InvalidOptionError: it is no list of whole numbers.
    """
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise InvalidOptionError(f"rows={rows!r}: must be a list of row numbers")
    values = rows.to_pylist() if isinstance(rows, (pa.Array, pa.ChunkedArray)) else list(rows)
    if any(isinstance(row, bool) for row in values):
        raise InvalidOptionError("rows must be whole numbers, not True or False")
    try:
        return [operator.index(row) for row in values]
    except TypeError as error:
        raise InvalidOptionError(f"rows must be whole numbers: {error}") from error
