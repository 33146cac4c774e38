"""One file in the memory filesystem, and what an index keeps of it."""

from __future__ import annotations

import asyncio

import fsspec
import pyarrow as pa

import asyncpq
from tests.lakes import Kept, keep
from tests.random_tables import WriterOptions

URL = "memory://known/file.parquet"


def put(data: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("/known/file.parquet", data)


TABLE = pa.table({name: pa.array(range(at, at + 300), pa.int64()) for at, name in enumerate("abcd")})


WRITER = WriterOptions(100, 64, 10, "none", False, 8, "1.0", True, True, False, True)


def kept_of(data: bytes) -> Kept:
    put(data)

    async def run() -> Kept:
        async with asyncpq.Session() as session:
            return await keep(session, URL)

    return asyncio.run(run())
