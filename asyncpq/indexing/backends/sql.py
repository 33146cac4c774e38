"""Indexes in a SQL database: SQLite or PostgreSQL, through SQLAlchemy."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from asyncpq.errors import CorruptIndexError, InvalidOptionError, StaleSnapshotError, StoreError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import OrderCheck, SentRequest, counted_request
from asyncpq.indexing.index_model import IndexTable, KeyRange, Segment
from asyncpq.metrics import Purpose
from asyncpq.storage.threads import Threads

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnElement, Connection, Engine, Table

    from asyncpq.indexing.backends.sql_tables import IndexTables

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_THREADS = 4
_BUSY_S = 30  # for which a writer waits for another one, in SQLite
_BATCH_ROWS = 10_000  # written or read by one statement
_MAX_RANGES = 200  # or names in one statement; each takes up to two parameters
_CREATING = 0x6173796E63  # advisory lock for creating the tables, in PostgreSQL
_DIALECTS: Final = ("postgresql", "sqlite")


class SqlBackend:
    """An index in SQL tables whose names begin with ``name``: one table for each kind, and those of manifests, segments
    and builds.

    Args:
        database: SQLAlchemy's url; or an engine, which the caller disposes of.
        name: prefix of the tables' names.
        schema: the database's schema for them; None for its default.

    Raises:
        UsageError: SQLAlchemy, or the driver, is not installed.
        InvalidOptionError: the url or the name cannot be used, or the database is of another kind.
    """

    def __init__(self, database: str | URL | Engine, name: str = "asyncpq", *, schema: str | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidOptionError(f"name={name!r}: must be letters, digits and _, at most 40")
        self._engine, self._owns_engine = _engine(database)
        from sqlalchemy import URL

        from asyncpq.indexing.backends.sql_tables import IndexTables, clock

        url = self._engine.url
        # without user, password and query, which may hold secrets
        shown = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database)
        self.description = f"{shown} {name}"
        self._tables: IndexTables = IndexTables(name, schema)
        self._clock = clock(self._engine.dialect.name)
        self._threads: Threads | None = None
        self._is_closed = False
        self._is_there = False  # the tables exist

    def __repr__(self) -> str:
        return f"SqlBackend({self.description!r})"

    def check(self, kinds: Sequence[str]) -> None:
        """Every kind may be kept in a database."""

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Write the segment. It is complete once its row in the table of segments has a number of rows."""
        segment = await self._write(operation, "INSERT", partial(self._begin_segment, name=name, kind=index_table.kind))
        order, size = OrderCheck(index_table, self.description), 0
        try:
            async for batch in rows:
                checked = order.take(batch)
                size += int(checked.nbytes)
                for start in range(0, checked.num_rows, _BATCH_ROWS):
                    piece = checked.slice(start, _BATCH_ROWS)
                    first = order.num_rows - checked.num_rows + start
                    await self._write(
                        operation, "INSERT", partial(self._insert, index_table.kind, piece, segment, first)
                    )
            await self._write(
                operation, "UPDATE", partial(self._finish_segment, segment=segment, num_rows=order.num_rows)
            )
        except BaseException:
            await self._write(operation, "DELETE", partial(self._delete_segments, names=[name]))
            raise
        return size, {}

    def _begin_segment(self, connection: Connection, name: str, kind: str) -> int:
        insert = self._tables.segments.insert().values(name=name, kind=kind, created=self._clock)
        (number,) = connection.execute(insert).inserted_primary_key or (0,)
        return int(number)

    def _insert(self, kind: str, batch: pa.RecordBatch, segment: int, first: int, connection: Connection) -> None:
        from asyncpq.indexing.backends.sql_tables import to_rows

        connection.execute(self._tables.rows[kind].insert(), to_rows(batch, segment, first))

    def _finish_segment(self, connection: Connection, segment: int, num_rows: int) -> None:
        table = self._tables.segments
        connection.execute(table.update().where(table.c.id == segment).values(num_rows=num_rows))

    async def read_segment(
        self,
        segment: Segment,
        ranges: Sequence[KeyRange] | None,
        columns: Sequence[str] | None = None,
        *,
        at_least: tuple[str, bytes] | None = None,
        limit: int | None = None,
        operation: Operation | None = None,
    ) -> pa.Table | None:
        from sqlalchemy import true

        from asyncpq.indexing.backends.sql_tables import conditions

        rows = self._tables.rows[segment.table.kind]
        schema = segment.table.schema
        schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        least = true() if at_least is None else rows.c[at_least[0]] >= at_least[1]
        searches: list[list[ColumnElement[bool]]] = [[true()]]
        if ranges is not None:
            searches = [
                conditions(rows.c.key, ranges[start : start + _MAX_RANGES])
                for start in range(0, max(1, len(ranges)), _MAX_RANGES)
            ]
        tables: list[pa.Table] = []
        left = limit
        for search in searches:
            found = await self._select(operation, segment, schema, search, least, None if left is None else left + 1)
            if left is not None and found.num_rows > left:
                return None
            left = None if left is None else left - found.num_rows
            tables.append(found)
        table = pa.concat_tables(tables)
        if ranges is None and at_least is None:
            self._check_rows(segment, table.num_rows)
        return table

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        from sqlalchemy import and_, or_, true

        rows = self._tables.rows[segment.table.kind]
        schema = segment.table.schema
        numbered = schema.append(pa.field("ordinal", pa.int64()))
        search: ColumnElement[bool] = true()
        after: ColumnElement[bool] = true()
        num_rows = 0
        while True:
            found = await self._select(operation, segment, numbered, [search], after, _BATCH_ROWS)
            num_rows += found.num_rows
            for batch in found.select(schema.names).to_batches():
                yield batch
            if found.num_rows < _BATCH_ROWS:
                break
            key, ordinal = found.column("key")[-1].as_py(), found.column("ordinal")[-1].as_py()
            search = rows.c.key >= key
            after = or_(rows.c.key > key, and_(rows.c.key == key, rows.c.ordinal > ordinal))
        self._check_rows(segment, num_rows)

    async def _select(
        self,
        operation: Operation | None,
        segment: Segment,
        schema: pa.Schema,
        searches: Sequence[ColumnElement[bool]],
        where: ColumnElement[bool],
        limit: int | None,
    ) -> pa.Table:
        """Return rows of a complete segment that satisfy ``where`` and one of ``searches``, which are disjoint. One
        statement reads them, so it sees one state of the database."""
        from sqlalchemy import and_, cast, null, select, union_all

        from asyncpq.indexing.backends.sql_tables import to_table

        segments, rows = self._tables.segments, self._tables.rows[segment.table.kind]
        wanted = [rows.c.ordinal, rows.c.key, *(rows.c[field.name].label(f"c_{field.name}") for field in schema)]
        whole = and_(segments.c.name == segment.name, segments.c.num_rows.is_not(None))
        # the first row is the segment's own
        query = union_all(
            select(segments.c.num_rows, *(cast(null(), column.type).label(column.name) for column in wanted)).where(
                whole
            ),
            *(
                select(segments.c.num_rows, *wanted)
                .join_from(segments, rows, rows.c.segment == segments.c.id)
                .where(whole, search, where)
                for search in searches
            ),
        )
        ordered = query.order_by(query.selected_columns.key.asc().nulls_first(), query.selected_columns.ordinal)
        limited = ordered if limit is None else ordered.limit(limit + 1)

        def work(connection: Connection, sent: SentRequest) -> list[Any]:
            found = connection.execute(limited).fetchall()
            if not found:
                return []
            table = to_table([row[3:] for row in found[1:]], schema)
            sent.bytes = int(table.nbytes)
            return [found[0][0], table]

        try:
            found = await self._read(operation, "SELECT", work)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise self._corrupt(segment, f"its values cannot be read: {error}") from error
        if not found:
            raise StaleSnapshotError(
                f"segment {segment.name} of the index is gone",
                url=self.description,
                hint="Open the index again: a vacuum may have removed the snapshot.",
            )
        num_rows, table = found
        self._check_rows(segment, num_rows)
        return table

    def _check_rows(self, segment: Segment, found: int) -> None:
        if found != segment.num_rows:
            raise self._corrupt(segment, f"it has {found} rows, where {segment.num_rows} were written")

    def _corrupt(self, segment: Segment, why: str) -> CorruptIndexError:
        return CorruptIndexError(
            f"segment {segment.name} of the index cannot be used: {why}",
            url=self.description,
            hint="Drop the index and build it again.",
        )

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        if names:
            await self._write(operation, "DELETE", partial(self._delete_segments, names=names))

    def _delete_segments(self, connection: Connection, names: Sequence[str]) -> None:
        from sqlalchemy import select

        table = self._tables.segments
        for start in range(0, len(names), _MAX_RANGES):
            named = table.c.name.in_(names[start : start + _MAX_RANGES])
            for kind, number in list(connection.execute(select(table.c.kind, table.c.id).where(named))):
                rows = self._tables.rows[kind]
                connection.execute(rows.delete().where(rows.c.segment == number))
            connection.execute(table.delete().where(named))

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        return await self._ages(operation, self._tables.segments, "name")

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        from sqlalchemy import select

        table = self._tables.manifests
        query = select(table.c.number, table.c.content).order_by(table.c.number.desc()).limit(1)
        found = await self._read(operation, "SELECT", lambda connection, sent: list(connection.execute(query)))
        return (int(found[0][0]), bytes(found[0][1])) if found else None

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        from sqlalchemy import select

        table = self._tables.manifests
        query = select(table.c.content).where(table.c.number == number)
        found = await self._read(operation, "SELECT", lambda connection, sent: list(connection.execute(query)))
        return bytes(found[0][0]) if found else None

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        from sqlalchemy.exc import IntegrityError

        insert = self._tables.manifests.insert().values(number=number, content=content, created=self._clock)

        def work(connection: Connection) -> bool:
            try:
                connection.execute(insert)
            except IntegrityError:
                connection.rollback()
                return False
            return True

        return await self._write(operation, "INSERT", work)

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None:
        if numbers:
            table = self._tables.manifests
            delete = table.delete().where(table.c.number.in_(list(numbers)))
            await self._write(operation, "DELETE", lambda connection: connection.execute(delete))

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        return await self._ages(operation, self._tables.manifests, "number")

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        from sqlalchemy.exc import IntegrityError

        table = self._tables.builds
        update = table.update().where(table.c.name == build).values(created=self._clock)

        def work(connection: Connection) -> None:
            if not connection.execute(update).rowcount:
                try:
                    connection.execute(table.insert().values(name=build, created=self._clock))
                except IntegrityError:  # another process was faster
                    connection.rollback()

        await self._write(operation, "UPDATE", work)

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        return await self._ages(operation, self._tables.builds, "name")

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None:
        table = self._tables.builds
        await self._write(
            operation, "DELETE", lambda connection: connection.execute(table.delete().where(table.c.name == build))
        )

    async def drop(self, *, operation: Operation | None = None) -> None:
        await self._write(operation, "DROP", self._tables.metadata.drop_all)
        self._is_there = False

    async def close(self) -> None:
        """Close the connections, unless the engine is the caller's. The backend cannot be used afterwards."""
        self._is_closed = True
        if self._threads is not None:
            await self._threads.close()
            self._threads = None
            if self._owns_engine:  # all connections are back by now
                await asyncio.get_running_loop().run_in_executor(None, self._engine.dispose)

    async def _ages(self, operation: Operation | None, table: Table, name: str) -> dict[Any, float]:
        from sqlalchemy import select

        query = select(table.c[name], self._clock - table.c.created)
        found = await self._read(operation, "SELECT", lambda connection, sent: list(connection.execute(query)), "list")
        return {row[0]: max(0.0, float(row[1])) for row in found}

    async def _read(
        self,
        operation: Operation | None,
        method: str,
        work: Callable[[Connection, SentRequest], list[Any]],
        purpose: Purpose = "table",
    ) -> list[Any]:
        """Return the result of ``work``; nothing if there are no tables."""
        from sqlalchemy.exc import SQLAlchemyError

        with counted_request(operation, method, purpose) as sent:

            def run() -> list[Any]:
                if not self._exist():
                    return []
                try:
                    with self._engine.connect() as connection:
                        return work(connection, sent)
                except SQLAlchemyError:
                    self._is_there = False
                    if self._exist():
                        raise
                    return []  # the tables were dropped meanwhile

            return await self._in_thread(run)

    async def _write(self, operation: Operation | None, method: str, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction; create the tables if there are none."""
        with counted_request(operation, method, "write"):

            def run() -> T:
                if not self._exist():
                    self._create()
                with self._engine.begin() as connection:
                    return work(connection)

            return await self._in_thread(run)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if self._threads is None:
            self._threads = Threads(_THREADS, "asyncpq-sql")
        try:
            return await self._threads.start(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            refusal = self._refusal()
            if refusal is None or (task is not None and task.cancelling()):
                raise
            raise refusal from None
        except SQLAlchemyError as error:
            first, _, _ = str(getattr(error, "orig", None) or error).strip().partition("\n")
            raise StoreError(
                f"the index's database failed ({type(error).__name__}: {first})", url=self.description
            ) from error

    def _refusal(self) -> UsageError | None:
        """Return the error for a closed backend: a connection opened then would never be closed."""
        if not self._is_closed:
            return None
        return UsageError(
            "the index's backend is closed", url=self.description, hint="Use it while the session is open."
        )

    def _exist(self) -> bool:
        """Whether the tables exist."""
        from sqlalchemy import inspect

        path = self._engine.url.database
        if not self._is_there and not (
            self._engine.dialect.name == "sqlite" and path and not path.startswith("file:") and not os.path.exists(path)
        ):  # connecting would make an empty database
            table = self._tables.builds  # the last table to be created
            self._is_there = inspect(self._engine).has_table(table.name, schema=table.schema)
        return self._is_there

    def _create(self) -> None:
        """Create the tables, unless another process was faster."""
        is_sqlite = self._engine.dialect.name == "sqlite"
        with self._engine.connect() as connection:
            if is_sqlite:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")  # readers do not block writers
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")
            self._tables.metadata.create_all(connection)
            connection.commit()
        self._is_there = True


def _engine(database: str | URL | Engine) -> tuple[Engine, bool]:
    """Return an engine, and whether it was made here."""
    try:
        from sqlalchemy import Engine, create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise UsageError(
            "an index in a SQL database needs SQLAlchemy", hint="Install it: pip install 'asyncpq[sql]'."
        ) from error
    owned = not isinstance(database, Engine)
    if isinstance(database, Engine):
        engine = database
    else:
        try:
            url = make_url(database)
            _check_dialect(url.get_backend_name())
            options = {"timeout": _BUSY_S} if url.get_backend_name() == "sqlite" else {}
            engine = create_engine(url, connect_args=options, hide_parameters=True)
        except ImportError as error:
            raise UsageError(
                f"the driver of the index's database is not installed: {error.name}",
                hint="Install the driver's package, or name another driver: postgresql+psycopg://host/database.",
            ) from error
        except InvalidOptionError:
            raise
        except (ArgumentError, NoSuchModuleError, ValueError) as error:  # their text may hold the password
            raise InvalidOptionError(
                f"the url of the index's database cannot be used: {type(error).__name__}",
                hint="It is SQLAlchemy's: sqlite:///index.sqlite, or postgresql+psycopg://user@host/database.",
            ) from None
    _check_dialect(engine.dialect.name)
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise InvalidOptionError(
            "a SQLite database in memory belongs to one thread", hint="Use a MemoryBackend, or a file."
        )
    return engine, owned


def _check_dialect(name: str) -> None:
    if name not in _DIALECTS:
        raise InvalidOptionError(
            f"an index cannot be kept in {name}",
            hint="Use SQLite or PostgreSQL: sqlite:///index.sqlite, or postgresql+psycopg://user@host/database.",
        )
