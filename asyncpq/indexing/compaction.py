"""Segments of a part are merged into few, without the rows of files that are out of use. Nothing is deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from asyncpq.errors import CorruptIndexError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.commits import commit, load, new_id
from asyncpq.indexing.heartbeats import Heartbeat
from asyncpq.indexing.manifest import Manifest, union
from asyncpq.indexing.model import BY_VALUE, Part, Place, Segment
from asyncpq.indexing.segment_writing import write_segments
from asyncpq.indexing.sorting import merged_async, without_files
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.resources import Resources


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction has done.

    Attributes:
        manifest: the newest.
        merged, written: segments that it took the place of, and that took their place.
        given_up: parts of which others had changed the segments meanwhile.
    """

    manifest: Manifest = field(repr=False)
    merged: int = 0
    written: int = 0
    given_up: tuple[Part, ...] = ()


async def compact(
    resources: Resources, place: Place, options: BuildOptions, operation: Operation, *, max_segments: int = 1
) -> Compacted:
    """Merge segments of each part: where more than ``max_segments`` are not full, or may hold the same key of a part by
    value, or the files of some are mostly not in use.

    Raises:
        ObjectNotFoundError: there is no index.
        StaleSnapshotError: others took this compaction for dead.
    """
    manifest = await load(place, operation)
    if manifest is None:
        raise ObjectNotFoundError("there is no index", url=place.description, hint="Build it first.")
    unused = manifest.retired - manifest.reserved  # these never come back
    chosen = {part: _chosen(manifest.of_part(part), unused, max_segments, options) for part in manifest.parts}
    if not any(chosen.values()):
        return Compacted(manifest)
    swaps = _Swaps(place, new_id(), manifest, operation)
    async with Heartbeat(place, swaps.build, options.grace_s, operation) as heartbeat:
        for part, old in chosen.items():
            if old:
                swaps.add(part, old, await _merge(resources, place, swaps.build, part, old, unused, options, operation))
                if swaps.num_rows >= options.segment_rows:
                    await swaps.commit(heartbeat)
        await swaps.commit(heartbeat)
    return Compacted(swaps.manifest, swaps.taken, swaps.written, tuple(swaps.given_up))


async def compact_if_due(
    resources: Resources, place: Place, options: BuildOptions, manifest: Manifest, operation: Operation
) -> Manifest:
    """The newest manifest, once a build that led to ``manifest`` has left no more segments than it may.

    Raises:
        StaleSnapshotError: as :func:`compact`.
    """
    if all(len(manifest.of_part(part)) <= options.max_segments for part in manifest.parts):
        return manifest
    return (await compact(resources, place, options, operation, max_segments=options.max_segments)).manifest


class _Swap(NamedTuple):
    part: Part
    old: Sequence[Segment]
    new: Sequence[Segment]


class _Swaps:
    """Segments that take the place of others with the next commit.

    Attributes:
        build: begins the names of segments.
        manifest: the newest that is known.
        num_rows: of segments that wait to be committed.
    """

    def __init__(self, place: Place, build: str, manifest: Manifest, operation: Operation) -> None:
        self.build = build
        self.manifest = manifest
        self.num_rows = self.taken = self.written = 0
        self.given_up: list[Part] = []
        self._place = place
        self._operation = operation
        self._waiting: list[_Swap] = []

    def add(self, part: Part, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self._waiting.append(_Swap(part, old, new))
        self.num_rows += sum(segment.num_rows for segment in new)

    async def commit(self, heartbeat: Heartbeat) -> None:
        """Put the new segments in the place of the old ones, where these are all still there."""

        async def change(newest: Manifest | None) -> Manifest | None:
            heartbeat.check()
            if newest is None:
                return None
            segments = {segment.name: segment for segment in newest.segments}
            for swap in self._waiting:
                names = [segment.name for segment in swap.old]
                if all(name in segments for name in names):
                    for name in names:
                        del segments[name]
                    segments.update({segment.name: segment for segment in swap.new})
            changed = tuple(segments.values())
            return replace(newest, segments=changed) if changed != newest.segments else None

        if not self._waiting:
            return
        committed = await commit(self._place, self.manifest, change, self.build, self._operation)
        self.manifest = committed or self.manifest
        unneeded: list[str] = []
        for swap in self._waiting:
            new = [segment.name for segment in swap.new]
            if self.manifest.names.issuperset(new):
                self.taken += len(swap.old)
                self.written += len(new)
            else:  # another compaction was faster
                self.given_up.append(swap.part)
                unneeded += new
        self._waiting, self.num_rows = [], 0
        if unneeded:
            await self._place.delete_segments(unneeded, operation=self._operation)


def _chosen(segments: Sequence[Segment], unused: RowRanges, max_segments: int, options: BuildOptions) -> list[Segment]:
    """What is to be merged: those that are not full, where they are too many, those that are mostly out of use, and
    those that a question about one key would all be asked of."""
    small = [segment for segment in segments if not _is_full(segment, options)]
    chosen = {segment.name for segment in (small if len(small) > max_segments else ())}
    chosen |= {segment.name for segment in segments if _is_mostly(segment, unused)}
    if segments and segments[0].part.kind in BY_VALUE:
        chosen |= {segment.name for run in _overlapping(segments, max_segments) for segment in run}
    return [segment for segment in segments if segment.name in chosen]


def _overlapping(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """Those whose keys overlap, where more than ``most`` may hold one key; a run of segments only touches."""
    group: list[Segment] = []
    open_: list[bytes] = []  # ends of those that hold the keys right before the next one's
    depth, end = 0, b""
    for segment in sorted(segments, key=lambda segment: (segment.low, segment.high)):
        if group and segment.low >= end:
            if depth > most:
                yield group
            group, open_, depth = [], [], 0
        group.append(segment)
        open_ = [high for high in open_ if high > segment.low]
        open_.append(segment.high)
        depth, end = max(depth, len(open_)), max(open_)
    if depth > most:
        yield group


def _is_full(segment: Segment, options: BuildOptions) -> bool:
    """Or as good as: where ranges of keys are written by many, no segment comes out as large as it may be."""
    return 2 * segment.num_rows >= options.segment_rows or 2 * segment.data_bytes >= options.segment_bytes


def _is_mostly(segment: Segment, unused: RowRanges) -> bool:
    files = RowRanges(segment.files)
    return (files & unused).num_rows * 2 > files.num_rows


async def _merge(
    resources: Resources,
    place: Place,
    build: str,
    part: Part,
    segments: Sequence[Segment],
    unused: RowRanges,
    options: BuildOptions,
    operation: Operation,
) -> list[Segment]:
    """Segments with the rows of ``segments`` whose files are in use."""
    files = union(RowRanges(segment.files) for segment in segments) - unused
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(aclosing(_rows(resources, place, segment, unused, operation)))
            for segment in segments
        ]
        rows = merged_async(resources, streams)
        return await write_segments(place, build, part, rows, files, options, operation)


async def _rows(
    resources: Resources, place: Place, segment: Segment, unused: RowRanges, operation: Operation
) -> AsyncGenerator[pa.RecordBatch]:
    num_rows = 0
    async for batch in place.iterate_segment(segment, operation=operation):
        num_rows += batch.num_rows
        yield await resources.in_thread(partial(without_files, batch, unused)) if unused else batch
    if num_rows != segment.num_rows:
        raise CorruptIndexError(
            f"the segment {segment.name} has {num_rows} rows, and should have {segment.num_rows}", url=place.description
        )
