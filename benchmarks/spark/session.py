"""SparkSessions of the benchmarks: ``local[2]`` in this process, with Spark's own defaults where none is named here."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}


def s3a_settings(endpoint: str) -> dict[str, str]:
    """S3A on an endpoint, set for reads at random places, which serves Parquet best."""
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "spark.hadoop.fs.s3a.access.key": "test",
        "spark.hadoop.fs.s3a.secret.key": "test",
        "spark.hadoop.fs.s3a.experimental.input.fadvise": "random",
        "spark.hadoop.fs.s3a.create.checksum.algorithm": "",
    }


@contextlib.contextmanager
def running_session(jars: Sequence[Path] = (), endpoint: str | None = None) -> Iterator[SparkSession]:
    """A session in a JVM of its own, ended on leaving; with ``jars`` and S3A on ``endpoint``."""
    settings = SETTINGS | {"spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "asyncpq-benchmarks-warehouse")}
    if endpoint is not None:
        settings |= s3a_settings(endpoint)
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import benchmarks.spark.credentials
    builder = SparkSession.builder.master("local[2]").appName("asyncpq-benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        gateway = SparkContext._gateway
        if gateway is not None:  # pyspark keeps its JVM until the process ends
            gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None
