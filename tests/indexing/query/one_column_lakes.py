"""Lakes of one column: written, and read back sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.dataset import Dataset


def write(root: Path, files: Mapping[str, Sequence[int]]) -> list[str]:
    for path, values in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), root / path, row_group_size=2)
    return sorted(files)


async def values(dataset: Dataset, where: object = None) -> list[int]:
    return sorted((await dataset.read(where=where))["a"].to_pylist())
