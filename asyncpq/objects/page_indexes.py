"""Page indexes of chosen column chunks, through the caches.

Page locations are learnt where a file has no usable OffsetIndex: a chunk that was read whole shows where its pages
are, and later reads use that like an index. Its pages stay in memory under the keys that those reads ask for. Nothing
is learnt of chunks with a page that begins inside a row, or whose pages depend on one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asyncpq.caching.entry import ContentKey, PartKind
from asyncpq.errors import FormatError
from asyncpq.objects.parts import fetch_parts, share_parts
from asyncpq.objects.read_plan import ChunkSpan
from asyncpq.objects.source import ObjectSource
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
from asyncpq.storage.base import RequestContext


class IndexRequest(NamedTuple):
    """One column chunk whose page locations, and perhaps bounds, are wanted."""

    row_group: int
    leaf: int
    bounds: bool


class IndexedChunk(NamedTuple):
    """A column chunk, and the keys under which memory holds what is known of its pages."""

    chunk: ColumnChunk  # from the footer
    span: ChunkSpan  # its bytes
    offsets: ContentKey | None  # key of its own OffsetIndex, where it has one that may be used; else None
    bounds: ContentKey | None  # key of its ColumnIndex, or None
    learnt: ContentKey  # key of page locations that the chunk itself told, or an index beside the object
    learnt_bounds: ContentKey  # key of the bounds that such an index gave
    faults: tuple[str, ...] = ()  # what of its ColumnIndex is not believed


class Unusable(NamedTuple):
    """Stands in the cache for an index that is broken, so that it is fetched and judged once."""

    reason: str


@dataclass(slots=True)
class PageIndexes:
    """What was found, by (row group, leaf). Absent and unusable indexes are simply not there."""

    offsets: dict[tuple[int, int], OffsetIndex] = field(default_factory=dict)  # page locations
    # those of them that no index gave, but the chunk itself when it was read
    learnt: set[tuple[int, int]] = field(default_factory=set)
    zones: dict[tuple[int, int], PageZones] = field(default_factory=dict)  # bounds of the pages, ready for pruning
    spans: dict[tuple[int, int], ChunkSpan] = field(default_factory=dict)  # bytes of the chunks that were asked about


async def fetch_page_indexes(
    source: ObjectSource, version: FileVersion, requests: Iterable[IndexRequest], context: RequestContext
) -> PageIndexes:
    """Fetch, check and parse page indexes; all that must come from the store comes in one round.

    A chunk without an OffsetIndex gets no bounds either: rows could not be told from them. What is missing or unusable
    is noted among the metrics' fallbacks. Raises StoreError, ObjectChangedError: the store failed.
    """
    indexes = PageIndexes()
    wanted: list[tuple[IndexRequest, IndexedChunk]] = []
    keys: list[ContentKey] = []
    for request in requests:
        chunk = indexed_chunk(version, request.row_group, request.leaf)
        wanted.append((request, chunk))
        indexes.spans[request.row_group, request.leaf] = chunk.span
        keys.append(chunk.offsets or chunk.learnt)
        if request.bounds and chunk.bounds is not None:
            keys.append(chunk.bounds)
    known = dict(zip(keys, source.runtime.memory.get_many(keys), strict=True))
    missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]] = []
    unbounded: list[tuple[IndexRequest, IndexedChunk]] = []
    for request, chunk in wanted:
        if not _locations(source, version, request, chunk, known, missing, indexes, context) or not request.bounds:
            continue  # bounds without locations are of no use
        if chunk.bounds is None:
            unbounded.append((request, chunk))
            continue
        parsed = known[chunk.bounds]
        if parsed is None:
            missing.append((request, chunk.bounds, chunk.chunk))
        elif isinstance(parsed, Unusable):
            context.metrics.fall_back(parsed.reason)
        else:
            context.metrics.cache_hits += 1
            indexes.zones[request.row_group, request.leaf] = parsed
    if missing:
        await _fetch(source, version, missing, indexes, context)
    for request, chunk in wanted:
        if chunk.faults and chunk.bounds is not None and (request.row_group, request.leaf) in indexes.zones:
            context.metrics.fall_back_all(chunk.faults)
    if unbounded:
        _add_made_zones(source, version, unbounded, indexes, context)
    return indexes


def _add_made_zones(
    source: ObjectSource,
    version: FileVersion,
    unbounded: Iterable[tuple[IndexRequest, IndexedChunk]],
    indexes: PageIndexes,
    context: RequestContext,
) -> None:
    """Bounds of chunks without a ColumnIndex, where an index beside the object gives them."""
    for request, chunk in unbounded:
        place = (request.row_group, request.leaf)
        zones = _made_zones(source, version, request, chunk, indexes) if place in indexes.offsets else None
        if zones is not None:
            indexes.zones[place] = zones
        else:
            context.metrics.fall_back(f"{_name(version, request)}: no ColumnIndex, its pages are not pruned")


def _locations(
    source: ObjectSource,
    version: FileVersion,
    request: IndexRequest,
    chunk: IndexedChunk,
    known: Mapping[ContentKey, Any],
    missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]],
    indexes: PageIndexes,
    context: RequestContext,
) -> bool:
    """Whether the pages' places are in ``indexes`` now, or will be once what is ``missing`` has come."""
    place = (request.row_group, request.leaf)
    parsed = known[chunk.offsets or chunk.learnt]
    if parsed is None and chunk.offsets is not None and place not in version.made:
        missing.append((request, chunk.offsets, chunk.chunk))
        return True
    if isinstance(parsed, OffsetIndex) and chunk.offsets is not None:
        context.metrics.cache_hits += 1
        indexes.offsets[place] = parsed
        return True
    learnt = parsed if chunk.offsets is None else source.runtime.memory.get(chunk.learnt)
    if learnt is None and place in version.made:
        learnt = _made_locations(source, version, request, chunk, context)
    if learnt is not None:
        context.metrics.cache_hits += 1
        indexes.offsets[place] = learnt
        indexes.learnt.add(place)
        return True
    split = chunk.chunk.offset_index_range is not None
    why = "its writer may split rows between pages" if split else "no OffsetIndex"
    reason = f"{_name(version, request)}: {why}, whole chunks are read"
    context.metrics.fall_back(parsed.reason if isinstance(parsed, Unusable) else reason)
    return False


def _made_locations(
    source: ObjectSource, version: FileVersion, request: IndexRequest, chunk: IndexedChunk, context: RequestContext
) -> OffsetIndex | None:
    """Page locations that an index beside the object gives; not given again once they were found to be wrong."""
    place = (request.row_group, request.leaf)
    rows = version.metadata.row_groups[request.row_group].num_rows
    try:
        index = _offset_index(version.made[place].offsets, chunk.chunk, rows)
    except FormatError as error:
        context.metrics.fall_back(f"{_name(version, request)}: {error.message}; the index is not used")
        del version.made[place]
        return None
    source.runtime.memory.put(chunk.learnt, index, index.weight)
    return index


def _made_zones(
    source: ObjectSource, version: FileVersion, request: IndexRequest, chunk: IndexedChunk, indexes: PageIndexes
) -> PageZones | None:
    """Bounds of pages that an index beside the object gives. They were made in the order of the column's type."""
    place, memory = (request.row_group, request.leaf), source.runtime.memory
    made = version.made.get(place)
    if made is None or made.bounds is None:
        return None
    zones: PageZones | None = memory.get(chunk.learnt_bounds)
    if zones is None:
        rows = version.metadata.row_groups[request.row_group].num_rows
        try:
            zones = _page_zones(made.bounds, version, request, indexes.offsets[place], rows, ColumnOrder.TYPE_ORDER)
        except FormatError:
            version.made[place] = made._replace(bounds=None)
            return None
        memory.put(chunk.learnt_bounds, zones, zones.weight)
    return zones


def indexed_chunk(version: FileVersion, row_group: int, leaf: int) -> IndexedChunk:
    """A column chunk with the keys of its indexes. Raises CorruptFileError, UnsupportedFeatureError: the chunk cannot
    be read; names url and column."""
    known: IndexedChunk | None = version.chunks.get((row_group, leaf))
    if known is not None:
        return known
    return version.keep_chunk(row_group, leaf, _indexed_chunk(version, row_group, leaf), 1200)


def _indexed_chunk(version: FileVersion, row_group: int, leaf: int) -> IndexedChunk:
    chunk = version.chunk(row_group, leaf)
    for what in chunk.dropped:
        version.drop(leaf, what)
    if not chunk.total_uncompressed_size and chunk.num_values:
        version.drop(leaf, WRONG_UNCOMPRESSED_SIZE)
    return IndexedChunk(
        chunk,
        ChunkSpan(leaf, chunk.start, chunk.stop),
        *index_keys(version, chunk, leaf),
        version.key("learnt", chunk.start, chunk.stop),
        version.key("learnt_bounds", chunk.start, chunk.stop),
        tuple(_faults(version, version.metadata.schema.leaves[leaf], chunk)),
    )


def drop_locations(source: ObjectSource, version: FileVersion, row_group: int, leaf: int) -> None:
    """Use no page locations for a chunk any more, its own or others', since its pages are not where they say."""
    known = indexed_chunk(version, row_group, leaf)
    chunk = known.chunk._replace(offset_index_offset=None, column_index_offset=None)
    version.chunks[row_group, leaf] = known._replace(chunk=chunk, offsets=None, bounds=None)
    version.made.pop((row_group, leaf), None)
    source.runtime.memory.discard(known.learnt)
    version.drop(leaf, "its OffsetIndex is not that of its pages")


def index_keys(
    version: FileVersion, chunk: ColumnChunk | IndexPlaces, leaf: int
) -> tuple[ContentKey | None, ContentKey | None]:
    """Keys of a chunk's own OffsetIndex and ColumnIndex, each None where there is none that may be used."""
    return (
        _key(version, "offset_index", own_offset_index(version, chunk, leaf)),
        _key(version, "column_index", chunk.column_index_range),
    )


def own_offset_index(version: FileVersion, chunk: ColumnChunk | IndexPlaces, leaf: int) -> tuple[int, int] | None:
    """Where a chunk's OffsetIndex is; None also where its pages may begin inside a row, which it does not say."""
    wrong = version.metadata.writer_faults.find(Claim.PAGE_ROWS, version.metadata.schema.leaves[leaf])
    return None if wrong is not None else chunk.offset_index_range


def learn_locations(source: ObjectSource, version: FileVersion, row_group: int, leaf: int, index: OffsetIndex) -> None:
    """Keep where the pages of a chunk are that was read whole, for want of an index that could be used.

    Args:
        index: as its own OffsetIndex would say it; every page begins with the first value of a row.
    """
    memory = source.runtime.memory
    known = indexed_chunk(version, row_group, leaf)
    chunk = known.chunk
    if known.offsets is not None and not isinstance(memory.get(known.offsets), Unusable):
        return  # it was read whole for another reason
    leaf_ = version.metadata.schema.leaves[leaf]
    if version.metadata.writer_faults.find(Claim.PAGE_INDEPENDENCE, leaf_, chunk.encodings) is not None:
        return
    validate_offset_index(
        index,
        chunk_start=chunk.start,
        chunk_stop=chunk.stop,
        num_rows=version.metadata.row_groups[row_group].num_rows,
    )
    memory.put(known.learnt, index, index.weight)


async def _fetch(
    source: ObjectSource,
    version: FileVersion,
    missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]],
    indexes: PageIndexes,
    context: RequestContext,
) -> None:
    keys = list(dict.fromkeys(key for _, key, _ in missing))
    parts = await fetch_parts(source, version, keys, context.step("index", context.round))
    data, memory, good = parts.data, source.runtime.memory, True
    # locations come first: bounds are counted against them
    for request, key, chunk in sorted(missing, key=lambda item: item[1].kind != "offset_index"):
        place = (request.row_group, request.leaf)
        rows = version.metadata.row_groups[request.row_group].num_rows
        parsed: OffsetIndex | PageZones
        try:
            if key.kind == "offset_index":
                parsed = _offset_index(data[key], chunk, rows)
                check_page_sizes(parsed, chunk_stop=chunk.stop)
                indexes.offsets[place] = parsed
            elif place in indexes.offsets:
                parsed = indexes.zones[place] = _page_zones(data[key], version, request, indexes.offsets[place], rows)
            else:
                continue
        except FormatError as error:
            reason = f"{_name(version, request)}: {error.message}; the index is not used"
            context.metrics.fall_back(reason)
            memory.put(key, Unusable(reason), len(reason))
            good = False
        else:
            memory.put(key, parsed, parsed.weight)
    if good:
        share_parts(source, version, parts)


def _faults(version: FileVersion, leaf: Leaf, chunk: ColumnChunk) -> Iterator[str]:
    """What of a ColumnIndex is not believed, as its writer is known to get it wrong."""
    for claim in (Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS):
        fault = version.metadata.writer_faults.find(claim, leaf, chunk.encodings)
        if fault is not None:
            yield f"{leaf.dotted}: {fault.reason(claim)}; they are not used"


def _offset_index(data: bytes, chunk: ColumnChunk, num_rows: int) -> OffsetIndex:
    index = decode_offset_index(data)
    validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
    return index


def _page_zones(
    data: bytes,
    version: FileVersion,
    request: IndexRequest,
    offsets: OffsetIndex,
    num_rows: int,
    column_order: ColumnOrder | None = None,
) -> PageZones:
    """``column_order``: in which the bounds were made, if not as the file says."""
    metadata = version.metadata
    leaf = metadata.schema.leaves[request.leaf]
    faults = metadata.writer_faults if column_order is None else None
    if column_order is None and metadata.column_orders:
        column_order = metadata.column_orders[request.leaf]
    order = order_of(leaf, column_order)
    bounds = page_bounds(
        decode_column_index(data),
        leaf,
        order,
        offsets.row_counts(num_rows),
        has_column_orders=column_order is not None,
        faults=faults,
        encodings=metadata.row_groups[request.row_group].chunk(request.leaf).encodings,
    )
    return PageZones(leaf, order, bounds, offsets, num_rows)


def _key(version: FileVersion, kind: PartKind, place: tuple[int, int] | None) -> ContentKey | None:
    """Key of an index at ``place``; None without one, or with one that cannot be where the footer says."""
    if place is None or place[0] < 4 or place[1] > version.footer_start:
        return None
    return version.key(kind, *place)


def _name(version: FileVersion, request: IndexRequest) -> str:
    return version.metadata.schema.leaves[request.leaf].dotted
