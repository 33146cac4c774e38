"""Which bytes are asked for, request by request: the test of the planner.

The server's own log is compared, not the client's account of itself; the client's metrics must agree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.caching.entry_format import ContentKey
from asyncpq.expressions import Expression
from asyncpq.metrics import ReadMetrics
from asyncpq.scan.fetch_planner import _expected_matches
from asyncpq.scan.request import ScanRequest
from asyncpq.testing import ObjectServer
from tests.costs import Part, cost_of, parts_of, trace, walked_parts
from tests.parquet_bytes import parquet_bytes
from tests.reads import ask

pytestmark = pytest.mark.io

ROWS = 4000
URL = "s3://lake/sample.parquet"


def sample(*, page_index: bool = True) -> bytes:
    """Two row groups of 2,000 rows; pages of 500 rows of ``id``, others misaligned; ``event`` has a dictionary."""
    table = pa.table(
        {
            "id": pa.array(range(0, ROWS * 3, 3), pa.int64()),
            "user": pa.array([f"user-{row * 7919 % ROWS:012d}" for row in range(ROWS)]),
            "event": pa.array([f"event-{row % 5}" for row in range(ROWS)]),
            "price": pa.array([row * 0.5 for row in range(ROWS)], pa.float64()),
        }
    )
    return parquet_bytes(
        table,
        row_group_size=2000,
        max_rows_per_page=500,
        data_page_size=4000,
        write_batch_size=100,
        compression="none",
        use_dictionary=["event"],
        write_page_index=page_index,
    )


DATA = sample()
PARTS = parts_of(DATA)
FOOTER_BYTES = len(DATA) - next(part.start for part in PARTS if part.label == "footer")
INDEX_START = min(part.start for part in PARTS if part.label.endswith("Index"))


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/sample.parquet", DATA)
        yield running


def session(server: ObjectServer, **options: Any) -> asyncpq.Session:
    requests = {"gap_bytes": 0, "tail_bytes": len(DATA) - INDEX_START} | options.pop("requests", {})
    return asyncpq.Session(server.storage_options, requests=asyncpq.RequestOptions(**requests), **options)


def taken(server: ObjectServer, parts: list[Part] = PARTS) -> list[str]:
    """The requests since the last call."""
    lines = trace(server.log, parts)
    server.log.clear()
    return lines


async def test_cold_lookup_is_two_rounds_when_the_tail_covers_the_indexes(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        assert taken(server) == [f"GET last {len(DATA) - INDEX_START} bytes"]
        assert file.opening is not None
        assert (file.opening.rounds, file.opening.requests) == (1, 1)
        with asyncpq.measure() as cost:
            table = await file.lookup({"id": 3 * 2750}, columns=["user", "event", "price"])
    assert table.to_pylist() == [{"user": f"user-{2750 * 7919 % ROWS:012d}", "event": "event-0", "price": 1375.0}]
    assert taken(server) == [
        "GET id[1] page 1",
        "GET user[1] page 2-4",
        "GET event[1] dictionary",
        "GET event[1] page 1",
        "GET price[1] page 1",
    ]
    assert (cost.rounds, cost.requests) == (1, 5)


async def test_warm_lookup_is_one_round_without_metadata(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": 3 * 2750}, columns=["user", "event", "price"])
        server.log.clear()
        cost = await cost_of(file.lookup({"id": 3 * 3750}, columns=["user", "event", "price"]))
        assert taken(server) == [
            "GET id[1] page 3",
            "GET user[1] page 7-9",
            "GET event[1] page 3",
            "GET price[1] page 3",
        ]
        assert cost.rounds == 1
        assert all(request.method == "GET" for request in server.log)


async def test_repeated_lookup_asks_for_nothing_within_max_age(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(max_age_s=60)) as s:
        file = await s.open_file(URL)
        first = await file.lookup({"id": 300})
        server.log.clear()
        with asyncpq.measure() as cost:
            assert (await file.lookup({"id": 300})).equals(first)
        assert server.log == []
        assert cost.requests == 0


async def test_max_age_0_validates_with_one_conditional_get(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(max_age_s=0)) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": 300})
        server.log.clear()
        await file.lookup({"id": 300})
        (request,) = server.log
        assert request.range == f"bytes={len(DATA) - 8}-{len(DATA) - 1}"
        assert request.headers["if-match"] == server.objects["lake/sample.parquet"].etag


async def test_every_get_after_the_first_is_pinned(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": 300})
        await file.read(columns=["price"])
    first, *others = server.log
    assert "if-match" not in first.headers
    assert others
    assert {request.headers["if-match"] for request in others} == {server.objects["lake/sample.parquet"].etag}


async def test_range_scan_reads_exactly_its_pages(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        table = await file.read(columns=["price"], where=(col("id") >= 3 * 700) & (col("id") < 3 * 1600))
        assert table.num_rows == 900
        assert taken(server) == ["GET id[0] page 1-3", "GET price[0] page 1-3"]


async def test_scan_without_predicate_asks_for_no_index(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        table = await file.read(columns=["event"])
        assert table.num_rows == ROWS
        assert taken(server) == [
            "GET event[0] dictionary, event[0] page 0-3",
            "GET event[1] dictionary, event[1] page 0-3",
            f"GET last {FOOTER_BYTES} bytes",
        ]
        assert file.metrics.fallbacks == []


async def test_indexes_beyond_the_tail_take_one_more_round_and_only_what_the_query_touches(
    server: ObjectServer,
) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.lookup({"id": 3 * 100}, columns=["price"])
        assert taken(server) == [
            "GET id[0] page 0",
            "GET price[0] page 0",
            "GET id[0] ColumnIndex",
            "GET id[0] OffsetIndex",
            "GET price[0] OffsetIndex",
        ]
        assert file.metrics.rounds == 2
        await file.lookup({"id": 3 * 600}, columns=["price"])
        assert taken(server) == ["GET id[0] page 1", "GET price[0] page 1"]


async def test_short_tail_takes_one_further_get_for_the_footer(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": 100}) as s:
        await s.open_file(URL)
    assert [request.range for request in server.log] == [
        "bytes=-100",
        f"bytes={len(DATA) - FOOTER_BYTES}-{len(DATA) - 101}",
    ]


async def test_row_group_statistics_rule_out_before_any_index(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert (await file.lookup({"id": -5})).num_rows == 0
        assert (await file.count(col("id") > 10**9)) == 0
        assert server.log == []


async def test_take_uses_offset_indexes_only(server: ObjectServer) -> None:
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        table = await file.take([3999, 10], columns=["price"])
        assert table.column("price").to_pylist() == [1999.5, 5.0]
        assert taken(server) == [
            "GET price[0] page 0",
            "GET price[1] page 3",
            "GET price[0] OffsetIndex",
            "GET price[1] OffsetIndex",
        ]


async def test_limit_without_predicate_reads_the_first_pages_only(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert (await file.read(columns=["price"], limit=600)).num_rows == 600
        assert taken(server) == ["GET price[0] page 0-1"]


async def test_count_without_predicate_reads_nothing(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.immutable()) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert await file.count() == ROWS
        assert server.log == []


async def test_late_materialization_fetches_only_pages_with_matching_rows(server: ObjectServer) -> None:
    async with session(server, requests={"late_materialization": "always"}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        user = f"user-{1234 * 7919 % ROWS:012d}"
        table = await file.read(columns=["price"], where=col("user") == user)
        assert table.column("price").to_pylist() == [617.0]
        assert taken(server) == ["GET user[0] page 0-9", "GET price[0] page 2", "GET user[1] page 0-9"]


async def test_gaps_are_merged_as_told(server: ObjectServer) -> None:
    async with session(server, requests={"gap_bytes": 1 << 20}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.lookup({"id": 3 * 700}, columns=["price"])
        assert len(server.log) == 1


async def test_max_requests_bounds_a_round(server: ObjectServer) -> None:
    async with session(server, requests={"max_requests": 2}) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.lookup({"id": 3 * 700})
        assert len(server.log) == 2


async def test_file_without_page_index_is_read_by_chunks(server: ObjectServer) -> None:
    data = sample(page_index=False)
    server.put("lake/plain.parquet", data)
    async with session(server, requests={"tail_bytes": 2000}) as s:
        file = await s.open_file("s3://lake/plain.parquet")
        server.log.clear()
        table = await file.lookup({"id": 3 * 2750}, columns=["price"])
        assert table.column("price").to_pylist() == [1375.0]
        assert taken(server, parts_of(data)) == ["GET id[1] chunk", "GET price[1] chunk"]
        assert any("no OffsetIndex" in reason for reason in file.metrics.fallbacks)


async def test_metrics_agree_with_the_server(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": 300})
        async with file.scan(where=col("price") > 100) as scan:
            async for _ in scan:
                pass
        assert s.metrics.requests == len(server.log)
        assert s.metrics.bytes_fetched == server.bytes_sent


async def test_plan_is_what_is_then_fetched(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        plan = await file.plan(columns=["user", "price"], where=col("id").between(3 * 700, 3 * 800))
        assert server.log == []
        await file.read(columns=["user", "price"], where=col("id").between(3 * 700, 3 * 800))
        asked = sorted(request.range or "" for request in server.log)
        assert asked == sorted(f"bytes={request.start}-{request.stop - 1}" for request in plan.requests)
        text = plan.explain()
        assert "row groups: 1 of 2 (1 ruled out by statistics, 0 by page indexes)" in text
        assert f"{plan.num_requests} requests, {plan.num_bytes:,} bytes" in text
        again = await file.plan(columns=["user", "price"], where=col("id").between(3 * 700, 3 * 800))
        assert again.num_requests == 0
        assert again.cached_bytes == plan.num_bytes


async def test_scan_plan_is_what_a_scan_sends_unit_by_unit(server: ObjectServer) -> None:
    async with session(server, limits=asyncpq.LimitOptions(unit_bytes=5_000)) as s:
        file = await s.open_file(URL)
        server.log.clear()
        plan = await file.plan(columns=["price", "user"], where=col("price") != 0.25)
        assert plan.num_requests > 12
        await file.read(columns=["price", "user"], where=col("price") != 0.25)
        asked = sorted(request.range or "" for request in server.log)
        assert asked == sorted(f"bytes={request.start}-{request.stop - 1}" for request in plan.requests)


async def test_without_trust_no_column_index_is_fetched(server: ObjectServer) -> None:
    read = asyncpq.ReadOptions(trust_statistics=False)
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}, read=read) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": 300}, columns=["price"])
        assert not [line for line in taken(server) if "ColumnIndex" in line]


async def test_a_corrupt_offset_index_is_judged_once(server: ObjectServer) -> None:
    data = bytearray(DATA)
    for part in PARTS:
        if part.label == "id[0] OffsetIndex":
            data[part.start : part.stop] = b"\xff" * (part.stop - part.start)
    server.put("lake/broken.parquet", bytes(data))
    async with session(server, requests={"tail_bytes": FOOTER_BYTES}) as s:
        file = await s.open_file("s3://lake/broken.parquet")
        for number in range(3):
            with asyncpq.measure() as cost:
                table = await file.lookup({"id": 3 * 500 * number}, columns=["price"])
            assert table.column("price").to_pylist() == [250.0 * number]
            # afterwards the chunk's own pages have told where they are
            assert any("index is not used" in reason for reason in cost.fallbacks) is (number == 0)
            lines = taken(server)
            assert number < 2 or not [line for line in lines if "Index" in line]


async def test_what_metrics_print(server: ObjectServer) -> None:
    """Ranges as explain() prints them, and no total of pages that nobody knows."""
    server.put("lake/plain.parquet", sample(page_index=False))
    async with session(server) as s:
        file = await s.open_file(URL)
        plan = await file.plan(columns=["price"], where=col("id") > 3 * 2500)
        ((start, stop),) = {(request.start, request.stop) for request in plan.requests[:1]}
        cost = await cost_of(file.read(columns=["price"], where=col("id") > 3 * 2500))
        assert f"GET {start}-{stop - 1} " in plan.explain()
        assert f"GET data {start}-{stop - 1} " in "\n".join(map(str, cost.log))
        assert f"pages {cost.pages_read} of {cost.pages_total}, " in str(cost)
        file = await s.open_file("s3://lake/plain.parquet")
        cost = await cost_of(file.read(columns=["price"]))
        assert f"pages {cost.pages_read}, " in str(cost)
    assert "(3 of them not filtered) (4 ruled out by bloom filters), pages 0" in str(
        ReadMetrics(row_groups_proven=3, row_groups_by_bloom=4)
    )


async def test_long_lists_of_columns_are_cut(server: ObjectServer) -> None:
    server.put("lake/wide.parquet", parquet_bytes(pa.table({f"c{at}": [at] for at in range(100)})))
    async with session(server, requests={"tail_bytes": 8}) as s:
        text = (await (await s.open_file("s3://lake/wide.parquet")).plan()).explain()
    assert "columns: c0, " in text
    assert text.count("c39, ... (100 in all)") == 2, "of the read and of its one request"
    assert "c40," not in text


async def test_explain_says_what_a_limit_leaves_out(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        text = (await file.plan(columns=["id"], limit=3)).explain()
        assert "limit: 3 rows" in text
        assert "ruled out by statistics" not in text


async def test_page_locations_learnt_from_whole_chunks_are_used_later(server: ObjectServer) -> None:
    data = sample(page_index=False)
    server.put("lake/plain.parquet", data)
    named = walked_parts(data)
    async with session(server, requests={"tail_bytes": 2000}) as s:
        file = await s.open_file("s3://lake/plain.parquet")
        async with file.scan(columns=["price", "event"]) as scan:
            async for _ in scan:
                pass
        server.log.clear()
        plan = await file.plan(columns=["event"], where=col("price") == 5.0)
        assert "page locations learnt: price, event" in plan.explain()
        assert " by page locations\n" in plan.explain()
        assert plan.fallbacks == ("price: no ColumnIndex, its pages are not pruned",)
        await file.take([3999, 10], columns=["price", "event"])
        assert taken(server, named) == [], "the scan's pages are in memory, under what was learnt"
        s.memory_cache.discard_if(lambda key: isinstance(key, ContentKey) and key.kind != "learnt")
        await file.take([3999, 10], columns=["price", "event"])
        assert taken(server, named) == [
            "GET event[0] dictionary, event[0] page 0",
            "GET price[0] page 0",
            "GET event[1] dictionary",
            "GET event[1] page 3",
            "GET price[1] page 3",
        ]
        cost = await cost_of(file.lookup({"id": 3 * 2750}, columns=["price"]))  # id is read whole, of one row group
        assert any("id: no OffsetIndex" in reason for reason in cost.fallbacks)
        server.log.clear()
        await file.take([2750], columns=["id"])
        assert taken(server, named) == [], "the lookup kept the pages it walked"


async def test_what_was_learnt_holds_for_one_version(server: ObjectServer) -> None:
    server.put("lake/plain.parquet", sample(page_index=False))
    async with session(server) as s:
        file = await s.open_file("s3://lake/plain.parquet")
        await file.read(columns=["id"])
        assert (await file.plan(columns=["id"], where=col("id") == 15)).learnt == ("id",)
        table = pa.table({"id": pa.array(range(50), pa.int64())})  # its chunk begins at the same byte
        server.put("lake/plain.parquet", parquet_bytes(table))
        await file.refresh()
        assert (await file.plan(columns=["id"], where=col("id") == 15)).learnt == ()
        assert (await file.take([10], columns=["id"])).column("id").to_pylist() == [10]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (None, None),
        (col("a") == 1, 1),
        (col("a") > 1, None),
        (col("a").is_in([1, 2, 3]), 3),
        ((col("a") == 1) & (col("b") > 2), 1),
        (col("a").is_in([1, 2, 3]) & col("b").is_in([1, 2]), 2),
        ((col("a") > 1) & (col("b") > 2), None),
        ((col("a") == 1) | col("b").is_in([1, 2]), 3),
        ((col("a") == 1) | (col("b") > 2), None),
    ],
    ids=str,
)
def test_lookups_are_expected_to_match_a_row_for_each_value(where: Expression | None, rows: int | None) -> None:
    assert _expected_matches(where) == rows


@pytest.mark.parametrize(
    ("where", "texts"),
    [
        (col("b").contains("name 7"), {"b": (b"name 7",)}),
        (col("b").is_in(["x", "a"]) & (col("a") > 5), {"b": (b"a", b"x")}),
        (col("b").is_in(["x", "a", "y"]), {}),
        (~col("b").contains("name 7"), {}),
    ],
    ids=str,
)
def test_pages_of_many_rows_are_searched_for_texts(where: Expression, texts: dict[str, tuple[bytes, ...]]) -> None:
    rows = pa.table({"a": range(40_000), "b": [f"name {row}" for row in range(40_000)]})

    async def question(file: asyncpq.File) -> dict[str, tuple[bytes, ...]]:
        planner = file._prepare("plan", ScanRequest(where=where))
        with planner.operation:
            (group,) = (await planner.prepare(scan=True)).fetch_plan.row_groups
        return {rows.column_names[column.field]: column.texts for column in group.columns if column.texts}

    data = parquet_bytes(rows, write_statistics=False)
    assert ask(data, question) == texts
