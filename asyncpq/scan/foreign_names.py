"""Errors for code that is written as for other libraries: their verbs, and a plain ``with``, say what is right here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from asyncpq.errors import UsageError
from asyncpq.storage.base import Unpicklable

_OURS: Final = {
    "aggregate": "count(where)",
    "collect": "read(columns, where)",
    "column_names": "schema.names",
    "columns": "schema.names",
    "count_rows": "count(where)",
    "explain": "plan(columns, where), which has explain()",
    "fetchall": "read(columns, where)",
    "fields": "schema",
    "filter": "read(where=...) or scan(where=...)",
    "get_row_group": "read(access=asyncpq.AccessPlan.row_groups([number]))",
    "head": "read(limit=...)",
    "iter_batches": "scan(columns, where)",
    "iter_rows": "scan(columns, where)",
    "metadata": "inspect(), whose result has row groups, pages and statistics",
    "num_rows": "count()",
    "query": "read(where=...), which takes a condition in SQL",
    "read_row_group": "read(access=asyncpq.AccessPlan.row_groups([number]))",
    "read_row_groups": "read(access=asyncpq.AccessPlan.row_groups(numbers))",
    "scanner": "scan(columns, where)",
    "schema_arrow": "schema",
    "select": "read(columns)",
    "shape": "count() and schema",
    "statistics": "inspect()",
    "to_arrow": "read(columns, where)",
    "to_batches": "scan(columns, where)",
    "to_pandas": "read(columns, where), and its to_pandas()",
    "to_polars": "asyncpq.polars.scan(...)",
    "to_reader": "scan(columns, where), which has to_reader()",
    "to_table": "read(columns, where)",
    "where": "read(where=...) or scan(where=...)",
}


def foreign_name(opened: Any, name: str) -> NoReturn:
    """Raise AttributeError for an attribute that a file or dataset does not have, with the name that it has here if
    other libraries have one of that name. Python calls it as ``__getattr__``."""
    kind = type(opened).__name__
    ours = _OURS.get(name)
    hint = "" if ours is None else f". Use {ours}"
    raise AttributeError(f"a {kind} has no attribute {name!r}{hint}", name=name, obj=opened)


class EnteredAsync(Unpicklable):
    """Base of what ``async with`` enters: a plain ``with`` raises a UsageError that says so."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers find this mistake themselves

        def __enter__(self) -> NoReturn:
            kind = type(self).__name__
            raise UsageError(
                f"a {kind} needs `async with`, but was used in a plain `with`",
                hint="Without an event loop, use asyncpq.blocking, whose classes have the same names.",
            )

        def __exit__(self, *exc_info: object) -> None:
            """Do nothing: a plain ``with`` needs this method, or it fails before ``__enter__`` can raise its error."""
