"""A loaded table that names another store than the session is refused, never read there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import StaticTable, Table
from pyiceberg.typedef import Record

import asyncpq
from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError
from asyncpq.indexing import Bounds
from asyncpq.storage.urls import safe_url
from asyncpq.tables.own_store import Settings, TableStore, check_store, delta_store, iceberg_store
from asyncpq.testing import ObjectServer
from tests.delta_tables import add, column, metadata, protocol
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import add_files, data_record, make_table, tagged
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows

URL = "s3://bucket/t"


KEYS = {"key": "a", "secret": "b"}
OBSTORE_KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}


def _deltalake_options(server: ObjectServer) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": str(server.storage_options["key"]),
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": server.endpoint,
    }


def _filled(server: ObjectServer, folder: Path, name: str) -> None:
    write_deltalake(folder, pa.table({"name": [name]}))
    for path in folder.rglob("*"):
        if path.is_file():
            server.put(f"bucket/t/{path.relative_to(folder)}", path.read_bytes())


async def test_a_delta_table_of_another_endpoint(tmp_path: Path) -> None:
    async with ObjectServer() as production, ObjectServer() as staging:
        _filled(production, tmp_path / "production", "production")
        _filled(staging, tmp_path / "staging", "staging")
        table = await asyncio.to_thread(DeltaTable, URL, None, _deltalake_options(production))
        options: dict[str, Any] = dict(staging.storage_options)
        async with asyncpq.Session({"s3": options}) as session:
            with pytest.raises(InvalidOptionError) as caught:
                await session.open_dataset(table)
            with pytest.raises(InvalidOptionError, match="another store"):
                await session.build_index(table, [Bounds()], at=str(tmp_path / "index"))
        text = str(caught.value)
        assert production.endpoint in text
        assert staging.endpoint in text
        assert "Session(storage_options=" in text
        assert "hidden" not in text
        async with asyncpq.Session(production.storage_options) as session:
            rows = await (await session.open_dataset(table)).read()
            assert rows.to_pylist() == [{"name": "production"}]


async def test_a_tables_endpoint_counts_before_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ObjectServer() as production, ObjectServer() as staging:
        _filled(production, tmp_path / "production", "production")
        _filled(staging, tmp_path / "staging", "staging")
        table = await asyncio.to_thread(DeltaTable, URL, None, _deltalake_options(production))
        monkeypatch.setenv("AWS_ENDPOINT_URL", staging.endpoint)
        async with asyncpq.Session() as session:
            rows = await (await session.open_dataset(table)).read()
            assert rows.to_pylist() == [{"name": "production"}]
            built = await session.build_index(table, [Bounds()], at=str(tmp_path / "index"))
            indexed = await session.open_dataset(table, index=str(tmp_path / "index"))
            assert (await indexed.lookup({"name": "production"})).num_rows == 1
            assert built.url
        assert staging.log == []


async def test_an_iceberg_table_of_another_endpoint(tmp_path: Path) -> None:
    async with ObjectServer() as staging, asyncpq.Session(staging.storage_options) as session:
        table = _iceberg_table(tmp_path, {"s3.endpoint": "http://production:9000", "s3.secret-access-key": "hidden"})
        with pytest.raises(InvalidOptionError, match=r"http://production:9000, not http://127") as caught:
            await session.open_dataset(table)
        assert "hidden" not in str(caught.value)


def _iceberg_table(folder: Path, properties: dict[str, str]) -> StaticTable:

    made = make_table(folder, pa.schema([("id", pa.int64())]))
    table = StaticTable.from_metadata(made.metadata_location, properties)
    table.metadata_location = "s3://bucket/t/metadata/0.metadata.json"
    return table


@pytest.mark.parametrize(
    ("table", "session"),
    [
        ({"AWS_ENDPOINT_URL": "http://p:9000"}, {"endpoint_url": "http://s:9000"}),
        ({"aws_endpoint_url_s3": "http://p:9000"}, {"client_kwargs": {"endpoint_url": "http://s:9000"}}),
        ({"endpoint": "http://p:9000"}, {"s3": {"endpoint_url": "http://p:9001"}}),
        ({"endpoint_url": "http://p:9000"}, {}),
        ({"AWS_ENDPOINT_URL": "http://p/a"}, {"endpoint_url": "http://p/b"}),
        ({}, {"endpoint_url": "http://s:9000"}),
        (None, {"endpoint_url": "http://s:9000"}),
    ],
)
def test_other_endpoints(table: Mapping[str, str] | None, session: Mapping[str, Any]) -> None:
    own = delta_store(URL, table)
    assert own is not None
    with pytest.raises(InvalidOptionError, match="another store"):
        check_store(own, session)


@pytest.mark.parametrize(
    ("table", "session"),
    [
        ({}, {}),
        (None, {"key": "a", "secret": "b", "client_kwargs": {"region_name": "eu-west-1"}}),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_REGION": "us-east-1"}, {"key": "a", "secret": "b"}),
        ({"AWS_ACCESS_KEY_ID": "x", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "us-east-1"}, KEYS),  # a key for an hour
        ({"access_key_id": "a"}, {"client_kwargs": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}}),
        ({"AWS_ENDPOINT_URL": "http://p", "AWS_REGION": "auto"}, {"endpoint_url": "http://p", **KEYS}),
        ({"AWS_ENDPOINT_URL": "http://p", "AWS_REGION": "us-east-1"}, {"endpoint_url": "http://p", **KEYS}),
        ({"AWS_REGION": "eu-west-1"}, KEYS),  # Amazon tells
        ({"AWS_REGION": "eu-west-1"}, {**KEYS, "client_kwargs": {"region_name": "eu-west-1"}}),
        ({"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a"}, {"obstore": {"region": "eu-west-1", **OBSTORE_KEYS}}),
        ({"AWS_ENDPOINT_URL": "http://p"}, {"obstore": {"endpoint": "http://p", **OBSTORE_KEYS}}),
        ({"AWS_ENDPOINT_URL": "http://P:9000/"}, {"endpoint_url": "http://p:9000"}),
        ({"AWS_ENDPOINT_URL": "https://p"}, {"s3": {"endpoint_url": "https://p:443"}}),
        ({"AWS_ENDPOINT_URL": "http://localhost:9"}, {"endpoint_url": "http://127.0.0.1:9"}),
        ({"AWS_ENDPOINT_URL": "http://s3.localhost.localstack.cloud:4566"}, {"endpoint_url": "http://localhost:4566"}),
        ({"AWS_ENDPOINT_URL": "https://bucket.s3.example.com"}, {"endpoint_url": "https://s3.example.com"}),
        ({"AWS_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com"}, {}),
    ],
)
def test_the_same_endpoint(table: Mapping[str, str] | None, session: Mapping[str, Any]) -> None:
    own = delta_store(URL, table)
    assert own is not None
    check_store(own, session)


def test_a_key_for_an_hour_of_a_catalog() -> None:
    properties = {"s3.access-key-id": "x", "s3.session-token": "t", "s3.region": "us-east-1"}
    own = iceberg_store(URL, properties)
    assert own is not None
    check_store(own, KEYS)
    other = iceberg_store(URL, {name: value for name, value in properties.items() if name != "s3.session-token"})
    assert other is not None
    with pytest.raises(InvalidOptionError, match="another access key"):
        check_store(other, KEYS)


@pytest.mark.parametrize(
    ("table", "session", "what"),
    [
        ({"AWS_ACCESS_KEY_ID": "x"}, KEYS, "the (DeltaTable|prop.*) names? another access key than the session[.]"),
        ({"access_key_id": "x"}, {"client_kwargs": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}}, "key"),
        ({"AWS_ACCESS_KEY_ID": "x"}, {"anon": True}, "access key"),
        ({"AWS_ACCESS_KEY_ID": "x"}, {}, "access key"),
        ({"AWS_ACCESS_KEY_ID": "x"}, {"obstore": OBSTORE_KEYS}, "access key"),
        ({"AWS_REGION": "eu-west-1"}, {**KEYS, "client_kwargs": {"region_name": "us-east-1"}}, "region"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, {**KEYS, "config_kwargs": {"region_name": "us-east-1"}}, "region"),
        ({"AWS_ENDPOINT_URL": "http://p", "region": "garage"}, {"endpoint_url": "http://p", **KEYS}, "region"),
        ({"AWS_REGION": "eu-west-1"}, {"obstore": {"aws_region": "us-east-1"}}, "eu-west-1, not us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://p"}, {"obstore": {"endpoint": "http://s"}}, "another store"),
        ({}, {"obstore": {"endpoint": "http://s"}}, "another store"),
    ],
)
def test_another_key_or_region(table: Mapping[str, str], session: Mapping[str, Any], what: str) -> None:
    names = {"aws_access_key_id": "s3.access-key-id", "access_key_id": "client.access-key-id"}
    names |= {"aws_region": "s3.region", "aws_default_region": "client.region", "region": "s3.region"}
    names |= {"aws_endpoint_url": "s3.endpoint"}
    properties = {names[name.lower()]: value for name, value in table.items()}
    for own in delta_store(URL, table), iceberg_store(URL, properties):
        if own is None:
            assert not table
            continue
        with pytest.raises(InvalidOptionError, match=what) as caught:
            check_store(own, session)
        text = str(caught.value)
        assert "Pass the same to Session(storage_options" in text
        assert '"x"' not in text
        assert "key_id" not in repr(own)


async def test_a_delta_table_with_another_key(tmp_path: Path) -> None:
    async with ObjectServer() as server:
        _filled(server, tmp_path / "t", "t")
        options = {**_deltalake_options(server), "AWS_ACCESS_KEY_ID": "another"}
        table = await asyncio.to_thread(DeltaTable, URL, None, options)
        async with asyncpq.Session(server.storage_options) as session:
            with pytest.raises(InvalidOptionError, match="another access key than the session"):
                await session.open_dataset(table)
            dataset = await session.open_dataset(URL, format="delta", version=table.version())
            assert await dataset.count() == 1


def test_the_environment_counts_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e:9000")
    own = delta_store(URL, None)
    assert own is not None
    check_store(own, {})
    check_store(own, {"endpoint_url": "http://e:9000"})
    with pytest.raises(InvalidOptionError, match="http://e:9000, not http://s"):
        check_store(own, {"endpoint_url": "http://s:9000"})


@pytest.fixture
def aws_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of AWS's configuration, which does not exist yet."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.mark.parametrize(
    "text", ["endpoint_url = http://f:9000", "services = mine\n[services mine]\ns3 =\n  endpoint_url = http://f:9000"]
)
def test_an_endpoint_in_the_file_of_aws_is_the_sessions_alone(aws_file: Path, text: str) -> None:
    aws_file.write_text(f"[default]\n{text}\n")
    own = delta_store(URL, None)
    assert own is not None
    with pytest.raises(InvalidOptionError, match="Amazon's own endpoint, not http://f:9000") as caught:
        check_store(own, {})
    assert "AWS_ENDPOINT_URL" in str(caught.value)
    check_store(own, {"obstore": {}})  # which does not read it either
    check_store(own, {"endpoint_url": "https://s3.amazonaws.com", **KEYS})
    named = delta_store(URL, {"endpoint_url": "http://f:9000"})
    assert named is not None
    check_store(named, {})


def test_variables_that_botocore_alone_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e:9000")
    own = delta_store(URL, None)
    assert own is not None
    ignore = {"ignore_configured_endpoint_urls": True}
    with pytest.raises(InvalidOptionError, match="http://e:9000, not Amazon's own endpoint"):
        check_store(own, {"config_kwargs": ignore})
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    with pytest.raises(InvalidOptionError, match="http://e:9000, not Amazon's own endpoint"):
        check_store(own, {})
    check_store(own, {"endpoint_url": "http://e:9000", **KEYS})


def _opened(options: Mapping[str, str]) -> None:
    options = {"allow_http": "true", "max_retries": "0", "AWS_REGION": "us-east-1", **options}
    DeltaTable(URL, storage_options={**options, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        (["AWS_ENDPOINT_URL_S3", "-AWS_ENDPOINT_URL"], []),
        (["-AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"], []),
        (["AWS_ENDPOINT_URL", "-AWS_ENDPOINT"], []),
        (["AWS_ENDPOINT", "-AWS_ENDPOINT_URL"], []),
        (["ENDPOINT_URL"], []),
        (["aws_endpoint_url"], []),
        (["-AWS_ENDPOINT_URL"], ["endpoint"]),
        (["AWS_ENDPOINT_URL_S3"], ["-endpoint_url"]),
        (["-AWS_ENDPOINT_URL_S3"], ["aws_endpoint_url_s3"]),
    ],
)
async def test_the_endpoint_that_deltalake_follows(
    monkeypatch: pytest.MonkeyPatch, variables: list[str], options: list[str]
) -> None:
    """deltalake asks the one server whose name here has no dash."""
    async with ObjectServer() as asked, ObjectServer() as other:

        def named(names: list[str]) -> dict[str, str]:
            return {name.lstrip("-"): (other if name[0] == "-" else asked).endpoint for name in names}

        for name, endpoint in named(variables).items():
            monkeypatch.setenv(name, endpoint)
        with pytest.raises((OSError, DeltaError)):
            await asyncio.to_thread(_opened, named(options))
        assert asked.log
        assert not other.log
        own = delta_store(URL, named(options))
        assert own is not None
        assert own.settings.endpoint == asked.endpoint


def test_the_endpoint_that_obstore_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e:9000")
    monkeypatch.setenv("AWS_ENDPOINT", "http://last:9000")
    monkeypatch.setenv("ENDPOINT_URL", "http://deltalake:9000")
    own = delta_store(URL, {"endpoint_url": "http://last:9000"})
    assert own is not None
    check_store(own, {"obstore": {}})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:9000")
    with pytest.raises(InvalidOptionError, match="http://p:9000, not http://s3:9000"):
        check_store(replace(own, settings=Settings("http://p:9000")), {"obstore": {"endpoint": "http://p:9000"}})


def test_a_setting_that_only_botocore_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e:9000")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    own = delta_store(URL, None)
    assert own is not None
    check_store(own, {})


@pytest.mark.parametrize(
    "properties",
    [
        {"s3.region": "us-east-1"},
        {"s3.access-key-id": "a"},
        {"client.access-key-id": "x", "client.session-token": "t"},
        {"s3.connect-timeout": "1"},
    ],
)
@pytest.mark.parametrize("file_io", [None, "pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"])
def test_an_iceberg_table_without_an_endpoint_is_amazons(properties: dict[str, str], file_io: str | None) -> None:
    own = iceberg_store(URL, {**properties, **({} if file_io is None else {"py-io-impl": file_io})})
    assert own is not None
    check_store(own, KEYS)
    with pytest.raises(InvalidOptionError, match="Amazon's own endpoint, not http://s:9000"):
        check_store(own, {"endpoint_url": "http://s:9000", **KEYS})


def test_the_endpoint_that_pyicebergs_io_follows(monkeypatch: pytest.MonkeyPatch, aws_file: Path) -> None:
    """pyarrow follows no variable; s3fs, like the session, follows variables and the file of AWS."""
    aws_file.write_text("[default]\n[profile p]\nendpoint_url = http://f:9000\n")
    by_fsspec = {"s3.region": "us-east-1", "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    own = iceberg_store(URL, {**by_fsspec, "s3.profile-name": "p"})
    assert own is not None
    check_store(own, {"endpoint_url": "http://f:9000", **KEYS})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://e:9000")
    own = iceberg_store(URL, by_fsspec)
    assert own is not None
    check_store(own, {})
    own = iceberg_store(URL, {"s3.region": "us-east-1"})
    assert own is not None
    with pytest.raises(InvalidOptionError, match="Amazon's own endpoint, not http://e:9000"):
        check_store(own, {})
    own = iceberg_store(URL, {"s3.region": "us-east-1", "py-io-impl": "mine.FileIO"})
    assert own is not None
    assert own.settings.endpoint is None


@pytest.mark.heavy
async def test_pyarrow_follows_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    for name in "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3":
        monkeypatch.setenv(name, "http://e:9000")
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        io = PyArrowFileIO({"s3.region": "us-east-1", "s3.proxy-uri": f"http://127.0.0.1:{port}"})
        with pytest.raises(OSError, match="bucket"):
            await asyncio.to_thread(io.new_input("s3://bucket/t").exists)
    assert all(b"amazonaws.com" in line for line in asked)
    assert asked


def test_an_iceberg_table_without_an_endpoint_is_azures() -> None:
    own = iceberg_store("abfss://container/t", {"adls.account-name": "a"})
    assert own is not None
    check_store(own, {"account_name": "a"})
    with pytest.raises(InvalidOptionError, match="Azure's own endpoint, not 127"):
        check_store(own, {"account_name": "a", "account_host": "127.0.0.1:10000"})


def test_azure_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = delta_store("az://container/t", {"AZURE_STORAGE_ACCOUNT_NAME": "production"})
    assert own is not None
    check_store(own, {"account_name": "production"})
    check_store(own, {"connection_string": "AccountName=production;AccountKey=hidden"})
    for options in {"account_name": "staging"}, {"connection_string": "A=b;AccountName=staging;AccountKey=hidden"}:
        with pytest.raises(InvalidOptionError, match="the account production, not the account staging") as caught:
            check_store(own, options)
        assert "hidden" not in str(caught.value)
    check_store(own, {})
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "staging")
    with pytest.raises(InvalidOptionError, match="another store"):
        check_store(own, {})
    iceberg = iceberg_store("abfss://container/t", {"adls.connection-string": "AccountName=production"})
    assert iceberg is not None
    with pytest.raises(InvalidOptionError, match="another store"):
        check_store(iceberg, {"account_name": "staging"})


@pytest.mark.parametrize(
    ("table", "session"),
    [
        ({"azure_storage_endpoint": "http://127.0.0.1:10000/a"}, {}),
        ({"azure_storage_use_emulator": "true"}, {}),
        ({}, {"account_host": "127.0.0.1:10000"}),
        ({}, {"connection_string": "AccountName=a;BlobEndpoint=http://127.0.0.1:10000/a;"}),
        ({"endpoint": "http://127.0.0.1:10000/a"}, {"obstore": {"azure_endpoint": "http://127.0.0.1:10001"}}),
    ],
)
def test_azure_endpoints(table: Mapping[str, str], session: Mapping[str, Any]) -> None:
    own = delta_store("az://container/t", {"account_name": "a", **table})
    assert own is not None
    with pytest.raises(InvalidOptionError, match="another store"):
        check_store(own, session)
    same = {"connection_string": "AccountName=a;BlobEndpoint=http://localhost:10000/a;"} if table else {}
    check_store(own, same)
    check_store(own, {"account_host": "localhost:10000"} if table else {"account_host": "a.blob.core.windows.net"})


def test_google_endpoints() -> None:
    own = iceberg_store("gs://bucket/t", {"gcs.service.host": "http://p:4443"})
    assert own is not None
    check_store(own, {"endpoint_url": "http://p:4443"})
    with pytest.raises(InvalidOptionError, match="not Google's own endpoint"):
        check_store(own, {})


def test_an_iceberg_table_without_an_endpoint_is_googles(monkeypatch: pytest.MonkeyPatch) -> None:
    own = iceberg_store("gs://bucket/t", {"gcs.oauth2.token": "x"})
    assert own is not None
    check_store(own, {})
    with pytest.raises(InvalidOptionError, match="Google's own endpoint, not http://s:4443"):
        check_store(own, {"endpoint_url": "http://s:4443"})
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://s:4443")
    own = iceberg_store("gs://bucket/t", {"gcs.oauth2.token": "x"})
    assert own is not None
    check_store(own, {"endpoint_url": "http://s:4443"})


@pytest.mark.parametrize(
    ("url", "properties"),
    [(URL, {}), (URL, {"gcs.project-id": "p"}), ("/local/t", {"s3.endpoint": "http://p"}), ("gs://b/t", {})],
)
def test_a_table_that_names_no_store(url: str, properties: Mapping[str, str]) -> None:
    assert iceberg_store(url, properties) is None
    assert delta_store(f"abfss://container@account.dfs.core.windows.net{url[:1]}", properties) is None


# -- where a table's metadata may say that its files are -------------------------------------------


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
