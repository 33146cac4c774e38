"""A lookup in a SQL database is one statement."""

from __future__ import annotations

from pathlib import Path

import pytest

import asyncpq
from asyncpq.indexing import SqlBackend
from asyncpq.testing.backend_contract import write
from tests.indexing.backends.postings import POINTS, cost, postings

pytestmark = pytest.mark.io


async def test_sqlite_is_one_statement(tmp_path: Path) -> None:
    backend = SqlBackend(f"sqlite:///{tmp_path}/index.sqlite")
    try:
        segment = await write(backend, "a", "keys", postings(5000))
        async with asyncpq.Session() as session:
            for wanted in POINTS[:2]:
                found = await cost(backend, session, segment, wanted)
                assert (found.requests, found.rounds) == (1, 1)
    finally:
        await backend.close()
