"""Scans own their tasks: bounded read-ahead, and nothing left behind however they end."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.caching.entry_format import ContentKey
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.row_group_reader import Matched, QueryShape, RowGroupReader
from asyncpq.errors import CorruptFileError, ObjectChangedError, StoreError
from asyncpq.objects.read_plan import ColumnPlan, RowGroupPiece, RowGroupPlan
from asyncpq.parquet.schema import Projection
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.file_scan import EarlyDecoding, column_sets
from asyncpq.storage import base
from asyncpq.testing import Fault, ObjectServer, WrappedStore, wrap_store
from asyncpq.testing.stores import Fetch, StoreCall
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"
ROWS = 20_000
MIB = 1 << 20


def parquet() -> bytes:
    table = pa.table({"id": pa.array(range(ROWS), pa.int64()), "value": pa.array([row * 7 for row in range(ROWS)])})
    return parquet_bytes(
        table,
        row_group_size=5000,
        max_rows_per_page=250,
        write_batch_size=250,
        data_page_size=1000,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )


DATA = parquet()


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", DATA)
        yield running


def session(server: ObjectServer, **limits: Any) -> asyncpq.Session:
    return asyncpq.Session(
        server.storage_options,
        limits=asyncpq.LimitOptions(**limits),
        requests=asyncpq.RequestOptions(tail_bytes=20_000, gap_bytes=0),
    )


def tasks() -> set[str]:
    """Names of coroutines of this package that still run, but for its test servers. By module: a test stands below a
    folder of any name."""
    running = set()
    for task in asyncio.all_tasks():
        coroutine = task.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        module = frame.f_globals["__name__"] if frame else ""
        if module.startswith("asyncpq.") and not module.startswith("asyncpq.testing."):
            running.add(coroutine.__qualname__)  # type: ignore[union-attr]
    return running


async def drain(scan: asyncpq.Scan) -> None:
    async with scan:
        async for _ in scan:
            pass


async def test_iterating_without_entering_is_an_error(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        with pytest.raises(asyncpq.UsageError, match="async with"):
            async for _ in file.scan():
                pass


async def test_a_scan_is_entered_once(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        scan = file.scan()
        async with scan:
            pass
        with pytest.raises(asyncpq.UsageError):
            async with scan:
                pass
        with pytest.raises(asyncpq.UsageError):
            await anext(scan)


async def test_leaving_early_leaves_no_task(server: ObjectServer) -> None:
    async with session(server, unit_bytes=10_000) as s:
        file = await s.open_file(URL)
        before = tasks()
        async with file.scan(batch_size=100) as scan:
            async for _ in scan:
                break
            assert tasks() - before  # read-ahead is running
        await asyncio.sleep(0)
        assert tasks() == before
        assert s._runtime.budget.used == 0


async def test_an_error_leaves_no_task(server: ObjectServer) -> None:
    async with session(server, unit_bytes=10_000) as s:
        file = await s.open_file(URL)
        before = tasks()
        server.faults = [Fault(status=403, code="AccessDenied", after=3, times=None)]
        with pytest.raises(asyncpq.AccessDeniedError):
            await drain(file.scan())
        assert tasks() == before
        assert s._runtime.budget.used == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_cancellation_at_any_step_leaves_no_task(server: ObjectServer, steps: int) -> None:
    async with session(server, unit_bytes=5_000) as s:
        file = await s.open_file(URL)
        before = tasks()

        async def work() -> int:
            rows = 0
            async with file.scan(where=col("id") <= col("value")) as scan:
                async for batch in scan:
                    rows += batch.num_rows
            return rows

        task = asyncio.ensure_future(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tasks() == before
        assert s._runtime.budget.used == 0
        assert (await file.lookup({"id": 77})).num_rows == 1  # the next read is right


async def test_a_slow_consumer_stops_the_fetching(server: ObjectServer) -> None:
    async with session(server, unit_bytes=10_000, in_flight_bytes=30_000) as s:
        file = await s.open_file(URL)
        server.log.clear()
        async with file.scan() as scan:
            await anext(scan)
            for _ in range(50):
                await asyncio.sleep(0.005)
            assert server.bytes_sent < 100_000  # of 320,000
            rest = [batch.num_rows async for batch in scan]
        assert sum(rest) > ROWS // 2


async def test_closing_the_session_ends_open_scans(server: ObjectServer) -> None:
    async with session(server, unit_bytes=10_000) as s:
        file = await s.open_file(URL)
        before = tasks()
        scan = file.scan()
        await scan.__aenter__()
        await anext(scan)
    assert tasks() <= before
    with pytest.raises(asyncpq.UsageError):
        await anext(scan)


async def test_two_scans_zipped_by_one_task_with_a_budget_of_one_unit(server: ObjectServer) -> None:
    async with session(server, unit_bytes=10_000, in_flight_bytes=10_000) as s:
        file = await s.open_file(URL)
        async with file.scan(["id"], batch_size=100) as left, file.scan(["value"], batch_size=100) as right:
            rows = 0
            while True:
                try:
                    a, b = await anext(left), await anext(right)
                except StopAsyncIteration:
                    break
                assert [7 * row for row in a.column(0).to_pylist()] == b.column(0).to_pylist()
                rows += a.num_rows
        assert rows == ROWS


@pytest.mark.heavy
async def test_64_reads_with_a_budget_of_one_page(server: ObjectServer) -> None:
    async with session(server, unit_bytes=1, in_flight_bytes=2_100) as s:
        file = await s.open_file(URL)
        tables = await asyncio.gather(
            *(file.read(["value"], where=col("id").between(n * 100, n * 100 + 999)) for n in range(64))
        )
        assert [table.column("value")[0].as_py() for table in tables] == [700 * n for n in range(64)]
        assert all(table.num_rows == 1000 for table in tables)
        assert s._runtime.budget.used == 0


@pytest.mark.heavy
async def test_a_page_larger_than_the_budget(server: ObjectServer) -> None:
    async with session(server, unit_bytes=1, in_flight_bytes=1) as s:
        file = await s.open_file(URL)
        assert (await file.read()).num_rows == ROWS


async def test_limit_and_batch_size(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        async with file.scan(["id"], limit=1234, batch_size=500) as scan:
            sizes = [batch.num_rows async for batch in scan]
        assert sum(sizes) == 1234
        assert max(sizes) <= 500
        assert scan.metrics.rows_returned == 1234
        async with file.scan(limit=0) as scan:
            assert [batch async for batch in scan] == []


async def test_schema_of_a_scan(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        scan = file.scan(["value"])
        with pytest.raises(asyncpq.UsageError):
            _ = scan.schema
        async with scan:
            assert scan.schema == pa.schema([("value", pa.int64())])


async def test_session_of_another_loop_says_so(server: ObjectServer) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)

        def elsewhere() -> None:
            with pytest.raises(asyncpq.UsageError, match="event loop"):
                asyncio.run(file.count())

        await asyncio.to_thread(elsewhere)


async def test_closed_session_says_so(server: ObjectServer) -> None:
    s = session(server)
    with pytest.raises(asyncpq.UsageError, match="entered"):
        await s.open_file(URL)
    async with s:
        file = await s.open_file(URL)
    with pytest.raises(asyncpq.UsageError, match="closed"):
        await file.count()
    await s.close()


async def test_no_thread_is_left(server: ObjectServer) -> None:
    before = set(threading.enumerate())  # tests that ran in this process may have left threads of their own
    async with session(server, unit_bytes=10_000) as s:
        file = await s.open_file(URL)
        await file.read()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "asyncpq" in thread.name]
    assert len(left) <= 1  # the loop's own default executor


@pytest.mark.parametrize("dictionary", [True, False])
async def test_view_types(server: ObjectServer, dictionary: bool) -> None:
    values = ["a", "b", None, "longer than twelve bytes"] * 50
    table = pa.table(
        {
            "id": pa.array(range(200)),
            "text": pa.array(values, pa.string_view()),
            "data": pa.array([None if value is None else value.encode() for value in values], pa.binary_view()),
        }
    )
    server.put(
        "lake/views.parquet",
        parquet_bytes(table, use_dictionary=dictionary, write_page_index=True, max_rows_per_page=30),
    )
    async with session(server) as s:
        file = await s.open_file("s3://lake/views.parquet")
        assert (await file.read()).equals(table)
        rows = [7, 3, *range(0, 200, 11)]
        assert (await file.take(rows)).to_pylist() == [table.slice(row, 1).to_pylist()[0] for row in rows]
        found = await file.lookup({"id": [5, 199, 8]})
        assert found.to_pylist() == [table.slice(row, 1).to_pylist()[0] for row in (5, 8, 199)]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (~((col("id") == None) & col("value").is_in([])), ROWS),  # noqa: E711  # null, as a predicate
        ((col("id") == None) | (col("value") == 7), 1),  # noqa: E711
        (~((col("id") == 1.5) & col("id").is_in([])), ROWS),
        ((col("id") == None) & (col("value") == 7), 0),  # noqa: E711
        (~col("id").is_in([]), ROWS),
    ],
)
async def test_predicates_of_which_parts_fold_away(server: ObjectServer, where: asyncpq.Expression, rows: int) -> None:
    async with session(server) as s:
        file = await s.open_file(URL)
        assert (await file.read(["value"], where=where)).num_rows == rows
        assert await file.count(where) == rows


async def test_a_scan_is_iterated_in_its_own_loop(server: ObjectServer) -> None:
    async with session(server) as s, (await s.open_file(URL)).scan(batch_size=100) as scan:
        await anext(scan)

        async def elsewhere() -> None:
            async with asyncio.timeout(5):
                await anext(scan)

        with pytest.raises(asyncpq.UsageError, match="event loop and process"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await anext(scan)).num_rows == 100  # it goes on where it belongs


@pytest.mark.heavy
async def test_a_scan_holds_its_budget_and_a_few_decoded_units() -> None:
    """Not a row group, though the rows of a list column are known only once its whole chunk has come."""
    num_rows = 1 << 20
    numbers = pa.array(np.random.default_rng(5).integers(1, 1 << 62, num_rows))
    offsets = pa.array(np.arange(num_rows + 1) // 16, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, numbers.slice(0, num_rows // 16))
    table = pa.table({"a": numbers, "b": numbers, "c": numbers, "d": numbers, "lists": lists})
    data = parquet_bytes(table, compression="none", use_dictionary=False, data_page_size=64 * 1024)
    async with ObjectServer() as server, session(server, unit_bytes=2 * MIB, in_flight_bytes=4 * MIB) as s:
        server.put("lake/file.parquet", data)
        scan = (await s.open_file(URL)).scan()
        before = pa.total_allocated_bytes()
        async with scan:
            held = [pa.total_allocated_bytes() - before async for _ in scan]
    assert scan.metrics.rows_returned == num_rows
    # the budget, four units, and the list column; the row group has 33 MiB, and as much decoded
    assert max(held) < (4 + 4 * 2 + 8 + 2) * MIB


class Span(NamedTuple):
    leaf: int
    start: int
    stop: int


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (32, [[1], [3], [2], [0, 4]]),  # lists first, then by their bytes; two parts of one field stay together
        (2, [[1, 3], [2, 0, 4]]),
        (1, [[1, 3, 2, 0, 4]]),
    ],
)
def test_columns_that_take_longest_are_decoded_first(most: int, expected: list[list[int]]) -> None:
    rows = RowRanges.single(0, 10)
    sizes = [(0, 50, False), (1, 200, True), (2, 300, False), (3, 400, False), (0, 60, False)]
    columns = [
        ColumnPlan(field, Span(leaf, 0, size), None, False, 10, rows, repeated)
        for leaf, (field, size, repeated) in enumerate(sizes)
    ]
    output = tuple(Projection(field, (leaf,)) for leaf, (field, *_) in enumerate(sizes))
    limits = DecodeLimits(verify_crc=True, max_page_bytes=1, max_decoded_bytes=1)
    shape = QueryShape(pa.schema([]), output, None, limits, frozenset(), {})
    plan = RowGroupPlan(0, 10, rows, tuple(columns), False)
    assert column_sets(plan, shape, most) == expected
    assert column_sets(plan, shape._replace(output=()), most) == []


TABLE = pa.table({"id": range(20_000), "text": [f"{row * 7:09d}" for row in range(20_000)]})
KEYS = [*range(50, 20_000, 500)]  # of every second page: no two row groups share a request


def table_file(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    options: dict[str, Any] = {"write_page_index": True, "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, sink, row_group_size=5000, max_rows_per_page=250, write_batch_size=250, **options)
    return sink.getvalue()


class LastHeld(WrappedStore):
    """Answers for the bytes from ``start`` on once ``released`` is set."""

    start = 1 << 62

    def __init__(self, inner: base.Store) -> None:
        super().__init__(inner)
        self.released = asyncio.Event()

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        if call.stop > self.start:
            await self.released.wait()
        return await fetch()


@asynccontextmanager
async def opened(
    data: bytes, *, hold_from: int = 3, **options: Any
) -> AsyncIterator[tuple[ObjectServer, LastHeld, asyncpq.File]]:
    """A file whose row groups from ``hold_from`` on are held."""
    limits = asyncpq.LimitOptions(inline_decode_bytes=4096, decode_threads=2)
    requests = asyncpq.RequestOptions(tail_bytes=20_000, gap_bytes=0, late_materialization="never")
    async with (
        ObjectServer() as server,
        asyncpq.Session(server.storage_options, limits=limits, requests=requests, **options) as session,
    ):
        server.put("lake/file.parquet", data)
        store = wrap_store(session, URL, LastHeld)
        file = await session.open_file(URL)
        store.start = pq.read_metadata(io.BytesIO(data)).row_group(hold_from).column(0).data_page_offset
        yield server, store, file


class Emitted:
    """The ordinals of the row groups whose rows were put together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ordinals: list[int] = []
        self._changed = asyncio.Event()
        loop, emit = asyncio.get_running_loop(), RowGroupReader.emit

        def counted(reader: RowGroupReader, matched: Matched, *rest: Any) -> pa.Table:
            table = emit(reader, matched, *rest)
            self.ordinals.append(reader.plan.ordinal)
            loop.call_soon_threadsafe(self._changed.set)
            return table

        monkeypatch.setattr(RowGroupReader, "emit", counted)

    async def until(self, count: int) -> None:
        while len(self.ordinals) < count:
            self._changed.clear()
            await self._changed.wait()


async def test_row_groups_are_decoded_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = Emitted(monkeypatch)
    async with opened(table_file()) as (_, store, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(3)
        assert sorted(emitted.ordinals) == [0, 1, 2]
        assert not lookup.done()
        store.released.set()
        assert await lookup == TABLE.take(KEYS)
        assert sorted(emitted.ordinals) == [0, 1, 2, 3]
        assert await file.lookup({"id": KEYS}) == TABLE.take(KEYS)  # from memory
    assert not tasks()


class Counted(WrappedStore):
    """Notes where each GET of data begins, and answers it once ``released`` is set."""

    def __init__(self, inner: base.Store) -> None:
        super().__init__(inner)
        self.released = asyncio.Event()
        self.begun: list[int] = []
        self.changed = asyncio.Event()

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        self.begun.append(call.start)
        self.changed.set()
        await self.released.wait()
        return await fetch()


@pytest.mark.parametrize(("latency_s", "expected"), [(60.0, 12), (0.01, 13)])
async def test_gets_begin_in_order_and_more_of_them_where_connections_are_slow(latency_s: float, expected: int) -> None:
    limits = asyncpq.LimitOptions(inline_decode_bytes=4096, decode_threads=2)
    requests = asyncpq.RequestOptions(tail_bytes=20_000, gap_bytes=0, late_materialization="never", latency_s=latency_s)
    async with (
        ObjectServer() as server,
        asyncpq.Session(server.storage_options, limits=limits, requests=requests) as session,
    ):
        server.put("lake/file.parquet", table_file())
        store = wrap_store(session, URL, Counted)
        store.released.set()
        file = await session.open_file(URL)
        await file.lookup({"id": KEYS[0]})  # fetches the indexes
        store.released.clear()
        store.begun.clear()
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        while len(store.begun) < expected:
            store.changed.clear()
            await store.changed.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        begun = list(store.begun)
        assert begun == sorted(begun)
        assert len(begun) == expected or latency_s < 1
        store.released.set()
        assert await lookup == TABLE.take(KEYS)
        assert store.begun == sorted(store.begun)
    assert not tasks()


async def test_a_failed_fetch_ends_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = Emitted(monkeypatch)
    async with opened(table_file(), retry=asyncpq.RetryOptions(max_attempts=1)) as (server, store, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(2)
        server.faults = [Fault(status=500, times=None)]
        store.released.set()
        with pytest.raises(StoreError):
            await lookup
        assert not tasks()


async def test_a_cancelled_read_ends_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = Emitted(monkeypatch)
    async with opened(table_file()) as (_, _, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(1)
        lookup.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lookup
        assert not tasks() - {"SingleFlight.start.<locals>.begin"}  # which still ends


async def test_no_rows_of_a_version_that_is_replaced_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = TABLE.set_column(1, "text", pa.array([f"{row * 9:09d}" for row in range(20_000)]))
    emitted = Emitted(monkeypatch)
    async with opened(table_file()) as (server, store, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(3)
        server.put("lake/file.parquet", table_file(newer))
        store.released.set()
        assert await lookup == newer.take(KEYS)


async def test_a_damaged_page_is_not_kept() -> None:
    data = bytearray(table_file())
    data[pq.read_metadata(io.BytesIO(data)).row_group(1).column(1).data_page_offset + 200] ^= 1
    async with opened(bytes(data)) as (server, store, file):
        store.released.set()
        for _ in range(2):
            before = len(server.log)
            with pytest.raises(CorruptFileError, match="CRC"):
                await file.lookup({"id": KEYS})
            assert len(server.log) > before, "it is fetched again"
        assert not tasks()


class DamagingStore(WrappedStore):
    """Damages the first answer with data, and holds back the second one."""

    calls = 0

    def __init__(self, inner: base.Store) -> None:
        super().__init__(inner)
        self.let_go = asyncio.Event()

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        self.calls += call.purpose == "data"
        number = self.calls
        result = await fetch()
        if number == 2:
            await self.let_go.wait()
        if number != 1:
            return result
        data = bytearray(result.data)
        data[len(data) // 2] ^= 1
        return replace(result, data=bytes(data))


async def test_a_damaged_page_is_fetched_again_while_another_read_waits_for_more(server: ObjectServer) -> None:
    """Reads that wait for several ranges hold the answers that have come, which others share."""
    server.put("lake/file.parquet", table_file())
    url = "s3://lake/file.parquet"
    requests = asyncpq.RequestOptions(tail_bytes=4096)
    async with asyncpq.Session(server.storage_options, requests=requests, cache_policy=asyncpq.immutable()) as session:
        store = wrap_store(session, url, DamagingStore)
        file = await session.open_file(url)
        await file.plan(lookup={"id": KEYS})
        first = asyncio.ensure_future(file.lookup({"id": KEYS[0]}, columns=["id"]))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(file.lookup({"id": [KEYS[0], KEYS[-1]]}, columns=["id"]))
        with pytest.raises(CorruptFileError, match="CRC"):
            await first
        assert store.calls == 2
        assert (await file.lookup({"id": KEYS[0]}, columns=["id"])).num_rows == 1
        store.let_go.set()
        with pytest.raises(CorruptFileError, match="CRC"):
            await other


async def test_pieces_start_once_and_fail_in_order() -> None:
    keys = [ContentKey(b"object", "page", start, start + 1) for start in range(4)]
    pieces = [RowGroupPiece(None, items, 0, True) for items in ((None,) * 2, (), (None,) * 2)]  # type: ignore[arg-type]
    begun: list[tuple[int, list[Any]]] = []
    asked: list[ContentKey] = []

    async def decode(piece: RowGroupPiece, arrived: list[tuple[ContentKey, Any]]) -> int:
        number = next(number for number, other in enumerate(pieces) if other is piece)
        begun.append((number, [value for _, value in arrived]))
        if number == 1:
            await asyncio.sleep(0)
        if number:
            raise ObjectChangedError(f"piece {number}")
        return number

    early: EarlyDecoding[int] = EarlyDecoding(pieces, decode, asked.extend)
    early.name(keys)
    assert not early.has_begun
    early.begin(keys[1:])
    assert asked == keys[1:]
    early.landed({keys[0]: "a", keys[3]: "d", ContentKey(b"object", "page", 9, 10): "of another read"})
    early.landed({keys[1]: "b"})
    early.landed(dict(zip(keys, "xxcx", strict=True)))
    with pytest.raises(ObjectChangedError, match="piece 1"):
        await early.results()
    assert sorted(begun) == [(0, ["a", "b"]), (1, []), (2, ["c", "d"])]
    await early.close()
    await early.close()


async def test_parts_that_come_once_it_is_closed_start_nothing() -> None:
    keys = [ContentKey(b"object", "page", start, start + 1) for start in range(3)]
    pieces = [RowGroupPiece(None, (None,), 0, True) for _ in keys]  # type: ignore[arg-type]
    begun: list[RowGroupPiece] = []

    async def decode(piece: RowGroupPiece, _: list[tuple[ContentKey, Any]]) -> None:
        begun.append(piece)
        try:
            await asyncio.sleep(60)
        finally:
            early.landed({keys[1]: "while it closes"})

    early: EarlyDecoding[None] = EarlyDecoding(pieces, decode, lambda _: None)
    early.name(keys)
    early.begin(keys)
    early.landed({keys[0]: "in time"})
    await asyncio.sleep(0)
    await early.close()
    early.landed({keys[2]: "late"})
    await asyncio.sleep(0)
    assert begun == [pieces[0]]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize(("columns", "decoded"), [(["a", "b"], 2), (["a"], 3)])
async def test_a_slow_consumer_finds_few_units_decoded(columns: list[str], decoded: int) -> None:
    """Beside its own one; two of one column, as one thread decodes each."""
    rows = 40_000
    values = np.random.default_rng(1).integers(0, 200, 10 * rows)
    table = pa.table({"a": values, "b": values[::-1]})
    data = parquet_bytes(table, row_group_size=rows, use_dictionary=False, compression="zstd")
    limits = asyncpq.LimitOptions(unit_bytes=30_000, inline_decode_bytes=1000)
    async with ObjectServer() as server:
        server.put("lake/file.parquet", data)
        async with asyncpq.Session(server.storage_options, limits=limits) as session:
            file = await session.open_file(URL)
            async with file.scan(columns) as scan:
                await anext(scan)
                for _ in range(10_000):
                    if scan.metrics.rows_scanned >= decoded * rows:
                        break
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)  # in which those could be decoded that should wait
                assert scan.metrics.rows_scanned == decoded * rows
                assert sum([batch.num_rows async for batch in scan]) == 9 * rows
