"""Indexes that the tasks of joins open: some places stay open, however many joins a process serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.distributed import pinned_files, plan_join
from asyncpq.distributed.key_predicates import KeyPredicate
from asyncpq.distributed.pinned_files import PinnedFiles
from asyncpq.expressions import col
from asyncpq.indexing import Footers, Keys
from asyncpq.scan.request import ScanRequest

LEFT = pa.schema({"id": pa.int64()})


async def _pinned(
    lake: str,
    index: str,
    *,
    view: Literal["snapshot", "listed"] | None = None,
    changed: Callable[[], None] = lambda: None,
) -> PinnedFiles:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Keys("id"), Footers()], at=index)
        changed()
        return (await plan_join(session, lake, "id", LEFT, index=index, view=view)).pinned


async def _rows(session: asyncpq.Session, pinned: PinnedFiles) -> list[int]:
    found: list[int] = []
    async with await pinned.lookup(KeyPredicate(where=col("id") == 7, prune=None), session) as scan:
        async for batch in scan:
            found += batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize(("view", "rows"), [(None, [7, 7, 7]), ("listed", [7, 7, 7]), ("snapshot", [7])])
def test_an_index_changes_no_rows_of_a_join_unless_asked_to(
    tmp_path: Path, view: Literal["snapshot", "listed"] | None, rows: list[int]
) -> None:
    """Tasks are told the files that were listed; of those that the index knows it names the rows."""
    lake = tmp_path / "lake"
    lake.mkdir()

    def write(number: int, *ids: int) -> None:
        pq.write_table(pa.table({"id": ids}), lake / "new")
        (lake / "new").rename(lake / f"{number}.parquet")

    for number in range(4):
        write(number, *range(number * 10, number * 10 + 10))

    def change() -> None:
        write(1, 7, 11)  # the index rules it out
        write(9, 7)

    async def join() -> None:
        pinned = await _pinned(str(lake), str(tmp_path / "index"), view=view, changed=change)
        write(8, 7)  # after the join was planned
        async with asyncpq.Session() as session:
            assert await _rows(session, pinned) == rows
            state = await pinned_files.opened(session, pinned)
            assert "index at" in state.source.description
            operation = state.runtime.operation("files", state.url)
            found = await state.source.files(ScanRequest(where=col("id") == 7), operation)
            assert len(found.files) == len(rows)

    asyncio.run(join())


@pytest.mark.parametrize("kind", ["folder", "sql"])
def test_only_some_places_stay_open(tmp_path: Path, kind: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), lake / f"{number}.parquet")
    index = str(tmp_path / "index") if kind == "folder" else f"sqlite:///{tmp_path}/index.db"

    async def joins() -> None:
        pinned = await _pinned(str(lake), index)
        async with asyncpq.Session() as session:
            joined = [replace(pinned, token=str(number)) for number in range(3 * pinned_files._KEPT)]
            for one in joined:
                assert await _rows(session, one) == [7]
            assert len(session._runtime._closers) <= pinned_files._KEPT
            # of one that was forgotten, too
            assert await asyncio.gather(*[_rows(session, one) for one in joined[:3]]) == [[7]] * 3
        async with asyncpq.Session() as session:
            assert await asyncio.gather(*[_rows(session, pinned) for _ in range(4)]) == [[7]] * 4
            assert len(session._runtime._closers) == 1

    asyncio.run(joins())
