"""Every verb of a file as a call, for tests of what all of them have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpq
from asyncpq import col
from asyncpq.indexing.build.embedding import embed_indexes
from asyncpq.parquet.embedded_index import EmbeddedIndex
from tests.faults.operations import NUMBERS, REQUESTS, WHERE, parquet


def with_index(data: bytes) -> bytes:
    """The file with an index in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.parquet")
        path.write_bytes(data)
        embed_indexes(path, path, [EmbeddedIndex(name="index", kind="k", version=1, data=bytes(5000))])
        return path.read_bytes()


DATA = with_index(parquet())
PATH = "lake/file.parquet"
URL = f"s3://{PATH}"
SETTINGS: Mapping[str, Any] = MappingProxyType({"requests": REQUESTS})


async def scan(file: asyncpq.File) -> None:
    async with file.scan(["value"], WHERE, batch_size=250) as found:
        async for _ in found:
            pass


VERBS: Mapping[str, Callable[[asyncpq.File], Awaitable[object]]] = MappingProxyType(
    {
        "lookup": lambda file: file.lookup({"id": [5, 3500]}, ["name"]),
        "scan": scan,
        "read": lambda file: file.read(["value"], WHERE),
        "take": lambda file: file.take(NUMBERS, ["id", "name"]),
        "count": lambda file: file.count(WHERE),
        "plan": lambda file: file.plan(["value"], col("id") == 1234),
        "refresh": lambda file: file.refresh(),
        "embedded_index": lambda file: file.embedded_index("index"),
        "inspect": lambda file: file.inspect(),
        "lint": lambda file: file.lint(["id"]),
    }
)
