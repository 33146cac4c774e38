"""Sessions one after another over one disk cache: requests, versions, and what is kept there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

ROWS = 40_000
COLUMNS = ["user", "price"]


def table(seed: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "user": [f"user {(row * 7919 + seed) % 999}" for row in range(ROWS)],
            "price": [float((row + seed) % 1013) for row in range(ROWS)],
        }
    )


def parquet(rows: pa.Table) -> bytes:
    return parquet_bytes(rows, write_page_index=True, row_group_size=10_000, data_page_size=4096)


DATA = parquet(table())


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer.in_thread() as running:
        running.put("bucket/a.parquet", DATA)
        yield running


class Asked:
    """What a fresh process with the same disk cache gets, and what the server had to send for it."""

    def __init__(self, server: ObjectServer, folder: Path, **options: Any) -> None:
        self.server = server
        options.setdefault("requests", asyncpq.RequestOptions(tail_bytes=16 * 1024))
        self.options = {"disk_cache": str(folder), **options}

    async def lookup(self, key: int, **options: Any) -> tuple[pa.Table, int]:
        before = len(self.server.log)
        session = asyncpq.Session(self.server.storage_options, **{**self.options, **options})
        async with session, await session.open_file("s3://bucket/a.parquet") as file:
            found = await file.lookup({"id": key}, COLUMNS)
            self.metrics = session.metrics
        return found, len(self.server.log) - before


async def test_a_second_process_asks_for_nothing(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.immutable())
    cold, requests = await asked.lookup(23_456)
    assert requests >= 2
    assert asked.metrics.disk_hits == 0
    warm, requests = await asked.lookup(23_456)
    assert requests == 0
    assert asked.metrics.disk_hits == asked.metrics.cache_hits > 5
    assert warm == cold == table().slice(23_456, 1).select(COLUMNS)


async def test_what_is_old_is_asked_about_once(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.etag(0))
    cold, _ = await asked.lookup(23_456)
    warm, requests = await asked.lookup(23_456)
    assert requests == 1
    assert server.log[-1].headers["if-match"] == server.objects["bucket/a.parquet"].etag
    assert warm == cold


async def test_a_young_version_is_not_asked_about(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.etag(3600))
    cold, _ = await asked.lookup(23_456)
    warm, requests = await asked.lookup(23_456)
    assert (warm, requests) == (cold, 0)


async def test_only_what_is_not_there_is_fetched(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache")
    await asked.lookup(23_456)
    found, requests = await asked.lookup(3_456)
    assert found == table().slice(3_456, 1).select(COLUMNS)
    assert asked.metrics.disk_hits > 0  # the footer
    purposes = [request.headers.get("range") for request in server.log[-requests:]]
    assert not any(span is not None and span.startswith("bytes=-") for span in purposes)  # and no tail


async def test_a_changed_object_is_noticed_through_the_tier(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.etag(0))
    await asked.lookup(23_456)
    server.put("bucket/a.parquet", parquet(table(5)))
    found, _ = await asked.lookup(23_456)
    assert found == table(5).slice(23_456, 1).select(COLUMNS)
    found, requests = await asked.lookup(23_456, cache_policy=asyncpq.immutable())
    assert requests == 0  # the new version's parts are there, and the pointer leads to them
    assert found == table(5).slice(23_456, 1).select(COLUMNS)


@pytest.mark.parametrize("policy", [asyncpq.ttl(3600), asyncpq.etag(60), asyncpq.immutable()])
async def test_others_are_told_of_the_version_that_was_found_instead(
    server: ObjectServer, tmp_path: Path, policy: asyncpq.CachePolicy
) -> None:
    """However long ago they were told of the one before it."""
    asked = Asked(server, tmp_path / "cache", cache_policy=policy)
    async with asyncpq.Session(server.storage_options, **asked.options) as session:
        file = await session.open_file("s3://bucket/a.parquet")
        await file.lookup({"id": 5}, COLUMNS)
        server.put("bucket/a.parquet", parquet(table(seed=1)))
        assert await file.lookup({"id": 23_456}, COLUMNS) == table(seed=1).slice(23_456, 1).select(COLUMNS)
    found, requests = await asked.lookup(23_456)
    assert found == table(seed=1).slice(23_456, 1).select(COLUMNS)
    assert requests == 0


async def test_a_changed_object_of_a_taken_row_is_an_error(server: ObjectServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"disk_cache": str(tmp_path / "cache"), "cache_policy": asyncpq.etag(0)}
    async with (
        asyncpq.Session(server.storage_options, **options) as session,
        await session.open_file("s3://bucket/a.parquet") as file,
    ):
        await file.take([1, 39_000])
    server.put("bucket/a.parquet", parquet(table(5)))
    async with (
        asyncpq.Session(server.storage_options, **options) as session,
        await session.open_file("s3://bucket/a.parquet") as file,
    ):
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.take([1, 39_000])
        await file.refresh()
        assert await file.take([1, 39_000]) == table(5).take([1, 39_000])


async def test_a_small_file_is_kept_although_it_came_with_its_footer(server: ObjectServer, tmp_path: Path) -> None:
    """Its first GET brings all of it; a second process reads it without the store."""
    asked = Asked(server, tmp_path / "cache", requests=asyncpq.RequestOptions(), cache_policy=asyncpq.immutable())
    _, requests = await asked.lookup(23_456)
    assert requests == 1
    found, requests = await asked.lookup(23_456)
    assert (found, requests) == (table().slice(23_456, 1).select(COLUMNS), 0)


async def test_namespaces_share_nothing(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.immutable())
    _, cold = await asked.lookup(23_456)
    _, other = await asked.lookup(23_456, cache_namespace="other")
    assert other == cold


async def test_a_namespace_is_shared_by_all_credentials(server: ObjectServer, tmp_path: Path) -> None:
    """Who gives one says who shares; without it, whoever has other credentials shares nothing."""
    for namespace, expected in (("team", True), (None, False)):
        requests = []
        for key in ("one", "two"):
            session = asyncpq.Session(
                {**server.storage_options, "key": key}, disk_cache=tmp_path / "cache", cache_namespace=namespace
            )
            before = len(server.log)
            async with session, await session.open_file("s3://bucket/a.parquet") as file:
                assert (await file.lookup({"id": 7}, COLUMNS)).num_rows == 1
            requests.append(len(server.log) - before)
        assert requests[0] > 0
        assert (requests[1] == 0) == expected


async def test_an_object_without_a_validator_is_not_kept_there(server: ObjectServer, tmp_path: Path) -> None:
    """Of the next version nobody could tell it."""
    server.faults = lambda request: asyncpq.testing.Fault(headers={"ETag": None, "Last-Modified": None})
    async with (
        asyncpq.Session(disk_cache=str(tmp_path / "cache"), cache_policy=asyncpq.immutable()) as session,
        await session.open_file(f"{server.endpoint}/bucket/a.parquet") as file,
    ):
        assert file.opening is not None
        assert file.opening.guarantee == "none"
        assert await file.lookup({"id": 7}, COLUMNS) == table().slice(7, 1).select(COLUMNS)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size > 100]


async def test_what_cannot_be_validated_expires(server: ObjectServer) -> None:
    """Same size, no validator: the old rows are served for as long as the policy says, and no longer."""
    server.faults = lambda request: asyncpq.testing.Fault(headers={"ETag": None, "Last-Modified": None})
    old, new = (pa.table({"id": range(5000), "price": [price] * 5000}) for price in (1.0, 2.0))

    def plain(rows: pa.Table) -> bytes:
        return parquet_bytes(rows, use_dictionary=False, compression="none", write_page_index=True)

    assert len(plain(old)) == len(plain(new))
    url = f"{server.endpoint}/bucket/same.parquet"
    for policy, expected in ((asyncpq.ttl(3600), old), (asyncpq.etag(0), new), (asyncpq.ttl(0), new)):
        server.put("bucket/same.parquet", plain(old))
        async with asyncpq.Session(cache_policy=policy) as session, await session.open_file(url) as file:
            assert await file.lookup({"id": 7}) == old.slice(7, 1)
            server.put("bucket/same.parquet", plain(new))
            assert await file.lookup({"id": 7}) == expected.slice(7, 1)
            assert await file.take([7]) == expected.slice(7, 1)
            assert await file.read() == expected
            await file.refresh()
            assert await file.take([7]) == new.slice(7, 1)
            again = await session.open_file(url)
            assert await again.read() == new


async def test_scans_go_through_the_tier(server: ObjectServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"disk_cache": str(tmp_path / "cache"), "cache_policy": asyncpq.immutable()}
    where = (col("id") >= 12_345) & (col("id") < 15_678)
    expected = table().filter((pc.field("id") >= 12_345) & (pc.field("id") < 15_678))
    for requests_expected in (True, False):
        before = len(server.log)
        async with (
            asyncpq.Session(server.storage_options, **options) as session,
            await session.open_file("s3://bucket/a.parquet") as file,
        ):
            assert await file.read(where=where) == expected
        assert (len(server.log) > before) is requests_expected


async def test_a_policy_for_each_url_pattern(server: ObjectServer) -> None:
    server.put("bucket/b.parquet", DATA)
    policy = {"s3://bucket/a*": asyncpq.immutable(), "*": asyncpq.etag(0)}
    async with asyncpq.Session(server.storage_options, cache_policy=policy) as session:
        for name, requests in (("a", 0), ("b", 1)):
            async with await session.open_file(f"s3://bucket/{name}.parquet") as file:
                await file.lookup({"id": 7}, COLUMNS)
                before = len(server.log)
                await file.lookup({"id": 7}, COLUMNS)
                assert len(server.log) - before == requests


async def test_age_alone_counts_with_ttl(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """GETs of other pages do not make it younger, as they do with ``etag``."""
    clock = {"ahead": 0.0}
    real = time.monotonic
    monkeypatch.setattr("asyncpq.objects.source.time.monotonic", lambda: real() + clock["ahead"])
    small = asyncpq.RequestOptions(tail_bytes=16 * 1024)
    for policy, expected in ((asyncpq.ttl(100), 1), (asyncpq.etag(100), 0)):
        clock["ahead"] = 0.0
        async with (
            asyncpq.Session(server.storage_options, cache_policy=policy, requests=small) as session,
            await session.open_file("s3://bucket/a.parquet") as file,
        ):
            await file.lookup({"id": 7}, COLUMNS)
            clock["ahead"] = 60.0
            await file.lookup({"id": 39_000}, COLUMNS)
            clock["ahead"] = 120.0
            before = len(server.log)
            await file.lookup({"id": 39_000}, COLUMNS)
            assert len(server.log) - before == expected


async def test_a_page_damaged_on_its_way_is_not_kept(server: ObjectServer, tmp_path: Path) -> None:
    """The read that meets it fails; the next one asks the store, in this process and in others."""
    data = parquet_bytes(table(), write_page_index=True, write_page_checksum=True, compression="none")
    damaged = bytearray(data)
    damaged[data.index(b"user 999") if b"user 999" in data else 5000] ^= 1
    for at in range(2000, 60_000, 500):
        damaged[at] ^= 0xFF
    good = server.put("bucket/a.parquet", data)
    for small in (asyncpq.RequestOptions(tail_bytes=16 * 1024), asyncpq.RequestOptions()):
        folder = tmp_path / f"{small.tail_bytes}"
        asked = Asked(server, folder, cache_policy=asyncpq.immutable(), requests=small)
        server.put("bucket/a.parquet", bytes(damaged), etag=good.etag)
        options = asked.options
        async with asyncpq.Session(server.storage_options, **options) as session:
            file = await session.open_file("s3://bucket/a.parquet")
            with pytest.raises(asyncpq.CorruptFileError):
                await file.read(COLUMNS, where=col("id") < 5000)
            server.put("bucket/a.parquet", data, etag=good.etag)
            expected = table().slice(0, 5000).select(COLUMNS)
            assert await file.read(COLUMNS, where=col("id") < 5000) == expected
        async with asyncpq.Session(server.storage_options, **options) as session:
            file = await session.open_file("s3://bucket/a.parquet")
            assert await file.read(COLUMNS, where=col("id") < 5000) == expected


async def test_a_tier_that_cannot_be_written_brings_nothing_back(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pointer to a version that is gone stays; this session knows better."""
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.etag(0))
    await asked.lookup(23_456)
    server.put("bucket/a.parquet", parquet(table(5)))

    async def nothing(*_: object, **__: object) -> None: ...

    for name in ("drop_pointer", "put_pointer", "put_many"):
        monkeypatch.setattr(f"asyncpq.caching.disk.DiskCache.{name}", nothing)
    for _ in range(2):
        found, _ = await asked.lookup(23_456)
        assert found == table(5).slice(23_456, 1).select(COLUMNS)


async def test_refresh_has_the_stores_word(server: ObjectServer) -> None:
    """Also where another handle has seen a newer version, and the policy would not ask."""
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.immutable()) as session:
        one, two = [await session.open_file("s3://bucket/a.parquet") for _ in range(2)]
        server.put("bucket/a.parquet", parquet(table(5)))
        await two.refresh()
        server.put("bucket/a.parquet", parquet(table(6)))
        version = await one.refresh()
        assert version.etag == server.objects["bucket/a.parquet"].etag
        assert await one.take([23_456]) == table(6).take([23_456])


async def test_without_memory_a_young_version_is_not_asked_about(server: ObjectServer, tmp_path: Path) -> None:
    """The handle itself knows when the object was last seen."""
    asked = Asked(server, tmp_path / "cache", memory_cache_bytes=0)
    await asked.lookup(7)  # closing waits until the disk has it
    before = len(server.log)
    async with asyncpq.Session(server.storage_options, **asked.options) as session:
        file = await session.open_file("s3://bucket/a.parquet")
        for _ in range(3):
            assert await file.lookup({"id": 7}, COLUMNS) == table().slice(7, 1).select(COLUMNS)
    assert len(server.log) == before


async def test_counters_by_tier(server: ObjectServer, tmp_path: Path) -> None:
    asked = Asked(server, tmp_path / "cache", cache_policy=asyncpq.immutable())
    await asked.lookup(23_456)
    async with asyncpq.Session(server.storage_options, **asked.options) as session:
        assert session.cache_counters() == {"disk": {"hits": 0, "misses": 0, "errors": 0, "skipped": 0, "evictions": 0}}
        file = await session.open_file("s3://bucket/a.parquet")
        await file.lookup({"id": 23_456}, COLUMNS)
        counters = session.cache_counters()["disk"]
        assert counters["hits"] == session.metrics.disk_hits + 1, "and the pointer"
        assert counters["errors"] == counters["skipped"] == 0
    async with asyncpq.Session() as session:
        assert session.cache_counters() == {}


async def test_other_columns_in_its_place_are_found_once(server: ObjectServer) -> None:
    """The read ends with one look at what is there now, which stays known."""
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file("s3://bucket/a.parquet")
        await file.lookup({"id": 7})
        server.put("bucket/a.parquet", parquet(table().rename_columns(["id", "user", "cost"])))
        before = len(server.log)
        with pytest.raises(asyncpq.ObjectChangedError, match="price is gone now"):
            await file.lookup({"id": 7})
        assert [request.status for request in server.log[before:]] == [412, 206]
        assert (await (await session.open_file("s3://bucket/a.parquet")).lookup({"id": 7})).column_names[2] == "cost"
        await file.refresh()
        assert (await file.lookup({"id": 7})).column_names == ["id", "user", "cost"]
