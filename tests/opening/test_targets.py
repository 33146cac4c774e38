"""What a target and an index= are: places, handles, views, and the options that do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.datasets.model import View
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError
from asyncpq.indexing import Bounds, MemoryBackend
from asyncpq.opening.datasets import DatasetOptions
from asyncpq.opening.targets import place_of, shown_url


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), folder / f"{number}.parquet")
    return folder


def test_places_are_urls_paths_or_backends() -> None:
    backend = MemoryBackend()
    assert place_of("s3://b/i", "at") == "s3://b/i"
    assert place_of(Path("/i"), "at") == "/i"
    assert place_of(backend, "at") is backend
    for place, shown in ((7, "an object of type int"), (MemoryBackend, "the class MemoryBackend")):
        with pytest.raises(InvalidOptionError, match=f"index: must be a url, .*, not {shown}") as caught:
            place_of(place, "index")
        assert caught.value.hint is not None


def test_targets_are_shown_without_secrets() -> None:
    assert shown_url("https://u:p@h/t?sig=x", None) == "https://h/t"
    assert shown_url(object(), None) == "object"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema_policy": "lax"}, "schema_policy='lax'"),
        ({"on_bad_file": "ignore"}, "on_bad_file='ignore'"),
        ({"schema": {"id": "int"}}, "schema: must be a pyarrow.Schema, not dict"),
        ({"listing_max_age_s": -1}, "listing_max_age_s=-1: must be a number of at least 0"),
        ({"listing_max_age_s": float("nan")}, "listing_max_age_s=nan"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        DatasetOptions(**options).check()


def test_options_that_are_refused_are_named() -> None:
    with pytest.raises(InvalidOptionError, match="a table has its own") as caught:
        DatasetOptions(schema_policy="permissive").refuse("a table has its own", "schema", "schema_policy")
    assert caught.value.hint == "Leave out schema_policy."
    DatasetOptions().refuse("a table has its own", "schema", "schema_policy")


async def test_views_of_a_folder(lake: Path) -> None:
    async with asyncpq.Session() as session:
        assert (await session.open_dataset(str(lake))).view is View.LISTED
        refused: tuple[tuple[Literal["table", "snapshot"], str], ...] = (
            ("table", "the target is not a table"),
            ("snapshot", "needs an index, and there is none"),
        )
        for view, message in refused:
            with pytest.raises(InvalidOptionError, match=message):
                await session.open_dataset(str(lake), view=view)
        await session.build_index(str(lake), [Bounds("id")])
        pq.write_table(pa.table({"id": [2]}), lake / "2.parquet")
        counts = {}
        views: tuple[Literal["listed", "snapshot"], ...] = ("listed", "snapshot")
        for seen in views:
            dataset = await session.open_dataset(str(lake), view=seen)
            counts[dataset.view] = await dataset.count()
        assert counts == {View.LISTED: 3, View.SNAPSHOT: 2}
        assert (await session.open_dataset(str(lake), index=False))._state.source.known is not None


async def test_indexes_that_are_named(lake: Path, tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        index = await session.build_index(str(lake), [Bounds("id")], at=str(tmp_path / "index"))
        for named in (index, str(tmp_path / "index"), [index]):
            dataset = await session.open_dataset(str(lake), index=named)
            assert (await dataset.lookup({"id": 1}))["id"].to_pylist() == [1]
            assert dataset.metrics.files_ruled_out == 1
        with pytest.raises(InvalidOptionError, match="2 asyncpq indexes, and at most one is possible"):
            await session.open_dataset(str(lake), index=[index, index.url])
        with pytest.raises(ObjectNotFoundError, match="there is no index"):
            await session.open_dataset(str(lake), index=str(tmp_path / "none"))
        (tmp_path / "other").mkdir()
        pq.write_table(pa.table({"id": [9]}), tmp_path / "other" / "9.parquet")
        inside = await session.build_index(str(tmp_path / "other"), [Bounds("id")])
        with pytest.raises(InvalidOptionError, match="not the opened folder"):
            await session.open_dataset(str(tmp_path), index=inside, view="snapshot")
