"""Damaged segments are not used; large answers are processed in threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.commits import Head
from asyncpq.indexing.index_model import EVERY_ROW, Segment, SegmentQuery
from asyncpq.indexing.query import file_entries, file_selection, index_query, indexed_files
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.opening.datasets import open_indexed
from tests.indexing.query.one_column_lakes import make, snapshot, values, write


class Place(MemoryBackend):
    """Of which segments can be damaged.

    Attributes:
        damaged: kinds whose segments cannot be read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        if segment.table.kind in self.damaged:
            raise CorruptIndexError("a bit was lost")
        return await super().read_segment(segment, query)


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session(cache_policy=asyncpq.etag(0)) as running:
        yield running


@pytest.mark.parametrize("kind", ["keys", "bounds", "footers"])
async def test_a_damaged_part_is_not_used(session: asyncpq.Session, tmp_path: Path, kind: str) -> None:
    backend = Place()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2, 3], "1.parquet": [4, 5]}))
    backend.damaged.add(kind)
    base = await session.open_dataset(tmp_path)
    listed = open_indexed(session._runtime, base, OpenIndex(backend, Head(backend, manifest)))
    for dataset in (snapshot(session, backend, manifest), listed):
        assert await values(dataset, col("a") > 4) == [5]
        assert any(f"{kind}" in line and "damaged" in line for line in dataset.metrics.fallbacks)


async def test_a_damaged_list_of_files_is_an_error(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = Place()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2, 3]}))
    backend.damaged.add("files")
    with pytest.raises(CorruptIndexError):
        await values(snapshot(session, backend, manifest))


async def test_what_many_files_take_does_not_hold_up_the_event_loop(
    session: asyncpq.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, str] = {}

    def watched(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def run(*args: Any, **named: Any) -> Any:
            names[name] = threading.current_thread().name
            return work(*args, **named)

        monkeypatch.setattr(owner, name, run)

    for module, name in ((index_query, "select_rows"), (file_entries, "directory_rows")):
        watched(module, name)
    watched(file_entries.FileDirectory, "match")
    watched(indexed_files, "entries_in")
    watched(indexed_files._FoundFiles, "files")
    monkeypatch.setattr(file_selection, "_FEW_ROWS", 0)
    backend = MemoryBackend()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2], "1.parquet": [4, 5]}))
    listed = open_indexed(
        session._runtime, await session.open_dataset(tmp_path), OpenIndex(backend, Head(backend, manifest))
    )
    for dataset in (listed, snapshot(session, backend, manifest)):
        assert await values(dataset, col("a") > 4) == [5]
    assert len(names) == 5
    assert all(name.startswith("asyncpq-decode") for name in names.values()), names
