"""Segments of postings, and the cost of looking one key up in them."""

from __future__ import annotations

import random

import pyarrow as pa

import asyncpq
from asyncpq.indexing import FolderBackend, SqlBackend
from asyncpq.indexing.index_model import TABLE_SCHEMAS, VALUE_TAG, KeyRange, Segment, SegmentQuery
from asyncpq.metrics import ReadMetrics


def point_of(at: int) -> KeyRange:
    return KeyRange.point(VALUE_TAG + (at * 1000).to_bytes(8, "big"))


POINTS = [point_of(at) for at in (7, 777, 60_007)]


def postings(num_rows: int) -> pa.Table:
    """In random order of the files' rows; the keys are 0, 1000, 2000, ... as they are normalised."""
    numbers = random.Random(num_rows)
    return pa.table(
        {
            "key": [VALUE_TAG + (at * 1000).to_bytes(8, "big") for at in range(num_rows)],
            "file": [numbers.randrange(500) for _ in range(num_rows)],
            "row": [numbers.randrange(1 << 20) for _ in range(num_rows)],
            "rows": [1] * num_rows,
        },
        schema=TABLE_SCHEMAS["keys"],
    )


async def cost(
    backend: FolderBackend | SqlBackend, session: asyncpq.Session, segment: Segment, wanted: KeyRange
) -> ReadMetrics:
    operation = session._runtime.operation("lookup", "x")
    with operation:
        found = await backend.read_segment(segment, SegmentQuery([wanted]), operation=operation)
    assert found is not None
    assert found.num_rows == 1
    return operation.metrics
