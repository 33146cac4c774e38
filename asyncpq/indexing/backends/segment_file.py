"""Write segments as Parquet files with small row groups of one page per column: one GET fetches a row group.

The columns of a file lie together only within a row group, so row groups as small as pages make a key cost one request.
The footer holds the bounds of their keys; there is no page index. The size of row groups is chosen once all rows are
known, so that the footer stays below ``FOOTER_BYTES``. A deflated copy stands before a long footer, with a fourth of
its bytes; readers fetch that.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncpq.errors import StoreError
from asyncpq.indexing.index_model import IndexTable

FOOTER_BYTES: Final = 256 * 1024
TRAILER_BYTES: Final = 8  # length of the footer, and the magic
BOUNDED: Final = ("key", "max")  # columns with bounds in the footer
_GROUP_BYTES = 64 * 1024  # of a row group, by ``weights_of``; about half of that once compressed
_OFTEN_WHOLE = 8  # times as large for tables mostly read whole: each row group takes time
_WHOLE_BYTES = 2 * _GROUP_BYTES  # smaller files are fetched whole anyway
_PACKED_BYTES = 4096  # shorter footers have no copy
_FOOTER_OF_GROUP = 56  # bytes of a row group in the footer, without its columns
_FOOTER_OF_COLUMN = 52  # bytes of a column chunk in the footer, without its bounds
_NUMBER_BYTES = 4  # of a number: most are small, and delta encoding packs them
_MAX_BOUND_BYTES = 4096  # pyarrow writes no longer bounds
_MAX_PAGE_BYTES = 64 << 20
_ENCODINGS = {pa.binary(): "DELTA_BYTE_ARRAY", pa.int64(): "DELTA_BINARY_PACKED", pa.int32(): "DELTA_BINARY_PACKED"}


class SegmentSpool:
    """Keeps a segment's rows in a local file until all are known, then writes the segment. Blocking. ``path``: of the
    local file, which must not exist. ``index_table``: table of the rows."""

    def __init__(self, path: Path, index_table: IndexTable) -> None:
        self._path = path
        self._schema = schema = index_table.schema
        self._group_bytes = _GROUP_BYTES * (_OFTEN_WHOLE if index_table.kind in ("files", "bounds") else 1)
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._weight = 0
        self._longest: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep sorted rows. Raises StoreError: a key is too long."""
        if not batch.num_rows:
            return
        for name in BOUNDED:
            if name in self._schema.names:
                longest = pc.max(pc.binary_length(batch.column(name))).as_py()
                if longest > _MAX_BOUND_BYTES:
                    raise StoreError(f"a key has {longest} bytes; at most {_MAX_BOUND_BYTES} are supported")
                self._longest[name] = max(self._longest.get(name, 0), longest)
        self._weight += pc.sum(weights_of(batch)).as_py()
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._sink.closed:
            return
        with self._sink:
            self._writer.close()

    def write(self, path: Path, whole_bytes: int) -> tuple[int, dict[str, Any]]:
        """Write the rows as a Parquet file; return its size and ``Segment.extra``.

        ``extra`` has the bytes of the footer with its trailer (tail), the digest of the footer's Thrift (footer), the
        bytes of the tail's deflated copy right before it (packed), and of a file of at most ``whole_bytes`` the digest,
        so that readers fetch it whole (whole)."""
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
        """Yield the rows in row groups."""
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
    """Cuts rows into tables of about the same weight. ``target``: bytes of a table, by :func:`weights_of`; one row may
    exceed it, and the last table may be smaller."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pending: list[pa.RecordBatch] = []
        self._held = 0  # weight of those

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Add rows; yield the tables that are full."""
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
        """Yield the last table, if it has rows."""
        if self._pending:
            yield pa.Table.from_batches(self._pending)
            self._pending, self._held = [], 0


def digest_of(data: bytes) -> str:
    """Return the digest that detects a damaged segment or footer."""
    return hashlib.sha256(data).hexdigest()[:32]


def weights_of(batch: pa.RecordBatch) -> pa.Int64Array:
    """Return the bytes of each row in a file, roughly, before compression."""
    weights = pa.repeat(pa.scalar(_NUMBER_BYTES * batch.num_columns, pa.int64()), batch.num_rows)
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            weights = pc.add(weights, pc.fill_null(pc.binary_length(column), 0))
        elif pa.types.is_list(column.type):
            weights = pc.add(weights, pc.multiply(pc.fill_null(pc.list_value_length(column), 0), _NUMBER_BYTES))
    return weights.cast(pa.int64())
