"""DuckLakes that DuckDB's own extension writes, and reads for comparison."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

import asyncpq
from asyncpq import DuckLakeTable
from tests.predicates import oracle
from tests.servers import PostgresServer
from tests.tables import comparisons

_EXTENSIONS = ("ducklake", "postgres_scanner", "sqlite_scanner")
_databases = itertools.count()
_UUID = re.compile(r"UUID\(('[-0-9a-f]*')\)")  # inside of nested values: DuckDB gives text

#: A select list with a value of each type that is neither nested nor held otherwise by Parquet.
SCALARS = """
    true AS b, 1::TINYINT AS i8, 2::SMALLINT AS i16, 3::INTEGER AS i32, -4::BIGINT AS i64,
    1::UTINYINT AS u8, 2::USMALLINT AS u16, 3::UINTEGER AS u32, 18446744073709551615::UBIGINT AS u64,
    0.1::FLOAT AS f32, 'nan'::DOUBLE AS f64, 1.25::DECIMAL(5,2) AS d5, -1.25::DECIMAL(18,2) AS d18,
    12345678901234567890.25::DECIMAL(38,2) AS d38, TIME '12:34:56.123456' AS t, DATE '1969-12-31' AS day,
    TIMESTAMP '1969-12-31 23:59:59.999999' AS us, TIMESTAMP_S '2020-01-02 03:04:05' AS s,
    TIMESTAMP_MS '2020-01-02 03:04:05.123' AS ms, TIMESTAMP_NS '2020-01-02 03:04:05.123456789' AS ns,
    TIMESTAMPTZ '2020-01-02 03:04:05+02' AS tz, 'é, ''quoted''' AS v, '\\x00\\xFFa'::BLOB AS bl,
    'c3a286f6-cf00-4b47-885d-1892e2b0ca6d'::UUID AS u, '{"a": 1}'::JSON AS j
"""


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """One for all tests of a process: loading the extensions takes longer than most tests."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
    for name in _EXTENSIONS:
        module = importlib.resources.files(f"duckdb_extension_{name}")
        connection.execute(f"LOAD '{module}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class Lake:
    """A DuckLake, attached to DuckDB as ``lake`` from ``with`` to its end. One at a time.

    Args:
        folder: for its data, and its catalog without a ``server``.
        server: holds the catalog, in a database of its own.
        own_catalog: in a DuckDB file instead of SQLite; nobody else can open it while this is attached.
        inline_rows: so many rows of an insert are kept in the catalog; DuckLake's default is 10.
        options: of ATTACH.
    """

    def __init__(
        self,
        folder: Path,
        server: PostgresServer | None = None,
        *,
        own_catalog: bool = False,
        inline_rows: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        if own_catalog:
            self.url = f"duckdb:///{folder}/catalog.ducklake"
            catalog = f"{folder}/catalog.ducklake"
        elif server is None:
            self.path = folder / "catalog.sqlite"
            self.url = f"sqlite:///{self.path}"
            catalog = f"sqlite:{self.path}"
        else:
            database = f"lake_{next(_databases)}"
            server.execute(f"CREATE DATABASE {database}")
            self.url = server.url(database)
            catalog = f"postgres:{server.parameters(database)}"
        given = [f"DATA_PATH '{folder}/data'", f"DATA_INLINING_ROW_LIMIT {inline_rows}", *options]
        self.kind = "duckdb" if own_catalog else "sqlite" if server is None else "postgres"
        self._attach = f"ATTACH 'ducklake:{catalog}' AS lake ({', '.join(given)})"
        self._connection = _duckdb()

    def __enter__(self) -> Lake:
        self.sql(self._attach, "USE lake")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sql("USE memory", "DETACH lake")

    @contextmanager
    def readable(self) -> Iterator[None]:
        """Let others open the catalog; nobody can open one in a DuckDB file while it is attached."""
        if self.kind == "duckdb":
            self.__exit__(None, None, None)
        try:
            yield
        finally:
            if self.kind == "duckdb":
                self.__enter__()

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def query(self, query: str) -> pa.Table:
        """What DuckDB gives, as Arrow."""
        return self._connection.execute(query).to_arrow_table()

    def value(self, query: str) -> Any:
        """The first value of the first row."""
        return self.query(query).column(0)[0].as_py()

    @property
    def newest(self) -> int:
        """Id of the newest snapshot."""
        return int(self.value("SELECT max(snapshot_id) FROM lake.snapshots()"))

    def table(self, name: str, /, **options: Any) -> DuckLakeTable:
        return DuckLakeTable(self.url, name, **options)


def rows(table: pa.Table) -> list[str]:
    """The rows as text, sorted: neither reader promises an order of files. NaN is NaN, and -0.0 is not 0.0."""
    columns = [_plain(column) for column in table.columns]
    if not columns:
        return [repr(table.num_rows)]
    return sorted(_UUID.sub(r"\1", repr(row)) for row in zip(*columns, strict=True))


def _plain(column: pa.ChunkedArray) -> list[object]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        unit = "us" if kind.unit == "s" else kind.unit  # Parquet has no seconds
        column = column.cast(pa.timestamp(unit)).cast(pa.int64())  # zones have several names
    if isinstance(kind, pa.UuidType):
        return [None if value is None else str(value) for value in column.to_pylist()]
    return list(column.to_pylist())


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    only_found, only_wanted = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    return f"only asyncpq has {list(only_found)[:3]}, only DuckDB {list(only_wanted)[:3]}"


async def read(session: asyncpq.Session, table: DuckLakeTable, where: Any = None) -> pa.Table:
    """All rows of a table for which ``where`` is true."""
    dataset = await session.open_dataset(table)
    return await dataset.read(where=where)


async def assert_same(
    lake: Lake, table: str, *, snapshots: Sequence[int] = (), where: asyncpq.Expression | None = None
) -> None:
    """The newest state of a table, and those of ``snapshots``: the rows that DuckDB gives, with pyarrow's filter.

    DuckDB does not filter itself: it prunes by a table's statistics even where those of a file are missing.
    """
    async with asyncpq.Session() as session:
        for snapshot in (None, *snapshots):
            wanted = lake.query(f"SELECT * FROM {table}" + ("" if snapshot is None else f" AT (VERSION => {snapshot})"))
            if where is not None:
                wanted = wanted.filter(oracle(where))
            with lake.readable():
                found = await read(session, lake.table(table, snapshot=snapshot), where)
            assert found.column_names == wanted.column_names
            if rows(found) != rows(wanted):
                raise AssertionError(f"snapshot {snapshot}: {_difference(rows(found), rows(wanted))}")
            comparisons.note(f"DuckLake in {lake.kind}", wanted)
