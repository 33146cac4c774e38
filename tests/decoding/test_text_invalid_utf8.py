"""Text that is no UTF-8 is read as pyarrow reads it: its bytes are kept, and compared as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import CorruptFileError, Expression, ExpressionError, ReadOptions, col
from asyncpq.expressions import HasPhrase, HasTokens
from asyncpq.indexing import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
from tests.parquet_bytes import parquet_bytes
from tests.predicates import oracle, without_views
from tests.reads import ask

RAW = [b"ab", b"a\xffb", b"\xff", None, b"\xe9t\xe9 word", b"word", b"\x80" * 70, b"a\xff\xffb", b"\xc3\xa9", b""]
BAD = [1, 2, 4, 6, 7]  # rows that are no UTF-8
KINDS: list[IndexKind] = [
    Bounds("x"),
    Keys("x"),
    Keys("x", "n"),
    ValueSet("x"),
    Bloom("x"),
    NGrams("x", n=2),
    Text("x"),
]


def text(type_: pa.DataType, raw: Sequence[bytes | None] = RAW) -> pa.Array:
    """Values of a string type that nothing has checked."""
    values = pa.array(raw, pa.binary())
    strings = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count)
    return strings.dictionary_encode() if isinstance(type_, pa.DictionaryType) else strings.cast(type_)


TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def written(column: pa.Array, **options: object) -> bytes:
    table = pa.table({"x": column, "n": pa.array(range(len(column)))})
    return parquet_bytes(table, row_group_size=4, max_rows_per_page=2, write_page_index=True, **options)


def as_bytes(table: pa.Table) -> list[bytes | None]:
    column = table["x"].combine_chunks()
    values = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    found: list[bytes | None] = values.cast(pa.large_binary()).to_pylist()
    return found


def predicates() -> list[Expression]:
    x = col("x")
    found = [x == "ab", x != "word", x < "b", x >= "word", x.is_in(["ab", "é", None]), ~x.is_in(["word"]), x.is_null()]
    found += [x.contains("b"), x.contains(b"\xff"), x.contains(b"\xffb"), x.starts_with("a"), x.starts_with(b"a\xff")]
    return [*found, x.like("a%"), x.like("_"), x.like("%ord"), x.has_tokens("word"), x.has_phrase("t word")]


def wanted(table: pa.Table, predicate: Expression) -> list[int]:
    if isinstance(predicate, (HasTokens, HasPhrase)):  # bytes that are no text separate words
        return [4, 5] if isinstance(predicate, HasTokens) else [4]
    rows: list[int] = without_views(table).filter(oracle(predicate))["n"].to_pylist()
    return rows


def comparable(data: bytes) -> pa.Table:
    """As pyarrow reads it, but for dictionaries."""
    table = pq.read_table(pa.BufferReader(data))
    column = table["x"].combine_chunks()
    return table.set_column(0, "x", column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_file(type_: pa.DataType, dictionary: bool) -> None:
    data = written(text(type_), use_dictionary=dictionary)
    table = comparable(data)

    async def question(file: asyncpq.File) -> None:
        assert as_bytes(await file.read()) == RAW
        assert as_bytes(await file.read(["x"], read_dictionary=["x"])) == RAW
        assert as_bytes(await file.take([4, 1, 1])) == [RAW[4], RAW[1], RAW[1]]
        for predicate in predicates():
            found = await file.read(["x", "n"], predicate)
            assert found["n"].to_pylist() == wanted(table, predicate), str(predicate)
            assert as_bytes(found) == [RAW[row] for row in found["n"].to_pylist()]
        assert as_bytes(await file.lookup({"x": ["é", "ab", "zz"]})) == [b"ab", b"\xc3\xa9"]
        pairs = await file.lookup({"x": ["ab", "ab"], "n": [0, 1]}, with_keys=True)
        assert (as_bytes(pairs), pairs["key_position"].to_pylist()) == ([b"ab"], [0])

    ask(data, question)


def test_inside_lists_and_structs() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 10], pa.int32()), text(pa.string()))
    data = written(lists)

    async def question(file: asyncpq.File) -> None:
        found = (await file.read())["x"].combine_chunks()
        assert found.flatten().cast(pa.binary()).to_pylist() == RAW
        assert await file.count(col("x").has("ab")) == 1

    ask(data, question)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("type_", TYPES[:3], ids=str)
def test_an_index(type_: pa.DataType, kind: IndexKind, tmp_path: Path) -> None:
    for at in range(2):
        (tmp_path / f"{at}.parquet").write_bytes(written(text(type_, RAW[5 * at : 5 * at + 5])))
    table = comparable(written(text(type_)))

    async def run() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(str(tmp_path), [kind, Footers(), Pages()])
            async with await session.open_dataset(str(tmp_path)) as dataset:
                for predicate in predicates():
                    rows = [row % 5 for row in wanted(table, predicate)]
                    assert (await dataset.read(["n"], predicate))["n"].to_pylist() == rows, str(predicate)
                assert as_bytes(await dataset.lookup({"x": ["é", "ab", "zz"]})) == [b"ab", b"\xc3\xa9"]

    asyncio.run(run())


def test_keys_that_are_no_text_are_refused() -> None:
    async def question(file: asyncpq.File) -> None:
        for keys in (text(pa.string()), list(text(pa.string()))):
            with pytest.raises(ExpressionError, match="utf-8"):
                await file.lookup({"x": keys})
            with pytest.raises(ExpressionError, match="utf-8"):
                await file.read(where=col("x").is_in(keys))

    ask(written(text(pa.string())), question)


STRICT = ReadOptions(validate_utf8=True)
GOOD = [row for row in range(len(RAW)) if row not in BAD]


def nested(name: str) -> pa.Array:
    """A column of one text a row."""
    values = text(pa.string())
    if name == "struct":
        return pa.StructArray.from_arrays([values, pa.array(range(len(RAW)))], ["a", "b"])
    if name == "struct of dictionary":
        return pa.StructArray.from_arrays([values.dictionary_encode()], ["a"])
    offsets = pa.array(range(len(RAW) + 1), pa.int32())
    if name == "list":
        return pa.ListArray.from_arrays(offsets, values)
    if name == "map":
        return pa.MapArray.from_arrays(offsets, pa.array(range(len(RAW))), values)
    return values if name == "text" else text(TYPES[int(name)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("name", ["text", "1", "2", "3", "struct", "struct of dictionary", "list", "map"])
def test_text_that_is_validated(name: str, dictionary: bool) -> None:
    data = written(nested(name), use_dictionary=dictionary)

    async def question(file: asyncpq.File) -> None:
        for row in BAD:
            for read in (
                file.read(where=col("n") == row),
                file.read(where=col("n").is_in([0, row, 9])),
                file.take([row]),
                file.lookup({"n": [row]}, columns=["x"]),
            ):
                with pytest.raises(CorruptFileError, match=f"the text in row {row} is not valid UTF-8") as caught:
                    await read
                assert caught.value.column == "x"
        for columns in (None, ["x"]):
            with pytest.raises(CorruptFileError, match="row 1 "):
                await file.read(columns)
        found = await file.read(where=col("n").is_in(GOOD))
        assert found["n"].to_pylist() == GOOD
        found["x"].to_pylist()
        assert (await file.read(["n"])).num_rows == len(RAW)  # text that does not come is not looked at
        assert await file.count(col("x").is_valid()) > 0
        async with file.scan(["x"], batch_size=1) as scan:
            with pytest.raises(CorruptFileError, match="row 1 "):
                [batch async for batch in scan]

    ask(data, question, read=STRICT)


@pytest.mark.parametrize("name", ["text", "list", "map", "struct"])
def test_nothing_else_is_refused(name: str) -> None:
    good = nested(name).take(pa.array([0, 3, 5, 8, 9, 8]))
    data = written(good)

    async def question(file: asyncpq.File) -> None:
        assert (await file.read())["x"].combine_chunks().equals(good)

    ask(data, question, read=STRICT)


def test_a_dataset_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(written(text(pa.string(), [b"a"] * 9)))
    (tmp_path / "1.parquet").write_bytes(written(text(pa.string(), [b"a"] * 8 + [b"\xff"])))

    async def run() -> None:
        async with asyncpq.Session(read=STRICT) as session, await session.open_dataset(str(tmp_path)) as dataset:
            with pytest.raises(CorruptFileError, match=r"row 8 .*1\.parquet"):
                await dataset.read()
            assert (await dataset.read(where=col("n") < 8)).num_rows == 16

    asyncio.run(run())
