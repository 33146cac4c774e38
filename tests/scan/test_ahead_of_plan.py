"""The data of the first units, which are requested before the page indexes of the other row groups are parsed."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from asyncpq.objects.coalesce import ByteRange
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.page_indexes import IndexedChunk, IndexRequest, PageIndexes, indexed_chunk
from asyncpq.options import MIB
from asyncpq.scan import fetch_planner, file_planner
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"
PATH = "lake/file.parquet"
GROUPS = 8


def unsorted(rows: int, *, seed: int = 0) -> pa.Table:
    draw = random.Random(seed)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "user": [f"user-{draw.randrange(rows):012d}" for _ in range(rows)],
            "price": pa.array([draw.random() for _ in range(rows)], pa.float64()),
        }
    )


def written(table: pa.Table, **options: Any) -> bytes:
    few = {"max_rows_per_page": 500, "data_page_size": 8000, "write_batch_size": 100}
    return parquet_bytes(
        table, **{"compression": "none", "use_dictionary": False, "write_page_index": True} | few | options
    )


TABLE = unsorted(GROUPS * 4000)
DATA = written(TABLE, row_group_size=4000)  # 150 kB of each row group, 84 of them ``user``
LARGE = unsorted(GROUPS * 60_000)
LARGE_DATA = written(LARGE, row_group_size=60_000, max_rows_per_page=5000, data_page_size=80_000)
KEYS = TABLE["user"].to_pylist()


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put(PATH, DATA)
        running.put("lake/large.parquet", LARGE_DATA)
        yield running


def session(server: ObjectServer, **options: Any) -> asyncpq.Session:
    limits = {"unit_bytes": 100_000, "round_bytes": 0} | options.pop("limits", {})
    requests = {"gap_bytes": 0, "tail_bytes": 256 * 1024, "latency_s": 0.01, "bandwidth_bytes_s": 5e6} | options.pop(
        "requests", {}
    )
    return asyncpq.Session(
        server.storage_options,
        limits=asyncpq.LimitOptions(**limits),
        requests=asyncpq.RequestOptions(**requests),
        **options,
    )


def ranges(server: ObjectServer) -> list[tuple[int, int]]:
    """The byte ranges asked for, each with its stop, in order of their bytes."""
    found = [tuple(map(int, str(request.range).removeprefix("bytes=").split("-"))) for request in server.log]
    server.log.clear()
    return sorted([(start, last + 1) for start, last in found])


class Indexes:
    """The calls of ``PageIndexes.fetch``. Calls after the first wait until the server was asked for data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: ObjectServer) -> None:
        self.calls: list[int] = []  # the number of row groups
        self.asked: list[int] = []  # requests for data before
        fetch = PageIndexes.fetch

        async def fetched(indexes: PageIndexes, requests: Sequence[IndexRequest]) -> None:
            self.calls.append(len({request.row_group for request in requests}))
            if len(self.calls) > 1:
                for _ in range(10_000):
                    if server.log:
                        break
                    await asyncio.sleep(0.001)
            self.asked.append(len(server.log))
            await fetch(indexes, requests)

        monkeypatch.setattr(PageIndexes, "fetch", fetched)


def disable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageIndexes, "in_tail", lambda *_: False)


async def rows(file: asyncpq.File, where: Expression, columns: Sequence[str]) -> pa.Table:
    async with file.scan(columns, where=where) as batches:
        return pa.Table.from_batches([batch async for batch in batches], batches.schema)


FILTERS = [
    (col("user") == KEYS[7], ["id", "price"]),  # two rounds
    (col("price") > 0.25, ["id", "user", "price"]),  # one round
    (col("user").is_in(KEYS[::100]), ["id", "user"]),
    (col("user") == KEYS[7], ["user"]),
]


@pytest.mark.io
@pytest.mark.parametrize(("where", "columns"), FILTERS)
async def test_first_units_are_asked_for_before_other_indexes_are_parsed(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, where: Expression, columns: list[str]
) -> None:
    """The read asks for the same bytes in as many requests and rounds as one that parses all of them first."""
    with monkeypatch.context() as patched:
        disable(patched)
        async with session(server) as s:
            file = await s.open_file(URL)
            server.log.clear()
            with asyncpq.measure() as before:
                expected = await rows(file, where, columns)
    wanted = ranges(server)
    indexes = Indexes(monkeypatch, server)
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        with asyncpq.measure() as cost:
            found = await rows(file, where, columns)
    assert found.equals(expected)
    assert sum(indexes.calls) == GROUPS
    assert indexes.calls[0] <= 3
    assert indexes.asked[0] == 0
    assert indexes.asked[1] > 0
    assert ranges(server) == wanted
    assert (cost.requests, cost.bytes_fetched, cost.rounds) == (before.requests, before.bytes_fetched, before.rounds)
    assert (cost.cache_hits, cost.cache_misses) == (before.cache_hits, before.cache_misses)
    assert s._runtime.budget.used == 0


@pytest.mark.io
@pytest.mark.parametrize("unit_bytes", [MIB, 2 * MIB])
async def test_chunks_that_come_whole_are_asked_for_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, unit_bytes: int
) -> None:
    """In slices too, where a row group takes several units."""
    where, columns = col("user") == LARGE["user"][7].as_py(), ["id"]
    indexes = Indexes(monkeypatch, server)
    options = {"limits": {"unit_bytes": unit_bytes}, "memory_cache_bytes": 4 * MIB}
    async with session(server, **options) as s:
        file = await s.open_file("s3://lake/large.parquet")
        server.log.clear()
        found = await rows(file, where, columns)
    assert len(indexes.calls) == 2
    asked = ranges(server)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(asked))
    assert sum(stop - start for start, stop in asked) < 1.1 * LARGE["user"].nbytes
    assert found.equals(LARGE.filter(pc.equal(LARGE["user"], LARGE["user"][7])).select(columns))


@pytest.mark.io
@pytest.mark.parametrize(
    "case",
    ["no filter", "small row groups", "parsed indexes", "indexes apart", "limit", "no room", "plan", "disk cache"],
)
async def test_others_plan_all_row_groups_first(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    where = None if case == "no filter" else FILTERS[0][0]
    options: dict[str, Any] = {}
    if case == "small row groups":
        options = {"limits": {"unit_bytes": MIB}}
    elif case == "indexes apart":
        options = {"requests": {"tail_bytes": 2048}}
    elif case == "disk cache":
        options = {"disk_cache": asyncpq.DiskCacheOptions(path=str(tmp_path / "cache"))}
    async with session(server, **options) as s:
        file = await s.open_file(URL)
        if case == "parsed indexes":
            await file.plan(["id"], where=where)
        if case == "no room":
            s._runtime.budget.take(64 * MIB)
        begun: list[object] = []
        fetch_ahead = ObjectRead.fetch_ahead

        def counted(read: Any, parts: Any) -> None:
            fetch_ahead(read, parts)
            begun.extend(read.ahead)

        monkeypatch.setattr(ObjectRead, "fetch_ahead", counted)
        if case == "plan":
            await file.plan(["id"], where=where)
        else:
            async with file.scan(["id"], where=where, limit=1 if case == "limit" else None) as batches:
                assert sum([batch.num_rows async for batch in batches]) > 0
        assert begun == []


async def test_chunks_of_many_columns_are_looked_at_in_threads(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 row groups of 2,000 columns stopped the event loop for 370 ms."""
    table = pa.table({f"c{number}": pa.array(range(80)) for number in range(60)})
    server.put("lake/wide.parquet", written(table, row_group_size=10))
    threads: list[threading.Thread] = []

    def looked_at(*place: Any) -> IndexedChunk:
        threads.append(threading.current_thread())
        return indexed_chunk(*place)

    monkeypatch.setattr(fetch_planner, "indexed_chunk", looked_at)
    async with session(server) as s:
        file = await s.open_file("s3://lake/wide.parquet")
        assert (await file.read(where=col("c0") > 7)).num_rows == 72
    assert threads
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("step", ["page indexes", "schema"])
async def test_what_is_fetched_ahead_ends_with_a_failed_plan(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        calls = 0
        fetch = PageIndexes.fetch

        async def fails(indexes: PageIndexes, requests: Sequence[IndexRequest]) -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise RuntimeError("made up")
            await fetch(indexes, requests)

        async def refuses(*_: object) -> None:
            raise RuntimeError("made up")

        if step == "schema":
            file._version.arrow_schema_checked = False
            monkeypatch.setattr(file_planner, "check_arrow_schema", refuses)
        else:
            monkeypatch.setattr(PageIndexes, "fetch", fails)
        server.faults = [Fault(latency_s=30, times=None)]
        before = len(asyncio.all_tasks())
        with pytest.raises(RuntimeError, match="made up"):
            await file.read(["id"], where=FILTERS[0][0])
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert len(asyncio.all_tasks()) <= before
        assert s._runtime.budget.used == 0
        assert not s._runtime.flights._flights


async def test_what_no_unit_takes_ends_with_the_read(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[ObjectRead[Any]] = []
    fetch_ahead = ObjectRead.fetch_ahead

    def with_more(read: ObjectRead[Any], parts: Sequence[ByteRange]) -> None:
        fetch_ahead(read, [ByteRange(4, 1000), *parts])  # of ``id``, which is not read
        begun.append(read)

    monkeypatch.setattr(ObjectRead, "fetch_ahead", with_more)
    async with session(server) as s:
        file = await s.open_file(URL)
        found = await file.lookup({"user": KEYS[7:9]}, columns=["price"])
        assert found.num_rows == sum(map(KEYS.count, KEYS[7:9]))
        assert [list(read.ahead) for read in begun] == [[]]


@pytest.mark.faults
async def test_an_error_of_the_first_requests_is_the_read_s_error(server: ObjectServer) -> None:
    async with session(server, retry=asyncpq.RetryOptions(max_attempts=1)) as s:
        file = await s.open_file(URL)
        server.faults = [Fault(status=503, times=None)]
        with pytest.raises(asyncpq.StoreError):
            await file.read(["id"], where=FILTERS[0][0])
        server.faults = []
        assert (await file.read(["id"], where=FILTERS[0][0])).num_rows == KEYS.count(KEYS[7])
        assert s._runtime.budget.used == 0


async def test_a_replaced_object_is_read_again(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.put(PATH, written(TABLE.slice(0, 20_000), row_group_size=4000))
        found = await file.lookup({"user": KEYS[:200]}, columns=["id"])
    assert found.num_rows == sum(map(set(KEYS[:200]).__contains__, KEYS[:20_000]))


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_chunk_that_is_fetched_ahead_whole_is_not_waited_for_by_itself(
    server: ObjectServer, at_once: int
) -> None:
    """A short plan gives the event loop no turn between the first request and the unit that needs all of its range."""
    keys = np.random.default_rng(7).permutation(4 * 280_000)
    server.put(
        "lake/chunks.parquet",
        parquet_bytes(
            pa.table({"id": keys}),
            row_group_size=280_000,
            compression="none",
            use_dictionary=False,
            write_page_index=True,
        ),
    )
    limits = {"unit_bytes": 2 * MIB, "round_bytes": 64 * MIB}
    async with session(server, limits=limits, memory_cache_bytes=4 * MIB) as s:
        files = [await s.open_file("s3://lake/chunks.parquet") for _ in range(at_once)]
        async with asyncio.timeout(20):
            found = await asyncio.gather(*[file.lookup({"id": int(keys[5])}) for file in files])
        assert [table["id"].to_pylist() for table in found] == [[int(keys[5])]] * at_once
        assert s._runtime.budget.used == 0
        assert not s._runtime.flights._tasks


@st.composite
def files(draw: st.DrawFn) -> tuple[pa.Table, bytes]:
    table = unsorted(draw(st.integers(2000, 6000)), seed=draw(st.integers(0, 99)))
    order = draw(st.sampled_from(["none", "all", "within"]))
    size = draw(st.sampled_from([300, 500, 1000]))
    if order == "all":
        table = table.sort_by("user")
    elif order == "within":  # pages prune, row groups do not
        table = pa.concat_tables([table.slice(start, size).sort_by("user") for start in range(0, table.num_rows, size)])
    options = {"max_rows_per_page": draw(st.sampled_from([20, 100])), "data_page_size": 500, "write_batch_size": 20}
    data = written(
        table,
        row_group_size=size,
        use_dictionary=draw(st.booleans()),
        compression=draw(st.sampled_from(["none", "zstd"])),
        **options,
    )
    return table, data


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(
    drawn=files(),
    unit_bytes=st.sampled_from([2000, 8000, 20_000]),
    late=st.sampled_from(["auto", "always", "never"]),
    num_keys=st.sampled_from([1, 30]),
    memory=st.sampled_from([0, 10_000, 256 * MIB]),
)
def test_rows_are_those_of_pyarrow(
    drawn: tuple[pa.Table, bytes], unit_bytes: int, late: Any, num_keys: int, memory: int
) -> None:
    table, data = drawn
    keys = table["user"].to_pylist()[:: max(1, table.num_rows // num_keys)][:num_keys]
    where = col("user").is_in(keys) & (col("price") < 0.9)

    async def run() -> tuple[pa.Table, pa.Table]:
        async with ObjectServer() as server:
            server.put(PATH, data)
            options = {"limits": {"unit_bytes": unit_bytes}, "requests": {"late_materialization": late}}
            async with session(server, memory_cache_bytes=memory, **options) as s:
                file = await s.open_file(URL)
                first = await rows(file, where, ["price", "id"])
                assert s._runtime.budget.used == 0
                return first, await file.lookup({"user": keys}, columns=["id"])

    scanned, looked_up = asyncio.run(run())
    whole = pq.read_table(pa.BufferReader(data))
    matching = whole.filter(pc.is_in(whole["user"], pa.array(keys)))
    assert scanned.equals(matching.filter(pc.less(matching["price"], 0.9)).select(["price", "id"]))
    assert sorted(looked_up["id"].to_pylist()) == sorted(matching["id"].to_pylist())
