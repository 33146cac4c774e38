"""Columns read as dictionaries: pyarrow's ``read_dictionary`` gives the same types and values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.random_tables import WriterOptions, tables, writer_options
from tests.reads import ask, values

WORDS = ["a", "b", None, "a", "c", "b", "a", None, "d", "e", "a", "b"]
TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed": pa.binary(1),
    "json": pa.json_(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "small_dictionary": pa.dictionary(pa.int8(), pa.string()),
    "large_dictionary": pa.dictionary(pa.int32(), pa.large_string()),
}


def write(table: pa.Table, **options: Any) -> bytes:
    options = {"row_group_size": 5, "max_rows_per_page": 2, "write_batch_size": 2, "write_page_index": True, **options}
    return parquet_bytes(table, **options)


def sample(**options: Any) -> bytes:
    """A column of each type, and others that do not become dictionaries."""
    columns: dict[str, pa.Array] = {}
    for name, kind in TYPES.items():
        if isinstance(kind, pa.BaseExtensionType):
            columns[name] = pa.ExtensionArray.from_storage(kind, pa.array(WORDS, kind.storage_type))
        elif pa.types.is_dictionary(kind):
            columns[name] = pa.array(WORDS, kind.value_type).dictionary_encode().cast(kind)
        else:
            columns[name] = pa.array(WORDS, kind)
    columns["without nulls"] = pa.array([word or "z" for word in WORDS])
    columns["number"] = pa.array([row // 3 for row in range(12)])
    columns["numbers"] = pa.array([row // 3 for row in range(12)]).dictionary_encode()
    return write(pa.table(columns), **options)


def by_pyarrow(data: bytes, names: list[str]) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data), read_dictionary=names).read()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("options", [{}, {"dictionary_pagesize_limit": 1}, {"use_dictionary": False}])
@pytest.mark.parametrize("store_schema", [True, False])
def test_types_and_values(index: bool, options: dict[str, Any], store_schema: bool) -> None:
    data = sample(write_page_index=index, store_schema=store_schema, **options)
    names = [*TYPES, "without nulls", "number", "numbers"]
    wanted = by_pyarrow(data, names)

    async def question(file: asyncpq.File) -> None:
        plain = await file.read()
        for _ in range(3):  # the second time out of caches
            found = await file.read(read_dictionary=names)
            found.validate(full=True)
            assert found.schema.equals(wanted.schema)
            assert values(found.drop_columns(["json"])) == values(wanted.drop_columns(["json"]))
            rows = [7, 0, 7, 11, 3]
            for taken in (
                await file.take(rows, read_dictionary=names),
                await file.take(rows[:1], read_dictionary=names),
            ):
                assert taken.schema.equals(wanted.schema)
                assert values(taken.drop_columns(["json"])) == values(
                    wanted.take(rows[: len(taken)]).drop_columns(["json"])
                )
            assert values(await file.read()) == values(plain)
            assert (await file.take([7])).schema.equals(plain.schema)

    ask(data, question)


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_pages_that_a_cache_holds_for_other_reads(use_dictionary: bool) -> None:
    data = sample(use_dictionary=use_dictionary)

    async def question(file: asyncpq.File) -> None:
        for name in ("without nulls", "string"):
            for _ in range(3):
                await file.take([7], [name])
            wanted = by_pyarrow(data, [name]).select([name]).slice(7, 1)
            found = await file.take([7], [name], read_dictionary=[name])
            assert (found.schema.types, values(found)) == (wanted.schema.types, values(wanted))
            assert (await file.take([7], [name])).schema.types == [pa.string()]

    ask(data, question)


def test_predicates_and_lookups_mean_the_same() -> None:
    data = sample()

    async def question(file: asyncpq.File) -> None:
        names = list(TYPES)
        for where in (
            col("string") == "a",
            col("string").is_in(["b", None]),
            col("large_string") > "a",
            col("number") == 2,
        ):
            for columns in (["string", "number"], ["number"], ["dictionary", "large_string"]):
                found = await file.read(columns, where, read_dictionary=names)
                assert values(found) == values(await file.read(columns, where))
        for keys in ({"string": "a"}, {"string": ["b", "e", "zz"]}, {"string": ["a", "b"], "number": [0, 3]}):
            for with_keys in (False, True):
                found = await file.lookup(keys, ["string", "binary"], with_keys=with_keys, read_dictionary=names)
                assert values(found) == values(await file.lookup(keys, ["string", "binary"], with_keys=with_keys))
                assert found.schema.field("string").type == pa.dictionary(pa.int32(), pa.string())

    ask(data, question)


@pytest.mark.heavy
def test_indices_are_not_expanded() -> None:
    """A dictionary larger than what may be decoded for all rows is no hindrance."""
    big = "x" * 100_000
    data = write(
        pa.table({"s": [big + str(row % 2) for row in range(2000)]}), row_group_size=2000, max_rows_per_page=500
    )
    limits = asyncpq.LimitOptions(max_decoded_bytes=2 * 2**20)

    async def question(file: asyncpq.File) -> pa.Table:
        return await file.read(read_dictionary=["s"])

    table = ask(data, question, limits=limits)
    assert table["s"].combine_chunks().indices.to_pylist() == [row % 2 for row in range(2000)]
    with pytest.raises(asyncpq.ResourceLimitError):
        ask(data, lambda file: file.read(), limits=limits)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["nope"], asyncpq.ColumnNotFoundError),
        (["list"], asyncpq.UnsupportedFeatureError),
        (["list.list.element"], asyncpq.UnsupportedFeatureError),
        ("s", asyncpq.InvalidOptionError),
        ([0], asyncpq.InvalidOptionError),
        (None, asyncpq.InvalidOptionError),
    ],
)
def test_what_is_refused(names: Any, error: type[Exception]) -> None:
    data = write(pa.table({"s": ["a"], "list": [["a"]]}))
    with pytest.raises(error):
        ask(data, lambda file: file.read(read_dictionary=names))


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(tables(nested=False), writer_options, st.data())
def test_any_table(made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, data: st.DataObject) -> None:
    table, _ = made
    file = writer.write(table)
    wanted = by_pyarrow(file, table.column_names)
    batch_size = data.draw(st.sampled_from([1, 7, 65_536]))
    rows = data.draw(st.lists(st.integers(0, max(0, len(table) - 1)), max_size=8)) if len(table) else []

    async def question(opened: asyncpq.File) -> None:
        names = table.column_names
        async with opened.scan(batch_size=batch_size, read_dictionary=names) as scan:
            found = pa.Table.from_batches([batch async for batch in scan], scan.schema)
        found.validate(full=True)
        assert found.schema.equals(wanted.schema)
        assert values(found) == values(wanted)
        assert values(await opened.take(rows, read_dictionary=names)) == values(wanted.take(pa.array(rows, pa.int64())))

    ask(file, question)
