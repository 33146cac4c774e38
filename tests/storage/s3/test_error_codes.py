"""S3's error codes, options and regions, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
)
from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoreLimits, Validator
from asyncpq.storage.response_checks import RangeRequest, error_for, parse_error, parse_region
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.client import fallback_reason
from asyncpq.storage.s3.sigv4 import Credentials, Route, Signer, Signers, host_in_region
from asyncpq.storage.s3.store import limits_of, retry_of

URL = "s3://bucket/key"
RANGE = RangeRequest(0, 10, URL)
PINNED = RangeRequest(0, 10, URL, Validator(size=100, etag='"a"'))
TAIL = RangeRequest(-10, 0, URL)


@pytest.mark.parametrize(
    ("request_", "status", "code", "kind"),
    [
        (RANGE, 404, "NoSuchKey", ObjectNotFoundError),
        (RANGE, 404, "", ObjectNotFoundError),
        (RANGE, 404, "NoSuchVersion", ObjectNotFoundError),
        (PINNED, 404, "NoSuchKey", ObjectChangedError),
        (RANGE, 404, "NoSuchBucket", BucketNotFoundError),
        (PINNED, 404, "NoSuchBucket", BucketNotFoundError),
        (RANGE, 403, "AccessDenied", AccessDeniedError),
        (RANGE, 403, "", AccessDeniedError),
        (RANGE, 401, "", AccessDeniedError),
        (RANGE, 403, "InvalidAccessKeyId", CredentialsError),
        (RANGE, 403, "SignatureDoesNotMatch", CredentialsError),
        (RANGE, 400, "ExpiredToken", CredentialsError),
        (RANGE, 400, "InvalidToken", CredentialsError),
        (RANGE, 403, "RequestTimeTooSkewed", CredentialsError),
        (PINNED, 412, "PreconditionFailed", ObjectChangedError),
        (RANGE, 412, "PreconditionFailed", StoreError),
        (TAIL, 416, "InvalidRange", StoreError),  # of an empty object, perhaps
        (PINNED, 416, "InvalidRange", ObjectChangedError),
        (RANGE, 416, "InvalidRange", InvalidResponseError),
        (RANGE, 400, "InvalidArgument", StoreError),
        (RANGE, 405, "MethodNotAllowed", StoreError),
        (RANGE, 301, "PermanentRedirect", InvalidResponseError),
        (RANGE, 307, "", InvalidResponseError),
    ],
)
def test_final_errors(request_: RangeRequest, status: int, code: str, kind: type[AsyncpqError]) -> None:
    error = error_for(request_, status, code, "what S3 says")
    assert type(error) is kind
    assert isinstance(error, AsyncpqError)
    assert error.url == URL


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", ThrottledError),
        (503, "", ThrottledError),
        (429, "", ThrottledError),
        (200, "SlowDown", ThrottledError),
        (500, "InternalError", TransportError),
        (200, "InternalError", TransportError),
        (502, "", TransportError),
        (504, "", TransportError),
        (408, "", TransportError),
        (400, "RequestTimeout", TransportError),
    ],
)
def test_errors_that_another_attempt_may_not_meet(status: int, code: str, kind: type[AsyncpqError]) -> None:
    error = error_for(PINNED, status, code, retry_after_s=3.0)
    assert isinstance(error, RetryableError)
    assert type(error.error) is kind
    assert error.retry_after_s == 3.0
    assert not error.at_once


def test_error_documents() -> None:
    body = b"<?xml?><Error><Code>SlowDown</Code><Message>a &lt;b&gt;</Message><Region>eu-west-1</Region></Error>"
    assert parse_error(body) == ("SlowDown", "a <b>")
    assert parse_region(body) == "eu-west-1"
    assert parse_error(b"<html>") == ("", "")
    assert parse_region(b"<Region>evil.example/</Region>") == ""


@given(st.binary(max_size=200))
def test_any_body_is_an_error_document_or_not(body: bytes) -> None:
    code, message = parse_error(b"<Error><Code>X</Code><Message>" + body + b"</Message>")
    assert code == "X"
    assert len(message) <= 200


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"key": "k", "secret": "s", "client_kwargs": {"region_name": "r", "verify": False}}, None),
        ({"config_kwargs": {"s3": {"addressing_style": "path"}, "read_timeout": 3}, "profile": "p"}, None),
        ({"config_kwargs": {"proxies": {"https": "http://p"}}}, "option config_kwargs.proxies"),
        ({"config_kwargs": {"client_cert": "c"}}, "option config_kwargs.client_cert"),
        ({"config_kwargs": {"retries": {"mode": "adaptive"}}}, "option config_kwargs.retries.mode=adaptive"),
        ({"config_kwargs": {"s3": {"new": 1}}}, "option config_kwargs.s3.new"),
        ({"client_kwargs": {"new": 1}}, "option client_kwargs.new"),
        ({"session": object()}, "option session"),
        ({"something_new": 1}, "option something_new"),
    ],
)
def test_what_is_not_understood_goes_through_s3fs(options: dict[str, Any], reason: str | None) -> None:
    assert fallback_reason(options) == reason


def test_options_must_be_mappings() -> None:
    with pytest.raises(InvalidOptionError, match="client_kwargs"):
        fallback_reason({"client_kwargs": "x"})


def test_botocore_config_is_kept() -> None:
    config = {"connect_timeout": 1, "read_timeout": 2, "retries": {"max_attempts": 2}, "max_pool_connections": 5}
    retry = retry_of({"config_kwargs": config}, RetryOptions())
    assert (retry.connect_timeout_s, retry.first_byte_timeout_s, retry.stall_timeout_s) == (1.0, 2.0, 2.0)
    assert retry.max_attempts == 3  # botocore counts the first try only in total_max_attempts
    assert retry_of({"config_kwargs": {"retries": {"total_max_attempts": 2}}}, RetryOptions()).max_attempts == 2
    limits = StoreLimits(max_connections=64, scan_connections=48)
    assert limits_of({"config_kwargs": config}, limits) == StoreLimits(max_connections=5, scan_connections=4)
    assert limits_of({}, limits) is limits


@pytest.mark.parametrize(
    ("host", "old", "new", "expected"),
    [
        ("b.s3.us-east-1.amazonaws.com", "us-east-1", "eu-west-1", "b.s3.eu-west-1.amazonaws.com"),
        ("b.s3.amazonaws.com", "us-east-1", "eu-west-1", "b.s3.eu-west-1.amazonaws.com"),
        ("s3.dualstack.us-west-2.amazonaws.com", "us-west-2", "eu-west-1", "s3.dualstack.eu-west-1.amazonaws.com"),
        ("us-east-1.s3.us-east-1.amazonaws.com", "us-east-1", "eu-west-1", "us-east-1.s3.eu-west-1.amazonaws.com"),
        ("b.s3.amazonaws.com", "aws-global", "eu-west-1", "b.s3.eu-west-1.amazonaws.com"),
        ("us-east-1.s3.amazonaws.com", "us-east-1", "eu-west-1", "us-east-1.s3.eu-west-1.amazonaws.com"),
        ("b.s3.cn-north-1.amazonaws.com.cn", "cn-north-1", "cn-west-1", "b.s3.cn-west-1.amazonaws.com.cn"),
    ],
)
def test_region_of_a_host(host: str, old: str, new: str, expected: str) -> None:
    assert host_in_region(host, old, new) == expected


def test_a_route_of_an_endpoint_given_only_changes_what_is_signed() -> None:
    route = Route("http", "minio:9000", "/bucket/", "us-east-1", endpoint_region=False)
    name = route.name
    route.move("eu-west-1")
    assert (route.host, route.region, route.name) == ("minio:9000", "eu-west-1", name)


async def signer_of(signers: Signers) -> Signer | None:
    await signers.refresh()
    return signers.signer("us-east-1")


async def test_expired_credentials_are_renewed_once_for_all() -> None:
    calls: list[bool] = []

    async def fetch(again: bool) -> Credentials:
        calls.append(again)
        return Credentials(f"key{sum(calls)}", "secret")

    signers = Signers(fetch)
    first = await signer_of(signers)
    assert first is not None
    assert await signer_of(signers) is first
    await signers.renew(first)
    await signers.renew(first)  # another request that used the same expired ones
    assert calls == [False, True]
    assert await signer_of(signers) is not first


async def test_credentials_are_asked_for_again_now_and_then() -> None:
    calls = 0

    async def fetch(again: bool) -> Credentials:
        nonlocal calls
        calls += 1
        return Credentials("key", "secret")

    signers = Signers(fetch, refresh_s=0.0)
    first = await signer_of(signers)
    assert await signer_of(signers) is first  # unchanged credentials keep their signer
    assert calls == 2
