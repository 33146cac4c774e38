"""SSE-C over asyncpq's own client: the key goes with requests for objects, as botocore encodes it, and nowhere else."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

import asyncpq
from asyncpq.errors import AsyncpqError, InvalidOptionError
from asyncpq.storage.s3.config import CUSTOMER_KEY_HEADERS, check_key_transport, customer_key
from asyncpq.storage.s3.sigv4 import Route
from asyncpq.testing import ObjectServer
from tests.store_backends import DATA, new_context

KEY = "an encryption key of 32 bytes..."
OPTIONS = {"s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY}}
SENT = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": base64.b64encode(KEY.encode()).decode(),
    "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(hashlib.md5(KEY.encode()).digest()).decode(),
}


@pytest.mark.parametrize("key", [KEY, KEY.encode()])
def test_the_key_is_encoded(key: str | bytes) -> None:
    found = customer_key({"s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}})
    assert found is not None
    assert dict(line.split(": ") for line in found.lines.split("\r\n") if line) == SENT
    assert set(SENT) == CUSTOMER_KEY_HEADERS
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"SSECustomerKey": KEY},
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": ""},
        {"SSECustomerAlgorithm": "other", "SSECustomerKey": KEY},
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY, "SSECustomerKeyMD5": "given"},
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": KEY, "ExpectedBucketOwner": "1"},
    ],
)
def test_others_are_left_to_s3fs(given: dict[str, Any] | None) -> None:
    assert customer_key({"s3_additional_kwargs": given}) is None


async def test_the_key_goes_with_objects_alone(server: ObjectServer) -> None:
    server.put("bucket/lake/a.parquet", DATA)
    async with asyncpq.Session({**server.storage_options, **OPTIONS}) as session:
        store, _ = await session._runtime.store("s3://bucket/lake/")
        stored = await store.open_object("s3://bucket/lake/a.parquet")
        await stored.fetch_tail(9, context=new_context())
        with pytest.raises(AsyncpqError) as error:  # there is no Parquet file
            await session.open_dataset("s3://bucket/lake/")
    assert stored.client == "direct"
    assert KEY not in str(error.value) + repr(stored)
    seen = set()
    for request in server.log:
        headers = {name.lower(): value for name, value in request.headers.items()}
        is_list = "list-type" in request.target
        seen.add(is_list)
        assert {name: headers[name] for name in SENT if name in headers} == ({} if is_list else SENT)
        assert is_list or ";".join(SENT) in headers["authorization"]
    assert seen == {True, False}


async def test_written_objects_are_encrypted_with_it(server: ObjectServer) -> None:
    async with asyncpq.Session({**server.storage_options, **OPTIONS}) as session:
        store: Any = (await session._runtime.store("s3://bucket/"))[0]
        assert await store.create_object("s3://bucket/made", b"bytes", context=new_context())
    (put,) = [request for request in server.log if request.method == "PUT"]
    assert {name.lower(): value for name, value in put.headers.items()}.items() >= SENT.items()


@pytest.mark.parametrize(
    ("scheme", "host", "is_allowed"),
    [
        ("https", "s3.example", True),
        ("http", "127.0.0.1:9000", True),
        ("http", "s3.example", False),
        ("http", "128.0.0.1", False),
    ],
)
def test_it_is_not_sent_without_tls(scheme: str, host: str, is_allowed: bool) -> None:
    route = Route(scheme=scheme, host=host, prefix="/bucket/", region="us-east-1", endpoint_region=False)
    if is_allowed:
        check_key_transport(route, "s3://bucket")
    else:
        with pytest.raises(InvalidOptionError, match="TLS"):
            check_key_transport(route, "s3://bucket")
