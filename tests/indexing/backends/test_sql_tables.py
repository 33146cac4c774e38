"""A lookup in a SQL database is one statement."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.indexing import FolderBackend, SqlBackend
from asyncpq.indexing.model import TABLE_SCHEMAS, VALUE_TAG, KeyRange, Segment
from asyncpq.metrics import ReadMetrics
from asyncpq.testing.backend_contract import write

pytestmark = pytest.mark.io


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
        found = await backend.read_segment(segment, [wanted], operation=operation)
    assert found is not None
    assert found.num_rows == 1
    return operation.metrics


async def test_sqlite_is_one_statement(tmp_path: Path) -> None:
    backend = SqlBackend(f"sqlite:///{tmp_path}/index.sqlite")
    try:
        segment = await write(backend, "a", "keys", postings(5000))
        async with asyncpq.Session() as session:
            for wanted in POINTS[:2]:
                found = await cost(backend, session, segment, wanted)
                assert (found.requests, found.rounds) == (1, 1)
    finally:
        await backend.close()
