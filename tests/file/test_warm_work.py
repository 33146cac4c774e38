"""Work of warm reads that must not grow: with the row groups of the file, or with the reads of a session."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex, overload

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col, tracing
from asyncpq.metrics import MAX_FALLBACKS, ReadMetrics
from asyncpq.objects import runtime
from asyncpq.parquet.row_group import RowGroup

ROWS_PER_GROUP = 20
HOT_CALLS = 152  # of the own functions of asyncpq, for one column
COLD_CALLS = 436  # for four columns, from a local file
COLD_MOVES = 116  # between the package's folders, in that lookup
COLD_MODULES = 37  # that it uses


class CountedGroups(tuple[RowGroup, ...]):
    """Row groups that count how many of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[RowGroup]:
        for group in super().__iter__():
            self.looks += 1
            yield group

    @overload
    def __getitem__(self, key: SupportsIndex) -> RowGroup: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[RowGroup, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


QUERIES: dict[str, Any] = {
    "read": lambda file: file.read(["v"], limit=5),
    "plan": lambda file: file.plan(["v"], limit=3),
    "scan": lambda file: _rows(file.scan(["v"], limit=ROWS_PER_GROUP + 1)),
    "take": lambda file: file.take([27], ["v"]),
    "take_two": lambda file: file.take([27, ROWS_PER_GROUP * file.num_row_groups - 1], ["v"]),
    "lookup": lambda file: file.lookup({"id": 27}, ["v"]),
    "count": lambda file: file.count(col("id") == 27),
}


async def _rows(scan: asyncpq.Scan) -> int:
    async with scan:
        return sum([batch.num_rows async for batch in scan])


async def looks(folder: Path, num_groups: int, query: str) -> int:
    """How many row groups a warm query looks at."""
    path = folder / f"{num_groups}.parquet"
    if not path.exists():
        num_rows = num_groups * ROWS_PER_GROUP
        table = pa.table({"id": range(num_rows), "v": pa.array(range(num_rows), pa.float64())})
        pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, write_page_index=True)
    async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
        file = await session.open_file(str(path))
        await QUERIES[query](file)
        metadata = file._version.metadata
        metadata.row_groups = counted = CountedGroups(metadata.row_groups)
        await QUERIES[query](file)
        return counted.looks


@pytest.mark.parametrize("query", QUERIES)
async def test_warm_reads_look_at_the_row_groups_that_they_need(tmp_path: Path, query: str) -> None:
    few = await looks(tmp_path, 5, query)
    assert 0 < few < 40
    assert await looks(tmp_path, 300, query) == few


async def test_limits_and_rows_across_empty_row_groups(tmp_path: Path) -> None:
    path = str(tmp_path / "empty.parquet")
    schema = pa.schema([("v", pa.int64())])
    with pq.ParquetWriter(path, schema, write_page_index=True) as writer:
        at = 0
        for num_rows in (0, 0, 3, 0, 0, 4, 1, 0):
            writer.write_table(pa.table({"v": pa.array(range(at, at + num_rows), pa.int64())}))
            at += num_rows
    assert pq.ParquetFile(path).num_row_groups == 8
    async with asyncpq.Session() as session:
        file = await session.open_file(path)
        for limit in range(at + 2):
            table = await file.read(limit=limit)
            assert table["v"].to_pylist() == list(range(min(limit, at)))
        for row in range(at):
            assert (await file.take([row]))["v"].to_pylist() == [row]
        assert (await file.take([7, 0, 3, 2]))["v"].to_pylist() == [7, 0, 3, 2]
        plan = await file.plan(limit=4)
        assert "row groups: 2 of 8" in plan.explain()


async def test_fallbacks_name_no_values(tmp_path: Path) -> None:
    path = str(tmp_path / "values.parquet")
    pq.write_table(pa.table({"price": pa.array([0.5, 1.5], pa.float32())}), path, write_page_index=True)
    async with asyncpq.Session() as session:
        file = await session.open_file(path)
        for value in range(20):
            await file.read(where=col("price") == value + 0.125)
            await file.read(where=col("price").is_in([value + 0.125, value + 0.25]))
            await file.read(where=col("price").is_in([value, value + 2]))
        reasons = session.metrics.fallbacks
    assert 0 < len(reasons) <= 3
    assert all("125" not in reason and "25" not in reason for reason in reasons)


def test_fallbacks_of_a_session_are_bounded() -> None:
    session = ReadMetrics()
    for number in range(3 * MAX_FALLBACKS):
        read = ReadMetrics()
        for _ in range(2):
            read.fall_back(f"column {number}")
        assert read.fallbacks == [f"column {number}"]
        read.add_to(session)
    assert session.fallbacks == [f"column {number}" for number in range(MAX_FALLBACKS)]


@pytest.mark.heavy
async def test_what_a_version_keeps_does_not_grow_with_the_questions(tmp_path: Path) -> None:
    """Each asks for other columns; what was resolved for the last ones is kept, and weighed."""
    names = [f"c{number}" for number in range(24)]
    struct = pa.array([{"a": 1, "b": 2, "c": 3}] * 50)
    pq.write_table(pa.table(dict.fromkeys(names, struct)), tmp_path / "wide.parquet")
    draw = random.Random(1)
    async with asyncpq.Session() as session, await session.open_file(str(tmp_path / "wide.parquet")) as file:
        weights = []
        for _ in range(600):
            paths = [f"{name}.{leaf}" for name in draw.sample(names, 8) for leaf in draw.sample("abc", 2)]
            await file.take([7], paths)
            weights.append(file._version.weight)
    assert max(weights[300:]) <= max(weights[:300]) * 1.1


class Calls:
    """Counts the calls of the package's own functions, their modules, and how often the next call is of another of the
    package's folders, as a profile function of :mod:`sys`."""

    def __init__(self) -> None:
        self.count = self.moves = 0
        self.modules: set[str] = set()
        self._package = f"{Path(asyncpq.__file__).parent}{os.sep}"
        self._room = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_code.co_filename
        if event == "call" and module.startswith(self._package):
            room = module.removeprefix(self._package).partition(os.sep)[0]
            self.count += 1
            self.moves += room != self._room
            self.modules.add(module)
            self._room = room


@pytest.mark.parametrize(("columns", "most"), [(["word"], HOT_CALLS), (["word", "price", "count"], HOT_CALLS + 30)])
async def test_a_hot_lookup_takes_few_python_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str], most: int
) -> None:
    """Its pages are in memory, decoded: what is left is Python's own work, which each call makes slower."""
    metrics, calls = await _calls_of_a_lookup(tmp_path, monkeypatch, columns, [41_000, 77_000, 42_000, 42_000], 42_000)
    assert metrics.requests == metrics.pages_read == 0
    assert calls.count <= most


async def test_a_lookup_that_reads_its_pages_takes_few_python_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ["word", "price", "count"]
    metrics, calls = await _calls_of_a_lookup(tmp_path, monkeypatch, columns, [*range(1000, 100_000, 10_000)], 97_000)
    assert metrics.pages_read == 4
    assert calls.count <= COLD_CALLS
    assert calls.moves <= COLD_MOVES
    assert len(calls.modules) <= COLD_MODULES


async def _calls_of_a_lookup(
    folder: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str], before: list[int], key: int
) -> tuple[ReadMetrics, Calls]:
    """Look up the keys ``before``, then ``key``; return what the last lookup cost, and its calls."""
    monkeypatch.delitem(sys.modules, tracing.API, raising=False)  # that another test traces
    rows = 100_000
    table = pa.table(
        {
            "id": range(rows),
            "word": [f"word {row % 977}" for row in range(rows)],
            "price": [row / 7 for row in range(rows)],
            "count": pa.array([row % 50 for row in range(rows)], pa.int32()),
        }
    )
    path = str(folder / "hot.parquet")
    pq.write_table(table, path, use_dictionary=["word"], max_rows_per_page=5000, write_page_index=True)
    requests = asyncpq.RequestOptions(tail_bytes=1 << 14)
    async with asyncpq.Session(cache_policy=asyncpq.immutable(), requests=requests) as session:
        file = await session.open_file(path)
        for known in before:
            found = await file.lookup({"id": known}, columns=columns)
            assert found.to_pylist() == table.slice(known, 1).select(columns).to_pylist()
        calls = Calls()
        with asyncpq.measure() as cost:
            sys.setprofile(calls)
            try:
                await file.lookup({"id": key}, columns=columns)
            finally:
                sys.setprofile(None)
        return cost, calls


async def test_lookups_in_memory_leave_iterations_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them waits for anything, so that thousands, one after another or at once, would run without a pause."""
    path, others = tmp_path / "small.parquet", 0
    pq.write_table(pa.table({"id": range(10)}), path)
    monkeypatch.setattr(runtime, "SLICE_S", 0.0)

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async with asyncpq.Session(cache_policy=asyncpq.immutable()) as session:
        file = await session.open_file(str(path))
        await file.lookup({"id": 5})
        beside = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        others = 0
        for _ in range(20):
            await file.lookup({"id": 5})
        assert others >= 10
        others = 0
        await asyncio.gather(*[file.lookup({"id": 5}) for _ in range(20)])
        assert others >= 10
        beside.cancel()
