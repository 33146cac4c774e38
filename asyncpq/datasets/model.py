"""The files and columns of a dataset before any file is opened; the protocols of tables, and the budget of their
metadata. No I/O.

Listings and catalogs create :class:`DataFile` objects; pruning and reading use them.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import field, replace
from operator import eq, itemgetter
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from asyncpq.errors import AsyncpqError, ResourceLimitError, limit_hint
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.expressions.scalars import Scalar
from asyncpq.objects.version import KnownVersion
from asyncpq.options import LimitOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import LazyRecords, dataclass
from asyncpq.storage.base import ObjectRow, Validator

T = TypeVar("T")


class View(enum.StrEnum):
    """Which files a read of a dataset sees (docs/datasets.md, "Views"): :attr:`asyncpq.Dataset.view`.

    ``view=`` of :meth:`asyncpq.Session.open_dataset` takes the texts.

    Attributes:
        SNAPSHOT: "snapshot": the files of an index's newest snapshot; files that changed since then are not seen.
        LISTED: "listed": the files that exist when the read begins.
        TABLE: "table": the files of one snapshot of a table.
    """

    SNAPSHOT = "snapshot"
    LISTED = "listed"
    TABLE = "table"


def known_count(value: object) -> int | None:
    """Return a count of rows or bytes that a table's metadata has; None, for unknown, if ``value`` cannot be one."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """Bounds and counts of one column in one file, known without opening it.

    Attributes:
        min, max: inclusive bounds of the values that are neither null nor NaN, in the dataset's column type; None if
            unknown. They may lie outside the values, never inside.
        null_count: number of nulls; None if unknown.
        all_null: whether all values are null.
        exact: whether both bounds occur as values.
        may_be_nan: False if the column certainly contains no NaN.
    """

    min: Scalar = None
    max: Scalar = None
    null_count: int | None = None
    all_null: bool = False
    exact: bool = False
    may_be_nan: bool = True


class CatalogReader(Protocol):
    """Reads objects for a catalog, with the session's stores, caches and limits. asyncpq makes one and passes it to the
    methods of a :class:`Catalog`, its :class:`Snapshot` and :class:`Deletes`, in the session's event loop."""

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        """Return the bytes ``[start, stop)`` of an object, or all from ``start`` on if ``stop`` is None.

        Args:
            at_most: the most bytes that the range, or the object, may have; None: ``max_decoded_bytes`` of the limits.

        Raises:
            ResourceLimitError: the range or object is longer than ``at_most``.
            StoreError: the store failed; ObjectNotFoundError if the object does not exist.
        """

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        """Return the rows of a Parquet object for which ``where`` is true (None: all), with ``columns`` (None: all).

        Raises:
            StoreError, FormatError, QueryError: as :meth:`asyncpq.File.read`.
        """

    def read_rows(
        self,
        url: str,
        fields: tuple[TableField, ...],
        *,
        constants: Mapping[str, Any] | None = None,
        near: Expression | None = None,
    ) -> AsyncIterator[tuple[pa.Array, pa.Table]]:
        """Yield the rows of an immutable Parquet object in batches: row numbers, and a table with the columns
        ``fields``.

        Args:
            fields: the columns to read, with their names or field ids in the object.
            constants: values of columns that are the same in all rows, by column name.
            near: leave out row groups and pages that cannot have a row for which ``near`` is true; all other rows come.
                None: leave out none.

        Raises:
            StoreError, FormatError: the object cannot be read.
        """

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> T:
        """Return the value that ``make()`` gives as the first item of its result; the second item is the value's size
        in bytes. Callers with an equal key share one call, and the value while the session's memory cache keeps it. An
        error of ``make()`` is raised in all of them, and not kept."""

    async def list_names(self, url: str) -> list[str]:
        """Return the names of the objects directly in a folder, ascending; empty if there are none. Raises StoreError
        if the folder cannot be listed."""

    @property
    def limits(self) -> LimitOptions:
        """The session's :class:`asyncpq.LimitOptions`, which also bound what a table's metadata may take."""

    @property
    def trust_statistics(self) -> bool:
        """Whether reads may prune by a table's bounds (:class:`asyncpq.ReadOptions`)."""


class Deletes(Protocol):
    """The rows of one file that a table has deleted. Hashable: equal objects delete the same rows."""

    @property
    def identity(self) -> Hashable:
        """The cache key of these deletes, a hashable value: equal identities always mean the same deleted rows."""

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Return the row numbers of the deleted rows in the file, which has ``num_rows`` rows.

        Raises:
            CorruptFileError: the deletes are damaged. The read then fails with this error.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """The facts that an index has about one version of a file, for one read.

    Attributes:
        access: rows of the file that may match.
        validator: identifies the indexed version; None if the entry is valid for any version that is read.
        known: returns the footer and page indexes of the indexed version, so that the read need not fetch the footer;
            None if the index does not contain them. Its argument counts the cost, and belongs to this file alone.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    validator: Validator | None = None
    known: Callable[[Operation], Awaitable[KnownVersion | None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        url: url of the file.
        validator: identifies the version to read, as a listing returned it; None if unknown.
        size: bytes, according to the table or listing; None if unknown. Only an estimate: the object's own size counts.
        num_rows: number of rows in the file, including deleted ones; None if unknown.
        partition: values of columns that are constant in the file, by column name, in the dataset's column types.
        bounds: bounds of other columns, by name or dotted path of a struct's leaf.
        deletes: the deleted rows; None if the table has deleted no row of the file.
        immutable: whether the object at ``url`` never changes, as tables promise of their files.
        pinned: whether only the version that ``validator`` identifies is read; any other then raises
            ObjectChangedError.
        fields: the table's columns with their names or ids in this file; None if the table's own ``fields`` apply.
        content: the bytes of a file that is in no store, and for which ``url`` is only a name; else None.
        entry: the file's entry in an index; None if no index lists the file.
        unreadable: the error to raise when the file is opened, for an unsupported format or deletes; else None.
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
        """Return the file without ``entry`` and, unless it is ``immutable``, without ``validator``, ``size`` and
        ``num_rows``. asyncpq calls it if the version that an index lists is gone, to read the current one without the
        index."""
        if self.immutable:
            return replace(self, entry=None)
        return replace(self, entry=None, validator=None, size=None, num_rows=None)


class DataFiles(LazyRecords[DataFile]):
    """The files of a listing; ``rows`` are those of :class:`asyncpq.storage.base.ListedObjects`. ``partitions`` has the
    partition values of each folder, by its url."""

    __slots__ = ("partitions",)

    def __init__(self, rows: Sequence[ObjectRow | NamedRow], partitions: Mapping[str, Mapping[str, Any]]) -> None:
        self.partitions: Mapping[str, Mapping[str, Any]] = partitions
        super().__init__(rows, self._file)

    @property
    def are_described(self) -> bool:
        """Whether any of the files has partition values."""
        return any(self.partitions.values())

    def _file(self, row: ObjectRow) -> DataFile:
        url, size, _, known, *fields = row
        return DataFile(
            url=url,
            validator=Validator(size, *fields) if known else None,
            size=size,
            partition=self.partitions.get(url[: url.rfind("/") + 1], _NO_VALUES),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataFiles):
            return super().__eq__(other)
        times = itemgetter(0, 1, *range(3, 7))  # the time of the write is no part of a file
        same = self.partitions == other.partitions and len(self.rows) == len(other.rows)
        return same and all(map(eq, map(times, self.rows), map(times, other.rows)))

    __hash__: ClassVar[None] = None


class TableDataFiles(LazyRecords[DataFile]):
    """The files of a table's snapshot. Each row begins with the file's url and the position of its partition values in
    ``partitions``; ``are_described``: some files have partition values or bounds."""

    __slots__ = ("are_described", "partitions")

    def __init__(
        self,
        rows: Sequence[tuple[Any, ...]],
        make: Callable[[Any], DataFile],
        partitions: Sequence[Mapping[str, Any]],
        *,
        are_described: bool,
    ) -> None:
        self.partitions: Sequence[Mapping[str, Any]] = partitions
        self.are_described: bool = are_described
        super().__init__(rows, make)


_NO_VALUES: Mapping[str, Any] = {}
#: The row of a file that was named, not listed.
NamedRow: TypeAlias = tuple[str, None, None, bool, None, None, None]


def partitions_of(files: Sequence[DataFile]) -> list[Mapping[str, Any]]:
    """Return the partition values of the files, as :func:`urls_of` does."""
    if isinstance(files, TableDataFiles):
        return [files.partitions[row[1]] for row in files.rows]
    if not isinstance(files, DataFiles):
        return [file.partition for file in files]
    values = files.partitions
    return [values.get(row[0][: row[0].rfind("/") + 1], _NO_VALUES) for row in files.rows]


def urls_of(files: Sequence[DataFile]) -> list[str]:
    """Return the urls of the files, without making an object of each file of a listing or a table."""
    if isinstance(files, (DataFiles, TableDataFiles)):
        return [row[0] for row in files.rows]
    return [file.url for file in files]


#: The hint of errors about a column that cannot be read (:attr:`TableField.unreadable`).
OTHER_COLUMNS: Final = "The table's other columns can be read: name them in columns=."


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """A column of a table, or a part of a nested column, with its names or id in the files.

    A struct's children are its fields; a list's child is its element; a map's children are key and value. A column or
    part is found in a file by ``field_id`` if set and the file's schema has ids, else by ``names``; never by position.

    Attributes:
        name: name in the table.
        type: Arrow type in the table, including its children.
        nullable: whether nulls may occur.
        field_id: Parquet field id in the files; None if the column is found by name.
        names: possible names in the files; the first that a file has counts. Empty: ``name``; but a top-level field
            with an id and without names is not searched by name, so a file without ids is an error.
        default: value in files that lack the column (a pyarrow scalar or a Python value); None for null.
        children: parts of a nested type, in the order of ``type``.
        ignores_case: whether, in a file with none of the names, a name that differs only in case matches.
        ignores_zone: whether files may store the timestamp with or without a time zone; without one it is in UTC.
        is_variant: whether the column is a variant, a struct of ``metadata`` and ``value``. If a file is shredded (has
            parts of the value in ``typed_value``), ``value`` is restored.
        resolution: unit ("s", "ms", "us") to which finer timestamps of a file are converted, before they become
            ``type``, as DuckDB does: to the nearest second or millisecond, or truncated to microseconds. None: those
            finer than ``type`` raise SchemaMismatchError.
        unreadable: the error to raise when the column or part is read, in the result or in a predicate; None for those
            that can be read. The table's other columns are not affected.
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
    unreadable: AsyncpqError | None = None


class Snapshot(Protocol):
    """One state of a table that never changes: its columns and files."""

    @property
    def description(self) -> str:
        """The text for ``explain()``: kind, table, and version or time; without secrets."""

    @property
    def fields(self) -> tuple[TableField, ...] | None:
        """The table's columns, a tuple of :class:`asyncpq.TableField`; None if they are taken from the schemas of the
        files."""

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        """Return the files of this state that may have rows for which ``where`` is true, in a stable order.

        The result may contain files without such rows, but must not lack a file with one.

        Args:
            where: a predicate over the table's columns, with relative times resolved; None if all files are needed.
            reader: reads the table's metadata; the call that needs the files counts the cost.

        Raises:
            AsyncpqError: the metadata cannot be read. The read that needs the files fails with it.
        """


class Catalog(Protocol):
    """The source of a table's snapshots, such as Delta's log. Implement one for another format, and pass it to
    :meth:`asyncpq.Session.open_dataset`."""

    async def snapshot(self, reader: CatalogReader) -> Snapshot:
        """Return the table's current snapshot, or the one of the version or time for which the catalog was created.

        Raises:
            UnsupportedFeatureError: the table has a feature that the catalog does not support; the error names both.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """A :class:`Snapshot` with a fixed list of files, which it returns without a request.

    Attributes:
        description: the text for ``explain()``: kind, table, and version or time; without secrets.
        data_files: the files, in the order in which reads return their rows.
        fields: the table's columns; None if they are taken from the schemas of the files.
    """

    description: str
    data_files: Sequence[DataFile]
    fields: tuple[TableField, ...] | None = None

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        """Return all files, whatever ``where`` is: asyncpq prunes them by bounds and partition values. Makes no
        request, raises no error."""
        return self.data_files


_EXPANSION: Final = 256  # times its own size: checkpoints, manifests with hardly any statistics come near this


class MetadataBudget:
    """The bytes of memory that one file of a table's metadata may still take once it is decoded: at first
    ``max_decoded_bytes``, or 256 times the file's own bytes if that is more."""

    def __init__(self, file_bytes: int, limits: LimitOptions) -> None:
        expanded = _EXPANSION * file_bytes
        self.left: int = max(limits.max_decoded_bytes, expanded)
        self._bound = (
            f"max_decoded_bytes={limits.max_decoded_bytes} bytes"
            if expanded <= limits.max_decoded_bytes
            else f"{_EXPANSION} times its own {file_bytes} bytes"
        )

    def spend(self, num_bytes: int) -> None:
        """Take ``num_bytes`` from the budget. Raises ResourceLimitError, which names the bound, if it is exceeded."""
        self.left -= num_bytes
        if self.left < 0:
            raise ResourceLimitError(
                f"a file of the table's metadata decodes to more than {self._bound}",
                hint=limit_hint("max_decoded_bytes"),
            )


_MAX_CHARACTERS = 64 << 20  # of all paths of a schema: 256 for each of as many columns as LimitOptions allows a file
#: The type of VARIANT columns is a struct of the bytes of Parquet's variant encoding.
VARIANT_PARTS: Final = tuple(TableField(name=name, type=pa.binary(), nullable=False) for name in ("metadata", "value"))
VARIANT_TYPE: Final = pa.struct([pa.field(part.name, part.type, part.nullable) for part in VARIANT_PARTS])


class ColumnPaths:
    """Joins the names of one schema's nested columns to paths, which are bounded: each repeats the names above it, so a
    small schema could fill the memory."""

    def __init__(self) -> None:
        self._left = _MAX_CHARACTERS

    def join(self, parent: str, name: str) -> str:
        """Return the path of the column ``name`` in the column ``parent``, which is empty for a top-level column.

        Raises ResourceLimitError if the schema's paths take too much memory.
        """
        if not parent:
            return name
        self._left -= len(parent) + len(name)
        if self._left < 0:
            raise ResourceLimitError(
                f"the paths of the table's nested columns have more than {_MAX_CHARACTERS} characters",
                hint="Shorten the names of columns that have others inside.",
            )
        return f"{parent}.{name}"
