"""Rows of all parts of an index, on their way from files to segments."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.indexing.file_rows import FileRows
from asyncpq.indexing.model import Part, Place, Segment
from asyncpq.indexing.segment_writing import from_thread, write_segments
from asyncpq.indexing.sorting import ExternalSort
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.resources import Resources


class SortedParts:
    """Rows of all parts, of some files, sorted within bounded memory. Close it: it may have local files."""

    def __init__(self, resources: Resources, parts: Sequence[Part], options: BuildOptions) -> None:
        memory = max(1 << 20, options.memory_bytes // 2 // len(parts))
        self._resources = resources
        self._options = options
        folder = Path(options.folder or tempfile.gettempdir())
        self._sorts = {part: ExternalSort(part.schema, memory, folder) for part in parts}
        self._files: dict[Part, list[int]] = {part: [] for part in parts}

    async def add(self, rows: FileRows) -> None:
        """What one file gives."""
        for part in rows.tables:
            self._files[part].append(rows.work.id)
        sorts = any(self._sorts[part].is_filled_by(table) for part, table in rows.tables.items())
        await self._resources.in_thread(partial(self._add, rows), small=not sorts)

    def _add(self, rows: FileRows) -> None:
        for part, table in rows.tables.items():
            if table.num_rows:
                self._sorts[part].add(table)

    def files(self, part: Part) -> RowRanges:
        """Ids of those of which it has all rows of the part."""
        return RowRanges((file, file + 1) for file in self._files[part])

    async def batches(self, part: Part) -> AsyncIterator[pa.RecordBatch]:
        """All rows of the part, in order; once, and nothing can be added after."""
        return from_thread(self._resources, await self._resources.in_thread(self._sorts[part].batches))

    async def write(self, place: Place, build: str, operation: Operation) -> list[Segment]:
        """The segments of all parts, which are not committed yet."""
        segments: list[Segment] = []
        for part in self._sorts:
            if files := self.files(part):
                rows = await self.batches(part)
                segments += await write_segments(place, build, part, rows, files, self._options, operation)
        return segments

    async def close(self) -> None:
        """Remove the local files, also where it is cancelled, or the session was closed before."""
        with ExitStack() as left:
            for sort in self._sorts.values():
                left.callback(sort.close)
            for sort in self._sorts.values():
                await self._resources.in_thread(sort.close)
