"""An index that is open for the reads of a dataset, and what it answers with others of the caller's own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.datasets.opened_file import DatasetRequest
from asyncpq.events import Operation
from asyncpq.expressions import Expression, simplify
from asyncpq.indexing.manifest.commits import Head
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.model import IndexBackend, whole_bytes
from asyncpq.indexing.query.file_entries import Entry, FileKnowledge, bloom_reads, first_reads
from asyncpq.indexing.query.file_selection import FileIndex, FileSelection, FileSlices
from asyncpq.indexing.query.index_query import IndexQuery
from asyncpq.indexing.query.segment_reads import Reads, together, worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.concurrency import results_of


@dataclass(slots=True)
class OpenIndex:
    """An index, opened for the reads of a dataset.

    Attributes:
        place: where it is kept.
        head: its newest snapshot, as far as is known.
        max_age_s: reads may do with a snapshot that was the newest so long ago; 0: each read asks.
        checked: whether it was ever asked for a newer one.
        begun: the snapshot whose parts by file were asked for what of them is kept in memory.
        catalog: the entries of all files by url, of one snapshot; made when first needed.
    """

    backend: IndexBackend
    head: Head
    max_age_s: float = 0.0
    checked: bool = False
    begun: int = 0
    catalog: tuple[Manifest, Mapping[str, Entry]] | None = field(default=None, repr=False)

    @property
    def manifest(self) -> Manifest:
        """Of the newest snapshot that is known."""
        return self.head.manifest

    @property
    def is_fresh(self) -> bool:
        """Whether reads may do with that one."""
        return self.checked and time.monotonic() - self.head.checked_at < self.max_age_s

    async def advance(self, operation: Operation) -> None:
        """Look for a newer one, beside what else a read asks for."""
        part = operation.part(self.backend.description, 0)
        try:
            await self.head.advance(part)
        finally:
            operation.metrics.add_part(part.metrics)
        self.checked = True

    async def renew(self, used: Manifest, operation: Operation) -> None:
        """A segment of ``used`` was gone: vacuumed, for there is a newer snapshot.

        Raises:
            StaleSnapshotError: there is none.
        """
        if self.manifest is used:
            await together(operation, [self.head.reload])

    @property
    def description(self) -> str:
        """Which snapshot of which index."""
        manifest = self.manifest
        as_of = manifest.as_of or manifest.created
        return f"index at {self.backend.description}, snapshot {manifest.snapshot} of {as_of:%Y-%m-%d %H:%M:%S %Z}"


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """What index and own indexes say of one predicate.

    Attributes:
        slices: by id; None without an index.
        own: what the caller's own say.
    """

    selection: FileSelection | None
    query: IndexQuery | None
    own: Sequence[FileSlices]

    @property
    def report(self) -> tuple[str, ...]:
        lines = () if self.query is None else self.query.report()
        own = [
            f"of your own: {len(one.files)} files named{', exactly' if one.exact else ''}, others {one.others}"
            for one in self.own
        ]
        return (*lines, *own)


def _predicate(ask: DatasetRequest) -> Expression | None:
    """What may prune; nothing where rows are named."""
    where = ask.where if ask.prune is None else ask.prune
    return None if where is None or ask.access is not None else simplify(where)


async def answer(
    runtime: Runtime,
    index: OpenIndex | None,
    manifest: Manifest | None,
    own: Sequence[FileIndex],
    ask: DatasetRequest,
    operation: Operation,
) -> IndexAnswer:
    """What an index by one of its snapshots, and others, say."""
    where = _predicate(ask)
    if where is None:
        return IndexAnswer(None if manifest is None else FileSelection(manifest.live), None, ())
    work: list[Awaitable[Any]] = [_inquire(runtime, index, manifest, where, operation)]
    (selection, query), *theirs = await results_of([*work, *(one.prune(where) for one in own)])
    return IndexAnswer(selection, query, theirs)


async def _inquire(
    runtime: Runtime, index: OpenIndex | None, manifest: Manifest | None, where: Expression, operation: Operation
) -> tuple[FileSelection | None, IndexQuery | None]:
    if index is None or manifest is None:
        return None, None
    query = IndexQuery(manifest, where, max_postings=runtime.options.limits.max_postings)
    beside = None
    if index.begun != manifest.snapshot:
        most = runtime.options.requests.whole_segment_bytes
        asked = [segment for index_table in query.tables for segment in manifest.segments_of(index_table)]
        whole = all(segment.size <= whole_bytes(segment.table, most) for segment in asked)
        beside = first_reads(manifest, index.backend, whole=whole)
    index.begun = manifest.snapshot
    return await query.ask(runtime, index.backend, operation, beside), query


async def read_details(
    runtime: Runtime,
    index: OpenIndex,
    manifest: Manifest,
    ids: RowRanges,
    knowledge: FileKnowledge,
    query: IndexQuery | None,
    operation: Operation,
    others: Reads | None = None,
) -> list[pa.Table | None]:
    """Read what an index keeps by file of a few files, in one round: footers and bloom filters.

    Args:
        ids: of the files.
        knowledge, inquiry: take the footers and the bloom filters.
        others: further reads of the same round.

    Returns:
        What ``others`` gave.
    """
    footers = knowledge.footer_reads(ids.rows())
    index_tables = [] if query is None else query.bloom_parts
    blooms = [bloom_reads(manifest, index.backend, index_table, ids) for index_table in index_tables]
    reads = [
        *(others or ()),
        *(read for _, some in footers for read in some),
        *(read for some in blooms for read in some),
    ]
    if not reads:
        return []
    tables = iter(await together(operation, reads))
    given = [next(tables) for _ in others or ()]
    for kind, some in footers:
        knowledge.take_footers(kind, [next(tables) for _ in some])
    for index_table, some in zip(index_tables, blooms, strict=True):
        for _ in some:
            if query is not None and (table := next(tables)) is not None:
                await worked(runtime, table.num_rows, partial(query.take_blooms, index_table, table))
    return given


def with_own(file: DataFile, own: Sequence[FileSlices], folder: str) -> DataFile | None:
    """The file with what the caller's own indexes say; None where they rule it out."""
    if not own:
        return file
    access = _own_access(own, file, folder)
    if access.is_all:
        return file
    if access.is_none:
        return None
    entry = file.entry or IndexEntry(validator=file.validator)
    return replace(file, entry=replace(entry, access=entry.access & access))


def _own_access(own: Iterable[FileSlices], file: DataFile, folder: str) -> AccessPlan:
    """Rows of ``file`` that may match by the caller's own indexes."""
    access = AccessPlan.all()
    path = file.url[len(folder) :] if folder and file.url.startswith(folder) else file.url
    validator = file.validator
    for selection in own:
        found = selection.files.get(file.url) or selection.files.get(path)
        if found is None:
            access &= AccessPlan.none() if selection.others == "none" else AccessPlan.all()
            continue
        size = file.size if validator is None else validator.size
        etag = None if validator is None else validator.etag
        if found.size in (None, size) and found.etag in (None, etag):
            access &= found.access
    return access
