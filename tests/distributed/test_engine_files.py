"""The files of a dataset as an engine has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import DataFile, col
from asyncpq.datasets.providers import FileSet, GivenFiles
from asyncpq.distributed.engine_files import EngineDataset, EngineFiles
from asyncpq.distributed.engine_scans import EngineRules
from asyncpq.events import Operation
from asyncpq.scan.request import ScanRequest

_FILES = [DataFile(url=f"s3://lake/p={at}/x.parquet", size=at, partition={"p": str(at)}) for at in range(3)]
_RULES = EngineRules(case_sensitive=False)


class _Recorded(GivenFiles):
    """Files that remember the conditions by which they were asked."""

    def __init__(self) -> None:
        super().__init__(_FILES)
        self.asked: list[str] = []

    async def files(self, ask: ScanRequest, operation: Operation, **options: Any) -> FileSet:
        self.asked.append(str(ask.where))
        return await super().files(ask, operation, **options)


_NO_OPERATION: Any = None


async def test_files_and_values_of_an_engine() -> None:
    source = _Recorded()
    files = EngineFiles(
        source, _RULES, reads=lambda file: file.size != 0, values=lambda file: {"p": file.size}, retyped=["p"]
    )
    request = ScanRequest(where=(col("p") == 5) & (col("a") == 1))
    found = await files.files(request, _NO_OPERATION)
    assert [file.partition for file in found.files] == [{"p": 1}, {"p": 2}]
    assert source.asked == ["a == 1"]  # its own values of p are texts
    assert files.known is None
    async for some in files.sets(request, _NO_OPERATION, most_files=1):
        assert some.files == found.files


async def test_an_index_gets_only_what_its_columns_can_evaluate() -> None:
    source = _Recorded()
    schemas = pa.schema([("a", pa.int64()), ("b", pa.int64())]), pa.schema([("a", pa.int32()), ("b", pa.string())])
    files = EngineFiles(source, _RULES, schemas=schemas)
    await files.files(ScanRequest(where=(col("a") == 1) & (col("b") == 1)), _NO_OPERATION)
    assert source.asked == ["a == 1"]
    assert files.index is None


async def test_a_dataset_of_an_engine(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        made = EngineDataset.of(dataset, skips_missing=True)
        assert (made.skips_missing, made.unifier, made.url) == (True, None, dataset.url)
        operation = made.runtime.operation("files", made.url)
        assert [[file.url for file in files] async for files in made.files(operation)] == [await dataset.files()]
        made.source = GivenFiles(_FILES)
        assert [len(files) async for files in made.files(operation)] == [3]


@pytest.mark.parametrize(
    ("target", "folder"),
    [
        ("s3://b/lake", "s3://b/lake/"),
        ("s3://b/lake/", "s3://b/lake/"),
        ("s3://b/*.parquet", None),
        (["s3://b/a"], None),
    ],
)
def test_folders(target: object, folder: str | None) -> None:
    assert EngineDataset.folder_of(target) == folder
