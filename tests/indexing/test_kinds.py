"""Kinds that do not fit the columns are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
import asyncpq.blocking
from asyncpq.errors import AsyncpqError, ColumnNotFoundError, InvalidOptionError
from asyncpq.indexing import Bounds, Footers, Keys, NGrams, Text
from tests.lakes import write_days


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session() as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return write_days(tmp_path / "lake")


@pytest.mark.parametrize(
    ("kinds", "error", "said"),
    [
        ([Keys("usr")], ColumnNotFoundError, "no such column; column 'usr'.*Did you mean 'user'"),
        ([Bounds("nothing at all")], ColumnNotFoundError, "Its columns are 'id', 'user'"),
        ([Bounds("tags")], InvalidOptionError, r"bounds cannot be made of list.*Keys\('tags'\)"),
        ([Keys("tags", "id")], InvalidOptionError, "a key cannot be made of list"),
        ([Keys("place")], InvalidOptionError, r"a key cannot be made of struct.*place\.city"),
        ([NGrams("id")], InvalidOptionError, "n-grams are made of strings, not of int64"),
        ([Text("tags")], InvalidOptionError, "tokens cannot be made of list"),
        ([Footers], InvalidOptionError, "kinds: must be a list"),
        (Keys("user"), InvalidOptionError, "kinds: must be a list"),
        (["keys"], InvalidOptionError, "kinds: must be a list"),
    ],
)
async def test_kinds(session: asyncpq.Session, lake: Path, kinds: Any, error: type[AsyncpqError], said: str) -> None:
    with pytest.raises(error, match=said):
        await session.build_index(lake, kinds)
