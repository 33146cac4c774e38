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
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Final, TypeVar

from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.errors import InvalidOptionError, StoreError
from asyncpq.expressions import Expression
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_made, encode_shared
from asyncpq.indexing.index_model import file_key
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.options import KIB, MIB
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import encode_offset_index
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import SparkRequests
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.splits import (
    LakeScan,
    PlannedFile,
    SplitPiece,
    decode_files,
    encode_files,
    encode_partition,
    pack_split,
)
from asyncpq.spark.sessions import refresh_hint
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.calendars import file_dates
from asyncpq.storage.base import RequestContext, writable

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: Maximum bytes of a plan that the driver keeps and sends. The rest goes to the work folder.
MOST_SENT_BYTES: Final = 64 * MIB
#: Plans in the work folder that are older are removed when another plan is written there.
PLAN_S: Final = 7 * 86_400.0
_MOST_REMOVED: Final = 1000  # plans in one pass
_PLAN_NAME: Final = re.compile(r"[0-9a-f]{32}/\d+\.splits")
_MOST_FOOTER_BYTES: Final = 16 * KIB  # footer payload of one file in a split
_MOST_SHARED_BYTES: Final = 256 * KIB  # larger footers are not compressed to fit
_PAYLOAD_FILE: Final = 0  # id of the file in the keys of its payloads

#: Maximum bytes of an encoded split. Footer payloads that do not fit are left out; the task reads these footers.
#: Exceptions are files with inline content, and plans that ``most_splits`` limits.
MOST_SPLIT_BYTES: Final = 64 * KIB
#: Minimum bytes of data for a task.
LEAST_SPLIT_BYTES: Final = 4 * MIB
#: Cost of opening a file in bytes, which bounds the number of files in a split.
FILE_COST_BYTES: Final = 2 * MIB
_MOST_RANGES: Final = 3 * KIB  # row ranges of one file in a split
_PIECE_BYTES: Final = 4 * KIB  # overhead of an encoded piece
_PIECES: Final = 64  # pieces grow with the plan: its second half has about so many


@dataclass(frozen=True, kw_only=True)
class LakePlan:
    """The plan of a read: its splits, and the cost of planning."""

    lake: LakeScan
    splits: tuple[tuple[SplitPiece, ...], ...]  # one for each task
    metrics: ReadMetrics  # cost of planning
    index: tuple[str, ...] = ()  # report of the index
    needs_jvm_zone: bool = False  # old timestamps of a file depend on the JVM's time zone, which `lake.conf` lacks
    num_files: int = 0  # files that tasks read, at least in part
    unopened: int = 0  # how many of these files were planned without opening them

    @property
    def num_bytes(self) -> int:
        """Approximate compressed bytes that tasks read."""
        return sum(piece.num_bytes for split in self.splits for piece in split)

    def tasks(self) -> list[bytes]:
        """Return one encoded split for each task, for :func:`asyncpq.spark.reads.splits.read_split`."""
        return [pack_split(split) for split in self.splits]


async def plan_lake(
    opened: OpenLake,
    *,
    settings: SparkSettings,
    columns: Sequence[str] | None = None,
    where: Expression | None = None,
    parallelism: int = 1,
) -> LakePlan:
    """Prune an opened dataset with a predicate, and pack the remaining rows into splits.

    Without a predicate, files are not opened if the listing identifies their versions.

    Args:
        columns: names of the columns to read, as Spark spells them; None for all.
        where: the predicate, in asyncpq's names and with its semantics.
        parallelism: number of tasks that run at once.
    """
    state = opened.state
    places = range(len(opened.names)) if columns is None else list(dict.fromkeys(opened.columns(columns)))
    lake = lake_of(opened, places, settings)
    operation = state.runtime.operation("plan", state.url)
    request = ScanRequest(columns=lake.columns, where=where)
    pieces = _PieceStore(state, settings)
    with refresh_hint(opened.is_snapshot), operation:
        whole = list[PlannedFile]()
        if where is None and not state.skips:
            share = len(places) / max(1, len(opened.names))
            remaining = list[DataFile]()
            for file in (await state.source.files(request, operation)).files:
                unopened = _unopened(file, settings.split_bytes, share)
                remaining.append(file) if unopened is None else whole.append(unopened)
            source = state.source
            state = replace(state, source=GivenFiles(remaining, view=source.view, description=source.description))
        requests = SparkRequests(state, request, opened.conf)
        files = DatasetFiles(state, request, operation, scan=True, requests=requests)
        for planned in whole:
            await pieces.add(planned)
        async with aclosing(files.described(partial(_planned, requests, settings.split_bytes))) as described:
            async for parts in described:
                for planned in parts:
                    await pieces.add(planned)
        operation.metrics.files_total += len(whole)
        splits = group_pieces(
            await pieces.finish(),
            split_bytes=settings.split_bytes,
            most_splits=settings.most_splits,
            parallelism=parallelism,
        )
    return LakePlan(
        lake=replace(lake, variants=tuple(requests.variants), partitioning=opened.partitioning, where=where),
        splits=tuple(splits),
        metrics=operation.metrics,
        index=files.report(),
        needs_jvm_zone=requests.needs_jvm_zone,
        num_files=len(pieces.urls),
        unopened=len(whole),
    )


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


# -- files ----------------------------------------------------------------------------------------


def _unopened(file: DataFile, most_bytes: int, share: float) -> PlannedFile | None:
    """Return the plan to read a whole file; None if the file must be opened for planning. ``most_bytes`` is the maximum
    size of such a file. ``share`` is the estimated fraction of its bytes that is read."""
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


async def _planned(requests: SparkRequests, split_bytes: int, opened: OpenedFile) -> list[PlannedFile]:
    """Return the parts of an opened and pruned file to read; empty if pruning excluded the whole file."""
    if opened.plan is None:
        return []
    version, file = opened.version, opened.file
    dates = file_dates(version.metadata, requests.conf)
    requests.needs_jvm_zone |= any(
        calendar.mode == "LEGACY" and calendar.zone is None for calendar in (dates.datetime, dates.int96)
    )
    fields = requests.variant(file.fields) if requests.is_table else 0  # otherwise tasks match names themselves
    footers: dict[tuple[int, ...], dict[int, bytes]] = {}
    planned: list[PlannedFile] = []
    for groups in _runs(opened.plan.fetch_plan.row_groups, split_bytes):
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
                num_bytes=sum(map(_num_bytes, groups)),
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
    """Yield runs of consecutive row groups that all need the filter or all do not, of at most ``split_bytes`` bytes. A
    larger row group forms a run of its own."""
    run: list[RowGroupPlan] = []
    size = 0
    for group in groups:
        num_bytes = _num_bytes(group)
        if run and (group.filtered is not run[0].filtered or size + num_bytes > split_bytes):
            yield run
            run, size = [], 0
        run.append(group)
        size += num_bytes
    if run:
        yield run


def _num_bytes(group: RowGroupPlan) -> int:
    return sum(column.num_bytes for column in group.columns)


def _rows(version: FileVersion, groups: Sequence[RowGroupPlan]) -> RowRanges:
    known = version.metadata.row_groups
    return RowRanges.from_sorted(
        (start + known[group.ordinal].first_row, stop + known[group.ordinal].first_row)
        for group in groups
        for start, stop in group.rows
    )


def _footers(version: FileVersion, leaves: Sequence[int]) -> dict[int, bytes]:
    """Return the encoded parts of the footer that reading these leaves requires, keyed by leaf. Empty if they exceed
    the size limits: then the task reads the footer itself."""
    metadata = version.metadata
    chunks = {leaf: leaf_pieces(metadata, leaf) for leaf in leaves}
    if sum(len(chunk) for pieces in chunks.values() for chunk in pieces) > _MOST_FOOTER_BYTES:
        return {}
    shared = shared_pieces(metadata)
    if sum(map(len, shared)) > _MOST_SHARED_BYTES:
        return {}
    entry = SharedEntry(version.footer_start, version.size, len(metadata.schema.leaves), shared)
    footers = {SHARED: encode_shared(file_key(_PAYLOAD_FILE, SHARED), entry)}
    for leaf, pieces in chunks.items():
        footers[leaf] = encode_leaf(file_key(_PAYLOAD_FILE, leaf), LeafEntry(pieces, []))
    return footers if sum(map(len, footers.values())) <= _MOST_FOOTER_BYTES else {}


def _pages(groups: Sequence[RowGroupPlan]) -> dict[int, bytes]:
    """Return the encoded page locations that the plan uses, keyed by leaf."""
    made: dict[int, dict[int, MadeIndex]] = {}
    for group in groups:
        for column in group.columns:
            if column.offsets is not None:
                index = MadeIndex(encode_offset_index(column.offsets), None)
                made.setdefault(column.chunk.leaf, {})[group.ordinal] = index
    return {leaf: encode_made(file_key(_PAYLOAD_FILE, leaf), indexes) for leaf, indexes in made.items()}


# -- packing --------------------------------------------------------------------------------------


class SplitPacker:
    """Packs files, in the order of :meth:`add`, into encoded pieces with at most ``split_bytes`` bytes of data. Only a
    single row group that is larger forms a larger piece."""

    def __init__(self, split_bytes: int) -> None:
        self._split_bytes = split_bytes
        self._files: list[PlannedFile] = []
        self._open_bytes = 0
        self._least_bytes = _PIECE_BYTES
        self._total_bytes = 0

    def add(self, file: PlannedFile) -> Iterator[SplitPiece]:
        """Add a file, and yield the pieces that its data completes."""
        for part in _divided(file):
            cost, least = max(part.num_bytes, FILE_COST_BYTES), _least_bytes(part)
            # small at first, since the size of a split depends on the total
            most_bytes = min(self._split_bytes, max(LEAST_SPLIT_BYTES, self._total_bytes // _PIECES))
            full = self._open_bytes + cost > most_bytes or self._least_bytes + least > MOST_SPLIT_BYTES
            if full:
                yield from self.finish()
            self._files.append(part)
            self._open_bytes += cost
            self._least_bytes += least
            self._total_bytes += part.num_bytes

    def finish(self) -> Iterator[SplitPiece]:
        """Yield the last, incomplete piece; nothing if it has no file."""
        if self._files:
            files, self._files, self._open_bytes = self._files, [], 0
            self._least_bytes = _PIECE_BYTES
            fitting = with_payloads_that_fit(files)
            data = encode_files(fitting)
            least = len(data) + 4 - sum(file.payload_bytes for file in fitting)
            yield SplitPiece(data, sum(file.num_bytes for file in files), len(files), least_bytes=least)


def _divided(file: PlannedFile) -> Iterator[PlannedFile]:
    """Yield the file unchanged, or in parts if it has too many row ranges for one split."""
    if file.rows is None or file.rows.num_ranges <= _MOST_RANGES:
        yield file
        return
    ranges, total = list(file.rows), file.rows.num_rows
    for start in range(0, len(ranges), _MOST_RANGES):
        rows = RowRanges(ranges[start : start + _MOST_RANGES])
        share = rows.num_rows / total
        yield replace(
            file, rows=rows, num_rows=round(file.num_rows * share), num_bytes=max(1, round(file.num_bytes * share))
        )


def _least_bytes(file: PlannedFile) -> int:
    """Return an upper bound of the encoded size of a file without payloads, in bytes."""
    ranges = 0 if file.rows is None else 16 * file.rows.num_ranges
    validator = file.validator
    named = 0 if validator is None else sum(len(text or "") for text in (validator.etag, validator.last_modified))
    return 200 + 4 * len(file.url) + ranges + named + len(encode_partition(file.partition)) + len(file.content or b"")


def with_payloads_that_fit(files: Sequence[PlannedFile]) -> list[PlannedFile]:
    """Return the files, without the footer payloads that do not fit into a split. Earlier files have priority."""
    space = MOST_SPLIT_BYTES - 2 * KIB - sum(map(_least_bytes, files))
    return _fitting([(file.payload_bytes, file, file.without_payloads()) for file in files], space)


def _fitting(items: Sequence[tuple[int, T, T]], space: int) -> list[T]:
    """Choose the large form of each item while ``space`` lasts, else the small form.

    ``items``: (bytes by which the large form exceeds the small one, large form, small form).
    """
    chosen: list[T] = []
    for more, whole, slim in items:
        chosen.append(whole if more <= space else slim)
        space -= more if more <= space else 0
    return chosen


def group_pieces(
    pieces: Sequence[SplitPiece], *, split_bytes: int, most_splits: int, parallelism: int = 1
) -> list[tuple[SplitPiece, ...]]:
    """Group consecutive pieces into at most ``most_splits`` splits of about ``split_bytes`` bytes. Splits are smaller,
    down to ``LEAST_SPLIT_BYTES``, to give each of ``parallelism`` concurrent tasks one."""
    if not pieces:
        return []
    costs = [max(piece.num_bytes, piece.num_files * FILE_COST_BYTES) for piece in pieces]
    total = sum(costs)
    wanted = min(split_bytes, max(LEAST_SPLIT_BYTES, -(-total // parallelism)))
    splits: list[list[SplitPiece]] = []
    size = least = 0
    for piece, cost in zip(pieces, costs, strict=True):
        more = 0 if piece.data is None else piece.least_bytes
        if not splits or size + cost > wanted or least + more > MOST_SPLIT_BYTES:
            splits.append([])
            size = least = 0
        splits[-1].append(piece)
        size += cost
        least += more
    if len(splits) > most_splits:
        splits = [[] for _ in range(most_splits)]
        for piece, cost, end in zip(pieces, costs, accumulate(costs), strict=True):
            splits[min(most_splits - 1, (end - cost) * most_splits // total)].append(piece)
    return [_fitting_pieces(split) for split in splits if split]


def _fitting_pieces(split: Sequence[SplitPiece]) -> tuple[SplitPiece, ...]:
    """Return the pieces of a split, without the payloads of the last ones if the split would be too large."""
    space = MOST_SPLIT_BYTES - 4 * len(split)
    if sum(map(_data_bytes, split)) <= space:
        return tuple(split)
    slim = [
        replace(piece, data=encode_files([file.without_payloads() for file in decode_files(piece.data)]))
        if piece.data is not None
        else piece
        for piece in split
    ]
    items = [(_data_bytes(whole) - _data_bytes(least), whole, least) for whole, least in zip(split, slim, strict=True)]
    return tuple(_fitting(items, space - sum(map(_data_bytes, slim))))


def _data_bytes(piece: SplitPiece) -> int:
    return len(piece.data or b"")


class _PieceStore:
    """The pieces of a plan. Once they exceed ``MOST_SENT_BYTES``, they are written to the work folder. Of written
    pieces, only the places in the work folder stay in memory."""

    def __init__(self, state: DatasetState, settings: SparkSettings) -> None:
        self.urls: set[str] = set()
        self._runtime = state.runtime
        self._folder = settings.work_folder
        self._plans = f"{(self._folder or '').rstrip('/')}/plans/"
        self._packer = SplitPacker(settings.split_bytes)
        self._pieces: list[SplitPiece] = []
        self._sent = 0  # number of leading pieces that are in the work folder
        self._num_bytes = 0
        self._name = uuid.uuid4().hex
        self._objects = 0

    async def add(self, file: PlannedFile) -> None:
        """Pack a file. Raises InvalidOptionError if the plan is too large to send and there is no work folder."""
        self.urls.add(file.url)
        await self._keep(self._packer.add(file))

    async def finish(self) -> list[SplitPiece]:
        """Return all pieces in order."""
        await self._keep(self._packer.finish())
        if self._objects:
            await self._put_down()
            await self._remove_old()
        return self._pieces

    async def _keep(self, pieces: Iterator[SplitPiece]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            self._num_bytes += _data_bytes(piece)
            if self._num_bytes > MOST_SENT_BYTES:
                await self._put_down()

    async def _put_down(self) -> None:
        if self._folder is None:
            raise InvalidOptionError(
                f"the plan is larger than {MOST_SENT_BYTES} bytes, which requires a work folder, but none is set",
                hint="Set a folder that driver and executors reach: spark.asyncpq.workFolder, or work_folder=.",
            )
        url = f"{self._plans}{self._name}/{self._objects}.splits"
        parts = [piece.data or b"" for piece in self._pieces[self._sent :]]
        if not parts:
            return
        for number, (part, stop) in enumerate(zip(parts, accumulate(map(len, parts)), strict=True), self._sent):
            self._pieces[number] = replace(self._pieces[number], data=None, place=(url, stop - len(part), stop))
        store, _ = await self._runtime.store(url)
        context = RequestContext(ReadMetrics(), purpose="write")
        await writable(store, url).put_object(url, b"".join(parts), context=context)
        self._objects += 1
        self._sent = len(self._pieces)
        self._num_bytes = 0

    async def _remove_old(self) -> None:
        """Delete plans older than ``PLAN_S`` from the work folder, at most ``_MOST_REMOVED``. The driver cannot detect
        when Spark no longer uses a plan. Errors of the store are only logged."""
        context = RequestContext(ReadMetrics(), purpose="list")
        try:
            store = writable((await self._runtime.store(self._plans))[0], self._plans)
            now = await store.clock(self._plans, context=context)
            old = [
                item.url
                for item in await store.list_objects(self._plans, context=context)
                if _PLAN_NAME.fullmatch(item.url[len(self._plans) :])
                and item.modified is not None
                and now - item.modified > PLAN_S
            ]
            await store.delete_objects(old[:_MOST_REMOVED], context=context.step("write", context.round + 1))
        except StoreError as error:
            logger.warning("old plans could not be removed from %s: %s", self._plans, error)
