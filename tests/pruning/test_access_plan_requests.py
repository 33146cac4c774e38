"""What access plans make a read ask for: the rows they allow, and nothing more than a read without one would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import asyncpq
from asyncpq import AccessPlan, col
from asyncpq.testing import ObjectServer
from tests.costs import parts_of
from tests.scan.test_fetch_planner import DATA, FOOTER_BYTES, ROWS, URL, sample, session, taken

pytestmark = pytest.mark.io

ALL = AccessPlan.all()
WITHOUT_INDEX = sample(page_index=False)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/sample.parquet", DATA)
        yield running


async def test_row_ranges_use_offset_indexes_only(server: ObjectServer) -> None:
    plan = AccessPlan.row_ranges([(2000, 2100), (600, 1100)])
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        table = await file.read(["price"], access=plan)
        assert table["price"].to_pylist() == [row * 0.5 for row in [*range(600, 1100), *range(2000, 2100)]]
        assert taken(server) == [
            "GET price[0] page 1-2",
            "GET price[1] page 0",
            "GET price[0] OffsetIndex",
            "GET price[1] OffsetIndex",
        ]
        assert file.metrics.rounds == 2


async def test_row_groups_ask_for_no_index(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert (await file.read(["id", "price"], access=AccessPlan.row_groups([1]))).num_rows == 2000
        assert taken(server) == ["GET id[1] page 0-3", "GET price[1] page 0-3"]


@pytest.mark.parametrize("tail_bytes", [FOOTER_BYTES, 640 * 1024])
async def test_a_small_hole_costs_nothing(server: ObjectServer, tail_bytes: int) -> None:
    options = {"tail_bytes": tail_bytes, "gap_bytes": 1000}
    asked = []
    for deleted in ([], [777], [*range(500, 620), 3999]):  # 120 rows of ``id`` are 960 bytes
        async with session(server, requests=options) as s:
            file = await s.open_file(URL)
            table = await file.read(["id", "price"], access=ALL - AccessPlan.rows(deleted))
            assert table["id"].to_pylist() == [3 * row for row in range(ROWS) if row not in deleted]
            asked.append(taken(server))
    assert asked[0] == asked[1] == asked[2]


async def test_a_large_hole_is_left_out(server: ObjectServer) -> None:
    async with session(server, requests={"gap_bytes": 1000}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.read(["price"], access=ALL - AccessPlan.row_ranges([(400, 1000)]))
        assert taken(server) == ["GET price[0] page 0", "GET price[0] page 2-3", "GET price[1] page 0-3"]


async def test_pages_of_holes_are_left_out_of_what_a_predicate_leaves(server: ObjectServer) -> None:
    where = (col("id") >= 3 * 1200) & (col("id") < 3 * 2600)
    plan = ALL - AccessPlan.row_ranges([(1500, 2000)])
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        table = await file.read(["price"], where, access=plan)
        assert table["price"].to_pylist() == [row * 0.5 for row in [*range(1200, 1500), *range(2000, 2600)]]
        assert taken(server) == [
            "GET id[0] page 2",
            "GET price[0] page 2",
            "GET id[1] page 0-1",
            "GET price[1] page 0-1",
        ]
        assert await file.count(where, access=plan) == 900


async def test_counts_by_statistics_heed_the_plan(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.immutable()) as s:
        file = await s.open_file(URL)
        server.log.clear()
        plan = ALL - AccessPlan.rows([5, 2001])
        assert await file.count(access=plan) == ROWS - 2
        assert await file.count(col("id") >= 0, access=plan) == ROWS - 2
        assert await file.count(col("id") >= 0, access=AccessPlan.row_groups([1])) == 2000
        assert await file.count(access=AccessPlan.none()) == 0
        assert server.log == []


async def test_proven_row_groups_are_read_without_the_filters_columns(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        table = await file.read(["price"], col("id") >= 0, access=AccessPlan.row_ranges([(2100, 2200)]))
        assert table["price"].to_pylist() == [row * 0.5 for row in range(2100, 2200)]
        assert taken(server) == ["GET price[1] page 0"]


async def test_limits_count_the_rows_of_the_plan(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        plan = AccessPlan.row_ranges([(900, 1200), (2100, 4000)])
        table = await file.read(["price"], access=plan, limit=310)
        assert table["price"].to_pylist() == [row * 0.5 for row in [*range(900, 1200), *range(2100, 2110)]]
        assert taken(server) == ["GET price[0] page 1-2", "GET price[1] page 0"]


async def test_without_an_index_chunks_are_cut_and_pages_learnt(server: ObjectServer) -> None:
    server.put("lake/sample.parquet", WITHOUT_INDEX)
    parts = parts_of(WITHOUT_INDEX)
    plan = AccessPlan.rows([1200, 30])
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}, cache_policy=asyncpq.immutable()) as s:
        file = await s.open_file(URL)
        taken(server, parts)
        assert (await file.read(["price"], access=plan))["price"].to_pylist() == [15.0, 600.0]
        assert taken(server, parts) == ["GET price[0] chunk"]
        assert (await file.read(["price"], access=AccessPlan.rows([1999])))["price"].to_pylist() == [999.5]
        assert taken(server, parts) == []  # its page was kept, and where it begins
        assert (await file.plan(["price"], access=plan)).pruning.pages_kept == 2


async def test_bloom_filters_and_statistics_are_asked_of_allowed_row_groups_only(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        user = "user-" + f"{2750 * 7919 % ROWS:012d}"  # in row group 1; statistics rule out none
        assert (await file.lookup({"user": user}, ["id"], access=AccessPlan.row_groups([0]))).num_rows == 0
        assert all("[1]" not in line for line in taken(server))
        assert (await file.lookup({"user": user}, ["id"])).num_rows == 1


async def test_explain_says_what_the_plan_leaves(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        plan = await file.plan(["price"], col("id") < 900, access=AccessPlan.row_ranges([(100, 1400)]))
        assert "\n  access plan: 1 of 2 row groups, 1,300 rows\n" in plan.explain()
        assert "row groups: 1 of 2 (0 ruled out by statistics, 0 by page indexes)" in plan.explain()
        assert "rows that may match: 400 of 4,000" in plan.explain()
        assert plan.access == AccessPlan.row_ranges([(100, 1400)])
        assert "access plan" not in (await file.plan(["price"])).explain()


QUESTIONS: dict[str, Callable[[asyncpq.File, AccessPlan], Awaitable[object]]] = {
    "read": lambda file, plan: file.read(access=plan),
    "count": lambda file, plan: file.count(col("price") > 3.0, access=plan),
    "lookup": lambda file, plan: file.lookup({"id": 30}, access=plan),
}


@pytest.mark.parametrize("name", list(QUESTIONS))
async def test_a_plan_that_names_positions_means_one_version(server: ObjectServer, name: str) -> None:
    for plan in (AccessPlan.row_groups([0]), ALL - AccessPlan.rows([3])):
        server.put("lake/sample.parquet", DATA)
        async with session(server) as s:
            file = await s.open_file(URL)
            server.put("lake/sample.parquet", WITHOUT_INDEX)
            with pytest.raises(asyncpq.ObjectChangedError, match="refresh"):
                await QUESTIONS[name](file, plan)
            file = await s.open_file(URL)
            server.put("lake/sample.parquet", DATA)
            await QUESTIONS[name](file, ALL)  # it names nothing, and starts again


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (AccessPlan.rows([17, ROWS + 3, 2]), f"row {ROWS + 3:,} is not in a file of {ROWS:,} rows"),
        (ALL - AccessPlan.row_ranges([(10, ROWS + 1)]), f"row {ROWS:,} is not in a file of {ROWS:,} rows"),
        (AccessPlan.row_groups([0, 2]), "row group 2 is not in a file of 2 row groups"),
        (~AccessPlan.from_row_groups({1: [(5, 2001)]}), "row 2,000 is not in row group 1, which has 2,000 rows"),
    ],
)
async def test_rows_outside_the_file(server: ObjectServer, plan: AccessPlan, message: str) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.RowIndexError, match=message) as caught:
            await file.read(access=plan)
        assert caught.value.url == URL
