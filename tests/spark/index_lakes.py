"""Lakes for index builds on Spark, and what an index of them holds, whoever built it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Index
from asyncpq.indexing.commits import files_of
from asyncpq.indexing.index_model import BY_VALUE
from tests.lakes import SCHEMA, rows, write

#: Rows of one value, which are most of the lake's.
HEAVY_ID = 7


def write_lake(lake: Path, num_files: int = 12) -> None:
    """Small files, a large one in which most rows have one key, an empty one, and files that are none."""
    for number in range(num_files):
        write(lake / f"{number}.parquet", number, 60)
    heavy = pa.table({"id": [HEAVY_ID, 1, HEAVY_ID] * 1000, "name": ["x1 x2", "w", None] * 1000}, schema=SCHEMA_PAIR)
    heavy = heavy.append_column(SCHEMA.field("tags"), pa.array([[1], None, []] * 1000, SCHEMA.field("tags").type))
    pq.write_table(heavy, lake / "heavy.parquet", row_group_size=700)
    pq.write_table(rows(1, 0), lake / "none.parquet")
    (lake / "bad.parquet").write_bytes(b"PAR1 but no more PAR1")
    cut_off = (lake / "0.parquet").read_bytes()
    (lake / "cut.parquet").write_bytes(cut_off[: len(cut_off) // 2])


SCHEMA_PAIR = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])


async def open_index(at: str, *, same_ids: bool = True) -> tuple[dict[str, list[tuple[Any, ...]]], list[str]]:
    """What :func:`content` gives of the newest snapshot, and what is wrong with it."""
    async with asyncpq.Session() as session:
        index = await session.open_index(at)
        found = await content(index, same_ids=same_ids)
        return found, (await index.verify(sample=1000, rows=10_000)).problems


async def content(index: Index, *, same_ids: bool = True) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all parts that are of files in use, files named by their paths.

    Without ``same_ids``, of footers and pages only how long they are: their checksums are over the file's id, too.
    """
    manifest, backend = index.manifest, index.backend
    files = await files_of(index._runtime, backend, manifest, manifest.live)
    paths = {file.id: file.path for file in files}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for part in manifest.tables:
        listed = found[f"{part.kind} {part.columns}"] = []
        covered = {paths[number] for number in manifest.covered(part).rows() if number in paths}
        listed.append(("covered", *sorted(covered)))
        for segment in manifest.segments_of(part):
            async for batch in backend.iterate_segment(segment):
                for row in batch.to_pylist():
                    key = row.pop("key")
                    number = row.pop("file") if part.kind in BY_VALUE else int.from_bytes(key[:8], "big")
                    if number in paths:
                        rest = key if part.kind in BY_VALUE else key[8:]
                        row.pop("path", None)
                        if part.kind in ("footers", "pages") and not same_ids:
                            row["payload"] = len(row["payload"])
                        listed.append((paths[number], rest, *map(repr, row.values())))
        listed[1:] = sorted(listed[1:])
    return found
