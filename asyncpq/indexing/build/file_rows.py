"""Read one file, and make its rows of each index table. Any process can do this step of a build.

A file with a column name that differs from the dataset's only in case is not indexed: asyncpq reads it as another
column, Spark by default as the same column, so no index row would be right for both.

The rows of "bounds", key intervals of a file and its row groups, come from the statistics in the footer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from asyncpq.caching.entry_format import ContentKey
from asyncpq.datasets.file_statistics import kind_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile, is_bad_file
from asyncpq.decoding.arrow import children_of, constant_array
from asyncpq.decoding.casts import Match
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, FormatError, ObjectChangedError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.expressions.analysis import successor
from asyncpq.indexing.build.file_values import FROM_VALUES, WHOLE_FILE, value_rows
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.page_index_rows import least_and_greatest, pages_rows
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_shared, payload_table
from asyncpq.indexing.index_model import (
    AFTER_ALL,
    NAN_KEY,
    NULL_KEY,
    TABLE_SCHEMAS,
    UNKNOWN_KEY,
    VALUE_TAG,
    IndexTable,
    file_key,
)
from asyncpq.indexing.key_encoding import (
    HASH_BYTES,
    PREFIX_BYTES,
    bound_keys,
    float_key,
    integer_key,
    is_variable,
    width_of,
)
from asyncpq.indexing.manifest import FILES
from asyncpq.objects.object_read import FileRead, ObjectRead
from asyncpq.objects.page_indexes import index_keys
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import FileVersion
from asyncpq.options import BuildOptions
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ChunkBounds
from asyncpq.pruning.literals import Domain, ValueKind, kind_of_leaf
from asyncpq.records import dataclass
from asyncpq.storage.base import RequestContext, Validator

#: The shared entry contains the whole footer if that has at most so many bytes.
WHOLE_FOOTER_BYTES: Final = 16 * 1024
_FEW_CHUNKS: Final = 64
_MOST_KEPT: Final = 64  # schemas whose check is remembered
_FILES_TYPE: Final = pa.struct(list(FILES.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """One file's rows of the index tables, or the reason why the file could not be read.

    Attributes:
        num_rows: number of rows in the file; None with a problem.
        validator: identifies the version that was read; None if none was read.
        problem: the error with which reading failed; None if the file was read.
        gone: whether the file does not exist any more.
    """

    work: FileTask
    # Rows of each index table; if the file has a `problem`, only of "files". Rows are sorted, except for postings:
    # those with one key per row may be in row order, and those of a large file are sorted runs in a local file.
    tables: Mapping[IndexTable, pa.Table]
    num_rows: int | None = None
    validator: Validator | None = None
    problem: AsyncpqError | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """The columns and index tables for which a build reads each file, and the build's options.

    Attributes:
        schema: the dataset's columns; for these and ``fields`` see asyncpq.datasets.opened_file.DatasetColumns.
        tail_hint: cache key that is shared by files with footers of similar sizes.
    """

    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    tables: tuple[IndexTable, ...]
    tail_hint: str
    options: BuildOptions  # limit the memory for a file's rows, and set the folder for rows that exceed the limit

    @property
    def by_value(self) -> list[IndexTable]:
        """The tables whose rows need a file's values, so that data pages are read, not only footers."""
        return [index_table for index_table in self.tables if index_table.kind in FROM_VALUES]


#: Returns a context manager that waits for so many bytes of memory, and reserves them during the block.
Room = Callable[[int], AbstractAsyncContextManager[None]]


class FileCollector:
    """Reads files of a build, and makes their rows of the index tables.

    ``room`` is called with the number of bytes that a file's rows may take, and returns a context manager that reserves
    that memory.
    """

    def __init__(self, runtime: Runtime, wanted: IndexSpec, room: Room = lambda num_bytes: nullcontext()) -> None:
        self._runtime = runtime
        self._wanted = wanted
        self._room = room
        self._columns = DatasetColumns(wanted.schema, wanted.fields, object())  # files share views of it by its token
        self._names = CaseConflicts(wanted.schema)

    async def collect(self, work: FileTask, operation: Operation) -> FileRows:
        """Read one version of a file, and return its index rows. If the file is bad (damaged or unsupported), the
        result contains the error; other errors, such as StoreError, are raised. ``operation`` counts the cost."""
        file, restarts = replace(work.file, deletes=None, bounds={}), 0
        while True:
            try:
                return await self._collect(replace(work, file=file), operation)
            except ObjectNotFoundError:
                return FileRows(work=work, tables={}, gone=True)
            except ObjectChangedError as error:
                restarts += 1
                if restarts > self._runtime.options.limits.max_restarts:
                    return _problem(work, error, None)
                operation.restarts()
            except AsyncpqError as error:
                if not is_bad_file(error):
                    raise
                # with a validator the file is not read again: right for damaged bytes, but permissions may change
                return _problem(work, error, work.file.validator if isinstance(error, FormatError) else None)

    async def _collect(self, work: FileTask, operation: Operation) -> FileRows:
        wanted = self._wanted
        opened = await _open(self._runtime, work.file, wanted.tail_hint, operation)
        try:
            await self._runtime.turns.turn()
            validator, metadata = opened.version.validator, opened.version.metadata
            if not opened.is_identified:  # a later version may have the same time
                validator = Validator(validator.size)
            other_case = None if wanted.fields is not None else self._names.check(opened)
            if other_case is not None:
                return _problem(work, other_case, validator)
            try:
                async with self._room(metadata.num_rows * 64 * len(wanted.by_value)):
                    tables = await self._tables(opened, work.id)
            except ObjectChangedError:
                await opened.changed()
                raise
            except AsyncpqError as error:
                if not is_bad_file(error):
                    raise
                return _problem(work, error, validator)
            row_groups = [group.num_rows for group in metadata.row_groups]
            tables[FILES] = _files_row(work, validator, metadata.num_rows, row_groups, None)
            return FileRows(work=work, tables=tables, num_rows=metadata.num_rows, validator=validator)
        finally:
            opened.source.forget_content(opened.version)
            await opened.close()

    async def _tables(self, opened: OpenedFile, file: int) -> dict[IndexTable, pa.Table]:
        version, metrics, wanted = opened.version, opened.operation.metrics, self._wanted
        read = ObjectRead(opened.source, version, metrics, scan=True, probation=True)
        tables: dict[IndexTable, pa.Table] = {}
        bounded: list[IndexTable] = []
        for index_table in wanted.tables:
            if index_table.kind == "footers":
                tables[index_table] = await footer_rows(read, file)
            elif index_table.kind == "pages":
                tables[index_table] = await pages_rows(read, file)
            elif index_table.kind == "bounds":
                bounded.append(index_table)
        if bounded:
            work = partial(self._bounds, opened, file, bounded)
            small = len(bounded) == 1 and is_small(version)
            tables.update(await self._runtime.in_thread(work, small=small))
        if wanted.by_value:
            columns, options = self._columns, wanted.options
            tables.update(await value_rows(self._runtime, opened, file, wanted.by_value, columns, options))
        return tables

    def _bounds(self, opened: OpenedFile, file: int, index_tables: Sequence[IndexTable]) -> dict[IndexTable, pa.Table]:
        version, schema = opened.version, self._wanted.schema
        try:
            view = opened.view(self._columns)
        except AsyncpqError:
            view = None  # each table marks the file as unknown
        return {
            index_table: bounds_rows(version, file, index_table.columns[0], schema, view)
            for index_table in index_tables
        }


async def version_of(runtime: Runtime, file: DataFile, tail_hint: str, operation: Operation) -> Validator | None:
    """Ask the store for the current version of a file, and return its validator; None if the file is damaged,
    unsupported or does not exist. ``tail_hint``: cache key that is shared by files with footers of similar sizes."""
    try:
        opened = await _open(runtime, file, tail_hint, operation)
        try:
            async with runtime.deadline(operation.url):
                context = RequestContext(operation.metrics, round=operation.metrics.rounds + 1)
                return (await opened.source.present(opened.version, context)).validator
        finally:
            await opened.close()
    except AsyncpqError as error:
        if not is_bad_file(error):
            raise
        return None


async def _open(runtime: Runtime, file: DataFile, tail_hint: str, operation: Operation) -> OpenedFile:
    async with runtime.deadline(operation.url):
        return await OpenedFile.open(runtime, file, operation, tail_hint=tail_hint, scan=True, once=True)


def _problem(work: FileTask, error: AsyncpqError, validator: Validator | None) -> FileRows:
    row = _files_row(work, validator or Validator(work.file.size or 0), None, None, f"{type(error).__name__}: {error}")
    return FileRows(work=work, tables={FILES: row}, validator=validator, problem=error)


def _files_row(
    work: FileTask, validator: Validator, num_rows: int | None, row_groups: list[int] | None, problem: str | None
) -> pa.Table:
    row: dict[str, Any] = {
        "key": file_key(work.id),
        "path": work.path,
        "size": validator.size,
        "etag": validator.etag,
        "last_modified": validator.last_modified,
        "version": validator.version,
        "num_rows": num_rows,
        "row_groups": row_groups,
        "problem": problem,
    }
    # Table.from_pylist is ten times as slow, one array for each column three times
    batch = pa.RecordBatch.from_struct_array(pa.array([row], _FILES_TYPE))
    return pa.Table.from_arrays(batch.columns, schema=TABLE_SCHEMAS["files"])


async def footer_rows(read: FileRead, file: int) -> pa.Table:
    """Return one file's rows of the index table "footers", sorted. The file's page indexes are fetched with coalesced
    GETs. A file with encryption has no rows, since its content must not be stored in plain text.
    """
    version = read.version
    if version.decryption is not None:
        return payload_table("footers", [])
    small, in_thread = is_small(version), read.source.runtime.in_thread
    keys = await in_thread(partial(_all_index_keys, version), small=small)
    wanted = list(dict.fromkeys(key for leaf_keys in keys.values() for key in leaf_keys))
    data = (await read.fetch(wanted, "index", read.metrics.rounds + 1)).data if wanted else {}
    return await in_thread(partial(_footer_table, version, file, keys, data), small=small)


def is_small(version: FileVersion) -> bool:
    """Return whether a footer has few enough column chunks to be processed on the event loop; some have 100,000."""
    metadata = version.metadata
    return len(metadata.row_groups) * len(metadata.schema.leaves) <= _FEW_CHUNKS


def _footer_table(
    version: FileVersion, file: int, keys: Mapping[int, Sequence[ContentKey]], data: Mapping[ContentKey, bytes]
) -> pa.Table:
    metadata = version.metadata
    whole = len(metadata.data) <= WHOLE_FOOTER_BYTES
    pieces = [metadata.data] if whole else shared_pieces(metadata)
    shared = SharedEntry(version.footer_start, version.size, 0 if whole else len(keys), pieces)
    rows = [(key := file_key(file, SHARED), encode_shared(key, shared))]
    for leaf, leaf_keys in keys.items():
        spans = [(part.start, data[part]) for part in leaf_keys]
        if spans or not whole:
            chunks = [] if whole else leaf_pieces(metadata, leaf)
            rows.append((key := file_key(file, leaf), encode_leaf(key, LeafEntry(chunks, spans))))
    return payload_table("footers", rows)


def _all_index_keys(version: FileVersion) -> dict[int, list[ContentKey]]:
    """Return, for each leaf ordinal, the cache keys of the page indexes that reads use."""
    keys: dict[int, list[ContentKey]] = {leaf.index: [] for leaf in version.metadata.schema.leaves}
    for leaf, leaf_keys in keys.items():
        for group in version.metadata.row_groups:
            try:
                places = group.index_places(leaf)
            except FormatError:  # a read of the column raises it
                continue
            offsets, bounds = index_keys(version, places, leaf)
            if offsets is not None:
                leaf_keys += [offsets] if bounds is None else [bounds, offsets]
    return keys


class CaseConflicts:
    """Finds columns of files that differ from those of ``schema`` only in case; checks equal schemas once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known: LRUCache[Hashable, str | None] = LRUCache(_MOST_KEPT)

    def check(self, opened: OpenedFile) -> AmbiguousColumnError | None:
        """Return an error if a column name of the file differs from the dataset's only in case; else None."""
        partitions = opened.file.partition.keys()
        key = (*opened.schema_bytes, *sorted(partitions))
        if key not in self._known:
            self._known[key] = self._find(opened, partitions)
        name = self._known[key]
        if name is None:
            return None
        return AmbiguousColumnError(
            "the file's column differs from the dataset's only in case: Spark takes both for the same column, so the"
            " file is not indexed",
            url=opened.version.url,
            column=name,
            hint="Rewrite the file with the dataset's column names.",
        )

    def _find(self, opened: OpenedFile, partitions: Collection[str]) -> str | None:
        opened.share_types(frozenset())
        fields = opened.version.metadata.schema.fields
        name = _other_case(self._schema.names, [field.name for field in fields], partitions)
        if name is not None:
            return name
        for field in fields:
            ordinal = self._schema.get_field_index(field.name)
            if ordinal < 0 or not pa.types.is_nested(self._schema.field(ordinal).type):
                continue
            try:
                (own,) = field_types(opened.version, [field.index], frozenset())
            except AsyncpqError:  # a read of the column raises it
                continue
            inner = _inside(self._schema.field(ordinal).type, own.arrow.type)
            if inner is not None:
                return f"{field.name}.{inner}"
        return None


def _inside(known: pa.DataType, own: pa.DataType) -> str | None:
    if isinstance(known, pa.StructType) and isinstance(own, pa.StructType):
        name = _other_case([field.name for field in known], [field.name for field in own], ())
        if name is not None:
            return name
        shared = [field for field in known if own.get_field_index(field.name) >= 0]
        pairs = [(field.name, field.type, own.field(field.name).type) for field in shared]
    elif isinstance(known, pa.MapType) is isinstance(own, pa.MapType):
        both = zip(children_of(known), children_of(own), strict=False)  # no pairs if the types differ in shape
        pairs = [(field.name, field.type, other.type) for field, other in both]
    else:
        return None
    for name, known_type, own_type in pairs:
        inner = _inside(known_type, own_type)
        if inner is not None:
            return f"{name}.{inner}"
    return None


def _other_case(known: Iterable[str], own: Iterable[str], skip: Collection[str]) -> str | None:
    exact = {*known}
    lower = {name.lower() for name in exact if name not in skip}
    return next((name for name in own if name not in exact and name.lower() in lower), None)


_LEAST: Final = VALUE_TAG  # below or equal to all keys of values
_GREATEST: Final = VALUE_TAG + b"\xff" * (PREFIX_BYTES + HASH_BYTES)  # above all of them
_HIGHEST: Final = b"\xff" * HASH_BYTES
_SINGLE: Final = struct.Struct("<f")
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MILLISECONDS_OF_A_DAY: Final = 86_400_000


class ZoneBounds(NamedTuple):
    """Bounds and counts of a column's values in one zone: a row group, or the whole file."""

    low: bytes  # a key that is at most the key of any value; empty if there is no value
    high: bytes  # a key that is at least the key of any value; empty if there is no value
    values: int | None  # number of values that are neither null nor NaN; None if unknown
    nulls: int | None  # None if unknown
    nans: int | None  # None if unknown

    def __or__(self, other: ZoneBounds) -> ZoneBounds:
        """Return bounds and counts that hold for the values of both zones together; unknown counts are None."""
        lows = [low for low in (self.low, other.low) if low]
        counts = [
            None if own is None or further is None else own + further
            for own, further in zip(self[2:], other[2:], strict=True)
        ]
        return ZoneBounds(min(lows, default=b""), max(self.high, other.high), *counts)


NOTHING: Final = ZoneBounds(b"", b"", 0, 0, 0)


def bounds_rows(version: FileVersion, file: int, name: str, schema: pa.Schema, view: SchemaAdapter | None) -> pa.Table:
    """Return one file's rows of a "bounds" table over one column, sorted; an empty table for a file without rows.

    ``file`` is the file's id. ``name`` is a column of the dataset with ``schema``, or the dotted path of a leaf in
    structs. ``view`` maps the file to the dataset's columns. If it is None, the rows say that the file is unknown.
    """
    try:
        zones = None if view is None else _zones(version, name, view, schema)
    except (AsyncpqError, pa.ArrowException, OverflowError):  # a read of the column raises it
        zones = None
    if zones is not None:
        return zone_rows(file, zones)
    groups = [group.ordinal for group in version.metadata.row_groups if group.num_rows]
    unknown = [WHOLE_FILE, *groups] if groups else []
    return _table([(UNKNOWN_KEY, AFTER_ALL, file, zone, None) for zone in unknown])


def zone_rows(file: int, zones: Mapping[int, ZoneBounds]) -> pa.Table:
    """Return the "bounds" rows of a file and its row groups; ``zones`` is keyed by row group ordinal."""
    rows: list[tuple[bytes, bytes, int, int, int | None]] = []
    whole = NOTHING
    for zone in zones.values():
        whole |= zone
    for number, zone in {WHOLE_FILE: whole, **zones}.items():
        if zone.low and zone.values != 0:
            rows.append((zone.low, zone.high, file, number, zone.values))
        if zone.nulls != 0:
            rows.append((NULL_KEY, NULL_KEY, file, number, zone.nulls))
        if zone.nans != 0:
            rows.append((NAN_KEY, NAN_KEY, file, number, zone.nans))
    return _table(sorted(rows, key=lambda row: (row[0], row[3])))


def _table(rows: Sequence[tuple[bytes, bytes, int, int, int | None]]) -> pa.Table:
    schema = TABLE_SCHEMAS["bounds"]
    columns = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def bounds_of(array: pa.Array, type_: pa.DataType) -> ZoneBounds:
    """Return the bounds and counts of the values of ``array``; the bounds are index keys of the dataset's type
    ``type_``."""
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    nulls = array.null_count
    values = array.drop_null()
    nans = 0
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        nans = is_nan.true_count
        values = values.filter(pc.invert(is_nan)) if nans else values
    if not len(values):
        return ZoneBounds(b"", b"", 0, nulls, nans)
    least, greatest = (pa.array([value], value.type) for value in least_and_greatest(values))
    low, high = bound_keys(least, type_, upper=False), bound_keys(greatest, type_, upper=True)
    return ZoneBounds(low[0].as_py(), high[0].as_py(), len(values), nulls, nans)


def _zones(version: FileVersion, name: str, view: SchemaAdapter, schema: pa.Schema) -> dict[int, ZoneBounds] | None:
    """Return the bounds of column ``name`` in each row group that has rows, by ordinal; None if the file's values do
    not compare in the same way as the dataset's."""
    ((ordinal, (path,)),) = view.ordinals([name]).items()
    top = schema.field(ordinal)
    groups = {group.ordinal: group.num_rows for group in version.metadata.row_groups if group.num_rows}
    if top.name in view.constants:
        if path:
            return None
        row = bounds_of(constant_array(view.constants[top.name], 1), top.type)
        return {
            group: ZoneBounds(row.low, row.high, *(num_rows if count else 0 for count in row[2:]))
            for group, num_rows in groups.items()
        }
    (match,) = view.match(version, [ordinal])
    leaf_match = _descend(match, path)
    if leaf_match is None:
        return None
    source = leaf_match.source
    if source is None:
        is_null = leaf_match.default is None or not leaf_match.default.is_valid
        return {group: NOTHING._replace(nulls=rows) for group, rows in groups.items()} if is_null else None
    if source.instant or source.leaf_stop != source.first_leaf + 1:
        return None
    leaf = version.metadata.schema.leaves[source.first_leaf]
    return None if leaf.max_repetition_level else _by_statistics(version, leaf, leaf_match.field.type)


def _descend(match: Match, path: str) -> Match | None:
    """Follow ``path`` (names joined by dots) into the structs of a matched column, and return the match of that
    leaf. None if the file does not match there, or no leaf has the path."""
    while path:
        names = [
            child for child in match.children if path == child.field.name or path.startswith(child.field.name + ".")
        ]
        if len(names) != 1 or match.source is None:
            return None
        (match,) = names
        path = path[len(match.field.name) + 1 :]
    return None if match.children else match


def _by_statistics(version: FileVersion, leaf: Leaf, type_: pa.DataType) -> dict[int, ZoneBounds] | None:
    metadata = version.metadata
    own = kind_of_leaf(leaf, metadata.order_of(leaf))
    factor = _factor(own, kind_of(type_))
    if factor is None:
        return None
    bounds_of = metadata.bounds_of(leaf)
    statistics: dict[int, ChunkBounds] = {}
    for group in metadata.row_groups:
        if group.num_rows:
            bounds, _ = bounds_of(group.parse_chunk(leaf.index), group.num_rows)
            if bounds.null_count is None and leaf.max_definition_level == 0:
                bounds = replace(bounds, null_count=0)
            statistics[group.ordinal] = bounds
    return _zones_of(statistics, own, type_, factor)


def _factor(own: ValueKind, wanted: ValueKind) -> int | None:
    """Return the factor by which the file's statistics, of kind ``own``, are multiplied to get values of the
    dataset's kind, ``wanted``, such as 1000 from seconds to milliseconds; None if the two kinds of values do not
    compare in the same way."""
    same = own.domain is wanted.domain
    if same and own.domain is Domain.DECIMAL:
        return 10 ** (wanted.scale - own.scale) if wanted.scale >= own.scale else None
    if same and own.domain in (Domain.TIME, Domain.TIMESTAMP):
        factor, rest = divmod(_UNITS[wanted.unit], _UNITS[own.unit])
        return None if rest else factor
    if same and own.domain not in (Domain.OTHER, Domain.FLOAT16):
        return 1
    if own.domain is Domain.INTEGER and wanted.domain is Domain.DECIMAL:
        return int(10**wanted.scale)
    floats = (Domain.FLOAT, Domain.FLOAT32)
    return 1 if own.domain in (Domain.INTEGER, Domain.FLOAT32) and wanted.domain in floats else None


def _zones_of(
    statistics: Mapping[int, ChunkBounds], own: ValueKind, type_: pa.DataType, factor: int
) -> dict[int, ZoneBounds]:
    zones: dict[int, ZoneBounds] = {}
    bounded: dict[int, tuple[Any, Any]] = {}
    for group, chunk in statistics.items():
        nulls, nans = chunk.null_count, chunk.nan_count if own.has_nan else 0
        values = None if nulls is None or nans is None else chunk.num_values - nulls - nans
        zones[group] = ZoneBounds(_LEAST, _GREATEST, values, nulls, nans)
        if values == 0 or chunk.all_null:
            zones[group] = ZoneBounds(b"", b"", 0, nulls, 0 if chunk.all_null else nans)
        elif chunk.min is not None and chunk.max is not None:
            most: Any = chunk.max
            if own.is_bytes and not chunk.max_exact:
                most = successor(most) if most else most  # an empty value is not truncated
            bounded[group] = chunk.min, most
    if not bounded:
        return zones
    least = [low for low, _ in bounded.values()]
    most = [least[0] if high is None else high for _, high in bounded.values()]
    lows, highs = _keys(least, factor, type_, upper=False), _keys(most, factor, type_, upper=True)
    for (group, (_, limit)), low, high in zip(bounded.items(), lows, highs, strict=True):
        zones[group] = zones[group]._replace(low=low, high=_GREATEST if limit is None else high)
    return zones


def _keys(values: Sequence[Any], factor: int, type_: pa.DataType, *, upper: bool) -> list[bytes]:
    """Return the keys for bounds from statistics, multiplied by ``factor``, as :func:`bound_keys` does, but faster
    for few bounds. Raises OverflowError for a value that does not fit the type."""
    kind = storage_type(type_)
    if is_variable(kind):  # a truncated string may be invalid UTF-8
        rest = _HIGHEST if upper else b""
        return [VALUE_TAG + value[:PREFIX_BYTES] + (rest if len(value) > PREFIX_BYTES else b"") for value in values]
    if pa.types.is_floating(kind):
        floats = [float(value) for value in values]
        if kind.bit_width == 32:
            floats = [_SINGLE.unpack(_SINGLE.pack(value))[0] for value in floats]
        return [float_key(value) for value in floats]
    if pa.types.is_boolean(kind):
        return [integer_key(value, 1, signed=False) for value in values]
    unit = _MILLISECONDS_OF_A_DAY if pa.types.is_date64(kind) else 1  # keys of dates count days
    signed = not pa.types.is_unsigned_integer(kind)
    high = 10**kind.precision if pa.types.is_decimal(kind) else 1 << kind.bit_width - signed
    low = 1 - high if pa.types.is_decimal(kind) else -high if signed else 0
    width = width_of(kind) or 8
    numbers = [value * factor for value in values]
    if any(not low <= number * unit < high for number in numbers):
        raise OverflowError(f"a bound in the file's statistics is out of the range of the dataset's type {type_}")
    return [integer_key(number, width, signed=signed or kind.bit_width < 64) for number in numbers]
