"""Rows of the parts that are made of a file's values, by one scan of the columns that they take."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.known_files import type_of
from asyncpq.datasets.opened_file import Ask, Columns, OpenedFile
from asyncpq.errors import CorruptFileError
from asyncpq.indexing.collecting import ValueCollector
from asyncpq.indexing.model import Part
from asyncpq.indexing.part_slices import BY_ROW
from asyncpq.indexing.sorting import LocalRows
from asyncpq.options import BuildOptions
from asyncpq.pipeline import Job, Pipeline
from asyncpq.resources import Resources

#: Kinds that are made of values; the others are made of what a file says of itself.
FROM_VALUES: Final = frozenset({"set", "ngram", "bloom", "keys", "text"})

_FEW_ROWS: Final = 1 << 13  # of a file, whose rows of these kinds are made at once: to hand them to a thread costs more
_QUICK: Final = frozenset({"keys", "set"})
_TOKENS: Final = 16  # times a text's bytes: what its tokens take at most while they are found
_SHARE: Final = 4  # of the memory of a build, what one file's postings take: to sort them takes as much again, twice


async def value_rows(
    resources: Resources,
    opened: OpenedFile,
    file: int,
    parts: Sequence[Part],
    columns: Columns,
    options: BuildOptions,
) -> dict[Part, pa.Table]:
    """Rows of ``parts``, by one scan of the columns that they take; see :class:`asyncpq.indexing.file_rows.FileRows`.

    Args:
        file: id of the version that is open.
    """
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    groups = [group.num_rows for group in opened.version.metadata.row_groups]
    first_row = left_of_group = 0
    group = -1
    few = sum(groups) <= _FEW_ROWS and all(part.kind in _QUICK for part in parts)
    with _Values(file, parts, columns.schema, options) as values:
        async with aclosing(_batches(resources, opened, names, columns)) as batches:
            async for batch in batches:
                while batch.num_rows:
                    while not left_of_group:
                        group += 1
                        left_of_group = groups[group]
                    piece = batch.slice(0, left_of_group)
                    await resources.in_thread(partial(values.add, piece, first_row, group), small=few)
                    batch = batch.slice(piece.num_rows)
                    first_row += piece.num_rows
                    left_of_group -= piece.num_rows
        if first_row != sum(groups):
            raise CorruptFileError(f"{first_row} rows were read of {sum(groups)}", url=opened.version.url)
        return {part: await resources.in_thread(partial(values.finish, part), small=few) for part in parts}


class _Values:
    """Collects the values of one file for several parts. Postings go to local files where they are too many."""

    def __init__(self, file: int, parts: Sequence[Part], schema: pa.Schema, options: BuildOptions) -> None:
        self._file = file
        self._schema = schema
        self._most_bytes = options.memory_bytes // _SHARE
        self._folder = Path(options.folder or tempfile.gettempdir())
        self._collectors = {part: ValueCollector(part, _types(schema, part)) for part in parts}
        self._local: dict[Part, LocalRows] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Values:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, batch: pa.RecordBatch, first_row: int, group: int) -> None:
        """Take rows of one row group, which follow those before."""
        names = dict.fromkeys(name for part in self._collectors for name in part.columns)
        arrays = {name: leaf_array(batch, name) for name in names}
        postings = {part: found for part, found in self._collectors.items() if part.kind in BY_ROW}
        texts = [arrays[name] for part in self._collectors if part.kind == "text" for name in part.columns]
        size = max(map(_text_bytes, texts), default=0)
        step = max(1, min(batch.num_rows, batch.num_rows * (self._most_bytes // _TOKENS) // max(size, 1)))
        for start in range(0, batch.num_rows, step):
            for part, collector in self._collectors.items():
                collector.add([arrays[name].slice(start, step) for name in part.columns], first_row + start, group)
            if sum(found.pending_bytes for found in postings.values()) > self._most_bytes:
                for part, found in postings.items():
                    self._put_aside(part, found.finish(self._file))

    def finish(self, part: Part) -> pa.Table:
        """All rows of the part."""
        table = self._collectors[part].finish(self._file)
        if part not in self._local:
            return table
        self._put_aside(part, table)
        return self._local[part].table()

    def _put_aside(self, part: Part, rows: pa.Table) -> None:
        if part not in self._local:
            self._local[part] = LocalRows(part.schema, self._folder)
            self._open.callback(self._local[part].close)
        self._local[part].add(rows)


def _text_bytes(array: pa.Array) -> int:
    """Of all strings, those of a dictionary as often as they are there, roughly."""
    if isinstance(array.type, pa.DictionaryType):
        return len(array) * int(array.dictionary.nbytes) // max(1, len(array.dictionary))
    return int(array.nbytes)


def _types(schema: pa.Schema, part: Part) -> list[pa.DataType]:
    return [found for name in part.columns if (found := type_of(schema, name)) is not None]


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
    if len(jobs) == 1:  # nothing is to be fetched ahead
        ((read, unit, _),) = jobs
        resources.budget.take(unit.num_bytes)
        try:
            async with resources.deadline(opened.operation.url):
                tables = await read.run(unit)
            for table in tables:
                for batch in table.to_batches():
                    yield batch
            await opened.finish()
        finally:
            resources.budget.release(unit.num_bytes)
        return

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
