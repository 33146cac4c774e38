"""The scan of a lake for Spark: tasks read the files by Spark's rules, as batches of Spark's types.

Very many files are planned in tasks, too: these get files and a condition, read the footers, prune row groups, and
return encoded pieces of the plan, the versions of their files, and the statistics of the footers. The driver asks for
the files in jobs of ``JOB_FILES``, so it never holds the results of all files at once beyond what a plan keeps.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from asyncpq import DataFile, Expression, Session
from asyncpq.distributed import EngineScan, PlannedChunk, PlanningJobs, ScanTasks, TaskScan, plan_tasks, run_on_worker
from asyncpq.spark.driver import CallerThread, described_jobs, raised_as_asyncpq
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.task_rows import mapped_tasks
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import HAS_OLD_DATES, NEEDS_JVM_ZONE, FileDates, ReadConf, inner_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_AGAIN: Final = "create a new DataFrame, or restart the stream."


@dataclass(frozen=True, kw_only=True)
class LakeScan(EngineScan):
    """The description of a scan that all its tasks share, with Spark's types and settings. Picklable; without
    secrets."""

    again: ClassVar[str] = PLAN_AGAIN

    columns: tuple[str, ...]  # those of the predicate included, in the order of `spark_schema`
    spark_schema: str  # JSON of the StructType of `columns`
    rules: ReadConf
    partitioning: str = ""  # how values in paths are read
    settings: SparkSettings

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        return *super().cache_key, self.partitioning

    def converter(
        self, schema: pa.Schema, of_file: FileDates, names: Mapping[str, str]
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return converter(schema, spark_struct(self.spark_schema), self.rules, of_file.renamed(names))


def lake_of(opened: OpenLake, places: Sequence[int], settings: SparkSettings) -> LakeScan:
    """Return the scan of the columns at the positions ``places``. Its tasks read a loaded table with the table's own
    storage options, but for credentials, which a plan does not carry."""
    return LakeScan.of(
        opened.state,
        schema=opened.schema,
        skips=False,  # the planner has left them out
        columns=tuple([opened.names[place] for place in places]),
        skips_missing=opened.conf.ignore_missing_files,
        spark_schema=StructType([opened.struct.fields[place] for place in places]).json(),
        rules=opened.conf,
        settings=settings.of_table(opened.storage),
    )


async def plan_lake(
    opened: OpenLake,
    *,
    settings: SparkSettings,
    columns: Sequence[str] | None = None,
    where: Expression | None = None,
    parallelism: int = 1,
    jobs: PlanningJobs | None = None,
    may_sample: bool = False,
) -> LakePlan:
    """Prune an opened dataset with a predicate, and pack the remaining rows into tasks.

    Args:
        columns: names of the columns to read, as Spark spells them; None for all.
        where: the predicate, in asyncpq's names and with its semantics.
        parallelism, jobs, may_sample: as in :func:`asyncpq.distributed.scan_planning.plan_tasks`.
    """
    places = range(len(opened.names)) if columns is None else list(dict.fromkeys(opened.columns(columns)))
    # only footers tell which files have nanoseconds
    opens_all = opened.conf.timestamp_loss is not None and any(
        _has_timestamps(opened.struct.fields[place].dataType) for place in places
    )
    return await plan_tasks(
        opened.state,
        replace(lake_of(opened, places, settings), partitioning=opened.partitioning, where=where),
        task_bytes=settings.split_bytes,
        most_tasks=settings.most_splits,
        parallelism=parallelism,
        work_folder=settings.work_folder,
        jobs=jobs,
        may_sample=may_sample and not opens_all,
        opens_all=opens_all,
    )


def _has_timestamps(dtype: DataType) -> bool:
    is_timestamp = isinstance(dtype, (TimestampType, TimestampNTZType))
    return is_timestamp or any(_has_timestamps(inner) for _, inner in inner_types(dtype))


#: The plan of a lake's scan: its tasks, and the cost of planning.
LakePlan: TypeAlias = ScanTasks[LakeScan]


def needs_jvm_zone(plan: LakePlan) -> bool:
    """Return whether old timestamps of a file depend on the JVM's time zone, which the scan's ``conf`` lacks."""
    return NEEDS_JVM_ZONE in plan.facts


def is_stored_alike(plan: LakePlan) -> bool:
    """Return whether all files that tasks read certainly store the columns with the types of the lake, and today's
    calendar."""
    return plan.stored_alike and HAS_OLD_DATES not in plan.facts


@lru_cache(maxsize=64)
def spark_struct(text: str) -> StructType:
    """Parse the JSON of a ``StructType``."""
    struct: StructType = StructType.fromJson(json.loads(text))
    return struct


# -- plans of very many files ---------------------------------------------------------------------


#: Files of one job, whose results the driver gets at once: with footers, about 1 KiB each, at most 16 KiB.
JOB_FILES: Final = 16_384
_TASK_FILES: Final = 256  # at most, of one task
_LEAST_TASK_FILES: Final = 16
_TASKS: Final = 4  # for each task that runs at once: files differ in cost

_RESULTS: Final = pa.schema({"id": pa.int64(), "payload": pa.binary()})


@dataclass(frozen=True)
class PlanFiles:
    """A function for ``mapInArrow`` that plans the files of tasks."""

    lake: LakeScan  # with the condition
    skips: bool  # bad files are left out
    num_files: int  # files that are planned together, which tell how large their pieces may be

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                planned = run_on_worker(self.lake.settings, partial(self._plan, pickle.loads(row["payload"])))
                yield pa.record_batch({"id": [row["id"]], "payload": [pickle.dumps(planned)]}, _RESULTS)

    async def _plan(self, files: Sequence[DataFile], session: Session) -> PlannedChunk:
        task_bytes = self.lake.settings.split_bytes
        return await PlannedChunk.of(
            self.lake, files, session, skips=self.skips, num_files=self.num_files, task_bytes=task_bytes
        )


@dataclass(frozen=True)
class SparkPlanning:
    """Plans files in Spark jobs, which the caller's thread starts: :class:`asyncpq.distributed.PlanningJobs`."""

    spark: SparkSession
    caller: CallerThread
    parallelism: int  # number of tasks that run at once

    async def chunks(self, scan: TaskScan, files: Sequence[DataFile], *, skips: bool) -> AsyncGenerator[PlannedChunk]:
        """Plan ``files`` in Spark jobs; yield what each task planned, of consecutive files, in the order of ``files``.

        Args:
            skips: leave out files that cannot be read, instead of failing.

        Raises:
            AsyncpqError: of a task that failed after all retries.
        """
        assert isinstance(scan, LakeScan)
        work = PlanFiles(scan, skips, len(files))
        for start in range(0, len(files), JOB_FILES):
            some = files[start : start + JOB_FILES]
            text = f"asyncpq plans {scan.url}: files {start + 1:,} to {start + len(some):,} of {len(files):,}"
            results = await self.caller.call(partial(self._results, work, some, text))
            for payload in results.sort_by("id").column("payload"):
                planned: PlannedChunk = pickle.loads(payload.as_buffer())
                yield planned

    def _results(self, work: PlanFiles, files: Sequence[DataFile], text: str) -> Any:
        wanted = -(-len(files) // (_TASKS * self.parallelism))
        step = min(_TASK_FILES, max(_LEAST_TASK_FILES, wanted))
        payloads = [pickle.dumps(_shipped(files[at : at + step])) for at in range(0, len(files), step)]
        planned = mapped_tasks(self.spark, work, payloads, from_arrow_schema(_RESULTS))
        with described_jobs(self.spark, text), raised_as_asyncpq():
            return planned.toArrow()


def _shipped(files: Sequence[DataFile]) -> list[DataFile]:
    """Return copies of the files without the attributes that tasks do not need."""
    return [replace(file, bounds={}) for file in files]
