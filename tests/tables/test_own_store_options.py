"""Loaded tables are read with their own storage options: those of a pyiceberg table's io, with credentials that a REST
catalog may give for some time, and those of a DeltaTable."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import _registry
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

import asyncpq
from asyncpq import col
from asyncpq.errors import AccessDeniedError, CredentialsError, InvalidOptionError, StoreError
from asyncpq.tables.own_store import delta_options, iceberg_options, with_table_options
from asyncpq.testing import ObjectServer
from asyncpq.testing.object_server import Answer, LoggedRequest, error_answer

LOCATION = "s3://bucket/t"


def properties_of(server: ObjectServer) -> dict[str, str]:
    keys = {"s3.access-key-id": "k", "s3.secret-access-key": "hidden", "s3.region": "us-east-1"}
    return {"s3.endpoint": server.endpoint, "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO", **keys}


def served_table(server: ObjectServer, folder: Path, name: str) -> Table:
    """An Iceberg table that pyiceberg writes at LOCATION on a server. Its rows say ``name``."""
    folder.mkdir(exist_ok=True)
    server.buckets.add("bucket")
    catalog = SqlCatalog("sql", uri=f"sqlite:///{folder}/catalog.db", **properties_of(server))
    catalog.create_namespace("db")
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    plain = {"write.avro.compression-codec": "null"}
    table = catalog.create_table("db.events", schema, location=LOCATION, properties=plain)
    table.append(pa.table({"id": range(10), "name": [name] * 10}))
    return table


class RestCatalog:
    """A REST catalog with one table, which gives credentials with each load. The server takes the last ones only."""

    def __init__(self, server: ObjectServer, metadata_url: str) -> None:
        self.server = server
        self.metadata_url = metadata_url
        self.loads = 0
        self.gives = True  # other credentials each time
        self.fails = False
        server.before = self.check
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document: dict[str, Any] = {"defaults": {}, "overrides": {}}
                status = 200
                if "/tables/" in self.path:
                    status, document = catalog.load()
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def load(self) -> tuple[int, dict[str, Any]]:
        if self.fails:
            return 500, {"error": {"message": "no", "type": "ServerError", "code": 500}}
        self.loads += self.gives
        metadata = json.loads(self.server.objects[self.metadata_url.removeprefix("s3://")].data)
        config = {
            "s3.endpoint": self.server.endpoint,
            "s3.access-key-id": f"key{self.loads}",
            "s3.secret-access-key": "hidden",
            "s3.session-token": f"token{self.loads}",
            "s3.region": "us-east-1",
        }
        return 200, {"metadata-location": self.metadata_url, "metadata": metadata, "config": config}

    def expire(self) -> None:
        """Let the credentials expire that were given so far."""
        self.expired = self.loads

    expired = 0
    lifetime = 0  # requests after which credentials expire, as within seconds; 0: never
    _uses = 0

    def check(self, request: LoggedRequest) -> Answer | None:
        token = request.headers.get("x-amz-security-token", "")
        if not token.startswith("token"):
            return error_answer(403, "AccessDenied")
        if int(token[5:]) > self.expired and self.lifetime:
            self._uses += 1
            if self._uses % self.lifetime == 0:
                self.expire()
        return error_answer(400, "ExpiredToken") if int(token[5:]) <= self.expired else None

    def table(self) -> Table:
        uri = f"http://127.0.0.1:{self._http.server_port}"
        return load_catalog("rest", type="rest", uri=uri).load_table("db.events")


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with ObjectServer.in_thread() as server:
        catalog = RestCatalog(server, served_table(server, tmp_path, "rest").metadata_location)
        server.log.clear()
        yield catalog
        catalog.close()


async def names(dataset: asyncpq.Dataset, where: Any = None) -> list[str]:
    return list((await dataset.read(["name"], where=where))["name"].to_pylist())


async def test_vended_credentials_are_the_tables(rest: RestCatalog) -> None:
    table = await asyncio.to_thread(rest.table)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(table)
        assert await names(dataset) == ["rest"] * 10
        assert {request.headers["x-amz-security-token"] for request in rest.server.log} == {"token1"}
        assert rest.loads == 1


async def test_the_catalog_is_asked_again_when_credentials_expire(rest: RestCatalog) -> None:
    table = await asyncio.to_thread(rest.table)
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        dataset = await session.open_dataset(table)
        for number in range(1, 4):
            assert await names(dataset, col("id") >= number) == ["rest"] * (10 - number)
            assert rest.loads == number
            rest.expire()
        # many reads at once ask once
        found = await asyncio.gather(*[names(dataset, col("id") == number) for number in range(10)])
        assert found == [["rest"]] * 10
        assert rest.loads == 4
        # the table of the user is as it was
        assert table.io.properties["s3.session-token"] == "token1"


async def test_credentials_that_expire_within_a_read(rest: RestCatalog) -> None:
    """Every third request is one too many, whichever it is: of metadata, a footer or pages."""
    table = await asyncio.to_thread(rest.table)
    rest.lifetime = 3
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        dataset = await session.open_dataset(table)
        for number in range(10):
            assert await names(dataset, col("id") == number) == ["rest"]
        assert rest.loads > 5


async def test_a_table_that_was_loaded_later_brings_newer_credentials(rest: RestCatalog) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(await asyncio.to_thread(rest.table))
        assert await names(dataset) == ["rest"] * 10
        requests = len(rest.server.log)
        rest.expire()
        again = await session.open_dataset(await asyncio.to_thread(rest.table))
        assert await names(again) == ["rest"] * 10  # what was read of the table is still in the cache
        assert rest.loads == 2
        assert [request.path for request in rest.server.log[requests:] if request.path.endswith(".parquet")] == []
        assert (await again.lookup({"id": 5})).num_rows == 1


@pytest.mark.parametrize("fails", [True, False])
async def test_a_catalog_without_other_credentials(rest: RestCatalog, fails: bool) -> None:
    table = await asyncio.to_thread(rest.table)
    async with asyncpq.Session() as session:
        rest.expire()
        rest.fails, rest.gives = fails, False
        dataset = await session.open_dataset(table)
        with pytest.raises(CredentialsError, match=r"Iceberg table db\.events have expired") as caught:
            await dataset.read()
        assert "hidden" not in str(caught.value)
        rest.fails, rest.gives = False, True
        assert await names(dataset) == ["rest"] * 10


async def test_the_sessions_own_credentials_count_first(rest: RestCatalog) -> None:
    table = await asyncio.to_thread(rest.table)
    options = {"key": "own", "secret": "s", "token": "token99"}
    async with asyncpq.Session(options) as session:
        dataset = await session.open_dataset(table)
        assert await names(dataset) == ["rest"] * 10
        assert {request.headers["x-amz-security-token"] for request in rest.server.log} == {"token99"}
    async with asyncpq.Session({"endpoint_url": "http://127.0.0.1:1"}) as session:
        with pytest.raises(InvalidOptionError, match="another store"):
            await session.open_dataset(table)


@pytest.mark.parametrize("cache_namespace", [None, "shared"])
async def test_two_stores_with_the_same_urls_in_one_session(tmp_path: Path, cache_namespace: str | None) -> None:
    """Iceberg and Delta tables of one url in two stores are apart, in reads at once and in caches."""
    with ObjectServer.in_thread() as first, ObjectServer.in_thread() as second:
        tables: dict[str, Any] = {}
        for server, name in ((first, "first"), (second, "second")):
            tables[f"iceberg {name}"] = served_table(server, tmp_path / name, name)
            tables[f"delta {name}"] = delta(server, tmp_path / f"{name}-delta", name)
        async with asyncpq.Session(cache_namespace=cache_namespace) as session:
            for _ in range(2):
                datasets = await asyncio.gather(*[session.open_dataset(table) for table in tables.values()])
                found = await asyncio.gather(*[names(dataset) for dataset in datasets])
                assert dict(zip(tables, found, strict=True)) == {
                    name: [name.partition(" ")[2]] * len(rows) for name, rows in zip(tables, found, strict=True)
                }
                assert all(found)
            with pytest.raises(StoreError):  # the session's own store is neither
                await session.open_dataset("s3://bucket/t/", format="delta")


@pytest.mark.heavy
async def test_stores_of_keys_that_have_rotated_are_closed(tmp_path: Path) -> None:
    """A session lives longer than the keys of the tables that it opens; a table that is held goes on."""
    with ObjectServer.in_thread() as server:
        first = delta(server, tmp_path, "first")
        async with asyncpq.Session() as session:
            held = await session.open_dataset(first)
            life = session._runtime._life
            for number in range(6):
                options = {**(first._storage_options or {}), "AWS_ACCESS_KEY_ID": f"key{number}"}
                dataset = await session.open_dataset(DeltaTable("s3://bucket/d", storage_options=options))
                assert await names(dataset) == ["first", "first"]
                del dataset
                gc.collect()
            await asyncio.gather(*session._runtime._tasks)
            assert life.unused_stores == []
            assert len(life.scoped_stores) == 2  # the held one, and the last, which the next one would close
            assert await names(held) == ["first", "first"]


def delta(server: ObjectServer, folder: Path, name: str) -> DeltaTable:
    write_deltalake(folder, pa.table({"id": [1, 2], "name": [name, name]}))
    for path in folder.rglob("*"):
        if path.is_file():
            server.put(f"bucket/d/{path.relative_to(folder)}", path.read_bytes())
    options = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT_URL": server.endpoint,
    }
    return DeltaTable("s3://bucket/d", storage_options=options)


async def test_a_delta_table_is_asked_again_when_credentials_expire(tmp_path: Path) -> None:
    """The caller of a DeltaTable puts other ones into its dict; the session and the dataset stay open."""
    with ObjectServer.in_thread() as server:
        valid = "token1"

        def check(request: LoggedRequest) -> Answer | None:
            is_valid = request.headers.get("x-amz-security-token") == valid
            return None if is_valid else error_answer(400, "ExpiredToken")

        delta(server, tmp_path, "renewed")
        options = {
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "hidden",
            "AWS_SESSION_TOKEN": "token1",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT_URL": server.endpoint,
        }
        server.before = check
        async with asyncpq.Session(memory_cache_bytes=0) as session:
            dataset = await session.open_dataset(DeltaTable("s3://bucket/d", storage_options=options))
            assert await names(dataset) == ["renewed"] * 2
            valid = options["AWS_SESSION_TOKEN"] = "token2"
            found = await asyncio.gather(*[names(dataset, col("id") == number) for number in (1, 2)])
            assert found == [["renewed"]] * 2
            valid = "token3"
            with pytest.raises(CredentialsError, match="the DeltaTable gives the same ones") as caught:
                await names(dataset)
            assert "storage_options" in str(caught.value.hint)
            assert "hidden" not in str(caught.value)
            options["AWS_SESSION_TOKEN"] = valid
            assert await names(dataset) == ["renewed"] * 2


async def test_delta_tables_with_other_temporary_credentials_share_nothing(tmp_path: Path) -> None:
    """Nobody reads what the credentials of another may see: neither from caches nor with their token."""
    with ObjectServer.in_thread() as server:
        table = delta(server, tmp_path, "seen")
        server.before = lambda request: (
            None if request.headers.get("x-amz-security-token") == "good" else error_answer(403, "AccessDenied")
        )
        async with asyncpq.Session() as session:
            for token, sees in (("good", True), ("bad", False), ("good", True)):
                table._storage_options = {**(table._storage_options or {}), "AWS_SESSION_TOKEN": token}
                with contextlib.nullcontext() if sees else pytest.raises(AccessDeniedError):
                    assert await names(await session.open_dataset(table)) == ["seen"] * 2


# -- credentials of Google and Azure ---------------------------------------------------------------


class HttpError(Exception):
    """As gcsfs raises it: with a code."""

    code = 401


class ClientAuthenticationError(Exception):
    """As adlfs raises it."""

    status_code = 403


class Cloud(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """The interface of gcsfs and adlfs that matters here: objects for those who have the last token."""

    objects: ClassVar[dict[str, bytes]] = {}
    valid: ClassVar[str] = ""
    refusal: ClassVar[type[Exception]] = HttpError
    refused: ClassVar[int] = 0

    def __init__(self, token: str = "", sas_token: str = "", account_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.token = token or sas_token
        self.account = account_name

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.partition("://")[2]

    def _check(self) -> None:
        if self.token != Cloud.valid:
            Cloud.refused += 1
            raise Cloud.refusal(f"{self.token} has expired")

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        self._check()
        if path not in Cloud.objects:
            raise FileNotFoundError(path)
        return {"name": path, "type": "file", "size": len(Cloud.objects[path]), "etag": "e"}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._check()
        return Cloud.objects[path][start:end]


class CloudCatalog:
    """A catalog of one table, whose loads give a token each."""

    name = "cloud"
    properties: ClassVar[dict[str, str]] = {}

    def __init__(self, url: str, properties: Callable[[str], Mapping[str, str]]) -> None:
        self.url = url
        self.given = properties
        self.loads = 0

    def load_table(self, name: object) -> Table:
        self.loads += 1
        Cloud.valid = f"token{self.loads}"
        metadata = TableMetadataUtil.parse_raw(Cloud.objects[self.url.partition("://")[2]].decode())
        io = load_file_io(dict(self.given(Cloud.valid)))
        return Table(("db", "events"), metadata, self.url, io, self)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [True, False], ids=["with its time of expiry", "when it is refused"])
@pytest.mark.parametrize("protocol", ["gs", "az"])
async def test_tokens_of_google_and_azure_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, known: bool
) -> None:
    with ObjectServer.in_thread() as server:
        url = served_table(server, tmp_path, protocol).metadata_location.replace("s3://", f"{protocol}://")
        Cloud.objects = {  # urls of the same length, in metadata of Avro, too
            path: stored.data.replace(b"s3://", f"{protocol}://".encode()) for path, stored in server.objects.items()
        }
    Cloud.refusal, Cloud.refused = (HttpError if protocol == "gs" else ClientAuthenticationError), 0
    monkeypatch.setitem(_registry, protocol, Cloud)
    expires_ms = "9999999999999"

    def properties(token: str) -> dict[str, str]:
        if protocol == "gs":
            return {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": expires_ms}
        account = "account.dfs.core.windows.net"
        return {f"adls.sas-token.{account}": token, f"adls.sas-token-expires-at-ms.{account}": expires_ms}

    catalog = CloudCatalog(url, properties)
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        if known:
            expires_ms = "1"
        table = catalog.load_table("t")
        expires_ms = "9999999999999"
        dataset = await session.open_dataset(table)
        assert await names(dataset) == [protocol] * 10
        assert (catalog.loads, Cloud.refused) == (1 + known, 0)
        if known:
            return
        Cloud.valid = "another"
        assert await names(dataset) == [protocol] * 10
        assert catalog.loads == 2
        Cloud.valid = "yet another"
        found = await asyncio.gather(*[names(dataset, col("id") == number) for number in range(10)])
        assert found == [[protocol]] * 10
        assert catalog.loads == 3


@pytest.mark.parametrize("gives_same", [True, False])
async def test_tokens_that_are_valid_though_their_time_is_over_by_the_own_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_same: bool
) -> None:
    with ObjectServer.in_thread() as server:
        url = served_table(server, tmp_path, "gs").metadata_location.replace("s3://", "gs://")
        Cloud.objects = {path: stored.data.replace(b"s3://", b"gs://") for path, stored in server.objects.items()}
    Cloud.refusal, Cloud.refused = HttpError, 0
    monkeypatch.setitem(_registry, "gs", Cloud)

    def properties(token: str) -> dict[str, str]:
        if gives_same:
            Cloud.valid = token = "token1"
        return {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": "1"}

    catalog = CloudCatalog(url, properties)
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        dataset = await session.open_dataset(catalog.load_table("t"))
        assert await names(dataset) == ["gs"] * 10
        found = await asyncio.gather(*[names(dataset, col("id") == number) for number in range(10)])
        assert found == [["gs"]] * 10
        assert (catalog.loads, Cloud.refused) == (2, 0), "the catalog is asked once"
        Cloud.valid = "another"
        with pytest.raises(CredentialsError) if gives_same else contextlib.nullcontext():
            assert await names(dataset) == ["gs"] * 10


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "properties", "options"),
    [
        (
            "s3",
            {"s3.endpoint": "http://e", "client.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "r"},
            {"endpoint_url": "http://e", "key": "k", "secret": "s", "client_kwargs": {"region_name": "r"}},
        ),
        ("s3", {"s3.access-key-id": "k", "s3.session-token": "t"}, {}),  # the secret is in the environment
        ("s3", {"s3.anonymous": "true", "s3.region": "auto"}, {"anon": True}),
        (
            "s3",
            {"s3.force-virtual-addressing": "True", "s3.profile-name": "p"},
            {"config_kwargs": {"s3": {"addressing_style": "virtual"}}, "profile": "p"},
        ),
        ("s3", {"gcs.oauth2.token": "t"}, {}),
        (
            "gs",
            {"gcs.oauth2.token": "t", "gcs.project-id": "p", "gcs.service.host": "http://g"},
            {"token": "t", "project": "p", "endpoint_url": "http://g"},
        ),
        (
            "abfs",
            {"adls.account-name": "a", "adls.account-key": "k", "adls.account-host": "h"},
            {"account_name": "a", "account_key": "k", "account_host": "h"},
        ),
        ("az", {"adls.connection-string": "c", "adls.sas-token": "s"}, {"connection_string": "c", "sas_token": "s"}),
        ("abfs", {"adls.sas-token.a.dfs.core.windows.net": "s"}, {"account_name": "a", "sas_token": "s"}),
    ],
)
def test_names_of_pyicebergs_properties(protocol: str, properties: dict[str, str], options: dict[str, Any]) -> None:
    assert iceberg_options(protocol, properties) == options


@pytest.mark.parametrize(
    ("protocol", "given", "options"),
    [
        (
            "s3",
            {"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "r"},
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "r"}},
        ),
        ("s3", {"skip_signature": "true", "endpoint": "http://e"}, {"anon": True, "endpoint_url": "http://e"}),
        ("gs", {"google_service_account": "/key.json"}, {"token": "/key.json"}),
        ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "sas_token": "s"}, {"account_name": "a", "sas_token": "s"}),
    ],
)
def test_names_of_object_store(protocol: str, given: dict[str, str], options: dict[str, Any]) -> None:
    assert delta_options(protocol, given) == options


@pytest.mark.parametrize(
    ("session", "merged"),
    [
        ({}, {"key": "k", "secret": "s", "endpoint_url": "http://e", "client_kwargs": {"region_name": "r"}}),
        ({"key": "o", "secret": "p"}, {"key": "o", "secret": "p", "endpoint_url": "http://e"}),
        ({"s3": {"anon": True}}, {"anon": True, "endpoint_url": "http://e"}),
        ({"s3": {"obstore": {}}}, None),
        ({"client_kwargs": {"verify": False}}, {"key": "k", "client_kwargs": {"region_name": "r", "verify": False}}),
    ],
)
def test_a_sessions_options_count_first(session: Mapping[str, Any], merged: dict[str, Any] | None) -> None:
    own = {"key": "k", "secret": "s", "endpoint_url": "http://e", "client_kwargs": {"region_name": "r"}}
    found = with_table_options("s3", own, session)
    if merged is None:
        assert found is None
    else:
        assert found is not None
        assert found["s3"] == found["s3a"]
        assert merged.items() <= found["s3"].items()
        assert ("secret" in found["s3"]) is ("secret" in merged or "key" in merged)


def test_nothing_of_the_table_is_needed() -> None:
    assert with_table_options("s3", {}, {}) is None
    assert with_table_options("s3", {"key": "k", "secret": "s"}, {"key": "o"}) is None
