"""Row groups are decoded as their bytes come; whatever ends the read ends their decoding."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.caching.entry_format import ContentKey
from asyncpq.decoding.row_group_reader import Matched, RowGroupReader
from asyncpq.errors import CorruptFileError, ObjectChangedError, StoreError
from asyncpq.objects.read_plan import RowGroupPiece
from asyncpq.scan.early_decoding import EarlyDecoding
from asyncpq.storage import base
from asyncpq.testing import Fault, ObjectServer, WrappedStore, wrap_store
from asyncpq.testing.stores import Fetch, StoreCall
from tests.parquet_bytes import parquet_bytes
from tests.scan.test_file_scan import tasks

URL = "s3://lake/file.parquet"
TABLE = pa.table({"id": range(20_000), "text": [f"{row * 7:09d}" for row in range(20_000)]})
KEYS = [*range(50, 20_000, 500)]  # of every second page: no two row groups share a request


def parquet(table: pa.Table = TABLE) -> bytes:
    options: dict[str, Any] = {"write_page_index": True, "use_dictionary": False, "write_page_checksum": True}
    return parquet_bytes(table, row_group_size=5000, max_rows_per_page=250, write_batch_size=250, **options)


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
    async with opened(parquet()) as (_, store, file):
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
        server.put("lake/file.parquet", parquet())
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
    async with opened(parquet(), retry=asyncpq.RetryOptions(max_attempts=1)) as (server, store, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(2)
        server.faults = [Fault(status=500, times=None)]
        store.released.set()
        with pytest.raises(StoreError):
            await lookup
        assert not tasks()


async def test_a_cancelled_read_ends_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = Emitted(monkeypatch)
    async with opened(parquet()) as (_, _, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(1)
        lookup.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lookup
        assert not tasks() - {"SingleFlight.start.<locals>.begin"}  # which still ends


async def test_no_rows_of_a_version_that_is_replaced_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = TABLE.set_column(1, "text", pa.array([f"{row * 9:09d}" for row in range(20_000)]))
    emitted = Emitted(monkeypatch)
    async with opened(parquet()) as (server, store, file):
        lookup = asyncio.ensure_future(file.lookup({"id": KEYS}))
        await emitted.until(3)
        server.put("lake/file.parquet", parquet(newer))
        store.released.set()
        assert await lookup == newer.take(KEYS)


async def test_a_damaged_page_is_not_kept() -> None:
    data = bytearray(parquet())
    data[pq.read_metadata(io.BytesIO(data)).row_group(1).column(1).data_page_offset + 200] ^= 1
    async with opened(bytes(data)) as (server, store, file):
        store.released.set()
        for _ in range(2):
            before = len(server.log)
            with pytest.raises(CorruptFileError, match="CRC"):
                await file.lookup({"id": KEYS})
            assert len(server.log) > before, "it is fetched again"
        assert not tasks()


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
