"""Names and footers that are legal and rare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.duckdb
from asyncpq import blocking, col
from asyncpq.errors import AmbiguousColumnError, UnsupportedFeatureError
from asyncpq.indexing import Bounds, Keys
from tests.parquet_files import EditedFile

ROWS = [{"a.b": number, "c": {"d.e": -number, "": number}} for number in range(6)]


@pytest.mark.parametrize(
    "where",
    [
        pc.field("st", "a.b") == 3,
        'st."a.b" = 3',
        col("st.a.b") == 3,
        pc.field("st", "c", "d.e") == -3,
        'st.c."d.e" = -3',
        'st.c."" = 3',
    ],
    ids=str,
)
@pytest.mark.parametrize("trust", [True, False])
async def test_struct_fields_with_a_dot_in_their_name(where: Any, trust: bool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(6), "st": ROWS}), tmp_path / "a.parquet", row_group_size=2)
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trust)) as session:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        assert (await file.read(["id"], where))["id"].to_pylist() == [3]
        assert await file.count(where=where) == 1
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read(["id"], where))["id"].to_pylist() == [3]
        assert (await file.lookup({"st.a.b": [4]}, columns=["id"]))["id"].to_pylist() == [4]
        assert (await dataset.lookup({"st.a.b": [4]}, columns=["id"]))["id"].to_pylist() == [4]


async def test_indexes_of_struct_fields_with_a_dot_in_their_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(6), "st": ROWS}), tmp_path / "a.parquet", row_group_size=2)
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("st.a.b"), Keys("st.a.b"), Keys("st.c.d.e")])
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.lookup({"st.a.b": [4]}, columns=["id"]))["id"].to_pylist() == [4]
        assert (await dataset.lookup({"st.c.d.e": [-5]}, columns=["id"]))["id"].to_pylist() == [5]


def test_duckdb_compares_struct_fields_with_a_dot_in_their_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(6), "st": ROWS}), tmp_path / "a.parquet", row_group_size=2)
    with blocking.Session() as session:
        lake = asyncpq.duckdb.dataset(session.open_file(str(tmp_path / "a.parquet")))  # noqa: F841 - the query names it
        assert duckdb.sql('SELECT id FROM lake WHERE st."a.b" IN (1, 3)').fetchall() == [(1,), (3,)]


@pytest.mark.parametrize("path", [("a.b",), ("a", "b")])
@pytest.mark.parametrize("indexed", [False, True])
async def test_struct_fields_beside_a_column_that_their_path_begins_with(
    path: tuple[str, ...], indexed: bool, tmp_path: Path
) -> None:
    """``st.a.b`` lies in the column ``st``, though there is a column ``st.a``."""
    rows = [{"a.b": row} if path == ("a.b",) else {"a": {"b": row}} for row in range(6)]
    table = pa.table({"id": range(6), "st.a": [row + 100 for row in range(6)], "st": rows})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    fields = pc.field("st", *path)
    both = (col("st.a.b") == 3) & (col("st.a") >= 100)
    conditions = [col("st.a.b") == 3, "st.a.b = 3", fields == 3, (fields == 3) & (pc.field("st.a") == 103), both]
    async with asyncpq.Session() as session:
        if indexed:
            await session.build_index(str(tmp_path), [Bounds("st.a.b"), Keys("st.a.b")])
        dataset = await session.open_dataset(str(tmp_path))
        for opened in (await session.open_file(str(tmp_path / "a.parquet")), dataset):
            for where in conditions:
                assert (await opened.read(["id"], where))["id"].to_pylist() == [3], where
            assert (await opened.lookup({"st.a.b": 4}, columns=["id"]))["id"].to_pylist() == [4]
            (column,) = (await opened.read(["st.a.b"])).columns
            assert pc.struct_field(column, list(path)).to_pylist() == [*range(6)]


@pytest.mark.parametrize(
    ("columns", "ways"),
    [
        ({"st": {"a.b": 1, "a": {"b": 2}}}, ['pc.field("st", "a.b")', 'pc.field("st", "a", "b")']),
        ({"st": {"a.b": {"x": 1}, "a": {"b": {"y": 2}}}}, ['pc.field("st", "a.b")', 'pc.field("st", "a", "b")']),
        ({"st": {"a.b": 1, "a": {"b": {"y": 2}}}}, ['pc.field("st", "a.b")', 'pc.field("st", "a", "b")']),
        ({"st.a": {"b": 1}, "st": {"a": {"b": 2}}}, ['pc.field("st.a", "b")', 'pc.field("st", "a", "b")']),
    ],
    ids=str,
)
async def test_a_path_of_two_fields_names_both(columns: dict[str, Any], ways: list[str], tmp_path: Path) -> None:
    pq.write_table(pa.table({name: [value] for name, value in columns.items()}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        for opened in (await session.open_file(str(tmp_path / "a.parquet")), await session.open_dataset(str(tmp_path))):
            for read in (
                opened.read(["st.a.b"]),
                opened.read(where=col("st.a.b") == 1),
                opened.read(where="st.a.b = 1"),
                opened.lookup({"st.a.b": 1}),
            ):
                with pytest.raises(AmbiguousColumnError) as raised:
                    await read
                assert all(way in str(raised.value.hint) for way in ways)


@pytest.mark.parametrize(
    ("columns", "path", "hint"),
    [
        (
            {"st": {"a.list": {"element": {"b": 1}}, "a": [{"b": 2}]}},
            "st.a.list.element.b",
            "Select the whole top-level column by its ordinal.",
        ),
        (
            {"st.a": [{"b": 1}], "st": {"a": [{"b": 2}]}},
            "st.a.list.element.b",
            "Select the whole top-level columns by their ordinals.",
        ),
        ({"st.a": {"b": 1}, "st": {"a": {"b": 2}}}, "st.a.b", 'Read the whole columns "st.a" and "st", and filter'),
    ],
    ids=str,
)
async def test_a_hint_names_what_pyarrow_has(columns: dict[str, Any], path: str, hint: str, tmp_path: Path) -> None:
    """pyarrow has no ``pc.field`` through a list."""
    pq.write_table(pa.table({name: [value] for name, value in columns.items()}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        for opened in (await session.open_file(str(tmp_path / "a.parquet")), await session.open_dataset(str(tmp_path))):
            with pytest.raises(AmbiguousColumnError) as raised:
                await opened.read([path])
            assert str(raised.value.hint).startswith(hint)


async def test_an_empty_file_path_is_this_file(tmp_path: Path) -> None:
    edited = EditedFile.of(pa.table({"id": range(6)}))
    edited.chunk(0).put(1, b"")
    (tmp_path / "a.parquet").write_bytes(edited.data())
    async with asyncpq.Session() as session:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        assert (await file.read())["id"].to_pylist() == [*range(6)]


def _wide_decimals(precision: int, length: int) -> EditedFile:
    """A file with decimals of any precision in the column x, and in a struct."""
    values = [number.to_bytes(length, "big") for number in (5, 7)]
    type_ = pa.binary(length)
    columns = {"a": [1, 2], "x": pa.array(values, type_), "s": [{"d": value, "n": 1} for value in values], "z": [3, 4]}
    schema = pa.schema(
        [("a", pa.int64()), ("x", type_), ("s", pa.struct([("d", type_), ("n", pa.int64())])), ("z", pa.int8())]
    )
    edited = EditedFile.of(pa.table(columns, schema), store_schema=False)
    for element in edited.footer.value(2):
        if element.value(4) in (b"x", b"d"):
            for field_id, number in ((6, 5), (7, 0), (8, precision)):
                element.put(field_id, number, 5)
    return edited


async def test_decimals_that_arrow_does_not_have_are_not_damage(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(_wide_decimals(100, 48).data())
    async with asyncpq.Session() as session:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        for columns, column in ((None, "x"), (["x"], "x"), (["a", "s", "x"], "s"), (["s.d"], "s")):
            with pytest.raises(UnsupportedFeatureError, match="Arrow has no such type") as raised:
                await file.read(columns)
            assert raised.value.column == column
        with pytest.raises(UnsupportedFeatureError, match="Arrow has no such type"):
            _ = file.schema
        assert (await file.read(["z", "a"], col("a") == 2)).to_pydict() == {"z": [4], "a": [2]}


async def test_values_of_no_bytes_are_not_damage(tmp_path: Path) -> None:
    edited = EditedFile.of(pa.table({"a": [1], "x": pa.array([b"x"], pa.binary(1))}), store_schema=False)
    edited.element(1).put(2, 0)
    (tmp_path / "a.parquet").write_bytes(edited.data())
    async with asyncpq.Session() as session:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        with pytest.raises(UnsupportedFeatureError, match="Arrow has no such type") as raised:
            await file.read()
        assert raised.value.column == "x"
        assert (await file.read(["a"]))["a"].to_pylist() == [1]
