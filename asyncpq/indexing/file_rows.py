"""What one file gives to each part of an index: the step of a build that any process can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from asyncpq.datasets.columns import view_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import Columns, OpenedFile
from asyncpq.datasets.opener import is_bad_file
from asyncpq.errors import AsyncpqError, FormatError, ObjectChangedError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.file_bounds import bounds_rows
from asyncpq.indexing.file_footers import footer_rows, is_small
from asyncpq.indexing.file_values import FROM_VALUES, value_rows
from asyncpq.indexing.manifest import FILES
from asyncpq.indexing.model import PART_SCHEMAS, Part, file_key
from asyncpq.indexing.name_cases import NameCases
from asyncpq.indexing.page_making import pages_rows
from asyncpq.options import BuildOptions
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext, Validator

_FILES_TYPE: Final = pa.struct(list(FILES.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """One file that is to be read. Can be pickled where the file can.

    Attributes:
        id: of the version that is found.
        path: as the index names it.
        file: where it is; deleted rows count as the others.
    """

    id: int
    path: str
    file: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """What came of it.

    Attributes:
        work: of which file.
        tables: rows of each part; of a file with a ``problem`` only those of "files". They are sorted, but postings
            of rows with one key each may stand in the order of rows, and those of a large file come in runs, each of
            which is sorted, and lie in a local file.
        num_rows: of the file; None with a problem.
        last_modified: of the version, as its store says.
        validator: of the version; None if it was not seen.
        problem: why nothing is known of the file.
        gone: there is no such file.
    """

    work: FileWork
    tables: Mapping[Part, pa.Table]
    num_rows: int | None = None
    validator: Validator | None = None
    problem: AsyncpqError | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be known of each file.

    Attributes:
        schema, fields: the dataset's columns, as :class:`asyncpq.datasets.opened_file.Columns` has them.
        parts: of the index.
        neighbours: names the files whose footers are alike.
        options: say how much of a file's rows is held in memory, and where the rest goes.
    """

    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    parts: tuple[Part, ...]
    neighbours: str
    options: BuildOptions

    @property
    def reads_values(self) -> bool:
        """Whether data pages are read, not footers alone."""
        return any(part.kind in FROM_VALUES for part in self.parts)

    def columns(self) -> Columns:
        """For :class:`OpenedFile`; one for all files of a process, as views are kept by it."""
        return Columns(self.schema, self.fields, object())

    def names(self) -> NameCases:
        """One for all files of a process, too."""
        return NameCases(self.schema)


#: Given bytes: held while that much of a file is in memory.
Room = Callable[[int], AbstractAsyncContextManager[None]]


async def collect_file(
    resources: Resources,
    work: FileWork,
    wanted: Wanted,
    columns: Columns,
    names: NameCases,
    operation: Operation,
    room: Room,
) -> FileRows:
    """Read what the parts need of one file, of one version.

    Args:
        columns, names: ``wanted.columns()`` and ``wanted.names()``.
        operation: the file's part of the build.
        room: waits until there is memory for rows that may take so many bytes.

    Raises:
        StoreError: its store is at fault, not the file.
    """
    file, restarts = replace(work.file, deletes=None, bounds={}), 0
    while True:
        try:
            return await _collect(resources, replace(work, file=file), wanted, columns, names, operation, room)
        except ObjectNotFoundError:
            return FileRows(work=work, tables={}, gone=True)
        except ObjectChangedError as error:
            restarts += 1
            if restarts > resources.options.limits.max_restarts:
                return _problem(work, error, None)
            operation.restarts()
        except AsyncpqError as error:
            if not is_bad_file(error):
                raise
            # bad bytes stay bad, but who may read them changes
            return _problem(work, error, work.file.validator if isinstance(error, FormatError) else None)


async def version_of(resources: Resources, file: DataFile, neighbours: str, operation: Operation) -> Validator | None:
    """The version that is there now, by the store's word; None where it cannot be told: there is no such file.

    Raises:
        StoreError: its store is at fault, not the file.
    """
    try:
        opened = await _open(resources, file, neighbours, operation)
        try:
            async with resources.deadline(operation.url):
                context = RequestContext(operation.metrics, round=operation.metrics.rounds + 1)
                return (await opened.source.present(opened.version, context)).validator
        finally:
            await opened.close()
    except AsyncpqError as error:
        if not is_bad_file(error):
            raise
        return None


async def _open(resources: Resources, file: DataFile, neighbours: str, operation: Operation) -> OpenedFile:
    async with resources.deadline(operation.url):
        return await OpenedFile.open(
            resources,
            0,
            file,
            operation,
            neighbours=neighbours,
            listed_at=None,
            listed_now=False,
            scan=True,
            once=True,
        )


async def _collect(
    resources: Resources,
    work: FileWork,
    wanted: Wanted,
    columns: Columns,
    names: NameCases,
    operation: Operation,
    room: Room,
) -> FileRows:
    opened = await _open(resources, work.file, wanted.neighbours, operation)
    try:
        validator = opened.version.validator
        num_rows = opened.version.metadata.num_rows
        other_case = None if wanted.fields is not None else names.check(opened)
        if other_case is not None:
            return _problem(work, other_case, validator)
        try:
            async with room(_weight(num_rows, wanted)):
                tables = await _tables(resources, opened, work.id, wanted, columns)
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


def _problem(work: FileWork, error: AsyncpqError, validator: Validator | None) -> FileRows:
    row = _files_row(work, validator or Validator(work.file.size or 0), None, None, f"{type(error).__name__}: {error}")
    return FileRows(work=work, tables={FILES: row}, validator=validator, problem=error)


def _files_row(
    work: FileWork, validator: Validator, num_rows: int | None, row_groups: list[int] | None, problem: str | None
) -> pa.Table:
    schema = PART_SCHEMAS["files"]
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
    # Table.from_pylist takes ten times as long, and an array for each column three times
    batch = pa.RecordBatch.from_struct_array(pa.array([row], _FILES_TYPE))
    return pa.Table.from_arrays(batch.columns, schema=schema)


def _weight(num_rows: int, wanted: Wanted) -> int:
    """What a file's rows may take in memory, roughly."""
    return num_rows * 64 * sum(part.kind in FROM_VALUES for part in wanted.parts)


# -- the parts ------------------------------------------------------------------------------------


async def _tables(
    resources: Resources, opened: OpenedFile, file: int, wanted: Wanted, columns: Columns
) -> dict[Part, pa.Table]:
    version, operation = opened.version, opened.operation
    context = RequestContext(operation.metrics, scan=True, guest=True, round=operation.metrics.rounds + 1)
    tables: dict[Part, pa.Table] = {}
    bounded: list[Part] = []
    for part in wanted.parts:
        if part.kind == "footers":
            tables[part] = await footer_rows(opened.source, version, file, context)
        elif part.kind == "pages":
            tables[part] = await pages_rows(opened.source, version, file, context)
        elif part.kind == "bounds":
            bounded.append(part)
    if bounded:
        work = partial(_bounds, opened, file, wanted, bounded)
        tables.update(await resources.in_thread(work, small=len(bounded) == 1 and is_small(version)))
    by_value = [part for part in wanted.parts if part.kind in FROM_VALUES]
    if by_value:
        tables.update(await value_rows(resources, opened, file, by_value, columns, wanted.options))
    return tables


def _bounds(opened: OpenedFile, file: int, wanted: Wanted, parts: Sequence[Part]) -> dict[Part, pa.Table]:
    version, schema, fields, partition = opened.version, wanted.schema, wanted.fields, opened.file.partition
    try:
        opened.share_types(frozenset())
        view = view_of(version, schema, fields, partition)
    except AsyncpqError:
        view = None  # the rows of each part say so
    tables: dict[Part, pa.Table] = {}
    for part in parts:
        (name,) = part.columns
        tables[part] = bounds_rows(version, file, name, schema, fields, partition, view)
    return tables
