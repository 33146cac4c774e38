"""A footer taken apart: what all leaves share, and the column chunks of each leaf; and put together from some of them.

The pieces are the footer's own bytes. In the place of a chunk that is not known stands an empty struct, whose parsing
is an :class:`asyncpq.format.row_group.UnknownLeafError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from asyncpq.errors import CorruptFileError
from asyncpq.format.metadata import FileMetadata

_UNKNOWN: Final = b"\0"


def shared_pieces(metadata: FileMetadata) -> list[bytes]:
    """The footer's bytes before, between and behind the column chunks of its row groups: one more than there are."""
    pieces: list[bytes] = []
    start = 0
    for group in metadata.row_groups:
        first, stop = group.chunks_span
        pieces.append(metadata.data[start:first])
        start = stop
    return [*pieces, metadata.data[start:]]


def leaf_pieces(metadata: FileMetadata, leaf: int) -> list[bytes]:
    """The bytes of a leaf's column chunk in each row group."""
    return [metadata.data[slice(*group.chunk_span(leaf))] for group in metadata.row_groups]


def join_pieces(shared: Sequence[bytes], leaves: Mapping[int, Sequence[bytes]], num_leaves: int) -> bytes:
    """A footer that knows the column chunks of ``leaves``.

    Args:
        shared: see :func:`shared_pieces`.
        leaves: see :func:`leaf_pieces`; by ordinal of the leaf.
        num_leaves: in the schema.

    Raises:
        CorruptFileError: the pieces are not of one footer.
    """
    known = sorted(leaves)
    groups = len(shared) - 1
    if groups < 0 or any(len(leaves[leaf]) != groups for leaf in known) or (known and known[-1] >= num_leaves):
        raise CorruptFileError("pieces of a footer do not belong together")
    out: list[bytes] = [shared[0]]
    for group in range(groups):
        following = 0
        for leaf in known:
            out.append(_UNKNOWN * (leaf - following))
            out.append(leaves[leaf][group])
            following = leaf + 1
        out.append(_UNKNOWN * (num_leaves - following))
        out.append(shared[group + 1])
    return b"".join(out)
