"""An index that a dataset has open, and its answers to predicates; with those of the caller's own indexes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.events import Operation
from asyncpq.expressions import Expression, simplify
from asyncpq.indexing.index_model import IndexBackend, whole_bytes
from asyncpq.indexing.manifest.commits import Head, id_ranges
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.query.file_entries import FileEntry, FooterReader, first_reads
from asyncpq.indexing.query.file_selection import (
    FileIndex,
    FileSelection,
    FileSlices,
    Read,
    SnapshotRead,
    together,
    worked,
)
from asyncpq.indexing.query.index_query import IndexQuery
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.threads import results_of


@dataclass(slots=True)
class OpenIndex:
    """An index that a dataset has open."""

    backend: IndexBackend  # holds the index
    head: Head  # the newest known snapshot
    max_age_s: float = 0.0  # a read may use a snapshot that was the newest so many seconds ago; 0: each read checks
    checked: bool = False  # a newer snapshot was looked for at least once
    begun: int = 0  # number of the snapshot whose tables by file were loaded into memory
    # the entries of all files by url, for one snapshot; made when first needed
    catalog: tuple[Manifest, Mapping[str, FileEntry]] | None = field(default=None, repr=False)

    @property
    def manifest(self) -> Manifest:
        """The newest known snapshot."""
        return self.head.manifest

    @property
    def is_fresh(self) -> bool:
        """Whether reads may use that snapshot without a check."""
        return self.checked and time.monotonic() - self.head.checked_at < self.max_age_s

    async def advance(self, operation: Operation) -> None:
        """Look for a newer snapshot, beside the other requests of a read."""
        part = operation.part(self.backend.description, 0)
        try:
            await self.head.advance(part)
        finally:
            operation.metrics.add_part(part.metrics)
        self.checked = True

    async def renew(self, used: Manifest, operation: Operation) -> None:
        """Load the newest snapshot, after a segment of ``used`` was vacuumed. Raises StaleSnapshotError: there is no
        newer one."""
        if self.manifest is used:
            await together(operation, [self.head.reload])

    @property
    def description(self) -> str:
        """The index and its snapshot, for messages."""
        manifest = self.manifest
        as_of = manifest.as_of or manifest.created
        return f"index at {self.backend.description}, snapshot {manifest.snapshot} of {as_of:%Y-%m-%d %H:%M:%S %Z}"


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """Answers of the index and of the caller's own indexes to one predicate."""

    selection: FileSelection | None  # files by id; None without an index
    query: IndexQuery | None  # asked these; None without an index or a predicate
    own: Sequence[FileSlices]  # answers of the caller's own indexes

    def report(self) -> tuple[str, ...]:
        """Return lines for ``explain()``."""
        own = [
            f"of your own: {len(slices.files)} files named{', exactly' if slices.exact else ''}, others {slices.others}"
            for slices in self.own
        ]
        return (*(() if self.query is None else self.query.report()), *own)


async def answer(
    read: SnapshotRead | None, index: OpenIndex | None, own: Sequence[FileIndex], ask: ScanRequest
) -> IndexAnswer:
    """Ask one snapshot of an index, and the caller's own indexes, for the files that may match a request.

    Without a predicate, or where the request names rows, all files may.
    """
    where = ask.where if ask.prune is None else ask.prune
    if where is None or ask.by_file is not None:
        return IndexAnswer(None if read is None else FileSelection(read.manifest.live), None, ())
    where = simplify(where)
    if not own:
        return IndexAnswer(*await _ask_index(read, index, where), ())
    work: list[Awaitable[Any]] = [_ask_index(read, index, where)]
    (selection, query), *theirs = await results_of([*work, *(other.prune(where) for other in own)])
    return IndexAnswer(selection, query, theirs)


async def _ask_index(
    read: SnapshotRead | None, index: OpenIndex | None, where: Expression
) -> tuple[FileSelection | None, IndexQuery | None]:
    if index is None or read is None:
        return None, None
    query = IndexQuery(read, where)
    beside = None
    if index.begun != read.manifest.snapshot:
        most = read.runtime.options.requests.whole_segment_bytes
        segments = [segment for table in query.first_tables for segment in read.manifest.segments_of(table)]
        beside = first_reads(read, whole=all(segment.size <= whole_bytes(segment.table, most) for segment in segments))
    index.begun = read.manifest.snapshot
    return await query.run(beside), query


async def read_details(
    read: SnapshotRead, ids: RowRanges, footers: FooterReader, query: IndexQuery | None, others: Sequence[Read] = ()
) -> list[pa.Table | None]:
    """Read the footers and Bloom filters of the files ``ids``, which are few, in one round; and ``others``, whose
    results it returns. ``footers`` and ``query`` take what is theirs."""
    footer_reads = footers.reads(list(ids.rows()))
    bloom_tables = () if query is None else query.bloom_tables
    blooms = [read.segments(table, id_ranges(ids), tolerant=True) for table in bloom_tables]
    reads = [*others, *chain.from_iterable(kind_reads for _, kind_reads in footer_reads), *chain.from_iterable(blooms)]
    if not reads:
        return []
    results = iter(await together(read.operation, reads))
    given = [next(results) for _ in others]
    for kind, kind_reads in footer_reads:
        footers.take(kind, [next(results) for _ in kind_reads])
    for table, table_reads in zip(bloom_tables, blooms, strict=True):
        for _ in table_reads:
            if query is not None and (filters := next(results)) is not None:
                await worked(read.runtime, filters.num_rows, partial(query.take_blooms, table, filters))
    return given


def with_own(file: DataFile, own: Sequence[FileSlices], folder: str) -> DataFile | None:
    """Return the file with the rows that the caller's own indexes allow; None if they rule it out."""
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
    """Return the rows of ``file`` that the caller's own indexes allow."""
    access = AccessPlan.all()
    path = file.url[len(folder) :] if folder and file.url.startswith(folder) else file.url
    validator = file.validator
    for slices in own:
        named = slices.files.get(file.url) or slices.files.get(path)
        if named is None:
            access &= AccessPlan.none() if slices.others == "none" else AccessPlan.all()
            continue
        size = file.size if validator is None else validator.size
        etag = None if validator is None else validator.etag
        if named.size in (None, size) and named.etag in (None, etag):
            access &= named.access
    return access
