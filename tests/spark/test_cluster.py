"""The cluster itself: that tests on it run where and as they mean to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.cluster import WORKER_HOSTS, Cluster

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.errors import PySparkAttributeError
from pyspark.sql import functions

import asyncpq
from tests.spark.cluster_tasks import ANSWER, Dawdle, DieOnce, where_it_runs, with_credentials
from tests.spark.credentials import CANARY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

    from tests.spark.lake_store import LakeStore

_STARTER = """
import sys, time
from pathlib import Path
from tests.spark.cluster import running_cluster
with running_cluster(Path(sys.argv[1])) as cluster:
    print(cluster.url, flush=True)
    time.sleep(600)
"""


def test_tasks_run_on_both_hosts(spark: SparkSession, cluster: Cluster) -> None:
    rows = spark.range(8, numPartitions=8).mapInArrow(where_it_runs, ANSWER).collect()
    assert sorted(row.id for row in rows) == list(range(8))
    assert {row.host for row in rows} == set(WORKER_HOSTS)
    running = cluster.executors(spark.sparkContext.applicationId)
    assert {(row.host, row.executor) for row in rows} == {(found.host, found.pid) for found in running}


def test_an_executor_that_dies_is_replaced(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    application = spark.sparkContext.applicationId
    before = {found.pid for found in cluster.executors(application)}
    rows = spark.range(4, numPartitions=4).mapInArrow(DieOnce(tmp_path / "once"), ANSWER).collect()
    assert sorted(row.id for row in rows) == list(range(4))
    cluster.wait_for_executors(application)
    after = {found.pid for found in cluster.executors(application)}
    assert len(after - before) == 1
    killed = cluster.kill_executor(application, WORKER_HOSTS[0])
    assert killed.host == WORKER_HOSTS[0]
    assert spark.range(4, numPartitions=4).count() == 4
    cluster.wait_for_executors(application)


def test_a_slow_task_is_tried_on_the_other_host(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(4, numPartitions=4).mapInArrow(Dawdle(tmp_path), ANSWER).collect()
    assert sorted(row.id for row in rows) == list(range(4))
    assert {attempt.name for attempt in tmp_path.iterdir()} == set(WORKER_HOSTS)


def test_executors_find_asyncpq_and_credentials(spark: SparkSession, lake_store: LakeStore) -> None:
    row = spark.range(1).mapInArrow(with_credentials, ANSWER).collect()[0]
    assert row.seen == f"test {asyncpq.__file__}"
    assert CANARY not in str(lake_store.settings)
    assert lake_store.session_options["secret"] == CANARY
    url = lake_store.put("a/b", b"data")
    assert url == f"{lake_store.url}/a/b"
    assert (lake_store.get("a/b"), lake_store.keys("a")) == (b"data", ["a/b"])
    lake_store.delete("a/b")
    assert lake_store.keys() == []


def test_settings_are_restored(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    conf: RuntimeConfig = request.getfixturevalue("restored_conf")
    conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    conf.set("spark.sql.ansi.enabled", "false")
    conf.set("spark.asyncpq.someSetting", "1")


def test_settings_were_restored(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.asyncpq.someSetting", None) is None


def test_logs_are_at_hand(spark: SparkSession, cluster: Cluster) -> None:
    spark.range(1).count()
    names = {log.name for log in cluster.logs()}
    assert {"master.log", "worker-1.log", "worker-2.log", "driver.log", "stderr"} <= names
    assert all(log.is_file() for log in cluster.logs())
    assert spark.sparkContext.applicationId in "".join(event.read_text() for event in cluster.events.iterdir())
    page = spark.sparkContext.uiWebUrl
    assert page is not None
    assert page.startswith("http://127.0.0.1:")


@pytest.mark.slow  # imports much
def test_spark_connect(connect: SparkSession, spark: SparkSession) -> None:
    assert not hasattr(connect, "_jvm")
    rows = connect.range(8, numPartitions=8).filter(functions.col("id") > 2).mapInArrow(where_it_runs, ANSWER).collect()
    assert sorted(row.id for row in rows) == list(range(3, 8))
    with pytest.raises(PySparkAttributeError):
        _ = connect.sparkContext


@pytest.mark.slow
def test_functions_are_classic_again(spark: SparkSession) -> None:
    assert spark.range(8).filter(functions.col("id") > 2).count() == 5


@pytest.mark.slow  # a second cluster
def test_nothing_is_left_of_a_starter_that_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _STARTER, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline().startswith("spark://")
        assert len(_processes_with(str(tmp_path))) >= 4
        os.kill(starter.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while (left := _processes_with(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


def _processes_with(text: str) -> list[str]:
    """Commands of this machine's processes that were started in or on a folder, by its name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                if text in words or text in os.readlink(entry / "cwd"):
                    found.append(words)
            except OSError:
                continue  # it ended
    return found
