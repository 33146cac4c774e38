"""Why bounds rule out little: one answer for ``why`` and ``lint``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.metrics import ReadMetrics
from asyncpq.reports.inspection import load_layout
from asyncpq.reports.key_bounds import weakness

ROWS = 40_000
OPTIONS: dict[str, Any] = {"row_group_size": 5_000, "write_page_index": True, "use_dictionary": False}


@pytest.mark.parametrize(
    ("options", "equality", "expected"),
    [
        ({}, True, "no-bloom-filter"),
        ({}, False, "random-order"),  # Bloom filters do not answer ranges
        ({"row_group_size": 20_000}, True, "random-order"),  # of two row groups they rule out one at most
        ({"bloom_filter_options": {"key": True}}, True, "random-order"),
        ({"write_statistics": ["id"]}, True, "no-statistics"),
    ],
)
async def test_keys_that_are_spread_over_a_file_in_order(
    options: dict[str, Any], equality: bool, expected: str, tmp_path: Path
) -> None:
    table = pa.table({"id": range(ROWS), "key": [row * 7919 % ROWS for row in range(ROWS)]})
    assert await _weakness(table, tmp_path, options, equality=equality) == expected


async def test_a_file_in_no_order(tmp_path: Path) -> None:
    spread: Callable[[int], int] = lambda row: row * 7919 % ROWS  # noqa: E731
    table = pa.table({"id": [spread(row + 5) for row in range(ROWS)], "key": [spread(row) for row in range(ROWS)]})
    assert await _weakness(table, tmp_path, {}, equality=True) == "random-order"


async def _weakness(table: pa.Table, folder: Path, options: dict[str, Any], *, equality: bool) -> str:
    pq.write_table(table, folder / "a.parquet", **{**OPTIONS, **options})
    async with asyncpq.Session() as session, await session.open_file(folder / "a.parquet") as file:
        version = file._version
        layout = await load_layout(file._source, version, ReadMetrics(), pages=True)
        return weakness(layout, version.metadata.schema.leaves[1], equality=equality)
