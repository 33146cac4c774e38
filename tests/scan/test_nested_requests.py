"""Which bytes reads of nested columns ask for: the pages that hold the rows, of the leaves that are wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.parquet.page_index import decode_offset_index
from asyncpq.testing import ObjectServer
from tests.costs import parts_of, trace
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile

pytestmark = pytest.mark.io

ROWS = 1000
URL = "s3://lake/nested.parquet"


def sample(**options: Any) -> bytes:
    """One row group; ``id`` has pages of 100 rows, the leaves of ``trip`` and of ``tags`` have others each."""
    trip = pa.struct(
        [("user", pa.string()), ("stops", pa.list_(pa.struct([("lon", pa.int64()), ("name", pa.string())])))]
    )
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "trip": pa.array(
                [
                    {
                        "user": f"user {row:05d}",
                        "stops": [{"lon": row * 10 + at, "name": f"stop {at} of trip {row}"} for at in range(row % 4)],
                    }
                    for row in range(ROWS)
                ],
                trip,
            ),
            "tags": pa.array([[(f"k{row % 7}", row)] for row in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        }
    )
    written = {"max_rows_per_page": 100, "data_page_size": 1200, "write_batch_size": 20, "compression": "none"}
    return parquet_bytes(
        table, **{**written, "use_dictionary": ["tags.key_value.key"], "write_page_index": True, **options}
    )


@pytest.fixture(params=["1.0", "2.0"])
def data(request: pytest.FixtureRequest) -> bytes:
    return sample(data_page_version=request.param)


@pytest.fixture
async def file(data: bytes) -> AsyncIterator[tuple[asyncpq.File, ObjectServer]]:
    """An open file whose footer and indexes came with the tail."""
    start = min(part.start for part in parts_of(data) if part.label.endswith("Index"))
    requests = asyncpq.RequestOptions(gap_bytes=0, tail_bytes=len(data) - start)
    async with ObjectServer() as server:
        server.put("lake/nested.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            opened = await session.open_file(URL)
            server.log.clear()
            yield opened, server


async def test_plans_name_the_leaves(file: tuple[asyncpq.File, ObjectServer]) -> None:
    opened, _ = file
    plan = await opened.plan(["trip.stops.list.element.lon", "tags"], col("trip.user") == "user 00500")
    lon, user = "trip.stops.list.element.lon", "trip.user"
    assert plan.columns == (lon, "tags")
    assert {name for request in plan.requests for name in request.columns} | set(plan.late_columns) == {
        lon,
        user,
        "tags",
    }
    assert f"columns: {lon}, tags\n" in plan.explain()
    whole = await opened.plan(["trip"], col("trip.user") == "user 00500")
    assert whole.columns == ("trip",)
    assert {name for request in whole.requests for name in request.columns} == {"trip"}


def pages_of(data: bytes, leaf: str, rows: range) -> list[str]:
    """Labels of the pages of ``leaf`` that hold any of ``rows``, by the file's own OffsetIndex."""
    opened = OpenFile(data)
    number = next(each.index for each in opened.metadata.schema.leaves if each.dotted == leaf)
    place = opened.version.chunk(0, number).offset_index_range
    assert place is not None
    index = decode_offset_index(data[slice(*place)])
    assert index.num_pages > 3, leaf
    return [f"{leaf}[0] page {at}" for at in range(index.page_of_row(rows[0]), index.page_of_row(rows[-1]) + 1)]


def fetched(data: bytes, server: ObjectServer) -> list[str]:
    """Every part that was asked for, one after another."""
    lines = trace(server.log, parts_of(data))
    server.log.clear()
    labels: list[str] = []
    for line in lines:
        assert "and more" not in line
        for label in line.removeprefix("GET ").split(", "):
            name, _, pages = label.rpartition(" page ")
            first, _, last = pages.partition("-")
            labels += [f"{name} page {at}" for at in range(int(first), int(last or first) + 1)] if name else [label]
    return labels


LEAVES = ["trip.user", "trip.stops.list.element.lon", "trip.stops.list.element.name"]


async def test_a_lookup_fetches_the_pages_beside_the_keys_page(
    data: bytes, file: tuple[asyncpq.File, ObjectServer]
) -> None:
    opened, server = file
    table = await opened.lookup({"id": 555}, columns=["trip"])
    assert table.column("trip").to_pylist()[0]["user"] == "user 00555"
    # in one round, which is before anything is known but that the row is on the key's page
    assert sorted(fetched(data, server)) == sorted(
        label for leaf in ("id", *LEAVES) for label in pages_of(data, leaf, range(500, 600))
    )
    assert opened.metrics.rounds == 1
    assert opened.metrics.fallbacks == []


async def test_rows_by_number_fetch_the_pages_that_hold_them(
    data: bytes, file: tuple[asyncpq.File, ObjectServer]
) -> None:
    opened, server = file
    await opened.take([250, 999], ["trip"])
    assert sorted(fetched(data, server)) == sorted(
        label for leaf in LEAVES for row in (250, 999) for label in pages_of(data, leaf, range(row, row + 1))
    )


async def test_rows_of_a_map_come_with_its_dictionary_which_is_then_kept(
    data: bytes, file: tuple[asyncpq.File, ObjectServer]
) -> None:
    opened, server = file
    assert (await opened.take([20], ["tags"])).column("tags").to_pylist() == [[("k6", 20)]]
    first = fetched(data, server)
    assert "tags.key_value.key[0] dictionary" in first
    assert (await opened.take([880], ["tags"])).column("tags").to_pylist() == [[("k5", 880)]]
    second = fetched(data, server)
    assert second
    assert "tags.key_value.key[0] dictionary" not in second


async def test_a_leaf_path_fetches_that_leaf_only(data: bytes, file: tuple[asyncpq.File, ObjectServer]) -> None:
    opened, server = file
    leaf = "trip.stops.list.element.lon"
    table = await opened.take([333], [leaf])
    assert table.to_pylist() == [{"trip": {"stops": [{"lon": 3330}]}}]
    assert fetched(data, server) == pages_of(data, leaf, range(333, 334))


async def test_a_predicate_on_a_struct_leaf_prunes_by_it_and_fetches_it_alone(
    data: bytes, file: tuple[asyncpq.File, ObjectServer]
) -> None:
    opened, server = file
    plan = await opened.plan(["id"], col("trip.user") == "user 00777")
    assert plan.pruning.rows_kept < 120
    assert await opened.count(col("trip.user") == "user 00777") == 1
    assert fetched(data, server) == pages_of(data, "trip.user", range(777, 778))


async def test_late_leaves_of_the_predicates_own_struct(data: bytes) -> None:
    """First the leaf that is filtered by, then pages of the others for the rows that match."""
    start = min(part.start for part in parts_of(data) if part.label.endswith("Index"))
    requests = asyncpq.RequestOptions(gap_bytes=0, tail_bytes=len(data) - start, late_materialization="always")
    async with ObjectServer() as server:
        server.put("lake/nested.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            opened = await session.open_file(URL)
            server.log.clear()
            table = await opened.read(["trip"], col("trip.user") == "user 00400")
            assert [row["user"] for row in table.column("trip").to_pylist()] == ["user 00400"]
            assert opened.metrics.rounds == 2
            assert sorted(fetched(data, server)) == sorted(
                label for leaf in LEAVES for label in pages_of(data, leaf, range(400, 401))
            )


async def test_a_writer_that_may_split_rows_is_read_by_chunks(data: bytes) -> None:
    other = data.replace(b"parquet-cpp-arrow version", b"some-other-writer version")
    assert other != data
    async with ObjectServer() as server:
        server.put("lake/nested.parquet", other)
        async with asyncpq.Session(server.storage_options) as session:
            opened = await session.open_file(URL)
            plan = await opened.plan(["trip"], col("id") == 5)
            reasons = [reason for reason in plan.fallbacks if "may split rows" in reason]
            assert [reason.partition(":")[0] for reason in reasons] == LEAVES[1:]  # trip.user is not repeated
            assert "fallback: trip.stops" in plan.explain()
            whole = pq.ParquetFile(pa.BufferReader(data)).read().column("trip").to_pylist()
            table = await opened.lookup({"id": [5, 999]}, columns=["trip"])
            assert table.column("trip").to_pylist() == [whole[5], whole[999]]
