"""The model of a lookup's cost, held to lookups of files of many layouts."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.metrics import ReadMetrics
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.reports.inspection import load_layout
from asyncpq.reports.lint import lint_version
from asyncpq.reports.lookup_cost import (
    KEYS,
    PAGE_BYTES,
    PAGE_ROWS,
    ChunkShape,
    GroupShape,
    KeyZones,
    LookupCost,
    Shape,
    Zone,
    middle,
    page_count,
    put_together,
    weakness,
    with_pages,
    with_plain_pages,
    with_row_groups,
    with_smaller_pages,
    zones_of_values,
)
from asyncpq.testing import ObjectServer
from tests.reports.lookups import REQUESTS, encoded, measured, trips

LAYOUTS: dict[str, dict[str, Any]] = {
    "as advised": {},
    "no page index": {"write_page_index": False},
    "one page a chunk": {"max_rows_per_page": 100_000, "data_page_size": 100 << 20},
    "dictionaries": {"use_dictionary": True},
    "tiny row groups": {"row_group_size": 1000},
    "uncompressed": {"compression": "none"},
    "no statistics": {"write_statistics": ["amount"]},
    "Bloom filters": {"bloom_filter_options": {"user": {"ndv": 100_000, "fpp": 0.01}}, "row_group_size": 10_000},
    "large Bloom filters, no pages": {
        "bloom_filter_options": {"user": {"ndv": 100_000, "fpp": 0.01}},
        "write_page_index": False,
    },
}


async def predicted(data: bytes, column: str) -> LookupCost:
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            file = await session.open_file("s3://bucket/file.parquet")
            operation = file._source.runtime.operation("lint", file.url)
            linted = await lint_version(file._source, file._version, operation, [column])
            return linted.subjects[column].before


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("layout", "column"),
    [
        pytest.param(layout, column, marks=[pytest.mark.slow] * (number % 2))
        for number, (column, layout) in enumerate(itertools.product(["id", "user"], LAYOUTS))
    ],
)
async def test_the_cost_is_what_lookups_cost(layout: str, column: str) -> None:
    data = encoded(trips(), **LAYOUTS[layout])
    cost, real = await predicted(data, column), await measured(data, column, trips())
    assert cost.requests == pytest.approx(real.requests, rel=0.1, abs=0.3)
    assert cost.num_bytes == pytest.approx(real.num_bytes, rel=0.1)


@pytest.mark.heavy
async def test_random_layouts() -> None:
    chosen = random.Random(11)
    for _ in range(6):
        order = chosen.choice(["id", "user", "kind"])
        table = trips().slice(0, chosen.choice([20_000, 100_000])).sort_by(order)
        data = encoded(
            table,
            row_group_size=chosen.choice([3000, 20_000, 100_000]),
            max_rows_per_page=chosen.choice([500, 8192, 50_000]),
            write_page_index=chosen.random() < 0.7,
            use_dictionary=chosen.choice([True, False, ["user"]]),
            compression=chosen.choice(["snappy", "none", "zstd"]),
        )
        cost, real = await predicted(data, "user"), await measured(data, "user", table)
        assert cost.num_bytes == pytest.approx(real.num_bytes, rel=0.2)
        assert cost.requests == pytest.approx(real.requests, rel=0.2, abs=0.55)


def test_samples_are_evenly_distributed() -> None:
    zones = [Zone(number * 10, number * 10 + 10, number, number, True, number) for number in range(60)]
    samples = KeyZones(zones).samples()
    assert len(samples) == KEYS
    assert [row for _, row in samples] == [20 + 40 * number for number in range(KEYS)]
    assert all(key == row // 10 for key, row in samples)


def test_zones_without_bounds_may_hold_any_key_and_zones_of_nulls_none() -> None:
    keys = KeyZones([Zone(0, 5, 1, 3), Zone(5, 9, None, None), Zone(9, 12, None, None, known=False)])
    assert keys.may_hold(2, 0, 5)
    assert not keys.may_hold(4, 0, 9)
    assert not keys.may_hold(2, 5, 9)
    assert keys.may_hold(99, 8, 10)
    assert keys.may_hold(None, 0, 5)


def test_differences() -> None:
    assert LookupCost(3, 10, 0.5) - LookupCost(1, 4, 0.25) == LookupCost(2, 6, 0.25)


def test_a_table_of_one_row() -> None:
    assert KeyZones([]).samples() == []
    assert pa.table({"a": [1]}).num_rows == 1


def shape(groups: int = 3, rows: int = 20_000, leaves: int = 2, *, paged: bool = True) -> Shape:
    """Chunks of 10,000 bytes, a dictionary of 1,000 bytes and three pages; indexes and footer behind them."""
    made, at = [], 4
    for _ in range(groups):
        chunks = []
        for _ in range(leaves):
            offsets = OffsetIndex((at + 1000, at + 4000, at + 7000), (3000, 3000, 3000), (0, 8000, 16_000))
            chunk = ChunkShape(at, at + 10_000, dictionary_bytes=1000, plain_bytes=20_000)
            if paged:
                chunk = ChunkShape(at, at + 10_000, offsets, (0, 1), (1, 2), None, 1000, 20_000)
            chunks.append(chunk)
            at += 10_000
        made.append(GroupShape(rows, tuple(chunks)))
    return Shape(at + 5000, at, tuple(made))


def test_pages_are_cut_at_the_rows_where_writers_cut_them() -> None:
    there = with_pages(shape(paged=False), lambda group, leaf: page_count(20_000, 20_000), 0, 8)
    for group in there.groups:
        for chunk in group.chunks:
            assert chunk.offsets is not None
            assert chunk.offsets.first_rows == (0, PAGE_ROWS, 2 * PAGE_ROWS)
            assert chunk.offsets.offsets[0] == chunk.start + 1000
            assert chunk.offsets.offsets[-1] + chunk.offsets.sizes[-1] == chunk.stop
    spans = sorted(
        span
        for group in there.groups
        for chunk in group.chunks
        for span in (chunk.offset_index, chunk.column_index)
        if span is not None
    )
    assert len(spans) == 3 * (2 + 1)  # a ColumnIndex of the key alone
    assert all(low[1] <= high[0] for low, high in itertools.pairwise(spans))
    assert spans[-1][1] <= there.footer_start
    assert there.size - there.footer_start == 5000


def test_page_counts() -> None:
    assert (page_count(0, 0), page_count(1, 1), page_count(PAGE_ROWS + 1, 1)) == (0, 1, 2)
    assert page_count(10, 3 * PAGE_BYTES) == 3


def test_without_a_dictionary_pages_move_together() -> None:
    there = with_plain_pages(shape(), 0, lambda rows: rows)
    first, second = there.groups[0].chunks
    assert first.offsets is not None
    assert (first.offsets.offsets, first.offsets.sizes) == ((4, 8004, 16_004), (8000, 8000, 4000))
    assert (first.dictionary_bytes, second.start, first.stop) == (0, first.stop, 4 + 20_000)
    assert there.size - shape().size == 3 * 10_000


def test_smaller_pages_move_together() -> None:
    there = with_smaller_pages(shape(), 1, 0.5)
    assert [chunk.stop - chunk.start for chunk in there.groups[0].chunks] == [10_000, 1000 + 4500]
    assert there.size == shape().size - 3 * 4500


@given(st.integers(1, 5), st.integers(200, 60_000), st.booleans())
def test_row_groups_keep_rows_and_bytes(groups: int, rows: int, paged: bool) -> None:
    old = shape(groups, paged=paged)
    new = with_row_groups(old, rows, 0)
    assert sum(group.rows for group in new.groups) == sum(group.rows for group in old.groups)
    assert all(group.rows <= rows for group in new.groups)
    size = sum(chunk.stop - chunk.start for group in new.groups for chunk in group.chunks)
    assert abs(size - groups * 20_000) <= len(new.groups) * 2
    assert all((chunk.offsets is not None) == paged for group in new.groups for chunk in group.chunks)


def test_files_are_put_together() -> None:
    zones = KeyZones([Zone(0, 60_000, 1, 9, True, 5)])
    there, keys = put_together(shape(), zones, 4)
    assert sum(group.rows for group in there.groups) == 240_000
    assert [zone.start for zone in keys.zones] == [0, 60_000, 120_000, 180_000]


@pytest.mark.parametrize(
    ("low", "high", "between"),
    [(1, 9, 5), (0.0, 1.0, 0.5), (False, True, False), (b"a", b"c", b"b\x00"), (b"same", b"same", b"same")],
)
def test_middles(low: object, high: object, between: object) -> None:
    assert middle(low, high) == between


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_middles_of_bytes_are_between(one: bytes, other: bytes) -> None:
    low, high = sorted([one, other])
    assert low <= middle(low, high)
    assert middle(low, high).rstrip(b"\0") <= high.ljust(6, b"\0")


@pytest.mark.parametrize(
    "values",
    [
        pa.chunked_array([pa.array([3, 1, None, 2] * 1000)]),
        pa.chunked_array([["b", "a"], [None] * 3000]),
        pa.chunked_array([[dt.datetime(2026, 1, day) for day in range(1, 20)]]),
        pa.chunked_array([], pa.int64()),
    ],
)
def test_zones_of_values_cover_the_rows(values: pa.ChunkedArray) -> None:
    zones = zones_of_values(values, [len(values) // 2, len(values) - len(values) // 2]).zones
    assert not any(zone.start < len(values) // 2 < zone.stop for zone in zones)
    assert sum(zone.stop - zone.start for zone in zones) == len(values)
    for zone in zones:
        some = values.slice(zone.start, zone.stop - zone.start)
        assert (zone.low is None) == (some.null_count == len(some))
        if zone.low is not None:
            assert zone.low <= zone.key <= zone.high


ROWS = 40_000
OPTIONS: dict[str, Any] = {"row_group_size": 5_000, "write_page_index": True, "use_dictionary": False}


@pytest.mark.parametrize(
    ("options", "equality", "expected"),
    [
        ({}, True, "no-bloom-filter"),
        ({}, False, "random-order"),  # Bloom filters do not answer ranges
        ({"row_group_size": 20_000}, True, "random-order"),  # of two row groups they rule out one at most
        ({"bloom_filter_options": {"key": True}}, True, "random-order"),
        ({"write_statistics": ["id"]}, True, "no-statistics"),
    ],
)
async def test_keys_that_are_spread_over_a_file_in_order(
    options: dict[str, Any], equality: bool, expected: str, tmp_path: Path
) -> None:
    table = pa.table({"id": range(ROWS), "key": [row * 7919 % ROWS for row in range(ROWS)]})
    assert await _weakness(table, tmp_path, options, equality=equality) == expected


async def test_a_file_in_no_order(tmp_path: Path) -> None:
    spread: Callable[[int], int] = lambda row: row * 7919 % ROWS  # noqa: E731
    table = pa.table({"id": [spread(row + 5) for row in range(ROWS)], "key": [spread(row) for row in range(ROWS)]})
    assert await _weakness(table, tmp_path, {}, equality=True) == "random-order"


async def _weakness(table: pa.Table, folder: Path, options: dict[str, Any], *, equality: bool) -> str:
    pq.write_table(table, folder / "a.parquet", **{**OPTIONS, **options})
    async with asyncpq.Session() as session, await session.open_file(folder / "a.parquet") as file:
        version = file._version
        layout = await load_layout(file._source, version, ReadMetrics(), pages=True)
        return weakness(layout, version.metadata.schema.leaves[1], equality=equality)
