"""The disk tier with several processes: killed while they write, racing for a small budget, forked."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.disk_files import EntryFolder
from asyncpq.options import MIB, DiskCacheOptions
from tests.caching.disk_cache_user import KEYS, VALUES, user, wrong_values
from tests.caching.disk_folders import KEYS as FOLDER_KEYS
from tests.caching.disk_folders import entry_files, held_bytes, new_cache

pytestmark = pytest.mark.faults


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [15, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
async def test_killed_while_writing(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "cache"
    choose = random.Random(kills)
    found = 0
    for kill in range(kills):
        # now and then a small budget: killed while it evicts, too
        max_bytes = 64 * MIB if kill % 3 else MIB
        with user(folder, max_bytes, kill, 1_000_000) as process:
            await asyncio.sleep(choose.uniform(0.0, 0.1))
            process.kill()
            process.join()
        cache = DiskCache(DiskCacheOptions(path=str(folder), max_bytes=64 * MIB))
        assert await wrong_values(cache) == 0
        found += cache.hits
        await cache.put_many({KEYS[0]: VALUES[KEYS[0]]})
        assert await cache.get_many(KEYS[:1]) == [VALUES[KEYS[0]]]
        assert cache.errors == 0
        await cache.close()
    assert found > kills, "the writers wrote"
    # what the dead left half-written goes when the folder is listed next, once nobody can be writing it
    long_ago = time.time() - 3600
    for path in entry_files(folder):
        os.utime(path, (long_ago, long_ago))
    cache = DiskCache(DiskCacheOptions(path=str(folder), max_bytes=MIB))
    for _ in range(20):
        await cache.put_many({key: VALUES[key] for key in KEYS if len(VALUES[key]) > 20_000})
    await cache.close()
    assert held_bytes(folder) <= MIB
    assert not [path for path in entry_files(folder) if path.stat().st_mtime == long_ago and path.suffix]


async def test_racing_for_a_small_budget(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    largest = 0
    with contextlib.ExitStack() as running:
        users = [running.enter_context(user(folder, MIB, seed, 30)) for seed in range(4)]
        while any(process.is_alive() for process in users):
            largest = max(largest, held_bytes(folder))
            await asyncio.sleep(0.02)
        assert [process.exitcode for process in users] == [0] * 4
    # each of the four may have looked, and been right that there is room for its entry of 40 KiB; and one that was
    # begun while its sub-folder was listed is not counted until the next time
    assert MIB // 2 < largest <= MIB + 8 * 44 * 1024
    cache = DiskCache(DiskCacheOptions(path=str(folder), max_bytes=MIB))
    assert await wrong_values(cache) == 0
    assert cache.hits > 0
    await cache.close()
    assert not [path for path in entry_files(folder) if path.suffix]


async def test_a_stopped_evictor_stops_nobody(tmp_path: Path) -> None:
    cache = DiskCache(DiskCacheOptions(path=str(tmp_path / "cache"), max_bytes=MIB))
    await cache.put_many({KEYS[0]: b"value"})
    with (tmp_path / "cache" / "evictor.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(3):
            await cache.put_many({key: VALUES[key] for key in KEYS})
        assert held_bytes(tmp_path / "cache") <= MIB  # what does not fit is not kept
        assert cache.evictions == 0
        fcntl.flock(held, fcntl.LOCK_UN)
    await cache.put_many({key: VALUES[key] for key in KEYS})
    assert cache.evictions > 0
    assert held_bytes(tmp_path / "cache") <= MIB
    assert cache.errors == 0
    await cache.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or not run("mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)):
        pytest.skip("only root can mount a small file system, and not everywhere")
    yield disk
    assert run("umount", "--lazy", str(disk))


def run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.slow
async def test_a_disk_that_is_smaller_than_the_budget(small_disk: Path) -> None:
    cache = new_cache(small_disk / "cache", 64 * MIB)
    for start in range(0, 400, 10):
        await cache.put_many(dict.fromkeys(FOLDER_KEYS[start : start + 10], bytes(20_000)))
    assert cache.errors > 0
    assert cache.evictions > 200
    found = [value is not None for value in await cache.get_many(FOLDER_KEYS)]
    assert not any(found[:100]), "the oldest went"
    assert sum(found[-50:]) > 20
    assert not [path for path in entry_files(small_disk / "cache") if path.suffix]
    assert run("mount", "-o", "remount,ro", str(small_disk))
    for _ in range(5):
        await cache.put_many({FOLDER_KEYS[0]: b"value"})
    assert [value is not None for value in await cache.get_many(FOLDER_KEYS)] == found
    await cache.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("writing", [False, True])
def test_a_forked_process_has_threads_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: bool
) -> None:
    cache = new_cache(tmp_path / "cache")
    key, parent = KEYS[0], os.getpid()
    begun, go_on = threading.Event(), threading.Event()
    write = EntryFolder._write

    def slow_write(self: EntryFolder, *arguments: Any) -> None:
        if writing and os.getpid() == parent:
            begun.set()
            assert go_on.wait(60)
        write(self, *arguments)

    monkeypatch.setattr(EntryFolder, "_write", slow_write)

    async def use() -> bool:
        await asyncio.wait_for(cache.put_many({key: b"value"}), 20)
        return await asyncio.wait_for(cache.get_many([key]), 20) == [b"value"]

    async def fork_and_use() -> int:
        first = asyncio.ensure_future(use())
        if writing:
            await asyncio.to_thread(begun.wait, 20)
        else:
            await first
        child = os.fork()
        if child == 0:
            try:
                used = asyncio.run(use())
                asyncio.run(cache.close())
                os._exit(0 if used else 1)
            finally:
                os._exit(2)
        try:
            return await asyncio.to_thread(lambda: os.waitpid(child, 0)[1])
        finally:
            go_on.set()
            assert await first

    assert asyncio.run(fork_and_use()) == 0
    assert asyncio.run(use())
    asyncio.run(cache.close())
