"""Code that backends share: sorted rows in memory and in files, row groups by key ranges, and counts of requests.

A segment file is a Parquet file with small row groups of one page per column: one GET fetches a row group. The columns
of a file lie together only within a row group, so row groups as small as pages make a key cost one request. The footer
holds the bounds of their keys; there is no page index. The size of row groups is chosen once all rows are known, so
that the footer stays below ``FOOTER_BYTES``. A deflated copy stands before a long footer, with a fourth of its bytes;
readers fetch that.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_scalar
from asyncpq.errors import CorruptIndexError, StaleSnapshotError, StoreError
from asyncpq.events import Operation
from asyncpq.indexing.index_model import IndexTable, KeyRange, Segment, SegmentQuery
from asyncpq.metrics import Purpose, RequestRecord


def segment_gone(
    segment: Segment, url: str, hint: str = "Open the index again: a vacuum may have removed the snapshot."
) -> StaleSnapshotError:
    """Return the error that reports that the backend does not have the segment."""
    return StaleSnapshotError(f"segment {segment.name} of the index no longer exists", url=url, hint=hint)


def segment_corrupt(segment: Segment, url: str, why: str, hint: str | None = None) -> CorruptIndexError:
    """Return the error that reports that the segment's content differs from what was written. ``why``: the last part
    of its message."""
    return CorruptIndexError(f"segment {segment.name} of the index cannot be used: {why}", url=url, hint=hint)


def check_num_rows(segment: Segment, num_rows: int, url: str) -> None:
    """Raise CorruptIndexError if ``num_rows`` differs from the number of rows that were written to the segment."""
    if num_rows != segment.num_rows:
        raise segment_corrupt(segment, url, f"the segment has {num_rows} rows, expected {segment.num_rows} rows")


_BLOCK_ROWS: Final = 256  # rows whose greatest value is kept, so that most blocks are skipped
_FEW_ROWS: Final = 32  # are compared faster than kernels are called


class SortedRows:
    """All rows of a segment in memory, sorted by the first column, ``key``."""

    __slots__ = ("_most", "_pieces", "table")

    def __init__(self, table: pa.Table) -> None:
        self.table: pa.Table = table
        self._pieces = [(_Keys(batch.column(0)), batch) for batch in table.to_batches() if batch.num_rows]
        self._most: dict[str, list[list[bytes]]] = {}  # greatest values by column, piece and block

    @property
    def weight(self) -> int:
        """Approximate bytes in memory."""
        return int(self.table.nbytes) + 1000

    def select(self, query: SegmentQuery) -> pa.Table | None:
        """Return rows as :meth:`asyncpq.indexing.index_model.IndexBackend.read_segment` does."""
        ranges, columns, at_least, limit = query
        rows = self.table
        if ranges is not None or at_least is not None:
            spans = self._within([KeyRange(b"", None)] if ranges is None else ranges)
            if at_least is not None:
                spans = self._reaching(spans, *at_least)
            batches = [self._pieces[piece][1].slice(start, stop - start) for piece, start, stop in spans]
            rows = pa.Table.from_batches(batches, schema=rows.schema)
        if at_least is not None and rows.num_rows:
            name, least = at_least
            values = rows.column(name)
            is_small = rows.num_rows <= _FEW_ROWS and not values.null_count
            if not is_small or min(values.to_pylist()) < least:
                rows = rows.filter(pc.greater_equal(values, plain_scalar(least, pa.binary())))
        if limit is not None and rows.num_rows > limit:
            return None
        return rows if columns is None else rows.select(list(columns))

    def _reaching(
        self, spans: Iterator[tuple[int, int, int]], name: str, least: bytes
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of ``spans`` that may have values of at least ``least`` in the column ``name``. A span is
        a batch's number, its first row, and the row after its last one."""
        if name not in self._most:
            self._most[name] = [
                [
                    pc.max(column.slice(start, _BLOCK_ROWS)).as_py() or b""
                    for start in range(0, len(column), _BLOCK_ROWS)
                ]
                for column in (batch.column(name) for _, batch in self._pieces)
            ]
        for piece, start, stop in spans:
            most = self._most[name][piece]
            blocks = range(start // _BLOCK_ROWS, -(-stop // _BLOCK_ROWS))
            for reaches, run in groupby(blocks, lambda block, most=most: most[block] >= least):  # type: ignore[misc]
                some = list(run)
                if reaches:
                    yield piece, max(start, some[0] * _BLOCK_ROWS), min(stop, (some[-1] + 1) * _BLOCK_ROWS)

    def _within(self, ranges: Sequence[KeyRange]) -> Iterator[tuple[int, int, int]]:
        """Yield a span for each run of consecutive rows with keys in ``ranges``: the number of the batch, the first
        row, and the row after the last."""
        first = 0
        for piece, (keys, _) in enumerate(self._pieces):
            low, last = keys[0], keys[-1]
            while first < len(ranges) and (high := ranges[first].high) is not None and high <= low:
                first += 1
            for wanted in islice(ranges, first, None):
                if wanted.low > last:
                    break
                start = bisect_left(keys, wanted.low)
                stop = len(keys) if wanted.high is None else bisect_left(keys, wanted.high, lo=start)
                if stop > start:
                    yield piece, start, stop


class OrderCheck:
    """Checks, batch by batch, that rows have an index table's schema and are sorted by key; counts them. Errors name
    ``backend``."""

    def __init__(self, index_table: IndexTable, backend: str) -> None:
        self._table = index_table
        self._backend = backend
        self._last = b""
        self.num_rows: int = 0

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` cast to the table's schema. Raises StoreError if the batch has other columns, or the keys do
        not ascend."""
        try:
            batch = batch.cast(self._table.schema)
            batch.validate()
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(
                f"rows to write do not fit the index table {self._table}: {error}", url=self._backend
            ) from error
        if batch.num_rows:
            keys = batch.column(0)
            ascend = keys[0].as_py() >= self._last
            if ascend and batch.num_rows > 1:
                ascend = pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py()
            if not ascend:
                raise StoreError(
                    f"rows to write to the index table {self._table} are not sorted by key", url=self._backend
                )
            self._last = keys[-1].as_py()
            self.num_rows += batch.num_rows
        return batch


class _Keys(Sequence[bytes]):
    """The values of a binary array as a sequence of bytes. Each bytes object is created when it is accessed."""

    __slots__ = ("_data", "_offsets", "_size")

    def __init__(self, array: pa.BinaryArray) -> None:
        _, offsets, data = array.buffers()
        self._size = len(array)
        self._offsets = memoryview(offsets).cast("i")[array.offset : array.offset + self._size + 1]
        self._data = memoryview(b"" if data is None else data)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]  # no slices
        if index < 0:
            index += self._size
        return bytes(self._data[self._offsets[index] : self._offsets[index + 1]])


Bounds = tuple[Sequence[bytes], Sequence[bytes]]


class KeyGroups:
    """The bounds of the keys in each group of rows of a segment. A group is a row group of a Parquet file, or a chunk
    in another backend.

    Args:
        num_rows: number of rows of each group.
        bounds: by column, the least values of all groups and the greatest values of all groups; "key" is required.

    Attributes:
        weight: approximate bytes in memory once all bounds are parsed.
    """

    __slots__ = ("_bounds", "group_rows", "num_rows", "weight")

    def __init__(self, num_rows: Sequence[int], bounds: Mapping[str, Bounds]) -> None:
        self.group_rows: Sequence[int] = num_rows
        self.num_rows: int = sum(num_rows)
        self._bounds = bounds
        count = len(num_rows)
        of_one = sum(len(values[0]) + len(values[-1]) + 80 for pair in bounds.values() for values in pair if count) // 2
        self.weight: int = 500 + (40 + of_one) * count

    def __len__(self) -> int:
        return len(self.group_rows)

    def touched(self, query: SegmentQuery) -> list[int] | None:
        """Return the ordinals of the groups that may have a row that ``query`` selects; None if these rows certainly
        exceed its limit."""
        ranges, _, at_least, limit = query
        if ranges is None:
            groups: Sequence[int] = range(len(self))
        else:
            lows, highs = self._bounds["key"]
            ascending: dict[int, None] = {}
            for low, high in ranges:
                start = bisect_left(highs, low)
                stop = len(lows) if high is None else bisect_left(lows, high, lo=start)
                ascending.update(dict.fromkeys(range(start, stop)))
            groups = list(ascending)
        if at_least is not None and at_least[0] in self._bounds:
            _, most = self._bounds[at_least[0]]
            groups = [ordinal for ordinal in groups if most[ordinal] >= at_least[1]]
        if limit is not None and at_least is None and self._least_rows(ranges, groups) > limit:
            return None
        return list(groups)

    def _least_rows(self, ranges: Sequence[KeyRange] | None, ordinals: Sequence[int]) -> int:
        """Return a lower bound of the number of rows with keys in ``ranges``: the rows of those groups among
        ``ordinals`` whose keys are all inside one range."""
        if ranges is None:
            return self.num_rows
        lows, highs = self._bounds["key"]
        starts = [wanted.low for wanted in ranges]
        count = 0
        for ordinal in ordinals:
            # the last range that begins before the group's keys
            inside = bisect_left(starts, lows[ordinal] + b"\x00") - 1
            if inside >= 0 and highs[ordinal] in ranges[inside]:
                count += self.group_rows[ordinal]
        return count

    def runs(self, num_rows: int) -> Iterator[range]:
        """Yield ranges of consecutive group ordinals, each ending once it has ``num_rows`` rows; together they cover
        all groups."""
        start = held = 0
        for ordinal, rows in enumerate(self.group_rows):
            held += rows
            if held >= num_rows:
                yield range(start, ordinal + 1)
                start, held = ordinal + 1, 0
        if start < len(self):
            yield range(start, len(self))


class SentRequest:
    """A request to a database or server that is being counted. The caller sets ``bytes``, the size of the response."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes: int = 0


@contextmanager
def counted_request(operation: Operation | None, method: str, purpose: Purpose = "table") -> Iterator[SentRequest]:
    """Count the ``with`` block as one request in ``operation``, with the command ``method``, such as "SELECT"; or not
    (None)."""
    sent = SentRequest()
    if operation is None:
        yield sent
        return
    metrics = operation.metrics
    round_, began = metrics.rounds + 1, time.monotonic()
    status = 0
    metrics.wait_begins()
    try:
        yield sent
        status = 200
    finally:
        metrics.wait_ends()
        seconds = time.monotonic() - began
        size = sent.bytes
        metrics.record(RequestRecord(method, purpose, 0, size, status, size, 1, round_, seconds, began=began))


FOOTER_BYTES: Final = 256 * 1024
TRAILER_BYTES: Final = 8  # length of the footer, and the magic
BOUNDED: Final = ("key", "max")  # columns with bounds in the footer
_GROUP_BYTES = 64 * 1024  # of a row group, by ``weights_of``; about half of that once compressed
_OFTEN_WHOLE = 2  # times as large for tables often read whole: each row group takes time
_WHOLE_BYTES = 2 * _GROUP_BYTES  # smaller files are fetched whole anyway
_PACKED_BYTES = 4096  # shorter footers have no copy
_FOOTER_OF_GROUP = 56  # bytes of a row group in the footer, without its columns
_FOOTER_OF_COLUMN = 52  # bytes of a column chunk in the footer, without its bounds
_NUMBER_BYTES = 4  # of a number: most are small, and delta encoding packs them
_MAX_BOUND_BYTES = 4096  # pyarrow writes no longer bounds
_MAX_PAGE_BYTES = 64 << 20
_ENCODINGS = {pa.binary(): "DELTA_BYTE_ARRAY", pa.int64(): "DELTA_BINARY_PACKED", pa.int32(): "DELTA_BINARY_PACKED"}


class SegmentSpool:
    """Collects a segment's rows in the local file ``path``, which must not exist before, and then writes them as a
    Parquet file. The methods block on the disk."""

    def __init__(self, path: Path, index_table: IndexTable) -> None:
        self._path = path
        self._schema = schema = index_table.schema
        self._group_bytes = _GROUP_BYTES * (_OFTEN_WHOLE if index_table.kind in ("files", "bounds") else 1)
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._weight = 0
        self._longest: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Append sorted rows to the local file. Raises StoreError if a key has more than 4096 bytes."""
        if not batch.num_rows:
            return
        for name in BOUNDED:
            if name in self._schema.names:
                longest = pc.max(pc.binary_length(batch.column(name))).as_py()
                if longest > _MAX_BOUND_BYTES:
                    raise StoreError(
                        f"a key of the index has {longest} bytes; at most {_MAX_BOUND_BYTES} are supported",
                        hint="Leave the column with such long values out of the index.",
                    )
                self._longest[name] = max(self._longest.get(name, 0), longest)
        self._weight += pc.sum(weights_of(batch)).as_py()
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Close the local file. Idempotent."""
        if self._sink.closed:
            return
        with self._sink:
            self._writer.close()

    def write(self, path: Path, whole_bytes: int) -> tuple[int, dict[str, Any]]:
        """Write the rows as a Parquet file to ``path``; return the file's size in bytes and ``Segment.extra``.

        ``extra`` has "tail", the number of bytes of the footer with its trailer; "footer", the digest of the footer's
        Thrift; "packed", the number of bytes of the tail's deflated copy right before the tail, if there is one; and,
        if the file has at most ``whole_bytes`` bytes, "whole", its digest: readers then fetch it whole.
        """
        self.close()
        schema = self._schema
        encodings = {field.name: _ENCODINGS[field.type] for field in schema if field.type in _ENCODINGS}
        with pq.ParquetWriter(
            str(path),
            schema,
            compression="zstd",
            use_dictionary=False,
            column_encoding=encodings,
            write_statistics=[name for name in BOUNDED if name in schema.names],
            data_page_size=_MAX_PAGE_BYTES,
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for group in self._groups():
                writer.write_table(group, row_group_size=group.num_rows)
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            file.seek(size - TRAILER_BYTES)
            length = int.from_bytes(file.read(4), "little") + TRAILER_BYTES
            start = file.seek(size - length)
            tail = file.read(length)
            packed = zlib.compress(tail) if length > _PACKED_BYTES else b""
            if packed:
                file.seek(start)
                file.write(packed + tail)
                size += len(packed)
        extra: dict[str, Any] = {"tail": length, "footer": digest_of(tail[:-TRAILER_BYTES])}
        if packed:
            extra["packed"] = len(packed)
        if size <= whole_bytes:
            extra["whole"] = digest_of(path.read_bytes())
        return size, extra

    def _groups(self) -> Iterator[pa.Table]:
        """Yield the rows as one table for each row group of the segment file."""
        target = self._weight + 1
        if self._weight > _WHOLE_BYTES:
            num_leaves = len(self._schema)
            of_group = _FOOTER_OF_GROUP + num_leaves * _FOOTER_OF_COLUMN + 2 * sum(self._longest.values())
            target = max(self._group_bytes, self._weight * of_group // FOOTER_BYTES + 1)
        cutter = RowCutter(target)
        with pa.memory_map(str(self._path)) as source:
            for batch in pa.ipc.open_stream(source):
                yield from cutter.add(batch)
        yield from cutter.rest()


class RowCutter:
    """Cuts rows into tables of about ``target`` bytes, as estimated by :func:`weights_of`. A table ends with the row
    that reaches ``target``; the last table may be smaller."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pending: list[pa.RecordBatch] = []
        self._held = 0  # weight of those

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add rows, and yield the tables that have reached ``target``."""
        if not batch.num_rows:
            return
        sums = memoryview(pc.cumulative_sum(weights_of(batch)).buffers()[1]).cast("q")
        start = done = 0
        while start < batch.num_rows:
            at = bisect_left(sums, done + self._target - self._held, lo=start, hi=batch.num_rows)
            stop = min(at + 1, batch.num_rows)
            self._pending.append(batch.slice(start, stop - start))
            self._held += sums[stop - 1] - done
            start, done = stop, sums[stop - 1]
            if self._held >= self._target:
                yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        """Yield the rows that are left as the last table, if there are any."""
        if self._pending:
            yield pa.Table.from_batches(self._pending)
            self._pending, self._held = [], 0


def digest_of(data: bytes) -> str:
    """Return the first 32 hex digits of the SHA-256 of ``data``, which detects a damaged segment or footer."""
    return hashlib.sha256(data).hexdigest()[:32]


def weights_of(batch: pa.RecordBatch) -> pa.Int64Array:
    """Return the approximate bytes that each row takes in a file before compression."""
    weights = pa.repeat(pa.scalar(_NUMBER_BYTES * batch.num_columns, pa.int64()), batch.num_rows)
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            weights = pc.add(weights, pc.fill_null(pc.binary_length(column), 0))
        elif pa.types.is_list(column.type):
            weights = pc.add(weights, pc.multiply(pc.fill_null(pc.list_value_length(column), 0), _NUMBER_BYTES))
    return weights.cast(pa.int64())
