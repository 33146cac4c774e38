"""Equality deletes of an Iceberg table: which rows of a data file equal a deleted key.

Table spec, "Equality Delete Files". Values are compared as Iceberg's Java implementation does: null equals null, NaN
equals NaN, and -0.0 does not equal 0.0.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import NestedField, PrimitiveType, StructType

from asyncpq.datasets.model import ColumnBounds, Reader, TableField
from asyncpq.errors import CorruptFileError, ExpressionError, ResourceLimitError, UnsupportedFeatureError, printable
from asyncpq.expressions import And, Expression, col
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg.manifests import EQUALITY_DELETES, Entry
from asyncpq.tables.iceberg.schema import column_bounds, partition_value, table_fields

_AT_ONCE = 8  # delete files
_KEY_BYTES = 512 << 20  # of distinct keys that apply to one data file
_MERGED_BYTES = 32 << 20  # of rows before they are made distinct
_LISTED_KEYS = 1000  # more are pruned by as a range
_OTHER = "?"  # ends the name of a part that is compared in another form than the column's


# -- key columns ----------------------------------------------------------------------------------


class KeyColumns:
    """The columns that delete files name by field id, as data and delete files have them.

    Names are the field ids, since a dropped column may have the name of another one. A column has the type that it has
    in the newest schema which has it.
    """

    def __init__(self, schemas: Sequence[Schema], mapping: NameMapping | None, table: str) -> None:
        """
        Args:
            schemas: all of the table, the one that is read first, then from new to old.
            mapping: names in files without field ids.
            table: names the table in errors.
        """
        self._schemas = schemas
        self._mapping = mapping
        self._table = table
        self._known: dict[tuple[int, ...], tuple[TableField, ...]] = {}

    def of(self, field_ids: tuple[int, ...]) -> tuple[TableField, ...]:
        """The columns of some field ids.

        Raises:
            CorruptFileError: no schema has such a field outside of lists and maps.
            UnsupportedFeatureError: a type that is not read.
        """
        if field_ids not in self._known:
            missing = sorted(set(field_ids) - self.leaves.keys())
            if missing or not field_ids:
                raise CorruptFileError(f"{self._table} has equality deletes by unknown fields {missing}")
            selected = _selected([schema.fields for schema in self._schemas], frozenset(field_ids))
            self._known[field_ids] = table_fields(Schema(*selected), self._mapping, self._table)
        return self._known[field_ids]

    @cached_property
    def leaves(self) -> Mapping[int, NestedField]:
        """Primitive fields that are in no list or map, by field id."""
        found: dict[int, NestedField] = {}
        parts = [field for schema in reversed(self._schemas) for field in schema.fields]
        while parts:
            part = parts.pop()
            if isinstance(part.field_type, StructType):
                parts.extend(reversed(part.field_type.fields))
            elif isinstance(part.field_type, PrimitiveType):
                found.setdefault(part.field_id, part)
        return found


def _selected(versions: Sequence[tuple[NestedField, ...]], wanted: frozenset[int]) -> list[NestedField]:
    """The fields whose ids are wanted, inside of the structs that they are in, of all versions of a struct."""
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


# -- keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """One more column of the keys.

    Attributes:
        values: the distinct values of the column.
        prefixes: the distinct pairs of a prefix (the columns before it) and a value, each as one number; None for the
            first column.
    """

    values: pa.Array
    prefixes: pa.Array | None


class KeySet:
    """A set of rows, each a key; tells which rows of another table are in it."""

    def __init__(self, keys: pa.Table) -> None:
        """``keys`` comes from :func:`comparable`."""
        self._steps: list[_Step] = []
        self._names = keys.column_names
        self.num_bytes = 0
        code: pa.Array | None = None
        for column in keys.itercolumns():
            array = column.combine_chunks()
            values = pc.unique(array)
            at = pc.index_in(array, values)
            prefixes = None
            if code is not None:
                pairs = _pairs(code, at, len(values))
                prefixes = pc.unique(pairs)
                at = pc.index_in(pairs, prefixes)
            code = at
            self._steps.append(_Step(values, prefixes))
            self.num_bytes += values.nbytes + (0 if prefixes is None else prefixes.nbytes)

    def holds(self, rows: pa.Table) -> pa.Array:
        """For each row of a table, from :func:`comparable`, too, whether it is a key."""
        code: pa.Array | None = None
        for step, column in zip(self._steps, rows.itercolumns(), strict=True):
            at = pc.index_in(column.combine_chunks(), step.values)  # null in `at`: no key has the value
            if code is not None:
                at = pc.index_in(_pairs(code, at, len(step.values)), step.prefixes, skip_nulls=True)
            code = at
        return pc.is_valid(code)

    @cached_property
    def near(self) -> Expression | None:
        """True for every row that may be a key; None where any row may be."""
        terms: list[Expression] = []
        for name, step in zip(self._names, self._steps, strict=True):
            if _is_comparable_with_literals(name, step.values.type):
                with suppress(ExpressionError):  # of a date that Python does not have, or of text that is no UTF-8
                    terms.append(_any_of(name, step.values))
        return And(tuple(terms)) if terms else None


def comparable(rows: pa.Table) -> pa.Table:
    """Columns whose values are equal where Iceberg's are: structs as their parts, floats as their bits.

    A column that keeps its values keeps its dotted path as name.
    """
    parts: list[tuple[str, pa.Array]] = []
    for name, column in zip(rows.column_names, rows.itercolumns(), strict=True):
        parts += _parts(name, column.combine_chunks())
    return pa.table([part for _, part in parts], names=[name for name, _ in parts])


def _parts(name: str, column: pa.Array) -> list[tuple[str, pa.Array]]:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _parts(f"{name}{_OTHER}", column.storage)
    if isinstance(kind, pa.StructType):  # a null struct is not a struct of nulls
        children = zip(kind, column.flatten(), strict=True)
        inner = [part for child, values in children for part in _parts(f"{name}.{child.name}", values)]
        return [(f"{name}{_OTHER}", pc.is_valid(column)), *inner]
    if pa.types.is_floating(kind):
        one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), column)
        return [(f"{name}{_OTHER}", one_nan.view(pa.int32() if kind.bit_width == 32 else pa.int64()))]
    return [(name, column)]


def _pairs(prefix: pa.Array, value: pa.Array, num_values: int) -> pa.Array:
    """A number for each pair of positions, neither above 2**31; null where one of them is."""
    return pc.add(pc.multiply(prefix.cast(pa.int64()), num_values), value.cast(pa.int64()))


def _is_comparable_with_literals(name: str, kind: pa.DataType) -> bool:
    types = pa.types
    return not name.endswith(_OTHER) and (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
        or types.is_date(kind)
        or types.is_decimal(kind)
        or types.is_timestamp(kind)
    )


def _any_of(name: str, values: pa.Array) -> Expression:
    given = values.drop_null()
    if len(given) <= _LISTED_KEYS:
        return col(name).is_in([*given, *([None] if values.null_count else [])])
    ends = pc.min_max(given)
    term: Expression = (col(name) >= ends["min"]) & (col(name) <= ends["max"])
    return term | col(name).is_null() if values.null_count else term


# -- deletes of a data file -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Delete files whose keys have the same columns.

    Attributes:
        field_ids: of the columns, ascending.
        urls: the delete files, ascending.
    """

    field_ids: tuple[int, ...]
    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EqualityDeletes:
    """Rows of a data file that equal a key of one of its delete files.

    Attributes:
        data_url: the data file.
        groups: the delete files, by their columns.
        columns: makes columns of field ids.
        constants: partition values of the data file that are a column's own, by field id as text.
    """

    data_url: str
    groups: tuple[KeyFiles, ...]
    columns: KeyColumns = field(compare=False, repr=False)
    constants: Mapping[str, Any] = field(compare=False, repr=False)

    @property
    def identity(self) -> Hashable:
        return ("iceberg equality deletes", self.data_url, self.groups)

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows.

        Raises:
            CorruptFileError: the delete files name columns that the table never had.
        """
        deleted = RowRanges.empty()
        for group in self.groups:
            fields = self.columns.of(group.field_ids)
            keys = await reader.once(("iceberg keys", self.columns, group), partial(_load_keys, reader, group, fields))
            deleted |= await self._matching(reader, fields, keys)
        return deleted

    async def _matching(self, reader: Reader, fields: tuple[TableField, ...], keys: KeySet) -> RowRanges:
        names = {part.name for part in fields}
        constants = {name: value for name, value in self.constants.items() if name in names}
        deleted: list[pa.Array] = []
        async for numbers, rows in reader.read_rows(self.data_url, fields, constants=constants, near=keys.near):
            deleted.append(await asyncio.to_thread(_deleted, numbers, rows, keys))
        return RowRanges.from_rows(number for numbers in deleted for number in numbers.to_pylist())


def _deleted(numbers: pa.Array, rows: pa.Table, keys: KeySet) -> pa.Array:
    return numbers.filter(keys.holds(comparable(rows)))


class _Distinct:
    """Distinct rows of tables that are added one by one."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._num_bytes = 0
        self._most_bytes = _MERGED_BYTES
        self._lock = asyncio.Lock()

    async def add(self, rows: pa.Table) -> None:
        """
        Raises:
            ResourceLimitError: they take more memory than may be held.
        """
        async with self._lock:
            self._tables.append(rows)
            self._num_bytes += rows.nbytes
            if self._num_bytes > self._most_bytes:
                distinct = await self.table()
                self._tables, self._num_bytes = [distinct], distinct.nbytes
                self._most_bytes = max(_MERGED_BYTES, 2 * distinct.nbytes)
                if distinct.nbytes > _KEY_BYTES:
                    raise ResourceLimitError(
                        f"the equality deletes of one file have keys of more than {_KEY_BYTES >> 20} MiB",
                        hint="Rewrite the table's data files (compaction), which applies the deletes.",
                    )

    async def table(self) -> pa.Table:
        whole = pa.concat_tables(self._tables)
        return await asyncio.to_thread(lambda: whole.group_by(whole.column_names, use_threads=False).aggregate([]))


async def _load_keys(reader: Reader, group: KeyFiles, fields: tuple[TableField, ...]) -> tuple[KeySet, int]:
    """The keys of some delete files, and their bytes in memory."""
    distinct = _Distinct()
    empty = pa.schema([pa.field(part.name, part.type) for part in fields]).empty_table()
    await distinct.add(comparable(empty))

    async def load(url: str) -> None:
        async for _, rows in reader.read_rows(url, fields):
            await distinct.add(await asyncio.to_thread(comparable, rows))

    await call_each(load, group.urls, at_once=_AT_ONCE)
    table = await distinct.table()
    keys = await asyncio.to_thread(KeySet, table)
    return keys, keys.num_bytes


# -- which delete files apply ---------------------------------------------------------------------


class EqualityIndex:
    """The equality delete files of a snapshot, by the data files that they apply to."""

    def __init__(
        self, columns: KeyColumns, specs: Mapping[int, PartitionSpec], doubtful: Collection[int] | None, table: str
    ) -> None:
        """
        Args:
            specs: partition specs by id.
            doubtful: ids of fields whose bounds do not count; None: bounds of no field do.
            table: names the table in errors.
        """
        self._columns = columns
        self._specs = specs
        self._doubtful = doubtful
        self._table = table
        self._everywhere: list[Entry] = []
        self._by_partition: dict[Hashable, list[Entry]] = defaultdict(list)
        self._bounds: dict[tuple[int, int], ColumnBounds] = {}

    def add(self, entry: Entry) -> None:
        """Take a delete file in."""
        spec = self._specs[entry.spec_id]
        if all(isinstance(part.transform, VoidTransform) for part in spec.fields):
            self._everywhere.append(entry)
        else:
            self._by_partition[entry.partition_key].append(entry)

    def of(self, data: Entry) -> EqualityDeletes | None:
        """What is deleted in a data file: by delete files that are newer, in its partition or in all, whose keys may
        be in the file by the bounds of both.

        Raises:
            UnsupportedFeatureError: such a delete file is not Parquet.
            CorruptFileError: it names columns that the table never had.
        """
        near = [*self._everywhere, *self._by_partition.get(data.partition_key, ())]
        applied = [entry for entry in near if entry.sequence_number > data.sequence_number and self._meets(entry, data)]
        if not applied:
            return None
        check_parquet(applied, self._table)
        urls: dict[tuple[int, ...], set[str]] = defaultdict(set)
        for entry in applied:
            field_ids = tuple(sorted(set(entry.equality_ids)))
            self._columns.of(field_ids)
            urls[field_ids].add(entry.url)
        groups = tuple(KeyFiles(field_ids, tuple(sorted(urls[field_ids]))) for field_ids in sorted(urls))
        return EqualityDeletes(data.url, groups, self._columns, self._constants(data))

    def _meets(self, delete: Entry, data: Entry) -> bool:
        """Whether keys of a delete file may be in a data file."""
        if self._doubtful is None:
            return True
        leaves, doubtful = self._columns.leaves, self._doubtful
        return all(
            _may_share(self._bounds_of(delete, leaves[field_id]), self._bounds_of(data, leaves[field_id]))
            for field_id in delete.equality_ids
            if field_id in leaves and field_id not in doubtful
        )

    def _bounds_of(self, entry: Entry, leaf: NestedField) -> ColumnBounds:
        key = (id(entry), leaf.field_id)
        if key not in self._bounds:
            self._bounds[key] = column_bounds(leaf, entry.file)
        return self._bounds[key]

    def _constants(self, data: Entry) -> dict[str, Any]:
        constants: dict[str, Any] = {}
        for at, part in enumerate(self._specs[data.spec_id].fields):
            leaf = self._columns.leaves.get(part.source_id)
            if leaf is not None and isinstance(part.transform, IdentityTransform) and data.partition[at] is not None:
                assert isinstance(leaf.field_type, PrimitiveType)
                constants[str(part.source_id)] = partition_value(leaf, data.partition[at], self._table, data.url)
        return constants


def check_parquet(entries: Iterable[Entry], table: str) -> None:
    """
    Raises:
        UnsupportedFeatureError: one of some delete files is not Parquet.
    """
    for entry in entries:
        if entry.format != "PARQUET":
            kind = "equality" if entry.content == EQUALITY_DELETES else "position"
            raise UnsupportedFeatureError(
                f"{table} has {kind} deletes in {printable(entry.format)}: only Parquet is read",
                url=safe_url(entry.url),
            )


def _may_share(delete: ColumnBounds, data: ColumnBounds) -> bool:
    """Whether two files may have a value of a column in common, null included."""
    if delete.null_count != 0 and data.null_count != 0:
        return True
    if delete.all_null or data.all_null:
        return False
    if delete.may_be_nan and data.may_be_nan:
        return True
    return not (_is_below(delete.max, data.min) or _is_below(data.max, delete.min))


def _is_below(high: Any, low: Any) -> bool:
    return high is not None and low is not None and bool(high < low)
