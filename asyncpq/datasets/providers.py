"""The files of a dataset: a list of urls, a listing for each read, or a table's snapshot; the reader for catalogs."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import accumulate
from operator import eq
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import DataFile, MetadataBudget, Snapshot, TableField, View
from asyncpq.errors import AsyncpqError, ResourceLimitError, limit_hint, located
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import load_version, open_source
from asyncpq.options import LimitOptions, immutable
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.file_planner import ScanPlanner
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import Scan
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.urls import safe_url

T = TypeVar("T")

_ALL_ROWS = 1 << 40  # more than any file has
_BATCH_ROWS = 1 << 20


class RuntimeReader:
    """A :class:`asyncpq.datasets.model.CatalogReader`, whose requests are counted in ``operation``."""

    def __init__(self, runtime: Runtime, operation: Operation) -> None:
        self._runtime = runtime
        self._operation = operation

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        await self._runtime.turns.turn()  # a log may have thousands of small local files, which nothing waits for
        store, _ = await self._runtime.store(url)
        handle = await store.open_object(url)
        try:
            context = self._context()
            with located(url=safe_url(handle.url)):
                if stop is not None:
                    self._check_length(stop - start, at_most)
                    return bytes((await handle.fetch_range(start, stop, context=context)).data)
                limit = self.limits.max_decoded_bytes
                tail = await handle.fetch_tail(1 + (limit if at_most is None else at_most), context=context)
                self._check_length(len(tail.data), at_most)
                return bytes(tail.data[start:])
        finally:
            await handle.close()

    def _check_length(self, length: int, at_most: int | None) -> None:
        """Raise ResourceLimitError if ``length`` bytes exceed ``at_most`` (None: the session's limit)."""
        if at_most is not None and length > at_most:
            raise ResourceLimitError(
                f"the file has more than {at_most} bytes, the most that a file of its kind may have",
                hint="Remove the file, or restore it: its writer has a defect, or it is not what its name says.",
            )
        if at_most is None and length > self.limits.max_decoded_bytes:
            raise ResourceLimitError(
                f"a file of the table has more bytes than max_decoded_bytes={self.limits.max_decoded_bytes}, the most "
                "that is read at once",
                hint=limit_hint("max_decoded_bytes"),
            )

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        source = await open_source(self._runtime, url)
        try:
            version = await load_version(source, self._context())
            request = ScanRequest(columns=columns, where=where)
            operation = self._operation.inner("read", source.handle.url)
            planner = ScanPlanner(source, request, version, operation)
            async with Scan(planner, batch_size=_ALL_ROWS, limit=None) as scan:
                batches, budget = list[pa.RecordBatch](), MetadataBudget(version.size, self.limits)
                async for batch in scan:
                    batches.append(batch)
                    with located(url=safe_url(source.handle.url)):
                        budget.spend(batch.nbytes)
                scan.metrics.fallbacks.clear()  # the user cannot change a table's log or delete files
            return pa.Table.from_batches(batches, schema=scan.schema)
        finally:
            await source.handle.close()

    async def read_rows(
        self,
        url: str,
        fields: tuple[TableField, ...],
        *,
        constants: Mapping[str, Any] | None = None,
        near: Expression | None = None,
    ) -> AsyncIterator[tuple[pa.Array, pa.Table]]:
        schema = pa.schema([pa.field(field.name, field.type) for field in fields])
        source = await open_source(self._runtime, url, policy=immutable())
        try:
            version = await load_version(source, self._context())
            view = view_of(version, schema, fields, constants or {}, self._runtime.options.read.extension_types)

            def planner(request: ScanRequest) -> ScanPlanner:
                operation = self._operation.inner("scan", source.handle.url)
                return ScanPlanner(source, request, version, operation)

            groups = version.metadata.row_groups
            rows = RowRanges.all(version.metadata.num_rows)
            if near is not None:
                plan = await planner(ScanRequest(columns=(), where=near, view=view)).prepare(scan=True)
                first_rows = [0, *accumulate(group.num_rows for group in groups)]
                rows = RowRanges.from_sorted(
                    span for group in plan.fetch_plan.row_groups for span in group.rows.shift(first_rows[group.ordinal])
                )
            request = ScanRequest(columns=schema.names, access=AccessPlan.row_ranges(rows), view=view)
            done = 0
            async with Scan(planner(request), batch_size=_BATCH_ROWS, limit=None) as scan:
                async for batch in scan:
                    numbers = array("q")
                    for start, stop in rows.slice(done, done + batch.num_rows):
                        numbers.extend(range(start, stop))
                    buffers = [None, pa.py_buffer(numbers)]
                    yield pa.Array.from_buffers(pa.int64(), len(numbers), buffers), pa.table(batch)
                    done += batch.num_rows
        finally:
            await source.handle.close()

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> T:
        memory = self._runtime.memory
        if self._runtime.scope:  # other tables of the session may have the same urls in another store
            key = (self._runtime.scope, key)
        kept: T | None = memory.get(key)
        if kept is not None:
            return kept

        async def run() -> T:
            made, num_bytes = await make()
            memory.put(key, made, num_bytes)
            return made

        return await self._runtime.flights.run(key, run)

    @property
    def limits(self) -> LimitOptions:
        return self._runtime.options.limits

    @property
    def trust_statistics(self) -> bool:
        return self._runtime.options.read.trust_statistics

    async def list_names(self, url: str) -> list[str]:
        store, _ = await self._runtime.store(url)
        folder = url if url.endswith("/") else f"{url}/"
        found = await store.list_objects(folder, context=self._context(), wants=lambda below: False)

        def names() -> list[str]:
            return [name for item in found if "/" not in (name := item.url[len(folder) :])]

        return await self._runtime.off_loop(names, len(found) // _NAMES_A_STEP)

    def _context(self) -> RequestContext:
        return RequestContext(self._operation.metrics, round=self._operation.metrics.rounds + 1, purpose="table")


_NAMES_A_STEP: Final = 10
_FEW_FILES: Final = 64  # at most so many files are checked on the event loop, more in a thread
_FEW_EQUAL: Final = 1000  # at most so many are compared on the event loop
_MAX_PARTS: Final = 64  # predicates


class SkippedFile(NamedTuple):
    """A bad file that a read left out because ``on_bad_file`` is "skip", and the error that the file raised.

    Attributes:
        url: url of the file.
        error: the error that it raised.
    """

    url: str
    error: AsyncpqError


class ListingCost(NamedTuple):
    """The cost of listing a dataset's files: the number of requests, and the seconds that the listing took."""

    requests: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.requests} request{'' if self.requests == 1 else 's'}, {self.seconds:.3f} s"


class FileSet(NamedTuple):
    """The files that a provider returns for one read, with facts about how they were found.

    Attributes:
        listed_at: time.monotonic() when the listing was requested; None if it proves no version.
        bad: files that were left out, since their paths have invalid partition values.
        total: number of the dataset's files if ``files`` lacks some, such as pruned ones.
        by_index: how many of those that ``files`` lacks an index ruled out.
        num_rows: of files that ``files`` lacks since the read only counts their rows.
        rounds: requests one after another that finding the files took.
        listed_now: the read returns no row before a listing made during this read confirms the versions.
        renewal: a newer listing; its ``files`` are the same object if nothing changed.
        report: returns lines for explain(): how other files were ruled out.
        cost: cost of the listing; None if nothing was listed.
        where: only files that may have rows for which it is true were listed now, the others earlier; None: all were.
    """

    files: Sequence[DataFile]  # in the order of the dataset
    listed_at: float | None = None
    bad: tuple[SkippedFile, ...] = ()
    total: int | None = None
    by_index: int = 0
    num_rows: int = 0
    rounds: int = 0
    listed_now: bool = False
    renewal: asyncio.Task[FileSet] | None = None
    report: Callable[[], tuple[str, ...]] = tuple
    cost: ListingCost | None = None
    where: Expression | None = None


class FileProvider(Protocol):
    """Returns the files of each read of a dataset.

    Attributes:
        view: which files a read sees.
    """

    view: View

    @property
    def description(self) -> str:
        """One line of text: where the files come from, and the version of a table."""

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        """The indexes that rule out files, each a dict with "at" (url), "description" and "tables" as JSON values."""

    @property
    def known(self) -> FileSet | None:
        """The files of the last listing, without a request; None if nothing was listed."""

    @property
    def index(self) -> Any:
        """The open index that prunes the files before they are opened
        (:class:`asyncpq.indexing.query.index_query.OpenIndex`); None if there is none."""

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        """Return the files of the dataset that may have rows for the request ``ask``; others may be among them.

        Args:
            ask: the request of the read.
            operation: counts the requests.
            scan: the read is a scan, which leaves connections to other reads.
            allow_stale: the result may be an earlier listing with a ``renewal``, which the caller awaits or cancels.

        Raises:
            AsyncpqError: the files cannot be listed, or the metadata of the table or index cannot be read.
        """


class WrappedFiles:
    """Base of a :class:`FileProvider` that changes the files of another one, ``source``; the rest is taken from it."""

    def __init__(self, source: FileProvider) -> None:
        self.view: View = source.view
        self.source = source

    @property
    def description(self) -> str:
        """One line of text: where the files come from, and the version of a table."""
        return self.source.description

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        """The indexes that rule out files, each a dict with "at" (url), "description" and "tables" as JSON values."""
        return self.source.indexes

    @property
    def index(self) -> Any:
        return self.source.index


class GivenFiles:
    """A :class:`FileProvider` of the files that the caller listed: the same ones for each read."""

    known: FileSet | None = None
    index: Any = None
    indexes: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        files: Sequence[DataFile],
        bad: tuple[SkippedFile, ...] = (),
        *,
        view: View = View.LISTED,
        description: str | None = None,
    ) -> None:
        self.view = view
        self.description: str = description or f"{len(files)} file{'' if len(files) == 1 else 's'}, as given"
        self._files = FileSet(files, bad=bad)

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        return self._files


class Lister(Protocol):
    """Lists the files of a prefix or a pattern again."""

    async def conditions(self, ask: ScanRequest) -> Expression | None:
        """Return the predicate by which :meth:`files` may choose the folders that the read ``ask`` needs; None for
        all folders."""

    async def files(self, context: RequestContext, where: Expression | None) -> FileSet:
        """List the files again; those that cannot have rows for which ``where`` is true may be as they were before,
        if the result has the same ``where``."""


@dataclass(slots=True, eq=False)
class ListedFiles:
    """A :class:`FileProvider` of the files of a prefix or a pattern, listed for each read.

    Attributes:
        target: url of the prefix or pattern, for messages.
        known: the last listing.
        max_age_s: reads may use a listing that is younger, in seconds; 0: each read lists.
        check: returns whether files of a listing (urls and validators) have changed, without a request: for local
            files. A listing younger than ``max_age_s`` is used only if none has changed. The call blocks. None: no
            check.
        parts: when those files of ``known`` were listed that a predicate needs, if after ``known.listed_at``.
    """

    runtime: Runtime
    target: str
    lister: Lister
    known: FileSet
    max_age_s: float
    check: Callable[[Iterable[tuple[str, Validator | None]]], bool] | None = None
    view: View = View.LISTED
    index: Any = None
    indexes: Sequence[Mapping[str, Any]] = ()
    parts: LRUCache[Expression, float] = field(init=False, default_factory=lambda: LRUCache(_MAX_PARTS))

    @property
    def description(self) -> str:
        """The prefix or pattern, and how often it is listed, as text for messages."""
        age = f"listed at most {self.max_age_s:g} s before a read" if self.max_age_s else "listed for each read"
        return f"files of {self.target}, {age}"

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        known = self.known
        if await self._is_fresh(known):
            return known
        where, known = await self.lister.conditions(ask), self.known
        if where is not None and where in self.parts:
            known = known._replace(listed_at=self.parts[where])
            if await self._is_fresh(known):
                return known
        if not allow_stale:
            return await self._look(operation, scan, where)
        renewal = self.runtime.spawn(self._look(operation, scan, where))
        return known._replace(listed_now=True, renewal=renewal)

    async def _is_fresh(self, known: FileSet) -> bool:
        if known.listed_at is None or time.monotonic() - known.listed_at >= self.max_age_s:
            return False
        if self.check is None:
            return True
        changed = partial(self.check, ((file.url, file.validator) for file in known.files))
        return not (changed() if len(known.files) <= _FEW_FILES else await self.runtime.in_thread(changed))

    async def _look(self, operation: Operation, scan: bool, where: Expression | None) -> FileSet:
        metrics, began = operation.metrics, time.monotonic()
        before = metrics.requests_by_purpose.get("list", 0)
        files = await self.lister.files(RequestContext(metrics, scan=scan, purpose="list"), where)
        files = files._replace(cost=listing_cost(metrics, before, began))
        known = self.known
        if known.files is not files.files and len(known.files) == len(files.files):
            same = partial(eq, known.files, files.files)
            if same() if len(known.files) <= _FEW_EQUAL else await self.runtime.in_thread(same):
                files = files._replace(files=known.files)  # facts derived from these very files still serve
        last = known.listed_at
        if files.where is None:
            self.known = files
            self.parts.clear()
        else:
            self.parts.update({where: began for where, at in self.parts.items() if at > began})  # may share folders
            if self.known is known and (last is None or began >= last):  # none of its files was listed since
                self.known = files._replace(listed_at=last, where=None)
                self.parts[files.where] = began
        return files._replace(listed_now=True, rounds=metrics.rounds)


def listing_cost(metrics: ReadMetrics, before: int, began: float) -> ListingCost:
    """Return the cost of a listing that has just ended. ``before`` is the number of listing requests in ``metrics``
    when the listing began, and ``began`` the ``time.monotonic()`` at that moment."""
    return ListingCost(metrics.requests_by_purpose.get("list", 0) - before, time.monotonic() - began)


class TableFiles:
    """A :class:`FileProvider` of the files of one snapshot of a table. With ``trust_statistics=False`` the bounds in
    the table's metadata rule out no file."""

    view: View = View.TABLE
    known: FileSet | None = None
    index: Any = None
    indexes: Sequence[Mapping[str, Any]] = ()

    def __init__(self, runtime: Runtime, snapshot: Snapshot) -> None:
        self.description: str = snapshot.description
        self._runtime = runtime
        self._snapshot = snapshot

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        reader = RuntimeReader(self._runtime, operation)
        files = await self._snapshot.files(ask.where if reader.trust_statistics else None, reader)
        return FileSet(files, rounds=operation.metrics.rounds)
