"""Stores on the object server that the fixture ``server`` of all tests starts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from asyncpq.storage.base import Store
from asyncpq.testing import ObjectServer
from tests.store_backends import open_test_store, retries_for


@pytest.fixture
async def store(server: ObjectServer, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """S3Store on the server, by the direct path."""
    made = open_test_store("s3", server.storage_options, retries_for(request))
    yield made
    await made.close()


@pytest.fixture
async def s3fs_store(server: ObjectServer, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """The same through s3fs."""
    made = open_test_store(
        "s3",
        {**server.storage_options, "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}},
        retries_for(request),
    )
    yield made
    await made.close()
