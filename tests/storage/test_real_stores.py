"""One suite over object stores that others wrote: what each does otherwise is read all the same, or said clearly.

docs/stores-s3.md has the table of what they do. The servers are those of tests/real_stores.py.
"""

from __future__ import annotations

import asyncio
import io
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    CredentialsError,
    NotParquetError,
    ObjectNotFoundError,
    StoreError,
)
from asyncpq.indexing import FolderBackend, Footers, Keys
from asyncpq.storage.base import WritableStore, writable
from asyncpq.storage.response_checks import SIZE_FIRST
from tests.costs import cost_of
from tests.parquet_bytes import parquet_bytes
from tests.real_stores import STORES, RealStore
from tests.store_backends import new_context, open_test_store
from tests.warm_lookups import parquet, table

pytestmark = [
    pytest.mark.services,
    # adlfs and gcsfs send large parts so
    pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning"),
]

ROWS = table()
LARGE = parquet(ROWS)
TAIL_BYTES = 64 * 1024
LAKE_FILES = 1_100  # two pages of a listing

ODD_KEYS = [
    "plain",
    "with space",
    "two  spaces",
    " leading",
    "plus+plus",
    "percent%20twenty",
    "percent%",
    "day=1",
    "a=b=c",
    "a//b",
    "question?mark",
    "hash#mark",
    "ampersand&and",
    "comma,semicolon;",
    "quote'and\"double",
    "(parentheses)[brackets]{braces}",
    "tilde~at@dollar$bang!star*",
    "ümlaut-ß",
    "日本語",
    "emoji-🎈",
]


def small(first: int, rows: int = 3) -> bytes:
    """A file with the ids ``[first, first + rows)``."""
    ids = list(range(first, first + rows))
    return parquet_bytes(pa.table({"id": ids, "name": [f"row {number}" for number in ids]}))


def plain(rows: pa.Table) -> bytes:
    """A file whose size depends only on the number of the rows."""
    return parquet_bytes(rows.select(["id", "price"]), use_dictionary=False, compression="none", row_group_size=20_000)


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStore]:
    with STORES[request.param](tmp_path_factory.mktemp(request.param), os.environ) as started:
        yield started


class Folder:
    """A folder of the server's bucket, empty at first, and a store to write to it."""

    def __init__(self, server: RealStore, store: WritableStore) -> None:
        self.server = server
        self.url = f"{server.url}{uuid.uuid4().hex}/"
        self._store = store

    async def put(self, key: str, data: bytes) -> str:
        """Create or replace an object; return its url."""
        if self.server.root is not None:
            path = self.server.root / (self.url + key).removeprefix(self.server.url)
            path.parent.mkdir(parents=True, exist_ok=True)
            written = path.with_name(uuid.uuid4().hex)
            written.write_bytes(data)
            written.replace(path)
        else:
            await self._store.put_object(self.url + key, data, context=new_context())
        return self.url + key

    async def listed(self) -> list[str]:
        """The keys below the folder."""
        objects = await self._store.list_objects(self.url, context=new_context())
        return [each.url.removeprefix(self.url) for each in objects]

    def session(self, options: dict[str, Any] | None = None, **arguments: Any) -> asyncpq.Session:
        storage_options = {self.server.protocol: self.server.options if options is None else options}
        requests = asyncpq.RequestOptions(tail_bytes=TAIL_BYTES)
        return asyncpq.Session(storage_options, requests=requests, **arguments)


@pytest.fixture
async def folder(server: RealStore) -> AsyncIterator[Folder]:
    store = open_test_store(server.protocol, server.options, asyncpq.RetryOptions())
    yield Folder(server, writable(store, server.url))
    await store.close()


@pytest.mark.parametrize("data", [small(0), LARGE], ids=["below the first GET", "above it"])
async def test_a_file(folder: Folder, data: bytes) -> None:
    url = await folder.put("file.parquet", data)
    expected = pq.read_table(io.BytesIO(data))
    async with folder.session() as session:
        file = await session.open_file(url)
        assert (await file.read()).equals(expected)
        found = await file.lookup({"id": [2, 1, 77]}, columns=["id"])
        assert found["id"].to_pylist() == ([1, 2, 77] if len(expected) > 77 else [1, 2])


async def test_guarantee_and_fallbacks(folder: Folder) -> None:
    """What a server does otherwise, with small objects or with large ones, is remembered after the second, and said."""
    objects = [small(0), LARGE, small(3), LARGE, small(6)]
    urls = [await folder.put(f"{at}.parquet", data) for at, data in enumerate(objects)]
    async with folder.session() as session:
        for url in urls[:-1]:
            await session.open_file(url)
        cost = await cost_of(session.open_file(urls[-1]))
        assert cost.requests == folder.server.tail_requests
        asks_first = folder.server.protocol == "s3" and folder.server.tail_requests > 1
        assert (SIZE_FIRST in cost.fallbacks) is asks_first
        assert cost.guarantee == folder.server.guarantee
        diagnosis = await session.diagnose(urls[0])
    store = diagnosis["store"]
    assert store is not None
    assert store["error"] is None
    assert store["supports"]["suffix ranges"] is not asks_first or folder.server.protocol != "s3"


async def test_lookups_at_once(folder: Folder) -> None:
    url = await folder.put("file.parquet", LARGE)
    keys = [number * 193 % len(ROWS) for number in range(300)]
    async with folder.session() as session:
        file = await session.open_file(url)
        found = await asyncio.gather(*[file.lookup({"id": key}, columns=["user"]) for key in keys])
    expected = ROWS["user"].to_pylist()
    assert [each["user"].to_pylist() for each in found] == [[expected[key]] for key in keys]


async def test_odd_keys(folder: Folder) -> None:
    kept = [key for key in ODD_KEYS if key not in folder.server.lost_keys]
    for number, key in enumerate(kept):
        await folder.put(f"{key}/{key}.parquet", small(10 * number))
    assert sorted(await folder.listed()) == sorted(f"{key}/{key}.parquet" for key in kept)
    async with folder.session() as session:
        for number, key in enumerate(kept):
            file = await session.open_file(f"{folder.url}{key}/{key}.parquet")
            assert (await file.read())["id"].to_pylist() == [10 * number, 10 * number + 1, 10 * number + 2], key
        dataset = await session.open_dataset(folder.url, partitioning=None)
        assert await dataset.count() == 3 * len(kept)


async def test_a_lake(folder: Folder) -> None:
    async def put(number: int) -> None:
        async with slots:
            await folder.put(f"day={number % 3}/{number:05}.parquet", small(3 * number))

    slots = asyncio.Semaphore(16)
    await asyncio.gather(*[put(number) for number in range(LAKE_FILES)])
    assert len(await folder.listed()) == LAKE_FILES
    async with folder.session() as session:
        dataset = await session.open_dataset(folder.url)
        assert await dataset.count() == 3 * LAKE_FILES
        found = await dataset.lookup({"id": 3 * 500 + 1}, columns=["name", "day"])
        assert found.to_pylist() == [{"name": "row 1501", "day": 500 % 3}]


async def test_an_index(folder: Folder) -> None:
    if folder.server.root is not None:
        pytest.skip(f"{folder.server.name} does not write")
    for number in range(4):
        await folder.put(f"lake/{number}.parquet", small(3 * number))
    lake, kinds = f"{folder.url}lake/", [Keys("id"), Footers()]

    async def build() -> int:
        async with folder.session() as session:
            at = FolderBackend(session, f"{folder.url}index/", single_writer=not folder.server.creates_once)
            await session.build_index(lake, kinds, at=at)
            dataset = await session.open_dataset(lake, index=at)
            return len(await dataset.lookup({"id": 10}))

    if not folder.server.creates_once:
        async with folder.session() as session:
            with pytest.raises(ConcurrentCommitUnsupported):
                await session.build_index(lake, kinds, at=f"{folder.url}index/")
    assert await build() == 1
    await folder.put("lake/4.parquet", small(10))
    assert await build() == 2
    if folder.server.creates_once:
        await folder.put("lake/5.parquet", small(10))
        assert await asyncio.gather(*[build() for _ in range(3)]) == [3, 3, 3]


@pytest.mark.parametrize("same_size", [False, True])
async def test_an_object_replaced_under_an_open_handle(folder: Folder, same_size: bool) -> None:
    changed = ROWS.set_column(0, "id", pc.add(ROWS["id"], 1 << 32))
    one, other = plain(ROWS), plain(changed if same_size else changed.slice(0, 30_000))
    assert (len(one) == len(other)) is same_size
    url = await folder.put("file.parquet", one)
    async with folder.session(cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(url)
        assert (await file.lookup({"id": 7})).num_rows == 1
        await folder.put("file.parquet", other)
        assert (await file.lookup({"id": 7})).num_rows == 0
        assert (await file.lookup({"id": 7 + (1 << 32)})).num_rows == 1


async def test_an_empty_object(folder: Folder) -> None:
    empty, full = await folder.put("empty.parquet", b""), await folder.put("full.parquet", small(0))
    async with folder.session() as session:
        with pytest.raises(NotParquetError, match="empty"):
            await session.open_file(empty)
        assert (await (await session.open_file(full)).read()).num_rows == 3


async def test_what_is_missing(folder: Folder) -> None:
    async with folder.session() as session:
        with pytest.raises(ObjectNotFoundError):
            await session.open_file(f"{folder.url}missing.parquet")
        missing = f"{folder.server.protocol}://no-such-bucket/file.parquet"
        with pytest.raises(BucketNotFoundError if folder.server.names_bucket else ObjectNotFoundError):
            await session.open_file(missing)


async def test_a_version_that_there_is_not(folder: Folder) -> None:
    """Some servers ignore version ids: their current object is not taken for the version."""
    url = await folder.put("file.parquet", small(0))
    async with folder.session() as session:
        with pytest.raises(StoreError):
            await session.open_file(f"{url}?versionId=other")


async def test_a_wrong_secret(folder: Folder) -> None:
    url = await folder.put("file.parquet", small(0))
    if folder.server.wrong is None:
        pytest.skip(f"{folder.server.name} checks no signatures")
    async with folder.session(folder.server.wrong) as session:
        with pytest.raises((CredentialsError, AccessDeniedError)) as caught:
            await session.open_file(url)
        assert "wrong" not in str(caught.value)
