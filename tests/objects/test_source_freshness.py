"""What a cached footer says is wrong with a question is said only once the cache policy has had the store asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"
Ask = Callable[[asyncpq.File], Awaitable[object]]


def parquet(table: pa.Table) -> bytes:
    return parquet_bytes(table)


OLD = pa.table({"id": range(1000), "word": [str(row) for row in range(1000)]})
#: One column and more rows than before, and a column of another type.
NEW = pa.table({"id": range(2000), "word": range(2000), "x": [row % 10 for row in range(2000)]})


async def scanned(file: asyncpq.File) -> pa.Table:
    async with file.scan(["id"], where=pc.field("x") == 7) as scan:
        return pa.Table.from_batches([batch async for batch in scan], schema=scan.schema)


SEVENS = NEW.filter(pc.field("x") == 7)
#: Each is an error of the old version, and none of the new one.
QUESTIONS: dict[str, tuple[Ask, object]] = {
    "column of a lookup": (lambda file: file.lookup({"id": 3}, ["x"]), NEW.slice(3, 1).select(["x"])),
    "key of a lookup": (lambda file: file.lookup({"x": 7}, ["id"]), SEVENS.select(["id"])),
    "ordinal": (lambda file: file.read([2]), NEW.select(["x"])),
    "predicate": (lambda file: file.read(["id"], col("x") == 7), SEVENS.select(["id"])),
    "type of a predicate": (lambda file: file.count(col("word") >= 7), 1993),
    "pyarrow's predicate": (lambda file: file.count(pc.field("x") == 7), 200),
    "type of pyarrow's predicate": (lambda file: file.count(pc.field("word") >= 7), 1993),
    "pyarrow's predicate of a scan": (scanned, SEVENS.select(["id"])),
}


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", parquet(OLD))
        yield running


@pytest.mark.parametrize("question", QUESTIONS)
async def test_the_store_is_asked_before_an_error(server: ObjectServer, question: str) -> None:
    ask, expected = QUESTIONS[question]
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        await (await session.open_file(URL)).lookup({"id": 3})
        server.put("lake/file.parquet", parquet(NEW))
        file = await session.open_file(URL)
        assert file.num_rows == OLD.num_rows
        assert await ask(file) == expected
        assert file.num_rows == NEW.num_rows


async def test_plans_of_a_column_that_is_new(server: ObjectServer) -> None:
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(URL)
        server.put("lake/file.parquet", parquet(NEW))
        plan = await file.plan(["x"], pc.field("x") == 7)
        assert (plan.columns, plan.where) == (("x",), "x == 7")


async def test_a_row_that_the_new_version_has(server: ObjectServer) -> None:
    """Row numbers mean one version: the caller has to say that the new one is meant."""
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(URL)
        server.put("lake/file.parquet", parquet(NEW))
        for _ in range(2):
            with pytest.raises(asyncpq.ObjectChangedError, match="refresh"):
                await file.take([1500])
        await file.refresh()
        assert await file.take([1500]) == NEW.slice(1500, 1)


@pytest.mark.parametrize("ask", [lambda file: file.read(["nothing"]), lambda file: file.take([1000])])
async def test_errors_of_the_present_version(server: ObjectServer, ask: Ask) -> None:
    """One request says that it is the present one; none where the policy asks for none."""
    for policy, requests in ((asyncpq.etag(0), 1), (asyncpq.etag(3600), 0), (asyncpq.immutable(), 0)):
        async with asyncpq.Session(server.storage_options, cache_policy=policy) as session:
            file = await session.open_file(URL)
            server.log.clear()
            with pytest.raises(asyncpq.QueryError):
                await ask(file)
            assert len(server.log) == requests
            assert file.metrics.requests_by_purpose.get("validate", 0) == requests


async def test_negative_rows_are_in_no_version(server: ObjectServer) -> None:
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(URL)
        server.log.clear()
        with pytest.raises(asyncpq.RowIndexError, match="row -1 is not in a file of 1,000 rows"):
            await file.take([5, -1])
        assert server.log == []


async def test_restarts_are_bounded(server: ObjectServer) -> None:
    """An object that is replaced after every footer ends in an error."""
    count = 0

    def replace(_: object) -> None:
        nonlocal count
        count += 1
        server.put("lake/file.parquet", parquet(OLD.slice(count)))

    limits = asyncpq.LimitOptions(max_restarts=2)
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0), limits=limits) as session:
        file = await session.open_file(URL)
        server.faults = replace
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.read(["nothing"])
        assert file.metrics.restarts == 2


async def test_a_footer_of_another_process(server: ObjectServer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"disk_cache": str(tmp_path / "cache"), "cache_policy": asyncpq.etag(0)}
    async with asyncpq.Session(server.storage_options, **options) as session:
        await (await session.open_file(URL)).lookup({"id": 3})
    server.put("lake/file.parquet", parquet(NEW))
    async with asyncpq.Session(server.storage_options, **options) as session:
        file = await session.open_file(URL)
        assert await file.lookup({"x": 7}) == SEVENS


async def test_a_store_that_is_gone(server: ObjectServer) -> None:
    """What is wrong with the question cannot be known: what is wrong with the store is said."""
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as session:
        file = await session.open_file(URL)
        del server.objects["lake/file.parquet"]
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await file.read(["x"])
