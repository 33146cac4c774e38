"""Rows of parts sorted by way of a folder, and merged: equal to what sorted() has; rows of retired files left out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptIndexError
from asyncpq.indexing.build import sorting
from asyncpq.indexing.build.sorting import ExternalSort, LocalRows, Merge, merged, merged_async, without_files
from asyncpq.indexing.index_model import TABLE_SCHEMAS, file_key
from asyncpq.objects.runtime import Runtime
from asyncpq.options import LimitOptions, SessionOptions
from asyncpq.pruning.row_ranges import RowRanges

_KEYS = TABLE_SCHEMAS["keys"]
_ROWS = st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 3), st.integers(0, 9), st.integers(1, 3)), max_size=30)


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema = _KEYS) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema)


def _rows(batches: list[pa.RecordBatch], schema: pa.Schema = _KEYS) -> list[tuple[Any, ...]]:
    table = pa.Table.from_batches(batches, schema)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row[:3] for row in rows]  # what is behind key, file and row is in no order


@given(st.lists(_ROWS, max_size=8), st.sampled_from([1, 600, 1 << 20]), st.sampled_from([2, 3, 32]))
def test_external_sort(tmp_path_factory: pytest.TempPathFactory, tables: list[Any], memory: int, fan_in: int) -> None:
    folder = tmp_path_factory.mktemp("sort")
    with pytest.MonkeyPatch.context() as patch, ExternalSort(_KEYS, memory, folder) as sort:
        patch.setattr(sorting, "_FAN_IN", fan_in)
        patch.setattr(sorting, "_LEAST_BATCH_BYTES", 64)
        for rows in tables:
            sort.add(_table(rows))
        found = _rows(list(sort.batches()))
    expected = sorted(row for rows in tables for row in rows)
    assert _order(found) == _order(expected)
    assert sorted(found) == expected
    assert not list(folder.iterdir())


def test_memory_is_bounded_by_runs_in_the_folder(tmp_path: Path) -> None:
    rows = [(at.to_bytes(4, "big"), 0, at, 1) for at in range(20_000)]
    with ExternalSort(_KEYS, 1 << 18, tmp_path) as sort:
        for start in range(19_000, -1, -1000):
            sort.add(_table(rows[start : start + 1000]))
        held = pa.total_allocated_bytes()
        largest = 0
        found: list[tuple[Any, ...]] = []
        for batch in sort.batches():
            largest = max(largest, pa.total_allocated_bytes() - held)
            found += _rows([batch])
        assert len(list(tmp_path.glob("*/*.arrow"))) > 1
    assert found == rows
    assert largest < _table(rows).nbytes
    assert not list(tmp_path.iterdir())


@given(st.lists(st.tuples(_ROWS, st.integers(1, 5)), max_size=5))
def test_merged_streams(streams: list[tuple[list[Any], int]]) -> None:
    batches = [_table(sorted(rows)).to_batches(max_chunksize=size) for rows, size in streams]
    expected = sorted(row for rows, _ in streams for row in rows)

    async def each(given: list[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        for batch in given:
            yield batch

    async def read() -> list[pa.RecordBatch]:
        runtime = Runtime(SessionOptions(limits=LimitOptions(decode_threads=0)), {})
        return [batch async for batch in merged_async(runtime, [each(stream) for stream in batches])]

    for found in (list(merged([iter(stream) for stream in batches])), asyncio.run(read())):
        assert _order(_rows(found)) == _order(expected)
        assert sorted(_rows(found)) == expected


def test_streams_are_read_as_their_rows_are_needed() -> None:
    read = [0, 0]

    def stream(at: int) -> Iterator[pa.RecordBatch]:
        for first in range(10):
            read[at] += 1
            key = bytes([10 * at + first])
            yield from _table([(key, 0, 0, 1)]).to_batches()

    found = merged([stream(0), stream(1)])
    for _ in range(5):
        next(found)
    assert read[1] == 1  # all of the first stream is below it
    assert len(list(found)) == 15


def test_one_key_in_all_rows_of_all_streams() -> None:
    streams = [_table([(b"k", file, row, 1) for row in range(50)]).to_batches(max_chunksize=7) for file in (1, 0)]
    found = _rows(list(merged([iter(stream) for stream in streams])))
    assert _order(found) == [(b"k", file, row) for file in (0, 1) for row in range(50)]


@given(_ROWS, st.sets(st.integers(0, 3)))
def test_without_retired_files(rows: list[Any], retired: set[int]) -> None:
    gone = RowRanges.from_rows(sorted(retired))
    batch = _table(rows).combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], _KEYS)
    assert _rows([without_files(batch, gone)]) == [row for row in rows if row[1] not in retired]
    by_file = [(file_key(row[1], 0), row[0]) for row in rows]
    schema = TABLE_SCHEMAS["footers"]
    given = pa.RecordBatch.from_pylist([{"key": key, "payload": payload} for key, payload in by_file], schema)
    kept = [pair for pair, row in zip(by_file, rows, strict=True) if row[1] not in retired]
    assert _rows([without_files(given, gone)], schema) == kept


def test_at_most_so_many_runs_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def counted(streams: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        numbers.append(len(streams))
        return merged(streams)

    monkeypatch.setattr(sorting, "_FAN_IN", 4)
    monkeypatch.setattr(sorting, "merged", counted)
    with ExternalSort(_KEYS, 1, tmp_path) as sort:
        for at in range(20):
            sort.add(_table([(b"%02d" % (19 - at), 0, at, 1)]))
        found = _rows(list(sort.batches()))
    assert [row[2] for row in found] == list(range(19, -1, -1))
    assert len(numbers) > 1
    assert max(numbers) == 4


def test_one_table_that_is_larger_than_memory_is_sorted_in_runs(tmp_path: Path) -> None:
    rows = [(at.to_bytes(4, "big"), 0, at, 1) for at in range(19_999, -1, -1)]
    local = LocalRows(_KEYS, tmp_path)
    for start in range(0, 20_000, 1000):
        local.add(_table(rows[start : start + 1000]))
    before = pa.total_allocated_bytes()
    table = local.table()
    assert pa.total_allocated_bytes() - before < table.nbytes // 10
    assert _rows(table.to_batches()) == rows
    with ExternalSort(_KEYS, 1 << 18, tmp_path) as sort:
        sort.add(table)
        assert pa.total_allocated_bytes() - before < 1 << 18
        found = _rows(list(sort.batches()))
    del table
    assert found == rows[::-1]
    assert not list(tmp_path.iterdir())


async def test_streams_of_a_place_are_merged_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction does not hold up who reads in the same process."""
    names: set[str] = set()
    take = Merge.take

    def watched(merge: Merge) -> pa.RecordBatch | None:
        names.add(threading.current_thread().name)
        return take(merge)

    async def rows(file: int) -> AsyncIterator[pa.RecordBatch]:
        for batch in _table([(b"k", file, row, 1) for row in range(50)]).to_batches():
            yield batch

    monkeypatch.setattr(Merge, "take", watched)
    runtime = Runtime(SessionOptions(), {})
    try:
        found = [batch async for batch in merged_async(runtime, [rows(1), rows(0)])]
    finally:
        await runtime.close()
    assert _order(_rows(found)) == [(b"k", file, row) for file in (0, 1) for row in range(50)]
    assert all(name.startswith("asyncpq-decode") for name in names)


def test_a_stream_that_is_not_sorted_is_noticed() -> None:
    """The segment of a damaged index; no row is up to the last one."""
    batches = [
        pa.record_batch(
            [pa.array([*keys, b"a"], pa.binary()), pa.array([1] * 3, pa.int64())], schema=TABLE_SCHEMAS["set"]
        )
        for keys in ([b"c", b"d"], [b"e", b"f"])
    ]
    with pytest.raises(CorruptIndexError, match="not sorted"):
        list(merged([iter([batch]) for batch in batches]))


def test_small_tables_are_joined(tmp_path: Path) -> None:
    """Each table takes some KiB besides its data: the rows of 100,000 files took twice the memory of the budget."""
    count = 10 * sorting._SMALL_TABLES + 5
    with ExternalSort(_KEYS, 1 << 30, tmp_path) as sort:
        for number in reversed(range(count)):
            table, joined = _table([(number.to_bytes(4, "big"), number, 0, 1)]), len(sort._pending)
            takes_long = sort.is_filled_by(table)
            sort.add(table)
            assert takes_long == (len(sort._pending) > joined), "the event loop does not join them"
        held = [*sort._pending, *sort._small]
        assert len(held) <= 10 + sorting._SMALL_TABLES
        assert max(len(table.column(0).chunks) for table in held) == 1
        rows = _rows(list(sort.batches()))
    assert [row[1] for row in rows] == list(range(count))
