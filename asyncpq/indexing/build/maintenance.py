"""Keep an index healthy: compact (merge segments), vacuum (delete old snapshots), verify (compare with the files)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from asyncpq.datasets.listing import NOT_BUILT
from asyncpq.datasets.model import DataFile
from asyncpq.errors import AsyncpqError, CorruptIndexError, ObjectNotFoundError
from asyncpq.events import Operation
from asyncpq.indexing.build.build_executor import write_segments
from asyncpq.indexing.build.file_rows import FileCollector, IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import merged_async, without_files
from asyncpq.indexing.commits import Heartbeat, IndexedFile, commit, load, manifest_ages, new_id, numbered
from asyncpq.indexing.index_model import BY_VALUE, IndexBackend, IndexTable, KeyRange, Segment, SegmentQuery, file_key
from asyncpq.indexing.manifest import Manifest, union
from asyncpq.indexing.query.file_selection import BY_ROW
from asyncpq.objects.runtime import Runtime
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of :meth:`asyncpq.indexing.Index.compact`.

    Attributes:
        manifest: the newest snapshot.
        merged: number of old segments that were replaced.
        written: number of new segments.
        given_up: tables that were left unchanged, because another compaction had replaced their segments first.
    """

    manifest: Manifest = field(repr=False)
    merged: int = 0
    written: int = 0
    given_up: tuple[IndexTable, ...] = ()


async def compact(
    runtime: Runtime, backend: IndexBackend, options: BuildOptions, operation: Operation, *, max_segments: int = 1
) -> Compacted:
    """Merge segments of each table: small segments, if there are more than ``max_segments``; segments with overlapping
    key ranges, if more than ``max_segments`` of them may contain the same key; and segments whose rows mostly belong to
    files that were removed from the index. No segment is deleted.

    Raises ObjectNotFoundError if the index does not exist, StaleSnapshotError if the compaction expired.
    """
    manifest = await load(backend, operation)
    if manifest is None:
        raise ObjectNotFoundError("there is no index", url=backend.description, hint=NOT_BUILT)
    compaction = _Compaction(runtime, backend, options, operation, manifest)
    chosen = {
        index_table: _chosen(manifest.segments_of(index_table), compaction.unused, max_segments, options)
        for index_table in manifest.tables
    }
    if not any(chosen.values()):
        return Compacted(manifest)
    async with Heartbeat(backend, compaction.build, options.grace_s, operation) as heartbeat:
        for index_table, segments in chosen.items():
            if segments:
                await compaction.merge(index_table, segments)
                if compaction.num_rows >= options.segment_rows:
                    await compaction.commit(heartbeat)
        await compaction.commit(heartbeat)
    return Compacted(compaction.manifest, compaction.merged, compaction.written, tuple(compaction.given_up))


async def compact_if_due(
    runtime: Runtime, backend: IndexBackend, options: BuildOptions, manifest: Manifest, operation: Operation
) -> Manifest:
    """Compact the index if a table has more than ``options.max_segments`` segments; return the newest manifest."""
    if all(len(manifest.segments_of(index_table)) <= options.max_segments for index_table in manifest.tables):
        return manifest
    return (await compact(runtime, backend, options, operation, max_segments=options.max_segments)).manifest


class _Swap(NamedTuple):
    table: IndexTable
    old: Sequence[Segment]
    new: Sequence[Segment]


class _Compaction:
    """Merges segments, and commits the merged ones in place of the old ones."""

    def __init__(
        self, runtime: Runtime, backend: IndexBackend, options: BuildOptions, operation: Operation, manifest: Manifest
    ) -> None:
        self.manifest = manifest  # the newest manifest that was loaded or committed
        self.unused = manifest.retired - manifest.reserved  # ids of files that never become live again
        self.build = new_id()  # the names of new segments begin with this id
        self.num_rows = 0  # rows of segments that are not committed yet
        self.merged = self.written = 0
        self.given_up: list[IndexTable] = []
        self._runtime = runtime
        self._backend = backend
        self._options = options
        self._operation = operation
        self._waiting: list[_Swap] = []

    async def merge(self, index_table: IndexTable, segments: Sequence[Segment]) -> None:
        """Merge ``segments`` into new segments, without the rows of files removed from the index; :meth:`commit`
        commits them."""
        files = union(RowRanges(segment.files) for segment in segments) - self.unused
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(aclosing(self._rows(segment))) for segment in segments]
            rows = merged_async(self._runtime, streams)
            new = await write_segments(
                self._backend, self.build, index_table, rows, files, self._options, self._operation
            )
        self._waiting.append(_Swap(index_table, segments, new))
        self.num_rows += sum(segment.num_rows for segment in new)

    async def _rows(self, segment: Segment) -> AsyncGenerator[pa.RecordBatch]:
        num_rows = 0
        async for batch in self._backend.iterate_segment(segment, operation=self._operation):
            num_rows += batch.num_rows
            if self.unused:
                batch = await self._runtime.in_thread(partial(without_files, batch, self.unused))
            yield batch
        if num_rows != segment.num_rows:
            raise CorruptIndexError(
                f"segment {segment.name} of the index has {num_rows} rows, expected {segment.num_rows}",
                url=self._backend.description,
            )

    async def commit(self, heartbeat: Heartbeat) -> None:
        """Commit new segments in place of the old ones; give up a merge if one of its old segments was replaced."""

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
        committed = await commit(self._backend, self.manifest, change, self.build, self._operation)
        self.manifest = committed or self.manifest
        unneeded: list[str] = []
        for swap in self._waiting:
            new = [segment.name for segment in swap.new]
            if self.manifest.names.issuperset(new):
                self.merged += len(swap.old)
                self.written += len(new)
            else:  # another compaction was faster
                self.given_up.append(swap.table)
                unneeded += new
        self._waiting, self.num_rows = [], 0
        if unneeded:
            await self._backend.delete("segments", unneeded, operation=self._operation)


def _chosen(segments: Sequence[Segment], unused: RowRanges, max_segments: int, options: BuildOptions) -> list[Segment]:
    """Return the segments of one table to merge: small ones if there are too many, those whose rows mostly belong to
    files with ids in ``unused``, and those of which too many may contain the same key."""

    def is_small(segment: Segment) -> bool:
        # concurrent writers of key ranges never fill one completely
        return 2 * segment.num_rows < options.segment_rows and 2 * segment.data_bytes < options.segment_bytes

    def is_mostly_unused(segment: Segment) -> bool:
        files = RowRanges(segment.files)
        return (files & unused).num_rows * 2 > files.num_rows

    small = {segment.name for segment in segments if is_small(segment)}
    chosen = {segment.name for segment in segments if is_mostly_unused(segment)}
    if len(small) > max_segments:
        chosen |= small
    if segments and segments[0].table.kind in BY_VALUE:
        chosen |= {segment.name for group in _overlapping(segments, max_segments) for segment in group}
    return [segment for segment in segments if segment.name in chosen]


def _overlapping(segments: Sequence[Segment], most: int) -> Iterator[list[Segment]]:
    """Yield groups of segments with overlapping key ranges in which more than ``most`` may contain the same key.
    Segments that were written together only share a bound, and do not count as overlapping."""
    group: list[Segment] = []
    open_: list[bytes] = []  # upper bounds of the segments that overlap the current one
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


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The result of :meth:`asyncpq.indexing.Index.vacuum`.

    Attributes:
        snapshots: numbers of the removed snapshots.
        segments: names of the removed segments, which no remaining snapshot needs.
        files: paths of the removed data files that asyncpq wrote, and that no remaining snapshot lists.
    """

    snapshots: tuple[int, ...]
    segments: tuple[str, ...]
    files: tuple[str, ...] = ()


async def vacuum(
    backend: IndexBackend,
    *,
    keep: int,
    older_than_s: float,
    orphans_s: float,
    grace_s: float,
    operation: Operation | None = None,
) -> Vacuumed:
    """Remove old snapshots, and the segments that only these snapshots need; return what was removed.

    Args:
        keep: number of the newest snapshots that stay.
        older_than_s: snapshots that were the newest at any time within these last seconds stay too.
        orphans_s: segments that no snapshot lists stay while they are younger than these seconds, or their build runs.
        grace_s: seconds after its last heartbeat at which a build counts as ended.

        operation: the call to which requests are counted; None: they are not.

    Ages are measured by the backend's clock. Raises StoreError if the store fails.
    """
    # in this order: segments that a live build commits from now on do not count as orphans
    signs = await backend.ages("builds", operation=operation)
    builds = {build for build, age in signs.items() if age <= grace_s}
    segments = await backend.ages("segments", operation=operation)
    newest = await load(backend, operation)
    if newest is None:
        return Vacuumed((), ())
    ages = await manifest_ages(backend, operation)
    shown = await backend.latest(operation=operation)
    first = min(newest.snapshot, newest.snapshot if shown is None else shown[0])
    numbers = sorted(number for number in ages if number < first)
    kept = {number for number in ages if number >= first}
    kept.update(numbers[max(0, len(numbers) - (keep - len(kept))) :] if keep > len(kept) else ())
    for number, following in pairwise([*numbers, first]):
        if ages.get(following, 0.0) <= older_than_s:
            kept.add(number)
    old = [number for number in numbers if number not in kept]
    needed = {name for manifest in await _load_all(backend, kept, operation) for name in manifest.names} | newest.names
    outdated = {name for manifest in await _load_all(backend, old, operation, damaged=True) for name in manifest.names}
    unneeded = [
        name
        for name, age in segments.items()
        if name not in needed and (name in outdated or (age > orphans_s and name.partition("-")[0] not in builds))
    ]
    for build, age in signs.items():
        if age > orphans_s:
            await backend.delete("builds", [build], operation=operation)
    await backend.delete("segments", unneeded, operation=operation)
    # last: a vacuum that breaks off can find the segments again
    await backend.delete("manifests", [str(number) for number in old], operation=operation)
    return Vacuumed(tuple(old), tuple(sorted(unneeded)))


async def _load_all(
    backend: IndexBackend, numbers: Iterable[int], operation: Operation | None, *, damaged: bool = False
) -> list[Manifest]:
    """Load the manifests of those snapshot ``numbers`` that exist. With ``damaged``, damaged manifests are left out;
    else they raise CorruptIndexError."""
    manifests: list[Manifest] = []

    async def load_one(number: int) -> None:
        try:
            manifest = await numbered(backend, number, operation)
        except CorruptIndexError:
            if not damaged:
                raise
            return
        if manifest is not None:
            manifests.append(manifest)

    await call_each(load_one, sorted(numbers))
    return manifests


@dataclass(slots=True)
class Verified:
    """The result of :meth:`asyncpq.indexing.Index.verify`.

    Attributes:
        files: number of files in the sample.
        changed: number of files of the sample that were not compared, since they were replaced or deleted.
        rows: number of index rows that were compared.
        problems: descriptions of errors in the index. If there is any, drop the index and build it again.
    """

    files: int = 0
    changed: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether the verification found no problems in the index."""
        return not self.problems


async def verify(
    runtime: Runtime,
    backend: IndexBackend,
    manifest: Manifest,
    files: Sequence[tuple[IndexedFile, DataFile]],
    wanted: IndexSpec,
    operation: Operation,
    sample_of: Callable[[int], list[int]],
) -> Verified:
    """Compare the index with the sample ``files`` (pairs of indexed version and data file): make each file's index rows
    again as ``wanted`` says, and look them up in the index; in tables that are sorted by value, only those at the
    places that ``sample_of`` returns for the number of a file's rows.

    Errors in the index are listed in the result, not raised; a StoreError of the dataset's store is raised.
    """
    missing = sorted(manifest.names - (await backend.ages("segments", operation=operation)).keys())
    verified = Verified(problems=[f"segment {name} is missing" for name in missing])
    collector = FileCollector(runtime, wanted)
    operation.metrics.files_total = len(files)
    for known, file in files:
        part = operation.part(safe_url(file.url), 0)
        rows = await collector.collect(FileTask(id=known.id, path=known.path, file=file), part)
        verified.files += 1
        now, indexed = rows.validator, known.validator
        if rows.gone or now is None or indexed is None or not now.same_version(indexed):
            verified.changed += 1
        elif (rows.problem is None) is (known.num_rows is None):
            problem = rows.problem or "the file can be read, but the index lists it as unreadable"
            verified.problems.append(f"{known.path}: {problem}")
        else:
            for index_table, table in rows.tables.items():
                if known.id not in manifest.covered(index_table):
                    verified.problems.append(f"{known.path}: no segment of {index_table} covers this file")
                    continue
                if index_table.kind in BY_VALUE:
                    table = table.take(pa.array(sample_of(table.num_rows), pa.int64()))
                verified.rows += await _compare(backend, manifest, index_table, known, table, verified, operation)
        operation.part_ended(part, rows.problem, verified.files)
    return verified


async def _compare(
    backend: IndexBackend,
    manifest: Manifest,
    index_table: IndexTable,
    file: IndexedFile,
    table: pa.Table,
    verified: Verified,
    operation: Operation,
) -> int:
    """Compare ``table``, the rows that ``file`` should have in ``index_table``, with the index; return the number of
    compared rows. Differences are added to ``verified.problems``."""
    by_value = index_table.kind in BY_VALUE
    ranges = [KeyRange(file_key(file.id), file_key(file.id + 1))]
    if by_value:
        ranges = [KeyRange.point(key) for key in sorted(set(table.column("key").to_pylist()))]
    held: list[dict[str, Any]] = []
    try:
        for segment in manifest.segments_of(index_table) if ranges else ():
            rows = await backend.read_segment(segment, SegmentQuery(ranges), operation=operation)
            held += [] if rows is None else rows.to_pylist()
    except CorruptIndexError as error:
        verified.problems.append(str(error))
        return 0
    except AsyncpqError as error:
        verified.problems.append(f"{index_table} could not be read: {error}")
        return 0
    expected = table.to_pylist()
    if index_table.kind in BY_ROW:
        missing = _missing_postings(expected, held)
    else:
        have = {repr(row) for row in held}
        missing = sum(repr(row) not in have for row in expected)
    if missing:
        verified.problems.append(f"{file.path}: {missing} of {len(expected)} rows are missing in {index_table}")
    if not by_value and len(held) > len(expected):
        verified.problems.append(f"{file.path}: {index_table} has {len(held)} rows, expected {len(expected)}")
    return len(expected)


def _missing_postings(expected: Sequence[dict[str, Any]], held: Sequence[dict[str, Any]]) -> int:
    """Return how many of the ``expected`` postings have a first or last row that no posting in ``held`` contains.
    Postings themselves are not compared, because a build joins rows into postings depending on its memory."""
    spans: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for row in held:
        spans.setdefault((row["key"], row["file"]), []).append((row["row"], row["row"] + row["rows"]))
    posted = {key: RowRanges(key_spans) for key, key_spans in spans.items()}
    missing = 0
    for row in expected:
        rows = posted.get((row["key"], row["file"]), RowRanges())
        missing += row["row"] not in rows or row["row"] + row["rows"] - 1 not in rows
    return missing
