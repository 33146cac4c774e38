"""The disk tier where the disk fails or does not answer: misses, no error, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.caching import disk_files
from asyncpq.caching.entry_format import Pointer
from asyncpq.caching.tiers import Backoff
from asyncpq.options import DiskCacheOptions
from asyncpq.storage.base import Validator
from tests.caching.disk_folders import KEY, KEYS, POINTER_KEY, Hung, entry_files, failing, new_cache, path_of
from tests.faults.operations import parquet

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", ["write", "open", "rename"])
async def test_writes_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder)
    await cache.put_many(dict.fromkeys(KEYS[:8], b"value"))
    with monkeypatch.context() as patch:
        failing(patch, name, code, lambda path, *rest: not isinstance(path, str) or path.endswith(".tmp"))
        for _ in range(5):
            await cache.put_many({KEYS[9]: b"other"})
            await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), 0.0))
        assert cache.errors == 3, "after that it is left alone"
        found = await cache.get_many(KEYS[:10])
        full = code in (errno.ENOSPC, errno.EDQUOT)
        assert found[8:] == [None, None]
        assert found[:8].count(b"value") in (range(1, 7) if full else (8,)), "a full disk lets go of the oldest"
    await cache.put_many({KEYS[9]: b"other"})
    assert await cache.get_many([KEYS[9]]) == [None]
    cache._writing = Backoff()  # the pause is over
    await cache.put_many({KEYS[9]: b"other"})
    assert await cache.get_many([KEYS[9]]) == [b"other"]
    assert not [path for path in entry_files(folder) if path.suffix]
    await cache.close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ENFILE])
async def test_reads_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    cache = new_cache(tmp_path / "cache")
    await cache.put_many(dict.fromkeys(KEYS[:4], b"value"))
    with monkeypatch.context() as patch:
        failing(patch, "open", code, lambda path, *rest: path == KEYS[2].encode().hex())
        assert await cache.get_many(KEYS[:4]) == [b"value", b"value", None, None]
        for _ in range(4):
            assert await cache.get_many(KEYS[2:4]) == [None, None]
        assert cache.errors == 3
        assert await cache.get_pointer(POINTER_KEY) is None
    cache._reading = Backoff()
    assert await cache.get_many(KEYS[:4]) == [b"value"] * 4
    await cache.close()


async def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "mkdir", errno.EROFS, lambda path, *rest: True)
    cache = new_cache(tmp_path / "a" / "cache")
    await cache.open()
    await cache.put_many({KEY: b"value"})
    assert await cache.get_many([KEY]) == [None]
    assert cache.errors == 2
    await cache.close()


async def test_a_folder_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder)
    await cache.put_many(dict.fromkeys(KEYS[:2], b"value"))
    path_of(folder, KEYS[1]).write_bytes(b"damaged")
    os.utime(path_of(folder, KEYS[0]), (0, 0))
    for name in ("utime", "unlink"):
        failing(monkeypatch, name, errno.EROFS, lambda *arguments: True)
    assert await cache.get_many(KEYS[:2]) == [b"value", None]
    assert cache.errors == 0
    await cache.close()


async def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder)
    await cache.put_many({KEY: b"value"})
    folder.rename(tmp_path / "gone")
    assert await cache.get_many([KEY]) == [None]
    await cache.drop_pointer(POINTER_KEY)
    await cache.put_many({KEY: b"again"})
    assert await cache.get_many([KEY]) == [b"again"]
    assert cache.errors == 0
    await cache.close()


async def test_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    cache = new_cache(tmp_path / "cache", timeout_s=0.05)
    await cache.put_many(dict.fromkeys(KEYS[:3], b"value"))
    read = disk_files.EntryFolder._read

    asked: list[bytes] = []

    def slow_read(self: disk_files.EntryFolder, folder: int, key: bytes) -> bytes | None:
        asked.append(key)
        if key == KEYS[1].encode():
            answer.wait(60)
        return read(self, folder, key)

    monkeypatch.setattr(disk_files.EntryFolder, "_read", slow_read)
    try:
        assert await cache.get_many(KEYS[:3]) == [b"value", None, None], "what had come by then"
        assert cache.errors == 1
        for _ in range(5):
            assert await cache.get_many(KEYS[1:2]) == [None]
        assert cache.errors == 3
    finally:
        answer.set()
    await cache.close()
    assert KEYS[2].encode() not in asked, "nobody waited any more"


async def test_closing_gives_up_what_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    write_many = disk_files.EntryFolder.write_many

    def slow_write(self: disk_files.EntryFolder, values: Any, scan: bool = False) -> disk_files.Outcome:
        begun.set()
        assert go_on.wait(60)
        return write_many(self, values, scan)

    monkeypatch.setattr(disk_files.EntryFolder, "write_many", slow_write)
    before = threading.active_count()
    cache = new_cache(tmp_path / "cache")
    puts = [asyncio.ensure_future(cache.put_many({key: b"value"})) for key in KEYS[:5]]
    await asyncio.to_thread(begun.wait, 20)
    before += 1  # to_thread's own
    closing = asyncio.ensure_future(cache.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    await asyncio.wait_for(asyncio.gather(*puts), 20)
    assert threading.active_count() <= before
    later = new_cache(tmp_path / "cache")
    assert await later.get_many(KEYS[:5]) == [b"value", None, None, None, None]
    await later.close()


async def test_a_session_closes_though_a_write_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = Hung(monkeypatch)
    path = tmp_path / "file.parquet"
    path.write_bytes(parquet())
    options = DiskCacheOptions(path=str(tmp_path / "cache"), timeout_s=0.05)
    try:
        async with asyncio.timeout(20):  # it hangs for longer
            async with asyncpq.Session(disk_cache=options) as session:
                file = await session.open_file(f"file://{path}")
                assert (await file.lookup({"id": 5}, ["id"])).num_rows == 1
                session._runtime.tiers.put_many({KEY: b"value"})
                await asyncio.to_thread(hung.begun.wait, 20)
    finally:
        hung.go_on.set()


async def test_a_failing_folder_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cache = new_cache(tmp_path / "cache")
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic()))
    clock = 0.0
    cache._writing = Backoff(clock=lambda: clock)
    with monkeypatch.context() as patch:
        failing(patch, "unlink", errno.EROFS, lambda path, *rest: True)
        failing(patch, "open", errno.EROFS, lambda path, *rest: path.endswith(".tmp"))
        for _ in range(50):
            await cache.drop_pointer(POINTER_KEY)
            await cache.put_many({KEY: b"value"})
            clock += 10.0
    assert [record.levelname for record in caplog.records] == ["WARNING"], "many attempts have failed since"
    assert str(tmp_path) in caplog.text
    clock += 100.0
    for _ in range(2):
        await cache.put_many({KEY: b"value"})
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    await cache.close()


async def test_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(tmp_path / "cache")
    zero = {"hits": 0, "misses": 0, "errors": 0, "skipped": 0, "evictions": 0}
    assert cache.counters() == zero
    await cache.put_many({KEY: b"value"})
    await cache.get_many(KEYS[:3])
    await cache.get_pointer(POINTER_KEY)
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), 0.0))
    await cache.get_pointer(POINTER_KEY)
    assert cache.counters() == zero | {"hits": 2, "misses": 3}
    with monkeypatch.context() as patch:
        failing(patch, "open", errno.EIO, lambda path, *rest: True)
        for _ in range(5):
            await cache.get_many(KEYS[:3])
    assert cache.counters() == zero | {"hits": 2, "misses": 3, "errors": 3, "skipped": 2}, "what failed is no miss"
    await cache.close()
