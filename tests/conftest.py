"""Settings of the whole test run: hypothesis profiles, which asyncpq is tested, and the S3 that tests share."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import asyncpq
from asyncpq.testing import ObjectServer
from localstack.seed import seed
from localstack.start import running_localstack
from tests.s3_reads import DATA

# Examples decode files, so a wall-clock deadline would only measure the machine.
_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
_EXAMPLES = 40  # of each property; `make test-all` takes 500
settings.register_profile("dev", deadline=None, suppress_health_check=_slow_is_fine, max_examples=_EXAMPLES)
# Derandomised: a red build is about the change, not about luck. New examples are found by developers and
# by `make test-all`.
settings.register_profile(
    "ci",
    deadline=None,
    suppress_health_check=_slow_is_fine,
    max_examples=_EXAMPLES,
    derandomize=True,
    database=None,
    print_blob=True,
)
settings.register_profile(
    "thorough", deadline=None, suppress_health_check=_slow_is_fine, max_examples=500, print_blob=True
)
settings.load_profile(os.environ.get("ASYNCPQ_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


_SPARK_TESTS = Path(__file__).parent / "spark"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-tests",
        choices=("with", "without", "only"),
        default="with",
        help="tests/spark shares one Spark cluster, so it runs in one process: `make test` calls pytest twice",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if collection_path.is_dir() or _is_wanted(collection_path, config) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files that the command line names are collected in any case.
    unwanted = [item for item in items if not _is_wanted(item.path, config)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if _is_wanted(item.path, config)]


def _is_wanted(path: Path, config: pytest.Config) -> bool:
    wanted: str = config.getoption("spark_tests")
    return wanted == "with" or path.is_relative_to(_SPARK_TESTS) == (wanted == "only")


def pytest_report_header() -> str:
    return f"asyncpq: {_installed_from()}"


def pytest_configure() -> None:
    # .ci/run tests the built wheel, and must notice if the source tree is imported instead.
    if os.environ.get("ASYNCPQ_TEST_WHEEL") and "site-packages" not in _installed_from().parts:
        raise pytest.UsageError(f"ASYNCPQ_TEST_WHEEL is set, but asyncpq was imported from {_installed_from()}")


def _installed_from() -> Path:
    return Path(asyncpq.__file__).parent


@pytest.fixture(scope="session")
def localstack() -> Iterator[str]:
    """The endpoint of a running LocalStack, started once."""
    with running_localstack() as endpoint:
        yield endpoint


@pytest.fixture
async def bucket(localstack: str) -> str:
    """A new, empty bucket in LocalStack."""
    name = f"asyncpq-{uuid.uuid4().hex[:20]}"
    await seed(localstack, name, {})
    return name


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    """An S3 in this process that can be told to misbehave, with one object, ``bucket/key``."""
    async with ObjectServer() as running:
        running.put("bucket/key", DATA, modified=1e9)
        yield running
