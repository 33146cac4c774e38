"""Read one file, and make its rows of each index table. Any process can do this step of a build.

Files with a column that differs from the dataset's only in case are left unknown: asyncpq takes it for another column,
Spark by default for the same one, so no row could be right for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from asyncpq.caching.entry import ContentKey
from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile, is_bad_file
from asyncpq.decoding.arrow import children_of
from asyncpq.decoding.field_types import field_types
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, FormatError, ObjectChangedError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.build.file_bounds import bounds_rows
from asyncpq.indexing.build.file_values import FROM_VALUES, value_rows
from asyncpq.indexing.build.page_index_rows import pages_rows
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_shared, payload_table
from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexTable, file_key
from asyncpq.indexing.manifest.manifest import FILES
from asyncpq.objects.page_indexes import index_keys
from asyncpq.objects.parts import fetch_parts
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.options import BuildOptions
from asyncpq.parquet.footer import leaf_pieces, shared_pieces
from asyncpq.storage.base import RequestContext, Validator

#: A footer of at most so many bytes stands whole in the shared entry.
WHOLE_FOOTER_BYTES: Final = 16 * 1024
_FEW_CHUNKS: Final = 64


async def footer_rows(source: ObjectSource, version: FileVersion, file: int, context: RequestContext) -> pa.Table:
    """Return the rows of "footers" for one file, sorted. Its page indexes are fetched with coalesced GETs.

    Returns:
        No row for a file with an encrypted footer: its content must not be stored in clear.

    Raises:
        StoreError, ObjectChangedError: the store failed, or has another version.
    """
    if version.decryption is not None:
        return payload_table("footers", [])
    small = is_small(version)
    in_thread = source.runtime.in_thread
    keys = await in_thread(partial(_all_index_keys, version), small=small)
    wanted = list(dict.fromkeys(key for some in keys.values() for key in some))
    data = (await fetch_parts(source, version, wanted, context.step("index", context.round))).data if wanted else {}
    return await in_thread(partial(_rows, version, file, keys, data), small=small)


def is_small(version: FileVersion) -> bool:
    """Whether a footer is small enough to be processed in the event loop; some have 100,000 column chunks."""
    metadata = version.metadata
    return len(metadata.row_groups) * len(metadata.schema.leaves) <= _FEW_CHUNKS


def _rows(
    version: FileVersion, file: int, keys: Mapping[int, Sequence[ContentKey]], data: Mapping[ContentKey, bytes]
) -> pa.Table:
    metadata = version.metadata
    whole = len(metadata.data) <= WHOLE_FOOTER_BYTES
    pieces = [metadata.data] if whole else shared_pieces(metadata)
    shared = SharedEntry(version.footer_start, version.size, 0 if whole else len(keys), pieces)
    rows = [(key := file_key(file, SHARED), encode_shared(key, shared))]
    for leaf, some in keys.items():
        spans = [(part.start, data[part]) for part in some]
        if spans or not whole:
            chunks = [] if whole else leaf_pieces(metadata, leaf)
            rows.append((key := file_key(file, leaf), encode_leaf(key, LeafEntry(chunks, spans))))
    return payload_table("footers", rows)


def _all_index_keys(version: FileVersion) -> dict[int, list[ContentKey]]:
    return {leaf.index: _index_keys(version, leaf.index) for leaf in version.metadata.schema.leaves}


def _index_keys(version: FileVersion, leaf: int) -> list[ContentKey]:
    """Return the keys of the leaf's page indexes that reads use."""
    keys: list[ContentKey] = []
    for group in version.metadata.row_groups:
        try:
            backends = group.index_places(leaf)
        except FormatError:  # a read of the column raises it
            continue
        offsets, bounds = index_keys(version, backends, leaf)
        if offsets is not None:
            keys += [offsets] if bounds is None else [bounds, offsets]
    return keys


_MOST_KEPT: Final = 64
_NONE: Final[frozenset[str]] = frozenset()


class CaseConflicts:
    """Finds columns of files that differ from the dataset's only in case. Files with equal schemas are checked once.

    Args:
        schema: the dataset's.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known: dict[tuple[object, ...], str | None] = {}

    def check(self, opened: OpenedFile) -> AmbiguousColumnError | None:
        """Return the error if the file has such a column; else None."""
        partitions = opened.file.partition.keys()
        key = (*opened.schema_bytes, *sorted(partitions))
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._find(opened, partitions)
        name = self._known[key]
        if name is None:
            return None
        return AmbiguousColumnError(
            "the dataset has the column in another case: Spark takes both for the same column, so the file is not"
            " indexed",
            url=opened.version.url,
            column=name,
            hint="Rewrite the file with the dataset's names.",
        )

    def _find(self, opened: OpenedFile, partitions: Collection[str]) -> str | None:
        opened.share_types(_NONE)
        fields = opened.version.metadata.schema.fields
        names = [field.name for field in fields]
        found = _other_case(self._schema.names, names, partitions)
        if found is not None:
            return found
        for field in fields:
            at = self._schema.get_field_index(field.name)
            if at < 0 or not pa.types.is_nested(self._schema.field(at).type):
                continue
            try:
                (own,) = field_types(opened.version, [field.index], _NONE)
            except AsyncpqError:  # a read of the column raises it
                continue
            inner = _inside(self._schema.field(at).type, own.arrow.type)
            if inner is not None:
                return f"{field.name}.{inner}"
        return None


def _inside(known: pa.DataType, own: pa.DataType) -> str | None:
    if isinstance(known, pa.StructType) and isinstance(own, pa.StructType):
        found = _other_case([one.name for one in known], [one.name for one in own], ())
        if found is not None:
            return found
        pairs = [(one.name, one.type, own.field(one.name).type) for one in known if own.get_field_index(one.name) >= 0]
    elif isinstance(known, pa.MapType) is isinstance(own, pa.MapType):
        both = zip(children_of(known), children_of(own), strict=False)  # no pairs if the types differ in shape
        pairs = [(one.name, one.type, other.type) for one, other in both]
    else:
        return None
    for name, here, there in pairs:
        inner = _inside(here, there)
        if inner is not None:
            return f"{name}.{inner}"
    return None


def _other_case(known: Iterable[str], own: Iterable[str], skip: Collection[str]) -> str | None:
    exact = {*known}
    lower = {name.lower() for name in exact if name not in skip}
    return next((name for name in own if name not in exact and name.lower() in lower), None)


_FILES_TYPE: Final = pa.struct(list(FILES.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file to be read. Can be pickled if the DataFile can.

    Attributes:
        id: for the version that will be read.
        path: in the index.
        file: its location; deleted rows are indexed too.
    """

    id: int
    path: str
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of one file.

    Attributes:
        work: the file.
        tables: rows of each index table; of a file with a ``problem`` only those of "files". They are sorted, except
            for postings: those with one key per row may stand in row order, and those of a large file are sorted runs
            in a local file.
        num_rows: of the file; None with a problem.
        validator: of the version; None if it was not read.
        problem: why the file could not be read.
        gone: there is no such file.
    """

    work: FileTask
    tables: Mapping[IndexTable, pa.Table]
    num_rows: int | None = None
    validator: Validator | None = None
    problem: AsyncpqError | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """What a build reads of each file.

    Attributes:
        schema, fields: the dataset's columns (see :class:`asyncpq.datasets.opened_file.DatasetColumns`).
        tables: the index tables.
        tail_hint: key of files with similar footers, for tail-size hints.
        options: bound the memory for a file's rows, and set the folder for the rest.
    """

    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    tables: tuple[IndexTable, ...]
    tail_hint: str
    options: BuildOptions

    @property
    def reads_values(self) -> bool:
        """Whether data pages are read, not only footers."""
        return any(index_table.kind in FROM_VALUES for index_table in self.tables)

    def columns(self) -> DatasetColumns:
        """Return the columns for :class:`OpenedFile`. Share one in a process: views are cached by it."""
        return DatasetColumns(self.schema, self.fields, object())

    def names(self) -> CaseConflicts:
        """Return the check of names. Share one in a process."""
        return CaseConflicts(self.schema)


#: Reserves bytes of memory for a file.
Room = Callable[[int], AbstractAsyncContextManager[None]]


async def collect_file(
    runtime: Runtime,
    work: FileTask,
    wanted: IndexSpec,
    columns: DatasetColumns,
    names: CaseConflicts,
    operation: Operation,
    room: Room,
) -> FileRows:
    """Read one version of a file, and make its rows of the index tables.

    Args:
        columns, names: ``wanted.columns()`` and ``wanted.names()``.
        operation: the file's part of the build.
        room: waits for memory, given the bytes that the rows may take.

    Raises:
        StoreError: the store failed. Errors of the file are in the result.
    """
    file, restarts = replace(work.file, deletes=None, bounds={}), 0
    while True:
        try:
            return await _collect(runtime, replace(work, file=file), wanted, columns, names, operation, room)
        except ObjectNotFoundError:
            return FileRows(work=work, tables={}, gone=True)
        except ObjectChangedError as error:
            restarts += 1
            if restarts > runtime.options.limits.max_restarts:
                return _problem(work, error, None)
            operation.restarts()
        except AsyncpqError as error:
            if not is_bad_file(error):
                raise
            # damaged bytes stay damaged, but permissions may change
            return _problem(work, error, work.file.validator if isinstance(error, FormatError) else None)


async def version_of(runtime: Runtime, file: DataFile, tail_hint: str, operation: Operation) -> Validator | None:
    """Return the current version of a file, by its store; None if that is unknown, or there is no such file.

    Raises:
        StoreError: the store failed.
    """
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
        return await OpenedFile.open(
            runtime,
            0,
            file,
            operation,
            tail_hint=tail_hint,
            listed_at=None,
            listed_now=False,
            scan=True,
            once=True,
        )


async def _collect(
    runtime: Runtime,
    work: FileTask,
    wanted: IndexSpec,
    columns: DatasetColumns,
    names: CaseConflicts,
    operation: Operation,
    room: Room,
) -> FileRows:
    opened = await _open(runtime, work.file, wanted.tail_hint, operation)
    try:
        validator = opened.version.validator
        num_rows = opened.version.metadata.num_rows
        other_case = None if wanted.fields is not None else names.check(opened)
        if other_case is not None:
            return _problem(work, other_case, validator)
        try:
            async with room(_weight(num_rows, wanted)):
                tables = await _tables(runtime, opened, work.id, wanted, columns)
        except ObjectChangedError:
            await opened.changed()
            raise
        except AsyncpqError as error:
            if not is_bad_file(error):
                raise
            return _problem(work, error, validator)
        row_groups = [group.num_rows for group in opened.version.metadata.row_groups]
        tables[FILES] = _files_row(work, validator, num_rows, row_groups, None)
        return FileRows(work=work, tables=tables, num_rows=num_rows, validator=validator)
    finally:
        await opened.close()


def _problem(work: FileTask, error: AsyncpqError, validator: Validator | None) -> FileRows:
    row = _files_row(work, validator or Validator(work.file.size or 0), None, None, f"{type(error).__name__}: {error}")
    return FileRows(work=work, tables={FILES: row}, validator=validator, problem=error)


def _files_row(
    work: FileTask, validator: Validator, num_rows: int | None, row_groups: list[int] | None, problem: str | None
) -> pa.Table:
    schema = TABLE_SCHEMAS["files"]
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
    return pa.Table.from_arrays(batch.columns, schema=schema)


def _weight(num_rows: int, wanted: IndexSpec) -> int:
    """Return the bytes that a file's rows may take in memory, roughly."""
    return num_rows * 64 * sum(index_table.kind in FROM_VALUES for index_table in wanted.tables)


# -- the tables ------------------------------------------------------------------------------------


async def _tables(
    runtime: Runtime, opened: OpenedFile, file: int, wanted: IndexSpec, columns: DatasetColumns
) -> dict[IndexTable, pa.Table]:
    version, operation = opened.version, opened.operation
    context = RequestContext(operation.metrics, scan=True, probation=True, round=operation.metrics.rounds + 1)
    tables: dict[IndexTable, pa.Table] = {}
    bounded: list[IndexTable] = []
    for index_table in wanted.tables:
        if index_table.kind == "footers":
            tables[index_table] = await footer_rows(opened.source, version, file, context)
        elif index_table.kind == "pages":
            tables[index_table] = await pages_rows(opened.source, version, file, context)
        elif index_table.kind == "bounds":
            bounded.append(index_table)
    if bounded:
        work = partial(_bounds, opened, file, wanted, bounded)
        tables.update(await runtime.in_thread(work, small=len(bounded) == 1 and is_small(version)))
    by_value = [index_table for index_table in wanted.tables if index_table.kind in FROM_VALUES]
    if by_value:
        tables.update(await value_rows(runtime, opened, file, by_value, columns, wanted.options))
    return tables


def _bounds(
    opened: OpenedFile, file: int, wanted: IndexSpec, index_tables: Sequence[IndexTable]
) -> dict[IndexTable, pa.Table]:
    version, schema, fields, partition = opened.version, wanted.schema, wanted.fields, opened.file.partition
    try:
        opened.share_types(frozenset())
        view = view_of(version, schema, fields, partition)
    except AsyncpqError:
        view = None  # each table marks the file as unknown
    tables: dict[IndexTable, pa.Table] = {}
    for index_table in index_tables:
        (name,) = index_table.columns
        tables[index_table] = bounds_rows(version, file, name, schema, fields, partition, view)
    return tables
