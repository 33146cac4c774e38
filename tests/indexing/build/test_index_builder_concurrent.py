"""Several writers of one index at once on LocalStack, and stores that cannot refuse to create what is there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import asyncpq
from asyncpq import col
from asyncpq.indexing.commits import files_of
from asyncpq.options import BuildOptions
from localstack.seed import seed, storage_options
from tests.lakes import FEW, rows, write
from tests.parquet_bytes import parquet_bytes

_OPTIONS = BuildOptions(checkpoint_files=2, max_segments=2)


def _bytes(number: int) -> bytes:
    return parquet_bytes(rows(number), row_group_size=40)


@pytest.mark.heavy
async def test_two_builders_and_a_compaction(localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {f"lake/{number}.parquet": _bytes(number) for number in range(8)})
    lake, at = f"s3://{bucket}/lake/", f"s3://{bucket}/index/"
    options = storage_options(localstack)
    async with asyncpq.Session(options) as one, asyncpq.Session(options) as other:
        # both begin where nothing is; each path is listed once
        first, second = await asyncio.gather(
            one.build_index(lake, FEW, at=at, building=_OPTIONS), other.build_index(lake, FEW, at=at, building=_OPTIONS)
        )
        await seed(localstack, bucket, {f"lake/{number}.parquet": _bytes(number + 100) for number in range(6, 12)})
        await asyncio.gather(first.refresh(), second.refresh(), first.compact(), second.compact())
        assert (await first.show()).snapshot == (await second.show()).snapshot
        manifest = first.manifest
        listed = await files_of(first._runtime, first.backend, manifest, manifest.live)
        assert sorted(file.path for file in listed) == sorted(f"{number}.parquet" for number in range(12))
        assert (manifest.num_files, manifest.num_rows, manifest.builds) == (12, 1200, ())
        assert (await second.verify(sample=100)).problems == []
        # a reader that holds an older snapshot, while others compact and vacuum
        dataset = await one.open_dataset(lake, index=first, view="snapshot")
        expected = (await dataset.read(where=col("id") == 500)).to_pylist()
        await second.compact()
        await second.vacuum(keep=1, older_than=timedelta(0))
        assert (await dataset.read(where=col("id") == 500)).to_pylist() == expected
        assert (await second.verify(sample=100)).problems == []


async def test_a_store_that_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "lake" / "a.parquet", 1)
    at = str(tmp_path / "index")
    async with asyncpq.Session() as session:
        store, _ = await session._runtime.store(at)

        async def creates(url: str, *, context: object) -> bool:
            return False

        monkeypatch.setattr(store, "probe_create", creates)
        with pytest.raises(asyncpq.AsyncpqError, match="overwrites objects that exist"):
            await session.build_index(str(tmp_path / "lake"), FEW, at=at)
