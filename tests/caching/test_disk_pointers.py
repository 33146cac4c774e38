"""Pointers in the disk tier: their age where clocks go back, which one stays, and that a dropped one stays away."""

from __future__ import annotations

import asyncio
import errno
import math
import time
from pathlib import Path

import pytest

from asyncpq.caching import disk
from asyncpq.caching.entry_format import Pointer, PointerKey
from asyncpq.storage.base import Validator
from tests.caching.disk_folders import KEY, POINTER_KEY, Hung, failing, new_cache, path_of


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
        if attempt := cache._writing.begin():
            attempt.failed()
    assert cache._writing.begin() is None
    await cache.drop_pointer(POINTER_KEY)
    assert await cache.get_pointer(POINTER_KEY) is None
    await cache.close()


@pytest.mark.parametrize("after", [False, True])
async def test_dropping_waits_for_no_write_and_none_of_before_brings_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    now = time.monotonic()
    cache = new_cache(tmp_path / "cache")
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"a"'), now))
    other = new_cache(tmp_path / "cache")
    with monkeypatch.context() as patch:
        hung = Hung(patch, after=after)
        # one is being written, and one waits
        puts = [
            asyncio.ensure_future(cache.put_pointer(POINTER_KEY, Pointer(Validator(1, etag), now + age)))
            for etag, age in (('"b"', 1), ('"c"', 2))
        ]
        await asyncio.to_thread(hung.begun.wait, 20)
        try:
            async with asyncio.timeout(20):
                await cache.drop_pointer(POINTER_KEY)
            assert await cache.get_pointer(POINTER_KEY) is None
            assert await other.get_pointer(POINTER_KEY) is None
            late = asyncio.ensure_future(cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"d"'), now - 5)))
            await asyncio.sleep(0)
            assert await cache.get_pointer(POINTER_KEY) is None
        finally:
            hung.go_on.set()
        await asyncio.gather(*puts)
        await late
    for tier in (cache, other):
        found = await tier.get_pointer(POINTER_KEY)
        assert found is not None
        assert found.validator.etag == '"d"', "put since; those of before were validated later, and do not count"
    assert len(cache._pointers) == 0
    assert cache.errors == 0
    await cache.close()
    await other.close()


async def test_no_write_of_before_brings_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(tmp_path / "cache")
    with monkeypatch.context() as patch:
        hung = Hung(patch)
        puts = [
            asyncio.ensure_future(cache.put_pointer(POINTER_KEY, Pointer(Validator(1), time.monotonic())))
            for _ in range(3)
        ]
        await asyncio.to_thread(hung.begun.wait, 20)
        for put in puts:
            put.cancel()  # whoever waited; the writes go on
        await cache.drop_pointer(POINTER_KEY)
        hung.go_on.set()
        await cache.put_many({KEY: b"value"})  # after them
        assert hung.writes == 2, "those that had not begun are not even written"
    assert await cache.get_pointer(POINTER_KEY) is None
    assert not path_of(tmp_path / "cache", POINTER_KEY).exists()
    assert len(cache._pointers) == 0
    await cache.close()


async def test_what_the_disk_does_not_let_go_of_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    cache = new_cache(tmp_path / "cache")
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"a"'), now))
    with monkeypatch.context() as patch:
        failing(patch, "unlink", errno.EROFS, lambda *arguments: True)
        await cache.drop_pointer(POINTER_KEY)
        assert await cache.get_pointer(POINTER_KEY) is None
        await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"b"'), now - 9))
        assert await cache.get_pointer(POINTER_KEY) is None
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"c"'), now - 9))
    found = await cache.get_pointer(POINTER_KEY)
    assert found is not None
    assert found.validator.etag == '"c"'
    monkeypatch.setattr(disk, "_MAX_DROPPED", 3)
    failing(monkeypatch, "unlink", errno.EROFS, lambda *arguments: True)
    for number in range(9):
        await cache.drop_pointer(PointerKey("namespace", str(number)))
    assert len(cache._pointers) <= 3
    await cache.close()
