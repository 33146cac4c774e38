"""Literals that 32 bits do not hold, asked of float32 columns: ``isin`` rounds them first, comparisons do not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from tests.predicates import oracle

PREDICATES: dict[str, Expression] = {
    f"{name} {value}": expression
    for value in (0.1, 0.5, 1e-45, -0.1)
    for name, expression in {
        "is_in": col("x").is_in([value]),
        "is not in": ~col("x").is_in([value]),
        "is_in and more": col("x").is_in([value]) & (col("x") > value),
        "equals": col("x") == value,
        "differs": col("x") != value,
        "above": col("x") > value,
    }.items()
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("values", [[0.1] * 3, [0.1, 0.5], [1e-45, 1e-45]])
async def test_equals_pyarrow(tmp_path: Path, values: list[float], predicate: str) -> None:
    """All-rows proofs, statistics, bloom filters; then what a dataset has learnt."""
    table = pa.table({"x": pa.array(values, pa.float32())})
    filters = {"x": {"ndv": 10, "fpp": 0.01}}
    pq.write_table(table, tmp_path / "0.parquet", write_page_index=True, bloom_filter_options=filters)
    wanted = table.filter(oracle(PREDICATES[predicate])).num_rows
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "0.parquet")
        dataset = await session.open_dataset(tmp_path)
        for opened in (file, dataset, dataset):
            assert await opened.count(PREDICATES[predicate]) == wanted
            assert (await opened.read(where=PREDICATES[predicate])).num_rows == wanted
