"""What scans put into the disk cache: it uses room that nobody else needs, and goes before what lookups use."""

from __future__ import annotations

import os
import time
from pathlib import Path

from asyncpq.caching.disk_files import blocks
from asyncpq.caching.entry_format import ContentKey
from asyncpq.options import MIB
from tests.caching.disk_folders import KEYS, held_bytes, new_cache, path_of

BUDGET = 4 * MIB
VALUE = bytes(30_000)  # with its header 8 blocks


def scanned(count: int) -> list[ContentKey]:
    return [ContentKey(b"what a scan read", "page", place, place + 1) for place in range(count)]


async def test_many_scans_push_out_nothing_that_lookups_use(tmp_path: Path) -> None:
    looked_up, read = KEYS[:64], scanned(600)  # half of the budget; more than four times it
    cache = new_cache(tmp_path / "cache", BUDGET)
    await cache.put_many(dict.fromkeys(looked_up, VALUE))
    for start in range(0, len(read), 20):
        await cache.put_many(dict.fromkeys(read[start : start + 20], VALUE), scan=True)
    assert cache.evictions >= 400, "they go themselves"
    assert await cache.get_many(looked_up) == [VALUE] * len(looked_up)
    assert any(await cache.get_many(read)), "and have what room is left"
    assert held_bytes(tmp_path / "cache") <= BUDGET
    await cache.close()


async def test_what_is_used_again_stays(tmp_path: Path) -> None:
    cache = new_cache(tmp_path / "cache", BUDGET)
    first, *rest = scanned(600)
    await cache.put_many({first: VALUE}, scan=True)
    assert await cache.get_many([first]) == [VALUE]
    assert abs(time.time() - path_of(tmp_path / "cache", first).stat().st_mtime) < 3600
    for start in range(0, len(rest), 20):
        await cache.put_many(dict.fromkeys(rest[start : start + 20], VALUE), scan=True)
    assert await cache.get_many([first]) == [VALUE]
    await cache.close()


async def test_lookups_take_the_room_of_scans(tmp_path: Path) -> None:
    cache = new_cache(tmp_path / "cache", BUDGET)
    await cache.put_many(dict.fromkeys(scanned(100), VALUE), scan=True)
    await cache.put_many(dict.fromkeys(KEYS[:100], VALUE))
    assert await cache.get_many(KEYS[:100]) == [VALUE] * 100
    await cache.close()


async def test_a_scan_does_not_make_old_what_is_there(tmp_path: Path) -> None:
    """Nor does it write it again: it may well be what lookups use."""
    cache = new_cache(tmp_path / "cache", BUDGET)
    await cache.put_many({KEYS[0]: b"value"})
    path = path_of(tmp_path / "cache", KEYS[0])
    before = path.stat()
    await cache.put_many({KEYS[0]: b"value", KEYS[1]: b"other"}, scan=True)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert await cache.get_many(KEYS[:2]) == [b"value", b"other"]
    await cache.close()


async def test_old_as_they_are_no_writer_is_thought_dead(tmp_path: Path) -> None:
    """Temporary files of that age are removed: an entry is made old only once it has its name."""
    folder = tmp_path / "cache"
    cache = new_cache(folder, BUDGET)
    seen: list[float] = []
    rename = os.rename

    def watched(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        seen.append(time.time() - os.stat(source, dir_fd=src_dir_fd).st_mtime)
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    os.rename = watched  # type: ignore[assignment]
    try:
        await cache.put_many(dict.fromkeys(scanned(3), VALUE), scan=True)
    finally:
        os.rename = rename
    assert len(seen) == 3
    assert max(seen) < 600
    assert held_bytes(folder) == 3 * blocks(len(VALUE) + 48) * 4096
    await cache.close()
