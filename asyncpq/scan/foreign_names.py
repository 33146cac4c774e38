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
    "dtypes": "schema",
    "execute": "read(where=...), which takes a condition in SQL",
    "explain": "plan(columns, where), which has explain()",
    "fetch": "read(columns, where)",
    "fetchall": "read(columns, where)",
    "fetchone": "read(limit=1)",
    "fields": "schema",
    "filter": "read(where=...) or scan(where=...)",
    "get_row_group": "read(access=asyncpq.AccessPlan.row_groups([number]))",
    "head": "read(limit=...)",
    "iter_batches": "scan(columns, where)",
    "iter_rows": "scan(columns, where)",
    "limit": "read(limit=...)",
    "metadata": "inspect(), whose result has row groups, pages and statistics",
    "names": "schema.names",
    "num_rows": "count()",
    "path": "url",
    "query": "read(where=...), which takes a condition in SQL",
    "read_parquet": "read(columns, where)",
    "read_row_group": "read(access=asyncpq.AccessPlan.row_groups([number]))",
    "read_row_groups": "read(access=asyncpq.AccessPlan.row_groups(numbers))",
    "read_table": "read(columns, where)",
    "scanner": "scan(columns, where)",
    "schema_arrow": "schema",
    "select": "read(columns)",
    "shape": "count() and schema",
    "sql": "read(where=...), which takes a condition in SQL",
    "statistics": "inspect()",
    "to_arrow": "read(columns, where)",
    "to_batches": "scan(columns, where)",
    "to_pandas": "read(columns, where), and its to_pandas()",
    "to_polars": "asyncpq.polars.scan(...)",
    "to_reader": "scan(columns, where), which has to_reader()",
    "to_table": "read(columns, where)",
    "where": "read(where=...) or scan(where=...)",
}


_OF_SCANS: Final = {
    **dict.fromkeys(("collect", "fetchall", "read", "read_all", "to_arrow"), "to_table()"),
    **dict.fromkeys(("iter_batches", "to_batches"), "the scan itself, an iterator of record batches"),
    "num_rows": "to_table(), and its num_rows",
    "to_pandas": "to_table(), and its to_pandas()",
    "to_polars": "polars.DataFrame(...) of to_table()",
}
#: Verbs of files and datasets, and what other libraries call theirs that open one: sessions and modules have neither.
_OF_FILES: Final = {
    **{name: f"{name}(...)" for name in ("count", "inspect", "lint", "lookup", "plan", "read", "scan", "take", "why")},
    **dict.fromkeys(("ParquetDataset", "ParquetFile", "open", "open_delta", "open_table"), "read(...) and scan(...)"),
    **dict.fromkeys(("dataset", "parquet", "read_delta", "scan_delta", "scan_parquet"), "read(...) and scan(...)"),
    "schema": "schema",
    "table": "read(...) and scan(...)",
}


def opens_first(name: str) -> str:
    """Return the end of an error's message for a verb that a session or module lacks, because files and datasets have
    it; empty for other names."""
    ours = _OF_FILES.get(name) or _OURS.get(name)
    return "" if ours is None else f". Use open_file(url) or open_dataset(url), whose result has {ours}"


def foreign_name(opened: Any, name: str) -> NoReturn:
    """Raise AttributeError for an attribute that a session, file, dataset or scan does not have, with the name that it
    has here if other libraries have one of that name. Python calls it as ``__getattr__``."""
    kind = type(opened).__name__
    if kind.endswith("Session"):
        hint = opens_first(name)
    else:
        ours = (_OF_SCANS if kind.endswith("Scan") else _OURS).get(name)
        hint = "" if ours is None else f". Use {ours}"
    raise AttributeError(f"a {kind} has no attribute {name!r}{hint}", name=name, obj=opened)


def not_iterated(opened: Any) -> NoReturn:
    """Raise UsageError for ``async for`` over a file or dataset. Python calls it as ``__aiter__``."""
    name = type(opened).__name__.lower()
    raise UsageError(
        f"a {name} is not iterated",
        hint=f"Write `async with {name}.scan(...) as scan:`, and `async for batch in scan:` in that block.",
    )


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
