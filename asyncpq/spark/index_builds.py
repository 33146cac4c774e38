"""External indexes built by Spark: the driver lists files and commits, executors read, sort and write.

The driver runs :func:`asyncpq.distributed.build_in_steps`, whose steps :class:`SparkSteps` runs as Spark jobs, since
Spark moves rows between tasks by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from asyncpq import Session
from asyncpq.distributed import BuildStep, build_in_steps, refresh_in_steps, run_on_worker, vacuum_lake
from asyncpq.engine.target_facts import safe_url
from asyncpq.indexing import Index, IndexKind, Vacuumed, Verified
from asyncpq.options import MIB, BuildOptions
from asyncpq.spark.driver import CallerThread, described_jobs, held_settings, raised_as_asyncpq
from asyncpq.spark.reads.task_rows import mapped_tasks
from asyncpq.spark.settings import (
    LakeBuildKeywords,
    SettingKeywords,
    SparkSettings,
    TableKeywords,
    refuse_secrets,
    split_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BUILDING = BuildOptions()
_CUT_BYTES: Final = 48 * MIB  # rows in pieces that one task cuts
_BATCH_BYTES: Final = 16 * MIB  # pieces in one batch for a Python worker
_BATCH_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"


class FileProblem(NamedTuple):
    """A file that could not be read for an index: an item of :attr:`BuiltIndex.problems`.

    Attributes:
        path: relative to the dataset's url, or a whole url.
        error: name of a class of :mod:`asyncpq.errors`.
        message: text of the error.
    """

    path: str
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndex:
    """Result of :func:`build_index` and :func:`refresh_index`.

    Attributes:
        at: url or other description of the index, without secrets.
        snapshot: number of the index's newest snapshot.
        files, rows: number of files in the index, and of rows in those files that could be read.
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
    **options: Unpack[LakeBuildKeywords],
) -> BuiltIndex:
    """Build an index as :meth:`asyncpq.Session.build_index` does, on Spark's executors.

    An interrupted build continues where it stopped. An existing index is refreshed.

    Args:
        target, kinds: as in :meth:`asyncpq.Session.build_index`.
        at: url of the index's folder, in an object store or on a disk that driver and executors share. None:
            ``_asyncpq/`` below the prefix. Another backend of :mod:`asyncpq.indexing` works too; if it has no url, the
            driver alone writes it, within its memory.
        building: limits of the build; ``memory_bytes`` is the limit of each task, and of the driver.
        options: ``options`` of :meth:`asyncpq.Session.build_index`, and attributes of
            :class:`asyncpq.spark.SparkSettings`, which override ``spark.asyncpq.*``.

    Raises:
        InvalidOptionError: an option is unknown or invalid.
        AsyncpqError: as :meth:`asyncpq.Session.build_index`; errors of a store after Spark's last retry of the task.
    """
    of_files, settings = split_settings(options, LakeBuildKeywords)
    call = _BuildCall(spark, at, settings)
    refuse_secrets("target", target)
    given: Any = target, kinds, call.steps, call.settings
    return call.build(lambda session: build_in_steps(session, *given, at=call.at, building=building, **of_files))


def refresh_index(
    spark: SparkSession,
    at: object,
    *,
    files: Sequence[str] | None = None,
    table: object = None,
    building: BuildOptions = _BUILDING,
    **options: Unpack[TableKeywords],
) -> BuiltIndex:
    """Refresh an index as :meth:`asyncpq.indexing.Index.refresh` does, on Spark's executors.

    Args:
        at, building: as in :func:`build_index`.
        files: urls of files that are new, replaced or deleted; None: all files are listed and compared.
        table: the table of the index, as in :meth:`asyncpq.Session.open_index`; None for an index of plain files.
        options: ``format`` and ``version`` of the table; and attributes of :class:`asyncpq.spark.SparkSettings`.

    Raises:
        ObjectNotFoundError: there is no index at the place.
        AsyncpqError: as :func:`build_index`.
    """
    of_table, settings = split_settings(options, TableKeywords)
    call = _BuildCall(spark, at, settings)
    given: Any = call.at, call.steps, call.settings
    of_table |= {"table": table, "files": files, "building": building}
    return call.build(lambda session: refresh_in_steps(session, *given, **of_table))


def verify_index(
    spark: SparkSession,
    at: object,
    *,
    sample: int = 10,
    rows: int = 100,
    table: object = None,
    **options: Unpack[TableKeywords],
) -> Verified:
    """Verify an index as :meth:`asyncpq.indexing.Index.verify` does, with its arguments ``sample`` and ``rows`` and its
    result. The driver reads the sample.

    ``at``, ``table`` and ``options`` are those of :func:`refresh_index`, and so are the errors.
    """
    of_table, settings = split_settings(options, TableKeywords)
    call = _BuildCall(spark, at, settings)

    async def work(session: Session) -> Verified:
        index = await session.open_index(call.at, table=cast(Any, table), **of_table)
        return await index.verify(sample=sample, rows=rows)

    return run_on_worker(call.settings, work)


def vacuum(
    spark: SparkSession,
    at: object,
    *,
    keep: int | None = None,
    older_than: timedelta | None = None,
    **settings: Unpack[SettingKeywords],
) -> Vacuumed:
    """Remove old snapshots as :meth:`asyncpq.indexing.Index.vacuum` does, and files that failed tasks left behind.

    Segments, and data files of a lake that asyncpq writes, are removed if they are older than a day and no kept
    snapshot lists them.

    Args:
        at: as in :func:`build_index`.
        keep, older_than: as in :meth:`asyncpq.indexing.Index.vacuum`; None for its defaults.
        settings: attributes of :class:`asyncpq.spark.SparkSettings`.

    Raises:
        ObjectNotFoundError: there is no index at the place.
        StoreError: a store failed.
    """
    call = _BuildCall(spark, at, settings)
    return run_on_worker(call.settings, lambda session: vacuum_lake(session, call.at, keep=keep, older_than=older_than))


class _BuildCall:
    """One call of a function of this module: the index's place, the settings, and the thread that calls Spark."""

    def __init__(self, spark: SparkSession, at: object, settings: Mapping[str, Any]) -> None:
        refuse_secrets("at", at)
        self.at: Any = at
        self.settings = SparkSettings.of(spark, settings)
        self._spark = spark
        self._caller = CallerThread()

    def steps(self) -> SparkSteps:
        """Return the steps of one round, as Spark jobs."""
        return SparkSteps(self._spark, self._caller)

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

        at = safe_url(self.at) if isinstance(self.at, str) else type(self.at).__name__ if self.at else "below the data"
        with described_jobs(self._spark, f"asyncpq: build of the index {at}"):
            return self._caller.serve(partial(run_on_worker, self.settings, build))


# -- reading and writing --------------------------------------------------------------------------


@dataclass(eq=False)
class SparkSteps:
    """The steps of a build as Spark jobs (:class:`asyncpq.distributed.BuildSteps`). The index rows of files are a
    DataFrame in pieces, which Spark keeps on executors' disks until :meth:`close`.

    The caller's thread runs the jobs. They raise the AsyncpqError of a task that failed after all retries.
    """

    spark: SparkSession
    caller: CallerThread
    _rows: DataFrame | None = None

    async def pieces(self, collecting: BuildStep, tasks: Sequence[bytes]) -> pa.Table:
        """Read the files in tasks; return all pieces, with payloads (their rows) for the index table "files" alone."""
        return await self.caller.call(partial(self._pieces, collecting, tasks))

    async def payloads(self) -> pa.Table:
        """Return the pieces of all index tables but "files", with payloads (the encoded index rows)."""
        return await self.caller.call(lambda: _answer(self._others("task", "part", "digest", "payload")))

    async def written(self, cutting: BuildStep, writing: BuildStep, num_bytes: int) -> pa.Table:
        """Let tasks write all index tables but "files", in total ``num_bytes``; return descriptions of the segments."""
        return await self.caller.call(partial(self._written, cutting, writing, num_bytes))

    async def close(self) -> None:
        """Free the pieces that Spark keeps on executors."""
        await self.caller.call(self._close, on_leaving=True)

    def _pieces(self, collecting: BuildStep, tasks: Sequence[bytes]) -> pa.Table:
        pieces = mapped_tasks(self.spark, collecting, tasks, from_arrow_schema(collecting.output))
        self._rows = pieces.persist(StorageLevel.DISK_ONLY)
        payload = sf.when(sf.col("part") == BuildStep.FILES_NUMBER, sf.col("payload")).alias("payload")
        return _answer(self._rows.select(*self._rows.columns[:-1], payload))

    def _written(self, cutting: BuildStep, writing: BuildStep, num_bytes: int) -> pa.Table:
        # Spark limits batches for Python by rows, not by bytes
        with held_settings(self.spark, {_BATCH_SETTING: str(_BATCH_BYTES)}):
            # cutting the pieces of one task is too little work for a task
            rows = self._others(*cutting.input).coalesce(max(1, -(-num_bytes // _CUT_BYTES)))
            moved = _mapped(rows, cutting)
            bins = moved.repartitionById(writing.num_bins, "bin")
            return _answer(_mapped(bins, writing))

    def _close(self) -> None:
        if self._rows is not None:
            self._rows.unpersist()
            self._rows = None

    def _others(self, *columns: str) -> DataFrame:
        assert self._rows is not None, "pieces() is called first"
        return self._rows.where(sf.col("part") != BuildStep.FILES_NUMBER).select(*columns)


def _mapped(rows: DataFrame, step: BuildStep) -> DataFrame:
    return rows.mapInArrow(step, from_arrow_schema(step.output))


def _answer(rows: DataFrame) -> pa.Table:
    with raised_as_asyncpq():
        return rows.toArrow()
