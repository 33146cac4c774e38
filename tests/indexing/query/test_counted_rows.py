"""``count()`` without a condition takes the numbers of rows from an index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import asyncpq
from asyncpq.indexing import Bounds, MemoryBackend

VIEWS: tuple[Literal["listed", "snapshot"], ...] = ("listed", "snapshot")


def write(path: Path, rows: int) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(rows)}), path)


@pytest.fixture
async def indexed(tmp_path: Path) -> AsyncIterator[tuple[asyncpq.Session, Path, MemoryBackend]]:
    lake, at = tmp_path / "lake", MemoryBackend()
    for number in range(5):
        write(lake / f"{number}.parquet", 10 + number)
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Bounds("id")], at=at)
    async with asyncpq.Session() as session:
        yield session, lake, at


@pytest.mark.parametrize("view", VIEWS)
async def test_no_file_is_opened(
    indexed: tuple[asyncpq.Session, Path, MemoryBackend], view: Literal["listed", "snapshot"]
) -> None:
    session, lake, at = indexed
    dataset = await session.open_dataset(lake, index=at, view=view)
    for _ in range(2):
        with asyncpq.measure() as cost:
            assert await dataset.count() == 60
        assert (cost.files_opened, cost.files_total, cost.rows_returned) == (0, 5, 60)
    with asyncpq.measure() as cost:
        assert await dataset.count("id >= 10") == 10
    assert cost.files_opened == 4


async def test_files_that_changed_are_opened(indexed: tuple[asyncpq.Session, Path, MemoryBackend]) -> None:
    session, lake, at = indexed
    dataset = await session.open_dataset(lake, index=at)
    assert await dataset.count() == 60
    write(lake / "1.parquet", 500)
    write(lake / "new.parquet", 7)
    (lake / "4.parquet").unlink()
    with asyncpq.measure() as cost:
        assert await dataset.count() == 60 - 11 - 14 + 500 + 7
    assert cost.files_opened == 2


async def test_a_list_that_names_a_file_twice_reads_it_twice(
    indexed: tuple[asyncpq.Session, Path, MemoryBackend],
) -> None:
    session, lake, at = indexed
    names = [str(lake / f"{number}.parquet") for number in (0, 1, 0, 2, 0)]
    dataset = await session.open_dataset(names, index=at)
    plain = await session.open_dataset(names)
    assert await dataset.count() == await plain.count() == 3 * 10 + 11 + 12
    assert await dataset.count("id = 9") == await plain.count("id = 9") == 5
    assert (await dataset.lookup({"id": 10})).num_rows == (await plain.lookup({"id": 10})).num_rows == 2


async def test_without_trust_all_files_are_opened(indexed: tuple[asyncpq.Session, Path, MemoryBackend]) -> None:
    _, lake, at = indexed
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=False)) as session:
        dataset = await session.open_dataset(lake, index=at)
        assert await dataset.count() == 60
        assert dataset.metrics.files_opened == 5


async def test_deleted_rows_of_a_table_do_not_count(tmp_path: Path) -> None:
    table, at = str(tmp_path / "table"), MemoryBackend()
    for number in range(3):
        write_deltalake(table, pa.table({"id": range(number * 10, number * 10 + 10)}), mode="append")
    async with asyncpq.Session() as session:
        await session.build_index(table, [Bounds("id")], at=at, format="delta")
        DeltaTable(table).delete("id IN (3, 14)")
        dataset = await session.open_dataset(table, index=at, format="delta")
        assert await dataset.count() == 28 == DeltaTable(table).to_pyarrow_table().num_rows


async def test_a_file_that_cannot_be_read_is_an_error(indexed: tuple[asyncpq.Session, Path, MemoryBackend]) -> None:
    session, lake, _ = indexed
    (lake / "bad.parquet").write_bytes(b"no Parquet file at all")
    at = MemoryBackend()
    await session.build_index(lake, [Bounds("id")], at=at)
    for view in VIEWS:
        with pytest.raises(asyncpq.NotParquetError):
            await (await session.open_dataset(lake, index=at, view=view)).count()
        dataset = await session.open_dataset(lake, index=at, view=view, on_bad_file="skip")
        assert await dataset.count() == 60
        assert [file.url.rpartition("/")[2] for file in dataset.skipped] == ["bad.parquet"]


async def test_a_newer_snapshot_counts(indexed: tuple[asyncpq.Session, Path, MemoryBackend]) -> None:
    session, lake, at = indexed
    dataset = await session.open_dataset(lake, index=at, view="snapshot")
    assert await dataset.count() == 60
    for number in range(5, 8):
        write(lake / f"{number}.parquet", 10 + number)
        async with asyncpq.Session() as other:
            await (await other.open_index(at)).refresh()
        assert await dataset.count() == sum(range(10, 11 + number))
        assert dataset.metrics.files_opened == 0
