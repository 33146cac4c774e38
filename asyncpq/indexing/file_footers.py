"""The part "footers": what a read needs of a file, so that it is not opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from asyncpq.caching.keys import ContentKey
from asyncpq.errors import FormatError
from asyncpq.fetching.indexes import index_keys
from asyncpq.fetching.parts import fetch_parts
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.footer_pieces import leaf_pieces, shared_pieces
from asyncpq.indexing.file_entries import SHARED, LeafEntry, SharedEntry, encode_leaf, encode_shared, payload_table
from asyncpq.indexing.model import file_key
from asyncpq.storage.base import RequestContext

#: A footer of at most so many bytes stands whole in the entry that all its leaves share.
WHOLE_FOOTER_BYTES: Final = 16 * 1024
_FEW_CHUNKS: Final = 64


async def footer_rows(source: ObjectSource, version: FileVersion, file: int, context: RequestContext) -> pa.Table:
    """Rows of the part "footers" for one file, by key. Its page indexes come in as few GETs as coalescing allows.

    Returns:
        no row for a file with an encrypted footer, of which nothing is kept in clear.

    Raises:
        StoreError, ObjectChangedError: the store failed, or has another version.
    """
    if version.decryption is not None:
        return payload_table("footers", [])
    small = is_small(version)
    in_thread = source.resources.in_thread
    keys = await in_thread(partial(_all_index_keys, version), small=small)
    wanted = list(dict.fromkeys(key for some in keys.values() for key in some))
    data = (await fetch_parts(source, version, wanted, context.step("index", context.round))).data if wanted else {}
    return await in_thread(partial(_rows, version, file, keys, data), small=small)


def is_small(version: FileVersion) -> bool:
    """Whether what is made of a footer takes less time than a thread's turn: others have 100,000 column chunks."""
    metadata = version.metadata
    return len(metadata.row_groups) * len(metadata.schema.leaves) <= _FEW_CHUNKS


def _rows(
    version: FileVersion, file: int, keys: Mapping[int, Sequence[ContentKey]], data: Mapping[ContentKey, bytes]
) -> pa.Table:
    metadata = version.metadata
    whole = len(metadata.data) <= WHOLE_FOOTER_BYTES
    pieces = [metadata.data] if whole else shared_pieces(metadata)
    shared = SharedEntry(version.footer_start, version.size, 0 if whole else len(keys), pieces)
    rows = [(key := file_key(file, SHARED), encode_shared(key, shared))]
    for leaf, some in keys.items():
        spans = [(part.start, data[part]) for part in some]
        if spans or not whole:
            chunks = [] if whole else leaf_pieces(metadata, leaf)
            rows.append((key := file_key(file, leaf), encode_leaf(key, LeafEntry(chunks, spans))))
    return payload_table("footers", rows)


def _all_index_keys(version: FileVersion) -> dict[int, list[ContentKey]]:
    return {leaf.index: _index_keys(version, leaf.index) for leaf in version.metadata.schema.leaves}


def _index_keys(version: FileVersion, leaf: int) -> list[ContentKey]:
    """Those of the leaf's page indexes that reads use."""
    keys: list[ContentKey] = []
    for group in version.metadata.row_groups:
        try:
            places = group.index_places(leaf)
        except FormatError:  # whoever reads the column is told
            continue
        offsets, bounds = index_keys(version, places, leaf)
        if offsets is not None:
            keys += [offsets] if bounds is None else [bounds, offsets]
    return keys
