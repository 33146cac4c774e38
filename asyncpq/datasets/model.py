"""What a dataset knows of its files before any is opened: urls, partition values, bounds, deleted rows.

Listings and catalogs fill it in; pruning and reading rely on it. No I/O.
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

    SNAPSHOT = "snapshot"  # those of an index's newest snapshot: of what was written since nothing is seen
    LISTED = "listed"  # those that are there when the read begins: exact
    TABLE = "table"  # those of one snapshot of a table: exact


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """What is known of one column in one file, without opening it; all of it may be unknown.

    Attributes:
        min, max: inclusive bounds of the values that are neither null nor NaN, in terms of the dataset's
            column type; None where unknown. They may lie outside of the values, never inside.
        null_count: how many values are null; None where unknown.
        all_null: no value is anything but null.
        exact: both bounds occur as values.
        may_be_nan: False where the file is known to hold no NaN.
    """

    min: Scalar = None
    max: Scalar = None
    null_count: int | None = None
    all_null: bool = False
    exact: bool = False
    may_be_nan: bool = True


class Reader(Protocol):
    """What a session lends to a catalog: reads through its stores, caches and limits."""

    async def read_bytes(self, url: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes ``[start, stop)`` of an object, or all from ``start`` on.

        Raises:
            StoreError: the store did not give them.
        """

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        """Rows of a Parquet object."""

    def read_rows(
        self,
        url: str,
        fields: tuple[TableField, ...],
        *,
        constants: Mapping[str, Any] | None = None,
        near: Expression | None = None,
    ) -> AsyncIterator[tuple[pa.Array, pa.Table]]:
        """Rows of an immutable Parquet object as columns of a table, batch by batch, with their row numbers.

        Args:
            fields: the columns, and how the object has them.
            constants: columns that have one value in all rows, by name.
            near: row groups and pages that hold no row for which this is true are left out; all other rows come.
        """

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> T:
        """What ``make`` gives beside its bytes in memory. Callers with an equal key share one call and its result,
        for as long as the session's memory cache keeps it."""

    async def list_names(self, url: str) -> list[str]:
        """Names of the objects directly in a folder, ascending; empty where there is none."""

    @property
    def trust_statistics(self) -> bool:
        """Whether a table's bounds may be used (:class:`asyncpq.ReadOptions`)."""


class Deletes(Protocol):
    """Rows of one file that a table has deleted. Hashable: equal ones delete the same rows."""

    @property
    def identity(self) -> Hashable:
        """Names what is deleted, for caches; immutable data has one identity for ever."""

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows in the file, which has ``num_rows``.

        Raises:
            CorruptFileError: what says so cannot be trusted. A read fails with it; rows are never guessed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """What an index says of one version of a file, for one read.

    Attributes:
        access: rows that may match.
        validator: of the version that it speaks of; None: of whichever is there.
        known: gives what a read needs of that version without opening it; None where the index does not know, or what
            it has cannot be used. What that costs is counted in the operation, the file's own.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    validator: Validator | None = None
    known: Callable[[Operation], Awaitable[KnownVersion | None]] | None = None

    def speaks_of(self, validator: Validator) -> bool:
        """Whether it is about the version that a response named."""
        return self.validator is None or self.validator.same_version(validator)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        url: where it is.
        validator: of the version that is meant, as a listing gives it; None where unknown.
        size: bytes, as the table or listing says; None where unknown. Only an estimate: the object's own counts.
        num_rows: rows in the file, deleted ones included; None where unknown.
        partition: values of columns that are the same in all its rows, by column name, in terms of
            the dataset's column types (for strings that a path gave: before they are typed).
        bounds: what is known of other columns, by name or dotted path of a struct's leaf.
        deletes: which rows are deleted; None for none.
        immutable: whatever is at ``url`` never changes, as tables promise of their files.
        pinned: the version of ``validator`` is read, or none.
        fields: how this file has the table's columns, where that is not how its other files do.
        content: the file itself, where it is in no store; ``url`` then only names it.
        entry: what an index says of it; None: nothing.
        unreadable: why it cannot be read, such as its format or deletes: the error that opening it raises.
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
        """The file that is there instead of the version which an index knows."""
        if self.immutable:
            return replace(self, entry=None)
        return replace(self, entry=None, validator=None, size=None, num_rows=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """A column of a table, or a part of a nested one, and how files have it.

    A struct's children are its fields, a list's is its element, a map's are key and value. A part is found in
    a file by ``field_id`` where that is set and the file's schema has ids, else by ``names``; never by position.

    Attributes:
        name: in the table.
        type: Arrow type in the table, children included.
        nullable: whether nulls may occur.
        field_id: Parquet field id in the files; None where names decide.
        names: names in the files, the first that is there counts; by default (empty) ``name``, but none for a
            top-level field that has an id: a file without ids is then refused.
        default: value in files that lack it (a pyarrow scalar or a Python value); None for null.
        children: parts of a nested type, in the order of ``type``.
        ignores_case: where a file has none of the names, one that differs only in its case counts.
        ignores_zone: a timestamp that files may keep with or without a zone: one without is UTC's.
        is_variant: a struct of ``metadata`` and ``value``, which is put together where a file has parts of it in
            ``typed_value`` (a shredded variant).
        resolution: unit of timestamps ("s", "ms", "us"): finer ones of a file are brought to it as DuckDB does, to the
            nearest second or millisecond, or cut to microseconds. None: they are an error where ``type`` is coarser.
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
        """What it is, for ``explain()``: kind, table, and which version or time; without secrets."""

    @property
    def fields(self) -> tuple[TableField, ...] | None:
        """The table's columns; None where the files' own schemas decide."""

    async def files(self, where: Expression | None, reader: Reader) -> Sequence[DataFile]:
        """The files of this state that may hold rows for which ``where`` is true, in a stable order.

        More may be given, never fewer.

        Args:
            where: names the table's columns; relative times are resolved.
            reader: reads metadata; what that costs is counted in the call that asks for the files.
        """


class Catalog(Protocol):
    """Knows a table: Delta's log, Iceberg's metadata, a SQL catalog, or a user's own."""

    async def snapshot(self, reader: Reader) -> Snapshot:
        """The present state, or the one that the catalog was asked for.

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
        """All of them: bounds and partition values are looked at by whoever asks."""
        return self.data_files
