"""The configuration that is read without botocore is the one that botocore reads."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpq.errors import AsyncpqError, CredentialsError, InvalidOptionError
from asyncpq.storage.s3.client import S3Client
from asyncpq.storage.s3.config import NeedsBotocoreError, S3Resolver, read_config
from asyncpq.storage.s3.sigv4 import Credentials, Route
from asyncpq.storage.urls import word_set
from asyncpq.testing import ObjectServer
from tests.example_counts import examples

ENDPOINT = "http://127.0.0.1:9000"
KEYS = {"key": "AKOPTION", "secret": "option-secret"}
ENV_KEYS = {"AWS_ACCESS_KEY_ID": "AKENV", "AWS_SECRET_ACCESS_KEY": "env-secret"}
FILE = """
[default]
aws_access_key_id = AKDEFAULT
aws_secret_access_key = default-secret
[work]
aws_access_key_id = AKWORK
aws_secret_access_key = work-secret
aws_session_token = work-token
[both]
aws_access_key_id = AKBOTH
aws_secret_access_key = both-secret
aws_session_token = t
aws_security_token = u
"""
CONFIG = """
[default]
region = eu-central-1
[profile work]
region = ap-south-1
endpoint_url = http://minio.example:9000
[profile "far away"]
region = us-east-1
aws_access_key_id = AKFAR
aws_secret_access_key = far-secret
ca_bundle = /ca.pem
[profile role]
role_arn = arn:aws:iam::123456789012:role/r
source_profile = work
[profile sso]
sso_session = mine
[profile process]
credential_process = echo
[profile services]
services = mine
[profile nested]
s3 =
  addressing_style = virtual
"""

Found = tuple[Route | str, Credentials | None, bool | str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without configuration."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FSSPEC")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path


def write_files(home: Path, config: str | None, credentials: str | None) -> None:
    for name, text in (("config", config), ("credentials", credentials)):
        path = home / ".aws" / name
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)


def read_directly(options: Mapping[str, Any], bucket: str) -> Found | None:
    """What is read without botocore; None if botocore is needed."""
    try:
        config = read_config(options)
    except NeedsBotocoreError:
        return None
    route = config.route(bucket)
    return None if route is None else (route, config.keys, config.verify)


async def ask_botocore(options: Mapping[str, Any], bucket: str) -> Found:
    client = S3Client(options)
    try:
        route = await client.find_route(bucket, f"s3://{bucket}/key")
        return route, await client.fetch_credentials(False), client.verify()
    finally:
        await client.close()


DIRECT: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("given", {**KEYS, "endpoint_url": ENDPOINT}, {}),
    ("given, token", {**KEYS, "token": "t", "client_kwargs": {"endpoint_url": ENDPOINT, "region_name": "auto"}}, {}),
    ("given in client_kwargs", {"client_kwargs": {"aws_access_key_id": "a", "aws_secret_access_key": "b"}}, {}),
    ("given, roles elsewhere", KEYS, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}),
    ("anonymous", {"anon": True}, {}),
    ("anonymous, region", {"anon": True, "client_kwargs": {"region_name": "eu-west-1"}}, {}),
    ("environment", {}, ENV_KEYS),
    ("environment, token", {}, {**ENV_KEYS, "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "us-west-2"}),
    ("environment, both tokens", {}, {**ENV_KEYS, "AWS_SESSION_TOKEN": "t", "AWS_SECURITY_TOKEN": "u"}),
    ("both tokens in a profile", {"profile": "both"}, {}),
    ("environment of a Lambda", {}, {**ENV_KEYS, "AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_REGION": "eu-west-3"}),
    ("environment's endpoint", {}, {**ENV_KEYS, "AWS_ENDPOINT_URL": ENDPOINT}),
    (
        "environment's endpoint of S3",
        {},
        {**ENV_KEYS, "AWS_ENDPOINT_URL_S3": ENDPOINT, "AWS_ENDPOINT_URL": "http://no"},
    ),
    ("default profile", {}, {}),
    ("named profile", {"profile": "work"}, ENV_KEYS),
    ("named profile of the environment", {}, {"AWS_PROFILE": "work"}),
    ("two names", {}, {"AWS_PROFILE": "nowhere", "AWS_DEFAULT_PROFILE": "work"}),
    ("keys in the config file", {"profile": "far away"}, {}),
    ("path style", {**KEYS, "endpoint_url": ENDPOINT, "config_kwargs": {"s3": {"addressing_style": "path"}}}, {}),
    ("signature", {**KEYS, "endpoint_url": ENDPOINT, "config_kwargs": {"signature_version": "s3v4"}}, {}),
    (
        "region in config_kwargs",
        {**KEYS, "config_kwargs": {"region_name": "sa-east-1", "retries": {"mode": "standard"}}},
        {},
    ),
    ("TLS", {**KEYS, "endpoint_url": "https://s3.example:443/", "client_kwargs": {"verify": False}}, {}),
    ("IPv6", {**KEYS, "endpoint_url": "http://[::1]:9000"}, {"REQUESTS_CA_BUNDLE": "/r.pem"}),
    ("default port", {**KEYS, "endpoint_url": "http://s3.example:80"}, {"AWS_CA_BUNDLE": "/c.pem"}),
]


@pytest.mark.parametrize(("options", "environ"), [case[1:] for case in DIRECT], ids=[case[0] for case in DIRECT])
async def test_common_configurations_need_no_botocore(
    options: dict[str, Any], environ: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(home, CONFIG, FILE)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = read_directly(options, "bucket-1")
    assert found is not None
    assert found == await ask_botocore(options, "bucket-1")


LEFT: list[tuple[dict[str, Any], dict[str, str]]] = [
    *(({"profile": name}, {}) for name in ("role", "sso", "process", "services", "nested", "nowhere")),
    ({}, {"AWS_PROFILE": "role"}),
    ({}, {"AWS_PROFILE": ""}),
    ({}, {**ENV_KEYS, "AWS_CREDENTIAL_EXPIRATION": "2099-01-01T00:00:00Z"}),
    ({}, {"AWS_ACCESS_KEY_ID": "AKENV"}),
    ({}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r"}),
    (KEYS, {"AWS_USE_FIPS_ENDPOINT": "true"}),
    (KEYS, {"AWS_SOMETHING_NEW": "1"}),
    (KEYS, {"AWS_DEFAULT_REGION": "cn-north-1"}),
    (KEYS, {"FSSPEC_S3_ENDPOINT_URL": ENDPOINT}),
    ({**KEYS, "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}, {}),
    ({**KEYS, "something_new": 1}, {}),
    ({**KEYS, "use_ssl": False}, {}),
    ({"key": "AKOPTION"}, {}),
    ({**KEYS, "client_kwargs": {"aws_access_key_id": "other"}}, {}),
    ({**KEYS, "config_kwargs": {"use_accelerate_endpoint": True}}, {}),
    ({**KEYS, "config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {}),
    ({**KEYS, "endpoint_url": "https://s3.eu-west-1.amazonaws.com"}, {}),
    ({**KEYS, "endpoint_url": "https://user@s3.example"}, {}),
    ({**KEYS, "endpoint_url": "https://s3.example/prefix"}, {}),
    ({**KEYS, "endpoint_url": ENDPOINT, "client_kwargs": {"region_name": "aws-global"}}, {}),
]


@pytest.mark.parametrize(("options", "environ"), LEFT)
def test_others_are_left_to_botocore(
    options: dict[str, Any], environ: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(home, CONFIG, FILE)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert read_directly(options, "bucket-1") is None


DIRECTORIES = [
    *("data--use1-az4--x-s3", "data--apne1-az4--x-s3", "a-b--usgw1-az1--x-s3", "point--use1-az4--xa-s3"),
    *("d--ata--use1-az4--x-s3", "data--usw2-lax1-az1--x-s3", "data--x-s3", "data--use1--x-s3"),
    *("da.ta--use1-az4--x-s3", "Data--use1-az4--x-s3", "data--apne10-az10--x-s3"),
]
#: Options, and whether directory buckets need no botocore with them.
OPTIONS_OF_DIRECTORIES: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    (KEYS, {}, True),
    ({**KEYS, "token": "t", "client_kwargs": {"region_name": "eu-north-1"}}, {}, True),
    ({**KEYS, "endpoint_url": ENDPOINT}, {}, True),
    ({**KEYS, "endpoint_url": "http://[::1]:9000"}, {}, True),
    ({**KEYS, "endpoint_url": "https://express.example:8443"}, {}, True),
    ({**KEYS, "endpoint_url": "https://express.example:443/"}, {}, True),
    (
        {**KEYS, "endpoint_url": "http://localhost:9000", "config_kwargs": {"s3": {"addressing_style": "path"}}},
        {},
        True,
    ),
    ({}, ENV_KEYS, True),
    ({**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}, {}, False),
    ({**KEYS, "endpoint_url": "https://express.example/prefix"}, {}, False),
    ({**KEYS, "endpoint_url": "https://s3express-use1-az4.us-east-1.amazonaws.com"}, {}, False),
    ({**KEYS, "config_kwargs": {"use_dualstack_endpoint": True}}, {}, False),
    ({**KEYS, "config_kwargs": {"signature_version": "s3v4"}}, {}, False),
    (KEYS, {"AWS_S3_DISABLE_EXPRESS_SESSION_AUTH": "true"}, False),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bucket", DIRECTORIES)
@pytest.mark.parametrize(("options", "environ", "is_read"), OPTIONS_OF_DIRECTORIES)
async def test_routes_of_directory_buckets_are_those_of_botocore(
    options: dict[str, Any], environ: dict[str, str], is_read: bool, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = read_directly(options, bucket)
    assert found is None or is_read
    if bucket == DIRECTORIES[0]:
        assert (found is not None) == is_read
    try:
        expected = await ask_botocore(options, bucket)
    except InvalidOptionError:
        assert found is None or not isinstance(found[0], Route) or not found[0].in_sessions
        return
    assert found in (None, expected)
    if bucket == DIRECTORIES[0]:
        without = "signature_version" in options.get("config_kwargs", {}) or bool(environ and not is_read)
        assert (expected[0] == "S3 Express without sessions") == without
        assert isinstance(expected[0], Route) != without


@pytest.mark.parametrize("bucket", ["with.dots", "Upper", "data--x-s3", "name-s3alias", "ab", "-a-"])
def test_buckets_that_are_left_to_botocore(bucket: str) -> None:
    assert read_directly(KEYS, bucket) is None


def chosen(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """At most three of the values: most combinations of more are refused."""
    names = st.lists(st.sampled_from(sorted(values)), max_size=3, unique=True)
    return names.flatmap(lambda names: st.fixed_dictionaries({name: values[name] for name in names}))


REGIONS = st.sampled_from(
    sorted(
        word_set(
            "us-east-1 eu-central-1 us-gov-west-1 cn-north-1 aws-global auto x fips-us-east-1 us-east-1-fips "
            "s3-external-1 mx-central-1 us-iso-east-1 eusc-de-east-1 local 12 EU"
        )
    )
)
URLS = st.sampled_from(
    [
        ENDPOINT,
        "https://s3.example",
        "https://s3.example:443/",
        "http://s3.example:80",
        "http://h.example/prefix",
        "http://[::1]:9000",
        "https://s3.eu-west-1.amazonaws.com",
        "https://s3-accelerate.amazonaws.com",
        "https://UPPER.example",
        "https://user@h.example",
        "h.example",
    ]
)
TEXTS = st.sampled_from(["AK1", "AK2", "", " x"])
OPTIONS = chosen(
    anon=st.booleans(),
    key=TEXTS | st.none(),
    secret=TEXTS,
    token=TEXTS | st.none(),
    username=TEXTS,
    endpoint_url=URLS | st.none(),
    profile=st.sampled_from(["default", "work", "far away", "nowhere"]),
    use_ssl=st.booleans(),
    cache_regions=st.just(False),
    client_kwargs=chosen(
        endpoint_url=URLS,
        region_name=REGIONS,
        aws_access_key_id=TEXTS,
        aws_secret_access_key=TEXTS,
        aws_session_token=TEXTS,
        verify=st.sampled_from([True, False, "/v.pem", None]),
        use_ssl=st.booleans(),
    ),
    config_kwargs=chosen(
        region_name=REGIONS,
        signature_version=st.sampled_from(["s3v4", "s3", "v4"]),
        s3=st.sampled_from([{}, *({"addressing_style": style} for style in ("auto", "path", "virtual"))]),
        use_dualstack_endpoint=st.booleans(),
        retries=st.sampled_from([{"max_attempts": 2}, {"mode": "standard"}, {"mode": "new"}]),
    ),
)
ENVIRON = chosen(
    AWS_ACCESS_KEY_ID=TEXTS,
    AWS_SECRET_ACCESS_KEY=TEXTS,
    AWS_SESSION_TOKEN=TEXTS,
    AWS_SECURITY_TOKEN=TEXTS,
    AWS_CREDENTIAL_EXPIRATION=st.sampled_from(["", "2099-01-01T00:00:00Z"]),
    AWS_DEFAULT_REGION=REGIONS | st.just(""),
    AWS_REGION=REGIONS,
    AWS_PROFILE=st.sampled_from(["default", "work", "far away", "nowhere", ""]),
    AWS_DEFAULT_PROFILE=st.sampled_from(["default", "work"]),
    AWS_ENDPOINT_URL=URLS | st.just(""),
    AWS_ENDPOINT_URL_S3=URLS | st.just(""),
    AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=st.sampled_from(["true", "false"]),
    AWS_USE_DUALSTACK_ENDPOINT=st.sampled_from(["true", "false"]),
    AWS_S3_US_EAST_1_REGIONAL_ENDPOINT=st.sampled_from(["regional", "legacy"]),
    AWS_CA_BUNDLE=st.sampled_from(["/c.pem", ""]),
    REQUESTS_CA_BUNDLE=st.sampled_from(["/r.pem", ""]),
    AWS_CONFIG_FILE=st.just("/nonexistent"),
    HTTPS_PROXY=st.just("http://proxy.example:1"),
)
SETTINGS = chosen(
    aws_access_key_id=TEXTS,
    aws_secret_access_key=TEXTS,
    aws_session_token=TEXTS,
    aws_security_token=TEXTS,
    region=REGIONS,
    endpoint_url=URLS,
    ca_bundle=st.sampled_from(["/p.pem", ""]),
    output=st.just("json"),
    s3=st.just("\n  addressing_style = virtual"),
    services=st.just("mine"),
    role_arn=st.just("arn:aws:iam::123456789012:role/r"),
    credential_process=st.just("false"),
    use_dualstack_endpoint=st.just("true"),
)
SECTIONS = st.sampled_from(
    ["default", "profile default", "profile work", 'profile "far away"', "work", "far away", "DEFAULT"]
)
INI = st.none() | st.dictionaries(SECTIONS, SETTINGS, max_size=3).map(
    lambda sections: "".join(
        f"[{name}]\n" + "".join(f"{option} = {value}\n" for option, value in values.items())
        for name, values in sections.items()
    )
)
BUCKETS = st.sampled_from(
    ["bucket", "bucket", "with.dots", "Upper", "a_b", "x", "data--use1-az4--x-s3", "b-s3alias", "b" * 64]
)


@pytest.mark.heavy
@given(
    case=st.sampled_from(DIRECT),
    options=OPTIONS,
    environ=ENVIRON,
    config=st.just(CONFIG) | INI,
    credentials=st.just(FILE) | INI,
    bucket=BUCKETS,
)
@settings(
    max_examples=examples(60, thorough=500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_what_is_read_is_what_botocore_reads(
    case: tuple[str, dict[str, Any], dict[str, str]],
    options: dict[str, Any],
    environ: dict[str, str],
    config: str | None,
    credentials: str | None,
    bucket: str,
    home: Path,
) -> None:
    write_files(home, config, credentials)
    options = {**case[1], **options}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**case[2], **environ}.items():
            patch.setenv(name, value)
        found = read_directly(options, bucket)
        if found is None:
            return
        try:
            expected = await ask_botocore(options, bucket)
        except AsyncpqError as error:
            pytest.fail(f"botocore refuses what was read: {error.message}")
        if expected[0] == "proxy of the environment":
            return  # S3Resolver looks for proxies
        assert found == expected


# -- resolving -------------------------------------------------------------------------------------


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
