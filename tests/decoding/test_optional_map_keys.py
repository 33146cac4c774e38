"""Maps whose keys are declared OPTIONAL, as Flink writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import asyncpq
from asyncpq.errors import UnsupportedFeatureError
from tests.parquet_files import EditedFile, Struct

MAP, MAP_KEY_VALUE = 1, 2  # parquet.thrift's ConvertedType


def entries(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """The type of a map as a list: :func:`as_maps` makes it a map."""
    return pa.list_(pa.field("entry", pa.struct([("key", key), ("value", value)]), nullable=False))


def as_maps(table: pa.Table, **options: Any) -> bytes:
    """Return a Parquet file of ``table`` in which each list of "entry" structs is declared as a map. Definition and
    repetition levels of both are the same."""
    edited = EditedFile.of(table, use_compliant_nested_type=False, **options)
    elements = edited.footer.value(2)
    position = 0
    while position < len(elements):
        if elements[position].value(4) == b"entry":
            outer, repeated = elements[position - 2], elements[position - 1]
            outer.put(6, MAP)
            outer.put(10, None)
            repeated.put(4, b"key_value")
            repeated.put(5, 2)
            repeated.put(6, MAP_KEY_VALUE, 5)
            del elements[position]
        position += 1
    for group in edited.footer.value(4):
        for chunk in group.value(1):
            meta: Struct = chunk.value(3)
            path = meta.value(3)
            while b"entry" in path:
                at = path.index(b"entry")
                path[at - 1 : at + 1] = [b"key_value"]
    return edited.data()


TEXT = entries(pa.string(), pa.float64())
COLUMNS: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "plain": (TEXT, [[("a", 1.5), ("b", None)], [], None, [("", -1.0)]], pa.map_(pa.string(), pa.float64())),
    "numbers": (
        entries(pa.int32(), pa.string()),
        [[(1, "x")], [(2, None), (-3, "y")], None, []],
        pa.map_(pa.int32(), pa.string()),
    ),
    "in_struct": (
        pa.struct([("s", pa.int8()), ("m", TEXT)]),
        [{"s": 1, "m": [("a", 1.0)]}, None, {"s": None, "m": None}, {"s": 2, "m": []}],
        pa.struct([("s", pa.int8()), ("m", pa.map_(pa.string(), pa.float64()))]),
    ),
    "in_list": (
        pa.list_(TEXT),
        [[[("a", 1.0)], None, []], None, [], [[("b", None)], [("c", 2.0), ("d", 3.0)]]],
        pa.list_(pa.map_(pa.string(), pa.float64())),
    ),
    "of_maps": (
        entries(pa.string(), TEXT),
        [[("a", [("x", 1.0)]), ("b", None)], [], None, [("c", [])]],
        pa.map_(pa.string(), pa.map_(pa.string(), pa.float64())),
    ),
    "struct_keys": (
        entries(pa.struct([("x", pa.int64()), ("y", pa.string())]), pa.list_(pa.int64())),
        [[({"x": 1, "y": "a"}, [1, None])], None, [({"x": None, "y": None}, None)], []],
        pa.map_(pa.struct([("x", pa.int64()), ("y", pa.string())]), pa.list_(pa.int64())),
    ),
}


def listed(values: list[Any]) -> list[Any]:
    """Return ``values`` with structs in place of pairs."""
    if isinstance(values, tuple):
        return {"key": listed(values[0]), "value": listed(values[1])}
    if isinstance(values, list):
        return [listed(value) for value in values]
    return {name: listed(value) for name, value in values.items()} if isinstance(values, dict) else values


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
async def test_maps_with_optional_keys_are_read(name: str, stored: bool, tmp_path: Path) -> None:
    written, values, type_ = COLUMNS[name]
    rows = [*values * 7, values[0]]
    table = pa.table({"id": range(len(rows)), "m": pa.array(listed(rows), written)})
    path = tmp_path / "a.parquet"
    path.write_bytes(as_maps(table, row_group_size=15, rows_per_page=4, store_schema=stored))
    expected = pa.array(rows, type_)
    async with asyncpq.Session() as session:
        file = await session.open_file(str(path))
        assert file.schema.field("m").type.equals(expected.type)
        for columns in (None, ["m"]):
            read = await file.read(columns)
            read.validate(full=True)
            assert read["m"].combine_chunks().equals(expected)
        assert (await file.read(["m"], "id IN (2, 16)"))["m"].to_pylist() == [rows[2], rows[16]]
        assert (await file.read(["id"], "m IS NULL"))["id"].to_pylist() == [
            number for number, row in enumerate(rows) if row is None
        ]
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read(["m"]))["m"].to_pylist() == rows
        assert not (await file.lint())["findings"]
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE m IS NULL").fetchall() == [(rows.count(None),)]


async def test_duckdb_and_asyncpq_agree(tmp_path: Path) -> None:
    written, values, _ = COLUMNS["plain"]
    path = tmp_path / "a.parquet"
    path.write_bytes(as_maps(pa.table({"m": pa.array(listed(values), written)})))
    async with asyncpq.Session() as session:
        read = (await (await session.open_file(str(path))).read())["m"].to_pylist()
    answer = [
        None if row is None else [*row.items()] if isinstance(row, dict) else row
        for (row,) in duckdb.sql(f"FROM '{path}'").fetchall()
    ]
    assert read == answer == values


async def test_types_of_values_that_only_arrow_schema_gives(tmp_path: Path) -> None:
    """The stored schema of a writer that declares maps, with keys that Parquet declares OPTIONAL."""
    value = pa.dictionary(pa.int32(), pa.string())
    written = entries(pa.large_string(), value)
    path = tmp_path / "a.parquet"
    edited = EditedFile(as_maps(pa.table({"m": pa.array([listed([("a", "x")]), []], written)})))
    type_ = pa.map_(pa.large_string(), value)
    sink = EditedFile.of(pa.table({"m": pa.array([[("a", "x")], []], type_)}))
    edited.footer.put(5, sink.footer.value(5))
    path.write_bytes(edited.data())
    async with asyncpq.Session() as session:
        file = await session.open_file(str(path))
        assert file.schema.field("m").type == type_
        assert (await file.read())["m"].combine_chunks() == pa.array([[("a", "x")], []], type_)


async def test_a_null_key_is_named_by_its_row(tmp_path: Path) -> None:
    rows = [[("a", 1.0)], None, [], [("b", 2.0), (None, 3.0)], [("c", None)]] * 2
    path = tmp_path / "a.parquet"
    path.write_bytes(as_maps(pa.table({"id": range(10), "m": pa.array(listed(rows), TEXT)}), row_group_size=5))
    async with asyncpq.Session() as session:
        file = await session.open_file(str(path))
        with pytest.raises(UnsupportedFeatureError, match="row 3 has a map with a null key") as raised:
            await file.read()
        assert raised.value.column == "m"
        with pytest.raises(UnsupportedFeatureError, match="row 8 has a map with a null key"):
            await file.read(["m.key_value.key"], "id > 5")
        assert (await file.read(["id", "m"], "id IN (0, 1, 9)"))["m"].to_pylist() == [rows[0], None, rows[4]]
        values = await file.read(["m.key_value.value"])
        assert [len(row) for row in values["m"].to_pylist() if row is not None] == [1, 0, 2, 1] * 2
        assert (await file.read(["id"]))["id"].to_pylist() == [*range(10)]


async def test_required_keys_are_not_checked(tmp_path: Path) -> None:
    """Files without optional keys are decoded as maps at once."""
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        file = await session.open_file(str(tmp_path / "a.parquet"))
        assert (await file.read())["m"].to_pylist() == [[("a", 1)]]


async def test_an_encrypted_file_with_optional_keys_is_not_supported(tmp_path: Path) -> None:
    """pyarrow, which decrypts it, refuses the whole file."""
    key = b"0123456789012345"
    table = pa.table({"id": [1, 2], "m": pa.array([[{"key": "a", "value": 1.5}], []], TEXT)})
    encrypting = encryption.create_encryption_properties(key, plaintext_footer=True)
    (tmp_path / "a.parquet").write_bytes(as_maps(table, encryption_properties=encrypting))
    decrypting = encryption.create_decryption_properties(key, check_footer_integrity=False)
    async with asyncpq.Session() as session:
        with pytest.raises(UnsupportedFeatureError, match="a map in an encrypted file has optional keys") as caught:
            await session.open_file(tmp_path / "a.parquet", decryption_properties=decrypting)
    assert "write it with required keys" in (caught.value.hint or "")
