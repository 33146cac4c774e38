"""The storages of asyncpq's own cache tiers, for the checks of a cache tier: your disk, and your server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.shared import SharedCache
from asyncpq.caching.tiers import CacheTier
from asyncpq.options import DiskCacheOptions, SharedCacheOptions


class FolderStorage:
    """A :class:`TierStorage` for ``disk_cache``: a folder that is not there yet, on the file system in question.

    Args:
        folder: its path.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._options = DiskCacheOptions(path=os.fspath(folder), timeout_s=60.0)

    async def open(self) -> CacheTier:
        """See :class:`TierStorage`."""
        tier = DiskCache(self._options)
        await tier.open()
        return tier

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        """See :class:`TierStorage`."""
        return await asyncio.to_thread(self._rewrite, change)

    async def set_writable(self, writable: bool) -> bool:
        """See :class:`TierStorage`; a class of your own may know how to do it."""
        return False

    def _rewrite(self, change: Callable[[bytes], bytes]) -> int:
        paths = list(Path(self._options.path).glob("??/*"))
        for path in paths:
            path.write_bytes(change(path.read_bytes()))
        return len(paths)


class ServerStorage:
    """A :class:`TierStorage` for ``shared_cache``: a server in which nothing begins with the options' prefix.

    Args:
        options: those that your sessions take; with a long ``timeout_s``, as what comes too late is not found.
        admin: a ``valkey.Valkey`` or ``redis.Redis`` of a user who may list the server's keys, read and write them.
    """

    def __init__(self, options: SharedCacheOptions, admin: Any) -> None:
        self._options = options
        self._admin = admin

    async def open(self) -> CacheTier:
        """See :class:`TierStorage`."""
        return SharedCache(self._options)

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        """See :class:`TierStorage`."""
        return await asyncio.to_thread(self._rewrite, change)

    async def set_writable(self, writable: bool) -> bool:
        """See :class:`TierStorage`; a class of your own may know how to do it."""
        return False

    def _rewrite(self, change: Callable[[bytes], bytes]) -> int:
        names = list(self._admin.scan_iter(match=f"{self._options.prefix}*", count=1000))
        for name in names:
            self._admin.set(name, change(self._admin.get(name)))
        return len(names)
