"""A tier that is slower than the reads does not hold up a queue: what it cannot take in time is not kept there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from asyncpq.caching import tiers
from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.storage.base import Validator


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
