"""Which version S3Store reads: If-Match, version ids, and stores that say little about versions."""

from __future__ import annotations

import time
from typing import Any

import pytest

from asyncpq.errors import InvalidOptionError, ObjectChangedError
from asyncpq.storage.base import Guarantee, Store, writable
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, new_context, open_test_store, opened


async def test_size_unknown_in_content_range_costs_one_head(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(unknown_size=True, method="GET", times=None)]
    stored = await store.open_object("s3://bucket/key")
    context = new_context()
    tail = await stored.fetch_tail(9, context=context)
    assert (tail.start, tail.validator.size) == (len(DATA) - 9, len(DATA))
    assert [request.method for request in server.log] == ["GET", "HEAD"]
    assert server.log[-1].headers["if-match"] == tail.validator.etag
    result = await stored.fetch_range(0, 9, context=context, pin=tail.validator)
    assert result.validator == tail.validator
    assert context.metrics.requests == 3


@pytest.mark.parametrize(("etag", "guarantee"), [("weak", Guarantee.BRACKETED), ("none", Guarantee.BRACKETED)])
async def test_guarantee_without_a_strong_etag(
    store: Store, s3fs_store: Store, server: ObjectServer, etag: str, guarantee: Guarantee
) -> None:
    server.faults = [Fault(etag=etag, times=None)]
    stored, tail = await opened(store)
    assert stored.guarantee is guarantee
    for made in (store, s3fs_store):
        known = await made.open_object("s3://bucket/key")
        known.learn(tail.validator)
        assert known.guarantee is guarantee
        pinned = await made.open_object("s3://bucket/key")
        assert (await pinned.fetch_range(0, 9, context=new_context(), pin=tail.validator)).validates
        assert pinned.guarantee is guarantee
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[-1].headers  # a weak one never matches


async def test_pinned_gets_carry_if_match(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[0].headers
    assert server.log[1].headers["if-match"] == tail.validator.etag
    assert server.log[1].headers["accept-encoding"] == "identity"


async def test_server_without_if_match_is_compared(server: ObjectServer) -> None:
    store = open_test_store("s3", {**server.storage_options, "local_expiry_check": True})
    stored, tail = await opened(store)
    assert stored.guarantee is Guarantee.COMPARED
    known = await store.open_object("s3://bucket/key")
    known.learn(tail.validator)
    assert known.guarantee is Guarantee.COMPARED
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[-1].headers
    server.put("bucket/key", b"z" * len(DATA))
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    await store.close()


async def test_version_aware_pins_by_version_id(server: ObjectServer) -> None:
    store = open_test_store("s3", {**server.storage_options, "version_aware": True})
    server.faults = [Fault(headers={"x-amz-version-id": "v1"}, times=None)]
    stored, tail = await opened(store)
    assert tail.validator.version == "v1"
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert server.log[-1].target.endswith("/bucket/key?versionId=v1")
    await store.close()


async def test_a_key_with_a_version_in_its_name_is_listed_and_read_as_that_key(server: ObjectServer) -> None:
    keys = ["a/k?versionId=1", "a/k", "a/day=1?versionId=2/k", "a/k?versionId="]
    for key in keys:
        server.put(f"bucket/{key}", key.encode())
    store = open_test_store("s3", server.storage_options)
    listed = await store.list_objects("s3://bucket/a/", context=new_context())
    assert len(listed) == len(keys)
    contents = set()
    for item in listed:
        stored = await store.open_object(item.url)
        contents.add(bytes((await stored.fetch_tail(100, context=new_context())).data).decode())
        assert [again.url for again in await store.list_objects(item.url, context=new_context())][:1] == [item.url]
    assert contents == set(keys)
    await store.close()


@pytest.mark.parametrize("bucket", ["tenant:bucket", ":bucket"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"config_kwargs": {"s3": {"addressing_style": "virtual"}}},  # botocore finds the address
        {"s3_additional_kwargs": {"ChecksumMode": "ENABLED"}},  # s3fs sends the requests
    ],
    ids=["own address", "botocore's address", "s3fs"],
)
async def test_a_bucket_of_a_tenant_is_read(server: ObjectServer, bucket: str, options: dict[str, Any]) -> None:
    server.put(f"{bucket}/key", DATA)
    store = open_test_store("s3", {**server.storage_options, **options})
    stored = await store.open_object(f"s3://{bucket}/key")
    assert stored.url == f"s3://{bucket}/key"
    assert (await stored.fetch_tail(9, context=new_context())).data == DATA[-9:]
    listed = await store.list_objects(f"s3://{bucket}/", context=new_context())
    assert [item.url for item in listed] == [f"s3://{bucket}/key"]
    await store.close()


async def test_a_host_is_no_tenant(server: ObjectServer) -> None:
    store = open_test_store("s3", server.storage_options)
    for url in ("s3://host:9000/bucket/key", "s3://key:sec/ret@bucket/key", "s3://key:secret@bucket/key"):
        with pytest.raises(InvalidOptionError, match="user info") as caught:
            await store.open_object(url)
        assert "sec" not in str(caught.value).replace("secret in storage_options", "")
    await store.close()


async def test_a_server_that_sends_no_date_has_a_clock(store: Store, server: ObjectServer) -> None:
    """A build of an index asks for the time at its end, when its work would be lost."""
    server.faults = [Fault(headers={"Date": None}, times=None)]
    server.put("bucket/lake/a", b"1")
    known = set(server.objects)
    now = await writable(store, "s3://bucket/lake/").clock("s3://bucket/lake/", context=new_context())
    assert abs(now - time.time()) < 60
    assert set(server.objects) == known
