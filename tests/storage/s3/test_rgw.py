"""The S3 path against Ceph's gateway: a production server that checks signatures fully."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import s3fs

import asyncpq
from asyncpq.errors import AccessDeniedError, CredentialsError, ObjectChangedError, ObjectNotFoundError
from tests.parquet_bytes import parquet_bytes
from tests.storage.s3.ceph import MISSING, Gateway, running_gateway

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"Ceph is not installed (system packages radosgw, ceph-mon, ceph-osd, ceph-common): no {MISSING}",
    ),
]

BUCKET = "bucket"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with running_gateway() as running:
        filesystem(running).call_s3("create_bucket", Bucket=BUCKET)
        yield running


def options(gateway: Gateway, **changed: Any) -> dict[str, Any]:
    plain = {
        "key": gateway.key,
        "secret": gateway.secret,
        "endpoint_url": gateway.endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return plain | changed


def filesystem(gateway: Gateway) -> Any:
    return s3fs.S3FileSystem(skip_instance_cache=True, **options(gateway))


def put(gateway: Gateway, key: str, rows: int, seed: int = 0) -> pa.Table:
    """A file that is larger than the tail which a session fetches first, so that pages cost GETs."""
    noise = random.Random(seed)
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "noise": [noise.randbytes(24) for _ in range(rows)]})
    filesystem(gateway).pipe_file(
        f"{BUCKET}/{key}", parquet_bytes(table, row_group_size=rows // 4, write_page_index=True, data_page_size=16_384)
    )
    return table


@pytest.mark.parametrize("key", ["plain.parquet", "a b+c%41=é/x.parquet", "x//y.parquet", "~tilde!'()*.parquet"])
async def test_reads_equal_pyarrow(gateway: Gateway, key: str) -> None:
    table = put(gateway, key, 80_000)
    async with asyncpq.Session(options(gateway)) as session:
        file = await session.open_file(f"s3://{BUCKET}/{key}")
        assert (await file.lookup({"id": 12_345}, columns=["noise"])).equals(table.slice(12_345, 1).select(["noise"]))
        assert (await file.read(where=[("id", ">=", 79_990)])).equals(table.slice(79_990))
        assert (await file.take([7, 3, 7])).equals(table.take(pa.array([7, 3, 7])))
        assert file.metrics.guarantee == "pinned"
        assert file.metrics.store_path == "direct"


async def test_options_beyond_the_hot_path_go_through_s3fs(gateway: Gateway) -> None:
    table = put(gateway, "payer.parquet", 4_000)
    async with asyncpq.Session(
        options(gateway, s3_additional_kwargs={"ExpectedBucketOwner": "000000000000"})
    ) as session:
        file = await session.open_file(f"s3://{BUCKET}/payer.parquet")
        assert (await file.lookup({"id": 77})).equals(table.slice(77, 1))
        assert file.metrics.store_path == "s3fs"


async def test_a_replaced_object_is_noticed(gateway: Gateway) -> None:
    put(gateway, "changing.parquet", 80_000, seed=1)
    async with asyncpq.Session(options(gateway)) as session:
        file = await session.open_file(f"s3://{BUCKET}/changing.parquet")
        await file.take([0], columns=["noise"])
        put(gateway, "changing.parquet", 80_000, seed=2)
        with pytest.raises(ObjectChangedError):
            await file.take([15_000], columns=["noise"])


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"secret": "wrong"}, CredentialsError),
        ({"key": "nobody"}, CredentialsError),
        ({"key": None, "secret": None, "anon": True}, AccessDeniedError),
    ],
)
async def test_bad_credentials(gateway: Gateway, changed: dict[str, Any], error: type[Exception]) -> None:
    put(gateway, "private.parquet", 400)
    async with asyncpq.Session(options(gateway, **changed)) as session:
        with pytest.raises(error) as caught:
            await session.open_file(f"s3://{BUCKET}/private.parquet")
    assert gateway.secret not in str(caught.value)


@pytest.mark.parametrize("url", [f"s3://{BUCKET}/missing.parquet", "s3://missing-bucket/missing.parquet"])
async def test_missing(gateway: Gateway, url: str) -> None:
    async with asyncpq.Session(options(gateway)) as session:
        with pytest.raises(ObjectNotFoundError):
            await session.open_file(url)
