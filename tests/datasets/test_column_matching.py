"""How a file's columns are matched with a dataset's: by field id, by name, in place or not."""

from __future__ import annotations

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import TableField
from tests.parquet_bytes import parquet_bytes
from tests.reads import TABLE, read_as


def _with_ids() -> bytes:
    def field(name: str, number: int) -> pa.Field:
        return pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})

    return parquet_bytes(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], schema=pa.schema([field("a", 1), field("b", 2)]))
    )


def test_a_column_that_was_renamed_and_its_name_given_to_another() -> None:
    """Iceberg: rename a to c, add another a."""
    fields = (TableField(name="c", type=pa.int64(), field_id=1), TableField(name="a", type=pa.int64(), field_id=3))
    schema = pa.schema([(field.name, field.type) for field in fields])
    assert read_as(_with_ids(), schema, fields=fields).to_pylist() == [{"c": 1, "a": None}]
    assert read_as(_with_ids(), schema, fields=fields, where=col("a").is_valid()).num_rows == 0
    assert read_as(_with_ids(), schema, fields=fields, where=col("c") == 1).num_rows == 1


def test_names_count_where_a_file_has_no_ids() -> None:
    fields = (
        TableField(name="c", type=pa.int64(), field_id=1, names=("old", "a")),
        TableField(name="b", type=pa.int64(), field_id=2, names=("b",)),
    )
    schema = pa.schema([(field.name, field.type) for field in fields])
    data = parquet_bytes(pa.table({"b": [2], "a": [1]}))
    assert read_as(data, schema, fields=fields).to_pylist() == [{"c": 1, "b": 2}]
    nameless = (TableField(name="b", type=pa.int64(), field_id=2),)
    with pytest.raises(asyncpq.SchemaMismatchError, match="no field ids"):
        read_as(data, pa.schema([("b", pa.int64())]), fields=nameless)


def test_one_column_of_a_file_is_not_two_of_the_dataset() -> None:
    fields = (TableField(name="c", type=pa.int64(), names=("a",)), TableField(name="d", type=pa.int64(), names=("a",)))
    schema = pa.schema([(field.name, field.type) for field in fields])
    with pytest.raises(asyncpq.AmbiguousColumnError):
        read_as(parquet_bytes(pa.table({"a": [1]})), schema, fields=fields)


def test_lists_with_names_of_their_own() -> None:
    data = parquet_bytes(TABLE.select(["l"]), use_compliant_nested_type=False)
    schema = TABLE.select(["l"]).schema
    assert read_as(data, schema, columns=["l.list.element.k"], limit=1).to_pylist() == [{"l": [{"k": 0}]}]


def test_fields_that_changed_places_by_id() -> None:
    def struct(first: int, second: int) -> pa.DataType:
        ids = [{"PARQUET:field_id": str(number)} for number in (first, second)]
        return pa.struct([pa.field("a", pa.int8(), metadata=ids[0]), pa.field("b", pa.int8(), metadata=ids[1])])

    kind = struct(2, 3)
    table = pa.Table.from_arrays(
        [pa.array([{"a": 1, "b": 2}], kind)],
        schema=pa.schema([pa.field("s", kind, metadata={"PARQUET:field_id": "1"})]),
    )
    children = (TableField(name="a", type=pa.int8(), field_id=3), TableField(name="b", type=pa.int8(), field_id=2))
    fields = (TableField(name="s", type=kind, field_id=1, children=children),)
    data = parquet_bytes(table)
    assert read_as(data, table.schema, fields=fields).to_pylist() == [{"s": {"a": 2, "b": 1}}]


def test_fields_that_changed_places_in_a_list() -> None:
    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    inner = pa.struct([field("a", pa.int8(), 3), field("b", pa.int8(), 4)])
    schema = pa.schema([field("l", pa.list_(field("element", inner, 2)), 1)])
    data = parquet_bytes(pa.Table.from_arrays([pa.array([[{"a": 1, "b": 2}]], schema.field("l").type)], schema=schema))
    for numbers, same in (((3, 4), True), ((4, 3), False)):
        parts = tuple(
            TableField(name=name, type=pa.int8(), field_id=number) for name, number in zip("ab", numbers, strict=True)
        )
        element = TableField(name="element", type=inner, field_id=2, children=parts)
        fields = (TableField(name="l", type=schema.field("l").type, field_id=1, children=(element,)),)
        found = read_as(data, schema, fields=fields).column("l").to_pylist()
        assert found == [[{"a": 1, "b": 2} if same else {"a": 2, "b": 1}]]
