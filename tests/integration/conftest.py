"""The S3 that integration tests run against: LocalStack, started once, a fresh bucket for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from localstack.seed import seed
from localstack.start import running_localstack


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
