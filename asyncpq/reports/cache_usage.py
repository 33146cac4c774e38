"""The report of ``asyncpq cache``: what a cache on disk or in a server holds. It can be emptied at once."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from asyncpq.caching.disk_files import EntryFolder, UnsafeFolderError
from asyncpq.caching.entry_format import EntryCodec
from asyncpq.errors import InvalidOptionError, install_hint
from asyncpq.options import DiskCacheOptions, SharedCacheOptions
from asyncpq.reports.documents import CacheUsage


async def cache_usage(cache: DiskCacheOptions | SharedCacheOptions, *, clear: bool = False) -> CacheUsage:
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
    place = f"keys {cache.prefix}*"  # the url may hold a password
    return _document("shared", place, 0 if clear else entries, None, entries if clear else None)


def _on_disk(cache: DiskCacheOptions, clear: bool) -> CacheUsage:
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
    return _document("disk", cache.path, entries, size, removed)


def _document(
    kind: Literal["disk", "shared"], place: str, entries: int, size: int | None, removed: int | None
) -> CacheUsage:
    return {"document": "cache", "kind": kind, "place": place, "entries": entries, "bytes": size, "removed": removed}
