"""Pieces of sorted rows become segments: cut where the ranges of keys end, moved, merged, and written by tasks.

How many rows of which keys there are is known from the pieces before any is moved, so ranges come out about equally
large, whatever the keys are. One key that many rows have is cut by file and row.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from asyncpq.errors import ObjectChangedError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_place
from asyncpq.indexing.build.executor import from_thread, write_segments
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.model import Part, Place, Segment
from asyncpq.objects.runtime import Runtime
from asyncpq.options import MIB, BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.index.map_step import Order, decoded, encoded, local_options, one_row, order_in, order_of, packed
from asyncpq.spark.settings import SparkSettings
from asyncpq.storage.concurrency import all_of

_LEAST_RANGE_BYTES: Final = 8 * MIB  # of rows that are worth a task of their own
_FILLED: Final = 0.75  # of a segment: ranges are cut by estimates, and one that is full begins another segment
_WRITES: Final = 4  # segments that a task writes at once

#: What is needed of pieces that are cut.
CUT: Final = ("task", "part", "digest", "first", "last", "payload")

#: Rows on their way to the task that writes them.
MOVED: Final = pa.schema([pa.field("bin", pa.int32()), pa.field("range", pa.int32()), pa.field("payload", pa.binary())])

WRITTEN: Final = pa.schema([pa.field("part", pa.int32()), pa.field("segment", pa.string())])


@dataclass(frozen=True)
class Ranges:
    """Which rows become segments together.

    Attributes:
        parts: of each range.
        cuts: by part: where one range ends and the next begins. A row that is sorted by just that is the last one.
        first: by part: the number of its first range; others follow.
        bins: of each range: which task writes it.
        num_bins: how many tasks.
        digests: by task of the map step: names the versions of its files.
    """

    parts: tuple[int, ...]
    cuts: Mapping[int, tuple[Order, ...]]
    first: Mapping[int, int]
    bins: tuple[int, ...]
    num_bins: int
    digests: Mapping[int, bytes]


def planned(pieces: Sequence[Mapping[str, Any]], options: BuildOptions, *, builds: int) -> Ranges:
    """Ranges of the rows of ``pieces``.

    Args:
        pieces: of all parts but "files"; without payloads.
        builds: so many times in one build segments are written.
    """
    by_part: dict[int, list[tuple[Order, int, int]]] = {}
    for piece in pieces:
        counted = (order_in(piece["middle"]), piece["num_bytes"], piece["num_rows"])
        by_part.setdefault(piece["part"], []).append(counted)
    cuts: dict[int, tuple[Order, ...]] = {}
    first: dict[int, int] = {}
    parts: list[int] = []
    sizes: list[int] = []
    for part, found in sorted(by_part.items()):
        first[part] = len(parts)
        cuts[part] = _cuts(sorted(found), options, max(1, options.max_segments // builds))
        number = len(cuts[part]) + 1
        parts += [part] * number
        sizes += [max(1, sum(size for _, size, _ in found) // number)] * number
    bins = packed(sizes, _LEAST_RANGE_BYTES)
    bin_of = {number: at for at, held in enumerate(bins) for number in held}
    digests = {piece["task"]: piece["digest"] for piece in pieces}
    return Ranges(tuple(parts), cuts, first, tuple(bin_of[at] for at in range(len(parts))), len(bins), digests)


def _cuts(found: Sequence[tuple[Order, int, int]], options: BuildOptions, most: int) -> tuple[Order, ...]:
    """Of one part, by its pieces' middles in order."""
    num_bytes, num_rows = sum(size for _, size, _ in found), sum(rows for _, _, rows in found)
    full = max(num_bytes / options.segment_bytes, num_rows / options.segment_rows) / _FILLED
    number = max(1, ceil(full), min(most, num_bytes // _LEAST_RANGE_BYTES))
    cuts: list[Order] = []
    taken, step = 0.0, num_bytes / number
    for middle, size, _ in found:
        if taken + size / 2 >= step * (len(cuts) + 1) and len(cuts) + 1 < number and (not cuts or cuts[-1] < middle):
            cuts.append(middle)
        taken += size
    return tuple(cuts)


# -- moving ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutPieces:
    """For ``mapInArrow``: given pieces, gives those of each range, as ``MOVED``."""

    ranges: Ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task, part, digest, first, last, payload in zip(*(batch.column(name) for name in CUT), strict=True):
                if self.ranges.digests.get(task.as_py()) != digest.as_py():
                    raise ObjectChangedError("files were read again, and some of them have changed since")
                ends = order_in(first.as_py()), order_in(last.as_py())
                yield from self._cut(part.as_py(), *ends, payload.as_buffer())

    def _cut(self, part: int, low: Order, high: Order, payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
        cuts, first = self.ranges.cuts[part], self.ranges.first[part]
        start, number = 0, bisect_left(cuts, low)
        if bisect_left(cuts, high) == number:  # all of it goes to one range
            yield self._moved(first + number, payload.to_pybytes())
            return
        rows = decoded(payload).combine_chunks()
        while start < rows.num_rows:
            stop = rows.num_rows
            if number < len(cuts):
                stop = bisect_right(range(rows.num_rows), cuts[number], lo=start, key=lambda at: order_of(rows, at))
            if stop > start:
                yield self._moved(first + number, encoded(rows.slice(start, stop - start)))
            start, number = stop, number + 1

    def _moved(self, number: int, payload: bytes) -> pa.RecordBatch:
        return one_row([self.ranges.bins[number], number, payload], MOVED)


# -- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteSegments:
    """For ``mapInArrow``: given all rows of some ranges, as ``MOVED``, writes them, and gives ``WRITTEN``.

    Each attempt of a task writes segments of other names: only what a commit names is there for readers.
    """

    settings: SparkSettings
    at: str
    build: str
    parts: tuple[Part, ...]
    ranges: Ranges
    options: BuildOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = local_options(self.options)
        memory = max(MIB, options.memory_bytes // max(Counter(self.ranges.bins).values()))
        with ExitStack() as open_sorts:
            sorts: dict[int, ExternalSort] = {}
            for batch in batches:
                for number, payload in zip(batch.column("range").to_pylist(), batch.column("payload"), strict=True):
                    if number not in sorts:
                        schema = self.parts[self.ranges.parts[number]].schema
                        sort = ExternalSort(schema, memory, folder_of(options))
                        sorts[number] = open_sorts.enter_context(sort)
                    sorts[number].add(decoded(payload.as_buffer()))
            numbers = sorted(sorts)
            some = [(self.parts[self.ranges.parts[number]], sorts[number], RowRanges()) for number in numbers]
            found = self._written(some, options) if some else []
        of_parts = [self.parts.index(segment.part) for segment in found]
        yield pa.record_batch([pa.array(of_parts, pa.int32()), pa.array(map(_described, found), pa.string())], WRITTEN)

    def _written(self, some: Sequence[tuple[Part, ExternalSort, RowRanges]], options: BuildOptions) -> list[Segment]:
        begun = False

        async def work(session: Session) -> list[Segment]:
            nonlocal begun
            begun = True
            return await self._write(some, options, session)

        # what was sorted is taken once: another attempt of the task has it, not another call
        return sessions.run(self.settings, work, repeatable=lambda: not begun)

    async def _write(
        self, some: Sequence[tuple[Part, ExternalSort, RowRanges]], options: BuildOptions, session: Session
    ) -> list[Segment]:
        place = await open_place(session.runtime, self.at, create=False)
        try:
            return await write_sorted(session.runtime, place, self.build, some, options)
        finally:
            session.runtime.unregister(place)
            await place.close()


async def write_sorted(
    runtime: Runtime,
    place: Place,
    build: str,
    some: Sequence[tuple[Part, ExternalSort, RowRanges]],
    options: BuildOptions,
    operation: Operation | None = None,
) -> list[Segment]:
    """Write what was sorted, of files with these ids."""
    found: dict[int, list[Segment]] = {}

    async def one(number: int) -> None:
        part, sort, files = some[number]
        rows = from_thread(runtime, await runtime.in_thread(sort.batches))
        found[number] = await write_segments(place, build, part, rows, files, options, operation)

    await all_of(list(range(len(some))), one, _WRITES)
    return [segment for number in sorted(found) for segment in found[number]]


def folder_of(options: BuildOptions) -> Path:
    """For local files."""
    return Path(options.folder or tempfile.gettempdir())


def _described(segment: Segment) -> str:
    return json.dumps(
        {
            "name": segment.name,
            "num_rows": segment.num_rows,
            "size": segment.size,
            "low": segment.low.hex(),
            "high": segment.high.hex(),
            "has_unknown": segment.has_unknown,
            "data_bytes": segment.data_bytes,
            "extra": segment.extra,
        }
    )


def segment_of(part: Part, described: str, files: tuple[tuple[int, int], ...]) -> Segment:
    """A segment that a task has written.

    Args:
        files: see :class:`Segment`.
    """
    record = json.loads(described)
    low, high = (bytes.fromhex(record.pop(name)) for name in ("low", "high"))
    return Segment(part=part, low=low, high=high, files=files, **record)
