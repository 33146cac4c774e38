"""asyncpq::s3://... for pandas, pyarrow, Polars and others: rows are pyarrow's own, requests what the ranges need."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import importlib
import io
import os
import pickle
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.fsspec import AsyncpqFileSystem, ReadAhead
from asyncpq.testing import Fault, LoggedRequest, ObjectServer
from asyncpq.testing.faults import CATALOGUE, Scene
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES, FAST_TIMEOUTS

TABLE = pa.table({"id": range(20_000), "text": [f"text {number:06d}" for number in range(20_000)]})
Filesystems = Callable[..., AsyncpqFileSystem]


def parquet(table: pa.Table = TABLE) -> bytes:
    return parquet_bytes(table, row_group_size=5_000, use_dictionary=False, compression="none")


DATA = parquet()


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """As the entry point does where the package is installed."""
    fsspec.register_implementation("asyncpq", "asyncpq.fsspec.AsyncpqFileSystem", clobber=True)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer.in_thread() as server:
        server.put("bucket/trips.parquet", DATA)
        for day in range(3):
            server.put(f"bucket/lake/day={day}/part.parquet", parquet(TABLE.slice(day * 1000, 1000)))
        yield server


@pytest.fixture
def filesystem(server: ObjectServer) -> Iterator[Filesystems]:
    """Makes filesystems of the server, each with a session of its own."""
    made: list[AsyncpqFileSystem] = []

    def make(**options: Any) -> AsyncpqFileSystem:
        target = {"target_protocol": "s3", "target_options": server.storage_options}
        filesystem = AsyncpqFileSystem(**{**target, "retry": FAST_RETRIES, "skip_instance_cache": True, **options})
        made.append(filesystem)
        return filesystem

    yield make
    for filesystem in made:
        if not filesystem.asynchronous:
            filesystem.close()


def requests(server: ObjectServer) -> list[str]:
    """What was asked for since the last call: ranges, and keys of other requests."""
    asked = [request.headers.get("range", request.target).removeprefix("bytes=") for request in server.log]
    server.log.clear()
    return asked


ROOT = Path(__file__).resolve().parents[1]
TRIPS = "bucket/trips.parquet"
NEW = parquet(TABLE.slice(7))


def test_the_entry_point_names_the_class() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["asyncpq"].partition(":")
    assert getattr(importlib.import_module(module), name) is AsyncpqFileSystem


# -- those who read -------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["asyncpq://s3://bucket/trips.parquet", "asyncpq://::s3://bucket/trips.parquet"])
def test_pandas(url: str, server: ObjectServer) -> None:
    options = {"s3": server.storage_options}
    frame = pd.read_parquet(url, columns=["id"], storage_options=options)
    assert frame.equals(TABLE.select(["id"]).to_pandas())
    asked = requests(server)
    assert len(asked) == 5  # the tail with the footer, and the column's four chunks
    assert asked[0] == "-65536"
    filtered = pd.read_parquet(url, filters=[("id", "<", 10)], storage_options=options)
    assert filtered["text"].tolist() == TABLE["text"].to_pylist()[:10]


def test_chained_urls(server: ObjectServer) -> None:
    options = {"s3": server.storage_options, "asyncpq": {"memory_cache_bytes": 1 << 20}}
    with fsspec.open("asyncpq::s3://bucket/trips.parquet", "rb", **options) as file:
        assert pq.ParquetFile(file).read().equals(TABLE)
        assert file.fs.unstrip_protocol(file.path) == "asyncpq://s3://bucket/trips.parquet"
    other, path = fsspec.core.url_to_fs(f"asyncpq::{server.endpoint}/{TRIPS}")
    assert (path, other.cat_file(path)) == (f"{server.endpoint}/{TRIPS}", DATA)


def test_local_files(tmp_path: Path) -> None:
    (tmp_path / "trips.parquet").write_bytes(DATA)
    for url in (f"asyncpq::file://{tmp_path}/trips.parquet", f"asyncpq://{tmp_path}/trips.parquet"):
        filesystem, path = fsspec.core.url_to_fs(url)
        assert pq.read_table(path, filesystem=filesystem).equals(TABLE)
        assert filesystem.unstrip_protocol(path) == f"asyncpq://{tmp_path}/trips.parquet"


def test_pyarrow_datasets(filesystem: Filesystems, server: ObjectServer) -> None:
    lake = ds.dataset("bucket/lake", filesystem=filesystem(), partitioning="hive")
    assert len(requests(server)) == 5  # is it an object, is it a folder (twice), what is in it; and one footer
    condition = (pc.field("id") > 1500) & (pc.field("day") == 1)
    assert lake.to_table(columns=["id"], filter=condition)["id"].to_pylist() == list(range(1501, 2000))
    assert len(requests(server)) <= 1  # small files: all that is needed came with the tail
    assert lake.to_table(columns=["text"]).num_rows == 3000


def test_polars(filesystem: Filesystems) -> None:
    with filesystem().open(TRIPS) as file:
        assert pl.read_parquet(file, columns=["text"]).to_arrow()["text"].to_pylist() == TABLE["text"].to_pylist()


@pytest.mark.parametrize("target", [None, "s3"])
@pytest.mark.parametrize("name", ["lake/day=1/*.parquet", "lake/**/*.parquet", "trips.parquet"])
def test_duckdb(server: ObjectServer, target: str | None, name: str) -> None:
    server.put("bucket/lake/day=1/other.parquet", DATA)
    options: Any = {"target_protocol": "s3", "target_options": server.storage_options}
    filesystem = fsspec.filesystem("asyncpq", **(options if target else {"s3": server.storage_options}))
    with duckdb.connect() as connection:
        connection.register_filesystem(filesystem)
        url = f"asyncpq://bucket/{name}" if target else f"asyncpq://s3://bucket/{name}"
        found = connection.sql(f"select count(*), count(distinct filename) from read_parquet('{url}')").fetchall()
    own = filesystem.glob(f"s3://bucket/{name}")
    assert found == [(sum(pq.read_metadata(filesystem.open(path)).num_rows for path in own), len(own))]


def test_duckdb_reads_local_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number} a.parquet").write_bytes(DATA)
    with duckdb.connect() as connection:
        connection.register_filesystem(fsspec.filesystem("asyncpq"))
        for pattern, files in (("*.parquet", 2), ("0 a.parquet", 1)):
            found = connection.sql(f"select count(*) from read_parquet('asyncpq://{tmp_path}/{pattern}')").fetchall()
            assert found == [(files * TABLE.num_rows,)]


def test_modified(filesystem: Filesystems, server: ObjectServer) -> None:
    server.put("bucket/dated.parquet", DATA, modified=1_700_000_000)
    assert filesystem().modified("bucket/dated.parquet") == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    with pytest.raises(asyncpq.ObjectNotFoundError):
        filesystem().modified("bucket/none.parquet")


class Recorded(io.BytesIO):
    """The ranges that a reader reads."""

    ranges: list[tuple[int, int]]

    def read(self, length: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(length)
        self.ranges.append((start, self.tell()))
        return data


@pytest.mark.parametrize("seed", range(8))
def test_no_more_is_fetched_than_is_read(seed: int, filesystem: Filesystems, server: ObjectServer) -> None:
    """Beyond the tail, each byte that is fetched is one that pyarrow reads, and no range takes two requests."""
    choose = random.Random(seed)
    rows = choose.randint(1, 30_000)
    table = pa.table({f"c{at}": [choose.random() for _ in range(rows)] for at in range(choose.randint(1, 5))})
    data = parquet_bytes(table, row_group_size=choose.randint(500, 9_000), use_dictionary=False)
    server.put("bucket/random.parquet", data)
    columns = choose.sample(table.column_names, choose.randint(1, table.num_columns))
    pre_buffer = choose.random() < 0.5
    recorded = Recorded(data)
    recorded.ranges = []
    expected = pq.read_table(recorded, columns=columns, pre_buffer=pre_buffer)
    with filesystem().open("bucket/random.parquet") as file:
        assert pq.read_table(file, columns=columns, pre_buffer=pre_buffer).equals(expected)
    tail = max(0, len(data) - 65536)
    needed = {at for start, stop in recorded.ranges for at in range(start, min(stop, tail))}
    first, *others = (request.headers["range"].removeprefix("bytes=") for request in server.log)
    fetched = [at for text in others for at in range(int(text.split("-")[0]), int(text.split("-")[1]) + 1)]
    assert first == "-65536"
    assert len(fetched) == len(set(fetched)), "bytes are fetched once"
    assert set(fetched) == needed
    assert len(others) <= len({span for span in recorded.ranges if span[0] < tail})


# -- ranges ---------------------------------------------------------------------------------------


def test_ranges_are_merged(filesystem: Filesystems, server: ObjectServer) -> None:
    starts = list(range(1000, 200_000, 2000))
    reader = filesystem()
    found = reader.cat_ranges([TRIPS] * len(starts), starts, [start + 50 for start in starts])
    assert found == [DATA[start : start + 50] for start in starts]
    assert len(requests(server)) <= 2
    again = filesystem(requests=asyncpq.RequestOptions(gap_bytes=0))
    assert again.cat_ranges([TRIPS] * 3, [0, 10, 5000], [10, 20, 5010]) == [DATA[:10], DATA[10:20], DATA[5000:5010]]
    assert requests(server) == ["-65536", "0-19", "5000-5009"]


def test_ranges_are_slices(filesystem: Filesystems) -> None:
    reader = filesystem()
    size = len(DATA)
    for start, stop in [(None, None), (-10, None), (5, -5), (size - 3, size + 50), (size + 1, size + 5), (9, 3)]:
        assert reader.cat_file(TRIPS, start, stop) == DATA[start:stop], (start, stop)
    assert reader.cat_ranges([TRIPS, TRIPS], 3, 8) == [DATA[3:8]] * 2
    with pytest.raises(asyncpq.InvalidOptionError, match="different lengths"):
        reader.cat_ranges([TRIPS], [1, 2], [3, 4])


def test_ranges_of_many_objects(filesystem: Filesystems) -> None:
    reader = filesystem()
    found = reader.cat_ranges([TRIPS, "bucket/none", TRIPS], [0, 0, 4], [4, 4, 8])
    assert (found[0], found[2]) == (DATA[:4], DATA[4:8])
    assert isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        reader.cat_ranges([TRIPS, "bucket/none"], 0, 4, on_error="raise")


def test_caches(filesystem: Filesystems, server: ObjectServer, tmp_path: Path) -> None:
    first = filesystem(disk_cache=str(tmp_path))
    for _ in range(2):
        assert pq.read_table(TRIPS, filesystem=first).equals(TABLE)
    assert len(requests(server)) == len(set(requests(server))) + 2
    first.close()
    second = filesystem(disk_cache=str(tmp_path), cache_policy=asyncpq.immutable())
    assert pq.read_table(TRIPS, filesystem=second).equals(TABLE)
    assert requests(server) == []
    third = filesystem(disk_cache=str(tmp_path), cache_policy=asyncpq.etag(max_age_s=0))
    assert third.cat_file(TRIPS, -8) == b"".join([DATA[-8:]])
    assert set(requests(server)) == {f"{len(DATA) - 8}-{len(DATA) - 1}"}  # one asks whether the version is still there
    server.put(TRIPS, NEW)
    assert third.cat_file(TRIPS) == NEW


# -- one version ----------------------------------------------------------------------------------


def test_an_object_replaced_under_an_open_file(filesystem: Filesystems, server: ObjectServer) -> None:
    reader = filesystem()
    with reader.open(TRIPS) as file:
        assert file.read(100) == DATA[:100]
        server.put(TRIPS, NEW)
        with pytest.raises(asyncpq.ObjectChangedError, match="Open it again"):
            file.read(100)
    with reader.open(TRIPS) as file:
        assert file.read() == NEW
    server.delete(TRIPS)
    with pytest.raises(asyncpq.ObjectChangedError):
        file.fs.wait_for(file.fs.read, TRIPS, [(0, 5)], file.version)
    assert not reader.exists(TRIPS)


def test_ranges_of_a_replaced_object_begin_again(filesystem: Filesystems, server: ObjectServer) -> None:
    reader = filesystem()
    server.faults = [Fault(path="trips", replace_after=NEW)]  # once size and version are known
    assert reader.cat_file(TRIPS) == NEW
    assert reader.metrics.restarts == 1
    assert reader.size(TRIPS) == len(NEW)


def test_an_object_without_validators(filesystem: Filesystems, server: ObjectServer) -> None:
    server.faults = [Fault(etag="none", headers={"Last-Modified": None}, times=None)]
    reader = filesystem(target_protocol=None, target_options=None)
    path = f"{server.endpoint}/{TRIPS}"
    with reader.open(path) as file:
        assert pq.read_table(file).equals(TABLE)
    server.put(TRIPS, NEW)
    assert reader.cat_file(path) == NEW  # nothing was cached


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("fault", CATALOGUE)
def test_bytes_are_right_or_an_error_says_why(fault: str, filesystem: Filesystems, server: ObjectServer) -> None:
    other = bytes(reversed(DATA))
    scene = Scene(other=other, location=f"{server.endpoint}/{TRIPS}", elsewhere="http://127.0.0.1:1/x", drip_s=0.0001)
    quick = replace(FAST_TIMEOUTS, first_byte_timeout_s=0.2, stall_timeout_s=0.2)
    reader = filesystem(retry=quick, limits=asyncpq.LimitOptions(max_restarts=1))
    with reader.open(TRIPS) as file:
        server.faults = [CATALOGUE[fault](scene)]
        with contextlib.suppress(asyncpq.AsyncpqError):
            assert file.read(2000) == DATA[:2000]
            assert reader.cat_file(TRIPS, 5000, 9000) in (DATA[5000:9000], other[5000:9000])


def test_a_deadline(filesystem: Filesystems, server: ObjectServer) -> None:
    reader = filesystem(retry=asyncpq.RetryOptions(read_timeout_s=0.2))
    server.faults = [Fault(stall_headers=True, times=None)]
    with pytest.raises(asyncpq.DeadlineExceededError):
        reader.cat_file(TRIPS)
    server.faults = []
    assert reader.cat_file(TRIPS) == DATA


def test_a_refusal_is_no_absence(filesystem: Filesystems, server: ObjectServer) -> None:
    server.faults = [Fault(status=403, code="AccessDenied", times=None)]
    reader = filesystem()
    for ask in (reader.exists, reader.isfile, reader.isdir, reader.info, reader.ls, reader.find, reader.open):
        with pytest.raises(PermissionError):
            ask(TRIPS)


# -- what there is --------------------------------------------------------------------------------

KEYS = ["a/b/c.txt", "a/b/d.txt", "a/e.txt", "a b/f+g.txt", "top.txt", "z/ä.txt", "z/deep/er/file.txt"]


@pytest.mark.parametrize("kind", ["s3", "file", "memory"])
def test_listings_are_those_of_a_local_filesystem(
    kind: str, filesystem: Filesystems, server: ObjectServer, tmp_path: Path
) -> None:
    local, here = fsspec.filesystem("file"), str(tmp_path / "tree")
    root = {"s3": "root", "file": here, "memory": "/listings"}[kind]
    for key in KEYS:
        local.makedirs(os.path.dirname(f"{here}/{key}"), exist_ok=True)
        local.pipe(f"{here}/{key}", key.encode())
        server.put(f"root/{key}", key.encode())
        fsspec.filesystem("memory").pipe(f"/listings/{key}", key.encode())
    reader = filesystem(**({} if kind == "s3" else {"target_protocol": kind, "target_options": None}))

    def same(name: str, below: str, **options: object) -> None:
        theirs = [path.removeprefix(here) for path in getattr(local, name)(here + below, **options)]
        ours = [path.removeprefix(root) for path in getattr(reader, name)(root + below, **options)]
        assert sorted(ours) == sorted(theirs), (name, below, options)

    for below in ("", "/", "/a", "/z", "/a b"):
        same("ls", below, detail=False)
        same("find", below)
        same("find", below, maxdepth=2)
        same("find", below, maxdepth=1, withdirs=True)
    for pattern in ("/*", "/**", "/*/*.txt", "/a/**/*.txt", "/[ab]*/?.txt", "/none*"):
        same("glob", pattern)
    walked = [
        sorted((folder.removeprefix(at), sorted(folders), sorted(files)) for folder, folders, files in fs.walk(at))
        for fs, at in ((reader, root), (local, here))
    ]
    assert walked[0] == walked[1]
    for key in (*KEYS, "a", "a/b", "z/deep", "none", "a/none"):
        path, reference = f"{root}/{key}", f"{here}/{key}"
        for name in ("exists", "isfile", "isdir"):
            assert getattr(reader, name)(path) == getattr(local, name)(reference), (name, key)
        if local.isfile(reference):
            assert (reader.size(path), reader.cat(path)) == (local.size(reference), key.encode())
    with pytest.raises(FileNotFoundError):
        reader.info(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        reader.ls(f"{root}/none")
    reader.get(f"{root}/a", str(tmp_path / "copied"), recursive=True)
    assert (tmp_path / "copied" / "b" / "c.txt").read_bytes() == b"a/b/c.txt"


def test_infos(filesystem: Filesystems, server: ObjectServer) -> None:
    reader = filesystem()
    info = reader.info(TRIPS)
    etag = server.objects[TRIPS].etag
    assert {name: info[name] for name in ("name", "size", "type", "ETag")} == {
        "name": TRIPS,
        "size": len(DATA),
        "type": "file",
        "ETag": etag,
    }
    assert reader.ls(TRIPS) == [info]
    assert reader.info("s3://bucket/trips.parquet") == info
    server.put("bucket/empty", b"")
    assert (reader.size("bucket/empty"), reader.cat("bucket/empty")) == (0, b"")
    with reader.open("bucket/empty") as file:
        assert file.read() == b""


# -- where it is used -----------------------------------------------------------------------------


def test_threads(filesystem: Filesystems) -> None:
    reader = filesystem()

    def read(number: int) -> bool:
        columns = [["id"], ["text"], ["id", "text"]][number % 3]
        return bool(pq.read_table(TRIPS, filesystem=reader, columns=columns).equals(TABLE.select(columns)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))


def test_one_session_for_equal_options(server: ObjectServer) -> None:
    options: dict[str, Any] = {"target_protocol": "s3", "target_options": server.storage_options}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: AsyncpqFileSystem(**options), range(16)))
    assert len({id(filesystem) for filesystem in made}) == 1
    made[0].close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process(filesystem: Filesystems) -> None:
    reader = filesystem()
    file = reader.open(TRIPS)
    assert file.read(10) == DATA[:10]
    child = os.fork()
    if child == 0:
        with_bytes = file.read(10) == DATA[10:20] and reader.cat_file(TRIPS, 70, 90) == DATA[70:90]
        os._exit(0 if with_bytes else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert file.read(10) == DATA[10:20]


def test_pickled_files_are_the_same_version(filesystem: Filesystems, server: ObjectServer) -> None:
    reader = filesystem()
    with reader.open(TRIPS) as file:
        file.seek(40)
        pickled = pickle.dumps(file)
    server.log.clear()
    with pickle.loads(pickled) as file:
        assert requests(server) == []
        assert (file.tell(), file.size, file.read(7)) == (40, len(DATA), DATA[40:47])
        server.put(TRIPS, NEW)
        with pytest.raises(asyncpq.ObjectChangedError):
            file.read(7)
    with pickle.loads(pickled) as file:
        assert file.read(7) == DATA[40:47]  # the old version's, from memory
        with pytest.raises(asyncpq.ObjectChangedError):
            file.read(8)
    file.fs.close()


@pytest.mark.slow
def test_another_process(filesystem: Filesystems, tmp_path: Path) -> None:
    """As executors of Spark and workers of dask get files and filesystems."""
    reader = filesystem()
    path = tmp_path / "pickled"
    with reader.open(TRIPS) as file:
        path.write_bytes(pickle.dumps((reader, file)))
    code = (
        "import os, pickle, sys, pyarrow.parquet as pq\n"
        "fs, file = pickle.load(open(sys.argv[1], 'rb'))\n"
        f"print(pq.read_table({TRIPS!r}, filesystem=fs).num_rows, pq.read_table(file).num_rows, flush=True)\n"
        "os._exit(0)\n"  # at the end of a process, a thread of pyarrow may still hold a Python file, and aborts it
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["20000", "20000"])


async def test_async_style() -> None:
    async with ObjectServer() as server:
        server.put(TRIPS, DATA)
        options: dict[str, Any] = {"target_protocol": "s3", "target_options": server.storage_options}
        reader = AsyncpqFileSystem(asynchronous=True, skip_instance_cache=True, **options)
        file = await reader.open_async(TRIPS)
        assert (file.size, await file.read(4), await file.read(6)) == (len(DATA), b"PAR1", DATA[4:10])
        parts = await asyncio.gather(*[reader._cat_file(TRIPS, at, at + 9) for at in range(0, 9000, 100)])
        assert parts == [DATA[at : at + 9] for at in range(0, 9000, 100)]
        with pytest.raises(asyncpq.UsageError, match="open_async"):
            reader.open(TRIPS)
        with pytest.raises(asyncpq.UnsupportedStoreError):
            await reader.open_async(TRIPS, "wb")
        await reader._close()


async def test_a_cancelled_read_leaves_the_session_working() -> None:
    async with ObjectServer() as server:
        server.put(TRIPS, DATA)
        options: dict[str, Any] = {"target_protocol": "s3", "target_options": server.storage_options}
        reader = AsyncpqFileSystem(asynchronous=True, skip_instance_cache=True, **options)
        asked = asyncio.Event()

        def stall(request: LoggedRequest) -> Fault:
            asked.set()
            return Fault(stall_headers=True)

        server.faults = stall
        reading = asyncio.create_task(reader._cat_file(TRIPS))
        await asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        server.faults = []
        assert await reader._cat_file(TRIPS) == DATA
        await reader._close()


# -- what is refused ------------------------------------------------------------------------------

WRITES: dict[str, Callable[[AsyncpqFileSystem], object]] = {
    "open": lambda fs: fs.open("bucket/new", "wb"),
    "append": lambda fs: fs.open(TRIPS, "ab"),
    "pipe": lambda fs: fs.pipe("bucket/new", b"1"),
    "put": lambda fs: fs.put(__file__, "bucket/new"),
    "rm": lambda fs: fs.rm(TRIPS),
    "cp": lambda fs: fs.cp(TRIPS, "bucket/new"),
    "mv": lambda fs: fs.mv(TRIPS, "bucket/new"),
    "touch": lambda fs: fs.touch("bucket/new"),
    "mkdir": lambda fs: fs.mkdir("bucket/new"),
    "makedirs": lambda fs: fs.makedirs("bucket/new/er"),
    "pyarrow": lambda fs: pq.write_table(TABLE, "bucket/new", filesystem=fs),
    "pandas": lambda fs: pd.DataFrame({"a": [1]}).to_parquet("bucket/new", filesystem=fs),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_say_that_it_only_reads(write: str, filesystem: Filesystems, server: ObjectServer) -> None:
    with pytest.raises(asyncpq.UnsupportedStoreError, match="cannot write"):
        WRITES[write](filesystem())
    assert not [request for request in server.log if request.method not in ("GET", "HEAD")]


def test_unknown_options() -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="Did you mean 'memory_cache_bytes'"):
        AsyncpqFileSystem(memory_cach_bytes=1)
    with pytest.raises(asyncpq.InvalidOptionError, match="under its protocol"):
        AsyncpqFileSystem(endpoint="x")


def test_errors_and_reprs_show_no_secret(server: ObjectServer) -> None:
    reader = AsyncpqFileSystem(skip_instance_cache=True)
    with pytest.raises(FileNotFoundError) as caught:
        reader.open(f"{server.endpoint}/bucket/none?X-Amz-Signature=SECRET")
    assert "SECRET" not in f"{caught.value!s}{caught.value!r}{reader!r}"
    reader.close()


# -- open files: what is read ahead, and what is not -------------------------------------------------

NOISE = random.Random(1).randbytes(300_000)


class Fetched:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(NOISE)
        self.ranges.append((start, stop))
        return NOISE[start:stop]

    @property
    def bytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


@pytest.mark.parametrize("seed", range(30))
def test_reads_are_the_objects_bytes(seed: int) -> None:
    choose, fetched = random.Random(seed), Fetched()
    cache = ReadAhead(choose.choice([1000, 50_000]), fetched, len(NOISE))
    start = 0
    for _ in range(100):
        if choose.random() < 0.3:
            start = choose.randrange(len(NOISE) + 10)
        stop = start + choose.randrange(5000)
        assert cache._fetch(start, stop) == NOISE[start:stop]
        start = min(stop, len(NOISE))


@pytest.mark.parametrize("step", [1, 100, 8192, 50_000])
def test_a_run_of_small_reads_takes_few_fetches(step: int) -> None:
    fetched = Fetched()
    cache = ReadAhead(1 << 20, fetched, len(NOISE))
    whole = 20_000 if step == 1 else len(NOISE)
    assert b"".join(cache._fetch(at, at + step) for at in range(0, whole, step)) == NOISE[:whole]
    assert len(fetched.ranges) <= 20
    assert fetched.bytes <= 2 * whole
    assert fetched.ranges[-1][1] == len(NOISE) or fetched.bytes == fetched.ranges[-1][1]  # each byte once


def test_jumps_fetch_what_they_read() -> None:
    fetched = Fetched()
    cache = ReadAhead(1 << 20, fetched, len(NOISE))
    for start in (0, 100, 5000, 200, 100_000, 100_100, 7):
        cache._fetch(start, start + 50)
    assert fetched.bytes == 7 * 50
    cache._fetch(5, 5)
    cache._fetch(len(NOISE) + 1, len(NOISE) + 9)
    assert len(fetched.ranges) == 7


def test_lines(filesystem: Filesystems, server: ObjectServer) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    server.put("bucket/lines.txt", text.encode())
    with filesystem().open("bucket/lines.txt", "r") as file:
        assert "".join(file) == text
    assert len(requests(server)) < 20
    assert sum(request.sent for request in server.log) <= len(text)


def test_files_are_files(filesystem: Filesystems, server: ObjectServer) -> None:
    server.put("bucket/data", NOISE)
    with filesystem().open("bucket/data") as file, io.BytesIO(NOISE) as expected:
        for other in (file, expected):
            other.seek(-100, io.SEEK_END)
        assert (file.tell(), file.read()) == (expected.tell(), expected.read())
        buffer = bytearray(64)
        file.seek(1000)
        assert file.readinto(buffer) == 64
        assert buffer == NOISE[1000:1064]
        assert (file.seekable(), file.readable(), file.writable()) == (True, True, False)
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_other_caches_of_fsspec(filesystem: Filesystems, server: ObjectServer) -> None:
    server.put("bucket/data", NOISE)
    with filesystem().open("bucket/data", cache_type="readahead", block_size=10_000) as file:
        assert file.read(10) == NOISE[:10]
    assert requests(server) == ["-65536", "0-10009"]
