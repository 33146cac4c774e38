"""Open the files of a read before their rows are needed; match each to the dataset's columns, and plan its read."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import pyarrow as pa

from asyncpq.datasets.column_matching import has_coarse_timestamps, view_of
from asyncpq.datasets.model import DataFile, Deletes, TableField
from asyncpq.datasets.providers import FileSet, RuntimeReader
from asyncpq.datasets.table_markers import not_parquet_hint
from asyncpq.decoding.field_types import FileTypes, check_arrow_schema, file_schema, share_types
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.errors import (
    GONE_SINCE,
    AccessDeniedError,
    AsyncpqError,
    CredentialsError,
    FormatError,
    Hint,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    RowIndexError,
)
from asyncpq.events import Operation
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.runtime import FEW_CALLS, Runtime
from asyncpq.objects.source import ObjectSource, held_source, load_version, open_source
from asyncpq.objects.version import FileVersion
from asyncpq.options import immutable
from asyncpq.parquet.row_group import UnknownLeafError
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner
from asyncpq.scan.plan import Plan, describe
from asyncpq.scan.prefetch import Job
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.urls import safe_url
from asyncpq.waiting import wait_futures

if TYPE_CHECKING:
    from asyncpq.reports.documents import Inspection
    from asyncpq.scan.executor import FilePlan


class DatasetColumns(NamedTuple):
    """The columns of a dataset, to which the columns of each file are matched.

    Attributes:
        schema: names and types of the columns, including partition columns.
        fields: a table's columns with their ids in the files; None if matched by name.
        token: represents ``schema`` and ``fields`` in the cache keys of values derived from them.
    """

    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    token: object


class OpenedFile:
    """A file of a dataset, open for one read."""

    def __init__(self, file: DataFile, source: ObjectSource, operation: Operation) -> None:
        self.number = 0  # position of the file among the files of the read
        self.file = file
        self.operation = operation
        self.delivered = False  # whether the caller has got rows of the file
        self.source = source  # the file's object in its store
        self._entry = file.entry
        self._is_current = False  # whether the store has confirmed the version since the read began
        self.version: FileVersion  # the version that is read
        self.plan: ScanPlan | None = None
        self.ready: FilePlan | None = None  # its rows and those of ``others``, if they were read together
        self.others: Sequence[OpenedFile] = ()
        self.rows_counted = 0  # rows that match without a plan, as the footer counts them
        self._preparation: ScanPlanner | None = None

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        file: DataFile,
        operation: Operation,
        *,
        tail_hint: str,
        listing: FileSet | None = None,
        scan: bool,
        once: bool = False,
    ) -> OpenedFile:
        """Open a file and load its footer: that of the version that ``file.validator`` identifies, or of a later one.

        Args:
            operation: counts this file's share of the read (see :meth:`asyncpq.events.Operation.part`).
            tail_hint: cache key that is shared by files with footers of similar sizes.
            listing: has ``file.validator``, and says when it was requested; None if the validator proves no version.
            scan: the read is a scan, which leaves connections to other reads.
            once: see :func:`asyncpq.objects.source.open_source`.
        """
        if file.unreadable is not None:
            raise copy(file.unreadable)  # each read adds its own location to the error
        if file.content is not None:
            source = held_source(runtime, file.url, file.content, tail_hint)
        else:
            policy = immutable() if file.immutable else None
            source = await open_source(runtime, file.url, tail_hint=tail_hint, policy=policy, once=once)
        try:
            opened = cls(file, source, operation)
            metrics, entry, listed = operation.metrics, file.entry, file.validator
            listed_at = None if listing is None else listing.listed_at
            context = RequestContext(metrics, scan=scan, round=metrics.rounds + 1)
            known = None  # the version from an index, which takes no request of the file
            if entry is not None and entry.known is not None:
                known = await entry.known(operation)
                context.round = metrics.rounds + 1
            version = await load_version(source, context, known)
            is_shown = listed is not None and listed.is_strong and _are_comparable(version.validator, listed)
            if _differs(version.validator, listed):
                version = await source.reload(version, context)
            elif listed_at is not None and is_shown:
                source.freshness.seen(version, listed_at)
            if file.pinned and (listed is None or not version.validator.same_version(listed)):
                raise ObjectChangedError(
                    "the object was replaced: its version is not the planned one", url=version.url, hint="Plan again."
                )
            if listed_at is None and listed is None and file.size not in (None, version.size):
                metrics.fall_back(f"the table's size of a file, {file.size} bytes, is ignored: it has {version.size}")
            opened.version = version
            indexed = None if entry is None else entry.validator
            if indexed is not None and not (opened.is_identified and indexed.same_version(version.validator)):
                metrics.fall_back(
                    "a file is read without the index, which was built for another version of the file"
                    if opened.is_identified
                    else "a file is read without the index, since its store cannot tell its versions apart"
                )
                opened.file, opened._entry = file.unindexed(), None
            if not version.arrow_schema_checked:
                opened.share_types(runtime.options.read.extension_types)
                await check_arrow_schema(version, runtime, operation)
            listed_now = listing is not None and listing.listed_now
            opened._is_current = listed_now and is_shown and not _differs(version.validator, listed)
        except BaseException:
            await source.handle.close()
            raise
        return opened

    @property
    def schema_bytes(self) -> tuple[bytes, str | None]:
        """The encoded Parquet schema, and the footer's ``ARROW:schema`` (None if missing). Files in which both are
        equal have equal :attr:`schema`."""
        metadata = self.version.metadata
        elements = metadata.schema.elements
        arrow = metadata.key_value_metadata.get("ARROW:schema")
        return metadata.data[elements[0].raw_start : elements[-1].raw_stop], arrow

    @property
    def schema(self) -> pa.Schema:
        """The file's own Arrow schema."""
        version, extensions = self.version, self.source.runtime.options.read.extension_types
        return file_schema(version, version.metadata.schema.whole_fields, extensions)

    def share_types(self, extensions: frozenset[str]) -> None:
        """Give the file the Arrow types that were decoded for an earlier file with the same schema, as most files of
        a dataset have. ``extensions``: names of the Arrow extension types that are allowed."""
        memory, elements = self.source.runtime.memory, self.version.metadata.schema.elements
        key = ("types of a schema", extensions, self.version.metadata.int96_unit, *self.schema_bytes)
        types: FileTypes | None = memory.get(key)
        if types is None:
            types = FileTypes()
            memory.put(key, types, 1000 * len(elements))
        share_types(self.version, types, extensions)

    def view(self, columns: DatasetColumns) -> SchemaAdapter:
        """Return the adapter that gives the file's columns as the dataset has them. Raises SchemaMismatchError if
        they cannot be matched."""
        file, version = self.file, self.version
        extensions = self.source.runtime.options.read.extension_types

        def view_here() -> SchemaAdapter:
            self.share_types(extensions)
            return view_of(version, columns.schema, file.fields or columns.fields, file.partition, extensions)

        # the version may outlive the dataset, and a later listing have more partition columns: so both are in the key
        return version.recent(("dataset view", columns.token, file.fields, *file.partition.items()), view_here)

    async def prepare(
        self, ask: ScanRequest, columns: DatasetColumns, *, scan: bool, other_bytes: int, files: int = 1
    ) -> int:
        """Plan the file, which may fetch page indexes and Bloom filters; return how many bytes reading it fetches.

        ``other_bytes`` is the sum of these bytes over the files planned before, ``files`` the number of files that the
        read is expected to plan. Raises ObjectChangedError if the file has another version than in the index.
        """
        try:
            return await self._prepare(ask, columns, scan=scan, other_bytes=other_bytes, files=files)
        except UnknownLeafError:  # the index's copy of the footer lacks this leaf
            metrics = self.operation.metrics
            found = await self.source.version(RequestContext(metrics, scan=scan, round=metrics.rounds + 1))
            if not found.validator.same_version(self.version.validator):
                raise ObjectChangedError(
                    "the object was replaced: its version is not the indexed one",
                    url=self.version.url,
                    hint=Hint("Refresh the index: await index.refresh().", "`asyncpq index refresh` refreshes it."),
                ) from None
            self.version = found
            return await self._prepare(ask, columns, scan=scan, other_bytes=other_bytes, files=files)

    async def _prepare(
        self, ask: ScanRequest, columns: DatasetColumns, *, scan: bool, other_bytes: int, files: int
    ) -> int:
        if columns.fields is not None and has_coarse_timestamps(columns.schema):
            self.version = self.version.in_int96_unit("us")
        file, version = self.file, self.version
        make_view = partial(self.view, columns)
        view = await self.source.runtime.off_loop(make_view, len(columns.schema) // _COLUMNS_A_STEP)
        access = None if ask.by_file is None else ask.by_file.get(file.url, AccessPlan.none())
        if file.deletes is not None:
            deleted = AccessPlan.row_ranges(await self._deleted(file.deletes, columns.token))
            if ask.exactly and access is not None and not (access & deleted).is_none:
                raise RowIndexError(
                    f"requested rows are deleted in the table: {access & deleted}",
                    url=version.url,
                    hint="Request only rows that a scan of the table returns.",
                )
            access = ~deleted if access is None else access - deleted
        if (found := self._rows_by_index()) is not None:
            access = found if access is None else access & found
        request = ask._replace(access=access, by_file=None, view=view)
        self._preparation = ScanPlanner(self.source, request, version, self.operation)
        self._preparation.indexed, self._preparation.other_bytes = found, other_bytes
        self._preparation.files = files
        self.plan = await self._preparation.prepare(scan=scan)
        self.plan.file_scan.read.current |= self._is_current
        return self.plan.num_bytes

    def _rows_by_index(self) -> AccessPlan | None:
        """Return the rows that may match according to the file's index entry; None if the entry excludes no row."""
        if self._entry is None or self._entry.access.is_all:
            return None
        try:
            self._entry.access.resolve(self.version.row_group_layout)
        except RowIndexError as error:
            self.operation.metrics.fall_back(f"an index's rows do not fit the file, so it is not used: {error.message}")
            return None
        return self._entry.access

    async def _deleted(self, deletes: Deletes, token: object) -> RowRanges:
        """Return the file's deleted rows, and cache them in memory for later reads of the dataset."""
        reader, num_rows = RuntimeReader(self.source.runtime, self.operation), self.version.metadata.num_rows

        async def load() -> tuple[RowRanges, int]:
            rows = await deletes.rows(reader, num_rows)
            return rows, 500 + 80 * rows.num_ranges

        return await reader.once(("deletes", token, self.file.url, deletes.identity), load)

    @property
    def counts_all_rows(self) -> bool:
        """Whether a read without a predicate returns all rows that the footer counts."""
        return self.file.deletes is None and (self._entry is None or self._entry.access.is_all)

    @property
    def reading(self) -> FilePlan | None:
        """The plan of the file, or of all files that are read together with it; None if the file was ruled out."""
        return self.plan if self.ready is None else self.ready

    @property
    def has_rows(self) -> bool:
        """Whether the plan reads any row group; False before the file is planned."""
        return self.plan is not None and bool(self.plan.fetch_plan.row_groups)

    @property
    def is_identified(self) -> bool:
        """Whether an entry is used that has the validator of the version: that proves the version, or the entry is a
        plan's, whose rows must be read."""
        return self.file.pinned or self.source.freshness.identifies(self.version)

    @property
    def is_settled(self) -> bool:
        """Whether the version is known to be the object's, as far as the cache policy asks."""
        return self._is_current or self.source.freshness.policy.kind == "immutable"

    async def describe(self, *, scan: bool) -> Plan | None:
        """Return the plan that ``explain()`` shows; None if the file was ruled out before it was planned."""
        if self.plan is None or self._preparation is None:
            return None
        source, version = self.source, self.plan.version

        def layout() -> Inspection:
            from asyncpq.reports.inspection import inspect_memory

            return inspect_memory(source, version)

        described = partial(describe, self._preparation, self.plan, scan=scan)
        return replace(await source.runtime.in_thread(described), layout=layout)

    async def jobs(self, unit_bytes: int) -> list[Job]:
        """Return the jobs that read the planned rows, each of about ``unit_bytes`` fetched bytes."""
        if self.plan is None:
            return []
        read = self.plan.file_scan
        units = await read.units(unit_bytes)
        return [Job(read, unit, unit is units[-1]) for unit in units]

    async def finish(self) -> None:
        """Check that all planned rows were read, and that the store still has the version that was read.

        Raises CorruptFileError if rows are missing, ObjectChangedError if the file was replaced meanwhile.
        """
        if self.plan is not None:
            self.plan.file_scan.check_complete()
            if self.plan.file_scan.read.current:
                return
        if not self._is_current:
            self._is_current = True  # so that the store is asked only once
            metrics = self.operation.metrics
            await ObjectRead(self.source, self.version, metrics, round=metrics.rounds + 1).ensure_current()

    async def changed(self) -> None:
        """Remove the version from every cache, since the object was replaced by another version."""
        await self.source.forget(self.version)

    async def close(self) -> None:
        """Close the handle of the file's object, and drop the plan: a read of many files keeps their rows alone."""
        self.plan = self.ready = self._preparation = None
        await self.source.handle.close()


def _are_comparable(found: Validator, listed: Validator) -> bool:
    """Whether both have an ETag, or both a version: a store may list what it does not send with an object."""
    return None not in (found.etag, listed.etag) or None not in (found.version, listed.version)


def _differs(found: Validator, listed: Validator | None) -> bool:
    """Whether ``found``, from a response, and ``listed``, from a listing, prove different versions; False if they
    have nothing to compare."""
    if listed is None:
        return False
    if found.size != listed.size:
        return True
    if found.etag is not None and listed.etag is not None:
        return found.etag != listed.etag
    return found.version is not None and listed.version is not None and found.version != listed.version


T = TypeVar("T")

_COLUMNS_A_STEP: Final = 8  # of a dataset, matched with a file's
_STARTED_AT_ONCE: Final = 8  # files; more would keep other tasks of the event loop waiting
_BAD_FILE: Final = (FormatError, ObjectNotFoundError, AccessDeniedError)


def is_bad_file(error: AsyncpqError) -> bool:
    """Whether the error concerns one file only, such as damage or denied access; False for missing credentials."""
    return isinstance(error, _BAD_FILE) and not isinstance(error, CredentialsError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Opens the files of a read before their rows are needed, a limited number at once.

    Attributes:
        operation: the read; each file has a part of it.
        rounds: requests one after another that the read made before it opens files.
        tail_hint: cache key that is shared by these files, whose footers have similar sizes.
        prefix: url of the files' folder, without secrets; None for a pattern, a list or a table.
        by_index: the files are listed in a snapshot of an index.
        listing: see OpenedFile.open.
        scan: the read is a scan, which leaves connections to other reads.
        ordered: files are yielded in order; else as they become ready.
        few: the first files may be enough: one is opened first, and more at once after each.
        restarts: how often a file that is replaced meanwhile is opened again.
        skip: called with bad files; None: raise the error.
        leaves_out: which files are bad, by their error.
    """

    runtime: Runtime
    operation: Operation
    rounds: int = 0
    tail_hint: str
    prefix: str | None = None
    by_index: bool = False
    listing: FileSet | None = None
    scan: bool = True
    ordered: bool = True
    few: bool = False
    restarts: int = 0
    skip: Callable[[int, Operation, AsyncpqError], None] | None = None
    leaves_out: Callable[[AsyncpqError], bool] = is_bad_file

    async def files(
        self, todo: Iterable[tuple[int, DataFile]], prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> AsyncGenerator[tuple[OpenedFile, T]]:
        """Open the files of ``todo`` ahead, a limited number at once, and yield each with the result of ``prepare``,
        which runs for several files concurrently. ``todo`` has pairs of a file's number in the read and the file.
        The caller closes each file that it receives."""
        most = self.runtime.options.limits.files_ahead
        remaining = iter(todo)
        window: deque[asyncio.Task[tuple[OpenedFile, T] | None]] = deque()
        ahead = 1 if self.few else most
        try:
            while True:
                room = ahead - len(window)
                started = list(itertools.islice(remaining, min(room, _STARTED_AT_ONCE)))
                for number, file in started:
                    window.append(asyncio.get_running_loop().create_task(self.open(number, file, prepare, ahead=True)))
                if not window:
                    return
                if room > len(started) == _STARTED_AT_ONCE:
                    await asyncio.sleep(0)  # those of local files are read at once
                    continue
                awaited = [window[0]] if self.ordered else window
                task = next((task for task in awaited if task.done()), None)
                if task is None:
                    await wait_futures(awaited, return_when=asyncio.FIRST_COMPLETED)
                    task = next(task for task in awaited if task.done())
                window.remove(task)
                ahead = min(ahead * 2, most)
                opened = task.result()
                if opened is not None:
                    yield opened
        finally:
            for task in window:
                task.cancel()
            for task in window:
                await wait_futures((task,))
                if not task.cancelled() and task.exception() is None and (not_taken := task.result()) is not None:
                    self.operation.metrics.add_part(not_taken[0].operation.metrics)
                    await not_taken[0].close()

    async def open(
        self, number: int, file: DataFile, prepare: Callable[[OpenedFile], Awaitable[T]], *, ahead: bool = False
    ) -> tuple[OpenedFile, T] | None:
        """Open the file with this number in the read, and return it with the result of ``prepare``; None if the file
        is bad and was skipped.

        A file that is opened ``ahead`` has a deadline of its own, and waits for its turn among others. Otherwise the
        caller's deadline ends the call, and only one of many calls waits.
        """
        part = self.operation.part(safe_url(file.url), self.rounds)
        restarts = self.restarts
        try:
            while True:
                try:
                    async with self.runtime.deadline(part.url) if ahead else nullcontext():
                        return await self._prepared(number, file, part, prepare, ahead=ahead)
                except ObjectChangedError:
                    if file.pinned:
                        raise
                    if file.entry is not None and file.entry.validator is not None:
                        file = file.unindexed()  # the current version is read without the index
                    elif restarts:
                        restarts -= 1
                    else:
                        raise
                    part.restarts()
        except (*_BAD_FILE, ObjectChangedError) as error:
            if isinstance(error, NotParquetError):
                error.hint = not_parquet_hint(part.url, self.prefix) or error.hint
            if isinstance(error, ObjectNotFoundError) and self.by_index:
                error.hint = GONE_SINCE
            if self.skip is None or not self.leaves_out(error):
                self.operation.metrics.add_part(part.metrics)
                raise
            self.skip(number, part, error)
            return None
        except BaseException:
            self.operation.metrics.add_part(part.metrics)
            raise

    async def _prepared(
        self,
        number: int,
        file: DataFile,
        part: Operation,
        prepare: Callable[[OpenedFile], Awaitable[T]],
        *,
        ahead: bool,
    ) -> tuple[OpenedFile, T]:
        opened = await OpenedFile.open(
            self.runtime, file, part, tail_hint=self.tail_hint, listing=self.listing, scan=self.scan
        )
        opened.number = number
        try:
            if ahead or len(self.runtime.calls) > FEW_CALLS:
                await self.runtime.turns.turn()
            return opened, await prepare(opened)
        except BaseException as error:
            if isinstance(error, ObjectChangedError):
                await opened.changed()
            await opened.close()
            raise
