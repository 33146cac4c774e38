"""Indexes inside of Parquet files in a store: requests, caches, replaced objects; and what other readers see."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import CorruptIndexError
from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
from asyncpq.parquet.embedded_index import EmbeddedIndex
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_files import EditedFile, Struct

URL = "s3://lake/file.parquet"
LARGE = EmbeddedIndex(name="large", kind="bytes", version=7, data=bytes(range(256)) * 1000)
SMALL = EmbeddedIndex(name="small", kind="text", version=1, data=b"PAR1 is no footer")
EMPTY = EmbeddedIndex(name="empty", kind="", version=0, data=b"")
TABLE = pa.table(
    {
        "id": pa.array(range(5000), pa.int64()),
        "name": [f"name {row % 700}" for row in range(5000)],
        "list": [[row, None] for row in range(5000)],
        "when": pa.array([row * 1_000_000 for row in range(5000)], pa.timestamp("us")),
    }
)
WRITTEN = {"write_page_index": True, "max_rows_per_page": 500, "bloom_filter_options": {"id": {"ndv": 1000}}}


def parquet(*indexes: EmbeddedIndex, start: int = 0) -> bytes:
    sink = io.BytesIO()
    table = TABLE.set_column(0, "id", pa.array(range(start, start + 5000), pa.int64()))
    with EmbeddedIndexWriter(sink, table.schema, **WRITTEN) as writer:
        writer.write_table(table, row_group_size=2000)
        for index in indexes:
            writer.embed(index)
    return sink.getvalue()


DATA = parquet(LARGE, SMALL, EMPTY)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", DATA)
        yield running


def session(server: ObjectServer, **options: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=4096, gap_bytes=0)
    return asyncpq.Session(server.storage_options, requests=requests, **options)


# -- requests -------------------------------------------------------------------------------------


async def test_one_request_once(server: ObjectServer) -> None:
    """It asks for just these bytes, of the version that the footer is of; memory answers the next."""
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        entries = file.embedded_indexes
        assert list(entries) == ["large", "small", "empty"]
        assert await file.embedded_index("no such") is None
        assert await file.embedded_index("empty") == EMPTY
        assert not server.log
        with asyncpq.measure() as cost:
            assert await file.embedded_index("large") == LARGE
        assert [(request.range, request.headers.get("if-match")) for request in server.log] == [
            (f"bytes={entries['large'].offset}-{entries['large'].stop - 1}", file.version.etag)
        ]
        assert (cost.requests, cost.rounds, cost.cache_misses) == (1, 1, 1)
        assert cost.requests_by_purpose == {"index": 1}
        again = await s.open_file(URL)
        assert await again.embedded_index("large") == LARGE
        assert (again.metrics.requests, again.metrics.cache_hits, again.metrics.memory_hits) == (0, 1, 1)
        assert len(server.log) == 1


async def test_long_ranges_come_in_parts(server: ObjectServer) -> None:
    """Requests of at most part_bytes cover the range."""
    size = 64 * 1024
    requests = asyncpq.RequestOptions(tail_bytes=4096, part_bytes=size)
    async with asyncpq.Session(server.storage_options, requests=requests) as s:
        file = await s.open_file(URL)
        entry = file.embedded_indexes["large"]
        server.log.clear()
        assert await file.embedded_index("large") == LARGE
        ranges = sorted(tuple(map(int, str(request.range)[6:].split("-"))) for request in server.log)
        assert [start for start, _ in ranges] == [entry.offset, *(stop + 1 for _, stop in ranges[:-1])]
        assert ranges[-1][1] == entry.stop - 1
        assert len(ranges) == 4
        assert all(stop - start < size for start, stop in ranges)


async def test_what_came_with_the_footer_is_not_asked_for(server: ObjectServer) -> None:
    server.put("lake/file.parquet", parquet(SMALL))
    async with asyncpq.Session(server.storage_options) as s:
        file = await s.open_file(URL)
        assert await file.embedded_index("small") == SMALL
        assert len(server.log) == 1


async def test_the_disk_tier_has_it(server: ObjectServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"disk_cache": asyncpq.DiskCacheOptions(path=str(tmp_path / "cache"))}
    for requests in (2, 0):
        async with session(server, **options) as s:
            file = await s.open_file(URL)
            assert await file.embedded_index("large") == LARGE
            assert s.metrics.requests == requests
            assert file.metrics.disk_hits == (not requests)


async def test_none_is_validated_like_rows(server: ObjectServer) -> None:
    """A footer from memory may be an old one: that it has no such index is asked about."""
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        file = await s.open_file(URL)
        server.put("lake/file.parquet", parquet(SMALL, EmbeddedIndex(name="new", kind="", version=0, data=b"new")))
        found = await file.embedded_index("new")
        assert found is not None
        assert found.data == b"new"
        assert file.metrics.restarts == 1
        assert await file.embedded_index("large") is None
        assert set(file.embedded_indexes) == {"small", "new"}


@pytest.mark.parametrize("tail_bytes", [4096, 640 * 1024], ids=["fetched", "in the tail"])
async def test_what_was_damaged_on_its_way_is_not_kept(server: ObjectServer, tail_bytes: int) -> None:
    start = DATA.index(LARGE.data)
    damaged = DATA[: start + 1] + b"?" + DATA[start + 2 :]
    server.put("lake/file.parquet", damaged, etag='"one"')
    requests = asyncpq.RequestOptions(tail_bytes=tail_bytes)
    async with asyncpq.Session(server.storage_options, requests=requests) as s:
        file = await s.open_file(URL)
        with pytest.raises(CorruptIndexError):
            await file.embedded_index("large")
        server.put("lake/file.parquet", DATA, etag='"one"')
        assert await file.embedded_index("large") == LARGE


@pytest.mark.parametrize("policy", [asyncpq.etag(0), asyncpq.etag(1e6)], ids=["asked", "trusted"])
async def test_a_replaced_object(server: ObjectServer, policy: asyncpq.CachePolicy) -> None:
    """The index is of the version whose rows are read, from then on."""
    other = EmbeddedIndex(name="large", kind="bytes", version=8, data=bytes(300_000))
    async with session(server, cache_policy=policy) as s:
        file = await s.open_file(URL)
        server.put("lake/file.parquet", parquet(other, start=70_000))
        with asyncpq.measure() as cost:
            assert await file.embedded_index("large") == other
        assert cost.restarts == 1
        with asyncpq.measure() as cost:
            assert (await file.read(["id"], limit=1))["id"].to_pylist() == [70_000]
        assert cost.restarts == 0


async def test_an_object_that_changes_all_the_time(server: ObjectServer) -> None:
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        file = await s.open_file(URL)
        edited = EditedFile(DATA)
        edited.footer.value(5).append(Struct({1: (8, b"more"), 2: (8, b"of it")}))
        versions = itertools.cycle((edited.data(), DATA))
        faults = [Fault(replace_with=data) for data in itertools.islice(versions, 100)]
        replaced = iter(faults)
        changed = Fault(status=412, code="PreconditionFailed")
        server.faults = lambda request: changed if "if-match" in request.headers else next(replaced)
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.embedded_index("large")
        assert file.metrics.restarts == asyncpq.LimitOptions().max_restarts


async def test_a_lie_about_the_place_takes_no_request(server: ObjectServer) -> None:
    edited = EditedFile(DATA)
    keys = edited.footer.value(5)
    lies = {
        "far": (len(DATA), 10),
        "long": (4, 1 << 62),
        "footer": (len(DATA) - 20, 10),
        "magic": (0, 4),
        "chunk": (4, 100),
    }
    for name, (offset, length) in lies.items():
        value = {"offset": offset, "length": length, "kind": "", "version": 0, "sha256": "0" * 64}
        keys.append(Struct({1: (8, f"asyncpq.index.{name}".encode()), 2: (8, json.dumps(value).encode())}))
    server.put("lake/file.parquet", edited.data())
    async with session(server) as s:
        file = await s.open_file(URL)
        server.log.clear()
        for name in lies:
            with pytest.raises(CorruptIndexError, match=name) as caught:
                await file.embedded_index(name)
            assert caught.value.url == URL
        assert not server.log
        assert await file.embedded_index("large") == LARGE


async def test_too_long_for_the_limit(server: ObjectServer) -> None:
    async with session(server, limits=asyncpq.LimitOptions(max_decoded_bytes=1000)) as s:
        file = await s.open_file(URL)
        server.log.clear()
        with pytest.raises(asyncpq.ResourceLimitError, match="max_decoded_bytes"):
            await file.embedded_index("large")
        assert not server.log
        assert await file.embedded_index("small") == SMALL


def test_blocking(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(DATA)
    with asyncpq.blocking.Session() as s:
        file = s.open_file(path)
        assert list(file.embedded_indexes) == ["large", "small", "empty"]
        assert file.embedded_index("small") == SMALL


# -- other readers --------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, Path]:
    """The same rows, with indexes written at once, and put in later."""
    at_once, plain, later = (folder / f"{name}.parquet" for name in ("at_once", "plain", "later"))
    at_once.write_bytes(parquet(LARGE, SMALL, EMPTY))
    plain.write_bytes(parquet())
    embed_indexes(plain, later, [LARGE, SMALL, EMPTY])
    embed_indexes(later, later, [SMALL])
    return {"at_once": at_once, "plain": plain, "later": later}


@pytest.mark.parametrize("name", ["at_once", "later"])
async def test_readable_by_everyone(tmp_path: Path, name: str) -> None:
    path = files(tmp_path)[name]
    assert pq.read_table(path).equals(TABLE)
    assert ds.dataset(path).to_table(filter=ds.field("id") == 4321)["name"].to_pylist() == ["name 121"]
    with duckdb.connect() as connection:
        rows = connection.sql(f"SELECT * FROM '{path}' ORDER BY id").to_arrow_table()
        assert rows.to_pylist() == TABLE.to_pylist()
        assert connection.execute(f"SELECT name FROM '{path}' WHERE id = 4321").fetchall() == [("name 121",)]
    assert polars.read_parquet(path).to_dicts() == TABLE.to_pylist()
    one = polars.scan_parquet(path).filter(polars.col("id") == 4321).collect()
    assert one["name"].to_list() == ["name 121"]
    async with asyncpq.Session() as s:
        file = await s.open_file(path)
        assert await file.embedded_index("large") == LARGE
        assert (await file.read(["name"], col("id") == 4321))["name"].to_pylist() == ["name 121"]
        assert not file.metrics.fallbacks


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_readable_by_spark(tmp_path: Path) -> None:
    """Whole, and by its page index. Needs Java, and pyspark here or in the interpreter of ASYNCPQ_SPARK_PYTHON."""
    python = os.environ.get("ASYNCPQ_SPARK_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import pyspark"], capture_output=True, timeout=60).returncode == 0
    if shutil.which("java") is None or not found:
        pytest.skip("needs Java and pyspark: pip install -r tests/tables/spark.txt")
    script = Path(__file__).with_name("embedded_spark_reader.py")
    paths = [str(path) for path in files(tmp_path).values()]
    environment = {**os.environ, "PYSPARK_PYTHON": python}
    run = subprocess.run([python, str(script), *paths], capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    ids = list(range(5000))
    expected = {"ids": ids, "names": 700, "lists": sum(ids), "one": ["name 121"]}
    assert answers == [expected] * 3
