"""What one file gives to each part of an index: the step of a build that any process can do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.known_files import type_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.datasets.opened_file import Ask, Columns, OpenedFile
from asyncpq.datasets.opener import is_bad_file
from asyncpq.errors import AsyncpqError, CorruptFileError, FormatError, ObjectChangedError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.collecting import ValueCollector
from asyncpq.indexing.file_bounds import bounds_rows
from asyncpq.indexing.file_footers import footer_rows
from asyncpq.indexing.manifest import FILES
from asyncpq.indexing.model import PART_SCHEMAS, Part, file_key
from asyncpq.indexing.page_making import pages_rows
from asyncpq.pipeline import Job, Pipeline
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext, Validator

#: Kinds that are made of values; the others are made of what a file says of itself.
FROM_VALUES: Final = frozenset({"set", "ngram", "bloom", "keys", "text"})


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
        tables: rows of each part, sorted; of a file with a ``problem`` only those of "files".
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
    """

    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    parts: tuple[Part, ...]
    neighbours: str

    @property
    def reads_values(self) -> bool:
        """Whether data pages are read, not footers alone."""
        return any(part.kind in FROM_VALUES for part in self.parts)

    def columns(self) -> Columns:
        """For :class:`OpenedFile`; one for all files of a process, as views are kept by it."""
        return Columns(self.schema, self.fields, object())


#: Given bytes: held while that much of a file is in memory.
Room = Callable[[int], AbstractAsyncContextManager[None]]


async def collect_file(
    resources: Resources, work: FileWork, wanted: Wanted, columns: Columns, operation: Operation, room: Room
) -> FileRows:
    """Read what the parts need of one file, of one version.

    Args:
        columns: ``wanted.columns()``.
        operation: the file's part of the build.
        room: waits until there is memory for rows that may take so many bytes.

    Raises:
        StoreError: its store is at fault, not the file.
    """
    file, restarts = replace(work.file, deletes=None, bounds={}), 0
    while True:
        try:
            return await _collect(resources, replace(work, file=file), wanted, columns, operation, room)
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
        )


async def _collect(
    resources: Resources, work: FileWork, wanted: Wanted, columns: Columns, operation: Operation, room: Room
) -> FileRows:
    opened = await _open(resources, work.file, wanted.neighbours, operation)
    try:
        validator = opened.version.validator
        num_rows = opened.version.metadata.num_rows
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
    row = {
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
    return pa.Table.from_pylist([row], schema=PART_SCHEMAS["files"])


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
    for part in bounded:
        (name,) = part.columns
        tables[part] = bounds_rows(version, file, name, wanted.schema, wanted.fields, opened.file.partition)
    by_value = [part for part in wanted.parts if part.kind in FROM_VALUES]
    if by_value:
        tables.update(await _from_values(resources, opened, file, by_value, columns))
    return tables


async def _from_values(
    resources: Resources, opened: OpenedFile, file: int, parts: Sequence[Part], columns: Columns
) -> dict[Part, pa.Table]:
    """Rows of parts that are made of values, by one scan of the columns that they take."""
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    collectors = {part: ValueCollector(part, _types(columns.schema, part)) for part in parts}
    groups = [group.num_rows for group in opened.version.metadata.row_groups]
    first_row = left_of_group = 0
    group = -1
    async with aclosing(_batches(resources, opened, names, columns)) as batches:
        async for batch in batches:
            while batch.num_rows:
                while not left_of_group:
                    group += 1
                    left_of_group = groups[group]
                piece = batch.slice(0, left_of_group)
                add = partial(_add, collectors, piece, columns.schema, first_row, group)
                await resources.in_thread(add)
                batch = batch.slice(piece.num_rows)
                first_row += piece.num_rows
                left_of_group -= piece.num_rows
    if first_row != sum(groups):
        raise CorruptFileError(f"{first_row} rows were read of {sum(groups)}", url=opened.version.url)
    return {part: await resources.in_thread(partial(found.finish, file)) for part, found in collectors.items()}


def _types(schema: pa.Schema, part: Part) -> list[pa.DataType]:
    return [found for name in part.columns if (found := type_of(schema, name)) is not None]


def _add(
    collectors: Mapping[Part, ValueCollector], batch: pa.RecordBatch, schema: pa.Schema, first_row: int, group: int
) -> None:
    known: dict[str, pa.Array] = {}
    for part, collector in collectors.items():
        for name in part.columns:
            if name not in known:
                known[name] = leaf_array(batch, name)
        collector.add([known[name] for name in part.columns], first_row, group)


def leaf_array(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a leaf of a struct by its dotted path: null where the struct is."""
    top, behind = name, ""
    while (at := batch.schema.get_field_index(top)) < 0:
        top, _, last = top.rpartition(".")
        behind = f"{last}.{behind}" if behind else last
    array = batch.column(at)
    for child in behind.split(".") if behind else ():
        array = pc.struct_field(array, child)
    return array


async def _batches(
    resources: Resources, opened: OpenedFile, names: Sequence[str], columns: Columns
) -> AsyncGenerator[pa.RecordBatch]:
    """All rows of the file, in order, in the dataset's types."""
    async with resources.deadline(opened.operation.url):
        await opened.prepare(Ask(columns=names), columns, scan=True, other_bytes=0)
    jobs = opened.jobs(resources.options.limits.unit_bytes, None)

    async def in_order() -> AsyncGenerator[Job]:
        for job in jobs:
            yield job

    pipeline = Pipeline(in_order(), resources)
    pipeline.start()
    try:
        while (landed := await pipeline.next(resources.deadline(opened.operation.url))) is not None:
            for table in landed.tables:
                for batch in table.to_batches():
                    yield batch
            pipeline.done_with_head()
        await opened.finish()
    finally:
        await pipeline.close()
