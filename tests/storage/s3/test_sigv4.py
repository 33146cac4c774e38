"""SigV4 against botocore's signer: the same Authorization header for whatever is signed."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import example, given
from hypothesis import strategies as st

from asyncpq.errors import CredentialsError
from asyncpq.storage.s3.sigv4 import Credentials, LateHeaders, Signer, canonical_path, canonical_query

PLAIN = partial(botocore.auth.S3SigV4Auth, service_name="s3")
NOW = st.datetimes(datetime.datetime(2015, 8, 30), datetime.datetime(2099, 1, 1), timezones=st.just(datetime.UTC))
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=40)
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
ETAGS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(lambda text: f'"{text}"')


def botocore_headers(
    method: str,
    host: str,
    path: str,
    query: str,
    headers: dict[str, str],
    credentials: Credentials,
    region: str,
    now: datetime.datetime,
    content: bytes | None = None,
    auth: Callable[..., Any] = PLAIN,
) -> dict[str, str]:
    """``content``: of a write, which is signed."""
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, headers=headers, data=content)
    request.context["client_config"] = SimpleNamespace(s3={"payload_signing_enabled": content is not None})
    keys = BotocoreCredentials(credentials.access_key, credentials.secret_key, credentials.token)
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=now):
        auth(keys, region_name=region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    host=st.sampled_from(["s3.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000"]),
    key=KEYS,
    version=st.none() | PRINTABLE,
    start=st.integers(0, 2**40),
    length=st.integers(1, 2**30),
    suffix=st.booleans(),
    etag=st.none() | ETAGS,
    access=PRINTABLE,
    secret=PRINTABLE,
    token=st.none() | PRINTABLE,
    region=st.sampled_from(["us-east-1", "eu-west-1", "auto"]),
    pays=st.booleans(),
    late=st.booleans(),
    now=NOW,
)
@example(
    method="GET",
    host="127.0.0.1:9000",
    key="a b+%é//../~x?#&=",
    version="v/1+2=",
    start=0,
    length=1,
    suffix=False,
    etag='"a  b"',
    access="k",
    secret="s",
    token=None,
    region="r",
    pays=False,
    late=False,
    now=datetime.datetime(2020, 2, 29, 23, 59, 59, tzinfo=datetime.UTC),
)
def test_same_signature_as_botocore(
    method: str,
    host: str,
    key: str,
    version: str | None,
    start: int,
    length: int,
    suffix: bool,
    etag: str | None,
    access: str,
    secret: str,
    token: str | None,
    region: str,
    pays: bool,
    late: bool,
    now: datetime.datetime,
) -> None:
    credentials = Credentials(access, secret, token)
    path = canonical_path("/bucket/" + key)
    query = canonical_query(versionId=version) if version is not None else ""
    byte_range = f"bytes=-{length}" if suffix else f"bytes={start}-{start + length - 1}"
    headers = ({"if-match": etag} if etag is not None else {}) | {"range": byte_range}
    signer = Signer(credentials, region, requester_pays=pays)
    customer = {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": "a=",
    }
    after = LateHeaders.of(customer) if late else None
    sent = signer.sign(method, host, path, query, headers, now=now.timestamp(), late=after)
    paid = headers | ({"x-amz-request-payer": "requester"} if pays else {}) | (customer if late else {})
    expected = botocore_headers(method, host, path, query, paid, credentials, region, now)
    lines = sent.removesuffix("\r\n").split("\r\n")
    assert len(lines) == len(expected)
    assert {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)} == expected


@given(
    method=st.sampled_from(["PUT", "POST", "DELETE"]),
    key=KEYS,
    query=st.dictionaries(st.sampled_from(["uploads", "uploadId", "partNumber"]), PRINTABLE | st.just("")),
    content=st.binary(max_size=100),
    create=st.booleans(),
    token=st.none() | PRINTABLE,
    now=NOW,
)
def test_writes_have_the_same_signature_as_botocore(
    method: str,
    key: str,
    query: dict[str, str],
    content: bytes,
    create: bool,
    token: str | None,
    now: datetime.datetime,
) -> None:
    """Their content is signed, and the condition too: whoever drops it on the way breaks the signature."""
    credentials = Credentials("key", "secret", token)
    path, encoded = canonical_path("/bucket/" + key), canonical_query(**query)
    signer = Signer(credentials, "eu-west-1")
    signer.sign("GET", "host", path, now=now.timestamp())  # reads of the same second do not change it
    headers = {"if-none-match": "*"} if create else {}
    sent = signer.sign(
        method, "host", path, encoded, headers, now=now.timestamp(), payload_sha256=hashlib.sha256(content).hexdigest()
    )
    expected = botocore_headers(method, "host", path, encoded, headers, credentials, "eu-west-1", now, content)
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in sent.split("\r\n")[:-1])}
    assert found == expected


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    key=KEYS,
    query=st.dictionaries(st.sampled_from(["uploads", "uploadId", "partNumber", "prefix", "session"]), PRINTABLE),
    content=st.binary(max_size=100),
    etag=st.none() | ETAGS,
    access=PRINTABLE,
    secret=PRINTABLE,
    token=PRINTABLE,
    opening=st.booleans(),
    now=NOW,
)
def test_sessions_have_the_same_signature_as_in_botocore(
    method: str,
    key: str,
    query: dict[str, str],
    content: bytes,
    etag: str | None,
    access: str,
    secret: str,
    token: str,
    opening: bool,
    now: datetime.datetime,
) -> None:
    """Requests of a session, and those that open one, of directory buckets (S3 Express One Zone)."""
    credentials = Credentials(access, secret, token)
    host, path = "b--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com", canonical_path("/" + key)
    encoded = canonical_query(**query)
    headers = ({"if-match": etag} if etag is not None else {}) | {"range": "bytes=-9"}
    is_write = method in ("PUT", "POST", "DELETE")
    signer = Signer(
        credentials,
        "us-east-1",
        service="s3express",
        token_header="x-amz-security-token" if opening else "x-amz-s3session-token",
    )
    digest = hashlib.sha256(content).hexdigest() if is_write else None
    sent = signer.sign(method, host, path, encoded, headers, now=now.timestamp(), payload_sha256=digest)
    expected = botocore_headers(
        method,
        host,
        path,
        encoded,
        headers,
        credentials,
        "us-east-1",
        now,
        content if is_write else None,
        auth=partial(botocore.auth.S3SigV4Auth, service_name="s3express")
        if opening
        else partial(botocore.auth.S3ExpressAuth, service_name="s3express", identity_cache=None),
    )
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in sent.split("\r\n")[:-1])}
    assert found == expected
    assert ("x-amz-security-token" in found, "x-amz-s3session-token" in found) == (opening, not opening)


@given(times=st.lists(NOW, min_size=1, max_size=6))
def test_kept_day_and_second_change_nothing(times: list[datetime.datetime]) -> None:
    credentials = Credentials("key", "secret")
    kept = Signer(credentials, "us-east-1")
    for now in times:
        fresh = Signer(credentials, "us-east-1")
        arguments = ("GET", "host", "/key")
        assert kept.sign(*arguments, now=now.timestamp()) == fresh.sign(*arguments, now=now.timestamp())


@given(KEYS)
def test_path_is_encoded_once_and_whole(key: str) -> None:
    from urllib.parse import unquote

    encoded = canonical_path(key)
    assert unquote(encoded) == key
    assert set(encoded) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/%")


@pytest.mark.parametrize("credentials", [Credentials("k\r\nHost: x", "s"), Credentials("k", "s", "t\n")])
def test_credentials_that_would_break_their_line(credentials: Credentials) -> None:
    with pytest.raises(CredentialsError, match="line break"):
        Signer(credentials, "us-east-1")


def test_nothing_secret_is_shown() -> None:
    credentials = Credentials("AKIDEXAMPLE", "hunter2", "session-token")
    shown = repr(credentials) + repr(Signer(credentials, "us-east-1"))
    assert not any(secret in shown for secret in ("AKIDEXAMPLE", "hunter2", "session-token"))
