"""Scans a dataset in a process of its own, and prints what came and how much memory it took: a script of
test_dataset_memory.py."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import asyncpq
from tests.leaks import peak_bytes


async def main(options: dict[str, Any], memory: dict[str, int]) -> None:
    """Read all rows of all files; batches are dropped as they come."""
    cache, limits = memory.pop("memory_cache_bytes", None), asyncpq.LimitOptions(**memory)
    more: dict[str, Any] = {} if cache is None else {"memory_cache_bytes": cache}
    async with asyncpq.Session(options, limits=limits, **more) as session:
        first = await session.open_file("s3://bucket/lake/0000/00.parquet")
        await first.read()  # clients and decoders are loaded now
        before = peak_bytes()
        dataset = await session.open_dataset("s3://bucket/lake/")
        rows = total = 0
        async with dataset.scan() as scan:
            async for batch in scan:
                rows += batch.num_rows
                total += batch.column(0)[0].as_py()
        found = {"rows": rows, "firsts": total > 0, "grown": peak_bytes() - before, "before": before}
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
