"""From an s3 url to the path of a request."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from asyncpq.errors import InvalidOptionError, InvalidResponseError
from asyncpq.storage.base import Store
from asyncpq.storage.s3.store import S3Object
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import new_context

KEYS = [
    *["a b", "a+b", "100%", "%2F", "é/ü", "//", "a//b", "../x", "a/../b", "a/./b", "?q=1", "#f", "a&b=c", "~"],
    *["'\"", "日本", "/lead", "trail/", "a\\b", "a:b@c", "[x]{y}|^`", "\x7f\t"],
]


async def test_keys_arrive_as_they_are(store: Store, server: ObjectServer) -> None:
    for key in KEYS:
        server.put(f"bucket/{key}", key.encode())
        stored = await store.open_object(f"s3://bucket/{key}")
        assert (await stored.fetch_tail(1000, context=new_context())).data == key.encode()
        assert server.log[-1].path == f"/bucket/{key}"


async def test_version_of_the_url(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(headers={"x-amz-version-id": "a%2Fb+c"}, times=None)]
    stored = await store.open_object("s3://bucket/key?versionId=a%2Fb+c")
    plain = await store.open_object("s3://bucket/key")
    await stored.fetch_tail(9, context=new_context())
    assert server.log[-1].target.partition("?")[2].split("&")[-1] == "versionId=a%252Fb%2Bc"
    assert stored.identity != plain.identity
    assert stored.url == plain.url


@pytest.mark.parametrize(
    ("asked", "sent", "is_read"),
    [("v1", "v1", True), ("v1", "v2", False), ("v1", None, False), ("null", None, True), ("null", "v2", False)],
)
async def test_another_version_than_that_of_the_url_is_refused(
    store: Store, s3fs_store: Store, server: ObjectServer, asked: str, sent: str | None, is_read: bool
) -> None:
    """Garage and s3rver ignore version ids, and send the current object."""
    server.faults = [Fault(headers={"x-amz-version-id": sent}, times=None)]
    for made in (store, s3fs_store):
        stored = await made.open_object(f"s3://bucket/key?versionId={asked}")
        assert isinstance(stored, S3Object)
        read = nullcontext() if is_read else pytest.raises(InvalidResponseError, match="version in the url")
        with read:
            await stored.fetch_tail(9, context=new_context())
        with read:
            await stored.fetch_range(0, 9, context=new_context())
        with read:
            await stored.fetch_size(None, new_context())


@pytest.mark.parametrize("user", ["AKIA:SECRET@", "SECRET@", "AKIA:SEC/SECRET@"])
async def test_urls_hold_no_credentials(store: Store, s3fs_store: Store, user: str) -> None:
    for made in (store, s3fs_store):
        with pytest.raises(InvalidOptionError, match="storage_options") as caught:
            await made.open_object(f"s3://{user}bucket/key")
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3:///key", "s3://in valid!/key"])
async def test_urls_that_cannot_be(store: Store, url: str) -> None:
    with pytest.raises(InvalidOptionError):
        await store.open_object(url)


async def test_a_signed_query_in_a_key_is_not_shown(store: Store, s3fs_store: Store) -> None:
    for made in (store, s3fs_store):
        stored = await made.open_object("s3://bucket/key?X-Amz-Signature=SECRET")
        assert "SECRET" not in stored.url + repr(stored)
