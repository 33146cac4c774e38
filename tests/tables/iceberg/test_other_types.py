"""Iceberg's types that Arrow or pyiceberg lack: variants are read as Delta's are, and a column that cannot be read
refuses itself, not its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.typedef import Record

import asyncpq
from asyncpq import col
from asyncpq.errors import UnsupportedFeatureError
from tests import variants
from tests.iceberg_tables import add_files, data_record, edited_metadata, make_table, path_of
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows


def retyped(column_type: Any) -> Callable[[dict[str, Any]], None]:
    """An edit of metadata that gives the second column another type, in a table of version 3."""

    def edit(document: dict[str, Any]) -> None:
        for schema in document["schemas"]:
            schema["fields"][1]["type"] = column_type
        document["format-version"] = 3
        document["next-row-id"] = 0

    return edit


def column(name: str, field_id: int, values: pa.Array) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, values.type, metadata={"PARQUET:field_id": str(field_id)}), values


def add_file(table: Table, name: str, *columns: tuple[pa.Field, pa.Array]) -> None:
    """A data file that pyiceberg does not write, with bounds of the column that pyiceberg takes for text."""
    path = Path(path_of(table.location())) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table([values for _, values in columns], schema=pa.schema([field for field, _ in columns]))
    pq.write_table(rows, path)
    record = data_record(
        table,
        f"file://{path}",
        Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
        lower_bounds={1: (0).to_bytes(8, "little"), 2: b"\x01"},
        upper_bounds={1: (99).to_bytes(8, "little"), 2: b"\x02"},
    )
    add_files(table, [record], ManifestContent.DATA)


VALUES: list[Any] = [{"a": 1, "b": "x"}, None, variants.MISSING, [1, 2], "text", {"a": "other"}]


async def test_variants_are_structs_of_their_bytes(tmp_path: Path) -> None:
    """Shredded or not, and also inside of lists."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    ids = pa.array(range(len(VALUES)), pa.int64())
    for name, make in (("plain.parquet", variants.plain), ("shredded.parquet", variants.shredded)):
        add_file(table, name, column("id", 1, ids), column("name", 2, make(VALUES)))
    url = edited_metadata(table, retyped("variant"))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(url, format="iceberg")
        assert dataset.schema.field("name").type.equals(
            pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
        )
        rows = (await dataset.read()).to_pylist()
        known = variants.plain(VALUES).to_pylist()
        assert [row["name"] for row in rows[:6]] == known
        for row, other, value in zip(rows[6:], known, VALUES, strict=True):
            if isinstance(value, dict):  # an object that was put together may be encoded in another way
                assert row["name"]["metadata"] == other["metadata"]
                assert row["name"]["value"]
            else:
                assert row["name"] == other
        assert (await dataset.read(["id"], where=col("name").is_null()))["id"].to_pylist() == [2, 2]
        assert (await dataset.lookup({"id": 4})).num_rows == 2


async def test_variants_inside_of_lists(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    values = variants.plain(VALUES)
    element = pa.field("element", values.type, metadata={"PARQUET:field_id": "9"})
    lists = pa.ListArray.from_arrays(pa.array([0, 4, 6], pa.int32()), values, type=pa.list_(element))
    add_file(table, "f.parquet", column("id", 1, pa.array([0, 1], pa.int64())), column("name", 2, lists))
    of_variants = {"type": "list", "element-id": 9, "element": "variant", "element-required": False}
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(edited_metadata(table, retyped(of_variants)), format="iceberg")
        assert (await dataset.read())["name"].to_pylist() == lists.to_pylist()


@pytest.mark.parametrize(
    ("column_type", "message"),
    [
        ("geometry", "Iceberg type geometry"),
        ("geography", "Iceberg type geography"),
        ("interval", "Iceberg type interval"),
        ({"type": "list", "element-id": 9, "element": "new(3)", "element-required": False}, r"type new\(3\).*element"),
    ],
)
async def test_a_column_that_cannot_be_read_refuses_itself(tmp_path: Path, column_type: Any, message: str) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 30))
    async with asyncpq.Session() as session:
        url = edited_metadata(table, retyped(column_type))
        dataset = await session.open_dataset(url, format="iceberg", on_bad_file="skip")
        assert (await dataset.read(["id"], where=col("id") == 17))["id"].to_pylist() == [17]
        assert await dataset.count() == 30
        assert (await dataset.lookup({"id": 3}, columns=["id"])).num_rows == 1
        for call in (dataset.read(), dataset.count(col("name").is_null()), dataset.lookup({"id": 3})):
            with pytest.raises(UnsupportedFeatureError, match=message) as caught:
                await call
            assert caught.value.column in ("name", "name.element")
            assert "columns=" in str(caught.value)


async def test_a_column_of_unknown_type_is_null(tmp_path: Path) -> None:
    """By the spec all its values are null, and no file has it."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    add_file(table, "f.parquet", column("id", 1, pa.array([0, 1], pa.int64())))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(edited_metadata(table, retyped("unknown")), format="iceberg")
        rows = await dataset.read()
        assert rows.schema.field("name").type == pa.null()
        assert rows.to_pylist() == [{"id": 0, "name": None}, {"id": 1, "name": None}]


async def test_a_struct_is_read_without_its_unreadable_part(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    table = make_table(tmp_path, schema)
    table.append(pa.table({"id": [1, 2], "s": [{"a": 5, "b": "x"}, None]}, schema=schema))

    def edit(document: dict[str, Any]) -> None:
        retyped(document["schemas"][0]["fields"][1]["type"])(document)
        document["schemas"][0]["fields"][1]["type"]["fields"][1]["type"] = "interval"

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(edited_metadata(table, edit), format="iceberg")
        assert (await dataset.read(["id", "s.a"], where=col("s.a") == 5)).to_pylist() == [{"id": 1, "s": {"a": 5}}]
        for columns in (None, ["s"], ["s.b"]):
            with pytest.raises(UnsupportedFeatureError, match="interval") as caught:
                await dataset.read(columns)
            assert caught.value.column == "s.b"
