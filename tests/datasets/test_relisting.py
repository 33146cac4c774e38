"""Reads that list only the folders that conditions on partition columns leave: which, and that no row is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import asyncpq
from asyncpq import col, records
from asyncpq.datasets import listing, relisting
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds
from asyncpq.storage.s3 import key_listing, store
from asyncpq.testing import Fault, ObjectServer
from asyncpq.testing.object_server import listing_query
from tests.parquet_bytes import parquet_bytes

LAKE = "s3://bucket/lake/"


def content(*ids: int) -> bytes:
    return parquet_bytes(pa.table({"id": pa.array(ids, pa.int64())}))


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        yield running


@pytest.fixture
def small_pages(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 4 keys, and a cost model that knows it."""
    server.page_keys = 4
    monkeypatch.setattr(records, "MOST_KEPT", 2)
    monkeypatch.setattr(relisting, "_PAGE", 4)
    monkeypatch.setattr(relisting, "_FEW", 4)


def put_days(server: ObjectServer, days: int, files: int) -> None:
    for day in range(days):
        for number in range(files):
            server.put(f"bucket/lake/day={day:03d}/{number:03d}", content(1000 * day + number))


def lists(server: ObjectServer) -> list[tuple[str, bool]]:
    """The prefixes listed since the last call, and whether by folder; those around the lake are left out."""
    queries = [query for request in server.log if (query := listing_query(request)) is not None]
    server.log.clear()
    return [(query["prefix"], "delimiter" in query) for query in queries if query["prefix"].startswith("lake/")]


async def ids(dataset: asyncpq.Dataset, where: Any = None) -> list[int]:
    found: list[int] = (await dataset.read(["id"], where))["id"].to_pylist()
    return sorted(found)


# -- what is listed -------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.io
async def test_a_condition_lists_its_folder_alone(server: ObjectServer) -> None:
    put_days(server, 60, 100)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        assert len(lists(server)) >= 6
        where = (col("day") == 3) & (col("id") == 3007)
        assert await ids(dataset, where) == [3007]
        assert lists(server) == [("lake/", False), ("lake/", True), ("lake/day=003/", False)]
        assert dataset.metrics.files_total == 6000
        table = await dataset.lookup({"day": 3, "id": 3008})
        assert table["id"].to_pylist() == [3008]
        assert lists(server) == [("lake/", True), ("lake/day=003/", False)]
        for no_condition in (None, col("id") == 3007, (col("day") == 3) | (col("id") == 4000)):
            await dataset.files(no_condition)
            assert len(lists(server)) >= 6
        await dataset.files(col("day") >= 10)
        assert len(lists(server)) >= 6, "most folders are left"


@pytest.mark.io
async def test_a_lake_of_one_page_is_listed_at_once(server: ObjectServer) -> None:
    put_days(server, 20, 10)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        lists(server)
        assert await ids(dataset, col("day") == 3) == list(range(3000, 3010))
        assert lists(server) == [("lake/", False)]


@pytest.mark.usefixtures("small_pages")
async def test_what_changes_in_listed_folders_is_seen_and_elsewhere_by_other_reads(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        assert await ids(dataset, col("day") == 3) == [3000, 3001, 3002, 3003]
        server.put("bucket/lake/day=003/004", content(7))
        server.put("bucket/lake/day=003/000", content(8))
        server.delete("bucket/lake/day=003/001")
        server.put("bucket/lake/day=005/004", content(9))
        server.put("bucket/lake/day=0030/0", content(10))
        server.put("bucket/lake/day=3/0", content(11))
        server.put("bucket/lake/day=900/0", content(12))
        assert await ids(dataset, col("day") == 3) == [7, 8, 11, 3002, 3003]
        assert await ids(dataset, col("day") == 900) == [12]
        assert await ids(dataset, col("day").is_in([30, 5])) == [9, 10, 5000, 5001, 5002, 5003]
        assert len(await ids(dataset)) == 20 * 4 - 1 + 5
        assert await dataset.files() == await (await session.open_dataset(LAKE)).files()
        for number in range(5):
            server.delete(f"bucket/lake/day=005/{number:03d}")
        assert await ids(dataset, col("day") == 5) == []
        assert await dataset.files() == await (await session.open_dataset(LAKE)).files()


@pytest.mark.usefixtures("small_pages")
async def test_listings_of_some_folders_and_of_all_at_once(server: ObjectServer) -> None:
    """A listing that began earlier and ends later takes back nothing."""
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        await ids(dataset, col("day") == 3)
        server.put("bucket/lake/day=003/004", content(7))
        server.put("bucket/lake/day=004/004", content(8))
        reads = [ids(dataset, col("day") == 3), ids(dataset), ids(dataset, col("day") == 4)] * 3
        for found in await asyncio.gather(*reads):
            assert {7, 8}.intersection(found)
        assert len(await ids(dataset)) == 82
        assert await ids(dataset, col("day") == 3) == [7, 3000, 3001, 3002, 3003]


@pytest.mark.usefixtures("small_pages")
async def test_within_the_age_a_condition_is_listed_once(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE, listing_max_age_s=3600)
        source = dataset._state.source
        assert source.known is not None
        source.known = source.known._replace(listed_at=-1e9)  # type: ignore[misc]
        await ids(dataset, col("day") == 3)
        assert ("lake/day=003/", False) in lists(server)
        for where in (col("day") == 3, (col("day") == 3) & (col("id") > 3001), {"day": 3, "id": 3001}):
            await (dataset.lookup(where) if isinstance(where, dict) else ids(dataset, where))
            assert lists(server) == []
        await ids(dataset, col("day") == 4)
        assert ("lake/day=004/", False) in lists(server)
        await ids(dataset)
        assert len(lists(server)) > 10
        await ids(dataset, col("day") == 5)
        assert lists(server) == []


async def aged(session: asyncpq.Session, monkeypatch: pytest.MonkeyPatch) -> asyncpq.Dataset:
    """The lake, whose listings may be an hour old, as that of its opening is."""
    dataset = await session.open_dataset(LAKE, listing_max_age_s=3600)
    source = dataset._state.source
    assert source.known is not None
    monkeypatch.setattr(source, "known", source.known._replace(listed_at=-1e9))
    return dataset


async def test_of_a_store_that_lists_all_folders_others_files_count_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relisting, "_FEW", 4)
    monkeypatch.setattr(relisting.ListedFolders, "save_requests", lambda *arguments: True)
    put_days(server, 5, 4)

    async def found(dataset: asyncpq.Dataset, where: Expression) -> tuple[list[int], int]:
        with asyncpq.measure() as cost:
            rows = await ids(dataset, where)
        return rows, cost.files_total

    async with asyncpq.Session(server.storage_options) as session:
        dataset = await aged(session, monkeypatch)
        for _ in range(2):
            both = await asyncio.gather(found(dataset, col("day") == 3), found(dataset, col("day") == 4))
            assert list(both) == [([3000, 3001, 3002, 3003], 20), ([4000, 4001, 4002, 4003], 20)]


@pytest.mark.usefixtures("small_pages")
async def test_of_two_listings_merged_at_once_neither_is_lost(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_days(server, 20, 5)
    merge, both, calls = relisting._merge, threading.Barrier(2, timeout=60), list[int]()

    def together(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) <= 2:
            both.wait()
        return merge(*arguments)

    limits = asyncpq.LimitOptions(decode_threads=2)
    async with asyncpq.Session(server.storage_options, limits=limits) as session:
        dataset = await aged(session, monkeypatch)
        server.put("bucket/lake/day=003/005", content(7))
        server.put("bucket/lake/day=004/005", content(8))
        monkeypatch.setattr(relisting, "_merge", together)
        for _ in range(2):
            reads = await asyncio.gather(ids(dataset, col("day") == 3), ids(dataset, col("day") == 4))
            assert [found[0] for found in reads] == [7, 8]
        assert len(calls) > 2


@pytest.mark.parametrize(("files", "in_threads"), [(1001, True), (20, False)])
async def test_large_listings_are_looked_through_in_threads(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, files: int, in_threads: bool
) -> None:
    put_days(server, 1, files)
    threads: dict[str, set[bool]] = {}

    def noted(module: Any, name: str) -> None:
        work = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread() is not threading.main_thread())
            return work(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    noted(key_listing, "parse_page")
    noted(store, "_objects_of")
    for name in ("_found", "find_table", "read_partitions"):
        noted(listing, name)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        assert len(await dataset.files()) == files
    assert threads.pop("parse_page") >= {in_threads}, "a last page may be short"
    assert threads == {name: {in_threads} for name in ("_objects_of", "_found", "find_table", "read_partitions")}


async def test_a_large_page_that_is_not_xml_is_asked_for_encoded(server: ObjectServer) -> None:
    for number in range(600):
        server.put(f"bucket/lake/part\x01{number}", content(1))
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        assert len(await dataset.files()) == 600


# -- the same rows --------------------------------------------------------------------------------

PATHS = [
    "0",  # in no folder
    "plain/0",
    "plain/day=2/0",
    *[f"day={day}/{number}" for day in range(6) for number in range(4)],
    "day=2/hour=1/0",
    "day=2/hour=2/deep/0",
    "hour=1/day=2/0",
    "hour=3/day=4/0",
    "day=__HIVE_DEFAULT_PARTITION__/0",
    "day=__HIVE_DEFAULT_PARTITION__/hour=1/0",
    "day=3/hour=__HIVE_DEFAULT_PARTITION__/0",
    f"day=1/city={quote('São Paulo/1', safe='')}/0",
    "day=1/city=a%20b/0",
    "day=1/city=a b/0",
    "city=x/0",
    f"{quote('city')}=%78/1",
    "%64ay=2/9",
]
CONDITIONS = [
    None,
    col("day") == 2,
    col("day") != 2,
    col("day").is_null(),
    ~col("day").is_null() & (col("id") > 3),
    col("day").is_in([1, 4]),
    (col("day") == 2) & (col("hour") == 1),
    (col("day") == 2) | (col("hour") == 3),
    col("hour").is_null() & (col("day") == 3),
    ~((col("day") == 2) | (col("hour") == 1)),
    ~((col("day") > 1) & (col("id") > 5)),
    col("city") == "São Paulo/1",
    col("city") == "a b",
    col("city").is_in(["x", "a b"]) | (col("day") == 5),
    (col("city") == "x") & (col("day").is_null()),
    col("day") > 7,
]


def fill(server: ObjectServer, folder: Path, paths: list[str], first: int) -> None:
    for number, path in enumerate(paths, first):
        server.put(f"bucket/lake/{path}", content(number))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content(number))


@pytest.mark.heavy
@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("remote", [True, False], ids=["s3", "local"])
async def test_the_same_rows_as_from_a_listing_of_all(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, remote: bool
) -> None:
    """With files at several depths, keys on several levels, encoded and null values, before and after changes."""
    server.page_keys = 10
    folders_alone = True
    monkeypatch.setattr(relisting.ListedFolders, "save_requests", lambda *arguments: folders_alone)
    fill(server, tmp_path, PATHS, 0)
    url = LAKE if remote else f"{tmp_path}/"
    async with asyncpq.Session({"s3": server.storage_options}) as session:
        dataset = await session.open_dataset(url)
        for step in range(3):
            if step == 1:
                fill(server, tmp_path, [f"{path}-new" for path in PATHS] + ["day=7/0", "city=y/day=2/0"], 100)
            elif step == 2:
                for path in PATHS[::2]:
                    server.delete(f"bucket/lake/{path}")
                    (tmp_path / path).unlink()
            found = []
            for folders_alone in (True, False):
                read = dataset if folders_alone else await session.open_dataset(url)
                tables = [await read.read(["id", "day", "hour", "city"], where) for where in CONDITIONS]
                found.append([table.to_pylist() for table in tables])
                found[-1] += [await read.files(where) for where in CONDITIONS]
            assert found[0] == found[1], step
        fresh = await session.open_dataset(url)
        assert await dataset.files() == await fresh.files()


async def test_the_same_rows_as_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(relisting, "_FEW", 4)
    monkeypatch.setattr(relisting, "_PAGE", 4)
    for day in range(20):
        for city in ("a b", "é", None):
            folder = tmp_path / f"day={day}" / f"city={'__HIVE_DEFAULT_PARTITION__' if city is None else quote(city)}"
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}.parquet").write_bytes(content(100 * day + number))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/")
        day, city = pads.field("day"), pads.field("city")
        for where in (
            day == 3,
            (day == 3) & (city == "é"),
            (day > 17) & ~city.is_valid(),
            ~((day < 18) | (city == "é")),
        ):
            expected = pads.dataset(tmp_path, partitioning="hive").to_table(filter=where)
            found = await dataset.read(where=where)
            assert found.select(expected.column_names).sort_by("id").to_pylist() == expected.sort_by("id").to_pylist()


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    ("target", "options"),
    [
        (f"{LAKE}day=*/*", {}),
        (f"{LAKE}**/00?", {}),
        (f"{LAKE}day=0{{03,04,05}}/", {}),
        ([f"{LAKE}day=003/", f"{LAKE}day=01*/"], {}),
        (LAKE, {"partitioning": ["when"]}),
        (LAKE, {"partition_types": {"day": pa.string()}}),
        (LAKE, {"schema": pa.schema({"id": pa.int64(), "day": pa.float64()})}),
    ],
)
async def test_targets_and_partitionings(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, target: Any, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(relisting.ListedFolders, "save_requests", lambda *arguments: True)
    put_days(server, 20, 4)
    name, value = "day", 3
    if "partitioning" in options:
        name, value = "when", "day=003"  # type: ignore[assignment]
    elif "partition_types" in options:
        value = "003"  # type: ignore[assignment]
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(target, **options)
        server.put("bucket/lake/day=003/005", content(5))
        server.put("bucket/lake/day=013/005", content(6))
        lists(server)
        assert await ids(dataset, col(name) == value) == [5, 3000, 3001, 3002, 3003][:5]
        assert not any("day=013" in prefix for prefix, _ in lists(server))
        assert (await dataset.files()) == await (await session.open_dataset(target, **options)).files()


# -- what else is in the folders ------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    "marker",
    [
        "_delta_log/00000000000000000000.json",
        "metadata/00000-a.metadata.json",
        ".hoodie/hoodie.properties",
        "_spark_metadata/0",
        "day=003/_delta_log/00000000000000000000.json",
        "day=003/.hoodie_partition_metadata",
    ],
)
async def test_tables_are_noticed(server: ObjectServer, marker: str) -> None:
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        await ids(dataset, col("day") == 3)
        server.put(f"bucket/lake/{marker}", b"{}")
        with pytest.raises(asyncpq.InvalidOptionError, match="table"):
            await ids(dataset, col("day") == 3)
        if marker.startswith("day=003"):
            assert len(await ids(dataset, col("day") == 4)) == 4
        with pytest.raises(asyncpq.InvalidOptionError, match="table"):
            await ids(dataset)


@pytest.mark.usefixtures("small_pages")
async def test_hidden_and_uncommitted_files(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    written = f"data/{'0' * 12}4{'0' * 3}8{'0' * 15}/00000-0.parquet"
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        for path in ("_hidden", ".x", "day=003/_hidden/0", "day=003/.0", "day=003/0._COPYING_", f"day=003/{written}"):
            server.put(f"bucket/lake/{path}", content(1))
        server.put("bucket/lake/day=003_$folder$", b"")
        assert await ids(dataset, col("day") == 3) == [3000, 3001, 3002, 3003]
        server.put("bucket/lake/day=003/_SUCCESS", b"")
        assert await ids(dataset, col("day") == 3) == [1, 3000, 3001, 3002, 3003]


@pytest.mark.usefixtures("small_pages")
async def test_invalid_values_and_new_columns(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset(LAKE)
        skipping = await session.open_dataset(LAKE, on_bad_file="skip")
        server.put("bucket/lake/day=monday/0", content(1))
        server.put("bucket/lake/day=003/day=004/0", content(1))
        with pytest.raises(asyncpq.PartitionError, match=r"monday|two values"):
            await ids(dataset, col("day") == 3)
        assert await ids(skipping, col("day") == 3) == [3000, 3001, 3002, 3003]
        assert len(skipping.skipped) == 2
        assert await ids(skipping, col("day") == 4) == [4000, 4001, 4002, 4003]
        assert len(skipping.skipped) == 2
        server.delete("bucket/lake/day=monday/0")
        server.delete("bucket/lake/day=003/day=004/0")
        assert await ids(dataset, col("day") == 3) == [3000, 3001, 3002, 3003]
        assert await ids(skipping, col("day") == 3) == [3000, 3001, 3002, 3003]
        assert skipping.skipped == []
        lists(server)
        server.put("bucket/lake/day=003/hour=1/0", content(1))
        for _ in range(2):  # a column of all files, whose values decide its type
            assert await ids(dataset, col("day") == 3) == [1, 3000, 3001, 3002, 3003]
            assert len(lists(server)) > 10


@pytest.mark.usefixtures("small_pages")
async def test_limits_and_faults_of_listings(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    limits = asyncpq.LimitOptions(max_listed_objects=80)
    async with asyncpq.Session(server.storage_options, limits=limits) as session:
        dataset = await session.open_dataset(LAKE)
        for number in range(100):
            server.put(f"bucket/lake/day=003/x{number}", content(1))
        with pytest.raises(asyncpq.ResourceLimitError):
            await ids(dataset, col("day") == 3)
        server.faults = [Fault(ranged=False, times=None, status=403, code="AccessDenied")]
        with pytest.raises(asyncpq.AccessDeniedError):
            await ids(dataset, col("day") == 3)


@pytest.mark.usefixtures("small_pages")
async def test_with_an_index(server: ObjectServer) -> None:
    put_days(server, 20, 4)
    async with asyncpq.Session(server.storage_options) as session:
        await session.build_index(LAKE, [Bounds("id")])
        dataset = await session.open_dataset(LAKE)
        assert await ids(dataset, (col("day") == 3) & (col("id") == 3001)) == [3001]
        lists(server)
        server.put("bucket/lake/day=003/000", content(3001))
        assert await ids(dataset, (col("day") == 3) & (col("id") == 3001)) == [3001, 3001]
        assert ("lake/day=003/", False) in lists(server)
        assert await dataset.count() == 80


async def test_a_read_whose_only_file_is_gone_uses_the_new_listing(server: ObjectServer) -> None:
    """Reads begin with the last listing. Its file is gone when it is opened, not only when its rows are read."""
    server.put("bucket/lake/day=1/a.parquet", content(1))
    server.put("bucket/lake/day=2/a.parquet", content(2))
    async with asyncpq.Session(server.storage_options, memory_cache_bytes=0) as session:
        dataset = await session.open_dataset(LAKE)
        server.delete("bucket/lake/day=1/a.parquet")
        server.put("bucket/lake/day=1/b.parquet", content(1, 3))
        assert await ids(dataset, col("day") == 1) == [1, 3]
        server.delete("bucket/lake/day=1/b.parquet")
        assert await dataset.count(col("day") == 1) == 0
