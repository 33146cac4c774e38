"""Local files whose name means another file by now: whoever asks anew gets that one, whatever was read before."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col

pytestmark = pytest.mark.faults

ROWS = 40_000
MANY = range(0, ROWS, 100)
#: In the small one, everything but a single row is large: what it brings is kept as a scan's.
BUDGETS = (256 << 20, 1 << 20)


def write(path: Path, tag: int) -> None:
    """Replace the file at ``path``; its rows are much longer than the tail that is fetched with the footer."""
    made = path.with_suffix(".new")
    table = pa.table({"id": range(ROWS), "tag": pa.array([tag] * ROWS, pa.int64())})
    pq.write_table(
        table, made, row_group_size=ROWS // 4, write_page_index=True, compression="none", use_dictionary=False
    )
    old = time.time() - 60  # of a young file it cannot be told whether it is still written to
    os.utime(made, (old, old))
    made.replace(path)


def session(memory_cache_bytes: int, policy: asyncpq.CachePolicy | dict[str, asyncpq.CachePolicy]) -> asyncpq.Session:
    return asyncpq.Session(
        memory_cache_bytes=memory_cache_bytes,
        cache_policy=policy,
        requests=asyncpq.RequestOptions(tail_bytes=1 << 12),
        limits=asyncpq.LimitOptions(unit_bytes=1 << 16),
    )


async def read(file: asyncpq.File) -> set[int]:
    return set((await file.read(["tag"]))["tag"].to_pylist())


async def lookup(file: asyncpq.File) -> set[int]:
    return set((await file.lookup({"id": list(MANY)}, ["tag"]))["tag"].to_pylist())


async def lookup_one(file: asyncpq.File) -> set[int]:
    return set((await file.lookup({"id": 3}, ["tag"]))["tag"].to_pylist())


async def take(file: asyncpq.File) -> set[int]:
    return set((await file.take(MANY, ["tag"]))["tag"].to_pylist())


async def count(file: asyncpq.File) -> set[int]:
    """The tags that all rows have."""
    found = [tag for tag in (1, 2) if await file.count((col("tag") == tag) & (col("id") != ROWS // 2)) == ROWS - 1]
    return set(found)


Verb = Callable[[asyncpq.File], Awaitable[set[int]]]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("memory_cache_bytes", BUDGETS)
@pytest.mark.parametrize("verb", [read, lookup, lookup_one, take, count])
async def test_reads_of_an_open_handle(tmp_path: Path, verb: Verb, memory_cache_bytes: int, warm: bool) -> None:
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(memory_cache_bytes, asyncpq.etag(0)) as s:
        file = await s.open_file(path)
        if warm:
            assert await verb(file) == {1}
        write(path, 2)
        if verb is take:  # row numbers mean one version
            for _ in range(2):
                with pytest.raises(asyncpq.ObjectChangedError):
                    await file.take(MANY, ["tag"])
            await file.refresh()
        for _ in range(2):
            assert await verb(file) == {2}


async def test_a_running_scan_stays_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(0, asyncpq.etag(0)) as s:
        file = await s.open_file(path)
        async with file.scan(["tag"], batch_size=100) as scan:
            tags = set((await anext(scan))["tag"].to_pylist())
            write(path, 2)
            async for batch in scan:
                tags.update(batch["tag"].to_pylist())
        assert tags == {1}
        assert await read(file) == {2}


@pytest.mark.parametrize("given", ["file://{}", "{}"])
@pytest.mark.parametrize("pattern", ["file://*/frozen/*", "/*/frozen/*"])
async def test_policies_by_the_url_that_was_given_or_by_the_path(tmp_path: Path, pattern: str, given: str) -> None:
    folder = tmp_path / "frozen"
    folder.mkdir()
    path = folder / "file.parquet"
    write(path, 1)
    async with session(256 << 20, {pattern: asyncpq.immutable(), "*": asyncpq.etag(0)}) as s:
        file = await s.open_file(given.format(path))
        assert await lookup_one(file) == {1}
        write(path, 2)
        is_frozen = given.startswith("file:") or pattern.startswith("/")
        assert await lookup_one(file) == ({1} if is_frozen else {2})


async def test_a_handle_follows_another_to_the_new_file(tmp_path: Path) -> None:
    """It answers from memory what the other one read, and then must not stay with its own descriptor."""
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(BUDGETS[0], asyncpq.etag(60)) as open_session:
        one = await open_session.open_file(str(path))
        write(path, 2)
        two = await open_session.open_file(str(path))
        await two.refresh()
        assert await lookup_one(two) == {2}
        assert await lookup_one(one) == {2}
        assert await take(one) == {2}
        assert await take(two) == {2}


async def test_a_file_rewritten_in_place_under_its_old_time(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    write(path, 1)
    before = path.stat()
    write(tmp_path / "other.parquet", 2)
    async with session(BUDGETS[0], asyncpq.etag(0)) as open_session:
        file = await open_session.open_file(str(path))
        assert await lookup_one(file) == {1}
        with path.open("r+b") as target:
            target.write((tmp_path / "other.parquet").read_bytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        assert await lookup_one(file) == {2}
        assert await read(file) == {2}


Rewrite = Callable[[Path], None]


def replaced(path: Path) -> None:
    write(path, 2)


def in_place(path: Path) -> None:
    """The same inode, size and modification time."""
    before = path.stat()
    write(path.with_name("other"), 2)
    with path.open("r+b") as target:
        target.write(path.with_name("other").read_bytes())
    path.with_name("other").unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("rewrite", [replaced, in_place])
@pytest.mark.parametrize("verb", [read, lookup, lookup_one, count])
async def test_the_age_of_a_cached_version_hides_no_local_change(tmp_path: Path, verb: Verb, rewrite: Rewrite) -> None:
    """By default a read from caches asks a store again after 5 s; a local file is looked at."""
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(BUDGETS[0], asyncpq.etag(60)) as s:
        file = await s.open_file(path)
        for _ in range(2):  # all of it is cached
            assert await verb(file) == {1}
        rewrite(path)
        assert await verb(file) == {2}
        assert await verb(await s.open_file(path)) == {2}


@pytest.mark.parametrize("rewrite", [replaced, in_place])
async def test_a_new_handle_has_the_footer_of_a_local_file_just_rewritten(tmp_path: Path, rewrite: Rewrite) -> None:
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(BUDGETS[0], asyncpq.etag(60)) as s:
        first = await s.open_file(path)
        assert await lookup_one(first) == {1}
        rewrite(path)
        second = await s.open_file(path)
        assert second.version != first.version
        assert await take(second) == {2}


@pytest.mark.parametrize(("policy", "tag"), [(asyncpq.immutable(), 1), (asyncpq.ttl(60), 1)])
async def test_policies_that_do_not_ask_are_not_overruled(
    tmp_path: Path, policy: asyncpq.CachePolicy, tag: int
) -> None:
    path = tmp_path / "file.parquet"
    write(path, 1)
    async with session(BUDGETS[0], policy) as s:
        file = await s.open_file(path)
        assert await lookup_one(file) == {1}
        write(path, 2)
        assert await lookup_one(file) == {tag}


@pytest.mark.parametrize("rewrite", [replaced, in_place])
@pytest.mark.parametrize("num_files", [2, 70])
async def test_the_age_of_a_listing_hides_no_local_change(tmp_path: Path, num_files: int, rewrite: Rewrite) -> None:
    """Neither where the file's old footer rules it out, nor where it is gone; new files may be missed."""
    path = tmp_path / "0.parquet"
    write(path, 1)
    small = pa.table({"id": [-1], "tag": [1]})
    for number in range(1, num_files):
        pq.write_table(small, tmp_path / f"{number}.parquet")
    async with session(BUDGETS[0], asyncpq.etag(60)) as s:
        dataset = await s.open_dataset(tmp_path, listing_max_age_s=60)
        assert await dataset.count(col("tag") == 2) == 0
        pq.write_table(small, tmp_path / "new.parquet")
        assert await dataset.count() == ROWS + num_files - 1
        rewrite(path)
        assert await dataset.count(col("tag") == 2) == ROWS
        (tmp_path / "1.parquet").unlink()
        assert await dataset.count(col("tag") == 1) == num_files - 1
