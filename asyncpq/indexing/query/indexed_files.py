"""The files of a dataset with an index: those of a listing or a table, pruned by the index (views "listed" and
"table"), or those that the index itself lists (view "snapshot").

A listing is compared with the index's entries once for each pair of listing and snapshot. So a warm lookup visits only
the files that the index selects and those that the index does not know. A newer snapshot is looked for only if there
are unknown files.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from asyncpq.datasets.listing import parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.partitioning import described_partitioning, folders_of, read_partitions
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.commits import FILE_COLUMNS, IndexedFile, file_chunks, id_ranges
from asyncpq.indexing.index_model import SegmentQuery
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import (
    FileDirectory,
    FileEntry,
    FooterReader,
    ListingMatch,
    entries_in,
    load_directory,
    url_in,
)
from asyncpq.indexing.query.file_selection import (
    FileIndex,
    FileSelection,
    SnapshotRead,
    counts_rows,
    together,
    with_own,
    worked,
)
from asyncpq.indexing.query.index_query import IndexAnswer, IndexQuery, OpenIndex, answer, read_details
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import Validator
from asyncpq.storage.threads import results_of
from asyncpq.waiting import wait_futures

logger: logging.Logger = logging.getLogger(__name__)

#: Returns the files of a listing that may match; the operation counts the cost.
Prune = Callable[[FileSet, Operation], Awaitable[FileSet]]
_Answered = tuple[IndexAnswer, FileSelection, dict[int, FileEntry]]


class IndexedFiles:
    """A :class:`asyncpq.datasets.providers.FileProvider` of the files of another one. An index prunes the files that it
    knows; the others are read without it.

    The index changes no rows. If it is dropped, reads go on without it.

    ``base`` provides the files. ``index`` is None if there are only the caller's own indexes ``own``, whose paths are
    relative to the url ``folder``. ``partitions`` are the columns whose values were in paths when the dataset was
    opened; None if no listing changes them.
    """

    def __init__(
        self,
        runtime: Runtime,
        base: FileProvider,
        index: OpenIndex | None,
        own: Sequence[FileIndex] = (),
        folder: str = "",
        partitions: Sequence[str] | None = None,
    ) -> None:
        self.view: View = base.view
        self.index = index
        self._runtime = runtime
        self._base = base
        self._own = own
        self._folder = folder
        self._partitions = partitions
        self._match: ListingMatch | None = None

    @property
    def description(self) -> str:
        index = "indexes of your own" if self.index is None else self.index.description
        return f"{self._base.description}; {index}"

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]:
        """The index that prunes the files, and the caller's own indexes, each described by JSON values."""
        own = [{"at": "", "description": "an index of your own", "tables": []}] * len(self._own)
        return [*(() if self.index is None else (self.index.as_dict(),)), *own]

    @property
    def known(self) -> FileSet | None:
        return self._base.known

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        if ask.by_file is not None:
            return await self._base.files(ask, operation, scan=scan, allow_stale=allow_stale)
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[FileSet] = loop.create_future()
        base_files = self._base.files(ask, operation, scan=scan, allow_stale=allow_stale)
        if allow_stale and self.view is View.LISTED:  # the last listing comes at once, the next one as its renewal
            looking.set_result(await base_files)
        else:
            looking = loop.create_task(base_files)
        try:
            if looking.done() and looking.result().renewal is None:  # no other request runs beside those of the index
                prune, rounds = await self._pruner(ask, operation), operation.metrics.rounds
            else:
                index_reads = operation.part("" if self.index is None else self.index.backend.description, 0)
                try:
                    prune = await self._pruner(ask, index_reads)
                finally:
                    operation.metrics.add_part(index_reads.metrics)
                rounds = index_reads.metrics.rounds
            listed = await looking
            pruned = await prune(listed, operation)
        except BaseException:
            looking.cancel()
            await wait_futures((looking,))
            if not looking.cancelled() and looking.exception() is None and (renewal := looking.result().renewal):
                renewal.cancel()
            raise
        pruned = pruned._replace(rounds=max(pruned.rounds, rounds))
        asks = self._is_behind and allow_stale
        if listed.renewal is None and not asks:
            return pruned
        return pruned._replace(renewal=self._runtime.spawn(self._renewed(listed, pruned, prune, operation)))

    @property
    def _is_behind(self) -> bool:
        """Whether a newer snapshot may have more of the files. Reads then look for one beside their other requests."""
        match = self._match
        return self.index is not None and not self.index.is_fresh and match is not None and bool(match.unknown)

    async def _renewed(self, listed: FileSet, pruned: FileSet, prune: Prune, operation: Operation) -> FileSet:
        """Wait for the newer listing, and return its files as ``prune`` restricts them; ``pruned`` if it is the same
        as ``listed``. If there is a newer snapshot, the next read uses it."""
        if self._is_behind and self.index is not None:
            try:
                await self.index.advance(operation)
            except StaleSnapshotError as error:
                self._give_up(error, operation)
        if listed.renewal is None:
            return pruned
        latest = await listed.renewal
        if latest.files is listed.files:
            return latest._replace(
                files=pruned.files,
                total=pruned.total,
                by_index=pruned.by_index,
                num_rows=pruned.num_rows,
                report=pruned.report,
            )
        again = await prune(latest, operation)
        return again._replace(rounds=max(latest.rounds, pruned.rounds))

    def _give_up(self, error: AsyncpqError, operation: Operation) -> None:
        """Stop using an index that was dropped, or whose list of files is damaged; ``error`` says which."""
        operation.metrics.fall_back(f"the index is not used: {error.message}")
        if self.index is not None:
            logger.warning("reads of %s go on without its index: %s", operation.url, error)
            self.index = self._match = None

    async def _pruner(self, ask: ScanRequest, operation: Operation) -> Prune:
        """Return a function that restricts a listing to the files that may match, according to the index."""
        restarts = self._runtime.options.limits.max_restarts
        while (index := self.index) is not None:
            manifest = index.head.manifest
            try:
                return await self._indexed_pruner(
                    index, SnapshotRead(self._runtime, index.backend, manifest, ask, operation)
                )
            except CorruptIndexError as error:
                self._give_up(error, operation)
            except StaleSnapshotError as error:
                if restarts == 0 or not await _has_newer(index, manifest, operation):
                    self._give_up(error, operation)
                restarts -= 1
        answered = await answer(None, None, self._own, ask)

        async def prune(listed: FileSet, operation: Operation) -> FileSet:
            work = partial(self._with_own, listed, list(listed.files), answered, None)
            return await worked(self._runtime, len(listed.files), work)

        return prune

    async def _indexed_pruner(self, index: OpenIndex, read: SnapshotRead) -> Prune:
        footers, manifest = FooterReader(read), read.manifest
        directory: FileDirectory | None = None
        if self._match is not None and self._match.manifest is manifest:
            answered, selection, entries = await self._ask(index, read, footers)
        else:
            directory, (answered, selection, entries) = await self._ask_with_directory(index, read, footers)

        async def prune(listed: FileSet, operation: Operation) -> FileSet:
            match, rounds = self._match, listed.rounds
            is_current = match is not None and match.files is listed.files and match.manifest is manifest
            if match is None or not is_current or match.unversioned:
                part = operation.part(read.backend.description, rounds)
                late = replace(read, operation=part)
                try:
                    if match is None or not is_current:
                        match = self._match = await self._matched(late, listed, directory)
                    if missing := match.needed(selection) - RowRanges.from_rows(sorted(entries)):
                        entries.update(await entries_of(late, missing))
                except CorruptIndexError as error:
                    self._give_up(error, operation)
                    return self._with_own(listed, list(listed.files), answered, None)
                except StaleSnapshotError as error:  # the next read looks for a newer snapshot
                    operation.metrics.fall_back(f"the index is not used: {error.message}")
                    return self._with_own(listed, list(listed.files), answered, None)
                finally:
                    operation.metrics.add_part(part.metrics)
                rounds = max(rounds, part.metrics.rounds)
            # files of an earlier listing may still be read while those of the next one are pruned
            if counts_rows(self._runtime, read.ask):
                return self._counted(listed, match, answered)._replace(rounds=rounds)
            work = partial(self._pruned, listed, match, answered, selection, entries, footers.again())
            pruned = await worked(self._runtime, selection.files.num_rows + len(match.unknown), work)
            return pruned._replace(rounds=rounds)

        return prune

    async def _matched(self, read: SnapshotRead, listed: FileSet, directory: FileDirectory | None) -> ListingMatch:
        if not self._fits(listed.files, read.manifest):
            directory = FileDirectory.empty()
        elif directory is None:
            directory = await load_directory(read)
        return await worked(read.runtime, len(listed.files), partial(directory.match, listed.files, read.manifest))

    def _fits(self, files: Sequence[DataFile], manifest: Manifest) -> bool:
        """Return whether no indexed column became, or ceased to be, a partition column since the dataset was opened.

        Values in paths override values in files. The index may have the values in files of a column that has since
        become a partition column, so it could exclude rows that match.
        """
        if self._partitions is None or not files:
            return True
        changed = files[0].partition.keys() ^ set(self._partitions)
        return not any(name in changed for index_table in manifest.tables for name in index_table.columns)

    async def _ask_with_directory(
        self, index: OpenIndex, read: SnapshotRead, footers: FooterReader
    ) -> tuple[FileDirectory, _Answered]:
        """Load the directory of all files, and run :meth:`_ask` at the same time; return both results."""
        operation, loop = read.operation, asyncio.get_running_loop()
        beside = operation.part(operation.url, operation.metrics.rounds)
        loading = loop.create_task(load_directory(replace(read, operation=beside)))
        asking = loop.create_task(self._ask(index, read, footers))
        try:
            await results_of([loading, asking])
        finally:
            operation.metrics.add_part(beside.metrics)
        return loading.result(), asking.result()

    async def _ask(self, index: OpenIndex, read: SnapshotRead, footers: FooterReader) -> _Answered:
        """Search the index for the request's predicate. Return what it found, its selection of files, and the
        entries of these files by id if they are few."""
        answered = await answer(read, index, self._own, read.ask)
        selection = answered.selection or FileSelection(read.manifest.live)
        entries: dict[int, FileEntry] = {}
        if 0 < selection.files.num_rows <= self._runtime.options.limits.files_ahead:
            query = answered.query
            entries = await entries_of(read, selection.files, footers, query)
            if query is not None and query.bloom_tables:
                selection = query.selection()
        return answered, selection, entries

    def _pruned(
        self,
        listed: FileSet,
        match: ListingMatch,
        answered: IndexAnswer,
        selection: FileSelection,
        entries: Mapping[int, FileEntry],
        footers: FooterReader,
    ) -> FileSet:
        """Return ``listed`` without the files that cannot match. Files whose version is not in the index all stay."""
        nothing_known = not selection.plans and not footers.is_useful and not match.unsure
        if nothing_known and selection.files == match.manifest.live:
            files: Sequence[DataFile] = listed.files  # the same object, so that caches keyed by it still apply
        else:
            candidates = match.candidates(selection, entries)
            footers.expect([file for _, file, _, _ in candidates if file is not None])
            files = [
                listed.files[position]
                if file is None
                else replace(listed.files[position], entry=footers.entry(file, validator, access))
                for position, file, validator, access in candidates
            ]
        return self._with_own(listed, files, answered, match)

    def _counted(self, listed: FileSet, match: ListingMatch, answered: IndexAnswer) -> FileSet:
        """Return ``listed`` without the files whose rows the index has counted, and the number of these rows."""
        positions = sorted([*match.uncounted, *match.unsure.values(), *match.unknown])
        files = [listed.files[position] for position in positions]
        return self._with_own(listed, files, answered, match)._replace(num_rows=match.num_rows)

    def _with_own(
        self, listed: FileSet, files: Sequence[DataFile], answered: IndexAnswer, match: ListingMatch | None
    ) -> FileSet:
        """Return ``listed`` with those of ``files`` that the caller's own indexes allow."""
        if answered.own:
            files = [file for file in (with_own(file, answered.own, self._folder) for file in files) if file]
        total = len(listed.files) if listed.total is None else listed.total
        report = partial(_report, answered, match, self.view, listed)
        by_index = len(listed.files) - len(files)
        return listed._replace(files=files, total=total, by_index=by_index, renewal=None, report=report)


def _report(answered: IndexAnswer, match: ListingMatch | None, view: View, listed: FileSet) -> tuple[str, ...]:
    """Return lines for ``explain()``: what the index ruled out, how many of the listed files it knows, and what the
    view "snapshot" would save."""
    lines = [*answered.report()]
    if match is not None:
        lines += match.report()
    if match is not None and view is View.LISTED:
        saved = "looking at each file" if listed.cost is None else f"the listing ({listed.cost})"
        as_of = match.manifest.as_of or match.manifest.created
        lines.append(
            f"view='snapshot' would save {saved}, and see the files as they were at {as_of:%Y-%m-%d %H:%M:%S %Z}"
        )
    return tuple(lines)


async def _has_newer(index: OpenIndex, manifest: Manifest, operation: Operation) -> bool:
    """Load the newest snapshot; return whether it is newer than ``manifest``, whose segments are gone."""
    try:
        await index.renew(manifest, operation)
    except StaleSnapshotError:
        return False
    return True


async def entries_of(
    read: SnapshotRead, ids: RowRanges, footers: FooterReader | None = None, query: IndexQuery | None = None
) -> dict[int, FileEntry]:
    """Return the entries of the files ``ids``, by id. For a few files, the same round of requests also reads the
    footers for ``footers`` and the Bloom filters for ``query``. Raises CorruptIndexError if an entry is missing."""
    memory, index = read.runtime.memory, read.manifest.index
    few = ids.num_rows <= read.runtime.options.limits.files_ahead
    wanted = [file for start, stop in zip(ids.starts, ids.stops, strict=True) for file in range(start, stop)]
    entries: dict[int, FileEntry] = {}
    if few:
        keys = [("index entry", index, file) for file in wanted]
        held = memory.get_many([*keys, *(() if footers is None else map(footers.key, wanted))])
        entries = {file: entry for file, entry in zip(wanted, held, strict=False) if entry is not None}
        if footers is not None:
            footers.use(dict(zip(wanted, held[len(wanted) :], strict=True)))
    missing = [file for file in wanted if file not in entries]
    file_reads = read.segments(FILES, SegmentQuery(id_ranges(RowRanges.from_rows(missing)))) if missing else []
    if few and footers is not None:
        tables = await read_details(read, wanted, footers, query, file_reads)
    else:
        tables = await together(read.operation, file_reads)
    loaded: dict[int, FileEntry] = {}
    for table in tables:
        if table is not None:
            loaded.update(await worked(read.runtime, table.num_rows, partial(entries_in, table)))
    entries.update(loaded)
    if any(file not in entries for file in missing):
        raise CorruptIndexError("the index's list of files lacks some of its files", url=read.backend.description)
    if few:
        for file, entry in loaded.items():
            memory.put(("index entry", index, file), entry, 600 + len(entry.file.path))
    return entries


# -- view snapshot ---------------------------------------------------------------------------------
# A newer snapshot is looked for beside the read's other requests; before them if the files come in sets.


_ID: Final = attrgetter("id")


class SnapshotFiles:
    """A :class:`asyncpq.datasets.providers.FileProvider` of the files that an index lists. A lookup reads only the
    entries of files that may match."""

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
