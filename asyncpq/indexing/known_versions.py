"""Versions of files as the parts "footers" and "pages" know them."""

from __future__ import annotations

from collections.abc import Mapping

from asyncpq.errors import AsyncpqError, CorruptIndexError
from asyncpq.fetching.known_version import KnownVersion, MadeIndex
from asyncpq.format.footer_pieces import join_pieces
from asyncpq.format.metadata import decode_file_metadata
from asyncpq.indexing.file_entries import SHARED, decode_leaf, decode_made, decode_shared
from asyncpq.options import LimitOptions
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
        footers, pages: payloads of these parts by leaf (:func:`asyncpq.indexing.file_entries.by_file`), of all leaves
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
