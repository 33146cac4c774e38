"""Column chunks that claim the same bytes: one of them lies, and which cannot be told."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from asyncpq.errors import CorruptFileError
from asyncpq.format.schema import Leaf
from asyncpq.planning.read_plan import RowGroupPlan


def refuse_overlaps(row_groups: Iterable[RowGroupPlan], leaves: Sequence[Leaf]) -> None:
    """Hold that no two chunks that are read share bytes; chunks that are not read do not matter.

    Raises:
        CorruptFileError: two do.
    """
    chunks = [column.chunk for group in row_groups for column in group.columns]
    spans = sorted((chunk.start, chunk.stop, chunk.leaf) for chunk in chunks if chunk.start < chunk.stop)
    for (_, stop, leaf), (following, end, other) in itertools.pairwise(spans):
        if following < stop:
            raise CorruptFileError(
                f"column chunks of {leaves[leaf].dotted!r} and {leaves[other].dotted!r} claim the same bytes",
                byte_range=(following, min(stop, end)),
            )
