"""External indexes built by Spark: the driver lists files and commits, executors read, sort and write.

The driver runs the builder of :mod:`asyncpq.indexing.build.index_builder`, with an executor that runs on Spark.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.schemas import SchemaPolicy
from asyncpq.events import Operation
from asyncpq.indexing.build.adding import ORPHANS_S, vacuum_files
from asyncpq.indexing.build.build_executor import ExecutorFactory, LocalExecutor
from asyncpq.indexing.build.index_source import folder_around, is_committed
from asyncpq.indexing.build.maintenance import Vacuumed, Verified
from asyncpq.indexing.index import KEEP, OLDER_THAN, Index
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.indexing.kinds import IndexKind
from asyncpq.objects.runtime import Runtime
from asyncpq.opening import indexes as index_opening
from asyncpq.opening.targets import DatasetOptions
from asyncpq.options import BuildOptions
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.driver import CallerThread
from asyncpq.spark.index_executor import SparkExecutor
from asyncpq.spark.settings import SparkSettings, refuse_secrets
from asyncpq.storage.urls import absolute
from asyncpq.tables import Format, Version, catalog_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BUILDING = BuildOptions()


class FileProblem(NamedTuple):
    """A file that could not be read for an index.

    Attributes:
        path: relative to the dataset's root, or a whole url.
        error: name of a class of :mod:`asyncpq.errors`.
        message: text of the error.
    """

    path: str
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIndex:
    """Result of a build or refresh.

    Attributes:
        at: place of the index, without secrets.
        snapshot: number of its newest snapshot.
        files, rows: files in the index, and rows of those that could be read.
        added, removed: files that were added and removed; a replaced file counts in both.
        resumed: files that an earlier, broken-off build had read.
        problems: files that could not be read; reads of the dataset open these themselves.
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
    """Build an index as :meth:`asyncpq.Session.build_index`, with Spark's executors reading, sorting and writing.

    A build that was broken off continues where it stopped. An index that exists is refreshed.

    Args:
        at: url of the index's folder, in an object store or on a disk that driver and executors share. None:
            ``_asyncpq/`` below the prefix. Another backend of :mod:`asyncpq.indexing` works too; the driver writes one
            that has no url, within its memory.
        building: ``memory_bytes`` holds for each task, and for the driver.
        settings: :class:`asyncpq.spark.settings.SparkSettings`, which override ``spark.asyncpq.*``.

    Raises:
        AsyncpqError: as there. After an error of a store, Spark has tried the task as often as it is set to.
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
    job = _BuildCall(spark, at, settings)
    refuse_secrets("target", named)

    async def work(session: Session) -> BuiltIndex:
        index = await index_opening.build(session.runtime, named, kinds, job.at, options, building, job.gathering)
        return _built(index)

    return job.run(work)


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
    """Refresh an index as :meth:`asyncpq.indexing.Index.refresh`, with Spark's executors reading new files.

    Args:
        at, building, settings: as in :func:`build_index`.
        files: urls of files that are new, replaced or deleted; None: all files are compared.
        table, format, version: for the index of a table, as in :meth:`asyncpq.Session.open_index`.

    Raises:
        AsyncpqError: as there.
    """
    job = _BuildCall(spark, at, settings)

    async def work(session: Session) -> BuiltIndex:
        index = await _opened(session, job.at, table, format, version, building, job.gathering)
        await index.refresh(files)
        return _built(index)

    return job.run(work)


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
    """Verify an index as :meth:`asyncpq.indexing.Index.verify`. The driver reads the sample."""
    job = _BuildCall(spark, at, settings)

    async def work(session: Session) -> Verified:
        index = await _opened(session, job.at, table, format, version, _BUILDING)
        return await index.verify(sample=sample, rows=rows, seed=seed)

    return sessions.run(job.settings, work)


def vacuum(
    spark: SparkSession, at: object, *, keep: int = KEEP, older_than: timedelta = OLDER_THAN, **settings: Any
) -> Vacuumed:
    """Remove old snapshots as :meth:`asyncpq.indexing.Index.vacuum`, and files that failed attempts of tasks left.

    The latter are removed after a day: segments, and data files of a lake that asyncpq writes, unless a kept snapshot
    lists them.
    """
    job = _BuildCall(spark, at, settings)

    async def work(session: Session) -> Vacuumed:
        index = await _opened(session, job.at, None, None, None, _BUILDING)
        done = await index.vacuum(keep=keep, older_than=older_than)
        folder = folder_around(job.at)
        if folder is None or not is_committed(index.manifest):
            return done
        removed = await vacuum_files(session.runtime, folder, older_than_s=ORPHANS_S)
        return replace(done, files=tuple(removed))

    return sessions.run(job.settings, work)


# -- inside ---------------------------------------------------------------------------------------


class _BuildCall:
    """One call: the index's place, its settings, and the thread that calls Spark."""

    def __init__(self, spark: SparkSession, at: object, settings: Mapping[str, Any]) -> None:
        self.at = absolute(at)
        refuse_secrets("at", self.at)
        self.settings = SparkSettings.of(spark, settings)
        self._spark = spark
        self._caller = CallerThread()

    def gathering(
        self, runtime: Runtime, backend: IndexBackend, operation: Operation, options: BuildOptions
    ) -> SparkExecutor:
        """See :data:`asyncpq.indexing.build.build_executor.ExecutorFactory`."""
        url = self.at if isinstance(self.at, str) else None
        return SparkExecutor(self._spark, self.settings, self._caller, url, runtime, backend, operation, options)

    def run(self, work: Callable[[Session], Awaitable[BuiltIndex]]) -> BuiltIndex:
        """Run ``work`` in the process's session; return its result."""

        async def once(session: Session) -> BuiltIndex:
            return await self._caller.interruptible(work(session))

        return self._caller.serve(partial(sessions.run, self.settings, once))


async def _opened(
    session: Session,
    at: object,
    table: object,
    format: Format | None,
    version: Version | None,
    building: BuildOptions,
    executor: ExecutorFactory = LocalExecutor,
) -> Index:
    options = DatasetOptions(format=format, version=version)
    return await index_opening.open_existing(session.runtime, at, table, options, building, None, executor)


def _built(index: Index) -> BuiltIndex:
    manifest, done = index.manifest, index.refreshed
    if done is None:
        raise AssertionError("the index was built or refreshed")
    return BuiltIndex(
        at=index.url,
        snapshot=manifest.snapshot,
        files=manifest.num_files,
        rows=manifest.num_rows,
        added=done.added,
        removed=done.removed,
        resumed=done.resumed,
        problems=tuple(FileProblem(path, type(error).__name__, str(error)) for path, error in done.problems),
    )
