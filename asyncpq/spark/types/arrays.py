"""Parts of arrays with children."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def validity(array: pa.Array) -> pa.Buffer | None:
    """Its bitmap, without an offset; None where nothing is null."""
    return array.is_valid().buffers()[1] if array.null_count else None


def flattened(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The elements of lists, none of null lists, and where those of each list begin, and the last one's end."""
    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int32())
    ends = pc.cumulative_sum_checked(lengths)
    return array.flatten(), pa.concat_arrays([pa.array([0], pa.int32()), ends])
