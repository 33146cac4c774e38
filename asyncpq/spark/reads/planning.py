"""Plan a read on the driver: prune files and row groups, and pack the rest into splits.

The driver plans with the code of every read (``DatasetFiles.described``). If it has opened a file, the split carries
the parts of the footer (up to 16 KiB a file) and the page locations that the tasks need, in the encoding of the index
table "footers". So tasks open none of these files again. Plans of up to 64 MiB are sent; larger ones go to the work
folder, where later plans remove those of a week ago. ``DataFile.pinned`` makes another version an error, not a reason
to restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.expressions import Expression
from asyncpq.indexing.entry_encoding import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_made, encode_shared
from asyncpq.indexing.index_model import file_key
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.prices import Prices
from asyncpq.objects.read_plan import RowGroupPlan
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.options import KIB
from asyncpq.parquet.metadata import leaf_pieces, shared_pieces
from asyncpq.parquet.page_index import encode_offset_index
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.file_reads import SparkRequests
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.packing import PieceStore, group_pieces
from asyncpq.spark.reads.splits import LakeScan, PlannedFile, SplitPiece, pack_split
from asyncpq.spark.sessions import refresh_hint
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.calendars import file_dates
from asyncpq.storage.base import Validator
from asyncpq.storage.urls import split_url

_MOST_FOOTER_BYTES: Final = 16 * KIB  # footer payload of one file in a split
_MOST_SHARED_BYTES: Final = 256 * KIB  # larger footers are not compressed to fit
_PAYLOAD_FILE: Final = 0  # id of the file in the keys of its payloads


@dataclass(frozen=True, kw_only=True)
class LakePlan:
    """The plan of a read: its splits, and the cost of planning."""

    lake: LakeScan
    splits: tuple[tuple[SplitPiece, ...], ...]  # one for each task
    metrics: ReadMetrics  # cost of planning
    index: tuple[str, ...] = ()  # report of the index
    needs_jvm_zone: bool = False  # old timestamps of a file depend on the JVM's time zone, which `lake.conf` lacks
    versions: Mapping[str, Validator | None] = field(default_factory=dict)  # of the files that tasks read, by url
    num_rows: int = 0  # rows that tasks read; those of unopened files count only if the listing knows their number
    # All files that tasks read certainly store the columns with the types of `lake.schema`, and today's calendar.
    stored_alike: bool = False
    prices: Prices  # of the store, as planning has measured them
    unopened: int = 0  # how many of these files were planned without opening them

    @property
    def num_files(self) -> int:
        """Number of files that tasks read, at least in part."""
        return len(self.versions)

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
    pieces = PieceStore(state, settings)
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
        versions=pieces.versions,
        num_rows=pieces.num_rows,
        stored_alike=not whole and requests.are_stored_alike and not requests.has_old_dates,
        prices=state.runtime.price_book.prices(operation.metrics.server or split_url(state.url)[0]),
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
    requests.has_old_dates |= dates.datetime.mode == "LEGACY"
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
