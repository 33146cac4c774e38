"""One SparkSession on the test cluster, whose driver is this process."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.cluster import JAVA_OPTIONS, Cluster

ROOT = Path(__file__).resolve().parents[2]
_ISOLATION = "spark.sql.artifact.isolation.enabled"


def settings(cluster: Cluster) -> dict[str, str]:
    """Of Spark, for all tests; each test restores what it changes."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.local.dir": str(cluster.folder / "local"),
        "spark.sql.warehouse.dir": str(cluster.folder / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        # A second attempt is made of a task that is far behind the other one: on the other host.
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "2s",
        # What is shown to others, in files and pages that tests can search.
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": cluster.events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        # Spark Connect, served by the same driver.
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(_free_port()),
    }


def executor_environment() -> dict[str, str]:
    """What drivers and workers start with: their Python is this one, and finds the tests."""
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextlib.contextmanager
def running_session(cluster: Cluster) -> Iterator[SparkSession]:
    """The session; its JVM is ended on leaving."""
    builder = SparkSession.builder.master(cluster.url).appName("asyncpq-tests")
    for name, value in settings(cluster).items():
        builder = builder.config(name, value)
    with _environment(executor_environment()), _standard_error_into(cluster.driver_log):
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        _end_gateway()


@contextlib.contextmanager
def connected(session: SparkSession) -> Iterator[SparkSession]:
    """A session of Spark Connect's on the same driver. Meanwhile, pyspark's functions give columns for such ones."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    url = f"sc://127.0.0.1:{session.conf.get('spark.connect.grpc.binding.port')}"
    with _environment({"SPARK_CONNECT_MODE_ENABLED": "1"}):
        # As Spark's own server has it, and pyspark's driver has not: what a session shipped is its own. Else executors
        # that come later ask for it when it has ended.
        conf = session.sparkContext._jsc.sc().conf()
        before = conf.get(_ISOLATION)
        conf.set(_ISOLATION, "true")
        try:
            made = ConnectSession.builder.remote(url).create()
            made.range(1).count()
        finally:
            conf.set(_ISOLATION, before)
        try:
            yield cast("SparkSession", made)
        finally:
            made.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_gateway() -> None:
    """pyspark keeps its JVM until the process ends."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    if process is not None:
        process.stdin.close()
        process.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _standard_error_into(file: Path) -> Iterator[None]:
    """For the processes that are started meanwhile."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
