"""What a notebook shows of files, datasets and metrics: their page maps, from memory, without a request."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.testing import ObjectServer
from tests.costs import cost_of

TABLE = pa.table({"id": range(10_000), "name": [f"n{row}" for row in range(10_000)]})


def write(path: Path) -> None:
    pq.write_table(TABLE, path, row_group_size=5_000, data_page_size=4_000, write_page_index=True)


def picture(frame: str | None) -> Any:
    """The picture in a frame of a notebook."""
    assert frame is not None
    page = re.search(r'srcdoc="(.*)"></iframe>', frame, re.DOTALL)
    assert page is not None
    found = re.search(r'id="picture">(.*?)</script>', html.unescape(page[1]))
    assert found is not None
    return json.loads(found[1])


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


async def test_a_dataset_shows_the_files_of_its_listing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet")
    async with asyncpq.Session() as session, await session.open_dataset(f"{tmp_path}/") as dataset:
        drawn = picture(dataset._repr_html_())
        assert [Path(file[0]).name for file in drawn["files"]] == ["a.parquet", "b.parquet"]


def test_the_blocking_forms(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet")
    with asyncpq.blocking.open_file(tmp_path / "file.parquet") as file:
        assert picture(file._repr_html_())["kind"] == "inspection"
    with asyncpq.blocking.open_dataset(f"{tmp_path}/") as dataset:
        assert picture(dataset._repr_html_())["kind"] == "dataset inspection"


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
