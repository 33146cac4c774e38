"""Plan a read on the driver: prune files and row groups, and pack the rest into splits.

The driver plans with the code of every read (``DatasetFiles.described``). If it has opened a file, the split carries
the parts of the footer (up to 16 KiB a file) and the page locations that the tasks need, in the encoding of the index
table "footers". So tasks open none of these files again. Plans of up to 64 MiB are sent; larger ones go to the work
folder, where later plans remove those of a week ago. ``DataFile.pinned`` makes another version an error, not a reason
to restart.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.errors import InvalidOptionError, StoreError
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_made, encode_shared
from asyncpq.indexing.index_model import file_key
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.options import KIB, MIB
from asyncpq.parquet.footer import leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import encode_offset_index
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import SparkRequests
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.splits import LakeScan, PlannedFile, SplitPacker, SplitPiece, group_pieces, pack_split
from asyncpq.spark.sessions import told_to_refresh
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.types.rebase import file_dates
from asyncpq.storage.base import RequestContext, writable

logger = logging.getLogger(__name__)

#: Maximum bytes of a plan that the driver keeps and sends. The rest goes to the work folder.
MOST_SENT_BYTES: Final = 64 * MIB
#: Plans in the work folder that are older are removed when another plan is written there.
PLAN_S: Final = 7 * 86_400.0
_MOST_REMOVED: Final = 1000  # plans in one pass
_OF_PLAN: Final = re.compile(r"[0-9a-f]{32}/\d+\.splits")
_MOST_FOOTER_BYTES: Final = 16 * KIB  # footer payload of one file in a split
_MOST_SHARED_BYTES: Final = 256 * KIB  # larger footers are not compressed to fit
_PAYLOAD_FILE: Final = 0  # id of the file in the keys of its payloads

#: Makes the predicate to prune by, from struct, schema and names; None: nothing is pruned.
Pruning = Callable[[StructType, pa.Schema, Sequence[str]], Expression | None]


@dataclass(frozen=True, kw_only=True)
class LakePlan:
    """A planned read.

    Attributes:
        lake: what all splits share.
        struct: all columns of the lake as Spark has them, including those that are not read.
        splits: one for each task.
        metrics: cost of planning.
        index: report of the index.
        needs_jvm_zone: old timestamps of a file depend on the time zone of Spark's JVM, which ``lake.conf`` lacks.
        num_files: files that tasks read, at least in part.
        unopened: how many of these files were planned without opening them.
    """

    lake: LakeScan
    struct: StructType
    splits: tuple[tuple[SplitPiece, ...], ...]
    metrics: ReadMetrics
    index: tuple[str, ...] = ()
    needs_jvm_zone: bool = False
    num_files: int = 0
    unopened: int = 0

    @property
    def num_bytes(self) -> int:
        """Approximate compressed bytes that tasks read."""
        return sum(piece.num_bytes for split in self.splits for piece in split)

    def tasks(self) -> list[bytes]:
        """The encoded splits for :func:`asyncpq.spark.reads.reading.read_split`."""
        return [pack_split(split) for split in self.splits]


async def plan_lake(
    opened: OpenLake,
    *,
    conf: ReadConf,
    settings: SparkSettings,
    columns: Sequence[str] | None = None,
    pruning: Pruning | None = None,
    parallelism: int = 1,
) -> LakePlan:
    """Prune an opened dataset by a predicate and pack the remaining rows into splits.

    Without a predicate, files whose versions a listing tells are not opened.

    Args:
        columns: names of the columns to read, as Spark spells them; None for all.
        parallelism: number of tasks that run at once.

    Raises:
        AsyncpqError: the dataset cannot be planned.
    """
    names, state = opened.names, opened.state
    places = range(len(names)) if columns is None else list(dict.fromkeys(opened.columns(columns, conf)))
    where = None if pruning is None else pruning(opened.struct, opened.schema, names)
    operation = state.runtime.operation("plan", state.url)
    ask = ScanRequest(columns=tuple(names[at] for at in places), where=where)
    packer, kept, urls = SplitPacker(settings.split_bytes), _PieceStore(state, settings), set[str]()
    with told_to_refresh(opened.is_snapshot), operation:
        whole = list[PlannedFile]()
        if where is None and not state.skips:
            share = len(places) / max(1, len(names))
            whole, state = await _without_unopened(state, ask, operation, settings.split_bytes, share)
        requests = SparkRequests(state, ask, conf)
        files = DatasetFiles(state, ask, operation, scan=True, requests=requests)
        look = _FilePlanner(requests, settings.split_bytes)
        async with aclosing(_planned_files(whole, files, look)) as planned:
            async for file in planned:
                urls.add(file.url)
                for piece in packer.add(file):
                    await kept.add(piece)
        operation.metrics.files_total += len(whole)
        for piece in packer.finish():
            await kept.add(piece)
        pieces = await kept.finish()
    lake = replace(
        lake_of(opened, places, conf, settings),
        variants=tuple(requests.variants),
        partitioning=opened.partitioning,
        where=where,
    )
    splits = group_pieces(
        pieces, split_bytes=settings.split_bytes, most_splits=settings.most_splits, parallelism=parallelism
    )
    return LakePlan(
        lake=lake,
        struct=opened.struct,
        splits=tuple(splits),
        metrics=operation.metrics,
        index=files.report(),
        needs_jvm_zone=requests.needs_jvm_zone,
        num_files=len(urls),
        unopened=len(whole),
    )


def lake_of(opened: OpenLake, places: Sequence[int], conf: ReadConf, settings: SparkSettings) -> LakeScan:
    """The part of a plan that all tasks share.

    Args:
        places: positions of the columns to read.
    """
    state = opened.state
    return LakeScan(
        url=state.url,
        description=state.source.description,
        view=str(state.source.view),
        schema=opened.schema,
        fields=state.columns.fields,
        columns=tuple(opened.names[at] for at in places),
        spark_schema=StructType([opened.struct.fields[at] for at in places]).json(),
        conf=conf,
        settings=settings,
    )


# -- files ----------------------------------------------------------------------------------------


async def _without_unopened(
    state: DatasetState, ask: ScanRequest, operation: Operation, split_bytes: int, share: float
) -> tuple[list[PlannedFile], DatasetState]:
    """Files that need not be opened, and the dataset without them.

    Args:
        share: approximate share of their bytes that is read.
    """
    files = (await state.source.files(ask, operation)).files
    whole = [found for found in (_unopened(file, split_bytes, share) for file in files) if found is not None]
    known = {file.url for file in whole}
    return whole, replace(
        state, source=_RemainingFiles(state.source, [file for file in files if file.url not in known])
    )


async def _planned_files(
    whole: Sequence[PlannedFile], files: DatasetFiles, look: _FilePlanner
) -> AsyncGenerator[PlannedFile]:
    """The ``whole`` files, then the rows that remain of the files that ``files`` opens and prunes."""
    for file in whole:
        yield file
    async with aclosing(files.described(look)) as found:
        async for some in found:
            for file in some:
                yield file


def _unopened(file: DataFile, most_bytes: int, share: float) -> PlannedFile | None:
    """The file as a whole, if it can be planned without opening it.

    Args:
        share: approximate share of its bytes that is read.
    """
    validator, entry = file.validator, file.entry
    if validator is None or not validator.is_strong or file.content is not None or file.deletes is not None:
        return None
    if validator.size > most_bytes or file.fields is not None or (entry is not None and not entry.access.is_all):
        return None
    return PlannedFile(
        url=file.url,
        validator=validator,
        num_rows=file.num_rows or 0,
        num_bytes=int(validator.size * share),
        filtered=False,
        immutable=file.immutable,
        partition=file.partition,
    )


class _RemainingFiles:
    """A given part of the files of another :class:`asyncpq.datasets.providers.FileProvider`."""

    known: FileSet | None = None

    def __init__(self, source: FileProvider, files: Sequence[DataFile]) -> None:
        self.view: View = source.view
        self.description = source.description
        self._files = files

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        return FileSet(self._files)


class _FilePlanner:
    """Makes planned files of an opened and pruned file."""

    def __init__(self, requests: SparkRequests, split_bytes: int) -> None:
        self._requests = requests
        self._split_bytes = split_bytes

    async def __call__(self, opened: OpenedFile) -> list[PlannedFile]:
        prepared, version, file = opened.plan, opened.version, opened.file
        if prepared is None:
            return []
        dates = file_dates(version.metadata, self._requests.conf)
        self._requests.needs_jvm_zone |= any(
            calendar.mode == "LEGACY" and calendar.zone is None for calendar in (dates.datetime, dates.int96)
        )
        fields = (
            self._requests.variant(file.fields) if self._requests.is_table else 0
        )  # otherwise tasks match names themselves
        footers: dict[tuple[int, ...], dict[int, bytes]] = {}
        planned: list[PlannedFile] = []
        for groups in _runs(prepared.fetch_plan.row_groups, self._split_bytes):
            leaves = tuple(sorted(column.chunk.leaf for column in groups[0].columns))
            if leaves not in footers:
                footers[leaves] = _footers(version, leaves)
            rows = _rows(version, groups)
            planned.append(
                PlannedFile(
                    url=file.url,
                    validator=None if file.content is not None else version.validator,
                    rows=None if rows.num_rows == version.metadata.num_rows else rows,
                    num_rows=rows.num_rows,
                    num_bytes=sum(column.num_bytes for group in groups for column in group.columns),
                    filtered=groups[0].filtered,
                    immutable=file.immutable,
                    partition=file.partition,
                    fields=fields,
                    content=file.content,
                    footers=footers[leaves],
                    pages=_pages(groups) if footers[leaves] else {},
                )
            )
        return planned


def _runs(groups: Sequence[RowGroupPlan], split_bytes: int) -> Iterator[list[RowGroupPlan]]:
    """Consecutive row groups with the same need of a filter, cut at the size of a split."""
    run: list[RowGroupPlan] = []
    size = 0
    for group in groups:
        num_bytes = sum(column.num_bytes for column in group.columns)
        if run and (group.filtered is not run[0].filtered or size + num_bytes > split_bytes):
            yield run
            run, size = [], 0
        run.append(group)
        size += num_bytes
    if run:
        yield run


def _rows(version: FileVersion, groups: Sequence[RowGroupPlan]) -> RowRanges:
    known = version.metadata.row_groups
    return RowRanges.from_sorted(
        (start + known[group.ordinal].first_row, stop + known[group.ordinal].first_row)
        for group in groups
        for start, stop in group.rows
    )


def _footers(version: FileVersion, leaves: Sequence[int]) -> dict[int, bytes]:
    """The parts of the footer that reading these leaves needs; empty if they are large."""
    metadata = version.metadata
    chunks = {leaf: leaf_pieces(metadata, leaf) for leaf in leaves}
    size = sum(len(chunk) for some in chunks.values() for chunk in some)
    if size > _MOST_FOOTER_BYTES:
        return {}
    shared = shared_pieces(metadata)
    if sum(map(len, shared)) > _MOST_SHARED_BYTES:
        return {}
    entry = SharedEntry(version.footer_start, version.size, len(metadata.schema.leaves), shared)
    found = {SHARED: encode_shared(file_key(_PAYLOAD_FILE, SHARED), entry)}
    for leaf, some in chunks.items():
        found[leaf] = encode_leaf(file_key(_PAYLOAD_FILE, leaf), LeafEntry(some, []))
    return found if sum(map(len, found.values())) <= _MOST_FOOTER_BYTES else {}


def _pages(groups: Sequence[RowGroupPlan]) -> dict[int, bytes]:
    """The page locations that the plan uses, by leaf."""
    made: dict[int, dict[int, MadeIndex]] = {}
    for group in groups:
        for column in group.columns:
            if column.offsets is not None:
                index = MadeIndex(encode_offset_index(column.offsets), None)
                made.setdefault(column.chunk.leaf, {})[group.ordinal] = index
    return {leaf: encode_made(file_key(_PAYLOAD_FILE, leaf), some) for leaf, some in made.items()}


# -- large plans ----------------------------------------------------------------------------------


class _PieceStore:
    """The pieces of a plan. If they are many, they go to the work folder, and only their places stay in memory."""

    def __init__(self, state: DatasetState, settings: SparkSettings) -> None:
        self._state = state
        self._folder = settings.work_folder
        self._pieces: list[SplitPiece] = []
        self._waiting: list[int] = []  # numbers of the pieces whose bytes are in memory
        self._num_bytes = 0
        self._name = uuid.uuid4().hex
        self._objects = 0

    async def add(self, piece: SplitPiece) -> None:
        """Add a piece.

        Raises:
            InvalidOptionError: the plan is too large to be sent, and there is no work folder.
        """
        if piece.data is None:
            raise AssertionError("a piece has its bytes until it is put into the work folder")
        self._waiting.append(len(self._pieces))
        self._pieces.append(piece)
        self._num_bytes += len(piece.data)
        if self._num_bytes > MOST_SENT_BYTES:
            await self._put_down()

    async def finish(self) -> list[SplitPiece]:
        """Return all pieces in order."""
        if self._objects:
            if self._waiting:
                await self._put_down()
            await self._remove_old()
        return self._pieces

    async def _put_down(self) -> None:
        if self._folder is None:
            raise InvalidOptionError(
                f"the plan has more than {MOST_SENT_BYTES} bytes and needs a work folder",
                hint="Set a folder that driver and executors reach: spark.asyncpq.workFolder, or work_folder=.",
            )
        url = f"{self._plans}{self._name}/{self._objects}.splits"
        parts: list[bytes] = []
        at = 0
        for number in self._waiting:
            piece = self._pieces[number]
            if piece.data is not None:
                stop = at + len(piece.data)
                parts.append(piece.data)
                self._pieces[number] = replace(piece, data=None, place=(url, at, stop))
                at = stop
        runtime = self._state.runtime
        store, _ = await runtime.store(url)
        context = RequestContext(ReadMetrics(), purpose="write")
        await writable(store, url).put_object(url, b"".join(parts), context=context)
        self._objects += 1
        self._waiting.clear()
        self._num_bytes = 0

    @property
    def _plans(self) -> str:
        return f"{(self._folder or '').rstrip('/')}/plans/"

    async def _remove_old(self) -> None:
        """Remove old plans. The driver does not learn when a plan is no longer needed, but DataFrames do not live for
        days."""
        context = RequestContext(ReadMetrics(), purpose="list")
        try:
            store = writable((await self._state.runtime.store(self._plans))[0], self._plans)
            now = await store.clock(self._plans, context=context)
            old = [
                one.url
                for one in await store.list_objects(self._plans, context=context)
                if _OF_PLAN.fullmatch(one.url[len(self._plans) :])
                and one.modified is not None
                and now - one.modified > PLAN_S
            ]
            await store.delete_objects(old[:_MOST_REMOVED], context=context.step("write", context.round + 1))
        except StoreError as error:
            logger.warning("old plans could not be removed from %s: %s", self._plans, error)
