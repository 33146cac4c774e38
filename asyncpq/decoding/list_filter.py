"""Predicates on lists: true of a row where they are of one of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_NULL = pa.scalar(None, pa.bool_())
_START = pa.array([0], pa.int64())


def any_element(lists: pa.Array | pa.ChunkedArray, test: Callable[[pa.Array], Any]) -> pa.Array | pa.ChunkedArray:
    """For each row whether ``test`` is true of an element; null where the list is null.

    Args:
        lists: a list column of any layout.
        test: from all elements to as many booleans, or one for all of them.
    """
    if isinstance(lists, pa.ChunkedArray):
        return pa.chunked_array([any_element(chunk, test) for chunk in lists.chunks], pa.bool_())
    elements = pc.list_flatten(lists)
    found = test(elements)
    if isinstance(found, pa.Scalar):
        found = pa.repeat(found, len(elements))
    elif isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    valid = pc.is_valid(lists)
    # Elements before each row, and those found among them; null lists have none.
    sizes = pc.if_else(valid, pc.list_value_length(lists).cast(pa.int64()), 0)
    bounds = pa.concat_arrays([_START, pc.cumulative_sum(sizes)])
    counts = pa.concat_arrays([_START, pc.cumulative_sum(found.fill_null(False).cast(pa.int64()))]).take(bounds)
    mask = pc.not_equal(counts[:-1], counts[1:])
    return mask if lists.null_count == 0 else pc.if_else(valid, mask, _NULL)
