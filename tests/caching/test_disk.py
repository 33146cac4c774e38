"""The disk tier: its contract, its folder, its budget, its options."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpq.caching import disk, disk_files
from asyncpq.caching import disk_files as eviction
from asyncpq.caching.disk import DiskCache
from asyncpq.caching.disk_files import blocks
from asyncpq.caching.entry_format import MAGIC, ContentKey, Pointer, PointerKey
from asyncpq.errors import InvalidOptionError
from asyncpq.options import MIB, DiskCacheOptions
from asyncpq.storage.base import Validator
from asyncpq.testing.cache_contract import CACHE_TIER_CHECKS, TierStorage
from tests.caching.disk_folders import (
    KEY,
    KEYS,
    POINTER_KEY,
    DiskStorage,
    Hung,
    entry_files,
    failing,
    held_bytes,
    new_cache,
    path_of,
)


@pytest.mark.parametrize("check", CACHE_TIER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_contract(tmp_path: Path, check: Callable[[TierStorage], Awaitable[None]]) -> None:
    await check(DiskStorage(tmp_path / "cache"))


# -- the folder -----------------------------------------------------------------------------------


async def test_nobody_else_can_read_what_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    cache = new_cache(folder)
    await cache.open()
    await cache.put_many({KEY: b"value"})
    await cache.close()
    assert path_of(folder, KEY).read_bytes().startswith(MAGIC)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def refused_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def refused_file(folder: Path) -> None:
    folder.write_bytes(b"")


def refused_mode(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o720)


REFUSED = {"link": refused_link, "not a folder": refused_file, "written to by other users": refused_mode}


@pytest.mark.parametrize("why", REFUSED)
async def test_unsafe_folders_are_refused(tmp_path: Path, why: str) -> None:
    folder = tmp_path / "cache"
    REFUSED[why](folder)
    cache = new_cache(folder)
    with pytest.raises(InvalidOptionError, match=why) as raised:
        await cache.open()
    assert str(folder) in str(raised.value)
    assert raised.value.hint
    # a folder that becomes so later is not used, and nothing is raised
    await cache.put_many({KEY: b"value"})
    assert await cache.get_many([KEY]) == [None]
    assert cache.errors == 2
    await cache.close()
    assert not entry_files(tmp_path)


async def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    cache = new_cache(tmp_path / "cache")
    with pytest.raises(InvalidOptionError, match="another user"):
        await cache.open()
    await cache.close()


@pytest.mark.parametrize("planted", ["link", "fifo", "socket", "folder", "sub-folder link"])
async def test_what_is_no_entry_is_never_followed_nor_waited_for(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    cache = new_cache(folder)
    await cache.put_many({KEY: b"value"})
    path = path_of(folder, KEY)
    if planted == "sub-folder link":
        path.parent.rename(elsewhere / "sub")
        path.parent.symlink_to(elsewhere / "sub")
    else:
        path.rename(elsewhere / "entry")
    if planted == "link":
        path.symlink_to(elsewhere / "entry")
    elif planted == "fifo":
        os.mkfifo(path)
    elif planted == "folder":
        path.mkdir()
    elif planted == "socket":
        monkeypatch.chdir(path.parent)  # paths of sockets are short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    assert await asyncio.wait_for(cache.get_many([KEY]), 20) == [None]
    await cache.put_many({KEY: b"again"})
    # links, sockets and the like were removed, so the place can be used again; folders are left alone
    usable = planted not in ("folder", "sub-folder link")
    assert await cache.get_many([KEY]) == [b"again" if usable else None]
    assert cache.errors == 0 or not usable
    await cache.close()
    assert len(list(elsewhere.rglob("*"))) in (1, 2), "nothing was written elsewhere"


async def test_claimed_lengths_are_looked_at_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder, MIB)
    await cache.put_many({KEY: b"value"})
    real, asked = os.read, list[int]()

    def read(descriptor: int, size: int) -> bytes:
        asked.append(size)
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    path = path_of(folder, KEY)
    for claimed, actual in (
        (1 << 62, 53),
        (1 << 62, 1 << 40),
        (1 << 40, (1 << 40) + 48),
        ((1 << 64) - 48, 0),
        (5, 100_000),
    ):
        path.write_bytes(MAGIC + struct.pack("<HHQ", 1, 0, claimed) + bytes(32))
        os.truncate(path, actual)  # a file with a hole: of any size, on any disk
        assert await cache.get_many([KEY]) == [None]
        assert not path.exists()
    assert asked == [48, 48], "of files of a size that is possible, the header"
    assert cache.errors == 0
    await cache.close()


async def test_damaged_entries_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder)
    await cache.put_many(dict.fromkeys(KEYS[:2], b"value"))
    path_of(folder, KEYS[0]).write_bytes(path_of(folder, KEYS[1]).read_bytes())
    assert await cache.get_many(KEYS[:2]) == [None, b"value"]
    assert [path.name for path in entry_files(folder)] == [KEYS[1].encode().hex()]
    assert (cache.hits, cache.misses, cache.errors, cache.evictions) == (1, 1, 0, 0)
    await cache.close()


# -- the budget -----------------------------------------------------------------------------------


async def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder, MIB)
    entries = {key: bytes(4000) for key in KEYS[:200]}
    await cache.put_many(entries)
    long_ago = time.time() - 1000
    for place, key in enumerate(entries):
        os.utime(path_of(folder, key), (long_ago + place, long_ago + place))
    used = KEYS[0:200:4]
    assert None not in await cache.get_many(used)  # they are young now
    await cache.put_many({key: bytes(4000) for key in KEYS[200:300]})
    assert cache.evictions >= 44
    assert held_bytes(folder) <= MIB
    assert None not in await cache.get_many(used)
    unused = [value is not None for value in await cache.get_many([key for key in KEYS[:200] if key not in used])]
    assert unused == sorted(unused), "the older ones went"
    assert 50 < sum(unused) < 110
    await cache.close()


async def test_only_a_sample_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setattr(eviction, "SAMPLE_ENTRIES", 20)
    cache = new_cache(folder, MIB)
    await cache.put_many({key: bytes(4000) for key in KEYS[:250]})
    listed: list[str] = []
    listing = eviction._list_and_count

    def list_and_count(folder: int, subfolder: str) -> Any:
        listed.append(subfolder)
        return listing(folder, subfolder)

    monkeypatch.setattr(eviction, "_list_and_count", list_and_count)
    await cache.put_many({key: bytes(4000) for key in KEYS[250:260]})
    assert held_bytes(folder) <= MIB
    assert 0 < cache.evictions < 30
    assert len(listed) <= 60, "of some 160 sub-folders that hold entries, each time that one more was put"
    await cache.close()


def test_one_evictor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    copies: list[int] = []
    real = os.open

    def open_and_copy(path: str, flags: int, mode: int, *, dir_fd: int) -> int:
        descriptor = real(path, flags, mode, dir_fd=dir_fd)
        copies.append(os.dup(descriptor))  # as in a process that is forked meanwhile
        return descriptor

    monkeypatch.setattr(os, "open", open_and_copy)
    with eviction._evictor(folder) as first, eviction._evictor(folder) as second:
        assert (first, second) == (True, False)
    with eviction._evictor(folder) as third:
        assert third, "though others have the descriptor"
    for descriptor in (folder, *copies):
        os.close(descriptor)


async def test_too_large_a_value_is_not_kept(tmp_path: Path) -> None:
    cache = new_cache(tmp_path / "cache", MIB)
    most = MIB // disk_files.LARGEST_PART - 48
    entries = {KEYS[0]: bytes(most), KEYS[1]: bytes(most + 1), KEYS[2]: b"small"}
    await cache.put_many(entries)
    assert len(entry_files(tmp_path / "cache")) == 2
    assert await cache.get_many(KEYS[:3]) == [bytes(most), None, b"small"]
    assert cache.errors == 0
    await cache.close()


@pytest.mark.heavy
async def test_usage_is_counted_anew(tmp_path: Path) -> None:
    """Usage says too much (entries put again, removed by hand) or nothing at all (its files are gone)."""
    folder = tmp_path / "cache"
    cache = new_cache(folder, MIB)
    for _ in range(5):
        await cache.put_many({key: bytes(4000) for key in KEYS[:100]})
    assert cache.evictions == 0
    assert None not in await cache.get_many(KEYS[:100])
    for path in folder.glob("*.usage"):
        path.unlink()
    for _ in range(2):
        await cache.put_many({key: bytes(4000) for key in KEYS})
    assert held_bytes(folder) <= MIB
    await cache.close()


async def test_what_dead_writers_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder, MIB)
    await cache.put_many({KEY: b"value"})
    path = path_of(folder, KEY)
    dead, writing, foreign = path.with_suffix(".1.tmp"), path.with_suffix(".2.tmp"), path.with_name("README")
    for file in (dead, writing, foreign):
        file.write_bytes(bytes(5000))
    for file in (dead, foreign):
        os.utime(file, (0, time.time() - eviction.DEAD_WRITER_S - 10))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _, held = eviction._list_and_count(descriptor, path.parent.name)
    finally:
        os.close(descriptor)
    assert sorted(path.parent.iterdir()) == sorted([foreign, path, writing])
    assert held == 1 + 2
    assert (folder / f"{path.parent.name}.usage").stat().st_size == held
    await cache.close()


async def test_a_time_to_come_keeps_no_entry_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = new_cache(folder, MIB)
    await cache.put_many({key: bytes(4000) for key in KEYS[:200]})
    for key in KEYS[:100]:
        os.utime(path_of(folder, key), (0, time.time() + 1e6))
    await cache.put_many({key: bytes(4000) for key in KEYS[200:300]})
    kept = [value is not None for value in await cache.get_many(KEYS[:300])]
    assert sum(kept[:100]) < 60
    assert sum(kept[100:]) == 200
    await cache.close()


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""},
        {"path": "a\0b"},
        {"path": Path("cache")},
        {"path": "cache", "max_bytes": MIB - 1},
        {"path": "cache", "max_bytes": 2.5 * MIB},
        {"path": "cache", "timeout_s": 0},
    ],
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        DiskCacheOptions(**options)


def test_a_path_is_the_same_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(tmp_path / "cache") in repr(DiskCache(DiskCacheOptions(path="~/cache")))
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "cache") in repr(DiskCache(DiskCacheOptions(path="cache")))


BUDGET = 4 * MIB
VALUE = bytes(30_000)  # with its header 8 blocks


def scanned(count: int) -> list[ContentKey]:
    return [ContentKey(b"what a scan read", "page", place, place + 1) for place in range(count)]


@pytest.mark.heavy
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


@pytest.mark.heavy
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
