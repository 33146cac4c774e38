"""Plan many files in Spark tasks: executors read the footers, prune row groups, and pack the others into pieces.

The driver sends files and a condition, and gets encoded pieces of the plan, the versions of their files, and the
statistics of the footers. It asks for the files in jobs of ``JOB_FILES``, so it never holds the results of all files at
once beyond what a plan keeps.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.footer_statistics import Learnt
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.providers import GivenFiles
from asyncpq.metrics import ReadMetrics
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.driver import CallerThread, described_jobs
from asyncpq.spark.reads.file_reads import FileTraits, SparkRequests
from asyncpq.spark.reads.packing import SplitPacker, cost_of
from asyncpq.spark.reads.planned_files import plan_opened
from asyncpq.spark.reads.splits import LakeScan, PlannedFile, SplitPiece, columns_of
from asyncpq.storage.base import Validator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The driver plans at most so many files itself: a job takes about as long.
MOST_ON_DRIVER: Final = 4096
#: Files of one job, whose results the driver gets at once: with footers, about 1 KiB each, at most 16 KiB.
JOB_FILES: Final = 16_384
_TASK_FILES: Final = 256  # at most, of one task
_LEAST_TASK_FILES: Final = 16
_TASKS: Final = 4  # for each task that runs at once: files differ in cost

_RESULTS: Final = pa.schema([pa.field("number", pa.int32()), pa.field("payload", pa.binary())])


@dataclass(frozen=True, kw_only=True)
class PlannedChunk:
    """The plan of consecutive files, made by one task."""

    pieces: tuple[SplitPiece, ...]
    versions: Mapping[str, Validator | None]  # of the files that tasks read, by url
    num_rows: int
    learnt: Mapping[str, Mapping[str, Learnt]]  # statistics of footers, by column and url
    traits: FileTraits
    metrics: ReadMetrics


@dataclass(frozen=True)
class PlanFiles:
    """A function for ``mapInArrow`` that plans the files of tasks."""

    lake: LakeScan  # with the condition
    skips: bool  # bad files are left out
    num_files: int  # files that are planned together, which tell how large their pieces may be

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                planned = sessions.run(self.lake.settings, partial(self.plan, pickle.loads(row["payload"])))
                arrays = [pa.array([row["number"]], pa.int32()), pa.array([pickle.dumps(planned)], pa.binary())]
                yield pa.record_batch(arrays, _RESULTS)

    async def plan(self, files: Sequence[DataFile], session: Session) -> PlannedChunk:
        """Plan ``files`` in this task's session, as the driver does for plans of fewer files."""
        lake, runtime = self.lake, session.runtime
        source = GivenFiles(files, view=View(lake.view), description=lake.description)
        state = DatasetState(
            runtime=runtime,
            url=lake.url,
            source=source,
            columns=columns_of(lake),
            skips=self.skips,
            skips_missing=lake.conf.ignore_missing_files,
        )
        request = ScanRequest(columns=lake.columns, where=lake.where)
        operation = runtime.operation("plan", lake.url)
        requests = SparkRequests(state, request, lake.conf)
        requests.variants = list(lake.variants)
        planned: list[PlannedFile] = []
        with operation:
            found = DatasetFiles(state, request, operation, scan=True, requests=requests)
            look = partial(plan_opened, requests, lake.settings.split_bytes)
            async with aclosing(found.described(look)) as described:
                async for parts in described:
                    planned += parts
        # the other tasks' files match as often as these
        packer = SplitPacker(lake.settings.split_bytes, sum(map(cost_of, planned)) * self.num_files // len(files))
        pieces = [piece for file in planned for piece in packer.add(file)] + [*packer.finish()]
        return PlannedChunk(
            pieces=tuple([piece.encoded() for piece in pieces]),
            versions={file.url: file.validator for file in planned},
            num_rows=sum(file.num_rows for file in planned),
            learnt=state.known.learnt,
            traits=requests.traits,
            metrics=_sent(operation.metrics),
        )


def _sent(metrics: ReadMetrics) -> ReadMetrics:
    """Return a copy of a task's metrics with the counts that the driver adds to its own, without counts of files,
    which the driver has made already."""
    counts = metrics.counts()
    names = ReadMetrics.__dataclass_fields__.keys() & counts.keys() - {"files_total", "files_ruled_out"}
    return ReadMetrics(**{name: counts[name] for name in names})


@dataclass(frozen=True)
class PlanningJobs:
    """Plans files in Spark jobs, which the caller's thread starts."""

    spark: SparkSession
    caller: CallerThread
    parallelism: int  # number of tasks that run at once

    async def chunks(self, lake: LakeScan, files: Sequence[DataFile], *, skips: bool) -> AsyncGenerator[PlannedChunk]:
        """Plan ``files`` in Spark jobs; yield what each task planned, of consecutive files, in the order of ``files``.

        Args:
            skips: leave out files that cannot be read, instead of failing.

        Raises:
            AsyncpqError: of a task that failed after all retries.
        """
        work = PlanFiles(lake, skips, len(files))
        for start in range(0, len(files), JOB_FILES):
            some = files[start : start + JOB_FILES]
            text = f"asyncpq plans {lake.url}: files {start + 1:,} to {start + len(some):,} of {len(files):,}"
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
        with described_jobs(self.spark, text), sessions.raised_as_asyncpq():
            return planned.toArrow()


def is_planned_by_tasks(file: DataFile) -> bool:
    """Return whether a task can plan the file. Files with deleted rows, or with a footer in an index, are planned on
    the driver."""
    return (
        file.content is None
        and file.deletes is None
        and file.unreadable is None
        and (file.entry is None or file.entry.known is None)
    )


def _shipped(files: Sequence[DataFile]) -> list[DataFile]:
    """Return copies of the files without the attributes that tasks do not need."""
    return [replace(file, bounds={}) for file in files]
