"""The rows that each writer writes for the page of layouts: a million, in the order of ``id``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROWS = 1_000_000


def table() -> pa.Table:
    """Keys in order and in none, texts of 72 bytes, few texts, NaN, zeros of both signs, nulls, microseconds."""
    row = np.arange(ROWS, dtype=np.int64)
    numbers = row / 4
    numbers[row % 1000 == 7] = np.nan
    hashes = [(row.astype(np.uint32) * np.uint32(2654435761 + 2 * at)).tolist() for at in range(8)]
    texts = ["%08d%08x%08x%08x%08x%08x%08x%08x%08x" % parts for parts in zip(range(ROWS), *hashes)]
    return pa.table(
        {
            "id": row,
            "key": [f"k{number:08d}" for number in (row * 7919 % ROWS).tolist()],
            "text": texts,
            "category": [f"c{number % 50}" for number in range(ROWS)],
            "x": numbers,
            "zero": np.where(row % 2 == 1, -0.0, 0.0),
            "n": pa.array(row % 1000, mask=row % 3 == 0),
            "at": pa.array(1_767_225_600_000_000 + row * 1_000_001, pa.timestamp("us")),
        }
    )


def points() -> pa.Array:
    """A point for each row, as WKB: along a line, in the order of the rows."""
    points = np.zeros(ROWS, np.dtype([("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")]))
    points["order"], points["kind"] = 1, 1
    points["x"], points["y"] = np.arange(ROWS) / ROWS * 90, np.arange(ROWS) / ROWS * 45
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(21), ROWS, [None, pa.py_buffer(points)]).cast(pa.binary())
