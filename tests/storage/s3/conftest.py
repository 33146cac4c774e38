"""Directory buckets of S3 Express One Zone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from asyncpq.storage.base import Store
from asyncpq.testing import ObjectServer
from asyncpq.testing.store_contract import DATA
from tests.directory_buckets import DirectoryBuckets
from tests.store_backends import open_test_store


@pytest.fixture
async def gate(server: ObjectServer) -> DirectoryBuckets:
    """The server of the tests, with directory buckets alone; "key" holds ``DATA``."""
    made = DirectoryBuckets(server)
    made.put("key", DATA)
    return made


@pytest.fixture
async def express(gate: DirectoryBuckets) -> AsyncIterator[Store]:
    made = open_test_store("s3", gate.storage_options)
    yield made
    await made.close()
