"""The files of a listing or a table, pruned by an index (views "listed" and "table").

A listing is compared with the index's entries once for each pair of listing and snapshot. So a warm lookup visits only
the files that the index selects and those that the index does not know. A newer snapshot is looked for only if there
are unknown files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.index_model import SegmentQuery
from asyncpq.indexing.manifest.commits import id_ranges
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import (
    FileDirectory,
    FileEntry,
    FooterReader,
    ListingMatch,
    entries_in,
    load_directory,
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
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.threads import results_of
from asyncpq.waiting import wait_futures

logger: logging.Logger = logging.getLogger(__name__)

#: Returns the files of a listing that may match; the operation counts the cost.
Prune = Callable[[FileSet, Operation], Awaitable[FileSet]]
_Answered = tuple[IndexAnswer, FileSelection, dict[int, FileEntry]]


class IndexedFiles:
    """The files of another provider. An index prunes the files that it knows; the others are read without it.

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
