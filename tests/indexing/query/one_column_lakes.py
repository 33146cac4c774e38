"""Lakes of one column, of int64: written, indexed, and read back sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.dataset import Dataset
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.commits import Head
from asyncpq.indexing.index_model import IndexTable
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.opening.datasets import open_snapshot
from tests.lakes import FOOTERS, indexed

KEYS, BOUNDS = IndexTable("keys", ("a",)), IndexTable("bounds", ("a",))


def write(root: Path, files: Mapping[str, Sequence[int]]) -> list[str]:
    for path, values in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), root / path, row_group_size=2)
    return sorted(files)


async def values(dataset: Dataset, where: Any = None) -> list[int]:
    return sorted((await dataset.read(where=where))["a"].to_pylist())


async def make(
    session: asyncpq.Session, backend: MemoryBackend, root: Path, paths: Sequence[str], **options: Any
) -> Manifest:
    """Index the files ``paths`` below ``root``; return the manifest."""
    schema = pa.schema([("a", pa.int64())])
    return await indexed(session, backend, f"{root}/", paths, [KEYS, BOUNDS, FOOTERS], schema, **options)


def snapshot(session: asyncpq.Session, backend: MemoryBackend, manifest: Manifest, **options: Any) -> Dataset:
    """Open the dataset that ``manifest`` lists."""
    return open_snapshot(session._runtime, OpenIndex(backend, Head(backend, manifest), **options), skips=False)
