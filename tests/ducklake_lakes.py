"""DuckLakes that DuckDB's own extension writes, and reads for comparison."""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import asyncpq
from asyncpq import DuckLakeTable
from tests.postgres_server import PostgresServer

_EXTENSIONS = ("ducklake", "postgres_scanner", "sqlite_scanner")
_databases = itertools.count()


class Lake:
    """A DuckLake, attached to a DuckDB of its own. Closed by ``close``.

    Args:
        folder: for its data, and its catalog without a ``server``.
        server: holds the catalog, in a database of its own.
        inline_rows: so many rows of an insert are kept in the catalog; DuckLake's default is 10.
        options: of ATTACH.
    """

    def __init__(
        self, folder: Path, server: PostgresServer | None = None, *, inline_rows: int = 0, options: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        if server is None:
            self.path = folder / "catalog.sqlite"
            self.url = f"sqlite:///{self.path}"
            catalog = f"sqlite:{self.path}"
        else:
            database = f"lake_{next(_databases)}"
            server.execute(f"CREATE DATABASE {database}")
            self.url = server.url(database)
            catalog = f"postgres:{server.parameters(database)}"
        self._connection = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
        for name in _EXTENSIONS:
            module = importlib.resources.files(f"duckdb_extension_{name}")
            self._connection.execute(f"LOAD '{module}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
        self._connection.execute("SET TimeZone = 'UTC'")
        given = [f"DATA_PATH '{folder}/data'", f"DATA_INLINING_ROW_LIMIT {inline_rows}", *options]
        self._connection.execute(f"ATTACH 'ducklake:{catalog}' AS lake ({', '.join(given)})")
        self._connection.execute("USE lake")

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def query(self, query: str) -> pa.Table:
        """What DuckDB gives, as Arrow."""
        return self._connection.execute(query).to_arrow_table()

    def value(self, query: str) -> Any:
        """The first value of the first row."""
        return self._connection.execute(query).fetchall()[0][0]

    @property
    def newest(self) -> int:
        """Id of the newest snapshot."""
        return int(self.value("SELECT max(snapshot_id) FROM lake.snapshots()"))

    def table(self, name: str, **options: Any) -> DuckLakeTable:
        return DuckLakeTable(self.url, name, **options)

    def close(self) -> None:
        self._connection.close()


def rows(table: pa.Table) -> list[str]:
    """The rows as text, sorted: neither reader promises an order of files. NaN is NaN, and -0.0 is not 0.0."""
    columns = [_plain(column) for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True))) if columns else [repr(table.num_rows)]


def _plain(column: pa.ChunkedArray) -> list[object]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp(kind.unit)).cast(pa.int64())  # zones have several names
    if isinstance(kind, pa.UuidType):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return list(column.to_pylist())


async def read(session: asyncpq.Session, table: DuckLakeTable, where: object = None) -> pa.Table:
    """All rows of a table for which ``where`` is true."""
    dataset = await session.open_dataset(table)
    return await dataset.read(where=where)


async def assert_same(
    lake: Lake, table: str, *, snapshots: Sequence[int] = (), where: object = None, sql: str = "true"
) -> None:
    """The newest state of a table, and those ``snapshots``, read as DuckDB reads them.

    Args:
        where, sql: the same predicate.
    """
    async with asyncpq.Session() as session:
        for snapshot in (None, *snapshots):
            at = "" if snapshot is None else f" AT (VERSION => {snapshot})"
            wanted = lake.query(f"SELECT * FROM {table}{at} WHERE {sql}")
            found = await read(session, lake.table(table, snapshot=snapshot), where)
            assert found.column_names == wanted.column_names
            assert (snapshot, rows(found)) == (snapshot, rows(wanted))
