"""What builds have room for, in memory and in local files."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.caching.entry_format import Pointer
from asyncpq.errors import StoreError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.backends import sorted_rows as segment_file
from asyncpq.indexing.build import file_values as collecting
from asyncpq.indexing.build.build_executor import write_segments
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.commits import IndexedFile
from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexTable, file_key
from asyncpq.indexing.kinds import Bounds, Keys, Text
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from tests.lakes import write


@pytest.mark.parametrize("many", [False, True], ids=["few files", "a large file"])
async def test_no_room_for_local_files_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool) -> None:
    write(tmp_path / "lake" / "one.parquet", 1, num_rows=1000 if many else 10)
    options = BuildOptions(memory_bytes=20_000 if many else 1, folder=str(tmp_path / "none"))
    async with asyncpq.Session() as session:
        with pytest.raises(StoreError, match="local file") as raised:
            await session.build_index(str(tmp_path / "lake"), [Keys("id")], at=MemoryBackend(), building=options)
    assert raised.value.url == str(tmp_path / "none")
    assert "BuildOptions.folder" in str(raised.value.hint)


@pytest.mark.parametrize("encoded", [False, True], ids=["plain", "dictionary"])
async def test_tokens_are_found_of_as_much_text_as_memory_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoded: bool
) -> None:
    """Of a small file, whose text comes again and again."""
    text = pa.array(["b a " * 100] * 2000).dictionary_encode()
    (tmp_path / "lake").mkdir()
    table = pa.table({"text": text if encoded else text.dictionary_decode()})
    pq.write_table(table, tmp_path / "lake" / "one.parquet")
    rows: list[int] = []
    pending: list[int] = []
    add = collecting._Postings.add

    def counted(self: collecting._Postings, arrays: Sequence[pa.Array], first_row: int, group: int) -> None:
        add(self, arrays, first_row, group)
        rows.append(len(arrays[0]))
        pending.append(self.pending_bytes)

    monkeypatch.setattr(collecting._Postings, "add", counted)
    async with asyncpq.Session() as session:
        options = BuildOptions(memory_bytes=4 << 20, folder=str(tmp_path))
        index = await session.build_index(str(tmp_path / "lake"), [Text("text")], at=MemoryBackend(), building=options)
        assert (await index.show()).tables[1].rows == 2
    assert sum(rows) == 2000
    assert max(rows) < 250
    assert max(pending) < 1 << 20


@pytest.mark.heavy
async def test_files_that_are_read_once_are_not_kept(tmp_path: Path) -> None:
    """Their tails would fill the memory cache, and push out what reads use."""
    for number in range(30):
        write(tmp_path / "lake" / f"{number}.parquet", number)

    def kept() -> int:
        gc.collect()
        return sum(isinstance(known, (Pointer, IndexedFile, FileTask)) for known in gc.get_objects())

    before = kept()  # of other tests
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path / "lake"), [Bounds("id")], at=MemoryBackend())
        assert index.manifest.num_files == 30
        schema_comes_from = 1  # a file that is opened before the build
        assert kept() - before <= 2 * schema_comes_from


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 1000), st.integers(1, 50), st.integers(1, 9))
def test_segments_are_bounded_by_rows_and_bytes(lengths: list[int], most_bytes: int, most: int, cut: int) -> None:
    schema = TABLE_SCHEMAS["footers"]
    rows = [(file_key(at, 0), bytes(length)) for at, length in enumerate(lengths)]
    options = BuildOptions(segment_rows=most, segment_bytes=most_bytes)

    async def run() -> None:
        async def batches() -> AsyncIterator[pa.RecordBatch]:
            table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
            for batch in table.to_batches(max_chunksize=cut):
                yield batch

        backend, files = MemoryBackend(), RowRanges([(0, 1000)])
        segments = await write_segments(backend, "build", IndexTable("footers"), batches(), files, options)
        tables = [await backend.read_segment(segment) for segment in segments]
        found = [tuple(row.values()) for table in tables if table is not None for row in table.to_pylist()]
        assert found == rows
        for segment in segments:
            assert segment.num_rows <= most
            # of one batch it may be more: where its large rows are is not looked at
            assert segment.data_bytes <= most_bytes + cut * 340
        for segment in segments[:-1]:  # the others are full: nothing is gained by merging them
            assert segment.num_rows == most or segment.data_bytes >= most_bytes

    asyncio.run(run())


async def test_segments_are_spooled_where_the_build_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "lake" / "one.parquet", 1, num_rows=10)
    (tmp_path / "scratch").mkdir()
    lake, at = str(tmp_path / "lake"), str(tmp_path / "index")
    seen: list[list[str]] = []
    write_spooled = segment_file.SegmentSpool.write

    def watched(self: segment_file.SegmentSpool, *arguments: Any) -> tuple[int, dict[str, Any]]:
        seen.append([path.name for path in (tmp_path / "scratch").iterdir()])
        return write_spooled(self, *arguments)

    monkeypatch.setattr(segment_file.SegmentSpool, "write", watched)
    async with asyncpq.Session() as session:
        nowhere = BuildOptions(folder=str(tmp_path / "none"))
        with pytest.raises(StoreError, match="no local file can be made") as raised:
            await session.build_index(lake, [Keys("id")], at=at, building=nowhere)
        assert raised.value.url == str(tmp_path / "none")
        assert "BuildOptions.folder" in str(raised.value.hint)
        index = await session.build_index(
            lake, [Keys("id")], at=at, building=BuildOptions(folder=str(tmp_path / "scratch"))
        )
        assert len((await index.show()).tables) == 2
    assert len(seen) >= 2
    assert all(name.startswith("asyncpq-segment-") for names in seen for name in names)
    assert all(seen)
    assert not list((tmp_path / "scratch").iterdir())
