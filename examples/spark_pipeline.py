"""From raw files to lookups: ``python -m examples.spark_pipeline``, with Java and
``pip install 'asyncpq-parquet[spark]'``.

Spark, in local mode, rewrites a folder of raw files into one that is sorted by ``user``, with page indexes, and builds
an index of the column ``id``. Then a service that knows nothing of Spark looks rows up, many at once, and says what
that has cost. On a cluster only ``spark_session`` is another one, and the folders are urls.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import asyncpq.spark
from asyncpq.indexing import Footers, Keys

USERS = 5_000
COLUMNS = ["id", "user", "price"]


def write_raw_files(folder: Path, rows: int, files: int) -> None:
    """As an application would leave them: in no order, without page indexes."""
    folder.mkdir(parents=True)
    draw = random.Random(7)
    ids = draw.sample(range(rows * 3), rows)
    table = pa.table(
        {
            "id": ids,
            "user": [f"user-{one % USERS:05d}" for one in ids],
            "price": pa.array([one * 37 % 9_999 / 100 for one in ids]),
            "note": [f"{one * 2_654_435_761 % 2**32:010d}" * 4 for one in ids],
        }
    )
    size = -(-rows // files)
    for at in range(files):
        pq.write_table(table.slice(at * size, size), folder / f"part-{at:03d}.parquet")


def spark_session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("asyncpq-pipeline")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def prepare(spark: SparkSession, raw: str, lake: str, index: str) -> None:
    """What runs now and then, on a cluster."""
    result = asyncpq.spark.optimize(spark, raw, lake, sort_by=["user", "id"], page_rows=1024, file_bytes=16 << 20)
    print(f"\noptimize: {result}")
    begin = time.perf_counter()
    built = asyncpq.spark.build_index(spark, lake, [Keys("id"), Footers()], at=index)
    print(f"build_index: ids of {built.rows:,} rows in {built.files} files, {time.perf_counter() - begin:.1f} s")


async def ask(title: str, lake: str, index: str | None, keys: Sequence[dict[str, object]]) -> list[pa.Table]:
    """All of ``keys`` at once, by a service that has just started, and once more."""
    found: list[pa.Table] = []
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake, index=index)
        for state in ("cold", "warm"):
            before = session.metrics.requests, session.metrics.bytes_fetched
            begin = time.perf_counter()
            found = await asyncio.gather(*[dataset.lookup(key, columns=COLUMNS) for key in keys])
            seconds = time.perf_counter() - begin
            requests, size = session.metrics.requests - before[0], session.metrics.bytes_fetched - before[1]
            print(
                f"{title:<34} {state}: {len(keys)} lookups, {sum(table.num_rows for table in found)} rows,"
                f" {seconds * 1000:7.1f} ms, {requests:5} requests, {size:11,} bytes"
            )
    return found


async def serve(raw: str, lake: str, index: str, rows: int, lookups: int = 20) -> None:
    """What runs all the time, without Spark."""
    draw = random.Random(8)
    users: list[dict[str, object]] = [{"user": f"user-{draw.randrange(USERS):05d}"} for _ in range(lookups)]
    ids: list[dict[str, object]] = [{"id": draw.randrange(rows * 3)} for _ in range(lookups)]
    print()
    for title, keys in (("by user, the column of the order", users), ("by id, through the index", ids)):
        expected = await ask(f"raw files, {title.partition(',')[0]}", raw, None, keys)
        found = await ask(title, lake, index, keys)
        for one, other in zip(found, expected, strict=True):
            assert one.sort_by("id").equals(other.sort_by("id"))
    print("the answers are the same")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is kept")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="asyncpq-pipeline-") as temporary:
        folder = given.folder or Path(temporary)
        raw, lake, index = (str(folder / name) for name in ("raw", "lake", "index"))
        print(f"{given.rows:,} rows in {given.files} raw files below {folder}")
        write_raw_files(Path(raw), given.rows, given.files)
        spark = spark_session()
        try:
            prepare(spark, raw, lake, index)
        finally:
            spark.stop()
        asyncio.run(serve(raw, lake, index, given.rows))


if __name__ == "__main__":
    main()
