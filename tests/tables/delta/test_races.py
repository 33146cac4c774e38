"""Delta logs that a writer changes while they are read: cleaned up since they were listed, or with a checkpoint that is
not yet, or will never be, whole. deltalake writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import asyncpq
from asyncpq.errors import NotParquetError, ObjectNotFoundError
from asyncpq.tables.delta.catalog import DeltaCatalog
from tests.delta_tables import FolderReader


class ChangingFolder(FolderReader):
    """A folder in which ``change`` runs after each listing, with the number of the listing."""

    def __init__(self, change: Callable[[int], None]) -> None:
        super().__init__()
        self.listings = 0
        self.change = change

    async def list_names(self, url: str) -> list[str]:
        names = await super().list_names(url)
        self.change(self.listings)
        self.listings += 1
        return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of 12 commits, each with one row."""
    for number in range(12):
        write_deltalake(tmp_path / "t", pa.table({"id": [number]}), mode="append")
    return tmp_path / "t"


def clean_up(folder: Path, version: int) -> None:
    """Write a checkpoint of ``version``, and remove the commits before it."""
    DeltaTable(folder, version=version).create_checkpoint()
    for number in range(version):
        (folder / f"_delta_log/{number:020}.json").unlink(missing_ok=True)


async def test_a_log_that_is_cleaned_up_after_its_listing(folder: Path) -> None:
    reader = ChangingFolder(lambda listing: clean_up(folder, 10) if listing == 0 else None)
    snapshot = await DeltaCatalog.of(folder).snapshot(reader)
    assert reader.listings == 2
    assert len(await snapshot.files(None, reader)) == 12


async def test_a_log_that_is_cleaned_up_after_each_listing(folder: Path) -> None:
    def change(listing: int) -> None:
        clean_up(folder, 5 * listing + 5)
        for old in (folder / "_delta_log").glob("*.checkpoint.parquet"):
            if int(old.name[:20]) < 5 * listing + 5:
                old.unlink()

    reader = ChangingFolder(change)
    with pytest.raises(ObjectNotFoundError, match=r"listed twice.*before: 0000") as caught:
        await DeltaCatalog.of(folder).snapshot(reader)
    assert reader.listings == 2
    assert "_delta_log/" in str(caught.value.url)


async def test_what_is_not_the_logs_is_not_listed_again(tmp_path: Path) -> None:
    reader = ChangingFolder(lambda listing: None)
    with pytest.raises(ObjectNotFoundError, match="no Delta table"):
        await DeltaCatalog.of(tmp_path).snapshot(reader)
    assert reader.listings == 1


@pytest.mark.parametrize("content", [b"", b"PAR"])
async def test_a_checkpoint_that_is_not_whole_beside_all_commits(folder: Path, content: bytes) -> None:
    DeltaTable(folder, version=10).create_checkpoint()
    checkpoint = folder / f"_delta_log/{10:020}.checkpoint.parquet"
    checkpoint.write_bytes(content)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder), format="delta")
        assert sorted((await dataset.read())["id"].to_pylist()) == list(range(12))


async def test_the_checkpoint_before_an_empty_one_is_used(folder: Path) -> None:
    clean_up(folder, 5)
    DeltaTable(folder, version=10).create_checkpoint()
    (folder / f"_delta_log/{10:020}.checkpoint.parquet").write_bytes(b"")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder), format="delta")
        assert sorted((await dataset.read())["id"].to_pylist()) == list(range(12))


async def test_an_empty_checkpoint_without_the_commits_before_it(folder: Path) -> None:
    clean_up(folder, 10)
    (folder / f"_delta_log/{10:020}.checkpoint.parquet").write_bytes(b"")
    async with asyncpq.Session() as session:
        with pytest.raises(NotParquetError, match="lacks the commits before this checkpoint") as caught:
            await session.open_dataset(str(folder), format="delta")
        assert str(caught.value.url).endswith(f"{10:020}.checkpoint.parquet")
