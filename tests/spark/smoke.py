"""Every way that Spark uses asyncpq, once, on a small lake and a Spark of one process: ``python -m tests.spark.smoke``.

Prints a line for each, then ``done``. Wrong rows end it with an AssertionError.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import asyncpq.spark
from asyncpq.indexing import Bounds, Keys
from tests.spark.cluster import JAVA_OPTIONS

ROWS = 300  # of a file
FILES = 3


def write_lake(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "name": [f"name {row % 7}" for row in ids]})
        pq.write_table(table, folder / f"{number}.parquet", write_page_index=True)


def local_spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("asyncpq-smoke")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def use_all(spark: SparkSession, folder: Path) -> None:
    lake, index, copy, written = (str(folder / name) for name in ("lake", "index", "copy", "written"))
    write_lake(Path(lake))
    wanted = [(17, "name 3"), (450, "name 2"), (899, "name 3")]
    condition = "id in (17, 450, 899)"

    for reader in ("auto", "asyncpq"):
        assert _rows(asyncpq.spark.scan(spark, lake, where=condition, reader=reader)) == wanted
    say("scan")
    built = asyncpq.spark.build_index(spark, lake, [Bounds("id"), Keys("id")], at=index)
    assert (built.files, built.rows) == (FILES, FILES * ROWS)
    say("build_index")
    keys = spark.createDataFrame([(17,), (450,), (899,), (9999,)], "id bigint")
    assert _rows(asyncpq.spark.lookup_join(keys, lake, "id", index=index)) == wanted
    say("lookup_join")
    asyncpq.spark.register(spark)
    source = spark.read.format("asyncpq").load(lake)
    assert _rows(source.where(condition)) == wanted
    say("read")
    source.write.format("asyncpq").mode("append").save(written)
    assert _rows(asyncpq.spark.scan(spark, written, where=condition)) == wanted
    say("write")
    asyncpq.spark.optimize(spark, lake, copy, sort_by=["name", "id"])
    assert _rows(asyncpq.spark.scan(spark, copy, where=condition)) == wanted
    say("optimize")


def say(what: str) -> None:
    sys.stdout.write(f"{what}\n")


def _rows(frame: object) -> list[tuple[int, str]]:
    rows = frame.select("id", "name").orderBy("id").collect()  # type: ignore[attr-defined]
    return [tuple(row) for row in rows]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="asyncpq-smoke-") as scratch:
        session = local_spark()
        try:
            use_all(session, Path(scratch))
        finally:
            session.stop()
    say("done")
