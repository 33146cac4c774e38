"""Inspections, held to pyarrow's reading of the same footers and to the requests that they may take."""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
import random
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.parquet.statistics import chunk_bounds, order_of
from asyncpq.reports.documents import Inspection
from asyncpq.reports.inspection import sorted_as, value_text
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import metadata_of
from tests.parquet_samples import DATA

needs_corpus = pytest.mark.skipif(not DATA.is_dir(), reason="the corpus is not there")
ROWS = 4000
URL = "s3://bucket/key.parquet"


def table(rows: int = ROWS) -> pa.Table:
    chosen = random.Random(7)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "down": pa.array(range(rows, 0, -1), pa.int32()),
            "key": [f"key-{chosen.randrange(10**6):06}" for _ in range(rows)],
            "same": ["x"] * rows,
            "void": pa.nulls(rows, pa.int32()),
            "list": [[row, row + 1] for row in range(rows)],
            "point": [{"x": row / 2, "y": {"z": str(row)}} for row in range(rows)],
        }
    )


def written(data: pa.Table, **options: Any) -> bytes:
    return parquet_bytes(data, **{"row_group_size": 1000, "write_page_index": True, "data_page_size": 1000, **options})


async def inspected(data: bytes, *, pages: bool = True, tail_bytes: int = 640 * 1024) -> Inspection:
    async with ObjectServer() as server:
        server.put("bucket/key.parquet", data)
        requests = asyncpq.RequestOptions(tail_bytes=tail_bytes)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            file = await session.open_file(URL)
            document = (await file.inspect(pages=pages)).to_dict()
            assert file.metrics.requests == document["requests"]
    msgspec.convert(document, Inspection, strict=True)  # it has the shape that it says
    assert json.loads(json.dumps(document)) == document
    return document


async def test_it_says_what_the_footer_says() -> None:
    data = written(table())
    document = await inspected(data)
    metadata = pq.read_metadata(io.BytesIO(data))
    assert document["size"] == len(data)
    assert document["rows"] == metadata.num_rows
    assert document["writer"] == metadata.created_by
    assert document["footer"] == [len(data) - 8 - metadata.serialized_size, len(data)]
    assert [column["name"] for column in document["columns"]] == [
        metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)
    ]
    for ordinal, group in enumerate(document["row_groups"]):
        known = metadata.row_group(ordinal)
        assert (group["ordinal"], group["rows"]) == (ordinal, known.num_rows)
        for leaf, chunk in enumerate(group["chunks"]):
            there = known.column(leaf)
            assert chunk["bytes"][1] - chunk["bytes"][0] == there.total_compressed_size
            assert chunk["uncompressed_bytes"] == there.total_uncompressed_size
            assert (chunk["codec"], chunk["values"]) == (there.compression, there.num_values)
            assert (chunk["dictionary"] is not None) == there.has_dictionary_page
            assert chunk["nulls"] == there.statistics.null_count
    columns = {column["name"]: column for column in document["columns"]}
    assert {name: column["arrow_type"] for name, column in columns.items()} == {
        "id": "int64",
        "down": "int32",
        "key": "string",
        "same": "string",
        "void": "int32",
        "list.list.element": "int64",
        "point.x": "double",
        "point.y.z": "string",
    }
    assert (columns["id"]["min"], columns["id"]["max"], columns["void"]["nulls"]) == ("0", str(ROWS - 1), ROWS)
    assert columns["list.list.element"]["repeated"]
    assert not columns["id"]["repeated"]


async def test_it_shows_the_order_that_statistics_show() -> None:
    document = await inspected(written(table()))
    shown = {column["name"]: column["sorted"] for column in document["columns"]}
    assert (shown["id"], shown["down"], shown["point.x"]) == ("ascending", "descending", "ascending")
    assert shown["key"] is shown["same"] is shown["void"] is shown["list.list.element"] is None
    assert document["sorted_by"] == ["id", "down", "point.x"]


async def test_declared_columns_come_first() -> None:
    order = pq.SortingColumn(1, descending=True)
    document = await inspected(written(table(), sorting_columns=[order]))
    assert document["sorted_by"][0] == "down"


async def test_a_declared_order_is_no_order() -> None:
    document = await inspected(written(table(), sorting_columns=[pq.SortingColumn(2)]))
    assert "key" not in document["sorted_by"]


async def test_pages_of_a_row_group_without_order_show_that_there_is_none() -> None:
    """Each row group's bounds follow the one's before; within a row group the rows are in random order."""
    ids = [row ^ 511 if row & 64 else row for row in range(4096)]
    data = written(pa.table({"id": ids}), row_group_size=1024, max_rows_per_page=64, use_dictionary=False)
    assert (await inspected(data))["sorted_by"] == []
    assert (await inspected(data, pages=False))["sorted_by"] == ["id"]


async def test_all_page_indexes_come_in_one_request() -> None:
    data = written(table())
    document = await inspected(data, tail_bytes=1000)
    assert document["requests"] == 1
    for group in document["row_groups"]:
        for chunk in group["chunks"]:
            pages = chunk["pages"]
            assert pages is not None
            assert chunk["offset_index"] is not None
            assert pages["starts"][-1] + pages["sizes"][-1] == chunk["bytes"][1]
            assert chunk["dictionary"] == (
                [chunk["bytes"][0], pages["starts"][0]] if chunk["bytes"][0] < pages["starts"][0] else None
            )


async def test_without_pages_nothing_is_fetched() -> None:
    document = await inspected(written(table()), pages=False, tail_bytes=1000)
    assert (document["requests"], document["columns"][0]["pages"]) == (0, None)
    assert document["columns"][0]["offset_indexes"] == 4


async def test_bloom_filters_have_their_bytes() -> None:
    document = await inspected(written(table(), bloom_filter_options={"key": {"ndv": 1000, "fpp": 0.01}}))
    spans = [group["chunks"][2]["bloom_filter"] for group in document["row_groups"]]
    assert all(span is not None and 1000 < span[1] - span[0] < 4000 for span in spans)
    assert [column["bloom_filters"] for column in document["columns"]].count(4) == 1


def with_damage(data: bytes, what: str) -> bytes:
    chunk = metadata_of(data).row_groups[1].chunk(0)
    start = chunk.offset_index_offset if what == "OffsetIndex" else chunk.column_index_offset
    assert start is not None
    return data[:start] + b"\xff" * 8 + data[start + 8 :]


@pytest.mark.parametrize("what", ["OffsetIndex", "ColumnIndex"])
async def test_a_damaged_index_is_absent_and_said_so(what: str) -> None:
    document = await inspected(with_damage(written(table()), what))
    chunk = document["row_groups"][1]["chunks"][0]
    assert chunk["column_index"] is None
    assert (chunk["offset_index"] is None) == (chunk["pages"] is None) == (what == "OffsetIndex")
    assert document["columns"][0]["column_indexes"] == 3
    (reason,) = document["fallbacks"]
    assert reason.startswith("id: ")
    assert what in reason


@needs_corpus
async def test_encrypted_columns_have_their_sizes() -> None:
    path = DATA / "encrypt_columns_plaintext_footer.parquet.encrypted"
    async with asyncpq.Session() as session, await session.open_file(path) as file:
        document = await file.inspect()
    named = {reason.partition(":")[0] for reason in document["fallbacks"]}
    assert named == {"double_field", "float_field"}
    assert all(column["compressed_bytes"] > 0 for column in document["columns"])


async def test_a_new_version_is_inspected() -> None:
    async with ObjectServer() as server:
        server.put("bucket/key.parquet", written(table()))
        requests = asyncpq.RequestOptions(tail_bytes=1000)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            file = await session.open_file(URL)
            server.put("bucket/key.parquet", written(table(2000)))
            document = await file.inspect()
            assert (document["rows"], file.num_rows) == (2000, 2000)


async def test_an_empty_file() -> None:
    document = await inspected(written(table(0)))
    assert (document["rows"], len(document["row_groups"]), document["sorted_by"]) == (0, 1, [])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("shape", "rows", "row_group", "page_rows"),
    [("wide", 4, 4, 4), ("groups", 1000, 1, 1), pytest.param("pages", 100_000, 100_000, 1, marks=pytest.mark.slow)],
)
async def test_large_files(tmp_path: Path, shape: str, rows: int, row_group: int, page_rows: int) -> None:
    """10,000 columns, 1,000 row groups, 100,000 pages."""
    columns = 10_000 if shape == "wide" else 2
    ids = pa.array(range(rows), pa.int32())
    path = tmp_path / "large.parquet"
    pq.write_table(
        pa.table([ids] * columns, [f"c{number}" for number in range(columns)]),
        path,
        row_group_size=row_group,
        max_rows_per_page=page_rows,
        write_batch_size=page_rows,
        use_dictionary=False,
        write_page_index=True,
        compression="none",
    )
    async with asyncpq.Session() as session, await session.open_file(path) as file:
        document = await file.inspect()
    assert document["requests"] <= 2
    assert document["columns"][0]["pages"] == -(-rows // page_rows)
    assert len(document["row_groups"]) == -(-rows // row_group)
    if shape != "wide":
        assert document["sorted_by"] == ["c0", "c1"]


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=2, max_size=6))
def test_sorted_rows_are_shown_as_sorted_and_others_never(zones: list[list[int]]) -> None:
    bounds = [(min(zone), max(zone), len(zone)) for zone in zones]
    values = [value for zone in zones for value in zone]
    found = sorted_as(iter(bounds))
    if found is not None:  # then each zone is above (or below) the one before
        step = 1 if found == "ascending" else -1
        assert [value for zone in zones for value in sorted(zone)[::step]] == sorted(values)[::step]
    ordered = sorted(values)
    cut = [ordered[start : start + 3] for start in range(0, len(ordered), 3)]
    if len(cut) > 1 and len(set(values)) > 1:
        assert sorted_as([(zone[0], zone[-1], 1) for zone in cut]) == "ascending"
        assert sorted_as([(zone[0], zone[-1], 1) for zone in cut[::-1]]) == "descending"


def test_truncated_bounds_do_not_hide_an_order() -> None:
    zones: list[tuple[Any, Any, int]] = [(b"aaa", b"ab", 1), (b"aaz", b"ac", 1), (b"ad", b"ae", 1)]
    assert sorted_as(zones) == "ascending"  # "ab" may stand for "aa..."
    assert sorted_as([(b"a", b"c", 1), (b"b", b"d", 1), (b"e", b"f", 1)]) == "ascending"
    assert sorted_as([(b"a", b"zz", 1), (b"b", b"y", 1)]) is None


def test_the_blocking_form(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(written(table()))
    with asyncpq.blocking.open_file(path) as file:
        assert file.inspect()["rows"] == ROWS


@pytest.mark.heavy
async def test_a_lookup_loads_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(written(table()))
    code = (
        "import asyncpq.blocking, sys\n"
        f"with asyncpq.blocking.open_file({str(path)!r}) as file:\n"
        "    file.lookup({'id': 3}); file.plan()\n"
        "assert not [name for name in sys.modules if name.startswith('asyncpq.reports')]\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


NOON = dt.datetime(2026, 11, 24, 12, 30, 5, 120_000)


def texts(values: list[Any], type_: pa.DataType) -> tuple[str, str]:
    metadata = metadata_of(parquet_bytes(pa.table({"c": pa.array(values, type_)})))
    leaf, group = metadata.schema.leaves[0], metadata.row_groups[0]
    assert metadata.column_orders is not None
    order = order_of(leaf, metadata.column_orders[0])
    bounds, _ = chunk_bounds(group.chunk(0), leaf, order, metadata.writer_faults, True, group.num_rows)
    return value_text(bounds.min, leaf), value_text(bounds.max, leaf)


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (True, pa.bool_(), "true"),
        (-5, pa.int8(), "-5"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (0.25, pa.float32(), "0.25"),
        (Decimal("-12.340"), pa.decimal128(9, 3), "-12.340"),
        (Decimal("0.00000001"), pa.decimal128(30, 8), "0.00000001"),
        (dt.date(1969, 12, 31), pa.date32(), "1969-12-31"),
        (dt.time(1, 2, 3, 450_000), pa.time64("us"), "01:02:03.45"),
        (NOON, pa.timestamp("ms"), "2026-11-24T12:30:05.12"),
        (NOON.replace(microsecond=0), pa.timestamp("us", "UTC"), "2026-11-24T12:30:05Z"),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), pa.timestamp("ns"), "1969-12-31T23:59:59.999999"),
        ("schön", pa.string(), "schön"),
        ("x" * 90, pa.string(), "x" * 79 + "…"),
        (b"\x00\xff", pa.binary(), "0x00ff"),
        (uuid.UUID(int=7).bytes, pa.uuid(), "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_each_type(value: Any, type_: pa.DataType, text: str) -> None:
    assert texts([value], type_) == (text, text)


def test_days_that_no_calendar_has_are_numbers() -> None:
    assert texts([2**31 - 1, -(2**31)], pa.date32()) == (str(-(2**31)), str(2**31 - 1))
    assert texts([2**62], pa.timestamp("ms"))[0] == str(2**62)
