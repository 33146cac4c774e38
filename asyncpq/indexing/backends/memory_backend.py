"""The backend for indexes in the memory of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import OrderCheck, SortedRows, check_num_rows, segment_gone
from asyncpq.indexing.index_model import EVERY_ROW, IndexBackend, IndexTable, Segment, SegmentQuery, Stored


class MemoryBackend(IndexBackend):
    """An index in memory. All sessions and threads of a process may share it. ``at`` of
    :meth:`asyncpq.Session.build_index` takes one.

    Its methods are those of :class:`asyncpq.indexing.IndexBackend`.
    """

    description = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # by name; each with the ``time.monotonic()`` at which it was stored
        self._segments: dict[str, tuple[SortedRows, float]] = {}
        self._manifests: dict[str, tuple[bytes, float]] = {}
        self._builds: dict[str, tuple[None, float]] = {}
        self._stored: Mapping[Stored, dict[str, Any]] = {
            "segments": self._segments,
            "manifests": self._manifests,
            "builds": self._builds,
        }

    def __repr__(self) -> str:
        return f"MemoryBackend({len(self._manifests)} manifests, {len(self._segments)} segments)"

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        order = OrderCheck(index_table, self.description)
        batches = [order.take(batch) async for batch in rows]
        kept = SortedRows(pa.Table.from_batches(batches, schema=index_table.schema))
        with self._lock:
            self._segments[name] = kept, time.monotonic()
        return int(kept.table.nbytes), {}

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        return self._rows(segment).select(query)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        for batch in self._rows(segment).table.to_batches():
            yield batch

    def _rows(self, segment: Segment) -> SortedRows:
        kept = self._segments.get(segment.name)
        if kept is None:
            raise segment_gone(segment, self.description, "Open the index again.")
        rows, _ = kept
        check_num_rows(segment, rows.table.num_rows, self.description)
        return rows

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        with self._lock:
            number = max(map(int, self._manifests), default=None)
            return None if number is None else (number, self._manifests[str(number)][0])

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        kept = self._manifests.get(str(number))
        return None if kept is None else kept[0]

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        kept = content, time.monotonic()
        with self._lock:
            return self._manifests.setdefault(str(number), kept) is kept

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        with self._lock:
            self._builds[build] = None, time.monotonic()

    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        now = time.monotonic()
        with self._lock:
            return {name: now - since for name, (_, since) in self._stored[stored].items()}

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        with self._lock:
            for name in names:
                self._stored[stored].pop(name, None)

    async def drop(self, *, operation: Operation | None = None) -> None:
        with self._lock:
            for kept in self._stored.values():
                kept.clear()

    async def close(self) -> None:
        """Do nothing: the index stays in memory, because another session may use this backend."""
