"""A dataset of a join: pinned file versions for all tasks, and reads of them by key.

Tasks of a process open the dataset once, from the snapshot of an index or from the files that were planned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from asyncpq.dataset import state_of
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet, GivenFiles, WrappedFiles
from asyncpq.distributed.key_predicates import KeyPredicate
from asyncpq.distributed.scan_tasks import TaskScan, task_data_files
from asyncpq.errors import RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import columns
from asyncpq.indexing.commits import Head
from asyncpq.indexing.index import Index
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import IndexedFiles
from asyncpq.objects.runtime import runtime_of
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.session import Session

#: Maximum rows of the dataset in one batch of a join.
LOOKUP_ROWS: Final = 65_536
#: Keys match a few rows in each of many files: these are combined to batches of so many rows.
COMBINED_ROWS: Final = 8192
_KEPT: Final = 8  # open datasets of a session


class FileWrapper(Protocol):
    """Returns a provider with an engine's own partition values. Picklable."""

    def __call__(self, source: FileProvider, *, typed: bool) -> FileProvider:
        """``typed``: the files of ``source`` have the engine's values already."""


@dataclass(frozen=True, kw_only=True)
class PinnedFiles:
    """The file versions that a join reads: those of an index snapshot, or of ``splits``. Picklable.

    Attributes:
        token: unique name of this pin.
        scan: columns, without duplicates, and how they are read.
        again: how to plan again, for hints of errors.
        target, options: the dataset of the index.
        index, snapshot: url of an index, and number of its snapshot.
        root: url of the indexed folder if the index prunes splits; None if the index lists the files.
        wrap: gives files the engine's own partition values; None for asyncpq's.
        splits: the files, encoded.
    """

    token: str
    scan: TaskScan
    again: str
    target: Any = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    index: str | None = None
    snapshot: int = 0
    root: str | None = None
    wrap: FileWrapper | None = None
    splits: tuple[bytes, ...] = ()

    async def lookup(self, predicate: KeyPredicate, session: Session) -> RecordBatchStream:
        """Scan the rows that match a key predicate; return a stream of batches of the engine's types."""
        state, scan = await opened(session, self), self.scan
        request = ScanRequest(columns=scan.columns, where=predicate.where, prune=predicate.prune)
        operation = state.runtime.operation("scan", scan.url)
        files = DatasetFiles(state, request, operation, scan=True, requests=KeyRequests(state, request, scan))
        return scan.stream(state, operation, files, batch_size=LOOKUP_ROWS, combine_rows=COMBINED_ROWS)


class _Opened(NamedTuple):
    state: DatasetState
    handle: Index | None = None


_datasets: WeakKeyDictionary[Session, OrderedDict[str, _Opened]] = WeakKeyDictionary()


async def opened(session: Session, pinned: PinnedFiles) -> DatasetState:
    """Open the dataset of the pinned files, once in a session. StaleSnapshotError if the index snapshot was removed."""
    known = _datasets.setdefault(session, OrderedDict())
    dataset = known.get(pinned.token)
    if dataset is None:
        lists = pinned.index is not None and pinned.root is None
        load = partial(_from_index if lists else _from_files, session, pinned)
        dataset = await runtime_of(session).flights.run(("pinned dataset", pinned.token), load)
        known[pinned.token] = dataset
    known.move_to_end(pinned.token)
    while len(known) > _KEPT:
        _, (_, index) = known.popitem(last=False)
        if index is not None:
            runtime_of(session).unregister(index.backend)
            await index.backend.close()
    return dataset.state


async def _from_index(session: Session, pinned: PinnedFiles) -> _Opened:
    assert pinned.index is not None, "without splits, an index lists the files"
    index = await session.open_index(pinned.index, snapshot=pinned.snapshot)
    target = list(pinned.target) if isinstance(pinned.target, tuple) else pinned.target
    dataset = await session.open_dataset(target, index=index, view="snapshot", **pinned.options)
    files, wrap = state_of(dataset).source, pinned.wrap
    source = _PinnedProvider(files if wrap is None else wrap(files, typed=False))
    columns, unifier = pinned.scan.dataset_columns(), pinned.scan.unifier
    return _Opened(replace(state_of(dataset), source=source, unifier=unifier, columns=columns), index)


async def _from_files(session: Session, pinned: PinnedFiles) -> _Opened:
    runtime, files, scan = runtime_of(session), list[DataFile](), pinned.scan
    for split in pinned.splits:
        # keys need the file's whole page index
        files += await task_data_files(session, scan, split, with_pages=False)
    handle: Index | None = None
    source: FileProvider = GivenFiles(files)
    if pinned.index is not None:
        # the index tells which rows of a file may match, so the splits of a file become one file
        whole = {file.url: replace(file, entry=None) for file in files}
        handle = await session.open_index(pinned.index, snapshot=pinned.snapshot)
        head = Head(handle.backend, handle.manifest, root=pinned.root, pinned=True)
        source = IndexedFiles(runtime, GivenFiles(list(whole.values())), OpenIndex(handle.backend, head))
        if pinned.wrap is not None:
            source = pinned.wrap(source, typed=True)
    columns, unifier = scan.dataset_columns(), scan.unifier
    state = DatasetState(runtime, scan.url, _PinnedProvider(source), columns, skips=False, unifier=unifier)
    return _Opened(state, handle)


class _PinnedProvider(WrappedFiles):
    """A provider of the files of ``source`` with pinned versions: reads of replaced files fail."""

    known: FileSet | None = None

    def __init__(self, source: FileProvider) -> None:
        super().__init__(source)
        self._given: Sequence[DataFile] = ()
        self._files: Sequence[DataFile] = ()

    @property
    def bounded(self) -> frozenset[str]:
        """Names of the columns for which the index has bounds of each file; empty if no index is used."""
        index = self.index
        tables = () if index is None else index.manifest.tables
        return frozenset(table.columns[0] for table in tables if table.kind == "bounds")

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        listing = await self.source.files(ask, operation, scan=scan)
        if listing.files is not self._given:  # keeps the identity of the list, by which results are cached
            self._given = listing.files
            # bytes in memory are in no store, so nothing replaces them
            self._files = [replace(file, pinned=file.content is None) for file in listing.files]
        return listing._replace(files=self._files)


class KeyRequests:
    """The requests for each file of a join (:class:`asyncpq.datasets.dataset_files.FileRequests`).

    Rows that an index lists are read without a filter. The join matches these rows once for all files, where a filter
    would need all keys for each file.
    """

    def __init__(self, state: DatasetState, ask: ScanRequest, scan: TaskScan) -> None:
        bounded = state.source.bounded if isinstance(state.source, _PinnedProvider) else frozenset()
        self._ask = ask
        self._requests = scan.requests(state, ask)
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
