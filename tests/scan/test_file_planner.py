"""A predicate that no row can meet fetches nothing but the footer; what is wrong with it is still said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import AccessPlan, col
from asyncpq.errors import ColumnNotFoundError, ObjectChangedError, PredicateTypeError
from asyncpq.expressions import Expression
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import EditedFile
from tests.reads import by_pyarrow, values

pytestmark = pytest.mark.io

URL = "s3://lake/file.parquet"
TABLE = pa.table(
    {
        "a": pa.array([row if row % 7 else None for row in range(400)], pa.int64()),
        "b": [f"name {row:03d}" for row in range(400)],
        "x": pa.array([row / 10 for row in range(400)], pa.float32()),
        "d": pa.array([Decimal(row) / 10 for row in range(400)], pa.decimal128(9, 2)),
    }
)
DATA = EditedFile.of(TABLE, row_group_size=100, rows_per_page=20, use_dictionary=False, compression="none").data()
CONTRADICTIONS = [
    (col("a") > 5) & (col("a") < 3),
    (col("a") == 1) & col("a").is_in([2, 3]),
    col("a").is_null() & (col("a") > 1),
    (col("a") == 50) & (col("a") != 50) & (col("b") == "name 050"),
    ~((col("a") <= 50) | ~col("a").is_in([3, 7])),
    ((col("b") == "x") & (col("b") == "y")) | (col("b").starts_with("n") & (col("b") < "m")),
    (col("x") > 1.5) & (col("x") < 1),
]


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as server:
        server.put("lake/file.parquet", DATA)
        yield server


def session(server: ObjectServer) -> asyncpq.Session:
    """One that fetches the footer alone when it opens a file."""
    footer = int.from_bytes(DATA[-8:-4], "little") + 8
    return asyncpq.Session(server.storage_options, requests=asyncpq.RequestOptions(tail_bytes=footer))


@pytest.mark.parametrize("where", CONTRADICTIONS, ids=str)
async def test_nothing_is_fetched(server: ObjectServer, where: Expression) -> None:
    async with session(server) as opened:
        file = await opened.open_file(URL)
        server.log.clear()
        async with file.scan(where=where) as scan:
            assert [batch async for batch in scan] == []
            assert scan.schema == TABLE.schema
        assert (await file.read(["b"], where)).num_rows == 0
        assert await file.count(where) == 0
        plan = await file.plan(where=where)
        assert plan.pruning.row_groups_kept == 0
        assert plan.where == f"{where} (no row can meet it)"
        assert server.log == []


async def test_a_branch_that_no_row_can_meet_is_not_asked_for(server: ObjectServer) -> None:
    where = (col("a") == 51) | ((col("b") == "x") & (col("b") == "y"))
    async with session(server) as opened:
        file = await opened.open_file(URL)
        plan = await file.plan(["a"], where)
        assert {name for request in plan.requests for name in request.columns} == {"a"}
        assert values(await file.read(None, where)) == values(by_pyarrow(DATA, where))


@pytest.mark.parametrize(
    "where",
    [
        (col("a") == 51) & (col("a") > 50) & (col("a") < 52),
        (col("a") > 50) & ~col("a").is_null() & (col("b") < "name 060"),
        # 0.1 is another number in single precision, to which is_in casts it and > does not
        col("x").is_in([0.1]) & (col("x") > 0.1),
        # and a decimal only once it is a float, as which it is compared with one
        (col("d") == Decimal("0.1")) & (col("d") >= 0.1),
    ],
    ids=str,
)
async def test_what_only_looks_alike_is_read(server: ObjectServer, where: Expression) -> None:
    async with session(server) as opened:
        table = await (await opened.open_file(URL)).read(None, where)
        assert table.num_rows > 0
        assert values(table) == values(by_pyarrow(DATA, where))


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ((col("a") > 5) & (col("a") < 3) & (col("zzz") == 1), ColumnNotFoundError),
        ((col("a") > 5) & (col("a") < 3) & (col("b") == 1), PredicateTypeError),
        ((col("a") == "x") & (col("a") == "y"), PredicateTypeError),
        ((col("a") == 1) & (col("a") == 2) & col("a").starts_with("x"), PredicateTypeError),
    ],
)
async def test_errors_are_raised_all_the_same(
    server: ObjectServer, where: Expression, error: type[asyncpq.AsyncpqError]
) -> None:
    async with session(server) as opened:
        file = await opened.open_file(URL)
        with pytest.raises(error) as caught:
            await file.count(where)
        assert caught.value.url == URL


@pytest.mark.parametrize(
    ("access", "is_positional"),
    [(AccessPlan.all(), False), (AccessPlan.row_ranges([(3, 5)]), True), (AccessPlan.row_groups([0]), True)],
    ids=str,
)
async def test_rows_by_number_are_of_the_version_that_is_open(
    server: ObjectServer, access: AccessPlan, is_positional: bool
) -> None:
    """Without an ETag, the next read looks at the object again."""
    server.faults = lambda request: Fault(headers={"ETag": "", "Last-Modified": ""})
    async with asyncpq.Session(cache_policy=asyncpq.etag(0)) as opened:
        file = await opened.open_file(f"{server.endpoint}/lake/file.parquet")
        assert await file.count(access=access) == access.resolve([100] * 4).num_rows
        server.put("lake/file.parquet", parquet_bytes(TABLE.slice(0, 50)))
        if is_positional:
            with pytest.raises(ObjectChangedError, match="another size or time"):
                await file.read(access=access)
        assert (await file.read(access=None if is_positional else access)).num_rows == 50
