"""The model of a lookup's cost, held to lookups of files of many layouts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.reports.lint import lint_version
from asyncpq.reports.lookup_cost import KEYS, KeyZones, LookupCost, Zone
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
