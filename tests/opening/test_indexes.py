"""What is refused of those who build, open and use indexes, and what they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import asyncpq
import asyncpq.blocking
from asyncpq import col
from asyncpq.errors import InvalidOptionError, UsageError
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds, FileSlices, Keys, MemoryBackend
from tests.lakes import DAY, write_days


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session() as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return write_days(tmp_path / "lake")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (MemoryBackend, "at: must be a url or a backend, not the class MemoryBackend"),
        (3, "at: must be a url or a backend, not an object of type int"),
        ("", "not ''"),
        ("mysql://user:secret@host/indexes", "an index cannot be kept in mysql.*PostgreSQL"),
        ("postgres://user:secret@host/indexes", "postgresql"),
    ],
)
async def test_places(session: asyncpq.Session, lake: Path, at: Any, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said) as refused:
        await session.build_index(lake, [Bounds("id")], at=at)
    assert "secret" not in str(refused.value)


async def test_a_pattern_has_no_place_of_its_own(session: asyncpq.Session, lake: Path) -> None:
    with pytest.raises(InvalidOptionError, match="Say where to keep the index"):
        await session.build_index(f"{lake}/**/*.parquet", [Bounds("id")])


async def test_an_index_is_not_built_again_with_other_columns(session: asyncpq.Session, lake: Path) -> None:
    """Instead of taking no notice of what is asked for."""
    await session.build_index(lake, [Keys("user")])
    with pytest.raises(InvalidOptionError, match="partitioning: the index was built with 'hive'"):
        await session.build_index(lake, [Keys("user")], partitioning=None)
    for other in (pa.schema([("id", pa.int32())]), pa.schema([("more", pa.int64())])):
        with pytest.raises(InvalidOptionError, match="built with another column"):
            await session.build_index(lake, [Keys("user")], schema=other)
    same = await session.build_index(lake, [Keys("user")], schema=DAY.schema)
    assert same.manifest.num_files == 2


async def test_an_index_is_none_of_a_folder_inside(session: asyncpq.Session, lake: Path) -> None:
    """Its files have other names there; a copy of the dataset is another matter."""
    index = await session.build_index(lake, [Keys("user")])
    for opened in (index, index.url):
        for folder in (lake / "day=1", lake.parent):
            with pytest.raises(InvalidOptionError, match="not the opened folder"):
                await session.open_dataset(folder, index=opened, view="snapshot")
    with pytest.raises(InvalidOptionError, match="not those of"):
        await session.build_index(lake / "day=1", [Keys("user")], at=index.url)
    inside = await session.open_dataset(lake / "day=1", index=index)
    assert await inside.count(col("user") == "a") == 1
    copied = await session.open_dataset(lake, index=index.url)
    assert await copied.count(col("user") == "a") == 2


async def test_an_index_of_a_table_is_opened_with_it(session: asyncpq.Session, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": [1, 2]}))
    at = str(tmp_path / "index")
    await session.build_index(table, [Bounds("id")], at=at, format="delta")
    with pytest.raises(UsageError, match=r"open_index\(at, table=table\)"):
        await (await session.open_index(at)).refresh()
    with pytest.raises(InvalidOptionError, match=r'the argument table is not a table.*format="delta"'):
        await session.open_index(at, table=table)
    assert (await (await session.open_index(at, table=table, format="delta")).refresh()).added == 0


class Everything:
    async def prune(self, where: Expression) -> FileSlices:
        return FileSlices(files={})


def test_blocking_takes_a_list_of_indexes(lake: Path) -> None:
    with asyncpq.blocking.Session() as session:
        index = session.build_index(str(lake), [Keys("user")])
        dataset = session.open_dataset(str(lake), index=[index, Everything()])
        assert dataset.count(where=col("user") == "a") == 2


async def test_json_is_opened_by_its_own_url(session: asyncpq.Session, lake: Path, tmp_path: Path) -> None:
    """And is in no folder that another kind of place would have."""
    index = await session.build_index(lake, [Bounds("id")], at=f"{tmp_path}/index.json")
    await session.build_index(lake, [Keys("id")], at=f"{tmp_path}/index")
    assert (await session.open_index(index.url)).manifest.tables == index.manifest.tables
