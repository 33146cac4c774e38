"""What the Spark benchmarks read: the events of benchmarks.data in one file, in large files, and in many small ones.

Keys and rows are drawn from fixed seeds. ``id`` of row ``n`` is ``3 n``, in order through all files of a folder, or in
random order through all files of a shuffled one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.datasets import BUCKET, KEY_STEP

LARGE_FILES = 500
LARGE_ROWS = 40_000  # of each
SMALL_FILES = 2_000
SMALL_ROWS = 5_000


@dataclass(frozen=True)
class Lake:
    """``key`` is that of the folder in ``BUCKET``, below ``root``."""

    root: Path
    key: str
    rows: int

    @property
    def folder(self) -> Path:
        return self.root / BUCKET / self.key

    def index_folder(self, store: str) -> Path:
        """Of an index of what ``store``, "local" or "s3", says of the files."""
        return self.root / BUCKET / f"{self.key}-index-{store}"

    def keys(self, count: int, seed: int) -> list[int]:
        """Ids of rows, all different."""
        chosen = np.random.default_rng(seed).choice(self.rows, count, replace=False)
        return [int(row) * KEY_STEP for row in chosen]


def ensure_one_file(folder: Path, rows: int) -> Lake:
    """The file of the other benchmarks, of ten row groups by default."""
    events = data.ensure(folder, rows)
    return Lake(events.root, events.folder_key, rows)


def ensure_folder(folder: Path, files: int, rows: int, *, is_shuffled: bool = False) -> Lake:
    """``files`` files of ``rows`` rows each, one row group in each."""
    name = "spark-random" if is_shuffled else "spark"
    lake = Lake(folder / "objects", f"{name}-{files}x{rows}", files * rows)
    if lake.folder.is_dir():
        return lake
    unfinished = lake.folder.with_name(f"{lake.key}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    print(f"writing {lake.rows:,} rows to {lake.folder} ...", flush=True)
    order = np.random.default_rng(11).permutation(lake.rows) if is_shuffled else None
    for number in range(files):
        path = unfinished / f"part-{number:05d}.parquet"
        if not path.is_file():
            written = path.with_suffix(".unfinished")
            table = data.events(number * rows, (number + 1) * rows, seed=number)
            if order is not None:
                ids = pa.array(order[number * rows : (number + 1) * rows] * KEY_STEP)
                table = table.set_column(0, "id", ids)
            pq.write_table(table, written, row_group_size=rows, **data.WRITE_OPTIONS)
            os.replace(written, path)
    os.replace(unfinished, lake.folder)
    return lake
