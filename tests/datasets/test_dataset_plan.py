"""Plans of datasets say what ruled out each file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.indexing import Keys
from asyncpq.reports.documents import PlanDocument

if TYPE_CHECKING:
    from asyncpq.datasets.dataset_plan import DatasetPlan


def write(lake: Path) -> None:
    """Two days of three files, each of two row groups; ``id`` grows, ``user`` is shuffled."""
    for number in range(6):
        folder = lake / f"day={number // 3}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = range(number * 100, number * 100 + 100)
        table = pa.table({"id": rows, "user": [row * 7919 % 600 for row in rows]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=50, write_page_index=True)


def check(plan: DatasetPlan) -> PlanDocument:
    document = plan.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert msgspec.convert(document, PlanDocument) == document
    for step in document["funnel"]:
        assert step["total"] - sum(item["count"] for item in step["ruled_out"]) == step["kept"]
    files = document["funnel"][0]
    assert (files["level"], files["total"], files["kept"]) == ("files", plan.files_total, len(plan.files))
    assert len(document["files"]) == document["files_to_read"] == len(plan.files)
    assert document["explain"] == plan.explain()
    assert (document["num_requests"], document["num_bytes"]) == (plan.num_requests, plan.num_bytes)
    return document


def causes(document: PlanDocument, level: int = 0) -> dict[str, int]:
    return {item["by"]: item["count"] for item in document["funnel"][level]["ruled_out"]}


async def test_partitions_footers_and_earlier_footers_rule_files_out(tmp_path: Path) -> None:
    write(tmp_path / "lake")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path / "lake")
        first = check(await dataset.plan(["user"], (col("day") == 1) & (col("id") == 420)))
        again = check(await dataset.plan(["user"], (col("day") == 1) & (col("id") == 420)))
        nothing = check(await dataset.plan(["user"], (col("id") < 5) & (col("id") > 7)))
        some = check(await dataset.plan(access={}))
    assert causes(first) == {"partition": 3, "statistics": 2}
    assert causes(again) == {"partition": 3, "statistics": 2}
    assert (first["files_to_read"], again["files_to_read"]) == (1, 1)
    assert causes(first, 1) == {"statistics": 1}
    assert nothing["funnel"][0]["kept"] == 0
    assert causes(some) == {"access": 6}


async def test_an_index_rules_files_and_rows_out(tmp_path: Path) -> None:
    write(tmp_path / "lake")
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path / "lake", [Keys("user")], at=tmp_path / "index")
        dataset = await session.open_dataset(tmp_path / "lake", index=tmp_path / "index")
        document = check(await dataset.plan(["id"], lookup={"user": 17}))
    assert causes(document) == {"index": 5}
    assert "user" in document["funnel"][0]["ruled_out"][0]["detail"]
    assert causes(document, 1) == {"index": 1}
    assert causes(document, -1)["index"] == 99
    assert document["index"]
