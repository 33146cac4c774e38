"""rclone's S3 server, with asyncpq's own client and through s3fs.

A Range is answered with 200, and with 416 if it is of more last bytes than there are. If-Match is ignored, and so is
If-None-Match, which the probe of a store that writes notices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.errors import CredentialsError, ObjectNotFoundError
from asyncpq.storage.base import writable
from tests.faults.operations import OPERATIONS, Rows, by_pyarrow, parquet
from tests.real_stores import BUCKET, RealStore, running_rclone
from tests.store_backends import new_context, open_test_store

pytestmark = pytest.mark.services

DATA = parquet()
URL = f"s3://{BUCKET}/file.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStore]:
    folder = tmp_path_factory.mktemp("rclone")
    with running_rclone(folder, os.environ) as started:
        (folder / "root" / BUCKET / "file.parquet").write_bytes(DATA)
        yield started


def session(server: RealStore, *, tail_bytes: int = 4096, **changed: Any) -> asyncpq.Session:
    return asyncpq.Session({"s3": server.options | changed}, requests=asyncpq.RequestOptions(tail_bytes=tail_bytes))


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation(server: RealStore, operation: str, changed: dict[str, Any]) -> None:
    for tail_bytes in (4096, len(DATA), len(DATA) + 1):
        async with session(server, tail_bytes=tail_bytes, **changed) as s:
            rows = Rows()
            await OPERATIONS[operation](await s.open_file(URL), rows)
            assert rows.value is not None
            assert rows.value.equals(by_pyarrow(operation, DATA))


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
async def test_it_creates_over_what_is_there(server: RealStore, changed: dict[str, Any], tmp_path: Path) -> None:
    """If-None-Match is ignored, which the probe notices; everything else that writes works."""
    store = writable(open_test_store("s3", {**server.options, **changed}), server.url)
    folder = f"{server.url}written/"
    assert await store.probe_create(folder, context=new_context()) is False
    path = tmp_path / "large"
    path.write_bytes(b"parts" * 4_000_000)
    await store.put_file(f"{folder}large", path, context=new_context())
    await store.put_object(f"{folder}a b+c", b"1", context=new_context())
    listed = await store.list_objects(folder, context=new_context())
    assert [(each.url, each.size) for each in listed] == [(f"{folder}a b+c", 1), (f"{folder}large", 20_000_000)]
    now = await store.clock(folder, context=new_context())
    assert all(each.modified is not None and abs(each.modified - now) < 60 for each in listed)
    await store.delete_objects([each.url for each in listed], context=new_context())
    assert await store.list_objects(folder, context=new_context()) == []
    await store.close()


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
async def test_refusals(server: RealStore, changed: dict[str, Any]) -> None:
    async with session(server, **changed) as s:
        with pytest.raises(ObjectNotFoundError):
            await s.open_file(f"{server.url}missing.parquet")
    async with session(server, secret="wrong", **changed) as s:
        with pytest.raises(CredentialsError):
            await s.open_file(URL)
