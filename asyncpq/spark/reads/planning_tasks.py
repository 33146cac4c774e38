"""Plan many files in Spark tasks: executors read the footers, prune row groups, and pack the others into pieces.

The driver sends files and a condition, and gets encoded pieces of the plan, the versions of their files, and the
statistics of the footers. It asks for the files in jobs of ``JOB_FILES``, so it never holds the results of all files at
once beyond what a plan keeps.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from asyncpq import DataFile, Session
from asyncpq.distributed import PlannedChunk, TaskScan, run_on_worker
from asyncpq.spark.driver import CallerThread, described_jobs, raised_as_asyncpq
from asyncpq.spark.reads.lake_scan import LakeScan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files of one job, whose results the driver gets at once: with footers, about 1 KiB each, at most 16 KiB.
JOB_FILES: Final = 16_384
_TASK_FILES: Final = 256  # at most, of one task
_LEAST_TASK_FILES: Final = 16
_TASKS: Final = 4  # for each task that runs at once: files differ in cost

_RESULTS: Final = pa.schema([pa.field("number", pa.int32()), pa.field("payload", pa.binary())])


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
                arrays = [pa.array([row["number"]], pa.int32()), pa.array([pickle.dumps(planned)], pa.binary())]
                yield pa.record_batch(arrays, _RESULTS)

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
            for payload in results.sort_by("number").column("payload"):
                planned: PlannedChunk = pickle.loads(payload.as_buffer())
                yield planned

    def _results(self, work: PlanFiles, files: Sequence[DataFile], text: str) -> Any:
        wanted = -(-len(files) // (_TASKS * self.parallelism))
        step = min(_TASK_FILES, max(_LEAST_TASK_FILES, wanted))
        payloads = [pickle.dumps(_shipped(files[at : at + step])) for at in range(0, len(files), step)]
        numbers = pa.array(range(len(payloads)), pa.int32())
        tasks = self.spark.createDataFrame(pa.table({"number": numbers, "payload": pa.array(payloads, pa.binary())}))
        planned = tasks.repartitionById(len(payloads), "number").mapInArrow(work, from_arrow_schema(_RESULTS))
        with described_jobs(self.spark, text), raised_as_asyncpq():
            return planned.toArrow()


def _shipped(files: Sequence[DataFile]) -> list[DataFile]:
    """Return copies of the files without the attributes that tasks do not need."""
    return [replace(file, bounds={}) for file in files]
