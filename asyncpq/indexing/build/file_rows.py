"""Read one file, and make its rows of each index table. Any process can do this step of a build.

A file with a column name that differs from the dataset's only in case is not indexed: asyncpq reads it as another
column, Spark by default as the same column, so no index row would be right for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.caching.entry_format import ContentKey
from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile, is_bad_file
from asyncpq.decoding.arrow import children_of
from asyncpq.decoding.field_types import field_types
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, FormatError, ObjectChangedError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.build.file_bounds import bounds_rows
from asyncpq.indexing.build.file_values import FROM_VALUES, value_rows
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.page_index_rows import pages_rows
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_shared, payload_table
from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexTable, file_key
from asyncpq.indexing.manifest.manifest import FILES
from asyncpq.objects.object_read import FileRead, ObjectRead
from asyncpq.objects.page_indexes import index_keys
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import FileVersion
from asyncpq.options import BuildOptions
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.records import dataclass
from asyncpq.storage.base import RequestContext, Validator

#: The shared entry contains the whole footer if that has at most so many bytes.
WHOLE_FOOTER_BYTES: Final = 16 * 1024
_FEW_CHUNKS: Final = 64
_MOST_KEPT: Final = 64  # schemas whose check is remembered
_FILES_TYPE: Final = pa.struct(list(FILES.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """One file's rows of the index tables, or the reason why the file could not be read."""

    work: FileTask
    # Rows of each index table; if the file has a `problem`, only of "files". Rows are sorted, except for postings:
    # those with one key per row may be in row order, and those of a large file are sorted runs in a local file.
    tables: Mapping[IndexTable, pa.Table]
    num_rows: int | None = None  # number of rows in the file; None with a problem
    validator: Validator | None = None  # identifies the version that was read; None if none was read
    problem: AsyncpqError | None = None  # the error with which reading failed; None if the file was read
    gone: bool = False  # whether the file does not exist any more


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """The columns and index tables for which a build reads each file, and the build's options."""

    schema: pa.Schema  # the dataset's columns; for these and `fields` see asyncpq.datasets.opened_file.DatasetColumns
    fields: tuple[TableField, ...] | None
    tables: tuple[IndexTable, ...]
    tail_hint: str  # cache key that is shared by files with footers of similar sizes
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
        result contains the error; other errors, such as StoreError, are raised. ``operation`` counts the cost of
        this file."""
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
            opened.share_types(frozenset())
            view = view_of(version, schema, self._wanted.fields, opened.file.partition)
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
        return await OpenedFile.open(runtime, 0, file, operation, tail_hint=tail_hint, scan=True, once=True)


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
