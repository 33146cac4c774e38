"""Read splits on executors: exactly the file versions and rows that the driver planned, as batches of Spark's types."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile, IndexEntry, TableField, View
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.datasets.providers import CatalogReader, FileSet
from asyncpq.errors import AsyncpqError, ObjectChangedError, RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import Constant
from asyncpq.indexing.query.file_entries import known_version
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import KnownVersion
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.executor import ScanExecutor, UnitRows
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream, ScanUnits
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.file_reads import SparkRequests
from asyncpq.spark.reads.splits import LakeScan, PlannedFile, decode_files, unpack_split
from asyncpq.spark.sessions import told_to_plan_again
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.types.rebase import FileDates, file_dates

_Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class SparkTables:
    """Converts the tables of one read to Spark's types.

    Args:
        struct: JSON of the ``StructType``.
    """

    def __init__(self, struct: str, conf: ReadConf) -> None:
        self._struct = spark_struct(struct)
        self._conf = conf
        self._last: tuple[pa.Schema, FileDates, _Convert] | None = None  # usually serves the next file, too

    def of(self, rows: UnitRows[OpenedFile]) -> list[pa.Table]:
        """Convert the tables that have rows. Errors name the file."""
        version, conf = rows.file.version, self._conf
        try:
            dates = version.derived(("spark dates", conf), lambda: file_dates(version.metadata, conf))
            dates = _named(dates, rows.file.file.fields or ())
            return [self._converted(table, dates) for table in rows.tables if table.num_rows]
        except AsyncpqError as error:
            raise error.locate(url=version.url) from error.__cause__

    def _converted(self, table: pa.Table, dates: FileDates) -> pa.Table:
        last = self._last
        if last is None or last[0] != table.schema or last[1] != dates:
            last = self._last = table.schema, dates, converter(table.schema, self._struct, self._conf, dates)
        return pa.Table.from_batches([last[2](batch) for batch in table.to_batches()])


def _named(dates: FileDates, fields: Sequence[TableField]) -> FileDates:
    """Rename the fields to the lake's names."""
    names = {field.names[0]: field.name for field in fields if field.names} if dates.int96_fields else {}
    if not names:
        return dates
    some = (dates.int96_fields, dates.mixed_fields)
    int96, mixed = (frozenset(names.get(name, name) for name in one) for one in some)
    return replace(dates, int96_fields=int96, mixed_fields=mixed)


@lru_cache(maxsize=64)
def spark_struct(text: str) -> StructType:
    """Parse the JSON of a ``StructType``."""
    struct: StructType = StructType.fromJson(json.loads(text))
    return struct


def read_split(lake: LakeScan, split: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with the columns and types of ``lake.spark_schema``. It may yield rows that do not
    match.

    Args:
        split: as :func:`asyncpq.spark.reads.splits.pack_split` encodes it.

    Raises:
        ObjectChangedError: a file was replaced or deleted after planning; names the file.
        AsyncpqError: the split could not be read.
    """
    with told_to_plan_again(lake.view == "snapshot"):
        yield from sessions.batches(lake.settings, partial(_opened, lake, split))


async def _opened(lake: LakeScan, split: bytes, session: Session) -> _SplitBatches:
    files = await split_files(session, split)
    return _SplitBatches(session, lake, files)


async def split_files(session: Session, split: bytes) -> list[PlannedFile]:
    """Decode the files of a split, fetching parts that are in the work folder."""
    files: list[PlannedFile] = []
    runtime = session.runtime
    for part in unpack_split(split):
        if isinstance(part, tuple):
            url, start, stop = part
            operation = runtime.operation("open", url)
            with operation:
                part = await CatalogReader(runtime, operation).read_bytes(url, start, stop)
        files += decode_files(part)
    return files


class _SplitBatches:
    """The batches of a split: one scan after another, of files with and without the filter."""

    def __init__(self, session: Session, lake: LakeScan, files: Sequence[PlannedFile]) -> None:
        self._runtime = session.runtime
        self._lake = lake
        self._files = files
        self._generator = self._batches()

    async def __aenter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self._generator

    async def __aexit__(self, *error: object) -> None:
        await self._generator.aclose()

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch]:
        for filtered, some in itertools.groupby(self._files, key=lambda file: file.filtered):
            async with split_scan(self._runtime, self._lake, list(some), filtered=filtered) as scan:
                async for batch in scan:
                    yield batch


def split_scan(runtime: Runtime, lake: LakeScan, files: Sequence[PlannedFile], *, filtered: bool) -> RecordBatchStream:
    """Scan files of a split; return a stream of batches of Spark's types."""
    state = DatasetState(
        runtime=runtime,
        url=lake.url,
        source=_PlannedFiles(lake, [data_file(lake, file, runtime) for file in files]),
        columns=columns_of(lake),
        skips=False,
    )
    where = lake.where if filtered else None
    # the driver has pruned already
    ask = ScanRequest(columns=lake.columns, where=where, prune=None if where is None else Constant(True))
    operation = runtime.operation("scan", lake.url)
    requests = _SplitRequests(SparkRequests(state, ask, lake.conf))
    executor = ScanExecutor(runtime, lake.url, DatasetFiles(state, ask, operation, scan=True, requests=requests))
    units = ScanUnits(executor, lambda: pa.schema([]), SparkTables(lake.spark_schema, lake.conf).of)
    return RecordBatchStream(runtime, operation, units, batch_size=DEFAULT_BATCH_SIZE, limit=None)


def data_file(lake: LakeScan, file: PlannedFile, runtime: Runtime) -> DataFile:
    """The dataset file of a planned file."""
    known = partial(_known, file, runtime) if file.footers else None
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


async def _known(file: PlannedFile, runtime: Runtime, operation: Operation) -> KnownVersion | None:
    if file.validator is None:
        return None
    return known_version(0, file.footers, file.pages, file.validator, runtime.options.limits)


def columns_of(lake: LakeScan) -> DatasetColumns:
    """The dataset's columns, with a token that lets splits of one lake share what is derived from them."""
    said = hashlib.sha256(lake.schema.serialize().to_pybytes())
    said.update(repr((lake.url, lake.fields, lake.variants, lake.conf, lake.partitioning)).encode())
    return DatasetColumns(lake.schema, lake.fields, said.digest())


class _PlannedFiles:
    """The files of a split: a :class:`asyncpq.datasets.providers.FileProvider`."""

    view: View = View.TABLE  # the state of the plan
    known: FileSet | None = None

    def __init__(self, lake: LakeScan, files: Sequence[DataFile]) -> None:
        self.description = lake.description
        self._files = files

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        return FileSet(self._files)


class _SplitRequests:
    """Requests for planned files: each file must have the planned rows."""

    def __init__(self, requests: SparkRequests) -> None:
        self._requests = requests

    def accept(self, opened: OpenedFile) -> None:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`.

        Raises:
            ObjectChangedError: the file does not have the planned rows.
        """
        self._requests.accept(opened)
        entry = opened.file.entry
        if entry is not None and not entry.access.is_all:
            try:
                entry.access.resolve([group.num_rows for group in opened.version.metadata.row_groups])
            except RowIndexError as error:
                raise ObjectChangedError(
                    f"the file does not have the planned rows: {error.message}", url=opened.version.url
                ) from error

    def request(self, opened: OpenedFile) -> ScanRequest:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`."""
        return self._requests.request(opened)

    def may_match(self, opened: OpenedFile) -> bool:
        """See :class:`asyncpq.datasets.dataset_files.FileRequests`."""
        return self._requests.may_match(opened)
