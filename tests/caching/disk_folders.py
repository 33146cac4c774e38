"""The disk tier's folder, as tests reach for it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpq.caching import disk_files
from asyncpq.caching.disk import DiskCache
from asyncpq.caching.disk_files import BLOCK_BYTES, blocks
from asyncpq.caching.entry_format import ContentKey, PointerKey
from asyncpq.options import MIB, DiskCacheOptions
from asyncpq.testing import FolderStorage

KEYS = [ContentKey(b"version of bytes", "page", place, place + 1) for place in range(400)]
KEY = KEYS[0]
POINTER_KEY = PointerKey("namespace", "s3|bucket|key")


class DiskStorage(FolderStorage):
    """One that can be made read only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._patch = pytest.MonkeyPatch()

    async def set_writable(self, writable: bool) -> bool:
        """As if it were mounted to be read only."""
        if writable:
            self._patch.undo()
        else:
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
            failing(self._patch, "open", errno.EROFS, lambda path, flags, *rest: flags & writes)
            for name in ("unlink", "rename", "mkdir", "utime"):
                failing(self._patch, name, errno.EROFS, lambda *arguments: True)
        return True


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


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool]) -> None:
    """Have ``os.<name>`` fail with ``code`` where ``when`` says so of its arguments."""
    real = getattr(os, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


class Hung:
    """Writes to the folder hang, once ``begun`` until ``go_on``; ``after``: what they write is there by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: bool = False) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.writes = 0
        write_many = disk_files.EntryFolder.write_many

        def write(folder: disk_files.EntryFolder, values: Any, scan: bool = False) -> disk_files.Outcome:
            self.writes += 1
            outcome = write_many(folder, values, scan) if after else None
            self.begun.set()
            self.go_on.wait(60)
            return outcome or write_many(folder, values, scan)

        monkeypatch.setattr(disk_files.EntryFolder, "write_many", write)
