"""A Valkey server keeps to the contract."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import quote

import pytest

from asyncpq.indexing import ValkeyBackend
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker
from tests.servers import ADMIN_PASSWORD, ValkeyServer

Check = Callable[[BackendMaker], Awaitable[None]]

each_check = pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey"), "--maxmemory-policy", "noeviction") as server:
        yield f"valkey://admin:{quote(ADMIN_PASSWORD)}@127.0.0.1:{server.port}"


@each_check
async def test_valkey(check: Check, valkey_url: str) -> None:
    prefix = f"index-{uuid.uuid4().hex}:"
    await check(lambda: ValkeyBackend(valkey_url, prefix))
