"""Keys of containers and instances, compared with botocore's; and when botocore is loaded, and when not."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.errors import CredentialsError
from asyncpq.storage.s3.client import S3Client
from asyncpq.storage.s3.resolver import S3Resolver
from asyncpq.storage.s3.sigv4 import Credentials
from asyncpq.testing import ObjectServer

ROLES = "/latest/meta-data/iam/security-credentials/"


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


class Service:
    """A metadata service: the response of each path, and the requests that came."""

    def __init__(self) -> None:
        self.responses: dict[str, tuple[int, str]] = {}
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.port = 0

    def give(self, path: str, key: str, expires_s: float = 6 * 3600) -> None:
        fields = {"AccessKeyId": key, "SecretAccessKey": "s/+", "Token": "t==", "Expiration": stamp(expires_s)}
        self.responses[path] = 200, json.dumps({"Code": "Success", **fields})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := (await reader.readuntil(b"\r\n\r\n")).decode()) if not reader.at_eof() else "":
            line, *lines = head.split("\r\n")
            path = " ".join(line.split(" ")[:2])
            self.requests.append(path)
            headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
            self.tokens.append(headers.get("x-aws-ec2-metadata-token") or headers.get("authorization") or "")
            status, text = self.responses.get(path.partition(" ")[2], (404, "no"))
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
            )
            break
        writer.close()


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Service]:
    """A metadata service; no other configuration."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FSSPEC")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


@pytest.fixture
def instance(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{service.port}")
    service.responses["/latest/api/token"] = 200, "token-1"
    service.responses[ROLES] = 200, "my-role"
    service.give(f"{ROLES}my-role", "AKINSTANCE")
    return service


@pytest.fixture
def container(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{service.port}/v2/keys?id=1")
    service.give("/v2/keys?id=1", "AKCONTAINER")
    return service


async def compared(service: Service) -> tuple[Credentials | None, bool]:
    """The keys that S3Resolver and botocore find, and whether botocore was loaded for the former."""
    resolver = S3Resolver({})
    keys = await resolver.fetch_credentials(False)
    asked = service.requests.copy(), service.tokens.copy()
    service.requests.clear()
    service.tokens.clear()
    assert keys == await S3Client({}).fetch_credentials(False)
    directly = resolver._client is None
    if directly:
        assert asked == (service.requests, service.tokens)
    return keys, directly


async def test_instance(instance: Service) -> None:
    keys, directly = await compared(instance)
    assert keys == Credentials("AKINSTANCE", "s/+", "t==")
    assert directly


async def test_instance_without_tokens(instance: Service) -> None:
    """Only botocore asks the first version of the service."""
    instance.responses["/latest/api/token"] = 403, ""
    keys, directly = await compared(instance)
    assert keys is not None
    assert not directly


@pytest.mark.parametrize("path", [ROLES, f"{ROLES}my-role"])
@pytest.mark.parametrize(
    "response", [(404, "none"), (200, ""), (200, '{"Code": "Failed", "Message": "m"}'), (200, "[1")]
)
async def test_instance_without_keys(instance: Service, path: str, response: tuple[int, str]) -> None:
    instance.responses[path] = response
    with pytest.raises(CredentialsError):
        await S3Resolver({}).fetch_credentials(False)
    with pytest.raises(CredentialsError):
        await S3Client({}).fetch_credentials(False)


async def test_expired_keys_of_an_instance_stay_in_use(instance: Service) -> None:
    instance.give(f"{ROLES}my-role", "AKOLD", -60.0)
    resolver = S3Resolver({})
    for _ in range(2):
        assert await resolver.fetch_credentials(False) == Credentials("AKOLD", "s/+", "t==")
    assert len(instance.requests) == 3


@pytest.mark.parametrize("way", ["plain", "variable", "file"])
async def test_container(container: Service, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if way == "variable":
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic abc")
    if way == "file":
        (tmp_path / "token").write_text("from a file")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "other")
    keys, directly = await compared(container)
    assert keys == Credentials("AKCONTAINER", "s/+", "t==")
    assert directly
    assert container.tokens == [{"plain": "", "variable": "Basic abc", "file": "from a file"}[way]]


async def test_keys_are_fetched_again_before_they_expire(container: Service, caplog: pytest.LogCaptureFixture) -> None:
    path = "/v2/keys?id=1"
    resolver = S3Resolver({})
    container.give(path, "AK1", 960.0)
    assert (await resolver.fetch_credentials(False)) == Credentials("AK1", "s/+", "t==")
    container.give(path, "AK2", 700.0)
    assert (await resolver.fetch_credentials(False)) == Credentials("AK1", "s/+", "t==")
    assert len(container.requests) == 1
    assert (await resolver.fetch_credentials(True)) == Credentials("AK2", "s/+", "t==")
    container.responses[path] = 500, "down"
    with caplog.at_level(logging.WARNING):
        assert (await resolver.fetch_credentials(False)) == Credentials("AK2", "s/+", "t==")
    assert "Refreshing temporary credentials failed" in caplog.text
    container.give(path, "AK3", 500.0)
    assert (await resolver.fetch_credentials(False)) == Credentials("AK3", "s/+", "t==")
    container.give(path, "AK4", 400.0)
    assert (await resolver.fetch_credentials(False)) == Credentials("AK4", "s/+", "t==")


async def test_keys_are_fetched_once_for_all(container: Service) -> None:
    resolver = S3Resolver({})
    container.give("/v2/keys?id=1", "AK1", 500.0)
    assert len(set(await asyncio.gather(*(resolver.fetch_credentials(False) for _ in range(5))))) == 1
    assert len(container.requests) == 1
    container.give("/v2/keys?id=1", "AK2", 500.0)
    assert {
        keys and keys.access_key
        for keys in await asyncio.gather(*(resolver.fetch_credentials(False) for _ in range(5)))
    } == {"AK2"}
    assert len(container.requests) == 2


async def test_a_container_elsewhere_is_left_to_botocore(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://203.0.113.1:{service.port}/keys")
    with pytest.raises(CredentialsError):
        await S3Resolver({}).fetch_credentials(False)
    assert not service.requests


COLD = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
import asyncpq

async def main(options):
    async with asyncpq.Session(options) as session:
        file = await session.open_file("s3://bucket/numbers.parquet")
        table = await file.lookup({"number": 70, "text": "70"}, columns=["text", "list"])
        print(table.to_pylist() == [{"text": "70", "list": [70]}])

asyncio.run(main({"endpoint_url": sys.argv[1], "client_kwargs": {"region_name": sys.argv[2]}}))
print(*sys.modules)
"""


async def test_a_cold_lookup_loads_no_client_and_no_pandas(server: ObjectServer, tmp_path: Path) -> None:
    numbers = range(100)
    table = pa.table({"number": numbers, "text": [str(n) for n in numbers], "list": [[n] for n in numbers]})
    path = tmp_path / "numbers.parquet"
    pq.write_table(table, path)
    server.put("bucket/numbers.parquet", path.read_bytes())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COLD, server.endpoint, "us-east-1", os.getcwd(), stdout=subprocess.PIPE, env=environ
    )
    said, _ = await process.communicate()
    found, *loaded = said.decode().split()
    assert (process.returncode, found) == (0, "True")
    clients = {"aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "pandas", "s3fs"}
    assert not clients.intersection(loaded)
    assert not {"pyarrow.acero", "pyarrow.dataset", "asyncpq.dataset", "asyncpq.indexing"}.intersection(loaded)
