"""One file of a dataset's read: opened, matched to the dataset's columns, planned.

Opens the files of a read ahead of their rows, a limited number at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from copy import copy
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from asyncpq.datasets.column_matching import has_coarse_timestamps, view_of
from asyncpq.datasets.model import DataFile, Deletes, TableField
from asyncpq.datasets.providers import CatalogReader
from asyncpq.decoding.field_types import FieldType, file_schema, share_types
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.errors import (
    GONE_SINCE,
    AccessDeniedError,
    AsyncpqError,
    CredentialsError,
    FormatError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    RowIndexError,
    stray_file,
)
from asyncpq.events import Operation
from asyncpq.objects.opening import held_source, load_version, open_source
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.options import immutable
from asyncpq.parquet.row_group import UnknownLeafError
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.file_scan import landed
from asyncpq.scan.plan import Plan, describe
from asyncpq.scan.planner import ScanPlan, ScanPlanner
from asyncpq.scan.prefetch import Job
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.urls import safe_url


class DatasetColumns(NamedTuple):
    """The dataset's columns."""

    schema: pa.Schema  # their names and types, partition columns included
    fields: tuple[TableField, ...] | None  # how the files of a table have them; None where names decide
    token: object  # stands for both in the keys of what is derived from them


class OpenedFile:
    """A file of a dataset, open for one read.

    Args:
        number: its place among the files of the read.
        operation: its part of the read (see :meth:`asyncpq.events.Operation.part`).

    Attributes:
        prepared: what is read of it, once that was planned; None where its footer alone rules it out.
    """

    def __init__(self, number: int, file: DataFile, source: ObjectSource, operation: Operation) -> None:
        self.number = number
        self.file = file
        self.operation = operation
        self.delivered = False  # rows of it were given out
        self.source = source  # the object
        self._entry = file.entry
        self._is_current = False  # the store has said so, since the read began
        self.version: FileVersion  # the version that is read
        self.plan: ScanPlan | None = None
        self._preparation: ScanPlanner | None = None

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        number: int,
        file: DataFile,
        operation: Operation,
        *,
        tail_hint: str,
        listed_at: float | None,
        listed_now: bool,
        scan: bool,
        once: bool = False,
    ) -> OpenedFile:
        """Open a file and find its footer: of the version that a listing named, or of a later one.

        Args:
            tail_hint: names the files whose footers have similar sizes.
            listed_at: ``time.monotonic()`` when ``file.validator`` was asked for.
            listed_now: nothing is given out before the store has said, since the read began, that this is the
                file's version.
            once: as in :func:`asyncpq.objects.opening.open_source`.
        """
        if file.unreadable is not None:
            raise copy(file.unreadable)  # each read locates its own
        policy = immutable() if file.immutable else None
        if file.content is not None:
            source = held_source(runtime, file.url, file.content, tail_hint)
        else:
            source = await open_source(runtime, file.url, tail_hint=tail_hint, policy=policy, once=once)
        try:
            opened = cls(number, file, source, operation)
            metrics = operation.metrics
            context = RequestContext(metrics, scan=scan, probation=scan, round=metrics.rounds + 1)
            version = await opened._known_version(context)
            if _differs(version.validator, file.validator):
                version = await source.reload(version, context)
            elif listed_at is not None and file.validator is not None and file.validator.is_strong:
                source.freshness.seen(version, listed_at)
            if file.pinned and (file.validator is None or not version.validator.same_version(file.validator)):
                raise ObjectChangedError(
                    "the object has another version than the one that was planned", url=version.url, hint="Plan again."
                )
            if listed_at is None and file.validator is None and file.size not in (None, version.size):
                metrics.fall_back(f"the table says {file.size} bytes of a file of {version.size}: that is ignored")
            opened.version = version
            if opened._entry is not None and not opened._entry.speaks_of(version.validator):
                opened.file, opened._entry = file.unindexed(), None
                metrics.fall_back("a file is read without the index, which knows another version of it")
            known = file.validator
            opened._is_current = (
                listed_now and known is not None and known.is_strong and not _differs(version.validator, known)
            )
        except BaseException:
            await source.handle.close()
            raise
        return opened

    async def _known_version(self, context: RequestContext) -> FileVersion:
        """The version that an index knows, without a request; else the object's present version."""
        known = None
        if self._entry is not None and self._entry.known is not None:
            known = await self._entry.known(self.operation)
            context.round = self.operation.metrics.rounds + 1
        return await load_version(self.source, context, known)

    @property
    def schema_bytes(self) -> tuple[bytes, str | None]:
        """The bytes that :attr:`schema` is made from: files with equal bytes have equal schemas."""
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
        """Share the column types with other files of the same schema: most files of a dataset have it."""
        memory, elements = self.source.runtime.memory, self.version.metadata.schema.elements
        key = ("types of a schema", extensions, self.version.metadata.int96_unit, *self.schema_bytes)
        types: dict[int, FieldType] | None = memory.get(key)
        if types is None:
            types = {}
            memory.put(key, types, 1000 * len(elements))
        share_types(self.version, types, extensions)

    async def prepare(self, ask: ScanRequest, columns: DatasetColumns, *, scan: bool, other_bytes: int) -> int:
        """Plan what ``ask`` takes of it, with the index requests that this takes.

        Args:
            other_bytes: what the read takes of files before this one.

        Returns:
            how many bytes it takes of this one.

        Raises:
            ObjectChangedError: it is not the version that an index knows.
        """
        try:
            return await self._prepare(ask, columns, scan=scan, other_bytes=other_bytes)
        except UnknownLeafError:  # the index did not expect this leaf to be asked for
            metrics = self.operation.metrics
            found = await self.source.version(RequestContext(metrics, scan=scan, round=metrics.rounds + 1))
            if not found.validator.same_version(self.version.validator):
                raise ObjectChangedError(
                    "the object has another version than the index says", url=self.version.url
                ) from None
            self.version = found
            return await self._prepare(ask, columns, scan=scan, other_bytes=other_bytes)

    async def _prepare(self, ask: ScanRequest, columns: DatasetColumns, *, scan: bool, other_bytes: int) -> int:
        if columns.fields is not None and has_coarse_timestamps(columns.schema):
            self.version = self.version.in_int96_unit("us")
        file, version = self.file, self.version
        extensions = self.source.runtime.options.read.extension_types

        def view_here() -> SchemaAdapter:
            self.share_types(extensions)
            return view_of(version, columns.schema, file.fields or columns.fields, file.partition, extensions)

        # datasets come and go, the version may stay; the folders of a listing may come to hold further columns
        view = version.recent(("dataset view", columns.token, file.fields, *file.partition.items()), view_here)
        access = None if ask.by_file is None else ask.by_file.get(file.url, AccessPlan.none())
        if file.deletes is not None:
            deleted = AccessPlan.row_ranges(await self._deleted(file.deletes, columns.token))
            if ask.exactly and access is not None and not (access & deleted).is_none:
                raise RowIndexError(f"a row that was asked for is deleted: {access & deleted}", url=version.url)
            access = ~deleted if access is None else access - deleted
        if (found := self._rows_by_index()) is not None:
            access = found if access is None else access & found
        request = ask._replace(access=access, by_file=None, view=view)
        self._preparation = ScanPlanner(self.source, request, version, lambda version: None, self.operation)
        self._preparation.other_bytes = other_bytes
        self.plan = await self._preparation.prepare(scan=scan)
        self.plan.file_scan.current |= self._is_current
        return self.plan.fetch_plan.num_bytes()

    def _rows_by_index(self) -> AccessPlan | None:
        """The rows that may match, as an index has it; None for all."""
        if self._entry is None or self._entry.access.is_all:
            return None
        try:
            self._entry.access.resolve([group.num_rows for group in self.version.metadata.row_groups])
        except RowIndexError as error:
            self.operation.metrics.fall_back(f"an index is not used: {error.message}")
            return None
        return self._entry.access

    async def _deleted(self, deletes: Deletes, token: object) -> RowRanges:
        """Rows that are deleted; loaded once and kept in memory for the next read of the dataset."""
        reader, num_rows = CatalogReader(self.source.runtime, self.operation), self.version.metadata.num_rows

        async def load() -> tuple[RowRanges, int]:
            rows = await deletes.rows(reader, num_rows)
            return rows, 500 + 80 * rows.num_ranges

        return await reader.once(("deletes", token, self.file.url, deletes.identity), load)

    @property
    def has_rows(self) -> bool:
        """Whether the plan reads any row group."""
        return self.plan is not None and bool(self.plan.fetch_plan.row_groups)

    def describe(self, *, scan: bool) -> Plan | None:
        """What would be fetched of it; None where it is ruled out."""
        if self.plan is None or self._preparation is None:
            return None
        return describe(self.source, self.plan, self.operation.metrics, self._preparation.request, scan=scan)

    def jobs(self, unit_bytes: int, round_bytes: int | None) -> list[Job]:
        """Its units; one alone where it takes at most ``round_bytes``."""
        if self.plan is None:
            return []
        read = self.plan.file_scan
        whole = round_bytes is not None and self.plan.fetch_plan.num_bytes() <= round_bytes
        units = read.units(None if whole else unit_bytes)
        return [Job(read, unit, unit is units[-1]) for unit in units]

    async def finish(self) -> None:
        """Check that all planned rows were read, and that the file still has its version.

        Raises:
            CorruptFileError: rows are missing.
            ObjectChangedError: it has another version now.
        """
        if self.plan is not None:
            self.plan.file_scan.check_complete()
            if self.plan.file_scan.current:
                return
        if not self._is_current and not self.source.freshness.is_fresh(self.version):
            self._is_current = True  # it is asked once
            context = RequestContext(self.operation.metrics, round=self.operation.metrics.rounds + 1)
            validation = self.source.start_validation(self.version, context)
            validation.join()
            await landed(validation, self.operation.metrics)

    async def changed(self) -> None:
        """Forget the version in every cache: the object has another one now."""
        await self.source.forget(self.version)

    async def close(self) -> None:
        """Close its handle."""
        await self.source.handle.close()


def _differs(found: Validator, listed: Validator | None) -> bool:
    """Whether a listing names another version than a response did, as far as the two can be compared."""
    if listed is None:
        return False
    if found.size != listed.size:
        return True
    if found.etag is not None and listed.etag is not None:
        return found.etag != listed.etag
    return found.version is not None and listed.version is not None and found.version != listed.version


T = TypeVar("T")

_BAD_FILE: Final = (FormatError, ObjectNotFoundError, AccessDeniedError)


def is_bad_file(error: AsyncpqError) -> bool:
    """Whether the error concerns this file alone: it is not Parquet, is missing, cannot be read, or does not fit.

    Missing credentials concern all files.
    """
    return isinstance(error, _BAD_FILE) and not isinstance(error, CredentialsError)


class Opener:
    """Opens files.

    Args:
        operation: of the read that they are opened for; each of them has a part of it.
        rounds: requests of the read that these wait for, one after another.
        tail_hint: names all of them, whose footers are alike.
        prefix: the folder whose files they are, safe to be shown; None where a pattern, a list or a table names them.
        by_index: a snapshot of an index names them.
        listed_at: when the files' validators were asked for (``time.monotonic()``).
        listed_now: see :meth:`OpenedFile.open`.
        scan: for a scan, which leaves connections to others.
        ordered: files are given in order; else as they become ready.
        few: the first ones may be enough: more are opened once those were given.
        restarts: how often a file that changes meanwhile is opened again.
        skip: told of each bad file, and its part, that is left out; None to raise what is wrong with it.
    """

    def __init__(
        self,
        runtime: Runtime,
        operation: Operation,
        *,
        rounds: int = 0,
        tail_hint: str,
        prefix: str | None = None,
        by_index: bool = False,
        listed_at: float | None = None,
        listed_now: bool = False,
        scan: bool = True,
        ordered: bool = True,
        few: bool = False,
        restarts: int = 0,
        skip: Callable[[int, Operation, AsyncpqError], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._operation = operation
        self._rounds = rounds
        self._tail_hint = tail_hint
        self._prefix = prefix
        self._by_index = by_index
        self._listed_at = listed_at
        self._listed_now = listed_now
        self._scan = scan
        self._ordered = ordered
        self._few = few
        self._restarts = restarts
        self._skip = skip

    async def files(
        self, todo: Iterable[tuple[int, DataFile]], prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> AsyncGenerator[tuple[OpenedFile, T]]:
        """Opened files, and what ``prepare`` gave for them. Whoever takes one closes it.

        Args:
            todo: numbers and files.
            prepare: runs for several files at once.
        """
        most = self._runtime.options.limits.files_ahead
        left = iter(todo)
        window: deque[asyncio.Task[tuple[OpenedFile, T] | None]] = deque()
        ahead = 1 if self._few else most
        try:
            while True:
                for number, file in itertools.islice(left, ahead - len(window)):
                    window.append(asyncio.get_running_loop().create_task(self.open(number, file, prepare)))
                if not window:
                    return
                awaited = [window[0]] if self._ordered else window
                task = next((task for task in awaited if task.done()), None)
                if task is None:
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    task = next(task for task in awaited if task.done())
                window.remove(task)
                ahead = min(ahead * 2, most)
                opened = task.result()
                if opened is not None:
                    yield opened
        finally:
            await self._end(window)

    async def _end(self, window: Iterable[asyncio.Task[tuple[OpenedFile, T] | None]]) -> None:
        """Nobody takes the files that are under way."""
        for task in window:
            task.cancel()
        for task in window:
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None and (found := task.result()) is not None:
                opened, _ = found
                self._operation.metrics.add_part(opened.operation.metrics)
                await opened.close()

    async def open(
        self, number: int, file: DataFile, prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> tuple[OpenedFile, T] | None:
        """One file, and what ``prepare`` gave for it; None for a file that is left out."""
        part = self._operation.part(safe_url(file.url), self._rounds)
        restarts = self._restarts
        while True:
            try:
                return await self._prepared(number, file, part, prepare)
            except ObjectChangedError:
                if file.pinned:
                    self._operation.metrics.add_part(part.metrics)
                    raise
                if file.entry is not None and file.entry.validator is not None:
                    file = file.unindexed()  # what stands there now is read without the index
                    part.restarts()
                    continue
                if not restarts:
                    self._operation.metrics.add_part(part.metrics)
                    raise
                restarts -= 1
                part.restarts()
            except _BAD_FILE as error:
                if isinstance(error, NotParquetError) and self._prefix is not None:
                    error.hint = stray_file(self._prefix, part.url)
                if isinstance(error, ObjectNotFoundError) and self._by_index:
                    error.hint = GONE_SINCE
                if self._skip is None or not is_bad_file(error):
                    self._operation.metrics.add_part(part.metrics)
                    raise
                self._skip(number, part, error)
                return None
            except BaseException:
                self._operation.metrics.add_part(part.metrics)
                raise

    async def _prepared(
        self, number: int, file: DataFile, part: Operation, prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> tuple[OpenedFile, T]:
        async with self._runtime.deadline(part.url):
            opened = await OpenedFile.open(
                self._runtime,
                number,
                file,
                part,
                tail_hint=self._tail_hint,
                listed_at=self._listed_at,
                listed_now=self._listed_now,
                scan=self._scan,
            )
            try:
                return opened, await prepare(opened)
            except BaseException as error:
                if isinstance(error, ObjectChangedError):
                    await opened.changed()
                await opened.close()
                raise
