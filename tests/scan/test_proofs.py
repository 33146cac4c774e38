"""What is not fetched where statistics prove that all rows match, and where they prove nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from asyncpq.testing import ObjectServer
from tests.costs import Part, cost_of, parts_of, trace
from tests.parquet_files import EditedFile
from tests.reads import assert_reads, by_pyarrow, values

pytestmark = pytest.mark.io

URL = "s3://lake/proofs.parquet"
ROWS = 400


def made() -> EditedFile:
    """Four row groups of 100 rows, pages of 20: ids, and other columns that rise with them or do not."""
    rows = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "name": [f"name {row:04d}" for row in rows],
            "some": pa.array([row if row % 150 else None for row in rows], pa.int64()),
            "real": pa.array([row / 2 for row in rows]),
            "money": pa.array([Decimal(row) / 4 for row in rows], pa.decimal128(9, 2)),
            "part": [f"part {row // 100}" for row in rows],
            "struct": [{"a": row} for row in rows],
        }
    )
    return EditedFile.of(table, row_group_size=100, rows_per_page=20, use_dictionary=False, compression="none")


FILE = made()
DATA = FILE.data()


class Lake:
    """A server with one file."""

    def __init__(self, server: ObjectServer) -> None:
        self.server = server
        self.parts: list[Part] = []

    def session(
        self, data: bytes = DATA, *, late: Literal["never", "always", "auto"] = "never", **options: Any
    ) -> asyncpq.Session:
        self.server.put("lake/proofs.parquet", data)
        self.parts = parts_of(data)
        footer = int.from_bytes(data[-8:-4], "little") + 8
        requests = asyncpq.RequestOptions(gap_bytes=0, tail_bytes=footer, late_materialization=late, latency_s=0)
        return asyncpq.Session(self.server.storage_options, requests=requests, **options)

    def taken(self) -> list[str]:
        """What was fetched since the last call, but for the footer: names of pages, chunks and indexes."""
        lines = [line.removeprefix("GET ") for line in trace(self.server.log, self.parts)]
        self.server.log.clear()
        return [line for line in lines if "footer" not in line and "last" not in line]


@pytest.fixture
async def lake() -> AsyncIterator[Lake]:
    async with ObjectServer() as server:
        yield Lake(server)


async def test_a_scan_fetches_no_predicate_column_of_proven_row_groups(lake: Lake) -> None:
    where = col("id") >= 150
    async with lake.session() as session:
        file = await session.open_file(URL)
        lake.taken()
        table = await file.read(["name"], where)
        assert values(table) == values(by_pyarrow(DATA, where).select(["name"]))
        fetched = lake.taken()
        assert [line for line in fetched if line.startswith("id")] == [
            "id[1] page 2-4",
            "id[1] ColumnIndex",
            "id[1] OffsetIndex, name[1] OffsetIndex",
        ]
        assert [line for line in fetched if "name[2]" in line or "name[3]" in line] == [
            "name[2] page 0-4",
            "name[3] page 0-4",
        ]
        assert file.metrics.row_groups_proven == 2
        assert file.metrics.row_groups_read == 3


async def test_a_predicate_column_that_is_asked_for_is_fetched(lake: Lake) -> None:
    where = (col("id") >= 100) & (col("money") < 50)
    async with lake.session() as session:
        file = await session.open_file(URL)
        lake.taken()
        assert values(await file.read(["id"], where)) == values(by_pyarrow(DATA, where).select(["id"]))
        assert lake.taken() == ["id[1] page 0-4"]


COUNTS: list[tuple[Expression, int]] = [
    (col("id") >= 100, 300),
    (col("part") == "part 2", 100),
    (~col("part").is_in(["part 2"]), 300),
    (col("part").starts_with("part"), 400),
    (col("name").is_valid(), 400),
    (col("name").is_null(), 0),
    ((col("id") < 100) | (col("money") >= 50), 300),
    (col("part").is_in(["part 1", "part 3", "other"]), 200),
]


def with_exact_parts() -> bytes:
    file = made()
    for group in range(4):
        statistics = file.statistics(5, group)
        statistics.put(7, True)
        statistics.put(8, True)
    return file.data()


def test_counts_are_pyarrow_s() -> None:
    assert_reads(with_exact_parts(), *[where for where, _ in COUNTS])


async def test_a_count_is_answered_from_statistics(lake: Lake) -> None:
    async with lake.session(with_exact_parts()) as session:
        opened = await session.open_file(URL)
        lake.taken()
        for where, count in COUNTS:
            assert await opened.count(where) == count, str(where)
            assert lake.taken() == [], str(where)


async def test_a_count_reads_pages_of_the_row_groups_at_the_edges_only(lake: Lake) -> None:
    async with lake.session() as session:
        file = await session.open_file(URL)
        lake.taken()
        assert await file.count(col("id").between(30, 350)) == 321
        # of these no page is taken to match unread: only its decoded rows prove what an OffsetIndex says of it
        assert [line for line in lake.taken() if "page" in line] == ["id[0] page 1-4", "id[3] page 0-2"]
        assert file.metrics.row_groups_proven == 2
        assert file.metrics.rows_returned == 321
        assert file.metrics.rows_scanned == 140


async def test_columns_come_late_of_row_groups_that_are_filtered(lake: Lake) -> None:
    where = col("id") >= 150
    for limits in (asyncpq.LimitOptions(), asyncpq.LimitOptions(unit_bytes=1, in_flight_bytes=1)):
        async with lake.session(late="always", limits=limits) as session:
            file = await session.open_file(URL)
            for limit in (None, 0, 1, 60, 200):
                wanted = by_pyarrow(DATA, where).select(["name", "money"]).slice(0, limit)
                assert values(await file.read(["name", "money"], where, limit=limit)) == values(wanted)


async def test_a_second_round_is_for_row_groups_that_are_filtered(lake: Lake) -> None:
    async with lake.session(late="auto") as session:
        file = await session.open_file(URL)
        assert (await file.plan(["name"], col("id") >= 150)).late is True
        assert (await file.plan(["name"], col("id") >= 200)).late is False


@pytest.mark.parametrize(
    "where",
    [
        col("real") >= 0,  # perhaps NaN
        col("name") != "name",  # nothing: this one is proven
        col("some") >= 0,  # nulls
        col("some").is_valid(),
        col("struct.a") >= 0,  # nulls of its parent
        col("id") <= col("id"),
    ],
)
async def test_what_proves_nothing_is_read(lake: Lake, where: Expression) -> None:
    async with lake.session() as session:
        file = await session.open_file(URL)
        lake.taken()
        assert await file.count(where) == by_pyarrow(DATA, where).num_rows
        proven = "name" in str(where)
        assert (lake.taken() == []) is proven
        assert file.metrics.row_groups_proven == (4 if proven else 1 if "some" in str(where) else 0)


async def test_statistics_without_null_counts_or_of_old_kinds_prove_nothing(lake: Lake) -> None:
    unknown, deprecated = made(), made()
    for group in range(4):
        unknown.statistics(0, group).put(3, None)
        statistics = deprecated.statistics(0, group)
        for new, old in ((5, 1), (6, 2)):
            statistics.put(old, statistics.value(new))
            statistics.put(new, None)
    deprecated.footer.put(7, None)
    for file, groups in ((unknown, 2), (deprecated, 2)):
        async with lake.session(file.data()) as session:
            opened = await session.open_file(URL)
            with asyncpq.measure() as cost:
                assert await opened.count(col("id") >= 200) == 200
            assert cost.row_groups_proven == 0
            assert cost.row_groups_read in (0, groups)
            cost = await cost_of(opened.read(["name"], col("id") >= 200))
            assert (cost.row_groups_proven, cost.row_groups_read) == (0, groups)


async def test_without_trust_nothing_is_proven(lake: Lake) -> None:
    async with lake.session(read=asyncpq.ReadOptions(trust_statistics=False)) as session:
        file = await session.open_file(URL)
        assert await file.count(col("id") >= 100) == 300
        assert file.metrics.row_groups_proven == 0
        assert file.metrics.rows_scanned == 400


async def test_explain_names_proven_row_groups(lake: Lake) -> None:
    async with lake.session() as session:
        file = await session.open_file(URL)
        plan = await file.plan(["name"], col("id") >= 150)
        assert "row groups of which all rows match, by statistics: 2, not filtered" in plan.explain()
        assert plan.pruning.row_groups_proven == 2
        assert "all rows match" not in (await file.plan(["name"], col("id") == 150)).explain()
