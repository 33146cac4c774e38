"""The rows of a DuckLake's SQL catalog for one table at one snapshot, read with SQLAlchemy.

Calls block: use a thread. One transaction reads a whole state, so it is consistent. Tables and columns have their
names in the specification; a column that a version lacks is absent from its rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncpq.errors import (
    CorruptFileError,
    ObjectNotFoundError,
    StoreError,
    UnsupportedFeatureError,
    UsageError,
    install_hint,
)
from asyncpq.records import dataclass
from asyncpq.tables.ducklake.schema import Row, snapshot_time
from asyncpq.tables.own_store import TableStore

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnClause, ColumnElement, Connection, Engine, Select, TableClause


#: Versions of the format that are read. A newer one may store deleted rows in places that this module does not read.
VERSIONS = ("0.1", "0.2", "0.3-dev1", "0.3", "0.4-dev1", "0.4", "1.0", "1.1-dev1", "1.1")
_STATISTICS = {"0.1": "ducklake_file_column_statistics", "0.2": "ducklake_file_column_statistics"}
_JSON = re.compile(r'"(?:[^"]|"")*"|\bJSON\b(?! )')  # quoted names, and JSON as a type in the name of a DuckDB type
_INLINED_SYSTEM_COLUMNS = 3  # row id, begin and end snapshot come first; their names differ between versions


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinedRows:
    """Rows of one table that the catalog stores itself, in one of the table's ``ducklake_inlined_data_tables``."""

    name: str  # name of the catalog's table
    schema_version: int  # version of the table's schema that ``names`` belong to
    names: tuple[str, ...]  # of the columns
    rows: tuple[tuple[Any, ...], ...]  # the rows in the snapshot: strings or bytes as they are, other values as text
    struct_literals: bool  # the scalars in the texts of structs are SQL literals


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeState:
    """One table at one snapshot, as rows of the catalog."""

    version: str  # of the format
    snapshot_id: int
    time: dt.datetime | None  # when the snapshot was committed
    table_id: int  # id of the table. Column ids are unique within a table.
    location: str  # url or path of the table's folder, ending with ``/``
    store: TableStore  # of the data path, in which all files must be
    columns: Sequence[Row]  # rows of ``ducklake_column`` of all snapshots; :meth:`visible` selects those of this one
    data_files: Sequence[Row]  # rows of the snapshot
    delete_files: Sequence[Row]
    inlined_deletes: Mapping[int, Sequence[int]]  # numbers of deleted rows that the catalog holds, by data file id
    inlined: Sequence[InlinedRows]  # rows that the catalog holds
    schema_begins: Mapping[int, int]  # first snapshot of each version of the table's schema
    mappings: Mapping[int, str]  # type of each column mapping in use, by id
    names_by_mapping: Mapping[int, Sequence[Row]]  # rows of ``ducklake_name_mapping``, by mapping id

    def visible(self, row: Row) -> bool:
        """Return whether the snapshot contains ``row``, according to its ``begin_snapshot`` and ``end_snapshot``."""
        end = row.get("end_snapshot")
        return row["begin_snapshot"] <= self.snapshot_id and (end is None or end > self.snapshot_id)

    def url_of(self, row: Row) -> str:
        """Return the url of the file that a row of a catalog table describes. Raises UnsupportedFeatureError if it is
        not in the store of the data."""
        url = _join(self.location, row["path"], row.get("path_is_relative"))
        self.store.check(url)
        return url


class SqlCatalog:
    """A DuckLake's catalog database.

    ``database``: SQLAlchemy url or engine. ``metadata_schema``: database schema with the ``ducklake_`` tables; None for
    the default one. Raises UsageError if SQLAlchemy or the driver is not installed, or the url is malformed.
    """

    def __init__(self, database: str | URL | Engine, metadata_schema: str | None) -> None:
        try:
            from sqlalchemy import URL, Engine, create_engine, pool
            from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        except ImportError as error:
            raise UsageError(
                "DuckLake needs SQLAlchemy, which is not installed", hint=install_hint("SQLAlchemy", "ducklake")
            ) from error
        self.metadata_schema = metadata_schema
        self.engine: Engine
        if isinstance(database, Engine):
            self.engine = database
        else:
            try:
                self.engine = create_engine(database, poolclass=pool.NullPool)
            except ImportError as error:
                raise UsageError(
                    f"the driver of the catalog's database is not installed: {error.name}",
                    hint="Install the driver, or name another in the url: postgresql+psycopg://host/database.",
                ) from error
            except (ArgumentError, NoSuchModuleError, ValueError) as error:  # its text may contain the password
                raise _unusable(type(error).__name__) from None
        url = self.engine.url
        if "@" in (url.host or ""):
            raise _unusable("its host contains an @, which may be part of a password that is not percent-encoded")
        # user, password and query may be secrets
        self.shown: str = str(URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database))

    def state(
        self, schema: str, table: str, snapshot: int | None, as_of: dt.datetime | None, data_path: str | None
    ) -> DuckLakeState:
        """Read a table at a snapshot. Default: the newest snapshot, or the newest at or before ``as_of``.

        ``data_path``: replaces the catalog's data path. Raises ObjectNotFoundError if a catalog, snapshot, schema
        or table is missing; UnsupportedFeatureError if the catalog's version is unsupported; StoreError if the
        database failed.
        """
        with self._transaction() as tables:
            rows = tables.rows("ducklake_metadata")
            metadata = {row["key"]: row["value"] for row in rows if row.get("scope") is None}
            version = str(metadata.get("version"))
            if version not in VERSIONS:
                raise UnsupportedFeatureError(
                    f"asyncpq does not support DuckLake format {version}",
                    url=self.shown,
                    hint=f"Supported formats: {', '.join(VERSIONS)}.",
                )
            snapshot_id, time = self._snapshot(tables, snapshot, as_of)
            schema_row = self._named(tables, "schema", schema, snapshot_id)
            table_row = self._named(tables, "table", table, snapshot_id, schema_id=schema_row["schema_id"])
            table_id = table_row["table_id"]
            live = {"snapshot": snapshot_id, "table_id": table_id}
            data_files = sorted(tables.rows("ducklake_data_file", **live), key=lambda row: row["data_file_id"])
            location = _folder(data_path if data_path is not None else str(metadata.get("data_path", "")))
            store = TableStore.of(f"DuckLake table {schema}.{table} of {self.shown}", location)
            for row in (schema_row, table_row):
                location = _folder(_join(location, row.get("path") or "", row.get("path_is_relative")))
            used = sorted({row["mapping_id"] for row in data_files if row.get("mapping_id") is not None})
            mappings = tables.rows("ducklake_column_mapping", table_id=table_id) if used else ()
            columns = tables.rows("ducklake_column", table_id=table_id)
            begins = _schema_begins(tables, table_id)
            return DuckLakeState(
                version=version,
                snapshot_id=snapshot_id,
                time=time,
                table_id=table_id,
                location=location,
                store=store,
                columns=columns,
                data_files=data_files,
                delete_files=tables.rows("ducklake_delete_file", **live),
                inlined_deletes=_inlined_deletes(tables, table_id, snapshot_id),
                inlined=_inlined_rows(tables, table_id, snapshot_id, columns, begins),
                schema_begins=begins,
                mappings={row["mapping_id"]: str(row["type"]) for row in mappings if row["mapping_id"] in used},
                names_by_mapping={
                    mapping: tables.rows("ducklake_name_mapping", mapping_id=mapping) for mapping in used
                },
            )

    def statistics(self, version: str, table_id: int, column_id: int) -> Sequence[Row]:
        """Return the rows of ``ducklake_file_column_stats`` of one column, for the files of all snapshots."""
        name = _STATISTICS.get(version, "ducklake_file_column_stats")
        with self._transaction() as tables:
            return tables.rows(name, table_id=table_id, column_id=column_id)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[_Tables]:
        """Open a transaction for queries with a consistent view of the database; rolled back at the end."""
        from sqlalchemy.exc import SQLAlchemyError

        dialect = self.engine.dialect.name
        options: dict[str, Any] = {}
        if dialect in ("postgresql", "mysql", "mariadb"):
            options = {"isolation_level": "REPEATABLE READ"}  # DuckDB and SQLite always give a snapshot
        path = self.engine.url.database
        if (
            dialect in ("sqlite", "duckdb")
            and path
            and not path.startswith((":", "file:"))
            and not os.path.exists(path)
        ):
            raise ObjectNotFoundError(
                "there is no DuckLake catalog", url=self.shown, hint="Check the path of the database's file."
            )  # connecting would create an empty one
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(**options)
                if dialect == "sqlite":  # Python's driver begins no transaction for SELECT
                    connection.exec_driver_sql("BEGIN")
                try:
                    yield _Tables(connection, self.metadata_schema)
                finally:
                    connection.rollback()
        except SQLAlchemyError as error:
            raise StoreError(
                f"the catalog's database failed ({_first_line(error)})",
                url=self.shown,
                hint="Check that the database runs and is the catalog of a DuckLake, and that its user may read it.",
            ) from error

    def _snapshot(
        self, tables: _Tables, snapshot: int | None, as_of: dt.datetime | None
    ) -> tuple[int, dt.datetime | None]:
        rows = tables.rows("ducklake_snapshot", **({} if snapshot is None else {"snapshot_id": snapshot}))
        try:
            times = {row["snapshot_id"]: snapshot_time(row["snapshot_time"]) for row in rows}
        except ValueError as error:
            raise CorruptFileError(f"the catalog has a malformed snapshot_time: {error}", url=self.shown) from None
        if as_of is not None:
            times = {key: time for key, time in times.items() if time is not None and time <= as_of}
        if not times:
            wanted = "" if snapshot is None else f" {snapshot}"
            before = "" if as_of is None else f" at or before {as_of.isoformat()}"
            raise ObjectNotFoundError(
                f"the DuckLake has no snapshot{wanted}{before}",
                url=self.shown,
                hint="Choose a later one: old snapshots may have been expired.",
            )
        newest = max(times)
        return newest, times[newest]

    def _named(self, tables: _Tables, entity: str, name: str, snapshot: int, **equal: Any) -> Row:
        rows = tables.rows(f"ducklake_{entity}", snapshot=snapshot, **equal)
        for row in rows:
            if row[f"{entity}_name"] == name:
                return row
        names = ", ".join(sorted(str(row[f"{entity}_name"]) for row in rows)) or "none"
        raise ObjectNotFoundError(
            f"the DuckLake has no {entity} {name!r} at snapshot {snapshot}",
            url=self.shown,
            hint=f"At this snapshot there are: {names}.",
        )


class _Tables:
    """The catalog's tables as seen by the queries of one transaction."""

    def __init__(self, connection: Connection, schema: str | None) -> None:
        self._connection = connection
        self._schema = schema

    def exists(self, name: str) -> bool:
        from sqlalchemy import inspect

        return inspect(self._connection).has_table(name, schema=self._schema)

    def rows(self, name: str, *, snapshot: int | None = None, **equal: Any) -> Sequence[Row]:
        """Return the rows of the catalog table ``name`` in which each column named in ``equal`` has the given value.
        ``snapshot``: only rows that this snapshot contains."""
        from sqlalchemy import column, literal_column, or_, select

        query: Select[Any] = select(literal_column("*")).select_from(self._table(name))
        query = query.where(*(column(key) == value for key, value in equal.items()))
        if snapshot is not None:
            end: ColumnClause[Any] = column("end_snapshot")
            query = query.where(column("begin_snapshot") <= snapshot, or_(end.is_(None), end > snapshot))
        return [dict(row) for row in self._connection.execute(query).mappings()]

    @property
    def has_structs(self) -> bool:
        """Whether the database has lists, structs, maps and JSON of its own; the others keep them as text."""
        return self._connection.dialect.name == "duckdb"

    def names(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns of the catalog table ``name``."""
        from sqlalchemy import literal_column, select

        query: Select[Any] = select(literal_column("*")).select_from(self._table(name)).limit(0)
        return tuple(self._connection.execute(query).keys())

    def texts(self, name: str, columns: Sequence[str], plain: Collection[int]) -> Sequence[Sequence[Any]]:
        """Return ``columns`` of the rows of the catalog table ``name``. The database casts them to text, all but those
        at the positions ``plain``."""
        from sqlalchemy import String, cast, column, func, literal_column, select

        selected: list[ColumnElement[Any]] = []
        types: Sequence[Any] = ()
        if self.has_structs:
            names = [func.typeof(column(key)) for key in columns]
            types = self._connection.execute(select(*names).select_from(self._table(name)).limit(1)).first() or ()
        for position, key in enumerate(columns):
            expression: ColumnElement[Any] = column(key)
            quoted = self._connection.dialect.identifier_preparer.quote(key)
            if types and types[position] == "VARIANT":
                # as DuckDB writes it to files; some integers it cannot write there
                encoded = f"CAST(TRY(variant_to_parquet_variant({quoted})) AS VARCHAR)"
                expression = literal_column(f"coalesce({encoded}, 'no variant of Parquet')")
            elif types and _JSON.search(types[position]) and types[position] != "JSON":
                # a list of JSON as text is a JSON list, whose nulls may be either kind of null
                expression = literal_column(f"CAST({quoted} AS {_JSON.sub(_as_text, types[position])})")
            if position not in plain:
                expression = cast(expression, String).label(f"column_{position}")
            selected.append(expression)
        return [tuple(row) for row in self._connection.execute(select(*selected).select_from(self._table(name)))]

    def _table(self, name: str) -> TableClause:
        from sqlalchemy import table

        return table(name, schema=self._schema)


def _as_text(match: re.Match[str]) -> str:
    return "VARCHAR" if match[0] == "JSON" else match[0]


def _inlined_deletes(tables: _Tables, table_id: int, snapshot: int) -> dict[int, list[int]]:
    name = f"ducklake_inlined_delete_{table_id}"
    if not tables.exists(name):
        return {}
    deletes: dict[int, list[int]] = {}
    for row in tables.rows(name):
        if row["begin_snapshot"] <= snapshot:
            deletes.setdefault(row["file_id"], []).append(row["row_id"])
    return deletes


def _inlined_rows(
    tables: _Tables, table_id: int, snapshot: int, columns: Sequence[Row], begins: Mapping[int, int]
) -> list[InlinedRows]:
    as_they_are = ("varchar", "blob", "geometry") if tables.has_structs else ("varchar", "blob", "geometry", "json")
    inlined = []
    registered = tables.rows("ducklake_inlined_data_tables", table_id=table_id)
    for entry in sorted(registered, key=lambda row: row["schema_version"]):
        names, begin = tables.names(entry["table_name"]), begins.get(entry["schema_version"])
        plain = {
            row["column_name"]
            for row in columns
            if row["parent_column"] is None
            and row["column_type"] in as_they_are
            and (begin is None or covers(row, begin))
        }
        positions = [at for at, name in enumerate(names) if at < _INLINED_SYSTEM_COLUMNS or name in plain]
        rows = tables.texts(entry["table_name"], names, positions)
        live = [
            row[_INLINED_SYSTEM_COLUMNS:]
            for row in sorted(rows, key=lambda row: row[0])
            if row[1] <= snapshot and (row[2] is None or row[2] > snapshot)
        ]
        if live:
            inlined.append(
                InlinedRows(
                    name=entry["table_name"],
                    schema_version=entry["schema_version"],
                    names=names[_INLINED_SYSTEM_COLUMNS:],
                    rows=tuple(map(tuple, live)),
                    struct_literals=not tables.has_structs,
                )
            )
    return inlined


def covers(row: Row, snapshot: int) -> bool:
    """Return whether ``snapshot`` contains the row of a catalog table."""
    return row["begin_snapshot"] <= snapshot and (row["end_snapshot"] is None or row["end_snapshot"] > snapshot)


def _schema_begins(tables: _Tables, table_id: int) -> dict[int, int]:
    if not tables.exists("ducklake_schema_versions"):  # before 0.3
        return {}
    rows = tables.rows("ducklake_schema_versions")
    return {row["schema_version"]: row["begin_snapshot"] for row in rows if row.get("table_id") in (None, table_id)}


def _join(folder: str, path: str, is_relative: bool | int | None) -> str:
    """Join ``folder`` and ``path``; an absolute path is returned as it is."""
    return f"{folder}{path}" if is_relative or is_relative is None else path


def _folder(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"


def _unusable(reason: str) -> UsageError:
    return UsageError(
        f"the catalog's url cannot be used: {reason}",
        hint="Give a url of SQLAlchemy: sqlite:///catalog.sqlite, or postgresql+psycopg://host/database, with user and "
        "password percent-encoded.",
    )


def _first_line(error: Exception) -> str:
    text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"
