"""Plans say which rows, pages and requests a read would take, and the read takes these."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col

ROWS = 4000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """4 row groups of 10 pages a column."""
    table = pa.table({"id": range(ROWS), "name": [f"name {row:09d}" for row in range(ROWS)]})
    file = tmp_path / "file.parquet"
    pq.write_table(
        table,
        file,
        row_group_size=ROWS // 4,
        max_rows_per_page=100,
        write_batch_size=100,
        use_dictionary=False,
        write_page_index=True,
    )
    return str(file)


async def test_the_read_makes_the_requests_of_its_plan(path: str) -> None:
    where = col("id").between(1150, 1250)
    async with asyncpq.Session(
        requests=asyncpq.RequestOptions(tail_bytes=1700, late_materialization="never")
    ) as session:
        file = await session.open_file(path)
        plan = await file.plan(["id", "name"], where)
        table = await file.read(["id", "name"], where)
        assert table["id"].to_pylist() == list(range(1150, 1251))
        assert file.metrics is not None
        data = [record for record in file.metrics.log if record.purpose == "data"]
        assert [(request.start, request.stop) for request in plan.requests] == [
            (record.start, record.stop) for record in data
        ]
        assert plan.num_requests == len(data) >= 1
        assert plan.num_bytes == sum(record.stop - record.start for record in data)
        again = await file.plan(["id", "name"], where)
    assert again.requests == ()
    assert again.cached_bytes > 0


async def test_it_says_what_is_ruled_out(path: str) -> None:
    async with asyncpq.Session() as session:
        file = await session.open_file(path)
        plan = await file.plan(["id"], col("id").between(1150, 1250))
        everything = await file.plan(["id"], limit=10)
    assert plan.columns == ("id",)
    assert (plan.pruning.row_groups_kept, plan.pruning.row_groups) == (1, 4)
    assert (plan.pruning.rows_kept, plan.pruning.rows) == (200, ROWS)
    lines = plan.explain().splitlines()
    assert lines[0] == f"read {path}"
    assert "  row groups: 1 of 4 (3 ruled out by statistics, 0 by page indexes)" in lines
    assert f"  rows that may match: 200 of {ROWS}" in lines
    assert str(plan) == plan.explain()
    assert "  limit: 10 rows" in everything.explain().splitlines()
    assert everything.where is None
