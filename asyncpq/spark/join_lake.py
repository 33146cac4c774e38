"""The lake of a lookup join: pinned file versions for all tasks, scans by key, and the measured cost of a key."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from asyncpq import AccessPlan, DataFile, Dataset, Session, View, col
from asyncpq.dataset import state_of
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet, GivenFiles
from asyncpq.distributed import task_data_files
from asyncpq.errors import InvalidOptionError, RowIndexError, SchemaMismatchError
from asyncpq.events import Operation
from asyncpq.expressions import columns, conjunction
from asyncpq.indexing import Index, IndexTable
from asyncpq.indexing.backends.folder import ObjectBackend
from asyncpq.indexing.manifest.commits import Head
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import IndexedFiles
from asyncpq.objects.runtime import runtime_of
from asyncpq.options import MIB
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.spark.join_keys import KeyPredicate
from asyncpq.spark.reads.file_reads import PartitionTypes, SparkFiles, SparkRequests
from asyncpq.spark.reads.lake_scan import LakeScan, lake_of, plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.urls import absolute

#: Maximum rows of the lake in one batch of a join.
LAKE_ROWS: Final = 65_536
#: Keys match a few rows in each of many files: these are combined to batches of so many rows.
COMBINED_ROWS: Final = 8192
_KEPT: Final = 8  # open lakes of a session


@dataclass(frozen=True, kw_only=True)
class PinnedLake:
    """The file versions that a join reads: those of an index snapshot, or of ``splits``. Picklable; without secrets."""

    token: str  # unique name of this pin
    lake: LakeScan  # columns, without duplicates, and how they are read
    target: str | tuple[str, ...] = ""  # the dataset of the index
    index: str | None = None  # url of an index
    snapshot: int = 0  # number of the index's snapshot
    root: str | None = None  # url of the indexed folder if the index prunes splits; None if the index lists the files
    partitions: PartitionTypes | None = None  # Spark's types of partition columns; None for asyncpq's
    splits: tuple[bytes, ...] = ()  # the files, encoded


class _OpenedLake(NamedTuple):
    state: DatasetState
    handle: Index | None = None


_lakes: WeakKeyDictionary[Session, OrderedDict[str, _OpenedLake]] = WeakKeyDictionary()


async def opened(session: Session, pinned: PinnedLake) -> DatasetState:
    """Open the dataset of the pinned files, once in a session. StaleSnapshotError if the index snapshot was removed."""
    known = _lakes.setdefault(session, OrderedDict())
    lake = known.get(pinned.token)
    if lake is None:
        lists = pinned.index is not None and pinned.root is None
        load = partial(_from_index if lists else _from_files, session, pinned)
        lake = await runtime_of(session).flights.run(("pinned lake", pinned.token), load)
        known[pinned.token] = lake
    known.move_to_end(pinned.token)
    while len(known) > _KEPT:
        _, (_, index) = known.popitem(last=False)
        if index is not None:
            runtime_of(session).unregister(index.backend)
            await index.backend.close()
    return lake.state


async def _from_index(session: Session, pinned: PinnedLake) -> _OpenedLake:
    assert pinned.index is not None, "without splits, an index lists the files"
    index = await session.open_index(pinned.index, snapshot=pinned.snapshot)
    target = list(pinned.target) if isinstance(pinned.target, tuple) else pinned.target
    dataset = await session.open_dataset(target, index=index, view="snapshot")
    files, types = state_of(dataset).source, pinned.partitions
    source = _PinnedFiles(files if types is None else SparkFiles(files, pinned.lake.conf, types))
    state = replace(state_of(dataset), source=source, unifier=None, columns=pinned.lake.dataset_columns())
    return _OpenedLake(state, index)


async def _from_files(session: Session, pinned: PinnedLake) -> _OpenedLake:
    runtime, files = runtime_of(session), list[DataFile]()
    for split in pinned.splits:
        # keys need the file's whole page index
        files += await task_data_files(session, pinned.lake, split, with_pages=False)
    handle: Index | None = None
    source: FileProvider = GivenFiles(files)
    if pinned.index is not None:
        # the index tells which rows of a file may match, so the splits of a file become one file
        whole = {file.url: replace(file, entry=None) for file in files}
        handle = await session.open_index(pinned.index, snapshot=pinned.snapshot)
        head = Head(handle.backend, handle.manifest, root=pinned.root, pinned=True)
        source = IndexedFiles(runtime, GivenFiles(list(whole.values())), OpenIndex(handle.backend, head))
        if pinned.partitions is not None:
            source = SparkFiles(source, pinned.lake.conf, pinned.partitions, typed=True)
    state = DatasetState(runtime, pinned.lake.url, _PinnedFiles(source), pinned.lake.dataset_columns(), skips=False)
    return _OpenedLake(state, handle)


class _PinnedFiles:
    """A provider of the files of ``source`` with pinned versions: reads of replaced files fail."""

    known: FileSet | None = None

    def __init__(self, source: FileProvider) -> None:
        self.view = source.view
        self.index: Any = source.index
        self._source = source
        self._given: Sequence[DataFile] = ()
        self._files: Sequence[DataFile] = ()

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        return self._source.indexes

    @property
    def bounded(self) -> frozenset[str]:
        """Names of the columns for which the index has bounds of each file; empty if no index is used."""
        index = self.index
        tables = () if index is None else index.manifest.tables
        return frozenset(table.columns[0] for table in tables if table.kind == "bounds")

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        listing = await self._source.files(ask, operation, scan=scan)
        if listing.files is not self._given:  # keeps the identity of the list, by which results are cached
            self._given = listing.files
            self._files = [replace(file, pinned=True) for file in listing.files]
        return listing._replace(files=self._files)


class KeyRequests:
    """The requests for each file of a join (:class:`asyncpq.datasets.dataset_files.FileRequests`).

    Rows that an index lists are read without a filter. The join matches these rows once for all files, where a filter
    would need all keys for each file.
    """

    def __init__(self, state: DatasetState, ask: ScanRequest, conf: ReadConf) -> None:
        bounded = state.source.bounded if isinstance(state.source, _PinnedFiles) else frozenset()
        self._ask = ask
        self._requests = SparkRequests(state, ask, conf)
        self._has_bounds = ask.where is not None and bounded.issuperset(columns(ask.where))

    def accept(self, opened: OpenedFile) -> None:
        self._requests.accept(opened)

    def request(self, opened: OpenedFile) -> ScanRequest:
        if _names_rows(opened):
            return self._ask._replace(where=None, prune=None)
        return self._requests.request(opened)

    async def may_match(self, opened: OpenedFile) -> bool:
        if _names_rows(opened) or (self._has_bounds and opened.file.entry is not None):
            return True  # otherwise the index had excluded it
        return await self._requests.may_match(opened)


def _names_rows(opened: OpenedFile) -> bool:
    """Return whether an index lists the matching rows of the file, not only its row groups."""
    entry = opened.file.entry
    if entry is None or entry.access.is_all:
        return False
    try:
        return not entry.access.resolve([group.num_rows for group in opened.version.metadata.row_groups]).scanned
    except RowIndexError:
        return False  # the entry is not used


async def key_scan(pinned: PinnedLake, predicate: KeyPredicate, session: Session) -> RecordBatchStream:
    """Scan the rows of a lake that match a key predicate; return a stream of batches of Spark's types."""
    state, lake = await opened(session, pinned), pinned.lake
    request = ScanRequest(columns=lake.columns, where=predicate.where, prune=predicate.prune)
    operation = state.runtime.operation("scan", lake.url)
    files = DatasetFiles(state, request, operation, scan=True, requests=KeyRequests(state, request, lake.conf))
    return lake.stream(state, operation, files, batch_size=LAKE_ROWS, combine_rows=COMBINED_ROWS)


# -- cost of a key --------------------------------------------------------------------------------


def keys_part(opened_lake: OpenLake, names: Sequence[str]) -> IndexTable | None:
    """Return the index table that maps keys of the columns ``names`` to rows; None if no index for tasks has one."""
    index = opened_lake.state.source.index
    if index is None or opened_lake.state.source.view is View.TABLE:  # tasks get only the files of a table
        return None

    def num_used(part: IndexTable) -> int:
        """Return the number of leading columns of the index table that are among ``names``."""
        return len(list(takewhile(lambda column: column in names, part.columns)))

    parts = [part for part in index.manifest.tables if part.kind == "keys" and part.columns[0] in names]
    return max(parts, key=num_used, default=None)


#: A lookup without an index is allowed up to so many bytes, or this fraction of the lake, whichever is more.
LITTLE_BYTES: Final = 4 * MIB
LITTLE_PART: Final = 20


@dataclass(frozen=True, slots=True)
class KeyCost:
    """The average cost of the lookup of one key that exists in the lake."""

    requests: float  # range requests for data
    num_bytes: float  # of these requests
    lake_bytes: int  # of all files
    num_files: int
    sampled: int  # number of keys that were measured; 0 if the sampled files have none
    scan_bytes: int  # approximate bytes of a scan of the columns

    @property
    def is_little(self) -> bool:
        """Whether a lookup reads much less than a scan; without sampled keys, whether the lake is small."""
        if not self.sampled:
            return self.lake_bytes <= LITTLE_BYTES
        return self.num_bytes <= max(LITTLE_BYTES, self.lake_bytes / LITTLE_PART)

    def __str__(self) -> str:
        if not self.sampled:
            return f"the cost of a key is unknown: files sampled from the lake's {self.num_files} have no keys"
        return f"a key reads {self.num_bytes:,.0f} of the {self.lake_bytes:,} bytes in {self.num_files} files"


_KEPT_KEYS: Final = 256
_ENOUGH: Final = 3  # sampled keys
_MOST_LOOKED_AT: Final = 32  # sampled files
_costs: WeakKeyDictionary[Session, dict[Hashable, KeyCost]] = WeakKeyDictionary()


async def key_cost(session: Session, pinned: PinnedLake, names: Sequence[str]) -> KeyCost:
    """Measure the average cost of a lookup of one key of the columns ``names``; cached for a snapshot of an index."""
    if pinned.index is None:
        return await _sampled(session, pinned, names)
    known = _costs.setdefault(session, {})
    question = pinned.index, pinned.snapshot, pinned.target, pinned.lake.columns, tuple(names)
    if question not in known:
        if len(known) >= _KEPT_KEYS:
            known.clear()
        known[question] = await _sampled(session, pinned, names)
    return known[question]


async def _sampled(session: Session, pinned: PinnedLake, names: Sequence[str]) -> KeyCost:
    dataset = Dataset(await opened(session, pinned))
    urls = list(dict.fromkeys(await dataset.files()))  # a large file occurs once for each of its splits
    state = state_of(dataset)
    operation = state.runtime.operation("files", state.url)
    with operation:
        files = (await state.source.files(ScanRequest(columns=()), operation)).files
    requests = num_bytes = sampled = scan_bytes = sampled_bytes = 0
    sizes = {file.url: file.size or 0 for file in files}
    lake_bytes = sum(sizes.values())
    where = conjunction([col(name).is_valid() for name in names])
    for url in _spread(urls):
        if sampled == _ENOUGH:
            break
        try:
            row = await dataset.read(list(dict.fromkeys(names)), where, limit=1, access={url: AccessPlan.all()})
            if not row.num_rows:
                continue
            plan = await dataset.plan(pinned.lake.columns, lookup={name: row.column(name) for name in names})
            whole = await dataset.plan(pinned.lake.columns, access={url: AccessPlan.all()})
        except SchemaMismatchError:  # Spark casts other types in files, these reads do not
            continue
        sampled += 1
        requests += plan.num_requests
        num_bytes += sum(file.num_bytes + file.cached_bytes for file in plan.files)
        scan_bytes += sum(file.num_bytes + file.cached_bytes for file in whole.files)
        sampled_bytes += sizes.get(url, 0)
    keys = max(sampled, 1)
    share = min(1.0, scan_bytes / sampled_bytes) if sampled_bytes else 1.0
    return KeyCost(requests / keys, num_bytes / keys, lake_bytes, len(sizes), sampled, round(lake_bytes * share))


def _spread(urls: Sequence[str]) -> list[str]:
    """Return urls of files to sample: the first, middle and last, then others, since some files may have no keys."""
    if not urls:
        return []
    last = len(urls) - 1
    places = [0, last // 2, last, *[at * last // _MOST_LOOKED_AT for at in range(_MOST_LOOKED_AT)]]
    return [urls[at] for at in dict.fromkeys(places)]


async def pin_lake(
    session: Session, opened: OpenLake, target: LakeTarget, read: Sequence[int], settings: SparkSettings
) -> PinnedLake:
    """Pin the versions of the lake's files for tasks, which read the columns at the positions ``read``.

    Raises InvalidOptionError if the index has no url with which tasks can open it.
    """
    source, token = opened.state.source, uuid.uuid4().hex
    index = source.index
    lake, splits = None, tuple[bytes, ...]()
    if index is None or not opened.is_snapshot:
        columns = [opened.struct.names[at] for at in read]
        plan = await plan_lake(opened, settings=settings, columns=columns)
        lake, splits = plan.scan, tuple(plan.encoded())
        if index is None or source.view is View.TABLE:
            return PinnedLake(token=token, lake=lake, splits=splits)
    url = target.index
    if not isinstance(url, str):
        if not isinstance(index.backend, ObjectBackend):
            raise InvalidOptionError(
                f"index: must be a url that tasks can open, not {type(index.backend).__name__}",
                hint="Pass index='s3://bucket/indexes/trips/'.",
            )
        url = index.backend.description
    return PinnedLake(
        token=token,
        lake=lake or lake_of(opened, read, settings),
        target=target.target,
        index=absolute(url),
        snapshot=index.manifest.snapshot,
        root=None if opened.is_snapshot else index.manifest.root,
        partitions=source.types if isinstance(source, SparkFiles) else None,
        splits=splits,
    )
