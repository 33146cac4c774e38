"""Files of many columns: the right rows, and a free event loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.scan import file_scan

VISITS_DICTS = sys.version_info >= (3, 14)  # garbage collections visit dictionaries of plain values, too
ROWS = 60
READS: dict[str, Callable[[asyncpq.File], Awaitable[pa.Table]]] = {
    "lookup": lambda file: file.lookup({"c0": 7}),
    "rows": lambda file: file.take([3, 30]),
    "whole": lambda file: file.read(),
    "pyarrow_filter": lambda file: file.read(where=pc.field("c0") == 7),
}
DATASET_READS: dict[str, Callable[[asyncpq.Dataset], Awaitable[object]]] = {
    "lookup": lambda dataset: dataset.lookup({"c0": 7}),
    "whole": lambda dataset: dataset.read(),
}
T = TypeVar("T")


def wide_table(columns: int) -> pa.Table:
    kinds: list[Callable[[int], Any]] = [
        lambda at: pa.array(range(at, at + ROWS), pa.int64()) if at else pa.array(range(ROWS), pa.int64()),
        lambda at: [f"{at % 7}-{row % 5}" if row % 9 else None for row in range(ROWS)],
        lambda at: pa.array([row / (at + 1) for row in range(ROWS)], pa.float32()),
        lambda at: [[row] * (row % 3) for row in range(ROWS)] if at % 5 == 3 else [row % 2 == 0 for row in range(ROWS)],
    ]
    return pa.table({f"c{at}": kinds[at % 4](at) for at in range(columns)})


def write(folder: Path, columns: int) -> Path:
    path = folder / f"{columns}.parquet"
    if not path.exists():
        pq.write_table(wide_table(columns), path, row_group_size=40, data_page_size=200, write_page_index=True)
    return path


@pytest.mark.parametrize("late", ["always", "never"])
@pytest.mark.parametrize("page_index", [True, False])
async def test_rows_of_many_columns_are_pyarrows(tmp_path: Path, late: Any, page_index: bool) -> None:
    table, path = wide_table(150), tmp_path / "wide.parquet"
    pq.write_table(table, path, row_group_size=40, data_page_size=200, write_page_index=page_index)
    requests = asyncpq.RequestOptions(late_materialization=late)
    async with asyncpq.Session(requests=requests) as session:
        file = await session.open_file(str(path))
        for _ in range(2):  # then from memory
            assert (await file.lookup({"c0": 45})).equals(table.slice(45, 1))
            assert (await file.take([3, 50])).equals(table.take([3, 50]))
            assert (await file.read(where=col("c1") == "1-3")).equals(table.filter(pc.field("c1") == "1-3"))


async def test_threads_that_decode_sets_of_columns_leave_each_in_its_place(tmp_path: Path) -> None:
    table, path = wide_table(150), tmp_path / "wide.parquet"
    pq.write_table(table, path, write_page_index=True)
    limits = asyncpq.LimitOptions(decode_threads=2, inline_decode_bytes=1)
    async with asyncpq.Session(limits=limits) as session:
        file = await session.open_file(str(path))
        assert (await file.lookup({"c0": 45})).equals(table.slice(45, 1))
        assert (await file.read()).equals(table)


async def calls_on_the_loop(path: Path, read: Callable[[asyncpq.File], Awaitable[object]]) -> int:
    """How many Python functions the event loop's thread calls to open a file and read from it."""
    async with asyncpq.Session() as session:
        return await calls_of(lambda: session.open_file(str(path)), read)


async def calls_of(open_: Callable[[], Awaitable[T]], read: Callable[[T], Awaitable[object]]) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        await read(await open_())
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.heavy
@pytest.mark.parametrize("name", READS)
async def test_work_for_each_column_leaves_the_event_loop_free(tmp_path: Path, name: str) -> None:
    read = READS[name]
    small, large = 1200, 2400  # the footer of either is too large to be decoded on the event loop
    await calls_on_the_loop(write(tmp_path, small), read)  # imports
    few, more = [await calls_on_the_loop(write(tmp_path, columns), read) for columns in (small, large)]
    assert more - few < 10 * (large - small), (few, more)


async def test_parts_of_many_columns_are_measured_and_given_out_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}

    def watched(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def called(*given: Any) -> Any:
            threads[name] = threading.current_thread()
            return call(*given)

        monkeypatch.setattr(owner, name, called)

    watched(file_scan, "_num_bytes")
    watched(file_scan.FileScan, "_match_works")
    async with asyncpq.Session() as session:
        file = await session.open_file(str(write(tmp_path, 1200)))
        assert (await file.read()).num_columns == 1200
    assert threads.keys() == {"_num_bytes", "_match_works"}
    assert threading.main_thread() not in threads.values()


@pytest.mark.heavy
@pytest.mark.parametrize("name", DATASET_READS)
async def test_work_for_each_column_of_a_dataset_leaves_the_event_loop_free(tmp_path: Path, name: str) -> None:
    async def calls(columns: int) -> int:
        url = str(write(tmp_path, columns))
        async with asyncpq.Session() as session:
            return await calls_of(lambda: session.open_dataset(url, index=False), DATASET_READS[name])

    small, large = 1200, 2400
    await calls(small)  # imports
    few, more = [await calls(columns) for columns in (small, large)]
    assert more - few < 10 * (large - small), (few, more)


async def test_work_for_each_taken_row_leaves_the_event_loop_free(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    table = pa.table({"id": range(100_000)})
    pq.write_table(table, path, row_group_size=20_000)

    async def calls(count: int) -> int:
        numbers = [*range(0, 2 * count, 2), 1, 1]
        expected = table.take(numbers)

        async def of_file(file: asyncpq.File) -> None:
            assert (await file.take(numbers)).equals(expected)

        async def of_dataset(dataset: asyncpq.Dataset) -> None:
            (url,) = await dataset.files()
            assert (await dataset.take([(url, row) for row in numbers])).equals(expected)

        async with asyncpq.Session() as session:
            return await calls_on_the_loop(path, of_file) + await calls_of(
                lambda: session.open_dataset(str(path), index=False), of_dataset
            )

    await calls(5000)  # imports
    few, more = [await calls(count) for count in (5000, 20_000)]
    assert more - few < 1000, (few, more)


async def objects_kept(path: Path, columns: list[str] | None = None) -> int:
    """How many objects Python's garbage collector visits once a row was read, beside those before."""
    limits = asyncpq.LimitOptions(decode_threads=0)  # threads hold what they returned for a while
    async with asyncpq.Session(cache_policy=asyncpq.immutable(), limits=limits) as session:
        gc.collect()
        before = len(gc.get_objects())
        file = await session.open_file(str(path))
        await file.lookup({"c0": 7}, columns=columns)
        await asyncio.sleep(0)  # the task's last step holds what it returned
        gc.collect()
        return len(gc.get_objects()) - before


@pytest.mark.heavy
async def test_a_column_leaves_few_objects_to_the_garbage_collector(tmp_path: Path) -> None:
    paths = [tmp_path / f"{columns}.parquet" for columns in (100, 300)]
    for path, columns in zip(paths, (100, 300), strict=True):
        table = pa.table({f"c{number}": range(number, number + ROWS) for number in range(columns)})
        pq.write_table(table, path, write_page_index=True)
    for path in paths:
        await objects_kept(path)  # imports, and schemas, which files share
    few, more = [await objects_kept(path) for path in paths]
    assert more - few <= (16 + 3 * VISITS_DICTS) * 200  # visited all at once, while the event loop stops


@pytest.mark.heavy
async def test_columns_that_are_not_read_leave_two_objects_each_to_the_garbage_collector(tmp_path: Path) -> None:
    paths = [tmp_path / f"{columns}.parquet" for columns in (10, 10_000)]
    for path, columns in zip(paths, (10, 10_000), strict=True):
        pq.write_table(pa.table({f"c{number}": [number, 7] for number in range(columns)}), path)
    await objects_kept(paths[0], ["c1"])  # imports
    assert await objects_kept(paths[1], ["c1"]) <= 2.1 * 10_000


# In a process of its own: what other tests leave behind would be counted, too.
_COUNT = """
import asyncio, gc, sys
import asyncpq

async def kept(folder):
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(folder)
        gc.collect()
        before = len(gc.get_objects())
        await dataset.count()
        for _ in range(5):  # until the last callbacks are gone, and tuples of tuples are no longer visited
            await asyncio.sleep(0.01)
            gc.collect()
        return len(gc.get_objects()) - before

for folder in [*sys.argv[1:], *sys.argv[1:]]:  # the first time with imports
    print(asyncio.run(kept(folder)))
"""


@pytest.mark.heavy
def test_a_footer_leaves_few_objects_to_the_garbage_collector(tmp_path: Path) -> None:
    def write_files(count: int) -> str:
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            pq.write_table(pa.table({"id": range(number, number + 10)}), folder / f"{number}.parquet")
        return str(folder)

    command = [sys.executable, "-c", _COUNT, write_files(100), write_files(300)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    few, more = map(int, output.split()[2:])
    assert 0 < more - few <= (10 + 8 * VISITS_DICTS) * 200  # visited all at once, while the event loop stops


async def test_columns_share_equal_encoding_statistics(tmp_path: Path) -> None:
    path = tmp_path / "alike.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}), path)
    (group,) = decode_file_metadata(path.read_bytes()[-8 - pq.read_metadata(path).serialized_size : -8]).row_groups
    assert group.chunk(0).encoding_stats is group.chunk(1).encoding_stats
    assert group.chunk(0).encoding_stats
