"""What a cache tier outside this process offers, and how tiers are asked one after another.

The memory tier holds parsed values and is asked directly; these tiers hold bytes. Whatever they
return was verified by them (version, checksum, authentication): a doubtful entry is a miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from asyncpq.caching.keys import ContentKey, Pointer, PointerKey


class CacheTier(Protocol):
    """One tier of cached bytes, shared with other processes or hosts.

    A tier that fails answers as if it were empty and does not raise: it must never cost a read its
    rows.
    """

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        """One multi-get: the bytes of each key, or None."""

    async def put_many(self, entries: Mapping[ContentKey, bytes]) -> None: ...

    async def get_pointer(self, key: PointerKey) -> Pointer | None: ...

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None: ...

    async def drop_pointer(self, key: PointerKey) -> None: ...

    async def close(self) -> None: ...


async def look_up(tiers: Sequence[CacheTier], keys: Sequence[ContentKey]) -> dict[ContentKey, bytes]:
    """Ask each tier for what the tiers above it did not have; what a lower tier had is put above it."""
    found: dict[ContentKey, bytes] = {}
    missing = list(keys)
    for depth, tier in enumerate(tiers):
        if not missing:
            break
        values = await tier.get_many(missing)
        hits = {key: value for key, value in zip(missing, values, strict=True) if value is not None}
        for upper in tiers[:depth]:
            if hits:
                await upper.put_many(hits)
        found.update(hits)
        missing = [key for key in missing if key not in hits]
    return found
