"""The scan of a lake for Spark: tasks read the files by Spark's rules, as batches of Spark's types."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from asyncpq import Expression
from asyncpq.distributed import EngineScan, PlanningJobs, ScanTasks, plan_tasks
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import HAS_OLD_DATES, NEEDS_JVM_ZONE, FileDates, ReadConf, inner_types

PLAN_AGAIN: Final = "create a new DataFrame, or restart the stream."


@dataclass(frozen=True, kw_only=True)
class LakeScan(EngineScan):
    """What all tasks of a scan share, with Spark's types and settings. Picklable; without secrets."""

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
