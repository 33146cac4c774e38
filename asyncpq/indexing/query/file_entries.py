"""An index's data about single files: their entries, matched with a listing, their footers and page indexes.

With these, a read fetches data pages of a file without opening the file first.

The GET's ``If-Match`` validates them. If the file has another version, the read ignores the index's data about the
file, and opens it like any other.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.expressions import columns
from asyncpq.indexing.entry_encoding import SHARED, by_file, decode_leaf, decode_made, decode_shared
from asyncpq.indexing.index_model import BY_VALUE, KeyRange, file_key
from asyncpq.indexing.manifest.commits import IndexedFile, files_in
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.query.file_selection import FileSelection, Reads, SnapshotRead, together
from asyncpq.indexing.query.key_ranges import merged_ranges
from asyncpq.objects.version import KnownVersion
from asyncpq.options import LimitOptions
from asyncpq.parquet.metadata import decode_file_metadata, join_pieces
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import Validator


def known_version(
    file: int, footers: Mapping[int, bytes], pages: Mapping[int, bytes], validator: Validator, limits: LimitOptions
) -> KnownVersion | None:
    """Return a file version with its footer and page indexes, from the index's payloads; None if there are none.
    ``footers`` and ``pages`` are payloads by leaf (:func:`asyncpq.indexing.entry_encoding.by_file`), of all leaves or
    of some. Without leaf -1 in ``footers`` the result has page indexes only. Raises CorruptIndexError if a payload is
    damaged or its version differs from ``validator``; callers treat such a payload as missing."""
    made = {
        (group, leaf): index
        for leaf, payload in pages.items()
        for group, index in decode_made(file, leaf, payload).items()
    }
    if SHARED not in footers:
        return (
            KnownVersion(validator=validator, metadata=None, leaves=None, footer_start=0, made=made) if made else None
        )
    shared = decode_shared(file, footers[SHARED], limits.max_footer_bytes)
    if shared.size != validator.size:
        raise CorruptIndexError(
            f"the index's footer belongs to another version of the file: {shared.size} bytes, now {validator.size}"
        )
    leaves = {leaf: decode_leaf(file, leaf, payload) for leaf, payload in footers.items() if leaf != SHARED}
    try:
        data = shared.pieces[0]
        if shared.num_leaves:
            chunks = {leaf: entry.chunks for leaf, entry in leaves.items()}
            data = join_pieces(shared.pieces, chunks, shared.num_leaves)
        metadata = decode_file_metadata(
            data, max_elements=limits.max_footer_elements, max_schema_elements=limits.max_schema_elements
        )
    except AsyncpqError as error:
        raise CorruptIndexError(f"the index's copy of the footer cannot be decoded: {error.message}") from error
    return KnownVersion(
        validator=validator,
        metadata=metadata,
        leaves=frozenset(leaves) if shared.num_leaves and len(leaves) < shared.num_leaves else None,
        footer_start=shared.footer_start,
        spans=[span for entry in leaves.values() for span in entry.spans],
        made=made,
    )


_ALL: Final = AccessPlan.all()
_POSITION: Final = itemgetter(0)
_MOST_LEAVES: Final = 16  # of a file with no more, all are read: they lie together
_CHUNK: Final = 64  # files whose footers are read at once, ahead of their rows
_CHUNKS: Final = 4
_MOST_AHEAD: Final = 2  # segments of a table that are read ahead; of more, only the ones that matter are read


class FileEntry(NamedTuple):
    """A version of a file in an index, with its row groups."""

    file: IndexedFile
    row_groups: tuple[int, ...] | None  # number of rows of each row group; None if the file could not be read

    def may_match(self, access: AccessPlan) -> bool:
        """Return whether ``access`` selects any row of the file; True too if it selects rows that do not exist."""
        return _selects_rows(access, self.row_groups)


@lru_cache(maxsize=1024)  # most files of a dataset have row groups of the same sizes
def _selects_rows(access: AccessPlan, row_groups: tuple[int, ...] | None) -> bool:
    if access.is_all or access.is_none or row_groups is None:
        return not access.is_none
    try:
        return bool(access.resolve(row_groups))
    except IndexError:
        return True  # opening the file reports it


def entries_in(table: pa.Table) -> dict[int, FileEntry]:
    """Return the entries in ``table``, rows of the index table "files", by the file's id. Raises CorruptIndexError if
    a row is impossible."""
    groups = table.column("row_groups").to_pylist()
    return {
        file.id: FileEntry(file, None if rows is None else tuple(rows))
        for file, rows in zip(files_in(table), groups, strict=True)
    }


def url_in(manifest: Manifest, path: str) -> str:
    """Return the url of the file at ``path``, spelled as in listings of the dataset."""
    root = manifest.root
    if not path:
        return root.removesuffix("/")
    return path if not root else root + path if root.endswith("/") else f"{root}/{path}"


@dataclass(frozen=True, slots=True)
class ListingMatch:
    """The files of one listing, matched with the entries of one snapshot of an index. All reads share a match."""

    files: Sequence[DataFile]  # the listing
    manifest: Manifest  # the snapshot
    # positions in ``files`` and entries of the files whose version the index knows
    by_id: Mapping[int, tuple[int, FileEntry]]
    ids: RowRanges  # keys of ``by_id``
    # positions and entries of files without a version in the listing; the version is compared when the file is
    # opened
    unsure: Sequence[tuple[int, FileEntry]]
    # positions of files that are new to the index or have another version; they are read without it
    unknown: Sequence[int]

    def candidates(self, selection: FileSelection) -> list[tuple[int, FileEntry | None, AccessPlan]]:
        """Return position, entry (None if the index lacks the file) and rows of each file that may match, in order of
        the listing."""
        files: list[tuple[int, FileEntry | None, AccessPlan]] = []
        for file in list((selection.files & self.ids).rows()):
            position, entry = self.by_id[file]
            access = selection.plans.get(file, _ALL)
            if entry.may_match(access):
                files.append((position, entry, access))
        files += [(position, entry, selection.plan(entry.file.id)) for position, entry in self.unsure]
        files += [(position, None, _ALL) for position in self.unknown]
        files.sort(key=_POSITION)
        return files

    def report(self) -> list[str]:
        """Return lines for ``explain()`` that state how many of the listed files the index has."""
        lines: list[str] = []
        if self.unknown:
            known = len(self.files) - len(self.unknown)
            lines.append(f"knows {known} of {len(self.files)} files as they are; others are read without it")
        if self.unsure:
            lines.append(
                f"{len(self.unsure)} files have versions that the listing does not tell: each is opened, and what the "
                "index says of it used if it has the version that the index knows"
            )
        return lines


def match_listing(files: Sequence[DataFile], manifest: Manifest, catalog: Mapping[str, FileEntry]) -> ListingMatch:
    """Return the listed files, matched by url and version with ``catalog``, the index's entries by url."""
    by_id: dict[int, tuple[int, FileEntry]] = {}
    unsure: list[tuple[int, FileEntry]] = []
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


class FooterReader:
    """Reads footers and page indexes of files from an index, for one read. ``is_useful`` is False if the index has none
    of them."""

    def __init__(self, read: SnapshotRead, payloads: Mapping[int, dict[str, dict[int, bytes]]] | None = None) -> None:
        self._read = read
        self._ids: Sequence[int] = ()
        self._positions: dict[int, int] = {}
        self._leaves = needed_leaves(read.manifest, read.ask)
        self.is_useful = bool(read.manifest.footer_tables)
        self._payloads = dict(payloads or {})
        self._chunks: OrderedDict[int, asyncio.Lock] = OrderedDict()

    def again(self) -> FooterReader:
        """Return a reader for the same request over other files, with a copy of the payloads read so far."""
        return FooterReader(self._read, self._payloads)

    def expect(self, ids: Sequence[int]) -> None:
        """Set the files that the read will need, in this order: footers are read ahead in that order."""
        self._ids = ids
        self._positions = {file: position for position, file in enumerate(ids)}

    def reads(self, ids: Iterable[int]) -> list[tuple[str, Reads]]:
        """Return the reads that load those footers and page indexes of the files ``ids`` that memory lacks, with the
        kind of their table."""
        missing = [file for file in ids if self._held(file) is None] if self.is_useful else []
        if not missing:
            return []
        ranges = merged_ranges([wanted for file in missing for wanted in self._ranges(file)])
        reads = [
            (table.kind, self._read.segments(table, ranges, tolerant=True))
            for table in self._read.manifest.footer_tables
        ]
        return [(kind, kind_reads) for kind, kind_reads in reads if kind_reads]

    def _key(self, file: int) -> tuple[object, ...]:
        return ("known", self._read.manifest.index, file, self._leaves)

    def take(self, kind: str, tables: Iterable[pa.Table | None]) -> None:
        """Keep the payloads in ``tables``, the results of :meth:`reads` for tables of ``kind``. Raises
        CorruptIndexError if a key is impossible."""
        for table in tables:
            if table is not None:
                for file, payloads in by_file(table).items():
                    self._payloads.setdefault(file, {}).setdefault(kind, {}).update(payloads)

    def entry(self, file: int, validator: Validator | None, access: AccessPlan) -> IndexEntry:
        """Return the entry with which a read opens the file: the rows ``access``, and the index's footer, which is
        loaded when it is needed."""
        known = partial(self._known, file, validator) if validator is not None and self.is_useful else None
        return IndexEntry(access=access, validator=validator, known=known)

    async def _known(self, file: int, validator: Validator, operation: Operation) -> KnownVersion | None:
        version = self._held(file)
        if version is not None:
            return version
        try:
            if file not in self._payloads:
                await self._read_ahead(file, operation)
            payloads = self._payloads.pop(file, {})
            limits = self._read.runtime.options.limits
            footers, pages = payloads.get("footers", {}), payloads.get("pages", {})
            version = known_version(file, footers, pages, validator, limits)
        except (CorruptIndexError, StaleSnapshotError) as error:
            operation.metrics.fall_back(f"a footer is not taken from the index: {error.message}")
            return None
        if version is not None:
            self._hold(file, version)
        return version

    def _held(self, file: int) -> KnownVersion | None:
        """Return the file's version with its footer from memory; None if memory lacks it."""
        held: KnownVersion | weakref.ref[KnownVersion] | None = self._read.runtime.memory.get(self._key(file))
        return held() if isinstance(held, weakref.ref) else held

    def _hold(self, file: int, version: KnownVersion) -> None:
        memory, key = self._read.runtime.memory, self._key(file)
        if version.metadata is not None and version.leaves is None:
            # memory holds the version that is made of it: its bytes must not count twice
            memory.put(key, weakref.ref(version), 300)
            return
        spans = sum([len(data) + 100 for _, data in version.spans])
        metadata = 0 if version.metadata is None else version.metadata.weight
        memory.put(key, version, metadata + spans + 500)

    async def _read_ahead(self, file: int, operation: Operation) -> None:
        """Read the footers of a chunk of files that includes ``file``, all at once; waiting reads share the result."""
        position = self._positions.get(file)
        if position is None:  # the read began again, with other files
            await self._load(operation, [file])
            return
        chunk = position // _CHUNK
        async with self._chunks.setdefault(chunk, asyncio.Lock()):
            if file in self._payloads:
                return
            ids = self._ids[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            await self._load(operation, ids)
            for other in ids:
                self._payloads.setdefault(other, {})
            while len(self._chunks) > _CHUNKS:
                old, _ = self._chunks.popitem(last=False)
                for other in self._ids[old * _CHUNK : (old + 1) * _CHUNK]:
                    self._payloads.pop(other, None)

    async def _load(self, operation: Operation, ids: Sequence[int]) -> None:
        reads = self.reads(sorted(ids))
        index_reads = operation.part(self._read.backend.description, operation.metrics.rounds)
        try:
            tables = iter(await together(index_reads, [read for _, kind_reads in reads for read in kind_reads]))
        finally:
            operation.metrics.add_part(index_reads.metrics)
        for kind, kind_reads in reads:
            self.take(kind, [next(tables) for _ in kind_reads])

    def _ranges(self, file: int) -> list[KeyRange]:
        if self._leaves is None:
            return [KeyRange(file_key(file), file_key(file + 1))]
        return [KeyRange.point(file_key(file, leaf)) for leaf in (SHARED, *sorted(self._leaves))]


def first_reads(read: SnapshotRead, *, whole: bool) -> Reads:
    """Return reads that load the tables by file into memory, for later lookups. Without ``whole``, these load only the
    directories of segments; with ``whole``, all rows of small segments, because files are looked up next."""
    reads: Reads = []
    ranges: list[KeyRange] | None = None if whole else []
    limit = 0 if whole else None  # no rows are returned
    for table in read.manifest.tables:
        segments = () if table.kind in BY_VALUE else read.manifest.segments_of(table)
        if len(segments) <= _MOST_AHEAD:
            reads += [read.segment(segment, ranges, limit=limit, tolerant=True) for segment in segments]
    return reads


def needed_leaves(manifest: Manifest, ask: ScanRequest) -> frozenset[int] | None:
    """Return the ordinals of the leaf columns that a read needs; None for all leaves.

    The ordinals are right for files with the dataset's columns in the dataset's order. For other files they are a
    guess: the read fetches what is missing from the file.
    """
    spans, partitions = manifest.leaf_spans, manifest.partitions
    if manifest.num_leaves <= _MOST_LEAVES or ask.columns is None:
        return None
    named = [*ask.columns, *ask.keys, *(() if ask.where is None else columns(ask.where))]
    leaves: set[int] = set()
    for name in named:
        top = manifest.schema.names[name] if isinstance(name, int) else name
        while top not in spans and "." in top:
            top = top.rpartition(".")[0]
        if top in spans:
            leaves.update(range(*spans[top]))
        elif top not in partitions:
            return None
    return frozenset(leaves or (0,))
