"""One version: pointers, validation, handles and sessions under change; budgets and deadlines of reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.faults

URL = "s3://lake/file.parquet"


def parquet(offset: int = 0, *, rows: int = 3000, payload: int = 0) -> bytes:
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "value": pa.array([offset + row for row in range(rows)], pa.int64()),
            "payload": pa.array([f"{row:0{payload}d}" for row in range(rows)])
            if payload
            else pa.nulls(rows, pa.string()),
        }
    )
    return parquet_bytes(
        table,
        row_group_size=rows,
        max_rows_per_page=100,
        write_batch_size=100,
        data_page_size=500,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", parquet())
        yield running


def session(server: ObjectServer, *, tail_bytes: int = 20_000, **options: Any) -> asyncpq.Session:
    options.setdefault("requests", asyncpq.RequestOptions(tail_bytes=tail_bytes, gap_bytes=0))
    return asyncpq.Session(server.storage_options, **options)


async def warm(file: asyncpq.File) -> None:
    """Bring all pages of the file into the cache."""
    await file.lookup({"id": list(range(3000))})


async def test_cached_reads_with_a_limit_are_validated_before_the_first_row(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        file = await s.open_file(URL)
        await warm(file)
        server.put("lake/file.parquet", parquet(offset=10_000))
        assert (await file.read(["value"], limit=2)).column("value").to_pylist() == [10_000, 10_001]


async def test_cached_scans_are_validated_before_the_first_batch(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        file = await s.open_file(URL)
        await warm(file)
        server.put("lake/file.parquet", parquet(offset=10_000))
        async with file.scan(["value"], where=col("id") >= 0, batch_size=100) as scan:
            rows = [row for batch in [b async for b in scan] for row in batch.column("value").to_pylist()]
        assert rows == list(range(10_000, 13_000))
        assert scan.metrics.restarts == 1


async def test_a_read_validates_once(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(0), limits=asyncpq.LimitOptions(unit_bytes=1000)) as s:
        file = await s.open_file(URL)
        await warm(file)
        server.log.clear()
        await file.read(where=col("id") >= 0)
        assert len(server.log) == 1
        server.log.clear()
        assert await file.count() == 3000
        assert (await file.lookup({"id": -1})).num_rows == 0
        assert len(server.log) == 2


async def test_reads_adopt_the_version_they_read(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        server.put("lake/file.parquet", parquet(rows=4000))
        assert (await file.read(["value"])).num_rows == 4000
        assert file.num_rows == 4000
        assert (await file.take([3999], ["value"])).num_rows == 1


async def test_an_older_read_does_not_bring_the_old_version_back(server: ObjectServer) -> None:
    async with session(server, tail_bytes=100) as s:
        file = await s.open_file(URL)
        server.faults = [Fault(path="file.parquet", latency_s=0.3, times=1)]
        slow = asyncio.ensure_future(file.lookup({"id": 5}))
        await asyncio.sleep(0.05)
        server.put("lake/file.parquet", parquet(rows=4000))
        await file.refresh()
        assert file.num_rows == 4000
        await slow
        assert file.num_rows == 4000
        assert (await s.open_file(URL)).num_rows == 4000


async def test_many_handles_that_notice_a_change_fetch_one_footer(server: ObjectServer) -> None:
    async with session(server, tail_bytes=5_000) as s:
        files = [await s.open_file(URL) for _ in range(20)]
        server.put("lake/file.parquet", parquet(offset=10_000))
        server.log.clear()
        for number, file in enumerate(files):
            table = await file.lookup({"id": number * 100}, ["value"])
            assert table.column("value").to_pylist() == [10_000 + number * 100]
        assert sum((request.range or "").startswith("bytes=-") for request in server.log) == 1


@pytest.mark.parametrize("often", [1, 10])
async def test_replaced_between_two_requests_for_the_footer(server: ObjectServer, often: int) -> None:
    """Opening starts again: whoever opens asked for no version in particular."""
    versions = [parquet(offset=10_000 * number, rows=3000 + number) for number in range(often + 1)]
    # every answer but the first is given by a newer version
    faults = [Fault(after=number + 1, replace_with=versions[number + 1]) for number in range(often)]
    server.put("lake/file.parquet", versions[0])
    server.faults = lambda request: next((f for f in faults if f.after == len(server.log) - 1), None)
    async with session(server, tail_bytes=100) as s:
        if often == 1:
            file = await s.open_file(URL)
            assert file.num_rows == 3001
            assert file.opening is not None
            assert file.opening.restarts == 1
            assert (await file.lookup({"id": 5}, ["value"])).column("value").to_pylist() == [10_005]
        else:
            with pytest.raises(asyncpq.ObjectChangedError):
                await s.open_file(URL)
            assert len(server.log) <= 10


async def test_replaced_local_files_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(parquet())
    policy = asyncpq.etag(0.05)
    async with asyncpq.Session(
        cache_policy=policy, limits=asyncpq.LimitOptions(unit_bytes=1000, in_flight_bytes=1)
    ) as s:
        file = await s.open_file(path)
        async with file.scan(["value"], batch_size=10) as scan:
            await anext(scan)
            fresh = tmp_path / "new"
            fresh.write_bytes(parquet(offset=10_000, rows=1000))
            fresh.replace(path)
            for _ in range(20):
                await anext(scan)  # goes on reading the file that it has open
            await asyncio.sleep(0.1)
            again = await s.open_file(path)
            assert (await again.lookup({"id": 5}, ["value"])).column("value").to_pylist() == [10_005]


async def test_require_pinning_also_for_cached_footers() -> None:
    async with ObjectServer() as server:
        server.put("web/file.parquet", parquet(), etag='W/"weak"')
        url = f"{server.endpoint}/web/file.parquet"
        cache = asyncpq.MemoryCache(1 << 24)
        async with asyncpq.Session(memory_cache=cache) as s:
            first = await s.open_file(url)
            second = await s.open_file(url)
            assert first.opening is not None
            assert second.opening is not None
            assert first.opening.guarantee == second.opening.guarantee not in ("", "pinned")
            assert (await second.plan()).guarantee == first.opening.guarantee
        async with asyncpq.Session(memory_cache=cache, read=asyncpq.ReadOptions(require_pinning=True)) as s:
            with pytest.raises(asyncpq.UnsupportedStoreError):
                await s.open_file(url)


async def test_credentials_in_the_url_are_part_of_the_namespace() -> None:
    async with ObjectServer() as server:
        server.put("web/file.parquet", parquet())
        address = server.endpoint.removeprefix("http://")
        async with asyncpq.Session() as s:
            await s.open_file(f"http://alice:secret@{address}/web/file.parquet")
            server.log.clear()
            await s.open_file(f"http://mallory:guess@{address}/web/file.parquet")
            assert len(server.log) == 1


async def test_every_verb_has_a_deadline(server: ObjectServer) -> None:
    async with session(server) as s:
        await s.open_file(URL)  # imports the S3 client, which may take longer than the deadline below
    retry = asyncpq.RetryOptions(read_timeout_s=3.0)
    verbs: list[Callable[[asyncpq.Session, asyncpq.File], Awaitable[Any]]] = [
        lambda s, file: s.open_file(URL),
        lambda s, file: file.refresh(),
        lambda s, file: file.count(),
        lambda s, file: file.lookup({"id": 5}),
    ]
    async with AsyncExitStack() as sessions:
        calls = []
        for verb in verbs:
            s = await sessions.enter_async_context(session(server, retry=retry, cache_policy=asyncpq.etag(0)))
            file = await s.open_file(URL)
            s.memory_cache.clear()
            calls.append(verb(s, file))
        server.faults = [Fault(stall_headers=True, times=None)]
        began = time.monotonic()
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - began < 10
    assert [type(error) for error in errors] == [asyncpq.DeadlineExceededError] * len(verbs)
    assert all(isinstance(error, TimeoutError) for error in errors)


async def test_closing_the_session_under_a_lookup_is_a_typed_error(server: ObjectServer) -> None:
    s = session(server)
    async with s:
        file = await s.open_file(URL)
        s.memory_cache.clear()
        server.faults = [Fault(latency_s=0.5, times=None)]
        running = asyncio.ensure_future(file.lookup({"id": 5}))
        await asyncio.sleep(0.05)
    with pytest.raises(asyncpq.UsageError, match="closed"):
        await running


async def test_late_columns_count_in_the_budget(server: ObjectServer) -> None:
    server.put("lake/fat.parquet", parquet(rows=20_000, payload=500))  # 10 MB of payload
    limits = asyncpq.LimitOptions(unit_bytes=200_000, in_flight_bytes=400_000)
    requests = asyncpq.RequestOptions(tail_bytes=200_000, late_materialization="always")
    async with session(server, limits=limits, requests=requests) as s:
        file = await s.open_file("s3://lake/fat.parquet")
        before = server.bytes_sent
        async with file.scan(["payload"], where=col("id") >= 0) as scan:
            await anext(scan)
            await asyncio.sleep(0.2)
            assert server.bytes_sent - before < 2_000_000
            assert sum([batch.num_rows async for batch in scan]) > 15_000


async def test_lookups_count_in_the_budget(server: ObjectServer) -> None:
    async with session(server, tail_bytes=5_000) as s:
        file = await s.open_file(URL)
        server.faults = [Fault(latency_s=0.2, times=None)]
        running = asyncio.ensure_future(file.take(list(range(2000))))
        await asyncio.sleep(0.1)
        assert s._runtime.budget.used > 10_000
        await running
        assert s._runtime.budget.used == 0


async def test_one_large_footer_costs_its_neighbours_nothing(server: ObjectServer) -> None:
    server.put("lake/wide.parquet", parquet_bytes(pa.table({f"c{number}": [number] for number in range(300)})))
    for number in range(8):
        server.put(f"lake/{number}.parquet", parquet(rows=10_000))
    async with session(server, tail_bytes=5_000) as s:
        await s.open_file("s3://lake/wide.parquet")
        others = await asyncio.gather(*[s.open_file(f"s3://lake/{number}.parquet") for number in range(8)])
        assert {file.opening.bytes_fetched for file in others if file.opening} == {5_000}
        s._runtime.memory.clear()
        again = await s.open_file("s3://lake/wide.parquet")
        assert again.opening is not None
        assert again.opening.requests == 1


async def test_a_file_does_not_decide_what_is_fetched_of_its_neighbours(server: ObjectServer) -> None:
    server.put("lake/large.parquet", parquet(rows=200_000, payload=100))  # 23 MB, indexes near the footer
    async with session(server) as s:
        runtime = s._runtime
        runtime.tail_sizes.learn("s3://lake/deeper", 10 << 30)
        assert runtime.tail_sizes.guess("s3://lake/deeper") <= 8 << 20
        await s.open_file("s3://lake/large.parquet")
        assert runtime.tail_sizes.guess("s3://lake") <= 8 << 20


async def test_key_columns_by_ordinal(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        table = await file.lookup({"id": [2, 1]}, columns=[0], with_keys=True)
        assert table.to_pylist() == [{"id": 1, "key_position": 1}, {"id": 2, "key_position": 0}]
        pairs = await file.lookup({"id": [2, 1], "value": [2, 5]}, columns=[1])
        assert pairs.to_pylist() == [{"value": 2}]


async def test_no_columns_still_count_rows(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        assert (await file.read(columns=[])).num_rows == 3000
        assert (await file.read(columns=[], where=col("id") < 10)).num_rows == 10
        assert (await file.lookup({"id": [3, 4]}, columns=[])).num_rows == 2
        assert (await file.take([7, 8, 2], columns=[])).num_rows == 3
        async with file.scan(columns=[], batch_size=100) as scan:
            assert sum([batch.num_rows async for batch in scan]) == 3000


@pytest.mark.parametrize(
    "question",
    [
        lambda file: file.take([1.5]),
        lambda file: file.take(["1"]),
        lambda file: file.take([True]),
        lambda file: file.take(3),
        lambda file: file.read(limit="3"),
        lambda file: file.read(limit=2.5),
        lambda file: file.read(columns=[None]),
        lambda file: file.read(columns=3),
        lambda file: file.read(columns=[True]),
        lambda file: file.read(columns=[17]),
        lambda file: file.lookup("id"),
        lambda file: file.lookup(42),
    ],
)
async def test_questions_of_the_wrong_type_are_typed_errors(server: ObjectServer, question: Any) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.AsyncpqError):
            await question(file)


async def test_rows_may_be_arrow_arrays(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        table = await file.take(pa.array([3, 1]), ["id"])
        assert table.column("id").to_pylist() == [3, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"memory_cache_bytes": "1GB"},
        {"cache_policy": "immutable"},
        {"cache_policy": asyncpq.immutable},
        {"cache_policy": None},
        {"requests": {}},
        {"retry": 3},
        {"memory_cache": 5},
        {"memory_cache": asyncpq.MemoryCache(5), "memory_cache_bytes": 5},
        {"storage_options": ["a"]},
    ],
    ids=" and ".join,
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(asyncpq.InvalidOptionError):
        asyncpq.Session(**options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: asyncpq.etag("5"),  # type: ignore[arg-type]  # the point of the test
        lambda: asyncpq.etag(-1),
        lambda: asyncpq.CachePolicy(kind="lru", max_age_s=60),  # type: ignore[arg-type]  # the point of the test
        lambda: asyncpq.LimitOptions(max_decoded_bytes=-5),
        lambda: asyncpq.LimitOptions(max_connections="8"),  # type: ignore[arg-type]  # the point of the test
        lambda: asyncpq.RequestOptions(late_materialization="perhaps"),  # type: ignore[arg-type]  # the point
    ],
)
def test_option_values_that_cannot_work(make: Any) -> None:
    with pytest.raises(asyncpq.InvalidOptionError):
        make()


async def test_predicates_on_struct_leaves(server: ObjectServer) -> None:
    table = pa.table({"id": pa.array(range(1000)), "s": pa.array([{"x": row} for row in range(1000)])})
    server.put("lake/struct.parquet", parquet_bytes(table, write_page_index=True, max_rows_per_page=100))
    async with session(server) as s:
        file = await s.open_file("s3://lake/struct.parquet")
        assert (await file.read(["id"], where=col("s.x") == 5)).to_pylist() == [{"id": 5}]
        assert (await file.lookup({"s.x": [6, 5]}, ["id"])).to_pylist() == [{"id": 5}, {"id": 6}]
        paired = await file.lookup({"s.x": [6, 5]}, ["id"], with_keys=True)
        assert paired.to_pylist() == [{"id": 5, "key_position": 1}, {"id": 6, "key_position": 0}]


async def test_pages_that_nobody_verified_are_not_shared(server: ObjectServer) -> None:
    table = pa.table({"a": pa.array(range(1000), pa.int64())})
    data = bytearray(parquet_bytes(table, write_page_checksum=True, compression="none", use_dictionary=False))
    data[5000] ^= 1
    server.put("lake/flipped.parquet", bytes(data))
    cache = asyncpq.MemoryCache(1 << 24)
    unverified = asyncpq.ReadOptions(verify_crc=False)
    async with session(server, tail_bytes=1000, memory_cache=cache, read=unverified) as s:
        assert (await (await s.open_file("s3://lake/flipped.parquet")).take(list(range(1000)))).num_rows == 1000
    async with session(server, tail_bytes=1000, memory_cache=cache) as s:
        with pytest.raises(asyncpq.CorruptFileError, match="CRC"):
            await (await s.open_file("s3://lake/flipped.parquet")).take(list(range(1000)))


async def test_closing_the_session_under_many_reads_cancels_nobody(server: ObjectServer) -> None:
    s = session(server, limits=asyncpq.LimitOptions(unit_bytes=2000))
    outcomes: list[str] = []

    async def drain(file: asyncpq.File) -> None:
        async with file.scan() as scan:
            async for _ in scan:
                await asyncio.sleep(0)

    async def ask(work: Any) -> None:
        try:
            await work
            outcomes.append("done")
        except asyncpq.AsyncpqError:
            outcomes.append("typed")

    async with s:
        file = await s.open_file(URL)
        s.memory_cache.clear()
        server.latency_s = 0.2
        tasks = [asyncio.ensure_future(ask(file.lookup({"id": number}))) for number in range(10)]
        tasks += [asyncio.ensure_future(ask(drain(file))) for _ in range(3)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)
    assert outcomes.count("typed") == 13


async def test_a_cancelled_close_can_be_called_again(server: ObjectServer) -> None:
    s = session(server)
    await s.__aenter__()
    file = await s.open_file(URL)
    stores: list[Any] = [*s._runtime._stores.values()]
    s.memory_cache.clear()
    server.latency_s = 0.3
    reading = asyncio.ensure_future(file.lookup({"id": 5}))
    await asyncio.sleep(0.05)
    closing = asyncio.ensure_future(s.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, reading, return_exceptions=True)
    await s.close()
    assert stores
    assert all(store._closed for store in stores)


def test_an_abandoned_blocking_scan_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(parquet())
    s = asyncpq.blocking.Session()
    batches = iter(s.open_file(path).scan(batch_size=10))
    next(batches)
    s.close()
    del batches  # warnings are errors here


async def test_an_etag_that_appears_later_is_a_version_of_its_own(server: ObjectServer) -> None:
    async with session(server, tail_bytes=1000) as s:
        server.faults = [Fault(etag="none", times=1)]
        file = await s.open_file(URL)
        modified = server.objects["lake/file.parquet"].modified
        server.put("lake/file.parquet", parquet(offset=5000), modified=modified)
        table = await file.lookup({"id": [5, 2500]}, ["value"])
        assert table.column("value").to_pylist() == [5005, 7500]
        assert file.metrics.guarantee == "pinned"
