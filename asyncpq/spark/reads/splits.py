"""Splits: what each task reads, encoded by the driver, and how tasks read it as batches of Spark's types.

A split lists file versions and the rows to read from them, in one Arrow IPC record batch: one row for each file, with
partition values in JSON. So splits in the work folder are never unpickled.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile, IndexEntry, TableField, View
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.datasets.providers import CatalogReader, GivenFiles
from asyncpq.errors import CorruptIndexError, located
from asyncpq.events import Operation
from asyncpq.expressions import Constant, Expression
from asyncpq.expressions.scalars import Day, Duration, TimeOfDay, Timestamp, as_scalar
from asyncpq.indexing.query.file_entries import known_version
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import KnownVersion
from asyncpq.options import DEFAULT_BATCH_SIZE
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.executor import ScanExecutor, UnitRows
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.file_reads import SparkRequests
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.calendars import FileDates, file_dates
from asyncpq.spark.types.conversion import converter
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.base import Validator

_VERSION: Final = b"2"
_REFERENCE: Final = b"R"
_PAYLOADS: Final = pa.map_(pa.int32(), pa.binary())
_ENTRY_BYTES: Final = 8  # of a payload's key and offset
#: The attributes of :class:`asyncpq.storage.base.Validator`.
VALIDATOR_TYPE: Final = pa.struct(
    {"size": pa.int64(), "etag": pa.string(), "last_modified": pa.string(), "version": pa.string()}
)
_VALIDATOR_NAMES: Final = [item.name for item in VALIDATOR_TYPE]
#: Columns are the attributes of :class:`PlannedFile`.
_SCHEMA: Final = pa.schema(
    {
        "url": pa.string(),
        "validator": VALIDATOR_TYPE,
        "rows": pa.struct({"starts": pa.list_(pa.int64()), "stops": pa.list_(pa.int64())}),
        "num_rows": pa.int64(),
        "num_bytes": pa.int64(),
        "filtered": pa.bool_(),
        "immutable": pa.bool_(),
        "partition": pa.string(),
        "fields": pa.int32(),
        "content": pa.binary(),
        "footers": _PAYLOADS,
        "pages": _PAYLOADS,
    }
)

#: Columns that are often alike for all files, so that their arrays are made once: that takes 10 us.
_OFTEN_ALIKE: Final = frozenset({"rows", "filtered", "immutable", "partition", "fields", "content", "footers", "pages"})


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
    fields: int = 0  # 0: the file has the columns as LakeScan.fields, else as LakeScan.variants[fields - 1]
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
        """Return a copy of the planned file without ``footers`` and ``pages``, which the task then fetches from the
        file."""
        return replace(self, footers={}, pages={})


@dataclass(frozen=True, kw_only=True)
class LakeScan:
    """The part of a plan that all splits of a scan share: columns, condition and settings. Picklable, and free of
    secrets."""

    url: str  # of the dataset
    description: str
    view: str
    schema: pa.Schema  # the dataset's
    fields: tuple[TableField, ...] | None  # the table's; None if columns are matched by name
    variants: tuple[tuple[TableField, ...], ...] = ()  # other ways in which files have the columns
    columns: tuple[str, ...]  # columns to read, those of the predicate included, in the order of `spark_schema`
    spark_schema: str  # JSON of the StructType of `columns`
    conf: ReadConf
    partitioning: str = ""  # how values in paths are read; it takes part in cache keys
    where: Expression | None = None  # rows for which it is not true may be left out; times are absolute
    settings: SparkSettings


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """Planned files that go into one split together. Several pieces may form a split. They are encoded when tasks are
    to read them: Spark's own reader needs no encoded plan."""

    data: bytes | None  # see :func:`decode_files`; None if the piece is not encoded yet, or is in the work folder
    num_bytes: int  # compressed bytes of data in the files
    num_files: int
    place: tuple[str, int, int] | None = None  # url, first byte and stop in the work folder
    least_bytes: int = 0  # upper bound of its part of an encoded split without payloads
    files: tuple[PlannedFile, ...] = ()  # of a piece that is not encoded yet

    @property
    def most_bytes(self) -> int:
        """Upper bound of the piece's part of an encoded split; 0 if it is in the work folder."""
        if self.place is not None:
            return 0
        if self.data is not None:
            return len(self.data)
        return self.least_bytes + sum([file.payload_bytes for file in self.files])

    def encoded(self) -> SplitPiece:
        """Return the piece with its files encoded."""
        if not self.files:
            return self
        data = encode_files(self.files)
        least_bytes = len(data) + 4 - sum([file.payload_bytes for file in self.files])
        return replace(self, data=data, least_bytes=least_bytes, files=())

    def without_payloads(self) -> SplitPiece:
        """Return a copy of the piece whose files have no payloads. The piece must not be in the work folder."""
        if self.data is None:
            return replace(self, files=tuple([file.without_payloads() for file in self.files]))
        return replace(self, data=encode_files([file.without_payloads() for file in decode_files(self.data)]))


# -- encoded --------------------------------------------------------------------------------------


def pack_split(pieces: Sequence[SplitPiece]) -> bytes:
    """Encode the pieces of a split as bytes. Pieces that are in the work folder are encoded as references to their
    byte ranges; neighbours that were not encoded yet become one."""
    parts: list[bytes] = []
    for is_open, run in itertools.groupby(pieces, lambda piece: bool(piece.files)):
        if is_open:
            parts.append(encode_files([file for piece in run for file in piece.files]))
        else:
            parts += [_REFERENCE + json.dumps(done.place).encode() if done.data is None else done.data for done in run]
    return b"".join([len(part).to_bytes(4, "little") + part for part in parts])


def unpack_split(data: bytes) -> list[bytes | tuple[str, int, int]]:
    """Decode the result of :func:`pack_split`. Each item is a piece's data; or, for a piece in the work folder, its
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
    """Encode planned files as bytes that :func:`decode_files` decodes."""
    columns: dict[str, list[Any]] = {name: [getattr(file, name) for file in files] for name in _SCHEMA.names}
    columns["validator"] = [
        None if version is None else {name: getattr(version, name) for name in _VALIDATOR_NAMES}
        for version in columns["validator"]
    ]
    columns["rows"] = [
        None if rows is None else {"starts": list(rows.starts), "stops": list(rows.stops)} for rows in columns["rows"]
    ]
    columns["partition"] = [encode_partition(values) for values in columns["partition"]]
    for name in ("footers", "pages"):
        columns[name] = [tuple(payloads.items()) for payloads in columns[name]]
    arrays = [_array(column, columns[column.name]) for column in _SCHEMA]
    data: bytes = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA).serialize().to_pybytes()
    return _VERSION + data


def _array(column: pa.Field, values: list[Any]) -> pa.Array:
    first = values[0] if values else None
    is_small = isinstance(first, (bool, int, str)) or not first  # large ones would fill the memory
    if column.name in _OFTEN_ALIKE and is_small and all(value == first for value in values):
        return _repeated(column.name, first, len(values))
    return pa.array(values, column.type)


@lru_cache(maxsize=256)
def _repeated(name: str, value: Any, times: int) -> pa.Array:
    return pa.array([value] * times, _SCHEMA.field(name).type)


def decode_files(data: bytes) -> list[PlannedFile]:
    """Decode the result of :func:`encode_files`. Raises CorruptIndexError if the data is damaged or another version of
    asyncpq encoded it."""
    if data[:1] != _VERSION:
        raise CorruptIndexError(
            "another version of asyncpq encoded the split, in a format that this version cannot decode",
            hint="Install the same version on the driver and the executors.",
        )
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(data[1:]), _SCHEMA).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise CorruptIndexError(
            "the data of the split is damaged and cannot be decoded",
            hint="Make the DataFrame again, which plans again.",
        ) from error
    files: list[PlannedFile] = []
    for row in rows:
        if row["validator"] is not None:
            row["validator"] = Validator(**row["validator"])
        if row["rows"] is not None:
            row["rows"] = RowRanges.from_parallel(**row["rows"])
        row["partition"] = {
            name: _DECODERS[value[0]](*value[1:]) if isinstance(value, list) else value
            for name, value in json.loads(row["partition"]).items()
        }
        row["footers"], row["pages"] = dict(row["footers"]), dict(row["pages"])
        files.append(PlannedFile(**row))
    return files


def encode_partition(values: Mapping[str, Any]) -> str:
    """Encode partition values as JSON. A value of a type that JSON lacks becomes a list: type name, then arguments."""
    return json.dumps({name: _plain(as_scalar(value)) for name, value in values.items()}) if values else "{}"


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


_DECODERS: Final[Mapping[str, Callable[..., Any]]] = {
    "Day": lambda since_epoch: pa.scalar(since_epoch, pa.date32()),
    "float": float.fromhex,
    "bytes": base64.b64decode,
    "Timestamp": lambda nanoseconds, zone: pa.scalar(nanoseconds, pa.timestamp("ns", zone)),
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


def read_split(lake: LakeScan, split: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in batches with the columns of ``lake.spark_schema``. Batches may include rows that do
    not match the scan's condition. Raises ObjectChangedError if a file was replaced or deleted after planning."""
    with sessions.plan_again_hint(lake.view == View.SNAPSHOT):
        yield from sessions.batches(lake.settings, partial(_opened, lake, split))


async def _opened(lake: LakeScan, split: bytes, session: Session) -> sessions.BatchStream:
    return aclosing(_batches(session, lake, await split_files(session, split)))


async def _batches(session: Session, lake: LakeScan, files: Sequence[PlannedFile]) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the batches of all files. Consecutive files share a scan if they all need the filter, or all do not."""
    for filtered, group in itertools.groupby(files, key=lambda file: file.filtered):
        async with _split_scan(session.runtime, lake, list(group), filtered=filtered) as scan:
            async for batch in scan:
                yield batch


async def split_files(session: Session, split: bytes) -> list[PlannedFile]:
    """Decode the files of a split. Pieces in the work folder are fetched first."""
    files: list[PlannedFile] = []
    runtime = session.runtime
    for part in unpack_split(split):
        if isinstance(part, tuple):
            url, start, stop = part
            operation = runtime.operation("open", url)
            with operation:
                part = await CatalogReader(runtime, operation).read_bytes(url, start, stop)
        files += decode_files(part)
    return files


def _split_scan(runtime: Runtime, lake: LakeScan, files: Sequence[PlannedFile], *, filtered: bool) -> RecordBatchStream:
    given = [data_file(lake, file, runtime) for file in files]
    source = GivenFiles(given, view=View.TABLE, description=lake.description)  # a table's snapshot: those of the plan
    state = DatasetState(
        runtime=runtime,
        url=lake.url,
        source=source,
        columns=columns_of(lake),
        skips=False,
        skips_missing=lake.conf.ignore_missing_files,
    )
    where = lake.where if filtered else None
    # the driver has pruned already
    request = ScanRequest(columns=lake.columns, where=where, prune=None if where is None else Constant(True))
    operation = runtime.operation("scan", lake.url)
    requests = SparkRequests(state, request, lake.conf, are_planned=True)
    return spark_stream(lake, state, operation, DatasetFiles(state, request, operation, scan=True, requests=requests))


def spark_stream(
    lake: LakeScan,
    state: DatasetState,
    operation: Operation,
    files: DatasetFiles,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    combine_rows: int = 0,
) -> RecordBatchStream:
    """Return the stream of the rows of ``files``, in batches of Spark's types.

    ``batch_size``: maximum rows of a batch. ``combine_rows``: small tables are combined to tables of about this number
    of rows; 0 leaves them as they are.
    """
    return RecordBatchStream(
        state.runtime,
        operation,
        ScanExecutor(state.runtime, lake.url, files),
        lambda: pa.schema([]),
        SparkTables(lake.spark_schema, lake.conf).of,
        batch_size=batch_size,
        limit=None,
        combine_rows=combine_rows,
    )


def data_file(lake: LakeScan, file: PlannedFile, runtime: Runtime) -> DataFile:
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
        fields=lake.variants[file.fields - 1] if file.fields else None,
        content=file.content,
        entry=IndexEntry(
            access=AccessPlan.all() if file.rows is None else AccessPlan.row_ranges(file.rows),
            validator=validator,
            known=known if file.footers else None,
        ),
    )


def columns_of(lake: LakeScan) -> DatasetColumns:
    """Return the lake's columns, with a token that is the same for all splits of the lake in this process, so that
    they share cached data."""
    digest = hashlib.sha256(lake.schema.serialize().to_pybytes())
    digest.update(repr((lake.url, lake.fields, lake.variants, lake.conf, lake.partitioning)).encode())
    return DatasetColumns(lake.schema, lake.fields, digest.digest())


class SparkTables:
    """Converts the tables of one read to the columns of a Spark schema, which is given as the JSON of a
    ``StructType``."""

    def __init__(self, struct: str, conf: ReadConf) -> None:
        self._struct = spark_struct(struct)
        self._conf = conf
        # usually serves the next file, too
        self._last: tuple[pa.Schema, FileDates, Callable[[pa.RecordBatch], pa.RecordBatch]] | None = None

    def of(self, rows: UnitRows[OpenedFile]) -> list[pa.Table]:
        """Return the tables of ``rows``, converted to Spark's types, without empty ones. Errors name the file."""
        version, conf = rows.file.version, self._conf
        with located(url=version.url):
            dates = version.derived(("spark dates", conf), lambda: file_dates(version.metadata, conf))
            dates = _named(dates, rows.file.file.fields or ())
            return [self._converted(table, dates) for table in rows.tables if table.num_rows]

    def _converted(self, table: pa.Table, dates: FileDates) -> pa.Table:
        last = self._last
        if last is None or last[0] != table.schema or last[1] != dates:
            last = self._last = table.schema, dates, converter(table.schema, self._struct, self._conf, dates)
        return pa.Table.from_batches([last[2](batch) for batch in table.to_batches()])


def _named(dates: FileDates, fields: Sequence[TableField]) -> FileDates:
    """Return ``dates``, which name fields as the file does, with the lake's column names instead."""
    names = {field.names[0]: field.name for field in fields if field.names} if dates.int96_fields else {}
    if not names:
        return dates
    int96, mixed = (
        frozenset(names.get(name, name) for name in group) for group in (dates.int96_fields, dates.mixed_fields)
    )
    return replace(dates, int96_fields=int96, mixed_fields=mixed)


@lru_cache(maxsize=64)
def spark_struct(text: str) -> StructType:
    """Parse the JSON of a ``StructType``."""
    struct: StructType = StructType.fromJson(json.loads(text))
    return struct
