"""An index's data about single files: their entries, matched with a listing, their footers and page indexes.

With this data, a read fetches data pages of a file without reading the file's footer first. The ``If-Match`` header of
these GETs validates the data: if the file has another version, the read ignores the index's data about the file, and
opens the file like any other.
"""

from __future__ import annotations

import asyncio
import weakref
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.datasets.model import DataFile, IndexEntry, urls_of
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_array
from asyncpq.decoding.paths import top_level
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError, counted
from asyncpq.events import Operation
from asyncpq.expressions import columns
from asyncpq.indexing.commits import IndexedFile, file_chunks, files_in
from asyncpq.indexing.entry_encoding import SHARED, by_file, decode_leaf, decode_made, decode_shared
from asyncpq.indexing.index_model import BY_VALUE, KeyRange, Segment, SegmentQuery, file_key
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.indexing.query.file_selection import FileSelection, Reads, SnapshotRead, together, worked
from asyncpq.indexing.query.key_ranges import merged_ranges
from asyncpq.objects.version import KnownVersion
from asyncpq.options import LimitOptions
from asyncpq.parquet.metadata import decode_file_metadata, join_pieces
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import Validator


def known_version(
    file: int, footers: Mapping[int, bytes], pages: Mapping[int, bytes], validator: Validator, limits: LimitOptions
) -> KnownVersion | None:
    """Decode an index's payloads of the file with the id ``file`` into a version with its footer and page indexes;
    None if there are no payloads. ``footers`` and ``pages`` are payloads by leaf ordinal
    (:func:`asyncpq.indexing.entry_encoding.by_file`), of all leaves or of some; without leaf -1 in ``footers`` the
    result has page indexes only. Raises CorruptIndexError if a payload is damaged or of another version than
    ``validator`` identifies; callers treat such a payload as missing."""
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
            f"the footer in the index belongs to another version of the file: {shared.size} bytes, now {validator.size}"
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
_LONG_SEGMENT: Final = 1 << 16  # rows; of a longer list of files, a directory is made batch by batch
_MOST_AHEAD: Final = 4  # segments of a table that are read ahead; of more, only the ones that matter are read


class FileEntry(NamedTuple):
    """What an index says about one version of a file: its path, version and row groups."""

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
    """Decode ``table``, rows of the index table "files"; return the entries by file id. Raises CorruptIndexError if
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


class FileDirectory:
    """The versions of files that a snapshot lists, found by url: 48 bytes for each file, however long its url is.

    It stores hashes of urls (128 bits) and of versions (64 bits). These are Python's own hashes, so a directory is
    valid only in the process that made it. ``rows`` has the columns of :func:`directory_rows`, in any order.
    """

    def __init__(self, rows: pa.Table) -> None:
        # the first row with a hash is found: of several versions of a file, the newest
        self._rows = rows = rows.take(pc.sort_indices(rows, [("id", "descending")])).combine_chunks()
        self.weight: int = int(rows.nbytes) + 1000
        #: Rows of all files together; None if the index does not know those of each.
        self.num_rows: int | None = None if -1 in (counts := self._numbers("num_rows")) else sum(counts)

    @classmethod
    def empty(cls) -> FileDirectory:
        """Return a directory without files."""
        return cls(pa.Table.from_batches([], _DIRECTORY))

    def match(self, files: Sequence[DataFile], manifest: Manifest) -> ListingMatch:
        """Look up the listed ``files`` in the directory by url and version, and return which entries they match.
        ``manifest`` is the directory's snapshot."""
        count = self._rows.num_rows
        checks, versions, sizes, ids, counts = map(self._numbers, ("check", "version", "size", "id", "num_rows"))
        urls = plain_array(list(map(hash, urls_of(files))), pa.int64())
        places = pc.index_in(urls, value_set=self._rows["url"]).to_pylist()
        positions = array("q", [-1]) * count  # of the listed file of each row
        unversioned, unknown = array("q"), array("q")
        unsure: dict[int, int] = {}
        for position, (file, place) in enumerate(zip(files, places, strict=True)):
            is_known = place is not None and checks[place] == _check(file.url)
            if not is_known or positions[place] >= 0 or ids[place] in unsure:  # a list may repeat a file
                unknown.append(position)
                continue
            size, validator = sizes[place], file.validator
            if validator is not None:
                is_same = size != _NEVER_READ and versions[place] == _version(validator)
            else:  # only the version of a file that never changes is known without a validator
                is_same = file.immutable and size >= 0 and file.size in (None, size)
            if is_same:
                positions[place] = position
            elif validator is None and not file.immutable and size != _NEVER_READ:
                unsure[ids[place]] = position
            else:
                unknown.append(position)
            if validator is None:
                unversioned.append(ids[place])
        matched = [place for place in range(count - 1, -1, -1) if positions[place] >= 0]  # by ascending id
        num_rows, uncounted = 0, array("q")
        for place in matched:
            if counts[place] >= 0 and files[positions[place]].deletes is None:
                num_rows += counts[place]
            else:
                uncounted.append(positions[place])
        known = RowRanges.from_rows([ids[place] for place in matched])
        return ListingMatch(
            files,
            manifest,
            known,
            [0, *accumulate([stop - start for start, stop in known])],
            array("q", [positions[place] for place in matched]),
            unsure,
            unknown,
            sorted(unversioned),
            num_rows,
            uncounted,
        )

    def _numbers(self, name: str) -> memoryview:
        column = self._rows[name]
        values = column.chunk(0).buffers()[1] if column.num_chunks else b""
        return memoryview(values).cast("q")[: len(column)]


_DIRECTORY: Final = pa.schema([(name, pa.int64()) for name in ("id", "url", "check", "version", "size", "num_rows")])
_UNREADABLE: Final = -1  # as a size: the file could not be read
_NEVER_READ: Final = -2  # likewise, and its version is not known


def directory_rows(manifest: Manifest, rows: pa.Table) -> pa.Table:
    """Return the table for a :class:`FileDirectory` of the files that readers see. ``rows`` are rows of the index
    table "files". Raises CorruptIndexError if a row is impossible."""
    live = manifest.live
    columns: tuple[list[int], ...] = ([], [], [], [], [], [])
    for file in chain.from_iterable(file_chunks(rows)):
        if file.id in live:
            url, validator = url_in(manifest, file.path), file.validator
            size = _NEVER_READ if validator is None else _UNREADABLE if file.num_rows is None else validator.size
            version = 0 if validator is None else _version(validator)
            num_rows = -1 if file.num_rows is None else file.num_rows
            record = (file.id, hash(url), _check(url), version, size, num_rows)
            for column, number in zip(columns, record, strict=True):
                column.append(number)
    return pa.Table.from_arrays([plain_array(column, pa.int64()) for column in columns], schema=_DIRECTORY)


def _check(url: str) -> int:
    """Return a second hash of ``url``, independent of ``hash(url)``; both together identify a url."""
    return hash(f"\0{url}")


def _version(validator: Validator) -> int:
    """Return a hash that is the same for two validators of one version (:meth:`Validator.same_version`)."""
    modified = None if validator.is_strong else validator.last_modified
    return hash((validator.size, validator.etag, validator.version, modified))


async def load_directory(read: SnapshotRead) -> FileDirectory:
    """Return the directory of a read's snapshot, from the session's memory if that has it."""
    manifest, memory = read.manifest, read.runtime.memory
    key = ("directory of files", manifest.index, manifest.snapshot, manifest.root)
    directory: FileDirectory | None = memory.get(key)
    if directory is not None:
        return directory
    segments = manifest.segments_of(FILES)
    parts = await together(read.operation, [partial(_directory_part, read, segment) for segment in segments])
    batches = chain.from_iterable(table.to_batches() for table in chain.from_iterable(parts))
    rows = pa.Table.from_batches(batches, _DIRECTORY)  # empty_table() would import pandas
    directory = await worked(read.runtime, rows.num_rows, partial(FileDirectory, rows))
    memory.put(key, directory, directory.weight)
    return directory


async def _directory_part(read: SnapshotRead, segment: Segment, operation: Operation) -> list[pa.Table]:
    make = partial(directory_rows, read.manifest)
    if segment.num_rows <= _LONG_SEGMENT:
        rows = await read.backend.read_segment(segment, operation=operation)
        return [] if rows is None else [await worked(read.runtime, rows.num_rows, partial(make, rows))]
    batches = read.backend.iterate_segment(segment, operation=operation)
    return [await worked(read.runtime, batch.num_rows, partial(make, batch)) async for batch in batches]


@dataclass(frozen=True, slots=True)
class ListingMatch:
    """Which files of one listing have which entries in one snapshot of an index. All reads of the two share a match."""

    files: Sequence[DataFile]  # the listing
    manifest: Manifest  # the snapshot
    ids: RowRanges  # files whose version the index knows
    ranks: Sequence[int]  # number of ``ids`` before each of their ranges
    positions: Sequence[int]  # positions of ``ids`` in ``files``, by ascending id
    # positions, by id, of files without a version in the listing; the version is compared when the file is opened
    unsure: Mapping[int, int]
    # positions of files that are new to the index or have another version; they are read without it
    unknown: Sequence[int]
    unversioned: Sequence[int]  # ids of files without a validator in the listing: to read them takes the index's own
    num_rows: int  # of the files ``ids``, but for those at the positions ``uncounted``, which have deletes or no count
    uncounted: Sequence[int]

    def needed(self, selection: FileSelection) -> RowRanges:
        """Return the ids of the files whose entries :meth:`candidates` must get. Others are optional."""
        if not self.unversioned:
            return RowRanges.empty()
        return (selection.files & RowRanges.from_rows(self.unversioned)) | RowRanges.from_rows(sorted(self.unsure))

    def candidates(self, selection: FileSelection, entries: Mapping[int, FileEntry]) -> list[Candidate]:
        """Return the listed files that may have matching rows, in the order of the listing. ``entries`` has the
        index's entries by file id."""
        matching: list[Candidate] = []
        for file, position in self._listed(selection.files):
            access, entry = selection.plans.get(file, _ALL), entries.get(file)
            if entry is None:
                matching.append(Candidate(position, file, self.files[position].validator, access))
            elif entry.may_match(access):
                matching.append(Candidate(position, file, entry.file.validator, access))
        for file, position in self.unsure.items():
            matching.append(Candidate(position, file, entries[file].file.validator, selection.plan(file)))
        matching += [Candidate(position, None, None, _ALL) for position in self.unknown]
        matching.sort(key=_POSITION)
        return matching

    def _listed(self, files: RowRanges) -> Iterator[tuple[int, int]]:
        """Yield file id and position in the listing for those of ``files`` (ids) whose listed version the index
        knows."""
        starts, stops = self.ids.starts, self.ids.stops
        for first, last in zip(files.starts, files.stops, strict=True):
            span = bisect_right(stops, first)
            while span < len(starts) and starts[span] < last:
                start, stop = max(first, starts[span]), min(last, stops[span])
                rank = self.ranks[span] + start - starts[span]
                yield from zip(range(start, stop), self.positions[rank : rank + stop - start], strict=True)
                span += 1

    def report(self) -> list[str]:
        """Return lines for ``explain()`` that say how many of the listed files the index knows."""
        lines: list[str] = []
        if self.unknown:
            known = len(self.files) - len(self.unknown)
            lines.append(f"knows {known} of {counted(len(self.files), 'file')} as they are; others are read without it")
        if self.unsure:
            lines.append(
                f"{len(self.unsure)} files have versions that the listing does not tell: each is opened, and what the "
                "index says of it used if it has the version that the index knows"
            )
        return lines


class Candidate(NamedTuple):
    """A listed file that may have matching rows."""

    position: int  # in the listing
    file: int | None  # id; None if the index lacks this version of the file
    validator: Validator | None  # of the indexed version
    access: AccessPlan  # rows that may match


class FooterReader:
    """Reads footers and page indexes of files from an index, for one read. ``is_useful`` is False if the index has
    none."""

    def __init__(
        self,
        read: SnapshotRead,
        payloads: Mapping[int, dict[str, dict[int, bytes]]] | None = None,
        versions: Mapping[int, KnownVersion] | None = None,
    ) -> None:
        self._read = read
        self._ids: Sequence[int] = ()
        self._positions: dict[int, int] = {}
        self._leaves = needed_leaves(read.manifest, read.ask)
        self.is_useful: bool = bool(read.manifest.footer_tables)
        self._payloads = dict(payloads or {})
        self._versions = dict(versions or {})
        self._chunks: OrderedDict[int, asyncio.Lock] = OrderedDict()

    def again(self) -> FooterReader:
        """Return a reader for the same request over other files, with a copy of the footers read so far."""
        return FooterReader(self._read, self._payloads, self._versions)

    def expect(self, ids: Sequence[int]) -> None:
        """Set the files that the read will need, in this order: footers are read ahead in that order. Does nothing if
        the index has no footers."""
        if self.is_useful:
            self._ids = ids
            self._positions = {file: position for position, file in enumerate(ids)}

    def reads(self, ids: Sequence[int]) -> list[tuple[str, Reads]]:
        """Return the reads of index segments that load the footers and page indexes of the files ``ids``, except
        those that this reader already has. Each item is a kind of index table ("footers" or "pages") and its reads."""
        if not self.is_useful:
            return []
        missing = [file for file in ids if file not in self._versions]
        if not missing:
            return []
        ranges = merged_ranges([wanted for file in missing for wanted in self._ranges(file)])
        reads = [
            (table.kind, self._read.segments(table, SegmentQuery(ranges), tolerant=True))
            for table in self._read.manifest.footer_tables
        ]
        return [(kind, kind_reads) for kind, kind_reads in reads if kind_reads]

    def use(self, held: Mapping[int, KnownVersion | weakref.ref[KnownVersion] | None]) -> None:
        """Take over file versions from the session's memory: ``held`` has, by file id, what memory has under
        :meth:`key`, or None. Versions that are None or already freed are loaded from the index when they are needed."""
        versions = {file: _version_of(kept) for file, kept in held.items()}
        self._versions = {file: version for file, version in versions.items() if version is not None}

    def key(self, file: int) -> tuple[object, ...]:
        """Return the key of a file's version in the session's memory."""
        return ("known", self._read.manifest.index, file, self._leaves)

    def take(self, kind: str, tables: Iterable[pa.Table | None]) -> None:
        """Keep the payloads in ``tables``, which the reads of :meth:`reads` for tables of ``kind`` returned. Raises
        CorruptIndexError if a key is impossible."""
        for table in tables:
            if table is not None:
                for file, payloads in by_file(table).items():
                    self._payloads.setdefault(file, {}).setdefault(kind, {}).update(payloads)

    def entry(self, file: int, validator: Validator | None, access: AccessPlan) -> IndexEntry:
        """Return the entry with which a read opens the file: the rows that it may read, ``access``, and the index's
        footer, which is loaded when it is needed. ``validator`` identifies the indexed version."""
        known = partial(self._known, file, validator) if validator is not None and self.is_useful else None
        return IndexEntry(access=access, validator=validator, known=known)

    async def _known(self, file: int, validator: Validator, operation: Operation) -> KnownVersion | None:
        version = self._versions.get(file) or _version_of(self._read.runtime.memory.get(self.key(file)))
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

    def _hold(self, file: int, version: KnownVersion) -> None:
        memory, key = self._read.runtime.memory, self.key(file)
        if version.metadata is not None and version.leaves is None:
            # memory holds the version that is made of it: its bytes must not count twice
            memory.put(key, weakref.ref(version), 300)
            return
        spans = sum([len(data) + 100 for _, data in version.spans])
        metadata = 0 if version.metadata is None else version.metadata.weight
        memory.put(key, version, metadata + spans + 500)

    async def _read_ahead(self, file: int, operation: Operation) -> None:
        """Load the footers of ``file`` and of the expected files around it, in one round; concurrent callers share
        the result."""
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
        self.use(dict(zip(ids, self._read.runtime.memory.get_many(map(self.key, ids)), strict=True)))
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


def _version_of(held: KnownVersion | weakref.ref[KnownVersion] | None) -> KnownVersion | None:
    """Return the version behind a cached value, which may be a weak reference; None if there is no version any more."""
    return held() if isinstance(held, weakref.ref) else held


def first_reads(read: SnapshotRead, *, whole: bool) -> Reads:
    """Return reads that load tables whose keys begin with file ids, such as the list of files, into memory for later
    lookups. With ``whole``, they load all rows of small segments, because files are looked up next; otherwise only the
    footers of segments, with the bounds of their keys."""
    reads: Reads = []
    query = SegmentQuery(limit=0) if whole else SegmentQuery([])  # no rows are returned
    for table in read.manifest.tables:
        segments = () if table.kind in BY_VALUE else read.manifest.segments_of(table)
        if len(segments) <= _MOST_AHEAD:
            reads += [read.segment(segment, query, tolerant=True) for segment in segments]
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
        top = manifest.schema.names[name] if isinstance(name, int) else top_level(manifest.schema, name) or name
        if top in spans:
            leaves.update(range(*spans[top]))
        elif top not in partitions:
            return None
    return frozenset(leaves or (0,))
