"""The files of another source, pruned by what an index knows of them: views "listed" and "table"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from asyncpq.datasets.file_sets import FileSet, FileSource
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.errors import StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.entries import Entry, FileKnowledge, entries_in, url_of
from asyncpq.indexing.file_index import FileIndex
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.indexing.open_index import Answer, OpenIndex, answer, with_own
from asyncpq.indexing.part_reads import Steps, segment_reads
from asyncpq.resources import Resources
from asyncpq.storage.together import results_of


class IndexedFiles:
    """The files of another source; those that an index knows are pruned by it, all others read without.

    Args:
        base: gives the files.
        index: None where only indexes of the caller's own are asked.
        folder: url that paths are relative to, for those.
    """

    def __init__(
        self,
        resources: Resources,
        base: FileSource,
        index: OpenIndex | None,
        own: Sequence[FileIndex] = (),
        folder: str = "",
    ) -> None:
        self.view: View = base.view
        self._resources = resources
        self._base = base
        self._index = index
        self._own = own
        self._folder = folder

    @property
    def description(self) -> str:
        index = "indexes of your own" if self._index is None else self._index.description
        return f"{self._base.description}; {index}"

    @property
    def known(self) -> FileSet | None:
        return self._base.known

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        if ask.access is not None:
            return await self._base.files(ask, operation, scan=scan, hurry=hurry)
        looking = asyncio.get_running_loop().create_task(self._base.files(ask, operation, scan=scan, hurry=hurry))
        try:
            steps = Steps(self._resources, operation, "" if self._index is None else self._index.place.description)
            prune = await self._pruner(ask, steps)
            found = await looking
            pruned = await steps.work(len(found.files), partial(prune, found))
        except BaseException:
            looking.cancel()
            await asyncio.wait((looking,))
            if not looking.cancelled() and looking.exception() is None and (renewal := looking.result().renewal):
                renewal.cancel()
            raise
        pruned = pruned._replace(rounds=max(found.rounds, steps.rounds))
        if found.renewal is None and (self._index is None or self._index.is_fresh or not hurry):
            return pruned
        return pruned._replace(renewal=self._resources.spawn(self._renewed(found, pruned, prune, steps)))

    async def _renewed(
        self, found: FileSet, pruned: FileSet, prune: Callable[[FileSet], FileSet], steps: Steps
    ) -> FileSet:
        """What there is now; a newer snapshot of the index is for the next read."""
        if self._index is not None and not self._index.is_fresh:
            await self._index.advance(steps.operation)
        if found.renewal is None:
            return pruned
        latest = await found.renewal
        if latest.files is found.files:
            return latest._replace(files=pruned.files, total=pruned.total, report=pruned.report)
        again = await steps.work(len(latest.files), partial(prune, latest))
        return again._replace(rounds=max(latest.rounds, pruned.rounds))

    async def _pruner(self, ask: Ask, steps: Steps) -> Callable[[FileSet], FileSet]:
        """What rules files out by the index as it is now."""
        index = self._index
        if index is None:
            said = await answer(self._resources, None, None, self._own, ask, steps)
            return lambda found: self._pruned(found, said, {}, None)
        for _ in range(self._resources.options.limits.max_restarts):
            manifest = index.manifest
            try:
                return await self._pruner_of(index, manifest, ask, steps)
            except StaleSnapshotError:
                await index.renew(manifest, steps)
        return await self._pruner_of(index, index.manifest, ask, steps)

    async def _pruner_of(
        self, index: OpenIndex, manifest: Manifest, ask: Ask, steps: Steps
    ) -> Callable[[FileSet], FileSet]:
        beside, loop = steps.beside(), asyncio.get_running_loop()
        reading = loop.create_task(self._catalog(index, manifest, beside))
        asking = loop.create_task(answer(self._resources, index, manifest, self._own, ask, steps))
        await results_of([reading, asking])
        steps.rounds = max(steps.rounds, beside.rounds)
        catalog, said = reading.result(), asking.result()

        def prune(found: FileSet) -> FileSet:
            # files of an earlier listing may be on their way while those of the next are looked at
            knowledge = FileKnowledge(self._resources, index.place, manifest, ask)
            return self._pruned(found, said, catalog, knowledge)

        return prune

    async def _catalog(self, index: OpenIndex, manifest: Manifest, steps: Steps) -> Mapping[str, Entry]:
        """The entries of all files, by url."""
        if index.catalog is None or index.catalog[0] != manifest.snapshot:
            tables = await steps.together(segment_reads(manifest, index.place, FILES, None))
            by_url = await steps.work(manifest.num_files, partial(_by_url, manifest, tables))
            index.catalog = (manifest.snapshot, by_url)
            return by_url
        return index.catalog[1]

    def _pruned(
        self, found: FileSet, said: Answer, catalog: Mapping[str, Entry], knowledge: FileKnowledge | None
    ) -> FileSet:
        """Files that cannot match are left out; of those that are not the versions which the index knows, none is."""
        files: list[DataFile] = []
        expected: list[int] = []
        unknown = 0
        for file in found.files:
            entry, left = catalog.get(file.url), file
            if entry is not None and knowledge is not None and said.slices is not None:
                access = said.slices.plan(entry.file.id)
                if entry.file.is_version_of(file):
                    if not entry.may_match(access):
                        continue
                elif file.validator is not None or file.immutable or entry.file.validator is None:
                    entry = None  # of a file whose version is not known before it is opened, it is looked at then
                if entry is not None:
                    expected.append(entry.file.id)
                    left = replace(file, entry=knowledge.entry(entry.file.id, entry.file.validator, access))
            unknown += entry is None
            pruned = with_own(left, said.own, self._folder)
            if pruned is not None:
                files.append(pruned)
        if knowledge is not None:
            knowledge.expect(expected)
        total = len(found.files) if found.total is None else found.total
        report = said.report
        if knowledge is not None and unknown:
            known = len(found.files) - unknown
            report = (*report, f"knows {known} of {len(found.files)} files as they are; others are read without it")
        return found._replace(files=files, total=total, renewal=None, report=report)


def _by_url(manifest: Manifest, tables: Sequence[pa.Table | None]) -> dict[str, Entry]:
    live = manifest.live
    entries = [entry for table in tables if table is not None for entry in entries_in(table).values()]
    return {url_of(manifest, entry): entry for entry in entries if entry.file.id in live}
