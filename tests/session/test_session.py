"""The walk of a new user: what is tried in the first hour gives the right rows, or an error that says what to write."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.blocking
from asyncpq import col
from asyncpq.indexing import Bounds, Keys
from asyncpq.testing import Fault, ObjectServer


def _rows(start: int, stop: int, user: str = "u") -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": numbers, "user": [f"{user}-{n % 7}" for n in numbers]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(3):
        pq.write_table(_rows(number * 100, number * 100 + 100), folder / f"{number}.parquet")
    return folder


def _hint(error: asyncpq.AsyncpqError) -> str:
    assert error.hint is not None, error
    return error.hint


async def test_an_index_and_then_other_files(lake: Path) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Bounds("id"), Keys("user")])
        dataset = await session.open_dataset(lake)
        pq.write_table(_rows(100, 150, "w"), lake / "1.parquet")
        pq.write_table(_rows(900, 910, "w"), lake / "3.parquet")
        for reads in (dataset, await session.open_dataset(lake)):
            found = await reads.read(where=col("user") == "w-3")
            wanted = ds.dataset(lake, exclude_invalid_files=True).to_table(filter=pc.field("user") == "w-3")
            assert found.equals(wanted)
            assert (await reads.lookup({"user": "w-3"})).equals(wanted)
            assert await reads.count() == 260
        listed = await session.open_dataset(lake, view="snapshot")
        assert (await listed.plan()).view == "snapshot"


async def test_one_file_rewritten_and_indexed(lake: Path, tmp_path: Path) -> None:
    path = lake / "0.parquet"
    async with asyncpq.Session() as session:
        file = await session.open_file(path)
        assert await file.count() == 100
        pq.write_table(_rows(0, 7), path)
        assert await file.count() == await (await session.open_file(path)).count() == 7
        with pytest.raises(asyncpq.InvalidOptionError, match="at:") as caught:
            await session.build_index(path, [Keys("id")])
        assert "at=" in _hint(caught.value)
        index = await session.build_index(path, [Keys("id")], at=tmp_path / "index")
        dataset = await session.open_dataset(path, index=index)
        assert (await dataset.lookup({"id": 3})).num_rows == 1


async def test_a_public_file_behind_a_redirect(lake: Path) -> None:
    async with ObjectServer() as hub, ObjectServer() as cdn:
        cdn.put("trips.parquet", (lake / "2.parquet").read_bytes())
        hub.faults = lambda request: Fault(redirect=f"{cdn.endpoint}{request.path}?sig=1")
        async with asyncpq.open_file(f"{hub.endpoint}/trips.parquet") as file:
            assert (await file.lookup({"id": 205}))["user"].to_pylist() == ["u-2"]


async def test_ids_that_are_uuids(tmp_path: Path) -> None:
    ids = [uuid.UUID(int=number) for number in range(5)]
    table = pa.table({"id": pa.array([one.bytes for one in ids], pa.uuid()), "n": range(5)})
    pq.write_table(table, tmp_path / "ids.parquet")
    async with asyncpq.open_file(tmp_path / "ids.parquet") as file:
        assert (await file.lookup({"id": pd.Series(ids[1:3])}))["n"].to_pylist() == [1, 2]
        assert (await file.lookup({"n": {3: "a", 4: "b"}.keys()})).num_rows == 2
        with pytest.raises(asyncpq.AsyncpqError) as caught:
            await file.lookup({"id": str(ids[1])})
        assert "uuid.UUID(" in _hint(caught.value)


async def test_without_an_event_loop(lake: Path) -> None:
    def script() -> tuple[int, int]:
        with asyncpq.blocking.open_file(lake / "0.parquet") as file:
            return pl.DataFrame(file.scan(where=col("id") < 40)).height, pa.table(file.scan()).num_rows

    assert await asyncio.to_thread(script) == (40, 100)
    with pytest.raises(asyncpq.UsageError, match="cannot be awaited") as caught:
        await asyncpq.open_file(lake / "0.parquet")  # type: ignore[misc]  # what is tested
    assert "async with" in _hint(caught.value)


async def test_options_and_paths_that_mean_something_else(lake: Path) -> None:
    async with asyncpq.Session({"s3": {"aws_access_key_id": "a", "aws_endpoint_url": "http://127.0.0.1:1"}}) as session:
        with pytest.raises(asyncpq.InvalidOptionError) as caught:
            await session.open_file("s3://bucket/trips.parquet")
        assert {"key", "endpoint_url"} <= set(_hint(caught.value).replace(",", " ").split())
        with pytest.raises(asyncpq.AsyncpqError) as many:
            await session.open_file(lake)
        assert "open_dataset" in _hint(many.value)
        (lake / "notes.txt").write_text("to be read by people")
        dataset = await session.open_dataset(lake)
        with pytest.raises(asyncpq.NotParquetError) as stray:
            await dataset.count()
        assert "*.parquet" in _hint(stray.value)


async def test_a_session_can_be_awaited(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(3)}), tmp_path / "a.parquet")
    session = await asyncpq.Session(disk_cache=tmp_path / "cache")
    assert (await (await session.open_file(tmp_path / "a.parquet")).lookup({"id": 2}))["id"].to_pylist() == [2]
    await session.close()
    with pytest.raises(asyncpq.UsageError, match="closed"):
        await session


def test_without_a_loop_of_asyncio_the_error_says_what_to_use() -> None:
    session = asyncpq.Session()
    for coroutine in session.__aenter__(), session.open_file("memory://x.parquet"):
        with pytest.raises(asyncpq.UsageError, match=r"no event loop of asyncio .*asyncio\.run.*asyncpq\.blocking"):
            coroutine.send(None)  # as another library's loop does
