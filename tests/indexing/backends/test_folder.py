"""Folders of Parquet and JSON segments keep to the contract."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.indexing import FolderBackend, JsonBackend
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker

Check = Callable[[BackendMaker], Awaitable[None]]

each_check = pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)


@contextlib.asynccontextmanager
async def object_backends(
    kind: Any, url: str, storage_options: dict[str, Any] | None = None
) -> AsyncIterator[BackendMaker]:
    """Each is of another session than the one before; every other one reads no segment whole."""
    in_parts = asyncpq.RequestOptions(whole_segment_bytes=0)
    async with (
        asyncpq.Session(storage_options=storage_options) as first,
        asyncpq.Session(storage_options=storage_options, requests=in_parts) as second,
    ):
        sessions = itertools.cycle((first, second))
        yield lambda: kind(next(sessions)._runtime, url)


@each_check
async def test_folder(check: Check, tmp_path: Path) -> None:
    async with object_backends(FolderBackend, str(tmp_path / "index")) as make:
        await check(make)


@each_check
async def test_json(check: Check, tmp_path: Path) -> None:
    async with object_backends(JsonBackend, str(tmp_path / "index.json")) as make:
        await check(make)
