"""What builds have room for, in memory and in local files."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.caching.entry_format import Pointer
from asyncpq.errors import StoreError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.build import file_values as collecting
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.kinds import Bounds, Keys, Text
from asyncpq.indexing.manifest.commits import IndexedFile
from asyncpq.objects.source import Tail
from asyncpq.options import BuildOptions
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


async def test_files_that_are_read_once_are_not_kept(tmp_path: Path) -> None:
    """Their tails would fill the memory cache, and push out what reads use."""
    for number in range(30):
        write(tmp_path / "lake" / f"{number}.parquet", number)

    def kept() -> int:
        gc.collect()
        return sum(isinstance(known, (Tail, Pointer, IndexedFile, FileTask)) for known in gc.get_objects())

    before = kept()  # of other tests
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path / "lake"), [Bounds("id")], at=MemoryBackend())
        assert index.manifest.num_files == 30
        schema_comes_from = 1  # a file that is opened before the build
        assert kept() - before <= 2 * schema_comes_from
