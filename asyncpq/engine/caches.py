"""What the caches outside this process hold, for tools that show and clear them."""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from asyncpq.caching.disk_files import EntryFolder, UnsafeFolderError
from asyncpq.caching.entry_format import EntryCodec
from asyncpq.errors import InvalidOptionError, install_hint
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
        return await asyncio.to_thread(_on_disk, cache, clear)
    try:
        from asyncpq.caching.valkey_connections import count_keys
    except ImportError as error:
        raise InvalidOptionError(
            "a shared cache needs the package valkey, which is not installed", hint=install_hint("valkey", "valkey")
        ) from error
    timeout_s = max(cache.connect_timeout_s, 10 * cache.timeout_s)
    entries = await count_keys(cache.url, cache.prefix, remove=clear, timeout_s=timeout_s)
    return CacheEntries(0, None, entries) if clear else CacheEntries(entries, None, None)


def _on_disk(cache: DiskCacheOptions, clear: bool) -> CacheEntries:
    folder = EntryFolder(os.path.abspath(os.path.expanduser(cache.path)), cache.max_bytes, EntryCodec(None))
    try:
        removed = folder.clear() if clear else None
        entries, size = folder.usage()
    except FileNotFoundError:
        raise InvalidOptionError(
            f"there is no disk cache at {cache.path}",
            hint="Pass the folder that sessions, or other commands, use as disk cache.",
        ) from None
    except UnsafeFolderError as error:
        raise InvalidOptionError(
            f"the folder {cache.path} {error}, so it is not a disk cache of this user",
            hint="Pass the folder that sessions of this user use as disk cache.",
        ) from error
    return CacheEntries(entries, size, removed)
