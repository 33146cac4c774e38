"""The files that an index itself lists (view "snapshot").

A newer snapshot is looked for beside the read's other requests; before them if the files come in sets.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.partitioning import described_partitioning, folders_of, read_partitions
from asyncpq.datasets.providers import FileSet
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array
from asyncpq.errors import CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.index_model import SegmentQuery
from asyncpq.indexing.manifest.commits import FILE_COLUMNS, IndexedFile, file_chunks, id_ranges
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import FooterReader, load_directory, url_in
from asyncpq.indexing.query.file_selection import (
    FileIndex,
    FileSelection,
    SnapshotRead,
    counts_rows,
    together,
    with_own,
    worked,
)
from asyncpq.indexing.query.index_query import IndexAnswer, OpenIndex, answer
from asyncpq.indexing.query.indexed_files import entries_of
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import Validator
from asyncpq.waiting import wait_futures

_ID: Final = attrgetter("id")


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
            return (await self._newest(ask, operation))[1]
        first: asyncio.Future[tuple[Manifest, FileSet]] = asyncio.get_running_loop().create_future()
        renewal = self._runtime.spawn(self._renewed(first, ask, operation))
        try:
            manifest, files = await self._newest(ask, operation)
            first.set_result((manifest, files))
            return files._replace(renewal=renewal) if allow_stale else await renewal
        except BaseException:
            renewal.cancel()
            await wait_futures((renewal,))
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
        _, again = await self._newest(ask, operation, rounds=1)
        same_rows = again.num_rows == first_files.num_rows
        is_same = same_rows and [_shown(file) for file in again.files] == [_shown(file) for file in first_files.files]
        return first_files if is_same else again

    async def first(self, count: int, operation: Operation) -> Sequence[DataFile]:
        """Return the first ``count`` files by url, or all of fewer, without reading the entries of others. They are
        files of the loaded snapshot: a newer one is not looked for."""
        _, found = await self._find_newest(ScanRequest(), operation, count=count)
        return sorted(found.files(), key=lambda file: file.url)

    async def _newest(self, ask: ScanRequest, operation: Operation, rounds: int = 0) -> tuple[Manifest, FileSet]:
        """Load the newest snapshot, and return it with its files that may match."""
        if counts_rows(self._runtime, ask):
            manifest = self.index.manifest
            read = SnapshotRead(self._runtime, self.index.backend, manifest, ask, operation)
            try:
                num_rows = (await load_directory(read)).num_rows
            except StaleSnapshotError:
                num_rows = None  # the search for files loads the newest
            if num_rows is not None:
                return manifest, FileSet((), total=manifest.num_files, by_index=manifest.num_files, num_rows=num_rows)
        manifest, found = await self._find_newest(ask, operation, rounds)
        return manifest, await worked(self._runtime, len(found), partial(found.file_set, manifest.num_files))

    async def sets(self, ask: ScanRequest, operation: Operation, *, most_files: int) -> AsyncGenerator[FileSet]:
        """Yield the files of :meth:`files`, in the same order, in sets of at most ``most_files``, so that very many
        files are never in memory at once. The ``total`` and ``by_index`` of the sets add up."""
        if self.index.manifest.num_files <= most_files:
            yield await self.files(ask, operation)
            return
        if not self.index.is_fresh:
            await self.index.advance(operation)
        manifest, found = await self._find_newest(ask, operation, operation.metrics.rounds)
        ruled_out = manifest.num_files - len(found)
        for start in range(0, max(1, len(found)), most_files):
            part = found.part(start, start + most_files)
            total, ruled_out = len(part) + ruled_out, 0
            yield await worked(self._runtime, len(part), partial(part.file_set, total))

    async def _find_newest(
        self, ask: ScanRequest, operation: Operation, rounds: int = 0, count: int | None = None
    ) -> tuple[Manifest, _FoundFiles]:
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
    ) -> _FoundFiles:
        read = SnapshotRead(self._runtime, self.index.backend, manifest, ask, operation)
        answered = await answer(read, self.index, self._own, ask)
        selection = answered.selection or FileSelection(manifest.live)
        if count is not None:
            selection &= FileSelection(await _first_ids(read, count))
        footers = FooterReader(read)
        entries: pa.Table | list[IndexedFile]
        if selection.files.num_rows > self._runtime.options.limits.files_ahead:
            entries = await _rows_of(read, selection.files)
        else:
            by_id = await entries_of(read, selection.files, footers, answered.query)
            selection = selection if answered.query is None else answered.query.selection()
            selected = [by_id[file] for file in selection.files.rows()]
            entries = [entry.file for entry in selected if entry.may_match(selection.plan(entry.file.id))]
            entries = [file for file in entries if ask.by_file is None or url_in(manifest, file.path) in ask.by_file]
            entries.sort(key=(lambda file: file.path.encode("utf-8", "surrogatepass")) if manifest.root else _ID)
        return _FoundFiles(manifest, answered, selection, footers, entries, operation.metrics.rounds)


class _FoundFiles:
    """The files that an index selects for a read, in the order of a listing: a few entries, or rows of the index table
    "files". Rows take a fraction of the memory of the files that are made of them."""

    def __init__(
        self,
        manifest: Manifest,
        answered: IndexAnswer,
        selection: FileSelection,
        footers: FooterReader,
        entries: Sequence[IndexedFile] | pa.Table,
        rounds: int,
    ) -> None:
        self._rounds = rounds  # of requests that finding the files took
        self._manifest = manifest
        self._answered = answered
        self._selection = selection
        self._footers = footers
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def part(self, start: int, stop: int) -> _FoundFiles:
        """Return the files from ``start`` to ``stop`` (exclusive), with a :class:`FooterReader` of their own."""
        part, footers = self._entries[start:stop], self._footers.again()
        return _FoundFiles(self._manifest, self._answered, self._selection, footers, part, self._rounds)

    def file_set(self, total: int) -> FileSet:
        """Return :meth:`files` as a set, of the ``total`` files among which the index chose them."""
        files, report = self.files(), self._answered.report
        return FileSet(files, total=total, by_index=total - len(files), rounds=self._rounds, report=report)

    def files(self) -> list[DataFile]:
        """Return the files as a listing would return them, without those that the caller's own indexes rule out. Raises
        PartitionError for a value in a path that does not have the column's type."""
        ids, files, known = array("q"), list[DataFile](), self._entries
        for entries in file_chunks(known) if isinstance(known, pa.Table) else [known]:
            ids.extend([file.id for file in entries])
            files += self._data_files(entries)
        self._footers.expect(ids)
        if own := self._answered.own:
            files = [file for file in (with_own(file, own, self._manifest.root) for file in files) if file]
        return files

    def _data_files(self, entries: Sequence[IndexedFile]) -> list[DataFile]:
        manifest = self._manifest
        urls = [url_in(manifest, file.path) for file in entries]
        partitioning = described_partitioning(manifest.dataset, manifest.schema, manifest.partitions)
        # only folders below the root hold partition values; a pattern may name some in the root itself
        counts_from_root = partitioning is not None and parse_target(manifest.dataset["target"]).pattern is None
        root = manifest.root if counts_from_root else ""
        partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
        for error in partitions.errors.values():
            raise error
        return [
            DataFile(
                url=url,
                validator=file.validator,
                size=None if file.validator is None else file.validator.size,
                num_rows=file.num_rows,
                partition=partition,
                entry=self._footers.entry(file.id, file.validator, self._selection.plan(file.id)),
            )
            for url, file, partition in zip(urls, entries, partitions.values, strict=True)
        ]


async def _rows_of(read: SnapshotRead, ids: RowRanges) -> pa.Table:
    """Return the rows of the files ``ids`` in the index table "files", in the order of a listing. Raises
    CorruptIndexError if some are missing."""
    reads = read.segments(FILES, SegmentQuery(id_ranges(ids), FILE_COLUMNS))
    tables = [table for table in await together(read.operation, reads) if table is not None]
    return await read.runtime.in_thread(partial(_in_order, read, ids.num_rows, tables))


def _in_order(read: SnapshotRead, num_files: int, tables: Sequence[pa.Table]) -> pa.Table:
    manifest, by_file = read.manifest, read.ask.by_file
    rows = pa.concat_tables(tables) if tables else FILES.schema.empty_table().select(FILE_COLUMNS)
    if rows.num_rows != num_files or pc.count_distinct(rows["key"]).as_py() != num_files:
        raise CorruptIndexError("the index's list of files lacks some of its files", url=read.backend.description)
    if by_file is not None:
        paths = (path for chunk in rows["path"].chunks for path in chunk.to_pylist())
        rows = rows.filter(plain_array([url_in(manifest, path) in by_file for path in paths], pa.bool_()))
    # sort_by makes one array of each column, for which 2 GiB of text are too many
    texts = [field.with_type(pa.large_string()) if field.type == pa.string() else field for field in rows.schema]
    return rows.cast(pa.schema(texts)).sort_by("path" if manifest.root else "key")


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
            rows = await read.backend.read_segment(
                segment, SegmentQuery(columns=["key", "path"]), operation=read.operation
            )
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


def _shown(file: DataFile) -> tuple[str, Validator | None, AccessPlan | None]:
    """Return what decides how a file is read: its url, version and rows. Two files for which these are equal are
    read in the same way."""
    return file.url, file.validator, None if file.entry is None else file.entry.access
