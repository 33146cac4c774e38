"""The disk tier's folder, as tests reach for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.eviction import BLOCK_BYTES, blocks
from asyncpq.caching.keys import ContentKey, PointerKey
from asyncpq.caching.tiers import CacheTier
from asyncpq.options import MIB, DiskCacheOptions

KEYS = [ContentKey(b"version of bytes", "page", place, place + 1) for place in range(400)]
KEY = KEYS[0]
POINTER_KEY = PointerKey("namespace", "s3|bucket|key")


class DiskStorage:
    """See :class:`asyncpq.testing.cache_contract.TierStorage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> CacheTier:
        cache = new_cache(self.folder)
        await cache.open()
        return cache

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        paths = entry_files(self.folder)
        for path in paths:
            path.write_bytes(change(path.read_bytes()))
        return len(paths)


def new_cache(folder: Path, max_bytes: int = 16 * MIB, timeout_s: float = 60.0) -> DiskCache:
    return DiskCache(DiskCacheOptions(path=str(folder), max_bytes=max_bytes, timeout_s=timeout_s))


def path_of(folder: Path, key: ContentKey | PointerKey) -> Path:
    name = key.encode().hex()
    return folder / name[:2] / name


def entry_files(folder: Path) -> list[Path]:
    """All in the sub-folders: entries, and what is being written."""
    return sorted(folder.glob("??/*"))


def held_bytes(folder: Path) -> int:
    """What they take on disk. Other processes may be at it."""
    total = 0
    for path in entry_files(folder):
        try:
            total += blocks(path.stat().st_size)
        except FileNotFoundError:
            continue
    return total * BLOCK_BYTES
