"""Small lakes for indexes: files written, replaced and removed at random, and builders of them in other processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from asyncpq.options import BuildOptions

KINDS: tuple[IndexKind, ...] = (
    Bounds(),
    ValueSet("name"),
    Bloom("id"),
    NGrams("name"),
    Keys("id"),
    Keys("name", "id"),
    Keys("tags"),
    Text("name"),
    Footers(),
    Pages(),
)
FEW: tuple[IndexKind, ...] = (Bounds("id"), Keys("id"))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int32()))])


def rows(seed: int, num_rows: int = 100) -> pa.Table:
    """Rows of one file."""
    choose = random.Random(seed)
    return pa.table(
        {
            "id": [choose.randrange(1000) if choose.random() < 0.9 else None for _ in range(num_rows)],
            "name": [f"w{choose.randrange(9)} x{choose.randrange(50)}" for _ in range(num_rows)],
            "tags": [[choose.randrange(5) for _ in range(choose.randrange(3))] for _ in range(num_rows)],
        },
        schema=SCHEMA,
    )


def write(path: Path, seed: int, num_rows: int = 100) -> None:
    """A file of several row groups; without page indexes in every other one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    pq.write_table(rows(seed, num_rows), new, row_group_size=40, write_page_index=seed % 2 == 0)
    new.rename(path)


def change(lake: Path, choose: random.Random) -> None:
    """Add, replace or remove a file."""
    path = lake / f"{choose.randrange(12)}.parquet"
    if path.exists() and choose.random() < 0.4:
        path.unlink()
    else:
        write(path, choose.randrange(1 << 30), choose.randrange(1, 120))


def _build(lake: str, at: str, checkpoint_files: int) -> None:
    async def build() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(lake, FEW, at=at, building=BuildOptions(checkpoint_files=checkpoint_files))

    asyncio.run(build())


@contextmanager
def builder(lake: Path, at: str, checkpoint_files: int = 3) -> Iterator[BaseProcess]:
    """A process that builds or refreshes an index of ``FEW``; killed at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_build, args=(str(lake), at, checkpoint_files))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
