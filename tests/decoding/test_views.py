"""String and binary views, and list views, are filtered, looked up, taken, counted and indexed as plain ones are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import Expression, col
from asyncpq.indexing import Bloom, Bounds, IndexKind, Keys, NGrams, Text, ValueSet
from tests.parquet_bytes import parquet_bytes
from tests.predicates import oracle, without_views
from tests.reads import ask

WORDS = ["", "alpha", "alpha beta", "Béta", "gamma " * 30, None, "gamma " * 30 + "z", "50%", "beta", None]
BLOBS = [None if word is None else word.encode() for word in WORDS[:-2]] + [b"\xff", b"\xff\x00a"]
VIEWS = {"string_view": pa.array(WORDS, pa.string_view()), "binary_view": pa.array(BLOBS, pa.binary_view())}
LISTS = [[], ["alpha"], None, ["beta", None], ["alpha", "beta"], ["gamma"], [None], ["z"], [""], ["alpha"]]
NESTED = {
    "list<string_view>": pa.list_(pa.string_view()),
    "list_view<string>": pa.list_view(pa.string()),
    "large_list_view<string>": pa.large_list_view(pa.string()),
    "large_list_view<string_view>": pa.large_list_view(pa.string_view()),
}
KINDS: dict[str, list[IndexKind]] = {
    "bounds": [Bounds("x")],
    "keys": [Keys("x")],
    "composite keys": [Keys("x", "n")],
    "set": [ValueSet("x")],
    "bloom": [Bloom("x")],
    "ngrams": [NGrams("x")],
    "text": [Text("x")],
}


def table_of(name: str) -> pa.Table:
    return pa.table({"x": VIEWS[name], "n": pa.array(range(len(WORDS)))})


def written(table: pa.Table, **options: object) -> bytes:
    data = parquet_bytes(
        table, row_group_size=4, max_rows_per_page=2, write_batch_size=1, write_page_index=True, **options
    )
    assert pq.read_schema(pa.BufferReader(data)).equals(table.schema)
    return data


def predicates(name: str) -> list[Expression]:
    x, is_text = col("x"), name == "string_view"
    literals = [word if is_text else word.encode() for word in WORDS if word is not None] + [b"\xff"] * (not is_text)
    part, prefix, pattern = ("a b", "alpha", "%b_t%") if is_text else (b"a b", b"alpha", b"%b_t%")
    found = [x == literals[2], x != literals[2], x.is_null(), x.is_valid(), ~x.is_in([literals[1]])]
    found += [x.is_in([*literals[:2], None]), x.contains(part), x.starts_with(prefix), x.like(pattern), x == x]
    found += [x < literal for literal in literals] + [x >= literal for literal in literals]
    found += [x == literal for literal in literals]
    return found + ([x.has_tokens("beta"), x.has_phrase("alpha beta")] if is_text else [])


def wanted(table: pa.Table, predicate: Expression) -> list[int]:
    rows: list[int] = without_views(table).filter(oracle(predicate))["n"].to_pylist()
    return rows


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_a_file_with_views(name: str, dictionary: bool) -> None:
    table = table_of(name)

    async def question(file: asyncpq.File) -> None:
        assert (await file.read()).equals(table)
        for predicate in predicates(name):
            for columns, names in ((["n"], []), (["x", "n"], ["x"])):
                found = await file.read(columns, predicate, read_dictionary=names)
                assert found["n"].to_pylist() == wanted(table, predicate), str(predicate)
            assert await file.count(predicate) == len(wanted(table, predicate))
        keys = [value for value in table["x"].to_pylist() if value is not None]
        assert (await file.lookup({"x": keys})).equals(_valid(table))
        pairs = await file.lookup({"x": keys, "n": [0] * len(keys)}, with_keys=True)
        assert pairs["n"].to_pylist() == [0]
        taken = await file.take([9, 0, 0, 3])
        assert taken["x"].to_pylist() == [table["x"][row].as_py() for row in (9, 0, 0, 3)]
        assert taken.schema.equals(table.schema)

    ask(written(table, use_dictionary=dictionary), question)


def _valid(table: pa.Table) -> pa.Table:
    """The rows with a value; pyarrow takes none of views."""
    rows = [at for at in range(table.num_rows) if table["x"][at].is_valid]
    return pa.concat_tables([table.slice(at, 1) for at in rows]).combine_chunks()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in VIEWS for kind in KINDS if name == "string_view" or kind not in ("ngrams", "text")],
)
def test_views_in_an_index(name: str, kind: str, tmp_path: Path) -> None:
    table = table_of(name)
    for at in range(2):
        (tmp_path / f"{at}.parquet").write_bytes(written(table.slice(5 * at, 5)))

    async def run() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(str(tmp_path), KINDS[kind])
            async with await session.open_dataset(str(tmp_path)) as dataset:
                for predicate in predicates(name):
                    found = (await dataset.read(["n"], predicate))["n"].to_pylist()
                    assert found == wanted(table, predicate), str(predicate)
                    assert await dataset.count(predicate) == len(found)
                for row in range(table.num_rows):
                    key = table["x"][row].as_py()
                    equal = [] if key is None else wanted(table, col("x") == key)
                    assert (await dataset.lookup({"x": [key]}, columns=["n"]))["n"].to_pylist() == equal
                    pair = await dataset.lookup({"x": [key], "n": [row]}, columns=["n"])
                    assert pair["n"].to_pylist() == [row] * (key is not None)

    asyncio.run(run())


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", NESTED)
def test_lists_of_views_and_views_of_lists(name: str, indexed: bool, tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(LISTS, NESTED[name]), "n": pa.array(range(len(LISTS)))})
    data = written(table) if name == "list<string_view>" else _with_schema(table)
    (tmp_path / "a.parquet").write_bytes(data)

    async def run() -> None:
        async with asyncpq.Session() as session:
            if indexed:
                await session.build_index(str(tmp_path), [Keys("x"), ValueSet("x"), Bloom("x")])
            async with await session.open_dataset(str(tmp_path)) as dataset:
                assert (await dataset.read())["x"].to_pylist() == LISTS
                for word in ("alpha", "beta", "gamma", "", "no"):
                    rows = [at for at, words in enumerate(LISTS) if words is not None and word in words]
                    assert (await dataset.read(["n"], col("x").has(word)))["n"].to_pylist() == rows
                    others = [at for at, words in enumerate(LISTS) if words is not None and word not in words]
                    assert (await dataset.read(["n"], ~col("x").has(word)))["n"].to_pylist() == others
                found = await dataset.read(where=col("n").is_in([9, 4, 2]))
                assert found["x"].to_pylist() == [LISTS[2], LISTS[4], LISTS[9]]
            async with await session.open_file(str(tmp_path / "a.parquet")) as file:
                assert (await file.take([9, 4, 4]))["x"].to_pylist() == [LISTS[9], LISTS[4], LISTS[4]]

    asyncio.run(run())


def _with_schema(table: pa.Table) -> bytes:
    return parquet_bytes(table, row_group_size=4)
