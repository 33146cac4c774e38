"""Sort the rows of index tables with local files, merge sorted streams, and drop rows of retired files.

The order is by key, then by file, group and row, if a table has them.

Most of a build's time was spent on sorting keys and splitting text. So keys of 64 bits are sorted by counting their
digits, and rows of one file that exceed the memory go to a local file and come back mapped to memory.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import plain_scalar
from asyncpq.errors import LOCAL_FILES, CorruptIndexError, StoreError
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges

_NUMBER_BYTES: Final = 9  # a tag and 64 bits
_AT_ONCE: Final = 1 << 15  # keys converted at once: they fit in the processor's cache
_DIGIT_BITS: Final = 12  # pyarrow sorts smaller integers by counting, which is many times faster than comparing
_DIGIT: Final = plain_scalar((1 << _DIGIT_BITS) - 1, pa.uint64())
_FEW: Final = 1 << 12  # fewer numbers are compared faster than counted
_LONG_RUN: Final = 1 << 10  # rows in sorted runs; merging longer runs is faster than counting


def key_order(keys: pa.BinaryArray, *then: pa.Array) -> pa.UInt64Array:
    """Return the permutation that sorts the keys, for ``take``. Equal keys are ordered by the columns ``then``, and
    then by position.

    ``then`` are columns of integers without nulls, as long as ``keys``.
    """
    numbers = _as_numbers(keys)
    values, sort = (keys, _compared) if numbers is None else (numbers, _counted)
    order = sort(values, None)
    if not then or _ascends(then):
        return order
    # In most cases no key occurs twice, or the rows of each key are in order already.
    ordered = values.take(order)
    is_unique = not pc.equal(ordered.slice(1), _but_last(ordered)).true_count
    if is_unique or _ascends([ordered, *[column.take(order) for column in then]]):
        return order
    by_rows: pa.UInt64Array | None = None
    for column in reversed(then):
        by_rows = _counted(column.cast(pa.int64()), by_rows)
    return sort(values, by_rows)


def _counted(numbers: pa.Array, order: pa.UInt64Array | None) -> pa.UInt64Array:
    """Return the permutation that sorts 64-bit numbers. Equal numbers keep the order of the permutation ``order``, or
    of their positions if that is None.

    A radix sort by the highest digits comes first, by as many as tell random numbers apart. A comparison sort then
    finishes the nearly sorted result.
    """
    count = len(numbers)
    ordered = numbers if order is None else numbers.take(order)
    if count < _FEW or _descents(ordered) * _LONG_RUN < count:
        return _compared(numbers, order)
    ends = pc.min_max(ordered)
    least = ends["min"]
    bits = (ends["max"].as_py() - least.as_py()).bit_length()
    above = pc.subtract(ordered, least).view(pa.uint64())
    num_digits = -(-2 * (count.bit_length() - 1) // _DIGIT_BITS)
    for shift in range(max(0, bits - num_digits * _DIGIT_BITS), bits, _DIGIT_BITS):
        digits = pc.bit_wise_and(pc.shift_right(above, pa.scalar(shift, pa.uint64())), _DIGIT).cast(pa.uint16())
        step = pc.array_sort_indices(digits)  # a stable sort
        above, order = above.take(step), step if order is None else order.take(step)
    return _compared(numbers, order)


def _compared(values: pa.Array, order: pa.UInt64Array | None) -> pa.UInt64Array:
    """Return the permutation that sorts values of any type by comparing them; for ``order`` see :func:`_counted`."""
    if order is None:
        return pc.array_sort_indices(values)
    ordered = values.take(order)
    return order.take(pc.array_sort_indices(ordered)) if _descents(ordered) else order


def _ascends(columns: Sequence[pa.Array]) -> bool:
    """Whether rows are sorted by the first column, then the next ones. At least one column; none has nulls."""
    *before, last = columns
    behind = pc.greater_equal(last.slice(1), _but_last(last))
    for column in reversed(before):
        here, after = _but_last(column), column.slice(1)
        behind = pc.or_(pc.greater(after, here), pc.and_(pc.equal(after, here), behind))
    return bool(behind.true_count == len(behind))


def _descents(values: pa.Array) -> int:
    """Return how many values are less than the value before them."""
    return int(pc.less(values.slice(1), _but_last(values)).true_count)


def _but_last(column: pa.Array) -> pa.Array:
    return column.slice(0, max(0, len(column) - 1))


def _as_numbers(keys: pa.BinaryArray) -> pa.UInt64Array | None:
    """Convert keys of 64-bit values to numbers in the same order, which sort several times faster; None if the keys
    have other lengths, or begin with different tags."""
    count = len(keys)
    if not count or len(keys[0].as_buffer()) != _NUMBER_BYTES:
        return None
    try:
        fixed = keys.cast(pa.binary(_NUMBER_BYTES))
    except pa.ArrowInvalid:
        return None
    data = memoryview(fixed.buffers()[1])[fixed.offset * _NUMBER_BYTES :]
    tag = data[0]
    little_endian = bytearray(8 * count)
    for start in range(0, count, _AT_ONCE):
        stop = min(count, start + _AT_ONCE)
        piece = bytes(data[start * _NUMBER_BYTES : stop * _NUMBER_BYTES])
        if piece[::_NUMBER_BYTES].count(tag) != stop - start:
            return None
        for byte in range(8):
            little_endian[8 * start + byte : 8 * stop : 8] = piece[8 - byte :: _NUMBER_BYTES]
    return pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(little_endian)])


_ORDER: Final = ("key", "file", "group", "row")
_FAN_IN: Final = 32  # runs that are merged at once
_LEAST_BATCH_BYTES: Final = 64 << 10
_FILE_KEY_BYTES: Final = 8
_SMALL_TABLES: Final = 256  # are joined: each takes some KiB besides its data
_SMALL_ROWS: Final = 1 << 10  # of a table that is joined with others
_WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def sorted_rows(table: pa.Table) -> pa.Table:
    """Return a table's rows sorted by key, file, group and row, leaving out those of these columns that it lacks."""
    names = [name for name in _ORDER if name in table.column_names]
    batches = table.combine_chunks().to_batches()
    if len(batches) != 1:  # no rows, or more bytes than one binary array can have
        return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]))
    (batch,) = batches
    return pa.Table.from_batches([batch.take(key_order(*[batch.column(name) for name in names]))])


class ExternalSort:
    """Sorts more rows of an index table than fit in memory: writes sorted runs to files in ``folder``, and merges them.

    Calls block on the disk. Call :meth:`close`, or use a ``with`` statement. ``memory_bytes`` is a rough limit.
    """

    def __init__(self, schema: pa.Schema, memory_bytes: int, folder: Path) -> None:
        self._schema = schema
        self._run_bytes = max(1, memory_bytes // 3)  # sorting a run takes two copies
        self._batch_bytes = max(_LEAST_BATCH_BYTES, memory_bytes // (4 * _FAN_IN))
        self._parent = folder
        self._folder: Path | None = None
        self._runs: list[Path] = []
        self._num_runs = 0
        self._pending: list[pa.Table] = []
        self._small: list[pa.Table] = []  # those of `_pending` that are not joined yet
        self._pending_bytes = 0

    def is_filled_by(self, rows: pa.Table) -> bool:
        """Whether adding ``rows`` takes long: it joins small tables, or sorts and writes a run."""
        joins = len(self._small) + 1 == _SMALL_TABLES
        return joins or self._pending_bytes + int(rows.nbytes) >= self._run_bytes

    def add(self, rows: pa.Table) -> None:
        """Add rows of the index table, in any order."""
        if not rows.num_rows:
            return
        most = max(_LEAST_BATCH_BYTES, self._run_bytes // 2)
        step = max(1, most * rows.num_rows // rows.nbytes)  # rows mapped from a local file may exceed the memory
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            self._pending_bytes += piece.nbytes
            if piece.num_rows > _SMALL_ROWS:
                self._pending.append(piece)
            else:
                self._small.append(piece)
                if len(self._small) == _SMALL_TABLES:
                    self._join_small()
            if self._pending_bytes >= self._run_bytes:
                self._write_run(self._take_pending())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator over all rows, sorted. Callable once; no rows can be added afterwards."""
        while len(self._runs) >= _FAN_IN:
            merged_runs, self._runs = self._runs[:_FAN_IN], self._runs[_FAN_IN:]
            self._write_run(merged([_read(path) for path in merged_runs]))
            for path in merged_runs:
                path.unlink()
        streams = [_read(path) for path in self._runs]
        return merged([*streams, self._take_pending()] if self._pending or self._small else streams)

    def close(self) -> None:
        """Remove the local files of sorted runs."""
        self._pending.clear()
        self._small.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            self._runs.clear()

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join_small(self) -> None:
        """Join the small tables to one, by file first: where that is the order of all rows, a stable sort by key is
        enough."""
        names = [name for name in _ORDER[1:] if name in self._schema.names]
        self._small.sort(key=lambda table: tuple(table.column(name)[0].as_py() for name in names))
        self._pending.append(pa.concat_tables(self._small).combine_chunks())
        self._small = []

    def _take_pending(self) -> Iterator[pa.RecordBatch]:
        if self._small:
            self._join_small()
        names = [name for name in _ORDER[1:] if name in self._schema.names]
        pending = sorted(self._pending, key=lambda table: tuple(table.column(name)[0].as_py() for name in names))
        self._pending = []
        table = sorted_rows(pa.concat_tables(pending))
        self._pending_bytes = 0
        rows = max(1, self._batch_bytes * table.num_rows // max(1, table.nbytes))
        return iter(table.to_batches(max_chunksize=rows))

    def _write_run(self, batches: Iterator[pa.RecordBatch]) -> None:
        with _put_into(self._parent):
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="sort-", dir=self._parent))
            path = self._folder / f"{self._num_runs}.arrow"
            self._num_runs += 1
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, self._schema, options=_WRITE) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        self._runs.append(path)


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
        yield from reader


class LocalRows:
    """Rows of an index table in an unnamed local file in ``folder``. The disk space is freed once no table that
    :meth:`table` returned is in use. Calls block on the disk."""

    def __init__(self, schema: pa.Schema, folder: Path) -> None:
        self._folder = folder
        with _put_into(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # see close
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema)

    def add(self, rows: pa.Table) -> None:
        """Write the rows of a table to the local file."""
        with _put_into(self._folder):
            self._writer.write_table(rows)

    def table(self) -> pa.Table:
        """Return all rows, memory-mapped from the file; no rows can be added afterwards."""
        with self._file, _put_into(self._folder):
            self._writer.close()
            self._file.flush()
            data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

    def close(self) -> None:
        """Close the local file; rows that are not written yet are lost."""
        with suppress(OSError):  # rows that are not written yet are not needed
            self._file.close()


@contextmanager
def _put_into(folder: Path) -> Iterator[None]:
    """Convert an OSError that the block raises to a StoreError that names ``folder``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"a local file for sorting rows cannot be written: {error}", url=str(folder), hint=LOCAL_FILES
        ) from error


class Merge:
    """Merges sorted streams of batches, with one batch of each in memory; does no I/O.

    Call :meth:`feed` for each stream that :meth:`wanted` returns, then :meth:`take`, until ``take`` returns None.
    """

    def __init__(self, num_streams: int) -> None:
        self._buffers: list[pa.RecordBatch | None] = [None] * num_streams
        self._ended = [False] * num_streams

    def wanted(self) -> list[int]:
        """Return the numbers of the streams whose next batch the caller must pass to :meth:`feed` before
        :meth:`take`."""
        return [stream for stream, batch in enumerate(self._buffers) if not self._ended[stream] and not batch]

    def feed(self, stream: int, batch: pa.RecordBatch | None) -> None:
        """Add the next batch of the stream with the number ``stream``; None if the stream has ended."""
        self._buffers[stream] = batch
        self._ended[stream] = batch is None

    def take(self) -> pa.RecordBatch | None:
        """Return the next sorted rows; None if all streams have ended. Raises CorruptIndexError if one is not
        sorted."""
        held = {stream: batch for stream, batch in enumerate(self._buffers) if batch is not None and len(batch)}
        if not held:
            return None
        orders = [[batch.column(name) for name in _ORDER if name in batch.schema.names] for batch in held.values()]
        # The later rows of a stream are not less than the last row of its batch.
        last = min(_row(order, -1) for order in orders)
        pieces: list[pa.RecordBatch] = []
        for (stream, batch), order in zip(held.items(), orders, strict=True):
            cut = bisect_right(range(len(batch)), last, key=partial(_row, order))
            if cut:
                pieces.append(batch.slice(0, cut))
                self._buffers[stream] = batch.slice(cut)
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:  # only a stream that is not sorted has no row up to its own last one
            raise CorruptIndexError("the rows of a segment of the index are not sorted by key")
        (rows,) = sorted_rows(pa.Table.from_batches(pieces)).combine_chunks().to_batches()
        return rows


def _row(columns: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
    return tuple(column[row].as_py() for column in columns)


def merged(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sorted streams, and yield all rows in order, with one batch of each stream in memory."""
    merge = Merge(len(streams))
    while True:
        while wanted := merge.wanted():
            for stream in wanted:
                merge.feed(stream, next(streams[stream], None))
        batch = merge.take()
        if batch is None:
            return
        yield batch


async def merged_async(
    runtime: Runtime, streams: Sequence[AsyncIterator[pa.RecordBatch]]
) -> AsyncIterator[pa.RecordBatch]:
    """Merge sorted async streams in the session's threads, and yield all rows in order, as :func:`merged` does."""
    merge = Merge(len(streams))
    while True:
        while wanted := merge.wanted():
            for stream in wanted:
                merge.feed(stream, await anext(streams[stream], None))
        batch = await runtime.in_thread(merge.take)
        if batch is None:
            return
        yield batch


def without_files(batch: pa.RecordBatch, retired: RowRanges) -> pa.RecordBatch:
    """Return the rows of ``batch`` (of any index table) that belong to files whose ids are not in ``retired``."""
    if not retired or not len(batch):
        return batch
    if "file" in batch.schema.names:
        files = batch.column("file")
        ids = {file: file for file in pc.unique(files).to_pylist()}
    else:
        files = pc.binary_slice(batch.column("key"), 0, _FILE_KEY_BYTES)
        ids = {file: int.from_bytes(file, "big") for file in pc.unique(files).to_pylist()}
    gone = [file for file, number in ids.items() if number in retired]
    return batch.filter(pc.invert(pc.is_in(files, value_set=pa.array(gone, files.type)))) if gone else batch
