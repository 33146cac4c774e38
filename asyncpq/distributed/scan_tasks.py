"""Scan tasks: the files and rows that each task reads, encoded where they are planned, and how workers read them.

A task lists file versions and the rows to read from them, in JSON with the payloads' bytes behind it. So tasks in the
work folder are never unpickled. What all tasks of a scan share, a :class:`TaskScan`, is pickled.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
import json
import struct
import uuid
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, Self

import pyarrow as pa

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState, FileRequests, SameRequest
from asyncpq.datasets.model import DataFile, IndexEntry, TableField, View
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.datasets.providers import GivenFiles, RuntimeReader
from asyncpq.datasets.schemas import SchemaUnifier
from asyncpq.distributed import worker_sessions as workers
from asyncpq.errors import CorruptIndexError, ObjectChangedError, RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import Constant, Expression
from asyncpq.expressions.scalars import Day, Duration, TimeOfDay, Timestamp, as_scalar
from asyncpq.indexing.query.file_entries import known_version
from asyncpq.objects.runtime import Runtime, runtime_of
from asyncpq.objects.version import KnownVersion
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.executor import ScanExecutor, UnitRows
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.session import Session
from asyncpq.storage.base import Validator

_VERSION: Final = b"3"
_REFERENCE: Final = b"R"
_ENTRY_BYTES: Final = 16  # at most, of a payload's key and length
#: The attributes of :class:`PlannedFile` that JSON has, in the order in which they are encoded.
_PLAIN: Final = ("url", "num_rows", "num_bytes", "filtered", "immutable", "fields")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """The plan to read one version of a file: its rows, and the metadata that a task needs."""

    url: str
    validator: Validator | None  # None only with `content`
    rows: RowRanges | None = None  # None for all
    num_rows: int = 0  # of `rows`; 0 if unknown
    num_bytes: int = 0  # approximate compressed bytes of `rows`
    filtered: bool = True  # evaluate the predicate for each row; otherwise it is true for all of them
    immutable: bool = False  # the object at `url` never changes, as tables promise
    partition: Mapping[str, Any] = field(default_factory=dict)
    fields: int = 0  # 0: the file has the columns as TaskScan.fields, else as TaskScan.variants[fields - 1]
    content: bytes | None = None  # the bytes of a file that is in no store
    # by leaf, as in the index tables "footers" and "pages", for file 0; empty: the task reads the footer
    footers: Mapping[int, bytes] = field(default_factory=dict)
    pages: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """Encoded size of ``footers`` and ``pages``, the metadata that the plan contains, in bytes."""
        payloads = [*self.footers.values(), *self.pages.values()]
        return sum(map(len, payloads)) + _ENTRY_BYTES * len(payloads)

    def without_payloads(self) -> PlannedFile:
        """Return a copy of the planned file without ``footers`` and ``pages``, which the task then fetches."""
        return replace(self, footers={}, pages={})


class PlanRequests(FileRequests, Protocol):
    """Makes the request for each file of a plan, or of a task, and notes what the planner should know of the files."""

    facts: frozenset[str]  # what holds for at least one of the files that were opened, in the engine's own words

    def planned(self, opened: OpenedFile) -> None:
        """Called for each opened file with rows to read; may add to ``facts``."""


class TaskRequests:
    """The :class:`PlanRequests` of a dataset: the same request for each file. With ``are_planned``, the files are those
    of a plan: a file that lacks rows of its plan raises ObjectChangedError."""

    def __init__(self, state: DatasetState, request: ScanRequest, *, are_planned: bool = False) -> None:
        self.facts: frozenset[str] = frozenset()
        self._same = SameRequest(state, request)
        self._are_planned = are_planned

    def accept(self, opened: OpenedFile) -> None:
        self._same.accept(opened)
        if self._are_planned:
            check_planned_rows(opened)

    def request(self, opened: OpenedFile) -> ScanRequest:
        return self._same.request(opened)

    async def may_match(self, opened: OpenedFile) -> bool:
        return await self._same.may_match(opened)

    def planned(self, opened: OpenedFile) -> None:
        """Do nothing."""


def check_planned_rows(opened: OpenedFile) -> None:
    """Raise ObjectChangedError if a file lacks rows that were planned."""
    entry = opened.file.entry
    if entry is None or entry.access.is_all:
        return
    try:
        entry.access.resolve([group.num_rows for group in opened.version.metadata.row_groups])
    except RowIndexError as error:
        message = f"the file does not have the planned rows: {error.message}"
        raise ObjectChangedError(message, url=opened.version.url) from error


@dataclass(frozen=True, kw_only=True)
class TaskScan:
    """The part of a plan that all tasks of a scan share: columns, condition and settings. Picklable, and free of
    secrets but those of ``settings``.

    :func:`plan_scan` makes one. An engine that reads files by rules of its own makes a subclass of
    :class:`asyncpq.distributed.EngineScan`, for :func:`plan_tasks`. Only asyncpq calls :meth:`requests`, :meth:`tables`
    and :meth:`batch_schema`, which EngineScan overrides.

    Attributes:
        url: url of the dataset, without secrets.
        description: one line of text: where the files come from, and the version of a table.
        view: which files the scan sees: "listed", "snapshot" (of an index) or "table".
        schema: the dataset's columns.
        fields: the table's columns; None if columns are matched by name.
        variants: for files that have the columns under other names or ids than ``fields``: each such set of fields
            once.
        columns: names, dotted paths or ordinals of the columns to read; None for all.
        output: schema of the batches; None if an engine converts them and the schema is not known.
        batch_size: maximum rows of a batch.
        where: condition with absolute times; rows for which it is not true may be left out. None: all rows.
        unifier: checks that the files' schemas fit together; None if they may differ.
        skips: whether tasks leave out bad files (not Parquet, damaged, ...), instead of failing.
        skips_missing: whether tasks leave out files that do not exist.
        settings: the session of the workers.
        again: text for hints of errors on how to plan again, such as "Call plan_scan() again."
    """

    again: ClassVar[str] = "Call plan_scan() again."

    url: str
    description: str
    view: str
    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    variants: tuple[tuple[TableField, ...], ...] = ()
    columns: tuple[str | int, ...] | None
    output: pa.Schema | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    where: Expression | None = None
    unifier: SchemaUnifier | None = None
    skips: bool = False
    skips_missing: bool = False
    settings: workers.WorkerSettings

    @classmethod
    def of(cls, state: DatasetState, **own: Any) -> Self:
        """Return the scan of an open dataset, for :func:`plan_tasks`.

        Args:
            state: the dataset, such as an :class:`asyncpq.distributed.EngineDataset`.
            own: values of attributes: ``columns`` and ``settings``, and any that differ from the dataset's.
        """
        known: dict[str, Any] = {
            "url": state.url,
            "description": state.source.description,
            "view": str(state.source.view),
            "schema": state.columns.schema,
            "fields": state.columns.fields,
            "unifier": state.unifier,
            "skips": state.skips,
            "skips_missing": state.skips_missing,
        }
        return cls(**known | own)

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        """Key of the rules, beside ``schema``, that match files to columns: scans with equal keys share what workers
        cache of files."""
        return self.url, self.fields, self.variants

    def requests(self, state: DatasetState, request: ScanRequest, *, are_planned: bool = False) -> PlanRequests:
        """Return asyncpq's object that makes the request for each file, of a plan or of a task (``are_planned``)."""
        return TaskRequests(state, request, are_planned=are_planned)

    def tables(self) -> Callable[[UnitRows[OpenedFile]], Sequence[pa.Table]]:
        """Return asyncpq's function that converts the rows of one step of a read to tables."""
        return attrgetter("tables")

    def batch_schema(self) -> pa.Schema:
        """Return the schema of the batches, also for a stream without batches."""
        assert self.output is not None, "it is the dataset's own"
        return self.output


def task_stream(
    scan: TaskScan,
    state: DatasetState,
    operation: Operation,
    files: DatasetFiles,
    *,
    batch_size: int = 0,
    combine_rows: int = 0,
) -> RecordBatchStream:
    """Return the stream of the rows of ``files``, which is entered with ``async with``.

    Args:
        state: the dataset, as :func:`state_of_scan` returns it.
        operation: counts the cost of the read.
        files: the files to read, with the request for each; from a plan or a task.
        batch_size: maximum rows of a batch; 0: that of the scan.
        combine_rows: combine small tables to tables of about this number of rows; 0: do not combine.
    """
    schema = scan.batch_schema()
    return RecordBatchStream(
        operation,
        ScanExecutor(state.runtime, scan.url, files),
        lambda: schema,
        scan.tables(),
        batch_size=batch_size or scan.batch_size,
        limit=None,
        combine_rows=combine_rows,
    )


def plan_again(scan: TaskScan) -> AbstractContextManager[None]:
    """Add the hint to plan again to errors in the block about files that changed after planning."""
    return workers.plan_again_hint(scan.again, scan.view == View.SNAPSHOT)


def columns_of(scan: TaskScan) -> DatasetColumns:
    """Return the dataset's columns. All tasks of the scan in a process get the same token in them, by which they
    share cached data."""
    digest = hashlib.sha256(scan.schema.serialize().to_pybytes())
    digest.update(repr(scan.cache_key).encode())
    return DatasetColumns(scan.schema, scan.fields, digest.digest())


def state_of_scan(scan: TaskScan, runtime: Runtime, files: Sequence[DataFile]) -> DatasetState:
    """Return the state of a dataset of ``files``, in their planned versions, with the columns of the scan."""
    return DatasetState(
        runtime=runtime,
        url=scan.url,
        source=GivenFiles(files, view=View.TABLE, description=scan.description),
        columns=columns_of(scan),
        skips=scan.skips,
        skips_missing=scan.skips_missing,
        unifier=scan.unifier,
    )


@dataclass(frozen=True, slots=True)
class TaskPiece:
    """Planned files that go into one task together. Several pieces may form a task. They are encoded when tasks are
    to read them."""

    data: bytes | None  # see :func:`decode_files`; None if the piece is not encoded yet, or is in the work folder
    num_bytes: int  # compressed bytes of data in the files
    num_files: int
    place: tuple[str, int, int] | None = None  # url, first byte and stop in the work folder
    least_bytes: int = 0  # upper bound of its part of an encoded task without payloads
    files: tuple[PlannedFile, ...] = ()  # of a piece that is not encoded yet

    @property
    def most_bytes(self) -> int:
        """Upper bound of the piece's part of an encoded task; 0 if it is in the work folder."""
        if self.place is not None:
            return 0
        if self.data is not None:
            return len(self.data)
        return self.least_bytes + sum([file.payload_bytes for file in self.files])

    def encoded(self) -> TaskPiece:
        """Return the piece with its files encoded."""
        if not self.files:
            return self
        data = encode_files(self.files)
        least_bytes = len(data) + 4 - sum([file.payload_bytes for file in self.files])
        return replace(self, data=data, least_bytes=least_bytes, files=())

    def without_payloads(self) -> TaskPiece:
        """Return a copy of the piece whose files have no payloads. The piece must not be in the work folder."""
        if self.data is None:
            return replace(self, files=tuple([file.without_payloads() for file in self.files]))
        return replace(self, data=encode_files([file.without_payloads() for file in decode_files(self.data)]))


# -- encoded --------------------------------------------------------------------------------------


def pack_task(pieces: Sequence[TaskPiece]) -> bytes:
    """Encode the pieces of a task as bytes. Pieces that are in the work folder are encoded as references to their
    byte ranges; neighbours that were not encoded yet become one."""
    parts: list[bytes] = []
    for is_open, run in itertools.groupby(pieces, lambda piece: bool(piece.files)):
        if is_open:
            parts.append(encode_files([file for piece in run for file in piece.files]))
        else:
            parts += [_REFERENCE + json.dumps(done.place).encode() if done.data is None else done.data for done in run]
    return b"".join([len(part).to_bytes(4, "little") + part for part in parts])


def unpack_task(data: bytes) -> list[bytes | tuple[str, int, int]]:
    """Decode the result of :func:`pack_task`. Each item is a piece's data; or, for a piece in the work folder, its
    url and the start and stop of its bytes."""
    pieces: list[bytes | tuple[str, int, int]] = []
    stop = 0
    while stop < len(data):
        start = stop + 4
        stop = start + int.from_bytes(data[stop:start], "little")
        part = data[start:stop]
        pieces.append(tuple(json.loads(part[1:])) if part[:1] == _REFERENCE else part)
    return pieces


def encode_files(files: Sequence[PlannedFile]) -> bytes:
    """Encode planned files as bytes that :func:`decode_files` decodes: JSON, which has a list for each file, then all
    its bytes."""
    rows: list[list[Any]] = []
    data: list[bytes] = []
    for file in files:
        version, ranges = file.validator, file.rows
        payloads = [[(key, len(value)) for key, value in part.items()] for part in (file.footers, file.pages)]
        rows.append(
            [
                *[getattr(file, name) for name in _PLAIN],
                None if version is None else [version.size, version.etag, version.last_modified, version.version],
                None if ranges is None else ranges.num_ranges,
                _plain_partition(file.partition),
                None if file.content is None else len(file.content),
                *payloads,
            ]
        )
        if ranges is not None:
            data.append(struct.pack(f"<{2 * ranges.num_ranges}q", *ranges.starts, *ranges.stops))
        data += [file.content or b"", *file.footers.values(), *file.pages.values()]
    head = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join([_VERSION, len(head).to_bytes(4, "little"), head, *data])


def decode_files(data: bytes) -> list[PlannedFile]:
    """Decode the result of :func:`encode_files`. Raises CorruptIndexError if the data is damaged or another version of
    asyncpq encoded it."""
    if data[:1] != _VERSION:
        raise CorruptIndexError(
            "another version of asyncpq encoded the task, in a format that this version cannot decode",
            hint="Install the same version where tasks are planned and on the workers.",
        )
    try:
        return list(_decoded(data))
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise CorruptIndexError(
            "the data of the task is damaged and cannot be decoded", hint="Plan the read again."
        ) from error


def _decoded(data: bytes) -> Iterator[PlannedFile]:
    at = 5 + int.from_bytes(data[1:5], "little")

    def taken(length: int) -> bytes:
        nonlocal at
        at += length
        if length < 0 or at > len(data):
            raise ValueError("bytes are missing")
        return data[at - length : at]

    for row in json.loads(data[5:at].decode("utf-8", "surrogatepass")):
        *plain, version, num_ranges, partition, content, footers, pages = row
        ranges = None if num_ranges is None else struct.unpack(f"<{2 * num_ranges}q", taken(16 * num_ranges))
        yield PlannedFile(
            **dict(zip(_PLAIN, plain, strict=True)),
            validator=None if version is None else Validator(*version),
            rows=None if ranges is None else RowRanges.from_parallel(ranges[:num_ranges], ranges[num_ranges:]),
            partition={
                name: _DECODERS[value[0]](*value[1:]) if isinstance(value, list) else value
                for name, value in partition.items()
            },
            content=None if content is None else taken(content),
            footers={key: taken(length) for key, length in footers},
            pages={key: taken(length) for key, length in pages},
        )
    if at != len(data):
        raise ValueError("there are bytes behind the last file's")


def partition_bytes(values: Mapping[str, Any]) -> int:
    """Return an upper bound of the encoded size of partition values, in bytes."""
    return len(json.dumps(_plain_partition(values))) if values else 0


def _plain_partition(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return partition values for JSON. A value of a type that JSON lacks becomes a list: type name, then arguments."""
    return {name: _plain(as_scalar(value)) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    name = type(value).__name__
    if isinstance(value, float):
        return [name, value.hex()]
    if isinstance(value, bytes):
        return [name, base64.b64encode(value).decode()]
    if isinstance(value, Day):
        return [name, value.days]
    if isinstance(value, Timestamp):
        return [name, value.nanoseconds, value.timezone]
    if isinstance(value, (TimeOfDay, Duration)):
        return [name, value.nanoseconds]
    if isinstance(value, dt.timedelta):
        return [name, value.days, value.seconds, value.microseconds]
    return [name, value.isoformat() if isinstance(value, (dt.date, dt.time)) else str(value)]


def _time(nanoseconds: int, zone: str | None) -> pa.Scalar[Any]:
    if -(1 << 63) <= nanoseconds < 1 << 63:
        return pa.scalar(nanoseconds, pa.timestamp("ns", zone))
    return pa.scalar(nanoseconds // 1000, pa.timestamp("us", zone))  # before 1677 or after 2262: of microseconds


_DECODERS: Final[Mapping[str, Callable[..., Any]]] = {
    "Day": lambda since_epoch: pa.scalar(since_epoch, pa.date32()),
    "float": float.fromhex,
    "bytes": base64.b64decode,
    "Timestamp": lambda nanoseconds, zone: _time(nanoseconds, zone),
    "TimeOfDay": lambda nanoseconds: pa.scalar(nanoseconds, pa.time64("ns")),
    "Duration": lambda nanoseconds: pa.scalar(nanoseconds, pa.duration("ns")),
    "timedelta": dt.timedelta,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "Decimal": Decimal,
    "UUID": uuid.UUID,
}


# -- read in tasks --------------------------------------------------------------------------------


def read_task(scan: TaskScan, task: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an encoded task in batches, with the session of this process.

    Args:
        scan: what all tasks of the scan share (:attr:`ScanTask.scan`).
        task: the encoded task (:attr:`ScanTask.data`).

    Raises:
        ObjectChangedError, ObjectNotFoundError: a file was replaced or deleted after it was planned.
        AsyncpqError: the errors of :meth:`asyncpq.Dataset.scan`.
    """
    with plan_again(scan):
        yield from workers.batches_on_worker(scan.settings, lambda session: open_task(scan, task, runtime_of(session)))


async def open_task(scan: TaskScan, task: bytes, runtime: Runtime) -> workers.BatchStream:
    """Return the stream of the rows of an encoded task, which this process reads."""
    return aclosing(_batches(runtime, scan, await task_files(runtime, task)))


async def _batches(runtime: Runtime, scan: TaskScan, files: Sequence[PlannedFile]) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the batches of all files. Consecutive files share a scan if they all need the filter, or all do not."""
    for filtered, group in itertools.groupby(files, key=lambda file: file.filtered):
        async with _task_stream(runtime, scan, list(group), filtered=filtered) as stream:
            async for batch in stream:
                yield batch


async def task_files(runtime: Runtime, task: bytes) -> list[PlannedFile]:
    """Decode the files of a task. Pieces in the work folder are fetched first."""
    files: list[PlannedFile] = []
    for part in unpack_task(task):
        if isinstance(part, tuple):
            url, start, stop = part
            operation = runtime.operation("open", url)
            with operation:
                part = await RuntimeReader(runtime, operation).read_bytes(url, start, stop)
        files += decode_files(part)
    return files


async def task_data_files(session: Session, scan: TaskScan, task: bytes) -> list[DataFile]:
    """Return the files of a task, of which only the planned versions and rows may be read. They lack the page locations
    of the plan, for reads with another predicate."""
    files = await task_files(runtime_of(session), task)
    return [data_file(scan, replace(file, pages={}), runtime_of(session)) for file in files]


def _task_stream(
    runtime: Runtime, scan: TaskScan, files: Sequence[PlannedFile], *, filtered: bool
) -> RecordBatchStream:
    state = state_of_scan(scan, runtime, [data_file(scan, file, runtime) for file in files])
    where = scan.where if filtered else None
    # the plan has pruned already
    request = ScanRequest(columns=scan.columns, where=where, prune=None if where is None else Constant(True))
    operation = runtime.operation("scan", scan.url)
    requests = scan.requests(state, request, are_planned=True)
    return task_stream(scan, state, operation, DatasetFiles(state, request, operation, scan=True, requests=requests))


def data_file(scan: TaskScan, file: PlannedFile, runtime: Runtime) -> DataFile:
    """Convert a planned file to a dataset file, of which only the planned version and rows may be read."""
    validator = file.validator

    async def known(operation: Operation) -> KnownVersion | None:
        if validator is None:
            return None
        return known_version(0, file.footers, file.pages, validator, runtime.options.limits)

    return DataFile(
        url=file.url,
        validator=validator,
        size=None if validator is None else validator.size,
        partition=file.partition,
        immutable=file.immutable,
        pinned=validator is not None,
        fields=scan.variants[file.fields - 1] if file.fields else None,
        content=file.content,
        entry=IndexEntry(
            access=AccessPlan.all() if file.rows is None else AccessPlan.row_ranges(file.rows),
            validator=validator,
            known=known if file.footers else None,
        ),
    )
