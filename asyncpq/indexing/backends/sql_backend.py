"""The backend for indexes in SQLite or PostgreSQL. One table has the rows of all segments of a kind, indexed by key."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from asyncpq.errors import CorruptIndexError, InvalidOptionError, StoreError, UsageError, install_hint
from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import (
    OrderCheck,
    SentRequest,
    check_num_rows,
    counted_request,
    segment_corrupt,
    segment_gone,
)
from asyncpq.indexing.index_model import (
    EVERY_ROW,
    TABLE_SCHEMAS,
    IndexBackend,
    IndexTable,
    KeyRange,
    Segment,
    SegmentQuery,
    Stored,
)
from asyncpq.metrics import Purpose
from asyncpq.storage.threads import Threads

try:
    import sqlalchemy as sa
except ImportError:  # SqlBackend() tells
    sa = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_THREADS, _BUSY_S = 4, 30  # seconds for which a writer waits for another one, in SQLite
_BATCH_ROWS = 10_000  # written or read by one statement
_MAX_RANGES = 200  # or names in one statement; each takes up to two parameters
_CREATING = 0x6173796E63  # advisory lock for creating the tables, in PostgreSQL


class SqlBackend(IndexBackend):
    """An index in SQL tables: one for each kind of index table, and three for manifests, segments and builds. ``at`` of
    :meth:`asyncpq.Session.build_index` takes one.

    Its methods are those of :class:`asyncpq.indexing.IndexBackend`.

    Args:
        database: url of SQLAlchemy; or an engine, which the caller disposes of.
        name: prefix of the tables' names.
        schema: schema of the database that the tables are in; None for the database's default.

    Raises:
        UsageError: SQLAlchemy, or the database's driver, is not installed.
        InvalidOptionError: the url or the name cannot be used, or the database is neither SQLite nor PostgreSQL.
    """

    def __init__(self, database: str | URL | Engine, name: str = "asyncpq", *, schema: str | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidOptionError(
                f"name={name!r}: must have 1-40 letters, digits or _, and not begin with a digit", option="name"
            )
        self._engine, self._owns_engine = _engine(database)
        url = self._engine.url
        shown = sa.URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database)
        self._description = f"{shown} {name}"  # without user, password and query, which may hold secrets
        self._tables = _IndexTables(name, schema)
        self._clock = _clock(self._engine.dialect.name)
        self._threads: Threads | None = None
        self._is_closed = self._is_there = False  # closed; the tables exist

    @property
    def description(self) -> str:
        return self._description

    def __repr__(self) -> str:
        return f"SqlBackend({self.description!r})"

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Store a segment, as :meth:`IndexBackend.write_segment` does. It is complete once its row in the table of
        segments has a number of rows."""
        segments, table = self._tables.segments, self._tables.rows[index_table.kind]
        insert = segments.insert().values(name=name, kind=index_table.kind, created=self._clock)
        key = await self._write(operation, "INSERT", lambda connection: connection.execute(insert).inserted_primary_key)
        segment = int(key[0]) if key else 0
        order, size = OrderCheck(index_table, self.description), 0
        try:
            async for batch in rows:
                checked = order.take(batch)
                size += int(checked.nbytes)
                for start in range(0, checked.num_rows, _BATCH_ROWS):
                    piece = checked.slice(start, _BATCH_ROWS)
                    first = order.num_rows - checked.num_rows + start
                    await self._write(operation, "INSERT", partial(_insert, table, piece, segment, first))
            finish = segments.update().where(segments.c.id == segment).values(num_rows=order.num_rows)
            await self._write(operation, "UPDATE", lambda connection: connection.execute(finish))
        except BaseException:
            await self.delete("segments", [name], operation=operation)
            raise
        return size, {}

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        ranges, columns, at_least, limit = query
        rows = self._tables.rows[segment.table.kind]
        schema = segment.table.schema
        schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        least = sa.true() if at_least is None else rows.c[at_least[0]] >= at_least[1]
        all_rows = [KeyRange(b"", None)] if ranges is None else ranges
        tables: list[pa.Table] = []
        num_rows = 0
        for start in range(0, max(1, len(all_rows)), _MAX_RANGES):
            search = _conditions(rows.c.key, all_rows[start : start + _MAX_RANGES])
            most = None if limit is None else limit - num_rows + 1
            tables.append(await self._select(operation, segment, schema, search, least, most))
            num_rows += tables[-1].num_rows
            if limit is not None and num_rows > limit:
                return None
        table = pa.concat_tables(tables)
        if ranges is None and at_least is None:
            check_num_rows(segment, table.num_rows, self.description)
        return table

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        rows = self._tables.rows[segment.table.kind]
        schema = segment.table.schema
        numbered = schema.append(pa.field("ordinal", pa.int64()))
        search: sa.ColumnElement[bool] = sa.true()
        after: sa.ColumnElement[bool] = sa.true()
        num_rows = 0
        while True:
            table = await self._select(operation, segment, numbered, [search], after, _BATCH_ROWS)
            num_rows += table.num_rows
            for batch in table.select(schema.names).to_batches():
                yield batch
            if table.num_rows < _BATCH_ROWS:
                break
            key, ordinal = table.column("key")[-1].as_py(), table.column("ordinal")[-1].as_py()
            search = rows.c.key >= key
            after = sa.or_(rows.c.key > key, sa.and_(rows.c.key == key, rows.c.ordinal > ordinal))
        check_num_rows(segment, num_rows, self.description)

    async def _select(
        self,
        operation: Operation | None,
        segment: Segment,
        schema: pa.Schema,
        searches: Sequence[sa.ColumnElement[bool]],
        where: sa.ColumnElement[bool],
        limit: int | None,
    ) -> pa.Table:
        """Return at most ``limit`` rows (None for all) of a complete segment that satisfy ``where`` and one of
        ``searches``, conditions on the key that no row satisfies twice. One statement reads the rows, so all are
        from one state of the database."""
        segments, rows = self._tables.segments, self._tables.rows[segment.table.kind]
        wanted = [rows.c.ordinal, rows.c.key, *(rows.c[field.name].label(f"c_{field.name}") for field in schema)]
        whole = sa.and_(segments.c.name == segment.name, segments.c.num_rows.is_not(None))
        # the first row is the segment's own
        no_row = [sa.cast(sa.null(), column.type).label(column.name) for column in wanted]
        matches = sa.select(segments.c.num_rows, *wanted).join_from(segments, rows, rows.c.segment == segments.c.id)
        query = sa.union_all(
            sa.select(segments.c.num_rows, *no_row).where(whole),
            *(matches.where(whole, search, where) for search in searches),
        )
        ordered = query.order_by(query.selected_columns.key.asc().nulls_first(), query.selected_columns.ordinal)
        limited = ordered.limit(None if limit is None else limit + 1)

        def work(connection: sa.Connection, sent: SentRequest) -> list[Any]:
            records = connection.execute(limited).fetchall()
            if not records:
                return []
            table = _to_table([record[3:] for record in records[1:]], schema)
            sent.bytes = int(table.nbytes)
            return [records[0][0], table]

        try:
            answer = await self._read(operation, work)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise segment_corrupt(segment, self.description, f"the values cannot be read: {error}") from error
        if not answer:
            raise segment_gone(segment, self.description)
        num_rows, table = answer
        check_num_rows(segment, num_rows, self.description)
        return table

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        table = self._tables.manifests
        query = sa.select(table.c.number, table.c.content).order_by(table.c.number.desc()).limit(1)
        records = await self._records(operation, query)
        return (self._checked(records[0][0], int), self._checked(records[0][1], bytes)) if records else None

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        table = self._tables.manifests
        records = await self._records(operation, sa.select(table.c.content).where(table.c.number == number))
        return self._checked(records[0][0], bytes) if records else None

    def _checked(self, value: object, expected: type[T]) -> T:
        """Return a value of the index's tables. SQLite stores values of any type in any column."""
        value = bytes(value) if isinstance(value, memoryview) else value
        if not isinstance(value, expected):
            raise CorruptIndexError(
                f"a table of the index has a {type(value).__name__}, expected {expected.__name__}", url=self.description
            )
        return value

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        insert = self._tables.manifests.insert().values(number=number, content=content, created=self._clock)
        return await self._write(operation, "INSERT", partial(_inserted, insert))

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        table = self._tables.builds
        update = table.update().where(table.c.name == build).values(created=self._clock)
        insert = table.insert().values(name=build, created=self._clock)

        def work(connection: sa.Connection) -> None:
            if not connection.execute(update).rowcount:
                _inserted(insert, connection)  # unless another process was faster

        await self._write(operation, "UPDATE", work)

    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        table, name, type_ = self._names_of(stored)
        query = sa.select(name, self._clock - table.c.created)
        return {
            str(self._checked(key, type_)): max(0.0, self._checked(age, float))
            for key, age in await self._records(operation, query, "list")
        }

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        table, name, type_ = self._names_of(stored)

        def work(connection: sa.Connection) -> None:
            for start in range(0, len(names), _MAX_RANGES):
                named = name.in_([type_(text) for text in names[start : start + _MAX_RANGES]])
                if stored == "segments":
                    for kind, number in list(connection.execute(sa.select(table.c.kind, table.c.id).where(named))):
                        rows = self._tables.rows[kind]
                        connection.execute(rows.delete().where(rows.c.segment == number))
                connection.execute(table.delete().where(named))

        if names:
            await self._write(operation, "DELETE", work)

    def _names_of(self, stored: Stored) -> tuple[sa.Table, sa.ColumnElement[Any], type[Any]]:
        """Return the table of what is stored, and the column and the type of its names."""
        table: sa.Table = getattr(self._tables, stored)
        return (table, table.c.number, int) if stored == "manifests" else (table, table.c.name, str)

    async def drop(self, *, operation: Operation | None = None) -> None:
        await self._write(operation, "DROP", self._tables.metadata.drop_all)
        self._is_there = False

    async def close(self) -> None:
        """Close the connections, unless the caller passed the engine. The backend cannot be used afterwards."""
        self._is_closed = True
        if self._threads is not None:
            await self._threads.close()
            self._threads = None
            if self._owns_engine:  # all connections are back by now
                await asyncio.get_running_loop().run_in_executor(None, self._engine.dispose)

    async def _records(self, operation: Operation | None, query: sa.Select[Any], purpose: Purpose = "table") -> Any:
        return await self._read(operation, lambda connection, _: list(connection.execute(query)), purpose)

    async def _read(
        self,
        operation: Operation | None,
        work: Callable[[sa.Connection, SentRequest], list[Any]],
        purpose: Purpose = "table",
    ) -> list[Any]:
        """Return ``work``'s result, run on a connection in a thread; an empty list if the index has no tables yet."""
        with counted_request(operation, "SELECT", purpose) as sent:

            def run() -> list[Any]:
                if not self._exist():
                    return []
                try:
                    with self._engine.connect() as connection:
                        return work(connection, sent)
                except sa.exc.SQLAlchemyError:
                    self._is_there = False
                    if self._exist():
                        raise
                    return []  # the tables were dropped meanwhile

            return await self._in_thread(run)

    async def _write(self, operation: Operation | None, method: str, work: Callable[[sa.Connection], T]) -> T:
        """Create the index's tables if they are missing, run ``work`` in one transaction, and return its result."""
        with counted_request(operation, method, "write"):

            def run() -> T:
                if not self._exist():
                    self._create()
                with self._engine.begin() as connection:
                    return work(connection)

            return await self._in_thread(run)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._check_open()
        if self._threads is None:
            self._threads = Threads(_THREADS, "asyncpq-sql")
        try:
            return await self._threads.start(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_open()
            raise
        except sa.exc.SQLAlchemyError as error:
            first, _, _ = str(getattr(error, "orig", None) or error).strip().partition("\n")
            raise StoreError(
                f"the index's database failed ({type(error).__name__}: {first})",
                url=self.description,
                hint="Check that the database runs, and that its user may read and write the index's tables.",
            ) from error

    def _check_open(self) -> None:
        if self._is_closed:  # a connection opened now would never be closed
            raise UsageError(
                "the index's backend is closed", url=self.description, hint="Use an index while its session is open."
            )

    def _exist(self) -> bool:
        """Return whether the index's tables exist."""
        path = self._engine.url.database
        if not self._is_there and not (
            self._engine.dialect.name == "sqlite" and path and not path.startswith("file:") and not os.path.exists(path)
        ):  # connecting would make an empty database
            table = self._tables.builds  # the last table to be created
            self._is_there = sa.inspect(self._engine).has_table(table.name, schema=table.schema)
        return self._is_there

    def _create(self) -> None:
        """Create those of the index's tables that do not exist yet."""
        with self._engine.connect() as connection:
            if self._engine.dialect.name == "sqlite":
                _write_ahead(connection)
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")
            self._tables.metadata.create_all(connection)
            connection.commit()
        self._is_there = True


def _engine(database: str | sa.URL | sa.Engine) -> tuple[sa.Engine, bool]:
    """Return a SQLAlchemy engine for ``database``, and whether it was made here: False if ``database`` is an engine."""
    if sa is None:
        raise UsageError("an index in a SQL database needs SQLAlchemy", hint=install_hint("SQLAlchemy", "sql"))
    engine = database if isinstance(database, sa.Engine) else None
    try:
        url = sa.make_url(database) if engine is None else engine.url  # type: ignore[arg-type]
        dialect = url.get_backend_name()
        if engine is None and dialect in ("postgresql", "sqlite"):
            options = {"timeout": _BUSY_S} if dialect == "sqlite" else {}
            engine = sa.create_engine(url, connect_args=options, hide_parameters=True)
    except ImportError as error:
        raise UsageError(
            f"the driver of the index's database is not installed: {error.name}",
            hint="Install the driver's package, or name another driver: postgresql+psycopg://host/database.",
        ) from error
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ValueError) as error:  # the text may hold the password
        raise InvalidOptionError(
            f"the url of the index's database cannot be used: {type(error).__name__}",
            hint="Pass a url of SQLAlchemy: sqlite:///index.sqlite, or postgresql+psycopg://user@host/database.",
        ) from None
    if engine is None or dialect not in ("postgresql", "sqlite"):
        raise InvalidOptionError(
            f"an index cannot be kept in {dialect}",
            hint="Use SQLite or PostgreSQL: sqlite:///index.sqlite, or postgresql+psycopg://user@host/database.",
        )
    if dialect == "sqlite" and url.database in (None, "", ":memory:"):
        raise InvalidOptionError(
            "an index cannot be in a SQLite database in memory, which only one thread can use",
            hint="Use a MemoryBackend, or a file: sqlite:///index.sqlite.",
        )
    return engine, engine is not database


def _write_ahead(connection: sa.Connection) -> None:
    """Switch a SQLite database to a write-ahead log, so that readers do not block writers.

    SQLite does not wait for another connection that switches the database: this function waits and tries again.
    """
    stop = time.monotonic() + _BUSY_S
    while True:
        try:
            return connection.exec_driver_sql("PRAGMA journal_mode=WAL").close()
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlite_errorname", None) != "SQLITE_BUSY" or time.monotonic() > stop:
                raise
        time.sleep(0.01)


class _IndexTables:
    """The SQLAlchemy tables of one index, whose names begin with ``name``."""

    def __init__(self, name: str, schema: str | None) -> None:
        self.metadata = sa.MetaData(schema=schema)
        created = partial(sa.Column[float], "created", sa.Double, nullable=False)
        self.manifests = sa.Table(
            f"{name}_manifests",
            self.metadata,
            sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("content", sa.LargeBinary, nullable=False),
            created(),
        )
        self.segments = sa.Table(
            f"{name}_segments",
            self.metadata,
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
            sa.Column("name", sa.Text, nullable=False, unique=True),
            sa.Column("kind", sa.Text, nullable=False),
            sa.Column("num_rows", sa.BigInteger),  # null: the segment is incomplete
            created(),
        )
        self.builds = sa.Table(f"{name}_builds", self.metadata, sa.Column("name", sa.Text, primary_key=True), created())
        self.rows = {
            kind: sa.Table(
                f"{name}_{kind}_rows",
                self.metadata,
                sa.Column("segment", sa.BigInteger, primary_key=True, autoincrement=False),
                sa.Column("key", sa.LargeBinary, primary_key=True),
                sa.Column("ordinal", sa.BigInteger, primary_key=True, autoincrement=False),
                *(sa.Column(field.name, _type(field.type), nullable=field.nullable) for field in list(fields)[1:]),
                sqlite_with_rowid="payload" in fields.names,  # else the primary key holds the rows
            )
            for kind, fields in TABLE_SCHEMAS.items()
        }


def _type(type_: pa.DataType) -> sa.types.TypeEngine[Any]:
    if pa.types.is_binary(type_):
        return sa.LargeBinary()
    return sa.BigInteger() if pa.types.is_integer(type_) else sa.Text()  # strings; and lists, as JSON


def _clock(dialect: str) -> sa.ColumnElement[float]:
    """Return a SQL expression for the database's current time, in seconds since the epoch."""
    if dialect == "sqlite":
        return sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double)
    return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)


def _conditions(key: sa.ColumnElement[bytes], ranges: Sequence[KeyRange]) -> list[sa.ColumnElement[bool]]:
    """Return conditions that each need one search in the index of ``key``, and together select the keys in ``ranges``.
    With a single condition of ORs, SQLite would scan the whole segment."""
    points = [low for low, high in ranges if high == low + b"\x00"]
    spans = [(low, high) for low, high in ranges if high != low + b"\x00"]
    conditions = [key >= low if high is None else sa.and_(key >= low, key < high) for low, high in spans]
    return [*conditions, key.in_(points)] if points else conditions


def _insert(table: sa.Table, batch: pa.RecordBatch, segment: int, first: int, connection: sa.Connection) -> None:
    """Insert the rows of ``batch`` into the segment with this id; ``first`` is the ordinal of its first row."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    for ordinal, row in enumerate(rows, first):
        lists = {name: json.dumps(value) for name, value in row.items() if isinstance(value, list)}
        row.update(lists, segment=segment, ordinal=ordinal)
    connection.execute(table.insert(), rows)


def _inserted(insert: sa.Insert, connection: sa.Connection) -> bool:
    """Execute ``insert`` and return True; return False if a row with the same key exists."""
    try:
        connection.execute(insert)
    except sa.exc.IntegrityError:
        connection.rollback()
        return False
    return True


def _to_table(records: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Convert the database's rows to a table. Raises ValueError or TypeError if a value does not fit ``schema``."""
    columns: list[Any] = list(zip(*records, strict=True)) if records else [()] * len(schema)
    for position, field in enumerate(schema):
        if pa.types.is_list(field.type):
            columns[position] = tuple([None if value is None else json.loads(value) for value in columns[position]])
    return pa.table(columns, schema=schema)
