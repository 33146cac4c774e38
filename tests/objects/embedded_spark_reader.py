"""Reads Parquet files with Spark, for test_object_read.py: ``python embedded_spark_reader.py PATH...``.

It runs in a process of its own, as whoever starts a JVM does not get rid of it. Prints a line of JSON for each file.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
}

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[1]")
    for key, value in CONFIGURATION.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for path in sys.argv[1:]:
        frame = spark.read.parquet(path)
        rows = frame.collect()
        answer = {
            "ids": [row["id"] for row in rows],
            "names": len({row["name"] for row in rows}),
            "lists": sum(row["list"][0] for row in rows),
            "one": [row["name"] for row in frame.filter("id = 4321").collect()],
        }
        print(json.dumps(answer), flush=True)  # noqa: T201
    spark.stop()
