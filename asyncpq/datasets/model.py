"""The files and columns of a dataset before any file is opened, and the protocols of tables. No I/O.

Listings and catalogs make :class:`DataFile`; pruning and reading use it.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.expressions.scalars import Scalar
from asyncpq.objects.version import KnownVersion
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator

T = TypeVar("T")


class View(enum.StrEnum):
    """Which files a read of a dataset sees (docs/datasets.md, "Views")."""

    SNAPSHOT = "snapshot"  # of an index's newest snapshot; changes since are not seen
    LISTED = "listed"  # that exist when the read begins: exact
    TABLE = "table"  # of one snapshot of a table: exact


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """Bounds and counts of one column in one file, known without opening it.

    Attributes:
        min, max: inclusive bounds of the values that are neither null nor NaN, in the dataset's column type; None if
            unknown. They may lie outside the values, never inside.
        null_count: number of nulls; None if unknown.
        all_null: all values are null.
        exact: both bounds occur as values.
        may_be_nan: False if the file is known to hold no NaN.
    """

    min: Scalar = None
    max: Scalar = None
    null_count: int | None = None
    all_null: bool = False
    exact: bool = False
    may_be_nan: bool = True


class Reader(Protocol):
    """Reads for a catalog through the session's stores, caches and limits."""

    async def read_bytes(self, url: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes ``[start, stop)`` of an object, or all from ``start`` on. Raises StoreError."""

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        """Return rows of a Parquet object."""

    def read_rows(
        self,
        url: str,
        fields: tuple[TableField, ...],
        *,
        constants: Mapping[str, Any] | None = None,
        near: Expression | None = None,
    ) -> AsyncIterator[tuple[pa.Array, pa.Table]]:
        """Yield rows of an immutable Parquet object as columns of a table, batch by batch, with their row numbers.

        Args:
            fields: the columns, and how the object has them.
            constants: columns that have one value in all rows, by name.
            near: row groups and pages without a row for which this is true are left out; all other rows come.
        """

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> T:
        """Return the value that ``make`` returns with its size in bytes. Callers with an equal key share one call and
        its result, while the session's memory cache keeps it.
        """

    async def list_names(self, url: str) -> list[str]:
        """Return the names of the objects directly in a folder, ascending; empty if there is none."""

    @property
    def trust_statistics(self) -> bool:
        """Whether a table's bounds may be used (:class:`asyncpq.ReadOptions`)."""


class Deletes(Protocol):
    """Rows of one file that a table has deleted. Hashable: equal values delete the same rows."""

    @property
    def identity(self) -> Hashable:
        """A key for caches; immutable data has one identity for ever."""

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Return the numbers of the deleted rows in the file, which has ``num_rows``.

        Raises:
            CorruptFileError: the deletes are damaged. A read fails with it; rows are never guessed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """The entry of an index for one version of a file, for one read.

    Attributes:
        access: rows that may match.
        validator: of the version that the index knows; None: of whichever version is read.
        known: gives the metadata that a read needs of that version without opening it, or None if the index cannot.
            Its cost is counted in the operation, the file's own.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    validator: Validator | None = None
    known: Callable[[Operation], Awaitable[KnownVersion | None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        url: of the file.
        validator: of the wanted version, as a listing gives it; None if unknown.
        size: bytes, as the table or listing says; None if unknown. Only an estimate: the object's own size counts.
        num_rows: rows in the file, with deleted ones; None if unknown.
        partition: values of columns that are the same in all its rows, by column name, in the dataset's column types
            (before they are typed: strings from a path).
        bounds: of other columns, by name or dotted path of a struct's leaf.
        deletes: the deleted rows; None for none.
        immutable: the object at ``url`` never changes, as tables promise of their files.
        pinned: only the version of ``validator`` is read.
        fields: how this file has the table's columns, if its other files have them differently.
        content: the bytes of a file that is in no store; ``url`` is only its name then.
        entry: of an index; None: the index does not know the file.
        unreadable: the error that opening the file raises, for an unsupported format or deletes.
    """

    url: str
    validator: Validator | None = None
    size: int | None = None
    num_rows: int | None = None
    partition: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, ColumnBounds] = field(default_factory=dict)
    deletes: Deletes | None = None
    immutable: bool = False
    pinned: bool = False
    fields: tuple[TableField, ...] | None = None
    content: bytes | None = None
    entry: IndexEntry | None = None
    unreadable: AsyncpqError | None = None

    def unindexed(self) -> DataFile:
        """Return the present file at the url, instead of the version that an index knows."""
        if self.immutable:
            return replace(self, entry=None)
        return replace(self, entry=None, validator=None, size=None, num_rows=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """A column of a table, or a part of a nested one, and how files have it.

    A struct's children are its fields, a list's is its element, a map's are key and value. A part is matched in a file
    by ``field_id`` if that is set and the file's schema has ids, else by ``names``; never by position.

    Attributes:
        name: in the table.
        type: Arrow type in the table, with its children.
        nullable: nulls may occur.
        field_id: Parquet field id in the files; None if names decide.
        names: names in the files; the first that the file has counts. By default (empty) ``name``, but none for a
            top-level field that has an id: a file without ids is refused then.
        default: value in files that lack the column (a pyarrow scalar or a Python value); None for null.
        children: parts of a nested type, in the order of ``type``.
        ignores_case: in a file with none of the names, a name that differs only in case matches.
        ignores_zone: files may store the timestamp with or without a zone; without one it is UTC.
        is_variant: a struct of ``metadata`` and ``value``, which is restored if a file has parts of it in
            ``typed_value`` (a shredded variant).
        resolution: unit of timestamps ("s", "ms", "us"): finer ones in a file are converted as DuckDB does, to the
            nearest second or millisecond, or cut to microseconds. None: they are an error if ``type`` is coarser.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    field_id: int | None = None
    names: tuple[str, ...] = ()
    default: Any = None
    children: tuple[TableField, ...] = ()
    ignores_case: bool = False
    ignores_zone: bool = False
    is_variant: bool = False
    resolution: str | None = None


class Snapshot(Protocol):
    """One state of a table, pinned: its columns and files."""

    @property
    def description(self) -> str:
        """Name for ``explain()``: kind, table, and version or time; without secrets."""

    @property
    def fields(self) -> tuple[TableField, ...] | None:
        """The table's columns; None if the files' own schemas decide."""

    async def files(self, where: Expression | None, reader: Reader) -> Sequence[DataFile]:
        """Return the files of this state that may hold rows for which ``where`` is true, in a stable order.

        More may be given, never fewer.

        Args:
            where: names the table's columns; relative times are resolved.
            reader: reads metadata; its cost is counted in the call that needs the files.
        """


class Catalog(Protocol):
    """The source of a table's snapshots: Delta's log, Iceberg's metadata, a SQL catalog, or a user's own."""

    async def snapshot(self, reader: Reader) -> Snapshot:
        """Return the present state, or the one that the catalog was made for.

        Raises:
            UnsupportedFeatureError: the table has a feature that is not read; names feature and table.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """A :class:`Snapshot` of files that are all known already."""

    description: str
    data_files: tuple[DataFile, ...]
    fields: tuple[TableField, ...] | None = None

    async def files(self, where: Expression | None, reader: Reader) -> Sequence[DataFile]:
        """Return all files: the caller prunes them by bounds and partition values."""
        return self.data_files
