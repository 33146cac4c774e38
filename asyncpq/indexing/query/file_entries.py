"""What an index has of single files: their entries, and what a read needs of them so that they are not opened.

Versions of files as the parts "footers" and "pages" know them.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.datasets.model import IndexEntry
from asyncpq.datasets.opened_file import DatasetRequest
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.expressions import columns
from asyncpq.indexing.entry_encoding import SHARED, by_file, decode_leaf, decode_made, decode_shared
from asyncpq.indexing.manifest.listed_files import IndexedFile, files_in
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.model import BY_VALUE, IndexBackend, IndexTable, KeyRange, Segment, file_key
from asyncpq.indexing.query.key_ranges import merged_ranges
from asyncpq.indexing.query.segment_reads import Reads, segment_reads, together, tolerant
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import KnownVersion, MadeIndex
from asyncpq.options import LimitOptions
from asyncpq.parquet.footer import join_pieces
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator


def known_version(
    file: int,
    footers: Mapping[int, bytes],
    pages: Mapping[int, bytes],
    validator: Validator,
    limits: LimitOptions,
) -> KnownVersion | None:
    """What an index knows of a version of a file; None for nothing.

    Args:
        file: its id.
        footers, pages: payloads of these parts by leaf (:func:`asyncpq.indexing.entry_encoding.by_file`), of all leaves
            or of some. Without leaf -1 in ``footers`` only the pages are known.
        validator: of the version, as the part "files" has it.
        limits: on what the footer may hold.

    Raises:
        CorruptIndexError: a payload is damaged, or of another version; it is to be treated as if it were not there.
    """
    made = _made(file, pages)
    if SHARED not in footers:
        return (
            KnownVersion(validator=validator, metadata=None, leaves=None, footer_start=0, made=made) if made else None
        )
    shared = decode_shared(file, footers[SHARED], limits.max_footer_bytes)
    if shared.size != validator.size:
        raise CorruptIndexError("an index has the footer of another version of the file")
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
        raise CorruptIndexError(f"the footer that an index has cannot be decoded: {error.message}") from error
    return KnownVersion(
        validator=validator,
        metadata=metadata,
        leaves=frozenset(leaves) if shared.num_leaves and len(leaves) < shared.num_leaves else None,
        footer_start=shared.footer_start,
        spans=[span for entry in leaves.values() for span in entry.spans],
        made=made,
    )


def _made(file: int, pages: Mapping[int, bytes]) -> dict[tuple[int, int], MadeIndex]:
    made: dict[tuple[int, int], MadeIndex] = {}
    for leaf, payload in pages.items():
        for group, index in decode_made(file, leaf, payload).items():
            made[group, leaf] = index
    return made


_MOST_LEAVES: Final = 16  # of a file with no more, all are read: they lie together
_CHUNK: Final = 64  # files whose footers are read at once, ahead of their rows
_CHUNKS: Final = 4
_MOST_AHEAD: Final = 2  # segments of a part; of more, those are asked whose files turned out to matter


class Entry(NamedTuple):
    """A file in an index.

    Attributes:
        file: its version.
        row_groups: how many rows each has; None where it could not be read.
    """

    file: IndexedFile
    row_groups: tuple[int, ...] | None

    def may_match(self, access: AccessPlan) -> bool:
        """Whether a plan lets some row of it be read; also where it names rows that it has not."""
        if access.is_all or access.is_none or self.row_groups is None:
            return not access.is_none
        try:
            return bool(access.resolve(self.row_groups))
        except IndexError:
            return True  # whoever opens the file finds it out


def entries_in(table: pa.Table) -> dict[int, Entry]:
    """Rows of the part "files", by id.

    Raises:
        CorruptIndexError: rows that cannot be.
    """
    groups = table.column("row_groups").to_pylist()
    return {
        file.id: Entry(file, None if rows is None else tuple(rows))
        for file, rows in zip(files_in(table), groups, strict=True)
    }


def url_of(manifest: Manifest, entry: Entry) -> str:
    """Of the file, as listings of the dataset have it."""
    return url_in(manifest, entry.file.path)


def url_in(manifest: Manifest, path: str) -> str:
    """Of the file of that path, as listings of the dataset have it."""
    root = manifest.root
    if not path:
        return root.removesuffix("/")
    return path if not root else root + path if root.endswith("/") else f"{root}/{path}"


def id_ranges(ids: RowRanges) -> list[KeyRange]:
    """Keys of what is known of these files."""
    return [KeyRange(file_key(start), file_key(stop)) for start, stop in ids]


class FileKnowledge:
    """Reads what an index has of files, for one read.

    Args:
        ask: what is asked of them.
    """

    def __init__(self, runtime: Runtime, backend: IndexBackend, manifest: Manifest, ask: DatasetRequest) -> None:
        self._runtime = runtime
        self._backend = backend
        self._manifest = manifest
        self._ids: Sequence[int] = ()
        self._places: dict[int, int] = {}
        self._leaves = asked_leaves(manifest.schema, manifest.partitions, ask)
        self._tables = [index_table for index_table in manifest.tables if index_table.kind in ("footers", "pages")]
        self._payloads: dict[int, dict[str, dict[int, bytes]]] = {}
        self._chunks: OrderedDict[int, asyncio.Lock] = OrderedDict()

    def again(self) -> FileKnowledge:
        """For the same read over other files: what was read already is there."""
        other = copy.copy(self)
        other._payloads, other._chunks = dict(self._payloads), OrderedDict()
        return other

    def expect(self, ids: Sequence[int]) -> None:
        """These files are asked for, in this order."""
        self._ids = ids
        self._places = {file: at for at, file in enumerate(ids)}

    @property
    def is_useful(self) -> bool:
        """Whether the index knows more of a file than its version."""
        return bool(self._tables)

    def file_reads(self, ids: RowRanges) -> Reads:
        """Those of the part "files", of these ids."""
        return segment_reads(self._manifest, self._backend, FILES, id_ranges(ids))

    def footer_reads(self, ids: Iterable[int]) -> list[tuple[str, Reads]]:
        """Those of footers and page indexes that memory has not, with the kind of their part."""
        missing = [file for file in sorted(ids) if self._held(file) is None] if self.is_useful else []
        if not missing:
            return []
        ranges = [one for file in missing for one in self._ranges(file)]
        reads = [(index_table.kind, self._tolerant(index_table, ranges)) for index_table in self._tables]
        return [item for item in reads if item[1]]

    def _tolerant(self, index_table: IndexTable, ranges: Sequence[KeyRange]) -> Reads:
        return tolerant(index_table, segment_reads(self._manifest, self._backend, index_table, merged_ranges(ranges)))

    def _key(self, file: int) -> tuple[object, ...]:
        return ("known", self._manifest.index, file, self._leaves)

    def take_footers(self, kind: str, tables: Iterable[pa.Table | None]) -> None:
        """What such reads gave.

        Raises:
            CorruptIndexError: rows that cannot be.
        """
        for table in tables:
            if table is not None:
                for file, payloads in by_file(table).items():
                    self._payloads.setdefault(file, {}).setdefault(kind, {}).update(payloads)

    def entry(self, file: int, validator: Validator | None, access: AccessPlan) -> IndexEntry:
        """For a file of the read."""
        known = partial(self._known, file, validator) if validator is not None and self.is_useful else None
        return IndexEntry(access=access, validator=validator, known=known)

    async def _known(self, file: int, validator: Validator, operation: Operation) -> KnownVersion | None:
        found = self._held(file)
        if found is not None:
            return found
        try:
            if file not in self._payloads:
                await self._read_ahead(file, operation)
            payloads = self._payloads.pop(file, {})
            limits = self._runtime.options.limits
            footers, pages = payloads.get("footers", {}), payloads.get("pages", {})
            found = known_version(file, footers, pages, validator, limits)
        except (CorruptIndexError, StaleSnapshotError) as error:
            operation.metrics.fall_back(f"a footer is not taken from the index: {error.message}")
            return None
        if found is not None:
            self._hold(file, found)
        return found

    def _held(self, file: int) -> KnownVersion | None:
        """What memory has of it."""
        held: KnownVersion | weakref.ref[KnownVersion] | None = self._runtime.memory.get(self._key(file))
        return held() if isinstance(held, weakref.ref) else held

    def _hold(self, file: int, found: KnownVersion) -> None:
        memory, key = self._runtime.memory, self._key(file)
        if found.metadata is not None and found.leaves is None:
            # the version that is made of it holds it, and memory that: it is not to count twice
            memory.put(key, weakref.ref(found), 300)
            return
        spans = sum([len(data) + 100 for _, data in found.spans])
        metadata = 0 if found.metadata is None else found.metadata.weight
        memory.put(key, found, metadata + spans + 500)

    async def _read_ahead(self, file: int, operation: Operation) -> None:
        """Footers of the file and of those that come after it, once for all of them."""
        at = self._places.get(file)
        if at is None:  # the read has begun again, with other files
            await self._take(operation, [file])
            return
        chunk = at // _CHUNK
        async with self._chunks.setdefault(chunk, asyncio.Lock()):
            if file in self._payloads:
                return
            ids = self._ids[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            await self._take(operation, ids)
            for other in ids:
                self._payloads.setdefault(other, {})
            while len(self._chunks) > _CHUNKS:
                old, _ = self._chunks.popitem(last=False)
                for other in self._ids[old * _CHUNK : (old + 1) * _CHUNK]:
                    self._payloads.pop(other, None)

    async def _take(self, operation: Operation, ids: Sequence[int]) -> None:
        reads = self.footer_reads(ids)
        index_reads = operation.part(self._backend.description, operation.metrics.rounds)
        try:
            tables = iter(await together(index_reads, [read for _, some in reads for read in some]))
        finally:
            operation.metrics.add_part(index_reads.metrics)
        for kind, some in reads:
            self.take_footers(kind, [next(tables) for _ in some])

    def _ranges(self, file: int) -> list[KeyRange]:
        if self._leaves is None:
            return [KeyRange(file_key(file), file_key(file + 1))]
        return [KeyRange.point(file_key(file, leaf)) for leaf in (SHARED, *sorted(self._leaves))]


def first_reads(manifest: Manifest, backend: IndexBackend, *, whole: bool) -> Reads:
    """What the parts that are kept by file leave in memory for later questions, such as where their rows are.

    Args:
        whole: small ones all of their rows, for files are asked for next.
    """
    reads: Reads = []
    for index_table in manifest.tables:
        segments = () if index_table.kind in BY_VALUE else manifest.segments_of(index_table)
        if len(segments) <= _MOST_AHEAD:
            reads += tolerant(
                index_table, [partial(_leave_in_memory, backend, segment, whole=whole) for segment in segments]
            )
    return reads


async def _leave_in_memory(
    backend: IndexBackend, segment: Segment, operation: Operation, *, whole: bool
) -> pa.Table | None:
    """Read what a place keeps of a segment; with ``whole`` all rows of a small one."""
    if whole:
        return await backend.read_segment(segment, None, limit=0, operation=operation)
    return await backend.read_segment(segment, [], operation=operation)


def bloom_reads(manifest: Manifest, backend: IndexBackend, index_table: IndexTable, ids: RowRanges) -> Reads:
    """Those of the bloom filters of these files."""
    return tolerant(index_table, segment_reads(manifest, backend, index_table, id_ranges(ids)))


def asked_leaves(schema: pa.Schema, partitions: Sequence[str], ask: DatasetRequest) -> frozenset[int] | None:
    """Ordinals of the leaves that a read needs, in files that have the dataset's columns in its order; None for all.

    It is a guess where files may have others: what is missing is read from the file.
    """
    spans: dict[str, tuple[int, int]] = {}
    total = 0
    for field in schema:
        if field.name not in partitions:
            count = _num_leaves(field.type)
            spans[field.name] = (total, total + count)
            total += count
    if total <= _MOST_LEAVES or ask.columns is None:
        return None
    named = [*ask.columns, *ask.keys, *(() if ask.where is None else columns(ask.where))]
    leaves: set[int] = set()
    for name in named:
        top = schema.names[name] if isinstance(name, int) else name
        while top not in spans and "." in top:
            top = top.rpartition(".")[0]
        if top in spans:
            leaves.update(range(*spans[top]))
        elif top not in partitions:
            return None
    return frozenset(leaves or (0,))


def _num_leaves(type_: pa.DataType) -> int:
    if isinstance(type_, pa.DictionaryType):
        return _num_leaves(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _num_leaves(type_.storage_type)
    return sum(_num_leaves(type_.field(at).type) for at in range(type_.num_fields)) if type_.num_fields else 1
