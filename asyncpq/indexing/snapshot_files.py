"""The files of a dataset as an index lists them: view "snapshot"."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from asyncpq.datasets.file_sets import FileSet
from asyncpq.datasets.listing import folders_of, parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.datasets.partitioning import read_partitions
from asyncpq.errors import CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.answers import Inquiry
from asyncpq.indexing.entries import Entry, FileKnowledge, entries_in, url_of
from asyncpq.indexing.file_index import FileIndex
from asyncpq.indexing.lakes import partitioning_of
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.open_index import OpenIndex, answer, read_details, with_own
from asyncpq.indexing.part_reads import together, worked
from asyncpq.indexing.slices import Slices
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.resources import Resources
from asyncpq.storage.base import Validator


class SnapshotFiles:
    """The files that an index lists: of a lookup only those are looked at that may match.

    Args:
        own: further indexes, of the caller's own.
    """

    view: View = View.SNAPSHOT

    def __init__(self, resources: Resources, index: OpenIndex, own: Sequence[FileIndex] = ()) -> None:
        self._resources = resources
        self.index = index
        self._own = own

    @property
    def description(self) -> str:
        return self.index.description

    @property
    def known(self) -> FileSet | None:
        return FileSet((), total=self.index.manifest.num_files)

    async def files(self, ask: Ask, operation: Operation, *, scan: bool = True, hurry: bool = False) -> FileSet:
        if self.index.is_fresh:
            return (await self._found(ask, operation))[1]
        told: asyncio.Future[tuple[Manifest, FileSet]] = asyncio.get_running_loop().create_future()
        renewal = self._resources.spawn(self._renewed(told, ask, operation))
        try:
            manifest, found = await self._found(ask, operation)
            told.set_result((manifest, found))
            return found._replace(renewal=renewal) if hurry else await renewal
        except BaseException:
            renewal.cancel()
            await asyncio.wait((renewal,))
            raise

    async def _renewed(self, told: asyncio.Future[tuple[Manifest, FileSet]], ask: Ask, operation: Operation) -> FileSet:
        """What :meth:`files` found, or what is there by a newer snapshot."""
        await self.index.advance(operation)
        manifest, found = await told
        if self.index.manifest is manifest:
            return found
        _, again = await self._found(ask, operation, rounds=1)
        return found if _same(again.files, found.files) else again

    async def _found(self, ask: Ask, operation: Operation, rounds: int = 0) -> tuple[Manifest, FileSet]:
        """By the newest snapshot that is known, and which that is."""
        index_reads = operation.part(self.index.place.description, rounds)
        try:
            for _ in range(self._resources.options.limits.max_restarts):
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

    async def _find(self, manifest: Manifest, ask: Ask, operation: Operation) -> FileSet:
        place = self.index.place
        said = await answer(self._resources, self.index, manifest, self._own, ask, operation)
        slices = said.slices or Slices(manifest.live)
        knowledge = FileKnowledge(self._resources, place, manifest, ask)
        entries = await self._entries(manifest, slices.files, knowledge, said.inquiry, operation)
        slices = slices if said.inquiry is None else said.inquiry.slices()
        left = {file: slices.plan(file) for file in slices.files.rows()}
        if len(left) <= self._resources.options.limits.files_ahead:
            left = {file: plan for file, plan in left.items() if entries[file].may_match(plan)}
        files = await worked(self._resources, len(left), partial(_data_files, manifest, entries, left, knowledge, ask))
        if said.own:
            files = [file for file in (with_own(file, said.own, manifest.root) for file in files) if file]
        return FileSet(files, total=manifest.num_files, rounds=operation.metrics.rounds, report=said.report)

    async def _entries(
        self,
        manifest: Manifest,
        ids: RowRanges,
        knowledge: FileKnowledge,
        inquiry: Inquiry | None,
        operation: Operation,
    ) -> dict[int, Entry]:
        """Of the files; where they are few, their footers and bloom filters come along in the same round."""
        place, memory = self.index.place, self._resources.memory
        few = ids.num_rows <= self._resources.options.limits.files_ahead
        entries: dict[int, Entry] = {}
        if few:
            held = {file: memory.get(("index entry", manifest.index, file)) for file in ids.rows()}
            entries = {file: entry for file, entry in held.items() if entry is not None}
        missing = ids if not entries else RowRanges.from_rows([file for file in ids.rows() if file not in entries])
        files = knowledge.file_reads(missing) if missing else []
        if few:
            tables = await read_details(
                self._resources, self.index, manifest, ids, knowledge, inquiry, operation, files
            )
        else:
            tables = await together(operation, files) if files else []
        for table in tables:
            if table is not None:
                entries.update(await worked(self._resources, table.num_rows, partial(entries_in, table)))
        if not all(file in entries for file in ids.rows()):
            raise CorruptIndexError("the index does not list all of its files", url=place.description)
        if few:
            for file, entry in entries.items():
                memory.put(("index entry", manifest.index, file), entry, 600 + len(entry.file.path))
        return entries


def _data_files(
    manifest: Manifest, entries: Mapping[int, Entry], left: Mapping[int, AccessPlan], knowledge: FileKnowledge, ask: Ask
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
