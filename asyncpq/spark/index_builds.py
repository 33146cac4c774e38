"""External indexes built by Spark: the driver lists files and commits, executors read, sort and write.

The driver runs the builder of :mod:`asyncpq.indexing.build.index_builder` with :class:`SparkExecutor`, which runs the
steps of :mod:`asyncpq.spark.index_steps` in Spark tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.schemas import SchemaPolicy
from asyncpq.distributed import run_on_worker
from asyncpq.errors import ObjectChangedError, StoreError, UnsupportedStoreError
from asyncpq.events import Operation
from asyncpq.indexing.build.adding import ORPHANS_S, vacuum_files
from asyncpq.indexing.build.build_executor import ExecutorFactory, LocalExecutor, OnFileDone
from asyncpq.indexing.build.file_rows import FileRows, IndexSpec
from asyncpq.indexing.build.index_source import FileTask, folder_around, is_committed
from asyncpq.indexing.build.maintenance import Vacuumed, Verified
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.index import KEEP, OLDER_THAN, Index
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.indexing.kinds import IndexKind
from asyncpq.indexing.manifest.commits import files_in
from asyncpq.indexing.manifest.manifest import FILES
from asyncpq.objects.runtime import Runtime
from asyncpq.opening import indexes as index_opening
from asyncpq.opening.datasets import DatasetOptions
from asyncpq.options import MIB, BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.spark import index_steps
from asyncpq.spark.driver import CallerThread, described_jobs, held_settings, named_error, raised_as_asyncpq
from asyncpq.spark.settings import SparkSettings, refuse_secrets
from asyncpq.storage.urls import absolute, safe_url
from asyncpq.tables import Format, Version, catalog_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger: logging.Logger = logging.getLogger(__name__)

_BUILDING = BuildOptions()
_ATTEMPTS: Final = 3  # for files that change while they are read
_CLOSURE_BYTES: Final = 1 * MIB  # descriptions of files that are sent with the function
_DRIVER_BYTES: Final = 32 * MIB  # rows that the driver writes itself
_CUT_BYTES: Final = 48 * MIB  # rows in pieces that one task cuts
_BATCH_BYTES: Final = 16 * MIB  # pieces in one batch for a Python worker
_BATCH_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"


class FileProblem(NamedTuple):
    """A file that could not be read for an index."""

    path: str  # relative to the dataset's root, or a whole url
    error: str  # name of a class of asyncpq.errors
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndex:
    """Result of a build or refresh of an index.

    Attributes:
        at: url or other description of the index, without secrets.
        snapshot: number of its newest snapshot.
        files, rows: number of files in the index, and of rows in those that could be read.
        added, removed: numbers of files that were added and removed; a replaced file counts in both.
        resumed: number of files that an earlier, interrupted build had read.
        problems: files that could not be read; reads of the dataset open these without the index.
            ``spark.createDataFrame(built.problems)`` shows them.
    """

    at: str
    snapshot: int
    files: int
    rows: int
    added: int
    removed: int
    resumed: int
    problems: tuple[FileProblem, ...]


def build_index(
    spark: SparkSession,
    target: object,
    kinds: Sequence[IndexKind],
    *,
    at: object = None,
    building: BuildOptions = _BUILDING,
    format: Format | None = None,
    version: Version | None = None,
    schema: pa.Schema | None = None,
    schema_policy: SchemaPolicy = "strict",
    partitioning: Literal["hive"] | Sequence[str] | None = "hive",
    partition_types: pa.Schema | Mapping[str, pa.DataType] | None = None,
    **settings: Any,
) -> BuiltIndex:
    """Build an index as :meth:`asyncpq.Session.build_index` does. Spark's executors read, sort and write.

    A build that was broken off continues where it stopped. An index that exists is refreshed.

    Args:
        at: url of the index's folder, in an object store or on a disk that driver and executors share. None:
            ``_asyncpq/`` below the prefix. Another backend of :mod:`asyncpq.indexing` works too; the driver writes one
            that has no url, within its memory.
        building: limits of the build; ``memory_bytes`` is the limit of each task, and of the driver.
        settings: :class:`asyncpq.spark.settings.SparkSettings`, which override ``spark.asyncpq.*``.

    Raises:
        AsyncpqError: as :meth:`asyncpq.Session.build_index`; errors of a store after Spark's last retry of the task.
    """
    options = DatasetOptions(
        format=format,
        version=version,
        schema=schema,
        schema_policy=schema_policy,
        partitioning=partitioning,
        partition_types=partition_types,
    )
    named = absolute(target)
    if at is None:
        at = index_opening.place_below(parse_target(named) if catalog_of(named, format, version) is None else None)
    call = _BuildCall(spark, at, settings)
    refuse_secrets("target", named)
    return call.build(
        lambda session: index_opening.build(session.runtime, named, kinds, call.at, options, building, call.executor)
    )


def refresh_index(
    spark: SparkSession,
    at: object,
    *,
    files: Sequence[str] | None = None,
    table: object = None,
    format: Format | None = None,
    version: Version | None = None,
    building: BuildOptions = _BUILDING,
    **settings: Any,
) -> BuiltIndex:
    """Refresh an index as :meth:`asyncpq.indexing.Index.refresh` does. Spark's executors read the new files.

    Args:
        at, building, settings: as in :func:`build_index`.
        files: urls of files that are new, replaced or deleted; None: all files are compared.
        table, format, version: for the index of a table, as in :meth:`asyncpq.Session.open_index`.
    """
    call = _BuildCall(spark, at, settings, DatasetOptions(format=format, version=version), table)

    async def work(session: Session) -> Index:
        index = await call.opened(session, building, call.executor)
        await index.refresh(files)
        return index

    return call.build(work)


def verify_index(
    spark: SparkSession,
    at: object,
    *,
    sample: int = 10,
    rows: int = 100,
    seed: int | None = None,
    table: object = None,
    format: Format | None = None,
    version: Version | None = None,
    **settings: Any,
) -> Verified:
    """Verify an index as :meth:`asyncpq.indexing.Index.verify` does; return the result. The driver reads the sample."""
    call = _BuildCall(spark, at, settings, DatasetOptions(format=format, version=version), table)

    async def work(session: Session) -> Verified:
        index = await call.opened(session)
        return await index.verify(sample=sample, rows=rows, seed=seed)

    return run_on_worker(call.settings, work)


def vacuum(
    spark: SparkSession, at: object, *, keep: int = KEEP, older_than: timedelta = OLDER_THAN, **settings: Any
) -> Vacuumed:
    """Remove old snapshots as :meth:`asyncpq.indexing.Index.vacuum` does, and files that failed tasks left behind.

    Segments, and data files of a lake that asyncpq writes, are removed if they are older than a day and no kept
    snapshot lists them.
    """
    call = _BuildCall(spark, at, settings)

    async def work(session: Session) -> Vacuumed:
        index = await call.opened(session)
        vacuumed = await index.vacuum(keep=keep, older_than=older_than)
        folder = folder_around(call.at)
        if folder is None or not is_committed(index.manifest):
            return vacuumed
        removed = await vacuum_files(session.runtime, folder, older_than_s=ORPHANS_S)
        return replace(vacuumed, files=tuple(removed))

    return run_on_worker(call.settings, work)


class _BuildCall:
    """One call of a function of this module: the index's place, the settings, and the thread that calls Spark.

    For an existing index of a table, ``table`` and ``options`` name the table.
    """

    def __init__(
        self,
        spark: SparkSession,
        at: object,
        settings: Mapping[str, Any],
        options: DatasetOptions = DatasetOptions(),  # noqa: B008  # it is immutable
        table: object = None,
    ) -> None:
        self.at = absolute(at)
        refuse_secrets("at", self.at)
        self.settings = SparkSettings.of(spark, settings)
        self._spark = spark
        self._options = options
        self._table = table
        self._caller = CallerThread()

    def executor(
        self, runtime: Runtime, backend: IndexBackend, operation: Operation, options: BuildOptions
    ) -> SparkExecutor:
        """Return an executor that runs the steps of a build in Spark tasks: an ``ExecutorFactory``."""
        url = self.at if isinstance(self.at, str) else None
        return SparkExecutor(self._spark, self.settings, self._caller, url, runtime, backend, operation, options)

    async def opened(
        self, session: Session, building: BuildOptions = _BUILDING, executor: ExecutorFactory = LocalExecutor
    ) -> Index:
        """Open the existing index at ``self.at``."""
        return await index_opening.open_existing(
            session.runtime, self.at, self._table, self._options, building, None, executor
        )

    def build(self, work: Callable[[Session], Awaitable[Index]]) -> BuiltIndex:
        """Run ``work``, which builds or refreshes the index, in this process's session; return a summary."""

        async def build(session: Session) -> BuiltIndex:
            index = await self._caller.interruptible(work(session))
            manifest, changes = index.manifest, index.refreshed
            assert changes is not None, "the index was built or refreshed"
            return BuiltIndex(
                at=index.url,
                snapshot=manifest.snapshot,
                files=manifest.num_files,
                rows=manifest.num_rows,
                added=changes.added,
                removed=changes.removed,
                resumed=changes.resumed,
                problems=tuple(FileProblem(path, type(error).__name__, str(error)) for path, error in changes.problems),
            )

        at = safe_url(self.at) if isinstance(self.at, str) else type(self.at).__name__
        with described_jobs(self._spark, f"asyncpq: build of the index {at}"):
            return self._caller.serve(partial(run_on_worker, self.settings, build))


# -- reading and writing --------------------------------------------------------------------------


@dataclass(eq=False)
class SparkExecutor:
    """A :class:`asyncpq.indexing.build.build_executor.BuildExecutor` that reads and writes in Spark tasks.

    ``at`` is the url of the index. None if the index has no url: then only the driver can write it.
    """

    spark: SparkSession
    settings: SparkSettings
    caller: CallerThread
    at: str | None
    runtime: Runtime
    backend: IndexBackend
    operation: Operation
    options: BuildOptions
    rounds: int = 1

    def files_between_commits(self, num_files: int) -> int:
        """Return the number of files between commits: ``checkpoint_files``, or more for at most ``max_segments``
        commits."""
        most = max(self.options.checkpoint_files, -(-num_files // self.options.max_segments))
        self.rounds = max(1, -(-num_files // most))
        return most

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        """Read files in tasks and write their index rows as segments, as :meth:`BuildExecutor.segments` describes."""
        for attempt in range(_ATTEMPTS):
            mapped = _MappedPieces(self.spark, self.settings, works, wanted, tuple(index_tables))
            try:
                return await self._written(mapped, build, on_file_done)
            except ObjectChangedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                logger.warning("%d files are read again: %s", len(works), error)
            finally:
                await self.caller.call(mapped.close, on_leaving=True)
        raise AssertionError("the last attempt returns or raises")

    async def _written(self, mapped: _MappedPieces, build: str, on_file_done: OnFileDone) -> list[Segment]:
        pieces = (await self.caller.call(mapped.pieces)).to_pylist()
        files = [piece for piece in pieces if piece["part"] == index_steps.FILES_NUMBER]
        rows = [piece for piece in pieces if piece["part"] != index_steps.FILES_NUMBER]
        results = _file_rows(mapped.works, [index_steps.decoded(piece["payload"]) for piece in files])
        readable = RowRanges((result.work.id, result.work.id + 1) for result in results if result.num_rows is not None)
        payloads, segments = files, list[Segment]()
        if sum(piece["num_bytes"] for piece in rows) > _DRIVER_BYTES:
            segments = await self._written_by_tasks(mapped, rows, readable, build)
        elif rows:
            payloads = [*files, *(await self.caller.call(mapped.payloads)).to_pylist()]
        digests = {piece["task"]: piece["digest"] for piece in pieces}
        if any(payload["digest"] != digests.get(payload["task"]) for payload in payloads):
            raise ObjectChangedError(
                "a file changed during the build: a task that ran twice read two versions",
                hint="Build again when no files change: the build goes on where it stopped.",
            )
        # the driver writes the list of files, small index tables, and empty ones
        ids = {FILES: RowRanges((result.work.id, result.work.id + 1) for result in results if not result.gone)}
        done = {FILES, *(segment.table for segment in segments)}
        ids.update((table, readable) for table in mapped.wanted.tables if table not in done)
        segments += await self._written_here(mapped.tables, payloads, ids, build)
        self._check_rows(mapped.tables, pieces, segments)
        for result in results:
            on_file_done(result, self.operation.part(safe_url(result.work.file.url), 0))
        return segments

    async def _written_by_tasks(
        self, mapped: _MappedPieces, pieces: Sequence[Mapping[str, Any]], readable: RowRanges, build: str
    ) -> list[Segment]:
        """Let tasks write all index tables but "files", whose rows ``mapped`` has and ``pieces`` describe; return
        the segments. Raises StoreError if the driver does not find one. ``readable``: ids of the files that could be
        read."""
        num_bytes = sum(piece["num_bytes"] for piece in pieces)
        if self.at is None:
            raise UnsupportedStoreError(
                f"the index has no url and {num_bytes} bytes, of which the driver writes at most {_DRIVER_BYTES};"
                " executors can only write to a url",
                url=self.backend.description,
                hint="Put the index into a folder: at='s3://bucket/indexes/trips/'.",
            )
        ranges = index_steps.planned(pieces, self.options, builds=self.rounds)
        writing = index_steps.WriteSegments(self.settings, self.at, build, mapped.tables, ranges, self.options)
        table = await self.caller.call(partial(mapped.written, index_steps.CutPieces(ranges), writing, num_bytes))
        ids = tuple(readable)
        segments = [
            index_steps.segment_of(mapped.tables[row["part"]], row["segment"], ids) for row in table.to_pylist()
        ]
        there = await self.backend.list_segments(operation=self.operation)
        missing = [segment.name for segment in segments if segment.name not in there]
        if missing:
            raise StoreError(
                f"the driver does not find {len(missing)} segments that executors wrote, such as {missing[0]!r}",
                url=self.backend.description,
                hint="Use a place that driver and executors share: an object store, or a disk that all of them mount.",
            )
        return segments

    async def _written_here(
        self,
        index_tables: Sequence[IndexTable],
        payloads: Sequence[Mapping[str, Any]],
        ids: Mapping[IndexTable, RowRanges],
        build: str,
    ) -> list[Segment]:
        """Write index tables on the driver, from their encoded rows; return the segments. ``ids``: file ids by
        table."""
        with ExitStack() as open_sorts:
            memory = max(MIB, self.options.memory_bytes // 2 // len(ids))
            folder = index_steps.folder_of(self.options)
            sorts = {
                table: open_sorts.enter_context(ExternalSort(table.schema, memory, folder))
                for table, files in ids.items()
                if files
            }
            for payload in payloads:
                sort = sorts[index_tables[payload["part"]]]
                await self.runtime.in_thread(partial(sort.add, index_steps.decoded(payload["payload"])))
            rows = [(table, sort, ids[table]) for table, sort in sorts.items()]
            return await index_steps.write_sorted(self.runtime, self.backend, build, rows, self.options, self.operation)

    def _check_rows(
        self, index_tables: Sequence[IndexTable], pieces: Sequence[Mapping[str, Any]], segments: Sequence[Segment]
    ) -> None:
        counts = dict.fromkeys(index_tables, 0)
        for piece in pieces:
            counts[index_tables[piece["part"]]] += piece["num_rows"]
        for segment in segments:
            counts[segment.table] -= segment.num_rows
        wrong = [str(index_table) for index_table, count in counts.items() if count]
        if wrong:
            raise StoreError(
                f"rows of these index tables were lost or duplicated between tasks: {', '.join(wrong)}",
                url=self.backend.description,
                hint="Build again. Nothing was committed.",
            )


def _file_rows(works: Sequence[FileTask], tables: Sequence[pa.Table]) -> list[FileRows]:
    """Return the index rows of each file in ``works``. A file without a row in ``tables`` is marked as deleted."""
    rows: dict[int, FileRows] = {}
    by_id = {work.id: work for work in works}
    for table in tables:
        texts = table.column("problem").to_pylist()
        for number, (file, text) in enumerate(zip(files_in(table), texts, strict=True)):
            name, _, message = (text or "").partition(": ")
            rows[file.id] = FileRows(
                work=by_id[file.id],
                tables={FILES: table.slice(number, 1)},
                num_rows=file.num_rows,
                validator=file.validator,
                problem=None if text is None else named_error(name, message),
            )
    return [rows.get(work.id) or FileRows(work=work, tables={}, gone=True) for work in works]


@dataclass(eq=False)
class _MappedPieces:
    """The index rows of files in pieces, as a DataFrame that Spark keeps on executors' disks until :meth:`close`.

    Call the methods in the caller's thread. They raise the AsyncpqError of a task that failed after all retries.
    """

    spark: SparkSession
    settings: SparkSettings
    works: Sequence[FileTask]
    wanted: IndexSpec
    tables: tuple[IndexTable, ...]
    _rows: DataFrame | None = None

    def pieces(self) -> pa.Table:
        """Read the files in tasks; return all pieces, with payloads (their rows) for the index table "files" alone."""
        costs = [index_steps.cost_of(work, reads_values=bool(self.wanted.by_value)) for work in self.works]
        tasks = [
            index_steps.shipped([self.works[number] for number in numbers])
            for numbers in index_steps.packed(costs, index_steps.TASK_BYTES)
        ]
        self._rows = self._collected(tasks).persist(StorageLevel.DISK_ONLY)
        payload = sf.when(sf.col("part") == index_steps.FILES_NUMBER, sf.col("payload")).alias("payload")
        return _answer(self._rows.select(*index_steps.PIECES.names[:-1], payload))

    def payloads(self) -> pa.Table:
        """Return the pieces of all index tables but "files", with payloads (the encoded index rows)."""
        return _answer(self._others("task", "part", "digest", "payload"))

    def written(self, cutting: index_steps.CutPieces, writing: index_steps.WriteSegments, num_bytes: int) -> pa.Table:
        """Let tasks write all index tables but "files", in total ``num_bytes``; return descriptions of the segments."""
        # Spark limits batches for Python by rows, not by bytes
        with held_settings(self.spark, {_BATCH_SETTING: str(_BATCH_BYTES)}):
            # cutting the pieces of one task is too little work for a task
            rows = self._others(*index_steps.CUT).coalesce(index_steps.count_of(num_bytes, _CUT_BYTES))
            moved = rows.mapInArrow(cutting, from_arrow_schema(index_steps.MOVED))
            bins = moved.repartitionById(writing.ranges.num_bins, "bin")
            return _answer(bins.mapInArrow(writing, from_arrow_schema(index_steps.WRITTEN)))

    def close(self) -> None:
        """Free the pieces that Spark keeps on executors."""
        if self._rows is not None:
            self._rows.unpersist()
            self._rows = None

    def _others(self, *columns: str) -> DataFrame:
        assert self._rows is not None, "pieces() is called first"
        return self._rows.where(sf.col("part") != index_steps.FILES_NUMBER).select(*columns)

    def _collected(self, tasks: Sequence[bytes]) -> DataFrame:
        collecting = partial(index_steps.CollectFiles, self.settings, self.wanted, self.tables)
        given = from_arrow_schema(index_steps.PIECES)
        if sum(map(len, tasks)) <= _CLOSURE_BYTES:
            rows = self.spark.range(len(tasks), numPartitions=len(tasks))
            return rows.mapInArrow(collecting(tuple(tasks)), given)
        ids = pa.array(range(len(tasks)), pa.int32())
        listed = self.spark.createDataFrame(pa.table({"id": ids, "payload": pa.array(tasks, pa.binary())}))
        return listed.repartitionById(len(tasks), "id").mapInArrow(collecting(None), given)


def _answer(rows: DataFrame) -> pa.Table:
    with raised_as_asyncpq():
        return rows.toArrow()
