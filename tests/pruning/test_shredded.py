"""Conditions on parts of shredded variants prune by the parts' own columns: the rows stay those of the filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from tests.example_counts import examples
from tests.parquet_files import EditedFile
from tests.reads import ask, rows_left
from tests.variants import MISSING, plain, shredded

A = col("v").variant_get("$.a", "int64")
PARTS = st.fixed_dictionaries(
    {}, optional={"a": st.integers(-3, 9) | st.sampled_from(["x", 2.5, None, "7"]), "b": st.integers(0, 3)}
)
VALUES = PARTS | st.sampled_from([MISSING, None, 5, [1], "text"])


def file_of(values: list[Any], make: Any = shredded, size: int = 3) -> bytes:
    table = pa.table({"id": pa.array(range(len(values))), "v": make(values)})
    return EditedFile.of(table, row_group_size=size, rows_per_page=1).data()


def whole(value: Any) -> int | None:
    part = value.get("a") if isinstance(value, dict) else None
    return (int(part) if part == "7" else None) if isinstance(part, str) else None if part is None else int(part)


@settings(max_examples=examples(25, thorough=250))
@given(st.lists(VALUES, min_size=1, max_size=9), st.integers(-3, 9), st.booleans())
def test_the_rows_are_the_filters(values: list[Any], asked: int, unshredded: bool) -> None:
    parts = [whole(value) for value in values]

    async def question(reader: asyncpq.File) -> None:
        expr: Any
        for expr, test in (
            (asked == A, lambda part: part is not None and part == asked),
            (asked < A, lambda part: part is not None and part > asked),
            (~(asked < A), lambda part: part is not None and part <= asked),
            (A.is_in([asked, asked + 1]), lambda part: part in (asked, asked + 1)),
            (~A.is_in([asked]), lambda part: part != asked),
            (A.is_null(), lambda part: part is None),
            (A.is_valid(), lambda part: part is not None),
            (A.between(asked, asked + 2), lambda part: part is not None and asked <= part <= asked + 2),
        ):
            expected = [at for at, part in enumerate(parts) if test(part)]
            assert (await reader.read(["id"], expr))["id"].to_pylist() == expected, expr
            assert await reader.count(where=expr & (col("id") >= 0)) == len(expected), expr

    ask(file_of(values, plain if unshredded else shredded), question)


SORTED = [{"a": number, "b": number % 3} for number in range(40)]


@pytest.mark.parametrize(("kind", "left"), [("int64", 1), ("bigint", 1), ("int32", 40), ("double", 40)])
def test_pages_are_left_out_by_the_parts_own_column(kind: str, left: int) -> None:
    data = file_of(SORTED, size=10)
    assert rows_left(data, col("v").variant_get("$.a", kind) == 7) == left
    assert rows_left(data, ~(col("v").variant_get("$.a", kind) == 7)) == 40
    assert rows_left(data, col("v").variant_get("$.b", kind) == 7) == 40
    assert rows_left(file_of(SORTED, plain, 10), col("v").variant_get("$.a", kind) == 7) == 40


def test_parts_of_another_type_keep_all_rows() -> None:
    data = file_of([*SORTED, {"a": "7"}], size=10)
    assert rows_left(data, A == 7) == 41

    async def question(reader: asyncpq.File) -> None:
        assert (await reader.read(["id"], A == 7))["id"].to_pylist() == [7, 40]

    ask(data, question)


async def test_datasets_of_files_that_shred_and_files_that_do_not(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(file_of(SORTED[:20], size=10))
    (tmp_path / "1.parquet").write_bytes(file_of(SORTED[20:], size=10))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        for expr, expected in ((A == 27, [7]), (A < 2, [0, 1]), (A.is_null(), [])):
            assert (await dataset.read(["id"], expr))["id"].to_pylist() == expected
        plan = await dataset.plan(where=A == 27)
        assert "variant_get(v, '$.a', 'int64') == 27" in plan.explain()
