"""One Spark cluster and one SparkSession for all tests of this folder, with files in LocalStack's S3."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cluster import WORKER_HOSTS, Cluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

    from tests.spark.lake_store import LakeStore


_FOLDER = Path(__file__).parent
#: The first test's starts the cluster, on whatever else the machine does.
_TIMEOUT_S = 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    timeout = pytest.mark.timeout(max(_TIMEOUT_S, config.getoption("timeout") or 0))
    for item in items:
        if item.path.is_relative_to(_FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(timeout)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Skips where there is no Java, no pyspark, or no second address of this machine."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")
    if shutil.which("java") is None:
        pytest.skip("needs Java 17 or newer on the path")
    for host in WORKER_HOSTS:
        with socket.socket() as probe:
            try:
                probe.bind((host, 0))
            except OSError:
                pytest.skip(f"a worker of the cluster needs the address {host}")
    from tests.spark.spark_session import executor_environment

    with running_cluster(tmp_path_factory.mktemp("spark"), executor_environment()) as running:
        yield running


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    """The one session of all tests: whoever sets something restores it, for example by ``restored_conf``."""
    from tests.spark.spark_session import running_session

    with running_session(cluster) as session:
        yield session


@pytest.fixture
def restored_conf(spark: SparkSession) -> Iterator[RuntimeConfig]:
    """``spark.conf``, whose settings are afterwards as they were before."""
    before = dict(spark.conf.getAll)
    yield spark.conf
    after = dict(spark.conf.getAll)
    for name in after.keys() - before.keys():
        spark.conf.unset(name)
    for name, value in before.items():
        if after.get(name) != value:
            spark.conf.set(name, value)


@pytest.fixture
def connect(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of Spark Connect's on the same cluster, with settings and views of its own. For few tests."""
    pytest.importorskip("grpc", reason="needs Spark Connect: pip install pyspark[connect]")
    from tests.spark.spark_session import connected

    with connected(spark) as session:
        yield session


@pytest.fixture(scope="session")
def s3_client(localstack: str) -> Iterator[Any]:
    from tests.spark.lake_store import new_client

    client = new_client(localstack)
    yield client
    client.close()


@pytest.fixture
def lake_store(localstack: str, bucket: str, s3_client: Any) -> LakeStore:
    """A new, empty bucket; executors reach it with ``lake_store.settings``."""
    from tests.spark.lake_store import LakeStore

    return LakeStore(localstack, bucket, s3_client)
