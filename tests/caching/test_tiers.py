"""Cache keys, the chain of tiers and single flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
import asyncpq.blocking
from asyncpq.caching import tiers
from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey, version_digest
from asyncpq.caching.single_flight import SingleFlight
from asyncpq.caching.tiers import Tiers
from asyncpq.errors import UsageError
from asyncpq.storage.base import Validator
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes


def test_keys_differ_by_everything_that_matters() -> None:
    base = ("namespace", "s3|endpoint|bucket|key", Validator(10, '"etag"'))
    digests = {
        version_digest(*base),
        version_digest("other", *base[1:]),
        version_digest(base[0], "s3|endpoint|bucket|other", base[2]),
        version_digest(*base[:2], Validator(11, '"etag"')),
        version_digest(*base[:2], Validator(10, '"other"')),
        version_digest(*base[:2], Validator(10, 'W/"etag"')),
        version_digest(*base[:2], Validator(10, version="1")),
        version_digest("names", "pace" + base[1], base[2]),
    }
    assert len(digests) == 8
    assert version_digest(*base) == version_digest(*base)
    key = ContentKey(b"v" * 16, "page", 1, 2)
    assert len({key.encode(), key._replace(kind="dictionary").encode(), key._replace(stop=3).encode()}) == 3


class Tier:
    """A tier that counts what it is asked."""

    def __init__(self, name: str, entries: Mapping[ContentKey, bytes]) -> None:
        self.name = name
        self.max_read_bytes = 1 << 30
        self.entries = dict(entries)
        self.asked: list[list[ContentKey]] = []

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        self.asked.append(list(keys))
        return [self.entries.get(key) for key in keys]

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        self.entries.update(entries)

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        return None

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None: ...

    async def drop_pointer(self, key: PointerKey) -> None: ...

    async def close(self) -> None: ...


async def test_tiers_are_asked_in_order_and_filled_upwards() -> None:
    keys = [ContentKey(b"v", "page", start, start + 1) for start in range(3)]
    near, far = Tier("disk", {keys[0]: b"0"}), Tier("shared", {keys[1]: b"1"})
    tiers = Tiers([near, far])
    assert await tiers.get_many(keys) == ({keys[0]: b"0", keys[1]: b"1"}, {"disk": 1, "shared": 1})
    await tiers.close()
    assert near.asked == [keys]
    assert far.asked == [keys[1:]]
    assert near.entries[keys[1]] == b"1"


async def test_one_flight_for_all_and_a_cancelled_leader_harms_nobody() -> None:
    flights = SingleFlight()
    started = 0
    landed = asyncio.Event()

    async def fetch() -> str:
        nonlocal started
        started += 1
        await landed.wait()
        return "rows"

    leader = asyncio.ensure_future(flights.run("key", fetch))
    others = [asyncio.ensure_future(flights.run("key", fetch)) for _ in range(50)]
    await asyncio.sleep(0)
    leader.cancel()
    await asyncio.sleep(0)
    landed.set()
    assert await asyncio.gather(*others) == ["rows"] * 50
    assert started == 1
    with pytest.raises(asyncio.CancelledError):
        await leader
    assert flights.get("key") is None


async def test_a_flight_that_nobody_waits_for_is_cancelled() -> None:
    flights = SingleFlight()
    cancelled = asyncio.Event()

    async def fetch() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    waiters = [asyncio.ensure_future(flights.run("key", fetch)) for _ in range(3)]
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await asyncio.wait_for(cancelled.wait(), 1)


async def test_a_failure_reaches_all_waiters_and_is_not_kept() -> None:
    flights = SingleFlight()
    failing = True

    async def fetch() -> str:
        await asyncio.sleep(0)
        if failing:
            raise OSError("no")
        return "rows"

    outcomes = await asyncio.gather(*(flights.run("key", fetch) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OSError] * 3
    failing = False
    assert await flights.run("key", fetch) == "rows"


async def test_closing_ends_what_flies() -> None:
    flights = SingleFlight()
    waiter = asyncio.ensure_future(flights.run("key", lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    await flights.close()
    with pytest.raises(UsageError, match="closed"):
        await waiter


class SlowTier:
    """See CacheTier: it takes nothing before it is let."""

    name = "slow"
    max_read_bytes = 1 << 30

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.values: dict[ContentKey, bytes] = {}

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        return [self.values.get(key) for key in keys]

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        await self.let.wait()
        self.values.update(entries)

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        return None

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        await self.let.wait()

    async def drop_pointer(self, key: PointerKey) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_small_puts_and_pointers_are_bounded() -> None:
    tier = SlowTier()
    kept = tiers.Tiers([tier])
    keys = [ContentKey(bytes(16), "page", start, start + 1) for start in range(5000)]
    pointer = Pointer(Validator(1, '"etag"'), time.monotonic())
    for key in keys:
        kept.put_many({key: b"x"})
        kept.put_pointer(PointerKey("namespace", str(key.start)), pointer)
    assert len(asyncio.all_tasks()) <= 1 + tiers.PENDING_PUTS
    tier.let.set()
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == 1
    assert len(tier.values) >= tiers.PENDING_PUTS // 4
    kept.put_many({keys[-1]: b"x"})  # there is room again
    await asyncio.sleep(0.01)
    assert keys[-1] in tier.values
    await kept.close()


def parquet() -> bytes:
    return parquet_bytes(pa.table({"id": range(1000)}), write_page_index=True)


def test_a_session_shows_its_tiers(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    session = asyncpq.Session(disk_cache=folder, shared_cache="valkey://user:hunter2@cache.internal:6380/0")
    assert repr(session) == (
        f"Session(memory_cache=0 of 268,435,456 bytes, disk_cache=DiskCache({folder!r}), "
        "shared_cache=SharedCache('cache.internal:6380'))"
    )
    asyncio.run(session.close())


async def test_a_read_says_which_tier_had_what(server: ObjectServer, tmp_path: Path) -> None:
    server.put("bucket/a.parquet", parquet())
    for hits in (False, True):
        async with asyncpq.Session(server.storage_options, disk_cache=tmp_path / "cache") as session:
            file = await session.open_file("s3://bucket/a.parquet")
            await file.lookup({"id": 7})
            text = str(file.metrics)
            assert ("on disk" in text) is hits
            if hits:
                cost = file.metrics
                assert f"cache hits {cost.cache_hits} ({cost.disk_hits} of them on disk), misses 0" in text


def test_lower_tiers_side_by_side() -> None:
    metrics = asyncpq.ReadMetrics(cache_hits=7, disk_hits=2, shared_hits=1)
    assert "cache hits 7 (2 of them on disk, 1 of them shared), misses 0" in str(metrics)
    assert "cache hits 7, misses 0" in str(asyncpq.ReadMetrics(cache_hits=7))


def test_blocking_sessions_have_them_too(tmp_path: Path) -> None:
    with ObjectServer.in_thread() as server:
        server.put("bucket/a.parquet", parquet())
        options = server.storage_options
        with asyncpq.blocking.Session(options, disk_cache=tmp_path / "cache") as session:
            session.open_file("s3://bucket/a.parquet")
            assert session.memory_cache.current_bytes > 0
            assert session.cache_counters()["disk"]["misses"] == 1
            with asyncpq.blocking.Session(options, memory_cache=session.memory_cache) as other:
                other.open_file("s3://bucket/a.parquet")
                assert other.metrics.requests == 0
