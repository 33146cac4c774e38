"""A table in a remote store cannot make the session read local files, other protocols, or other servers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import Table
from pyiceberg.typedef import Record

import asyncpq
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.storage.urls import safe_url
from asyncpq.tables.locations import TableStore
from asyncpq.testing import ObjectServer
from tests.delta_tables import add, column, metadata, protocol
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import add_files, data_record, tagged
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows


@pytest.mark.parametrize(
    ("own", "url"),
    [
        ("s3://bucket/t/v1.metadata.json", "s3://bucket/t/x.parquet"),
        ("s3://bucket/t", "s3a://other/x"),
        ("s3a://bucket/t", "S3://bucket/x"),
        ("gs://bucket/t", "gcs://other/x"),
        ("abfss://container@account/t", "abfs://other@account/x"),
        ("https://host:8443/t", "https://host:8443/elsewhere/x"),
        ("hdfs://name/t", "hdfs://name/x"),
        ("memory://t", "memory://x"),
        # a table on the machine itself is as trusted as the machine
        ("/tmp/t", "/elsewhere/x"),
        ("/tmp/t", "s3://bucket/x"),
        ("file:///tmp/t", "https://host/x"),
    ],
)
def test_files_of_the_same_store_are_allowed(own: str, url: str) -> None:
    TableStore.of("the table", own).check(url)


@pytest.mark.parametrize(
    ("own", "url"),
    [
        ("s3://bucket/t", "/etc/passwd"),
        ("s3://bucket/t", "etc/passwd"),
        ("s3://bucket/t", "~/.aws/credentials"),
        ("s3://bucket/t", "file:///etc/passwd"),
        ("s3://bucket/t", "LOCAL:///etc/passwd"),
        ("s3://bucket/t", "http://169.254.169.254/latest/meta-data"),
        ("s3://bucket/t", "https://host/x"),
        ("s3://bucket/t", "gs://bucket/x"),
        ("s3://bucket/t", "memory://x"),
        ("s3://bucket/t", "simplecache::s3://bucket/x"),
        ("s3://bucket/t", "filecache::file:///etc/passwd"),
        ("memory://t", "file:///etc/passwd"),
        ("https://host/t", "http://host/x"),
        ("https://host/t", "https://other/x"),
        ("https://host/t", "https://host:9000/x"),
        ("https://host/t", "https://host@other/x"),
        ("https://host/t", "https://other#@host/x"),
        ("https://host/t", "https://other\\@host/x"),
        ("abfss://container@account/t", "abfss://container@other/x"),
        ("hdfs://name/t", "hdfs://other/x"),
    ],
)
def test_files_of_another_store_are_refused(own: str, url: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="the table names a file of another store") as caught:
        TableStore.of("the table", own).check(url)
    assert caught.value.url == safe_url(own)
    assert caught.value.hint is not None


def test_the_error_shows_no_secret() -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        TableStore.of("the table", "s3://bucket/t").check("https://user:secret@host/x?token=secret")
    assert "secret" not in str(caught.value)


# -- in a store -----------------------------------------------------------------------------------

SECRET = pa.table({"id": pa.array([666], pa.int64()), "name": ["secret"]})


class MappedIO(PyArrowFileIO):
    """Keeps the objects of ``s3://lake/`` in the local folder that the property ``folder`` names. ``named`` gives the
    location that metadata write for a file."""

    named: Callable[[str], str] = staticmethod(str)

    def _local(self, location: str) -> str:
        return location.replace("s3://lake", self.properties["folder"], 1)

    def new_input(self, location: str) -> Any:
        return self._renamed(super().new_input(self._local(location)), location)

    def new_output(self, location: str) -> Any:
        return self._renamed(super().new_output(self._local(location)), location)

    def _renamed(self, file: Any, location: str) -> Any:
        file._location = MappedIO.named(location)
        return file


def iceberg_on_s3(folder: Path) -> Table:
    (folder / "lake").mkdir()
    properties = {"py-io-impl": f"{__name__}.MappedIO", "folder": f"{folder}/lake"}
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse="s3://lake/wh", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", ID_NAME_SCHEMA)
    file = folder / "lake" / "own.parquet"
    pq.write_table(tagged(id_name_rows(0, 3), table.schema()), file)
    add_files(table, [record(table, "s3://lake/own.parquet", file)], ManifestContent.DATA)
    return table


def record(table: Table, url: str, file: Path, **more: Any) -> DataFile:
    num_rows, size = pq.read_metadata(file).num_rows, file.stat().st_size
    return data_record(table, url, Record(), record_count=num_rows, file_size_in_bytes=size, **more)


def put(server: ObjectServer, place: str, path: Path) -> None:
    server.put(place, path.read_bytes())


def served(server: ObjectServer, folder: Path) -> None:
    """Put all files below ``folder`` into the bucket ``lake``."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(server, f"lake/{path.relative_to(folder).as_posix()}", path)


async def read_iceberg(folder: Path, table: Table, **options: Any) -> pa.Table:
    async with ObjectServer() as server:
        served(server, folder / "lake")
        async with (
            asyncpq.Session(server.storage_options) as session,
            await session.open_dataset(table.metadata_location, format="iceberg", **options) as dataset,
        ):
            return await dataset.read()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A Parquet file on the reader's own disk, with the columns and field ids of the table."""
    path = tmp_path / "secret.parquet"
    ids = [
        pa.field(name, SECRET.schema.field(name).type, metadata={"PARQUET:field_id": str(at)})
        for at, name in enumerate(SECRET.column_names, 1)
    ]
    pq.write_table(SECRET.cast(pa.schema(ids)), path)
    return path


async def test_an_iceberg_table_reads_files_of_its_store(tmp_path: Path) -> None:
    table = iceberg_on_s3(tmp_path)
    assert (await read_iceberg(tmp_path, table)).num_rows == 3


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "file:{}", "local://{}", "FILE://{}"])
async def test_an_iceberg_table_on_s3_reads_no_local_data_file(tmp_path: Path, secret: Path, spelled: str) -> None:
    table = iceberg_on_s3(tmp_path)
    add_files(table, [record(table, spelled.format(secret), secret)], ManifestContent.DATA)
    with pytest.raises(UnsupportedFeatureError, match=r"Iceberg table .* names a file of another store") as caught:
        await read_iceberg(tmp_path, table)
    assert str(secret) in str(caught.value)
    left = await read_iceberg(tmp_path, table, on_bad_file="skip")
    assert 666 not in left["id"].to_pylist()
    assert left.num_rows == 3


@pytest.mark.parametrize("what", ["data", "deletes"])
async def test_an_iceberg_table_on_s3_asks_no_other_server(tmp_path: Path, secret: Path, what: str) -> None:
    table = iceberg_on_s3(tmp_path)
    async with ObjectServer() as other:
        put(other, "x/x.parquet", secret)
        url = f"{other.storage_options['endpoint_url']}/x/x.parquet"
        if what == "data":
            add_files(table, [record(table, url, secret)], ManifestContent.DATA)
        else:
            add_files(table, [record(table, url, secret, content=DataFileContent.POSITION_DELETES)])
        with pytest.raises(UnsupportedFeatureError, match="another store"):
            await read_iceberg(tmp_path, table)
        assert other.log == []


async def test_an_iceberg_table_on_s3_reads_no_local_manifest_list(tmp_path: Path) -> None:
    table = iceberg_on_s3(tmp_path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    document = tmp_path / "lake" / table.metadata_location.removeprefix("s3://lake/")
    text = document.read_text(encoding="utf-8")
    document.write_text(text.replace(snapshot.manifest_list, snapshot.manifest_list.replace("s3://", f"{tmp_path}/")))
    with pytest.raises(UnsupportedFeatureError, match=r"another store, which is not allowed: .*/snap-"):
        await read_iceberg(tmp_path, table)


async def test_an_iceberg_table_on_s3_reads_no_local_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = iceberg_on_s3(tmp_path)
    own = tmp_path / "lake" / "own.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(MappedIO, "named", staticmethod(lambda location: location.replace("s3://lake", str(own.parent))))
        add_files(table, [record(table, "s3://lake/own.parquet", own)], ManifestContent.DATA)
    with pytest.raises(UnsupportedFeatureError, match=r"another store, which is not allowed: .*/added-"):
        await read_iceberg(tmp_path, table)


async def test_a_shallow_clone_reads_another_bucket(tmp_path: Path) -> None:
    table = iceberg_on_s3(tmp_path)
    own = tmp_path / "lake" / "own.parquet"
    add_files(table, [record(table, "s3://other/own.parquet", own)], ManifestContent.DATA)
    async with ObjectServer() as server:
        served(server, tmp_path / "lake")
        put(server, "other/own.parquet", own)
        async with asyncpq.Session(server.storage_options) as session:
            dataset = await session.open_dataset(table.metadata_location, format="iceberg")
            assert (await dataset.read()).num_rows == 6


# -- Delta and DuckLake ---------------------------------------------------------------------------


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "file:{}", "local://{}", "simplecache::file://{}"])
async def test_a_delta_table_on_s3_reads_no_local_file(tmp_path: Path, secret: Path, spelled: str) -> None:
    url = spelled.format(secret)
    actions = [protocol(), metadata(column("id", "long"), column("name", "string")), add(url)]
    async with ObjectServer() as server:
        server.put("lake/t/_delta_log/00000000000000000000.json", "\n".join(map(json.dumps, actions)).encode())
        async with asyncpq.Session(server.storage_options) as session:
            with pytest.raises(UnsupportedFeatureError, match="another store") as caught:
                await (await session.open_dataset("s3://lake/t", format="delta")).read()
    assert str(secret) in str(caught.value)


async def test_a_ducklake_on_s3_reads_no_local_file(tmp_path: Path, secret: Path) -> None:
    with Lake(tmp_path) as lake:
        lake.sql("CREATE TABLE t (id BIGINT, name VARCHAR)", "INSERT INTO t VALUES (1, 'a')")
        table = lake.table("t", data_path="s3://lake/data/")
        async with ObjectServer() as server:
            served(server, tmp_path)
            async with asyncpq.Session(server.storage_options) as session:
                assert (await (await session.open_dataset(table)).read()).num_rows == 1
                with closing(sqlite3.connect(lake.path)) as catalog, catalog:
                    catalog.execute("UPDATE ducklake_data_file SET path = ?, path_is_relative = 0", [str(secret)])
                with pytest.raises(UnsupportedFeatureError, match=r"DuckLake table main.t of .* another store"):
                    await (await session.open_dataset(lake.table("t", data_path="s3://lake/data/"))).read()
