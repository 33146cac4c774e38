"""Reads splits, on executors: exactly the versions and rows that were planned."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from functools import partial

import pyarrow as pa

from asyncpq.datasets.dataset_scan import DatasetScan
from asyncpq.datasets.file_sets import FileSet
from asyncpq.datasets.files_read import DatasetState
from asyncpq.datasets.model import DataFile, IndexEntry, View
from asyncpq.datasets.opened_file import Ask, Columns, OpenedFile
from asyncpq.datasets.reader import SessionReader
from asyncpq.errors import ObjectChangedError, RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import Constant
from asyncpq.fetching.known_version import KnownVersion
from asyncpq.indexing.known_versions import known_version
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.resources import Resources
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.file_reads import SparkRead
from asyncpq.spark.reads.plan_again import told_to_plan_again
from asyncpq.spark.reads.spark_tables import SparkTables
from asyncpq.spark.reads.splits import Lake, PlannedFile, decode_files, unpack_split


def read_split(lake: Lake, split: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a split, of the columns and types that ``lake.spark_schema`` has; some more than match.

    Args:
        split: see :func:`asyncpq.spark.reads.splits.pack_split`.

    Raises:
        ObjectChangedError: a file has another version now, or is gone; names it.
        AsyncpqError: it could not be read.
    """
    with told_to_plan_again(lake.view == "snapshot"):
        yield from sessions.batches(lake.settings, partial(_opened, lake, split))


async def _opened(lake: Lake, split: bytes, session: Session) -> _Rows:
    files = await split_files(session, split)
    return _Rows(session, lake, files)


async def split_files(session: Session, split: bytes) -> list[PlannedFile]:
    """The files of a split, which may lie in the work folder."""
    files: list[PlannedFile] = []
    resources = session._resources
    for part in unpack_split(split):
        if isinstance(part, tuple):
            url, start, stop = part
            operation = resources.operation("open", url)
            with operation:
                part = await SessionReader(resources, operation).read_bytes(url, start, stop)
        files += decode_files(part)
    return files


class _Rows:
    """Batches of files, one scan after another: of files that are filtered, and of those that need not be."""

    def __init__(self, session: Session, lake: Lake, files: Sequence[PlannedFile]) -> None:
        self._resources = session._resources
        self._lake = lake
        self._files = files
        self._generator = self._batches()

    async def __aenter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self._generator

    async def __aexit__(self, *error: object) -> None:
        await self._generator.aclose()

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch]:
        for filtered, some in itertools.groupby(self._files, key=lambda file: file.filtered):
            async with split_scan(self._resources, self._lake, list(some), filtered=filtered) as scan:
                async for batch in scan:
                    yield batch


def split_scan(resources: Resources, lake: Lake, files: Sequence[PlannedFile], *, filtered: bool) -> SplitScan:
    """A scan of files of a split, to be used as those of datasets are."""
    state = DatasetState(
        resources=resources,
        url=lake.url,
        source=_PlannedFiles(lake, [data_file(lake, file, resources) for file in files]),
        columns=columns_of(lake),
        skips=False,
    )
    where = lake.where if filtered else None
    # what can be pruned was, by the driver
    ask = Ask(columns=lake.columns, where=where, prune=None if where is None else Constant(True))
    operation = resources.operation("scan", lake.url)
    return SplitScan(state, ask, operation, lake)


def data_file(lake: Lake, file: PlannedFile, resources: Resources) -> DataFile:
    """A planned file as datasets have theirs."""
    known = partial(_known, file, resources) if file.footers else None
    access = AccessPlan.all() if file.rows is None else AccessPlan.row_ranges(file.rows)
    return DataFile(
        url=file.url,
        validator=file.validator,
        size=None if file.validator is None else file.validator.size,
        partition=file.partition,
        immutable=file.immutable,
        pinned=file.validator is not None,
        fields=lake.variants[file.fields - 1] if file.fields else None,
        content=file.content,
        entry=IndexEntry(access=access, validator=file.validator, known=known),
    )


async def _known(file: PlannedFile, resources: Resources, operation: Operation) -> KnownVersion | None:
    if file.validator is None:
        return None
    return known_version(0, file.footers, file.pages, file.validator, resources.options.limits)


def columns_of(lake: Lake) -> Columns:
    """The dataset's columns, named so that what is derived for one split serves the next."""
    said = hashlib.sha256(lake.schema.serialize().to_pybytes())
    said.update(repr((lake.url, lake.fields, lake.variants, lake.conf, lake.partitioning)).encode())
    return Columns(lake.schema, lake.fields, said.digest())


class _PlannedFiles:
    """The files of a split: a :class:`asyncpq.datasets.file_sets.FileSource`."""

    view: View = View.TABLE  # of one state, that of the plan
    known: FileSet | None = None

    def __init__(self, lake: Lake, files: Sequence[DataFile]) -> None:
        self.description = lake.description
        self._files = files

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        return FileSet(self._files)


class _SplitRead(SparkRead):
    """Reads planned files: rows that were planned are there, or the file is another one."""

    def _check_schema(self, opened: OpenedFile) -> None:
        super()._check_schema(opened)
        entry = opened.file.entry
        if entry is not None and not entry.access.is_all:
            try:
                entry.access.resolve([group.num_rows for group in opened.version.metadata.row_groups])
            except RowIndexError as error:
                raise ObjectChangedError(
                    f"it does not have the rows that were planned: {error.message}", url=opened.version.url
                ) from error


class SplitScan(DatasetScan):
    """Batches of Spark's types."""

    def __init__(self, state: DatasetState, ask: Ask, operation: Operation, lake: Lake) -> None:
        self._split_read = _SplitRead(state, ask, operation, lake.conf)
        self._tables = SparkTables(lake.spark_schema, lake.conf)
        super().__init__(
            state.resources, self._split_read, operation, pa.schema([]), batch_size=DEFAULT_BATCH_SIZE, limit=None
        )

    async def _next_unit(self) -> Sequence[pa.Table] | None:
        rows = await self._read.next()
        return None if rows is None else self._tables.of(rows)
