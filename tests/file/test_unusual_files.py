"""Files that are rare and can be read: of writers with faulty metadata, groups without fields, decimals without bytes,
no columns, encodings for which pyarrow gives no dictionaries.

Files of real writers are in tests/data/advisory, see its README.
"""

from __future__ import annotations

import decimal
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from tests.fuzz.judge import same
from tests.fuzz.parquet_parts import ParquetParts
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import BINARY, I32, EditedFile, Struct
from tests.reads import ask

FOLDER = Path(__file__).parents[1] / "data" / "advisory"
UNCOMPRESSED, ROWS = "total_uncompressed_size is not that of its pages", "V2 pages claim other rows than they hold"
WRITTEN = {
    "duckdb-0.5.1": UNCOMPRESSED,
    "parquetjs-0.11.2": UNCOMPRESSED,
    "dsnp-parquetjs-1.8.8": ROWS,
    "pyarrow-8.0.0": ROWS,
    "xitongsys-parquet-go-1.6.2": "the index is not used",
}


@pytest.mark.parametrize("writer", WRITTEN)
async def test_files_of_writers_with_faulty_metadata(writer: str) -> None:
    """All kinds of questions, twice of a session: the second time with what the first one learnt."""
    path = FOLDER / f"{writer}.parquet"
    whole = pq.ParquetFile(path).read()
    where = (asyncpq.col("id") >= 20) & (asyncpq.col("id") < 27)
    matching = whole.filter((pc.field("id") >= 20) & (pc.field("id") < 27))
    rows = [3, 25, 57, 118]
    questions: list[tuple[Callable[[asyncpq.File], Awaitable[Any]], pa.Table]] = [
        (lambda file: file.read(limit=7), whole.slice(0, 7)),
        (lambda file: file.read(where=where), matching),
        (lambda file: file.take(rows), whole.take(rows)),
        (lambda file: file.read(), whole),
    ]
    fallbacks: list[str] = []
    async with asyncpq.Session() as session:
        for question, wanted in questions * 2:
            file = await session.open_file(path)
            assert same((await question(file)).replace_schema_metadata(whole.schema.metadata), wanted)
            fallbacks += file.metrics.fallbacks
        assert await (await session.open_file(path)).count(where) == matching.num_rows
    assert any(WRITTEN[writer] in reason for reason in fallbacks)


# -- schemas ----------------------------------------------------------------------------------------


def group(name: bytes, repetition: int, children: int | None) -> Struct:
    found = Struct({3: (I32, repetition), 4: (BINARY, name)})
    found.put(5, children, I32)
    return found


def schema_of(file: EditedFile) -> list[Struct]:
    found: list[Struct] = file.footer.value(2)
    return found


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(("repetition", "children"), [(0, 0), (1, None), (2, 0)])
def test_a_struct_without_fields_is_no_column(at: int, repetition: int, children: int | None) -> None:
    """Nothing is written of it: as for pyarrow.parquet.ParquetFile, it is not there."""
    table = pa.table({"id": range(25), "word": [f"w{row % 3}" for row in range(25)]})
    file = EditedFile.of(table, store_schema=False)
    schema_of(file)[0].put(5, 3)
    schema_of(file).insert(at, group(b"e", repetition, children))
    assert same(pq.ParquetFile(pa.BufferReader(file.data())).read(), table)

    async def question(file: asyncpq.File) -> None:
        assert same(await file.read(), table)
        assert same(await file.take([3, 17]), table.take([3, 17]))
        assert same(await file.read(["word"], asyncpq.col("id") > 20), table.slice(21).select(["word"]))
        assert same(await file.read(limit=5), table.slice(0, 5))
        with pytest.raises(asyncpq.ColumnNotFoundError):
            await file.read(["e"])

    ask(file.data(), question)


def test_a_struct_without_fields_inside_of_a_column() -> None:
    """pyarrow, DuckDB and Polars refuse the file; here it is one column."""
    file = EditedFile.of(pa.table({"id": range(5), "s": [{"a": 1}] * 5}), store_schema=False)
    schema_of(file)[2].put(5, 2)
    schema_of(file).append(group(b"e", 1, 0))

    async def question(file: asyncpq.File) -> None:
        assert (await file.read(["id"])).to_pydict() == {"id": [0, 1, 2, 3, 4]}
        with pytest.raises(asyncpq.UnsupportedFeatureError, match="group without fields") as caught:
            await file.read()
        assert caught.value.column == "s"

    ask(file.data(), question)


async def test_an_empty_file_without_the_magic_at_its_start(tmp_path: Path) -> None:
    """fraugster/parquet-go writes such a file if it gets no rows."""
    sink, schema = io.BytesIO(), pa.schema([("id", pa.int64()), ("word", pa.string())])
    pq.ParquetWriter(sink, schema).close()
    (tmp_path / "a.parquet").write_bytes(sink.getvalue()[4:])
    table = pa.table({"id": [1, 2], "word": ["a", "b"]})
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "a.parquet")
        assert (await file.read()).equals(pq.read_table(tmp_path / "a.parquet"))
        assert await file.count(asyncpq.col("id") == 1) == 0
        pq.write_table(table, tmp_path / "b.parquet")
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read()).equals(table)


async def test_rows_without_columns() -> None:
    sink = io.BytesIO()
    pl.DataFrame(height=5).write_parquet(sink)
    only_a_struct = EditedFile.of(pa.table({"id": range(5)}), store_schema=False)
    schema_of(only_a_struct)[1:] = [group(b"e", 1, 0)]
    only_a_struct.row_group().value(1).clear()
    only_a_struct.footer.put(7, None)
    for data in (sink.getvalue(), only_a_struct.data()):
        fsspec.filesystem("memory").pipe_file("/unusual/none.parquet", data)
        async with asyncpq.Session() as session:
            file = await session.open_file("memory://unusual/none.parquet")
            assert (await file.read()).shape == (5, 0)
            assert (await file.read(limit=3)).shape == (3, 0)
            assert (await file.take([4, 0])).shape == (2, 0)
            assert await file.count() == 5
            async with file.scan(batch_size=2) as batches:
                assert [batch.num_rows async for batch in batches] == [2, 2, 1]
            dataset = await session.open_dataset("memory://unusual/")
            assert await dataset.count() == (await dataset.read()).num_rows == 5


# -- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_struct", [False, True])
@pytest.mark.parametrize("is_null", [False, True])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_decimals_without_bytes_are_0(in_struct: bool, is_null: bool, use_dictionary: bool) -> None:
    """As DuckDB and Polars read them; pyarrow refuses them."""
    raw = [b"", b"\x05", b"\x01\x00", b"\xff", None if is_null else b""] * 12
    numbers = [None if value is None else decimal.Decimal(int.from_bytes(value, "big", signed=True)) for value in raw]
    bytes_: pa.Array = pa.array(raw, pa.binary())
    wanted: pa.Array = pa.array([None if n is None else n / 100 for n in numbers], pa.decimal128(9, 2))
    if in_struct:
        bytes_ = pa.StructArray.from_arrays([bytes_], ["x"])
        wanted = pa.StructArray.from_arrays([wanted], ["x"])
    table = pa.table({"id": range(60), "d": wanted})
    file = EditedFile.of(
        table.set_column(1, "d", bytes_), store_schema=False, use_dictionary=use_dictionary, write_statistics=False
    )
    for field_id, number in ((6, 5), (7, 2), (8, 9)):  # DECIMAL, its scale and precision
        schema_of(file)[-1].put(field_id, number, I32)

    async def question(file: asyncpq.File) -> None:
        assert same(await file.read(), table)
        assert same(await file.take([3, 20, 44]), table.take([3, 20, 44]))
        if not in_struct:
            found = await file.read(where=asyncpq.col("d") == decimal.Decimal(0))
            assert same(found, table.filter(pc.field("d") == decimal.Decimal(0)))

    ask(file.data(), question)


def test_bytes_that_are_no_decimals_are_refused() -> None:
    """Those are too long, and no others without bytes stand beside them."""
    file = EditedFile.of(pa.table({"d": [b"x" * 40] * 5}), store_schema=False, write_statistics=False)
    for field_id, number in ((6, 5), (7, 2), (8, 9)):
        file.element().put(field_id, number, I32)

    async def question(file: asyncpq.File) -> None:
        with pytest.raises(asyncpq.CorruptFileError, match="decimal128"):
            await file.read()

    ask(file.data(), question)


FIXED_LISTS = pa.table(
    {"v": pa.array([[f"a{row}"] * 4 if row % 3 else None for row in range(2000)], pa.list_(pa.string(), 4))}
)
LISTS = pa.table({"v": [[f"{'a' * 300}{row % 5}"] * (row % 4) for row in range(2000)]})


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("limit", [150_000, 300_000, 1 << 24])
def test_deltas_whose_decoded_size_is_looked_at(encoding: str, limit: int) -> None:
    """Of lists of a fixed size, where nulls take as much room as values: pyarrow gives no dictionaries for deltas."""
    leaf = "v.list.element"
    _read_within(parquet_bytes(FIXED_LISTS, use_dictionary=False, column_encoding={leaf: encoding}), FIXED_LISTS, limit)


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("limit", [150_000, 2 << 20, 1 << 26])
def test_deltas_behind_a_dictionary(encoding: str, limit: int) -> None:
    """As writers have them that turn to deltas once a dictionary is full."""
    options: dict[str, Any] = {"max_rows_per_page": 500, "write_batch_size": 500, "store_schema": False}
    deltas: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"v.list.element": encoding}}
    first, second = (ParquetParts(parquet_bytes(LISTS, **options, **more)) for more in ({}, deltas))
    chunk = first.chunks[0]
    chunk.pages[3:] = second.chunks[0].data_pages[2:]
    chunk.meta.drop(13)  # the encoding_stats
    data = first.rebuilt()
    assert same(pq.read_table(pa.BufferReader(data)), LISTS)
    _read_within(data, LISTS, limit)


def _read_within(data: bytes, table: pa.Table, limit: int) -> None:
    """Read all, or, where it takes more than ``limit`` bytes, be refused for that."""

    async def question(file: asyncpq.File) -> None:
        if limit > 2 * table.nbytes:
            assert same(await file.read(), table)
            return
        try:
            assert same(await file.read(), table)
        except asyncpq.ResourceLimitError:
            assert limit < 4 * table.nbytes
        else:
            assert limit >= table.nbytes

    ask(data, question, limits=asyncpq.LimitOptions(max_decoded_bytes=limit))
