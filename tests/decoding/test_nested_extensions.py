"""Extension types inside of lists, structs and maps, of which pyarrow makes no null and no empty array by itself."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StructType, UUIDType

import asyncpq
from asyncpq import col
from asyncpq.indexing import Bloom, Bounds, Keys, ValueSet
from tests.iceberg_tables import make_table
from tests.parquet_bytes import parquet_bytes
from tests.reads import ask, by_pyarrow

UUIDS = pa.array([uuid.UUID(int=n).bytes for n in range(4)], pa.uuid())
TEXTS = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[]", "1", "null"]))
FLAGS = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 1, 0], pa.int8()))
OFFSETS = pa.array([0, 1, 1, 4], pa.int32())
VALID = pa.array([False, True, False])


def struct_of(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values.slice(0, 3), pa.array([1, 2, 3])], ["a", "n"])


def fixed_size_lists() -> pa.Array:
    kind = pa.list_(pa.uuid(), 1)
    return pa.Array.from_buffers(kind, 3, [None], children=[UUIDS.slice(0, 3)])


NESTED = {
    "list<uuid>": pa.ListArray.from_arrays(OFFSETS, UUIDS, mask=VALID),
    "list<json>": pa.ListArray.from_arrays(OFFSETS, TEXTS),
    "list<bool8>": pa.ListArray.from_arrays(OFFSETS, FLAGS),
    "large_list<uuid>": pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), UUIDS),
    "fixed_size_list<uuid>": fixed_size_lists(),
    "struct<uuid>": struct_of(UUIDS),
    "map<json>": pa.MapArray.from_arrays(OFFSETS, pa.array(list("abcd")), TEXTS),
    "list<struct<uuid>>": pa.ListArray.from_arrays(OFFSETS, pa.StructArray.from_arrays([UUIDS], ["u"])),
    "struct<list<uuid>>": struct_of(pa.ListArray.from_arrays(OFFSETS, UUIDS)),
}


def table_of(name: str) -> pa.Table:
    return pa.table({"id": [1, 2, 3], "x": NESTED[name]})


def written(table: pa.Table) -> bytes:
    return parquet_bytes(table, row_group_size=2, write_page_index=True)


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.equals(wanted.schema)
    found.validate(full=True)
    assert found.equals(wanted)


async def all_verbs(file: asyncpq.File | asyncpq.Dataset, wanted: pa.Table) -> None:
    """Each verb, with all rows, some and none."""
    assert_same(await file.read(), wanted)
    for chosen in ([1, 3], [2], []):
        rows = wanted.filter(pa.array([one in chosen for one in wanted["id"].to_pylist()]))
        assert_same(await file.read(where=col("id").is_in(chosen)), rows)
        assert_same(await file.lookup({"id": chosen}), rows)
        assert await file.count(col("id").is_in(chosen) & col("x").is_valid()) == rows.num_rows - rows["x"].null_count
    keyed = await file.lookup({"id": [2, 7], "x.n" if "x.n" in _paths(wanted) else "id": [2, 7]}, with_keys=True)
    assert_same(keyed.drop_columns(["key_position"]), wanted.slice(1, 1))
    assert_same(await file.lookup({"id": 99}), wanted.slice(0, 0))
    async with file.scan(batch_size=1) as scan:
        batches = [batch async for batch in scan]
    assert_same(pa.Table.from_batches(batches, wanted.schema), wanted)


def _paths(table: pa.Table) -> list[str]:
    kind = table.schema.field("x").type
    return [f"x.{kind.field(at).name}" for at in range(kind.num_fields)] if isinstance(kind, pa.StructType) else []


@pytest.mark.parametrize("name", NESTED)
def test_a_file_gives_all_rows_some_and_none(name: str) -> None:
    data = written(table_of(name))

    async def question(file: asyncpq.File) -> None:
        wanted = by_pyarrow(data)
        await all_verbs(file, wanted)
        for rows in ([], [2], [2, 0, 0], [1, 2]):
            assert_same(await file.take(rows), wanted.take(pa.array(rows, pa.int64())))

    ask(data, question)


def open_folder(folder: Path, question: Callable[[asyncpq.Dataset], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with asyncpq.Session() as session, await session.open_dataset(str(folder), **options) as dataset:
            return await question(dataset)

    return asyncio.run(run())


@pytest.mark.parametrize("named", [False, True], ids=["permissive", "schema="])
@pytest.mark.parametrize("name", NESTED)
def test_files_that_lack_the_column(tmp_path: Path, name: str, named: bool) -> None:
    table = table_of(name)
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [4, 5]}), tmp_path / "b.parquet")
    schema = by_pyarrow(written(table)).schema
    without = pa.Table.from_arrays([pa.array([4, 5]), pa.nulls(2, schema.field("x").type)], schema=schema)
    wanted = pa.concat_tables([table.cast(schema), without])

    async def question(dataset: asyncpq.Dataset) -> None:
        await all_verbs(dataset, wanted)
        assert_same(await dataset.read(where=col("x").is_null()), wanted.filter(wanted["x"].is_null()))
        assert_same(await dataset.take([]), wanted.slice(0, 0))
        assert_same(await dataset.take([(str(tmp_path / "b.parquet"), 1)]), wanted.slice(4, 1))

    open_folder(tmp_path, question, **({"schema": schema} if named else {"schema_policy": "permissive"}))


def test_files_that_lack_a_part_of_a_struct(tmp_path: Path) -> None:
    inner = {"u": UUIDS.slice(0, 3), "l": NESTED["list<uuid>"], "n": pa.array([1, 2, 3])}
    whole = pa.StructArray.from_arrays(list(inner.values()), list(inner))
    pq.write_table(pa.table({"id": [1, 2, 3], "x": whole}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [4], "x": pa.array([{"n": 4}])}), tmp_path / "b.parquet")

    async def question(dataset: asyncpq.Dataset) -> None:
        kind = whole.type
        lacking = [pa.nulls(1, kind.field(at).type) for at in range(2)]
        later = pa.StructArray.from_arrays([*lacking, pa.array([4])], ["u", "l", "n"])
        wanted = pa.table({"id": [1, 2, 3, 4], "x": pa.concat_arrays([whole, later])})
        await all_verbs(dataset, wanted)
        assert (await dataset.read(["x.l"]))["x"].combine_chunks().field(0).null_count == 2

    open_folder(tmp_path, question, schema_policy="permissive")


def test_an_evolved_struct_of_an_iceberg_table(tmp_path: Path) -> None:
    before = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", StructType(NestedField(3, "n", LongType()))))
    table = make_table(tmp_path, before)
    table.append(pa.table({"id": [1, 2], "x": pa.array([{"n": 1}, None], pa.struct([("n", pa.int64())]))}))
    with table.update_schema() as update:
        update.add_column(("x", "u"), UUIDType())
        update.add_column(("x", "l"), ListType(10, UUIDType(), element_required=False))
        update.add_column("more", ListType(11, UUIDType(), element_required=False))

    async def run() -> None:
        async with asyncpq.Session() as session, await session.open_dataset(table) as dataset:
            found = await dataset.read()
            assert found["more"].null_count == 2
            assert found["x"].combine_chunks().flatten()[0].to_pylist() == [1, None]
            assert found["x"].combine_chunks().flatten()[2].null_count == 2
            assert (await dataset.lookup({"id": 7})).schema.equals(found.schema)
            assert (await dataset.take([])).schema.equals(found.schema)
            assert await dataset.count(col("x.u").is_null()) == 2
            assert await dataset.count(col("x.u") == uuid.UUID(int=1)) == 0

    asyncio.run(run())


@pytest.mark.parametrize("name", ["list<uuid>", "large_list<uuid>", "list<json>", "fixed_size_list<uuid>"])
def test_lists_of_extension_values_in_an_index(tmp_path: Path, name: str) -> None:
    pq.write_table(table_of(name), tmp_path / "a.parquet")
    pq.write_table(table_of(name).slice(2), tmp_path / "b.parquet")
    pq.write_table(pa.table({"id": [9]}), tmp_path / "c.parquet")
    stored = NESTED[name].flatten().storage.to_pylist()
    values = [uuid.UUID(bytes=value) if isinstance(value, bytes) else value for value in dict.fromkeys(stored)]
    lists = by_pyarrow(written(table_of(name)))["x"].combine_chunks()

    async def run() -> None:
        async with asyncpq.Session() as session:
            kinds = [Keys("x"), ValueSet("x"), Bloom("x"), Bounds()]
            await session.build_index(str(tmp_path), kinds, schema_policy="permissive")
            async with await session.open_dataset(str(tmp_path), view="snapshot") as dataset:
                for value in [*values, uuid.UUID(int=77) if "uuid" in name else "no"]:
                    key = value.bytes if isinstance(value, uuid.UUID) else value
                    rows = [at for at in range(3) if lists[at].is_valid and key in lists[at].values.storage.to_pylist()]
                    wanted = [at + 1 for at in rows] + [3] * (2 in rows)
                    assert (await dataset.read(["id"], col("x").has(value)))["id"].to_pylist() == wanted
                nulls = [at + 1 for at in range(3) if not lists[at].is_valid]
                assert (await dataset.read(["id"], col("x").is_null()))["id"].to_pylist() == [*nulls, 9]

    asyncio.run(run())
