"""The disk tier where the disk fails or does not answer, or the clock goes back: misses, no error, no wrong age."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpq.caching import disk, entry_folder
from asyncpq.caching.backoff import Backoff
from asyncpq.caching.keys import Pointer
from asyncpq.storage.base import Validator
from tests.disk_folders import KEY, KEYS, POINTER_KEY, entry_files, new_cache, path_of


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool]) -> None:
    real = getattr(os, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


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
    read = entry_folder.EntryFolder._read

    asked: list[bytes] = []

    def slow_read(self: entry_folder.EntryFolder, folder: int, key: bytes) -> bytes | None:
        asked.append(key)
        if key == KEYS[1].encode():
            answer.wait(60)
        return read(self, folder, key)

    monkeypatch.setattr(entry_folder.EntryFolder, "_read", slow_read)
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
    write_many = entry_folder.EntryFolder.write_many

    def slow_write(self: entry_folder.EntryFolder, values: Any) -> entry_folder.Outcome:
        begun.set()
        assert go_on.wait(60)
        return write_many(self, values)

    monkeypatch.setattr(entry_folder.EntryFolder, "write_many", slow_write)
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


def test_pauses_grow_and_end() -> None:
    now = 100.0
    backoff = Backoff(failures=2, first_s=1.0, longest_s=5.0, clock=lambda: now)
    backoff.failed()
    assert backoff.ready
    for pause in (1.0, 2.0, 4.0, 5.0, 5.0):
        backoff.failed()
        now += pause - 0.01
        assert not backoff.ready
        now += 0.02
        assert backoff.ready
    backoff.succeeded()
    backoff.failed()
    assert backoff.ready


# -- pointers -------------------------------------------------------------------------------------


async def test_the_age_of_a_pointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(tmp_path / "cache")
    validated_at = time.monotonic() - 7.0
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"a"'), validated_at))

    async def found() -> float:
        pointer = await cache.get_pointer(POINTER_KEY)
        assert pointer is not None
        assert pointer.validator == Validator(1, '"a"')
        return pointer.validated_at

    wall = time.time
    assert validated_at - 5.0 <= await found() <= validated_at + 0.001
    monkeypatch.setattr(time, "time", lambda: wall() + 3600.0)
    assert validated_at - 3605.0 <= await found() <= validated_at - 3599.999
    monkeypatch.setattr(time, "time", lambda: wall() - 3600.0)
    assert await found() == -math.inf, "the clock went back: it must be validated"
    await cache.close()


@pytest.mark.parametrize("passes", ["encoding", "decoding"])
def test_time_that_passes_between_two_clocks(monkeypatch: pytest.MonkeyPatch, passes: str) -> None:
    now, step_s = 1000.0, 0.0

    def clock() -> float:
        nonlocal now
        now += step_s
        return now

    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(time, "monotonic", clock)
    validated_at = clock()
    step_s = 1.0 if passes == "encoding" else 0.0
    value = disk._encode_pointer(Pointer(Validator(1), validated_at))
    step_s = 1.0 - step_s
    found = disk._decode_pointer(value)
    assert found is not None
    assert validated_at - 5.0 <= found.validated_at <= validated_at


async def test_the_pointer_that_was_validated_last_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(tmp_path / "cache")
    now = time.monotonic()

    async def put(etag: str, validated_at: float) -> str | None:
        await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, etag), validated_at))
        pointer = await cache.get_pointer(POINTER_KEY)
        return None if pointer is None else pointer.validator.etag

    assert await put('"a"', now - 10) == '"a"'
    assert await put('"b"', now - 20) == '"a"'
    assert await put('"c"', -math.inf) == '"a"'
    assert await put('"d"', now) == '"d"'
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600.0)
    assert await put('"e"', now - 30) == '"e"', "of the one from the future, nobody knows the age"
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(-1), now + 1))
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1 << 64), now + 1))
    assert cache.errors == 0
    await cache.close()


async def test_pointers_are_dropped_while_writes_are_left_alone(tmp_path: Path) -> None:
    cache = new_cache(tmp_path / "cache")
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic()))
    for _ in range(5):
        cache._writing.failed()
    await cache.drop_pointer(POINTER_KEY)
    assert await cache.get_pointer(POINTER_KEY) is None
    await cache.close()
