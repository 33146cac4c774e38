"""Settings of the whole test run: hypothesis profiles, which asyncpq is tested, and the S3 that tests share."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import uuid
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import botocore.session
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

import asyncpq
from asyncpq.testing import ObjectServer
from localstack.seed import seed
from localstack.start import running_localstack
from tests.shared_localstack import SharedLocalStack, shared_endpoint
from tests.store_backends import DATA

if TYPE_CHECKING:
    from tests.servers import PostgresServer

# Examples decode files, so a wall-clock deadline would only measure the machine.
_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
_EXAMPLES = 12  # of each property; `make test-all` takes 100
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
    "thorough", deadline=None, suppress_health_check=_slow_is_fine, max_examples=100, print_blob=True
)
settings.load_profile(os.environ.get("ASYNCPQ_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests run as a shell's background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _no_shared_session() -> Iterator[None]:
    """No session of one-off calls is left for the next test, which may look at threads and connections."""
    yield
    if "asyncpq.blocking" in sys.modules:
        sys.modules["asyncpq.blocking"]._end_shared()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the markers that follow from what a test is: one of a property, one that runs on the Spark cluster, one of
    the cases that :func:`pytest.mark.sampled` leaves to the heavy tests, or on the Spark cluster to the slow ones.

    Tests that are given more time than others come first: at the end, one process would be left with them.
    """
    for item in items:
        on_spark = "cluster" in getattr(item, "fixturenames", ())
        sampled = item.get_closest_marker("sampled")
        # by the case itself, so that it does not depend on which tests are selected, or on the order of parameters
        if sampled is not None and zlib.crc32(item.nodeid.encode()) % sampled.args[0]:
            item.add_marker("slow" if on_spark else "heavy")
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
        if on_spark:
            item.add_marker("spark")
    items.sort(key=lambda item: not any(item.iter_markers("timeout")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the garbage collector, which would look at all that they hold again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Take the collected tests out of the garbage collector's sight: tests for leaks collect all garbage, often."""
    gc.collect()
    gc.freeze()


_distributed_localstack = pytest.StashKey[SharedLocalStack]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let all sessions of botocore share its parsed models of S3: parsing takes longer than most tests do."""
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    if session.config.pluginmanager.has_plugin("dsession"):  # pytest-xdist, which starts other processes
        session.stash[_distributed_localstack] = SharedLocalStack()
        session.stash[_distributed_localstack].start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _distributed_localstack in session.stash:
        session.stash[_distributed_localstack].stop()


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
    shared = shared_endpoint()
    if shared is not None:
        yield shared
        return
    with running_localstack() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL, started once: tests have databases or tables of their own."""
    from tests.servers import PostgresServer

    with PostgresServer() as running:
        yield running


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
