"""S3Store against LocalStack: what S3 does, apart from what its errors are made to look like here."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from asyncpq.errors import BucketNotFoundError, NotParquetError, ObjectChangedError, ObjectNotFoundError
from asyncpq.storage.base import Guarantee, Store
from localstack.seed import seed, storage_options
from tests.store_backends import new_context, open_test_store

DATA = random.Random(13).randbytes(50_000)
KEYS = ["plain", "a b", "a+b", "100%", "%2F", "é/ü", "a//b", "a?b=c&d", "#f", "日本", "a:b@c", "~", "part=1/x.parquet"]


@pytest.fixture
async def store(localstack: str) -> AsyncIterator[Store]:
    made = open_test_store("s3", storage_options(localstack))
    yield made
    await made.close()


async def test_tail_and_ranges(store: Store, localstack: str, bucket: str) -> None:
    etags = await seed(localstack, bucket, {"key": DATA})
    stored = await store.open_object(f"s3://{bucket}/key")
    context = new_context()
    tail = await stored.fetch_tail(1000, context=context)
    assert (tail.data, tail.start) == (DATA[-1000:], 49_000)
    assert (tail.validator.size, tail.validator.etag) == (len(DATA), etags["key"])
    assert stored.guarantee is Guarantee.PINNED
    assert (await stored.fetch_tail(10**9, context=context)).data == DATA
    result = await stored.fetch_range(10, 3000, context=context, pin=tail.validator)
    assert result.data == DATA[10:3000]
    assert [record.status for record in context.metrics.log] == [206, 206, 206]


async def test_overwritten(store: Store, localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"key": DATA})
    stored = await store.open_object(f"s3://{bucket}/key")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    await seed(localstack, bucket, {"key": b"x" * len(DATA)})
    context = new_context()
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 8, context=context, pin=pin)
    # the first refusal of If-Match in a session is looked into: some servers never let it match
    assert [record.status for record in context.metrics.log] == [412, 206]
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 8, context=context, pin=pin)


async def test_keys(store: Store, localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {key: key.encode() * 3 for key in KEYS})
    for key in KEYS:
        stored = await store.open_object(f"s3://{bucket}/{key}")
        assert (await stored.fetch_tail(1000, context=new_context())).data == key.encode() * 3


async def test_nothing_there(store: Store, bucket: str) -> None:
    stored = await store.open_object(f"s3://{bucket}/missing")
    with pytest.raises(ObjectNotFoundError) as caught:
        await stored.fetch_tail(8, context=new_context())
    assert not isinstance(caught.value, BucketNotFoundError)
    stored = await store.open_object(f"s3://{bucket}-missing/key")
    with pytest.raises(BucketNotFoundError):
        await stored.fetch_tail(8, context=new_context())


async def test_empty_object(store: Store, localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"empty": b""})
    stored = await store.open_object(f"s3://{bucket}/empty")
    with pytest.raises(NotParquetError, match="empty"):
        await stored.fetch_tail(8, context=new_context())


async def test_many_parts_etag(store: Store, localstack: str, bucket: str) -> None:
    """The ETag of a multi-part upload is no MD5, and goes into If-Match as it is."""
    from aiobotocore.session import get_session

    part = b"p" * (5 * 1024 * 1024)
    client = get_session().create_client(
        "s3", endpoint_url=localstack, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    async with client as s3:
        target = {"Bucket": bucket, "Key": "parts"}
        upload = {**target, "UploadId": (await s3.create_multipart_upload(**target))["UploadId"]}
        parts = [
            {"PartNumber": number, "ETag": (await s3.upload_part(**upload, PartNumber=number, Body=body))["ETag"]}
            for number, body in ((1, part), (2, b"end"))
        ]
        await s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    stored = await store.open_object(f"s3://{bucket}/parts")
    tail = await stored.fetch_tail(4, context=new_context())
    assert tail.data == b"pend"
    assert tail.validator.etag is not None
    assert tail.validator.etag.endswith('-2"')
    assert (await stored.fetch_range(0, 4, context=new_context(), pin=tail.validator)).data == b"pppp"


async def test_both_clients_agree(store: Store, localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"key": DATA})
    through_s3fs = open_test_store(
        "s3", {**storage_options(localstack), "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    )
    first = await store.open_object(f"s3://{bucket}/key")
    second = await through_s3fs.open_object(f"s3://{bucket}/key")
    assert (first.client, second.client) == ("direct", "s3fs")
    tails = [await stored.fetch_tail(100, context=new_context()) for stored in (first, second)]
    assert tails[0] == tails[1]
    await through_s3fs.close()
