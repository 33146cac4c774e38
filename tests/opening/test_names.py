"""What a url's text says about the files that it names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.opening.names import names_many
from asyncpq.testing import ObjectServer
from tests.reads import parquet


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "s3://bucket/", "s3://bucket/lake/", "s3://b/*.parquet"])
def test_buckets_prefixes_and_patterns_name_many(url: str) -> None:
    assert names_many(url)


@pytest.mark.parametrize("url", ["s3://bucket/a.parquet", "https://host", "memory://a.parquet", "a.parquet"])
def test_others_may_name_one(url: str) -> None:
    assert not names_many(url)


def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    assert names_many(str(tmp_path))


async def test_a_bucket_is_opened_as_all_of_its_files() -> None:
    async with ObjectServer() as server:
        for number in range(3):
            server.put(f"bucket/{number}.parquet", parquet(pa.table({"id": [number]})))
        async with asyncpq.Session(server.storage_options) as session:
            dataset = await session.open_dataset("s3://bucket")
            assert await dataset.count() == 3


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "S3://bucket"])
async def test_an_empty_bucket_has_nothing(url: str) -> None:
    async with ObjectServer() as server:
        server.buckets.add("bucket")
        async with asyncpq.Session(server.storage_options) as session:
            with pytest.raises(asyncpq.ObjectNotFoundError, match="nothing is at the dataset's url"):
                await session.open_dataset(url)
