"""What errors say to do about mistakes that new users make."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.blocking
from asyncpq.indexing import Keys
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.servers import self_signed
from tests.store_backends import FAST_RETRIES

DATA = parquet_bytes(pa.table({"id": [1, 2]}))
SECRET = "SECRETSECRET"
S3FS = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}  # by s3fs's own calls


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        for key in ("a.parquet", "sub/b.parquet"):
            running.put(f"bucket/lake/{key}", DATA)
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for key in ("a.parquet", "sub/b.parquet"):
        (tmp_path / "lake" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / key).write_bytes(DATA)
    return tmp_path / "lake"


async def failure(url: Any, options: Any = None, *, dataset: bool = False) -> tuple[asyncpq.AsyncpqError, int]:
    """The error of opening ``url`` and reading it, and how many requests it took."""
    async with asyncpq.Session(options, retry=FAST_RETRIES) as session:
        with pytest.raises(asyncpq.AsyncpqError) as caught:
            await (await session.open_dataset(url) if dataset else await session.open_file(url)).read()
        assert SECRET not in str(caught.value)
        return caught.value, session.metrics.requests


# -- names of options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aws_access_key_id", "key"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("aws_secret_access_key", "secret"),
        ("aws_session_token", "token"),
        ("aws_endpoint_url", "endpoint_url"),
        ("endpoint", "endpoint_url"),
        ("aws_region", 'client_kwargs={"region_name": ...}'),
        ("region", 'client_kwargs={"region_name": ...}'),
        ("skip_signature", "anon"),
        ("verify", 'client_kwargs={"verify": ...}'),
        ("allow_http", 'endpoint_url="http://..."'),
        ("force_path_style", 'config_kwargs={"s3": {"addressing_style": "path"}}'),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
async def test_names_that_other_libraries_have(server: ObjectServer, name: str, meant: str, nested: bool) -> None:
    options: dict[str, object] = {**server.storage_options, name: SECRET}
    error, _ = await failure("s3://bucket/lake/a.parquet", {"s3": options} if nested else options)
    assert isinstance(error, asyncpq.InvalidOptionError)
    assert name in error.message
    assert error.hint == f"Write {meant} for {name}."
    error, _ = await failure("s3://bucket/lake/", options, dataset=True)
    assert error.hint == f"Write {meant} for {name}."


async def test_all_names_at_once(server: ObjectServer) -> None:
    options = {"aws_access_key_id": SECRET, "aws_secret_access_key": SECRET, "aws_endpoint_url": SECRET}
    error, requests = await failure("s3://bucket/lake/a.parquet", options)
    assert error.hint == (
        "Write key for aws_access_key_id, secret for aws_secret_access_key, endpoint_url for aws_endpoint_url."
    )
    assert requests == 0


async def test_what_the_hints_say_reads(server: ObjectServer) -> None:
    options = {
        "key": "a",
        "secret": "b",
        "endpoint_url": server.endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    async with asyncpq.open_file("s3://bucket/lake/a.parquet", storage_options=options) as file:
        assert file.num_rows == 2


async def test_a_misspelt_option_of_s3(server: ObjectServer) -> None:
    error, _ = await failure("s3://bucket/lake/a.parquet", {**server.storage_options, "endpont_url": SECRET})
    assert isinstance(error, asyncpq.InvalidOptionError)
    assert error.hint == "Did you mean 'endpoint_url'?"


async def test_a_misspelt_option_inside_of_another(server: ObjectServer) -> None:
    inner = {**server.storage_options, "client_kwargs": {"region": SECRET}}
    error, _ = await failure("s3://bucket/lake/a.parquet", inner)
    assert "client_kwargs.region" in error.message
    assert error.hint == "Did you mean 'region_name'?"
    outer = {**server.storage_options, "client_kwarg": {"region_name": SECRET}}
    error, _ = await failure("s3://bucket/lake/a.parquet", outer)
    assert (error.hint or "").startswith("Did you mean 'client_kwargs'")


@pytest.mark.parametrize("inner", [False, True])
async def test_an_endpoint_without_a_scheme(server: ObjectServer, inner: bool) -> None:
    given = {"endpoint_url": server.endpoint.removeprefix("http://")}
    options = {"key": SECRET, "secret": SECRET, **({"client_kwargs": given} if inner else given)}
    error, requests = await failure("s3://bucket/lake/a.parquet", options)
    assert isinstance(error, asyncpq.InvalidOptionError)
    assert error.hint == 'Begin it with its scheme, such as "http://127.0.0.1:9000".'
    assert requests == 0


async def test_a_profile_that_is_not_there(server: ObjectServer) -> None:
    error, _ = await failure("s3://bucket/lake/a.parquet", {"profile": "nix", "endpoint_url": server.endpoint})
    assert isinstance(error, asyncpq.CredentialsError)
    assert (error.hint or "").startswith("Look for the profile")


async def test_flat_options_of_s3_beside_another_protocol(server: ObjectServer, lake: Path) -> None:
    options = {**server.storage_options, "key": SECRET}
    for url, dataset in (
        (lake / "a.parquet", False),
        (lake, True),
        (f"{server.endpoint}/bucket/lake/a.parquet", False),
    ):
        error, requests = await failure(url, options, dataset=dataset)
        assert isinstance(error, asyncpq.InvalidOptionError)
        assert error.hint is not None
        assert error.hint.endswith('per protocol: storage_options={"s3": {...}}.')
        assert requests == 0
        async with asyncpq.Session({"s3": options}) as session:
            opened = await session.open_dataset(url) if dataset else await session.open_file(url)
            assert await opened.count()
    error, _ = await failure(f"{server.endpoint}/bucket/lake/a.parquet", {"header": {"X-Key": SECRET}})
    assert error.hint == "Did you mean 'headers'?"


# -- hosts ----------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nothing listens, held so that no server of another test gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


@pytest.mark.parametrize("dataset", [False, True])
@pytest.mark.parametrize("extra", [{}, S3FS], ids=["direct", "s3fs"])
async def test_a_refused_port_of_s3(
    server: ObjectServer, extra: dict[str, object], dataset: bool, closed_port: int
) -> None:
    options = {**server.storage_options, **extra, "endpoint_url": f"http://127.0.0.1:{closed_port}"}
    url = "s3://bucket/lake/" if dataset else "s3://bucket/lake/a.parquet"
    error, requests = await failure(url, options, dataset=dataset)
    assert isinstance(error, asyncpq.TransportError)
    assert error.hint is not None
    assert "Check endpoint_url" in error.hint
    assert requests == FAST_RETRIES.max_attempts


async def test_a_refused_port_of_http(closed_port: int) -> None:
    error, requests = await failure(f"http://127.0.0.1:{closed_port}/a.parquet")
    assert isinstance(error, asyncpq.TransportError)
    assert error.hint == "No server listens on this port. Check the host and port of the url."
    assert requests == FAST_RETRIES.max_attempts


@pytest.fixture(params=[socket.EAI_NONAME, socket.EAI_AGAIN])
def resolution_error(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What name servers say to every name."""

    def getaddrinfo(*arguments: object, **options: object) -> object:
        raise socket.gaierror(request.param, "as the test says")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return int(request.param)


@pytest.mark.parametrize("kind", ["direct", "s3fs", "http", "dataset"])
async def test_an_unknown_host_is_asked_for_once(kind: str, resolution_error: int) -> None:
    extra = S3FS if kind == "s3fs" else {}
    options = {"s3": {"key": "a", "secret": "b", "endpoint_url": "http://no.such.host:9000", **extra}}
    url = {"http": "http://no.such.host/a.parquet", "dataset": "s3://bucket/lake/"}.get(kind, "s3://bucket/a.parquet")
    error, requests = await failure(url, options, dataset=kind == "dataset")
    assert isinstance(error, asyncpq.TransportError)
    assert error.hint is not None
    if resolution_error == socket.EAI_AGAIN:  # it may pass
        assert requests == FAST_RETRIES.max_attempts
        return
    assert requests == 1
    assert "the host no.such.host is unknown" in error.message
    assert ("Check the host" if kind == "http" else "Check endpoint_url") in error.hint


@pytest.mark.parametrize("status", [401, 403])
async def test_http_that_wants_credentials(server: ObjectServer, status: int) -> None:
    server.faults = lambda request: None if "authorization" in request.headers else Fault(status=status, code="")
    url = f"{server.endpoint}/bucket/lake/a.parquet"
    error, _ = await failure(url)
    assert isinstance(error, asyncpq.AccessDeniedError)
    assert "Authorization" in (error.hint or "")
    assert "s3:" not in str(error)
    options = {"http": {"headers": {"Authorization": f"Bearer {SECRET}"}}}
    async with asyncpq.open_file(url, storage_options=options) as file:
        assert file.num_rows == 2


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken", "SignatureDoesNotMatch"])
async def test_a_signed_url_that_is_refused(server: ObjectServer, code: str) -> None:
    server.faults = [Fault(status=403, code=code, times=None)]
    error, _ = await failure(f"{server.endpoint}/bucket/lake/a.parquet?X-Amz-Signature={SECRET}")
    assert isinstance(error, asyncpq.AccessDeniedError)
    assert "its signature may have expired: get a new one" in (error.hint or "")
    assert "storage_options" not in (error.hint or "")


@pytest.mark.parametrize("kind", ["direct", "s3fs", "http"])
async def test_an_archived_object(server: ObjectServer, kind: str) -> None:
    server.faults = [Fault(status=403, code="InvalidObjectState", times=None)]
    url = f"{server.endpoint}/bucket/lake/a.parquet" if kind == "http" else "s3://bucket/lake/a.parquet"
    options = {**server.storage_options, **(S3FS if kind == "s3fs" else {})}
    error, _ = await failure(url, {"s3": options})
    assert isinstance(error, asyncpq.AccessDeniedError)
    assert (error.hint or "").startswith("The object is archived (S3 Glacier): restore it first")


async def test_http_that_redirects_nowhere(server: ObjectServer) -> None:
    server.faults = [Fault(status=304, code="", times=None)]
    error, _ = await failure(f"{server.endpoint}/bucket/lake/a.parquet")
    assert isinstance(error, asyncpq.InvalidResponseError)
    assert error.hint == "Report it to the server's operator."


async def test_a_login_page(server: ObjectServer) -> None:
    server.put("bucket/login", b"<html><body>log in first</body></html>\n")
    error, _ = await failure(f"{server.endpoint}/bucket/login")
    assert isinstance(error, asyncpq.NotParquetError)
    assert (error.hint or "").startswith("It is a web page")


@pytest.mark.parametrize("name", ["lake/", "none/", "lake/*.parquet"])
async def test_many_files_over_http(server: ObjectServer, name: str) -> None:
    server.put("bucket/lake/", b"<html><body>a listing</body></html>\n")
    error, _ = await failure(f"{server.endpoint}/bucket/{name}", dataset=True)
    assert isinstance(error, asyncpq.NotParquetError | asyncpq.ObjectNotFoundError)
    assert (error.hint or "").startswith("HTTP has no listings: to read many files, pass a list of their urls")


# -- TLS ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def answering(answer: bytes, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Host and port of a server that answers whatever it is sent, and closes the connection."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0, ssl=context) as running:
        yield f"127.0.0.1:{running.sockets[0].getsockname()[1]}"


async def failure_at(place: str, kind: str) -> tuple[asyncpq.AsyncpqError, int]:
    """The error of a server at ``place``, a scheme with host and port."""
    options = {"key": "a", "secret": "b", "endpoint_url": place, **(S3FS if kind == "s3fs" else {})}
    return await failure(f"{place}/a" if kind == "http" else "s3://bucket/a", {"s3": options})


def write_instead(kind: str) -> str:
    """What a hint about the scheme says to write."""
    return "a url" if kind == "http" else "an endpoint_url"


#: What servers without TLS answer to its handshake.
_IN_CLEAR_TEXT = {"closed": b"", "400": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"}


@pytest.mark.parametrize(
    ("kind", "answer"), [("direct", "400"), ("s3fs", "400"), ("http", "400"), ("direct", "closed"), ("http", "closed")]
)
async def test_a_server_that_speaks_no_tls(kind: str, answer: str) -> None:
    async with answering(_IN_CLEAR_TEXT[answer]) as place:
        error, requests = await failure_at(f"https://{place}", kind)
    assert isinstance(error, asyncpq.TransportError)
    assert error.hint == f"The server may not support TLS: write {write_instead(kind)} that begins with http://."
    assert requests == 1 or answer == "closed"


#: What servers that expect TLS answer to a request in clear text.
_REFUSALS = {
    "closed": b"",
    "alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "Go": b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
    "nginx": b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>"
    b"<head><title>400 The plain HTTP request was sent to HTTPS port</title></head><body></body></html>",
}


@pytest.mark.parametrize("kind", ["direct", "s3fs", "http"])
@pytest.mark.parametrize("refusal", _REFUSALS)
async def test_a_server_that_expects_tls(kind: str, refusal: str) -> None:
    async with answering(_REFUSALS[refusal]) as place:
        error, requests = await failure_at(f"http://{place}", kind)
    if kind == "s3fs" and refusal != "closed":
        assert isinstance(error, asyncpq.StoreError)  # botocore drops the body
    else:
        hint = f"The server may expect TLS on this port: write {write_instead(kind)} that begins with https://."
        assert error.hint == hint
    if refusal != "closed" and kind != "s3fs":
        assert requests == 1


def tls_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed(folder))
    return context


async def test_a_tls_server_of_python(tmp_path: Path) -> None:
    async with answering(b"", tls_context(tmp_path)) as place:
        error, _ = await failure_at(f"http://{place}", "http")
    assert error.hint == "The server may expect TLS on this port: write a url that begins with https://."


@pytest.mark.parametrize("host", ["http://127.0.0.1:0", "https://localhost:00"])
async def test_port_0(host: str) -> None:
    for kind in ("http", "direct"):
        error, requests = await failure_at(host, kind)
        assert "port 0, on which no server listens" in error.message
        assert requests == 0


@pytest.mark.parametrize("kind", ["direct", "s3fs", "http"])
async def test_a_certificate_that_is_not_trusted(tmp_path: Path, kind: str) -> None:
    async with answering(b"", tls_context(tmp_path)) as place:
        error, requests = await failure_at(f"https://{place}", kind)
    assert isinstance(error, asyncpq.TransportError)
    assert "self-signed certificate" in error.message
    trust = '{"https": {"ssl": ' if kind == "http" else 'client_kwargs={"verify": "ca.pem"}'
    assert trust in (error.hint or "")
    assert requests == 1


# -- one file and many ----------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, S3FS], ids=["direct", "s3fs"])
@pytest.mark.parametrize("url", ["s3://bucket/lake", "s3://bucket/lake/", "s3://bucket", "s3://bucket/lake/*.parquet"])
async def test_a_prefix_as_one_file(server: ObjectServer, url: str, extra: dict[str, object]) -> None:
    options = {**server.storage_options, **extra}
    error, requests = await failure(url, options)
    assert error.hint is not None
    assert "Session.open_dataset" in error.hint
    assert requests <= 1
    async with asyncpq.Session(options) as session:
        dataset = await session.open_dataset(url if url.endswith(("/", "*.parquet")) else f"{url}/")
        assert await dataset.count()


async def test_a_folders_marker_as_one_file(server: ObjectServer) -> None:
    server.put("bucket/marked/", b"")
    error, _ = await failure("s3://bucket/marked/", server.storage_options)
    assert isinstance(error, asyncpq.NotParquetError)
    assert "Session.open_dataset" in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("{}/nothing.parquet", "Look for a mistyped folder or file."),
        ("file://{}/nothing", "Look for a mistyped folder or file."),
        ("{}/a.parquet?x=1", "Look for a mistyped folder or file. What follows `?` is part of its name."),
        ("file://{}/my%20trips.parquet", "stand for themselves: write a space, not %20"),
        ("{}/*.parquet", "Session.open_dataset"),
        ("memory://nothing", "Session.open_dataset"),
    ],
)
async def test_a_missing_file(lake: Path, name: str, hint: str) -> None:
    error, _ = await failure(name.format(lake))
    assert isinstance(error, asyncpq.ObjectNotFoundError)
    assert hint in (error.hint or "")


async def test_versions_say_what_they_may_be(lake: Path) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.InvalidOptionError, match='of a table, pass format="delta"'):
            await session.open_dataset(lake, version=0)
        with pytest.raises(asyncpq.InvalidOptionError, match=r"Pass an int, or a datetime, such as datetime\(2026"):
            await session.open_dataset(lake, format="delta", version="2026-05-01")


async def test_an_empty_url_is_not_the_working_directory() -> None:
    error, _ = await failure("")
    assert isinstance(error, asyncpq.InvalidOptionError)
    assert "must be a str or a path, and not empty" in str(error)


@pytest.mark.parametrize("name", ["", "/", "/*.parquet"])
async def test_a_folder_as_one_file(lake: Path, name: str) -> None:
    error, _ = await failure(f"{lake}{name}")
    assert isinstance(error, asyncpq.ObjectNotFoundError)
    assert "Session.open_dataset" in (error.hint or "")


async def test_many_urls_as_one(server: ObjectServer) -> None:
    for name in ("lake/", "lake/*.parquet"):
        error, _ = await failure(f"{server.endpoint}/bucket/{name}")
        assert "a list of their urls" in (error.hint or "")
    error, _ = await failure(f"{server.endpoint}/bucket/nothing.parquet")
    assert error.hint is None


@pytest.mark.parametrize("stray", ["0 notes.txt", "z.csv"])
@pytest.mark.parametrize("where", ["s3", "local"])
async def test_a_stray_file_below_a_prefix(server: ObjectServer, lake: Path, where: str, stray: str) -> None:
    server.put(f"bucket/lake/{stray}", b"some notes, and no Parquet at all")
    (lake / stray).write_bytes(b"some notes, and no Parquet at all")
    prefix = "s3://bucket/lake/" if where == "s3" else f"{lake}/"
    error, _ = await failure(prefix, server.storage_options if where == "s3" else None, dataset=True)
    assert isinstance(error, asyncpq.NotParquetError)
    pattern = f"{prefix}**/*.parquet"
    assert error.hint == (
        f'Name the files by a pattern, such as "{pattern}", or pass on_bad_file="skip" '
        "to leave out files that are not Parquet."
    )
    async with asyncpq.Session(server.storage_options if where == "s3" else None) as session:
        assert await (await session.open_dataset(pattern)).count() == 4
        assert await (await session.open_dataset(prefix, on_bad_file="skip")).count() == 4


@pytest.mark.parametrize("scheme", ["local", "s3", "http"])
@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("t/metadata/00001-a.metadata.json", 'with format="iceberg"'),
        ("t/metadata/v1.metadata.json.gz", 'with format="iceberg"'),
        ("t/_delta_log/00000000000000000000.json", 'has _delta_log, with format="delta"'),
        ("trips.csv", "Check that the url names a Parquet file"),
    ],
)
async def test_a_file_that_is_not_parquet_by_its_url(
    server: ObjectServer, tmp_path: Path, scheme: str, key: str, hint: str
) -> None:
    server.put(f"bucket/{key}", b"no Parquet at all")
    (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / key).write_bytes(b"no Parquet at all")
    url = {"local": str(tmp_path), "s3": "s3://bucket", "http": f"{server.endpoint}/bucket"}[scheme] + f"/{key}"
    for target, dataset in ((url, False), (url, True), ([url], True)):
        error, _ = await failure(target, server.storage_options if scheme == "s3" else None, dataset=dataset)
        assert isinstance(error, asyncpq.NotParquetError)
        assert hint in (error.hint or "")
        assert "pattern" not in (error.hint or "")


async def test_an_empty_file(server: ObjectServer, tmp_path: Path) -> None:
    server.put("bucket/a.parquet", b"")
    (tmp_path / "a.parquet").touch()
    for url in (f"{tmp_path}/a.parquet", f"{server.endpoint}/bucket/a.parquet"):
        error, _ = await failure(url)
        assert isinstance(error, asyncpq.NotParquetError)
        assert "its writer has finished the file" in (error.hint or "")


async def test_rows_of_a_dataset_without_their_files(lake: Path) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{lake}/")
        for rows in ([1, 2], [(1, 2)], 1):
            with pytest.raises(asyncpq.InvalidOptionError, match=r"^rows must be pairs of a file's url") as caught:
                await dataset.take(rows)  # type: ignore[arg-type]
            assert "[(url, 17)]" in (caught.value.hint or "")


def test_pythons_in() -> None:
    with pytest.raises(asyncpq.ExpressionError) as caught:
        asyncpq.col("id") in [1, 2]  # noqa: B015
    assert "is_in()" in (caught.value.hint or "")


async def test_the_log_of_a_delta_table_as_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_bytes(b"no Parquet at all")
    error, _ = await failure(f"{tmp_path}/_delta_log/", dataset=True)
    assert (error.hint or "").endswith('by the folder that has _delta_log, with format="delta".')


async def test_an_index_as_a_dataset(lake: Path, tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(f"{lake}/", [Keys("id")], at=f"{tmp_path}/index/")
    error, _ = await failure(f"{tmp_path}/index/", dataset=True)
    assert isinstance(error, asyncpq.NotParquetError)
    assert f'open the files that it indexes with index="{tmp_path}/index/". Name' in (error.hint or "")


async def test_the_command_lines_name_of_a_ducklake_table() -> None:
    error, _ = await failure("ducklake:lake.db#trips", dataset=True)
    assert isinstance(error, asyncpq.ObjectNotFoundError)
    assert error.hint == 'Pass asyncpq.DuckLakeTable(catalog, "schema.table").'


async def test_a_damaged_file_is_none_that_strayed(lake: Path) -> None:
    (lake / "b.parquet").write_bytes(DATA[:-4])
    for target in (lake, f"{lake}/*.parquet", [f"{lake}/b.parquet"]):
        error, _ = await failure(target, dataset=True)
        assert isinstance(error, asyncpq.NotParquetError)
        assert "cut off" in (error.hint or "") or "its writer has finished" in (error.hint or "")
        assert "pattern" not in (error.hint or "")


# -- urls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [False, True])
async def test_a_url_that_pathlib_made(server: ObjectServer, dataset: bool) -> None:
    error, requests = await failure(Path("s3://bucket/lake/a.parquet"), server.storage_options, dataset=dataset)
    assert isinstance(error, asyncpq.InvalidOptionError)
    assert error.hint == 'Write "s3://..." as text: pathlib.Path drops a slash.'
    assert requests == 0


async def test_a_list_as_one_file(lake: Path) -> None:
    error, _ = await failure([str(lake / "a.parquet")])
    assert error.hint == "Session.open_dataset reads a list of files."


async def test_an_index_below_a_file(lake: Path) -> None:
    url = str(lake / "a.parquet")
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.InvalidOptionError, match="the index of one file cannot be below") as caught:
            await session.build_index(url, [Keys("id")], at=f"{url}/_asyncpq/")
    assert (caught.value.hint or "").startswith("Say where to keep the index: at=")


# -- keys and predicates --------------------------------------------------------------------------


DAY = "Give the literal the column's type: date.fromisoformat(\"...\"), in SQL DATE '...'."
TEXT = "Only columns of strings and binary can be asked so."


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        (asyncpq.col("id").starts_with("a"), TEXT),
        (asyncpq.col("id").contains("a"), TEXT),
        (asyncpq.col("id").like("a%"), TEXT),
        (asyncpq.col("text") == 3, "Give the literal the column's type: str(...), in SQL text in quotes."),
        (asyncpq.col("day") == 3, DAY),
        (asyncpq.col("list") == 3, "Of columns of lists only has(value), is_null() and is_valid() can be asked."),
    ],
)
async def test_what_can_be_asked_of_a_column(tmp_path: Path, where: asyncpq.Expression, hint: str) -> None:
    kinds = {"id": pa.int64(), "text": pa.string(), "day": pa.date32(), "list": pa.list_(pa.int64())}
    pq.write_table(pa.schema(list(kinds.items())).empty_table(), tmp_path / "a.parquet")
    async with asyncpq.open_file(tmp_path / "a.parquet") as file:
        with pytest.raises(asyncpq.PredicateTypeError) as caught:
            await file.count(where=where)
        assert caught.value.hint == hint
        assert await file.count(where=asyncpq.col("list").has(3)) == 0


@pytest.mark.parametrize("frame", [pa.table({"id": [1]}), pa.record_batch({"id": [1]})])
async def test_a_table_as_keys(lake: Path, frame: Any) -> None:
    async with asyncpq.open_file(lake / "a.parquet") as file:
        with pytest.raises(asyncpq.ExpressionError, match="expected one column of values") as of_lookup:
            await file.lookup({"id": frame})
    with pytest.raises(asyncpq.ExpressionError, match="expected one column of values") as of_is_in:
        asyncpq.col("id").is_in(frame)
    for caught in (of_lookup, of_is_in):
        assert caught.value.hint == 'Take one of its columns, such as frame["id"].'


def test_a_blocking_session_that_is_closed(lake: Path) -> None:
    with asyncpq.blocking.open_file(lake / "a.parquet") as file:
        pass
    with pytest.raises(asyncpq.UsageError, match="Use files and scans inside"):
        file.count()


async def test_a_file_that_only_the_index_has(lake: Path) -> None:
    async with asyncpq.Session() as session:
        index = await session.build_index(lake, [Keys("id")])
        (lake / "a.parquet").unlink()
        dataset = await session.open_dataset(lake, view="snapshot")
        with pytest.raises(asyncpq.ObjectNotFoundError) as caught:
            await dataset.read()
        assert "`await index.refresh()` updates the index" in (caught.value.hint or "")
        await index.refresh()
        assert await dataset.count() == 2


async def test_an_index_that_is_true(lake: Path) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.InvalidOptionError) as caught:
            await session.open_dataset(lake, index=True)  # type: ignore[arg-type]
        assert caught.value.hint == "Leave it out to use the index below the prefix; False reads without one."


async def test_an_index_of_nothing_but_the_files(lake: Path) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [])
        dataset = await session.open_dataset(lake, view="snapshot")
        assert await dataset.count() == 4
