"""Fetch the page indexes of given column chunks, through the caches.

If a file has no usable OffsetIndex, the first read of a whole chunk shows where its pages are. Later reads use these
"learnt" page locations like an index, and find the pages in the memory cache under the same keys. No locations are
learnt from a chunk with a page that begins inside a row, or whose pages depend on one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, TypeAlias

from asyncpq.caching.entry_format import ContentKey, PartKind
from asyncpq.errors import FormatError
from asyncpq.objects.object_read import FileRead
from asyncpq.objects.read_plan import ChunkSpan
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import WRONG_UNCOMPRESSED_SIZE
from asyncpq.parquet.column_chunk import ColumnChunk, IndexPlaces
from asyncpq.parquet.page_index import (
    OffsetIndex,
    check_page_sizes,
    decode_column_index,
    decode_offset_index,
    validate_offset_index,
)
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ColumnOrder, order_of, page_bounds
from asyncpq.parquet.writer_faults import Claim
from asyncpq.pruning.zone_maps import PageZones
from asyncpq.records import NamedTuple, dataclass


class IndexRequest(NamedTuple):
    """A request for the page locations (OffsetIndex) of one column chunk and, with ``bounds``, for its ColumnIndex."""

    row_group: int
    leaf: int
    bounds: bool


class IndexedChunk(NamedTuple):
    """A column chunk, its byte range (see :class:`ChunkSpan`), and the keys of its page indexes in the memory cache.

    Attributes:
        has_index: it has an OffsetIndex of its own that may be used.
        locations: key of its page locations: from that OffsetIndex, else from an earlier read of the chunk or an
            external index.
        bounds: key of its ColumnIndex, or None.
        faults: statements of its ColumnIndex that are ignored.
    """

    leaf: int
    start: int
    stop: int
    chunk: ColumnChunk  # from the footer
    has_index: bool
    locations: ContentKey
    bounds: ContentKey | None
    faults: tuple[str, ...] = ()


class Unusable(NamedTuple):
    """Stored in the cache in place of a broken index, so that the index is fetched and checked only once."""

    reason: str


Place: TypeAlias = tuple[int, int]  # row group and leaf


_BYTES_A_STEP = 64  # of an index, whose pages take some 10 microseconds each


@dataclass(slots=True)
class PageIndexes:
    """The page indexes that a read uses, keyed by (row group, leaf column). Without absent and unusable ones.

    Attributes:
        offsets: page locations.
        learnt: those that the chunk itself gave when it was read, not an index.
        zones: bounds of the pages, ready for pruning.
        spans: bytes of the chunks that were requested.
    """

    read: FileRead
    offsets: dict[Place, OffsetIndex] = field(default_factory=dict)
    learnt: set[Place] = field(default_factory=set)
    zones: dict[Place, PageZones] = field(default_factory=dict)
    spans: dict[Place, ChunkSpan] = field(default_factory=dict)

    async def fetch(self, requests: Sequence[IndexRequest]) -> None:
        """Fetch, check and parse the requested page indexes. Those that must come from the store come in one round.

        A chunk without an OffsetIndex gets no bounds either, since bounds apply to pages. Each missing or unusable
        index is recorded in the metrics' ``fallbacks``.
        """
        read, steps = self.read, len(requests)
        runtime, made = read.source.runtime, read.version.made
        if made:
            places = [(request.row_group, request.leaf) for request in requests]
            steps += sum([len(made[place].offsets) for place in places if place in made]) // _BYTES_A_STEP
        look_up = partial(self._look_up, requests)
        missing, bounded = look_up() if steps <= INLINE_STEPS else await runtime.in_thread(look_up)
        if missing:
            keys = list(dict.fromkeys([key for _, key, _ in missing]))
            parts = await read.fetch(keys, "index", read.metrics.rounds + 1)
            steps += sum(map(len, parts.data.values())) // _BYTES_A_STEP
            if await runtime.off_loop(partial(self._decode, missing, parts.data), steps):
                read.share(parts)
        if made and bounded:
            wanted = [made[place] for request, _, _ in bounded if (place := (request.row_group, request.leaf)) in made]
            steps += sum([len(index.bounds or b"") for index in wanted]) // _BYTES_A_STEP
            await runtime.off_loop(partial(self._bound_all, bounded), steps)
        elif bounded:
            self._bound_all(bounded)

    def _bound_all(self, bounded: Sequence[tuple[IndexRequest, IndexedChunk, Any]]) -> None:
        for request, chunk, known in bounded:
            self._bound(request, chunk, known)

    def find(self, requests: Sequence[IndexRequest]) -> None:
        """Use the page indexes that are in memory; fetch nothing."""
        _, bounded = self._look_up(requests)
        self._bound_all(bounded)

    def _look_up(
        self, requests: Sequence[IndexRequest]
    ) -> tuple[list[tuple[IndexRequest, ContentKey, ColumnChunk]], list[tuple[IndexRequest, IndexedChunk, Any]]]:
        """Use the page indexes that are in memory. Return two lists: the indexes to fetch, with their keys; and the
        requests whose bounds are not parsed yet, each with what memory has under the bounds' key (None if nothing)."""
        version, metrics = self.read.version, self.read.metrics
        wanted: list[tuple[IndexRequest, IndexedChunk]] = []
        keys: list[ContentKey] = []
        chunks: Mapping[tuple[int, int], IndexedChunk] = version.chunks
        for request in requests:
            place = (request.row_group, request.leaf)
            chunk = chunks.get(place) or indexed_chunk(version, *place)
            wanted.append((request, chunk))
            self.spans[place] = chunk
            keys.append(chunk.locations)
            if request.bounds and chunk.bounds is not None:
                keys.append(chunk.bounds)
        known = iter(self.read.source.runtime.memory.get_many(keys))
        missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]] = []
        bounded: list[tuple[IndexRequest, IndexedChunk, Any]] = []
        for request, chunk in wanted:
            parsed = next(known)
            zones = next(known) if request.bounds and chunk.bounds is not None else None
            if chunk.has_index and isinstance(parsed, OffsetIndex):
                metrics.cache_hits += 1
                self.offsets[request.row_group, request.leaf] = parsed
            elif not self._locate(request, chunk, parsed, missing):
                continue
            if not request.bounds:
                continue  # bounds without locations are of no use
            if isinstance(zones, PageZones) and not chunk.faults:
                metrics.cache_hits += 1
                self.zones[request.row_group, request.leaf] = zones
                continue
            bounded.append((request, chunk, zones))
            if chunk.bounds is not None and zones is None:
                missing.append((request, chunk.bounds, chunk.chunk))
        return missing, bounded

    def _bound(self, request: IndexRequest, chunk: IndexedChunk, known: Any) -> None:
        """Use the bounds of a chunk that were not parsed at first. ``known``: what memory had under the key of its
        ColumnIndex."""
        place, metrics = (request.row_group, request.leaf), self.read.metrics
        if chunk.bounds is None:
            self._use_made_zones(request, chunk)
            return
        if isinstance(known, Unusable):
            metrics.fall_back(known.reason)
        elif known is not None:
            metrics.cache_hits += 1
            self.zones[place] = known
        if chunk.faults and place in self.zones:
            metrics.fall_back_all(chunk.faults)

    def _locate(
        self,
        request: IndexRequest,
        chunk: IndexedChunk,
        parsed: Any,
        missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]],
    ) -> bool:
        """Return whether the chunk's page locations are known, or will be once its OffsetIndex, then appended to
        ``missing``, is fetched. ``parsed``: what memory has under the locations' key, which is no OffsetIndex of the
        chunk's own."""
        place = (request.row_group, request.leaf)
        if chunk.has_index and parsed is None and place not in self.read.version.made:
            missing.append((request, chunk.locations, chunk.chunk))
            return True
        return self._use_learnt(request, chunk, parsed)

    def _use_learnt(self, request: IndexRequest, chunk: IndexedChunk, parsed: Any) -> bool:
        """Use page locations from an earlier read or from an external index, and return True. If there are none, record
        that whole chunks are read, and return False."""
        place, version, metrics = (request.row_group, request.leaf), self.read.version, self.read.metrics
        key = _learnt_key(version, chunk)
        learnt = self.read.source.runtime.memory.get(key) if chunk.has_index else parsed
        if learnt is None and place in version.made:
            try:
                learnt = _offset_index(version.made[place].offsets, chunk.chunk, self._num_rows(request))
            except FormatError as error:
                metrics.fall_back(f"{self._name(request)}: {error.message}; the index is not used")
                del version.made[place]
            else:
                self.read.source.runtime.memory.put(key, learnt, learnt.weight)
        if learnt is None:
            split = chunk.chunk.offset_index_range is not None
            why = "its writer may split rows between pages" if split else "no OffsetIndex"
            reason = f"{self._name(request)}: {why}, whole chunks are read"
            metrics.fall_back(parsed.reason if isinstance(parsed, Unusable) else reason)
            return False
        metrics.cache_hits += 1
        self.offsets[place] = learnt
        self.learnt.add(place)
        return True

    def _use_made_zones(self, request: IndexRequest, chunk: IndexedChunk) -> None:
        """Use the chunk's page bounds from an external index, if it has them; else record that pages are not pruned."""
        place, memory = (request.row_group, request.leaf), self.read.source.runtime.memory
        made = self.read.version.made.get(place)
        zones: PageZones | None = None
        if made is not None and made.bounds is not None and place in self.offsets:
            key = self.read.version.key("learnt_bounds", chunk.start, chunk.stop)
            zones = memory.get(key)
            if zones is None:
                try:
                    zones = self._page_zones(made.bounds, request, ColumnOrder.TYPE_ORDER)
                except FormatError:
                    self.read.version.made[place] = made._replace(bounds=None)
                else:
                    memory.put(key, zones, zones.weight)
        if zones is None:
            self.read.metrics.fall_back(f"{self._name(request)}: no ColumnIndex, its pages are not pruned")
        else:
            self.zones[place] = zones

    def _decode(
        self, missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]], data: Mapping[ContentKey, bytes]
    ) -> bool:
        """Decode the fetched indexes and keep them in memory; return whether all are usable. Of many reads that fetched
        an index at once, the first one decodes it."""
        metrics, runtime, good = self.read.metrics, self.read.source.runtime, True
        memory = runtime.memory
        # locations come first: bounds are counted against them
        missing = sorted(missing, key=lambda item: item[1].kind != "offset_index")
        beside = len(runtime.calls) > 1
        known = memory.get_many([key for _, key, _ in missing]) if beside else itertools.repeat(None, len(missing))
        for (request, key, chunk), held in zip(missing, known, strict=True):
            place = (request.row_group, request.leaf)
            parsed: OffsetIndex | PageZones
            try:
                if isinstance(held, OffsetIndex):
                    self.offsets[place] = held
                    continue
                if isinstance(held, PageZones):
                    self.zones[place] = held
                    continue
                if key.kind == "offset_index":
                    parsed = _offset_index(data[key], chunk, self._num_rows(request))
                    check_page_sizes(parsed, chunk_stop=chunk.stop)
                    self.offsets[place] = parsed
                elif place in self.offsets:
                    parsed = self.zones[place] = self._page_zones(data[key], request)
                else:
                    continue
            except FormatError as error:
                reason = f"{self._name(request)}: {error.message}; the index is not used"
                metrics.fall_back(reason)
                memory.put(key, Unusable(reason), len(reason))
                good = False
            else:
                memory.put(key, parsed, parsed.weight)
        return good

    def _page_zones(self, data: bytes, request: IndexRequest, made_in: ColumnOrder | None = None) -> PageZones:
        """Decode a ColumnIndex to the page bounds that it proves. ``made_in``: the order of the bounds of an external
        index; None for the file's own ColumnIndex."""
        metadata, column_order = self.read.version.metadata, made_in
        leaf, num_rows = metadata.schema.leaves[request.leaf], self._num_rows(request)
        offsets = self.offsets[request.row_group, request.leaf]
        if column_order is None and metadata.column_orders:
            column_order = metadata.column_orders[request.leaf]
        order = order_of(leaf, column_order)
        bounds = page_bounds(
            decode_column_index(data),
            leaf,
            order,
            offsets.row_counts(num_rows),
            has_column_orders=column_order is not None,
            faults=metadata.writer_faults if made_in is None else None,
            encodings=metadata.row_groups[request.row_group].chunk(request.leaf).encodings,
            calendar=metadata.calendars.get(request.leaf),
        )
        return PageZones(leaf, order, bounds, offsets, num_rows)

    def _num_rows(self, request: IndexRequest) -> int:
        return self.read.version.metadata.row_groups[request.row_group].num_rows

    def _name(self, request: IndexRequest) -> str:
        return self.read.version.metadata.schema.leaves[request.leaf].dotted


def indexed_chunk(version: FileVersion, row_group: int, leaf: int) -> IndexedChunk:
    """Return a column chunk with the keys of its indexes. Raises CorruptFileError or UnsupportedFeatureError, with url
    and column, if the chunk cannot be read."""
    known: IndexedChunk | None = version.chunks.get((row_group, leaf))
    if known is not None:
        return known
    return version.keep_chunk(row_group, leaf, _indexed_chunk(version, row_group, leaf), 600)


def _indexed_chunk(version: FileVersion, row_group: int, leaf: int) -> IndexedChunk:
    chunk = version.chunk(row_group, leaf)
    for what in chunk.dropped:
        version.drop(leaf, what)
    if not chunk.total_uncompressed_size and chunk.num_values:
        version.drop(leaf, WRONG_UNCOMPRESSED_SIZE)
    start, stop = chunk.start, chunk.stop
    offsets, bounds = index_keys(version, chunk, leaf)
    locations = offsets or version.key("learnt", start, stop)
    faults = tuple(_faults(version, version.metadata.schema.leaves[leaf], chunk))
    return IndexedChunk(leaf, start, stop, chunk, offsets is not None, locations, bounds, faults)


def _learnt_key(version: FileVersion, chunk: IndexedChunk) -> ContentKey:
    """Return the cache key of page locations that come from an earlier read or an external index, not from the chunk's
    own OffsetIndex."""
    return version.key("learnt", chunk.start, chunk.stop) if chunk.has_index else chunk.locations


def learnt_locations(read: FileRead, row_group: int, leaf: int) -> OffsetIndex | None:
    """Return the page locations that an earlier read of the chunk has learnt, if memory has them."""
    known = read.source.runtime.memory.get(_learnt_key(read.version, indexed_chunk(read.version, row_group, leaf)))
    return known if isinstance(known, OffsetIndex) else None


def drop_locations(read: FileRead, row_group: int, leaf: int) -> None:
    """Stop using page locations for a chunk, whatever their source: its pages are not at the given offsets."""
    version = read.version
    known = indexed_chunk(version, row_group, leaf)
    chunk = known.chunk._replace(offset_index_offset=None, column_index_offset=None)
    learnt = _learnt_key(version, known)
    version.chunks[row_group, leaf] = known._replace(chunk=chunk, has_index=False, locations=learnt, bounds=None)
    version.made.pop((row_group, leaf), None)
    read.source.runtime.memory.discard(learnt)
    version.drop(leaf, "its OffsetIndex is not that of its pages")


def index_keys(
    version: FileVersion, chunk: ColumnChunk | IndexPlaces, leaf: int
) -> tuple[ContentKey | None, ContentKey | None]:
    """Return the keys of a chunk's own OffsetIndex and ColumnIndex; None for an index that is absent or unusable."""
    return (
        _key(version, "offset_index", own_offset_index(version, chunk, leaf)),
        _key(version, "column_index", chunk.column_index_range),
    )


def own_offset_index(version: FileVersion, chunk: ColumnChunk | IndexPlaces, leaf: int) -> tuple[int, int] | None:
    """Return (offset, length) of a chunk's OffsetIndex; None if it is absent, or if pages may begin inside a row."""
    wrong = version.metadata.writer_faults.find(Claim.PAGE_ROWS, version.metadata.schema.leaves[leaf])
    return None if wrong is not None else chunk.offset_index_range


def learn_locations(read: FileRead, row_group: int, leaf: int, index: OffsetIndex) -> None:
    """Keep the page locations of a chunk that was read whole because it had no usable OffsetIndex.

    Args:
        index: the locations in the form of an OffsetIndex; every page begins with the first value of a row.
    """
    version, memory = read.version, read.source.runtime.memory
    known = indexed_chunk(version, row_group, leaf)
    chunk = known.chunk
    if known.has_index and not isinstance(memory.get(known.locations), Unusable):
        return  # it was read whole for another reason
    leaf_ = version.metadata.schema.leaves[leaf]
    if version.metadata.writer_faults.find(Claim.PAGE_INDEPENDENCE, leaf_, chunk.encodings) is not None:
        return
    validate_offset_index(
        index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=version.metadata.row_groups[row_group].num_rows
    )
    memory.put(_learnt_key(version, known), index, index.weight)


def _faults(version: FileVersion, leaf: Leaf, chunk: ColumnChunk) -> Iterator[str]:
    """Yield the statements of a ColumnIndex that are ignored, because the file's writer is known to get them wrong."""
    for claim in (Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS):
        fault = version.metadata.writer_faults.find(claim, leaf, chunk.encodings)
        if fault is not None:
            yield f"{leaf.dotted}: {fault.reason(claim)}; they are not used"


def _offset_index(data: bytes, chunk: ColumnChunk, num_rows: int) -> OffsetIndex:
    index = decode_offset_index(data)
    validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
    return index


def _key(version: FileVersion, kind: PartKind, place: tuple[int, int] | None) -> ContentKey | None:
    """Return the cache key of the index at the (offset, length) ``place``; None if ``place`` is None or impossible."""
    if place is None or place[0] < 4 or place[1] > version.footer_start:
        return None
    return version.key(kind, *place)
