"""Page indexes of chosen column chunks, through the caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from asyncpq.caching.keys import ContentKey, PartKind
from asyncpq.errors import FormatError
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.metadata import ColumnChunk, Encoding
from asyncpq.format.page_index import OffsetIndex, decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.format.statistics import order_of, page_bounds
from asyncpq.format.writer_version import begins_pages_on_rows, chains_delta_byte_arrays
from asyncpq.pruning.pages import PageZones
from asyncpq.storage.base import RequestContext


class IndexRequest(NamedTuple):
    """One column chunk whose page locations, and perhaps bounds, are wanted."""

    row_group: int
    leaf: int
    bounds: bool


class Unusable(NamedTuple):
    """Stands in the cache for an index that is broken, so that it is fetched and judged once."""

    reason: str


class PageIndexes:
    """What was found, by (row group, leaf). Absent and unusable indexes are simply not there.

    Attributes:
        offsets: page locations.
        learnt: those of them that no index gave, but the chunk itself when it was read.
        zones: bounds of the pages, ready for pruning.
    """

    __slots__ = ("learnt", "offsets", "zones")

    def __init__(self) -> None:
        self.offsets: dict[tuple[int, int], OffsetIndex] = {}
        self.learnt: set[tuple[int, int]] = set()
        self.zones: dict[tuple[int, int], PageZones] = {}


async def fetch_page_indexes(
    source: ObjectSource, version: FileVersion, requests: Iterable[IndexRequest], context: RequestContext
) -> PageIndexes:
    """Fetch, check and parse page indexes; all that must come from the store comes in one round.

    A chunk without an OffsetIndex gets no bounds either: rows could not be told from them. What is
    missing or unusable is noted among the metrics' fallbacks.

    Raises:
        StoreError, ObjectChangedError: the store failed.
    """
    memory = source.resources.memory
    indexes = PageIndexes()
    missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]] = []
    for request in requests:
        chunk = version.chunk(request.row_group, request.leaf)
        place = (request.row_group, request.leaf)
        key = _key(version, "offset_index", own_offset_index(version, chunk, request.leaf))
        parsed = memory.get(_parsed(key)) if key is not None else None
        if key is not None and parsed is None:
            missing.append((request, key, chunk))
        elif isinstance(parsed, OffsetIndex):
            context.metrics.cache_hits += 1
            indexes.offsets[place] = parsed
        elif (learnt := memory.get(_learnt(version, chunk))) is not None:
            context.metrics.cache_hits += 1
            indexes.offsets[place] = learnt
            indexes.learnt.add(place)
        else:
            split = chunk.offset_index_range is not None
            why = "its writer may split rows between pages" if split else "no OffsetIndex"
            reason = f"{_name(version, request)}: {why}, whole chunks are read"
            context.metrics.fall_back(parsed.reason if isinstance(parsed, Unusable) else reason)
            continue  # bounds without locations are of no use
        if not request.bounds:
            continue
        bounds_key = _key(version, "column_index", chunk.column_index_range)
        if bounds_key is None:
            context.metrics.fall_back(f"{_name(version, request)}: no ColumnIndex, its pages are not pruned")
            continue
        parsed = memory.get(_parsed(bounds_key))
        if parsed is None:
            missing.append((request, bounds_key, chunk))
        elif isinstance(parsed, Unusable):
            context.metrics.fall_back(parsed.reason)
        else:
            context.metrics.cache_hits += 1
            indexes.zones[place] = parsed
    if missing:
        await _fetch(source, version, missing, indexes, context)
    return indexes


def own_offset_index(version: FileVersion, chunk: ColumnChunk, leaf: int) -> tuple[int, int] | None:
    """Where a chunk's OffsetIndex is; None also where its pages may begin inside a row, which it does not say."""
    repeated = version.metadata.schema.leaves[leaf].max_repetition_level > 0
    if repeated and not begins_pages_on_rows(version.metadata.created_by):
        return None
    return chunk.offset_index_range


def learn_locations(source: ObjectSource, version: FileVersion, row_group: int, leaf: int, index: OffsetIndex) -> None:
    """Keep where the pages of a chunk are that was read whole, for want of an index that could be used.

    Args:
        index: as its own OffsetIndex would say it; every page begins with the first value of a row.
    """
    memory = source.resources.memory
    chunk = version.chunk(row_group, leaf)
    key = _key(version, "offset_index", own_offset_index(version, chunk, leaf))
    if key is not None and not isinstance(memory.get(_parsed(key)), Unusable):
        return  # it was read whole for another reason
    if Encoding.DELTA_BYTE_ARRAY in chunk.encodings and chains_delta_byte_arrays(version.metadata.created_by):
        return
    validate_offset_index(
        index,
        chunk_start=chunk.start,
        chunk_stop=chunk.stop,
        num_rows=version.metadata.row_groups[row_group].num_rows,
    )
    memory.put(_learnt(version, chunk), index, index.weight)


async def _fetch(
    source: ObjectSource,
    version: FileVersion,
    missing: list[tuple[IndexRequest, ContentKey, ColumnChunk]],
    indexes: PageIndexes,
    context: RequestContext,
) -> None:
    keys = list(dict.fromkeys(key for _, key, _ in missing))
    data, _ = await source.fetch_parts(version, keys, context.step("index", context.round), admit=False)
    memory = source.resources.memory
    # locations come first: bounds are counted against them
    for request, key, chunk in sorted(missing, key=lambda item: item[1].kind != "offset_index"):
        place = (request.row_group, request.leaf)
        rows = version.metadata.row_groups[request.row_group].num_rows
        parsed: OffsetIndex | PageZones
        try:
            if key.kind == "offset_index":
                parsed = indexes.offsets[place] = _offset_index(data[key], chunk, rows)
            elif place in indexes.offsets:
                parsed = indexes.zones[place] = _page_zones(data[key], version, request, indexes.offsets[place], rows)
            else:
                continue
        except FormatError as error:
            reason = f"{_name(version, request)}: {error.message}; the index is not used"
            context.metrics.fall_back(reason)
            memory.put(_parsed(key), Unusable(reason), len(reason))
        else:
            memory.put(_parsed(key), parsed, parsed.weight)


def _offset_index(data: bytes, chunk: ColumnChunk, num_rows: int) -> OffsetIndex:
    index = decode_offset_index(data)
    validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
    return index


def _page_zones(
    data: bytes, version: FileVersion, request: IndexRequest, offsets: OffsetIndex, num_rows: int
) -> PageZones:
    leaf = version.metadata.schema.leaves[request.leaf]
    orders = version.metadata.column_orders
    order = order_of(leaf, orders[request.leaf] if orders else None)
    bounds = page_bounds(
        decode_column_index(data), leaf, order, offsets.row_counts(num_rows), has_column_orders=orders is not None
    )
    return PageZones(leaf, order, bounds, offsets, num_rows)


def _key(version: FileVersion, kind: PartKind, place: tuple[int, int] | None) -> ContentKey | None:
    """Key of an index at ``place``; None without one, or with one that cannot be where the footer says."""
    if place is None or place[0] < 4 or place[1] > version.footer_start:
        return None
    return version.key(kind, *place)


def _parsed(key: ContentKey) -> tuple[str, ContentKey]:
    """Memory holds parsed indexes under a key of their own; the bytes are not kept beside them."""
    return ("parsed", key)


def _learnt(version: FileVersion, chunk: ColumnChunk) -> tuple[str, ContentKey]:
    """Under which memory keeps page locations that the chunk itself told."""
    return ("learnt", version.key("offset_index", chunk.start, chunk.stop))


def _name(version: FileVersion, request: IndexRequest) -> str:
    return version.metadata.schema.leaves[request.leaf].dotted
