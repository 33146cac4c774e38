"""The files of a listing or a table, pruned by what an index knows of them: views "listed" and "table".

How the files of a listing or a table relate to those that a snapshot of an index knows.

The files of a dataset as an index lists them: view "snapshot".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from asyncpq.datasets.listing import folders_of, parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import DatasetRequest
from asyncpq.datasets.partitioning import read_partitions
from asyncpq.datasets.providers import FileProvider, FileSet
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.build.lakes import partitioning_of
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import Entry, FileKnowledge, entries_in, url_of
from asyncpq.indexing.query.file_selection import FileIndex, FileSelection
from asyncpq.indexing.query.index_query import IndexQuery
from asyncpq.indexing.query.open_index import IndexAnswer, OpenIndex, answer, read_details, with_own
from asyncpq.indexing.query.segment_reads import segment_reads, together, worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator
from asyncpq.storage.concurrency import results_of


@dataclass(frozen=True, slots=True)
class ListingMatch:
    """Which files of one listing one snapshot of an index knows. Made once for both, and used by all reads.

    Attributes:
        files: of the listing.
        manifest: of the snapshot.
        by_id: positions in ``files`` and entries of the files that have the version which the index knows.
        ids: keys of ``by_id``.
        unsure: positions and entries of the files whose version the listing does not tell: the version is compared
            when the file is opened.
        unknown: positions of the files that are new to the index, or have another version: they are read without it.
    """

    files: Sequence[DataFile]
    manifest: Manifest
    by_id: Mapping[int, tuple[int, Entry]]
    ids: RowRanges
    unsure: Sequence[tuple[int, Entry]]
    unknown: Sequence[int]

    def left(self, selection: FileSelection) -> Iterator[tuple[int, Entry | None, AccessPlan]]:
        """Positions of the files that may match, their entries, and which of their rows may: those of ``by_id``, of
        ``unsure`` and of ``unknown``, one after another."""
        for file in (selection.files & self.ids).rows():
            position, entry = self.by_id[file]
            access = selection.plan(file)
            if entry.may_match(access):
                yield position, entry, access
        for position, entry in self.unsure:
            yield position, entry, selection.plan(entry.file.id)
        for position in self.unknown:
            yield position, None, AccessPlan.all()


def match_listing(files: Sequence[DataFile], manifest: Manifest, catalog: Mapping[str, Entry]) -> ListingMatch:
    """Compare versions, file by file.

    Args:
        catalog: entries of the index by url.
    """
    by_id: dict[int, tuple[int, Entry]] = {}
    unsure: list[tuple[int, Entry]] = []
    unknown: list[int] = []
    for position, file in enumerate(files):
        entry = catalog.get(file.url)
        if entry is None or entry.file.id in by_id:  # a list may name a file twice
            unknown.append(position)
        elif entry.file.is_version_of(file):
            by_id[entry.file.id] = (position, entry)
        elif file.validator is None and not file.immutable and entry.file.validator is not None:
            unsure.append((position, entry))
        else:
            unknown.append(position)
    return ListingMatch(files, manifest, by_id, RowRanges.from_rows(sorted(by_id)), unsure, unknown)


logger = logging.getLogger(__name__)

Prune = Callable[[FileSet], FileSet]


class IndexedFiles:
    """The files of another source; those that an index knows are pruned by it, all others read without.

    The index changes no rows. One that was dropped is done without.

    Args:
        base: gives the files.
        index: None where only indexes of the caller's own are asked.
        folder: url that paths are relative to, for those.
        partitions: columns whose values the paths held when it was opened; None where no listing changes them.
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
    def known(self) -> FileSet | None:
        return self._base.known

    async def files(
        self, ask: DatasetRequest, operation: Operation, *, scan: bool = True, hurry: bool = False
    ) -> FileSet:
        if ask.access is not None:
            return await self._base.files(ask, operation, scan=scan, hurry=hurry)
        looking = asyncio.get_running_loop().create_task(self._base.files(ask, operation, scan=scan, hurry=hurry))
        try:
            index_reads = operation.part("" if self.index is None else self.index.backend.description, 0)
            try:
                prune = await self._pruner(ask, index_reads)
            finally:
                operation.metrics.add_part(index_reads.metrics)
            found = await looking
            pruned = await worked(self._runtime, len(found.files), partial(prune, found))
        except BaseException:
            looking.cancel()
            await asyncio.wait((looking,))
            if not looking.cancelled() and looking.exception() is None and (renewal := looking.result().renewal):
                renewal.cancel()
            raise
        pruned = pruned._replace(rounds=max(found.rounds, index_reads.metrics.rounds))
        asks = self._is_behind and hurry
        if found.renewal is None and not asks:
            return pruned
        return pruned._replace(renewal=self._runtime.spawn(self._renewed(found, pruned, prune, operation)))

    @property
    def _is_behind(self) -> bool:
        """Whether a newer snapshot of the index may know more of the files. It is looked for beside a read."""
        match = self._match
        return self.index is not None and not self.index.is_fresh and match is not None and bool(match.unknown)

    async def _renewed(self, found: FileSet, pruned: FileSet, prune: Prune, operation: Operation) -> FileSet:
        """What there is now; a newer snapshot of the index is for the next read."""
        if self._is_behind and self.index is not None:
            try:
                await self.index.advance(operation)
            except StaleSnapshotError as error:
                self._give_up(error, operation)
        if found.renewal is None:
            return pruned
        latest = await found.renewal
        if latest.files is found.files:
            return latest._replace(files=pruned.files, total=pruned.total, report=pruned.report)
        again = await worked(self._runtime, len(latest.files), partial(prune, latest))
        return again._replace(rounds=max(latest.rounds, pruned.rounds))

    def _give_up(self, error: AsyncpqError, operation: Operation) -> None:
        """Do without an index that is not there any more, or whose list of files is damaged."""
        operation.metrics.fall_back(f"the index is not used: {error.message}")
        if self.index is not None:
            logger.warning("reads of %s go on without its index: %s", operation.url, error)
            self.index = self._match = None

    async def _pruner(self, ask: DatasetRequest, operation: Operation) -> Prune:
        """What rules files out by the index as it is now."""
        restarts = self._runtime.options.limits.max_restarts
        while (index := self.index) is not None:
            manifest = index.manifest
            try:
                return await self._pruner_of(index, manifest, ask, operation)
            except CorruptIndexError as error:
                self._give_up(error, operation)
            except StaleSnapshotError as error:
                if restarts == 0 or not await _has_newer(index, manifest, operation):
                    self._give_up(error, operation)
                restarts -= 1
        said = await answer(self._runtime, None, None, self._own, ask, operation)
        return lambda found: self._with_own(found, list(found.files), said)

    async def _pruner_of(
        self, index: OpenIndex, manifest: Manifest, ask: DatasetRequest, operation: Operation
    ) -> Prune:
        knowledge = FileKnowledge(self._runtime, index.backend, manifest, ask)
        catalog, (said, selection) = await self._asked(index, manifest, ask, operation, knowledge)

        def prune(found: FileSet) -> FileSet:
            match = self._match
            if match is None or match.files is not found.files or match.manifest is not manifest:
                fits = self._fits(found.files, manifest)
                match = self._match = match_listing(found.files, manifest, catalog if fits else {})
            # files of an earlier listing may be on their way while those of the next are looked at
            return self._pruned(found, match, said, selection, knowledge.again())

        return prune

    def _fits(self, files: Sequence[DataFile], manifest: Manifest) -> bool:
        """Whether the paths still hold no indexed column but those that they held at opening: of another one, the index
        knows what is in the files."""
        if self._partitions is None or not files:
            return True
        changed = files[0].partition.keys() ^ set(self._partitions)
        return not any(name in changed for index_table in manifest.tables for name in index_table.columns)

    async def _asked(
        self, index: OpenIndex, manifest: Manifest, ask: DatasetRequest, operation: Operation, knowledge: FileKnowledge
    ) -> tuple[Mapping[str, Entry], tuple[IndexAnswer, FileSelection]]:
        """The entries of all files by url, and what the index says of the predicate."""
        asking = self._answered(index, manifest, ask, operation, knowledge)
        if index.catalog is not None and index.catalog[0] is manifest:
            return index.catalog[1], await asking
        beside, loop = operation.part(operation.url, operation.metrics.rounds), asyncio.get_running_loop()
        reading, answering = loop.create_task(self._catalog(index, manifest, beside)), loop.create_task(asking)
        try:
            await results_of([reading, answering])
        finally:
            operation.metrics.add_part(beside.metrics)
        return reading.result(), answering.result()

    async def _answered(
        self, index: OpenIndex, manifest: Manifest, ask: DatasetRequest, operation: Operation, knowledge: FileKnowledge
    ) -> tuple[IndexAnswer, FileSelection]:
        said = await answer(self._runtime, index, manifest, self._own, ask, operation)
        selection = said.selection or FileSelection(manifest.live)
        if selection.files and selection.files.num_rows <= self._runtime.options.limits.files_ahead:
            await read_details(self._runtime, index, manifest, selection.files, knowledge, said.query, operation)
            selection = selection if said.query is None else said.query.selection()
        return said, selection

    async def _catalog(self, index: OpenIndex, manifest: Manifest, operation: Operation) -> Mapping[str, Entry]:
        tables = await together(operation, segment_reads(manifest, index.backend, FILES, None))
        by_url = await worked(self._runtime, manifest.num_files, partial(_by_url, manifest, tables))
        index.catalog = (manifest, by_url)
        return by_url

    def _pruned(
        self, found: FileSet, match: ListingMatch, said: IndexAnswer, selection: FileSelection, knowledge: FileKnowledge
    ) -> FileSet:
        """Files that cannot match are left out; of those that are not the versions which the index knows, none is."""
        if (
            selection.files == match.manifest.live
            and not selection.plans
            and not knowledge.is_useful
            and not match.unsure
        ):
            files: Sequence[DataFile] = found.files  # nothing is known: what was made for these very files still serves
        else:
            left = sorted(match.left(selection), key=lambda one: one[0])
            knowledge.expect([entry.file.id for _, entry, _ in left if entry is not None])
            files = [
                found.files[position]
                if entry is None
                else replace(found.files[position], entry=knowledge.entry(entry.file.id, entry.file.validator, access))
                for position, entry, access in left
            ]
        return self._with_own(found, files, said, (*_told(match), *self._saved(found, match.manifest)))

    def _saved(self, found: FileSet, manifest: Manifest) -> tuple[str, ...]:
        """What reading the index's own list of files would save."""
        if self.view is not View.LISTED:
            return ()
        saved = "looking at each file" if found.cost is None else f"the listing ({found.cost})"
        as_of = manifest.as_of or manifest.created
        return (f"view='snapshot' would save {saved}, and see the files as they were at {as_of:%Y-%m-%d %H:%M:%S %Z}",)

    def _with_own(
        self, found: FileSet, files: Sequence[DataFile], said: IndexAnswer, report: tuple[str, ...] = ()
    ) -> FileSet:
        """Those that the caller's own indexes leave."""
        if said.own:
            files = [file for file in (with_own(file, said.own, self._folder) for file in files) if file]
        total = len(found.files) if found.total is None else found.total
        return found._replace(files=files, total=total, renewal=None, report=(*said.report, *report))


async def _has_newer(index: OpenIndex, manifest: Manifest, operation: Operation) -> bool:
    """Whether another snapshot came in the place of one whose segments are gone."""
    try:
        await index.renew(manifest, operation)
    except StaleSnapshotError:
        return False
    return True


def _told(match: ListingMatch) -> tuple[str, ...]:
    """How many files the index knows, for ``explain()``."""
    lines: list[str] = []
    if match.unknown:
        known = len(match.files) - len(match.unknown)
        lines.append(f"knows {known} of {len(match.files)} files as they are; others are read without it")
    if match.unsure:
        lines.append(
            f"{len(match.unsure)} files have versions that the listing does not tell: each is opened, and what the "
            "index says of it used if it has the version that the index knows"
        )
    return tuple(lines)


def _by_url(manifest: Manifest, tables: Sequence[pa.Table | None]) -> dict[str, Entry]:
    live = manifest.live
    entries = [entry for table in tables if table is not None for entry in entries_in(table).values()]
    return {url_of(manifest, entry): entry for entry in entries if entry.file.id in live}


class SnapshotFiles:
    """The files that an index lists: of a lookup only those are looked at that may match.

    Args:
        own: further indexes, of the caller's own.
    """

    view: View = View.SNAPSHOT

    def __init__(self, runtime: Runtime, index: OpenIndex, own: Sequence[FileIndex] = ()) -> None:
        self._runtime = runtime
        self.index = index
        self._own = own

    @property
    def description(self) -> str:
        return self.index.description

    @property
    def known(self) -> FileSet | None:
        return FileSet((), total=self.index.manifest.num_files)

    async def files(
        self, ask: DatasetRequest, operation: Operation, *, scan: bool = True, hurry: bool = False
    ) -> FileSet:
        if self.index.is_fresh:
            return (await self._found(ask, operation))[1]
        told: asyncio.Future[tuple[Manifest, FileSet]] = asyncio.get_running_loop().create_future()
        renewal = self._runtime.spawn(self._renewed(told, ask, operation))
        try:
            manifest, found = await self._found(ask, operation)
            told.set_result((manifest, found))
            return found._replace(renewal=renewal) if hurry else await renewal
        except BaseException:
            renewal.cancel()
            await asyncio.wait((renewal,))
            raise

    async def _renewed(
        self, told: asyncio.Future[tuple[Manifest, FileSet]], ask: DatasetRequest, operation: Operation
    ) -> FileSet:
        """What :meth:`files` found, or what is there by a newer snapshot."""
        await self.index.advance(operation)
        manifest, found = await told
        if self.index.manifest is manifest:
            return found
        _, again = await self._found(ask, operation, rounds=1)
        return found if _same(again.files, found.files) else again

    async def _found(self, ask: DatasetRequest, operation: Operation, rounds: int = 0) -> tuple[Manifest, FileSet]:
        """By the newest snapshot that is known, and which that is."""
        index_reads = operation.part(self.index.backend.description, rounds)
        try:
            for _ in range(self._runtime.options.limits.max_restarts):
                manifest = self.index.manifest
                try:
                    return manifest, await self._find(manifest, ask, index_reads)
                except StaleSnapshotError:
                    await self.index.renew(manifest, index_reads)
                    operation.restarts()
            manifest = self.index.manifest
            return manifest, await self._find(manifest, ask, index_reads)
        finally:
            operation.metrics.add_part(index_reads.metrics)

    async def _find(self, manifest: Manifest, ask: DatasetRequest, operation: Operation) -> FileSet:
        backend = self.index.backend
        said = await answer(self._runtime, self.index, manifest, self._own, ask, operation)
        selection = said.selection or FileSelection(manifest.live)
        knowledge = FileKnowledge(self._runtime, backend, manifest, ask)
        entries = await self._entries(manifest, selection.files, knowledge, said.query, operation)
        selection = selection if said.query is None else said.query.selection()
        left = {file: selection.plan(file) for file in selection.files.rows()}
        if len(left) <= self._runtime.options.limits.files_ahead:
            left = {file: plan for file, plan in left.items() if entries[file].may_match(plan)}
        files = await worked(self._runtime, len(left), partial(_data_files, manifest, entries, left, knowledge, ask))
        if said.own:
            files = [file for file in (with_own(file, said.own, manifest.root) for file in files) if file]
        return FileSet(files, total=manifest.num_files, rounds=operation.metrics.rounds, report=said.report)

    async def _entries(
        self,
        manifest: Manifest,
        ids: RowRanges,
        knowledge: FileKnowledge,
        query: IndexQuery | None,
        operation: Operation,
    ) -> dict[int, Entry]:
        """Of the files; where they are few, their footers and bloom filters come along in the same round."""
        backend, memory = self.index.backend, self._runtime.memory
        few = ids.num_rows <= self._runtime.options.limits.files_ahead
        entries: dict[int, Entry] = {}
        if few:
            held = {file: memory.get(("index entry", manifest.index, file)) for file in ids.rows()}
            entries = {file: entry for file, entry in held.items() if entry is not None}
        missing = ids if not entries else RowRanges.from_rows([file for file in ids.rows() if file not in entries])
        files = knowledge.file_reads(missing) if missing else []
        if few:
            tables = await read_details(self._runtime, self.index, manifest, ids, knowledge, query, operation, files)
        else:
            tables = await together(operation, files) if files else []
        for table in tables:
            if table is not None:
                entries.update(await worked(self._runtime, table.num_rows, partial(entries_in, table)))
        if not all(file in entries for file in ids.rows()):
            raise CorruptIndexError("the index does not list all of its files", url=backend.description)
        if few:
            for file, entry in entries.items():
                memory.put(("index entry", manifest.index, file), entry, 600 + len(entry.file.path))
        return entries


def _data_files(
    manifest: Manifest,
    entries: Mapping[int, Entry],
    left: Mapping[int, AccessPlan],
    knowledge: FileKnowledge,
    ask: DatasetRequest,
) -> list[DataFile]:
    """Those that are ``left``, by name, as listings have them."""
    named = [(url_of(manifest, entries[file]), file) for file in left]
    if ask.access is not None:
        named = [item for item in named if item[0] in ask.access]
    named.sort(key=lambda item: item[0].encode("utf-8", "surrogatepass") if manifest.root else item[1])
    urls = [url for url, _ in named]
    partitioning = partitioning_of(manifest)
    root = manifest.root if partitioning is not None and _counts_from_root(manifest) else ""
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    for error in partitions.errors.values():
        raise error
    knowledge.expect([file for _, file in named])
    return [
        DataFile(
            url=url,
            validator=entries[file].file.validator,
            size=None if (validator := entries[file].file.validator) is None else validator.size,
            num_rows=entries[file].file.num_rows,
            partition=partition,
            entry=knowledge.entry(file, validator, left[file]),
        )
        for (url, file), partition in zip(named, partitions.values, strict=True)
    ]


def _counts_from_root(manifest: Manifest) -> bool:
    """Whether only folders below the root hold values: not those of a pattern, which may name some itself."""
    return parse_target(manifest.dataset["target"]).pattern is None


def _same(files: Sequence[DataFile], others: Sequence[DataFile]) -> bool:
    """Whether they are the same versions, of which the same rows may match."""
    return [_shown(file) for file in files] == [_shown(file) for file in others]


def _shown(file: DataFile) -> tuple[str, Validator | None, AccessPlan | None]:
    return file.url, file.validator, None if file.entry is None else file.entry.access
