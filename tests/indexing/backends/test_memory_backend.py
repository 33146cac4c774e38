"""The memory backend keeps to the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from asyncpq.indexing import MemoryBackend
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker

Check = Callable[[BackendMaker], Awaitable[None]]

each_check = pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)


@each_check
async def test_memory(check: Check) -> None:
    backend = MemoryBackend()
    await check(lambda: backend)
