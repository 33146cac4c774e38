"""Listings that contain the files of tables."""

from __future__ import annotations

import asyncio
import gc
import shutil
import uuid
from pathlib import Path
from typing import Any

import deltalake
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
import asyncpq.polars
from asyncpq.cli.commands import app
from asyncpq.datasets.listing import Listing
from asyncpq.datasets.table_markers import find_table, folders_around
from asyncpq.indexing import Bounds
from asyncpq.storage.s3.store import S3Store
from asyncpq.testing import Fault, ObjectServer
from tests.datasets.test_listing import listing_of
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import make_table
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import obstore_options

ROWS = pa.table({"id": pa.array(range(100), pa.int64())})
DUCK = "ducklake-01926f2d-3f6b-7b3c-8a2e-0123456789ab.parquet"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["_delta_log/0.json", "part-0"], "Delta"),
        (["data/x", "metadata/v1.metadata.json"], "Iceberg"),
        (["data/x", "metadata/v1.gz.metadata.json"], "Iceberg"),
        (["data/x", "metadata/v1.metadata.json.gz"], "Iceberg"),
        (["data/x", "metadata/snap-1-1-a.avro"], "Iceberg"),
        (["data/x", "metadata/version-hint.text"], "Iceberg"),  # its metadata files are gone
        (["data/x", "metadata/9d2b2f4e-5c6a-4c0f-9a86-0f7f3f6f1a10-m12.avro"], "Iceberg"),
        ([".hoodie/hoodie.properties", "x"], "Hudi"),
        (["_spark_metadata/0", "x"], "Spark Structured Streaming"),
        ([DUCK], "DuckLake"),
        (["bucket-0/data-0.parquet", "schema/schema-0", "snapshot/snapshot-12"], "Paimon"),
        (["base_0000002_v0000012/000000_0", "delta_0000003_0000003_0000/000000_0"], "transactional Hive"),
        (["delta_0000001_0000002/000000_0"], "transactional Hive"),
        (["delete_delta_0000001_0000001_0001/bucket_00000"], "transactional Hive"),
        (["metadata/x.parquet", "x", "a/_delta_log/0.json", "_delta_log_/x", "m"], None),
        (
            [
                "x-m1.avro",
                "metadata/x.avro",
                "metadata/m1.avro",
                "metadata/sensor-m12.avro",
                "metadata/snap-shot.avro",
                "x.metadata.json.gz",
                "x.metadata.json.zst",
            ],
            None,
        ),
        (["ducklake-1.parquet", "x.metadata.json", "my_delta_log/0.json", "a.hoodie/x"], None),
        (
            [
                "snapshot/LATEST",
                "snapshot/x",
                "snapshot/snapshot-1.parquet",
                "snapshots/snapshot-1",
                "snapshot-1",
                "schema/schema-0",
            ],
            None,
        ),
        (["delta_20240101_20240102/x", "base_20240101/x", "my_base_0000001/x", "base_0000001", "delta_01/x"], None),
    ],
)
@pytest.mark.parametrize("depth", ["", "a/", "a/day=1/b/"])
def test_tables_are_noticed(names: list[str], expected: str | None, depth: str) -> None:
    urls = [f"s3://b/t/{depth}{name}" for name in names]

    def found(listing: Listing) -> tuple[str, str, bool] | None:
        table = listing.table
        return None if table is None else (table.format, table.url, table.is_whole)

    folder = f"s3://b/t/{depth}"
    assert found(listing_of("s3://b/t", urls)) == (expected and (expected, folder, not depth))
    assert found(listing_of("s3://b/t/**", urls)) == (expected and (expected, folder, False))
    assert found(listing_of("s3://b/*/**", urls)) == (expected and (expected, folder, False))


def test_patterns_that_leave_tables_out() -> None:
    urls = ["s3://b/t/d/_delta_log/0.json", "s3://b/t/d/x.parquet", "s3://b/t/f/x.parquet", "s3://b/t/d2/x.parquet"]
    for pattern in ("s3://b/t/f/*.parquet", "s3://b/t/[ef]/*", "s3://b/t/d2/*", "s3://b/t/{f,d2}/"):
        assert listing_of(pattern, urls).table is None
    table = listing_of("s3://b/t/*/*.parquet", urls).table
    assert table is not None
    assert table.url == "s3://b/t/d/"


def test_paths_without_a_folder() -> None:
    table = find_table("", ["_delta_log/0.json", "x.parquet"], ["x.parquet"], whole=False)
    assert table is not None
    assert (table.format, table.url) == ("Delta", "")


def test_a_table_without_files_is_named() -> None:
    table = listing_of("s3://b/t", ["s3://b/t/_delta_log/0.json"]).table
    assert table is not None
    assert table.is_whole


def test_a_folder_of_metadata_names_its_table() -> None:
    table = listing_of("s3://b/t/metadata", ["s3://b/t/metadata/v1.metadata.json"]).table
    assert table is not None
    assert (table.url, table.is_whole) == ("s3://b/t/", False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of tables of 100 rows, 10 of which are deleted; each below a folder of its own."""
    root = tmp_path_factory.mktemp("tables")
    delta = root / "delta/deep/t"
    deltalake.write_deltalake(delta, ROWS)
    deltalake.DeltaTable(delta).delete("id < 10")
    (root / "iceberg").mkdir()
    iceberg = make_table(root / "iceberg", ROWS.schema)
    iceberg.append(ROWS)
    iceberg.delete("id < 10")
    hudi = root / "hudi/t"
    (hudi / ".hoodie").mkdir(parents=True)
    (hudi / ".hoodie/hoodie.properties").touch()
    pq.write_table(ROWS, hudi / "x.parquet")
    paimon = root / "paimon/t"
    for folder in ("snapshot", "manifest", "bucket-0", "k=1/bucket-0"):
        (paimon / folder).mkdir(parents=True)
    (paimon / "snapshot/snapshot-1").touch()
    (paimon / "manifest/manifest-list-0").touch()
    for folder in ("bucket-0", "k=1/bucket-0"):
        pq.write_table(ROWS, paimon / folder / "data-0.parquet")
    (root / "ducklake").mkdir()
    with Lake(root / "ducklake") as lake:
        lake.sql("CREATE TABLE t (id BIGINT)")
        lake.sql("INSERT INTO t SELECT * FROM range(100)")
        lake.sql("DELETE FROM t WHERE id < 10")
    (root / "ducklake/catalog.sqlite").unlink()
    return {
        "delta": delta,
        "iceberg": Path(iceberg.location().removeprefix("file://")),
        "hudi": hudi,
        "paimon": paimon,
        "ducklake": next(path.parent for path in (root / "ducklake").rglob("ducklake-*.parquet")),
    }


@pytest.mark.parametrize("name", ["delta", "iceberg", "hudi", "paimon", "ducklake"])
@pytest.mark.parametrize("pattern", ["", "/", "/**/*.parquet", "/**", "/*/**/*.parquet", "/**/"])
async def test_folders_and_patterns_around_a_table(tables: dict[str, Path], name: str, pattern: str) -> None:
    parent = next(path for path in tables[name].parents if path.name == name)
    async with asyncpq.Session() as session:
        for on_bad_file in ("raise", "skip"):
            with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
                await session.open_dataset(f"{parent}{pattern}", on_bad_file=on_bad_file)
            assert f"{tables[name]}/" in caught.value.message
            hint = caught.value.hint
            assert hint is not None
            assert ".parquet" not in hint
            if name in ("delta", "iceberg"):
                assert f'open {tables[name]}/ with format="{name}"' in hint
                table = await session.open_dataset(f"{tables[name]}/", format="delta" if name == "delta" else "iceberg")
                assert await table.count() == 90
        files = sorted(map(str, parent.rglob("*.parquet")))  # which their caller knows
        assert await (await session.open_dataset(files, on_bad_file="skip")).count() >= 100


@pytest.mark.parametrize("name", ["delta", "iceberg", "hudi", "paimon", "ducklake"])
def test_counting_around_a_table(tables: dict[str, Path], name: str) -> None:
    parent = next(path for path in tables[name].parents if path.name == name)
    for url in (parent, f"{parent}/**/*.parquet", f"{tables[name]}/**/*.parquet"):
        done = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["count", str(url)])
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{tables[name]}/" in done.stderr
        assert "*.parquet" not in done.stderr.replace(str(url), "")


async def test_every_file_if_asked(tables: dict[str, Path]) -> None:
    parent = next(path for path in tables["iceberg"].parents if path.name == "iceberg")
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.NotParquetError) as caught:
            await session.open_dataset(parent, format="parquet")
        assert "*.parquet" not in (caught.value.hint or "")
        dataset = await session.open_dataset(f"{parent}/**/*.parquet", format="parquet")
        assert await dataset.count() > 100


async def test_files_that_become_a_table(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "0.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        assert await dataset.count() == 100
        deltalake.convert_to_deltalake(tmp_path)
        with pytest.raises(asyncpq.InvalidOptionError, match="belong to a Delta table"):
            await dataset.count()


INSIDE = [  # patterns and folders inside of a table, whose listings pass none of its markers
    ("delta", "/part-*.parquet"),
    ("delta", "/{part-0,part-1}*.parquet"),
    ("partitioned", "/k=*/"),
    ("partitioned", "/k=*/**/*.parquet"),
    ("partitioned", "/k=[01]/l=*/*.parquet"),
    ("partitioned", "/k=0/"),
    ("partitioned", "/k=0"),
    ("partitioned", "/k=0/l=1/*.parquet"),
    ("partitioned", "/{k=0,k=1}/l=1/"),
    ("partitioned", "/k=0/l=1/part-*.parquet"),
    ("iceberg", "/data/"),
    ("iceberg", "/data"),
    ("iceberg", "/data/*.parquet"),
    ("iceberg", "/data/0*.parquet"),
    ("iceberg", "/d*/*.parquet"),
    ("hudi", "/x*.parquet"),
    ("hudi", "/2024/01/"),
    ("hudi", "/2024/*/*.parquet"),
    ("hudi", "/2024/01/x*.parquet"),
    ("paimon", "/bucket-0/"),
    ("paimon", "/bucket-*/*.parquet"),
    ("paimon", "/k=1/bucket-0/data-*"),
    ("paimon", "/k=*/"),
]


@pytest.fixture(scope="module")
def insides(tables: dict[str, Path]) -> dict[str, Path]:
    """Tables as in ``tables``, a Delta table with partitions, and a Hudi table with folders by date."""
    partitioned = tables["delta"].parent.parent / "partitioned"
    rows = ROWS.append_column("k", [[n % 2 for n in range(100)]]).append_column("l", [[n % 3 for n in range(100)]])
    deltalake.write_deltalake(partitioned, rows, partition_by=["k", "l"])
    deltalake.DeltaTable(partitioned).delete("id < 10")
    day = tables["hudi"] / "2024/01"
    day.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS, day / "x.parquet")
    (day / ".hoodie_partition_metadata").touch()
    return {**tables, "partitioned": partitioned}


@pytest.mark.parametrize(("name", "inside"), INSIDE)
async def test_patterns_inside_of_a_table(insides: dict[str, Path], name: str, inside: str) -> None:
    url = f"{insides[name]}{inside}"
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
            await session.open_dataset(url)
        assert str(insides[name]) in str(caught.value)
        with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
            await session.build_index(url, [Bounds()], at=f"{insides[name]}-index")
        assert await (await session.open_dataset(url, format="parquet")).count() > 0


@pytest.mark.parametrize("store", ["s3", "s3-small-pages", "obstore", "memory"])
async def test_patterns_inside_of_a_table_in_stores(insides: dict[str, Path], store: str) -> None:
    async with ObjectServer() as server:
        options: dict[str, Any] = {}
        root, filesystem = "s3://bucket/lake", fsspec.filesystem("memory")
        if store == "memory":
            root = f"memory://{uuid.uuid4().hex}/lake"
        elif store == "obstore":
            options = {"s3": obstore_options(server, "s3")}
        else:
            options = {"s3": server.storage_options}
        for name, folder in insides.items():
            for path in folder.rglob("*"):
                if path.is_file():
                    key = f"{name}/{path.relative_to(folder)}"
                    if store == "memory":
                        filesystem.pipe_file(f"{root}/{key}", path.read_bytes())
                    else:
                        server.put(f"bucket/lake/{key}", path.read_bytes())
        if store == "s3-small-pages":
            server.page_keys = 3
        for name, inside in INSIDE:
            async with asyncpq.Session(options) as session:
                with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced") as caught:
                    await session.open_dataset(f"{root}/{name}{inside}")
                assert f"{root}/{name}/" in str(caught.value)


async def test_what_the_look_around_costs() -> None:
    content = parquet_bytes(ROWS)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        for key in ("x/part-0.parquet", "x/part-1.parquet", "y/k=1/0.parquet", "data/z/0.parquet"):
            server.put(f"bucket/lake/{key}", content)
        for url, listings in (
            ("lake/x/", 1),
            ("lake/x/*.parquet", 1),
            ("lake/**/*.parquet", 1),
            ("lake/x/part-*.parquet", 2),
            ("lake/x/part-[01].parquet", 1),  # seen before
            ("lake/y/k=*/", 2),
            ("lake/y/k=1/", 1),
            ("lake/data/z/", 2),
        ):
            dataset = await session.open_dataset(f"s3://bucket/{url}")
            assert dataset.opening is not None
            assert dataset.opening.requests_by_purpose["list"] == listings, url
            assert await dataset.count() >= 100
            again = await session.open_dataset(f"s3://bucket/{url}")
            assert again.opening is not None
            assert again.opening.requests_by_purpose["list"] == 1
            assert {record.round for record in dataset.opening.log if record.purpose == "list"} == {1}
        plain = await session.open_dataset("s3://bucket/lake/y/k=*/", format="parquet")
        assert plain.opening is not None
        assert plain.opening.requests_by_purpose["list"] == 1


async def test_a_store_that_refuses_the_look_around() -> None:
    data = parquet_bytes(ROWS)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        server.put("bucket/x/part-0.parquet", data)
        refused = Fault(status=403, code="AccessDenied")
        server.faults = lambda request: refused if "delimiter" in request.target else Fault()
        for _ in range(2):
            dataset = await session.open_dataset("s3://bucket/x/part-*.parquet")
            assert await dataset.count() == 100
        assert sum("delimiter" in request.target for request in server.log) == 1  # and none for the second


async def test_a_look_around_that_fails_beside_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both fail as the session is closed: no error is left for asyncio to log."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise asyncpq.UsageError("the session is closed")

    async def refuse_later(*_: Any, **__: Any) -> Any:
        for _turn in range(9):
            await asyncio.sleep(0)
        await refuse()

    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    monkeypatch.setattr(S3Store, "first_names", refuse)
    monkeypatch.setattr(S3Store, "list_objects", refuse_later)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        with pytest.raises(asyncpq.UsageError, match="closed"):
            await session.open_dataset("s3://bucket/x/part-*.parquet")
    gc.collect()
    assert logged == []


async def test_a_folder_that_is_a_table_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake.write_deltalake(tmp_path / "t", ROWS)
    (file,) = (tmp_path / "t").glob("*.parquet")
    monkeypatch.chdir(tmp_path / "t")
    async with asyncpq.Session() as session:
        for url in (f"{file.name[:5]}*.parquet", f"./{file.name[:5]}*", f"file://{tmp_path}/t/{file.name[:5]}*"):
            with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
                await session.open_dataset(url)
        assert await (await session.open_dataset(file)).count() == 100  # one file: its caller's choice
        shutil.rmtree("_delta_log")
        assert await (await session.open_dataset(f"{file.name[:5]}*.parquet")).count() == 100


@pytest.mark.parametrize(("name", "inside"), [("delta", "/part-*.parquet"), ("iceberg", "/data/"), ("hudi", "/x*")])
def test_other_doors_refuse_patterns_inside_of_a_table(insides: dict[str, Path], name: str, inside: str) -> None:
    url, table = f"{insides[name]}{inside}", f"{insides[name]}/"
    for command in (
        ["count", url],
        ["query", url, "--limit", "1"],
        ["lookup", url, "--key", "id=1"],
        ["index", "build", url, "--at", "i"],
    ):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert table in done.stderr
        assert "pass format=" not in done.stderr
        assert "pattern of" not in done.stderr
        if name != "hudi":
            assert f"To read the table, name {table}." in done.stderr
    with pytest.raises(asyncpq.InvalidOptionError, match="deleted or replaced"):
        asyncpq.polars.scan(url).collect()


@pytest.mark.parametrize(
    ("prefix", "folders"),
    [
        ("s3://b/t/x/", []),
        ("s3://b/t/x/p", ["s3://b/t/x/"]),
        ("s3://b/", []),
        ("s3://b", []),
        ("s3://b/p", ["s3://b/"]),
        ("s3://data/k=1", ["s3://data/"]),
        ("s3://b/k=1/", ["s3://b/"]),
        ("s3://b/t/k=1/l=2/p", ["s3://b/t/k=1/l=2/", "s3://b/t/k=1/", "s3://b/t/"]),
        ("s3://b/t/data/01/k=1/", ["s3://b/t/data/01/", "s3://b/t/data/", "s3://b/t/"]),
        ("s3://b/t/data/0101/1/", ["s3://b/t/"]),
        ("s3://b/t/5G/k=1/", ["s3://b/t/5G/", "s3://b/t/"]),
        ("abfss://c@a.dfs.core.windows.net/t/k=1/", ["abfss://c@a.dfs.core.windows.net/t/"]),
        ("file:///t/k=1/", ["/t/"]),
        ("/t/k=1/p", ["/t/k=1/", "/t/"]),
        ("/", []),
        ("s3://b/" + "k=1/" * 100, [f"s3://b/{'k=1/' * n}" for n in range(99, 83, -1)]),
    ],
)
def test_folders_around(prefix: str, folders: list[str]) -> None:
    assert folders_around(prefix) == folders


async def test_a_table_with_many_names_before_its_markers() -> None:
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        server.page_keys = 5
        data = parquet_bytes(ROWS)
        for number in range(20):
            server.put(f"bucket/t/DAY={number}/0.parquet", data)
            server.put(f"bucket/t/metadata/9d2b2f4e-5c6a-4c0f-9a86-0f7f3f6f1a{number:02}-m0.avro", b"")
        server.put("bucket/t/metadata/v1.metadata.json", b"{}")
        with pytest.raises(asyncpq.InvalidOptionError, match="an Iceberg table, s3://bucket/t/"):
            await session.open_dataset("s3://bucket/t/DAY=1/")
