"""The step of an index build that reads files, on Spark's executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from asyncpq.errors import ObjectChangedError, StoreError, UnsupportedStoreError
from asyncpq.events import Operation
from asyncpq.indexing.build.build_executor import OnFileDone
from asyncpq.indexing.build.file_rows import FileRows, FileTask, IndexSpec
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.index_model import IndexBackend, IndexTable, Segment
from asyncpq.indexing.manifest.commits import files_in
from asyncpq.indexing.manifest.manifest import FILES
from asyncpq.objects.runtime import Runtime
from asyncpq.options import MIB, BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.spark.driver import CallerThread, held_settings
from asyncpq.spark.index_steps import (
    CUT,
    FILES_NUMBER,
    MOVED,
    PIECES,
    TASK_BYTES,
    WRITTEN,
    CollectFiles,
    CutPieces,
    WriteSegments,
    cost_of,
    count_of,
    decoded,
    folder_of,
    packed,
    planned,
    segment_of,
    shipped,
    write_sorted,
)
from asyncpq.spark.sessions import named_error, raised_as_asyncpq
from asyncpq.spark.settings import SparkSettings
from asyncpq.storage.urls import safe_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3  # for files that change while they are read
_CLOSURE_BYTES: Final = 1 * MIB  # descriptions of files that are sent with the function
_DRIVER_BYTES: Final = 32 * MIB  # rows that the driver writes itself
_CUT_BYTES: Final = 48 * MIB  # rows in pieces that one task cuts
_BATCH_BYTES: Final = 16 * MIB  # pieces in one batch for a Python worker
_BATCH_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"


class SparkExecutor:
    """A :class:`asyncpq.indexing.build.build_executor.BuildExecutor`.

    Args:
        at: url of the index's place; None: only the driver can write there.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: SparkSettings,
        caller: CallerThread,
        at: str | None,
        runtime: Runtime,
        backend: IndexBackend,
        operation: Operation,
        options: BuildOptions,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._caller = caller
        self._at = at
        self._runtime = runtime
        self._backend = backend
        self._operation = operation
        self._options = options
        self._rounds = 1

    def files_between_commits(self, num_files: int) -> int:
        """Files of one commit: ``checkpoint_files``, or more if that would create too many segments."""
        most = max(self._options.checkpoint_files, -(-num_files // self._options.max_segments))
        self._rounds = max(1, -(-num_files // most))
        return most

    async def segments(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        """See :class:`asyncpq.indexing.build.build_executor.BuildExecutor`."""
        for attempt in range(_ATTEMPTS):
            try:
                return await self._once(works, wanted, tuple(index_tables), build, on_file_done)
            except ObjectChangedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise
                logger.warning("%d files are read again: %s", len(works), error)
        raise AssertionError("the last attempt returns or raises")

    async def _once(
        self,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: tuple[IndexTable, ...],
        build: str,
        on_file_done: OnFileDone,
    ) -> list[Segment]:
        mapped = _MappedPieces(self._spark, self._settings, works, wanted, index_tables)
        try:
            pieces = (await self._caller.call(mapped.pieces)).to_pylist()
            files = [piece for piece in pieces if piece["part"] == FILES_NUMBER]
            rows = [piece for piece in pieces if piece["part"] != FILES_NUMBER]
            come = _come(works, [decoded(piece["payload"]) for piece in files])
            known = RowRanges((one.work.id, one.work.id + 1) for one in come if one.num_rows is not None)
            payloads, written = files, list[Segment]()
            if sum(piece["num_bytes"] for piece in rows) > _DRIVER_BYTES:
                written = await self._written_by_executors(mapped, rows, index_tables, known, build)
            elif rows:
                payloads = [*files, *(await self._caller.call(mapped.payloads)).to_pylist()]
            if any(payload["digest"] != piece["digest"] for payload, piece in _pairs(payloads, pieces)):
                raise ObjectChangedError("a file changed while it was read again")
            written += await self._write(
                payloads, wanted, index_tables, {one.table for one in written}, known, come, build
            )
            self._check_rows(index_tables, pieces, written)
        finally:
            await self._caller.call(mapped.close, on_leaving=True)
        for one in come:
            on_file_done(one, self._operation.part(safe_url(one.work.file.url), 0))
        return written

    async def _written_by_executors(
        self,
        mapped: _MappedPieces,
        pieces: Sequence[Mapping[str, Any]],
        index_tables: tuple[IndexTable, ...],
        known: RowRanges,
        build: str,
    ) -> list[Segment]:
        """The segments of all index tables but "files"."""
        if self._at is None:
            raise UnsupportedStoreError(
                f"the index has {sum(piece['num_bytes'] for piece in pieces)} bytes,"
                " and executors can only write to a url",
                url=self._backend.description,
                hint="Put the index into a folder: at='s3://bucket/indexes/trips/'.",
            )
        ranges = planned(pieces, self._options, builds=self._rounds)
        writing = WriteSegments(self._settings, self._at, build, index_tables, ranges, self._options)
        num_bytes = sum(piece["num_bytes"] for piece in pieces)
        table = await self._caller.call(partial(mapped.written, CutPieces(ranges), writing, num_bytes))
        ids = tuple(known)
        written = [segment_of(index_tables[row["part"]], row["segment"], ids) for row in table.to_pylist()]
        await self._check_there(written)
        return written

    async def _write(
        self,
        payloads: Sequence[Mapping[str, Any]],
        wanted: IndexSpec,
        index_tables: Sequence[IndexTable],
        done: set[IndexTable],
        known: RowRanges,
        come: Sequence[FileRows],
        build: str,
    ) -> list[Segment]:
        """Write the segments of the driver: the list of files, small index tables, and empty ones."""
        listed = RowRanges((one.work.id, one.work.id + 1) for one in come if not one.gone)
        files = {
            FILES: listed,
            **{index_table: known for index_table in wanted.tables if index_table not in done and index_table != FILES},
        }
        with ExitStack() as open_sorts:
            memory = max(MIB, self._options.memory_bytes // 2 // len(files))
            sorts = {
                index_table: open_sorts.enter_context(
                    ExternalSort(index_table.schema, memory, folder_of(self._options))
                )
                for index_table, ids in files.items()
                if ids
            }
            for payload in payloads:
                index_table = index_tables[payload["part"]]
                await self._runtime.in_thread(partial(sorts[index_table].add, decoded(payload["payload"])))
            some = [(index_table, sort, files[index_table]) for index_table, sort in sorts.items()]
            return await write_sorted(self._runtime, self._backend, build, some, self._options, self._operation)

    async def _check_there(self, segments: Sequence[Segment]) -> None:
        """Check that the driver sees the segments that executors wrote.

        Raises:
            StoreError: executors write to another place than the driver reads.
        """
        there = await self._backend.list_segments(operation=self._operation)
        missing = [segment.name for segment in segments if segment.name not in there]
        if missing:
            raise StoreError(
                f"{len(missing)} segments that executors wrote are missing",
                url=self._backend.description,
                hint="Use a place that driver and executors share: an object store, or a disk that all of them mount.",
            )

    def _check_rows(
        self, index_tables: Sequence[IndexTable], pieces: Sequence[Mapping[str, Any]], segments: Sequence[Segment]
    ) -> None:
        """Compare the rows of segments with those of pieces.

        Raises:
            StoreError: rows were lost or duplicated.
        """
        counts = dict.fromkeys(index_tables, 0)
        for piece in pieces:
            counts[index_tables[piece["part"]]] += piece["num_rows"]
        for segment in segments:
            counts[segment.table] -= segment.num_rows
        wrong = [str(index_table) for index_table, count in counts.items() if count]
        if wrong:
            raise StoreError(
                f"rows were lost or duplicated between tasks: {', '.join(wrong)}", url=self._backend.description
            )


def _pairs(
    payloads: Sequence[Mapping[str, Any]], pieces: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each payload with the counted piece of the same task."""
    of_task = {piece["task"]: piece for piece in pieces}
    return ((payload, of_task.get(payload["task"], {"digest": None})) for payload in payloads)


def _come(works: Sequence[FileTask], tables: Sequence[pa.Table]) -> list[FileRows]:
    """The rows of each file; a file without rows has vanished."""
    rows: dict[int, FileRows] = {}
    by_id = {work.id: work for work in works}
    for table in tables:
        texts = table.column("problem").to_pylist()
        for at, (file, text) in enumerate(zip(files_in(table), texts, strict=True)):
            problem = None
            if text is not None:
                name, _, message = text.partition(": ")
                problem = named_error(name, message)
            rows[file.id] = FileRows(
                work=by_id[file.id],
                tables={FILES: table.slice(at, 1)},
                num_rows=file.num_rows,
                validator=file.validator,
                problem=problem,
            )
    return [rows.get(work.id) or FileRows(work=work, tables={}, gone=True) for work in works]


class _MappedPieces:
    """The rows of files in pieces, which stay on executors until close. Use it in the caller's thread.

    Raises:
        AsyncpqError: a task failed with it, as often as Spark tries tasks.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: SparkSettings,
        works: Sequence[FileTask],
        wanted: IndexSpec,
        index_tables: tuple[IndexTable, ...],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._works = works
        self._wanted = wanted
        self._tables = index_tables
        self._rows: DataFrame | None = None

    def pieces(self) -> pa.Table:
        """All pieces; only those of the index table "files" have payloads."""
        costs = [cost_of(work, reads_values=self._wanted.reads_values) for work in self._works]
        tasks = [shipped([self._works[at] for at in held]) for held in packed(costs, TASK_BYTES)]
        self._rows = self._collected(tasks).persist(StorageLevel.DISK_ONLY)
        payload = sf.when(sf.col("part") == FILES_NUMBER, sf.col("payload")).alias("payload")
        return self._answer(self._rows.select(*PIECES.names[:-1], payload))

    def payloads(self) -> pa.Table:
        """The pieces of the other index tables."""
        rows = self._kept.where(sf.col("part") != FILES_NUMBER)
        return self._answer(rows.select("task", "part", "digest", "payload"))

    def written(self, cutting: CutPieces, writing: WriteSegments, num_bytes: int) -> pa.Table:
        """Let tasks write segments of the other index tables, which have ``num_bytes``; return their descriptions."""
        # Spark limits batches for Python by rows, not by bytes
        with held_settings(self._spark, {_BATCH_SETTING: str(_BATCH_BYTES)}):
            rows = self._kept.where(sf.col("part") != FILES_NUMBER).select(*CUT)
            # cutting the pieces of one task is too little work for a task
            moved = rows.coalesce(count_of(num_bytes, _CUT_BYTES)).mapInArrow(cutting, from_arrow_schema(MOVED))
            bins = moved.repartitionById(writing.ranges.num_bins, "bin")
            return self._answer(bins.mapInArrow(writing, from_arrow_schema(WRITTEN)))

    def close(self) -> None:
        """Release the pieces on executors."""
        if self._rows is not None:
            self._rows.unpersist()
            self._rows = None

    @property
    def _kept(self) -> DataFrame:
        if self._rows is None:
            raise AssertionError("pieces() is called first")
        return self._rows

    def _collected(self, tasks: Sequence[bytes]) -> DataFrame:
        collecting = partial(CollectFiles, self._settings, self._wanted, self._tables)
        given = from_arrow_schema(PIECES)
        if sum(map(len, tasks)) <= _CLOSURE_BYTES:
            rows = self._spark.range(len(tasks), numPartitions=len(tasks))
            return rows.mapInArrow(collecting(tuple(tasks)), given)
        ids = pa.array(range(len(tasks)), pa.int32())
        listed = self._spark.createDataFrame(pa.table({"id": ids, "payload": pa.array(tasks, pa.binary())}))
        return listed.repartitionById(len(tasks), "id").mapInArrow(collecting(None), given)

    def _answer(self, rows: DataFrame) -> pa.Table:
        with raised_as_asyncpq():
            return rows.toArrow()
