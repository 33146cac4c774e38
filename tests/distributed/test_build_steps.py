"""The pure steps of an index build on Spark: files into tasks, rows into ranges, errors into errors."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.errors import PySparkException

from asyncpq.datasets.model import DataFile
from asyncpq.distributed import build_steps as index_steps
from asyncpq.distributed.build_steps import (
    PIECES,
    CutPieces,
    _piece,
    cost_of,
    decoded,
    order_in,
    order_of,
    packed,
    planned,
)
from asyncpq.errors import AsyncpqError, CredentialsError, named_error
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import sorted_rows
from asyncpq.indexing.index_model import TABLE_SCHEMAS
from asyncpq.objects.loop_threads import Portal
from asyncpq.options import BuildOptions
from asyncpq.spark.driver import CallerThread, raised_as_asyncpq
from asyncpq.storage.base import Validator


@given(st.lists(st.integers(1, 1000)), st.integers(1, 3000))
def test_bins_have_each_file_once_and_cost_about_the_same(costs: list[int], target: int) -> None:
    bins = packed(costs, target)
    assert sorted(at for held in bins for at in held) == list(range(len(costs)))
    loads = [sum(costs[at] for at in held) for held in bins]
    assert loads == sorted(loads, reverse=True)
    assert all(held == sorted(held) for held in bins)
    if costs:
        few = max(1, -(-sum(costs) // target))
        assert len(bins) <= (few if few <= 4 else -(-few // 4) * 4)
        best = max(sum(costs) / len(bins), *costs) if len(costs) > 1 else costs[0]
        assert max(loads) <= best * 4 / 3 + 1 or max(loads) <= sum(costs) / len(bins) + max(costs)


def test_one_large_file_and_many_tiny_ones() -> None:
    bins = packed([1000, *[1] * 1000], 1000)
    assert bins[0] == [0]
    assert bins[1] == list(range(1, 1001))
    assert packed([], 10) == []


def test_what_files_cost() -> None:
    def cost(size: int | None, validator: Validator | None = None, *, values: bool = True) -> int:
        file = DataFile(url="a", size=size, validator=validator)
        return cost_of(FileTask(id=0, path="a", file=file), reads_values=values)

    assert cost(10 << 20) - cost(0) == 10 << 20
    assert cost(1, Validator(10 << 20, '"e"')) == cost(10 << 20)
    assert cost(0) < cost(64 << 20, values=False) < cost(64 << 20)
    assert cost(None) > cost(0)


_KEYS = TABLE_SCHEMAS["keys"]
_rows = st.tuples(
    st.sampled_from([b"", b"\x00", b"\x01a", b"\x01a\x00", b"\x01b"]), st.integers(0, 3), st.integers(0, 9)
)


@settings(deadline=None)
@given(st.lists(st.lists(_rows, min_size=1), min_size=1, max_size=6), st.integers(1, 2000), st.integers(1, 9))
def test_each_row_goes_to_one_range_and_ranges_ascend(
    runs: list[list[tuple[bytes, int, int]]], segment_bytes: int, most: int
) -> None:
    options = BuildOptions(segment_bytes=segment_bytes, max_segments=most)
    batches: list[pa.RecordBatch] = []
    for task, run in enumerate(runs):
        columns = [pa.array(list(column)) for column in zip(*run, strict=True)]
        table = sorted_rows(pa.table([*columns, pa.array([1] * len(run))], names=_KEYS.names).cast(_KEYS))
        batches.append(_piece(task, 1, b"digest", table))
    pieces = pa.Table.from_batches(batches, PIECES).to_pylist()
    ranges = planned(pieces, options, builds=1)
    found: dict[int, list[tuple[bytes, int, int]]] = {}
    for batch in CutPieces(ranges)(iter(batches)):
        (row,) = batch.to_pylist()
        assert row["bin"] == ranges.bins[row["range"]]
        table = decoded(row["payload"])
        found.setdefault(row["range"], []).extend(order_of(table, at) for at in range(table.num_rows))
    assert sorted(row for some in found.values() for row in some) == sorted(row for run in runs for row in run)
    for one, other in pairwise(sorted(found)):
        assert max(found[one]) < min(found[other])
    assert set(found) <= set(range(len(ranges.tables)))


def test_one_key_of_all_rows_is_cut_by_file_and_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_steps, "_LEAST_RANGE_BYTES", 1000)
    pieces: list[dict[str, Any]] = []
    for number in range(400):
        row = {"part": 1, "task": 0, "digest": b"", "num_rows": 10, "num_bytes": 100}
        pieces.append({**row, "middle": {"key": b"\x01k", "file": number // 100, "at": number}})
    ranges = planned(pieces, BuildOptions(segment_bytes=1000), builds=1)
    assert len(ranges.cuts[1]) + 1 == len(ranges.tables) == 54
    assert list(ranges.cuts[1]) == sorted(set(ranges.cuts[1]))
    sizes = [0] * len(ranges.tables)
    for piece in pieces:
        sizes[sum(cut < order_in(piece["middle"]) for cut in ranges.cuts[1])] += 100
    assert max(sizes) <= 1000


def test_other_versions_than_those_that_were_counted_are_noticed() -> None:
    table = pa.table({"key": [b"\x01"], "file": [1], "row": [1], "rows": [1]}).cast(_KEYS)
    ranges = planned([_piece(0, 1, b"one", table).to_pylist()[0]], BuildOptions(), builds=1)
    assert len(list(CutPieces(ranges)(iter([_piece(0, 1, b"one", table)])))) == 1
    for other in (_piece(0, 1, b"two", table), _piece(1, 1, b"one", table)):
        with pytest.raises(AsyncpqError, match="changed since"):
            list(CutPieces(ranges)(iter([other])))


def test_errors_of_tasks_keep_their_class() -> None:
    text = 'x\n  File "a.py", line 1\nasyncpq.errors.CredentialsError: no; s3://b/a\n SQLSTATE: 38000\n\tat java'
    with pytest.raises(CredentialsError, match=r"^no; s3://b/a$"), raised_as_asyncpq():
        raise PySparkException(text)
    with pytest.raises(PySparkException, match="a table"), raised_as_asyncpq():
        raise PySparkException("a table is not there")
    assert type(named_error("annotations", "no class")) is AsyncpqError


def test_the_caller_s_thread_answers() -> None:
    caller, portal, names = CallerThread(), Portal(), list[str]()

    async def ask() -> str:
        names.append(await caller.call(lambda: threading.current_thread().name))
        with pytest.raises(ZeroDivisionError):
            await caller.call(lambda: 1 // 0)
        return "done"

    try:
        assert caller.serve(lambda: portal.call(caller.interruptible(ask()))) == "done"
        assert names == [threading.current_thread().name]
    finally:
        portal.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["in_spark", "elsewhere"])
def test_an_interrupt_ends_what_the_driver_does(again: bool, meanwhile: bool) -> None:
    """Nothing is committed behind the back of whoever has pressed Ctrl-C; what was kept for it is given back."""
    caller, portal, done = CallerThread(), Portal(), list[str]()

    async def build() -> None:
        try:
            if meanwhile:
                await caller.call(lambda: None)
                await asyncio.sleep(0.05)  # the main thread waits again
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(60)
            await caller.call(_interrupt)
            done.append("committed")
        finally:
            with pytest.raises(asyncio.CancelledError):
                await caller.call(lambda: done.append("asked Spark"))  # not any more
            done.append("leaving")

    async def leaving() -> None:
        try:
            await build()
        finally:
            await caller.call(_interrupt if again else lambda: done.append("closed"), on_leaving=True)
            done.append("left")

    try:
        with pytest.raises(KeyboardInterrupt):
            caller.serve(lambda: portal.call(caller.interruptible(leaving())))
        assert done == (["leaving"] if again else ["leaving", "closed", "left"])
    finally:
        portal.close()
