"""The S3s that integration tests run against: LocalStack, started once, and one in the test's process, with faults."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from asyncpq.storage.base import Store
from asyncpq.testing import ObjectServer
from localstack.seed import seed
from localstack.start import running_localstack
from tests.s3_reads import DATA
from tests.store_backends import open_test_store


@pytest.fixture(scope="session")
def localstack() -> Iterator[str]:
    """The endpoint of a running LocalStack."""
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
    """It has one object, ``bucket/key``."""
    async with ObjectServer() as running:
        running.put("bucket/key", DATA, modified=1e9)
        yield running


@pytest.fixture
async def store(server: ObjectServer) -> AsyncIterator[Store]:
    """S3Store on the server, by the direct path."""
    made = open_test_store("s3", server.storage_options)
    yield made
    await made.close()


@pytest.fixture
async def s3fs_store(server: ObjectServer) -> AsyncIterator[Store]:
    """The same through s3fs."""
    made = open_test_store("s3", {**server.storage_options, "requester_pays": True})
    yield made
    await made.close()
