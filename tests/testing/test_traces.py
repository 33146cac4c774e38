"""The recorded traces of cache/traces: their table of hit rates is the one they give, and what is said of it holds.

And how traces are recorded, kept and replayed (asyncpq.testing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

import asyncpq
from asyncpq.caching import memory
from asyncpq.caching.entry_format import ContentKey, PointerKey
from asyncpq.caching.memory import ENTRY_OVERHEAD_BYTES
from asyncpq.testing.traces import Access, HitRate, RecordingCache, Replay, read_trace, replay, write_trace
from cache.traces.replay import FOLDER, PAGE, Line, PlainLru, footprint, lines, table, traces, without_scans
from tests.parquet_bytes import parquet_bytes

as_recorded = pytest.mark.skipif(
    int(version("cachetools").split(".")[0]) < 8,
    reason="the table is of cachetools 8; earlier versions evict other entries at times",
)

SCANNED = ("lookups_and_a_scan", "lookups_and_many_scans")


@pytest.fixture(scope="module")
def replayed() -> list[Line]:
    return list(lines())


@as_recorded
def test_the_table_is_what_the_traces_give(replayed: list[Line]) -> None:
    printed = PAGE.read_text(encoding="utf-8").split("<!-- table -->\n")[1].split("\n<!-- /table -->")[0]
    assert printed == table(replayed), "python -m cache.traces.replay --write"


def test_every_trace_is_described_and_small() -> None:
    names = [name for name, _ in traces()]
    described = PAGE.read_text(encoding="utf-8").split("## Hit rates")[0]
    assert len(names) == 6
    assert [name for name in names if f"| `{name}` |" not in described] == []
    assert all(path.stat().st_size < 200_000 for path in FOLDER.glob("*.parquet"))


@as_recorded
def test_without_scans_it_is_plain_lru(replayed: list[Line]) -> None:
    unscanned = [line for line in replayed if line.trace in ("lookups", "lookups_uniform")]
    assert len(unscanned) == 8
    for line in unscanned:
        assert line.memory == line.lru == line.undisturbed


def test_scans_cost_lookups_next_to_nothing(replayed: list[Line]) -> None:
    scanned = [line for line in replayed if line.trace in SCANNED]
    assert len(scanned) == 8
    for line in scanned:
        for of in (by_bytes, by_requests):
            assert of(line.memory.lookups) > of(line.undisturbed.lookups) - 0.005
            assert of(line.memory.all) > of(line.lru.all)
    gains = {(line.trace, line.percent): by_bytes(line.memory.lookups) - by_bytes(line.lru.lookups) for line in scanned}
    assert min(gains.values()) > 0.005
    assert min(gains["lookups_and_many_scans", percent] for percent in (10, 25, 50)) > 0.05
    assert gains["lookups_and_a_scan", 50] > 0.03


def test_scans_that_come_again_compete_with_lookups(replayed: list[Line]) -> None:
    dashboards = [line for line in replayed if "dashboards" in line.trace]
    assert len(dashboards) == 8
    for line in dashboards:
        assert by_bytes(line.memory.lookups) > by_bytes(line.lru.lookups) - 0.001
        assert by_bytes(line.memory.all) > by_bytes(line.lru.all) - 0.02


def test_scans_take_over_when_lookups_end(replayed: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(line for line in replayed if line.trace == "lookups_then_dashboards" and line.percent == 10)
    monkeypatch.setattr(memory, "REMEMBERED", 1 << 60)
    forgetful = replay(dict(traces())[line.trace], asyncpq.MemoryCache(line.max_bytes))
    assert by_bytes(line.memory.all) > by_bytes(forgetful.all) + 0.1


def by_bytes(rate: HitRate) -> float:
    return rate.of_bytes


def by_requests(rate: HitRate) -> float:
    return rate.of_requests


# -- recording --------------------------------------------------------------------------------------


def test_records_what_it_is_asked(tmp_path: Path) -> None:
    cache = RecordingCache(1 << 20)
    page = ContentKey(b"v" * 16, "page", 0, 100)
    pointer = PointerKey("namespace", "s3|secret")
    version = ("version", pointer, b"")
    cache.put(pointer, "pointer", 300)
    assert cache.get(pointer) == "pointer"
    cache.put(page, b"page", 4, scan=True)
    assert cache.get_many(iter([page, version]), scan=True) == [b"page", None]
    cache.offer(version, "version", 7)
    cache.discard(page)
    assert cache.discard_if(lambda key: key == version) == 1
    assert cache.trace == [
        Access("put", 0, "pointer", 300, False),
        Access("get", 0, "pointer", 0, False),
        Access("put", 1, "page", 4, True),
        Access("get", 1, "page", 0, True),
        Access("get", 2, "version", 0, True),
        Access("offer", 2, "version", 7, False),
        Access("discard", 1, "page", 0, False),
        Access("discard", 2, "version", 0, False),
    ]
    cache.clear()
    assert len(cache) == 0
    assert [access.operation for access in cache.trace[8:]] == ["discard"] * 3
    write_trace(tmp_path / "trace.parquet", cache.trace)
    assert read_trace(tmp_path / "trace.parquet") == cache.trace
    assert b"secret" not in (tmp_path / "trace.parquet").read_bytes()
    write_trace(tmp_path / "empty.parquet", [])
    assert read_trace(tmp_path / "empty.parquet") == []


def test_a_recorded_session_hits_a_large_cache_always() -> None:
    fsspec.filesystem("memory").pipe_file(
        "/traces/file.parquet",
        parquet_bytes(pa.table({"id": range(5000)}), max_rows_per_page=500, write_page_index=True),
    )
    cache = RecordingCache(1 << 24)

    async def run() -> None:
        requests = asyncpq.RequestOptions(tail_bytes=1 << 10)
        async with asyncpq.Session(memory_cache=cache, requests=requests) as session:
            file = await session.open_file("memory://traces/file.parquet")
            for _ in range(3):
                assert (await file.lookup({"id": 7})).num_rows == 1
            assert (await file.read(where=asyncpq.col("id") < 600)).num_rows == 600

    asyncio.run(run())
    assert {access.scan for access in cache.trace} == {False, True}
    assert "page" in {access.kind for access in cache.trace}
    for other in (asyncpq.MemoryCache(1 << 24), PlainLru(1 << 24)):
        rates = replay(cache.trace, other)
        assert rates.all.hits == rates.all.requests > rates.lookups.requests == rates.lookups.hits > 0
        assert rates.all.hit_bytes == rates.all.bytes > 0
    assert replay(cache.trace, asyncpq.MemoryCache(0)).all.hits == 0


ONE = 1000 - ENTRY_OVERHEAD_BYTES


def put(key: int, *, scan: bool = False) -> Access:
    return Access("put", key, "page", ONE, scan)


def get(key: int, *, scan: bool = False) -> Access:
    return Access("get", key, "page", 0, scan)


def test_replays_put_again_what_was_evicted() -> None:
    trace = [get(0), put(0), get(0), put(1), get(0), get(1), get(0, scan=True), Access("discard", 0, "page", 0, False)]
    rates = replay([*trace, get(0)], PlainLru(1000))
    assert rates.all == HitRate(requests=4, hits=1, bytes=4 * ONE, hit_bytes=ONE)
    assert rates.lookups == HitRate(requests=2, hits=1, bytes=2 * ONE, hit_bytes=ONE)  # of 1, no get came before
    assert footprint(trace) == 2000


def test_what_scans_brought_lookups_bring_themselves_without_them() -> None:
    trace = [
        put(0, scan=True),
        Access("offer", 1, "page", ONE, False),
        get(0, scan=True),
        get(0),
        put(2),
        Access("offer", 2, "page", 1, False),
        get(2),
        get(1),
        get(1),
    ]
    assert without_scans(trace) == [get(0), put(0), put(2), get(2), get(1), put(1), get(1)]


@pytest.mark.parametrize("make", [asyncpq.MemoryCache, PlainLru])
def test_a_replay_of_nothing(make: Callable[[int], asyncpq.MemoryCache | PlainLru]) -> None:
    assert replay([], make(1000)) == Replay(HitRate(), HitRate())
    assert HitRate().of_bytes == HitRate().of_requests == 1.0
