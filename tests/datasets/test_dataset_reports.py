"""Inspections of prefixes, patterns and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Bounds, Keys
from asyncpq.reports.documents import DatasetInspection


def lake(folder: Path, files: int = 3) -> Path:
    for number in range(files):
        part = folder / f"day={number}"
        part.mkdir(parents=True)
        table = pa.table({"id": range(number * 10, number * 10 + 10)})
        pq.write_table(table, part / "0.parquet", write_page_index=True)
    return folder


async def inspected(target: Any, **options: Any) -> DatasetInspection:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(target, **options)
        document = await dataset.inspect()
        assert dataset.metrics.requests == document["requests"]
    return msgspec.convert(document, DatasetInspection, strict=True)


async def test_a_folder(tmp_path: Path) -> None:
    document = await inspected(lake(tmp_path))
    sizes = [(tmp_path / f"day={number}/0.parquet").stat().st_size for number in range(3)]
    assert [file["size"] for file in document["files"]] == sizes
    assert [Path(file["url"]).parent.name for file in document["files"]] == ["day=0", "day=1", "day=2"]
    assert document["partitions"] == ["day"]
    assert document["total_bytes"] == sum(sizes)
    assert [column["name"] for column in document["schema"]] == ["id", "day"]
    assert (document["indexes"], document["fallbacks"]) == ([], [])
    assert document["sample"] is not None
    assert document["sample"]["rows"] == 10


async def test_an_index_is_described(tmp_path: Path) -> None:
    lake(tmp_path)
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path, [Bounds("id"), Keys("id")])
    (index,) = (await inspected(tmp_path))["indexes"]
    assert (index["snapshot"], index["files"]) == (2, 3)
    assert "keys(id)" in index["tables"]


async def test_a_table(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2], "part": ["a", "b"]}), partition_by=["part"])
    document = await inspected(tmp_path, format="delta")
    assert (document["view"], document["partitions"]) == ("table", ["part"])
    assert [file["rows"] for file in document["files"]] == [1, 1]
    assert "Delta" in document["description"]


async def test_a_bad_first_file_is_no_sample(tmp_path: Path) -> None:
    lake(tmp_path)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        (tmp_path / "day=0/0.parquet").write_bytes(b"no parquet at all")
        document = await dataset.inspect()
    assert document["sample"] is None
    assert len(document["fallbacks"]) == 1
    assert len(document["files"]) == 3


def test_the_blocking_form(tmp_path: Path) -> None:
    with asyncpq.blocking.open_dataset(lake(tmp_path)) as dataset:
        assert len(dataset.inspect(pages=False)["files"]) == 3
