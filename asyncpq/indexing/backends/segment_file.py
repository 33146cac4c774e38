"""Segments as Parquet files: small row groups of one page a column, which one GET brings whole.

Only within a row group do a file's columns stand beside each other, so a key costs one request where row groups are as
small as pages would be. Their keys' bounds are those of the footer; there is no page index. How large they are is
decided once all rows are known, so that the footer stays below ``FOOTER_BYTES``. Of a long one there is a deflated copy
before it, of a fourth of its bytes, which is what readers fetch.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncpq.errors import StoreError
from asyncpq.indexing.model import IndexTable

FOOTER_BYTES: Final = 256 * 1024
TRAILER_BYTES: Final = 8  # length of the footer, and the magic
BOUNDED: Final = ("key", "max")  # columns whose bounds in each row group stand in the footer
_GROUP_BYTES = 64 * 1024  # of a row group, as ``weights_of`` has them: about half of that once compressed
_OFTEN_WHOLE = 8  # times as large where all rows are mostly read at once: each row group takes its time
_WHOLE_BYTES = 2 * _GROUP_BYTES  # what is not larger is fetched whole anyway
_PACKED_BYTES = 4096  # a footer that is not longer has no copy
_FOOTER_OF_GROUP = 56  # bytes of a row group in the footer, beside its columns
_FOOTER_OF_COLUMN = 52  # bytes of a column chunk there, beside its bounds
_NUMBER_BYTES = 4  # of a number: most are small, and all are packed
_MAX_BOUND_BYTES = 4096  # above it pyarrow writes no bounds
_MAX_PAGE_BYTES = 64 << 20
_ENCODINGS = {pa.binary(): "DELTA_BYTE_ARRAY", pa.int64(): "DELTA_BINARY_PACKED", pa.int32(): "DELTA_BINARY_PACKED"}


class Written(NamedTuple):
    """What was written.

    Attributes:
        size: bytes of the file.
        tail: of the footer and the trailer behind it.
        footer: digest of its Thrift.
        packed: bytes of the deflated copy of the tail, right before it; 0 without one.
        whole: digest of the file; None where it is too large to be fetched whole.
    """

    size: int
    tail: int
    footer: str
    packed: int
    whole: str | None

    @property
    def extra(self) -> dict[str, Any]:
        """``Segment.extra``."""
        packed = {"packed": self.packed} if self.packed else {}
        whole = {} if self.whole is None else {"whole": self.whole}
        return {"tail": self.tail, "footer": self.footer, **packed, **whole}


class SegmentSpool:
    """Rows on their way to a segment, on disk until it is known how many there are. Blocking.

    Args:
        path: of a file that is not there yet.
        part: whose rows they are.
    """

    def __init__(self, path: Path, index_table: IndexTable) -> None:
        self._path = path
        self._schema = schema = index_table.schema
        self._group_bytes = _GROUP_BYTES * (_OFTEN_WHOLE if index_table.kind in ("files", "bounds") else 1)
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._weight = 0
        self._longest: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep rows, which come sorted.

        Raises:
            StoreError: a key is too long.
        """
        if not batch.num_rows:
            return
        for name in BOUNDED:
            if name in self._schema.names:
                longest = pc.max(pc.binary_length(batch.column(name))).as_py()
                if longest > _MAX_BOUND_BYTES:
                    raise StoreError(f"a key of {longest} bytes; {_MAX_BOUND_BYTES} are the most")
                self._longest[name] = max(self._longest.get(name, 0), longest)
        self._weight += pc.sum(weights_of(batch)).as_py()
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._sink.closed:
            return
        with self._sink:
            self._writer.close()

    def write(self, path: Path, whole_bytes: int) -> Written:
        """Write the rows as a Parquet file, which is fetched whole if it has at most ``whole_bytes``."""
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
        footer = digest_of(tail[:-TRAILER_BYTES])
        whole = digest_of(path.read_bytes()) if size <= whole_bytes else None
        return Written(size, length, footer, len(packed), whole)

    def _groups(self) -> Iterator[pa.Table]:
        """The rows, in row groups."""
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
    """Cuts rows into tables of about the same weight.

    Args:
        target: bytes of one, as :func:`weights_of` has them; the last may have less, and one row more.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._pending: list[pa.RecordBatch] = []
        self._held = 0  # weight of those

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """What is full with these rows."""
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
        """What is left."""
        if self._pending:
            yield pa.Table.from_batches(self._pending)
            self._pending, self._held = [], 0


def digest_of(data: bytes) -> str:
    """What tells a segment, or its footer, from a damaged one."""
    return hashlib.sha256(data).hexdigest()[:32]


def weights_of(batch: pa.RecordBatch) -> pa.Int64Array:
    """Bytes of each row in a file, roughly, before they are compressed."""
    weights = pa.repeat(pa.scalar(_NUMBER_BYTES * batch.num_columns, pa.int64()), batch.num_rows)
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            weights = pc.add(weights, pc.fill_null(pc.binary_length(column), 0))
        elif pa.types.is_list(column.type):
            weights = pc.add(weights, pc.multiply(pc.fill_null(pc.list_value_length(column), 0), _NUMBER_BYTES))
    return weights.cast(pa.int64())
