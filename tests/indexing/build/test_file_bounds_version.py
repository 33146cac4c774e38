"""Bounds that an earlier version of asyncpq made of statistics which are not believed any more are left out."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.indexing import Bounds
from asyncpq.indexing.manifest.manifest import BOUNDS_VERSION, decode

_TAIL = b',"crc32":'


def as_built_before(content: bytes) -> bytes:
    """A manifest whose bounds are of no version."""
    body = content.rpartition(_TAIL)[0].replace(b',"bounds_version":%d' % BOUNDS_VERSION, b"")
    return b"%s%s%d}" % (body, _TAIL, zlib.crc32(body))


async def test_older_bounds_are_left_out_until_they_are_built_again(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"x": [number * 10, number * 10 + 1]}), tmp_path / f"{number}.parquet")
    at = tmp_path / "_asyncpq"
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("x")], at=str(at))
    newest = max((at / "manifests").glob("*.json"))
    assert "bounds" in [segment.table.kind for segment in decode(newest.read_bytes()).segments]
    for manifest in (at / "manifests").glob("*.json"):
        manifest.write_bytes(as_built_before(manifest.read_bytes()))
    snapshot, _, copy = (at / "latest").read_bytes().partition(b"\n")
    (at / "latest").write_bytes(snapshot + b"\n" + as_built_before(copy))
    assert "bounds" not in [segment.table.kind for segment in decode(newest.read_bytes()).segments]

    async def files_opened() -> int:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(tmp_path), index=str(at))
            async with dataset.scan(where=col("x") == 11) as scan:
                assert [batch.to_pydict() async for batch in scan] == [{"x": [11]}]
            return scan.metrics.files_opened

    assert await files_opened() == 3
    shutil.rmtree(at)
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("x")], at=str(at))
    assert await files_opened() == 1
