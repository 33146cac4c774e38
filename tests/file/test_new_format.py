"""What Parquet gained in 2026, in files of the writers that have it (ground) and in files edited here."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import struct
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from tests.alp_pages import bits_of
from tests.parquet_files import BINARY, I32, LIST, STRUCT, EditedFile, Items, Struct
from tests.parquet_samples import CORPUS
from tests.reads import DISTRUSTING, ask, by_pyarrow

GROUND = CORPUS / "ground"
needs_ground = pytest.mark.skipif(
    not GROUND.is_dir(), reason=f"no files of newer writers at {GROUND}; set ASYNCPQ_CORPUS"
)
FILE = 19  # of the union LogicalType


async def _read(file: asyncpq.File) -> pa.Table:
    return await file.read()


def _opens_as_dataset(data: bytes) -> pa.Table:
    fsspec.filesystem("memory").pipe_file("/new_format/file.parquet", data)

    async def run() -> pa.Table:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset("memory://new_format/")
            return await dataset.read()

    return asyncio.run(run())


# -- annotations of groups --------------------------------------------------------------------------


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("element", [b"file", b"element"])  # the struct, and the structs in the list
@pytest.mark.parametrize(
    "annotation",
    [(10, STRUCT, Struct({FILE: (STRUCT, Struct())})), (10, STRUCT, Struct({77: (STRUCT, Struct())})), (6, I32, 99)],
    ids=["FILE", "unknown", "converted"],
)
def test_a_group_with_an_unknown_annotation_is_its_struct(
    store_schema: bool, element: bytes, annotation: tuple[int, int, Any]
) -> None:
    table = pa.table(
        {
            "id": pa.array(range(40)),
            "file": pa.array([{"uri": f"s3://b/{at}"} if at % 3 else None for at in range(40)]),
            "files": pa.array([[{"uri": "x"}] * (at % 3) for at in range(40)]),
        }
    )
    plain = EditedFile.of(table, store_schema=store_schema)
    names = [each.value(4) for each in plain.footer.value(2)]
    field, kind, value = annotation
    plain.footer.value(2)[names.index(element)].put(field, value, kind)
    data = plain.data()
    assert ask(data, _read).to_pylist() == table.to_pylist()
    assert _opens_as_dataset(data).to_pylist() == table.to_pylist()

    async def part(file: asyncpq.File) -> pa.Table:
        return await file.read(columns=["file.uri"], where=col("id") == 7)

    assert ask(data, part).to_pylist() == [{"file": {"uri": "s3://b/7"}}]


@pytest.mark.parametrize("store_schema", [False, True])
def test_a_repeated_group_that_is_called_a_list_too(store_schema: bool) -> None:
    """Tableau Hyper annotates both groups of a list, and pyarrow refuses the file."""
    table = pa.table(
        {
            "id": pa.array(range(40)),
            "few": pa.array([None if at % 5 == 0 else [at, None][: at % 3] for at in range(40)]),
            "deep": pa.array([[[at], []][: at % 3] for at in range(40)]),
        }
    )
    plain = EditedFile.of(table, store_schema=store_schema)
    groups = [each for each in plain.footer.value(2) if each.value(4) == b"list"]
    assert len(groups) == 3
    for group in groups:
        group.put(6, 3, I32)  # ConvertedType.LIST
        group.put(10, Struct({3: (STRUCT, Struct())}), STRUCT)
    data = plain.data()
    with pytest.raises(pa.ArrowInvalid, match="Non-repeated nodes in a LIST"):
        pq.read_table(pa.BufferReader(data))
    assert ask(data, _read).to_pylist() == table.to_pylist()
    assert _opens_as_dataset(data).to_pylist() == table.to_pylist()

    async def part(file: asyncpq.File) -> pa.Table:
        return await file.read(columns=["few.list.element"], where=col("id") == 7)

    assert ask(data, part).to_pylist() == [{"few": [7]}]


@needs_ground
def test_the_rust_crates_logical_type_file() -> None:
    data = (GROUND / "logical_file.parquet").read_bytes()
    table = ask(data, _read)
    assert table.num_rows == 600
    assert sum(row is None or row["uri"] is None for row in table["f"].to_pylist()) == 240
    assert table.schema.field("f").type.names == ["uri", "offset", "size", "inline"]
    assert _opens_as_dataset(data).equals(table)


# -- floats in total order, with counts of NaNs; no path_in_schema ----------------------------------


@pytest.mark.heavy
@needs_ground
@pytest.mark.parametrize("name", ["d", "f"])
def test_nan_bounds_in_total_order_prune_without_losing_rows(name: str) -> None:
    data = (GROUND / "nan_nopath.parquet").read_bytes()
    table = ask(data, _read)
    conditions = [
        col(name) > 100.0,
        col(name) < -1.0,
        col(name) == 0.0,
        col(name) != 0.0,
        col(name).is_in([math.nan, 1.0]),
        ~col(name).is_in([math.nan, -1.0]),
        ~(col(name) > 100.0),
        col(name).is_nan(),
        ~col(name).is_nan(),
    ]
    for condition in conditions:

        async def question(file: asyncpq.File, condition: Any = condition) -> pa.Table:
            return await file.read(where=condition)

        trusting, distrusting = ask(data, question), ask(data, question, read=DISTRUSTING)
        assert bits_of(trusting[name]) == bits_of(distrusting[name]), str(condition)
    assert pc.sum(pc.is_nan(table[name])).as_py() > 0

    async def planned(file: asyncpq.File) -> asyncpq.Plan:
        return await file.plan(where=col(name).is_nan())

    kept = ask(data, planned).pruning
    assert 0 < kept.row_groups_kept < kept.row_groups


@needs_ground
def test_chunks_without_path_in_schema_are_read() -> None:
    data = (GROUND / "nan_nopath.parquet").read_bytes()
    file = EditedFile(data)
    assert all(file.meta(at, group).value(3) is None for group in range(14) for at in range(4))
    assert ask(data, _read)["id"].to_pylist() == list(range(2601))


def test_path_in_schema_may_be_left_out() -> None:
    table = pa.table({"id": pa.array(range(40)), "s": [{"a": at} for at in range(40)]})
    file = EditedFile.of(table)
    for at in range(2):
        file.meta(at).put(3, None)
    data = file.data()
    assert ask(data, _read).equals(table)


# -- INT96 with an order ----------------------------------------------------------------------------


def _int96(value: dt.datetime) -> bytes:
    since = value - dt.datetime(1970, 1, 1)
    nanos = (since.seconds * 10**6 + since.microseconds) * 1000
    return struct.pack("<qi", nanos, since.days + 2_440_588)


def test_bounds_of_int96_prune_if_the_footer_says_that_they_are_chronological() -> None:
    rows = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=at) for at in range(60)]
    table = pa.table({"t": pa.array(rows, pa.timestamp("ns"))})
    file = EditedFile.of(table, row_group_size=20, use_deprecated_int96_timestamps=True, write_page_index=False)
    for group in range(3):
        statistics = file.statistics(0, group)
        statistics.put(6, _int96(rows[group * 20]), BINARY)
        statistics.put(5, _int96(rows[group * 20 + 19]), BINARY)
    for order, left in ((1, 3), (3, 1)):
        file.footer.put(7, Items(STRUCT, [Struct({order: (STRUCT, Struct())})]), LIST)

        async def question(opened: asyncpq.File) -> tuple[int, pa.Table]:
            where = col("t") == rows[25]
            plan = await opened.plan(where=where)
            return plan.pruning.row_groups_kept, await opened.read(where=where)

        groups, found = ask(file.data(), question)
        assert found["t"].to_pylist() == [rows[25]]
        assert groups == left


def test_the_rust_crates_bounds_of_int96_prune_groups_and_pages() -> None:
    data = (Path(__file__).resolve().parents[1] / "data" / "int96_timestamp_order.parquet").read_bytes()
    whole = pq.read_table(pa.BufferReader(data))
    first = dt.datetime(2024, 1, 1)
    assert whole.to_pydict() == {"t": [first + dt.timedelta(hours=at) for at in range(60)], "id": list(range(60))}
    for where, left in (
        (col("t") == first + dt.timedelta(hours=25), 10),
        (col("t") < first + dt.timedelta(hours=30), 30),
    ):

        async def question(opened: asyncpq.File, where: Any = where) -> tuple[int, pa.Table]:
            plan = await opened.plan(where=where)
            return plan.pruning.rows_kept, await opened.read(where=where)

        rows, found = ask(data, question)
        assert found.equals(by_pyarrow(data, where))
        assert rows == left
