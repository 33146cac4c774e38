"""examples/postgres_bounds.py and examples/key_value_index.py: indexes of one's own.

Rows equal pyarrow's for random predicates, over files that they know, that were replaced since, and that they do not
know; and files are ruled out unopened, down to rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import valkey.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from asyncpq.indexing import FileIndex
from examples.key_value_index import ValkeyStore, ValueRows
from examples.postgres_bounds import PostgresBounds
from tests.predicates import INSIDE, expressions, model, oracle, uses
from tests.servers import ADMIN_PASSWORD, PostgresServer, ValkeyServer

FILES = 6
KINDS = {"id": "int64", "small": "int8", "name": "string"}
predicates = expressions(KINDS, foreign=False).filter(lambda expr: not uses(expr, *INSIDE))
NAMES = ["", "a", "ab", "abc", "b", "é", None]
IDS = [*range(-4, 7), -(2**63), 2**63 - 1, 2**53 + 1, None]
FEW = settings(max_examples=max(10, settings().max_examples * 2 // 5))  # each reads a lake


class DictStore:
    """The smallest store."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.calls = 0

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self.calls += 1
        return [self.values.get(key) for key in keys]

    async def put_many(self, values: Mapping[bytes, bytes]) -> None:
        self.values.update(values)


def write(path: Path, number: int) -> None:
    """30 rows in 3 row groups; the values of some are near each other, of others anywhere."""
    draw = random.Random(number)
    ids: list[Any] = [draw.choice(IDS) for _ in range(30)]
    if number % 2:
        ids = sorted(ids, key=lambda value: (value is None, value))
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([number % 7 - 3 if row % 5 else None for row in range(30)], pa.int8()),
            "name": pa.array([draw.choice(NAMES[number % 5 :]) for _ in range(30)], pa.string()),
        }
    )
    pq.write_table(table, path, row_group_size=10)


@asynccontextmanager
async def opened(folder: Path, index: FileIndex) -> AsyncIterator[asyncpq.Dataset]:
    async with asyncpq.Session() as session:
        yield await session.open_dataset(str(folder), index=index)


async def add_all(index: Any, folder: Path) -> None:
    async with asyncpq.Session() as session:
        await index.add(session, await (await session.open_dataset(str(folder))).files())


def change(folder: Path) -> None:
    """What the indexes do not learn of."""
    write(folder / "1.parquet", 101)
    write(folder / "4.parquet", 107)
    write(folder / "new.parquet", 102)
    (folder / "2.parquet").unlink()


def rows_of(folder: Path, where: Expression) -> list[dict[str, Any]]:
    """By pyarrow; where its casts cannot hold a literal, plain Python compares."""
    whole = ds.dataset(sorted(map(str, folder.iterdir()))).to_table()
    try:
        found: list[dict[str, Any]] = whole.filter(oracle(where)).to_pylist()
    except (pa.ArrowException, OverflowError):
        return [row for row in whole.to_pylist() if model(where, row)]
    return found


async def assert_equal(folder: Path, index: FileIndex, where: Expression) -> None:
    wanted = rows_of(folder, where)
    async with opened(folder, index) as dataset:
        assert (await dataset.read(where=where)).to_pylist() == wanted
        assert await dataset.count(where) == len(wanted)


def lake(folder: Path) -> Path:
    folder.mkdir()
    for number in range(FILES):
        write(folder / f"{number}.parquet", number)
    return folder


# -- bounds in PostgreSQL -------------------------------------------------------------------------


@asynccontextmanager
async def bounds(postgres: PostgresServer, table: str) -> AsyncIterator[PostgresBounds]:
    connection = await psycopg.AsyncConnection.connect(postgres.parameters("postgres"), autocommit=True)
    async with connection:
        yield PostgresBounds(connection, ["id", "small"], table)


@pytest.fixture(scope="module")
def bounded(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose files were taken in; then it changed."""
    folder = lake(tmp_path_factory.mktemp("bounded") / "lake")

    async def build() -> None:
        async with bounds(postgres, "changed") as index:
            await index.create()
            await add_all(index, folder)

    asyncio.run(build())
    change(folder)
    return folder


@FEW
@given(predicates)
def test_bounds_equal_pyarrow(postgres: PostgresServer, bounded: Path, where: Expression) -> None:
    async def run() -> None:
        async with bounds(postgres, "changed") as index:
            await assert_equal(bounded, index, where)

    asyncio.run(run())


async def test_bounds_rule_out_files_and_row_groups(postgres: PostgresServer, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    for number in range(FILES):
        ids = (
            [*range(number * 30, number * 30 + 20), *[None] * 10]
            if number == 3
            else range(number * 30, number * 30 + 30)
        )
        table = pa.table({"id": pa.array(ids, pa.int64()), "small": pa.array([1] * 30, pa.int8())})
        pq.write_table(table, folder / f"{number:02d}.parquet", row_group_size=10, write_statistics=False)
    async with bounds(postgres, "ruled_out") as index:
        await index.create()
        await add_all(index, folder)
        async with opened(folder, index) as dataset:
            with asyncpq.measure() as cost:
                assert (await dataset.lookup({"id": 157}))["id"].to_pylist() == [157]
            assert (cost.files_opened, cost.row_groups_total, cost.rows_scanned) == (1, 3, 10)
            with asyncpq.measure() as cost:
                assert await dataset.count((col("id") > 49) & (col("id") < 60.5)) == 11
            assert cost.files_opened == 2
            with asyncpq.measure() as cost:
                assert await dataset.count(col("id").is_null()) == 10
            assert (cost.files_opened, cost.row_groups_read) == (1, 1)
            assert await dataset.count((col("id") < 5) & (col("small") == 2)) == 0
            with asyncpq.measure() as cost:
                assert await dataset.count((col("id") < 5) & (col("id") > 6)) == 0
            assert cost.files_opened == 0
        write(folder / "00.parquet", 0)
        async with asyncpq.Session() as session:  # known again
            await index.add(session, [str(folder / "00.parquet")])
        await assert_equal(folder, index, col("id") == 3)


# -- rows in a key-value store --------------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DictStore]:
    """A lake, and a store with the rows of two of its columns; then the lake changed."""
    folder, store = lake(tmp_path_factory.mktemp("known") / "lake"), DictStore()
    for column in ("id", "name"):
        asyncio.run(add_all(ValueRows(store, column), folder))
    change(folder)
    again = ["1.parquet", "5.parquet"]

    async def add() -> None:
        async with asyncpq.Session() as session:
            await ValueRows(store, "id").add(session, [str(folder / name) for name in again])

    asyncio.run(add())
    return folder, store


@FEW
@given(predicates, st.sampled_from(["id", "name"]))
def test_rows_equal_pyarrow(known: tuple[Path, DictStore], where: Expression, column: str) -> None:
    folder, store = known
    asyncio.run(assert_equal(folder, ValueRows(store, column), where))


@FEW
@given(
    st.lists(st.sampled_from(IDS), min_size=1, max_size=3).map(lambda ids: col("id").is_in([*ids, 3]))
    | st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda names: col("name").is_in([*names, "a"]))
    | st.sampled_from([col("id") == 5.0, col("id") == 2**53, col("id").is_null(), col("name").is_null()]),
    st.sampled_from(["id", "name"]),
)
def test_single_values_equal_pyarrow(known: tuple[Path, DictStore], where: Expression, column: str) -> None:
    folder, store = known
    asyncio.run(assert_equal(folder, ValueRows(store, column), where))


async def test_a_valkey_store(tmp_path: Path) -> None:
    """One multi-get finds the rows; nothing else of the files is scanned."""
    folder = lake(tmp_path / "lake")
    for path in folder.iterdir():
        table = pq.read_table(path)
        number = int(path.stem)
        ids = pa.array([row * 37 % 30 * FILES + number for row in range(30)], pa.int64())  # in no order
        pq.write_table(table.set_column(0, "id", ids), path, row_group_size=10)
    (tmp_path / "server").mkdir()
    with ValkeyServer(tmp_path / "server", "--maxmemory-policy", "noeviction") as server:
        client = valkey.asyncio.Valkey(port=server.port, username="admin", password=ADMIN_PASSWORD)
        try:
            index = ValueRows(ValkeyStore(client), "id")
            await add_all(index, folder)
            async with opened(folder, index) as dataset:
                found = await dataset.lookup({"id": [100, 7, 100_000]})
                assert sorted(found["id"].to_pylist()) == [7, 100]
                assert (dataset.metrics.files_opened, dataset.metrics.rows_scanned) == (2, 2)
                with asyncpq.measure() as cost:
                    assert await dataset.count(col("id") == 100_000.5) == 0
                assert cost.files_opened == 0
                plan = await dataset.plan(where=col("id") == 7)
                assert "exactly" in plan.explain()
        finally:
            await client.aclose()
