"""What the caches outside this process hold, for tools that show and clear them."""

from __future__ import annotations

from typing import NamedTuple

from asyncpq.caching.upkeep import clear_disk_cache, disk_cache_usage, shared_cache_entries
from asyncpq.options import DiskCacheOptions, SharedCacheOptions

__all__ = ["CacheEntries", "cache_entries"]


class CacheEntries(NamedTuple):
    """What a cache holds.

    Attributes:
        entries: their number.
        bytes: on disk; None for a server, which does not say.
        removed: the number of entries that were removed; None if none were to be.
    """

    entries: int
    bytes: int | None
    removed: int | None


async def cache_entries(cache: DiskCacheOptions | SharedCacheOptions, *, clear: bool = False) -> CacheEntries:
    """Return what a cache on disk or in a server holds; with ``clear``, remove all of its entries before, and nothing
    else. Processes that use the cache go on, and fetch again.

    Raises:
        InvalidOptionError: there is no such folder, or it is not this user's alone; or valkey-py is not installed.
        StoreError: the server cannot be reached, or does not allow this user to list keys.
    """
    if isinstance(cache, DiskCacheOptions):
        removed = await clear_disk_cache(cache.path) if clear else None
        entries, size = await disk_cache_usage(cache.path)
        return CacheEntries(entries, size, removed)
    entries = await shared_cache_entries(cache, remove=clear)
    return CacheEntries(0, None, entries) if clear else CacheEntries(entries, None, None)
