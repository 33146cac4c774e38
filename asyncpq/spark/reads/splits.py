"""Splits: the files of pinned versions that each task reads, packed by size and encoded.

A split is encoded as an Arrow IPC record batch with one row a file, partition values in JSON. So splits in the work
folder are never unpickled.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import CorruptIndexError
from asyncpq.expressions import Expression
from asyncpq.expressions.scalars import Duration, TimeOfDay, Timestamp, as_scalar
from asyncpq.options import KIB, MIB
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.spark.settings import SparkSettings
from asyncpq.storage.base import Validator

#: Maximum bytes of an encoded split. Footer payloads that do not fit are left out; the task reads these footers.
#: Exceptions are files with inline content, and plans that ``most_splits`` limits.
MOST_SPLIT_BYTES: Final = 64 * KIB
#: Minimum bytes of data for a task.
LEAST_SPLIT_BYTES: Final = 4 * MIB
#: Cost of opening a file in bytes, which bounds the number of files in a split.
FILE_COST_BYTES: Final = 2 * MIB
_MOST_RANGES: Final = 3 * KIB  # row ranges of one file in a split
_PIECE_BYTES: Final = 4 * KIB  # overhead of an encoded piece

_VERSION: Final = b"1"
_REFERENCE: Final = b"R"
_PIECES: Final = 64  # pieces grow with the plan: its second half has about so many
_PAYLOADS: Final = pa.list_(pa.struct([pa.field("leaf", pa.int32()), pa.field("payload", pa.binary())]))
_SCHEMA: Final = pa.schema(
    [
        pa.field("url", pa.string()),
        pa.field("size", pa.int64()),  # null: no version
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.string()),
        pa.field("version", pa.string()),
        pa.field("starts", pa.list_(pa.int64())),  # null: all rows
        pa.field("stops", pa.list_(pa.int64())),
        pa.field("num_rows", pa.int64()),
        pa.field("num_bytes", pa.int64()),
        pa.field("filtered", pa.bool_()),
        pa.field("immutable", pa.bool_()),
        pa.field("partition", pa.string()),
        pa.field("fields", pa.int32()),
        pa.field("content", pa.binary()),
        pa.field("footers", _PAYLOADS),
        pa.field("pages", _PAYLOADS),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One version of a file, and the rows of it that are read.

    Attributes:
        url: of the file.
        validator: its version; None only with ``content``.
        rows: row ranges to read; None for all.
        num_rows: number of these rows; 0 if unknown.
        num_bytes: their approximate compressed size.
        filtered: the predicate is evaluated for each row; otherwise it is true for all of them.
        immutable: the object at ``url`` never changes, as tables promise.
        partition: values by column that are the same in all rows.
        fields: 0 if the file has the columns as ``LakeScan.fields``, else as ``LakeScan.variants[fields - 1]``.
        content: the bytes of a file that is in no store.
        footers: what a read needs of the footer, encoded as in the index table "footers", for file 0; may be empty.
        pages: page locations by leaf, encoded as in the index table "pages"; may be empty.
    """

    url: str
    validator: Validator | None
    rows: RowRanges | None = None
    num_rows: int = 0
    num_bytes: int = 0
    filtered: bool = True
    immutable: bool = False
    partition: Mapping[str, Any] = field(default_factory=dict)
    fields: int = 0
    content: bytes | None = None
    footers: Mapping[int, bytes] = field(default_factory=dict)
    pages: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """Size of ``footers`` and ``pages``."""
        return sum(map(len, self.footers.values())) + sum(map(len, self.pages.values()))

    def without_payloads(self) -> PlannedFile:
        """The file without footer payloads; its task reads the footer."""
        return replace(self, footers={}, pages={})


@dataclass(frozen=True, kw_only=True)
class LakeScan:
    """What all splits of a scan share. Picklable; without secrets.

    Attributes:
        url: of the dataset, without secrets.
        description: of the dataset and its version.
        view: "snapshot", "listed" or "table".
        schema: the dataset's Arrow schema.
        fields: the table's fields; None if columns are matched by name.
        variants: other ways in which files have the columns.
        columns: names of the columns to read, those of the predicate included, in the order of ``spark_schema``.
        spark_schema: JSON of the ``StructType`` of these columns.
        conf: an :class:`asyncpq.spark.types.read_conf.ReadConf`.
        partitioning: how values in paths are read; it takes part in cache keys.
        where: rows for which it is not true may be left out. Relative times are resolved. None: all rows are given.
        settings: of the sessions.
    """

    url: str
    description: str
    view: str
    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    variants: tuple[tuple[TableField, ...], ...] = ()
    columns: tuple[str, ...]
    spark_schema: str
    conf: Any = None
    partitioning: str = ""
    where: Expression | None = None
    settings: SparkSettings


# -- packed ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitPiece:
    """Some encoded files: a split, or a part of one.

    Attributes:
        data: see :func:`decode_files`; None if the piece is in the work folder.
        num_bytes: compressed bytes of data in the files.
        num_files: number of files.
        place: url, first byte and stop in the work folder.
        least_bytes: upper bound of the size of ``data`` without payloads.
    """

    data: bytes | None
    num_bytes: int
    num_files: int
    place: tuple[str, int, int] | None = None
    least_bytes: int = 0


class SplitPacker:
    """Packs files into encoded pieces as they come, so that memory holds only their encoded form.

    Args:
        split_bytes: maximum size of a piece, unless a single row group is larger.
    """

    def __init__(self, split_bytes: int) -> None:
        self._split_bytes = split_bytes
        self._files: list[PlannedFile] = []
        self._open_bytes = 0
        self._least_bytes = _PIECE_BYTES
        self.total_bytes = 0

    def add(self, file: PlannedFile) -> Iterator[SplitPiece]:
        """Add a file; yield pieces that are full."""
        for part in _divided(file):
            cost, least = max(part.num_bytes, FILE_COST_BYTES), _least_bytes(part)
            full = self._open_bytes + cost > self._piece_bytes or self._least_bytes + least > MOST_SPLIT_BYTES
            if self._files and full:
                yield self._seal()
            self._files.append(part)
            self._open_bytes += cost
            self._least_bytes += least
            self.total_bytes += part.num_bytes

    def finish(self) -> Iterator[SplitPiece]:
        """Yield the last piece."""
        if self._files:
            yield self._seal()

    @property
    def _piece_bytes(self) -> int:
        """Small at first, since the size of a split depends on the total."""
        return min(self._split_bytes, max(LEAST_SPLIT_BYTES, self.total_bytes // _PIECES))

    def _seal(self) -> SplitPiece:
        files, self._files, self._open_bytes = self._files, [], 0
        self._least_bytes = _PIECE_BYTES
        fitting = _fitting_files(files, MOST_SPLIT_BYTES)
        data = _VERSION + _batch(fitting).serialize().to_pybytes()
        least = len(data) + 4 - sum(file.payload_bytes for file in fitting)
        return SplitPiece(data, sum(file.num_bytes for file in files), len(files), least_bytes=least)


def _divided(file: PlannedFile) -> Iterator[PlannedFile]:
    """The file, in parts if it has very many row ranges."""
    if file.rows is None or file.rows.num_ranges <= _MOST_RANGES:
        yield file
        return
    ranges, total = list(file.rows), file.rows.num_rows
    for at in range(0, len(ranges), _MOST_RANGES):
        rows = RowRanges(ranges[at : at + _MOST_RANGES])
        share = rows.num_rows / total
        yield replace(
            file, rows=rows, num_rows=round(file.num_rows * share), num_bytes=max(1, round(file.num_bytes * share))
        )


def _least_bytes(file: PlannedFile) -> int:
    """Upper bound of the encoded size of a file without payloads."""
    ranges = 0 if file.rows is None else 16 * file.rows.num_ranges
    validator = file.validator
    named = 0 if validator is None else sum(len(one or "") for one in (validator.etag, validator.last_modified))
    partition = len(_dump(file.partition)) if file.partition else 0
    return 200 + 4 * len(file.url) + ranges + named + partition + len(file.content or b"")


def group_pieces(
    pieces: Sequence[SplitPiece], *, split_bytes: int, most_splits: int, parallelism: int = 1
) -> list[tuple[SplitPiece, ...]]:
    """Group consecutive pieces into at most ``most_splits`` splits, enough for every task if each has enough to do.

    Args:
        parallelism: number of tasks that run at once.
    """
    if not pieces:
        return []
    costs = [max(piece.num_bytes, piece.num_files * FILE_COST_BYTES) for piece in pieces]
    total = sum(costs)
    wanted = min(split_bytes, max(LEAST_SPLIT_BYTES, -(-total // parallelism)))
    splits: list[list[SplitPiece]] = []
    size = least = 0
    for piece, cost in zip(pieces, costs, strict=True):
        more = 0 if piece.data is None else piece.least_bytes
        if not splits or size + cost > wanted or least + more > MOST_SPLIT_BYTES:
            splits.append([])
            size = least = 0
        splits[-1].append(piece)
        size += cost
        least += more
    if len(splits) > most_splits:
        splits = [[] for _ in range(most_splits)]
        for piece, cost, end in zip(pieces, costs, accumulate(costs), strict=True):
            splits[min(most_splits - 1, (end - cost) * most_splits // total)].append(piece)
    return [_fitting(split) for split in splits if split]


def _fitting(split: Sequence[SplitPiece]) -> tuple[SplitPiece, ...]:
    """The pieces of a split; if they are too large, the last ones lose their payloads."""
    if sum(4 + len(piece.data or b"") for piece in split) <= MOST_SPLIT_BYTES:
        return tuple(split)
    slim = [piece if piece.data is None else replace(piece, data=_slim(piece.data)) for piece in split]
    left = MOST_SPLIT_BYTES - sum(len(piece.data or b"") for piece in slim) - 4 * len(split)
    for at, piece in enumerate(split):
        more = len(piece.data or b"") - len(slim[at].data or b"")
        if more <= left:
            slim[at] = piece
            left -= more
    return tuple(slim)


def _slim(data: bytes) -> bytes:
    return encode_files([file.without_payloads() for file in decode_files(data)])


# -- encoded --------------------------------------------------------------------------------------


def pack_split(pieces: Sequence[SplitPiece]) -> bytes:
    """Encode a split: its pieces, or their places in the work folder."""
    parts = [
        piece.data if piece.data is not None else _REFERENCE + json.dumps(piece.place).encode() for piece in pieces
    ]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def unpack_split(data: bytes) -> list[bytes | tuple[str, int, int]]:
    """Decode :func:`pack_split`: for each piece its data, or its url, first byte and stop."""
    found: list[bytes | tuple[str, int, int]] = []
    at = 0
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        part = data[start:at]
        if part[:1] == _REFERENCE:
            url, first, stop = json.loads(part[1:])
            found.append((url, first, stop))
        else:
            found.append(part)
    return found


def encode_files(files: Sequence[PlannedFile], most_bytes: int = MOST_SPLIT_BYTES) -> bytes:
    """Encode files for :func:`decode_files`. Payloads beyond ``most_bytes`` are left out, from the last file on."""
    data: bytes = _batch(_fitting_files(files, most_bytes)).serialize().to_pybytes()
    return _VERSION + data


def _fitting_files(files: Sequence[PlannedFile], most_bytes: int) -> list[PlannedFile]:
    left = most_bytes - 2 * KIB - sum(map(_least_bytes, files))
    slim: list[PlannedFile] = []
    for file in files:
        fits = file.payload_bytes <= left
        slim.append(file if fits else file.without_payloads())
        left -= file.payload_bytes if fits else 0
    return slim


def decode_files(data: bytes) -> list[PlannedFile]:
    """Decode files.

    Raises:
        CorruptIndexError: the data is of another version of asyncpq, or damaged.
    """
    if data[:1] != _VERSION:
        raise CorruptIndexError(
            "the split was made by another version of asyncpq",
            hint="Install the same version on the driver and the executors.",
        )
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(data[1:]), _SCHEMA).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise CorruptIndexError("the split is damaged") from error
    return [_file(row) for row in rows]


def _batch(files: Sequence[PlannedFile]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    for file in files:
        validator, ranges = file.validator, file.rows
        rows.append(
            {
                "url": file.url,
                "size": None if validator is None else validator.size,
                "etag": None if validator is None else validator.etag,
                "last_modified": None if validator is None else validator.last_modified,
                "version": None if validator is None else validator.version,
                "starts": None if ranges is None else list(ranges.starts),
                "stops": None if ranges is None else list(ranges.stops),
                "num_rows": file.num_rows,
                "num_bytes": file.num_bytes,
                "filtered": file.filtered,
                "immutable": file.immutable,
                "partition": _dump(file.partition) if file.partition else None,
                "fields": file.fields,
                "content": file.content,
                "footers": [{"leaf": leaf, "payload": data} for leaf, data in file.footers.items()],
                "pages": [{"leaf": leaf, "payload": data} for leaf, data in file.pages.items()],
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _file(row: Mapping[str, Any]) -> PlannedFile:
    validator = None
    if row["size"] is not None:
        validator = Validator(
            size=row["size"], etag=row["etag"], last_modified=row["last_modified"], version=row["version"]
        )
    starts, stops, partition = row["starts"], row["stops"], row["partition"]
    return PlannedFile(
        url=row["url"],
        validator=validator,
        rows=None if starts is None else RowRanges.from_parallel(starts, stops),
        num_rows=row["num_rows"],
        num_bytes=row["num_bytes"],
        filtered=row["filtered"],
        immutable=row["immutable"],
        partition={} if partition is None else _load(partition),
        fields=row["fields"],
        content=row["content"],
        footers={item["leaf"]: item["payload"] for item in row["footers"]},
        pages={item["leaf"]: item["payload"] for item in row["pages"]},
    )


# -- partition values -----------------------------------------------------------------------------


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(as_scalar(value)) for name, value in values.items()})


def _plain(value: Any) -> Any:
    """The value in JSON. Types that JSON lacks become a list of their name and text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, Timestamp):
        return ["ns", value.nanoseconds, value.timezone]
    if isinstance(value, (TimeOfDay, Duration)):
        return [type(value).__name__, value.nanoseconds]
    if isinstance(value, dt.timedelta):
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if isinstance(value, (dt.date, dt.time)):  # datetime is a subclass of date
        return [type(value).__name__, value.isoformat()]
    return [type(value).__name__, str(value)]  # Decimal, UUID


_TYPES: Final[Mapping[str, Any]] = {
    "float": float.fromhex,
    "bytes": base64.b64decode,
    "ns": lambda nanoseconds, zone: pa.scalar(nanoseconds, pa.timestamp("ns", zone)),
    "TimeOfDay": lambda nanoseconds: pa.scalar(nanoseconds, pa.time64("ns")),
    "Duration": lambda nanoseconds: pa.scalar(nanoseconds, pa.duration("ns")),
    "timedelta": dt.timedelta,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "Decimal": Decimal,
    "UUID": uuid.UUID,
}


def _load(text: str) -> dict[str, Any]:
    return {
        name: _TYPES[value[0]](*value[1:]) if isinstance(value, list) else value
        for name, value in json.loads(text).items()
    }
