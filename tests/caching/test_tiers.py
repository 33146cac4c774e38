"""Cache keys, the chain of tiers and single flight."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey, version_digest
from asyncpq.caching.single_flight import SingleFlight
from asyncpq.caching.tiers import Tiers
from asyncpq.errors import UsageError
from asyncpq.storage.base import Validator


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
