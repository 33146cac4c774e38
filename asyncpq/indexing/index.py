"""The handle of an index: build, refresh, verify, compact, vacuum, report, drop."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from asyncpq.datasets.listing import NOT_BUILT
from asyncpq.errors import (
    CorruptIndexError,
    Hint,
    InvalidOptionError,
    ObjectNotFoundError,
    UnsupportedFeatureError,
    UsageError,
    counted,
)
from asyncpq.events import Operation, OperationName
from asyncpq.indexing.build.build_executor import ExecutorFactory, LocalExecutor
from asyncpq.indexing.build.file_rows import IndexSpec
from asyncpq.indexing.build.index_builder import IndexBuilder, Refreshed
from asyncpq.indexing.build.index_source import IndexSource, differences, is_committed
from asyncpq.indexing.build.maintenance import Compacted, Vacuumed, Verified, compact, compact_if_due, vacuum, verify
from asyncpq.indexing.commits import Head, files_of, latest, load, numbered
from asyncpq.indexing.index_model import IndexBackend, IndexTable
from asyncpq.indexing.kinds import IndexKind
from asyncpq.indexing.manifest import Manifest
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.options import BuildOptions, whole_number
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.foreign_names import EnteredAsync


@dataclass(frozen=True, slots=True)
class TableReport:
    """Numbers about one table of an index: an item of :attr:`IndexReport.tables`.

    Attributes:
        kind, columns, options: the table's kind, its columns of the dataset, and the options of the kind.
        files: number of the dataset's current files whose entries the table has.
        rows, segments: numbers of rows and segments of the table.
        size: approximate bytes of its segments.
    """

    kind: str
    columns: tuple[str, ...]
    options: dict[str, Any]
    files: int
    rows: int
    size: int
    segments: int


@dataclass(frozen=True, slots=True)
class Staleness:
    """How the current listing of the files differs from the index's snapshot: :attr:`IndexReport.staleness`.

    Attributes:
        new: number of files that the snapshot lacks.
        changed: number of files with another version; a file without a version in the listing counts as changed.
        gone: number of files that are in the snapshot only.
    """

    new: int
    changed: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """The state of an index, as :meth:`Index.show` returns it.

    Attributes:
        backend: url of the index, without secrets.
        snapshot: number of the newest snapshot.
        created: time at which the snapshot was committed, in UTC, with the zone.
        as_of: time at which the index's files were listed, in UTC, with the zone; None until the first build ends.
        files: number of files in the index.
        rows: number of rows in those files that could be read.
        size: approximate bytes of all segments.
        tables: a :class:`TableReport` for each table of the index.
        builds: number of builds running or interrupted.
        staleness: changes of files since the snapshot; None if :meth:`Index.show` was not asked to list the files.
    """

    backend: str
    snapshot: int
    created: datetime
    as_of: datetime | None
    files: int
    rows: int
    size: int
    tables: tuple[TableReport, ...]
    builds: int
    staleness: Staleness | None = None

    def __str__(self) -> str:
        when = "first build not ended" if self.as_of is None else f"files of {self.as_of:%Y-%m-%d %H:%M:%S %Z}"
        lines = [
            f"index at {self.backend}, snapshot {self.snapshot}, {when}",
            f"  {self.files} files, {self.rows} rows, {self.size} bytes"
            + (f", {self.builds} builds running or interrupted" if self.builds else ""),
        ]
        for index_table in self.tables:
            name = f"{index_table.kind}({', '.join(index_table.columns)})" if index_table.columns else index_table.kind
            lines.append(
                f"  {name}: {counted(index_table.rows, 'row')} of {counted(index_table.files, 'file')}, "
                f"{index_table.size} bytes in {counted(index_table.segments, 'segment')}"
            )
        if self.staleness is not None:
            now = self.staleness
            lines.append(f"  since then {now.new} files are new, {now.changed} changed, {now.gone} gone")
        return "\n".join(lines)


def table_report(manifest: Manifest, index_table: IndexTable) -> TableReport:
    """Return the report of one table in one snapshot."""
    segments = manifest.segments_of(index_table)
    return TableReport(
        kind=index_table.kind,
        columns=index_table.columns,
        options=dict(index_table.options),
        files=(manifest.covered(index_table) & manifest.live).num_rows,
        rows=sum(segment.num_rows for segment in segments),
        size=sum(segment.size for segment in segments),
        segments=len(segments),
    )


#: Lists the dataset's files. Arguments: the operation; the index's manifest, None before the first build; the urls of
#: the only files to look at, None for all files.
ListFiles = Callable[[Operation, Manifest | None, Sequence[str] | None], Awaitable[IndexSource]]

KEEP: Final = 10
OLDER_THAN: Final = timedelta(days=7)
_ORPHANS: Final = timedelta(days=1)


class Index(EnteredAsync):
    """An index of a dataset's files, made by :meth:`asyncpq.Session.build_index` or :meth:`asyncpq.Session.open_index`.

    Snapshots are immutable. Each change commits a new snapshot; any number of processes may commit concurrently. Each
    read of a dataset looks for a newer snapshot.

    Attributes:
        metrics: summed costs (:class:`asyncpq.ReadMetrics`) of the calls of this handle that have ended, its build or
            opening included.
        refreshed: result of this handle's last build or refresh; None before the first one.
    """

    def __init__(
        self,
        runtime: Runtime,
        backend: IndexBackend,
        head: Head,
        look: ListFiles,
        options: BuildOptions,
        executor: ExecutorFactory = LocalExecutor,
    ) -> None:
        self.metrics: ReadMetrics = ReadMetrics()
        self.refreshed: Refreshed | None = None
        self.head = head
        self._runtime = runtime
        self._backend = backend
        self._look = look
        self._options = options
        self._executor = executor

    def __repr__(self) -> str:
        return f"Index({self.url!r}, snapshot {self.snapshot})"

    @property
    def url(self) -> str:
        """Url of the index, without secrets."""
        return self._backend.description

    @property
    def backend(self) -> IndexBackend:
        """The backend that stores the index."""
        return self._backend

    @property
    def manifest(self) -> Manifest:
        """The newest snapshot that this handle has loaded (:class:`asyncpq.indexing.manifest.Manifest`), with its
        tables and segments. :meth:`show` sums it up."""
        return self.head.manifest

    @property
    def snapshot(self) -> int:
        """Number of the newest snapshot that this handle has loaded."""
        return self.manifest.snapshot

    async def refresh(self, files: Sequence[str] | None = None) -> Refreshed:
        """Update the index to the files as they are now. Only new and replaced files are read. If many segments result,
        they are compacted.

        Args:
            files: urls of files that are new, replaced or deleted; no others are checked. None: all files, from a
                listing or from the table's newest version.

        Returns:
            A :class:`asyncpq.indexing.Refreshed`: the numbers of added and removed files, and the files that could not
            be read.

        Raises:
            StoreError: a store failed. The next refresh continues from what was committed.
        """
        urls = _urls(files)
        with self._operation("refresh") as operation:
            base, index = await load(self._backend, operation), self.manifest.index
            source = await self._look(operation, base or self.manifest, urls)
            building = IndexBuilder(self._runtime, self._backend, source, None, operation, self._options, base, index)
            done = await building.run(self._executor)
            self.refreshed = done.after(
                await compact_if_due(self._runtime, self._backend, self._options, done.manifest, operation)
            )
            self._advance(self.refreshed.manifest)
        return self.refreshed

    async def compact(self) -> Compacted:
        """Merge segments into fewer ones, without the rows of files that are no longer listed, so that lookups read
        fewer. The old segments stay in the backend until :meth:`vacuum` deletes them.

        Returns:
            A :class:`asyncpq.indexing.Compacted`: the numbers of merged and written segments.

        Raises:
            StoreError: a store failed.
        """
        with self._operation("compact") as operation:
            done = await compact(self._runtime, self._backend, self._options, operation)
            self._advance(done.manifest)
        return done

    async def vacuum(self, *, keep: int = KEEP, older_than: timedelta = OLDER_THAN) -> Vacuumed:
        """Remove old snapshots, and the segments that only these snapshots use. Segments of interrupted builds are
        removed after a day.

        Args:
            keep: number of the newest snapshots that stay.
            older_than: snapshots that were the newest within this time stay too, since readers may use them. With less
                than a minute, readers may fail with StaleSnapshotError, and a concurrent commit may be lost.

        Raises:
            StoreError: a store failed.
        """
        number = whole_number("keep", keep, 1) or KEEP
        age: Any = older_than
        if not isinstance(age, timedelta) or age < timedelta(0):
            raise InvalidOptionError(
                f"older_than={older_than!r}: must be a timedelta of at least 0 seconds",
                option="older_than",
                hint="Pass for example datetime.timedelta(days=7).",
            )
        with self._operation("vacuum") as operation:
            return await vacuum(
                self._backend,
                keep=number,
                older_than_s=older_than.total_seconds(),
                orphans_s=_ORPHANS.total_seconds(),
                grace_s=self._options.grace_s,
                operation=operation,
            )

    async def verify(self, *, sample: int = 10, rows: int = 100) -> Verified:
        """Compare the index with a random sample of the files, and return the differences.

        Args:
            sample: number of files to compare.
            rows: number of rows to look up, for each file and table.

        Raises:
            StoreError: a store failed. Errors in the index are in the result, not raised.
        """
        most, num_rows = whole_number("sample", sample, 1) or 1, whole_number("rows", rows, 0) or 0

        def sample_of(count: int, most: int) -> list[int]:
            return sorted(random.sample(range(count), min(most, count)))

        with self._operation("verify") as operation:
            manifest = await self._newest(operation)
            source = await self._look(operation, manifest, None)
            files = source.by_path()
            live = manifest.live
            ids = RowRanges.from_rows(live.row_at(number) for number in sample_of(live.num_rows, most))
            known = await files_of(self._runtime, self._backend, manifest, ids, operation) if ids else []
            pairs = [(file, source.files[files[file.path]]) for file in known if file.path in files]
            wanted = IndexSpec(
                schema=manifest.schema,
                fields=source.fields,
                tables=source.readable(manifest.tables),
                tail_hint=source.url,
                options=self._options,
            )
            verified = await verify(
                source.runtime or self._runtime,
                self._backend,
                manifest,
                pairs,
                wanted,
                operation,
                lambda count: sample_of(count, num_rows),
            )
            verified.files += len(known) - len(pairs)
            verified.changed += len(known) - len(pairs)
            listed = len({file.id for file in known})
            if listed < ids.num_rows:
                verified.problems.append(f"{ids.num_rows - listed} live files have no entry")
        return verified

    async def show(self, *, staleness: bool = False) -> IndexReport:
        """Return a report of the newest snapshot.

        Args:
            staleness: list the files too, and report how they differ from those of the snapshot.

        Raises:
            StoreError: a store failed.
        """
        with self._operation("show") as operation:
            manifest = await self._newest(operation)
            stale = None
            if staleness:
                source = await self._look(operation, manifest, None)
                todo = await differences(self._runtime, self._backend, manifest, source, manifest.live, operation)
                changed = len(todo.replaced)
                stale = Staleness(len(todo.works) + len(todo.taken) - changed, changed, len(todo.removed))
        return IndexReport(
            backend=self.url,
            snapshot=manifest.snapshot,
            created=manifest.created,
            as_of=manifest.as_of,
            files=manifest.num_files,
            rows=manifest.num_rows,
            size=sum(segment.size for segment in manifest.segments),
            tables=tuple(table_report(manifest, index_table) for index_table in manifest.tables),
            builds=len(manifest.builds),
            staleness=stale,
        )

    async def drop(self) -> None:
        """Remove the index from its backend. Open readers of the index get an error.

        Raises:
            UsageError: asyncpq wrote the files, and only the index knows which of them are committed.
        """
        with self._operation("drop") as operation:
            try:
                newest = await load(self._backend, operation)
            except (CorruptIndexError, UnsupportedFeatureError):
                newest = None  # a damaged index can be dropped
            if is_committed(newest or self.manifest):
                raise UsageError(
                    "the index was not dropped: only the index knows which files of the folder are committed; without"
                    " it, reads would see none of them, or replaced ones too",
                    url=self.url,
                    hint="Keep the index. To remove the data too, delete the folder.",
                )
            await self._backend.drop(operation=operation)

    @contextmanager
    def _operation(self, name: OperationName) -> Iterator[Operation]:
        self._runtime.check()
        with self._runtime.operation(name, self.url, self.metrics) as operation:
            yield operation

    async def _newest(self, operation: Operation) -> Manifest:
        await self.head.advance(operation, anew=True)
        return self.manifest

    def _advance(self, manifest: Manifest) -> None:
        if manifest.snapshot > self.head.manifest.snapshot:
            self.head.manifest, self.head.checked_at = manifest, time.monotonic()


async def build_index(
    runtime: Runtime,
    backend: IndexBackend,
    kinds: Sequence[IndexKind],
    look: ListFiles,
    operation: Operation,
    options: BuildOptions,
    executor: ExecutorFactory = LocalExecutor,
) -> Index:
    """Build an index of ``kinds`` in the backend, or update it if it exists, and return its handle.

    Args:
        look: lists the files that the index should cover.
        operation: counts the cost.
        executor: makes the executor that reads the files.

    Raises:
        ColumnNotFoundError, InvalidOptionError: a kind does not fit the dataset's columns.
        InvalidOptionError: the backend has an index of other files or tables.
        StoreError: a store failed. The next build continues from what was committed.
    """
    base = await load(backend, operation)
    source = await look(operation, base, None)
    index_tables = [index_table for kind in kinds for index_table in kind.tables(source.schema)]
    done = await IndexBuilder(runtime, backend, source, index_tables, operation, options, base).run(executor)
    refreshed = done.after(await compact_if_due(runtime, backend, options, done.manifest, operation))
    index = Index(runtime, backend, Head(backend, refreshed.manifest), look, options, executor)
    operation.metrics.add_to(index.metrics)
    index.refreshed = refreshed
    return index


async def open_index(
    runtime: Runtime,
    backend: IndexBackend,
    look: ListFiles,
    operation: Operation,
    options: BuildOptions,
    snapshot: int | None = None,
    executor: ExecutorFactory = LocalExecutor,
) -> Index:
    """Return the handle of an index, at a recent snapshot; the first read looks for a newer one. With ``snapshot``,
    the handle stays at the snapshot of that number. Raises ObjectNotFoundError if there is no index or no snapshot of
    that number, UsageError if the first build has not ended."""
    snapshot = whole_number("snapshot", snapshot, 1)
    manifest = await (latest(backend, operation) if snapshot is None else numbered(backend, snapshot, operation))
    if manifest is not None and not manifest.is_built and snapshot is None:
        manifest = await load(backend, operation)
    if manifest is None and snapshot is not None:
        raise ObjectNotFoundError(
            f"there is no index, or the index has no snapshot {snapshot}",
            url=backend.description,
            hint="Leave out snapshot= for the newest one. A vacuum removes old snapshots.",
        )
    if manifest is None:
        raise ObjectNotFoundError("there is no index", url=backend.description, hint=NOT_BUILT)
    if not manifest.is_built:
        raise UsageError(
            "the first build of the index has not ended",
            hint=Hint("Call build_index() again", "Repeat `asyncpq index build`")
            + f" for {backend.description}: it continues from the committed progress.",
        )
    index = Index(runtime, backend, Head(backend, manifest, pinned=snapshot is not None), look, options, executor)
    operation.metrics.add_to(index.metrics)
    return index


_FILES_HINT: Final = "Pass the urls of files of the dataset, or None for all files."


def _urls(files: object) -> list[str] | None:
    if files is None:
        return None
    if isinstance(files, (str, bytes)) or not isinstance(files, Sequence):
        raise InvalidOptionError(
            f"files= must be a list of urls, not {type(files).__name__}", option="files", hint=_FILES_HINT
        )
    urls = list(files)
    if not all(isinstance(url, str) and url for url in urls):
        raise InvalidOptionError(
            "files= must be a list of urls, but has an item that is not a url", option="files", hint=_FILES_HINT
        )
    return urls
