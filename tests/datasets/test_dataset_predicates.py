"""Predicates over the files of a dataset: what no row can meet opens none, times relative to now are one instant."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col, now
from asyncpq.decoding.filter import FilterCompiler
from asyncpq.errors import ColumnNotFoundError, PredicateTypeError
from asyncpq.expressions import Expression, simplify
from asyncpq.indexing import Bounds, Footers

FILES = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition for each file; ten rows of ten days in each, half a day off the full ones."""
    moment = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(hours=12)
    for number in range(FILES):
        rows = range(number * 10, number * 10 + 10)
        moments = [moment - dt.timedelta(days=row) for row in rows]
        part = tmp_path / f"part={number}"
        part.mkdir()
        table = pa.table({"a": pa.array(rows, pa.int64()), "at": pa.array(moments, pa.timestamp("us"))})
        pq.write_table(table, part / "file.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "where",
    [
        (col("a") > 5) & (col("a") < 3),
        (col("part") == 1) & col("part").is_in([2, 3]),
        ((col("a") == 1) & (col("a") == 2)) | ((col("part") == 1) & col("part").is_null()),
    ],
    ids=str,
)
async def test_what_no_row_can_meet_opens_no_file(folder: Path, where: Expression) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder))
        assert await dataset.count(where) == 0
        assert dataset.metrics.files_opened == 0
        plan = await dataset.plan(where=where)
        assert plan.files == ()
        assert (await dataset.read(["at"], where)).num_rows == 0


async def test_other_branches_are_read(folder: Path) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder))
        where = ((col("a") == 1) & (col("a") == 2)) | (col("part") == 3)
        assert await dataset.count(where) == 10
        assert dataset.metrics.files_opened == 1


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ((col("a") == 1) & (col("a") == 2) & (col("zzz") == 1), ColumnNotFoundError),
        ((col("a") == 1) & (col("a") == 2) & (col("at") == "x"), PredicateTypeError),
        (col("a") > now(), PredicateTypeError),
    ],
)
async def test_errors_are_raised_all_the_same(folder: Path, where: Expression, error: type[Exception]) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder))
        with pytest.raises(error):
            await dataset.count(where)


async def test_an_unknown_key_is_told_as_a_key(folder: Path) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder))
        for read in (
            dataset.lookup({"aa": 1}),
            dataset.lookup({"a": [1], "aa": [1]}, with_keys=True),
            dataset.plan(lookup={"aa": 1}),
            dataset.why(lookup={"aa": 1}),
        ):
            with pytest.raises(ColumnNotFoundError, match=r"^a key names a column .* column 'aa'\. Did you mean 'a'"):
                await read
        with pytest.raises(ColumnNotFoundError, match="the dataset has no such column; column 'aa'"):
            await dataset.lookup({"a": 1}, ["aa"])


async def test_times_relative_to_now(folder: Path) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(folder))
        where = col("at") >= now() - dt.timedelta(days=15)
        assert await dataset.count(where) == 15
        plan = await dataset.plan(where=where)
        assert plan.where is not None
        assert {file.where for file in plan.files} == {plan.where}
        assert "now" not in plan.where


class Works:
    """Counts how often predicates are simplified and compiled, as a profile function of :mod:`sys`."""

    def __init__(self) -> None:
        self.simplified = self.compiled = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            outermost = frame.f_back is None or frame.f_back.f_globals is not frame.f_globals
            self.simplified += frame.f_code is simplify.__code__ and outermost
            self.compiled += frame.f_code is FilterCompiler.compile.__code__


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (col("a").is_in([5, 15, 25, 35]), 4),
        ((col("a") >= 5) & (col("a") < 35), 30),
        ((col("a") >= 5) & ((col("a") < 31) | col("a").is_null()), 26),
    ],
    ids=str,
)
async def test_a_predicate_is_worked_on_once_for_all_files(folder: Path, where: Expression, rows: int) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(str(folder), [Bounds("a"), Footers()])
        dataset = await session.open_dataset(str(folder))
        works = Works()
        sys.setprofile(works)
        try:
            table = await dataset.read(["at"], where)
        finally:
            sys.setprofile(None)
        assert table.num_rows == rows
        assert dataset.metrics.files_read == FILES
        assert (works.simplified, works.compiled) == (1, 1)


async def test_the_keys_of_a_lookup_are_worked_on_once_for_all_files(tmp_path: Path) -> None:
    for number in range(FILES):
        rows = range(number * 10, number * 10 + 10)
        pq.write_table(pa.table({"a": rows, "b": [2 * row for row in rows]}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        works = Works()
        sys.setprofile(works)
        try:
            table = await dataset.lookup({"a": [5, 15, 25, 35], "b": [10, 30, 50, 0]}, columns=["a"])
        finally:
            sys.setprofile(None)
        assert table["a"].to_pylist() == [5, 15, 25]
        assert (works.simplified, works.compiled) == (2, 1), "the predicate, and the sharper one to prune by"
