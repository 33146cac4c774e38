"""Delta tables that delta-rs has rewritten: some of its files say that strings and binary are views."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import asyncpq
from asyncpq import Expression, col
from asyncpq.indexing import Bloom, Bounds, Keys, NGrams, Text, ValueSet
from tests.predicates import oracle, without_views

REWRITES: dict[str, Callable[[DeltaTable], Any]] = {
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["id"]),
    "update": lambda table: table.update(predicate="id % 3 = 0", updates={"word": "'changed'"}),
    "delete": lambda table: table.delete("id % 5 = 0"),
    "merge": lambda table: (
        table.merge(pa.table({"id": [1, 99], "word": ["merged", "new"], "data": [b"m", None]}), "t.id = s.id", "s", "t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
}
PREDICATES: list[Expression] = [
    col("word") == "word 7",
    col("word").is_in(["changed", "merged", "new", "word 11", None]),
    col("word") < "word 12",
    col("word").contains("rd 1"),
    col("word").like("%d_1"),
    col("word").is_null(),
    col("data") == b"data 4",
    col("data") >= b"data 7",
    (col("id") > 3) & col("word").starts_with("word 1"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("rewrite", REWRITES)
async def test_rewritten_tables(rewrite: str, indexed: bool, tmp_path: Path) -> None:
    path = tmp_path / "table"
    for first in (0, 10):
        ids = range(first, first + 10)
        words = [None if number == 13 else f"word {number}" for number in ids]
        data = [f"data {number}".encode() for number in ids]
        write_deltalake(path, pa.table({"id": list(ids), "word": words, "data": data}), mode="append")
    REWRITES[rewrite](DeltaTable(path))
    table = without_views(DeltaTable(path).to_pyarrow_table()).sort_by("id")
    async with asyncpq.Session() as session:
        if indexed:
            kinds = [
                Bounds(),
                Keys("word"),
                Keys("data", "id"),
                ValueSet("word"),
                Bloom("data"),
                NGrams("word"),
                Text("word"),
            ]
            await session.build_index(DeltaTable(path), kinds, at=str(tmp_path / "index"))
        at = str(tmp_path / "index") if indexed else None
        async with await session.open_dataset(DeltaTable(path), index=at) as dataset:
            for predicate in PREDICATES:
                found = (await dataset.read(["id"], predicate)).sort_by("id")
                assert found["id"].to_pylist() == table.filter(oracle(predicate))["id"].to_pylist(), str(predicate)
                assert await dataset.count(predicate) == found.num_rows
            words = table["word"].to_pylist()
            found = await dataset.lookup({"word": words}, columns=["id"])
            assert found.num_rows == len(words) - words.count(None)
            pairs = await dataset.lookup({"data": table["data"], "id": table["id"]}, columns=["word"])
            assert pairs.num_rows == table.num_rows - table["data"].null_count


def test_an_update_says_views(tmp_path: Path) -> None:
    """What the tests above are about."""
    write_deltalake(tmp_path, pa.table({"id": [1, 2], "word": ["a", "b"]}))
    DeltaTable(tmp_path).update(predicate="id = 1", updates={"word": "'c'"})
    (file,) = DeltaTable(tmp_path).file_uris()
    assert pq.read_schema(file).field("word").type == pa.string_view()
