"""Scans as Arrow streams: what pyarrow, Polars, DuckDB and pandas make of them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq import blocking, col
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.sampled(2)

ROWS = 1000
FILES = 4
LIMITS = asyncpq.LimitOptions(unit_bytes=1, in_flight_bytes=20_000, decode_threads=0)


def _owner(closer: object) -> object:
    return getattr(closer, "__self__", None)


def table(number: int) -> pa.Table:
    ids = range(number * ROWS, number * ROWS + ROWS)
    return pa.table({"id": ids, "text": [f"text {one:06d}" if one % 7 else None for one in ids]})


def parquet(number: int) -> bytes:
    return parquet_bytes(table(number), row_group_size=100, compression="none", use_dictionary=False)


WHOLE = pa.concat_tables([table(number) for number in range(FILES)])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    for number in range(FILES):
        (folder / f"{number}.parquet").write_bytes(parquet(number))
    return folder


@pytest.fixture
def session() -> Iterator[blocking.Session]:
    with blocking.Session(limits=LIMITS) as opened:
        yield opened
        assert_nothing_runs(opened)


def assert_nothing_runs(session: blocking.Session) -> None:
    """Streams that were dropped end soon afterwards."""
    runtime = session.asynchronous._runtime
    gc.collect()
    until = time.monotonic() + 20
    while runtime.budget.used or any(
        isinstance(_owner(closer), RecordBatchStream) for closer in runtime._closers.values()
    ):
        assert time.monotonic() < until, "a scan is left"
        threading.Event().wait(0.005)


@pytest.fixture(params=["file", "dataset"])
def source(request: pytest.FixtureRequest, session: blocking.Session, lake: Path) -> Any:
    return session.open_file(lake / "0.parquet") if request.param == "file" else session.open_dataset(lake)


def expected(source: Any) -> pa.Table:
    return WHOLE if isinstance(source, blocking.Dataset) else table(0)


def duckdb_sql(scan: Any) -> pa.Table:
    return duckdb.sql("from scan").to_arrow_table()


CONSUMERS: dict[str, Callable[[Any], pa.Table]] = {
    "pa.table": pa.table,
    "pa.RecordBatchReader.from_stream": lambda scan: pa.RecordBatchReader.from_stream(scan).read_all(),
    "pl.DataFrame": lambda scan: pl.DataFrame(scan).to_arrow(),
    "pl.from_arrow": lambda scan: pl.from_arrow(scan).struct.unnest().to_arrow(),  # type: ignore[union-attr]
    "duckdb.from_arrow": lambda scan: duckdb.from_arrow(scan).to_arrow_table(),
    "duckdb.sql": duckdb_sql,
    "to_table": lambda scan: scan.to_table(),
    "to_reader": lambda scan: scan.to_reader().read_all(),
    "pandas": lambda scan: pa.Table.from_pandas(scan.to_table().to_pandas()),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_consumers(source: Any, consumer: str) -> None:
    consume, whole = CONSUMERS[consumer], expected(source)
    assert consume(source.scan(batch_size=64)).to_pylist() == whole.to_pylist()
    scan = source.scan(["text"], where=col("id") > ROWS // 2)
    some = whole.filter(pc.field("id") > ROWS // 2).select(["text"])
    assert consume(scan).to_pylist() == some.to_pylist()
    assert consume(scan).to_pylist() == some.to_pylist()  # a read of its own
    assert consume(source.scan(where=col("id") < 0)).num_rows == 0


def test_inside_a_block_it_is_one_read(source: Any) -> None:
    with source.scan(batch_size=30) as scan:
        assert next(iter(scan)).num_rows == 30
        assert pa.table(scan).num_rows == expected(source).num_rows - 30
        assert pa.table(scan).num_rows == 0


def in_threads(work: Callable[[], list[int]]) -> list[list[int]]:
    """What each of some threads gets that begin at once."""
    barrier = threading.Barrier(6)

    def run() -> list[int]:
        barrier.wait(30)
        return work()

    with ThreadPoolExecutor(6) as pool:
        return [future.result(60) for future in [pool.submit(run) for _ in range(6)]]


def test_threads_each_read_all(source: Any) -> None:
    scan = source.scan(["id"], batch_size=64)
    found = in_threads(lambda: [row for batch in scan for row in batch["id"].to_pylist()])
    assert found == [expected(source)["id"].to_pylist()] * 6


def test_the_loops_own_thread_waits_for_no_other(source: Any, session: blocking.Session) -> None:
    """Another one that begins a read of the scan waits for the loop."""
    scan, said = source.scan(), Future[BaseException | None]()

    def take() -> None:
        try:
            said.set_result(scan.to_table() and None)
        except asyncpq.UsageError as error:
            said.set_result(error)

    with scan._taking:
        session._portal.loop.call_soon_threadsafe(take)
        assert "event loop of its own session" in str(said.result(30))


def test_threads_share_the_read_of_a_block(source: Any) -> None:
    with source.scan(["id"], batch_size=64) as scan:
        found = in_threads(lambda: [row for batch in scan.to_reader() for row in batch["id"].to_pylist()])
    assert sorted(row for rows in found for row in rows) == expected(source)["id"].to_pylist()


def test_schema(source: Any) -> None:
    scan = source.scan(["text"])
    assert pa.schema(scan) == scan.schema == pa.schema({"text": pa.string()})
    planned = scan.metrics
    assert pa.table(scan).num_rows == expected(source).num_rows
    assert scan.metrics is planned  # the read that was planned for the schema is the one that is given
    assert pa.schema(source.scan()).names == ["id", "text"]  # and ends if nobody takes it


def test_requested_schema(source: Any) -> None:
    wanted = pa.schema({"id": pa.int32(), "text": pa.large_string()})
    found = pa.RecordBatchReader.from_stream(source.scan(), schema=wanted).read_all()
    assert found.schema == wanted
    assert found.to_pylist() == expected(source).to_pylist()
    with pytest.raises(asyncpq.QueryError, match="cannot be cast"):
        pa.RecordBatchReader.from_stream(source.scan(), schema=pa.schema({"other": pa.int32()})).read_all()


@pytest.mark.parametrize("consume", [pd.DataFrame, np.array, np.asarray])
def test_what_would_take_a_batch_for_a_row_says_so(source: Any, consume: Callable[[object], object]) -> None:
    with pytest.raises(asyncpq.UsageError, match="to_pandas"):
        consume(source.scan())


# -- streaming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumer", ["to_reader", "stream"])
def test_it_streams_within_the_budget(lake: Path, consumer: str) -> None:
    with ObjectServer.in_thread() as server:
        for number in range(FILES):
            server.put(f"bucket/lake/{number}.parquet", parquet(number))
        options = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0)
        with blocking.Session(server.storage_options, limits=LIMITS, requests=options, memory_cache_bytes=0) as session:
            scan = session.open_dataset("s3://bucket/lake/").scan(batch_size=50)
            reader = scan.to_reader() if consumer == "to_reader" else pa.RecordBatchReader.from_stream(scan)
            assert reader.read_next_batch().num_rows == 50
            size = sum(len(served.data) for served in server.objects.values())
            assert 0 < session.asynchronous._runtime.budget.used <= LIMITS.in_flight_bytes
            assert server.bytes_sent < size / 2
            del reader
            assert_nothing_runs(session)
            assert server.bytes_sent < size / 2
            assert pa.table(scan).num_rows == WHOLE.num_rows


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "leave",
    [
        lambda scan: duckdb.sql("select id from scan limit 2").fetchall(),
        lambda scan: next(iter(scan)),
        lambda scan: scan.to_reader(),
        lambda scan: scan.to_reader().read_next_batch(),
        lambda scan: scan.__arrow_c_stream__(),
        lambda scan: scan.schema,
    ],
    ids=["duckdb limit", "iteration", "reader", "a batch", "capsule", "schema"],
)
def test_leaving_early_leaves_nothing(
    session: blocking.Session, source: Any, leave: Callable[[object], object]
) -> None:
    leave(source.scan())
    assert_nothing_runs(session)
    assert source.count() == expected(source).num_rows


def test_closing_the_session_ends_streams(lake: Path) -> None:
    with blocking.Session(limits=LIMITS) as session:
        reader = session.open_dataset(lake).scan().to_reader()
        assert reader.read_next_batch().num_rows
    with pytest.raises(asyncpq.UsageError):
        reader.read_all()
    with pytest.raises(asyncpq.UsageError):
        session.open_file(lake / "0.parquet")


# -- errors ---------------------------------------------------------------------------------------


def test_errors() -> None:
    with ObjectServer.in_thread() as server:
        server.put("bucket/key", parquet(0))
        retry = asyncpq.RetryOptions(max_attempts=1)
        options = asyncpq.RequestOptions(tail_bytes=3000)
        with blocking.Session(
            server.storage_options, limits=LIMITS, retry=retry, requests=options, memory_cache_bytes=0
        ) as session:
            file = session.open_file("s3://bucket/key")
            server.faults = [Fault(status=403, code="AccessDenied", after=2, times=None)]
            with pytest.raises(asyncpq.AccessDeniedError, match="s3://bucket/key"):
                file.scan().to_reader().read_all()
            # through C there are no exceptions but their text
            for name in ("pa.table", "pl.DataFrame", "duckdb.from_arrow"):
                server.faults = [Fault(status=403, code="AccessDenied", after=2, times=None)]
                with pytest.raises(Exception, match=r"refused access: AccessDenied") as caught:
                    CONSUMERS[name](file.scan())
                assert "s3://bucket/key" in str(caught.value)
            assert_nothing_runs(session)
        with blocking.Session() as session, pytest.raises(asyncpq.ColumnNotFoundError):
            pa.table(session.open_file(_written(server)).scan(["nothing"]))


def _written(server: ObjectServer) -> str:
    server.faults = []
    return f"{server.endpoint}/bucket/key"


# -- with an event loop ---------------------------------------------------------------------------


@pytest.fixture(params=["file", "dataset"])
def target(request: pytest.FixtureRequest, lake: Path) -> tuple[str, Path, pa.Table]:
    return ("open_file", lake / "0.parquet", table(0)) if request.param == "file" else ("open_dataset", lake, WHOLE)


async def test_async_scans(target: tuple[str, Path, pa.Table]) -> None:
    verb, url, whole = target
    async with getattr(asyncpq, verb)(url, limits=LIMITS) as opened:
        assert (await opened.scan().to_table()).to_pylist() == whole.to_pylist()
        async with opened.scan(batch_size=10) as scan:
            assert (await anext(scan)).num_rows == 10
            assert (await scan.to_table()).num_rows == whole.num_rows - 10
        for name in ("pa.table", "pl.DataFrame", "duckdb.from_arrow", "duckdb.sql"):
            async with opened.scan(batch_size=100) as scan:
                reader = await scan.to_reader()
                found = await asyncio.to_thread(CONSUMERS[name], reader)
                assert found.to_pylist() == whole.to_pylist()
        async with opened.scan(where=col("id") < 0) as scan:
            assert (await scan.to_table()).schema == scan.schema


async def test_tasks_share_the_batches_of_a_scan(target: tuple[str, Path, pa.Table]) -> None:
    verb, url, whole = target

    async def consume(scan: RecordBatchStream) -> list[int]:
        return [row async for batch in scan for row in batch["id"].to_pylist()]

    async with getattr(asyncpq, verb)(url, limits=LIMITS) as opened:
        for ordered in ({}, {"ordered": False}) if verb == "open_dataset" else ({},):
            async with opened.scan(["id"], batch_size=64, **ordered) as scan:
                found = await asyncio.gather(*[consume(scan) for _ in range(4)])
            assert sorted(row for rows in found for row in rows) == whole["id"].to_pylist()


async def test_a_reader_in_the_loops_own_thread_says_so(target: tuple[str, Path, pa.Table]) -> None:
    verb, url, whole = target
    async with getattr(asyncpq, verb)(url) as opened:
        with pytest.raises(asyncpq.UsageError, match="async with"):
            await opened.scan().to_reader()
        async with opened.scan() as scan:
            reader = await scan.to_reader()
            with pytest.raises(asyncpq.UsageError, match=r"own event loop.*to_thread.*to_table"):
                reader.read_next_batch()
            again = await scan.to_reader()
            assert (await asyncio.to_thread(again.read_all)).num_rows == whole.num_rows
            for consume in (pa.table, pl.DataFrame, pl.from_arrow):
                with pytest.raises(asyncpq.UsageError, match="to_table"):
                    consume(scan)
            with pytest.raises(duckdb.Error, match="to_table"):
                duckdb.from_arrow(scan).fetchall()
            assert (await asyncio.to_thread(pa.table, scan)).num_rows == 0, "a scan in a block is one read"
        for consume in (pa.table, pl.from_arrow, pa.schema):
            with pytest.raises(asyncpq.UsageError, match=r"asyncio\.to_thread\(pa\.table, scan\)"):
                consume(opened.scan(where=col("id") < 0))


STREAMS = [name for name in CONSUMERS if name not in ("to_table", "to_reader", "pandas")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("consumer", STREAMS)
async def test_async_scans_are_streams_for_other_threads(target: tuple[str, Path, pa.Table], consumer: str) -> None:
    verb, url, whole = target
    async with asyncpq.Session(limits=LIMITS) as session:
        opened = await getattr(session, verb)(url)
        scan = opened.scan(["text"], where=col("id") > ROWS // 2, batch_size=64)
        some = whole.filter(pc.field("id") > ROWS // 2).select(["text"])
        for _ in range(2):  # each stream is a read of its own
            assert (await asyncio.to_thread(CONSUMERS[consumer], scan)).to_pylist() == some.to_pylist()
            assert scan.metrics.rows_returned == some.num_rows
        assert await asyncio.to_thread(pa.schema, scan) == some.schema
        del scan
        await nothing_runs(session)
        async with opened.scan(batch_size=30) as entered:
            assert (await anext(entered)).num_rows == 30
            assert (await asyncio.to_thread(CONSUMERS[consumer], entered)).num_rows == whole.num_rows - 30


async def test_streams_of_several_threads_at_once(target: tuple[str, Path, pa.Table]) -> None:
    verb, url, whole = target
    async with asyncpq.Session(limits=LIMITS) as session:
        scan = (await getattr(session, verb)(url)).scan(["id"], batch_size=64)
        found = await asyncio.gather(*[asyncio.to_thread(pa.table, scan) for _ in range(5)])
        assert [table["id"].to_pylist() for table in found] == [whole["id"].to_pylist()] * 5
        await nothing_runs(session)


async def nothing_runs(session: asyncpq.Session) -> None:
    """Streams that were dropped end soon afterwards."""
    gc.collect()
    async with asyncio.timeout(20):
        while session._runtime.budget.used or any(  # noqa: ASYNC110
            isinstance(_owner(closer), RecordBatchStream) for closer in session._runtime._closers.values()
        ):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "leave",
    [
        lambda scan: duckdb.sql("select id from scan limit 2").fetchall(),
        lambda scan: pa.RecordBatchReader.from_stream(scan).read_next_batch() and None,
        lambda scan: scan.__arrow_c_stream__() and None,
        lambda scan: pa.schema(scan) and None,
    ],
    ids=["duckdb limit", "a batch", "capsule", "schema"],
)
async def test_leaving_an_async_scan_early_leaves_nothing(
    target: tuple[str, Path, pa.Table], leave: Callable[[object], object]
) -> None:
    verb, url, whole = target
    async with asyncpq.Session(limits=LIMITS) as session:
        opened = await getattr(session, verb)(url)
        await asyncio.to_thread(leave, opened.scan())
        await nothing_runs(session)
        assert await opened.count() == whole.num_rows


async def test_async_scans_stream_within_the_budget() -> None:
    async with ObjectServer() as server:
        for number in range(FILES):
            server.put(f"bucket/lake/{number}.parquet", parquet(number))
        requests = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0)
        async with asyncpq.Session(
            server.storage_options, limits=LIMITS, requests=requests, memory_cache_bytes=0
        ) as session:
            scan = (await session.open_dataset("s3://bucket/lake/")).scan(batch_size=50)
            reader = await asyncio.to_thread(pa.RecordBatchReader.from_stream, scan)
            assert (await asyncio.to_thread(reader.read_next_batch)).num_rows == 50
            size = sum(len(served.data) for served in server.objects.values())
            assert 0 < session._runtime.budget.used <= LIMITS.in_flight_bytes
            assert server.bytes_sent < size / 2
            del reader
            await nothing_runs(session)
            assert server.bytes_sent < size / 2


async def test_ending_the_session_ends_a_stream_in_another_thread(lake: Path) -> None:
    pulled, closed = threading.Event(), threading.Event()

    def consume(scan: Any) -> BaseException | None:
        reader = pa.RecordBatchReader.from_stream(scan)
        reader.read_next_batch()
        pulled.set()
        closed.wait(30)
        try:
            reader.read_all()
        except Exception as error:  # noqa: BLE001
            return error
        return None

    async with asyncpq.open_dataset(lake, limits=LIMITS) as dataset:
        consumer = asyncio.create_task(asyncio.to_thread(consume, dataset.scan(batch_size=10)))
        await asyncio.to_thread(pulled.wait, 30)
    closed.set()
    assert "the scan is closed" in str(await consumer)


def test_a_reader_of_an_ended_loop_says_so(lake: Path) -> None:
    async def make() -> pa.RecordBatchReader:
        async with asyncpq.open_dataset(lake) as dataset, dataset.scan() as scan:
            return await scan.to_reader()

    reader = asyncio.run(make())
    found: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: found.append(_read_error(reader)))
    thread.start()
    thread.join(30)
    assert isinstance(found[0], asyncpq.UsageError)


def _read_error(reader: pa.RecordBatchReader) -> BaseException | None:
    try:
        reader.read_all()
    except asyncpq.AsyncpqError as error:
        return error
    return None


async def test_a_scan_that_was_not_entered_is_not_called_closed(lake: Path) -> None:
    async with asyncpq.Session() as session:
        scan = (await session.open_dataset(lake)).scan()
        with pytest.raises(asyncpq.UsageError, match="a scan is iterated inside `async with`"):
            await anext(scan)
        async with scan:
            assert (await anext(scan)).num_rows > 0
        with pytest.raises(asyncpq.UsageError, match="the scan is closed"):
            await anext(scan)
