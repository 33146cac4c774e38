"""The fates of row groups, pages and rows add up, and are what the read then fetches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.parquet.page_index import decode_offset_index
from asyncpq.reports.documents import PlanDocument
from asyncpq.scan.plan import KEPT
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import metadata_of

if TYPE_CHECKING:
    from asyncpq.reports.documents import FileFates

ROWS, GROUP, PAGE = 4000, 1000, 100


def data(*, index: bool = True, bloom: bool = False) -> bytes:
    table = pa.table(
        {
            "id": range(ROWS),
            "even": [row * 2 for row in range(ROWS)],
            "mixed": [row * 7919 % ROWS for row in range(ROWS)],
            "name": [f"name {row:09d}" for row in range(ROWS)],
        }
    )
    return parquet_bytes(
        table,
        row_group_size=GROUP,
        max_rows_per_page=PAGE,
        write_batch_size=PAGE,
        use_dictionary=False,
        write_page_index=index,
        **({"bloom_filter_options": {"mixed": {"ndv": GROUP, "fpp": 0.001}}} if bloom else {}),
    )


def page_spans(content: bytes) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The bytes of each page, by row group and column; without an OffsetIndex, of the chunk."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for ordinal, group in enumerate(metadata_of(content).row_groups):
        for leaf in range(4):
            chunk = group.chunk(leaf)
            spans[ordinal, leaf] = [(chunk.start, chunk.stop)]
            if chunk.offset_index_range is not None:
                start, stop = chunk.offset_index_range
                found = decode_offset_index(content[start:stop])
                ends = zip(found.offsets, found.sizes, strict=True)
                spans[ordinal, leaf] = [(offset, offset + size) for offset, size in ends]
    return spans


def covered(fates: FileFates, content: bytes) -> set[int]:
    """The bytes of the pages whose fate is "read"."""
    spans = page_spans(content)
    found: set[int] = set()
    for chunk in fates["chunks"]:
        pages = spans[chunk["row_group"], chunk["column"]]
        if chunk["whole"]:
            if chunk["fate"] == "read":
                found.update(range(pages[0][0], pages[-1][1]))
            continue
        each = chunk.get("fates") or [chunk["fate"]] * len(chunk["pages"])
        for page, fate in zip(chunk["pages"], each, strict=True):
            if fate == "read":
                found.update(range(*pages[page]))
    return found


WHERES: list[Any] = [
    None,
    col("id") == 1234,
    col("id").between(950, 1050),
    (col("id") > 3500) | (col("even") < 40),
    col("mixed") == 17,
    col("id") < 0,
    (col("id") < 5) & (col("id") > 7),
    col("name") == "name 000000042",
]


def check(plan: asyncpq.Plan, content: bytes, *, exact: bool = True) -> PlanDocument:
    document = plan.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert msgspec.convert(document, PlanDocument) == document
    groups = document["files"][0]["row_groups"]
    assert len(groups) == 4
    assert sum(fate in KEPT for fate in groups) == plan.pruning.row_groups_kept
    steps = {step["level"]: step for step in document["funnel"]}
    counts = {level: {item["by"]: item["count"] for item in step["ruled_out"]} for level, step in steps.items()}
    for step in steps.values():
        assert step["total"] - sum(item["count"] for item in step["ruled_out"]) == step["kept"]
    assert counts["row groups"] == Counter(fate for fate in groups if fate not in KEPT)
    assert (steps["rows"]["total"], steps["rows"]["kept"]) == (ROWS, plan.pruning.rows_kept)
    if plan.pruning.pages:
        assert (steps["pages"]["total"], steps["pages"]["kept"]) == (plan.pruning.pages, plan.pruning.pages_kept)
    requested = {byte for request in plan.requests for byte in range(request.start, request.stop)}
    wanted = covered(document["files"][0], content)
    assert wanted <= requested
    if exact:
        assert len(wanted) == sum(request.useful_bytes for request in plan.requests)
    return document


@pytest.mark.parametrize("index", [True, False], ids=["pages", "chunks"])
@pytest.mark.parametrize("where", WHERES, ids=str)
async def test_the_fates_are_what_is_requested(where: Any, index: bool, tmp_path: Path) -> None:
    content = data(index=index)
    (tmp_path / "a.parquet").write_bytes(content)
    requests = asyncpq.RequestOptions(tail_bytes=65_536 if index else 1000, late_materialization="never")
    async with asyncpq.Session(requests=requests) as session:
        file = await session.open_file(tmp_path / "a.parquet")
        check(await file.plan(["id", "name"], where), content, exact=not index)


@given(
    where=st.sampled_from(WHERES),
    rows=st.lists(st.integers(0, ROWS - 1), max_size=5),
    limit=st.none() | st.integers(1, 1500),
)
def test_each_row_group_page_and_row_has_one_fate(where: Any, rows: list[int], limit: int | None) -> None:
    async def plans() -> None:
        async with asyncpq.Session(requests=asyncpq.RequestOptions(tail_bytes=1000)) as session:
            file = await session.open_file(PATH)
            access = asyncpq.AccessPlan.rows(sorted(set(rows))) if rows else None
            check(await file.plan(["name"], where, access=access, limit=limit), CONTENT, exact=False)

    asyncio.run(plans())


CONTENT = data(bloom=True)
PATH = ""


@pytest.fixture(autouse=True, scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> None:
    global PATH
    path = tmp_path_factory.mktemp("fates") / "a.parquet"
    path.write_bytes(CONTENT)
    PATH = str(path)


async def test_each_kind_of_knowledge_is_named() -> None:
    async with asyncpq.Session(requests=asyncpq.RequestOptions(bloom_filters="always", tail_bytes=1000)) as session:
        file = await session.open_file(PATH)
        by_statistics = check(await file.plan(["name"], col("id") == 1234), CONTENT, exact=False)
        by_bloom = check(await file.plan(["name"], col("mixed") == 17), CONTENT, exact=False)
        by_access = check(await file.plan(["id"], access=asyncpq.AccessPlan.row_groups([2])), CONTENT, exact=False)
        by_limit = check(await file.plan(["id"], limit=10), CONTENT, exact=False)
    assert by_statistics["files"][0]["row_groups"] == ["statistics", "read", "statistics", "statistics"]
    # two columns of ten pages
    assert [(step["level"], step["kept"]) for step in by_statistics["funnel"]] == [
        ("row groups", 1), ("pages", 2), ("rows", 100),
    ]  # fmt: skip
    assert by_statistics["funnel"][0]["ruled_out"] == [{"by": "statistics", "count": 3, "detail": "id == 1234: 3"}]
    assert Counter(by_bloom["files"][0]["row_groups"]) == {"bloom": 3, "read": 1}
    assert by_access["files"][0]["row_groups"] == ["access", "access", "read", "access"]
    assert by_limit["files"][0]["row_groups"] == ["read", "limit", "limit", "limit"]
    assert by_limit["funnel"][-1]["ruled_out"] == [{"by": "limit", "count": ROWS - 10, "detail": ""}]


async def test_what_memory_holds_is_not_read_again() -> None:
    async with asyncpq.Session(requests=asyncpq.RequestOptions(tail_bytes=1000)) as session:
        file = await session.open_file(PATH)
        await file.lookup({"id": 1234}, columns=["name"])
        document = check(await file.plan(["name", "even"], lookup={"id": 1234}), CONTENT, exact=False)
    tiers = {chunk["column"]: chunk["fate"] for chunk in document["files"][0]["chunks"]}
    assert tiers == {0: "memory", 1: "read", 3: "memory"}
