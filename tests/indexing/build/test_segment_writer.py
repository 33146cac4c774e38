"""Rows are cut into segments of bounded size, and written by way of the folder that the build names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import StoreError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.backends import sorted_rows as segment_file
from asyncpq.indexing.build.segment_writer import write_segments
from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexTable, file_key
from asyncpq.indexing.kinds import Keys
from asyncpq.options import BuildOptions
from asyncpq.pruning.row_ranges import RowRanges
from tests.lakes import write


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
        tables = [await backend.read_segment(segment, None) for segment in segments]
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
