"""Deleted rows of an Iceberg table: which delete files apply to a data file, the positions in them, and the rows that
equal a key in them.

Table spec, "Scan planning", "Delete formats" and "Equality Delete Files". Values of keys compare as in Iceberg's Java
implementation: null equals null, NaN equals NaN, and -0.0 does not equal 0.0.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property, partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import NestedField, PrimitiveType, StructType

from asyncpq.datasets.model import CatalogReader, ColumnBounds, Deletes, TableField
from asyncpq.errors import (
    CorruptFileError,
    ExpressionError,
    QueryError,
    ResourceLimitError,
    UnsupportedFeatureError,
    located,
    printable,
)
from asyncpq.expressions import And, Expression, col
from asyncpq.expressions.scalars import Timestamp
from asyncpq.pruning.literals import is_sure
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.deleted_rows import DeletionVector, check_deleted, decode_positions, ranges_of
from asyncpq.tables.iceberg.manifests import EQUALITY_DELETES, ManifestFileEntry
from asyncpq.tables.iceberg.schema import column_bounds, partition_value, table_fields, with_own_zeros

_CONCURRENT_FILES = 8  # delete files that are read at once
_LAST_PATH = b"\xff"  # above all paths, which are UTF-8
_NO_POSITIONS = pa.chunked_array([], pa.int64())
_PATH_BYTES = 500  # of the positions of a data file, beside themselves
_MOST_SHARED = 100_000  # rows of a delete file that is read once for all data files; of others, pages are chosen
_FILE_PATH_ID = 2147483546  # field id of the column file_path in every position delete file


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """The rows of a data file that position delete files delete."""

    data_path: str  # the data file, as the metadata writes it
    urls: tuple[str, ...]  # the delete files, ascending
    # those of ``urls`` that are read once for all data files: they are small, and may be for several
    shared: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def identity(self) -> Hashable:
        return ("iceberg position deletes", self.data_path, self.urls)

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Read the delete files; return the numbers of the deleted rows in a data file of ``num_rows`` rows."""
        rows = RowRanges.empty()
        for deleted in await call_each(partial(self._positions, reader), self.urls, at_once=_CONCURRENT_FILES):
            rows |= deleted
        with located(url=safe_url(self.urls[0])):
            check_deleted(rows, num_rows, self.data_path)
        return rows

    async def _positions(self, reader: CatalogReader, url: str) -> RowRanges:
        try:
            if url in self.shared:
                load = partial(_load_positions, reader, url)
                by_path = await reader.once(("iceberg positions", url), load)
                positions = by_path.get(self.data_path, _NO_POSITIONS)
            else:
                table = await reader.read_table(url, ["pos"], col("file_path") == self.data_path)
                positions = table["pos"]
        except QueryError as error:
            raise _no_position_deletes(url) from error
        return await asyncio.to_thread(decode_positions, positions, url, reader.limits)


async def _load_positions(reader: CatalogReader, url: str) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Read a position delete file; return its positions by path of the data file, and the bytes of memory that they
    take. Raises QueryError if it lacks a column, CorruptFileError if the paths are no text."""
    table = await reader.read_table(url, ["file_path", "pos"])
    kind, types = table.schema.field("file_path").type, pa.types
    if not any(is_text(kind) for is_text in (types.is_string, types.is_large_string, types.is_string_view)):
        raise _no_position_deletes(url)

    def split() -> tuple[dict[str, pa.ChunkedArray], int]:
        known = table.filter(pc.is_valid(table["file_path"]))
        paths = known["file_path"].combine_chunks().dictionary_encode()
        order = pc.array_sort_indices(paths.indices)
        counts = {item["values"]: item["counts"] for item in pc.value_counts(paths.indices).to_pylist()}
        positions, start, by_path = known["pos"].take(order), 0, dict[str, pa.ChunkedArray]()
        for code, path in enumerate(paths.dictionary.to_pylist()):
            by_path[path] = positions.slice(start, counts[code])
            start += counts[code]
        return by_path, positions.nbytes + sum(map(len, by_path)) + _PATH_BYTES * len(by_path)

    return await asyncio.to_thread(split)


def _no_position_deletes(url: str) -> CorruptFileError:
    return CorruptFileError(
        "the file is not a position delete file: it has no column pos, or no column file_path of text",
        url=safe_url(url),
    )


@dataclass(frozen=True, slots=True)
class CombinedDeletes:
    """The rows of a data file that at least one of several kinds of deletes removes."""

    parts: tuple[Deletes, ...]

    @property
    def identity(self) -> Hashable:
        return tuple(part.identity for part in self.parts)

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Return the numbers of the deleted rows in a data file of ``num_rows`` rows."""
        deleted = RowRanges.empty()
        for part in self.parts:
            deleted |= await part.rows(reader, num_rows)
        return deleted


class DeleteIndex:
    """The delete files of a snapshot, keyed by the data file or partition that they may apply to."""

    def __init__(self, entries: Iterable[ManifestFileEntry], equality: EqualityIndex, table: str) -> None:
        """Sort the ``entries`` of the delete manifests by what they apply to; equality deletes are added to
        ``equality``."""
        self._table = table
        self._equality = equality
        self._by_path: dict[str, list[_Applicable]] = defaultdict(list)
        self._by_partition: dict[Hashable, list[_Applicable]] = defaultdict(list)
        for entry in entries:
            path = _referenced_path(entry)
            if entry.content == EQUALITY_DELETES:
                equality.add(entry)
            elif path is not None:
                self._by_path[path].append(_applicable(entry))
            else:
                self._by_partition[entry.partition_key].append(_applicable(entry))

    def deletes_of(self, data: ManifestFileEntry) -> Deletes | None:
        """Return the deletes that apply to a data file; None if no delete applies."""
        parts = [part for part in (self._by_position(data), self._equality.deletes_of(data)) if part is not None]
        return CombinedDeletes(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None

    def _by_position(self, data: ManifestFileEntry) -> Deletes | None:
        candidates = (*self._by_path.get(data.path, ()), *self._by_partition.get(data.partition_key, ()))
        number, path = data.sequence_number, data.path.encode()
        applied = [entry for before, low, high, entry in candidates if number <= before and low <= path <= high]
        vectors = [entry for entry in applied if entry.format == "PUFFIN"]
        if len(vectors) > 1:
            raise CorruptFileError(
                f"{self._table} has {len(vectors)} deletion vectors for one data file, at most one is allowed",
                url=safe_url(data.url),
            )
        if vectors:  # a vector replaces the position deletes before it
            return _vector(vectors[0], data)
        if not applied:
            return None
        check_parquet(applied, self._table)
        shared = [
            entry.url for entry in applied if _referenced_path(entry) is None and 0 <= entry.num_rows <= _MOST_SHARED
        ]
        return PositionDeletes(data.path, tuple(sorted({entry.url for entry in applied})), frozenset(shared))


def _referenced_path(entry: ManifestFileEntry) -> str | None:
    """Return the path of the only data file that a delete file applies to; None if it may apply to several."""
    if entry.referenced_path is not None:
        return entry.referenced_path
    low, high = entry.lower_bounds.get(_FILE_PATH_ID), entry.upper_bounds.get(_FILE_PATH_ID)
    if low is not None and low == high:
        return low.decode("utf-8", "replace")
    return None


class _Applicable(NamedTuple):
    """A delete file, with what is compared for each data file: a partition may have thousands of both."""

    sequence_number: int
    low: bytes  # bounds of the paths of data files
    high: bytes
    entry: ManifestFileEntry


def _applicable(entry: ManifestFileEntry) -> _Applicable:
    low, high = entry.lower_bounds.get(_FILE_PATH_ID), entry.upper_bounds.get(_FILE_PATH_ID)
    return _Applicable(entry.sequence_number, low or b"", _LAST_PATH if high is None else high, entry)


def _vector(entry: ManifestFileEntry, data: ManifestFileEntry) -> DeletionVector:
    missing = [
        name
        for name, value in [
            ("content_offset", entry.content_offset),
            ("content_size_in_bytes", entry.content_size),
            ("referenced_data_file", entry.referenced_path),
        ]
        if value is None
    ]
    if entry.content_offset is None or entry.content_size is None or entry.referenced_path is None:
        raise CorruptFileError(
            f"the manifest's entry for this deletion vector lacks {' and '.join(missing)}",
            url=safe_url(entry.url),
            hint="The manifest is at fault, not the file of vectors: report it to the maker of the table's writer.",
        )
    if entry.content_offset < 0 or entry.content_size < 0:
        raise CorruptFileError(
            f"the manifest places a deletion vector at byte {entry.content_offset} with {entry.content_size} bytes:"
            " neither may be negative",
            url=safe_url(entry.url),
        )
    return DeletionVector(
        url=entry.url,
        start=entry.content_offset,
        stop=entry.content_offset + entry.content_size,
        cardinality=entry.num_rows,
        data_url=data.path,
    )


_MAX_KEY_BYTES = 512 << 20  # distinct keys that apply to one data file
_BUFFER_BYTES = 32 << 20  # rows that are held before duplicates are dropped
_MAX_LISTED_KEYS = 1000  # more keys prune as a range
_CONVERTED = "?"  # suffix of a part that compares in another form than the column's values


# -- key columns of equality deletes -----------------------------------------------------------------


class KeyColumns:
    """The key columns of equality deletes, keyed by field id.

    The field ids serve as names, since a dropped column may share its name with another one. A column has the type of
    the newest schema that contains it.
    """

    def __init__(
        self, schemas: Sequence[Schema], mapping: NameMapping | None, table: str, defaults: Mapping[int, Any]
    ) -> None:
        """Keep all ``schemas`` of the table: first the schema that is read, then the others from new to old.

        ``defaults``: initial defaults that the schemas lack, as in JSON, by field id.
        """
        self._schemas = schemas
        self._mapping = mapping
        self._table = table
        self._defaults = defaults
        self._fields: dict[tuple[int, ...], tuple[TableField, ...]] = {}

    def fields_of(self, field_ids: tuple[int, ...]) -> tuple[TableField, ...]:
        """Return the columns with these field ids. Raises CorruptFileError if no schema has one of the ids."""
        if field_ids not in self._fields:
            missing = sorted(set(field_ids) - self.leaves.keys())
            if missing or not field_ids:
                raise CorruptFileError(
                    f"{self._table} has equality deletes by unknown fields: no schema of it has the ids {missing}"
                )
            selected = _selected([schema.fields for schema in self._schemas], frozenset(field_ids))
            self._fields[field_ids] = table_fields(
                Schema(*selected), self._mapping, self._table, defaults=self._defaults
            )
        return self._fields[field_ids]

    @cached_property
    def leaves(self) -> Mapping[int, NestedField]:
        """The primitive fields outside of lists and maps, keyed by field id."""
        leaves: dict[int, NestedField] = {}
        parts = [field for schema in reversed(self._schemas) for field in schema.fields]
        while parts:
            part = parts.pop()
            if isinstance(part.field_type, StructType):
                parts.extend(reversed(part.field_type.fields))
            elif isinstance(part.field_type, PrimitiveType):
                leaves.setdefault(part.field_id, part)
        return leaves


def _selected(versions: Sequence[tuple[NestedField, ...]], wanted: frozenset[int]) -> list[NestedField]:
    """Return the primitive fields with ids in ``wanted``, inside the structs that contain them. ``versions`` are the
    fields of one struct, or of the table, in all schemas from new to old."""
    newest: dict[int, NestedField] = {}
    structs: dict[int, list[tuple[NestedField, ...]]] = {}
    for version in versions:
        for part in version:
            newest.setdefault(part.field_id, part)
            if isinstance(part.field_type, StructType):
                structs.setdefault(part.field_id, []).append(part.field_type.fields)
    selected: list[NestedField] = []
    for field_id, part in newest.items():
        children = _selected(structs[field_id], wanted) if field_id in structs else ()
        is_key = field_id in wanted and isinstance(part.field_type, PrimitiveType)
        if is_key or children:
            kind = StructType(*children) if children else part.field_type
            selected.append(
                NestedField(field_id, str(field_id), kind, required=False, initial_default=part.initial_default)
            )
    return selected


# -- keys of equality deletes ------------------------------------------------------------------------


class _KeyColumn(NamedTuple):
    """One column of a key set. A row is compared column by column, and each column leaves fewer keys that may equal
    it."""

    values: pa.Array  # distinct
    # distinct pairs of a prefix (the columns before) and a value, each as one number; None for the first column
    prefixes: pa.Array | None


class KeySet:
    """A set of keys, used to find the rows of a table that are equal to a key."""

    def __init__(self, keys: pa.Table) -> None:
        """Build the set from ``keys``, one key in each row; the table is a result of :func:`comparable`."""
        self._steps: list[_KeyColumn] = []
        self._names = keys.column_names
        self.num_bytes: int = 0
        code: pa.Array | None = None
        for column in keys.itercolumns():
            array = column.combine_chunks()
            values = pc.unique(array)
            position = pc.index_in(array, values)
            prefixes = None
            if code is not None:
                pairs = _pairs(code, position, len(values))
                prefixes = pc.unique(pairs)
                position = pc.index_in(pairs, prefixes)
            code = position
            self._steps.append(_KeyColumn(values, prefixes))
            self.num_bytes += values.nbytes + (0 if prefixes is None else prefixes.nbytes)

    def contains(self, rows: pa.Table) -> pa.Array:
        """Return a boolean for each row: whether the row is a key. ``rows`` is a result of :func:`comparable`."""
        code: pa.Array | None = None
        for step, column in zip(self._steps, rows.itercolumns(), strict=True):
            position = pc.index_in(column.combine_chunks(), step.values)  # null where no key has the value
            if code is not None:
                position = pc.index_in(_pairs(code, position, len(step.values)), step.prefixes, skip_nulls=True)
            code = position
        return pc.is_valid(code)

    @cached_property
    def near(self) -> Expression | None:
        """A predicate that is true for every row with a deleted key, and perhaps for other rows.

        None if it would exclude no row.
        """
        terms: list[Expression] = []
        for name, step in zip(self._names, self._steps, strict=True):
            if _is_comparable_with_literals(name, step.values.type):
                with suppress(ExpressionError):  # a date outside of Python's range, or text that is not UTF-8
                    terms.append(_any_of(name, step.values))
        return And(tuple(terms)) if terms else None


def comparable(rows: pa.Table) -> pa.Table:
    """Convert columns so that Arrow's equality gives Iceberg's results: structs to their parts, floats to their bits.

    A column whose values stay the same keeps its dotted path as its name.
    """
    parts: list[tuple[str, pa.Array]] = []
    for name, column in zip(rows.column_names, rows.itercolumns(), strict=True):
        parts += _parts(name, column.combine_chunks())
    return pa.table([part for _, part in parts], names=[name for name, _ in parts])


def _parts(name: str, column: pa.Array) -> list[tuple[str, pa.Array]]:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _parts(f"{name}{_CONVERTED}", column.storage)
    if isinstance(kind, pa.StructType):  # a null struct is not a struct of nulls
        children = zip(kind, column.flatten(), strict=True)
        inner = [part for child, values in children for part in _parts(f"{name}.{child.name}", values)]
        return [(f"{name}{_CONVERTED}", pc.is_valid(column)), *inner]
    if pa.types.is_floating(kind):
        one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
        return [(f"{name}{_CONVERTED}", one_nan.view(pa.int32() if kind.bit_width == 32 else pa.int64()))]
    return [(name, column)]


def _pairs(prefix: pa.Array, value: pa.Array, num_values: int) -> pa.Array:
    """Return a number for each pair of a prefix and a value that is different for different pairs; null if either is
    null. Prefixes, values and ``num_values``, the number of distinct values, are below 2**31."""
    return pc.add(pc.multiply(prefix.cast(pa.int64()), num_values), value.cast(pa.int64()))


def _is_comparable_with_literals(name: str, kind: pa.DataType) -> bool:
    types = pa.types
    known = (types.is_integer, types.is_string, types.is_binary, types.is_date, types.is_decimal, types.is_timestamp)
    return not name.endswith(_CONVERTED) and any(is_type(kind) for is_type in known)


def _any_of(name: str, values: pa.Array) -> Expression:
    given = values.drop_null()
    if len(given) <= _MAX_LISTED_KEYS:
        return col(name).is_in([*given, *([None] if values.null_count else [])])
    ends = pc.min_max(given)
    term: Expression = (col(name) >= ends["min"]) & (col(name) <= ends["max"])
    return term | col(name).is_null() if values.null_count else term


# -- equality deletes of a data file -----------------------------------------------------------------


class KeyFiles(NamedTuple):
    """Equality delete files whose keys have the same columns."""

    field_ids: tuple[int, ...]  # the key columns, ascending
    urls: tuple[str, ...]  # the delete files, ascending


@dataclass(frozen=True, slots=True)
class EqualityDeletes:
    """The rows of a data file that are equal to a key of one of its delete files."""

    data_url: str
    groups: tuple[KeyFiles, ...]  # the delete files by key columns
    columns: KeyColumns = field(compare=False, repr=False)  # resolves field ids to columns
    # identity partition values of the data file, by field id as text
    constants: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def identity(self) -> Hashable:
        return ("iceberg equality deletes", self.data_url, self.groups)

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Compare the file's rows with the keys; return the numbers of the deleted rows."""
        deleted = RowRanges.empty()
        for group in self.groups:
            fields = self.columns.fields_of(group.field_ids)
            keys = await reader.once(("iceberg keys", self.columns, group), partial(_load_keys, reader, group, fields))
            deleted |= await self._matching(reader, fields, keys)
        return deleted

    async def _matching(self, reader: CatalogReader, fields: tuple[TableField, ...], keys: KeySet) -> RowRanges:
        names = {part.name for part in fields}
        own = {name: value for name, value in self.constants.items() if name in names}
        constants, fields = with_own_zeros(own, fields)
        deleted: list[pa.Array] = []
        async for numbers, rows in reader.read_rows(self.data_url, fields, constants=constants, near=keys.near):
            deleted.append(await asyncio.to_thread(_deleted, numbers, rows, keys))
        numbers = pa.concat_arrays([pa.array([], pa.int64()), *deleted])
        return await asyncio.to_thread(ranges_of, numbers, reader.limits)


def _deleted(numbers: pa.Array, rows: pa.Table, keys: KeySet) -> pa.Array:
    return numbers.filter(keys.contains(comparable(rows)))


class _Distinct:
    """Collects tables, and keeps each distinct row once."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._num_bytes = 0
        self._most_bytes = _BUFFER_BYTES
        self._lock = asyncio.Lock()

    async def add(self, rows: pa.Table) -> None:
        """Add the rows of a table. Raises ResourceLimitError if the distinct rows need too much memory."""
        async with self._lock:
            self._tables.append(rows)
            self._num_bytes += rows.nbytes
            if self._num_bytes > self._most_bytes:
                distinct = await self.table()
                self._tables, self._num_bytes = [distinct], distinct.nbytes
                self._most_bytes = max(_BUFFER_BYTES, 2 * distinct.nbytes)
                if distinct.nbytes > _MAX_KEY_BYTES:
                    raise ResourceLimitError(
                        f"the keys of the equality deletes of one file exceed {_MAX_KEY_BYTES >> 20} MiB, the limit",
                        hint="Rewrite the table's data files (compaction), which applies the deletes.",
                    )

    async def table(self) -> pa.Table:
        whole = pa.concat_tables(self._tables)
        return await asyncio.to_thread(lambda: whole.group_by(whole.column_names, use_threads=False).aggregate([]))


async def _load_keys(reader: CatalogReader, group: KeyFiles, fields: tuple[TableField, ...]) -> tuple[KeySet, int]:
    """Read the keys of delete files; return the keys and the bytes of memory that they occupy."""
    distinct = _Distinct()
    empty = pa.schema([pa.field(part.name, part.type) for part in fields]).empty_table()
    await distinct.add(comparable(empty))

    async def load(url: str) -> None:
        async for _, rows in reader.read_rows(url, fields):
            await distinct.add(await asyncio.to_thread(comparable, rows))

    await call_each(load, group.urls, at_once=_CONCURRENT_FILES)
    table = await distinct.table()
    keys = await asyncio.to_thread(KeySet, table)
    return keys, keys.num_bytes


# -- which equality deletes apply --------------------------------------------------------------------


class EqualityIndex:
    """The equality delete files of a snapshot, keyed by partition."""

    def __init__(
        self, columns: KeyColumns, specs: Mapping[int, PartitionSpec], untrusted: Collection[int] | None, table: str
    ) -> None:
        """Make an empty index.

        Args:
            columns: resolves field ids to columns.
            specs: the table's partition specs, by id.
            untrusted: ids of fields whose bounds are not used; None if no bounds are used.
            table: the table's name, for messages.
        """
        self._columns = columns
        self._specs = specs
        self._untrusted = untrusted
        self._table = table
        self._everywhere: list[ManifestFileEntry] = []
        self._by_partition: dict[Hashable, list[ManifestFileEntry]] = defaultdict(list)
        self._bounds: dict[tuple[int, int], ColumnBounds] = {}

    def add(self, entry: ManifestFileEntry) -> None:
        """Add an equality delete file to the index."""
        spec = self._specs[entry.spec_id]
        if all(isinstance(part.transform, VoidTransform) for part in spec.fields):
            self._everywhere.append(entry)
        else:
            self._by_partition[entry.partition_key].append(entry)

    def deletes_of(self, data: ManifestFileEntry) -> EqualityDeletes | None:
        """Return the equality deletes that apply to a data file; None if no delete applies.

        A delete file applies if it is newer than the data file, is global or in the same partition, and the bounds of
        both files allow a common key.
        """
        candidates = [*self._everywhere, *self._by_partition.get(data.partition_key, ())]
        applied = [
            entry
            for entry in candidates
            if entry.sequence_number > data.sequence_number and self._may_apply(entry, data)
        ]
        if not applied:
            return None
        check_parquet(applied, self._table)
        urls: dict[tuple[int, ...], set[str]] = defaultdict(set)
        for entry in applied:
            field_ids = tuple(sorted(set(entry.equality_ids)))
            self._columns.fields_of(field_ids)
            urls[field_ids].add(entry.url)
        groups = tuple(KeyFiles(field_ids, tuple(sorted(urls[field_ids]))) for field_ids in sorted(urls))
        return EqualityDeletes(data.url, groups, self._columns, self._constants(data))

    def _may_apply(self, delete: ManifestFileEntry, data: ManifestFileEntry) -> bool:
        """Return whether the bounds of both files allow a common key."""
        if self._untrusted is None:
            return True
        leaves, untrusted = self._columns.leaves, self._untrusted
        return all(
            _may_share(self._bounds_of(delete, leaves[field_id]), self._bounds_of(data, leaves[field_id]))
            for field_id in delete.equality_ids
            if field_id in leaves and field_id not in untrusted
        )

    def _bounds_of(self, entry: ManifestFileEntry, leaf: NestedField) -> ColumnBounds:
        key = (id(entry), leaf.field_id)
        if key not in self._bounds:
            self._bounds[key] = column_bounds(leaf, entry)
        return self._bounds[key]

    def _constants(self, data: ManifestFileEntry) -> dict[str, Any]:
        constants: dict[str, Any] = {}
        for position, part in enumerate(self._specs[data.spec_id].fields):
            leaf = self._columns.leaves.get(part.source_id)
            value = data.partition[position]
            if leaf is not None and isinstance(part.transform, IdentityTransform) and value is not None:
                constants[str(part.source_id)] = partition_value(leaf, value, self._table, data.url)
        return constants


def check_parquet(entries: Iterable[ManifestFileEntry], table: str) -> None:
    """Raise UnsupportedFeatureError if a delete file is not Parquet. ``table``: the table's name, for the message."""
    for entry in entries:
        if entry.format != "PARQUET":
            content = "equality" if entry.content == EQUALITY_DELETES else "position"
            raise UnsupportedFeatureError(
                f"{table} has {content} deletes in {printable(entry.format)}: only Parquet is read",
                url=safe_url(entry.url),
            )


def _may_share(delete: ColumnBounds, data: ColumnBounds) -> bool:
    """Return whether two files may share a value of a column, null included."""
    if delete.null_count != 0 and data.null_count != 0:
        return True
    if delete.all_null or data.all_null:
        return False
    if delete.may_be_nan and data.may_be_nan:
        return True
    return not (_is_below(delete.max, data.min) or _is_below(data.max, delete.min))


def _is_below(high: Any, low: Any) -> bool:
    if high is None or low is None:
        return False
    below = high.nanoseconds < low.nanoseconds if isinstance(high, Timestamp) else high < low
    return bool(below) and is_sure(low)
