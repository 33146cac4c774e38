"""The files that an index itself lists (view "snapshot").

A newer snapshot is looked for beside the read's other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.listing import folders_of, parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.partitioning import read_partitions
from asyncpq.datasets.providers import FileSet
from asyncpq.errors import StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.build.index_source import partitioning_of
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import FileEntry, FooterReader, url_in
from asyncpq.indexing.query.file_selection import FileIndex, FileSelection, SnapshotRead, with_own, worked
from asyncpq.indexing.query.index_query import OpenIndex, answer
from asyncpq.indexing.query.indexed_files import entries_of
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import Validator


class SnapshotFiles:
    """The files that an index lists. A lookup reads only the entries of files that may match."""

    view: View = View.SNAPSHOT

    def __init__(self, runtime: Runtime, index: OpenIndex, own: Sequence[FileIndex] = ()) -> None:
        self._runtime = runtime
        self.index = index
        self._own = own

    @property
    def description(self) -> str:
        return self.index.description

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        """The index that lists the files, described by JSON values."""
        return [self.index.as_dict()]

    @property
    def known(self) -> FileSet | None:
        return FileSet((), total=self.index.manifest.num_files)

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        if self.index.is_fresh:
            return (await self._find_newest(ask, operation))[1]
        first: asyncio.Future[tuple[Manifest, FileSet]] = asyncio.get_running_loop().create_future()
        renewal = self._runtime.spawn(self._renewed(first, ask, operation))
        try:
            manifest, files = await self._find_newest(ask, operation)
            first.set_result((manifest, files))
            return files._replace(renewal=renewal) if allow_stale else await renewal
        except BaseException:
            renewal.cancel()
            await asyncio.wait((renewal,))
            raise

    async def _renewed(
        self, first: asyncio.Future[tuple[Manifest, FileSet]], ask: ScanRequest, operation: Operation
    ) -> FileSet:
        """Return the files of ``first``, which were found in the loaded snapshot; or those of a newer snapshot if
        there is one and its files differ."""
        await self.index.advance(operation)
        manifest, first_files = await first
        if self.index.manifest is manifest:
            return first_files
        _, again = await self._find_newest(ask, operation, rounds=1)
        is_same = [_shown(file) for file in again.files] == [_shown(file) for file in first_files.files]
        return first_files if is_same else again

    async def first(self, count: int, operation: Operation) -> Sequence[DataFile]:
        """Return the first ``count`` files by url, or all of fewer, without reading the entries of others. They are
        files of the loaded snapshot: a newer one is not looked for."""
        _, found = await self._find_newest(ScanRequest(), operation, count=count)
        return sorted(found.files, key=lambda file: file.url)

    async def _find_newest(
        self, ask: ScanRequest, operation: Operation, rounds: int = 0, count: int | None = None
    ) -> tuple[Manifest, FileSet]:
        """Load the newest snapshot, and return it with its files that may match, of the first ``count`` or all."""
        index_reads = operation.part(self.index.backend.description, rounds)
        try:
            for _ in range(self._runtime.options.limits.max_restarts):
                manifest = self.index.manifest
                try:
                    return manifest, await self._find(manifest, ask, index_reads, count)
                except StaleSnapshotError:
                    await self.index.renew(manifest, index_reads)
                    operation.restarts()
            manifest = self.index.manifest
            return manifest, await self._find(manifest, ask, index_reads, count)
        finally:
            operation.metrics.add_part(index_reads.metrics)

    async def _find(
        self, manifest: Manifest, ask: ScanRequest, operation: Operation, count: int | None = None
    ) -> FileSet:
        read = SnapshotRead(self._runtime, self.index.backend, manifest, ask, operation)
        answered = await answer(read, self.index, self._own, ask)
        selection = answered.selection or FileSelection(manifest.live)
        if count is not None:
            selection &= FileSelection(await _first_ids(read, count))
        footers = FooterReader(read)
        entries = await entries_of(read, selection.files, footers, answered.query)
        selection = selection if answered.query is None else answered.query.selection()
        plans = {file: selection.plan(file) for file in selection.files.rows()}
        if len(plans) <= self._runtime.options.limits.files_ahead:
            plans = {file: plan for file, plan in plans.items() if entries[file].may_match(plan)}
        files = await worked(read.runtime, len(plans), partial(_data_files, manifest, entries, plans, footers, ask))
        if answered.own:
            files = [file for file in (with_own(file, answered.own, manifest.root) for file in files) if file]
        total, rounds = manifest.num_files, operation.metrics.rounds
        return FileSet(files, total=total, by_index=total - len(files), rounds=rounds, report=answered.report)


async def _first_ids(read: SnapshotRead, count: int) -> RowRanges:
    """Return the ids of the first ``count`` files by path, of which nothing else is read."""
    manifest = read.manifest
    if manifest.num_files <= count:
        return manifest.live
    key = ("first files", manifest.index, manifest.snapshot, count)
    ids: RowRanges | None = read.runtime.memory.get(key)
    if ids is None:
        first: list[tuple[str, int]] = []
        for segment in manifest.segments_of(FILES):  # one after the other: each may have a million paths
            rows = await read.backend.read_segment(segment, None, ["key", "path"], operation=read.operation)
            if rows is not None:
                first += await worked(read.runtime, rows.num_rows, partial(_first_paths, manifest, rows, count))
        ids = RowRanges.from_rows(sorted([file for _, file in sorted(first)[:count]]))
        read.runtime.memory.put(key, ids, 16 * count)
    return ids


def _first_paths(manifest: Manifest, rows: pa.Table, count: int) -> list[tuple[str, int]]:
    """Return paths and ids of the first ``count`` files of ``rows`` that readers see, by path."""
    taken = min(count, rows.num_rows)
    while True:
        few = rows.take(pc.select_k_unstable(rows, taken, [("path", "ascending")]))
        ids = [int.from_bytes(file, "big") for file in few.column("key").to_pylist()]
        live = [place for place, file in enumerate(ids) if file in manifest.live]
        if len(live) >= count or taken == rows.num_rows:
            paths = few.column("path")
            return [(paths[place].as_py(), ids[place]) for place in live[:count]]
        taken = min(4 * taken, rows.num_rows)  # the others were removed


def _data_files(
    manifest: Manifest,
    entries: Mapping[int, FileEntry],
    plans: Mapping[int, AccessPlan],
    footers: FooterReader,
    ask: ScanRequest,
) -> list[DataFile]:
    """Return the files of ``plans`` (rows by file id) as a listing would return them, sorted by url."""
    named = [(url_in(manifest, entries[file].file.path), file) for file in plans]
    if ask.by_file is not None:
        named = [item for item in named if item[0] in ask.by_file]
    named.sort(key=lambda item: item[0].encode("utf-8", "surrogatepass") if manifest.root else item[1])
    urls = [url for url, _ in named]
    partitioning = partitioning_of(manifest)
    # only folders below the root hold partition values; a pattern may name some in the root itself
    counts_from_root = partitioning is not None and parse_target(manifest.dataset["target"]).pattern is None
    root = manifest.root if counts_from_root else ""
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    for error in partitions.errors.values():
        raise error
    footers.expect([file for _, file in named])
    return [
        DataFile(
            url=url,
            validator=entries[file].file.validator,
            size=None if (validator := entries[file].file.validator) is None else validator.size,
            num_rows=entries[file].file.num_rows,
            partition=partition,
            entry=footers.entry(file, validator, plans[file]),
        )
        for (url, file), partition in zip(named, partitions.values, strict=True)
    ]


def _shown(file: DataFile) -> tuple[str, Validator | None, AccessPlan | None]:
    """Return what decides how a file is read: its url, version and rows. Two files for which these are equal are
    read in the same way."""
    return file.url, file.validator, None if file.entry is None else file.entry.access
