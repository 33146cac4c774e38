"""Typing of the public names, as their users see it: mypy checks this file, pytest runs it.

pyarrow ships no types, so tables and batches are ``Any`` for mypy; what stands around them is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, assert_type

import deltalake
import pyarrow.compute as pc
import pyiceberg.table

import asyncpq
import asyncpq.blocking
from asyncpq import col
from asyncpq.typing import DatasetTarget, Predicate


async def reads(url: str) -> AsyncIterator[int]:
    """Never run: mypy looks at it."""
    async with asyncpq.Session(
        {"s3": {"anon": True}}, memory_cache_bytes=0, cache_policy=asyncpq.immutable()
    ) as session:
        assert_type(session, asyncpq.Session)
        assert_type(session.metrics, asyncpq.ReadMetrics)
        file = await session.open_file(url)
        assert_type(file, asyncpq.File)
        assert_type(file.num_rows, int)
        assert_type(await file.count(where=col("id") == 1), int)
        assert_type((await file.plan(where=[("id", ">", 1)])).explain(), str)
        table: Any = await file.lookup({"id": [1, 2]}, columns=["id"])
        async with file.scan(columns=["id"], where=col("id").is_in([1]), limit=1) as scan:
            assert_type(scan, asyncpq.Scan)
            async for batch in scan:
                yield batch.num_rows + table.num_rows


def blocking_reads(url: str) -> int:
    """Never run: mypy looks at it."""
    with asyncpq.blocking.Session() as session:
        file = session.open_file(url)
        assert_type(file, asyncpq.blocking.File)
        return file.num_rows


def misspelt(url: str) -> None:
    """Never run: mypy finds each of these."""
    with (
        asyncpq.blocking.Session(memory_cache_byte=0) as session,  # type: ignore[call-arg]
        asyncpq.blocking.open_file(url, retries=3) as file,  # type: ignore[call-arg]
        asyncpq.blocking.open_dataset(url, indexes=None) as dataset,  # type: ignore[call-arg]
    ):
        session.open_dataset(url, schema_policy="lax")  # type: ignore[arg-type]
        session.open_dataset(url, on_bad_files="skip")  # type: ignore[call-arg]
        session.build_index(url, [], place=url)  # type: ignore[call-arg]
        session.open_index(url, snapshots=3)  # type: ignore[call-arg]
        file.scan(column=["id"])  # type: ignore[call-arg]
        dataset.scan(batch_size="x")  # type: ignore[arg-type]
        file.lookup({"id": 1}, column=["id"])  # type: ignore[call-arg]
    asyncpq.open_file(url, storage_option={})  # type: ignore[call-arg]
    asyncpq.open_dataset(url, on_bad_file="ignore")  # type: ignore[arg-type]


async def arguments_of_every_form(
    target: DatasetTarget, where: Predicate, delta: deltalake.DeltaTable, iceberg: pyiceberg.table.Table
) -> None:
    """Never run: mypy accepts all of it."""
    async with asyncpq.Session() as session:
        for one in (target, delta, iceberg, ["a", "b"]):
            await session.open_dataset(one)
        index = await session.open_index("s3://lake/_asyncpq/")
        dataset = await session.open_dataset(target, index=index)
        await session.open_dataset("s3://lake/", index=False)
        predicates: list[Predicate] = [
            where,
            "id > 1",
            [("id", ">", 1), ("id", "in", [2])],
            [[("id", ">", 1)], [("id", "==", 2)]],
            pc.field("id") == 3,
            col("id") == 1,
        ]
        for predicate in predicates:
            await dataset.count(predicate)
            await dataset.count(dataset.bind(predicate))
    with asyncpq.blocking.Session() as blocking:
        blocking.open_dataset("s3://lake/", index=blocking.open_index("s3://lake/_asyncpq/"))


async def arguments_of_wrong_types(url: str) -> None:
    """Never run: mypy finds each of these."""
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(42)  # type: ignore[arg-type]
        await session.open_dataset(url, index=True)  # type: ignore[arg-type]
        await session.open_dataset(url, index=3)  # type: ignore[arg-type]
        await session.build_index(url, [], at=3)  # type: ignore[arg-type]
        await session.optimize(b"s3://lake/", url, where=url)  # type: ignore[arg-type]
        await dataset.count({"id": 1})  # type: ignore[arg-type]
        await dataset.read(where=("id", ">", 1))  # type: ignore[arg-type]
        file = await session.open_file(url)
        await file.read(where=b"id = 1")  # type: ignore[arg-type]
        file.to_pandas()  # type: ignore[attr-defined]


async def entered_in_another_way(url: str) -> None:
    """Never run: mypy finds each of these."""
    await asyncpq.open_file(url)  # type: ignore[misc]
    with asyncpq.open_dataset(url):  # type: ignore[attr-defined]
        return


def blocking_types(url: str) -> None:
    """Never run: mypy looks at it."""
    with (
        asyncpq.blocking.open_file(url, memory_cache_bytes=0) as file,
        asyncpq.blocking.open_dataset(url, view="listed", storage_options={}) as dataset,
    ):
        assert_type(file, asyncpq.blocking.File)
        assert_type(dataset, asyncpq.blocking.Dataset)
        assert_type(file.scan(limit=3), asyncpq.blocking.Scan)
        assert_type(dataset.scan(limit=3), asyncpq.blocking.DatasetScan)
        assert_type(file.count(), int)


async def one_off_types(url: str) -> None:
    """Never run: mypy looks at it."""
    async with asyncpq.open_file(url) as file, asyncpq.open_dataset(url, schema_policy="permissive") as dataset:
        assert_type(file, asyncpq.File)
        assert_type(dataset, asyncpq.Dataset)


def test_predicates() -> None:
    assert_type((col("a") >= 1) & ~col("b").is_null() | (col("a") == col("b")), asyncpq.Expression)


def test_errors_have_both_parents() -> None:
    error: FileNotFoundError = asyncpq.ObjectNotFoundError("no such object", url="s3://bucket/key")
    both: asyncpq.AsyncpqError = asyncpq.ObjectNotFoundError("no such object", url="s3://bucket/key")
    assert str(error) == str(both)


def test_options() -> None:
    assert_type(asyncpq.RequestOptions().max_requests, int | None)
    assert asyncpq.RequestOptions(max_requests=None).max_requests is None
