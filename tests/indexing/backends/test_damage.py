"""What a place makes of segments that were damaged: the rows that were written, or CorruptIndexError, never others."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.errors import CorruptIndexError, StaleSnapshotError, StoreError, TransportError
from asyncpq.indexing import FolderBackend, JsonBackend, MemoryBackend, SqlBackend, ValkeyBackend
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.index_model import KeyRange, SegmentQuery
from asyncpq.testing.backend_contract import random_rows, write
from tests.servers import ADMIN_PASSWORD, ValkeyServer

pytestmark = pytest.mark.faults

IN_PARTS = asyncpq.RequestOptions(whole_segment_bytes=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["keys", "bounds", "footers", "files"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_flipped_bit_in_a_folder(tmp_path: Path, kind: str, whole: bool) -> None:
    numbers = random.Random(f"{kind} {whole}")
    rows = random_rows(kind, 300, numbers)
    requests = asyncpq.RequestOptions() if whole else IN_PARTS
    path = tmp_path / "segments" / "a.parquet"
    async with asyncpq.Session(memory_cache_bytes=0, requests=requests) as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        segment = await write(backend, "a", kind, rows)
        good = path.read_bytes()
    refused = 0
    places = [numbers.randrange(len(good)) for _ in range(60)] + list(range(4, 40)) + list(range(-12, 0))
    for at in places:
        path.write_bytes(flipped(good, at, numbers))
        async with asyncpq.Session(memory_cache_bytes=0, requests=requests) as session:
            backend = FolderBackend(session._runtime, str(tmp_path))
            try:
                found = await backend.read_segment(segment)
            except CorruptIndexError:
                refused += 1
            else:
                assert found is not None
                assert found.equals(rows), f"other rows after a flip at {at}"
    assert refused == len(places) if whole else refused > len(places) // 2


@pytest.mark.heavy
async def test_a_damaged_copy_of_the_footer(tmp_path: Path) -> None:
    """The footer itself is never read by this project where there is a copy."""
    path = tmp_path / "segments" / "a.parquet"
    async with asyncpq.Session(memory_cache_bytes=0, requests=IN_PARTS) as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        rows = random_rows("keys", 100_000, random.Random(6))
        segment = await write(backend, "a", "keys", rows)
        good = path.read_bytes()
        stop = segment.size - segment.extra["tail"]
        start = stop - segment.extra["packed"]
        for at in (start, (start + stop) // 2, stop - 1):
            path.write_bytes(flipped(good, at, random.Random(at)))
            with pytest.raises(CorruptIndexError):
                await backend.read_segment(segment, SegmentQuery([]))
        for size in (start + 10, stop, segment.size - 1):
            path.write_bytes(good[:size])
            with pytest.raises(CorruptIndexError):
                await backend.read_segment(segment, SegmentQuery([]))
        path.write_bytes(good)
        assert await backend.read_segment(segment) == rows


@pytest.mark.parametrize("extra", [{"tail": 4}, {"tail": 3000}, {"packed": 50_000}, {}])
async def test_a_footer_that_the_manifest_describes_wrongly(tmp_path: Path, extra: dict[str, int]) -> None:
    limits = asyncpq.LimitOptions(max_footer_bytes=2000)
    async with asyncpq.Session(memory_cache_bytes=0, requests=IN_PARTS, limits=limits) as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        segment = await write(backend, "a", "set", random_rows("set", 500, random.Random(1)))
        wrong = replace(segment, size=1 << 62, extra={**segment.extra, **extra} if extra else {"footer": "x"})
        with pytest.raises(CorruptIndexError, match="footer" if extra else "lacks its field"):
            await backend.read_segment(wrong, SegmentQuery([KeyRange(b"", None)]))


async def test_a_json_segment_that_the_manifest_says_to_be_huge(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        backend = JsonBackend(session._runtime, str(tmp_path / "small.json"))
        segment = await write(backend, "a", "set", random_rows("set", 5, random.Random(1)))
        with pytest.raises(CorruptIndexError, match="the limit of a JSON index"):
            await backend.read_segment(replace(segment, size=1 << 62))


async def test_a_file_cut_short(tmp_path: Path) -> None:
    rows = random_rows("set", 500, random.Random(1))
    for place_of, url, path in (
        (FolderBackend, tmp_path / "folder", tmp_path / "folder" / "segments" / "a.parquet"),
        (JsonBackend, tmp_path / "small.json", tmp_path / "small.json" / "segments" / "a.json"),
    ):
        async with asyncpq.Session(memory_cache_bytes=0) as session:
            backend: Any = place_of(session._runtime, str(url))
            segment = await write(backend, "a", "set", rows)
            good = path.read_bytes()
            for size in (1, 20, len(good) - 1):
                path.write_bytes(good[:size])
                with pytest.raises(CorruptIndexError):
                    await backend.read_segment(segment)
            path.write_bytes(good + b"more")
            with pytest.raises(CorruptIndexError):
                await backend.read_segment(segment)


async def test_another_segment_in_its_place(tmp_path: Path) -> None:
    """Of as many rows and bytes: only the digest tells them apart."""
    async with asyncpq.Session(memory_cache_bytes=0, requests=IN_PARTS) as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        rows = random_rows("set", 500, random.Random(2))
        segment = await write(backend, "a", "set", rows)
        data = (tmp_path / "segments" / "a.parquet").read_bytes()
        changed = data.replace(b"parquet-cpp", b"parquet-CPP")
        assert changed != data
        (tmp_path / "segments" / "a.parquet").write_bytes(changed)
        with pytest.raises(CorruptIndexError, match="footer"):
            await backend.read_segment(segment, SegmentQuery([KeyRange(b"\x01", b"\x02")]))


async def test_sqlite_rows_that_are_missing(tmp_path: Path) -> None:
    import sqlite3

    rows = random_rows("set", 500, random.Random(3))
    backend = SqlBackend(f"sqlite:///{tmp_path}/index.sqlite")
    try:
        segment = await write(backend, "a", "set", rows)
        with sqlite3.connect(tmp_path / "index.sqlite") as connection:
            connection.execute("DELETE FROM asyncpq_set_rows WHERE ordinal = 17")
        connection.close()
        with pytest.raises(CorruptIndexError, match="499 rows"):
            await backend.read_segment(segment)
        with pytest.raises(CorruptIndexError, match="499 rows"):
            _ = [batch async for batch in backend.iterate_segment(segment)]
    finally:
        await backend.close()


async def test_sqlite_values_of_other_types(tmp_path: Path) -> None:
    """SQLite stores any type in any column; bytes(10**9) would take 1 GB."""
    import sqlite3

    backend = SqlBackend(f"sqlite:///{tmp_path}/index.sqlite")
    assert await backend.commit(1, b"{}")
    for column, value in (("content", 10**9), ("content", "text"), ("number", "x")):
        with sqlite3.connect(tmp_path / "index.sqlite") as connection:
            connection.execute("DELETE FROM asyncpq_manifests")
            connection.execute("INSERT INTO asyncpq_manifests VALUES (1, x'7b7d', 0.0)")
            connection.execute(f"UPDATE asyncpq_manifests SET {column} = ?", (value,))
        with pytest.raises(CorruptIndexError, match="a table of the index has"):
            await backend.latest()
    with pytest.raises(CorruptIndexError):
        await backend.ages("manifests")
    await backend.close()


async def test_valkey_chunks_that_are_missing_or_damaged(tmp_path: Path) -> None:
    rows = random_rows("files", 3000, random.Random(4))
    with ValkeyServer(tmp_path, "--maxmemory-policy", "noeviction") as server:
        url = f"valkey://admin:{ADMIN_PASSWORD.replace(' ', '%20')}@127.0.0.1:{server.port}"

        async def read() -> None:
            backend = ValkeyBackend(url)
            try:
                await backend.read_segment(segment)
            finally:
                await backend.close()

        backend = ValkeyBackend(url)
        segment = await write(backend, "a", "files", rows)
        await backend.close()
        await read()
        name = "asyncpq-index:segment:a"
        assert server.admin.hlen(name) > 3
        for field in (b"1", b"directory"):
            good = server.admin.hget(name, field)
            server.admin.hset(name, field, flipped(good, len(good) // 2, random.Random(5)))
            with pytest.raises(CorruptIndexError):
                await read()
            server.admin.hset(name, field, good)
        server.admin.hdel(name, "1")
        with pytest.raises(CorruptIndexError, match="chunk 1 is missing"):
            await read()
        server.admin.delete(name)
        with pytest.raises(StaleSnapshotError):
            await read()


async def test_a_valkey_server_that_is_not_there_is_told_at_once() -> None:
    backend = ValkeyBackend("valkey://127.0.0.1:1", timeout_s=20)
    for _ in range(2):
        async with asyncio.timeout(5):
            with pytest.raises(TransportError, match=r"cannot be reached.*Connection\w*Error"):
                await backend.latest()
    await backend.close()


async def test_valkey_must_not_evict(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server:  # configured as a cache
        backend = ValkeyBackend(f"valkey://admin:{ADMIN_PASSWORD.replace(' ', '%20')}@127.0.0.1:{server.port}")
        with pytest.raises(asyncpq.InvalidOptionError, match="allkeys-lfu"):
            await backend.latest()
        await backend.close()
        cache_user = ValkeyBackend(server.url)  # may ask for next to nothing
        with pytest.raises(StoreError, match="refused"):
            await cache_user.commit(1, b"")
        await cache_user.close()


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        ("s3://bucket/index/", FolderBackend),
        ("/some/folder", FolderBackend),
        ("s3://bucket/index.json", JsonBackend),
        ("s3://bucket/index.json/", JsonBackend),
        ("sqlite:////tmp/index.sqlite", SqlBackend),
        ("postgresql+psycopg://user@host/database", SqlBackend),
        ("valkey://host:1", ValkeyBackend),
        ("rediss://host:1", ValkeyBackend),
    ],
)
async def test_urls(at: str, kind: type) -> None:
    async with asyncpq.Session() as session:
        backend = await open_backend(session._runtime, at, create=False)
        assert type(backend) is kind
        assert "secret" not in backend.description


async def test_a_place_is_itself_and_others_are_refused() -> None:
    async with asyncpq.Session() as session:
        backend = MemoryBackend()
        assert await open_backend(session._runtime, backend, create=True) is backend
        for wrong in (3, "", None):
            with pytest.raises(asyncpq.InvalidOptionError):
                await open_backend(session._runtime, wrong, create=False)  # type: ignore[arg-type]
        with pytest.raises(asyncpq.UnsupportedStoreError):
            await open_backend(session._runtime, "https://host/index/", create=True)


async def test_no_secret_is_shown() -> None:
    for backend in (
        SqlBackend("postgresql+psycopg://user:secret@host/database?password=secret"),
        ValkeyBackend("valkey://user:secret@host:1"),
    ):
        assert "secret" not in repr(backend) + backend.description
        await backend.close()
    for wrong in ("mysql://a:secret@b/c", "sqlite://", "postgresql+nothing://a:secret@b"):
        with pytest.raises(asyncpq.AsyncpqError) as caught:
            SqlBackend(wrong)
        assert "secret" not in str(caught.value)


def flipped(data: bytes, at: int, numbers: random.Random) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << numbers.randrange(8)
    return bytes(changed)
