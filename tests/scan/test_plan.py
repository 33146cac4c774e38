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
        with asyncpq.measure() as cost:
            table = await file.read(["id", "name"], where)
        assert table["id"].to_pylist() == list(range(1150, 1251))
        data = [record for record in cost.log if record.purpose == "data"]
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
    assert f"  rows that may match: 200 of {ROWS:,}" in lines
    assert str(plan) == plan.explain()
    assert "  limit: 10 rows" in everything.explain().splitlines()
    assert everything.where is None


async def test_the_cheapest_way_is_taken_and_the_others_are_named(path: str) -> None:
    """One key in a column that is not sorted by it: a second round costs its wait, one round the names of all pages."""
    for latency_s, chosen in ((10.0, "one round"), (0.0, "two rounds")):
        requests = asyncpq.RequestOptions(latency_s=latency_s, bandwidth_bytes_s=1e6, tail_bytes=1700)
        async with asyncpq.Session(requests=requests, read=asyncpq.ReadOptions(trust_statistics=False)) as session:
            file = await session.open_file(path)
            plan = await file.plan(["name"], col("id") == 1234)
            with asyncpq.measure() as cost:
                table = await file.read(["name"], col("id") == 1234)
        assert table["name"].to_pylist() == ["name 000001234"]
        (first, seconds), *others = plan.estimates
        assert (first, plan.late) == (chosen, chosen == "two rounds")
        assert {name for name, _ in plan.estimates} == {"one round", "two rounds", "whole column chunks"}
        assert all(seconds <= other for _, other in others)
        assert len({request.round for request in cost.log if request.purpose == "data"}) == 1 + plan.late
        lines = plan.explain().splitlines()
        assert any(line.startswith(f"  estimate: {chosen} ") for line in lines)
        assert f"    at {plan.prices}" in lines
        assert plan.prices.startswith(f"{latency_s * 1000:.3g} ms to the first byte, 1 MB/s, 82 us a request")


@pytest.mark.parametrize(("where", "late"), [(col("id") == 1234, True), (col("id") != 1234, False)])
async def test_only_units_with_a_matching_row_wait_for_late_columns(
    path: str, where: asyncpq.Expression, late: bool
) -> None:
    requests = asyncpq.RequestOptions(latency_s=0.01, bandwidth_bytes_s=1e6, tail_bytes=1700)
    limits = asyncpq.LimitOptions(unit_bytes=5000, round_bytes=0)
    read = asyncpq.ReadOptions(trust_statistics=False)
    async with asyncpq.Session(requests=requests, limits=limits, read=read) as session:
        plan = await (await session.open_file(path)).plan(["name"], where)
    assert plan.late is late, plan.estimates


async def test_without_a_predicate_there_is_no_second_round(path: str) -> None:
    async with asyncpq.Session() as session:
        file = await session.open_file(path)
        plan = await file.plan(["name"])
        assert [name for name, _ in plan.estimates] == ["one round", "whole column chunks"]
        empty = await file.plan(["name"], col("id") == -1)
    assert empty.estimates == ()
