"""The scan of a lake for Spark: tasks read the files by Spark's rules, as batches of Spark's types."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncpq import Expression, TableField, View
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.distributed import PlanningJobs, ScanTasks, TaskScan, plan_again_hint, plan_tasks
from asyncpq.errors import located
from asyncpq.events import Operation
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.scan.executor import ScanExecutor, UnitRows
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.spark.reads.file_reads import HAS_OLD_DATES, NEEDS_JVM_ZONE, STORED_OTHERWISE, SparkRequests
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.calendars import FileDates, file_dates
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import ReadConf

PLAN_AGAIN: Final = "create a new DataFrame, or restart the stream."


@dataclass(frozen=True, kw_only=True)
class LakeScan(TaskScan):
    """What all tasks of a scan share, with Spark's types and settings. Picklable; without secrets."""

    columns: tuple[str, ...]  # those of the predicate included, in the order of `spark_schema`
    spark_schema: str  # JSON of the StructType of `columns`
    conf: ReadConf
    partitioning: str = ""  # how values in paths are read
    settings: SparkSettings

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        return *super().cache_key, self.conf, self.partitioning

    def requests(self, state: DatasetState, request: ScanRequest, *, are_planned: bool = False) -> SparkRequests:
        return SparkRequests(state, request, self.conf, are_planned=are_planned)

    def stream(
        self,
        state: DatasetState,
        operation: Operation,
        files: DatasetFiles,
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        combine_rows: int = 0,
    ) -> RecordBatchStream:
        """Return the stream of the rows of ``files``, in batches of Spark's types.

        ``batch_size``: maximum rows of a batch. ``combine_rows``: small tables are combined to tables of about this
        number of rows; 0 leaves them as they are.
        """
        return RecordBatchStream(
            operation,
            ScanExecutor(state.runtime, self.url, files),
            lambda: pa.schema([]),
            SparkTables(self.spark_schema, self.conf).of,
            batch_size=batch_size,
            limit=None,
            combine_rows=combine_rows,
        )

    def hinted(self) -> AbstractContextManager[None]:
        return plan_again_hint(PLAN_AGAIN, self.view == View.SNAPSHOT)


def lake_of(opened: OpenLake, places: Sequence[int], settings: SparkSettings) -> LakeScan:
    """Return the scan of the columns at the positions ``places``. Its tasks read a loaded table with the table's own
    storage options, but for credentials, which a plan does not carry."""
    state = opened.state
    return LakeScan(
        url=state.url,
        description=state.source.description,
        view=str(state.source.view),
        schema=opened.schema,
        fields=state.columns.fields,
        columns=tuple([opened.names[place] for place in places]),
        skips_missing=opened.conf.ignore_missing_files,
        spark_schema=StructType([opened.struct.fields[place] for place in places]).json(),
        conf=opened.conf,
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
    return await plan_tasks(
        opened.state,
        replace(lake_of(opened, places, settings), partitioning=opened.partitioning, where=where),
        task_bytes=settings.split_bytes,
        most_tasks=settings.most_splits,
        parallelism=parallelism,
        work_folder=settings.work_folder,
        jobs=jobs,
        may_sample=may_sample,
    )


#: The plan of a lake's scan: its tasks, and the cost of planning.
LakePlan: TypeAlias = ScanTasks[LakeScan]


def needs_jvm_zone(plan: LakePlan) -> bool:
    """Return whether old timestamps of a file depend on the JVM's time zone, which the scan's ``conf`` lacks."""
    return NEEDS_JVM_ZONE in plan.facts


def is_stored_alike(plan: LakePlan) -> bool:
    """Return whether all files that tasks read certainly store the columns with the types of the lake, and today's
    calendar."""
    return not plan.unopened and plan.facts.isdisjoint((HAS_OLD_DATES, STORED_OTHERWISE))


class SparkTables:
    """Converts the tables of one read to the columns of a Spark schema, which is given as the JSON of a
    ``StructType``."""

    def __init__(self, struct: str, conf: ReadConf) -> None:
        self._struct = spark_struct(struct)
        self._conf = conf
        # usually serves the next file, too
        self._last: tuple[pa.Schema, FileDates, Callable[[pa.RecordBatch], pa.RecordBatch]] | None = None

    def of(self, rows: UnitRows[OpenedFile]) -> list[pa.Table]:
        """Return the tables of ``rows``, converted to Spark's types, without empty ones. Errors name the file."""
        version, conf = rows.file.version, self._conf
        with located(url=version.url):
            dates = version.derived(("spark dates", conf), lambda: file_dates(version.metadata, conf))
            dates = _named(dates, rows.file.file.fields or ())
            return [self._converted(table, dates) for table in rows.tables if table.num_rows]

    def _converted(self, table: pa.Table, dates: FileDates) -> pa.Table:
        last = self._last
        if last is None or last[0] != table.schema or last[1] != dates:
            last = self._last = table.schema, dates, converter(table.schema, self._struct, self._conf, dates)
        return pa.Table.from_batches([last[2](batch) for batch in table.to_batches()])


def _named(dates: FileDates, fields: Sequence[TableField]) -> FileDates:
    """Return ``dates``, which name fields as the file does, with the lake's column names instead."""
    names = {field.names[0]: field.name for field in fields if field.names} if dates.int96_fields else {}
    if not names:
        return dates
    int96, mixed = (
        frozenset(names.get(name, name) for name in group) for group in (dates.int96_fields, dates.mixed_fields)
    )
    return replace(dates, int96_fields=int96, mixed_fields=mixed)


@lru_cache(maxsize=64)
def spark_struct(text: str) -> StructType:
    """Parse the JSON of a ``StructType``."""
    struct: StructType = StructType.fromJson(json.loads(text))
    return struct
