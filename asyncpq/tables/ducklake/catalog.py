"""DuckLake tables: one snapshot's columns, files, bounds and deleted rows, from the SQL catalog.

A snapshot does not contain all rows of its data files: it lacks deleted rows, and rows of merged files that were
inserted after the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.model import CatalogReader, ColumnBounds, DataFile, Snapshot, TableField, known_count
from asyncpq.errors import AsyncpqError, CorruptFileError, InvalidOptionError, UnsupportedFeatureError, located, shown
from asyncpq.expressions import Expression
from asyncpq.expressions.tree import columns as columns_of
from asyncpq.options import LimitOptions, require_class
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.threads import Threads
from asyncpq.storage.urls import safe_url
from asyncpq.tables.deleted_rows import check_deleted, decode_positions, decode_vector, ranges_of, unframed
from asyncpq.tables.ducklake.inlined import inlined_file
from asyncpq.tables.ducklake.schema import Row, bounds_of_statistics, columns_of_rows, leaves_of, mapped_fields
from asyncpq.tables.ducklake.sql_catalog import DuckLakeState, SqlCatalog

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"
_PUFFIN_MAGIC = b"PFA1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeDeletes:
    """The rows of one data file that are not in a snapshot. Implements :class:`asyncpq.datasets.model.Deletes`."""

    data_url: str  # the data file. Its rows may carry the ids of their snapshots.
    snapshot: int  # id of the snapshot. Rows that were deleted after it are still there; rows added after it are not.
    # Urls and formats of the delete files: "parquet" for a file with the column ``pos`` and maybe a snapshot id,
    # "puffin" for one deletion vector.
    files: tuple[tuple[str, str], ...] = ()
    inlined: RowRanges  # deleted rows that the catalog names
    later_rows: bool = False  # the data file also holds rows of later snapshots
    visible_rows: int | None = None  # number of leading rows that belong to the snapshot; None for all

    @property
    def identity(self) -> Hashable:
        """This object itself, as the cache key: which rows are deleted depends on all of its fields."""
        return self

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Return the numbers of the rows that are not in the snapshot. ``num_rows``: the rows of the data file."""
        deleted = self.inlined
        for url, file_format in self.files:
            with located(url=safe_url(url)):
                deleted |= await self._deleted(reader, url, file_format)
        if self.later_rows:
            deleted |= await self._later(reader, num_rows)
        with located(url=safe_url(self.data_url)):
            check_deleted(deleted, num_rows, self.data_url)
        if self.visible_rows is not None:
            deleted |= RowRanges([(self.visible_rows, num_rows)])
        return deleted

    async def _deleted(self, reader: CatalogReader, url: str, file_format: str) -> RowRanges:
        if file_format == "puffin":
            blob = await reader.read_bytes(url)
            if blob[:4] == _PUFFIN_MAGIC:
                raise UnsupportedFeatureError(
                    "asyncpq does not support DuckLake deletion vectors that contain deletes of several snapshots"
                )
            return await asyncio.to_thread(decode_vector, unframed(blob), reader.limits)
        table = await reader.read_table(url)
        return await asyncio.to_thread(self._positions, table, url, reader.limits)

    def _positions(self, table: pa.Table, url: str, limits: LimitOptions) -> RowRanges:
        if "pos" not in table.column_names:
            raise CorruptFileError("the delete file has no column pos", column="pos")
        if SNAPSHOT_COLUMN in table.column_names:
            snapshots = table[SNAPSHOT_COLUMN]
            if snapshots.null_count:
                raise CorruptFileError("a deleted row has no snapshot id", column=SNAPSHOT_COLUMN)
            table = table.filter(pc.less_equal(snapshots, self.snapshot))
        return decode_positions(table["pos"], url, limits)

    async def _later(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        table = await reader.read_table(self.data_url, columns=[SNAPSHOT_COLUMN])
        snapshots = table[SNAPSHOT_COLUMN]
        if snapshots.null_count or len(snapshots) != num_rows:
            raise CorruptFileError(
                "a row of a merged file has no snapshot id", url=safe_url(self.data_url), column=SNAPSHOT_COLUMN
            )
        later = pc.indices_nonzero(pc.greater(snapshots, self.snapshot))
        return await asyncio.to_thread(ranges_of, later.cast(pa.int64()), reader.limits)


def deletes_by_file(state: DuckLakeState) -> dict[int, DuckLakeDeletes]:
    """Return which rows of each data file the snapshot does not contain, keyed by data file id; without files of
    which it contains all rows."""
    files: dict[int, list[tuple[str, str]]] = {}
    for row in state.delete_files:
        files.setdefault(row["data_file_id"], []).append((state.url_of(row), str(row["format"]).lower()))
    deletes = {}
    for row in state.data_files:
        key, url = row["data_file_id"], state.url_of(row)
        partial_max = row.get("partial_max")
        visible = None
        info = row.get("partial_file_info")
        if info is not None and partial_max is None:
            partial_max, visible = _partial(str(info), state.snapshot_id, url)
        later = partial_max is not None and partial_max > state.snapshot_id
        if not (key in files or key in state.inlined_deletes or later or visible is not None):
            continue
        deletes[key] = DuckLakeDeletes(
            data_url=url,
            snapshot=state.snapshot_id,
            files=tuple(files.get(key, ())),
            inlined=_row_numbers(state.inlined_deletes.get(key, ()), url),
            later_rows=later,
            visible_rows=visible,
        )
    return deletes


def _row_numbers(numbers: Sequence[Any], url: str) -> RowRanges:
    """Return deleted rows that the catalog names. Raises CorruptFileError if one is no row number."""
    if any(known_count(number) is None for number in numbers):
        raise CorruptFileError("the catalog deletes a row whose number is negative or no number", url=safe_url(url))
    return RowRanges.from_rows(sorted(numbers))


def _partial(info: str, snapshot: int, url: str) -> tuple[int | None, int | None]:
    """Decode ``info``, the ``partial_file_info`` of a merged file in formats before 0.4: which of its rows ``snapshot``
    contains.

    ``partial_max:<id>`` gives (id of the snapshot that inserted the last row, None). ``<snapshot>:<rows up to it>``
    pairs, joined by ``|``, give (None, number of rows that the snapshot contains), or (None, None) if it contains all.
    """
    try:
        pairs = [(name, int(number)) for name, _, number in (part.partition(":") for part in info.split("|"))]
        if min(number for _, number in pairs) < 0:
            raise ValueError("a number is negative")
        if pairs[0][0] == "partial_max":
            return pairs[0][1], None
        visible = [rows for begin, rows in pairs if int(begin) <= snapshot]
        return None, (None if len(visible) == len(pairs) else max(visible, default=0))
    except ValueError:
        raise CorruptFileError(
            f"the catalog's partial_file_info of the file, {shown(info)}, has an unknown format", url=safe_url(url)
        ) from None


_T = TypeVar("_T")


class DuckLakeTable:
    """One table of a DuckLake: a ``target`` of :meth:`asyncpq.Session.open_dataset`. Implements
    :class:`asyncpq.Catalog`.

    It can be pickled, with the url of the catalog and a password in it, unless ``catalog`` is an engine.

    Args:
        catalog: SQLAlchemy url of the catalog database, or an engine: SQLite, PostgreSQL, or a DuckDB file through
            duckdb-engine and pytz.
        table: ``"schema.table"``, or the name of a table of the schema ``main``. Case matters.
        snapshot: id of the snapshot to read. None: the newest when the table is opened.
        as_of: a time with a time zone: read the snapshot that was the newest then.
        data_path: url of the data's folder, if it was moved; None: the catalog's.
        metadata_schema: the database schema with the catalog's tables. None: the database's default schema.

    Raises:
        InvalidOptionError: ``table`` is empty, both ``snapshot`` and ``as_of`` are given, or the time has no zone.
        UsageError: SQLAlchemy or the database's driver is not installed.
    """

    def __init__(
        self,
        catalog: str | URL | Engine,
        table: str,
        *,
        snapshot: int | None = None,
        as_of: dt.datetime | None = None,
        data_path: str | None = None,
        metadata_schema: str | None = None,
    ) -> None:
        require_class("table", table, str)
        schema, _, name = table.rpartition(".")
        if not name:
            raise InvalidOptionError(f"{table!r} names no table", hint="Pass 'table' or 'schema.table'.")
        if snapshot is not None and as_of is not None:
            raise InvalidOptionError(
                "snapshot and as_of are two ways to select a snapshot", hint="Pass only one of them."
            )
        if snapshot is not None and not (type(snapshot) is int and 0 <= snapshot < 1 << 63):
            raise InvalidOptionError("snapshot must be an id of a snapshot, from 0 to 2**63 - 1")
        if as_of is not None:
            require_class("as_of", as_of, dt.datetime)
        if as_of is not None and as_of.tzinfo is None:
            raise InvalidOptionError("as_of has no time zone", hint="Write datetime(..., tzinfo=datetime.UTC).")
        self.schema: str = schema or "main"
        self.table = name
        self._url = catalog if isinstance(catalog, (str, tuple)) else None  # SQLAlchemy's URL is a tuple
        self._wanted = (snapshot, as_of)
        self._data_path = data_path
        self._catalog = SqlCatalog(catalog, metadata_schema)

    def __repr__(self) -> str:
        return f"<DuckLakeTable {self.schema}.{self.table} of {self._catalog.shown}>"

    def __reduce__(self) -> tuple[Callable[..., DuckLakeTable], tuple[object, ...]]:
        if self._url is None:
            raise TypeError(
                "a DuckLakeTable of an engine cannot be pickled or copied: make it of the catalog's url, or make one "
                "in each process"
            )
        arguments = (f"{self.schema}.{self.table}", *self._wanted, self._data_path, self._catalog.metadata_schema)
        return _of_url, (type(self), self._url, *arguments)

    async def snapshot(self, reader: CatalogReader) -> Snapshot:
        """Read the selected snapshot of the table from the catalog.

        Raises:
            ObjectNotFoundError: the catalog, snapshot, schema or table does not exist.
            UnsupportedFeatureError: the table has a feature that asyncpq does not support.
            CorruptFileError: the catalog has a malformed row.
            StoreError: the database failed.
        """
        with _rows_of(self._catalog):
            state = await _in_thread(self._catalog.state, self.schema, self.table, *self._wanted, self._data_path)
            return await asyncio.to_thread(DuckLakeSnapshot, self._catalog, f"{self.schema}.{self.table}", state)


def _of_url(
    cls: type[DuckLakeTable],
    url: str | URL,
    table: str,
    snapshot: int | None,
    as_of: dt.datetime | None,
    data_path: str | None,
    metadata_schema: str | None,
) -> DuckLakeTable:
    """Unpickle a :class:`DuckLakeTable`."""
    return cls(url, table, snapshot=snapshot, as_of=as_of, data_path=data_path, metadata_schema=metadata_schema)


class DuckLakeSnapshot:
    """One snapshot of a table, as a :class:`asyncpq.datasets.model.Snapshot`.

    A column's statistics are loaded when a predicate first names it, and kept.
    """

    def __init__(self, catalog: SqlCatalog, table: str, state: DuckLakeState) -> None:
        self._catalog = catalog
        self._state = state
        self._table = table
        time = "" if state.time is None else f" ({state.time.isoformat(timespec='seconds')})"
        self.description: str = f"DuckLake table {table} of {catalog.shown}, snapshot {state.snapshot_id}{time}"
        columns = [row for row in state.columns if state.visible(row)]
        decoded = columns_of_rows(columns, f"{table} of {catalog.shown}")
        self.fields: tuple[TableField, ...] = tuple(column.field for column in decoded)
        self._leaves = leaves_of(columns, state.columns)
        self._refuse_unread()
        self._files = self._data_files({row["column_id"]: str(row["column_type"]) for row in columns})
        inlined = [inlined_file(rows, state, self.fields, table) for rows in state.inlined]
        self._inlined = [file for file, _ in inlined]
        errors = {field_id: error for _, unreadable in inlined for field_id, error in unreadable.items()}
        self.fields = tuple(
            dataclasses.replace(field, unreadable=errors[field.field_id]) if field.field_id in errors else field
            for field in self.fields
        )
        self._records = {row["data_file_id"]: known_count(row["record_count"]) for row in state.data_files}
        self._bounds: dict[str, Mapping[int, ColumnBounds]] = {}  # by column, by file
        self._given: Sequence[DataFile] = (*self._files.values(), *self._inlined)
        self._loading = asyncio.Lock()

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        """Return all files of the snapshot, then the files of inlined rows.

        The files have bounds of the columns that predicates have named so far. The result is the same object until more
        bounds are loaded.
        """
        names = () if where is None else columns_of(where)
        async with self._loading:
            missing = [name for name in names if name in self._leaves and name not in self._bounds]
            if missing:
                bounds = dict(self._bounds)
                for name in missing:
                    with _rows_of(self._catalog):
                        bounds[name] = await _in_thread(self._load_bounds, self._leaves[name])
                given = await asyncio.to_thread(self._all_bounded, bounds)
                self._given, self._bounds = given, bounds  # both, or neither if the read is cancelled
        return self._given

    def _data_files(self, types: Mapping[int, str]) -> dict[int, DataFile]:
        state = self._state
        deletes = deletes_by_file(state)
        files: dict[int, DataFile] = {}
        for row in state.data_files:
            url = state.url_of(row)
            fields: tuple[TableField, ...] | None = None
            partition: Mapping[str, Any] = {}
            if row.get("mapping_id") is not None:
                fields, partition = mapped_fields(self.fields, state.names_by_mapping[row["mapping_id"]], types, url)
            files[row["data_file_id"]] = DataFile(
                url=url,
                size=known_count(row["file_size_bytes"]),
                num_rows=known_count(row["record_count"]),
                partition=partition,
                deletes=deletes.get(row["data_file_id"]),
                immutable=True,
                fields=fields,
            )
        return files

    def _all_bounded(self, bounds: Mapping[str, Mapping[int, ColumnBounds]]) -> Sequence[DataFile]:
        bounded = (_bounded(file, key, bounds) for key, file in self._files.items())
        return (*bounded, *self._inlined)

    def _load_bounds(self, leaf: Row) -> Mapping[int, ColumnBounds]:
        bounds_by_file: dict[int, ColumnBounds] = {}
        for row in self._catalog.statistics(self._state.version, self._state.table_id, leaf["column_id"]):
            records = self._records.get(row["data_file_id"])
            if records is None:
                continue
            bounds = bounds_of_statistics(leaf["column_type"], row, records)
            if bounds is not None:
                bounds_by_file[row["data_file_id"]] = bounds
        return bounds_by_file

    def _refuse_unread(self) -> None:
        state = self._state
        for row in state.data_files:
            if row.get("encryption_key") is not None:
                self._refuse("encrypted files")
            if str(row["file_format"]).lower() != "parquet":
                self._refuse(f"files of format {row['file_format']}")
        for mapping, names in state.names_by_mapping.items():
            mapping_type = state.mappings.get(mapping)
            if mapping_type != "map_by_name" or not names:
                self._refuse(f"files with column mapping {mapping} of type {mapping_type}")
        for row in state.delete_files:
            if row.get("encryption_key") is not None:
                self._refuse("encrypted delete files")
            if str(row["format"]).lower() not in ("parquet", "puffin"):
                self._refuse(f"delete files of format {row['format']}")

    def _refuse(self, feature: str) -> None:
        raise UnsupportedFeatureError(
            f"DuckLake table {self._table}: {feature} are not supported", url=self._catalog.shown
        )


@contextlib.contextmanager
def _rows_of(catalog: SqlCatalog) -> Iterator[None]:
    """Raise CorruptFileError if a row of the catalog has a value that it must not have: a database such as SQLite takes
    any value in any column."""
    try:
        yield
    except AsyncpqError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CorruptFileError(
            f"the DuckLake's catalog has a malformed row: {type(error).__name__}: {error}", url=catalog.shown
        ) from error


def _bounded(file: DataFile, key: int, bounds: Mapping[str, Mapping[int, ColumnBounds]]) -> DataFile:
    """Return the file with the id ``key`` with its ``bounds``, which are given by column and file."""
    own = {name: by_file[key] for name, by_file in bounds.items() if key in by_file and name not in file.partition}
    return dataclasses.replace(file, bounds=own)


async def _in_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    """Run ``call`` in a daemon thread, and return its result. Such a thread does not keep the process alive if the
    database never answers."""
    return await Threads(1, "asyncpq_ducklake").start(call, *arguments)
