"""The files of a listing or a table, pruned by what an index knows of them: views "listed" and "table"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.entries import Entry, FileKnowledge, entries_in, url_of
from asyncpq.indexing.file_index import FileIndex
from asyncpq.indexing.listing_match import ListingMatch, match_listing
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.indexing.open_index import Answer, OpenIndex, answer, read_details, with_own
from asyncpq.indexing.part_reads import segment_reads, together, worked
from asyncpq.indexing.slices import Slices
from asyncpq.resources import Resources
from asyncpq.storage.together import results_of

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
        resources: Resources,
        base: FileSource,
        index: OpenIndex | None,
        own: Sequence[FileIndex] = (),
        folder: str = "",
        partitions: Sequence[str] | None = None,
    ) -> None:
        self.view: View = base.view
        self.index = index
        self._resources = resources
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

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        if ask.access is not None:
            return await self._base.files(ask, operation, scan=scan, hurry=hurry)
        looking = asyncio.get_running_loop().create_task(self._base.files(ask, operation, scan=scan, hurry=hurry))
        try:
            index_reads = operation.part("" if self.index is None else self.index.place.description, 0)
            try:
                prune = await self._pruner(ask, index_reads)
            finally:
                operation.metrics.add_part(index_reads.metrics)
            found = await looking
            pruned = await worked(self._resources, len(found.files), partial(prune, found))
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
        return pruned._replace(renewal=self._resources.spawn(self._renewed(found, pruned, prune, operation)))

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
        again = await worked(self._resources, len(latest.files), partial(prune, latest))
        return again._replace(rounds=max(latest.rounds, pruned.rounds))

    def _give_up(self, error: AsyncpqError, operation: Operation) -> None:
        """Do without an index that is not there any more, or whose list of files is damaged."""
        operation.metrics.fall_back(f"the index is not used: {error.message}")
        if self.index is not None:
            logger.warning("reads of %s go on without its index: %s", operation.url, error)
            self.index = self._match = None

    async def _pruner(self, ask: Ask, operation: Operation) -> Prune:
        """What rules files out by the index as it is now."""
        restarts = self._resources.options.limits.max_restarts
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
        said = await answer(self._resources, None, None, self._own, ask, operation)
        return lambda found: self._with_own(found, list(found.files), said)

    async def _pruner_of(self, index: OpenIndex, manifest: Manifest, ask: Ask, operation: Operation) -> Prune:
        knowledge = FileKnowledge(self._resources, index.place, manifest, ask)
        catalog, (said, slices) = await self._asked(index, manifest, ask, operation, knowledge)

        def prune(found: FileSet) -> FileSet:
            match = self._match
            if match is None or match.files is not found.files or match.manifest is not manifest:
                fits = self._fits(found.files, manifest)
                match = self._match = match_listing(found.files, manifest, catalog if fits else {})
            # files of an earlier listing may be on their way while those of the next are looked at
            return self._pruned(found, match, said, slices, knowledge.again())

        return prune

    def _fits(self, files: Sequence[DataFile], manifest: Manifest) -> bool:
        """Whether the paths still hold no indexed column but those that they held at opening: of another one, the index
        knows what is in the files."""
        if self._partitions is None or not files:
            return True
        changed = files[0].partition.keys() ^ set(self._partitions)
        return not any(name in changed for part in manifest.parts for name in part.columns)

    async def _asked(
        self, index: OpenIndex, manifest: Manifest, ask: Ask, operation: Operation, knowledge: FileKnowledge
    ) -> tuple[Mapping[str, Entry], tuple[Answer, Slices]]:
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
        self, index: OpenIndex, manifest: Manifest, ask: Ask, operation: Operation, knowledge: FileKnowledge
    ) -> tuple[Answer, Slices]:
        said = await answer(self._resources, index, manifest, self._own, ask, operation)
        slices = said.slices or Slices(manifest.live)
        if slices.files and slices.files.num_rows <= self._resources.options.limits.files_ahead:
            await read_details(self._resources, index, manifest, slices.files, knowledge, said.inquiry, operation)
            slices = slices if said.inquiry is None else said.inquiry.slices()
        return said, slices

    async def _catalog(self, index: OpenIndex, manifest: Manifest, operation: Operation) -> Mapping[str, Entry]:
        tables = await together(operation, segment_reads(manifest, index.place, FILES, None))
        by_url = await worked(self._resources, manifest.num_files, partial(_by_url, manifest, tables))
        index.catalog = (manifest, by_url)
        return by_url

    def _pruned(
        self, found: FileSet, match: ListingMatch, said: Answer, slices: Slices, knowledge: FileKnowledge
    ) -> FileSet:
        """Files that cannot match are left out; of those that are not the versions which the index knows, none is."""
        if slices.files == match.manifest.live and not slices.plans and not knowledge.is_useful and not match.unsure:
            files: Sequence[DataFile] = found.files  # nothing is known: what was made for these very files still serves
        else:
            left = sorted(match.left(slices), key=lambda one: one[0])
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
        self, found: FileSet, files: Sequence[DataFile], said: Answer, report: tuple[str, ...] = ()
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
