"""What holds of an index after each build."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from asyncpq.indexing.commits import files_of
from asyncpq.indexing.index import Index, Staleness

WHOLE_SAMPLE = 1000


def lake_files(lake: Path) -> list[Path]:
    return sorted(lake.rglob("*.parquet"))


async def check_index(index: Index, lake: Path) -> None:
    """The index lists the files as they are, and every row of every part is there."""
    report = await index.show(staleness=True)
    assert report.staleness == Staleness(new=0, changed=0, gone=0)
    files = lake_files(lake)
    assert report.files == len(files)
    assert report.rows == sum(pq.read_metadata(path).num_rows for path in files)
    found = await index.verify(sample=WHOLE_SAMPLE, rows=WHOLE_SAMPLE)
    assert (found.problems, found.changed, found.files) == ([], 0, len(files))
    listed = await files_of(index._runtime, index.backend, index.manifest, index.manifest.live)
    assert sorted(file.path for file in listed) == sorted(str(path.relative_to(lake)) for path in files)
