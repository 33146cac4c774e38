"""Plan a join of rows with a dataset by key: find the files that may have the keys, estimate lookups, pin versions.

:func:`plan_join` makes a :class:`JoinTask`, which looks up the keys of its own rows. An engine that knows all keys
first asks the index, the paths and the known statistics for them at once (:meth:`DatasetJoin.find`);
:class:`FoundFiles` estimates the seconds, and makes tasks that read each file once: no two of them decode the same
dictionary or footer.
"""

from __future__ import annotations

import math
import pickle
import time
import uuid
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from random import randrange
from typing import Any, Final, Literal, NamedTuple, TypeVar, Unpack, cast, get_args
from weakref import WeakKeyDictionary

import pyarrow as pa

from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.dataset_files import FILES_A_STEP, DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile, IndexEntry, View
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.decoding.typed_literals import storage_type
from asyncpq.distributed.join_tasks import (
    FileWrapper,
    How,
    JoinKey,
    JoinTask,
    JoinTaskKeywords,
    KeyPredicate,
    KeyRequests,
    LeftKeys,
    PinnedFiles,
    bounds_predicate,
    key_request,
    key_stream,
    one_predicate,
    opened,
)
from asyncpq.distributed.scan_planning import TaskKeywords, plan_tasks, scan_of
from asyncpq.distributed.scan_tasks import TaskScan, plan_again, state_of_scan
from asyncpq.distributed.worker_sessions import (
    BatchStream,
    WorkerSettings,
    batches_on_worker,
    plan_again_hint,
    refresh_hint,
)
from asyncpq.errors import (
    AmbiguousColumnError,
    ColumnNotFoundError,
    InvalidOptionError,
    SchemaMismatchError,
    UsageError,
    nearest_column,
)
from asyncpq.expressions import col, conjunction
from asyncpq.indexing.backends.folder import ObjectBackend
from asyncpq.indexing.index_model import IndexTable
from asyncpq.objects.prices import Prices
from asyncpq.objects.runtime import runtime_of
from asyncpq.opening.keywords import TargetKeywords, check_keywords
from asyncpq.options import MIB, LimitOptions, RequestOptions, one_of, require_whole
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.request import ScanRequest, column_names, names_alone, predicate_steps
from asyncpq.session import Session
from asyncpq.storage.urls import absolute, split_url
from asyncpq.typing import DatasetTarget, IndexChoice

D = TypeVar("D", bound=DatasetState)

#: Distinct keys of one lookup in a task.
BATCH_KEYS: Final = 4096
_AGAIN: Final = "call plan_join() again."
_SAMPLED: Final = 8  # files
_UNSEEN_SHARE: Final = 20  # a sample without keys stands for at most so small a part of the files
#: Seconds of a core for a file: to open it in a task, and to read the first pages of the keys.
_OPEN_S: Final = 0.0015
_VISIT_S: Final = 0.002
_BYTES_S: Final = 200e6
#: Seconds of a core for a key in a file, and for one that a task looks up alone.
_KEY_S: Final = 5e-6
_LOOKUP_S: Final = 0.003
#: Seconds in which a process finds a key in an index: it decodes a page, which few of the keys share.
_INDEX_KEY_S: Final = 0.001
#: Files that one task reads at once, while requests wait.
_AT_ONCE: Final = 8


@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """The files that may have rows with the keys of :meth:`DatasetJoin.find`, with estimates from a sample of them.

    Attributes:
        join: the join whose ``find`` returned this.
        predicate: true for all rows with one of the keys.
        files: the files (:class:`asyncpq.DataFile`), not opened, in the dataset's order.
        total: number of files of the dataset.
        sampled: number of files in the sample.
        matched: number of files in the sample whose footers and page indexes do not rule out the keys.
        matched_bytes: compressed bytes to read of the ``matched`` files.
        open_s: approximate CPU seconds in which this process opened and pruned one file; footers may be cached.
        prices: the store's latency in seconds (``latency_s``) and bandwidth in bytes per second
            (``bandwidth_bytes_s``).
        is_local: whether the files are local, and read without requests.
        can_ship: whether tasks can read the listed versions without opening the dataset.
    """

    join: DatasetJoin
    predicate: KeyPredicate
    files: tuple[DataFile, ...]
    total: int
    sampled: int
    matched: int
    matched_bytes: int
    open_s: float
    prices: Prices
    is_local: bool = False
    can_ship: bool = True

    @property
    def num_files(self) -> int:
        """Number of ``files``."""
        return len(self.files)

    @property
    def share(self) -> float:
        """Estimated share of ``files`` that has rows to read, from 0 to 1."""
        return self.matched / self.sampled if self.sampled else 1.0

    @property
    def num_bytes(self) -> int:
        """Estimated compressed bytes to read for the keys."""
        return len(self.files) * self.matched_bytes // max(1, self.sampled)

    @property
    def most_bytes(self) -> int:
        """Upper estimate of the bytes of the rows with the keys, from which an engine may choose to broadcast them."""
        return self.num_bytes if self.matched else self.total_bytes // _UNSEEN_SHARE

    @property
    def total_bytes(self) -> int:
        """Size of ``files``, in bytes."""
        return sum(file.size or 0 for file in self.files)

    def seconds(self, num_keys: int, processes: int, open_s: float | None = None) -> float:
        """Estimate the seconds in which processes that have started read the rows of the keys.

        Args:
            num_keys: number of keys.
            processes: number of processes that read at once.
            open_s: CPU seconds to open a file; None: those that tasks need.
        """
        num_files, open_s = self.num_files, _OPEN_S if open_s is None else open_s
        latency_s = 0.0 if self.is_local else self.prices.latency_s
        cpu = num_files * (open_s + self.share * _VISIT_S) + self.num_bytes / _BYTES_S
        cpu += num_files * (1 + 2 * self.share) * latency_s / _AT_ONCE + num_keys * _KEY_S
        transfer_s = 0.0 if self.is_local else self.num_bytes / self.prices.bandwidth_bytes_s
        return max(cpu / processes, transfer_s)

    def whole(self, state: D) -> D:
        """Return ``state``, the dataset of the join, with only these files, to be scanned whole by
        :func:`plan_tasks`; a table is returned unchanged."""
        if state.source.view is View.TABLE:
            return state
        return given_state(state, [replace(file, entry=None) for file in self.files])

    async def matching(self) -> FoundFiles:
        """Return a copy with only the files that bounds, Bloom filters and page indexes do not rule out. Opens all of
        ``files``. Raises AsyncpqError if one cannot be opened."""
        planned = await planned_bytes(self.join, self.files, self.predicate)
        return replace(self, files=tuple([file for file in self.files if file.url in planned]))

    def reader(self, scan: TaskScan) -> KeyedRead:
        """Return a picklable function that, on a worker, reads the files of one of :meth:`tasks`: called with the task
        (bytes), it yields record batches with the columns of ``scan``, of the rows that may have one of the keys.
        Requires ``can_ship``."""
        return KeyedRead(scan=scan, predicate=self.predicate)

    def tasks(self, num_tasks: int) -> list[bytes]:
        """Encode the files as at most ``num_tasks`` tasks of neighbouring files, for :meth:`reader`."""
        files, count = self.files, min(num_tasks, len(self.files))
        tasks = [files[at * len(files) // count : (at + 1) * len(files) // count] for at in range(count)]
        return [pickle.dumps([_shipped(file) for file in task]) for task in tasks]


def _shipped(file: DataFile) -> DataFile:
    entry = file.entry and IndexEntry(access=file.entry.access, validator=file.entry.validator)
    return replace(file, entry=entry, bounds={}, pinned=True)


def can_ship(state: DatasetState, files: Sequence[DataFile]) -> bool:
    """Return whether tasks can read these files from their listing alone, each in the listed version."""
    if state.skips or state.source.view is View.TABLE:
        return False
    return all(file.validator is not None and file.validator.is_strong and file.unreadable is None for file in files)


def given_state(state: D, files: Sequence[DataFile]) -> D:
    """Return the dataset with only these files."""
    source = GivenFiles(files, view=state.source.view, description=state.source.description)
    return replace(state, source=source)


@dataclass(frozen=True, kw_only=True)
class KeyedRead:
    """Reads the rows of a task's files that may have one of the keys, in any process. Picklable."""

    scan: TaskScan
    predicate: KeyPredicate

    def __call__(self, task: bytes) -> Generator[pa.RecordBatch]:
        """Yield batches of the engine's types; rows with other keys may be among them. ``task``: one of
        :meth:`FoundFiles.tasks`."""
        with plan_again(self.scan):
            yield from batches_on_worker(self.scan.settings, partial(self._stream, pickle.loads(task)))

    async def _stream(self, files: Sequence[DataFile], session: Session) -> BatchStream:
        state = state_of_scan(self.scan, runtime_of(session), files)
        return key_stream(self.scan, state, self.predicate, ordered=False)


class IndexEstimate(NamedTuple):
    """The estimated cost of finding keys in an index and looking these up, if the rows were in random order.

    Attributes:
        seconds: seconds of one process.
        num_files: number of files of the index.
        total_bytes: size of their rows, in bytes.
        prices: the store's latency and bandwidth.
    """

    seconds: float
    num_files: int
    total_bytes: int
    prices: Prices


class LookupEstimate(NamedTuple):
    """The estimated cost of the lookups of a join's tasks, if they run one at a time.

    Attributes:
        requests: number of requests.
        num_bytes: bytes that these fetch.
        seconds: seconds of the requests, one at a time.
        scan_s: seconds in which the bytes of the columns are read instead; None if they are unknown.
    """

    requests: int
    num_bytes: int
    seconds: float
    scan_s: float | None


async def planned_bytes(join: DatasetJoin, files: Sequence[DataFile], predicate: KeyPredicate) -> dict[str, int]:
    """Open the files; return by url the compressed bytes to read of each that may have rows for ``predicate``."""
    request = key_request(join.scan, predicate)
    state = given_state(join.state, files)
    operation = state.runtime.operation("plan", state.url)
    requests = KeyRequests(state, request, join.scan)

    async def size(file: OpenedFile) -> tuple[str, int]:
        groups = [] if file.plan is None else file.plan.fetch_plan.row_groups
        return file.file.url, sum(column.num_bytes for group in groups for column in group.columns)

    with operation:
        scanned = DatasetFiles(state, request, operation, scan=True, requests=requests)
        async with aclosing(scanned.described(size)) as sizes:
            return {url: num_bytes async for url, num_bytes in sizes}


@dataclass(frozen=True, kw_only=True)
class DatasetJoin:
    """The dataset's side of a join by keys, for engines that choose between lookups and a scan by their cost; other
    engines call :func:`plan_join`. The left side is the engine's rows, with which the dataset is joined.

    Attributes:
        state: the dataset, such as an :class:`EngineDataset`.
        scan: a :class:`TaskScan` of it: columns to read, and how; without duplicates.
        keys: a :class:`JoinKey` for each key column.
        target, index, options: the arguments of :meth:`asyncpq.Session.open_dataset` with which tasks open the dataset,
            if it is read through an index.
        wrap: called with an :class:`asyncpq.DataFile`, returns it with the engine's own partition values; None:
            partition values are asyncpq's.
        again: a sentence that says how to plan again, such as "Call plan_join() again.": ``hint`` of errors about files
            that changed.
        limits: ``task_bytes``, ``most_tasks``, ``parallelism`` and ``work_folder``, as in :func:`plan_scan`.
        pinned, cost: the files' versions, set by :meth:`pin`; the cost of a lookup, set by :meth:`measured`. None
            before.
    """

    state: DatasetState
    scan: TaskScan
    keys: tuple[JoinKey, ...]
    target: Any
    index: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    wrap: FileWrapper | None = None
    again: str = _AGAIN
    limits: TaskKeywords = field(default_factory=lambda: TaskKeywords())
    pinned: PinnedFiles | None = None
    cost: KeyCost | None = None

    @property
    def _is_snapshot(self) -> bool:
        """Whether the files are those of an index's snapshot (``view="snapshot"``), and not of a listing or a table."""
        return self.state.source.view is View.SNAPSHOT

    @property
    def index_table(self) -> IndexTable | None:
        """The index table that maps the keys to rows; None if there is none, or tasks cannot open its index."""
        source, names = self.state.source, {key.name for key in self.keys}
        if source.index is None or source.view is View.TABLE:  # tasks get only the files of a table
            return None

        def num_used(table: IndexTable) -> int:
            """Return the number of leading columns of the index table that are among ``names``."""
            return len(list(takewhile(lambda column: column in names, table.columns)))

        tables = [table for table in source.index.manifest.tables if table.kind == "keys" and table.columns[0] in names]
        return max(tables, key=num_used, default=None)

    # -- keys that are known before the tasks -----------------------------------------------------

    def distinct(self, candidates: Sequence[Sequence[pa.Array]], num_rows: int) -> list[pa.Array]:
        """Return the distinct keys of rows of the left side: for each key column an array of values; those at one
        position form a key. Rows with a null in their key have none. An engine calls it in its tasks, and passes all
        keys together to :meth:`find`.

        Args:
            candidates: for each key column, the arrays of the left side's columns :attr:`JoinKey.candidates`.
            num_rows: number of rows, which is the length of each array.
        """
        return LeftKeys(candidates, num_rows).distinct if num_rows else [columns[0] for columns in candidates]

    async def find(
        self, keys: Sequence[pa.Array] | None, bounds: Sequence[pa.Array] | None = None, *, asks_index: bool = True
    ) -> FoundFiles | None:
        """Find the files that may have rows with one of the keys, without opening them; open and plan a few of them.

        Args:
            keys: for each key column its values, without nulls; the values at one position form a key.
            bounds: in place of too many keys (``keys=None``): for each key column an array of the least and the
                greatest value.
            asks_index: whether to look up the keys in the index; if not, paths and known statistics rule out files.

        Returns:
            The files; None if ``bounds`` cannot be expressed as literals of a predicate, or both are None.

        Raises:
            AsyncpqError: the index cannot be read, or a file of the sample cannot be opened.
        """
        predicate = None if bounds is None else bounds_predicate(self.keys, bounds)
        if keys is not None:
            predicate = one_predicate(self.keys, keys)
        if predicate is None:
            return None
        state, request = self.state, key_request(self.scan, predicate)
        operation = state.runtime.operation("plan", state.url)
        with refresh_hint(self._is_snapshot), operation:
            asked = request if asks_index else request._replace(where=None, prune=None)
            found = await state.source.files(asked, operation)
            search = state.known.search(found.files, request.simple_pruning, state.columns.schema)
            steps = predicate_steps(request.where) + len(found.files) // FILES_A_STEP
            numbers = await state.runtime.off_loop(search, steps)
            files = [found.files[number] for number in numbers]
            step = max(1, len(files) // _SAMPLED)
            # other files each time: those of an earlier sample are cached, and would stand for files that are not
            sample = files[randrange(step) :: step][:_SAMPLED]
            began = time.thread_time()
            planned = await planned_bytes(self, sample, predicate)
            open_s = (time.thread_time() - began) / max(1, len(sample))
        protocol = split_url(state.url)[0]
        return FoundFiles(
            join=self,
            predicate=predicate,
            files=tuple(files),
            total=len(found.files) if found.total is None else found.total,
            sampled=len(sample),
            matched=len(planned),
            matched_bytes=sum(planned.values()),
            open_s=open_s,
            prices=state.runtime.price_book.prices(operation.metrics.server or protocol),
            is_local=protocol == "file",
            can_ship=can_ship(state, files),
        )

    def index_estimate(self, num_keys: int, row_bytes: float, processes: int) -> IndexEstimate | None:
        """Estimate a lookup of keys in the index, without a request: a named tuple of ``seconds`` (of one process),
        ``num_files`` and ``total_bytes`` of the index's files, and ``prices``, the store's latency and bandwidth. None
        if no index maps the keys to rows.

        Args:
            num_keys: number of keys.
            row_bytes: approximate bytes of a row.
            processes: number of processes that look up at once.
        """
        state = self.state
        if self.index_table is None or state.source.index is None:
            return None
        manifest = state.source.index.manifest
        num_files, num_bytes = manifest.num_files, int(row_bytes * manifest.num_rows)
        if not num_files or not num_bytes:
            return None
        with_keys = num_files * -math.expm1(-num_keys / num_files)
        seconds = num_keys * _INDEX_KEY_S + with_keys * (_OPEN_S + _VISIT_S) / processes
        return IndexEstimate(seconds, num_files, num_bytes, state.runtime.price_book.prices(split_url(state.url)[0]))

    # -- tasks that look up their own keys --------------------------------------------------------

    async def pin(self) -> DatasetJoin:
        """Return a copy of the join with the files' present versions pinned, as :meth:`task`, :meth:`measured` and
        :meth:`estimate` need it.

        Raises:
            InvalidOptionError: the index has no url with which tasks can open it.
        """
        source, scan, splits = self.state.source, self.scan, tuple[bytes, ...]()
        index, url = source.index, self.index
        with refresh_hint(self._is_snapshot):
            if index is None or not self._is_snapshot:
                plan = await plan_tasks(self.state, scan, **self.limits)
                scan, splits = plan.scan, tuple(plan.encoded())
        pinned = PinnedFiles(token=uuid.uuid4().hex, scan=scan, again=self.again, splits=splits)
        if index is None or source.view is View.TABLE:
            return replace(self, pinned=pinned)
        if not isinstance(url, str):
            if not isinstance(index.backend, ObjectBackend):
                raise InvalidOptionError(
                    f"index: must be a url that tasks can open, not {type(index.backend).__name__}",
                    option="index",
                    hint="Pass index='s3://bucket/indexes/trips/'.",
                )
            url = index.backend.description
        pinned = replace(
            pinned,
            target=self.target,
            options=self.options,
            index=absolute(url),
            snapshot=index.manifest.snapshot,
            root=None if self._is_snapshot else index.manifest.root,
            wrap=self.wrap,
        )
        return replace(self, pinned=pinned)

    async def measured(self, session: Session) -> DatasetJoin:
        """Return a copy of the pinned join with ``cost``, the average cost of a lookup of one key, for
        :meth:`estimate`. It looks up some keys; for an index, the session caches the result for each snapshot.
        Raises AsyncpqError if the index or a file cannot be read."""
        assert self.pinned is not None, "its files are pinned"
        with plan_again_hint(self.again, self.pinned.index is not None):
            return replace(self, cost=await key_cost(session, self.pinned, [key.name for key in self.keys]))

    def task(self, **options: Unpack[JoinTaskKeywords]) -> JoinTask:
        """Return the task that joins rows with the pinned files. ``options``: the attributes ``how``, ``left``,
        ``right``, ``names`` and ``batch_keys`` of :class:`JoinTask`; all but ``names`` are required."""
        assert self.pinned is not None, "its files are pinned"
        return JoinTask(pinned=self.pinned, keys=self.keys, **options)

    def estimate(self, num_keys: int, requests: RequestOptions) -> LookupEstimate:
        """Estimate the cost of looking up any ``num_keys`` keys one after another, without a request, from ``cost``
        (:meth:`measured`): a named tuple of ``requests``, ``num_bytes``, ``seconds``, and ``scan_s``, the seconds in
        which a scan reads the columns instead (None: not known).

        Args:
            num_keys: number of distinct keys.
            requests: has the assumed latency and bandwidth; None in it: as the session has measured.
        """
        cost = self.cost
        prices = Prices.initial(requests, LimitOptions())
        each = num_bytes = 0.0
        if cost is not None:
            each, num_bytes = cost.requests + (self.index_table is not None), cost.num_bytes * num_keys
            if num_bytes > cost.scan_bytes:  # keys share cached pages, so no more than the whole dataset is read
                each, num_bytes = each * cost.scan_bytes / num_bytes, float(cost.scan_bytes)
        wait_s = each * prices.latency_s / prices.connections
        seconds = num_keys * (wait_s + _LOOKUP_S) + num_bytes / prices.bandwidth_bytes_s
        scan_s = None if cost is None else cost.scan_bytes / prices.bandwidth_bytes_s
        return LookupEstimate(round(each * num_keys), round(num_bytes), seconds, scan_s)


# -- cost of a key --------------------------------------------------------------------------------


#: A lookup without an index is allowed up to so many bytes, or this fraction of the dataset, whichever is more.
LITTLE_BYTES: Final = 4 * MIB
LITTLE_PART: Final = 20


@dataclass(frozen=True, slots=True)
class KeyCost:
    """The average cost of the lookup of one key that exists in the dataset.

    Attributes:
        requests: range requests for data.
        num_bytes: bytes of these requests.
        lake_bytes: size of all files, in bytes.
        num_files: number of files.
        sampled: number of keys that were measured; 0 if the sampled files have none.
        scan_bytes: approximate bytes of a scan of the columns.
    """

    requests: float
    num_bytes: float
    lake_bytes: int
    num_files: int
    sampled: int
    scan_bytes: int

    @property
    def is_little(self) -> bool:
        """Whether a lookup reads much less than a scan; without sampled keys, whether the dataset is small."""
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


async def key_cost(session: Session, pinned: PinnedFiles, names: Sequence[str]) -> KeyCost:
    """Measure the average cost of a lookup of one key of the columns ``names``; cached for a snapshot of an index."""
    if pinned.index is None:
        return await _sampled(session, pinned, names)
    known = _costs.setdefault(session, {})
    question = pinned.index, pinned.snapshot, pinned.target, pinned.scan.columns, tuple(names)
    if question not in known:
        if len(known) >= _KEPT_KEYS:
            known.clear()
        known[question] = await _sampled(session, pinned, names)
    return known[question]


async def _sampled(session: Session, pinned: PinnedFiles, names: Sequence[str]) -> KeyCost:
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
            plan = await dataset.plan(pinned.scan.columns, lookup={name: row.column(name) for name in names})
            whole = await dataset.plan(pinned.scan.columns, access={url: AccessPlan.all()})
        except SchemaMismatchError:  # an engine may cast other types in files, these reads do not
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


# -- any engine's join ----------------------------------------------------------------------------


class JoinKeywords(TargetKeywords, total=False):
    """The keyword arguments of :func:`plan_join`, those of the dataset included."""

    columns: Sequence[str] | None
    how: How
    index: IndexChoice
    view: Literal["snapshot", "listed", "table"] | None
    batch_keys: int
    worker: WorkerSettings | None


async def plan_join(
    session: Session, target: DatasetTarget, on: str | Sequence[str], left: pa.Schema, **options: Unpack[JoinKeywords]
) -> JoinTask:
    """Plan a join of rows with a dataset by key, for any number of workers: each looks up the keys of its own rows.

    Call the returned task on workers with record batches of the left side; it yields batches of the joined rows, in no
    order: the columns of the left, then those of the dataset. All calls read the versions of the files that exist now.
    Null equals no key, NaN equals NaN, and -0.0 equals 0.0.

    Args:
        target: as in :meth:`asyncpq.Session.open_dataset`.
        on: names of the key columns on both sides.
        left: schema of the left side's rows. Its keys have the dataset's types, or types that convert to them
            losslessly.
        columns: columns of the dataset; None for all. The key columns are those of the left.
        how: "inner", "left", "semi" or "anti".
        index, view, options: as in :meth:`asyncpq.Session.open_dataset`. Without an index of the keys, lookups use
            footers and page indexes.
        batch_keys: maximum number of distinct keys in one lookup.
        worker: how workers open their session. None: with the options of ``session``, storage options included.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: a side has no such column, or several.
        SchemaMismatchError: a key's types on both sides do not fit, or values of its type cannot be looked up.
        InvalidOptionError: an option is invalid, or the index has no url with which tasks can open it.
    """
    check_keywords("plan_join()", options, JoinKeywords, others=("on", "left"))
    given: Any = dict(options)
    how, index, view = cast(How, given.pop("how", "inner")), given.pop("index", None), given.pop("view", None)
    wanted, batch_keys = given.pop("columns", None), given.pop("batch_keys", BATCH_KEYS)
    worker = given.pop("worker", None)
    one_of("how", how, get_args(How))
    require_whole("batch_keys", batch_keys)
    if not isinstance(left, pa.Schema):
        raise UsageError(
            f"left= is the schema of the left rows, a pyarrow.Schema, not {type(left).__name__}",
            hint="Pass the schema here, as in left=table.schema, and the rows to the task.",
        )
    names = [on] if isinstance(on, str) else list(names_alone(on, "on"))
    wanted = column_names(wanted)
    if not names:
        raise InvalidOptionError("on: must name at least one key column", option="on")
    dataset = await session.open_dataset(target, index=index, view=view, **given)
    schema = dataset.schema
    for name in names:
        if name not in left.names:
            hint = nearest_column(name, left.names)
            raise ColumnNotFoundError("the left side has no such key column", column=name, hint=hint)
        if left.names.count(name) > 1:
            raise AmbiguousColumnError("the left side has several such key columns", column=name)
    rest = [name for name in (schema.names if wanted is None else wanted) if name not in names]
    rest = rest if how in ("inner", "left") else []
    scan = await scan_of(dataset, [*names, *dict.fromkeys(rest)], worker=worker)
    output = scan.output
    assert output is not None, "it is the dataset's own"
    keys = tuple([_key(name, left, output, at) for at, name in enumerate(names)])
    join = DatasetJoin(
        state=state_of(dataset), scan=scan, keys=keys, target=absolute(target), index=index, options=given
    )
    right = [(at, output.field(at).type) for at in range(len(names), len(output))]
    return (await join.pin()).task(
        how=how,
        left=tuple(range(len(left))),
        right=tuple(right),
        names=(*left.names, *(output.names[at] for at, _ in right)),
        batch_keys=batch_keys,
    )


def _key(name: str, left: pa.Schema, output: pa.Schema, place: int) -> JoinKey:
    stored, own = output.field(name).type, left.field(name).type
    plain = stored.value_type if isinstance(stored, pa.DictionaryType) else stored
    if pa.types.is_float16(plain):
        raise SchemaMismatchError("keys of the type halffloat cannot be looked up", column=name)
    if pa.types.is_nested(plain) or not _has_values_of(plain, own):
        raise SchemaMismatchError(
            f"the key has the type {own} on the left and {stored} in the dataset",
            column=name,
            hint="Cast the keys of the left to the dataset's type.",
        )
    at = left.get_field_index(name)
    return JoinKey(name=name, stored=stored, candidates=(at,), place=place, type=storage_type(plain))


def _has_values_of(wide: pa.DataType, own: pa.DataType) -> bool:
    """Return whether every value of the type ``own`` is one of the type ``wide``."""
    types: Any = pa.types
    if isinstance(own, pa.DictionaryType):
        own = own.value_type
    if types.is_integer(wide) and types.is_integer(own):
        signed = types.is_signed_integer(wide)
        if signed == types.is_signed_integer(own):
            return bool(own.bit_width <= wide.bit_width)
        return bool(signed and own.bit_width < wide.bit_width)
    texts = (pa.string(), pa.large_string(), pa.string_view())
    bytes_ = (pa.binary(), pa.large_binary(), pa.binary_view())
    return bool(wide.equals(own) or any(wide in alike and own in alike for alike in (texts, bytes_)))
