"""What a notebook shows of files, datasets and metrics: their page maps, from memory, without a request."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.page_map import render
from asyncpq.testing import ObjectServer
from tests.costs import cost_of

TABLE = pa.table({"id": range(10_000), "name": [f"n{row}" for row in range(10_000)]})


def write(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=5_000, data_page_size=4_000, write_page_index=True)


@pytest.fixture
def _data_as_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks get the data of a page map instead of its drawing."""

    def data(document: Any) -> str:
        found = re.search(r'id="picture">(.*?)</script>', render(document))
        assert found is not None
        return found[1]

    monkeypatch.setattr("asyncpq.page_map.svg.render_svg", data)


def content(shown: str | None) -> str:
    """What the image of a notebook holds."""
    assert shown is not None
    found = re.fullmatch(r'<img alt="page map of [^"]*" style="[^"]*" src="data:image/svg\+xml;base64,(.*)">', shown)
    assert found is not None
    return base64.b64decode(found[1]).decode()


def picture(shown: str | None) -> Any:
    """The picture in a notebook's output."""
    return json.loads(content(shown))


async def test_outputs_are_small_and_have_no_script(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet")
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "file.parquet")
        lake = await session.open_dataset(f"{tmp_path}/")
        with asyncpq.measure() as cost:
            why = await file.why(lookup={"id": 7_000})
        plan = await file.plan(lookup={"id": 7_000})
        reports = [await file.inspect(), await file.lint(), await lake.inspect(), await lake.lint()]
        outputs: list[Any] = [why, plan, file, lake, cost, *reports]
        for shown in outputs:
            made = shown._repr_html_()
            assert made is not None
            assert len(made) <= 15 << 10  # with the little data of this file
            assert "<script" not in made
            if "<img" in made:
                assert content(made).startswith("<svg ")


@pytest.mark.usefixtures("_data_as_drawing")
async def test_a_file_shows_what_is_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet")
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", (tmp_path / "file.parquet").read_bytes())
        options = asyncpq.RequestOptions(tail_bytes=1_000)  # less than the page indexes
        async with asyncpq.Session(server.storage_options, requests=options) as session:
            file = await session.open_file("s3://bucket/file.parquet")
            sent = len(server.log)
            drawn = picture(file._repr_html_())
            assert (drawn["kind"], drawn["layouts"][0]["number"]) == ("inspection", 4)
            assert drawn["layouts"][0]["chunks"]["pages"] == 0
            assert len(server.log) == sent
            cost = await cost_of(file.lookup({"id": 7_000}, columns=["id"]))
            sent = len(server.log)
            drawn = picture(file._repr_html_())
            assert list(map(bool, drawn["layouts"][0]["chunks"]["pages"])) == [False, False, True, False]
            assert len(server.log) == sent
            drawn = picture(cost._repr_html_())
            assert (drawn["kind"], len(drawn["requests"]["rows"])) == ("metrics", cost.requests)
            assert cost.requests > 0


@pytest.mark.usefixtures("_data_as_drawing")
async def test_a_dataset_shows_the_files_of_its_listing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet")
    async with asyncpq.Session() as session, await session.open_dataset(f"{tmp_path}/") as dataset:
        drawn = picture(dataset._repr_html_())
        assert [Path(file[0]).name for file in drawn["files"]] == ["a.parquet", "b.parquet"]


@pytest.mark.usefixtures("_data_as_drawing")
def test_the_blocking_forms(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet")
    with asyncpq.blocking.open_file(tmp_path / "file.parquet") as file:
        assert picture(file._repr_html_())["kind"] == "inspection"
    with asyncpq.blocking.open_dataset(f"{tmp_path}/") as dataset:
        assert picture(dataset._repr_html_())["kind"] == "dataset inspection"


@pytest.mark.usefixtures("_data_as_drawing")
async def test_plans_show_the_object_that_they_would_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "a.parquet")
        plan = await file.plan(["name"], lookup={"id": 7_000})
        drawn = picture(plan._repr_html_())
        layout = drawn["layouts"][0]
        assert (drawn["kind"], layout["fates"]["groups"]) == ("plan", ["statistics", "memory"])
        assert all(layout["chunks"]["pages"][number] for number in (2, 3))  # the plan needs their page locations
        assert "layouts" not in plan.to_dict()
        assert plan == await file.plan(["name"], lookup={"id": 7_000})
        async with await session.open_dataset(f"{tmp_path}/") as dataset:
            lake = await dataset.plan(["name"], lookup={"id": 7_000})
        drawn = picture(lake._repr_html_())
        assert [found["fates"]["groups"] for found in drawn["layouts"]] == [["statistics", "memory"]]
        assert [row[4] for row in drawn["files"]] == [0]
