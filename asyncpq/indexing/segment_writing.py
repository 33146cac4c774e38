"""Sorted rows of a part, however many, as segments of bounded size in a place."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.events import Operation
from asyncpq.indexing.commits import segment_name
from asyncpq.indexing.model import UNKNOWN_KEY, Part, Place, Segment
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.resources import Resources


async def write_segments(
    place: Place,
    build: str,
    part: Part,
    batches: AsyncIterator[pa.RecordBatch],
    files: RowRanges,
    options: BuildOptions,
    operation: Operation | None = None,
) -> list[Segment]:
    """Write ``batches``, which are sorted by key; at least one segment, though there be no row.

    Args:
        build: begins the segments' names.
        files: ids of the files of which these are all rows. Each segment says so: what of them is not in the one is in
            another, whose keys are others.
        options: say how large a segment may be, and where local files go.
        operation: counts the requests.
    """
    rows, ids = _Rows(batches), tuple(files)
    segments: list[Segment] = []
    while not segments or await rows.more():
        piece = _Piece(rows, options)
        name = segment_name(build)
        size, extra = await place.write_segment(name, part, piece.batches(), folder=options.folder, operation=operation)
        segments.append(
            Segment(
                name=name,
                part=part,
                num_rows=piece.num_rows,
                size=size,
                data_bytes=piece.data_bytes,
                low=piece.low,
                high=piece.high,
                files=ids,
                has_unknown=piece.has_unknown,
                extra=extra,
            )
        )
    return segments


async def from_thread(resources: Resources, batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """Batches that are made in the session's threads."""
    while (batch := await resources.in_thread(partial(next, batches, None))) is not None:
        yield batch


class _Rows:
    """Batches that can be given back."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._back: deque[pa.RecordBatch] = deque()

    async def next(self) -> pa.RecordBatch | None:
        """The next one with rows; None at the end."""
        if self._back:
            return self._back.popleft()
        while True:
            batch = await anext(self._batches, None)
            if batch is None or batch.num_rows:
                return batch

    def give_back(self, batch: pa.RecordBatch) -> None:
        self._back.appendleft(batch)

    async def more(self) -> bool:
        batch = await self.next()
        if batch is None:
            return False
        self.give_back(batch)
        return True


class _Piece:
    """The rows of one segment, and what is said of them once they were taken."""

    def __init__(self, rows: _Rows, options: BuildOptions) -> None:
        self._rows = rows
        self._options = options
        self.num_rows = self.data_bytes = 0
        self.low = self.high = b""
        self.has_unknown = False

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        while (left := self._left()) is not None and (batch := await self._rows.next()) is not None:
            rows, size = left
            # rounded up, so that a piece that was cut is full: whoever merges segments lets it be
            most = min(rows, -(-size * batch.num_rows // batch.nbytes))
            if batch.num_rows > most:
                self._rows.give_back(batch.slice(most))
                batch = batch.slice(0, most)
            self._note(batch)
            yield batch

    def _left(self) -> tuple[int, int] | None:
        """How many rows and bytes there is room for; None: it is full."""
        rows, size = self._options.segment_rows - self.num_rows, self._options.segment_bytes - self.data_bytes
        return (rows, size) if rows > 0 and size > 0 else None

    def _note(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key")
        self.num_rows += len(keys)
        self.data_bytes += batch.nbytes
        if keys[0].as_py() == UNKNOWN_KEY:
            self.has_unknown = True
            keys = keys.filter(pc.not_equal(keys, UNKNOWN_KEY))
        if not len(keys):
            return
        self.low = self.low or keys[0].as_py()
        self.high = keys[-1].as_py()
