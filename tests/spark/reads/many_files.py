"""A plan of very many files, in a process of its own: prints what it took, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pyarrow as pa

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.datasets.opened_file import DatasetColumns
from asyncpq.datasets.providers import GivenFiles
from asyncpq.distributed import EngineDataset
from asyncpq.events import Operation
from asyncpq.objects.version import KnownVersion
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.spark.reads.lake_scan import plan_lake
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.spark.types.special_types import struct_of
from asyncpq.storage.base import Validator
from tests.leaks import peak_bytes
from tests.parquet_bytes import parquet_bytes


async def plan(number: int, work_folder: str, cache_mib: int) -> dict[str, float]:
    """Of files that are nowhere: an index knows all of them, and nothing is asked."""
    rows = pa.table({f"c{at:02}": range(200) for at in range(20)})
    content = parquet_bytes(rows, row_group_size=100, max_rows_per_page=50, write_page_index=True)
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8]

    async def known(operation: Operation) -> KnownVersion:
        metadata = decode_file_metadata(footer, max_elements=1 << 20, max_schema_elements=1 << 16)
        start = len(content) - 8 - size
        return KnownVersion(
            validator=validator, metadata=metadata, leaves=None, footer_start=start, spans=[(0, content[:start])]
        )

    validator = Validator(size=len(content), etag='"the same"')
    files = [
        DataFile(
            url=f"s3://lake/table/part-{at:06}.parquet",
            validator=validator,
            entry=IndexEntry(validator=validator, known=known),
        )
        for at in range(number)
    ]
    s3 = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "x"}}
    async with asyncpq.Session({"s3": s3}, memory_cache_bytes=cache_mib << 20) as session:
        columns = DatasetColumns(rows.schema, None, object())
        state = EngineDataset(session._runtime, "s3://lake/table/", GivenFiles(files), columns, False)
        opened = OpenLake(state, struct_of(rows.schema), ReadConf())
        began = time.perf_counter()
        found = await plan_lake(
            opened,
            settings=SparkSettings(work_folder=work_folder),
            columns=["c00", "c01", "c02"],
            where=col("c00") >= 150,
        )
    seconds = time.perf_counter() - began
    tasks = found.encoded()
    return {
        "seconds": seconds,
        "peak_mib": peak_bytes() / 2**20,
        "files": found.num_files,
        "splits": len(found),
        "task_bytes": max(map(len, tasks)),
        "requests": found.metrics.requests,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(plan(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))))
