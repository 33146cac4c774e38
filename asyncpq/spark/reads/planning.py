"""Plan a read: prune files and row groups, and pack the rest into splits.

The driver plans with the code of every read (``DatasetFiles.described``); if very many files must be opened, tasks do
that (``PlanningJobs``). If a file was opened, the split carries the parts of the footer (up to 16 KiB a file) and the
page locations that the tasks need, in the encoding of the index table "footers". So tasks open none of these files
again. Plans of up to 64 MiB are sent; larger ones go to the work folder, where later plans remove those of a week ago.
``DataFile.pinned`` makes another version an error, not a reason to restart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import FileSet, GivenFiles
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.prices import Prices
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import SET_FILES, SparkRequests, file_sets
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.packing import MOST_VERSIONS, PieceStore, group_pieces
from asyncpq.spark.reads.planned_files import plan_opened, plan_unopened
from asyncpq.spark.reads.planning_tasks import MOST_ON_DRIVER, PlanningJobs, is_planned_by_tasks
from asyncpq.spark.reads.splits import LakeScan, PlannedFile, SplitPiece, columns_of, pack_split
from asyncpq.spark.sessions import refresh_hint
from asyncpq.spark.settings import SparkSettings
from asyncpq.storage.base import Validator
from asyncpq.storage.urls import split_url

#: Files of a sample, and the least number of files that are worth one.
_SAMPLE: Final = 16
_LEAST_SAMPLED: Final = 64


@dataclass(frozen=True, kw_only=True)
class LakePlan:
    """The plan of a read: its splits, and the cost of planning."""

    lake: LakeScan
    splits: tuple[tuple[SplitPiece, ...], ...]  # one for each task
    metrics: ReadMetrics  # cost of planning
    index: tuple[str, ...] = ()  # report of the index
    needs_jvm_zone: bool = False  # old timestamps of a file depend on the JVM's time zone, which `lake.conf` lacks
    num_files: int = 0  # files that tasks read, at least in part
    whole_bytes: int = 0  # of these files
    # of these files, by url; incomplete if they are more than `packing.MOST_VERSIONS`
    versions: Mapping[str, Validator | None] = field(default_factory=dict)
    num_rows: int = 0  # rows that tasks read; those of unopened files count only if the listing knows their number
    # All files that tasks read certainly store the columns with the types of `lake.schema`, and today's calendar.
    stored_alike: bool = False
    prices: Prices  # of the store, as planning has measured them
    unopened: int = 0  # how many of these files were planned without opening them
    # Files that may not match are planned whole, since none of a sample was ruled out. Rows and bytes are those of the
    # sample, extrapolated: only Spark's own reader can take such a plan.
    is_sampled: bool = False

    @property
    def num_bytes(self) -> int:
        """Approximate compressed bytes that tasks read."""
        return sum(piece.num_bytes for split in self.splits for piece in split)

    def tasks(self) -> list[bytes]:
        """Return one encoded split for each task, for :func:`asyncpq.spark.reads.splits.read_split`."""
        return [pack_split(split) for split in self.splits]

    def one_task(self) -> bytes:
        """Return all splits as one, encoded."""
        return pack_split([piece for split in self.splits for piece in split])


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
    """Prune an opened dataset with a predicate, and pack the remaining rows into splits.

    Without a predicate, files are not opened if the listing identifies their versions.

    Args:
        columns: names of the columns to read, as Spark spells them; None for all.
        where: the predicate, in asyncpq's names and with its semantics.
        parallelism: number of tasks that run at once.
        jobs: plans very many files in Spark tasks. None: the driver plans all files.
        may_sample: open a sample of the files first, and no others if it rules out nothing.
    """
    state = opened.state
    places = range(len(opened.names)) if columns is None else list(dict.fromkeys(opened.columns(columns)))
    lake = replace(lake_of(opened, places, settings), partitioning=opened.partitioning, where=where)
    operation = state.runtime.operation("plan", state.url)
    pieces = PieceStore(state, settings)
    with refresh_hint(opened.is_snapshot), operation:
        planner = _FilePlanner(state, lake, operation, pieces)
        await planner.plan(jobs, may_sample=may_sample)
        requests = planner.requests
        splits = group_pieces(
            await pieces.finish(),
            split_bytes=settings.split_bytes,
            most_splits=settings.most_splits,
            parallelism=parallelism,
        )
    unopened = planner.num_unopened + planner.num_assumed
    return LakePlan(
        lake=replace(lake, variants=tuple(requests.variants)),
        splits=tuple(splits),
        metrics=operation.metrics,
        index=planner.index,
        needs_jvm_zone=requests.traits.needs_jvm_zone,
        num_files=pieces.num_files,
        whole_bytes=pieces.whole_bytes,
        versions=pieces.versions,
        num_rows=pieces.num_rows,
        stored_alike=not (unopened or requests.traits.stored_otherwise or requests.traits.has_old_dates),
        prices=state.runtime.price_book.prices(operation.metrics.server or split_url(state.url)[0]),
        unopened=unopened,
        is_sampled=planner.num_assumed > 0,
    )


class _FilePlanner:
    """Opens the files that may match, on the driver or, if they are very many, in tasks, and adds what they keep to the
    pieces. Statistics of their footers stay in the session's memory, for later plans of the same lake.

    Attributes:
        requests: for the files.
        index: report of the index.
        num_unopened: files that were planned whole without opening them, since there is no condition.
        num_assumed: files that were planned whole, as a sample of them was.
    """

    def __init__(self, state: DatasetState, lake: LakeScan, operation: Operation, pieces: PieceStore) -> None:
        self._request = ScanRequest(columns=lake.columns, where=lake.where)
        self.requests = SparkRequests(state, self._request, lake.conf)
        self.index: tuple[str, ...] = ()
        self.num_unopened = self.num_assumed = 0
        self._num_candidates = 0  # so far
        self._state = state
        self._lake = lake
        self._operation = operation
        self._pieces = pieces
        self._share = len(lake.columns) / max(1, len(lake.schema))  # of a file's bytes, estimated

    async def plan(self, jobs: PlanningJobs | None, *, may_sample: bool) -> None:
        """Plan all files."""
        state, lake = self._state, self._lake
        memory, key = state.runtime.memory, columns_of(lake).token
        if lake.where is not None:
            state.known.recall(memory, key, lake.where, lake.schema)
        may_sample = may_sample and lake.where is not None and not state.skips
        files = self._dataset_files(state)
        async with aclosing(self._sets()) as sets:
            async for found in sets:
                await files.extend(
                    await self._plan_unopened(found) if lake.where is None and not state.skips else found
                )
                if len(files.candidates) > SET_FILES:
                    await self._plan_candidates(files, jobs, may_sample=False)
                    may_sample = False
        await self._plan_candidates(files, jobs, may_sample=may_sample)
        self.index = files.report()
        state.known.remember(memory, key)

    async def _sets(self) -> AsyncGenerator[FileSet]:
        state = self._state
        if self._request.matches_nothing:
            yield FileSet(())
            return
        async with aclosing(file_sets(state.source, self._request, self._operation)) as sets:
            while True:
                async with state.runtime.deadline(state.url):
                    found = await anext(sets, None)
                if found is None:
                    return
                yield found

    async def _plan_unopened(self, found: FileSet) -> FileSet:
        """Plan those of ``found`` that need not be opened; return the others."""
        remaining = list[DataFile]()
        for file in found.files:
            planned = plan_unopened(file, self._lake.settings.split_bytes, self._share)
            if planned is None:
                remaining.append(file)
            else:
                await self._pieces.add(planned)
        num_planned = len(found.files) - len(remaining)
        self.num_unopened += num_planned
        self._operation.metrics.files_total += num_planned
        return found._replace(files=remaining, total=None if found.total is None else found.total - num_planned)

    async def _plan_candidates(self, files: DatasetFiles, jobs: PlanningJobs | None, *, may_sample: bool) -> None:
        """Plan the candidates of ``files``, and forget them. ``may_sample`` may be true only if there are no others."""
        candidates = files.candidates
        if not candidates:
            return
        self._num_candidates += len(candidates)
        may_sample = may_sample and _LEAST_SAMPLED <= len(candidates) <= MOST_VERSIONS
        if assumed := await self._sampled(candidates) if may_sample else []:
            self.num_assumed = len(assumed)
            for planned in assumed:
                await self._pieces.add(planned)
        elif jobs is not None and self._num_candidates > MOST_ON_DRIVER and all(map(is_planned_by_tasks, candidates)):
            await self._plan_in_tasks(jobs, candidates)
        else:
            async for planned in self._opened(files):
                await self._pieces.add(planned)
        files.drop_candidates()

    def _dataset_files(self, state: DatasetState) -> DatasetFiles:
        return DatasetFiles(state, self._request, self._operation, scan=True, requests=self.requests)

    async def _opened(self, files: DatasetFiles) -> AsyncIterator[PlannedFile]:
        look = partial(plan_opened, self.requests, self._lake.settings.split_bytes)
        async with aclosing(files.described(look)) as described:
            async for parts in described:
                for planned in parts:
                    yield planned

    async def _plan_in_tasks(self, jobs: PlanningJobs, candidates: Sequence[DataFile]) -> None:
        state, lake = self._state, self._lake
        for file in candidates:
            self.requests.variant(file.fields)  # so that all tasks give them the same numbers
        sent = replace(lake, variants=tuple(self.requests.variants))
        async with aclosing(jobs.chunks(sent, candidates, skips=state.skips)) as chunks:
            async for chunk in chunks:
                await self._pieces.add_packed(chunk.pieces, chunk.versions, chunk.num_rows)
                state.known.add(chunk.learnt, state.runtime.memory.max_bytes)
                self.requests.traits |= chunk.traits
                self._operation.metrics.add_part(chunk.metrics)

    async def _sampled(self, candidates: Sequence[DataFile]) -> list[PlannedFile]:
        """Return the plan to read all files whole, with the rows and bytes that a sample of them keeps on average.

        Empty if a file of the sample is ruled out, or a file must be opened for planning.
        """
        whole = [plan_unopened(file, self._lake.settings.split_bytes, self._share) for file in candidates]
        files = [file for file in whole if file is not None]
        if len(files) < len(candidates):
            return []
        chosen = [candidates[number * len(candidates) // _SAMPLE] for number in range(_SAMPLE)]
        source, metrics = self._state.source, self._operation.metrics
        total, ruled_out = metrics.files_total, metrics.files_ruled_out
        given = GivenFiles(chosen, view=source.view, description=source.description)
        kept = [planned async for planned in self._opened(self._dataset_files(replace(self._state, source=given)))]
        metrics.files_total, metrics.files_ruled_out = total, ruled_out
        if len({planned.url for planned in kept}) < _SAMPLE:
            return []
        size = sum(file.validator.size for file in chosen if file.validator is not None)
        rows, num_bytes = (
            sum(numbers) / size for numbers in zip(*[(p.num_rows, p.num_bytes) for p in kept], strict=True)
        )
        return [
            replace(file, num_rows=int(rows * file.validator.size), num_bytes=int(num_bytes * file.validator.size))
            for file in files
            if file.validator is not None
        ]


def lake_of(opened: OpenLake, places: Sequence[int], settings: SparkSettings) -> LakeScan:
    """Return the part of a plan that all tasks share; ``places`` are the positions of the columns to read."""
    state = opened.state
    return LakeScan(
        url=state.url,
        description=state.source.description,
        view=str(state.source.view),
        schema=opened.schema,
        fields=state.columns.fields,
        columns=tuple([opened.names[place] for place in places]),
        spark_schema=StructType([opened.struct.fields[place] for place in places]).json(),
        conf=opened.conf,
        settings=settings,
    )
