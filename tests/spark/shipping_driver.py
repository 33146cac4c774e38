"""A driver program for test_shipping.py, in a process of its own: ships asyncpq to a Python that has none.

    python shipping_driver.py EXECUTORS_PYTHON FILE

prints where the executor's asyncpq is, and how many rows it read of a Parquet file. Run in another folder than the
project's, which executors in local mode look for modules in first.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from asyncpq.spark.shipping import add_to

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}

if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.argv[1]
    builder = SparkSession.builder.master("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    add_to(spark)
    add_to(spark)
    spark.addArtifacts(str(Path(__file__).with_name("shipping_tasks.py")), pyfile=True)
    tasks = importlib.import_module("shipping_tasks")
    rows = spark.range(1).mapInArrow(tasks.ReadFile(sys.argv[2]), tasks.ANSWER).collect()
    print(json.dumps(rows[0].asDict()))  # noqa: T201
    spark.stop()
