"""The backend for indexes in the memory of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import OrderCheck, SortedRows, check_num_rows, segment_gone
from asyncpq.indexing.index_model import EVERY_ROW, IndexTable, Segment, SegmentQuery


class MemoryBackend:
    """An index in memory. All sessions and threads of a process may share it.

    Its methods are those of :class:`asyncpq.indexing.IndexBackend`.
    """

    description = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # each with the ``time.monotonic()`` at which it was stored
        self._segments: dict[str, tuple[SortedRows, float]] = {}
        self._manifests: dict[int, tuple[bytes, float]] = {}
        self._builds: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"MemoryBackend({len(self._manifests)} manifests, {len(self._segments)} segments)"

    def check(self, kinds: Sequence[str]) -> None:
        """Accept every kind: memory can store all of them."""

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

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        with self._lock:
            for name in names:
                self._segments.pop(name, None)

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        now = time.monotonic()
        with self._lock:
            return {name: now - since for name, (_, since) in self._segments.items()}

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        with self._lock:
            number = max(self._manifests, default=None)
            return None if number is None else (number, self._manifests[number][0])

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        kept = self._manifests.get(number)
        return None if kept is None else kept[0]

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        kept = content, time.monotonic()
        with self._lock:
            return self._manifests.setdefault(number, kept) is kept

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None:
        with self._lock:
            for number in numbers:
                self._manifests.pop(number, None)

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        now = time.monotonic()
        with self._lock:
            return {number: now - since for number, (_, since) in self._manifests.items()}

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        with self._lock:
            self._builds[build] = time.monotonic()

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        now = time.monotonic()
        with self._lock:
            return {build: now - since for build, since in self._builds.items()}

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None:
        with self._lock:
            self._builds.pop(build, None)

    async def drop(self, *, operation: Operation | None = None) -> None:
        with self._lock:
            self._segments.clear()
            self._manifests.clear()
            self._builds.clear()

    async def close(self) -> None:
        """Do nothing: the index stays in memory, because another session may use this backend."""
