"""Byte ranges of objects that need not be Parquet, for doors to other readers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import asyncpq
from asyncpq.engine.byte_readers import ByteReader, modified_s
from asyncpq.testing import ObjectServer

CONTENT = bytes(range(256)) * 4
URL = "s3://bucket/folder/a.bin"


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("bucket/folder/a.bin", CONTENT)
        running.put("bucket/folder/below/b.bin", b"b")
        yield running


@pytest.fixture
async def session(server: ObjectServer) -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session(server.storage_options) as opened:
        yield opened


async def test_ranges_are_slices(session: asyncpq.Session) -> None:
    ranges = [(0, 4), (None, 2), (-3, None), (1000, 5000), (7, 7), (3, 6)]
    found = await ByteReader(session).read(URL, ranges)
    assert found == [CONTENT[start:stop] for start, stop in ranges]
    assert session.metrics.requests > 0


async def test_a_version_is_held_and_none_follows_the_object(session: asyncpq.Session, server: ObjectServer) -> None:
    reader = ByteReader(session)
    version = await reader.version(URL)
    assert version.size == len(CONTENT)
    same = await reader.pinned(URL, version.validator)
    assert await reader.read(URL, [(0, 2)], same) == [CONTENT[:2]]
    server.put("bucket/folder/a.bin", b"another object")
    async with asyncpq.Session(server.storage_options) as other:  # which has nothing in its cache
        reader = ByteReader(other)
        with pytest.raises(asyncpq.ObjectChangedError):
            await reader.read(URL, [(300, 304)], await reader.pinned(URL, version.validator))
        assert await reader.read(URL, [(0, 7)]) == [b"another"]


@pytest.mark.parametrize("deep", [False, True])
async def test_a_folder(session: asyncpq.Session, deep: bool) -> None:
    found = await ByteReader(session).folder("s3://bucket/folder/", deep=deep)
    below = ["s3://bucket/folder/below/b.bin"] if deep else []
    assert [item.url for item in found.objects] == [URL, *below]
    assert found.folders == ["s3://bucket/folder/below/"]


@pytest.mark.parametrize(
    ("last_modified", "expected"),
    [("Sun, 09 Sep 2001 01:46:40 GMT", 1e9), ("2001-09-09T01:46:40+00:00", 1e9), ("soon", None), (None, None)],
)
def test_the_time_of_a_write(last_modified: str | None, expected: float | None) -> None:
    assert modified_s(asyncpq.Validator(1, last_modified=last_modified)) == expected
