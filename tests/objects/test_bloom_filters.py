"""Which bytes of bloom filters are asked for, request by request, and which are never asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.parquet.bloom_filter import block_of, xxh64
from asyncpq.testing import ObjectServer
from tests.costs import Part, cost_of, parts_of, trace
from tests.parquet_files import EditedFile, write

pytestmark = pytest.mark.io

ROWS = 3000
GROUPS = 3
NUM_BLOCKS = 64
URL = "s3://lake/sample.parquet"
TABLE = pa.table(
    {
        "id": pa.array([row * 7919 % ROWS * 2 for row in range(ROWS)], pa.int64()),
        "price": pa.array([row * 0.5 for row in range(ROWS)], pa.float64()),
    }
)
OPTIONS: dict[str, Any] = {
    "write_statistics": True,
    "write_page_index": True,
    "use_dictionary": False,
    "compression": "none",
    "max_rows_per_page": 500,
    "write_batch_size": 100,
}
DATA = write(TABLE, ["id"], rows_per_group=1000, ndv=3000, fpp=0.001, **OPTIONS)
KEY, ITS_ROW = 2 * (1500 * 7919 % ROWS), 1500  # in the second row group


def block(key: int, num_blocks: int = NUM_BLOCKS) -> int:
    return block_of(xxh64(key.to_bytes(8, "little")), num_blocks)


def tail_of(data: bytes) -> int:
    """Bytes from the end that hold footer and page indexes, and no filter."""
    return len(data) - min(part.start for part in parts_of(data) if part.label.endswith("Index"))


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/sample.parquet", DATA)
        yield running


def session(server: ObjectServer, *, data: bytes = DATA, **requests: Any) -> asyncpq.Session:
    options: dict[str, Any] = {"gap_bytes": 0, "tail_bytes": tail_of(data), "bloom_filters": "always"} | requests
    server.put("lake/sample.parquet", data)
    return asyncpq.Session(server.storage_options, requests=asyncpq.RequestOptions(**options))


def taken(server: ObjectServer, data: bytes = DATA, *, only_filters: bool = True) -> list[str]:
    """The requests since the last call."""
    lines = trace(server.log, parts_of(data))
    server.log.clear()
    return [line for line in lines if not only_filters or "bloom" in line or "block" in line]


async def test_a_cold_lookup_takes_headers_and_blocks_of_all_row_groups_in_one_round(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        with asyncpq.measure() as cost:
            table = await file.lookup({"id": KEY}, columns=["price"])
        assert table.column("price").to_pylist() == [ITS_ROW * 0.5]
        number = block(KEY)
        probes = [f"GET id[{group}] {part}" for group in range(3) for part in ("bloom header", f"block {number}")]
        assert taken(server, only_filters=False) == ["GET id[1] page 0-1, price[1] page 0-1", *probes]
        assert cost.row_groups_by_bloom == 2
        assert [request.round for request in cost.log if request.purpose == "bloom"] == [1] * 6
        assert cost.rounds == 2


async def test_headers_are_known_later_and_blocks_are_not_asked_for_twice(server: ObjectServer) -> None:
    async with session(server, latency_s=0) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": KEY})
        server.log.clear()
        await file.lookup({"id": KEY + 1})
        assert taken(server) == [f"GET id[{group}] block {block(KEY + 1)}" for group in range(GROUPS)]
        await file.lookup({"id": KEY})
        await file.lookup({"id": KEY + 1})
        assert await file.count(col("id").is_in([KEY, KEY + 1])) == 1
        assert taken(server) == []
        other = next(key for key in range(KEY + 3, 2 * ROWS, 2) if block(key) not in (block(KEY), block(KEY + 1)))
        await file.count(col("id").is_in([KEY + 1, other]))
        assert taken(server) == [f"GET id[{group}] block {block(other)}" for group in range(GROUPS)]


async def test_headers_and_blocks_that_are_near_share_a_request(server: ObjectServer) -> None:
    async with session(server, gap_bytes=200) as s:
        file = await s.open_file(URL)
        near = next(key for key in range(1, 2 * ROWS, 2) if block(key) < 5)
        server.log.clear()
        assert (await file.lookup({"id": near})).num_rows == 0
        blocks = f"block {f'0-{block(near)}' if block(near) else 0}"
        assert taken(server) == [f"GET id[{group}] bloom header, id[{group}] {blocks}" for group in range(GROUPS)]


async def test_whole_filters_where_parts_would_cost_no_less(server: ObjectServer) -> None:
    async with session(server, gap_bytes=1100) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.lookup({"id": KEY})
        whole = [f"id[{group}] bloom header, id[{group}] block 0-{NUM_BLOCKS - 1}" for group in range(GROUPS)]
        assert taken(server) == [f"GET {', '.join(whole)}"]
        await file.lookup({"id": KEY + 1})
        assert taken(server) == []


async def test_whole_filters_once_their_round_trips_would_have_paid_for_them(server: ObjectServer) -> None:
    size = GROUPS * 32 * NUM_BLOCKS
    async with session(server, latency_s=1.0, bandwidth_bytes_s=size / 3) as s:
        file = await s.open_file(URL)
        server.log.clear()
        for key in (3001, 3003):
            await file.lookup({"id": key})
            assert all(f"block {block(key)}" in line or "header" in line for line in taken(server))
        await file.lookup({"id": 3005})
        whole = [f"id[{group}] bloom header, id[{group}] block 0-{NUM_BLOCKS - 1}" for group in range(GROUPS)]
        assert taken(server) == [f"GET {', '.join(whole)}"]
        for key in range(3007, 3099, 2):
            await file.lookup({"id": key})
        assert taken(server) == []


async def test_filters_in_the_tail_take_no_request(server: ObjectServer) -> None:
    async with session(server, tail_bytes=len(DATA) - 100, bloom_filters="auto") as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert (await file.lookup({"id": KEY + 1})).num_rows == 0
        assert taken(server) == []
        assert file.metrics.row_groups_by_bloom == GROUPS


def without_lengths(data: bytes) -> bytes:
    edited = EditedFile(data)
    for group in range(GROUPS):
        edited.meta(0, group).put(15, None)
    return edited.data()


async def test_without_lengths_headers_come_first(server: ObjectServer) -> None:
    data = without_lengths(DATA)
    async with session(server, data=data) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert (await file.lookup({"id": KEY}, columns=["price"])).num_rows == 1
        number = block(KEY)
        assert sorted(taken(server, data)) == sorted(
            [f"GET id[{group}] bloom header, id[{group}] block 0 and more" for group in range(GROUPS)]
            + [f"GET id[{group}] block {number}" for group in range(GROUPS)]
        )
        assert file.metrics.rounds == 3


async def test_without_lengths_small_filters_come_with_their_headers(server: ObjectServer) -> None:
    data = without_lengths(write(TABLE, ["id"], rows_per_group=1000, ndv=100, fpp=0.01, **OPTIONS))
    async with session(server, data=data, gap_bytes=1000) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": KEY}, columns=["price"])
        assert file.metrics.rounds == 2


async def test_only_what_may_save_more_than_it_costs(server: ObjectServer) -> None:
    # of 48 KB of keys and prices a third is read in any case, and a second round would not spare it: against the bytes
    # of one round trip
    for bandwidth_bytes_s, expected in ((12_000, 6), (24_000, 6), (48_000, 0), (1_000_000, 0)):
        async with session(server, bloom_filters="auto", latency_s=1, bandwidth_bytes_s=bandwidth_bytes_s) as s:
            file = await s.open_file(URL)
            server.log.clear()
            await file.lookup({"id": KEY}, columns=["price"])
            assert len(taken(server)) == expected
            await file.lookup({"id": list(range(20))}, columns=["price"])  # some of them are everywhere
            assert taken(server) == []


async def test_never_and_distrust_ask_none(server: ObjectServer) -> None:
    async with session(server, bloom_filters="never") as s:
        file = await s.open_file(URL)
        await file.lookup({"id": KEY})
        assert taken(server) == []
    requests = asyncpq.RequestOptions(bloom_filters="always", tail_bytes=tail_of(DATA))
    read = asyncpq.ReadOptions(trust_statistics=False)
    async with asyncpq.Session(server.storage_options, requests=requests, read=read) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": KEY})
        assert taken(server) == []


async def test_predicates_that_filters_cannot_answer_ask_none(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        for where in (col("id") > KEY, col("id") != KEY, (col("id") == KEY) | (col("price") > 1e9), ~(col("id") == 1)):
            await file.read(where=where)
        await file.take([1, 2])
        await file.read(limit=3)
        assert taken(server) == []


async def test_row_groups_that_statistics_rule_out_are_not_asked(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        await file.lookup({"id": -1})
        assert server.log == []


async def test_explain_says_what_filters_ruled_out_and_what_they_cost(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        text = (await file.plan(columns=["price"], lookup={"id": KEY})).explain()
        assert "row groups: 1 of 3 (0 ruled out by statistics, 0 by page indexes, 2 by bloom filters)" in text
        line = "bloom filters of id: asked for row groups 0-2, ruled out row groups 0, 2; 6 requests, 144 bytes"
        assert line in text
        assert "planning took 6 requests" in text
        again = (await file.plan(columns=["price"], lookup={"id": KEY})).explain()
        assert "ruled out row groups 0, 2; 0 requests, 0 bytes" in again
        assert "bloom" not in (await file.plan(columns=["price"], where=col("id") > KEY)).explain()


async def test_a_key_that_is_nowhere_reads_no_data(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        assert await file.count(col("id") == KEY + 1) == 0
        assert len(taken(server, only_filters=False)) == 6
        async with file.scan(where=(col("id") == KEY + 1) & (col("price") > 0)) as scan:
            assert [batch async for batch in scan] == []
        assert taken(server, only_filters=False) == []


async def test_lookups_at_once_share_what_they_fetch(server: ObjectServer) -> None:
    async with session(server, latency_s=0) as s:
        file = await s.open_file(URL)
        server.log.clear()
        tables = await asyncio.gather(*[file.lookup({"id": key}) for key in (KEY, KEY, KEY + 1, KEY + 2) * 5])
        assert [table.num_rows for table in tables] == [1, 1, 0, 1] * 5
        lines = taken(server)
        assert len(lines) == len(set(lines))


async def test_a_replaced_object_is_noticed_by_the_probe(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        await file.lookup({"id": KEY})
        server.put("lake/sample.parquet", write(TABLE.slice(0, 900), ["id"], rows_per_group=300, ndv=300, **OPTIONS))
        server.log.clear()
        gone = TABLE.column("id")[2000].as_py()
        with asyncpq.measure() as cost:
            assert (await file.lookup({"id": gone})).num_rows == 0
        assert cost.restarts == 1
        held = TABLE.column("id")[800].as_py()
        with asyncpq.measure() as cost:
            assert (await file.lookup({"id": held}, columns=["price"])).column("price").to_pylist() == [400.0]
        assert cost.row_groups_by_bloom == 2


# -- byte budgets of key lookups in an unsorted file ------------------------------------------------

UNSORTED = pa.table(
    {
        "id": pa.array([row * 7919 % 40_000 * 2 for row in range(40_000)], pa.int64()),
        "price": pa.array([row * 0.5 for row in range(40_000)], pa.float64()),
    }
)
UNSORTED_DATA = write(UNSORTED, ["id"], rows_per_group=5000, ndv=5000, fpp=0.001, **OPTIONS)
UNSORTED_KEY = UNSORTED.column("id")[17_000].as_py()  # in the fourth of eight row groups


def unsorted_session(server: ObjectServer) -> asyncpq.Session:
    """Probes are made because they pay, not because an option says so."""
    options: dict[str, Any] = {"latency_s": 0.001, "bandwidth_bytes_s": 10_000_000, "bloom_filters": "auto"}
    return session(server, data=UNSORTED_DATA, **options)


def bytes_of(parts: Iterable[Part], label: str) -> int:
    return sum(part.stop - part.start for part in parts if part.label.startswith(label))


def bloom_bytes(cost: asyncpq.ReadMetrics) -> int:
    """Bytes of bloom filters that were fetched."""
    return sum(request.bytes for request in cost.log if request.purpose == "bloom")


async def test_the_bytes_of_a_cold_lookup_in_an_unsorted_file(server: ObjectServer) -> None:
    parts = parts_of(UNSORTED_DATA)
    blocks = sum(bytes_of(parts, f"id[{group}] bloom header") + 32 for group in range(8))
    data = bytes_of(parts, "id[3] page") + max(bytes_of([part], "price[3] page") for part in parts)
    assert 8 * data > 4 * (blocks + data)  # what reading all row groups would take
    async with unsorted_session(server) as s:
        file = await s.open_file(URL)
        assert server.bytes_sent == tail_of(UNSORTED_DATA)
        with asyncpq.measure() as cost:
            table = await file.lookup({"id": UNSORTED_KEY}, columns=["price"])
        assert table.column("price").to_pylist() == [17_000 * 0.5]
        assert cost.row_groups_by_bloom == 7
        assert server.bytes_sent <= tail_of(UNSORTED_DATA) + blocks + data
        assert bloom_bytes(cost) == blocks
        assert bloom_bytes(await cost_of(file.lookup({"id": UNSORTED_KEY}, columns=["price"]))) == 0


async def test_filters_that_are_whole_are_not_fetched_again(server: ObjectServer) -> None:
    filters = bytes_of(parts_of(UNSORTED_DATA), "id[0] b") * 8
    async with unsorted_session(server) as s:
        file = await s.open_file(URL)
        fetched = 0
        for row in range(0, 20_000, 1000):
            key = UNSORTED.column("id")[row].as_py()
            fetched += bloom_bytes(await cost_of(file.lookup({"id": key}, columns=["price"])))
        assert filters <= fetched < 2 * filters
        for row in (*range(20_500, 40_000, 1000), 500):
            key = UNSORTED.column("id")[row].as_py()
            with asyncpq.measure() as cost:
                table = await file.lookup({"id": key}, columns=["price"])
            assert table.column("price").to_pylist() == [row * 0.5]
            assert cost.row_groups_by_bloom == 7
            assert bloom_bytes(cost) == 0
