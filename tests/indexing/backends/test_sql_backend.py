"""SQL databases keep to the contract."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import asyncpq
from asyncpq.indexing import SqlBackend
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker, check_large, write
from tests.indexing.backends.postings import POINTS, cost, postings
from tests.servers import PostgresServer

pytestmark = pytest.mark.sampled(2)

Check = Callable[[BackendMaker], Awaitable[None]]
#: Databases have no segments that are read in another way, and take longest for large ones.
each_check_of_sql = pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=pytest.mark.slow if check is check_large else ()) for check in BACKEND_CHECKS],
    ids=lambda check: check.__name__,
)


@each_check_of_sql
async def test_sqlite(check: Check, tmp_path: Path) -> None:
    await check(lambda: SqlBackend(f"sqlite:///{tmp_path}/index.sqlite"))


@pytest.mark.sampled(6)
@each_check_of_sql
async def test_postgresql(check: Check, postgres: PostgresServer) -> None:
    name = f"index_{uuid.uuid4().hex[:8]}"
    await check(lambda: SqlBackend(postgres.url("postgres"), name))


@pytest.mark.io
async def test_a_lookup_in_sqlite_is_one_statement(tmp_path: Path) -> None:
    backend = SqlBackend(f"sqlite:///{tmp_path}/index.sqlite")
    try:
        segment = await write(backend, "a", "keys", postings(5000))
        async with asyncpq.Session() as session:
            for wanted in POINTS[:2]:
                lookup = await cost(backend, session, segment, wanted)
                assert (lookup.requests, lookup.rounds) == (1, 1)
    finally:
        await backend.close()
