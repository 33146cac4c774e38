"""The part "pages": page indexes made for files that were written without them.

The chunks are read once. Where their pages are is learnt as in any read of a whole chunk: from page headers, of
repeated leaves from decoded levels; where a page begins inside a row, nothing is made. Bounds are those of the decoded
values: whoever has to fetch the pages for their headers has these for some CPU, and they are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.caching.keys import ContentKey
from asyncpq.decoding.assemble import StreamedSource
from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.nested_leaf import NestedLeaf
from asyncpq.decoding.types import leaf_decoder, reads_alone
from asyncpq.errors import FormatError
from asyncpq.fetching.indexes import index_keys
from asyncpq.fetching.known_version import MadeIndex
from asyncpq.fetching.parts import fetch_parts
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.column_order import order_of
from asyncpq.format.metadata import ColumnChunk, ColumnOrder
from asyncpq.format.page_header import PageWalker
from asyncpq.format.page_index import OffsetIndex, validate_offset_index
from asyncpq.format.page_index_writer import encode_column_index, encode_offset_index
from asyncpq.format.schema import Leaf
from asyncpq.format.writer_faults import Claim
from asyncpq.indexing.file_entries import encode_made, payload_table
from asyncpq.indexing.model import file_key
from asyncpq.indexing.page_values import PageValues, column_index
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import RequestContext

_BATCH_BYTES: Final = 32 << 20  # chunks that are fetched together; a larger one alone
_NO_EXTENSIONS: Final[frozenset[str]] = frozenset()


class _Chunk(NamedTuple):
    row_group: int
    leaf: int
    chunk: ColumnChunk
    key: ContentKey


async def pages_rows(source: ObjectSource, version: FileVersion, file: int, context: RequestContext) -> pa.Table:
    """Rows of the part "pages" for one file, by key: of leaves with chunks that lack a page index of use.

    Nothing is made for chunks that cannot be read, or page by page; whoever reads them is told.

    Raises:
        StoreError, ObjectChangedError: the store failed, or has another version.
    """
    made: dict[int, dict[int, MadeIndex]] = {}
    round_ = context.round
    lacking = await source.resources.in_thread(partial(_lacking, version))
    for batch in _batches(lacking):
        parts = await fetch_parts(source, version, [item.key for item in batch], context.step("data", round_))
        round_ += 1
        found = await source.resources.in_thread(partial(_make_all, source, version, batch, parts.data))
        for item, index in found:
            made.setdefault(item.leaf, {})[item.row_group] = index
    return payload_table(
        "pages", [(key := file_key(file, leaf), encode_made(key, some)) for leaf, some in sorted(made.items())]
    )


def _lacking(version: FileVersion) -> list[_Chunk]:
    """Chunks without an OffsetIndex that may be used, or without a ColumnIndex, as they lie in the file."""
    metadata = version.metadata
    found: list[_Chunk] = []
    if version.decryption is not None:
        return found
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves if group.num_rows else ():
            try:
                parsed = group.parse_chunk(leaf.index)
                if parsed.num_values == 0 or not _is_lacking(version, parsed, leaf):
                    continue
                chunk = version.chunk(group.ordinal, leaf.index)
            except FormatError:
                continue
            found.append(_Chunk(group.ordinal, leaf.index, chunk, version.key("part", chunk.start, chunk.stop)))
    return found


def _is_lacking(version: FileVersion, chunk: ColumnChunk, leaf: Leaf) -> bool:
    if version.metadata.writer_faults.find(Claim.PAGE_INDEPENDENCE, leaf, chunk.encodings) is not None:
        return False
    offsets, bounds = index_keys(version, chunk, leaf.index)
    return offsets is None or (bounds is None and not leaf.max_repetition_level)  # pages of those are not ruled out


def _batches(chunks: Sequence[_Chunk]) -> Iterator[list[_Chunk]]:
    batch: list[_Chunk] = []
    size = 0
    seen: set[ContentKey] = set()
    for item in chunks:
        length = item.key.stop - item.key.start
        if batch and (size + length > _BATCH_BYTES or item.key in seen):
            yield batch
            batch, size = [], 0
            seen.clear()
        batch.append(item)
        seen.add(item.key)
        size += length
    if batch:
        yield batch


# -- in a thread ----------------------------------------------------------------------------------


def _make_all(
    source: ObjectSource, version: FileVersion, batch: Sequence[_Chunk], data: dict[ContentKey, bytes]
) -> list[tuple[_Chunk, MadeIndex]]:
    options = source.resources.options
    limits = DecodeLimits(options.read.verify_crc, options.limits.max_page_bytes, options.limits.max_decoded_bytes)
    found: list[tuple[_Chunk, MadeIndex]] = []
    for item in batch:
        try:
            made = _make(version, item, data[item.key], limits)
        except FormatError:
            continue
        if made is not None:
            found.append((item, made))
    return found


def _make(version: FileVersion, item: _Chunk, data: bytes, limits: DecodeLimits) -> MadeIndex | None:
    leaf = version.metadata.schema.leaves[item.leaf]
    num_rows = version.metadata.row_groups[item.row_group].num_rows
    if reads_alone(version, item.leaf, _NO_EXTENSIONS):
        decoder = leaf_decoder(version, item.leaf, _NO_EXTENSIONS)
        streamed = StreamedSource(decoder, item.chunk, num_rows, limits, padded=version.padded_chunks)
        streamed.feed(data)
        offsets = streamed.locations
        arrays = (streamed.select(rows, limits) for rows in _spans(offsets, num_rows))
    else:
        nested = NestedLeaf(leaf, item.chunk, num_rows, paged=False, padded=version.padded_chunks)
        nested.feed(data)
        field = version.metadata.schema.fields[leaf.field_index]
        rows_of = FieldSource(version, field, {item.leaf: nested}, num_rows, _NO_EXTENSIONS)
        whole = rows_of.select(RowRanges.all(num_rows), limits)
        offsets = nested.locations
        arrays = (whole.slice(rows.start, rows.num_rows) for rows in _spans(offsets, num_rows))
    if offsets is None:
        return None
    chunk = item.chunk
    validate_offset_index(offsets, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
    order = order_of(leaf, ColumnOrder.TYPE_ORDER)
    counts = _num_values(version, leaf, chunk, data, limits)
    pages = [PageValues(array, count) for array, count in zip(arrays, counts, strict=True)]
    index = column_index(pages, leaf, order)
    return MadeIndex(encode_offset_index(offsets), None if index is None else encode_column_index(index))


def _spans(offsets: OffsetIndex | None, num_rows: int) -> Iterator[RowRanges]:
    if offsets is not None:
        for page in range(offsets.num_pages):
            yield RowRanges.from_sorted([offsets.rows_of_page(page, num_rows)])


def _num_values(version: FileVersion, leaf: Leaf, chunk: ColumnChunk, data: bytes, limits: DecodeLimits) -> list[int]:
    """Of each page that has any, as its header says."""
    walker = PageWalker(chunk, max_page_bytes=limits.max_page_bytes, padded=version.padded_chunks)
    return [page.header.num_values for page in walker.feed(data) if page.header.is_data and page.header.num_values]
