"""Kinds that do not fit the columns are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import asyncpq
import asyncpq.blocking
from asyncpq.errors import AsyncpqError, ColumnNotFoundError, InvalidOptionError
from asyncpq.indexing import Bounds, Footers, Keys, NGrams, Text, ValueSet
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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(Keys, "id"), "max_postings"),
        (partial(ValueSet, "id"), "max_values"),
        (partial(NGrams, "text"), "n"),
        (partial(NGrams, "text"), "max_ngrams"),
    ],
    ids=["Keys", "ValueSet", "n", "NGrams"],
)
@pytest.mark.parametrize("bad", [None, 0, 1.0, True, "1"], ids=repr)
def test_limits_of_kinds_are_whole_numbers(make: Callable[..., object], name: str, bad: object) -> None:
    with pytest.raises(InvalidOptionError, match=f"^{name}={bad!r}: must be a whole number of at least 1"):
        make(**{name: bad})


async def test_building_is_an_option_class(session: asyncpq.Session, lake: Path, tmp_path: Path) -> None:
    wrong: Any = {"memory_bytes": 1}
    target = str(tmp_path / "optimized")
    for work in (
        session.build_index(lake, [Bounds()], building=wrong),
        session.build_index(lake, [Bounds()], building=wrong, workers=2),
        session.open_index(str(tmp_path / "index"), building=wrong),
        session.optimize(lake, target, building=wrong),
        session.optimize(lake, target, building=wrong, workers=2),
    ):
        with pytest.raises(InvalidOptionError, match=r"^building=.*: must be a BuildOptions"):
            await work
    with pytest.raises(InvalidOptionError, match=r"^layout=.*: must be a WriteOptions"):
        await session.optimize(lake, target, layout=wrong)
    assert not (tmp_path / "optimized").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sort_by": 0}, "sort_by=0: must be a list of names"),
        ({"sort_by": ["id", 1]}, "sort_by=.*: must be a list of names"),
        ({"zorder_by": "id"}, "zorder_by='id': must be a list of names"),
        ({"zorder_by": [None]}, "zorder_by: None is neither the name nor the ordinal"),
        ({"columns": "id"}, "columns='id': must be a list of names"),
        ({"kinds": Keys("id")}, "kinds: must be a list of index kinds"),
        ({"kinds": ["id"]}, "kinds: must be a list of index kinds"),
    ],
    ids=str,
)
async def test_arguments_of_optimize(
    session: asyncpq.Session, lake: Path, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        await session.optimize(lake, str(tmp_path / "optimized"), **arguments)
    assert not (tmp_path / "optimized").exists()
